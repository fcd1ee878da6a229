//! The engine against a naive model of a connection and a scripted broker: over random interleavings of
//! everything that can happen, each rule of `docs/delivery.md` that the engine owns holds after every step.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use berth_engine::port::{Capabilities, Capability, NackCause, Operation, Refusal};
use berth_engine::{
    Correlation, End, Engine, Event, Mode, Settings, Settlement, Source, Subscribe, SubscriptionKey,
};
use berth_types::limits::OUTPUT_BYTES_MAX;
use berth_types::{ChannelName, DeliveryId, Destination, Instant, OpId, Outcome, Pattern, Seq, SubId, TxnId};
use proptest::prelude::*;

use crate::scripted::{Fate, Scripted, message};

const TIMEOUT: Duration = Duration::from_secs(5);
const MS: Duration = Duration::from_millis(1);

#[derive(Clone, Debug)]
enum Step {
    Subscribe {
        mode: u8,
        window: u32,
        channel: u8,
    },
    Unsubscribe(u8),
    Produce {
        channel: u8,
        count: u8,
    },
    Publish(u8),
    /// The socket takes so many whole frames, and then perhaps a piece of the next.
    Write {
        frames: u8,
        piece: bool,
    },
    Settle {
        pick: u8,
        outcome: u8,
        confirm: bool,
    },
    /// Several settlements before the engine is drained, as when one read carries many frames.
    SettleMany(Vec<(u8, u8, bool)>),
    SettleUnknown(u64),
    Complete {
        pick: u16,
        odds: u8,
        count: u8,
    },
    Advance(u16),
    GoAway,
    ComeBack,
    Lose(u8),
    Pause,
    Resume,
    Output {
        full: bool,
    },
    Drain,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        1 => (0u8..3, 1u32..9, 0u8..2)
            .prop_map(|(mode, window, channel)| Step::Subscribe { mode, window, channel }),
        1 => any::<u8>().prop_map(Step::Unsubscribe),
        16 => (0u8..2, 1u8..9).prop_map(|(channel, count)| Step::Produce { channel, count }),
        2 => (1u8..4).prop_map(Step::Publish),
        24 => (0u8..5, any::<bool>()).prop_map(|(frames, piece)| Step::Write { frames, piece }),
        16 => (any::<u8>(), 0u8..4, any::<bool>())
            .prop_map(|(pick, outcome, confirm)| Step::Settle { pick, outcome, confirm }),
        8 => prop::collection::vec((any::<u8>(), 0u8..4, any::<bool>()), 1..6).prop_map(Step::SettleMany),
        1 => any::<u64>().prop_map(Step::SettleUnknown),
        48 => (any::<u16>(), any::<u8>(), 1u8..6)
            .prop_map(|(pick, odds, count)| Step::Complete { pick, odds, count }),
        16 => (0u16..3000).prop_map(Step::Advance),
        1 => Just(Step::GoAway),
        6 => Just(Step::ComeBack),
        1 => any::<u8>().prop_map(Step::Lose),
        1 => Just(Step::Pause),
        4 => Just(Step::Resume),
        1 => any::<bool>().prop_map(|full| Step::Output { full }),
    ];
    let last = prop_oneof![4 => Just(None), 1 => Just(Some(Step::Drain))];
    let first = prop::collection::vec(
        (0u8..3, 1u32..9, 0u8..2).prop_map(|(mode, window, channel)| Step::Subscribe {
            mode,
            window,
            channel,
        }),
        1..4,
    );
    (first, prop::collection::vec(step, 20..300), last).prop_map(|(mut steps, more, last)| {
        steps.extend(more);
        if let Some(last) = last {
            let at = steps.len() * 3 / 4;
            steps.insert(at, last);
        }
        steps
    })
}

/// What a client and its socket know of one delivery.
#[derive(Debug)]
struct Known {
    sub: SubscriptionKey,
    at: (TxnId, Seq),
    is_started: bool,
    is_written: bool,
    /// Time since the last byte of it moved, or since it entered the buffer; rests with the deadlines.
    age: Duration,
}

#[derive(Debug)]
struct Sub {
    mode: Mode,
    window: u32,
    is_gone: bool,
    is_stalled: bool,
    /// Deliveries that a refused settlement has put back: they may exceed the window.
    restored: usize,
}

struct World {
    engine: Engine,
    broker: Scripted,
    now: Instant,
    subs: BTreeMap<SubscriptionKey, Sub>,
    /// The n-th subscription consumes the channel whose name ends in n.
    keys: Vec<SubscriptionKey>,
    buffer: VecDeque<DeliveryId>,
    piece_written: bool,
    /// A byte of no delivery waits in the output.
    has_probe: bool,
    known: BTreeMap<DeliveryId, Known>,
    /// Settled by the client, not answered by the broker.
    settling: BTreeMap<(TxnId, Seq), (DeliveryId, Known)>,
    /// What the model says must become of a sequence.
    expected: BTreeMap<(TxnId, Seq), Fate>,
    confirms: BTreeSet<Correlation>,
    publishes: VecDeque<Correlation>,
    next_correlation: u64,
    is_paused: bool,
    grace: Duration,
    is_full: bool,
    is_draining: bool,
    is_ended: bool,
    /// Sequences nacked by the end of the connection, in the order in which the broker was told.
    final_nacks: Vec<(TxnId, Seq)>,
}

impl World {
    fn new() -> Self {
        let capabilities = Capabilities::of(&[Capability::Queues, Capability::Release]);
        Self {
            engine: Engine::new(Settings { capabilities, is_ready: true }),
            broker: Scripted::new(),
            now: Instant::ZERO,
            subs: BTreeMap::new(),
            keys: Vec::new(),
            buffer: VecDeque::new(),
            piece_written: false,
            has_probe: false,
            known: BTreeMap::new(),
            settling: BTreeMap::new(),
            expected: BTreeMap::new(),
            confirms: BTreeSet::new(),
            publishes: VecDeque::new(),
            next_correlation: 0,
            is_paused: false,
            grace: Duration::ZERO,
            is_full: false,
            is_draining: false,
            is_ended: false,
            final_nacks: Vec::new(),
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Subscribe { mode, window, channel } => self.subscribe(mode, window, channel),
            Step::Unsubscribe(pick) => {
                if let Some(key) = self.pick_sub(pick) {
                    self.engine.unsubscribe(self.now, key);
                }
            }
            Step::Produce { channel, count } => {
                (0..count).for_each(|_| self.broker.produce(channel_name(channel)));
            }
            Step::Publish(count) => self.publish(count),
            Step::Write { frames, piece } => self.write(frames, piece),
            Step::Settle { pick, outcome, confirm } => self.settle(pick, outcome, confirm),
            Step::SettleMany(many) => {
                many.into_iter().for_each(|(pick, outcome, confirm)| self.settle(pick, outcome, confirm));
            }
            Step::SettleUnknown(id) => {
                let id = DeliveryId::new(id);
                if !self.known.contains_key(&id) {
                    let answer = self.engine.settle(self.now, id, Outcome::Accepted, Some(Correlation(0)));
                    assert_eq!(answer, Settlement::Ignored);
                }
            }
            Step::Complete { pick, odds, count } => {
                for i in 0..count {
                    self.complete(usize::from(pick) + usize::from(i), odds.wrapping_mul(i + 1));
                }
            }
            Step::Advance(ms) => self.advance(Duration::from_millis(u64::from(ms))),
            Step::GoAway if self.broker.is_ready => self.go_away(),
            Step::ComeBack if !self.broker.is_ready => {
                let notice = self.broker.come_back();
                self.engine.handle_completion(self.now, None, notice);
            }
            Step::GoAway | Step::ComeBack => {}
            Step::Lose(pick) => {
                if let Some(notice) = self.broker.lose(usize::from(pick)) {
                    self.engine.handle_completion(self.now, None, notice);
                    self.forget_void();
                }
            }
            Step::Pause => {
                self.engine.pause_deadlines(self.now);
                self.is_paused = true;
            }
            Step::Resume => {
                self.engine.resume_deadlines(self.now);
                if std::mem::replace(&mut self.is_paused, false) {
                    self.grace = Duration::from_secs(2);
                }
            }
            Step::Output { full } => {
                self.is_full = full;
                let waiting = if full { OUTPUT_BYTES_MAX } else { 0 };
                self.engine.handle_output_bytes(self.now, waiting);
            }
            Step::Drain => {
                self.engine.handle_drain(self.now);
                self.is_draining = true;
            }
        }
        self.drain();
        self.check();
    }

    fn subscribe(&mut self, mode: u8, window: u32, channel: u8) {
        if self.subs.len() >= 4 {
            return;
        }
        let mode = [Mode::Auto, Mode::Individual, Mode::Cumulative][usize::from(mode)];
        let name = format!("{}-{}", channel_name(channel), self.subs.len());
        let source = Source::Queue(ChannelName::parse(&name).unwrap());
        let command = Subscribe { source, mode, window, ack_timeout: Some(TIMEOUT) };
        let key = self.engine.subscribe(self.now, command);
        self.keys.push(key);
        self.subs.insert(key, Sub { mode, window, is_gone: false, is_stalled: false, restored: 0 });
    }

    fn publish(&mut self, count: u8) {
        for _ in 0..count {
            let correlation = self.correlation();
            self.publishes.push_back(correlation);
            let channel = ChannelName::parse("sink").unwrap();
            let destination = Destination { pattern: Pattern::Queues, channel };
            self.engine.publish(self.now, correlation, destination, message(0));
        }
    }

    fn write(&mut self, frames: u8, piece: bool) {
        if frames == 0 && !piece || self.buffer.is_empty() && !self.has_probe {
            return;
        }
        self.has_probe = false;
        for _ in 0..frames {
            let Some(delivery) = self.buffer.pop_front() else { break };
            self.piece_written = false;
            self.progress(delivery, true);
            self.engine.handle_written(self.now, delivery);
        }
        if let (true, Some(delivery)) = (piece, self.buffer.front().copied()) {
            self.piece_written = true;
            self.progress(delivery, false);
            self.engine.handle_write_progress(self.now, delivery);
        }
        self.engine.handle_socket_progress(self.now);
        self.subs.values_mut().for_each(|sub| sub.is_stalled = false);
    }

    fn progress(&mut self, delivery: DeliveryId, is_written: bool) {
        let settling = self.settling.values_mut().find(|(id, _)| *id == delivery).map(|(_, known)| known);
        let Some(known) = self.known.get_mut(&delivery).or(settling) else { return };
        (known.is_started, known.is_written, known.age) = (true, is_written, Duration::ZERO);
        if is_written && self.subs[&known.sub].mode == Mode::Auto {
            self.known.remove(&delivery);
        }
    }

    fn settle(&mut self, pick: u8, outcome: u8, confirm: bool) {
        let ids: Vec<_> = self.known.keys().copied().collect();
        let Some(id) = ids.get(usize::from(pick) % ids.len().max(1)).copied() else { return };
        let (outcome, fate) = [
            (Outcome::Accepted, Fate::Ack),
            (Outcome::Modified, Fate::Nack(NackCause::Failure)),
            (Outcome::Released, Fate::Release),
            (Outcome::Rejected, Fate::Reject),
        ][usize::from(outcome)];
        let correlation = confirm.then(|| self.correlation());
        let answer = self.engine.settle(self.now, id, outcome, correlation);
        let (sub, is_started) = (self.known[&id].sub, self.known[&id].is_started);
        let mode = self.subs[&sub].mode;
        if mode == Mode::Auto || !is_started {
            assert_eq!(answer, Settlement::Ignored, "unknown to the client");
            return;
        }
        let covered: Vec<_> = self
            .known
            .iter()
            .filter(|(other, known)| {
                **other == id || mode == Mode::Cumulative && known.sub == sub && **other < id
            })
            .map(|(id, _)| *id)
            .collect();
        assert_eq!(answer, Settlement::Accepted(covered.len() as u32));
        for id in covered {
            let known = self.known.remove(&id).unwrap();
            self.expect(known.at, fate);
            self.settling.insert(known.at, (id, known));
        }
        self.confirms.extend(correlation);
    }

    fn expect(&mut self, at: (TxnId, Seq), fate: Fate) {
        assert_eq!(self.expected.insert(at, fate), None, "{at:?} is resolved once");
    }

    fn advance(&mut self, by: Duration) {
        self.now = self.now + by;
        if !self.is_paused {
            self.known.values_mut().for_each(|known| known.age += by);
            self.settling.values_mut().for_each(|(_, known)| known.age += by);
            self.grace = self.grace.saturating_sub(by);
        }
        if self.engine.poll_timeout().is_some_and(|at| at <= self.now) {
            self.engine.handle_timeout(self.now);
        }
    }

    fn go_away(&mut self) {
        let notice = self.broker.go_away();
        self.engine.handle_completion(self.now, None, notice);
        self.forget_void();
    }

    /// What the broker has taken back is late for the client, and never in its buffer again.
    fn forget_void(&mut self) {
        let ledger = &self.broker.ledger;
        let subs = &self.subs;
        let is_void =
            |known: &Known| ledger[&known.at].1 == Fate::Void && subs[&known.sub].mode != Mode::Auto;
        self.known.retain(|_, known| !is_void(known));
        self.settling.retain(|at, _| ledger[at].1 != Fate::Void);
    }

    fn complete(&mut self, pick: usize, odds: u8) {
        let Some((op, completion)) = self.broker.complete(pick, odds) else { return };
        self.engine.handle_completion(self.now, op, completion);
        // Whatever was applied is not pending in the model either.
        let ledger = &self.broker.ledger;
        let applied: Vec<_> =
            self.settling.keys().filter(|at| ledger[*at].1 != Fate::Open).copied().collect();
        self.settling.retain(|at, _| !applied.contains(at));
        self.drain();
        self.check();
    }

    /// Everything the engine has to say, to the end.
    fn drain(&mut self) {
        let mut withdrawn = Vec::new();
        loop {
            let mut is_quiet = true;
            while let Some(event) = self.engine.poll_event() {
                is_quiet = false;
                self.event(event, &mut withdrawn);
            }
            let mut seen: BTreeSet<(TxnId, bool)> = BTreeSet::new();
            while let Some((op, operation)) = self.engine.poll_operation() {
                is_quiet = false;
                self.operation(op, operation, &mut seen);
            }
            for delivery in std::mem::take(&mut withdrawn) {
                is_quiet = false;
                self.engine.handle_withdrawn(self.now, delivery);
            }
            if is_quiet {
                break;
            }
        }
    }

    fn event(&mut self, event: Event, withdrawn: &mut Vec<DeliveryId>) {
        match event {
            Event::Deliver { sub, delivery, message, seq, .. } => {
                let at = self.broker.reserved_as[&message.id.as_str().parse::<u64>().unwrap()];
                assert_eq!(at.1, seq);
                assert!(self.known.keys().all(|known| *known < delivery), "delivery ids rise");
                assert!(!self.is_draining && !self.subs[&sub].is_gone, "delivered after the end");
                let known = Known { sub, at, is_started: false, is_written: false, age: Duration::ZERO };
                self.known.insert(delivery, known);
                self.buffer.push_back(delivery);
                if self.subs[&sub].mode == Mode::Auto {
                    self.expect(at, Fate::Ack);
                }
            }
            Event::Withdraw { delivery } => self.withdraw(delivery, withdrawn),
            Event::Ended { delivery } => {
                if let Some(known) = self.known.remove(&delivery) {
                    assert!(known.is_started && known.age >= TIMEOUT, "nacked too soon: {known:?}");
                    if !known.is_written {
                        self.subs.get_mut(&known.sub).unwrap().is_stalled = true;
                    }
                    self.expect(known.at, Fate::Nack(NackCause::Failure));
                }
            }
            Event::Published { correlation, .. } => {
                let at = self.publishes.iter().position(|waiting| *waiting == correlation);
                self.publishes.remove(at.expect("confirmed once")).unwrap();
            }
            Event::Settled { correlation, .. } => {
                assert!(self.confirms.remove(&correlation), "confirmed once");
            }
            Event::SettlementRefused { delivery, reason } => {
                assert_eq!(reason, Refusal::StorageFull);
                let at = *self.settling.iter().find(|(_, (id, _))| *id == delivery).unwrap().0;
                let (id, mut known) = self.settling.remove(&at).unwrap();
                // Its deadline may have passed meanwhile: then it is due at the next sweep.
                known.age = known.age.min(TIMEOUT);
                self.expected.remove(&at);
                self.subs.get_mut(&known.sub).unwrap().restored += 1;
                self.known.insert(id, known);
            }
            Event::SubscriptionRefused { sub, .. } | Event::Unsubscribed { sub } => {
                let unwritten = self.known.values().any(|known| known.sub == sub && !known.is_started);
                let subscription = self.subs.get_mut(&sub).unwrap();
                assert!(!subscription.is_gone, "told once");
                assert!(
                    !unwritten
                        || subscription.mode == Mode::Auto
                        || matches!(event, Event::SubscriptionRefused { .. })
                );
                subscription.is_gone = true;
            }
            Event::Probe => self.has_probe = self.buffer.is_empty() || self.has_probe,
            Event::Subscribed { sub } => assert!(!self.subs[&sub].is_gone),
        }
    }

    fn withdraw(&mut self, delivery: DeliveryId, withdrawn: &mut Vec<DeliveryId>) {
        let place = self.buffer.iter().position(|other| *other == delivery).expect("unwritten");
        assert!(place > 0 || !self.piece_written, "its first byte has left");
        self.buffer.remove(place);
        // A delivery of a lost broker is not known any more: nothing is to be released.
        if let Some(known) = self.known.remove(&delivery) {
            assert!(!known.is_started);
            if known.age >= TIMEOUT {
                self.subs.get_mut(&known.sub).unwrap().is_stalled = true;
            }
            self.expect(known.at, Fate::Release);
        }
        withdrawn.push(delivery);
    }

    fn operation(&mut self, op: OpId, operation: Operation, seen: &mut BTreeSet<(TxnId, bool)>) {
        match &operation {
            Operation::Reserve { sub, max, .. } => {
                let key = self.key_of(*sub);
                let sub = &self.subs[&key];
                assert!(!sub.is_gone && !self.is_draining && !self.is_full, "{key} must not reserve");
                assert!(!sub.is_stalled, "{key}: the socket has taken nothing since a withdrawal");
                let outstanding = self.known.values().filter(|known| known.sub == key).count() as u32;
                assert!(outstanding + max <= sub.window, "{outstanding} + {max} > {}", sub.window);
            }
            Operation::Settle { txn, nack, cause, .. } => {
                let is_new = seen.insert((*txn, *cause == NackCause::Server));
                assert!(is_new || self.is_ended, "one settlement per reservation");
                if self.is_ended {
                    self.final_nacks.extend(nack.iter().map(|seq| (*txn, seq)));
                }
            }
            _ => {}
        }
        self.broker.submit(op, operation);
    }

    fn key_of(&self, sub: SubId) -> SubscriptionKey {
        let index = self.broker.channel(sub).rsplit('-').next().unwrap();
        self.keys[index.parse::<usize>().unwrap()]
    }

    fn check(&self) {
        for (at, expected) in &self.expected {
            let actual = self.broker.ledger[at].1;
            assert!(
                matches!(actual, Fate::Open | Fate::Void) || actual == *expected,
                "{at:?}: {actual:?} instead of {expected:?}"
            );
        }
        for (key, sub) in &self.subs {
            let outstanding = self.known.values().filter(|known| known.sub == *key).count();
            assert!(outstanding <= sub.window as usize + sub.restored, "{key}: window exceeded");
        }
        if !self.is_paused && !self.is_ended {
            let late = TIMEOUT + Duration::from_secs(4) + self.grace;
            for (id, known) in &self.known {
                let is_auto = self.subs[&known.sub].mode == Mode::Auto;
                assert!(is_auto || known.age <= late, "{id} is pending since {:?}", known.age);
            }
        }
    }

    /// Liveness: when nothing stands in the way any more and the client accepts everything, every queue
    /// that has a subscription runs empty.
    fn settle_down(&mut self) {
        self.step(Step::ComeBack);
        self.step(Step::Resume);
        self.step(Step::Output { full: false });
        for _ in 0..200 {
            self.step(Step::Complete { pick: 0, odds: 200, count: 8 });
            self.step(Step::Write { frames: 50, piece: false });
            (0..self.known.len()).for_each(|_| self.settle(0, 0, false));
            self.drain();
            self.step(Step::Advance(50));
        }
        let consumed = self.subs.iter().filter(|(_, sub)| !sub.is_gone).map(|(key, _)| *key);
        for key in consumed {
            let index = self.keys.iter().position(|other| *other == key).unwrap();
            assert_eq!(self.broker.ready(index), 0, "{key} does not take what is there: {:?}", self.engine);
        }
        assert!(self.known.is_empty() && self.settling.is_empty());
    }

    /// The end of the connection, and then all the time that the broker needs.
    fn end(&mut self, end: End) {
        let cause = if end == End::Shutdown { NackCause::Server } else { NackCause::Failure };
        self.is_ended = true;
        let mut order = Vec::new();
        for (_, known) in std::mem::take(&mut self.known) {
            if self.subs[&known.sub].mode == Mode::Auto {
                continue;
            }
            let fate = if known.is_started { Fate::Nack(cause) } else { Fate::Release };
            if known.is_started {
                order.push(known.at);
            }
            self.expect(known.at, fate);
        }
        self.buffer.clear();
        // A settlement refused from now on is nacked: the client's word no longer counts, only that it is
        // resolved.
        let settling: Vec<_> = self.settling.keys().copied().collect();
        self.engine.handle_end(self.now, end);
        self.drain_after_end();
        self.check_order(&order, &settling);
        for round in 0..400u32 {
            if !self.broker.is_ready {
                let notice = self.broker.come_back();
                self.engine.handle_completion(self.now, None, notice);
            }
            let odds = if round % 5 == 0 { 20 } else { 200 };
            if let Some((op, completion)) = self.broker.complete(round as usize, odds) {
                self.engine.handle_completion(self.now, op, completion);
            }
            self.now = self.now + 250 * MS;
            self.engine.handle_timeout(self.now);
            self.drain_after_end();
        }
        assert!(self.engine.is_finished(), "operations left: {:?}", self.engine);
        assert_eq!(self.engine.outstanding(), 0);
        for (at, (_, fate)) in &self.broker.ledger {
            assert_ne!(*fate, Fate::Open, "{at:?} was never resolved");
            let is_open_question = settling.contains(at) || *fate == Fate::Void;
            match self.expected.get(at) {
                Some(expected) if !is_open_question => assert_eq!(fate, expected, "{at:?}"),
                Some(_) => {}
                // Reserved for nobody: the race with a cancel, or with the end.
                None => assert!(matches!(fate, Fate::Release | Fate::Void), "{at:?}: {fate:?}"),
            }
        }
        assert!(self.publishes.is_empty(), "publishes without an answer: {:?}", self.publishes);
        assert!(self.confirms.is_empty(), "settlements without an answer: {:?}", self.confirms);
    }

    fn drain_after_end(&mut self) {
        while let Some(event) = self.engine.poll_event() {
            match event {
                Event::Published { correlation, .. } => self.publishes.retain(|other| *other != correlation),
                Event::Settled { correlation, .. } => assert!(self.confirms.remove(&correlation)),
                Event::Deliver { .. } => panic!("delivered after the end"),
                _ => {}
            }
        }
        let mut seen = BTreeSet::new();
        while let Some((op, operation)) = self.engine.poll_operation() {
            assert!(!matches!(operation, Operation::Reserve { .. }));
            self.operation(op, operation, &mut seen);
        }
    }

    /// The end nacks in delivery order as far as one settlement per reservation allows: reservations in the
    /// order of their first delivery, ascending within.
    fn check_order(&self, order: &[(TxnId, Seq)], settling: &[(TxnId, Seq)]) {
        let mut txns: Vec<TxnId> = Vec::new();
        for (txn, _) in order {
            if !txns.contains(txn) {
                txns.push(*txn);
            }
        }
        let told: Vec<_> =
            self.final_nacks.iter().filter(|at| order.contains(at) && !settling.contains(at)).collect();
        let mut told_txns: Vec<TxnId> = Vec::new();
        for (txn, _) in told {
            if !told_txns.contains(txn) {
                told_txns.push(*txn);
            }
        }
        assert_eq!(told_txns, txns);
    }

    fn correlation(&mut self) -> Correlation {
        self.next_correlation += 1;
        Correlation(self.next_correlation)
    }

    fn pick_sub(&self, pick: u8) -> Option<SubscriptionKey> {
        let keys: Vec<_> = self.subs.keys().copied().collect();
        keys.get(usize::from(pick) % keys.len().max(1)).copied()
    }
}

fn channel_name(channel: u8) -> &'static str {
    ["jobs", "mail"][usize::from(channel)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256,  ..ProptestConfig::default() })]

    #[test]
    fn every_interleaving_keeps_the_rules(steps in steps(), end in 0u8..3, settles_down: bool) {
        let mut world = World::new();
        let drains = steps.iter().any(|step| matches!(step, Step::Drain));
        for step in steps {
            world.step(step);
        }
        if settles_down && !drains {
            world.settle_down();
        }
        world.end([End::Closed, End::Lost, End::Shutdown][usize::from(end)]);
    }
}
