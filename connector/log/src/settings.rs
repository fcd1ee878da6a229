//! What an operator may choose about the journal.

use crate::format::PAGE_BYTES;
use std::time::Duration;

/// When appended records are synced, and so what a power cut may take. After `kill -9` alone nothing that
/// was confirmed is lost in any mode.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Fsync {
    /// A record is confirmed after the sync that covers it.
    #[default]
    Always,
    /// A record is confirmed when it is written; the sync starts at most [`Fsync::INTERVAL`] later.
    Interval,
    /// A record is confirmed when it is written. Syncs happen only where the log needs them for itself:
    /// when a segment is full and before one is given back.
    Never,
}

impl Fsync {
    /// Longest time between a write and the start of its sync in [`Fsync::Interval`].
    pub const INTERVAL: Duration = Duration::from_millis(10);
}

/// Settings of one log.
#[derive(Clone, Debug)]
pub struct Settings {
    /// See [`Fsync`].
    pub fsync: Fsync,
    /// Size of a segment file in bytes, header included; rounded up to 4 KiB, at least 64 KiB. A record
    /// that does not fit gets a segment of its own size.
    pub segment_bytes: u32,
    /// Allocated segments held back from [`crate::Purpose::Publish`], at least 2.
    pub reserve_segments: u32,
    /// Encoded bytes not yet written beyond which publishes are refused with [`crate::Refused::Busy`].
    pub unwritten_bytes_max: u64,
    /// A number that peers cannot guess (random; any value in tests). It goes under every checksum of a new
    /// log, so that bytes in a message never read as a record. Ignored when the log exists.
    pub secret: u64,
}

impl Settings {
    const SEGMENT_BYTES_MIN: u32 = 64 * 1024;
    const SEGMENT_BYTES_MAX: u32 = 1 << 30;

    /// These settings with every value in its range.
    pub(crate) fn rounded(mut self) -> Self {
        let bytes = self.segment_bytes.clamp(Self::SEGMENT_BYTES_MIN, Self::SEGMENT_BYTES_MAX);
        self.segment_bytes = bytes.next_multiple_of(PAGE_BYTES);
        self.reserve_segments = self.reserve_segments.max(2);
        self
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            fsync: Fsync::Always,
            segment_bytes: 16 * 1024 * 1024,
            reserve_segments: 2,
            unwritten_bytes_max: 64 * 1024 * 1024,
            secret: 0,
        }
    }
}
