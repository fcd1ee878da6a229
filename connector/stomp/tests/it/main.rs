//! The codec and the connection on raw bytes. Tests that hold a rule of the conformance list carry its
//! number; the list is `docs/conformance/stomp.md`.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)] // Helpers of tests fail by panicking.

mod connect;
mod corpus;
mod framing;
mod headers;
mod heart_beat;
mod limits;
mod peer;
mod server_frames;
