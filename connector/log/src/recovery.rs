//! From the files to a log: where it ends, what was torn, what is damaged.
//!
//! # What can be on the disk
//!
//! Before a crash the log wrote batches 1, 2, 3 .. in order, one write at a time, each to sectors that no
//! batch before it touches, and synced now and then. A sync that returned made every sector written before
//! it durable. Of the sectors written after the last such sync any subset may have reached the disk, in any
//! order: the system writes pages back as it likes. So the batches up to some number *S* are whole unless
//! the disk has damaged them, and those after *S* are each whole, torn or absent, independently of each
//! other. A torn batch may be followed by a whole one: with `fsync: interval` and `never` many batches are
//! written between two syncs, and with `always` one write may fill two segments.
//!
//! *S* itself is not on the disk. But every batch carries the number of the last batch whose sync had
//! returned when it was written. Let *P* be the largest such number in any batch that passes its checksum.
//! Then *P <= S*.
//!
//! # The rule
//!
//! Follow the chain of batches: numbers without a gap, records without a gap, each segment naming the one
//! before it and where that ends. Let *K* be the number of the first batch that is not whole.
//!
//! - *P >= K*: some batch was written after *K* was synced, so the disk had *K* and lost it. This is
//!   damage: [`Error::Corrupt`] names the file and the offset, and nothing is changed.
//! - *P < K*: nothing on the disk says that *K* was ever synced. It is the torn tail: the log ends before
//!   *K*.
//!
//! Nothing confirmed is cut: with `always` a record of batch *B* is confirmed after the sync of *B*, hence
//! *B <= S*. If the disk is sound, every batch up to *S* is whole, so *K > S* and the cut lies behind *B*.
//! Nothing is invented: what is kept is a prefix of what was appended. If a synced batch is damaged, it is
//! noticed when any batch was written after its sync; [`crate::Log::close`] writes one for that purpose.
//! Left is the very last batch before a crash: whether the sync of it returned nobody can know afterwards,
//! so damage there reads as a torn tail and is cut, with [`Report::cut`] as the warning when a trace of it
//! is left.
//!
//! # Bytes that must not pass as batches
//!
//! - What a recycled file held before: checksums cover the segment's number, which is never used twice. New
//!   numbers are above every number in a file name, and a file never holds batches of a number above its
//!   name.
//! - Batches behind the cut. They could continue a new batch that ends where they start. So before the log
//!   goes on, their headers are overwritten with zeros, their segments get new numbers, and this is synced.
//!   None of them claims *P >= K*, so a crash in between leaves a disk on which recovery finds the same
//!   *K*. A new batch at the place of the torn one is bound to its own records by a digest, so that it
//!   never adopts old ones behind it.
//! - Message bodies: checksums cover the log's secret.
//!
//! # Not synced but found
//!
//! After a mere end of the process batches are found that were never synced. They are kept. Those above *P*
//! are written again and synced before anybody sees them: a system that failed to write a page back may
//! have marked it clean, and then a sync alone would do nothing.
//!
//! # Segments that were given back
//!
//! Every batch names the oldest segment in use. A segment is given back only after a batch that says so was
//! synced, and oldest first, so the files always are one chain, whose first segments may be ones that were
//! to go. Recovery takes the oldest segment from the last batch before *K* and leaves out what lies before.
//! If that segment itself is missing, or any after it, this is damage.
//!
//! # How much is read
//!
//! The header of every segment; then from the end backwards the last segments, until *P* covers the first
//! batch of one: everything before it was synced, so a bad batch there is damage and no more need be known.
//! Then the records that the caller wants.

mod chain;
mod survey;

use crate::error::{Error, IoAction};
use crate::format::{FIRST_BATCH, Meta, SECTOR_BYTES};
use crate::log::{Mark, Recovered, Segment};
use crate::position::{Lsn, Record, SegmentId};
use crate::settings::Settings;
use crate::space::{AHEAD, Spare};
use crate::storage::{FileId, Storage};
use bytes::Bytes;
use chain::{Chain, visit};
use std::collections::VecDeque;
use survey::{Found, Survey};

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
    /// The log was closed with [`crate::Log::close`] and nothing was appended after it.
    pub clean: bool,
}

/// See [`crate::Log::open`].
pub(crate) fn recover<S: Storage>(
    storage: &mut S,
    settings: &Settings,
    from: Lsn,
    visitor: &mut dyn FnMut(Lsn, Record) -> Result<(), &'static str>,
) -> Result<(Recovered, Report), Error> {
    let files = storage.list().map_err(io(IoAction::List, FileId::Lock))?;
    let has_segments = files.iter().any(|(file, _)| matches!(file, FileId::Segment(_)));
    let meta = identity(storage, settings, has_segments)?;
    let mut disk = Disk { storage, secret: meta.secret };
    let mut found = survey::segments(&mut disk, &files)?;
    if found.is_empty() {
        found.push(first_segment(&mut disk, settings)?);
    }
    let survey = survey::tail(&mut disk, &found)?;
    let chain = chain::follow(&mut disk, &found, &survey)?;
    if survey.proof >= chain.next_batch {
        return Err(chain.bad);
    }
    chain::check_links(&found, &chain)?;
    let mut next_id = found.iter().map(|file| file.id.0).max().unwrap_or(0) + 1;
    let cut = erase_behind(&mut disk, &mut found, &survey, &chain, &mut next_id)?;
    secure(&mut disk, &chain, found[chain.index].id, survey.proof)?;
    let records = visit(&mut disk, &found, &chain, from, visitor)?;
    let report = Report { last_lsn: chain.mark().lsn, records, cut, clean: chain.mark().closed };
    let (segments, mut spares) = sort_out(&found, &chain);
    let full = provide(&mut disk, settings, &mut spares, &mut next_id)?;
    let mark = chain.mark();
    Ok((Recovered { secret: meta.secret, segments, spares, next_id, mark, full }, report))
}

/// The storage with what every checksum needs.
pub(crate) struct Disk<'a, S> {
    storage: &'a mut S,
    secret: u64,
}

impl<S: Storage> Disk<'_, S> {
    fn read(&mut self, id: SegmentId, offset: u64, len: usize) -> Result<Bytes, Error> {
        let file = FileId::Segment(id);
        self.storage.read_at(file, offset, len).map_err(io(IoAction::Read, file))
    }

    fn write(&mut self, id: SegmentId, offset: u64, bytes: Bytes) -> Result<(), Error> {
        let file = FileId::Segment(id);
        self.storage.write_at(file, offset, &[bytes]).map_err(io(IoAction::Write, file))
    }

    fn sync(&mut self, id: SegmentId) -> Result<(), Error> {
        let file = FileId::Segment(id);
        self.storage.sync(file).map_err(io(IoAction::Sync, file))
    }

    fn create(&mut self, id: SegmentId, len: u32) -> Result<(), Error> {
        let file = FileId::Segment(id);
        self.storage.create(file, len.into()).map_err(io(IoAction::Create, file))
    }
}

fn io(action: IoAction, file: FileId) -> impl FnOnce(std::io::Error) -> Error {
    move |source| Error::Io { action, file, source }
}

/// Reads who this log is, or decides it for a new one. It is written before the first segment is made, so
/// without segments nothing is lost by writing it again.
fn identity<S: Storage>(storage: &mut S, settings: &Settings, has_segments: bool) -> Result<Meta, Error> {
    let file = FileId::Meta;
    let read = match storage.read_at(file, 0, SECTOR_BYTES as usize) {
        Ok(bytes) => Meta::decode(&bytes),
        Err(error) if matches!(error.kind(), std::io::ErrorKind::NotFound) => {
            Err(Error::Corrupt { file, offset: 0, reason: "the file is missing" })
        }
        Err(error) if matches!(error.kind(), std::io::ErrorKind::UnexpectedEof) => {
            Err(Error::Corrupt { file, offset: 0, reason: "the file is too short" })
        }
        Err(error) => Err(io(IoAction::Read, file)(error)),
    };
    match read {
        Err(Error::Corrupt { .. }) if !has_segments => {}
        other => return other,
    }
    let meta = Meta { secret: settings.secret };
    storage.create(file, SECTOR_BYTES.into()).map_err(io(IoAction::Create, file))?;
    let bytes = Bytes::copy_from_slice(&meta.encode());
    storage.write_at(file, 0, &[bytes]).map_err(io(IoAction::Write, file))?;
    storage.sync(file).map_err(io(IoAction::Sync, file))?;
    Ok(meta)
}

fn first_segment<S: Storage>(disk: &mut Disk<'_, S>, settings: &Settings) -> Result<Found, Error> {
    let id = survey::FIRST_SEGMENT;
    disk.create(id, settings.segment_bytes)?;
    Ok(Found { id, capacity: settings.segment_bytes, header: None })
}

/// Makes everything behind the end of the chain unreadable, durably. Says where the log was cut, if there
/// was anything.
///
/// From the end backwards, so that a crash in between leaves one chain.
fn erase_behind<S: Storage>(
    disk: &mut Disk<'_, S>,
    found: &mut [Found],
    survey: &Survey,
    chain: &Chain,
    next_id: &mut u64,
) -> Result<Option<(SegmentId, u32)>, Error> {
    let mut is_cut = chain.is_torn;
    for index in (chain.index + 1..found.len()).rev() {
        let file = &mut found[index];
        if file.header.is_none() && survey.batches_of(file.id).is_empty() {
            continue;
        }
        let new = SegmentId(*next_id);
        *next_id += 1;
        let (from, to) = (FileId::Segment(file.id), FileId::Segment(new));
        disk.storage.rename(from, to).map_err(io(IoAction::Rename, from))?;
        *file = Found { id: new, capacity: file.capacity, header: None };
        is_cut = true;
    }
    let last = found[chain.index].id;
    let behind = survey.batches_of(last).iter().filter(|batch| batch.offset >= chain.end);
    let mut is_erased = false;
    for batch in behind {
        disk.write(last, batch.offset.into(), Bytes::from_static(&[0; SECTOR_BYTES as usize]))?;
        is_erased = true;
    }
    if is_erased {
        disk.sync(last)?;
    }
    Ok((is_cut || is_erased).then_some((last, chain.end)))
}

/// Writes again what is not proven to be synced, and syncs it.
fn secure<S: Storage>(
    disk: &mut Disk<'_, S>,
    chain: &Chain,
    last: SegmentId,
    proof: u64,
) -> Result<(), Error> {
    if chain.batches.is_empty() && chain.end == FIRST_BATCH {
        let header = disk.read(last, 0, FIRST_BATCH as usize)?;
        disk.write(last, 0, header)?;
        return disk.sync(last);
    }
    let mut touched: Option<SegmentId> = None;
    for (id, batch) in chain.batches.iter().filter(|(_, batch)| batch.number > proof) {
        let is_first = batch.offset == FIRST_BATCH;
        let start = if is_first { 0 } else { batch.offset };
        let len = batch.records_end() - u64::from(start);
        let bytes = disk.read(*id, start.into(), usize::try_from(len).unwrap_or(usize::MAX))?;
        if let Some(before) = touched.filter(|before| before != id) {
            disk.sync(before)?;
        }
        disk.write(*id, start.into(), bytes)?;
        touched = Some(*id);
    }
    touched.map_or(Ok(()), |last| disk.sync(last))
}

/// The segments in use and the files that are free.
fn sort_out(found: &[Found], chain: &Chain) -> (VecDeque<Segment>, Vec<Spare>) {
    let mut segments: VecDeque<Segment> = VecDeque::new();
    let mut spares = Vec::new();
    for (index, file) in found.iter().enumerate() {
        match file.header {
            Some(header) if index <= chain.index => {
                if let Some(before) = segments.back_mut() {
                    before.next = header.previous_end;
                    before.written = header.previous_end;
                }
                let Found { id, capacity, .. } = *file;
                let (next, written) = (chain.end, chain.end);
                segments.push_back(Segment { id, capacity, first_lsn: header.first_lsn, next, written });
            }
            None if index == chain.index => {
                let Found { id, capacity, .. } = *file;
                segments.push_back(Segment { id, capacity, first_lsn: Lsn(1), next: 0, written: 0 });
            }
            _ => spares.push(Spare { id: file.id, capacity: file.capacity }),
        }
    }
    (segments, spares)
}

/// Makes the reserve and what publishes need at first. A full disk is no failure: the log then refuses
/// publishes.
fn provide<S: Storage>(
    disk: &mut Disk<'_, S>,
    settings: &Settings,
    spares: &mut Vec<Spare>,
    next_id: &mut u64,
) -> Result<Option<Error>, Error> {
    while spares.len() < settings.reserve_segments as usize + AHEAD {
        let spare = Spare { id: SegmentId(*next_id), capacity: settings.segment_bytes };
        *next_id += 1;
        match disk.create(spare.id, spare.capacity) {
            Ok(()) => spares.push(spare),
            Err(error) if is_full(&error) => return Ok(Some(error)),
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

fn is_full(error: &Error) -> bool {
    use std::io::ErrorKind::{QuotaExceeded, StorageFull};
    matches!(error, Error::Io { source, .. } if matches!(source.kind(), StorageFull | QuotaExceeded))
}

impl Chain {
    /// The state of the log at its end.
    fn mark(&self) -> Mark {
        Mark {
            lsn: Lsn(self.next_lsn.0.saturating_sub(1)),
            batch: self.next_batch - 1,
            head: self.head,
            closed: self.is_closed,
        }
    }
}
