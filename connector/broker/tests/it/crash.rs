//! The power fails in every storage call of short histories, and loses, keeps, tears or garbles what was not
//! synced. What the clients know must still be true afterwards.

use std::collections::{BTreeMap, BTreeSet};

use berth_broker::{Broker, Settings};
use berth_engine::port::{Action, Completion, Operation};
use berth_log::sim::{SimStorage, Survivor, Unsynced, by_mask, by_seed, keep_all, lose_all};
use berth_log::{Fsync, execute};
use berth_types::{ConnectionId, Now, OpId, Ranges, Seq, SubId, TxnId};
use proptest::prelude::*;

use crate::bench::*;

/// What a client does. Reservations are named by the order in which they came.
#[derive(Clone, Debug)]
enum Act {
    Publish(&'static str, &'static [u64], usize),
    Atomic(&'static [(&'static str, u64)], usize),
    Reserve(&'static str, u32),
    /// Reservation, places in it to ack, to nack, to release; confirmed.
    Settle(usize, &'static [usize], &'static [usize], &'static [usize], bool),
    /// Acks places of a reservation and publishes, as one.
    Commit(usize, &'static [usize], &'static str, &'static [u64]),
    Disconnect,
}

const CONSUMER: ConnectionId = ConnectionId::new(5);

/// What the clients know.
#[derive(Default)]
struct Known {
    /// Published and confirmed.
    stored: BTreeSet<u64>,
    /// Bodies that count as a whole.
    wholes: Vec<BTreeSet<u64>>,
    /// A settlement that ends it was asked for.
    ended: BTreeSet<u64>,
    /// A settlement that ends it was confirmed.
    ended_for_sure: BTreeSet<u64>,
    /// How often it was handed out.
    handed_out: BTreeMap<u64, u32>,
    /// Nacked: its receive count may be as much higher.
    released: BTreeMap<u64, u32>,
    /// Sequences seen outside, and of what.
    seqs: BTreeMap<(String, Seq), BTreeSet<u64>>,
}

enum Due {
    Publish(&'static str, Vec<u64>),
    Atomic(Vec<(&'static str, u64)>),
    Reserve(&'static str),
    Ends(Vec<u64>, Vec<u64>),
}

struct Run {
    disk: SimStorage,
    broker: Broker,
    now: Now,
    known: Known,
    due: BTreeMap<OpId, Due>,
    subs: BTreeMap<&'static str, SubId>,
    txns: Vec<(TxnId, Vec<(Seq, u64)>)>,
    next_op: u64,
}

impl Run {
    fn submit(&mut self, from: ConnectionId, operation: Operation, due: Option<Due>) {
        self.next_op += 1;
        let op = OpId::new(self.next_op);
        self.due.extend(due.map(|due| (op, due)));
        self.broker.submit(self.now, from, op, operation);
    }

    /// At most so many storage operations.
    fn steps(&mut self, most: usize) {
        self.learn();
        for _ in 0..most {
            let Some(op) = self.broker.poll_storage(self.now) else { break };
            let stored = execute(&mut self.disk, op);
            self.broker.handle_stored(self.now, stored);
            self.learn();
        }
        self.now.monotonic = self.now.monotonic + std::time::Duration::from_millis(4);
    }

    fn learn(&mut self) {
        while let Some((_, op, completion)) = self.broker.poll() {
            let due = op.and_then(|op| self.due.remove(&op));
            match (due, completion) {
                (Some(Due::Publish(queue, bodies)), Completion::Published(results)) => {
                    for (body, result) in bodies.into_iter().zip(results) {
                        let Ok(stored) = result else { continue };
                        self.known.stored.insert(body);
                        self.known.saw(queue, stored.seq, body);
                    }
                }
                (Some(Due::Atomic(bodies)), Completion::Published(results)) => {
                    for ((queue, body), result) in bodies.into_iter().zip(results) {
                        let Ok(stored) = result else { continue };
                        self.known.stored.insert(body);
                        self.known.saw(queue, stored.seq, body);
                    }
                }
                (Some(Due::Reserve(queue)), Completion::Reserved { txn, items }) => {
                    let mut seqs = Vec::new();
                    for item in items {
                        let body = body(&item.message);
                        *self.known.handed_out.entry(body).or_default() += 1;
                        self.known.saw(queue, item.seq, body);
                        seqs.push((item.seq, body));
                    }
                    self.txns.push((txn, seqs));
                }
                (Some(Due::Ends(ended, stored)), Completion::Settled | Completion::Committed(Ok(()))) => {
                    self.known.ended_for_sure.extend(ended);
                    self.known.stored.extend(stored);
                }
                (None, Completion::Opened { .. }) | (_, Completion::Refused(_)) => {}
                (_, Completion::Committed(Err(_)) | Completion::Ready(_) | Completion::Settled) => {}
                (_, other) => panic!("{other:?}"),
            }
        }
    }

    fn act(&mut self, act: &Act) {
        match act.clone() {
            Act::Publish(queue, bodies, bytes) => {
                let batch = bodies.iter().map(|body| (to(queue), message(*body, bytes))).collect();
                let due = Due::Publish(queue, bodies.to_vec());
                self.submit(PRODUCER, Operation::Publish { batch, atomic: false }, Some(due));
            }
            Act::Atomic(bodies, bytes) => {
                let batch = bodies.iter().map(|(queue, body)| (to(queue), message(*body, bytes))).collect();
                self.known.wholes.push(bodies.iter().map(|(_, body)| *body).collect());
                let due = Due::Atomic(bodies.to_vec());
                self.submit(PRODUCER, Operation::Publish { batch, atomic: true }, Some(due));
            }
            Act::Reserve(queue, max) => {
                let sub = *self.subs.entry(queue).or_insert_with(|| SubId::new(0));
                let sub = if sub == SubId::new(0) { self.attach(queue) } else { sub };
                self.submit(CONSUMER, reserve(sub, max), Some(Due::Reserve(queue)));
            }
            Act::Settle(txn, ack, nack, release, confirm) => {
                let Some((txn, items)) = self.txns.get(txn).cloned() else { return };
                let named = |places: &[usize]| -> Vec<(Seq, u64)> {
                    places.iter().filter_map(|at| items.get(*at).copied()).collect()
                };
                let seqs = |places: &[usize]| named(places).into_iter().map(|(seq, _)| seq).collect();
                let ended: Vec<u64> = named(ack).into_iter().map(|(_, body)| body).collect();
                self.known.ended.extend(&ended);
                for (_, body) in named(release) {
                    *self.known.released.entry(body).or_default() += 1;
                }
                let wish = Wish {
                    ack: seqs(ack),
                    nack: seqs(nack),
                    release: seqs(release),
                    confirm,
                    ..Wish::default()
                };
                let due = confirm.then(|| Due::Ends(ended, Vec::new()));
                self.submit(CONSUMER, wish.of(txn), due);
            }
            Act::Commit(txn, ack, queue, bodies) => {
                let Some((txn, items)) = self.txns.get(txn).cloned() else { return };
                let named: Vec<(Seq, u64)> = ack.iter().filter_map(|at| items.get(*at).copied()).collect();
                let ended: Vec<u64> = named.iter().map(|(_, body)| *body).collect();
                self.known.ended.extend(&ended);
                let publish = |body: &u64| Action::Publish(to(queue), message(*body, 30));
                let mut actions: Vec<Action> = bodies.iter().map(publish).collect();
                let ack = named.into_iter().map(|(seq, _)| seq).collect();
                let (nack, reject) = (Ranges::new(), Ranges::new());
                actions.push(Action::Settle { txn, ack, nack, reject });
                self.known.wholes.push(bodies.iter().copied().collect());
                let due = Due::Ends(ended, bodies.to_vec());
                self.submit(CONSUMER, Operation::Commit { actions }, Some(due));
            }
            Act::Disconnect => {
                self.broker.disconnect(self.now, CONSUMER);
                self.subs.clear();
            }
        }
    }

    fn attach(&mut self, queue: &'static str) -> SubId {
        self.learn();
        self.submit(CONSUMER, Operation::Attach { channel: name(queue) }, None);
        while let Some((_, op, completion)) = self.broker.poll() {
            if let Completion::Opened { sub, .. } = completion {
                self.subs.insert(queue, sub);
                return sub;
            }
            assert!(op.is_none() || matches!(completion, Completion::Refused(_)), "{completion:?}");
        }
        SubId::new(u64::MAX)
    }
}

impl Known {
    fn saw(&mut self, queue: &str, seq: Seq, body: u64) {
        self.seqs.entry((queue.to_string(), seq)).or_default().insert(body);
    }
}

/// Runs a history until it is over or the power fails in storage call `crash_at`.
fn run(history: &[Act], settings: &Settings, steps: usize, crash_at: u64) -> (SimStorage, Known) {
    let mut disk = SimStorage::new();
    disk.crash_at(crash_at);
    let Ok((broker, _)) = Broker::open(&mut disk, settings.clone(), Now::default()) else {
        return (disk, Known::default());
    };
    let mut run = Run {
        disk,
        broker,
        now: Now::default(),
        known: Known::default(),
        due: BTreeMap::new(),
        subs: BTreeMap::new(),
        txns: Vec::new(),
        next_op: 0,
    };
    for act in history {
        run.act(act);
        run.steps(steps);
        if run.disk.is_down() {
            break;
        }
    }
    for _ in 0..20 {
        run.steps(1000);
    }
    (run.disk, run.known)
}

/// Recovers and looks whether everything that was known is still true; `is_sure`: also what depends on syncs.
fn check(
    mut disk: SimStorage,
    known: &Known,
    settings: &Settings,
    (pick, is_sure): (&mut Picker<'_>, bool),
    what: &str,
) {
    disk.crash(pick);
    let bench = Bench::with(settings.clone(), disk);
    // Recovery is written down: another one finds nothing more to mark.
    let mut bench = bench.kill();
    assert_eq!(bench.recovered.redelivered, 0, "{what}: marked twice");
    let mut found = BTreeMap::new();
    for queue in ["q", "r"] {
        let sub = bench.attach(A, queue);
        loop {
            let op = bench.submit(A, reserve(sub, 50));
            bench.run();
            bench.submit(A, Operation::Cancel { op });
            let Completion::Reserved { items, .. } = bench.answers_to(op).remove(0) else { break };
            for item in items {
                let body = body(&item.message);
                assert!(found.insert(body, item.receive_count).is_none(), "{what}: {body} is there twice");
                assert_eq!(item.redelivered, item.receive_count > 0);
                if let Some(seen) = known.seqs.get(&(queue.to_string(), item.seq)) {
                    assert!(
                        seen.contains(&body) || !is_sure,
                        "{what}: {} of {queue} is another message",
                        item.seq
                    );
                }
            }
        }
        for stored in bench.publish(queue, [900, 901]) {
            let is_new = !known.seqs.contains_key(&(queue.to_string(), stored));
            assert!(is_new || !is_sure, "{what}: {stored} used again");
        }
    }
    for body in &known.stored {
        let is_there = found.contains_key(body) || known.ended.contains(body);
        assert!(is_there || !is_sure, "{what}: {body} was confirmed and is lost");
    }
    for body in &known.ended_for_sure {
        assert!(!found.contains_key(body) || !is_sure, "{what}: {body} was settled and is back");
    }
    for whole in &known.wholes {
        let there = whole.iter().filter(|body| found.contains_key(body) || known.ended.contains(body));
        let count = there.count();
        let some_ended = whole.iter().any(|body| known.ended.contains(body));
        assert!(count == 0 || count == whole.len() || some_ended, "{what}: half of {whole:?}");
    }
    for (body, count) in &found {
        let handed_out = known.handed_out.get(body).copied().unwrap_or(0);
        let released = known.released.get(body).copied().unwrap_or(0);
        assert!(*count <= handed_out + 1, "{what}: {body} counts {count}, was handed out {handed_out}");
        if is_sure && handed_out > released {
            assert!(*count > 0, "{what}: {body} was delivered and is not marked");
        }
    }
}

/// Recovers until the planned power cut.
fn recover_in_part(disk: &mut SimStorage, settings: &Settings) {
    let Ok((mut broker, _)) = Broker::open(disk, settings.clone(), Now::default()) else { return };
    while let Some(op) = broker.poll_storage(Now::default()) {
        let stored = execute(disk, op);
        broker.handle_stored(Now::default(), stored);
    }
}

type Picker<'a> = dyn FnMut(Unsynced) -> Survivor + 'a;

/// Every storage call, several ways to lose what was not synced.
fn every_crash(history: &[Act], settings: &Settings, steps: &[usize]) {
    for steps in steps {
        let (disk, known) = run(history, settings, *steps, u64::MAX);
        assert!(!known.stored.is_empty(), "the history does something");
        assert!(*steps == 0 || !known.ended_for_sure.is_empty(), "and ends something");
        let calls = disk.calls();
        assert!(calls > 10, "{calls} calls");
        for crash_at in 1..=calls {
            let (disk, known) = run(history, settings, *steps, crash_at);
            let what = |way: &str| format!("{steps} steps, crash at {crash_at}, {way}");
            let is_synced = settings.log.fsync == Fsync::Always;
            check(disk.clone(), &known, settings, (&mut lose_all, is_synced), &what("all lost"));
            check(disk.clone(), &known, settings, (&mut keep_all, true), &what("all kept"));
            // The power fails again while recovery writes what it found.
            let mut twice = disk.clone();
            twice.crash(&mut by_seed(crash_at, false));
            twice.crash_at(1 + crash_at % 5);
            recover_in_part(&mut twice, settings);
            check(twice, &known, settings, (&mut by_seed(crash_at, true), is_synced), &what("twice"));
            for number in 0..2 {
                let seed = crash_at * 7 + number;
                check(
                    disk.clone(),
                    &known,
                    settings,
                    (&mut by_seed(seed, true), is_synced),
                    &what("garbled"),
                );
                let mask = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
                check(disk.clone(), &known, settings, (&mut by_mask(mask), is_synced), &what("torn"));
            }
        }
    }
}

const SMALL: &[Act] = &[
    Act::Publish("q", &[1, 2, 3, 4], 30),
    Act::Reserve("q", 3),
    Act::Settle(0, &[0], &[1], &[2], true),
    Act::Atomic(&[("q", 10), ("r", 11), ("q", 12)], 700),
    Act::Reserve("q", 2),
    Act::Settle(1, &[0], &[], &[], false),
    Act::Reserve("r", 1),
    Act::Commit(2, &[0], "q", &[20, 21]),
    Act::Reserve("q", 4),
    Act::Disconnect,
    Act::Publish("q", &[30], 30),
    Act::Reserve("q", 2),
    Act::Settle(4, &[0, 1], &[], &[], true),
];

/// Messages of 15 KiB: four to a segment. Space is given back and survivors move.
const LARGE: &[Act] = &[
    Act::Publish("r", &[1], 15_000),
    Act::Publish("q", &[2, 3, 4, 5], 15_000),
    Act::Reserve("q", 4),
    Act::Settle(0, &[0, 1, 2, 3], &[], &[], true),
    Act::Publish("q", &[6, 7, 8, 9], 15_000),
    Act::Reserve("q", 4),
    Act::Settle(1, &[0, 1, 2], &[3], &[], true),
    Act::Publish("q", &[10, 11, 12, 13], 15_000),
    Act::Reserve("q", 5),
    Act::Settle(2, &[0, 1, 2, 3], &[], &[4], false),
    Act::Publish("q", &[14, 15, 16, 17], 15_000),
    Act::Reserve("q", 4),
    Act::Settle(3, &[0, 1, 2, 3], &[], &[], true),
    Act::Publish("q", &[18, 19, 20, 21], 15_000),
    Act::Reserve("q", 9),
    Act::Settle(4, &[0, 1, 2], &[], &[], true),
    Act::Publish("q", &[22, 23, 24, 25], 15_000),
    Act::Reserve("q", 9),
    Act::Settle(5, &[0, 1, 2, 3], &[], &[], true),
    Act::Publish("q", &[26, 27, 28, 29], 15_000),
    Act::Reserve("r", 1),
    Act::Settle(6, &[], &[0], &[], true),
    Act::Publish("q", &[30, 31, 32, 33], 15_000),
];

fn any_act() -> impl Strategy<Value = Act> {
    let queue = prop_oneof![Just("q"), Just("r")];
    let bytes = prop_oneof![3 => 10usize..200, 1 => 5000usize..15_000];
    prop_oneof![
        4 => (queue.clone(), 1u64..6, bytes.clone())
            .prop_map(|(queue, count, bytes)| Act::Publish(queue, numbers(count), bytes)),
        2 => (1u64..5, bytes).prop_map(|(count, bytes)| {
            let pairs: Vec<_> = (0..count).map(|at| (["q", "r"][at as usize % 2], at)).collect();
            Act::Atomic(pairs.leak(), bytes)
        }),
        4 => (queue.clone(), 1u32..6).prop_map(|(queue, max)| Act::Reserve(queue, max)),
        4 => (0usize..8, proptest::collection::vec(0u8..4, 6), any::<bool>()).prop_map(
            |(txn, outcomes, confirm)| {
                let of = |wanted: u8| -> &'static [usize] {
                    let places = outcomes.iter().enumerate().filter(|(_, outcome)| **outcome == wanted);
                    places.map(|(at, _)| at).collect::<Vec<_>>().leak()
                };
                Act::Settle(txn, of(1), of(2), of(3), confirm)
            }
        ),
        2 => (0usize..8, queue, 1u64..4)
            .prop_map(|(txn, queue, count)| Act::Commit(txn, &[0, 1], queue, numbers(count))),
        1 => Just(Act::Disconnect),
    ]
}

fn numbers(count: u64) -> &'static [u64] {
    (0..count).collect::<Vec<_>>().leak()
}

/// Gives every message a body of its own.
fn numbered(mut history: Vec<Act>) -> Vec<Act> {
    let mut next = 0..;
    let mut fresh = |count: usize| -> &'static [u64] { next.by_ref().take(count).collect::<Vec<_>>().leak() };
    for act in &mut history {
        match act {
            Act::Publish(_, bodies, _) | Act::Commit(_, _, _, bodies) => *bodies = fresh(bodies.len()),
            Act::Atomic(pairs, _) => {
                let bodies = fresh(pairs.len());
                let renamed = pairs.iter().zip(bodies).map(|((queue, _), body)| (*queue, *body));
                *pairs = renamed.collect::<Vec<_>>().leak();
            }
            Act::Reserve(..) | Act::Settle(..) | Act::Disconnect => {}
        }
    }
    history
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn any_history_may_end_at_any_instant(
        history in proptest::collection::vec(any_act(), 2..40),
        (steps, instant, seed) in (1usize..6, any::<u64>(), any::<u64>()),
    ) {
        let history = numbered(history);
        let (disk, _) = run(&history, &small(), steps, u64::MAX);
        let crash_at = 1 + instant % disk.calls();
        let (disk, known) = run(&history, &small(), steps, crash_at);
        check(disk.clone(), &known, &small(), (&mut by_seed(seed, true), true), "garbled");
        check(disk, &known, &small(), (&mut keep_all, true), "all kept");
    }
}

#[test]
fn nothing_confirmed_is_lost_at_any_instant() {
    every_crash(SMALL, &small(), &[0, 1, 2, 1000]);
}

#[test]
fn nothing_is_lost_while_space_is_given_back() {
    let (disk, _) = run(LARGE, &small(), 1000, u64::MAX);
    let mut bench = Bench::with(small(), disk);
    let stats = bench.broker.stats();
    assert!(stats.journal_bytes < 9 * 64 * 1024, "segments were dropped: {stats:?}");
    assert!(bench.list("r").iter().any(|(body, count)| (*body, *count) == (1, 2)));
    every_crash(LARGE, &small(), &[1, 1000]);
}

#[test]
fn what_is_there_is_consistent_whatever_fsync_says() {
    for fsync in [Fsync::Interval, Fsync::Never] {
        let settings = Settings { log: berth_log::Settings { fsync, ..small().log }, ..small() };
        every_crash(SMALL, &settings, &[1]);
    }
}
