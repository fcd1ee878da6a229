//! The engine as a whole, without sockets, clocks or a broker.

#![allow(clippy::unwrap_used, reason = "all of this crate is tests")]

mod cases;
mod fake_kubemq;
mod kubemq_server;
mod model;
mod scripted;
