//! The bytes on disk. Nothing else knows an offset. All numbers are little-endian; all checksums are
//! CRC32C.
//!
//! A data directory holds `journal.meta`, written once, and segment files `journal-<number, 16 hex
//! digits>.log`, each allocated in full. A segment file is one header sector and then batches. A batch is
//! what one write brought: a header and records, starting at a multiple of 512 bytes, so that no write
//! touches a sector that an earlier sync has made durable.
//!
//! ```text
//! segment file
//! +----------------+---------------------------+-------------------+------------------------------------+
//! | segment header | batch: header, records .. | batch             | zeros, or what the file held when  |
//! | 512 bytes      | starts at 512             | starts at n * 512 | it was another segment             |
//! +----------------+---------------------------+-------------------+------------------------------------+
//!
//! journal.meta (512 bytes)            segment header (512 bytes)           batch header (64 bytes)
//!  0  8  "BRTHMETA"                    0  8  "BRTHSEGM"                     0  4  "BRTB"
//!  8  4  format version                8  4  format version                 4  4  checksum
//! 12  4  checksum                     12  4  checksum                       8  8  number of the batch
//! 16  8  secret                       16  8  number of the segment         16  8  last batch known synced
//! 24  .  zeros                        24  8  segment before it, or 0       24  8  number of the first record
//!                                     32  8  first batch                   32  8  oldest segment in use
//! record                              40  8  last batch known synced       40  4  bytes of records
//!  0  4  checksum                     48  8  number of the first record    44  4  records
//!  4  4  bytes of payload             56  8  oldest segment in use         48  4  digest: checksum of all
//!  8  1  kind                         64  4  length of this file                  record headers, in order
//!  9  3  zeros                        68  4  where the segment before      52  4  own offset in the file
//! 12  .  payload                              it ends                      56  4  flags: 1 closed cleanly
//!                                     72  .  zeros                         60  4  zeros
//! ```
//!
//! A checksum covers everything of its header after the checksum field, and the payload of a record. Before
//! these bytes it covers the secret, and in a segment the segment's number too: this is the generation.
//! Numbers of segments are never used twice, so bytes left in a recycled file never pass. The secret keeps
//! a peer from putting bytes into a message that would pass as a batch after a torn write.
//!
//! Magic, version, checksum and the first 16 bytes of a header keep their place in every future version, so
//! that an older release can name what it cannot read.

use crate::error::Error;
use crate::position::{Lsn, SegmentId};
use crate::storage::FileId;

/// The format that this release writes, and the newest that it reads.
pub(crate) const FORMAT_VERSION: u32 = 1;
/// What a disk writes in one piece; batches start at multiples of it.
pub(crate) const SECTOR_BYTES: u32 = 512;
/// What the page cache reads before it changes a part; writes end at multiples of it, so that it need not.
pub(crate) const PAGE_BYTES: u32 = 4096;
/// Where the first batch of a segment starts.
pub(crate) const FIRST_BATCH: u32 = SECTOR_BYTES;
pub(crate) const BATCH_HEADER_BYTES: u32 = 64;
pub(crate) const RECORD_HEADER_BYTES: u32 = 12;

const META_MAGIC: &[u8; 8] = b"BRTHMETA";
const SEGMENT_MAGIC: &[u8; 8] = b"BRTHSEGM";
const BATCH_MAGIC: &[u8; 4] = b"BRTB";
const FLAG_CLOSED: u32 = 1;
const SECTOR: usize = SECTOR_BYTES as usize;
const BATCH_HEADER: usize = BATCH_HEADER_BYTES as usize;
const RECORD_HEADER: usize = RECORD_HEADER_BYTES as usize;

/// The state that every checksum of one segment starts with: the secret and the segment's number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Seed(u32);

impl Seed {
    #[cfg(test)]
    pub(crate) const TEST: Self = Self(7);

    pub(crate) fn new(secret: u64, segment: SegmentId) -> Self {
        let of_log = crc32c::crc32c(&secret.to_le_bytes());
        Self(crc32c::crc32c_append(of_log, &segment.0.to_le_bytes()))
    }
}

/// What identifies a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Meta {
    pub(crate) secret: u64,
}

impl Meta {
    pub(crate) fn encode(self) -> [u8; SECTOR] {
        let mut out = [0; SECTOR];
        put(&mut out, 0, META_MAGIC);
        put(&mut out, 8, &FORMAT_VERSION.to_le_bytes());
        put(&mut out, 16, &self.secret.to_le_bytes());
        let checksum = crc32c::crc32c(&out[16..]);
        put(&mut out, 12, &checksum.to_le_bytes());
        out
    }

    /// # Errors
    /// [`Error::Corrupt`] and [`Error::NewerFormat`].
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let corrupt = |reason| Error::Corrupt { file: FileId::Meta, offset: 0, reason };
        if bytes.len() != SECTOR || &bytes[..8] != META_MAGIC {
            return Err(corrupt("this is no journal"));
        }
        let version = u32_at(bytes, 8);
        if version > FORMAT_VERSION {
            return Err(Error::NewerFormat { file: FileId::Meta, version, supported: FORMAT_VERSION });
        }
        if version != FORMAT_VERSION || u32_at(bytes, 12) != crc32c::crc32c(&bytes[16..]) {
            return Err(corrupt("the checksum does not match"));
        }
        Ok(Self { secret: u64_at(bytes, 16) })
    }
}

/// The first sector of a segment file that is in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SegmentHeader {
    pub(crate) id: SegmentId,
    /// The segment before it; zero in the first one of a log.
    pub(crate) previous: SegmentId,
    /// Where the batches of the segment before it end.
    pub(crate) previous_end: u32,
    pub(crate) capacity: u32,
    /// Number of its first batch.
    pub(crate) first_batch: u64,
    /// Number of the last batch that was known to be synced.
    pub(crate) synced: u64,
    /// Number of its first record.
    pub(crate) first_lsn: Lsn,
    /// The oldest segment in use.
    pub(crate) head: SegmentId,
}

impl SegmentHeader {
    pub(crate) fn encode(&self, seed: Seed) -> [u8; SECTOR] {
        let mut out = [0; SECTOR];
        put(&mut out, 0, SEGMENT_MAGIC);
        put(&mut out, 8, &FORMAT_VERSION.to_le_bytes());
        put(&mut out, 16, &self.id.0.to_le_bytes());
        put(&mut out, 24, &self.previous.0.to_le_bytes());
        put(&mut out, 32, &self.first_batch.to_le_bytes());
        put(&mut out, 40, &self.synced.to_le_bytes());
        put(&mut out, 48, &self.first_lsn.0.to_le_bytes());
        put(&mut out, 56, &self.head.0.to_le_bytes());
        put(&mut out, 64, &self.capacity.to_le_bytes());
        put(&mut out, 68, &self.previous_end.to_le_bytes());
        let checksum = crc32c::crc32c_append(seed.0, &out[16..]);
        put(&mut out, 12, &checksum.to_le_bytes());
        out
    }

    /// The header in `bytes`, if it is one of segment `id`: a file that is allocated but not in use yet has
    /// none.
    ///
    /// # Errors
    /// [`Error::NewerFormat`].
    pub(crate) fn decode(bytes: &[u8], id: SegmentId, seed: Seed) -> Result<Option<Self>, Error> {
        if bytes.len() < SECTOR || &bytes[..8] != SEGMENT_MAGIC {
            return Ok(None);
        }
        if u32_at(bytes, 12) != crc32c::crc32c_append(seed.0, &bytes[16..SECTOR]) {
            return Ok(None);
        }
        let version = u32_at(bytes, 8);
        if version > FORMAT_VERSION {
            let file = FileId::Segment(id);
            return Err(Error::NewerFormat { file, version, supported: FORMAT_VERSION });
        }
        if version != FORMAT_VERSION {
            return Ok(None);
        }
        Ok(Some(Self {
            id: SegmentId(u64_at(bytes, 16)),
            previous: SegmentId(u64_at(bytes, 24)),
            first_batch: u64_at(bytes, 32),
            synced: u64_at(bytes, 40),
            first_lsn: Lsn(u64_at(bytes, 48)),
            head: SegmentId(u64_at(bytes, 56)),
            capacity: u32_at(bytes, 64),
            previous_end: u32_at(bytes, 68),
        }))
    }
}

/// The start of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BatchHeader {
    /// From 1, without gaps along the log.
    pub(crate) number: u64,
    /// Number of the last batch whose sync had returned when this one was written: the proof that
    /// everything up to it was on the disk.
    pub(crate) synced: u64,
    /// Number of its first record; of the next record when it has none.
    pub(crate) first_lsn: Lsn,
    /// The oldest segment in use.
    pub(crate) head: SegmentId,
    /// Bytes of records after the header.
    pub(crate) length: u32,
    /// Records after the header.
    pub(crate) count: u32,
    /// See [`digest`]: binds the header to exactly these records.
    pub(crate) digest: u32,
    /// Where it lies in the file.
    pub(crate) offset: u32,
    /// The log was closed with this batch.
    pub(crate) closed: bool,
}

impl BatchHeader {
    pub(crate) fn encode(&self, seed: Seed) -> [u8; BATCH_HEADER] {
        let mut out = [0; BATCH_HEADER];
        put(&mut out, 0, BATCH_MAGIC);
        put(&mut out, 8, &self.number.to_le_bytes());
        put(&mut out, 16, &self.synced.to_le_bytes());
        put(&mut out, 24, &self.first_lsn.0.to_le_bytes());
        put(&mut out, 32, &self.head.0.to_le_bytes());
        put(&mut out, 40, &self.length.to_le_bytes());
        put(&mut out, 44, &self.count.to_le_bytes());
        put(&mut out, 48, &self.digest.to_le_bytes());
        put(&mut out, 52, &self.offset.to_le_bytes());
        put(&mut out, 56, &(if self.closed { FLAG_CLOSED } else { 0 }).to_le_bytes());
        let checksum = crc32c::crc32c_append(seed.0, &out[8..]);
        put(&mut out, 4, &checksum.to_le_bytes());
        out
    }

    /// The batch header at the start of `bytes`, which lie at `offset` of the segment that `seed` is of.
    pub(crate) fn decode(bytes: &[u8], offset: u32, seed: Seed) -> Option<Self> {
        if bytes.len() < BATCH_HEADER || &bytes[..4] != BATCH_MAGIC {
            return None;
        }
        if u32_at(bytes, 4) != crc32c::crc32c_append(seed.0, &bytes[8..BATCH_HEADER]) {
            return None;
        }
        let header = Self {
            number: u64_at(bytes, 8),
            synced: u64_at(bytes, 16),
            first_lsn: Lsn(u64_at(bytes, 24)),
            head: SegmentId(u64_at(bytes, 32)),
            length: u32_at(bytes, 40),
            count: u32_at(bytes, 44),
            digest: u32_at(bytes, 48),
            offset: u32_at(bytes, 52),
            closed: u32_at(bytes, 56) & FLAG_CLOSED != 0,
        };
        (header.offset == offset).then_some(header)
    }

    /// Where its records end.
    pub(crate) fn records_end(&self) -> u64 {
        u64::from(self.offset) + u64::from(BATCH_HEADER_BYTES) + u64::from(self.length)
    }
}

/// The start of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RecordHeader {
    pub(crate) length: u32,
    pub(crate) kind: u8,
    checksum: u32,
}

impl RecordHeader {
    /// The header of a record of `kind` whose payload is `parts` joined, `length` bytes together.
    pub(crate) fn of(kind: u8, length: u32, parts: &[bytes::Bytes], seed: Seed) -> Self {
        let checksum =
            parts.iter().fold(Self::start(kind, length, seed), |sum, part| crc32c::crc32c_append(sum, part));
        Self { length, kind, checksum }
    }

    pub(crate) fn encode(&self) -> [u8; RECORD_HEADER] {
        let mut out = [0; RECORD_HEADER];
        put(&mut out, 0, &self.checksum.to_le_bytes());
        put(&mut out, 4, &self.length.to_le_bytes());
        out[8] = self.kind;
        out
    }

    /// The header at the start of `bytes`; nothing of it is proven before [`Self::matches`].
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        if bytes.len() < RECORD_HEADER || bytes[9..RECORD_HEADER] != [0; 3] {
            return None;
        }
        Some(Self { checksum: u32_at(bytes, 0), length: u32_at(bytes, 4), kind: bytes[8] })
    }

    /// Is `payload` what this header was written for?
    pub(crate) fn matches(&self, payload: &[u8], seed: Seed) -> bool {
        payload.len() == self.length as usize
            && crc32c::crc32c_append(Self::start(self.kind, self.length, seed), payload) == self.checksum
    }

    fn start(kind: u8, length: u32, seed: Seed) -> u32 {
        let mut head = [0; RECORD_HEADER - 4];
        put(&mut head, 0, &length.to_le_bytes());
        head[4] = kind;
        crc32c::crc32c_append(seed.0, &head)
    }
}

/// The digest of a batch after one more record whose header is `header`.
pub(crate) fn digest(so_far: u32, header: &[u8; RECORD_HEADER]) -> u32 {
    crc32c::crc32c_append(so_far, header)
}

/// The next multiple of a sector.
pub(crate) fn align(offset: u64) -> u64 {
    offset.next_multiple_of(u64::from(SECTOR_BYTES))
}

fn put(out: &mut [u8], at: usize, bytes: &[u8]) {
    out[at..at + bytes.len()].copy_from_slice(bytes);
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut raw = [0; 4];
    raw.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(raw)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut raw = [0; 8];
    raw.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(raw)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn batch() -> BatchHeader {
        BatchHeader {
            number: 7,
            synced: 6,
            first_lsn: Lsn(40),
            head: SegmentId(2),
            length: 100,
            count: 3,
            digest: 9,
            offset: 1024,
            closed: true,
        }
    }

    #[test]
    fn headers_come_back() {
        let seed = Seed::new(1, SegmentId(3));
        assert_eq!(BatchHeader::decode(&batch().encode(seed), 1024, seed), Some(batch()));
        let segment = SegmentHeader {
            id: SegmentId(3),
            previous: SegmentId(2),
            previous_end: 512,
            capacity: 65536,
            first_batch: 7,
            synced: 6,
            first_lsn: Lsn(40),
            head: SegmentId(1),
        };
        let read = SegmentHeader::decode(&segment.encode(seed), SegmentId(3), seed);
        assert_eq!(read.unwrap(), Some(segment));
        assert_eq!(Meta::decode(&Meta { secret: 5 }.encode()).unwrap(), Meta { secret: 5 });
    }

    #[test]
    fn a_header_of_another_place_segment_or_log_does_not_pass() {
        let seed = Seed::new(1, SegmentId(3));
        let bytes = batch().encode(seed);
        assert_eq!(BatchHeader::decode(&bytes, 1536, seed), None);
        assert_eq!(BatchHeader::decode(&bytes, 1024, Seed::new(1, SegmentId(4))), None);
        assert_eq!(BatchHeader::decode(&bytes, 1024, Seed::new(2, SegmentId(3))), None);
    }

    #[test]
    fn no_flipped_bit_of_a_header_passes() {
        let seed = Seed::new(1, SegmentId(3));
        let bytes = batch().encode(seed);
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(BatchHeader::decode(&flipped, 1024, seed), None, "bit {bit}");
        }
    }

    #[test]
    fn no_flipped_bit_of_a_record_passes() {
        let seed = Seed::new(1, SegmentId(3));
        let parts = [Bytes::from_static(b"head"), Bytes::from_static(b"body")];
        let mut bytes = RecordHeader::of(5, 8, &parts, seed).encode().to_vec();
        bytes.extend_from_slice(b"headbody");
        let passes = |bytes: &[u8]| {
            RecordHeader::decode(bytes).is_some_and(|h| h.matches(&bytes[RECORD_HEADER..], seed))
        };
        assert!(passes(&bytes));
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(!passes(&flipped), "bit {bit}");
        }
    }

    #[test]
    fn a_newer_format_is_refused_by_name() {
        let mut bytes = Meta { secret: 5 }.encode();
        bytes[8] = 2;
        let error = Meta::decode(&bytes).unwrap_err();
        assert_eq!(error.to_string(), "journal.meta has format version 2, this release reads up to 1");
    }
}
