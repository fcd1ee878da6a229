//! Operations on top of each other: nobody waits for an answer, the disk is slow, the journal is often
//! behind.
//!
//! Whatever the interleaving: each operation ends once, a message is with one consumer at a time, what is
//! ready is handed out in order, and in the end everything that was confirmed was consumed once or is still
//! there.

use std::collections::{BTreeMap, BTreeSet};

use berth_broker::Settings;
use berth_engine::port::{Action, Completion, Operation, Refusal};
use berth_log::sim::SimStorage;
use berth_types::{ConnectionId, OpId, Ranges, Seq, SubId, TxnId};
use proptest::prelude::*;

use crate::bench::*;

#[derive(Clone, Debug)]
enum Step {
    Publish {
        from: u64,
        queue: usize,
        count: u64,
        bytes: usize,
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
        op: usize,
    },
    /// Acks the first so many of a reservation, releases or nacks the rest.
    Settle {
        txn: usize,
        acks: usize,
        nacks: bool,
        confirm: bool,
    },
    Commit {
        txn: usize,
        queue: usize,
        count: u64,
    },
    Unsubscribe {
        sub: usize,
    },
    Disconnect {
        from: u64,
    },
    Disk {
        operations: usize,
    },
}

fn any_step() -> impl Strategy<Value = Step> {
    let (from, queue, at) = (1u64..4, 0usize..2, any::<usize>());
    prop_oneof![
        5 => (from.clone(), queue.clone(), 1u64..6, 10usize..6000, any::<bool>()).prop_map(
            |(from, queue, count, bytes, atomic)| Step::Publish { from, queue, count, bytes, atomic }
        ),
        2 => (from.clone(), queue.clone()).prop_map(|(from, queue)| Step::Attach { from, queue }),
        5 => (at, 1u32..8).prop_map(|(sub, max)| Step::Reserve { sub, max }),
        1 => at.prop_map(|op| Step::Cancel { op }),
        5 => (at, 0usize..8, any::<(bool, bool)>())
            .prop_map(|(txn, acks, (nacks, confirm))| Step::Settle { txn, acks, nacks, confirm }),
        2 => (at, queue, 1u64..3).prop_map(|(txn, queue, count)| Step::Commit { txn, queue, count }),
        1 => at.prop_map(|sub| Step::Unsubscribe { sub }),
        1 => from.prop_map(|from| Step::Disconnect { from }),
        6 => (1usize..6).prop_map(|operations| Step::Disk { operations }),
    ]
}

const QUEUES: [&str; 2] = ["a", "b"];

/// What an operation is expected to end with, and what it means then.
#[derive(Debug)]
enum Asked {
    Publish(Vec<u64>),
    Attach,
    Reserve,
    Settle(Vec<u64>),
    Commit(Vec<u64>, Vec<u64>),
    Unsubscribe,
}

/// Sequences and bodies of a reservation.
type Items = Vec<(Seq, u64)>;

struct Race {
    bench: Bench,
    asked: BTreeMap<OpId, (ConnectionId, Asked)>,
    subs: BTreeMap<SubId, (ConnectionId, usize)>,
    attaching: BTreeMap<OpId, usize>,
    /// Reservations that nobody has tried to settle.
    txns: BTreeMap<TxnId, (ConnectionId, Items)>,
    held: BTreeMap<u64, TxnId>,
    stored: BTreeSet<u64>,
    consumed: BTreeSet<u64>,
    /// Consumed, unless the connection was lost before.
    perhaps: BTreeSet<u64>,
    next_body: u64,
    /// Lost connections of each client; a client that comes back is a new connection.
    lost: BTreeMap<u64, u64>,
}

impl Race {
    fn connection(&self, client: u64) -> ConnectionId {
        ConnectionId::new(client + 10 * self.lost.get(&client).copied().unwrap_or(0))
    }

    fn submit(&mut self, from: ConnectionId, operation: Operation, asked: Asked) -> OpId {
        let op = self.bench.submit(from, operation);
        self.asked.insert(op, (from, asked));
        op
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Publish { from, queue, count, bytes, atomic } => {
                let bodies: Vec<u64> = (self.next_body..self.next_body + count).collect();
                self.next_body += count;
                let batch = bodies.iter().map(|body| (to(QUEUES[queue]), message(*body, bytes))).collect();
                let operation = Operation::Publish { batch, atomic };
                self.submit(self.connection(from), operation, Asked::Publish(bodies));
            }
            Step::Attach { from, queue } => {
                let operation = Operation::Attach { channel: name(QUEUES[queue]) };
                let op = self.submit(self.connection(from), operation, Asked::Attach);
                self.attaching.insert(op, queue);
            }
            Step::Reserve { sub, max } => {
                let Some((sub, (from, _))) = nth(&self.subs, sub) else { return };
                self.submit(from, reserve(sub, max), Asked::Reserve);
            }
            Step::Cancel { op } => {
                let keys: Vec<OpId> = self.asked.keys().copied().collect();
                let Some(op) = keys.get(op % keys.len().max(1)) else { return };
                let from = self.asked[op].0;
                self.bench.submit(from, Operation::Cancel { op: *op });
            }
            Step::Settle { txn, acks, nacks, confirm } => {
                let Some((txn, from, items)) = self.take_txn(txn) else { return };
                let (done, back) = items.split_at(acks.min(items.len()));
                let back: Ranges = back.iter().map(|(seq, _)| *seq).collect();
                let mut wish = Wish { confirm, ..ack(done.iter().map(|(seq, _)| *seq)) };
                if nacks {
                    wish.nack = back;
                } else {
                    wish.release = back;
                }
                let bodies = done.iter().map(|(_, body)| *body).collect();
                // What goes back may be handed out again before this is answered.
                self.let_go(&items);
                self.submit(from, wish.of(txn), Asked::Settle(bodies));
            }
            Step::Commit { txn, queue, count } => {
                let Some((txn, from, items)) = self.take_txn(txn) else { return };
                let bodies: Vec<u64> = (self.next_body..self.next_body + count).collect();
                self.next_body += count;
                let publish = |body: &u64| Action::Publish(to(QUEUES[queue]), message(*body, 500));
                let mut actions: Vec<Action> = bodies.iter().map(publish).collect();
                let ack = items.iter().map(|(seq, _)| *seq).collect();
                actions.insert(0, Action::Settle { txn, ack, nack: Ranges::new(), reject: Ranges::new() });
                self.let_go(&items);
                let done = items.iter().map(|(_, body)| *body).collect();
                self.submit(from, Operation::Commit { actions }, Asked::Commit(done, bodies));
            }
            Step::Unsubscribe { sub } => {
                let Some((sub, (from, _))) = nth(&self.subs, sub) else { return };
                self.subs.remove(&sub);
                self.submit(from, Operation::Unsubscribe { sub, forget: false }, Asked::Unsubscribe);
            }
            Step::Disconnect { from } => self.disconnect(from),
            Step::Disk { operations } => {
                for _ in 0..operations {
                    self.bench.step();
                }
            }
        }
        self.learn();
    }

    fn take_txn(&mut self, at: usize) -> Option<(TxnId, ConnectionId, Items)> {
        let keys: Vec<TxnId> = self.txns.keys().copied().collect();
        let txn = *keys.get(at % keys.len().max(1))?;
        let (from, items) = self.txns.remove(&txn)?;
        Some((txn, from, items))
    }

    fn let_go(&mut self, items: &Items) {
        for (_, body) in items {
            self.held.remove(body);
        }
    }

    /// Publishes may still be carried out; nothing is answered any more.
    fn disconnect(&mut self, client: u64) {
        self.learn();
        let from = self.connection(client);
        *self.lost.entry(client).or_default() += 1;
        self.bench.broker.disconnect(self.bench.now, from);
        self.subs.retain(|_, (of, _)| *of != from);
        let gone: Vec<TxnId> =
            self.txns.iter().filter(|(_, (of, _))| *of == from).map(|(txn, _)| *txn).collect();
        for txn in gone {
            self.txns.remove(&txn);
            self.held.retain(|_, of| *of != txn);
        }
        for (_, (_, asked)) in self.asked.extract_if(.., |_, (of, _)| *of == from) {
            match asked {
                // Accepted settlements and commits may or may not have come before the end.
                Asked::Settle(bodies) | Asked::Commit(bodies, _) => self.perhaps.extend(bodies),
                _ => {}
            }
        }
    }

    fn learn(&mut self) {
        self.bench.collect();
        for (from, op, completion) in std::mem::take(&mut self.bench.answers) {
            let op = op.expect("no notices here");
            if let Completion::Opened { sub, .. } = completion {
                let queue = self.attaching.remove(&op).expect("opened once");
                self.asked.remove(&op);
                self.subs.insert(sub, (from, queue));
                continue;
            }
            let asked = self.asked.remove(&op);
            let (of, asked) = asked.unwrap_or_else(|| panic!("{op} ends again: {completion:?}"));
            assert_eq!(of, from);
            self.ended(from, asked, completion);
        }
    }

    fn ended(&mut self, from: ConnectionId, asked: Asked, completion: Completion) {
        match (asked, completion) {
            (Asked::Publish(bodies), Completion::Published(results)) => {
                assert_eq!(results.len(), bodies.len());
                let stored = bodies.into_iter().zip(results).filter(|(_, result)| result.is_ok());
                self.stored.extend(stored.map(|(body, _)| body));
            }
            (Asked::Reserve, Completion::Reserved { txn, items }) => {
                let mut before = Seq::new(0);
                let mut taken = Vec::new();
                for item in items {
                    assert!(item.seq > before, "in the order of the queue");
                    before = item.seq;
                    let body = body(&item.message);
                    assert_eq!(self.held.insert(body, txn), None, "{body} is with two consumers");
                    assert!(!self.consumed.contains(&body), "{body} was acknowledged");
                    taken.push((item.seq, body));
                }
                self.txns.insert(txn, (from, taken));
            }
            (Asked::Settle(bodies), Completion::Settled) => self.consumed.extend(bodies),
            (Asked::Commit(bodies, stored), Completion::Committed(Ok(()))) => {
                self.consumed.extend(bodies);
                self.stored.extend(stored);
            }
            (Asked::Reserve, Completion::Cancelled | Completion::Refused(Refusal::Unknown)) => {}
            (Asked::Unsubscribe, Completion::Done) => {}
            (asked, completion) => panic!("{asked:?} ended with {completion:?}"),
        }
    }
}

fn nth<K: Copy, V: Copy>(map: &BTreeMap<K, V>, at: usize) -> Option<(K, V)> {
    map.iter().nth(at % map.len().max(1)).map(|(key, value)| (*key, *value))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn operations_on_top_of_each_other_end_once(steps in proptest::collection::vec(any_step(), 1..120)) {
        let log = berth_log::Settings { unwritten_bytes_max: 8 * 1024, ..small().log };
        let settings = Settings { log, cache_bytes: 8 * 1024, index_bytes: 100 * 28, ..small() };
        let mut race = Race {
            bench: Bench::with(settings, SimStorage::new()),
            asked: BTreeMap::new(),
            subs: BTreeMap::new(),
            attaching: BTreeMap::new(),
            txns: BTreeMap::new(),
            held: BTreeMap::new(),
            stored: BTreeSet::new(),
            consumed: BTreeSet::new(),
            perhaps: BTreeSet::new(),
            next_body: 1,
            lost: BTreeMap::new(),
        };
        for step in steps {
            race.step(step);
        }
        race.bench.run();
        race.learn();
        for (op, (_, asked)) in &race.asked {
            prop_assert!(matches!(asked, Asked::Reserve), "{} never ended: {:?}", op, asked);
        }
        for from in 1..4 {
            race.disconnect(from);
        }
        race.bench.run();
        let left: BTreeSet<u64> =
            QUEUES.iter().flat_map(|queue| race.bench.list(queue)).map(|(body, _)| body).collect();
        for body in &race.stored {
            let is_gone = race.consumed.contains(body) || race.perhaps.contains(body);
            prop_assert!(left.contains(body) || is_gone, "{} is lost", body);
        }
        prop_assert!(race.bench.broker.failure().is_none());
    }
}
