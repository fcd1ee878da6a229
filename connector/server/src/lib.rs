//! The connector: sockets, threads and clocks around the pure crates. This crate is the binary
//! `berth-connector`; the library exists so that its parts can be tested.
//!
//! ```text
//! listen -> connection (one task each: socket <-> Session)  -> inbox  -> shard (one task: Broker) ->
//! log_thread                      <- outbox of that connection         <-                                   
//! <- (write, fdatasync) admin: probes, metrics, API     reload: dynamic.yaml      shutdown: SIGTERM to exit
//! ```
//!
//! # The runtime
//! Multi-threaded tokio with one worker for each core, and one thread for the disk. Reading, parsing and
//! writing of different connections is independent work and is most of what a message costs; one worker would
//! leave the second core of a small machine to the disk, which mostly waits. The shard is a task, not a
//! thread: woken by a connection, it runs next on the same worker, so a hop costs no system call and finds
//! its data in the cache; a thread of its own would cost two futex calls a hop when the load is light, and
//! gain nothing when it is heavy. The disk has a thread because `fdatasync` blocks.

mod admin;
mod app;
mod cli;
mod clock;
mod connection;
mod connections;
mod failure;
mod front;
mod listen;
mod log_thread;
mod mailbox;
mod memory;
mod metrics;
mod node;
mod prepare;
mod process;
mod reload;
mod shard;
mod shutdown;
mod sources;
mod telemetry;

pub use app::main;
pub use failure::Failure;
