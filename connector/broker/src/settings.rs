//! What an operator may choose about the embedded broker.

use std::time::Duration;

/// Settings of one broker.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Settings of its journal; among them when a confirm is given (`fsync`).
    pub log: berth_log::Settings,
    /// Bytes of messages that are kept in memory so that a consumer who keeps up never reads the disk.
    pub cache_bytes: usize,
    /// Bytes of queue index that are kept in memory; the rest of a backlog lies in a side file that is
    /// rebuilt at start.
    pub index_bytes: usize,
    /// An empty channel without users is forgotten after this time.
    pub idle_expiry: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            log: berth_log::Settings::default(),
            cache_bytes: 64 * 1024 * 1024,
            index_bytes: 32 * 1024 * 1024,
            idle_expiry: Duration::from_secs(24 * 60 * 60),
        }
    }
}
