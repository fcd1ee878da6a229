//! From settlements of single deliveries to operations: one `Settle` per reservation for everything that
//! one input batch settled, with ascending ranges, and never a sequence of another reservation.
//!
//! Two kinds of intent are kept apart. The client's can be refused: then its deliveries are pending again.
//! The engine's own (nack after a timeout, release of what was never seen, accept in mode auto) are tried
//! again until the broker takes them or has lost the reservation: what was reserved is resolved, once.

use std::collections::BTreeMap;

use berth_types::{Instant, Outcome, Ranges, Seq, TxnId};

use crate::command::{Correlation, Event, Mode, Settlement, SubscriptionKey};
use crate::deadlines::{Deadline, SWEEP};
use crate::delivery::{Slot, State};
use crate::engine::{Engine, Phase, Request};
use crate::port::{Capability, NackCause, Operation, Refusal};

/// What is to become of sequences of one reservation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sets {
    ack: Ranges,
    nack: Ranges,
    release: Ranges,
    reject: Ranges,
}

impl Sets {
    fn of(&mut self, fate: Fate) -> &mut Ranges {
        match fate {
            Fate::Ack => &mut self.ack,
            Fate::Nack(_) => &mut self.nack,
            Fate::Release => &mut self.release,
            Fate::Reject => &mut self.reject,
        }
    }

    fn count(&self) -> u64 {
        self.ack.count() + self.nack.count() + self.release.count() + self.reject.count()
    }

    fn extend(&mut self, other: &Self) {
        other.ack.iter().for_each(|seq| self.ack.insert(seq));
        other.nack.iter().for_each(|seq| self.nack.insert(seq));
        other.release.iter().for_each(|seq| self.release.insert(seq));
        other.reject.iter().for_each(|seq| self.reject.insert(seq));
    }
}

/// What becomes of one delivery.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fate {
    Ack,
    Nack(NackCause),
    Release,
    Reject,
}

impl Fate {
    fn cause(self) -> NackCause {
        if let Self::Nack(cause) = self { cause } else { NackCause::Failure }
    }
}

/// Everything of one reservation that the next flush settles. Nacks of different causes are different
/// entries.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) txn: TxnId,
    cause: NackCause,
    sets: Sets,
    record: Record,
    marked_by: u64,
}

/// What must be known when the broker answers a `Settle`.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) txn: TxnId,
    cause: NackCause,
    own: Option<Box<Sets>>,
    deliveries: Vec<Slot>,
    confirms: Vec<Confirm>,
    counts: [u32; 4],
}

#[derive(Clone, Copy, Debug)]
enum Confirm {
    One(Correlation),
    Shared(u64),
}

/// A confirm that waits for several operations.
#[derive(Debug)]
struct Share {
    correlation: Correlation,
    remaining: usize,
    refusal: Option<Refusal>,
}

/// Settlements since the last flush, and those that must be tried again.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    entries: Vec<Entry>,
    index: BTreeMap<(TxnId, bool), usize>,
    touched: Vec<usize>,
    command: u64,
    shares: BTreeMap<u64, Share>,
    retries: Vec<(TxnId, NackCause, Box<Sets>)>,
    retry_armed: bool,
}

impl Batch {
    /// Whether nothing waits for a flush or another try.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.retries.is_empty()
    }

    fn entry(&mut self, txn: TxnId, cause: NackCause) -> usize {
        let key = (txn, cause == NackCause::Server);
        if let Some(last) = self.entries.last()
            && (last.txn, last.cause == NackCause::Server) == key
        {
            return self.entries.len() - 1;
        }
        let place = *self.index.entry(key).or_insert(self.entries.len());
        if place == self.entries.len() {
            let record = Record {
                txn,
                cause,
                own: None,
                deliveries: Vec::new(),
                confirms: Vec::new(),
                counts: [0; 4],
            };
            self.entries.push(Entry { txn, cause, sets: Sets::default(), record, marked_by: 0 });
        }
        place
    }

    fn add_client(&mut self, txn: TxnId, seq: Seq, slot: Slot, fate: Fate) {
        let place = self.entry(txn, fate.cause());
        let entry = &mut self.entries[place];
        entry.sets.of(fate).insert(seq);
        entry.record.deliveries.push(slot);
        entry.record.count(fate, 1);
        if entry.marked_by != self.command {
            entry.marked_by = self.command;
            self.touched.push(place);
        }
    }

    /// Adds sequences of the engine's own; true when they are the first of their operation.
    fn add_own(&mut self, txn: TxnId, seq: Seq, fate: Fate) -> bool {
        let place = self.entry(txn, fate.cause());
        let entry = &mut self.entries[place];
        entry.sets.of(fate).insert(seq);
        entry.record.count(fate, 1);
        let is_first = entry.record.own.is_none();
        entry.record.own.get_or_insert_default().of(fate).insert(seq);
        is_first
    }

    fn confirm(&mut self, correlation: Correlation) {
        if let [only] = self.touched[..] {
            self.entries[only].record.confirms.push(Confirm::One(correlation));
            return;
        }
        let share = Share { correlation, remaining: self.touched.len(), refusal: None };
        self.shares.insert(self.command, share);
        for place in &self.touched {
            self.entries[*place].record.confirms.push(Confirm::Shared(self.command));
        }
    }
}

impl Record {
    fn count(&mut self, fate: Fate, n: u32) {
        let place = match fate {
            Fate::Ack => 0,
            Fate::Nack(_) => 1,
            Fate::Release => 2,
            Fate::Reject => 3,
        };
        self.counts[place] += n;
    }
}

impl Engine {
    /// Settles a delivery, and in a cumulative subscription every earlier one of it that is pending.
    ///
    /// With `confirm`, [`Event::Settled`] follows once the settlement is as durable as configured, or
    /// refused. A delivery whose first byte has not left yet cannot be known to a client: settling it is
    /// ignored.
    pub fn settle(
        &mut self,
        now: Instant,
        delivery: berth_types::DeliveryId,
        outcome: Outcome,
        confirm: Option<Correlation>,
    ) -> Settlement {
        self.now = now;
        let Some((slot, sub)) = self.pending(delivery) else {
            self.stats.settlements_ignored += 1;
            return Settlement::Ignored;
        };
        let fate = self.fate(outcome);
        self.batch.command += 1;
        self.batch.touched.clear();
        let mut settled = 0;
        if self.mode_of(sub) == Mode::Cumulative {
            while let Some(first) = self.first_up_to(sub, delivery) {
                self.settle_one(sub, first, fate);
                settled += 1;
            }
        } else {
            self.settle_one(sub, slot, fate);
            settled = 1;
        }
        if let Some(correlation) = confirm {
            self.batch.confirm(correlation);
        }
        self.mark_dirty(sub);
        Settlement::Accepted(settled)
    }

    /// The pending delivery that a client may settle.
    fn pending(&self, delivery: berth_types::DeliveryId) -> Option<(Slot, SubscriptionKey)> {
        let slot = self.deliveries.find(delivery)?;
        let found = self.deliveries.at(slot);
        let is_seen = matches!(found.state, State::Started | State::Written);
        (is_seen && self.mode_of(found.sub) != Mode::Auto).then_some((slot, found.sub))
    }

    fn first_up_to(&self, sub: SubscriptionKey, last: berth_types::DeliveryId) -> Option<Slot> {
        let slot = self.subs.get(&sub)?.list.first()?;
        let first = self.deliveries.at(slot);
        (first.id <= last && !first.state.is_unwritten()).then_some(slot)
    }

    fn fate(&self, outcome: Outcome) -> Fate {
        match outcome {
            Outcome::Accepted => Fate::Ack,
            Outcome::Rejected => Fate::Reject,
            Outcome::Released => self.release_fate(),
            Outcome::Modified => Fate::Nack(NackCause::Failure),
        }
    }

    /// Releasing, where the back end can; else the nearest it can do.
    pub(crate) fn release_fate(&self) -> Fate {
        let can = self.capabilities.has(Capability::Release);
        if can { Fate::Release } else { Fate::Nack(NackCause::Server) }
    }

    fn settle_one(&mut self, sub: SubscriptionKey, slot: Slot, fate: Fate) {
        let Some(subscription) = self.subs.get_mut(&sub) else { return };
        self.deliveries.unlink(&mut subscription.list, slot);
        self.deliveries.mark_settling(slot);
        subscription.settling += 1;
        let found = self.deliveries.at(slot);
        self.batch.add_client(found.txn, found.seq, slot, fate);
    }

    /// Resolves a sequence for a cause of the engine's own.
    pub(crate) fn settle_own(&mut self, txn: TxnId, seq: Seq, fate: Fate) {
        if self.batch.add_own(txn, seq, fate)
            && let Some(sub) = self.txns.get(&txn).map(|txn| txn.sub)
            && let Some(subscription) = self.subs.get_mut(&sub)
        {
            subscription.own_ops += 1;
        }
    }

    /// Turns everything settled since the last flush into operations, in the order in which it was settled.
    pub(crate) fn flush_settlements(&mut self) {
        if self.batch.entries.is_empty() {
            return;
        }
        self.batch.index.clear();
        let mut entries = std::mem::take(&mut self.batch.entries);
        for Entry { txn, cause, sets, record, .. } in entries.drain(..) {
            let Sets { ack, nack, release, reject } = sets;
            let confirm = !record.confirms.is_empty();
            let op = self.open(Request::Settle(record));
            let settle = Operation::Settle { txn, ack, nack, release, reject, cause, confirm };
            self.operations.push_back((op, settle));
        }
        self.batch.entries = entries;
    }

    /// The broker has carried a settlement out.
    pub(crate) fn handle_settled(&mut self, record: Record) {
        let [acked, nacked, released, rejected] = record.counts.map(u64::from);
        self.stats.acked += acked;
        self.stats.nacked += nacked;
        self.stats.released += released;
        self.stats.rejected += rejected;
        self.close_record(record, None);
    }

    /// The broker has not carried a settlement out.
    pub(crate) fn handle_settle_refused(&mut self, mut record: Record, reason: Refusal) {
        self.stats.settlements_refused += 1;
        if matches!(reason, Refusal::Unknown | Refusal::BrokerNotReady) {
            self.stats.lost += record.counts.iter().map(|n| u64::from(*n)).sum::<u64>();
            self.close_record(record, Some(&reason));
            return;
        }
        let Some(sub) = self.txns.get(&record.txn).map(|txn| txn.sub) else { return };
        for slot in std::mem::take(&mut record.deliveries) {
            self.restore(sub, slot, &reason);
        }
        if let Some(own) = record.own.take() {
            self.batch.retries.push((record.txn, record.cause, own));
            self.arm_retry();
        }
        self.answer(&record.confirms, Some(&reason));
    }

    /// A refused delivery is pending again with its old deadline; with the connection gone it is nacked
    /// instead.
    fn restore(&mut self, sub: SubscriptionKey, slot: Slot, reason: &Refusal) {
        let Some(subscription) = self.subs.get_mut(&sub) else { return };
        subscription.settling -= 1;
        let found = self.deliveries.at(slot);
        let (delivery, txn, seq, since) = (found.id, found.txn, found.seq, found.since);
        if self.phase == Phase::Closing {
            self.deliveries.free(slot);
            let cause = self.end_cause;
            let first = subscription.retry_later(&mut self.batch.retries, txn, cause);
            first.of(Fate::Nack(cause)).insert(seq);
            self.arm_retry();
            return;
        }
        self.deliveries.relink(&mut subscription.list, slot);
        if let Some(timeout) = subscription.ack_timeout {
            self.arm_delivery(sub, since + timeout);
        }
        self.events.push_back(Event::SettlementRefused { delivery, reason: reason.clone() });
    }

    /// Ends a record whose sequences are resolved, by us or by the broker's loss.
    fn close_record(&mut self, record: Record, refusal: Option<&Refusal>) {
        let Record { txn, own, deliveries, confirms, .. } = record;
        let resolved = deliveries.len() as u64 + own.as_ref().map_or(0, |own| own.count());
        let sub = self.txns.get(&txn).map(|txn| txn.sub);
        if let Some(subscription) = sub.and_then(|sub| self.subs.get_mut(&sub)) {
            subscription.settling -= deliveries.len() as u32;
            subscription.own_ops -= u32::from(own.is_some());
        }
        for slot in deliveries {
            self.deliveries.free(slot);
        }
        self.resolve(txn, resolved);
        self.answer(&confirms, refusal);
        if let Some(sub) = sub {
            self.advance_leaving(sub);
        }
    }

    /// Counts sequences of a reservation as resolved and forgets it after its last one.
    pub(crate) fn resolve(&mut self, txn: TxnId, count: u64) {
        if let Some(found) = self.txns.get_mut(&txn) {
            assert!(found.open >= count, "a sequence is resolved once");
            found.open -= count;
            if found.open == 0 {
                self.txns.remove(&txn);
            }
        }
    }

    fn answer(&mut self, confirms: &[Confirm], refusal: Option<&Refusal>) {
        for confirm in confirms {
            let (correlation, refusal) = match *confirm {
                Confirm::One(correlation) => (correlation, refusal.cloned()),
                Confirm::Shared(id) => {
                    let Some(share) = self.batch.shares.get_mut(&id) else { continue };
                    share.remaining -= 1;
                    if let Some(refusal) = refusal {
                        share.refusal.get_or_insert_with(|| refusal.clone());
                    }
                    if share.remaining > 0 {
                        continue;
                    }
                    let Some(share) = self.batch.shares.remove(&id) else { continue };
                    (share.correlation, share.refusal)
                }
            };
            self.events.push_back(Event::Settled { correlation, result: refusal.map_or(Ok(()), Err) });
        }
    }

    fn arm_retry(&mut self) {
        if !std::mem::replace(&mut self.batch.retry_armed, true) {
            let at = self.deadlines.local(self.now) + SWEEP;
            self.deadlines.arm(at, Deadline::Retry);
        }
    }

    /// Tries the engine's own refused settlements again.
    pub(crate) fn retry_settlements(&mut self) {
        self.batch.retry_armed = false;
        for (txn, cause, sets) in std::mem::take(&mut self.batch.retries) {
            let place = self.batch.entry(txn, cause);
            let entry = &mut self.batch.entries[place];
            entry.sets.extend(&sets);
            entry.record.counts[0] += sets.ack.count() as u32;
            entry.record.counts[1] += sets.nack.count() as u32;
            entry.record.counts[2] += sets.release.count() as u32;
            entry.record.counts[3] += sets.reject.count() as u32;
            match &mut entry.record.own {
                None => entry.record.own = Some(sets),
                Some(own) => {
                    // Two operations of the engine's own have become one.
                    own.extend(&sets);
                    if let Some(sub) = self.txns.get(&txn).map(|txn| txn.sub)
                        && let Some(subscription) = self.subs.get_mut(&sub)
                    {
                        subscription.own_ops -= 1;
                    }
                }
            }
        }
    }
}
