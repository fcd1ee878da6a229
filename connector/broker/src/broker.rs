//! The broker's verbs, and the order in which things happen between them.
//!
//! An operation changes the state at once, is written as a fact at once, and is answered when that is as
//! durable as it asked for. Queues in which something changed are looked at when the caller polls, so that
//! many operations in a row cost one look and share one barrier.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use berth_engine::port::{Capabilities, Capability, Completion, NackCause, Operation, Readiness, Refusal};
use berth_log::{Error, Event, Outcome, Storage, StorageOp, Stored, Tag};
use berth_types::{ChannelName, ConnectionId, Instant, Now, OpId, Pattern, SubId, TxnId};

use crate::cache::Cache;
use crate::consume::{Consumer, unsupported};
use crate::job::{Job, Publish};
use crate::journal::{Durable, Journal};
use crate::pager::Pager;
use crate::queue::Queues;
use crate::reads::Reads;
use crate::record::{ChannelId, SmallFact};
use crate::recover;
use crate::settle::{Txn, Wish};
use crate::space::{Live, Space};
use crate::{QueueStats, Recovered, Settings, Stats};

/// The embedded broker. See the crate's documentation for how to drive it.
#[derive(Debug)]
pub struct Broker {
    pub(crate) now: Now,
    pub(crate) settings: Settings,
    pub(crate) journal: Journal,
    pub(crate) queues: Queues,
    pub(crate) pager: Pager,
    pub(crate) cache: Cache,
    pub(crate) live: Live,
    pub(crate) space: Space,
    pub(crate) reads: Reads,
    pub(crate) connections: BTreeMap<ConnectionId, Connection>,
    pub(crate) consumers: BTreeMap<SubId, Consumer>,
    pub(crate) txns: BTreeMap<TxnId, Txn>,
    pub(crate) next_sub: SubId,
    pub(crate) next_txn: TxnId,
    pub(crate) next_ticket: u64,
    /// Publishes that wait for the journal.
    pub(crate) publishes: VecDeque<Job>,
    /// Settlements that wait for the journal.
    pub(crate) upkeep: VecDeque<Job>,
    /// Queues to look at.
    due: VecDeque<ChannelId>,
    /// Queues to look at when the journal is less behind.
    pub(crate) look_again: Vec<ChannelId>,
    idle: BTreeSet<(Instant, ChannelId)>,
    out: VecDeque<(ConnectionId, Option<OpId>, Completion)>,
    phase: Phase,
    failure: Option<Error>,
    pub(crate) stats: Stats,
}

/// What a connection has at the broker.
#[derive(Debug, Default)]
pub(crate) struct Connection {
    /// Reserves that wait: where, and under which ticket.
    pub(crate) waiting: BTreeMap<OpId, (ChannelId, u64)>,
    pub(crate) subs: BTreeSet<SubId>,
    pub(crate) txns: BTreeSet<TxnId>,
}

/// How far the broker is from its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Open,
    /// What was taken is carried out, nothing new is taken.
    Closing,
    /// The journal has been asked to close.
    Closed,
}

impl Broker {
    /// Replays the journal in `storage`, or makes a new one. Blocking.
    ///
    /// # Errors
    /// What [`berth_log::Log::open`] refuses, and [`Error::Corrupt`] for facts that contradict each other.
    pub fn open<S: Storage>(
        storage: &mut S,
        settings: Settings,
        now: Now,
    ) -> Result<(Self, Recovered), Error> {
        let (restored, recovered) = recover::replay(storage, &settings)?;
        let mut broker = Self {
            now,
            journal: Journal::new(restored.log),
            queues: restored.queues,
            pager: restored.pager,
            cache: Cache::new(settings.cache_bytes),
            live: restored.live,
            space: Space::default(),
            reads: Reads::default(),
            connections: BTreeMap::new(),
            consumers: BTreeMap::new(),
            txns: BTreeMap::new(),
            next_sub: SubId::new(1),
            next_txn: TxnId::new(1),
            next_ticket: 0,
            publishes: VecDeque::new(),
            upkeep: VecDeque::new(),
            due: VecDeque::new(),
            look_again: Vec::new(),
            idle: BTreeSet::new(),
            out: VecDeque::new(),
            phase: Phase::Open,
            failure: None,
            stats: Stats::default(),
            settings,
        };
        if let Some(redelivered) = restored.opened {
            broker.start(Job::Open { redelivered });
        }
        let queues: Vec<ChannelId> = broker.queues.iter().map(|(channel, _)| channel).collect();
        queues.into_iter().for_each(|channel| broker.mark_due(channel));
        Ok((broker, recovered))
    }

    /// What it can do.
    pub fn capabilities() -> Capabilities {
        Capabilities::of(&[
            Capability::Queues,
            Capability::AtomicCommit,
            Capability::Release,
            Capability::ConfirmedSettlement,
        ])
    }

    /// Takes an operation of a connection. `op` is new for that connection, except for `Cancel`, whose own id
    /// is ignored.
    pub fn submit(&mut self, now: Now, from: ConnectionId, op: OpId, operation: Operation) {
        self.now = now;
        self.connections.entry(from).or_default();
        if self.failure.is_some() || self.phase != Phase::Open {
            if let Some(refused) = not_ready(&operation) {
                self.complete(from, op, refused);
            }
            return;
        }
        match operation {
            Operation::Attach { channel } => self.attach(from, op, &channel),
            Operation::Publish { batch, atomic } => {
                let results = Vec::with_capacity(batch.len());
                let publish = Publish { connection: from, op, batch, atomic, results, last: None };
                self.start(Job::Publish(publish));
            }
            Operation::Reserve { hold: Some(_), .. } | Operation::Extend { .. } => {
                self.complete(from, op, unsupported(Capability::Hold));
            }
            Operation::Reserve { sub, max, max_bytes, hold: None } => {
                self.reserve(from, op, sub, max, max_bytes);
            }
            Operation::Cancel { op } => self.cancel(from, op),
            Operation::Settle { txn, ack, nack, release, reject, cause, confirm } => {
                let wish = Wish { ack, nack, release, reject, cause };
                self.start(Job::Settle { connection: from, op, txn, wish, confirm });
            }
            Operation::Commit { actions } => self.start(Job::Commit { connection: from, op, actions }),
            Operation::Unsubscribe { sub, .. } => self.unsubscribe(from, op, sub),
            Operation::Subscribe { pattern, .. } => self.complete(from, op, unsupported(missing(pattern))),
            Operation::Position { .. } | Operation::Credit { .. } => {
                self.complete(from, op, unsupported(Capability::EventsStore));
            }
            Operation::Request { .. } | Operation::Respond { .. } => {
                self.complete(from, op, unsupported(Capability::Requests));
            }
        }
    }

    /// The connection is gone without a word: what it waits for is dropped and completes no more, what it had
    /// reserved is nacked as a failure. What it had given to be published is still published.
    pub fn disconnect(&mut self, now: Now, from: ConnectionId) {
        self.now = now;
        let Some(connection) = self.connections.remove(&from) else { return };
        for (channel, ticket) in connection.waiting.into_values() {
            self.queues.known(channel).waiters.remove(&ticket);
        }
        for sub in connection.subs {
            let consumer = self.consumers.get(&sub).copied();
            let consumer = consumer.expect("a connection's consumers are known");
            self.detach(sub, consumer.channel);
        }
        for txn in connection.txns {
            self.start(Job::Abandon { txn, cause: NackCause::Failure });
        }
    }

    /// The next completion or notice (without an id), until there is none. A notice for everybody (`Ready`)
    /// comes once for each connection that is known.
    pub fn poll(&mut self) -> Option<(ConnectionId, Option<OpId>, Completion)> {
        if self.out.is_empty() {
            self.work();
        }
        self.out.pop_front()
    }

    /// The next thing to do on the disk. In this order, but reads may overtake.
    pub fn poll_storage(&mut self, now: Now) -> Option<StorageOp> {
        self.now = now;
        self.work();
        if self.phase == Phase::Closing && self.upkeep.is_empty() && self.publishes.is_empty() {
            self.phase = Phase::Closed;
            self.journal.log.close();
        }
        self.pager.poll_storage().or_else(|| self.journal.log.poll_storage(now.monotonic))
    }

    /// Takes the result of a storage operation.
    pub fn handle_stored(&mut self, now: Now, stored: Stored) {
        self.now = now;
        if !matches!(stored.outcome, Outcome::Data(_)) {
            self.space.is_stalled = false;
        }
        match stored.tag {
            Tag::Log(_) => self.journal.log.handle_stored(now.monotonic, stored),
            Tag::Side(number) => {
                let now = now.monotonic;
                match self.pager.handle_stored(now, number, stored.outcome, &mut self.queues) {
                    Ok(arrived) => arrived.into_iter().for_each(|channel| self.mark_due(channel)),
                    Err((action, file, source)) => self.fail(Error::Io { action, file, source }),
                }
            }
        }
        while let Some(event) = self.journal.log.poll_event() {
            match event {
                Event::Read { token, result } => self.handle_read(token, result),
                Event::Failed(error) => self.fail(error),
                Event::DiskFull(_) => self.stats.is_disk_full = true,
                Event::DiskFreed => self.stats.is_disk_full = false,
                Event::Scanned { .. } | Event::ScanFailed { .. } => unreachable!("the broker never scans"),
            }
        }
        while let Some(durable) = self.journal.poll_durable() {
            self.handle_durable(durable);
        }
        if self.failure.is_none() {
            self.run_waiting();
            for channel in std::mem::take(&mut self.look_again) {
                self.mark_due(channel);
            }
        }
    }

    /// When [`Broker::handle_timeout`] is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let idle = self.idle.first().map(|(at, _)| *at).filter(|_| self.phase == Phase::Open);
        [idle, self.journal.log.poll_timeout()].into_iter().flatten().min()
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Now) {
        self.now = now;
        if self.phase != Phase::Open {
            return;
        }
        while let Some((at, channel)) = self.idle.first().copied()
            && at <= now.monotonic
        {
            self.idle.pop_first();
            let due = |queue: &&mut crate::queue::Queue| queue.idle_until == Some(at);
            if let Some(queue) = self.queues.get_mut(channel).filter(due) {
                queue.idle_until = None;
                if queue.is_unused() {
                    self.forget(channel);
                }
            }
        }
    }

    /// Ends in order: refuses new operations, takes back what is in flight (counted as received, not as a
    /// failure), and closes the journal. Done when [`Broker::is_closed`].
    pub fn close(&mut self, now: Now) {
        self.now = now;
        if self.phase != Phase::Open {
            return;
        }
        self.phase = Phase::Closing;
        self.refuse_waiters();
        let open: Vec<TxnId> = self.txns.keys().copied().collect();
        for txn in open {
            self.start(Job::Abandon { txn, cause: NackCause::Server });
        }
    }

    /// Whether [`Broker::close`] was called.
    pub(crate) fn is_ending(&self) -> bool {
        self.phase != Phase::Open
    }

    /// After [`Broker::close`]: everything is on the disk.
    pub fn is_closed(&self) -> bool {
        self.phase == Phase::Closed && self.journal.log.is_idle()
    }

    /// Why the broker refuses everything, once the disk has failed. The process must end with an error and
    /// recover.
    pub fn failure(&self) -> Option<&Error> {
        self.failure.as_ref()
    }

    /// Counters and gauges.
    pub fn stats(&self) -> Stats {
        let used = self.journal.log.segments().map(|segment| u64::from(segment.used_bytes));
        Stats {
            queues: self.queues.len() as u64,
            live: self.live.messages,
            live_bytes: self.live.bytes,
            in_flight: self.queues.iter().map(|(_, queue)| queue.in_flight).sum(),
            journal_bytes: used.sum(),
            cached_bytes: self.cache.bytes() as u64,
            index_bytes: self.pager.bytes(),
            ..self.stats
        }
    }

    /// At most `max` queues in the order of their names, after `after`.
    pub fn queues(&self, after: Option<&ChannelName>, max: usize) -> Vec<QueueStats> {
        self.queues.by_name(after).take(max).map(crate::queue::Queue::stats).collect()
    }
}

/// What happens between the verbs.
impl Broker {
    /// Answers a connection, unless it has gone.
    pub(crate) fn complete(&mut self, connection: ConnectionId, op: OpId, completion: Completion) {
        if self.connections.contains_key(&connection) {
            self.out.push_back((connection, Some(op), completion));
        }
    }

    /// A queue is to be looked at.
    pub(crate) fn mark_due(&mut self, channel: ChannelId) {
        if let Some(queue) = self.queues.get_mut(channel)
            && !std::mem::replace(&mut queue.is_due, true)
        {
            self.due.push_back(channel);
        }
    }

    /// Starts the clock of a queue that is empty and without users.
    pub(crate) fn watch_idle(&mut self, channel: ChannelId) {
        let until = self.now.monotonic + self.settings.idle_expiry;
        let Some(queue) = self.queues.get_mut(channel) else { return };
        if queue.idle_until.is_none() && queue.is_unused() {
            queue.idle_until = Some(until);
            self.idle.insert((until, channel));
        }
    }

    /// Keeps the bound of the cache.
    pub(crate) fn shrink_cache(&mut self) {
        for _ in 0..CACHE_LOOKS {
            let Some((channel, seq, is_beyond)) = self.cache.oldest_beyond() else { return };
            let Some(queue) = self.queues.get_mut(channel) else { continue };
            if is_beyond {
                self.cache.forget(&mut queue.bodies, seq);
            } else {
                self.cache.stays(channel, &queue.bodies, seq);
            }
        }
    }

    /// The disk has failed: everything is refused from now on.
    pub(crate) fn fail(&mut self, error: Error) {
        if self.failure.is_some() {
            return;
        }
        self.failure = Some(error);
        for (_, durable) in self.journal.take_waiting() {
            if let Durable::Completed { connection, op, completion } = durable {
                self.complete(connection, op, unconfirmed(completion));
            }
        }
        self.refuse_waiting();
        self.refuse_waiters();
        let notice = || Completion::Ready(Readiness::NotReady("journal failed"));
        self.out.extend(self.connections.keys().map(|connection| (*connection, None, notice())));
    }

    fn work(&mut self) {
        if self.failure.is_some() || self.phase == Phase::Closed {
            return;
        }
        while let Some(channel) = self.due.pop_front() {
            self.dispatch(channel);
        }
        self.reclaim();
        self.pager.shrink(self.now.monotonic, &mut self.queues);
    }

    fn handle_durable(&mut self, durable: Durable) {
        match durable {
            Durable::Ready { channel, end } => {
                if let Some(queue) = self.queues.get_mut(channel) {
                    queue.ready_end = queue.ready_end.max(end);
                }
                self.mark_due(channel);
            }
            Durable::Mark { channel, upto } => {
                if let Some(queue) = self.queues.get_mut(channel) {
                    queue.mark_confirmed = queue.mark_confirmed.max(upto);
                }
                self.mark_due(channel);
            }
            Durable::Completed { connection, op, completion } => self.complete(connection, op, completion),
        }
    }

    /// Ends every reserve that waits.
    fn refuse_waiters(&mut self) {
        let connections = std::mem::take(&mut self.connections);
        for (connection, mut of) in connections {
            let waiting = std::mem::take(&mut of.waiting);
            self.connections.insert(connection, of);
            for (op, (channel, ticket)) in waiting {
                self.queues.known(channel).waiters.remove(&ticket);
                self.complete(connection, op, Completion::Refused(Refusal::BrokerNotReady));
            }
        }
    }

    /// Forgets an unused queue, also in the journal.
    fn forget(&mut self, channel: ChannelId) {
        let stated = self.queues.known(channel).stated_in.is_some();
        let fact = SmallFact::Forgotten { id: channel };
        if stated && self.journal.append_fact(berth_log::Purpose::Upkeep, &fact).is_err() {
            let again = self.now.monotonic + FORGET_AGAIN;
            self.queues.known(channel).idle_until = Some(again);
            self.idle.insert((again, channel));
            return;
        }
        self.queues.remove(channel);
        // When the journal is behind now, the floor is written with the next queue that is forgotten, or
        // follows from the sequences in the journal.
        if stated && self.state_catalog(berth_log::Purpose::Upkeep).is_err() {
            self.queues.catalog_in = Some(berth_log::SegmentId(0));
        }
    }
}

/// What is answered instead when nobody can say whether it was done.
fn unconfirmed(completion: Completion) -> Completion {
    match completion {
        Completion::Published(results) => {
            Completion::Published(results.iter().map(|_| Err(Refusal::BrokerNotReady)).collect())
        }
        Completion::Committed(_) => Completion::Committed(Err(Refusal::BrokerNotReady)),
        _ => Completion::Refused(Refusal::BrokerNotReady),
    }
}

/// How an operation ends that is not taken; none for one that has no end of its own.
fn not_ready(operation: &Operation) -> Option<Completion> {
    Some(match operation {
        Operation::Cancel { .. } => return None,
        Operation::Publish { batch, .. } => {
            Completion::Published(batch.iter().map(|_| Err(Refusal::BrokerNotReady)).collect())
        }
        Operation::Commit { .. } => Completion::Committed(Err(Refusal::BrokerNotReady)),
        _ => Completion::Refused(Refusal::BrokerNotReady),
    })
}

const fn missing(pattern: Pattern) -> Capability {
    match pattern {
        Pattern::Queues => Capability::Queues,
        Pattern::Events => Capability::Events,
        Pattern::EventsStore => Capability::EventsStore,
        Pattern::Commands | Pattern::Queries => Capability::Requests,
    }
}

/// Cached messages that are looked at per message stored: more than one, so that the bound is reached.
const CACHE_LOOKS: usize = 4;
/// When a queue is forgotten again after the journal was behind.
const FORGET_AGAIN: Duration = Duration::from_secs(1);
