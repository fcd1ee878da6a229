//! The broker against a naive one made of maps, under random histories.
//!
//! After every operation both are quiet; then every answer is the same, message by message. Restarts are part
//! of the history: after one in order everything is as it was and what was in flight is at the tail; after a
//! kill everything is at its place, what was in flight counts once more, and what was not may.

use std::collections::BTreeMap;

use berth_broker::Settings;
use berth_engine::port::{Action, Completion, NackCause, Operation, Refusal, Reserved};
use berth_log::sim::SimStorage;
use berth_types::{ConnectionId, OpId, Ranges, Seq, SubId, TxnId};
use proptest::prelude::*;

use crate::bench::{Bench, Wish, body, message, name, reserve, small, to};

const QUEUES: [&str; 3] = ["a", "b", "c"];

#[derive(Clone, Debug)]
enum Step {
    Publish {
        queue: usize,
        count: u64,
        atomic: bool,
    },
    Attach {
        from: u64,
        queue: usize,
    },
    Reserve {
        sub: usize,
        max: u32,
    },
    Cancel {
        waiter: usize,
    },
    /// Outcomes by place in the reservation, used again and again: 0 none, 1 ack, 2 nack, 3 release, 4
    /// reject.
    Settle {
        txn: usize,
        outcomes: Vec<u8>,
        confirm: bool,
        foreign: bool,
    },
    /// Settles two reservations and publishes in between.
    Commit {
        txns: (usize, usize),
        outcomes: Vec<u8>,
        queue: usize,
    },
    Unsubscribe {
        sub: usize,
    },
    Disconnect {
        from: u64,
    },
    Restart,
    Kill,
}

fn any_step() -> impl Strategy<Value = Step> {
    let queue = 0..QUEUES.len();
    let outcomes = proptest::collection::vec(0u8..5, 1..6);
    prop_oneof![
        6 => (queue.clone(), prop_oneof![4 => 1u64..8, 1 => 60u64..200], any::<bool>())
            .prop_map(|(queue, count, atomic)| Step::Publish { queue, count, atomic }),
        3 => (1u64..4, queue.clone()).prop_map(|(from, queue)| Step::Attach { from, queue }),
        8 => (any::<usize>(), prop_oneof![4 => 1u32..6, 1 => 50u32..200])
            .prop_map(|(sub, max)| Step::Reserve { sub, max }),
        1 => any::<usize>().prop_map(|waiter| Step::Cancel { waiter }),
        8 => (any::<usize>(), outcomes.clone(), any::<bool>(), proptest::bool::weighted(0.1))
            .prop_map(|(txn, outcomes, confirm, foreign)| Step::Settle { txn, outcomes, confirm, foreign }),
        2 => (any::<(usize, usize)>(), outcomes, queue)
            .prop_map(|(txns, outcomes, queue)| Step::Commit { txns, outcomes, queue }),
        1 => any::<usize>().prop_map(|sub| Step::Unsubscribe { sub }),
        1 => (1u64..4).prop_map(|from| Step::Disconnect { from }),
        1 => Just(Step::Restart),
        1 => Just(Step::Kill),
    ]
}

#[derive(Clone, Copy, Debug)]
struct Message {
    body: u64,
    /// The receive count lies between these.
    received: (u32, u32),
}

impl Message {
    fn again(self) -> Self {
        Self { received: (self.received.0 + 1, self.received.1 + 1), ..self }
    }

    fn maybe_again(self) -> Self {
        Self { received: (self.received.0, self.received.1 + 1), ..self }
    }
}

#[derive(Debug)]
struct Queue {
    next: u64,
    ready: BTreeMap<u64, Message>,
    waiters: Vec<(ConnectionId, OpId, SubId, u32)>,
}

impl Queue {
    fn append(&mut self, message: Message) -> u64 {
        self.ready.insert(self.next, message);
        self.next += 1;
        self.next - 1
    }
}

#[derive(Debug)]
struct Txn {
    from: ConnectionId,
    queue: usize,
    open: BTreeMap<u64, Message>,
}

/// What the broker must answer.
#[derive(Debug)]
enum Expected {
    Opened(usize),
    Published(Vec<u64>),
    Settled,
    Committed,
    Cancelled,
    Unknown,
    Done,
}

struct Model {
    bench: Bench,
    queues: Vec<Queue>,
    txns: BTreeMap<TxnId, Txn>,
    subs: BTreeMap<SubId, (ConnectionId, usize)>,
    expected: BTreeMap<OpId, (ConnectionId, Expected)>,
    next_body: u64,
}

impl Model {
    fn new() -> Self {
        let settings = Settings { cache_bytes: 8 * 1024, index_bytes: 100 * 28, ..small() };
        let queue = |_| Queue { next: 1, ready: BTreeMap::new(), waiters: Vec::new() };
        Self {
            bench: Bench::with(settings, SimStorage::new()),
            queues: QUEUES.iter().map(queue).collect(),
            txns: BTreeMap::new(),
            subs: BTreeMap::new(),
            expected: BTreeMap::new(),
            next_body: 1,
        }
    }

    fn submit(&mut self, from: ConnectionId, operation: Operation, expected: Expected) -> OpId {
        let op = self.bench.submit(from, operation);
        self.expected.insert(op, (from, expected));
        op
    }

    fn step(mut self, step: Step) -> Self {
        match step {
            Step::Publish { queue, count, atomic } => self.publish(queue, count, atomic),
            Step::Attach { from, queue } => {
                let channel = name(QUEUES[queue]);
                self.submit(ConnectionId::new(from), Operation::Attach { channel }, Expected::Opened(queue));
            }
            Step::Reserve { sub, max } => {
                let Some((sub, (from, queue))) = nth(&self.subs, sub) else { return self };
                let op = self.bench.submit(from, reserve(sub, max));
                self.queues[queue].waiters.push((from, op, sub, max));
            }
            Step::Cancel { waiter } => {
                let all: Vec<_> = self.queues.iter().flat_map(|queue| queue.waiters.clone()).collect();
                let Some((from, op, ..)) = all.get(waiter % all.len().max(1)).copied() else { return self };
                self.bench.submit(from, Operation::Cancel { op });
                self.give_up(|waiter| waiter.1 == op);
            }
            Step::Settle { txn, outcomes, confirm, foreign } => self.settle(txn, &outcomes, confirm, foreign),
            Step::Commit { txns, outcomes, queue } => self.commit(txns, &outcomes, queue),
            Step::Unsubscribe { sub } => {
                let Some((sub, (from, _))) = nth(&self.subs, sub) else { return self };
                self.submit(from, Operation::Unsubscribe { sub, forget: false }, Expected::Done);
                self.subs.remove(&sub);
                self.give_up(|waiter| waiter.2 == sub);
            }
            Step::Disconnect { from } => {
                let from = ConnectionId::new(from);
                self.bench.broker.disconnect(self.bench.now, from);
                self.subs.retain(|_, (of, _)| *of != from);
                self.queues.iter_mut().for_each(|queue| queue.waiters.retain(|waiter| waiter.0 != from));
                self.take_back(|txn| txn.from == from);
            }
            Step::Restart => {
                self.take_back(|_| true);
                self.bench = self.bench.restart();
                self.forget_connections();
            }
            Step::Kill => {
                self.bench = self.bench.kill();
                for queue in &mut self.queues {
                    queue.ready.values_mut().for_each(|message| *message = message.maybe_again());
                }
                for txn in std::mem::take(&mut self.txns).into_values() {
                    let again = txn.open.into_iter().map(|(seq, message)| (seq, message.again()));
                    self.queues[txn.queue].ready.extend(again);
                }
                self.forget_connections();
            }
        }
        self.compare();
        self
    }

    fn publish(&mut self, queue: usize, count: u64, atomic: bool) {
        let mut batch = Vec::new();
        let mut seqs = Vec::new();
        for _ in 0..count {
            // Some are large, so that segments end, are given back and have survivors.
            let bytes = if self.next_body.is_multiple_of(7) { 9000 } else { 20 + self.next_body % 90 };
            batch.push((to(QUEUES[queue]), message(self.next_body, bytes as usize)));
            seqs.push(self.queues[queue].append(Message { body: self.next_body, received: (0, 0) }));
            self.next_body += 1;
        }
        let operation = Operation::Publish { batch, atomic };
        self.submit(ConnectionId::new(9), operation, Expected::Published(seqs));
    }

    fn settle(&mut self, txn: usize, outcomes: &[u8], confirm: bool, foreign: bool) {
        let Some((id, (mut from, wish))) = self.wish(txn, outcomes) else { return };
        let cause = if confirm { NackCause::Failure } else { NackCause::Server };
        let operation = Wish { confirm, cause, ..wish.clone() }.of(id);
        if foreign {
            from = ConnectionId::new(8);
            self.submit(from, operation, Expected::Unknown);
            return;
        }
        self.submit(from, operation, Expected::Settled);
        self.apply(id, &wish);
    }

    fn commit(&mut self, txns: (usize, usize), outcomes: &[u8], queue: usize) {
        let Some((first, (from, mut one))) = self.wish(txns.0, outcomes) else { return };
        one.release = Ranges::new();
        let Some((second, (other, mut two))) = self.wish(txns.1, outcomes) else { return };
        two.release = Ranges::new();
        let action = |txn, wish: &Wish| Action::Settle {
            txn,
            ack: wish.ack.clone(),
            nack: wish.nack.clone(),
            reject: wish.reject.clone(),
        };
        let mut actions = vec![
            action(first, &one),
            Action::Publish(to(QUEUES[queue]), message(self.next_body, 30)),
            action(second, &two),
        ];
        // Naming a delivery twice, or one of another connection, must undo all of it.
        let touches = !(one.ack.is_empty() && one.nack.is_empty() && one.reject.is_empty());
        if other != from || (first == second && touches) {
            self.next_body += 1;
            let op = self.bench.submit(from, Operation::Commit { actions });
            self.expected.insert(op, (from, Expected::Unknown));
            return;
        }
        if first == second {
            actions.pop();
        }
        self.submit(from, Operation::Commit { actions }, Expected::Committed);
        self.apply(first, &one);
        self.queues[queue].append(Message { body: self.next_body, received: (0, 0) });
        self.next_body += 1;
        if first != second {
            self.apply(second, &two);
        }
    }

    fn wish(&self, txn: usize, outcomes: &[u8]) -> Option<(TxnId, (ConnectionId, Wish))> {
        let at = txn % self.txns.len().max(1);
        let (id, txn) = self.txns.iter().nth(at)?;
        let mut wish = Wish::default();
        for (seq, outcome) in txn.open.keys().zip(outcomes.iter().cycle()) {
            let seq = Seq::new(*seq);
            match outcome {
                1 => wish.ack.insert(seq),
                2 => wish.nack.insert(seq),
                3 => wish.release.insert(seq),
                4 => wish.reject.insert(seq),
                _ => {}
            }
        }
        Some((*id, (txn.from, wish)))
    }

    fn apply(&mut self, id: TxnId, wish: &Wish) {
        let txn = self.txns.get_mut(&id).unwrap();
        let queue = &mut self.queues[txn.queue];
        for seq in wish.ack.iter().chain(wish.reject.iter()) {
            txn.open.remove(&seq.get()).unwrap();
        }
        for seq in wish.nack.iter() {
            queue.append(txn.open.remove(&seq.get()).unwrap().again());
        }
        for seq in wish.release.iter() {
            queue.ready.insert(seq.get(), txn.open.remove(&seq.get()).unwrap());
        }
        if txn.open.is_empty() {
            self.txns.remove(&id);
        }
    }

    /// Nacks what is open, reservation by reservation.
    fn take_back(&mut self, of: impl Fn(&Txn) -> bool) {
        let ids: Vec<TxnId> = self.txns.iter().filter(|(_, txn)| of(txn)).map(|(id, _)| *id).collect();
        for id in ids {
            let txn = self.txns.remove(&id).unwrap();
            for message in txn.open.into_values() {
                self.queues[txn.queue].append(message.again());
            }
        }
    }

    fn give_up(&mut self, of: impl Fn(&(ConnectionId, OpId, SubId, u32)) -> bool) {
        for queue in &mut self.queues {
            for (from, op, ..) in queue.waiters.extract_if(.., |waiter| of(waiter)) {
                self.expected.insert(op, (from, Expected::Cancelled));
            }
        }
    }

    fn forget_connections(&mut self) {
        self.subs.clear();
        self.expected.clear();
        self.queues.iter_mut().for_each(|queue| queue.waiters.clear());
    }

    fn compare(&mut self) {
        self.bench.run();
        for (from, op, answer) in std::mem::take(&mut self.bench.answers) {
            let op = op.expect("no notices here");
            if let Completion::Reserved { txn, items } = answer {
                self.compare_reserved(from, op, txn, &items);
                continue;
            }
            let expected = self.expected.remove(&op);
            let (asked, expected) = expected.unwrap_or_else(|| panic!("{op} was not due: {answer:?}"));
            assert_eq!(from, asked);
            self.compare_one(from, expected, answer);
        }
        assert!(self.expected.is_empty(), "not answered: {:?}", self.expected);
        for (number, queue) in self.queues.iter().enumerate() {
            assert!(queue.ready.is_empty() || queue.waiters.is_empty(), "nobody waits in vain: {queue:?}");
            let listed = self.bench.broker.queues(None, 10);
            let listed = listed.iter().find(|stats| stats.name.as_str() == QUEUES[number]);
            let in_flight = self.txns.values().filter(|txn| txn.queue == number);
            let in_flight: usize = in_flight.map(|txn| txn.open.len()).sum();
            let (ready, held) = listed.map_or((0, 0), |stats| (stats.ready, stats.in_flight));
            assert_eq!((ready, held), (queue.ready.len() as u64, in_flight as u64), "{}", QUEUES[number]);
        }
    }

    /// Who waits longest gets what comes first; fewer than it would take, when the rest is not in memory.
    fn compare_reserved(&mut self, from: ConnectionId, op: OpId, txn: TxnId, items: &[Reserved]) {
        let first = |queue: &Queue| queue.waiters.first().is_some_and(|waiter| waiter.1 == op);
        let number = self.queues.iter().position(first).expect("the first waiter is served");
        let queue = &mut self.queues[number];
        let (asked, _, _, max) = queue.waiters.remove(0);
        assert_eq!(from, asked);
        assert!(!items.is_empty() && items.len() <= max as usize);
        let mut open = BTreeMap::new();
        for item in items {
            let (seq, message) = queue.ready.pop_first().expect("only what is ready");
            assert_eq!((item.seq.get(), body(&item.message)), (seq, message.body));
            let (count, (least, most)) = (item.receive_count, message.received);
            assert!((least..=most).contains(&count), "{count} not in {least}..={most}");
            assert_eq!(item.redelivered, count > 0);
            open.insert(seq, Message { received: (count, count), ..message });
        }
        self.txns.insert(txn, Txn { from, queue: number, open });
    }

    fn compare_one(&mut self, from: ConnectionId, expected: Expected, answer: Completion) {
        match (expected, answer) {
            (Expected::Opened(queue), Completion::Opened { sub, .. }) => {
                self.subs.insert(sub, (from, queue));
            }
            (Expected::Published(seqs), Completion::Published(results)) => {
                let got: Vec<u64> = results.into_iter().map(|stored| stored.unwrap().seq.get()).collect();
                assert_eq!(got, seqs);
            }
            (Expected::Unknown, Completion::Refused(Refusal::Unknown)) => {}
            (Expected::Unknown, Completion::Committed(Err(Refusal::Unknown))) => {}
            (Expected::Settled, Completion::Settled) => {}
            (Expected::Committed, Completion::Committed(Ok(()))) => {}
            (Expected::Cancelled, Completion::Cancelled) => {}
            (Expected::Done, Completion::Done) => {}
            (expected, answer) => panic!("expected {expected:?}, got {answer:?}"),
        }
    }
}

fn nth<K: Copy, V: Copy>(map: &BTreeMap<K, V>, at: usize) -> Option<(K, V)> {
    map.iter().nth(at % map.len().max(1)).map(|(key, value)| (*key, *value))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_broker_is_a_list_that_survives(steps in proptest::collection::vec(any_step(), 1..80)) {
        let mut model = Model::new();
        for step in steps {
            model = model.step(step);
        }
    }
}
