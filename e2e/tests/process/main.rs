//! The connector as a program: everything that can be seen from outside of its process. Needs no cluster.
//!
//! `cargo xtask test --stage process`, or `cargo test -p berth-e2e --test process -- NAME`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails at that place")]

mod admin;
mod clients;
mod crash;
mod drain;
mod hostile;
mod quick_start;
mod sizes;
mod startup;
