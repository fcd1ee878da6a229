//! The broker on a simulated disk.

mod basics;
mod bench;
