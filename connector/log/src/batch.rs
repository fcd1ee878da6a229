//! A batch in memory: records that one write brings to one segment. Small parts are joined in buffers,
//! large ones are kept by reference, so a body is not copied on its way to the disk.

use crate::format::{self, BATCH_HEADER_BYTES, BatchHeader, PAGE_BYTES, RECORD_HEADER_BYTES, RecordHeader};
use crate::format::{Seed, SegmentHeader};
use crate::position::{Lsn, Position, Record, SegmentId};
use crate::storage::{FileId, Write};
use bytes::{BufMut, Bytes, BytesMut};

/// Parts up to this size are copied into a buffer: cheaper than one more slice of a vectored write.
const COPY_BYTES_MAX: usize = 2048;
const BUFFER_BYTES_MIN: usize = 4 * 1024;
const BUFFER_BYTES_MAX: usize = 256 * 1024;
const ZEROS: &[u8] = &[0; PAGE_BYTES as usize];

/// What is known of a batch only when it is written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seal {
    pub(crate) number: u64,
    pub(crate) synced: u64,
    pub(crate) head: SegmentId,
    pub(crate) closed: bool,
}

/// The first batch of a segment writes the segment's header too.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Begin {
    pub(crate) previous: SegmentId,
    pub(crate) previous_end: u32,
}

/// Records that wait for one write.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) segment: SegmentId,
    pub(crate) begin: Option<Begin>,
    pub(crate) first_lsn: Lsn,
    pub(crate) count: u32,
    capacity: u32,
    seed: Seed,
    /// Offset of the header in the file.
    start: u32,
    /// Offset behind the last record.
    end: u32,
    digest: u32,
    /// Full buffers and large parts, without gaps, each with its offset in the file.
    chunks: Vec<(u32, Bytes)>,
    /// The buffer that small parts go to; it follows the last chunk.
    buffer: BytesMut,
    buffer_start: u32,
}

impl Batch {
    /// An empty batch at `start` of a segment file of `capacity` bytes.
    pub(crate) fn new(segment: SegmentId, capacity: u32, seed: Seed, start: u32, first_lsn: Lsn) -> Self {
        let end = start + BATCH_HEADER_BYTES;
        Self {
            segment,
            begin: None,
            first_lsn,
            count: 0,
            capacity,
            seed,
            start,
            end,
            digest: 0,
            chunks: Vec::new(),
            buffer: BytesMut::new(),
            buffer_start: end,
        }
    }

    /// Is there room for a record whose payload has `length` bytes? One sector is kept for a mark.
    pub(crate) fn fits(&self, length: u32) -> bool {
        let end = u64::from(self.end) + u64::from(RECORD_HEADER_BYTES) + u64::from(length);
        end + u64::from(format::SECTOR_BYTES) <= u64::from(self.capacity)
    }

    /// Bytes of the file behind a record that fits.
    pub(crate) fn left(&self, length: u32) -> u32 {
        self.capacity - self.end - RECORD_HEADER_BYTES - length
    }

    /// Where the next batch of the segment starts.
    pub(crate) fn next_start(&self) -> u32 {
        // Capacities are multiples of a sector, so the next multiple is at most the capacity.
        self.end.next_multiple_of(format::SECTOR_BYTES)
    }

    /// The number of its last record; of the one before it when it has none.
    pub(crate) fn last_lsn(&self) -> Lsn {
        Lsn(self.first_lsn.0 + u64::from(self.count) - 1)
    }

    /// Bytes of headers and records.
    pub(crate) fn bytes(&self) -> u64 {
        u64::from(self.end - self.start)
    }

    /// Adds a record that fits; `length` is the length of `parts` together.
    pub(crate) fn push(&mut self, kind: u8, length: u32, parts: &[Bytes]) -> Position {
        let position = Position { segment: self.segment, offset: self.end, length };
        let header = RecordHeader::of(kind, length, parts, self.seed).encode();
        self.digest = format::digest(self.digest, &header);
        self.copy(&header);
        for part in parts {
            if part.len() <= COPY_BYTES_MAX {
                self.copy(part);
            } else {
                self.flush();
                self.chunks.push((self.buffer_start, part.clone()));
                self.buffer_start += len_u32(part);
            }
        }
        self.count += 1;
        self.end += RECORD_HEADER_BYTES + length;
        position
    }

    /// The record at `position`, if this batch has it.
    pub(crate) fn read(&self, position: Position) -> Option<Record> {
        let is_here = position.segment == self.segment
            && position.offset >= self.start + BATCH_HEADER_BYTES
            && u64::from(position.offset) + u64::from(RECORD_HEADER_BYTES) + u64::from(position.length)
                <= u64::from(self.end);
        if !is_here {
            return None;
        }
        let header = RecordHeader::decode(&self.gather(position.offset, RECORD_HEADER_BYTES))?;
        if header.length != position.length {
            return None;
        }
        let payload = self.gather(position.offset + RECORD_HEADER_BYTES, position.length);
        Some(Record { position, kind: header.kind, payload })
    }

    /// The write that brings the batch to the disk, up to the end of its last page.
    pub(crate) fn seal(&mut self, seal: Seal) -> Write {
        self.flush();
        let header = BatchHeader {
            number: seal.number,
            synced: seal.synced,
            first_lsn: self.first_lsn,
            head: seal.head,
            length: self.end - self.start - BATCH_HEADER_BYTES,
            count: self.count,
            digest: self.digest,
            offset: self.start,
            closed: seal.closed,
        };
        let mut head = BytesMut::new();
        if let Some(begin) = self.begin {
            head.put_slice(&self.segment_header(begin, seal).encode(self.seed));
        }
        head.put_slice(&header.encode(self.seed));
        let offset = self.start + BATCH_HEADER_BYTES - len_u32(&head);
        let mut parts = Vec::with_capacity(self.chunks.len() + 2);
        parts.push(head.freeze());
        parts.extend(self.chunks.iter().map(|(_, chunk)| chunk.clone()));
        let padded = self.end.next_multiple_of(PAGE_BYTES).min(self.capacity);
        if padded > self.end {
            parts.push(Bytes::from_static(ZEROS).slice(..(padded - self.end) as usize));
        }
        Write { file: FileId::Segment(self.segment), offset: u64::from(offset), parts }
    }

    fn segment_header(&self, begin: Begin, seal: Seal) -> SegmentHeader {
        SegmentHeader {
            id: self.segment,
            previous: begin.previous,
            previous_end: begin.previous_end,
            capacity: self.capacity,
            first_batch: seal.number,
            synced: seal.synced,
            first_lsn: self.first_lsn,
            head: seal.head,
        }
    }

    fn copy(&mut self, bytes: &[u8]) {
        if self.buffer.capacity() - self.buffer.len() < bytes.len() {
            let size = (self.buffer.capacity() * 2).clamp(BUFFER_BYTES_MIN, BUFFER_BYTES_MAX);
            self.flush();
            self.buffer = BytesMut::with_capacity(size.max(bytes.len()));
        }
        self.buffer.put_slice(bytes);
    }

    /// Makes what the buffer holds a chunk.
    fn flush(&mut self) {
        if !self.buffer.is_empty() {
            let chunk = self.buffer.split().freeze();
            let start = self.buffer_start;
            self.buffer_start += len_u32(&chunk);
            self.chunks.push((start, chunk));
        }
    }

    /// `length` bytes from `offset` of the file on, which the batch has; without a copy when they lie in
    /// one chunk.
    fn gather(&self, offset: u32, length: u32) -> Bytes {
        let first = self.chunks.partition_point(|(start, chunk)| start + len_u32(chunk) <= offset);
        if let Some((start, chunk)) = self.chunks.get(first) {
            let from = (offset - start) as usize;
            if chunk.len() - from >= length as usize {
                return chunk.slice(from..from + length as usize);
            }
        }
        let mut out = BytesMut::with_capacity(length as usize);
        let buffer = (self.buffer_start, &self.buffer[..]);
        let chunks = self.chunks[first..].iter().map(|(start, chunk)| (*start, &chunk[..]));
        for (start, bytes) in chunks.chain([buffer]) {
            let from = (offset + len_u32(&out)).saturating_sub(start) as usize;
            let missing = length as usize - out.len();
            let to = bytes.len().min(from + missing);
            out.put_slice(&bytes[from.min(to)..to]);
        }
        out.freeze()
    }
}

fn len_u32(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).expect("invariant: a batch is shorter than its file")
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAPACITY: u32 = 1 << 20;
    const SEED: Seed = Seed::TEST;

    fn flat(write: &Write) -> Vec<u8> {
        write.parts.iter().flat_map(|part| part.to_vec()).collect()
    }

    #[test]
    fn records_are_read_back_from_memory_and_from_the_write() {
        let mut batch = Batch::new(SegmentId(1), CAPACITY, SEED, 1024, Lsn(1));
        let sizes = [0_usize, 1, 5000, 30, 2048, 2049, 100_000, 7];
        let positions: Vec<_> = (0_u8..)
            .zip(sizes)
            .map(|(kind, size)| {
                let parts = [Bytes::from(vec![kind; size]), Bytes::from_static(b"tail")];
                batch.push(kind, u32::try_from(size).unwrap() + 4, &parts)
            })
            .collect();
        let write = batch.seal(Seal { number: 1, synced: 0, head: SegmentId(1), closed: false });
        let bytes = flat(&write);
        assert_eq!((write.offset + bytes.len() as u64) % u64::from(PAGE_BYTES), 0);
        for (kind, position) in (0_u8..).zip(positions) {
            let record = batch.read(position).unwrap();
            assert_eq!(record.kind, kind);
            let at = (u64::from(position.offset) - write.offset) as usize;
            let header = RecordHeader::decode(&bytes[at..]).unwrap();
            let payload = &bytes[at + 12..at + 12 + position.length as usize];
            assert!(header.matches(payload, SEED));
            assert_eq!(record.payload, payload);
        }
    }

    #[test]
    fn a_large_part_is_not_copied() {
        let mut batch = Batch::new(SegmentId(1), CAPACITY, SEED, 512, Lsn(1));
        let body = Bytes::from(vec![1; 10_000]);
        let position = batch.push(1, 10_000, std::slice::from_ref(&body));
        assert_eq!(batch.read(position).unwrap().payload.as_ptr(), body.as_ptr());
        let write = batch.seal(Seal { number: 1, synced: 0, head: SegmentId(1), closed: false });
        assert!(write.parts.iter().any(|part| part.as_ptr() == body.as_ptr()));
    }

    #[test]
    fn a_position_of_another_place_is_not_read() {
        let mut batch = Batch::new(SegmentId(1), CAPACITY, SEED, 512, Lsn(1));
        let position = batch.push(1, 4, &[Bytes::from_static(b"abcd")]);
        assert!(batch.read(Position { length: 3, ..position }).is_none());
        assert!(batch.read(Position { length: 5, ..position }).is_none());
        assert!(batch.read(Position { offset: 0, ..position }).is_none());
        assert!(batch.read(Position { segment: SegmentId(2), ..position }).is_none());
    }
}
