//! How the log writes: where a batch goes, what a barrier covers, and when segments are given back.

use super::{Event, Flight, Log, Mark, Purpose, Segment};
use crate::batch::{Batch, Begin, Seal};
use crate::error::{Error, Refused};
use crate::format::{BATCH_HEADER_BYTES, FIRST_BATCH, RECORD_HEADER_BYTES, SECTOR_BYTES, Seed};
use crate::position::{Lsn, SegmentId};
use crate::settings::Fsync;
use crate::space::Spare;
use crate::storage::{Action, FileId, StorageOp, Tag, Write};
use berth_types::Instant;

impl Log {
    /// Makes the last pending batch one with room for a payload of `length` bytes (none: a mark, which says
    /// only what a batch header says).
    ///
    /// The last sector of a segment is left to a mark that gives segments back: however full the disk is,
    /// there is room for it.
    pub(super) fn open_batch(&mut self, length: Option<u32>, purpose: Purpose) -> Result<(), Refused> {
        let fits = |open: &Batch| length.is_none_or(|length| open.fits(length));
        let current = *self.current();
        if let Some(open) = self.pending.back().filter(|open| fits(open)) {
            let left = length.map(|length| open.left(length));
            return self.space.check(left, purpose);
        }
        let start = self.next_start(&current);
        let need = match length {
            None => BATCH_HEADER_BYTES,
            Some(length) => BATCH_HEADER_BYTES + RECORD_HEADER_BYTES + length + SECTOR_BYTES,
        };
        let is_new_log = current.next == 0 && self.pending.is_empty();
        let has_room = u64::from(start) + u64::from(need) <= u64::from(current.capacity);
        if self.pending.is_empty() && has_room {
            self.space.check(length.map(|_| current.capacity - start - need), purpose)?;
            let begin = is_new_log.then_some(Begin { previous: SegmentId(0), previous_end: 0 });
            self.push_batch(&current, start, begin);
            return Ok(());
        }
        let spare = self.space.take(current.id, FIRST_BATCH + need, purpose)?;
        if is_new_log {
            // The first segment of a log is never passed over: recovery knows a new log by it.
            let begin = Begin { previous: SegmentId(0), previous_end: 0 };
            self.push_batch(&current, start, Some(begin));
        }
        let begin = Begin { previous: current.id, previous_end: self.next_start(&current) };
        let Spare { id, capacity } = spare;
        let next = Segment { id, capacity, first_lsn: Lsn(self.appended.0 + 1), next: 0, written: 0 };
        self.segments.push_back(next);
        self.push_batch(&next, FIRST_BATCH, Some(begin));
        Ok(())
    }

    fn push_batch(&mut self, segment: &Segment, start: u32, begin: Option<Begin>) {
        let seed = Seed::new(self.secret, segment.id);
        let mut batch = Batch::new(segment.id, segment.capacity, seed, start, Lsn(self.appended.0 + 1));
        batch.begin = begin;
        self.pending.push_back(batch);
    }

    pub(super) fn current(&self) -> &Segment {
        self.segments.back().expect("invariant: a log has a segment")
    }

    /// Where the next batch of `segment` starts.
    pub(super) fn next_start(&self, segment: &Segment) -> u32 {
        let pending = self.pending.iter().rev().find(|batch| batch.segment == segment.id);
        pending.map_or(segment.next, Batch::next_start).max(FIRST_BATCH)
    }

    /// Bytes of `segment` that may be read; none when it is not in use.
    pub(super) fn readable(&self, segment: SegmentId) -> u64 {
        readable(&self.segments, self.head, segment)
    }

    pub(super) fn poll_read(&mut self) -> Option<StorageOp> {
        let (segments, head) = (&self.segments, self.head);
        let op = self.reads.poll(self.next_tag, |id| readable(segments, head, id))?;
        self.next_tag += 1;
        Some(op)
    }

    /// One write of everything that is pending, one sync, or both.
    pub(super) fn poll_barrier(&mut self, now: Instant) -> Option<StorageOp> {
        if !self.pending.is_empty() {
            self.lazy_since.get_or_insert(now);
        }
        let is_lazy_due = self.lazy_since.is_some_and(|since| since + Self::LAZY_DELAY <= now);
        let mut writes = !self.pending.is_empty() && (self.is_urgent || is_lazy_due || self.is_sync_wanted);
        let closes = self.is_closing
            && self.pending.is_empty()
            && self.durable.batch == self.written.batch
            && self.head == self.written.head
            && !self.written.closed;
        let gives_back = self.head > self.written.head;
        self.is_head_stuck = gives_back && self.open_batch(None, Purpose::Relocate).is_err();
        writes |= gives_back && !self.is_head_stuck;
        // On a disk that has no room for it, the end goes without a mark.
        self.is_closing &= !self.is_head_stuck;
        if closes {
            writes = self.open_batch(Some(0), Purpose::Relocate).is_ok();
            self.is_closing = writes;
        }
        let batches = if writes { std::mem::take(&mut self.pending) } else { Default::default() };
        self.unsynced.extend(batches.iter().map(|batch| batch.segment));
        let closes = closes && writes;
        let is_synced = self.is_sync_due(now, closes);
        if is_synced {
            self.is_sync_wanted = false;
        }
        if batches.is_empty() && (self.unsynced.is_empty() || !is_synced) {
            return None;
        }
        let mut batches = Vec::from(batches);
        let (sealed, mark) = self.seal(&mut batches, closes);
        if writes {
            self.is_urgent = false;
            self.lazy_since = None;
            self.unsynced_since.get_or_insert(now);
        }
        let mut sync = Vec::new();
        if is_synced {
            self.unsynced_since = None;
            sync.extend(std::mem::take(&mut self.unsynced).into_iter().map(FileId::Segment));
        }
        let action = Action::Write { writes: sealed, sync };
        Some(self.fly(Flight::Barrier { batches, mark, is_synced }, action))
    }

    fn is_sync_due(&self, now: Instant, closes: bool) -> bool {
        let by_mode = match self.settings.fsync {
            Fsync::Always => true,
            Fsync::Interval => self.unsynced_since.is_some_and(|since| since + Fsync::INTERVAL <= now),
            // A full segment is synced, so that recovery can tell damage in it from a torn tail.
            Fsync::Never => self.unsynced.iter().any(|segment| *segment != self.current().id),
        };
        by_mode || closes || self.is_sync_wanted || self.head > self.durable.head
    }

    /// Numbers `batches` and gives their writes and the state of the log after them.
    fn seal(&mut self, batches: &mut [Batch], closed: bool) -> (Vec<Write>, Mark) {
        let mut mark = self.written;
        let mut writes = Vec::with_capacity(batches.len());
        let last = batches.len().saturating_sub(1);
        for (index, batch) in batches.iter_mut().enumerate() {
            // Only the last one says what is given back: everything appended before that was decided,
            // survivors too, is in it or before it. So whoever finds it whole at the end of the chain has
            // all of that.
            let head = if index == last { self.head } else { mark.head };
            mark = Mark { lsn: batch.last_lsn(), batch: mark.batch + 1, head, closed };
            let seal = Seal { number: mark.batch, synced: self.durable.batch, head, closed };
            writes.push(batch.seal(seal));
            let next = batch.next_start();
            self.segment_mut(batch.segment).next = next;
        }
        (writes, mark)
    }

    pub(super) fn handle_written(&mut self, batches: &[Batch], mark: Mark, is_synced: bool) {
        for batch in batches {
            let written = batch.next_start();
            self.segment_mut(batch.segment).written = written;
        }
        self.written = mark;
        if is_synced {
            self.durable = mark;
        }
    }

    fn segment_mut(&mut self, id: SegmentId) -> &mut Segment {
        let found = self.segments.iter_mut().rev().find(|segment| segment.id == id);
        found.expect("invariant: a segment stays while it is written")
    }

    /// One step of giving back: a spare file that was passed over gets a new number, or the oldest segment
    /// goes, when a batch that says so is synced and nobody reads it.
    pub(super) fn poll_reclaim(&mut self) -> Option<StorageOp> {
        let current = self.current().id;
        if let Some((spare, id)) = self.space.poll_rename(current) {
            return Some(self.rename(spare, id));
        }
        let oldest = *self.segments.front()?;
        if oldest.id >= self.durable.head || self.reads.holds(oldest.id) {
            return None;
        }
        self.segments.pop_front();
        let Segment { id, capacity, .. } = oldest;
        match self.space.recycle(capacity) {
            Some(new_id) => Some(self.rename(Spare { id, capacity }, new_id)),
            None => Some(self.fly(Flight::Remove, Action::Remove { file: FileId::Segment(id) })),
        }
    }

    fn rename(&mut self, spare: Spare, id: SegmentId) -> StorageOp {
        let action = Action::Rename { from: FileId::Segment(spare.id), to: FileId::Segment(id) };
        self.fly(Flight::Rename(Spare { id, ..spare }), action)
    }

    pub(super) fn create(&mut self, wanted: Spare) -> StorageOp {
        let action = Action::Create { file: FileId::Segment(wanted.id), len: wanted.capacity.into() };
        self.fly(Flight::Create(wanted), action)
    }

    fn fly(&mut self, flight: Flight, action: Action) -> StorageOp {
        let tag = self.next_tag;
        self.next_tag += 1;
        self.flight = Some((tag, flight));
        StorageOp { tag: Tag::Log(tag), action }
    }

    /// Events about a full disk, once for each change.
    pub(super) fn tell_of_space(&mut self, failure: Option<Error>) {
        let is_full = self.space.is_full();
        match (self.was_full, is_full, failure) {
            (false, true, Some(error)) => self.events.push_back(Event::DiskFull(error)),
            (true, false, _) => self.events.push_back(Event::DiskFreed),
            _ => return,
        }
        self.was_full = is_full;
    }
}

fn readable<'a>(segments: impl IntoIterator<Item = &'a Segment>, head: SegmentId, segment: SegmentId) -> u64 {
    let found = segments.into_iter().find(|found| found.id == segment && found.id >= head);
    found.map_or(0, |found| found.written.into())
}
