//! What to do next: pure functions of what was read.
//!
//! An action of several steps keeps no memory of its own: each step leaves the API in a state from which
//! planning again gives the next one, whichever process plans.

pub mod children;
pub mod rollout;
pub mod scale;
pub mod storage;
