//! The log: append, barrier, read, scan, give back.

use crate::error::{Error, Refused};
use crate::position::{Lsn, Position, Record, SegmentId};
use crate::settings::Settings;
use crate::storage::{Storage, StorageOp, Stored};
use berth_types::Instant;
use bytes::Bytes;

/// May an append use the reserve?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// New messages: refused with [`Refused::Full`] when only the reserve is left, with [`Refused::Busy`]
    /// when the disk is behind.
    Publish,
    /// Settlements, marks, moves, positions, relocation: what lets space come back. May use the reserve.
    Upkeep,
}

/// An append that was taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Appended {
    /// Where the record will lie.
    pub position: Position,
    /// Its number; compare with [`Log::confirmed`] or [`Log::durable`].
    pub lsn: Lsn,
}

/// The answer to [`Log::read`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Read {
    /// It was in memory.
    Ready(Record),
    /// It is being read; [`Event::Read`] follows.
    Pending,
}

/// Something that the log's owner must hear of.
#[derive(Debug)]
pub enum Event {
    /// The end of a [`Log::read`]. Exactly one for each that was pending.
    Read {
        /// The caller's token.
        token: u64,
        /// The record, or what is wrong with it.
        result: Result<Record, Error>,
    },
    /// A part of a segment, for [`Log::scan`].
    Scanned {
        /// The caller's token.
        token: u64,
        /// Records in the order of the log.
        records: Vec<Record>,
        /// Where to go on; none at the end of the segment (as far as it is written).
        next: Option<Position>,
    },
    /// The end of a scan that failed.
    ScanFailed {
        /// The caller's token.
        token: u64,
        /// What is wrong.
        error: Error,
    },
    /// The disk is full: publishes are refused from now on when the current segments are used up.
    DiskFull,
    /// There is room again.
    DiskFreed,
    /// A write or sync failed. Once, the last event but for reads; every append is refused from now on.
    Failed(Error),
}

/// A segment in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentInfo {
    /// Its number.
    pub id: SegmentId,
    /// Bytes of the file in use, header included.
    pub used_bytes: u32,
    /// Length of the file.
    pub capacity_bytes: u32,
    /// The number of its first record (of the next one when it has none).
    pub first_lsn: Lsn,
}

/// What recovery found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// Number of the last record that survived; zero in an empty log.
    pub last_lsn: Lsn,
    /// Records visited.
    pub records: u64,
    /// A torn tail was cut here: to be logged as a warning. Nothing behind it was ever confirmed as
    /// durable.
    pub cut: Option<(SegmentId, u32)>,
    /// The log was closed with [`Log::close`] and nothing was appended after it.
    pub clean: bool,
}

/// One segmented journal. See the crate's documentation for how to drive it.
#[derive(Debug)]
pub struct Log {}

impl Log {
    /// Longest payload of a record in bytes: a message of the largest permitted size and its head.
    pub const RECORD_BYTES_MAX: u32 = 128 * 1024 * 1024;

    /// Recovers the log in `storage`, or makes a new one, and gives every record after `from` to `visit` in
    /// the order in which it was appended. Segments that lie wholly before `from` are not read. Blocking.
    ///
    /// `visit` refuses a record it does not understand with a reason; that becomes [`Error::Corrupt`].
    ///
    /// # Errors
    /// [`Error::Corrupt`], [`Error::NewerFormat`], [`Error::Io`].
    pub fn open<S: Storage>(
        _storage: &mut S,
        _settings: Settings,
        _from: Lsn,
        _visit: &mut dyn FnMut(Lsn, Record) -> Result<(), &'static str>,
    ) -> Result<(Self, Report), Error> {
        unimplemented!()
    }

    /// Appends a record of `kind` whose payload is `parts` joined. Large parts are kept by reference, not
    /// copied.
    ///
    /// Takes the record at once and answers where it will lie; it is confirmed when [`Log::confirmed`] has
    /// reached its number. Records become durable in the order of their numbers, and never a later one
    /// without the earlier ones.
    ///
    /// # Errors
    /// [`Refused`]; nothing was changed.
    pub fn append(&mut self, _purpose: Purpose, _kind: u8, _parts: &[Bytes]) -> Result<Appended, Refused> {
        unimplemented!()
    }

    /// The next operation for the disk. At most one barrier or upkeep operation is out at a time, besides
    /// reads; what is appended meanwhile shares the next barrier. Operations are to be executed in the
    /// order given; reads ([`crate::Action::Read`]) may be executed out of order, on another thread.
    pub fn poll_storage(&mut self, _now: Instant) -> Option<StorageOp> {
        unimplemented!()
    }

    /// Takes the result of an operation with [`crate::Tag::Log`].
    pub fn handle_stored(&mut self, _now: Instant, _stored: Stored) {
        unimplemented!()
    }

    /// The next thing that the owner must hear of.
    pub fn poll_event(&mut self) -> Option<Event> {
        unimplemented!()
    }

    /// When [`Log::poll_storage`] is to be called again although nothing happened (a sync is due, or a full
    /// disk is tried again).
    pub fn poll_timeout(&self) -> Option<Instant> {
        unimplemented!()
    }

    /// Number of the last record appended.
    pub fn appended(&self) -> Lsn {
        unimplemented!()
    }

    /// Records up to this number are written: they survive the end of the process.
    pub fn written(&self) -> Lsn {
        unimplemented!()
    }

    /// Records up to this number are synced: they survive a power cut.
    pub fn durable(&self) -> Lsn {
        unimplemented!()
    }

    /// Records up to this number are as durable as the fsync mode promises: [`Log::durable`] with
    /// [`crate::Fsync::Always`], else [`Log::written`].
    pub fn confirmed(&self) -> Lsn {
        unimplemented!()
    }

    /// Asks for a sync of everything appended so far, whatever the fsync mode (a checkpoint needs it).
    pub fn request_sync(&mut self) {
        unimplemented!()
    }

    /// Reads the record at `position`, from memory when it is not written yet. Neighbouring reads that are
    /// asked for together share one operation.
    pub fn read(&mut self, _position: Position, _token: u64) -> Read {
        unimplemented!()
    }

    /// Reads the next records of a segment, up to about 1 MiB: from its start, or from where the last
    /// [`Event::Scanned`] said. Only what is written is seen. Ends with one event.
    pub fn scan(&mut self, _segment: SegmentId, _from: Option<Position>, _token: u64) {
        unimplemented!()
    }

    /// Drops every segment before `segment`: their records are never visited again, and their space is
    /// given back or used again. Happens after everything appended so far is durable, so survivors are
    /// appended again first.
    pub fn truncate_head(&mut self, _segment: SegmentId) {
        unimplemented!()
    }

    /// The segments in use, oldest first; the last one is being written.
    pub fn segments(&self) -> impl Iterator<Item = SegmentInfo> + '_ {
        std::iter::empty()
    }

    /// The oldest segment in use.
    pub fn oldest(&self) -> SegmentId {
        unimplemented!()
    }

    /// Encoded bytes that are not written yet.
    pub fn unwritten_bytes(&self) -> u64 {
        unimplemented!()
    }

    /// Bytes that publishes can still append before they are refused, when the disk gives no more.
    pub fn publish_room_bytes(&self) -> u64 {
        unimplemented!()
    }

    /// Asks for a last barrier that marks the log as closed. Done when [`Log::poll_storage`] has nothing
    /// left and [`Log::is_idle`]. An append after it takes the mark back.
    pub fn close(&mut self) {
        unimplemented!()
    }

    /// No operation is out and nothing is unwritten or waiting for a sync.
    pub fn is_idle(&self) -> bool {
        unimplemented!()
    }

    /// An earlier write or sync failed.
    pub fn is_poisoned(&self) -> bool {
        unimplemented!()
    }
}
