//! How a delivery ended, in AMQP's words, used by every front-end.

/// How a consumer settled a delivery.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Done with it: the message leaves the queue.
    Accepted,
    /// Will never be able to process it: the message leaves the queue and is counted as discarded.
    Rejected,
    /// Not tried: back to its old place, receive count unchanged.
    Released,
    /// Tried and failed: to the tail of the queue, receive count one higher, marked redelivered.
    Modified,
}
