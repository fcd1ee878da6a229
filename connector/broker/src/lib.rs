//! `berth-broker`: the embedded broker, a state machine over one journal.
//!
//! [`Broker`] implements the port of `berth-engine` for every connection of a process: operations go in,
//! completions come out, storage operations go to whoever owns the disk. It has no thread, no file and no
//! clock. Every connection shares one broker, so each call names the connection.
//!
//! ```text
//! let (mut broker, recovered) = Broker::open(&mut storage, settings, now)?;   // replays the journal
//! broker.submit(now, connection, op, operation);
//! while let Some(op) = broker.poll_storage(now) { /* berth_log::execute on the thread of the disk */ }
//! broker.handle_stored(now, stored);
//! while let Some((connection, op, completion)) = broker.poll() { /* to that connection's outbox */ }
//! ```
//!
//! **After every `submit`, `disconnect`, `handle_*`, drain `poll` and `poll_storage` before waiting again.**
//! Many operations may be submitted between two polls: what they append shares one barrier.

mod broker;
mod cache;
mod consume;
mod index;
mod job;
mod journal;
mod pager;
mod publish;
mod queue;
mod reads;
mod record;
mod recover;
mod settings;
mod settle;
mod space;
mod stats;
mod varint;

pub use broker::Broker;
pub use recover::Recovered;
pub use settings::Settings;
pub use stats::{QueueStats, Stats};
