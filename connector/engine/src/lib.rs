//! The acknowledgement engine and the port to a broker. No I/O, no clock: time is an argument.
//!
//! What it is: one [`Engine`] per client connection owns the pending tables, the windows, the ack deadlines
//! and the order of deliveries. It takes commands of a front-end and completions of a broker, and gives
//! back operations for the broker and events for the front-end. What it is not: order among ready messages,
//! receive counts, dead letters, expiry and delay belong to the broker; words of a protocol belong to the
//! gateway.
//!
//! **After every call that takes a time, drain [`Engine::poll_event`] and [`Engine::poll_operation`] to the
//! end before the next one.** Many commands may be given in a row before that drain (all frames of one
//! read): they become few operations.
//!
//! ```text
//! engine.settle(now, delivery, Outcome::Accepted, None);           // any number of commands of one input
//! while let Some(event) = engine.poll_event() { /* a frame, a receipt, a frame taken back */ }
//! while let Some((op, operation)) = engine.poll_operation() { /* to the broker */ }
//! engine.poll_timeout();                                           // when to call handle_timeout
//! ```
//!
//! The rules that hold over every order of inputs stand in `docs/delivery.md`; `tests/it/model.rs` holds
//! the engine against them.

mod command;
mod deadlines;
mod delivery;
mod engine;
mod outgoing;
pub mod port;
mod settlement;
mod stats;
mod subscription;

pub use command::{Correlation, End, Event, Mode, Settlement, Source, Subscribe, SubscriptionKey};
pub use engine::{Engine, Settings};
pub use stats::Stats;
