//! The log: append, barrier, read, scan, give back.
//!
//! Invariants:
//! - one write or upkeep operation is out at a time, so batches reach the disk in the order of their
//!   numbers;
//! - a batch says which batch was synced before it was written (recovery judges by it, see `recovery`);
//! - segments are given back oldest first, and only after a batch that declares it has been synced;
//! - a failed write, sync or change of a name poisons the log: nothing more is written before a restart.

mod barrier;

use crate::batch::Batch;
use crate::error::{Error, Refused};
use crate::format::{FIRST_BATCH, RECORD_HEADER_BYTES, Seed};
use crate::position::{Lsn, Position, Record, SegmentId};
use crate::reads::{Cursor, Reads};
use crate::recovery::{self, Report};
use crate::settings::{Fsync, Settings};
use crate::space::{Space, Spare};
use crate::storage::{FileId, Outcome, Storage, StorageOp, Stored, Tag};
use berth_types::Instant;
use bytes::Bytes;
use std::collections::{BTreeSet, VecDeque};

/// What an append is for: how far it may use up the disk, and how long it may wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// New messages: refused with [`Refused::Full`] when only the reserve is left, with [`Refused::Busy`]
    /// when the disk is behind.
    Publish,
    /// Messages that go back to their queue: this frees nothing, so on a full disk it may use the least of
    /// the reserve.
    Requeue,
    /// Settlements that somebody waits for, and marks: what lets space come back. May use the reserve, but
    /// for what a move of survivors needs.
    Upkeep,
    /// Upkeep that nobody waits for: it rides the next barrier, and causes one after [`Log::LAZY_DELAY`].
    Lazy,
    /// Survivors of the oldest segment, before [`Log::truncate_head`]. May use the last file of the
    /// reserve, so that space can come back however full the disk is. Nobody waits for it, as for
    /// [`Purpose::Lazy`].
    Relocate,
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
        next: Option<Cursor>,
    },
    /// The end of a scan that failed.
    ScanFailed {
        /// The caller's token.
        token: u64,
        /// What is wrong.
        error: Error,
    },
    /// No further segment can be made, for this reason: publishes are refused when the room that is left is
    /// used up.
    DiskFull(Error),
    /// There is room again.
    DiskFreed,
    /// A write, a sync or a change of a name failed. Comes once; every append is refused from now on.
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

/// A segment file that has batches, or will have the next one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    pub(crate) id: SegmentId,
    pub(crate) capacity: u32,
    pub(crate) first_lsn: Lsn,
    /// Where the batches end that are written or being written: a multiple of a sector. Zero: it has no
    /// header.
    pub(crate) next: u32,
    /// Where the batches end that are written.
    pub(crate) written: u32,
}

/// A state of the log on the disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Mark {
    pub(crate) lsn: Lsn,
    pub(crate) batch: u64,
    /// The oldest segment in use, as the last batch says.
    pub(crate) head: SegmentId,
    /// The last batch is the mark of a clean end.
    pub(crate) closed: bool,
}

/// What recovery hands over.
#[derive(Debug)]
pub(crate) struct Recovered {
    pub(crate) secret: u64,
    /// Oldest first; never empty. Those before `mark.head` are still to be given back.
    pub(crate) segments: VecDeque<Segment>,
    pub(crate) spares: Vec<Spare>,
    pub(crate) next_id: u64,
    pub(crate) mark: Mark,
    /// Why no further spare file could be made.
    pub(crate) full: Option<Error>,
}

/// The operation that is out.
#[derive(Debug)]
enum Flight {
    Barrier {
        batches: Vec<Batch>,
        mark: Mark,
        is_synced: bool,
    },
    Create(Spare),
    /// Gets another number; the file of a segment that was given back, or a spare one.
    Rename(Spare),
    Remove,
}

/// One segmented journal. See the crate's documentation for how to drive it.
#[derive(Debug)]
pub struct Log {
    settings: Settings,
    secret: u64,
    segments: VecDeque<Segment>,
    space: Space,
    /// Waiting for the next write; the last one takes appends.
    pending: VecDeque<Batch>,
    /// Something in `pending` is waited for.
    is_urgent: bool,
    /// Since when something lazy has been pending.
    lazy_since: Option<Instant>,
    flight: Option<(u64, Flight)>,
    next_tag: u64,
    appended: Lsn,
    written: Mark,
    durable: Mark,
    /// The oldest segment in use, as the next batch will say.
    head: SegmentId,
    /// Segments that are written and not synced.
    unsynced: BTreeSet<SegmentId>,
    unsynced_since: Option<Instant>,
    is_sync_wanted: bool,
    is_closing: bool,
    /// There is no room to say which segments are given back.
    is_head_stuck: bool,
    is_poisoned: bool,
    was_full: bool,
    reads: Reads,
    events: VecDeque<Event>,
}

impl Log {
    /// Longest payload of a record in bytes: a message of the largest permitted size and its head.
    pub const RECORD_BYTES_MAX: u32 = 128 * 1024 * 1024;

    /// Longest time that a record with [`Purpose::Lazy`] waits for a barrier to start.
    pub const LAZY_DELAY: std::time::Duration = std::time::Duration::from_millis(10);

    /// Recovers the log in `storage`, or makes a new one, and gives every record after `from` to `visit` in
    /// the order in which it was appended. Segments that lie wholly before `from` are not read. Blocking.
    ///
    /// `visit` refuses a record it does not understand with a reason; that becomes [`Error::Corrupt`].
    ///
    /// # Errors
    /// [`Error::Corrupt`], [`Error::NewerFormat`], [`Error::Io`].
    pub fn open<S: Storage>(
        storage: &mut S,
        settings: Settings,
        from: Lsn,
        visit: &mut dyn FnMut(Lsn, Record) -> Result<(), &'static str>,
    ) -> Result<(Self, Report), Error> {
        let settings = settings.rounded();
        let (recovered, report) = recovery::recover(storage, &settings, from, visit)?;
        let mut space = Space::new(&settings, recovered.spares, recovered.next_id);
        if recovered.full.is_some() {
            let wanted = Spare { id: SegmentId(0), capacity: settings.segment_bytes };
            space.handle_not_made(wanted, Instant::ZERO);
        }
        let mut log = Self {
            settings,
            secret: recovered.secret,
            segments: recovered.segments,
            was_full: false,
            space,
            pending: VecDeque::new(),
            is_urgent: false,
            lazy_since: None,
            flight: None,
            next_tag: 0,
            appended: recovered.mark.lsn,
            written: recovered.mark,
            durable: recovered.mark,
            head: recovered.mark.head,
            unsynced: BTreeSet::new(),
            unsynced_since: None,
            is_sync_wanted: false,
            is_closing: false,
            is_head_stuck: false,
            is_poisoned: false,
            reads: Reads::default(),
            events: VecDeque::new(),
        };
        log.tell_of_space(recovered.full);
        Ok((log, report))
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
    pub fn append(&mut self, purpose: Purpose, kind: u8, parts: &[Bytes]) -> Result<Appended, Refused> {
        if self.is_poisoned {
            return Err(Refused::Poisoned);
        }
        let length: usize = parts.iter().map(Bytes::len).sum();
        let length = u32::try_from(length).ok().filter(|length| *length <= Self::RECORD_BYTES_MAX);
        let length = length.ok_or(Refused::TooLarge)?;
        let unwritten = self.unwritten_bytes();
        let is_behind = unwritten > 0 && unwritten + u64::from(length) > self.settings.unwritten_bytes_max;
        if purpose == Purpose::Publish && is_behind {
            return Err(Refused::Busy);
        }
        self.open_batch(Some(length), purpose).map_err(|refused| match refused {
            Refused::Full if self.is_reclaiming() => Refused::Busy,
            refused => refused,
        })?;
        let batch = self.pending.back_mut().expect("invariant: open_batch made one");
        let position = batch.push(kind, length, parts);
        self.appended.0 += 1;
        self.is_urgent |= matches!(purpose, Purpose::Publish | Purpose::Requeue | Purpose::Upkeep);
        self.is_closing = false;
        Ok(Appended { position, lsn: self.appended })
    }

    /// The next operation for the disk. At most one barrier or upkeep operation is out at a time, besides
    /// reads; what is appended meanwhile shares the next barrier. Operations are to be executed in the
    /// order given; reads ([`crate::Action::Read`]) may be executed out of order, on another thread.
    pub fn poll_storage(&mut self, now: Instant) -> Option<StorageOp> {
        if let Some(op) = self.poll_read() {
            return Some(op);
        }
        if self.flight.is_some() || self.is_poisoned {
            return None;
        }
        if let Some(wanted) = self.space.poll_urgent(now) {
            return Some(self.create(wanted));
        }
        if let Some(op) = self.poll_barrier(now) {
            return Some(op);
        }
        if let Some(op) = self.poll_reclaim() {
            return Some(op);
        }
        let wanted = self.space.poll_ahead(now)?;
        Some(self.create(wanted))
    }

    /// Takes the result of an operation with [`crate::Tag::Log`].
    pub fn handle_stored(&mut self, now: Instant, stored: Stored) {
        let Tag::Log(tag) = stored.tag else { unreachable!("the result of somebody else's operation") };
        let secret = self.secret;
        let seed = |segment| Seed::new(secret, segment);
        let Some(outcome) = self.reads.handle(tag, stored.outcome, seed, &mut self.events) else { return };
        let (expected, flight) = self.flight.take().expect("a result without an operation");
        assert_eq!(expected, tag, "results come in the order of operations");
        match (flight, outcome) {
            (Flight::Create(wanted), Outcome::Failed { action, file, source }) => {
                self.space.handle_not_made(wanted, now);
                self.tell_of_space(Some(Error::Io { action, file, source }));
            }
            (_, Outcome::Failed { action, file, source }) => {
                self.is_poisoned = true;
                self.events.push_back(Event::Failed(Error::Io { action, file, source }));
            }
            (Flight::Barrier { batches, mark, is_synced }, _) => {
                self.handle_written(&batches, mark, is_synced);
            }
            (Flight::Create(spare), _) => self.space.handle_made(spare),
            (Flight::Rename(spare), _) => self.space.add(spare),
            (Flight::Remove, _) => self.space.handle_removed(now),
        }
        self.tell_of_space(None);
    }

    /// The next thing that the owner must hear of.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When [`Log::poll_storage`] is to be called again although nothing happened: a sync or a lazy record
    /// is due, or a full disk is tried again.
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.flight.is_some() || self.is_poisoned {
            return None;
        }
        let sync = match self.settings.fsync {
            Fsync::Interval => self.unsynced_since.map(|since| since + Fsync::INTERVAL),
            Fsync::Always | Fsync::Never => None,
        };
        let lazy = self.lazy_since.map(|since| since + Self::LAZY_DELAY);
        [sync, lazy, self.space.poll_timeout()].into_iter().flatten().min()
    }

    /// Number of the last record appended.
    pub fn appended(&self) -> Lsn {
        self.appended
    }

    /// Records up to this number are written: they survive the end of the process.
    pub fn written(&self) -> Lsn {
        self.written.lsn
    }

    /// Records up to this number are synced: they survive a power cut.
    pub fn durable(&self) -> Lsn {
        self.durable.lsn
    }

    /// Records up to this number are as durable as the fsync mode promises: [`Log::durable`] with
    /// [`crate::Fsync::Always`], else [`Log::written`].
    pub fn confirmed(&self) -> Lsn {
        match self.settings.fsync {
            Fsync::Always => self.durable(),
            Fsync::Interval | Fsync::Never => self.written(),
        }
    }

    /// Asks for a sync of everything appended so far, whatever the fsync mode (a checkpoint needs it).
    pub fn request_sync(&mut self) {
        self.is_sync_wanted = true;
    }

    /// Reads the record at `position`, from memory when it is not written yet. Neighbouring reads that are
    /// asked for together, in ascending order, share one operation.
    pub fn read(&mut self, position: Position, token: u64) -> Read {
        let flying = match &self.flight {
            Some((_, Flight::Barrier { batches, .. })) => batches.as_slice(),
            _ => &[],
        };
        let mut in_memory = self.pending.iter().chain(flying);
        if let Some(record) = in_memory.find_map(|batch| batch.read(position)) {
            return Read::Ready(record);
        }
        let end = u64::from(position.offset) + u64::from(RECORD_HEADER_BYTES) + u64::from(position.length);
        if end > self.readable(position.segment) {
            let file = FileId::Segment(position.segment);
            let reason = "the log has no record there";
            let error = Error::Corrupt { file, offset: position.offset.into(), reason };
            self.events.push_back(Event::Read { token, result: Err(error) });
        } else {
            self.reads.read(position, token);
        }
        Read::Pending
    }

    /// Reads the next records of a segment, up to about 1 MiB: from [`Cursor::start`], or from where the
    /// last [`Event::Scanned`] said. Only what is written is seen. Ends with one event.
    pub fn scan(&mut self, from: Cursor, token: u64) {
        if self.readable(from.segment()) == 0 {
            self.events.push_back(Event::Scanned { token, records: Vec::new(), next: None });
        } else {
            self.reads.scan(from, token);
        }
    }

    /// Drops every segment before `segment`: their records are never visited again, and their space is
    /// given back or used again. Happens after everything appended so far is durable, so survivors are
    /// appended again first. The segment that is written stays.
    pub fn truncate_head(&mut self, segment: SegmentId) {
        let kept = self.segments.iter().find(|kept| kept.id >= segment);
        let oldest = kept.unwrap_or_else(|| self.current()).id;
        if oldest > self.head {
            self.head = oldest;
            self.is_sync_wanted = true;
        }
    }

    /// The segments in use, oldest first; the last one takes appends.
    pub fn segments(&self) -> impl Iterator<Item = SegmentInfo> + '_ {
        self.segments.iter().filter(|segment| segment.id >= self.head).map(|segment| {
            let waiting = self.pending.iter().filter(|batch| batch.segment == segment.id);
            let used = waiting.map(Batch::next_start).chain([segment.written, FIRST_BATCH]).max();
            SegmentInfo {
                id: segment.id,
                used_bytes: used.unwrap_or(FIRST_BATCH),
                capacity_bytes: segment.capacity,
                first_lsn: segment.first_lsn,
            }
        })
    }

    /// The oldest segment in use.
    pub fn oldest(&self) -> SegmentId {
        self.head
    }

    /// Encoded bytes that are not written yet.
    pub fn unwritten_bytes(&self) -> u64 {
        let flying: u64 = match &self.flight {
            Some((_, Flight::Barrier { batches, .. })) => batches.iter().map(Batch::bytes).sum(),
            _ => 0,
        };
        flying + self.pending.iter().map(Batch::bytes).sum::<u64>()
    }

    /// Bytes of files that publishes can still use before they are refused, when the disk gives no more.
    pub fn publish_room_bytes(&self) -> u64 {
        self.room_bytes().saturating_sub(self.space.kept_bytes(Purpose::Publish))
    }

    /// Bytes of files that can still be used when the disk gives no more, the reserve included.
    pub fn room_bytes(&self) -> u64 {
        let current = self.current();
        u64::from(current.capacity - self.next_start(current)) + self.space.spare_bytes()
    }

    /// The disk gives no more, and the reserve is in use so far that survivors should move
    /// ([`Purpose::Relocate`]) when that gains space.
    pub fn is_short(&self) -> bool {
        self.space.is_full() && self.room_bytes() < self.space.short_bytes()
    }

    /// Files of segments that were given back are on their way to be used again. Meanwhile nothing is refused
    /// with [`Refused::Full`], but with [`Refused::Busy`].
    pub fn is_reclaiming(&self) -> bool {
        let is_given_back = self.segments.front().is_some_and(|oldest| oldest.id < self.head);
        let flies = matches!(self.flight, Some((_, Flight::Rename(_) | Flight::Remove)));
        (is_given_back && !self.is_head_stuck) || flies
    }

    /// Asks for a last barrier that marks the log as closed. Done when [`Log::poll_storage`] has nothing
    /// left and [`Log::is_idle`]. An append after it takes the mark back.
    pub fn close(&mut self) {
        self.is_closing = true;
        self.is_sync_wanted = true;
    }

    /// No barrier or upkeep is out or wanted, and nothing is unwritten.
    pub fn is_idle(&self) -> bool {
        self.flight.is_none()
            && self.pending.is_empty()
            && !self.is_sync_wanted
            && (self.durable.closed || !self.is_closing)
            && (self.durable.head == self.head || self.is_head_stuck)
    }

    /// A write, a sync or a change of a name failed: see [`Event::Failed`].
    pub fn is_poisoned(&self) -> bool {
        self.is_poisoned
    }
}
