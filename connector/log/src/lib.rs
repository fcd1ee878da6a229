//! `berth-log`: the segmented, checksummed journal of the embedded broker.
//!
//! One journal per data directory, shared by every queue and store, so that one sync makes everybody's
//! facts durable. [`Log`] is a state machine without I/O: it takes records and results, and gives
//! operations for the disk. Only [`FileStorage`] touches files.
//!
//! What it is not: it knows no queues, no messages and no liveness. Which records still matter, which
//! survivors of an old segment are appended again and when [`Log::truncate_head`] is called is its owner's
//! business.
//!
//! # How to drive it
//!
//! ```
//! use berth_log::{FileStorage, Log, Lsn, Purpose, Settings, execute};
//! use berth_types::Instant;
//!
//! # let dir = tempfile::tempdir()?;
//! let mut storage = FileStorage::open(dir.path())?;
//! let mut visit = |_lsn, _record| Ok(()); // build the state from the facts
//! let (mut log, report) = Log::open(&mut storage, Settings::default(), Lsn(0), &mut visit)?;
//! assert!(report.cut.is_none());
//! let appended = log.append(Purpose::Publish, 1, &["head".into(), "body".into()])?;
//! let now = Instant::ZERO;
//! while let Some(op) = log.poll_storage(now) {
//!     let stored = execute(&mut storage, op); // on the thread of the disk
//!     log.handle_stored(now, stored);
//!     while let Some(_event) = log.poll_event() {}
//! }
//! assert!(log.confirmed() >= appended.lsn); // now tell the producer
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! After every call that changes something, drain [`Log::poll_storage`] and [`Log::poll_event`]; call them
//! again at [`Log::poll_timeout`]. Give the operations to the disk in their order and the results back in
//! the same order; only reads may overtake.
//!
//! # The life of a record
//!
//! 1. *Constraints.* A confirmed record survives `kill -9`, and with [`Fsync::Always`] a power cut. The
//!    disk may lose or tear what is not synced, in any order. It may be full: only appends are refused
//!    then, never a write or sync.
//! 2. *Bytes.* [`Log::append`] encodes the record into the open batch at once and answers its [`Position`]
//!    and [`Lsn`]. Large parts are kept by reference. A batch belongs to one segment; when that is full the
//!    next spare file is begun.
//! 3. *Write and sync.* [`Log::poll_storage`] gives one barrier at a time, with everything that was
//!    appended until then. What is appended while it runs shares the next one. [`Purpose::Lazy`] records
//!    cause none of their own for 10 ms.
//! 4. *Read.* [`Log::read`] answers from memory what is not written yet, else by an operation;
//!    [`Log::scan`] goes through a segment. Every record is proven by its checksum before it is given out.
//! 5. *Recover.* [`Log::open`] finds where the log ends, cuts a torn tail, refuses damage with file and
//!    offset, and visits the records in order.
//! 6. *Give back.* [`Log::truncate_head`] drops whole segments at the head, once that is durable. Their
//!    files are used again.
//!
//! The bytes are drawn in `format.rs`, the argument for recovery stands in `recovery.rs`, the decision in
//! `docs/adr/0002-own-journal.md`.
//!
//! # Side files
//!
//! The owner may keep files of its own that can be rebuilt ([`FileId::Side`]) through the same
//! [`StorageOp`]s, with [`Tag::Side`]. They are not allocated in advance and may meet a full disk.

mod batch;
mod error;
mod format;
#[cfg(feature = "sim")]
mod fuzz;
mod log;
mod position;
mod reads;
mod recovery;
mod settings;
#[cfg(feature = "sim")]
pub mod sim;
mod space;
mod storage;

#[cfg(feature = "sim")]
pub use fuzz::fuzz_recover;

pub use error::{Error, IoAction, Refused};
pub use log::{Appended, Event, Log, Purpose, Read, SegmentInfo};
pub use position::{Lsn, Position, Record, SegmentId};
pub use reads::Cursor;
pub use recovery::Report;
pub use settings::{Fsync, Settings};
pub use storage::{Action, FileId, FileStorage, Outcome, Storage, StorageOp, Stored, Tag, Write, execute};
