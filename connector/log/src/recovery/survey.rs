//! A look at every segment file, and a close look at the last ones.

use super::Disk;
use crate::error::Error;
use crate::format::{BATCH_HEADER_BYTES, BatchHeader, SECTOR_BYTES, Seed, SegmentHeader};
use crate::position::SegmentId;
use crate::storage::{FileId, Storage};
use std::collections::BTreeMap;

/// The segment that a new log begins with.
pub(super) const FIRST_SEGMENT: SegmentId = SegmentId(1);
/// Far beyond what a disk lives to see; numbers above it cannot be counted up without care.
const LAST_SEGMENT: u64 = 1 << 62;
const CHUNK_BYTES: u64 = 1024 * 1024;

/// A segment file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    pub(super) id: SegmentId,
    pub(super) capacity: u32,
    /// None: the file is not in use, or its header is torn or damaged.
    pub(super) header: Option<SegmentHeader>,
}

/// What the last segments say.
#[derive(Debug, Default)]
pub(super) struct Survey {
    /// Index of the first file that was looked at closely: everything before it was synced.
    pub(super) first: usize,
    /// The last batch that any batch claims to have been synced: *P* of the module's documentation.
    pub(super) proof: u64,
    batches: BTreeMap<SegmentId, Vec<BatchHeader>>,
}

impl Survey {
    /// Every batch header in the file of `segment` that passes, wherever it lies.
    pub(super) fn batches_of(&self, segment: SegmentId) -> &[BatchHeader] {
        self.batches.get(&segment).map_or(&[], Vec::as_slice)
    }
}

/// Every segment file, in ascending order, with its header.
pub(super) fn segments<S: Storage>(
    disk: &mut Disk<'_, S>,
    files: &[(FileId, u64)],
) -> Result<Vec<Found>, Error> {
    let mut found = Vec::new();
    for (file, len) in files {
        let FileId::Segment(id) = *file else { continue };
        let is_whole = *len >= u64::from(2 * SECTOR_BYTES) && len % u64::from(SECTOR_BYTES) == 0;
        let capacity = u32::try_from(*len).ok().filter(|_| is_whole);
        let bad = |reason| Error::Corrupt { file: *file, offset: *len, reason };
        let capacity = capacity.ok_or_else(|| bad("no segment file has this length"))?;
        if !(1..=LAST_SEGMENT).contains(&id.0) {
            return Err(bad("no segment has this number"));
        }
        let sector = disk.read(id, 0, SECTOR_BYTES as usize)?;
        let header = SegmentHeader::decode(&sector, id, Seed::new(disk.secret, id))?;
        if header.is_some_and(|header| header.capacity != capacity) {
            return Err(bad("the file has not the length that its header says"));
        }
        found.push(Found { id, capacity, header });
    }
    found.sort_unstable_by_key(|file| file.id);
    Ok(found)
}

/// Looks closely at the last files, backwards, until everything before them is proven to have been synced.
pub(super) fn tail<S: Storage>(disk: &mut Disk<'_, S>, found: &[Found]) -> Result<Survey, Error> {
    let mut survey = Survey::default();
    for (index, file) in found.iter().enumerate().rev() {
        let batches = batches(disk, file)?;
        let claims = batches.iter().map(|batch| batch.synced).chain(file.header.map(|header| header.synced));
        survey.proof = claims.fold(survey.proof, u64::max);
        survey.batches.insert(file.id, batches);
        survey.first = index;
        if file.header.is_some_and(|header| survey.proof >= header.first_batch) {
            break;
        }
    }
    Ok(survey)
}

/// Every batch header of `file` that passes.
fn batches<S: Storage>(disk: &mut Disk<'_, S>, file: &Found) -> Result<Vec<BatchHeader>, Error> {
    let seed = Seed::new(disk.secret, file.id);
    let mut batches = Vec::new();
    let mut start = 0;
    while start < u64::from(file.capacity) {
        let len = (u64::from(file.capacity) - start).min(CHUNK_BYTES);
        let chunk = disk.read(file.id, start, usize::try_from(len).unwrap_or(usize::MAX))?;
        for (offset, sector) in
            (start..).step_by(SECTOR_BYTES as usize).zip(chunk.chunks(SECTOR_BYTES as usize))
        {
            let Ok(offset) = u32::try_from(offset) else { continue };
            let head = &sector[..BATCH_HEADER_BYTES as usize];
            batches.extend(BatchHeader::decode(head, offset, seed));
        }
        start += len;
    }
    Ok(batches)
}
