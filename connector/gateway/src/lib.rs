//! Maps what protocols say to engine commands and back. No I/O, no clock: time is an argument.
//!
//! Each protocol has a [`Session`]: [`StompSession`] for STOMP. Who may do what is asked through
//! [`Access`]; what a broker's refusal reads like on each wire stands in one table, `refusal.rs`.

mod access;
mod refusal;
mod session;
mod stomp;

pub use access::{Access, Credentials, Login, OpenAccess, Principal, Right};
pub use refusal::{StompError, stomp_error};
pub use session::{Closed, Session};
pub use stomp::{StompContext, StompCounters, StompSession, StompSettings};
