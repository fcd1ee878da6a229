//! STOMP sessions on raw bytes, in virtual time, against a broker in memory. Tests that hold a rule of the
//! conformance list carry its number; the list is `docs/conformance/stomp.md`.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)] // Helpers of tests fail by panicking.

mod ack_modes;
mod ack_timeout;
mod broker;
mod broker_not_ready;
mod conformance;
mod correlation;
mod embedded;
mod errors;
mod pressure;
mod random;
mod receipts;
mod send;
mod subscribe;
mod world;
