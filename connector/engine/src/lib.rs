//! The acknowledgement engine and the port to a broker. No I/O, no clock: time is an argument.

pub mod port;
