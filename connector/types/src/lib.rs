//! The words that every crate of the connector shares: time, identifiers, messages, destinations, outcomes,
//! bounds.
//!
//! Nothing here decides anything; it only says what things are. No I/O, no clock, no threads.
//!
//! | say | meaning |
//! |---|---|
//! | message | what a producer sent; immutable |
//! | destination | a [`Pattern`] and a [`ChannelName`]: where a message is sent |
//! | delivery | one attempt to hand one message to one subscription |
//! | settle | end a delivery with an [`Outcome`] |
//! | confirm | our durable "yes" to a producer |
//! | ack deadline | when an unsettled delivery expires |
//! | credit | how many more deliveries a subscription will take |

mod destination;
mod id;
pub mod limits;
mod message;
mod outcome;
mod ranges;
mod time;

pub use destination::{ChannelName, Destination, Group, InvalidChannel, Pattern};
pub use id::{ConnectionId, DeliveryId, MessageId, OpId, Seq, SubId, TxnId};
pub use message::{Encoding, Envelope, Field, Message, Value, View};
pub use outcome::Outcome;
pub use ranges::Ranges;
pub use time::{Instant, Now, Timestamp};
