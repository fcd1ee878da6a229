//! Records that are being read for consumers.

use std::collections::BTreeMap;

use berth_log::SegmentId;
use berth_types::Seq;

use crate::record::ChannelId;

/// A record that is being read for a queue: the messages wanted from it.
#[derive(Debug)]
pub(crate) struct ReadBack {
    pub(crate) channel: ChannelId,
    pub(crate) segment: SegmentId,
    pub(crate) wanted: Vec<(Seq, u32)>,
}

/// Every record that is being read for a queue.
#[derive(Debug, Default)]
pub(crate) struct Reads {
    running: BTreeMap<u64, ReadBack>,
    next: u64,
}

impl Reads {
    /// A token that was never used.
    pub(crate) const fn token(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub(crate) fn insert(&mut self, read: ReadBack) -> u64 {
        let token = self.token();
        self.running.insert(token, read);
        token
    }

    pub(crate) fn remove(&mut self, token: u64) -> Option<ReadBack> {
        self.running.remove(&token)
    }

    /// Whether a read of a segment before `head` is out.
    pub(crate) fn reads_before(&self, head: SegmentId) -> bool {
        self.running.values().any(|read| read.segment < head)
    }
}
