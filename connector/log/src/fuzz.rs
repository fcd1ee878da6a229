//! Recovery of arbitrary files: what a fuzzer calls.

use crate::format::{BatchHeader, Seed, SegmentHeader};
use crate::position::{Lsn, SegmentId};
use crate::sim::{SimStorage, keep_all};
use crate::storage::{FileId, Storage, execute};
use crate::{Log, Purpose, Settings};
use berth_types::Instant;
use bytes::Bytes;

const SECRET: u64 = 5;
/// Bytes of one change: what, where, and of which bytes.
const CHANGE_BYTES: usize = 48;

/// Makes a small sound log, changes its files as `data` says (also with headers whose checksums pass, as no
/// damage could make them), and recovers it. What is recovered must work on.
///
/// # Panics
/// When recovery has a fault.
pub fn fuzz_recover(data: &[u8]) {
    let settings = Settings { segment_bytes: 64 * 1024, secret: SECRET, ..Settings::default() };
    let mut disk = SimStorage::new();
    let opened = Log::open(&mut disk, settings.clone(), Lsn(0), &mut |_, _| Ok(()));
    let (mut log, _) = opened.expect("a new log");
    for len in [10, 1000, 60_000, 20, 60_000, 3] {
        append(&mut log, &mut disk, len);
    }
    for change in data.chunks_exact(CHANGE_BYTES) {
        apply(&mut disk, change);
    }
    disk.crash(&mut keep_all);
    let Ok((mut log, report)) = Log::open(&mut disk, settings.clone(), Lsn(0), &mut |_, _| Ok(())) else {
        return;
    };
    if report.last_lsn.0 > u64::MAX / 2 {
        return; // Forged: no log is that long.
    }
    append(&mut log, &mut disk, 100);
    append(&mut log, &mut disk, 60_000);
    assert!(!log.is_poisoned());
    let again = Log::open(&mut disk, settings, Lsn(0), &mut |_, _| Ok(()));
    if data.chunks_exact(CHANGE_BYTES).all(|change| !matches!(change[0] % 6, 1 | 2)) {
        let (_, report) = again.expect("what was recovered is sound");
        assert_eq!(report.last_lsn, log.appended());
    }
}

fn append(log: &mut Log, disk: &mut SimStorage, len: usize) {
    log.append(Purpose::Upkeep, 1, &[Bytes::from(vec![7; len])]).expect("room");
    while let Some(op) = log.poll_storage(Instant::ZERO) {
        let stored = execute(disk, op);
        log.handle_stored(Instant::ZERO, stored);
    }
}

fn apply(disk: &mut SimStorage, change: &[u8]) {
    let id = SegmentId(u64::from(change[1] % 8));
    let file = FileId::Segment(id);
    let sector = u32::from(u16::from_le_bytes([change[2], change[3]]) % 128);
    let offset = sector * 512;
    let number = |at: usize| {
        let mut raw = [0; 8];
        raw.copy_from_slice(&change[at..at + 8]);
        // Mostly small numbers: those are what other headers say too.
        if change[4] & 1 == 0 { u64::from_le_bytes(raw) } else { u64::from(raw[0] % 16) }
    };
    let narrow = |at: usize| number(at) as u32;
    let seed = Seed::new(SECRET, id);
    let bytes = match change[0] % 6 {
        0 => Bytes::copy_from_slice(&change[5..]),
        1 => {
            let header = BatchHeader {
                number: number(8),
                synced: number(16),
                first_lsn: Lsn(number(24)),
                head: SegmentId(number(32)),
                length: narrow(40),
                count: narrow(36),
                digest: narrow(12),
                offset,
                closed: change[5] & 1 == 1,
            };
            Bytes::copy_from_slice(&header.encode(seed))
        }
        2 => {
            let header = SegmentHeader {
                id,
                previous: SegmentId(number(8)),
                previous_end: narrow(16).wrapping_mul(if change[5] & 1 == 1 { 512 } else { 1 }),
                capacity: 64 * 1024,
                first_batch: number(24),
                synced: number(32),
                first_lsn: Lsn(number(40)),
                head: SegmentId(number(20)),
            };
            disk.write_at(file, 0, &[Bytes::copy_from_slice(&header.encode(seed))]).ok();
            return;
        }
        3 => {
            let to = SegmentId(u64::from(change[5] % 8));
            disk.rename(file, FileId::Segment(to)).ok();
            return;
        }
        4 => {
            disk.remove(file).ok();
            return;
        }
        _ => {
            disk.create(file, 512 * u64::from(change[5])).ok();
            return;
        }
    };
    if disk.read_at(file, offset.into(), 512).is_ok() {
        disk.write_at(file, offset.into(), &[bytes]).ok();
    }
}
