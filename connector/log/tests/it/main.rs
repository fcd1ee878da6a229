//! The log on a simulated disk and on a real one.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod basics;
mod crash;
mod damage;
mod files;
mod space;
mod world;
