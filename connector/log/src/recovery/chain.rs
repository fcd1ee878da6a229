//! The chain of whole batches: where it ends, and the records in it.

use super::Disk;
use super::survey::{FIRST_SEGMENT, Found, Survey};
use crate::error::Error;
use crate::format::{self, BATCH_HEADER_BYTES, BatchHeader, FIRST_BATCH, RECORD_HEADER_BYTES, RecordHeader};
use crate::format::{Seed, SegmentHeader};
use crate::position::{Lsn, Position, Record, SegmentId};
use crate::storage::{FileId, Storage};
use bytes::Bytes;

/// Read at once; more only for a larger batch.
const WINDOW_BYTES: u64 = 1024 * 1024;

/// The whole batches from the first closely surveyed segment on.
#[derive(Debug)]
pub(super) struct Chain {
    /// Index of the file in which it ends.
    pub(super) index: usize,
    /// Where it ends there.
    pub(super) end: u32,
    /// Number that the next batch would have: *K* of the module's documentation.
    pub(super) next_batch: u64,
    pub(super) next_lsn: Lsn,
    /// The oldest segment in use.
    pub(super) head: SegmentId,
    pub(super) is_closed: bool,
    /// A batch begins at the end and is not whole.
    pub(super) is_torn: bool,
    /// What is wrong with the next batch, if there should be one.
    pub(super) bad: Error,
    /// Its batches, in order.
    pub(super) batches: Vec<(SegmentId, BatchHeader)>,
}

/// Why a batch is not whole.
struct Bad {
    offset: u64,
    reason: &'static str,
    /// Its header passes.
    has_header: bool,
}

/// Follows the chain to its end.
///
/// It may begin with a segment whose first batch is proven to be synced, with the first one of the log, or
/// with one before which everything was to be given back.
pub(super) fn follow<S: Storage>(
    disk: &mut Disk<'_, S>,
    found: &[Found],
    survey: &Survey,
) -> Result<Chain, Error> {
    let first = (survey.first..found.len()).find(|index| is_used(&found[*index], survey));
    let first = first.unwrap_or(survey.first);
    let file = found[first];
    let Some(header) = file.header else { return nothing_synced(found, survey, &file) };
    let chain = Chain::at(first, FIRST_BATCH, &header).follow(disk, found, survey)?;
    let begins = survey.proof >= header.first_batch
        || header.previous == SegmentId(0)
        || (!chain.batches.is_empty() && chain.head >= header.id);
    if begins { Ok(chain) } else { nothing_synced(found, survey, &file) }
}

fn is_used(file: &Found, survey: &Survey) -> bool {
    file.header.is_some() || !survey.batches_of(file.id).is_empty()
}

/// The chain has no beginning. So looks a new log, and one whose very first write was torn; else it is
/// damage.
fn nothing_synced(found: &[Found], survey: &Survey, first: &Found) -> Result<Chain, Error> {
    let (missing, reason) = match first.header {
        None => (first.id, "the header of the segment is damaged"),
        Some(header) => (header.previous, "the segment is missing or its header is damaged"),
    };
    let bad = Error::Corrupt { file: FileId::Segment(missing), offset: 0, reason };
    let index = found.iter().position(|file| file.id == FIRST_SEGMENT);
    let Some(index) = index.filter(|_| survey.proof == 0) else { return Err(bad) };
    let header = SegmentHeader {
        id: FIRST_SEGMENT,
        previous: SegmentId(0),
        previous_end: 0,
        capacity: found[index].capacity,
        first_batch: 1,
        synced: 0,
        first_lsn: Lsn(1),
        head: FIRST_SEGMENT,
    };
    Ok(Chain { bad, ..Chain::at(index, 0, &header) })
}

impl Chain {
    /// No batches yet: the first one of the segment of `header` is to come at `end`.
    fn at(index: usize, end: u32, header: &SegmentHeader) -> Self {
        Self {
            index,
            end,
            next_batch: header.first_batch,
            next_lsn: header.first_lsn,
            // What its header says counts only with a batch.
            head: header.id,
            is_closed: false,
            is_torn: false,
            bad: Error::Poisoned,
            batches: Vec::new(),
        }
    }

    /// Follows it over all segments.
    fn follow<S: Storage>(
        mut self,
        disk: &mut Disk<'_, S>,
        found: &[Found],
        survey: &Survey,
    ) -> Result<Self, Error> {
        loop {
            let current = &found[self.index];
            let bad = self.follow_segment(disk, current)?;
            let next = (self.index + 1..found.len()).find(|index| is_used(&found[*index], survey));
            let Some(index) = next else {
                self.end_with(current.id, &bad);
                return Ok(self);
            };
            if let Err((id, bad_next)) = self.enter(disk, current, &found[index], &bad)? {
                self.end_with(id, &bad_next);
                self.is_torn = true;
                return Ok(self);
            }
            self.index = index;
        }
    }

    /// Takes the batches of `file` from the end of the chain on; says why the one after them is none.
    fn follow_segment<S: Storage>(&mut self, disk: &mut Disk<'_, S>, file: &Found) -> Result<Bad, Error> {
        let mut window = Window::new(file);
        loop {
            match window.batch(disk, self.end, self.next_batch, self.next_lsn)? {
                Ok((header, _)) => self.add(file.id, header),
                Err(bad) => return Ok(bad),
            }
        }
    }

    /// Continues in `next`, if it is whole to its first batch and says that it follows.
    fn enter<S: Storage>(
        &mut self,
        disk: &mut Disk<'_, S>,
        current: &Found,
        next: &Found,
        bad: &Bad,
    ) -> Result<Result<(), (SegmentId, Bad)>, Error> {
        let at_start = |id, reason| Ok(Err((id, Bad { offset: 0, reason, has_header: false })));
        let Some(header) = next.header else {
            return at_start(next.id, "the header of the segment is damaged");
        };
        if header.previous != current.id {
            return at_start(header.previous, "the segment is missing or its header is damaged");
        }
        if header.previous_end > self.end {
            let Bad { offset, reason, has_header } = *bad;
            return Ok(Err((current.id, Bad { offset, reason, has_header })));
        }
        if !self.continues(&header) {
            return at_start(next.id, "the segment does not continue the one before it");
        }
        let mut window = Window::new(next);
        match window.batch(disk, FIRST_BATCH, self.next_batch, self.next_lsn)? {
            Ok((batch, _)) => {
                self.add(next.id, batch);
                Ok(Ok(()))
            }
            Err(bad) => Ok(Err((next.id, bad))),
        }
    }

    fn continues(&self, next: &SegmentHeader) -> bool {
        next.previous_end == self.end
            && next.first_batch == self.next_batch
            && next.first_lsn == self.next_lsn
    }

    fn add(&mut self, id: SegmentId, header: BatchHeader) {
        self.end = next_offset(&header);
        self.next_batch = header.number.wrapping_add(1);
        self.next_lsn = Lsn(header.first_lsn.0.wrapping_add(header.count.into()));
        self.head = header.head;
        self.is_closed = header.closed;
        self.batches.push((id, header));
    }

    fn end_with(&mut self, id: SegmentId, bad: &Bad) {
        self.is_torn = bad.has_header;
        self.bad = Error::Corrupt { file: FileId::Segment(id), offset: bad.offset, reason: bad.reason };
    }
}

/// Are the segments from the oldest in use to the end of the chain all there?
pub(super) fn check_links(found: &[Found], chain: &Chain) -> Result<(), Error> {
    let headers = found[..=chain.index].iter().filter_map(|file| file.header);
    let mut expected = None;
    for header in headers.rev().take_while(|header| header.id >= chain.head) {
        if expected.is_some_and(|expected| expected != header.id) {
            break;
        }
        if header.id == chain.head {
            return Ok(());
        }
        expected = Some(header.previous);
    }
    if chain.end == 0 {
        return Ok(());
    }
    let missing = expected.unwrap_or(chain.head);
    let reason = "the segment is missing or its header is damaged";
    Err(Error::Corrupt { file: FileId::Segment(missing), offset: 0, reason })
}

/// Gives the records after `from` to `visitor`. Everything here was synced or has just been found whole, so
/// whatever is bad is damage.
pub(super) fn visit<S: Storage>(
    disk: &mut Disk<'_, S>,
    found: &[Found],
    chain: &Chain,
    from: Lsn,
    visitor: &mut dyn FnMut(Lsn, Record) -> Result<(), &'static str>,
) -> Result<u64, Error> {
    let used = found[..=chain.index].iter().filter(|file| file.id >= chain.head);
    let used: Vec<(&Found, SegmentHeader)> =
        used.filter_map(|file| file.header.map(|header| (file, header))).collect();
    let mut visited = 0;
    for (index, (file, header)) in used.iter().enumerate() {
        let next = used.get(index + 1).map(|(_, next)| next);
        let end = next.map_or(chain.end, |next| next.previous_end);
        if next.map_or(chain.next_lsn, |next| next.first_lsn).0 <= from.0.saturating_add(1) {
            continue;
        }
        let mut window = Window::new(file);
        let (mut offset, mut number, mut lsn) = (FIRST_BATCH, header.first_batch, header.first_lsn);
        while offset < end {
            let corrupt = |offset, reason| Error::Corrupt { file: FileId::Segment(file.id), offset, reason };
            let (batch, records) =
                window.batch(disk, offset, number, lsn)?.map_err(|bad| corrupt(bad.offset, bad.reason))?;
            for record in split(file.id, &batch, &records) {
                if lsn > from {
                    let at = record.position.offset;
                    visitor(lsn, record).map_err(|reason| corrupt(at.into(), reason))?;
                    visited += 1;
                }
                lsn.0 = lsn.0.wrapping_add(1);
            }
            offset = next_offset(&batch);
            number = number.wrapping_add(1);
        }
    }
    Ok(visited)
}

fn next_offset(batch: &BatchHeader) -> u32 {
    u32::try_from(format::align(batch.records_end())).expect("invariant: checked against the file's length")
}

/// The records of a whole batch, whose bytes are `bytes`.
fn split(segment: SegmentId, batch: &BatchHeader, bytes: &Bytes) -> impl Iterator<Item = Record> {
    let first = batch.offset + BATCH_HEADER_BYTES;
    let bytes = bytes.clone();
    let mut at = 0;
    std::iter::from_fn(move || {
        let header = RecordHeader::decode(bytes.get(at..)?)?;
        let offset = first + u32::try_from(at).ok()?;
        let start = at + RECORD_HEADER_BYTES as usize;
        at = start + header.length as usize;
        let position = Position { segment, offset, length: header.length };
        Some(Record { position, kind: header.kind, payload: bytes.slice(start..at) })
    })
}

/// Reads a file from its start to its end in large pieces.
struct Window {
    id: SegmentId,
    capacity: u64,
    start: u64,
    data: Bytes,
}

impl Window {
    fn new(file: &Found) -> Self {
        Self { id: file.id, capacity: file.capacity.into(), start: 0, data: Bytes::new() }
    }

    /// `len` bytes from `offset` on; none beyond the end of the file.
    fn get<S: Storage>(
        &mut self,
        disk: &mut Disk<'_, S>,
        offset: u64,
        len: u64,
    ) -> Result<Option<Bytes>, Error> {
        if offset + len > self.capacity {
            return Ok(None);
        }
        let end = self.start + self.data.len() as u64;
        if offset < self.start || offset + len > end {
            let wanted = len.max(WINDOW_BYTES).min(self.capacity - offset);
            self.data = disk.read(self.id, offset, usize::try_from(wanted).unwrap_or(usize::MAX))?;
            self.start = offset;
        }
        let at = (offset - self.start) as usize;
        Ok(Some(self.data.slice(at..at + len as usize)))
    }

    /// The batch at `offset` with its records, if it is whole and has these numbers.
    fn batch<S: Storage>(
        &mut self,
        disk: &mut Disk<'_, S>,
        offset: u32,
        number: u64,
        lsn: Lsn,
    ) -> Result<Result<(BatchHeader, Bytes), Bad>, Error> {
        let bad = |offset, reason, has_header| Ok(Err(Bad { offset, reason, has_header }));
        let at = u64::from(offset);
        let seed = Seed::new(disk.secret, self.id);
        let Some(head) = self.get(disk, at, BATCH_HEADER_BYTES.into())? else {
            return bad(at, "the segment ends", false);
        };
        let Some(header) = BatchHeader::decode(&head, offset, seed) else {
            return bad(at, "there is no batch", false);
        };
        if header.number != number || header.first_lsn != lsn {
            return bad(at, "the batch is not the one that should be there", true);
        }
        let first = at + u64::from(BATCH_HEADER_BYTES);
        let Some(records) = self.get(disk, first, header.length.into())? else {
            return bad(at, "the batch is longer than its segment", true);
        };
        match check(&header, &records, seed) {
            Ok(()) => Ok(Ok((header, records))),
            Err((at, reason)) => bad(first + at as u64, reason, true),
        }
    }
}

/// Are `bytes` the records of `header`? Else where they are not.
fn check(header: &BatchHeader, bytes: &[u8], seed: Seed) -> Result<(), (usize, &'static str)> {
    let mut at = 0;
    let mut digest = 0;
    for _ in 0..header.count {
        let record = RecordHeader::decode(&bytes[at..]).ok_or((at, "there is no record"))?;
        let start = at + RECORD_HEADER_BYTES as usize;
        let end = start.checked_add(record.length as usize).filter(|end| *end <= bytes.len());
        let end = end.ok_or((at, "the record is longer than its batch"))?;
        if !record.matches(&bytes[start..end], seed) {
            return Err((at, "the checksum of the record does not match"));
        }
        digest = format::digest(digest, &record.encode());
        at = end;
    }
    if at != bytes.len() || digest != header.digest {
        return Err((0, "the records are not those of the batch"));
    }
    Ok(())
}
