//! The broker on a simulated disk.
#![allow(clippy::unwrap_used, missing_docs)]

mod basics;
mod bench;
