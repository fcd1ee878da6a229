//! Deliveries on their way to the client: from a reservation into the output buffer, through the socket,
//! and back to the broker when they wait too long or when the connection ends.

use berth_types::{DeliveryId, Instant, OpId, TxnId};

use crate::command::{End, Event, Mode, SubscriptionKey};
use crate::deadlines::Deadline;
use crate::delivery::{Slot, State};
use crate::engine::{Engine, Phase, Txn};
use crate::port::{NackCause, Reserved};
use crate::settlement::Fate;
use crate::subscription::{Leaving, Standing};

impl Engine {
    /// The last byte of a delivery is in the socket buffer: its ack timeout begins. Per subscription this
    /// is called in delivery order.
    pub fn handle_written(&mut self, now: Instant, delivery: DeliveryId) {
        self.now = now;
        let Some((slot, key)) = self.unfinished(delivery) else { return };
        let local = self.deadlines.local(now);
        let Some(subscription) = self.subs.get_mut(&key) else { return };
        self.deliveries.set_progress(&mut subscription.list, slot, true, local);
        if subscription.mode == Mode::Auto {
            self.deliveries.unlink(&mut subscription.list, slot);
            self.deliveries.free(slot);
            self.mark_dirty(key);
        } else if let Some(timeout) = subscription.ack_timeout {
            // Also when it is settling: the entry is only early then.
            self.arm_delivery(key, local + timeout);
        }
        self.advance_if_leaving(key);
    }

    /// The socket took some bytes of a delivery, but not the last: it counts as written, and its peer as
    /// alive.
    pub fn handle_write_progress(&mut self, now: Instant, delivery: DeliveryId) {
        self.now = now;
        let Some((slot, key)) = self.unfinished(delivery) else { return };
        let local = self.deadlines.local(now);
        let Some(subscription) = self.subs.get_mut(&key) else { return };
        self.deliveries.set_progress(&mut subscription.list, slot, false, local);
        self.advance_if_leaving(key);
    }

    /// A delivery was taken out of the output buffer, wholly unwritten: it goes back to the broker, unseen.
    pub fn handle_withdrawn(&mut self, now: Instant, delivery: DeliveryId) {
        self.now = now;
        let Some(slot) = self.deliveries.find(delivery) else { return };
        let found = self.deliveries.at(slot);
        if !found.state.is_unwritten() || self.mode_of(found.sub) == Mode::Auto {
            return;
        }
        let (key, txn, seq) = (found.sub, found.txn, found.seq);
        self.remove(key, slot);
        self.stats.withdrawn += 1;
        self.settle_own(txn, seq, self.release_fate());
        self.mark_dirty(key);
        self.probe();
    }

    /// The socket took at least one byte of whatever kind: subscriptions that had given up on it reserve
    /// again.
    pub fn handle_socket_progress(&mut self, now: Instant) {
        self.now = now;
        if std::mem::replace(&mut self.is_stalled, false) {
            self.subs.values_mut().for_each(|sub| sub.is_stalled = false);
            self.mark_all_dirty();
        }
    }

    /// A delivery whose last byte is not in the socket yet.
    fn unfinished(&self, delivery: DeliveryId) -> Option<(Slot, SubscriptionKey)> {
        let slot = self.deliveries.find(delivery)?;
        let found = self.deliveries.at(slot);
        let is_unfinished = !matches!(found.state, State::Written | State::Settling { is_written: true });
        is_unfinished.then_some((slot, found.sub))
    }

    fn advance_if_leaving(&mut self, key: SubscriptionKey) {
        if self.subs.get(&key).is_some_and(|sub| sub.leaving != Leaving::No) {
            self.advance_leaving(key);
        }
    }

    /// Messages have been reserved for a subscription: into the output buffer, or straight back when it has
    /// no use for them any more.
    pub(crate) fn handle_reserved(
        &mut self,
        op: OpId,
        key: SubscriptionKey,
        txn: TxnId,
        items: Vec<Reserved>,
    ) {
        let is_awaited = self.end_reserve(op, key);
        self.txns.insert(txn, Txn { sub: key, open: items.len() as u64 });
        if items.is_empty() {
            self.txns.remove(&txn);
        }
        let is_wanted = is_awaited
            && self.phase == Phase::Open
            && items.len() <= self.deliveries.room()
            && self
                .subs
                .get(&key)
                .is_some_and(|sub| sub.leaving == Leaving::No && sub.standing == Standing::Live);
        for item in items {
            if is_wanted {
                self.deliver(key, txn, item);
            } else {
                self.settle_own(txn, item.seq, self.release_fate());
            }
        }
        self.advance_leaving(key);
    }

    fn deliver(&mut self, key: SubscriptionKey, txn: TxnId, item: Reserved) {
        let local = self.deadlines.local(self.now);
        let Some(subscription) = self.subs.get_mut(&key) else { return };
        let (mode, timeout) = (subscription.mode, subscription.ack_timeout);
        let delivery = self.deliveries.push(&mut subscription.list, key, txn, item.seq, local);
        self.stats.delivered += 1;
        self.stats.redelivered += u64::from(item.redelivered);
        self.events.push_back(Event::Deliver {
            sub: key,
            delivery,
            message: item.message,
            redelivered: item.redelivered,
            receive_count: item.receive_count,
            seq: item.seq,
        });
        if mode == Mode::Auto {
            self.settle_own(txn, item.seq, Fate::Ack);
        } else if let Some(timeout) = timeout {
            self.arm_delivery(key, local + timeout);
        }
    }

    /// Sees to it that the subscription is looked at when the delivery is due. An earlier entry stays: it
    /// is moved when it comes due.
    pub(crate) fn arm_delivery(&mut self, key: SubscriptionKey, at: Instant) {
        let Some(subscription) = self.subs.get_mut(&key) else { return };
        match subscription.armed {
            Some(armed) if armed <= at => return,
            Some(armed) => self.deadlines.disarm(armed, Deadline::Delivery(key)),
            None => {}
        }
        subscription.armed = Some(self.deadlines.arm(at, Deadline::Delivery(key)));
    }

    /// Ends what has waited too long in a subscription: nacks what was written, asks for the rest back.
    pub(crate) fn sweep(&mut self, key: SubscriptionKey) {
        let local = self.deadlines.local(self.now);
        let Some(subscription) = self.subs.get_mut(&key) else { return };
        subscription.armed = None;
        let Some(timeout) = subscription.ack_timeout else { return };
        while let Some(slot) = self.subs.get(&key).and_then(|sub| sub.list.first()) {
            let found = self.deliveries.at(slot);
            self.deadlines.visited += 1;
            if found.state.is_unwritten() || found.since + timeout > local {
                break;
            }
            self.expire(key, slot);
        }
        let next = self.sweep_unwritten(key, local, timeout);
        let oldest =
            self.subs.get(&key).and_then(|sub| sub.list.first()).map(|slot| self.deliveries.at(slot));
        let written = oldest.filter(|found| !found.state.is_unwritten()).map(|found| found.since + timeout);
        if let Some(at) = written.into_iter().chain(next).min() {
            self.arm_delivery(key, at);
        }
        self.mark_dirty(key);
        self.probe();
    }

    fn expire(&mut self, key: SubscriptionKey, slot: Slot) {
        let found = self.deliveries.at(slot);
        let (delivery, txn, seq, state) = (found.id, found.txn, found.seq, found.state);
        if state == State::Started {
            self.stall(key);
        }
        self.remove(key, slot);
        self.stats.expired += 1;
        self.settle_own(txn, seq, Fate::Nack(NackCause::Failure));
        self.events.push_back(Event::Ended { delivery });
    }

    /// Asks for every unwritten delivery that has waited too long, and says when the next one has.
    fn sweep_unwritten(
        &mut self,
        key: SubscriptionKey,
        local: Instant,
        timeout: std::time::Duration,
    ) -> Option<Instant> {
        let mut slot = self.subs.get(&key)?.list.first_unwritten();
        while let Some(here) = slot {
            let found = self.deliveries.at(here);
            self.deadlines.visited += 1;
            if found.state == State::Reserved {
                if found.since + timeout > local {
                    return Some(found.since + timeout);
                }
                self.withdraw(here);
                self.stall(key);
            }
            slot = self.deliveries.after(here);
        }
        None
    }

    fn stall(&mut self, key: SubscriptionKey) {
        if let Some(subscription) = self.subs.get_mut(&key) {
            subscription.is_stalled = true;
            self.is_stalled = true;
            self.cancel_reserve(key);
        }
    }

    /// Asks for a byte in the output when something waits for one and the output may have run empty.
    fn probe(&mut self) {
        if self.is_stalled && !matches!(self.events.back(), Some(Event::Probe)) {
            self.events.push_back(Event::Probe);
        }
    }

    fn withdraw(&mut self, slot: Slot) {
        self.deliveries.mark_withdrawing(slot);
        let delivery = self.deliveries.at(slot).id;
        self.events.push_back(Event::Withdraw { delivery });
    }

    /// Asks for everything unwritten of a subscription. What an auto subscription has in the buffer is
    /// accepted already and stays there.
    pub(crate) fn withdraw_unwritten(&mut self, key: SubscriptionKey) {
        if self.mode_of(key) == Mode::Auto {
            return;
        }
        let mut slot = self.subs.get(&key).and_then(|sub| sub.list.first_unwritten());
        while let Some(here) = slot {
            if self.deliveries.at(here).state == State::Reserved {
                self.withdraw(here);
            }
            slot = self.deliveries.after(here);
        }
    }

    fn remove(&mut self, key: SubscriptionKey, slot: Slot) {
        if let Some(subscription) = self.subs.get_mut(&key) {
            self.deliveries.unlink(&mut subscription.list, slot);
            self.deliveries.free(slot);
        }
    }

    /// Forgets the deliveries of a subscription (of one reservation only, if named) that the broker has
    /// taken back.
    pub(crate) fn forget_deliveries(&mut self, key: SubscriptionKey, only: Option<TxnId>) {
        let is_auto = self.mode_of(key) == Mode::Auto;
        let mut slot = self.subs.get(&key).and_then(|sub| sub.list.first());
        while let Some(here) = slot {
            slot = self.deliveries.after(here);
            let found = self.deliveries.at(here);
            let (delivery, txn, state) = (found.id, found.txn, found.state);
            if is_auto || only.is_some_and(|only| only != txn) {
                continue;
            }
            self.remove(key, here);
            self.resolve(txn, 1);
            self.stats.lost += 1;
            match state {
                State::Reserved => self.events.push_back(Event::Withdraw { delivery }),
                State::Withdrawing => {}
                _ => self.events.push_back(Event::Ended { delivery }),
            }
        }
    }

    /// Gives everything back at the end of the connection, in delivery order over all subscriptions.
    pub(crate) fn return_deliveries(&mut self, keys: &[SubscriptionKey], end: End) {
        let mut all: Vec<(DeliveryId, Slot, SubscriptionKey)> = Vec::new();
        for key in keys {
            let mut slot = self.subs.get(key).and_then(|sub| sub.list.first());
            while let Some(here) = slot {
                all.push((self.deliveries.at(here).id, here, *key));
                slot = self.deliveries.after(here);
            }
        }
        all.sort_unstable_by_key(|(id, ..)| *id);
        for (delivery, slot, key) in all {
            let found = self.deliveries.at(slot);
            let (txn, seq, state) = (found.txn, found.seq, found.state);
            self.remove(key, slot);
            if self.mode_of(key) == Mode::Auto {
                self.stats.dropped += u64::from(end == End::Lost);
                continue;
            }
            if state == State::Reserved {
                self.events.push_back(Event::Withdraw { delivery });
            }
            let fate = if state.is_unwritten() { self.release_fate() } else { Fate::Nack(self.end_cause) };
            self.settle_own(txn, seq, fate);
        }
    }
}
