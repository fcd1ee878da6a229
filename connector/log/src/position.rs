//! Where a record lies and when it was appended.

use bytes::Bytes;

/// Number of a segment. Ascending along the log and never used twice, so it also is the generation of the
/// bytes in a recycled file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct SegmentId(pub u64);

/// Log sequence number: the number of a record in the log, from 1, without gaps, kept over restarts. A
/// record is durable when [`crate::Log::durable`] has reached its number. Zero: before the first record.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Lsn(pub u64);

/// Where a record lies: enough to read it with one read. 16 bytes, so that an index may keep one per
/// message.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Position {
    /// The segment.
    pub segment: SegmentId,
    /// Offset of the record's header from the start of the segment file, in bytes.
    pub offset: u32,
    /// Length of the payload in bytes.
    pub length: u32,
}

/// A record as it was appended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// Where it lies.
    pub position: Position,
    /// The caller's word for what it is.
    pub kind: u8,
    /// The parts given to [`crate::Log::append`], joined.
    pub payload: Bytes,
}
