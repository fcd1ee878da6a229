//! One queue, and all of them by number and by name.
//!
//! First in, first out among what is ready. A message is *ready* when its record is as durable as configured
//! (`ready_end`); it may be handed out when the delivery mark that covers it is so too (`mark_confirmed`).
//! Waiting reserves are served in the order in which they came.

use std::collections::BTreeMap;

use berth_log::SegmentId;
use berth_types::limits::DELIVERY_MARK_STRIDE;
use berth_types::{ChannelName, ConnectionId, Instant, OpId, Seq, SubId};

use crate::QueueStats;
use crate::cache::Bodies;
use crate::index::{Index, Peek};
use crate::pager::Indexes;
use crate::record::ChannelId;

/// One queue.
#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) name: ChannelName,
    pub(crate) index: Index,
    pub(crate) bodies: Bodies,
    /// Where the journal names this queue; none before its first fact.
    pub(crate) stated_in: Option<SegmentId>,
    /// Sequences below are as durable as configured.
    pub(crate) ready_end: u64,
    /// The delivery mark in the journal: everything up to it may have been delivered.
    pub(crate) mark: u64,
    /// The delivery mark that is as durable as configured.
    pub(crate) mark_confirmed: u64,
    /// Reserves that wait, by the order in which they came.
    pub(crate) waiters: BTreeMap<u64, Waiter>,
    /// Attached consumers.
    pub(crate) consumers: u64,
    pub(crate) in_flight: u64,
    /// Bytes of head and body of live messages.
    pub(crate) bytes: u64,
    /// Stands in the list of queues to look at.
    pub(crate) is_due: bool,
    /// When it is forgotten, if it stays empty and without users.
    pub(crate) idle_until: Option<Instant>,
}

/// A reserve that waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Waiter {
    pub(crate) connection: ConnectionId,
    pub(crate) op: OpId,
    pub(crate) sub: SubId,
    pub(crate) max: u32,
    pub(crate) max_bytes: u32,
}

impl Queue {
    pub(crate) fn new(name: ChannelName, index: Index) -> Self {
        Self {
            name,
            ready_end: index.next().get(),
            index,
            bodies: Bodies::default(),
            stated_in: None,
            mark: 0,
            mark_confirmed: 0,
            waiters: BTreeMap::new(),
            consumers: 0,
            in_flight: 0,
            bytes: 0,
            is_due: false,
            idle_until: None,
        }
    }

    /// The mark that must be in the journal before `seq` is handed out, when the one there does not cover it.
    pub(crate) fn mark_for(&self, seq: Seq) -> Option<Seq> {
        (seq.get() > self.mark).then(|| self.mark_ahead(seq.get()))
    }

    /// The mark to write ahead of need when half of the stride is used up.
    pub(crate) fn mark_soon(&self) -> Option<Seq> {
        let front = self.index.front();
        (self.mark < front + DELIVERY_MARK_STRIDE / 2).then(|| self.mark_ahead(front))
    }

    /// The mark that shares the barrier of a publish up to `last`: only when somebody is there to take it.
    pub(crate) fn mark_with_publish(&self, last: Seq) -> Option<Seq> {
        let front = self.index.front();
        let near = last.get() < front + DELIVERY_MARK_STRIDE;
        (self.consumers > 0 && near && last.get() > self.mark).then(|| self.mark_ahead(front))
    }

    /// Nothing in it and nobody at it.
    pub(crate) fn is_unused(&self) -> bool {
        self.index.ready() == 0 && self.in_flight == 0 && self.consumers == 0 && self.waiters.is_empty()
    }

    /// The next message is in memory or being read.
    pub(crate) fn expects_body(&self) -> bool {
        matches!(self.index.peek(), Peek::Entry(seq, _) if self.bodies.is_expected(seq))
    }

    pub(crate) fn stats(&self) -> QueueStats {
        let oldest = match self.index.peek() {
            Peek::Entry(seq, _) => self.bodies.get(seq).map(|message| message.envelope.published_at),
            Peek::Page(_) | Peek::Empty => None,
        };
        QueueStats {
            name: self.name.clone(),
            ready: self.index.ready(),
            in_flight: self.in_flight,
            bytes: self.bytes,
            consumers: self.consumers,
            oldest,
        }
    }

    /// `next` is the first sequence that was not delivered yet.
    fn mark_ahead(&self, next: u64) -> Seq {
        Seq::new(self.mark.max(next - 1 + DELIVERY_MARK_STRIDE))
    }
}

/// Every queue.
#[derive(Debug, Default)]
pub(crate) struct Queues {
    by_id: BTreeMap<ChannelId, Queue>,
    by_name: BTreeMap<ChannelName, ChannelId>,
    next_id: u32,
    /// New queues start above it, so that a name that comes back never repeats a sequence.
    seq_floor: u64,
    /// Where the journal says the two numbers above.
    pub(crate) catalog_in: Option<SegmentId>,
}

impl Queues {
    pub(crate) fn restored(next_id: u32, seq_floor: u64, catalog_in: Option<SegmentId>) -> Self {
        Self { next_id, seq_floor, catalog_in, ..Self::default() }
    }

    pub(crate) const fn catalog(&self) -> (u32, u64) {
        (self.next_id, self.seq_floor)
    }

    pub(crate) fn get_mut(&mut self, id: ChannelId) -> Option<&mut Queue> {
        self.by_id.get_mut(&id)
    }

    /// A queue that is known to exist: something of it is live, or someone is attached.
    pub(crate) fn known(&mut self, id: ChannelId) -> &mut Queue {
        self.by_id.get_mut(&id).expect("a queue in use is not forgotten")
    }

    pub(crate) fn find(&self, name: &ChannelName) -> Option<ChannelId> {
        self.by_name.get(name).copied()
    }

    /// The queue of that name, made if there is none.
    pub(crate) fn find_or_make(&mut self, name: &ChannelName) -> ChannelId {
        if let Some(id) = self.find(name) {
            return id;
        }
        let id = ChannelId(self.next_id);
        self.next_id += 1;
        let first = Seq::new(self.seq_floor + 1);
        self.insert(id, Queue::new(name.clone(), Index::new(first)));
        id
    }

    pub(crate) fn insert(&mut self, id: ChannelId, queue: Queue) {
        self.by_name.insert(queue.name.clone(), id);
        self.by_id.insert(id, queue);
    }

    /// Forgets an unused queue.
    pub(crate) fn remove(&mut self, id: ChannelId) {
        let Some(queue) = self.by_id.remove(&id) else { return };
        self.by_name.remove(&queue.name);
        self.seq_floor = self.seq_floor.max(queue.index.next().get() - 1);
    }

    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (ChannelId, &Queue)> {
        self.by_id.iter().map(|(id, queue)| (*id, queue))
    }

    /// Queues in the order of their names, those after `after`.
    pub(crate) fn by_name(&self, after: Option<&ChannelName>) -> impl Iterator<Item = &Queue> {
        use std::ops::Bound::{Excluded, Unbounded};
        let range = self.by_name.range((after.map_or(Unbounded, Excluded), Unbounded));
        range.filter_map(|(_, id)| self.by_id.get(id))
    }
}

impl Indexes for Queues {
    fn index(&mut self, channel: ChannelId) -> Option<&mut Index> {
        self.by_id.get_mut(&channel).map(|queue| &mut queue.index)
    }
}
