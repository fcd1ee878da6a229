//! [`Engine`]: what a connection owes to its client and to the broker, as a state machine.
//!
//! Here: its parts, publishing, completions, time, readiness and its end. Subscriptions and reserving are in
//! `subscription.rs`, deliveries on their way to the socket and the sweep in `outgoing.rs`, settling in
//! `settlement.rs`.
//!
//! Invariants: every operation has one entry in `ops` until its terminal completion; every reserved
//! sequence is counted in `txns` until it is resolved, once; a delivery stands in its subscription's list
//! until it is settled, taken back or ended.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use berth_types::limits::OUTPUT_BYTES_MAX;
use berth_types::{DeliveryId, Destination, Instant, Message, OpId, TxnId};

use crate::command::{Correlation, End, Event, Mode, SubscriptionKey};
use crate::deadlines::{Deadline, Deadlines};
use crate::delivery::{Deliveries, State};
use crate::port::{Capabilities, Completion, NackCause, Operation, Readiness, Refusal};
use crate::settlement::{Batch, Record};
use crate::stats::Stats;
use crate::subscription::{Leaving, Subscription};

/// What an engine must know before it starts.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// What the back end can do.
    pub capabilities: Capabilities,
    /// Whether the broker can be used now; later changes come as notices.
    pub is_ready: bool,
}

/// How far the engine is from its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    Open,
    /// Nothing more is delivered; settlements and publishes are served.
    Draining,
    /// The connection has ended; only what the broker is owed is still done.
    Closing,
}

/// An operation that has not come to its terminal completion.
#[derive(Debug)]
pub(crate) enum Request {
    Attach(SubscriptionKey),
    Reserve(SubscriptionKey),
    Unsubscribe(SubscriptionKey),
    /// An unsubscribe for an attach that nobody waits for.
    Stray(OpId),
    Publish {
        correlations: Vec<Correlation>,
        bytes: usize,
    },
    Settle(Record),
}

/// An open reservation.
#[derive(Debug)]
pub(crate) struct Txn {
    pub(crate) sub: SubscriptionKey,
    /// Sequences that are not resolved.
    pub(crate) open: u64,
}

/// Messages that the next flush publishes.
#[derive(Debug, Default)]
struct Publishing {
    batch: Vec<(Destination, Arc<Message>)>,
    correlations: Vec<Correlation>,
    bytes: usize,
}

/// The acknowledgement engine of one connection. See the crate's documentation for how to drive it.
#[derive(Debug)]
pub struct Engine {
    pub(crate) capabilities: Capabilities,
    pub(crate) is_ready: bool,
    pub(crate) phase: Phase,
    /// Why what is still unsettled is nacked at the end.
    pub(crate) end_cause: NackCause,
    /// The time of the last call.
    pub(crate) now: Instant,
    pub(crate) subs: BTreeMap<SubscriptionKey, Subscription>,
    pub(crate) next_sub: u64,
    pub(crate) deliveries: Deliveries,
    pub(crate) txns: BTreeMap<TxnId, Txn>,
    pub(crate) deadlines: Deadlines,
    pub(crate) batch: Batch,
    publishing: Publishing,
    unconfirmed: usize,
    unconfirmed_bytes: usize,
    pub(crate) ops: BTreeMap<OpId, Request>,
    next_op: OpId,
    pub(crate) operations: VecDeque<(OpId, Operation)>,
    pub(crate) events: VecDeque<Event>,
    pub(crate) dirty: Vec<SubscriptionKey>,
    pub(crate) topping_up: Vec<SubscriptionKey>,
    pub(crate) top_up_at: Option<Instant>,
    pub(crate) output_full: bool,
    pub(crate) is_stalled: bool,
    pub(crate) stats: Stats,
}

impl Engine {
    /// An engine without subscriptions.
    pub fn new(settings: Settings) -> Self {
        Self {
            capabilities: settings.capabilities,
            is_ready: settings.is_ready,
            phase: Phase::Open,
            end_cause: NackCause::Failure,
            now: Instant::ZERO,
            subs: BTreeMap::new(),
            next_sub: 1,
            deliveries: Deliveries::default(),
            txns: BTreeMap::new(),
            deadlines: Deadlines::default(),
            batch: Batch::default(),
            publishing: Publishing::default(),
            unconfirmed: 0,
            unconfirmed_bytes: 0,
            ops: BTreeMap::new(),
            next_op: OpId::new(1),
            operations: VecDeque::new(),
            events: VecDeque::new(),
            dirty: Vec::new(),
            topping_up: Vec::new(),
            top_up_at: None,
            output_full: false,
            is_stalled: false,
            stats: Stats::default(),
        }
    }

    /// Publishes a message. [`Event::Published`] follows, in the order of the calls for one destination; at
    /// once, with a refusal, while the broker is not ready: nothing is buffered.
    pub fn publish(
        &mut self,
        now: Instant,
        correlation: Correlation,
        destination: Destination,
        message: Arc<Message>,
    ) {
        self.now = now;
        if !self.is_ready || self.phase == Phase::Closing {
            self.stats.publishes_refused += 1;
            let result = Err(Refusal::BrokerNotReady);
            self.events.push_back(Event::Published { correlation, result });
            return;
        }
        let bytes = message.size_bytes();
        self.unconfirmed += 1;
        self.unconfirmed_bytes += bytes;
        self.publishing.bytes += bytes;
        self.publishing.correlations.push(correlation);
        self.publishing.batch.push((destination, message));
    }

    /// The next operation for the broker. For `Cancel` the id is its target's.
    pub fn poll_operation(&mut self) -> Option<(OpId, Operation)> {
        if self.operations.is_empty() {
            // What is published stands before what is settled: a reply is in the journal before its request
            // is gone.
            self.flush_publishes();
            self.flush_settlements();
            self.flush_reserves();
            // Reserving may have moved on a subscription that leaves.
            self.flush_settlements();
        }
        self.operations.pop_front()
    }

    /// The next event for the front-end.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When [`Engine::handle_timeout`] is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        match (self.deadlines.next(), self.top_up_at) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Does what is due at `now`. Calling it early does nothing.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.now = now;
        if self.top_up_at.is_some_and(|at| at <= now) {
            self.top_up();
        }
        while let Some(deadline) = self.deadlines.pop_due(now) {
            match deadline {
                Deadline::Delivery(key) => self.sweep(key),
                Deadline::Again(key) => self.handle_again(key),
                Deadline::Retry => self.retry_settlements(),
            }
        }
    }

    /// A completion of an operation, or a notice (without an id). A completion for an unknown operation is
    /// ignored.
    pub fn handle_completion(&mut self, now: Instant, op: Option<OpId>, completion: Completion) {
        self.now = now;
        let Some(op) = op else {
            self.handle_notice(completion);
            return;
        };
        if let Completion::Opened { sub, .. } = completion {
            if let Some(Request::Attach(key)) = self.ops.get(&op) {
                let key = *key;
                self.handle_opened(op, key, sub);
            }
            return;
        }
        let Some(request) = self.ops.remove(&op) else { return };
        match (request, completion) {
            (Request::Attach(key), Completion::SubEnded { reason, .. } | Completion::Refused(reason)) => {
                self.handle_sub_ended(op, key, reason);
            }
            (Request::Attach(key), _) => self.handle_sub_ended(op, key, Refusal::Ended),
            (Request::Reserve(key), Completion::Reserved { txn, items }) => {
                self.handle_reserved(op, key, txn, items);
            }
            (Request::Reserve(key), Completion::Refused(reason)) => {
                self.handle_reserve_refused(op, key, reason);
            }
            (Request::Reserve(key), _) => {
                self.end_reserve(op, key);
                self.advance_leaving(key);
            }
            (Request::Unsubscribe(key), _) => self.handle_unsubscribed(key),
            (Request::Stray(attach), _) => {
                self.ops.remove(&attach);
            }
            (Request::Publish { correlations, bytes }, completion) => {
                self.handle_published(correlations, bytes, completion);
            }
            (Request::Settle(record), Completion::Refused(reason)) => {
                self.handle_settle_refused(record, reason);
            }
            (Request::Settle(record), _) => self.handle_settled(record),
        }
    }

    /// Deadlines rest from now on: the server does not read this connection, for a cause of its own.
    pub fn pause_deadlines(&mut self, now: Instant) {
        self.now = now;
        if self.phase != Phase::Closing {
            self.deadlines.rest(now);
        }
    }

    /// Deadlines run on, each with the time that it had left; no sweep comes sooner than in one second, so
    /// that what had arrived is processed first.
    pub fn resume_deadlines(&mut self, now: Instant) {
        self.now = now;
        self.deadlines.resume(now);
    }

    /// So many bytes of output wait for the socket. Above the bound nothing is reserved until half of it is
    /// written.
    pub fn handle_output_bytes(&mut self, now: Instant, waiting: usize) {
        self.now = now;
        if !self.output_full && waiting >= OUTPUT_BYTES_MAX {
            self.output_full = true;
            let keys: Vec<_> = self.subs.keys().copied().collect();
            keys.into_iter().for_each(|key| self.cancel_reserve(key));
        } else if self.output_full && waiting <= OUTPUT_BYTES_MAX / 2 {
            self.output_full = false;
            self.mark_all_dirty();
        }
    }

    /// Takes no new deliveries from now on, goes on serving settlements and publishes.
    pub fn handle_drain(&mut self, now: Instant) {
        self.now = now;
        if self.phase == Phase::Open {
            self.phase = Phase::Draining;
            let keys: Vec<_> = self.subs.keys().copied().collect();
            keys.into_iter().for_each(|key| self.cancel_reserve(key));
        }
    }

    /// The connection ends: what the client may have seen is nacked, once, in delivery order; what it has
    /// not is released; what waits is cancelled. Operations may still be under way: see
    /// [`Engine::is_finished`].
    pub fn handle_end(&mut self, now: Instant, end: End) {
        self.now = now;
        if self.phase == Phase::Closing {
            return;
        }
        self.deadlines.resume(now);
        self.phase = Phase::Closing;
        self.end_cause = if end == End::Shutdown { NackCause::Server } else { NackCause::Failure };
        let keys: Vec<_> = self.subs.keys().copied().collect();
        keys.iter().for_each(|key| self.cancel_reserve(*key));
        self.return_deliveries(&keys, end);
        for key in keys {
            if let Some(subscription) = self.subs.get_mut(&key) {
                subscription.leaving = Leaving::Told;
            }
            self.advance_leaving(key);
        }
    }

    /// Whether nothing is unsettled and nothing waits for a confirm: a drain need not wait for this
    /// connection.
    pub fn is_settled(&self) -> bool {
        let pending = self.subs.values().filter(|sub| sub.mode != Mode::Auto).any(|sub| sub.list.len() > 0);
        let waits = self.ops.values().any(|op| matches!(op, Request::Publish { .. } | Request::Settle(_)));
        !pending && !waits && self.batch.is_empty() && self.publishing.batch.is_empty()
    }

    /// Whether the connection has ended and the broker owes and is owed nothing more.
    pub fn is_finished(&self) -> bool {
        self.phase == Phase::Closing
            && self.ops.is_empty()
            && self.operations.is_empty()
            && self.batch.is_empty()
            && self.publishing.batch.is_empty()
    }

    /// Whether `delivery` can be settled.
    pub fn is_pending(&self, delivery: DeliveryId) -> bool {
        self.deliveries.find(delivery).is_some_and(|slot| {
            let found = self.deliveries.at(slot);
            matches!(found.state, State::Started | State::Written) && self.mode_of(found.sub) != Mode::Auto
        })
    }

    /// Deliveries that are not settled, not written (auto), or whose settlement is under way.
    pub fn outstanding(&self) -> usize {
        self.deliveries.len()
    }

    /// Publishes that wait for their confirm: how many, and how many bytes. The front-end bounds both.
    pub fn unconfirmed(&self) -> (usize, usize) {
        (self.unconfirmed, self.unconfirmed_bytes)
    }

    /// What the engine has done so far.
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// Deadline entries looked at so far: what all ticks together have cost.
    pub fn deadlines_visited(&self) -> u64 {
        self.deadlines.visited
    }

    /// Gives an operation an id and remembers what its completion is for.
    pub(crate) fn open(&mut self, request: Request) -> OpId {
        let op = self.next_op;
        self.next_op = op.next();
        self.ops.insert(op, request);
        op
    }

    pub(crate) fn mode_of(&self, key: SubscriptionKey) -> Mode {
        self.subs.get(&key).map_or(Mode::Individual, |sub| sub.mode)
    }

    pub(crate) fn mark_all_dirty(&mut self) {
        let keys: Vec<_> = self.subs.keys().copied().collect();
        keys.into_iter().for_each(|key| self.mark_dirty(key));
    }

    /// Turns everything published since the last flush into one operation.
    pub(crate) fn flush_publishes(&mut self) {
        if self.publishing.batch.is_empty() {
            return;
        }
        let Publishing { batch, correlations, bytes } = std::mem::take(&mut self.publishing);
        let op = self.open(Request::Publish { correlations, bytes });
        self.operations.push_back((op, Operation::Publish { batch, atomic: false }));
    }

    fn handle_published(&mut self, correlations: Vec<Correlation>, bytes: usize, completion: Completion) {
        self.unconfirmed -= correlations.len();
        self.unconfirmed_bytes -= bytes;
        let (results, reason) = match completion {
            Completion::Published(results) => (results, Refusal::Unknown),
            Completion::Refused(reason) => (Vec::new(), reason),
            _ => (Vec::new(), Refusal::Unknown),
        };
        let mut results = results.into_iter();
        for correlation in correlations {
            let result = results.next().unwrap_or_else(|| Err(reason.clone()));
            match result {
                Ok(_) => self.stats.published += 1,
                Err(_) => self.stats.publishes_refused += 1,
            }
            self.events.push_back(Event::Published { correlation, result });
        }
    }

    fn handle_notice(&mut self, notice: Completion) {
        match notice {
            Completion::Ready(readiness) => self.handle_readiness(readiness == Readiness::Ready),
            Completion::Lost { txn } => {
                if let Some(key) = self.txns.get(&txn).map(|txn| txn.sub) {
                    self.forget_deliveries(key, Some(txn));
                    self.mark_dirty(key);
                    self.advance_leaving(key);
                }
            }
            _ => {}
        }
    }
    fn handle_readiness(&mut self, is_ready: bool) {
        let was_ready = std::mem::replace(&mut self.is_ready, is_ready);
        if is_ready && !was_ready && self.phase != Phase::Closing {
            self.attach_gated();
        } else if was_ready && !is_ready {
            let keys: Vec<_> = self.subs.keys().copied().collect();
            keys.into_iter().for_each(|key| self.gate(key));
        }
    }
}
