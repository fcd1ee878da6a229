//! The operator's passes against an API server in memory, and what it builds against golden files.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod controller;
mod fake;
mod golden;
mod harness;
mod kill;
mod leader;
mod passes;
mod rolling;
