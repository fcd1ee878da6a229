//! Records per second of append and sync, against a bare loop that writes and syncs the same bytes.
//!
//! `cargo run --release -p berth-log --example append [DIR] [SECONDS]`: DIR lies on the disk to measure (by
//! default the current directory), each figure takes so many seconds (by default 1). The two take turns.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a measurement reads the clock")]

use berth_log::{FileStorage, Log, Lsn, Purpose, SegmentId, Settings, execute};
use berth_types::Instant;
use bytes::Bytes;
use std::error::Error;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant as Clock};

const RECORD_BYTES: usize = 1024;
/// What the bare loop writes over and over.
const FILE_BYTES: u64 = 64 * 1024 * 1024;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args_os().skip(1);
    let dir = args.next().map_or_else(|| PathBuf::from("."), PathBuf::from);
    let seconds = args.next().and_then(|text| text.to_str()?.parse().ok()).unwrap_or(1.0);
    let time = Duration::from_secs_f64(seconds);
    println!("records of {RECORD_BYTES} bytes   journal/s      bare/s   share");
    for batch in [1, 16, 256] {
        let dir = tempfile::tempdir_in(&dir)?;
        // The first turn of each allocates and warms up.
        journal(dir.path(), batch, time)?;
        bare(dir.path(), batch, time)?;
        let ours = journal(dir.path(), batch, time)?;
        let limit = bare(dir.path(), batch, time)?;
        println!("batch of {batch:>4}         {ours:>10.0}  {limit:>10.0}  {:>5.2}", ours / limit);
    }
    Ok(())
}

/// Appends in batches, each confirmed before the next; a batch ago nothing is needed any more.
fn journal(dir: &Path, batch: usize, time: Duration) -> Result<f64, Box<dyn Error>> {
    let mut storage = FileStorage::open(dir)?;
    let (mut log, _) = Log::open(&mut storage, Settings::default(), Lsn(0), &mut |_, _| Ok(()))?;
    let parts = [Bytes::from(vec![1; 40]), Bytes::from(vec![2; RECORD_BYTES - 40])];
    let begun = Clock::now();
    let mut records = 0;
    while begun.elapsed() < time {
        for _ in 0..batch {
            log.append(Purpose::Publish, 1, &parts)?;
        }
        log.truncate_head(SegmentId(u64::MAX));
        while let Some(op) = log.poll_storage(Instant::ZERO) {
            let stored = execute(&mut storage, op);
            log.handle_stored(Instant::ZERO, stored);
        }
        records += batch;
    }
    assert_eq!(log.confirmed(), log.appended());
    Ok(records as f64 / begun.elapsed().as_secs_f64())
}

/// Writes and syncs the same bytes, over a file that was written before.
fn bare(dir: &Path, batch: usize, time: Duration) -> Result<f64, Box<dyn Error>> {
    let path = dir.join("bare");
    let is_new = !path.exists();
    let file = File::options().create(true).truncate(false).write(true).open(path)?;
    let bytes = vec![3; RECORD_BYTES * batch];
    if is_new {
        for offset in (0..FILE_BYTES).step_by(bytes.len()) {
            file.write_all_at(&bytes, offset)?;
        }
        file.sync_all()?;
    }
    let begun = Clock::now();
    let mut records = 0;
    let mut offset = 0;
    while begun.elapsed() < time {
        file.write_all_at(&bytes, offset)?;
        file.sync_data()?;
        offset = (offset + bytes.len() as u64) % FILE_BYTES;
        records += batch;
    }
    Ok(records as f64 / begun.elapsed().as_secs_f64())
}
