//! Consumers: attach, reserve, cancel, leave; and handing messages to those who wait.
//!
//! A message is handed out when it is next in the order of its queue, its record and the delivery mark that
//! covers it are as durable as configured, and its body is in memory. What is missing is asked for, and the
//! queue is looked at again when it has come: a reserve that waits for the disk waits like one that waits for
//! a publish, and can be cancelled like it.

use std::sync::Arc;

use berth_engine::port::{Capability, Completion, Refusal, Reserved};
use berth_log::{Error, Position, Purpose, Read, Record};
use berth_types::{ChannelName, ConnectionId, OpId, Seq, SubId, TxnId};

use crate::broker::Broker;
use crate::index::Peek;
use crate::queue::Waiter;
use crate::reads::ReadBack;
use crate::record::{self, ChannelId, SmallFact};
use crate::settle::{Item, Txn};

/// An attached consumer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Consumer {
    pub(crate) connection: ConnectionId,
    pub(crate) channel: ChannelId,
}

impl Broker {
    pub(crate) fn attach(&mut self, connection: ConnectionId, op: OpId, channel: &ChannelName) {
        let channel = self.queues.find_or_make(channel);
        let queue = self.queues.known(channel);
        queue.consumers += 1;
        queue.idle_until = None;
        let sub = self.next_sub;
        self.next_sub = sub.next();
        self.consumers.insert(sub, Consumer { connection, channel });
        self.connections.entry(connection).or_default().subs.insert(sub);
        self.complete(connection, op, Completion::Opened { sub, next_seq: None });
    }

    pub(crate) fn reserve(
        &mut self,
        connection: ConnectionId,
        op: OpId,
        sub: SubId,
        max: u32,
        max_bytes: u32,
    ) {
        let Some(consumer) = self.consumer(connection, sub) else {
            self.complete(connection, op, Completion::Refused(Refusal::Unknown));
            return;
        };
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        let max = max.clamp(1, RESERVE_MESSAGES_MAX);
        let waiter = Waiter { connection, op, sub, max, max_bytes };
        self.queues.known(consumer.channel).waiters.insert(ticket, waiter);
        let waiting = &mut self.connections.entry(connection).or_default().waiting;
        waiting.insert(op, (consumer.channel, ticket));
        self.mark_due(consumer.channel);
    }

    /// Gives up a reserve that waits. Everything else completes by itself.
    pub(crate) fn cancel(&mut self, connection: ConnectionId, op: OpId) {
        let waiting = self.connections.get_mut(&connection).and_then(|of| of.waiting.remove(&op));
        let Some((channel, ticket)) = waiting else { return };
        self.queues.known(channel).waiters.remove(&ticket);
        self.complete(connection, op, Completion::Cancelled);
    }

    pub(crate) fn unsubscribe(&mut self, connection: ConnectionId, op: OpId, sub: SubId) {
        let Some(consumer) = self.consumer(connection, sub) else {
            self.complete(connection, op, Completion::Refused(Refusal::Unknown));
            return;
        };
        let queue = self.queues.known(consumer.channel);
        let of_sub = queue.waiters.iter().filter(|(_, waiter)| waiter.sub == sub);
        let waiting: Vec<OpId> = of_sub.map(|(_, waiter)| waiter.op).collect();
        waiting.into_iter().for_each(|op| self.cancel(connection, op));
        if let Some(connection) = self.connections.get_mut(&connection) {
            connection.subs.remove(&sub);
        }
        self.detach(sub, consumer.channel);
        self.complete(connection, op, Completion::Done);
    }

    /// A consumer is no more.
    pub(crate) fn detach(&mut self, sub: SubId, channel: ChannelId) {
        self.consumers.remove(&sub);
        let queue = self.queues.known(channel);
        queue.consumers -= 1;
        if queue.consumers == 0 {
            self.cache.forget_ahead(&mut queue.bodies);
        }
        self.mark_due(channel);
    }

    /// Serves those who wait at a queue, then sees to what comes next in it.
    pub(crate) fn dispatch(&mut self, channel: ChannelId) {
        let Some(queue) = self.queues.get_mut(channel) else { return };
        queue.is_due = false;
        let mut is_consumed = false;
        while let Some((ticket, waiter)) = self.queues.known(channel).waiters.first_key_value() {
            let (ticket, waiter) = (*ticket, *waiter);
            let Some((txn, items)) = self.take(channel, &waiter) else { break };
            self.queues.known(channel).waiters.remove(&ticket);
            if let Some(connection) = self.connections.get_mut(&waiter.connection) {
                connection.waiting.remove(&waiter.op);
                connection.txns.insert(txn);
            }
            is_consumed = true;
            self.stats.reserved += items.len() as u64;
            self.complete(waiter.connection, waiter.op, Completion::Reserved { txn, items });
        }
        // Whoever was served will soon be back; a consumer that does not ask costs no memory.
        let queue = self.queues.known(channel);
        if queue.consumers > 0 && (is_consumed || !queue.waiters.is_empty()) {
            self.look_ahead(channel);
        }
        self.watch_idle(channel);
    }

    /// Takes messages for one waiter; none when nothing can be handed out now.
    fn take(&mut self, channel: ChannelId, waiter: &Waiter) -> Option<(TxnId, Vec<Reserved>)> {
        let queue = self.queues.known(channel);
        let mut taken: Vec<Item> = Vec::new();
        let mut reserved = Vec::new();
        let mut bytes = 0u64;
        let mut unmarked = None;
        while taken.len() < waiter.max as usize {
            let Peek::Entry(seq, entry) = queue.index.peek() else { break };
            bytes += u64::from(entry.size);
            if seq.get() >= queue.ready_end || (bytes > u64::from(waiter.max_bytes) && !taken.is_empty()) {
                break;
            }
            if seq.get() > queue.mark_confirmed {
                unmarked = queue.mark_for(seq);
                break;
            }
            let Some(message) = self.cache.take(&mut queue.bodies, seq) else { break };
            if let Some(dropped) = queue.index.take() {
                self.pager.dropped(dropped);
            }
            let receive_count = entry.counts.received;
            let redelivered = receive_count > 0;
            reserved.push(Reserved { seq, message, receive_count, redelivered, held_until: None });
            taken.push(Item { seq, entry, is_open: true });
        }
        queue.in_flight += taken.len() as u64;
        let soon = if taken.is_empty() { None } else { queue.mark_soon() };
        if let Some(mark) = unmarked.or(soon) {
            self.append_mark(channel, mark);
        }
        if taken.is_empty() {
            return None;
        }
        let txn = self.next_txn;
        self.next_txn = txn.next();
        let open = taken.len() as u32;
        let reservation = Txn { connection: waiter.connection, channel, items: taken, open };
        self.txns.insert(txn, reservation);
        Some((txn, reserved))
    }

    /// Writes a delivery mark. When the journal is behind, the queue is looked at again later.
    pub(crate) fn append_mark(&mut self, channel: ChannelId, upto: Seq) {
        if self.is_opening() {
            self.look_again.push(channel);
            return;
        }
        let fact = SmallFact::Mark { channel, upto };
        let appended =
            self.append_upkeep(Purpose::Upkeep, |journal, purpose| journal.append_fact(purpose, &fact));
        match appended {
            Ok(appended) => {
                self.queues.known(channel).mark = upto.get();
                let then = crate::journal::Durable::Mark { channel, upto: upto.get() };
                self.journal.when_durable(appended.lsn, then);
            }
            Err(_) => self.look_again.push(channel),
        }
    }

    /// Reads what comes next in a queue and is not in memory, as far as somebody will want it soon.
    fn look_ahead(&mut self, channel: ChannelId) {
        let queue = self.queues.known(channel);
        match queue.index.peek() {
            Peek::Empty => return,
            Peek::Entry(seq, _) if queue.bodies.has_recent(seq) => return,
            Peek::Entry(..) | Peek::Page(_) => {}
        }
        // A block that only may be wanted is read back when there is room for it; else it would be sent away
        // before it is used, again and again.
        let within = match self.pager.has_room() {
            true => AHEAD_MESSAGES_MAX as u32,
            false => 1,
        };
        if !queue.waiters.is_empty()
            && let Some(first) = queue.index.page_ahead(within)
        {
            self.pager.load(channel, first, &mut queue.index);
        }
        // Half a window at a time: to top it up message by message would be a read, and a way to the disk's
        // thread and back, for each of them.
        if queue.bodies.ahead() > AHEAD_MESSAGES_MAX / 2 && queue.expects_body() {
            return;
        }
        let most = if self.cache.is_full() { 1 } else { AHEAD_MESSAGES_MAX };
        let mut bytes = 0;
        let mut wanted: Vec<(Position, Vec<(Seq, u32)>)> = Vec::new();
        for (seq, entry) in queue.index.upcoming().take(most) {
            if seq.get() >= queue.ready_end || bytes > AHEAD_BYTES_MAX {
                break;
            }
            bytes += u64::from(entry.size);
            if queue.bodies.is_expected(seq) {
                continue;
            }
            match wanted.last_mut() {
                Some((position, of_record)) if *position == entry.position() => {
                    of_record.push((seq, entry.part))
                }
                _ => wanted.push((entry.position(), vec![(seq, entry.part)])),
            }
        }
        for (_, of_record) in &wanted {
            of_record.iter().for_each(|(seq, _)| queue.bodies.expect(*seq));
        }
        for (position, wanted) in wanted {
            let token = self.reads.insert(ReadBack { channel, segment: position.segment, wanted });
            if let Read::Ready(record) = self.journal.log.read(position, token) {
                self.handle_read(token, Ok(record));
            }
        }
    }

    /// A record was read: for a consumer, or because it moves.
    pub(crate) fn handle_read(&mut self, token: u64, result: Result<Record, Error>) {
        let read = self.reads.remove(token);
        let record = match result {
            Ok(record) => record,
            Err(error) => {
                if read.is_some() || self.space.is_reading(token) {
                    self.fail(error);
                }
                return;
            }
        };
        let Some(read) = read else {
            self.handle_survivor(token, &record);
            return;
        };
        let Some(queue) = self.queues.get_mut(read.channel) else { return };
        for (seq, part) in read.wanted {
            match record::message(record.kind, &record.payload, part) {
                Ok((header, message)) if header.channel == read.channel => {
                    self.cache.keep_ahead(&mut queue.bodies, seq, Arc::new(message));
                }
                _ => {
                    let error = foreign(record.position);
                    self.fail(error);
                    return;
                }
            }
        }
        self.shrink_cache();
        self.mark_due(read.channel);
    }

    fn consumer(&self, connection: ConnectionId, sub: SubId) -> Option<Consumer> {
        self.consumers.get(&sub).copied().filter(|consumer| consumer.connection == connection)
    }
}

/// The index and the journal contradict each other.
pub(crate) fn foreign(position: Position) -> Error {
    Error::Corrupt {
        file: berth_log::FileId::Segment(position.segment),
        offset: u64::from(position.offset),
        reason: "the record is not the message that the index names",
    }
}

/// What is not supported is refused by this name.
pub(crate) const fn unsupported(capability: Capability) -> Completion {
    Completion::Refused(Refusal::Unsupported(capability))
}

/// Most messages of one reservation: what one settlement record may have to name.
const RESERVE_MESSAGES_MAX: u32 = 1024;
/// Messages that are read back ahead of a queue's consumers: more than they take while a read waits for a
/// barrier.
const AHEAD_MESSAGES_MAX: usize = 2048;
/// Bytes of messages that are read back ahead of a queue's consumers; one always fits.
const AHEAD_BYTES_MAX: u64 = 1024 * 1024;
