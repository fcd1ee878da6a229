//! `berth-log`: the segmented, checksummed journal of the embedded broker.
//!
//! One journal per data directory, shared by every queue and store, so that one sync makes everybody's
//! facts durable. [`Log`] is a state machine without I/O: it is given records and results, and gives
//! storage operations. Only [`FileStorage`] touches files.
//!
//! The life of a record:
//!
//! ```text
//! log.append(purpose, kind, parts)?        -> Appended { position, lsn }, encoded, not written
//! while let Some(op) = log.poll_storage(now) { send to the log thread }
//!         log thread:  let stored = storage.execute(op)         one write + sync covers all that was
//! appended meanwhile log.handle_stored(now, stored); while let Some(event) = log.poll_event() { .. }
//! log.confirmed() >= lsn                   -> as durable as the fsync mode promises: confirm to the
//! producer
//! ```
//!
//! What it is not: it knows no queues, no messages and no liveness. Which records still matter, which
//! survivors of an old segment are appended again and when [`Log::truncate_head`] is called is the broker's
//! business.

mod batch;
mod error;
mod format;
mod log;
mod position;
mod reads;
mod recovery;
mod settings;
#[cfg(feature = "sim")]
pub mod sim;
mod space;
mod storage;

pub use error::{Error, IoAction, Refused};
pub use log::{Appended, Event, Log, Purpose, Read, SegmentInfo};
pub use position::{Lsn, Position, Record, SegmentId};
pub use reads::Cursor;
pub use recovery::Report;
pub use settings::{Fsync, Settings};
pub use storage::{Action, FileId, FileStorage, Outcome, Storage, StorageOp, Stored, Tag, Write, execute};
