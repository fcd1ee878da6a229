//! Plain numbers about a broker; the server turns them into metrics and into answers of its admin interface.

use berth_types::{ChannelName, Timestamp};

/// Counters since start and gauges of the whole broker.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Messages stored.
    pub published: u64,
    /// Bytes of head and body of stored messages.
    pub published_bytes: u64,
    /// Deliveries handed out.
    pub reserved: u64,
    /// Deliveries that ended accepted.
    pub accepted: u64,
    /// Deliveries that the consumer discarded.
    pub rejected: u64,
    /// Messages sent back to the tail of their queue.
    pub requeued: u64,
    /// Deliveries given back unseen.
    pub released: u64,
    /// Messages appended again so that an old segment could be dropped.
    pub relocated: u64,
    /// Settlements refused: unknown, late or of another connection.
    pub unknown_settlements: u64,
    /// Queues that exist.
    pub queues: u64,
    /// Messages stored and not settled, in flight included.
    pub live: u64,
    /// Bytes that live messages need in the journal.
    pub live_bytes: u64,
    /// Deliveries that wait for their settlement.
    pub in_flight: u64,
    /// Bytes of the journal in use.
    pub journal_bytes: u64,
    /// Only the space that settlements need is left: publishes are refused.
    pub is_disk_full: bool,
    /// Bytes of messages in memory.
    pub cached_bytes: u64,
    /// Bytes of queue index in memory.
    pub index_bytes: u64,
}

/// One queue, as the admin interface shows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QueueStats {
    /// Its name.
    pub name: ChannelName,
    /// Messages that wait for a consumer.
    pub ready: u64,
    /// Messages with a consumer.
    pub in_flight: u64,
    /// Bytes of head and body, in flight included.
    pub bytes: u64,
    /// Consumers attached.
    pub consumers: u64,
    /// When the oldest waiting message was published, where that is known without reading the disk.
    pub oldest: Option<Timestamp>,
}
