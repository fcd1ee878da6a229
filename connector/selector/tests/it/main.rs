//! Selectors through the public interface.

mod bounds;
mod corpus;
mod guide;
mod message;
mod standard;
