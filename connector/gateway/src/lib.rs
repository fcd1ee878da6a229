//! Maps what protocols say to engine commands and back. No I/O, no clock: time is an argument.

mod session;

pub use session::{Closed, Session};
