//! What the machine can do without a broker: how long a barrier takes, how fast a file is only appended and
//! synced.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use hdrhistogram::Histogram;

/// Times of `write` + `fdatasync` of one block, in nanoseconds.
#[derive(Debug)]
pub(crate) struct Barrier(Histogram<u64>);

impl Barrier {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self(Histogram::new_with_bounds(1_000, 60_000_000_000, 3)?))
    }

    /// Measures for a while in `folder`, which must be on the disk that the servers use.
    pub(crate) fn measure(&mut self, folder: &Path, time: Duration) -> Result<()> {
        let mut file = tempfile::tempfile_in(folder)?;
        let block = [b'x'; 4096];
        let start = Instant::now();
        while start.elapsed() < time {
            let begin = Instant::now();
            file.write_all(&block)?;
            file.sync_data()?;
            self.0.saturating_record(u64::try_from(begin.elapsed().as_nanos())?);
        }
        Ok(())
    }

    /// Microseconds within which this share (0 to 1) of the barriers were done.
    pub(crate) fn quantile_us(&self, quantile: f64) -> f64 {
        self.0.value_at_quantile(quantile) as f64 / 1_000.0
    }
}

/// Records a second when `batch` records of `record_bytes` are appended before each sync.
pub(crate) fn append_and_sync(
    folder: &Path,
    record_bytes: usize,
    batch: usize,
    time: Duration,
) -> Result<f64> {
    let mut file: File = tempfile::tempfile_in(folder)?;
    let block = vec![b'x'; record_bytes * batch];
    let start = Instant::now();
    let mut records = 0;
    while start.elapsed() < time {
        file.write_all(&block)?;
        file.sync_data()?;
        records += batch;
    }
    Ok(records as f64 / start.elapsed().as_secs_f64())
}
