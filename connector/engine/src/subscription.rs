//! The life of a subscription: attached or gated, reserving as its window allows, and leaving without
//! losing anything.
//!
//! ```text
//! Gated -> Attaching -> Live -> leaving: cancel, release, tell; all settled: unsubscribe -> gone
//!   ^---------'----------'  broker lost: deliveries are late, attached again when it is back
//! ```

use std::time::Duration;

use berth_types::limits::{OUTPUT_BYTES_MAX, RESERVE_BYTES_MAX};
use berth_types::{ChannelName, Instant, OpId, SubId, TxnId};

use crate::command::{Event, Mode, Source, Subscribe, SubscriptionKey};
use crate::deadlines::{Deadline, SWEEP};
use crate::delivery::List;
use crate::engine::{Engine, Phase, Request};
use crate::port::{NackCause, Operation, Refusal};
use crate::settlement::Sets;

/// A subscription with little free room waits so long for more of it before it reserves, so that a client
/// that settles one by one does not cause an operation per message.
const TOP_UP_DELAY: Duration = Duration::from_millis(2);

/// The share of free room at which a subscription reserves at once: a quarter of its window.
const TOP_UP_SHARE: u32 = 4;

/// The least bytes that a reservation asks for, however many subscriptions share the connection's output.
const RESERVE_BYTES_MIN: u32 = 16 * 1024;

/// Where a subscription stands with the broker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Standing {
    /// Waits for the broker.
    Gated,
    /// Asked for.
    Attaching,
    /// The broker serves it.
    Live,
    /// The broker does not serve it any more.
    Ended,
}

/// How far an unsubscribe has come.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Leaving {
    /// Not asked for.
    No,
    /// Unwritten deliveries are on their way back.
    Asked,
    /// The front-end knows; pending deliveries can still be settled.
    Told,
}

/// One subscription of the connection.
#[derive(Debug)]
pub(crate) struct Subscription {
    channel: ChannelName,
    pub(crate) mode: Mode,
    window: u32,
    pub(crate) ack_timeout: Option<Duration>,
    pub(crate) standing: Standing,
    pub(crate) leaving: Leaving,
    attach: Option<OpId>,
    broker: Option<SubId>,
    pub(crate) reserve: Option<OpId>,
    is_cancelling: bool,
    pub(crate) list: List,
    /// Deliveries that the client has settled and the broker has not answered for.
    pub(crate) settling: u32,
    /// `Settle` operations with intents of the engine's own, batched or under way or waiting for another try.
    pub(crate) own_ops: u32,
    pub(crate) armed: Option<Instant>,
    is_announced: bool,
    is_unsubscribing: bool,
    is_dirty: bool,
    is_topping_up: bool,
    may_top_up: bool,
    /// Something of it waited too long for the socket: nothing is reserved until the socket takes a byte.
    pub(crate) is_stalled: bool,
}

impl Subscription {
    fn new(command: Subscribe) -> Self {
        let Source::Queue(channel) = command.source;
        Self {
            channel,
            mode: command.mode,
            window: command.window.max(1),
            ack_timeout: command.ack_timeout.filter(|_| command.mode != Mode::Auto),
            standing: Standing::Gated,
            leaving: Leaving::No,
            attach: None,
            broker: None,
            reserve: None,
            is_cancelling: false,
            list: List::default(),
            settling: 0,
            own_ops: 0,
            armed: None,
            is_announced: false,
            is_unsubscribing: false,
            is_dirty: false,
            is_topping_up: false,
            may_top_up: false,
            is_stalled: false,
        }
    }

    /// How many more deliveries the client, or the output buffer, takes.
    fn free(&self) -> u32 {
        self.window.saturating_sub(self.list.len())
    }

    fn has_unwritten(&self) -> bool {
        self.mode != Mode::Auto && self.list.first_unwritten().is_some()
    }

    /// The set of the engine's own retries for this reservation; a new one counts as one more operation.
    pub(crate) fn retry_later<'a>(
        &mut self,
        retries: &'a mut Vec<(TxnId, NackCause, Box<Sets>)>,
        txn: TxnId,
        cause: NackCause,
    ) -> &'a mut Sets {
        if let Some(place) = retries.iter().position(|(t, c, _)| (*t, *c) == (txn, cause)) {
            return &mut retries[place].2;
        }
        self.own_ops += 1;
        retries.push((txn, cause, Box::default()));
        let last = retries.len() - 1;
        &mut retries[last].2
    }
}

impl Engine {
    /// Makes a subscription: attached at once, or when the broker is ready. [`Event::Subscribed`] or
    /// [`Event::SubscriptionRefused`] follows.
    pub fn subscribe(&mut self, now: Instant, command: Subscribe) -> SubscriptionKey {
        self.now = now;
        self.flush_publishes();
        let key = SubscriptionKey(self.next_sub);
        self.next_sub += 1;
        if self.phase == Phase::Closing {
            self.events.push_back(Event::SubscriptionRefused { sub: key, reason: Refusal::Ended });
            return key;
        }
        self.subs.insert(key, Subscription::new(command));
        if self.is_ready {
            self.attach(key);
        } else {
            self.announce(key);
        }
        key
    }

    /// Ends a subscription. What is unwritten is withdrawn and released, then [`Event::Unsubscribed`]
    /// follows and nothing is delivered any more; what was written can still be settled. In mode auto the
    /// output buffer is written.
    pub fn unsubscribe(&mut self, now: Instant, sub: SubscriptionKey) {
        self.now = now;
        self.flush_publishes();
        let Some(subscription) = self.subs.get_mut(&sub) else { return };
        if subscription.leaving != Leaving::No {
            return;
        }
        subscription.leaving = Leaving::Asked;
        self.cancel_reserve(sub);
        self.withdraw_unwritten(sub);
        self.advance_leaving(sub);
    }

    fn attach(&mut self, key: SubscriptionKey) {
        let op = self.open(Request::Attach(key));
        let Some(subscription) = self.subs.get_mut(&key) else { return };
        subscription.standing = Standing::Attaching;
        subscription.attach = Some(op);
        let attach = Operation::Attach { channel: subscription.channel.clone() };
        self.operations.push_back((op, attach));
    }

    fn announce(&mut self, key: SubscriptionKey) {
        if let Some(subscription) = self.subs.get_mut(&key)
            && !std::mem::replace(&mut subscription.is_announced, true)
            && self.phase != Phase::Closing
        {
            self.events.push_back(Event::Subscribed { sub: key });
        }
    }

    /// The broker serves a subscription now.
    pub(crate) fn handle_opened(&mut self, op: OpId, key: SubscriptionKey, broker: SubId) {
        match self.subs.get_mut(&key) {
            Some(subscription) if subscription.attach == Some(op) => {
                subscription.broker = Some(broker);
                subscription.standing = Standing::Live;
                self.announce(key);
                self.mark_dirty(key);
                self.advance_leaving(key);
            }
            _ => {
                // Opened for a subscription that has been gated, or has gone, meanwhile.
                let end = self.open(Request::Stray(op));
                self.operations.push_back((end, Operation::Unsubscribe { sub: broker, forget: false }));
            }
        }
    }

    /// The broker does not serve a subscription (any more).
    pub(crate) fn handle_sub_ended(&mut self, op: OpId, key: SubscriptionKey, reason: Refusal) {
        let Some(subscription) = self.subs.get_mut(&key) else { return };
        if subscription.attach != Some(op) {
            return;
        }
        (subscription.attach, subscription.broker) = (None, None);
        subscription.standing = Standing::Ended;
        if reason == Refusal::BrokerNotReady {
            self.gate(key);
            self.try_again(key);
        } else {
            self.cancel_reserve(key);
            self.refuse_subscription(key, reason);
        }
        self.advance_leaving(key);
    }

    fn refuse_subscription(&mut self, key: SubscriptionKey, reason: Refusal) {
        let Some(subscription) = self.subs.get_mut(&key) else { return };
        if subscription.leaving == Leaving::No {
            subscription.leaving = Leaving::Told;
            self.events.push_back(Event::SubscriptionRefused { sub: key, reason });
            self.withdraw_unwritten(key);
        }
    }

    /// The broker is gone: what it had reserved for this subscription is late.
    pub(crate) fn gate(&mut self, key: SubscriptionKey) {
        let Some(subscription) = self.subs.get_mut(&key) else { return };
        if subscription.leaving != Leaving::Told || subscription.standing != Standing::Ended {
            subscription.standing = Standing::Gated;
        }
        (subscription.attach, subscription.broker, subscription.reserve) = (None, None, None);
        subscription.is_cancelling = false;
        if subscription.mode != Mode::Auto {
            self.forget_deliveries(key, None);
        }
        self.announce(key);
        self.advance_leaving(key);
    }

    /// The broker is back.
    pub(crate) fn attach_gated(&mut self) {
        let gated: Vec<_> = self
            .subs
            .iter()
            .filter(|(_, sub)| sub.standing == Standing::Gated && sub.leaving == Leaving::No)
            .map(|(key, _)| *key)
            .collect();
        gated.into_iter().for_each(|key| self.attach(key));
    }

    /// Tries a subscription again after a tick, though no notice says that the broker is ready again.
    fn try_again(&mut self, key: SubscriptionKey) {
        if self.is_ready {
            let at = self.deadlines.local(self.now) + SWEEP;
            self.deadlines.arm(at, Deadline::Again(key));
        }
    }

    /// The moment for another try has come.
    pub(crate) fn handle_again(&mut self, key: SubscriptionKey) {
        let Some(subscription) = self.subs.get(&key) else { return };
        match subscription.standing {
            Standing::Gated if self.is_ready && subscription.leaving == Leaving::No => self.attach(key),
            Standing::Live => self.mark_dirty(key),
            _ => {}
        }
    }

    /// Remembers that a subscription may have free room; acted on at the next flush.
    pub(crate) fn mark_dirty(&mut self, key: SubscriptionKey) {
        if let Some(subscription) = self.subs.get_mut(&key)
            && !std::mem::replace(&mut subscription.is_dirty, true)
        {
            self.dirty.push(key);
        }
    }

    /// Reserves for every subscription that has got free room since the last flush.
    pub(crate) fn flush_reserves(&mut self) {
        while let Some(key) = self.dirty.pop() {
            if let Some(subscription) = self.subs.get_mut(&key) {
                subscription.is_dirty = false;
                self.reserve(key);
                self.advance_leaving(key);
            }
        }
    }

    fn reserve(&mut self, key: SubscriptionKey) {
        let is_open = self.phase == Phase::Open && self.is_ready && !self.output_full;
        let (room, subs) = (self.deliveries.room(), self.subs.len());
        let Some(subscription) = self.subs.get_mut(&key) else { return };
        let Some(broker) = subscription.broker else { return };
        let free = subscription.free().min(u32::try_from(room).unwrap_or(u32::MAX));
        if !is_open
            || subscription.standing != Standing::Live
            || subscription.leaving != Leaving::No
            || subscription.reserve.is_some()
            || subscription.is_stalled
            || free == 0
        {
            return;
        }
        if free.saturating_mul(TOP_UP_SHARE) < subscription.window && !subscription.may_top_up {
            if !std::mem::replace(&mut subscription.is_topping_up, true) {
                self.topping_up.push(key);
                self.top_up_at.get_or_insert(self.now + TOP_UP_DELAY);
            }
            return;
        }
        subscription.may_top_up = false;
        let share = u32::try_from(OUTPUT_BYTES_MAX / subs.max(1)).unwrap_or(RESERVE_BYTES_MAX);
        let max_bytes = share.clamp(RESERVE_BYTES_MIN, RESERVE_BYTES_MAX);
        let op = self.open(Request::Reserve(key));
        if let Some(subscription) = self.subs.get_mut(&key) {
            subscription.reserve = Some(op);
        }
        self.operations.push_back((op, Operation::Reserve { sub: broker, max: free, max_bytes, hold: None }));
    }

    /// Lets every subscription that waits with little free room reserve what it has.
    pub(crate) fn top_up(&mut self) {
        self.top_up_at = None;
        for key in std::mem::take(&mut self.topping_up) {
            if let Some(subscription) = self.subs.get_mut(&key) {
                subscription.is_topping_up = false;
                subscription.may_top_up = true;
                self.mark_dirty(key);
            }
        }
    }

    /// Gives up a waiting reservation; its completion still comes.
    pub(crate) fn cancel_reserve(&mut self, key: SubscriptionKey) {
        if let Some(subscription) = self.subs.get_mut(&key)
            && let Some(op) = subscription.reserve
            && !std::mem::replace(&mut subscription.is_cancelling, true)
        {
            self.operations.push_back((op, Operation::Cancel { op }));
        }
    }

    /// A reservation has ended. True when the subscription still waited for it.
    pub(crate) fn end_reserve(&mut self, op: OpId, key: SubscriptionKey) -> bool {
        let Some(subscription) = self.subs.get_mut(&key) else { return false };
        if subscription.reserve != Some(op) {
            return false;
        }
        subscription.reserve = None;
        subscription.is_cancelling = false;
        self.mark_dirty(key);
        true
    }

    /// A reservation was refused.
    pub(crate) fn handle_reserve_refused(&mut self, op: OpId, key: SubscriptionKey, reason: Refusal) {
        if !self.end_reserve(op, key) {
            return;
        }
        match reason {
            Refusal::BrokerNotReady => {
                // Not marked dirty: a refusal must not be answered by the same question at once.
                if let Some(subscription) = self.subs.get_mut(&key) {
                    subscription.is_dirty = false;
                    self.dirty.retain(|dirty| *dirty != key);
                }
                self.try_again(key);
            }
            Refusal::Ended => {}
            reason => {
                if let Some(subscription) = self.subs.get_mut(&key) {
                    subscription.standing = Standing::Ended;
                }
                self.refuse_subscription(key, reason);
            }
        }
        self.advance_leaving(key);
    }

    /// Moves a leaving subscription on, as far as what it waits for has happened.
    pub(crate) fn advance_leaving(&mut self, key: SubscriptionKey) {
        let Some(subscription) = self.subs.get_mut(&key) else { return };
        let waits = subscription.reserve.is_some()
            || subscription.own_ops > 0
            || subscription.has_unwritten()
            || subscription.standing == Standing::Attaching;
        if subscription.leaving == Leaving::No || waits {
            return;
        }
        if subscription.leaving == Leaving::Asked {
            subscription.leaving = Leaving::Told;
            self.events.push_back(Event::Unsubscribed { sub: key });
        }
        let is_settled = subscription.mode == Mode::Auto || subscription.list.len() == 0;
        if !is_settled || subscription.settling > 0 {
            return;
        }
        if let Some(broker) = subscription.broker {
            if !std::mem::replace(&mut subscription.is_unsubscribing, true) {
                let op = self.open(Request::Unsubscribe(key));
                self.operations.push_back((op, Operation::Unsubscribe { sub: broker, forget: false }));
            }
        } else if subscription.list.len() == 0 {
            if let Some(at) = subscription.armed {
                self.deadlines.disarm(at, Deadline::Delivery(key));
            }
            self.subs.remove(&key);
        }
    }

    /// The broker has ended a subscription as asked: its attach has ended with it.
    pub(crate) fn handle_unsubscribed(&mut self, key: SubscriptionKey) {
        let Some(subscription) = self.subs.get_mut(&key) else { return };
        if let Some(attach) = subscription.attach.take() {
            self.ops.remove(&attach);
        }
        (subscription.broker, subscription.standing) = (None, Standing::Ended);
        self.advance_leaving(key);
    }
}
