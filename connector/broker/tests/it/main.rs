//! The broker on a simulated disk.

#![allow(clippy::unwrap_used, reason = "all of this crate is tests")]

mod basics;
mod bench;
mod crash;
mod files;
mod model;
mod races;
mod space;
