//! STOMP 1.0, 1.1 and 1.2 for a server, as a state machine without I/O.
//!
//! The crate turns bytes into frames and requests, and answers into bytes. It knows the rules of the wire:
//! framing, escaping per version, the handshake, heart-beats, which header a command needs, what may follow
//! what. It knows no queues, no subscriptions and no broker: those live behind [`Event`].
//!
//! Time and bytes are arguments; nothing here reads a clock or a socket. A loop in a few lines:
//!
//! ```
//! use berth_stomp::{Accept, Connection, Event, Settings};
//! use berth_types::Instant;
//! use bytes::BytesMut;
//!
//! let now = Instant::ZERO;
//! let mut connection = Connection::new(Settings::default(), now);
//! let mut input = BytesMut::from(&b"CONNECT\naccept-version:1.2\nhost:/\n\n\0"[..]);
//! connection.handle_received(now);
//! while let Some(event) = connection.poll_event(now, &mut input) {
//!     match event {
//!         Event::Connect(_login) => connection.accept(now, &Accept { session: "s-1", ..Accept::default() }),
//!         Event::Frame(frame) => println!("{:?}", frame.request()),
//!         Event::Violation(error) => connection.fail(now, &error.to_frame()),
//!         Event::Foreign(_) => connection.close(now),
//!     }
//! }
//! let mut slices = [std::io::IoSlice::new(&[]); 8];
//! assert_eq!(connection.poll_transmit(&mut slices), 1);
//! assert!(slices[0].starts_with(b"CONNECTED\nversion:1.2\n"));
//! ```
//!
//! Invariants: whatever the segmentation of the input, the same events come out; no input panics; memory is
//! bounded by the limits in [`Limits`]; between the first and the last byte of a frame nothing else is
//! written.

#![deny(clippy::indexing_slicing)]

mod connect;
mod connection;
mod decode;
mod encode;
mod error;
mod frame;
#[doc(hidden)]
pub mod fuzz;
mod output;
mod request;
mod timer;

pub use connect::{Connect, HeartBeat, Version};
pub use connection::{Accept, Connection, Event, MessageFrame, Settings};
pub use decode::{Decoder, Foreign, Limits, Mode, Role};
pub use encode::{encode_frame, encode_line};
pub use error::{ErrorFrame, Malformed, ProtocolError, Violation};
pub use frame::{Command, Frame, Header};
pub use output::Written;
pub use request::{AckMode, AckTarget, Request, Unsubscribe};
pub use timer::Timer;
