//! Reads of what is written: single records, and a segment from one end to the other.
//!
//! Records that lie close together and are asked for together are read in one piece. What comes back is
//! proven by its checksum before anyone sees it.

use crate::error::Error;
use crate::format::Seed;
use crate::format::{self, BATCH_HEADER_BYTES, BatchHeader, FIRST_BATCH, RECORD_HEADER_BYTES, RecordHeader};
use crate::log::Event;
use crate::position::{Position, Record, SegmentId};
use crate::storage::{Action, FileId, Outcome, StorageOp, Tag};
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};

/// Most bytes that reads of several records share; more only for a single record.
const SHARED_READ_BYTES_MAX: u64 = 128 * 1024;
/// Unwanted bytes between two records that are read nevertheless.
const GAP_BYTES_MAX: u64 = 4 * 1024;
/// Payloads up to this size are copied out of a shared read, so that one of them does not keep all of it in
/// memory.
const COPY_BYTES_MAX: usize = 8 * 1024;
/// Bytes that one step of a scan reads; more only for a single record.
const SCAN_BYTES: u64 = 1024 * 1024;

/// Where a scan of a segment goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cursor {
    segment: SegmentId,
    /// The next record, or the end of the batch.
    offset: u32,
    /// Where the records of the batch end.
    batch_end: u32,
    /// Bytes that the next record needs, when more than usual.
    need: u32,
}

impl Cursor {
    /// The first record of `segment`.
    pub fn start(segment: SegmentId) -> Self {
        Self { segment, offset: FIRST_BATCH, batch_end: FIRST_BATCH, need: 0 }
    }

    /// The segment that is scanned.
    pub fn segment(&self) -> SegmentId {
        self.segment
    }

    /// Where the next step reads.
    fn read_from(&self) -> u64 {
        if self.offset == self.batch_end { format::align(self.offset.into()) } else { self.offset.into() }
    }
}

#[derive(Debug)]
enum Out {
    Records { segment: SegmentId, start: u64, wanted: Vec<(Position, u64)> },
    Scan { cursor: Cursor, start: u64, token: u64 },
}

impl Out {
    fn segment(&self) -> SegmentId {
        match self {
            Self::Records { segment, .. } => *segment,
            Self::Scan { cursor, .. } => cursor.segment,
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Reads {
    queue: VecDeque<(Position, u64)>,
    scans: VecDeque<(Cursor, u64)>,
    out: BTreeMap<u64, Out>,
}

impl Reads {
    pub(crate) fn read(&mut self, position: Position, token: u64) {
        self.queue.push_back((position, token));
    }

    pub(crate) fn scan(&mut self, cursor: Cursor, token: u64) {
        self.scans.push_back((cursor, token));
    }

    /// Is something of `segment` being read? Then its file must keep what it holds.
    pub(crate) fn holds(&self, segment: SegmentId) -> bool {
        self.queue.iter().any(|(position, _)| position.segment == segment)
            || self.scans.iter().any(|(cursor, _)| cursor.segment == segment)
            || self.out.values().any(|out| out.segment() == segment)
    }

    /// The next read. `tag` is used when there is one; `written` says how far a segment is written.
    pub(crate) fn poll(&mut self, tag: u64, written: impl Fn(SegmentId) -> u64) -> Option<StorageOp> {
        let (out, start, end) = match self.queue.pop_front() {
            Some(first) => self.share(first),
            None => {
                let (cursor, token) = self.scans.pop_front()?;
                let start = cursor.read_from();
                let end = written(cursor.segment).min(start + SCAN_BYTES.max(cursor.need.into()));
                (Out::Scan { cursor, start, token }, start, end.max(start))
            }
        };
        let file = FileId::Segment(out.segment());
        self.out.insert(tag, out);
        let len = usize::try_from(end - start).expect("invariant: segments are shorter than 4 GiB");
        Some(StorageOp { tag: Tag::Log(tag), action: Action::Read { file, offset: start, len } })
    }

    /// One read for `first` and those in the queue that follow it closely.
    fn share(&mut self, first: (Position, u64)) -> (Out, u64, u64) {
        let start = u64::from(first.0.offset);
        let mut end = end_of(first.0);
        let mut wanted = vec![first];
        while let Some(&(next, token)) = self.queue.front() {
            let offset = u64::from(next.offset);
            let is_near = next.segment == first.0.segment
                && offset >= end
                && offset - end <= GAP_BYTES_MAX
                && end_of(next) - start <= SHARED_READ_BYTES_MAX;
            if !is_near {
                break;
            }
            self.queue.pop_front();
            wanted.push((next, token));
            end = end_of(next);
        }
        (Out::Records { segment: first.0.segment, start, wanted }, start, end)
    }

    /// Takes the result of a read, if `tag` is one, and tells each who asked.
    pub(crate) fn handle(
        &mut self,
        tag: u64,
        outcome: Outcome,
        seed: impl Fn(SegmentId) -> Seed,
        events: &mut VecDeque<Event>,
    ) -> Option<Outcome> {
        let Some(out) = self.out.remove(&tag) else { return Some(outcome) };
        let seed = seed(out.segment());
        let data = match outcome {
            Outcome::Data(data) => Ok(data),
            Outcome::Done => unreachable!("a read ends with data or fails"),
            Outcome::Failed { action, file, source } => Err((action, file, source)),
        };
        match (out, data) {
            (Out::Records { start, wanted, .. }, Ok(data)) => {
                let is_shared = wanted.len() > 1;
                for (position, token) in wanted {
                    let result = record_at(&data, start, position, seed, is_shared);
                    events.push_back(Event::Read { token, result });
                }
            }
            (Out::Records { wanted, .. }, Err((action, file, source))) => {
                for (_, token) in wanted {
                    let source = copy_of(&source);
                    events.push_back(Event::Read { token, result: Err(Error::Io { action, file, source }) });
                }
            }
            (Out::Scan { cursor, start, token }, Ok(data)) => {
                events.push_back(match scan_step(&data, start, cursor, seed) {
                    Ok(Step::More(cursor)) => {
                        self.scans.push_front((cursor, token));
                        return None;
                    }
                    Ok(Step::Records(records, next)) => Event::Scanned { token, records, next },
                    Err(error) => Event::ScanFailed { token, error },
                });
            }
            (Out::Scan { token, .. }, Err((action, file, source))) => {
                events.push_back(Event::ScanFailed { token, error: Error::Io { action, file, source } });
            }
        }
        None
    }
}

/// The same error once more, for everyone who shared the read.
fn copy_of(error: &std::io::Error) -> std::io::Error {
    match error.raw_os_error() {
        Some(code) => std::io::Error::from_raw_os_error(code),
        None => std::io::Error::new(error.kind(), error.to_string()),
    }
}

fn end_of(position: Position) -> u64 {
    u64::from(position.offset) + u64::from(RECORD_HEADER_BYTES) + u64::from(position.length)
}

fn damaged(segment: SegmentId, offset: u64, reason: &'static str) -> Error {
    Error::Corrupt { file: FileId::Segment(segment), offset, reason }
}

fn record_at(
    data: &Bytes,
    start: u64,
    position: Position,
    seed: Seed,
    is_shared: bool,
) -> Result<Record, Error> {
    let offset = u64::from(position.offset);
    let bad = |reason| damaged(position.segment, offset, reason);
    let from = usize::try_from(offset - start).map_err(|_| bad("the position is out of range"))?;
    let header = RecordHeader::decode(&data[from..]).ok_or_else(|| bad("this is no record"))?;
    if header.length != position.length {
        return Err(bad("the record has another length"));
    }
    let payload =
        data.slice(from + RECORD_HEADER_BYTES as usize..from + (end_of(position) - offset) as usize);
    if !header.matches(&payload, seed) {
        return Err(bad("the checksum of the record does not match"));
    }
    let copies = is_shared && payload.len() <= COPY_BYTES_MAX;
    let payload = if copies { Bytes::copy_from_slice(&payload) } else { payload };
    Ok(Record { position, kind: header.kind, payload })
}

enum Step {
    /// Not one record fitted: read on with what the cursor says.
    More(Cursor),
    Records(Vec<Record>, Option<Cursor>),
}

/// The records in `data`, read from `start` on, which is where `cursor` stands.
fn scan_step(data: &Bytes, start: u64, mut cursor: Cursor, seed: Seed) -> Result<Step, Error> {
    let mut records = Vec::new();
    loop {
        let offset = cursor.read_from();
        let at = (offset - start) as usize;
        let left = data.len().saturating_sub(at);
        if cursor.offset == cursor.batch_end {
            if left == 0 {
                return Ok(match (data.is_empty(), records.is_empty()) {
                    (true, _) => Step::Records(records, None),
                    // Nothing but marks so far, or the step ends with a batch: the next step finds out.
                    (false, true) => Step::More(cursor),
                    (false, false) => Step::Records(records, Some(cursor)),
                });
            }
            if left < BATCH_HEADER_BYTES as usize {
                return Ok(stop(records, cursor, BATCH_HEADER_BYTES));
            }
            let narrow = u32::try_from(offset).expect("invariant: segments are shorter than 4 GiB");
            let header = BatchHeader::decode(&data[at..], narrow, seed)
                .ok_or_else(|| damaged(cursor.segment, offset, "this is no batch"))?;
            cursor.offset = narrow + BATCH_HEADER_BYTES;
            cursor.batch_end = cursor.offset + header.length;
            continue;
        }
        if left < RECORD_HEADER_BYTES as usize {
            return Ok(stop(records, cursor, RECORD_HEADER_BYTES));
        }
        let bad = |reason| damaged(cursor.segment, offset, reason);
        let header = RecordHeader::decode(&data[at..]).ok_or_else(|| bad("this is no record"))?;
        let position = Position { segment: cursor.segment, offset: cursor.offset, length: header.length };
        let end = end_of(position);
        if end > u64::from(cursor.batch_end) {
            return Err(bad("the record is longer than its batch"));
        }
        let total = u32::try_from(end - offset).expect("invariant: a batch is shorter than 4 GiB");
        if left < total as usize {
            return Ok(stop(records, cursor, total));
        }
        records.push(record_at(data, start, position, seed, true)?);
        cursor.offset += total;
        cursor.need = 0;
    }
}

/// The data ends before the next `need` bytes.
fn stop(records: Vec<Record>, cursor: Cursor, need: u32) -> Step {
    if records.is_empty() {
        Step::More(Cursor { need, ..cursor })
    } else {
        Step::Records(records, Some(cursor))
    }
}
