//! What the journal's space and the broker's memory are spent on.

use berth_broker::Settings;
use berth_engine::port::{Completion, Operation, Refusal};
use berth_log::sim::SimStorage;
use berth_log::{FileId, Storage};
use berth_types::{Seq, SubId};
use proptest::prelude::*;

use crate::bench::*;

const SEGMENT: u64 = 64 * 1024;

fn publish(bench: &mut Bench, queue: &str, bodies: std::ops::Range<u64>, bytes: usize) -> usize {
    let batch = bodies.map(|body| (to(queue), message(body, bytes))).collect();
    let answer = bench.answer(PRODUCER, Operation::Publish { batch, atomic: false });
    published(answer).iter().filter(|result| result.is_ok()).count()
}

fn consume(bench: &mut Bench, sub: SubId, count: u32) -> Vec<u64> {
    let mut bodies = Vec::new();
    while (bodies.len() as u32) < count {
        let (txn, items) = bench.reserve(A, sub, count - bodies.len() as u32);
        bodies.extend(items.iter().map(|item| body(&item.message)));
        let wish = ack(items.iter().map(|item| item.seq));
        assert!(matches!(bench.answer(A, wish.of(txn)), Completion::Settled));
    }
    bodies
}

#[test]
fn a_few_old_messages_do_not_keep_the_journal() {
    let mut bench = Bench::new();
    publish(&mut bench, "old", 1..200, 100);
    let old = bench.attach(B, "old");
    let (held, items) = bench.reserve(B, old, 3);
    let held_seqs: Vec<Seq> = items.iter().map(|item| item.seq).collect();
    let sub = bench.attach(A, "busy");
    for round in 0..60 {
        publish(&mut bench, "busy", 1000 + round * 10..1010 + round * 10, 5000);
        consume(&mut bench, sub, 10);
    }
    let stats = bench.broker.stats();
    assert!(stats.relocated >= 199, "{stats:?}");
    assert!(stats.journal_bytes < 8 * SEGMENT, "{stats:?}");
    assert!(matches!(bench.answer(B, ack(held_seqs).of(held)), Completion::Settled));
    let expected: Vec<(u64, u32)> = (4..200).map(|body| (body, 0)).collect();
    assert_eq!(bench.list("old"), expected);
    let mut bench = bench.restart();
    assert_eq!(bench.list("old"), expected);
    assert_eq!(bench.list("busy"), []);
    assert_eq!(bench.publish("busy", [1]), [Seq::new(601)], "sequences go on after every segment went");
}

#[test]
fn a_backlog_larger_than_memory_comes_back_in_order() {
    let settings = Settings { index_bytes: 3000 * 28, cache_bytes: 32 * 1024, ..small() };
    let mut bench = Bench::with(settings, SimStorage::new());
    for start in (0..20_000).step_by(500) {
        publish(&mut bench, "q", start..start + 500, 30);
    }
    let stats = bench.broker.stats();
    assert!(stats.index_bytes <= 5000 * 28, "{stats:?}");
    assert!(stats.cached_bytes <= 33 * 1024, "{stats:?}");
    let sub = bench.attach(A, "q");
    let steps = bench.steps;
    assert_eq!(consume(&mut bench, sub, 5000), (0..5000).collect::<Vec<u64>>());
    assert!(bench.steps - steps < 1000, "{} operations for 5000 messages", bench.steps - steps);
    let mut bench = bench.kill();
    assert!(bench.broker.stats().index_bytes <= 5000 * 28, "{:?}", bench.broker.stats());
    let sub = bench.attach(A, "q");
    // Requeued messages go behind the backlog.
    let (txn, items) = bench.reserve(A, sub, 5);
    let wish = nack(items.iter().map(|item| item.seq));
    let count = items.len() as u64;
    assert!(matches!(bench.answer(A, wish.of(txn)), Completion::Settled));
    let expected: Vec<u64> = (5000 + count..20_000).chain(5000..5000 + count).collect();
    assert_eq!(consume(&mut bench, sub, 15_000), expected);
    let stats = bench.broker.stats();
    assert_eq!((stats.live, stats.index_bytes, stats.live_bytes), (0, 0, 0));
    assert!(stats.journal_bytes < 4 * SEGMENT, "{stats:?}");
}

#[test]
fn survivors_in_blocks_on_disk_move_too() {
    let settings = Settings { index_bytes: 200 * 28, ..small() };
    let mut bench = Bench::with(settings, SimStorage::new());
    publish(&mut bench, "idle", 0..3000, 30);
    let sub = bench.attach(A, "busy");
    for round in 0..80 {
        publish(&mut bench, "busy", 5000 + round * 10..5010 + round * 10, 6000);
        consume(&mut bench, sub, 10);
    }
    let stats = bench.broker.stats();
    assert!(stats.relocated >= 3000, "{stats:?}");
    assert!(stats.index_bytes < 3000 * 28, "{stats:?}");
    let expected: Vec<(u64, u32)> = (0..3000).map(|body| (body, 0)).collect();
    let mut bench = bench.kill();
    assert_eq!(bench.list("idle"), expected);
    let mut bench = bench.kill();
    assert_eq!(bench.list("idle"), expected.iter().map(|(body, _)| (*body, 1)).collect::<Vec<_>>());
}

#[test]
fn a_full_disk_refuses_publishes_and_lets_consumers_go_on() {
    let mut bench = Bench::new();
    bench.disk.set_capacity(Some(14 * SEGMENT));
    let mut stored = 0;
    while publish(&mut bench, "q", stored..stored + 1, 10_000) == 1 {
        stored += 1;
        assert!(stored < 100, "the disk must become full");
    }
    let batch = vec![(to("q"), message(0, 10_000))];
    let answer = bench.answer(PRODUCER, Operation::Publish { batch, atomic: false });
    assert_eq!(published(answer), [Err(Refusal::StorageFull)]);
    assert!(bench.broker.stats().is_disk_full);
    assert!(bench.broker.failure().is_none());
    let sub = bench.attach(A, "q");
    let (txn, items) = bench.reserve(A, sub, 2);
    assert!(matches!(bench.answer(A, nack(items.iter().map(|item| item.seq)).of(txn)), Completion::Settled));
    let expected: Vec<u64> = (items.len() as u64..stored).chain(0..items.len() as u64).collect();
    assert_eq!(consume(&mut bench, sub, stored as u32), expected);
    assert_eq!(publish(&mut bench, "q", 500..510, 10_000), 10, "space came back");
    assert!(!bench.broker.stats().is_disk_full);
    let mut bench = bench.kill();
    assert_eq!(bench.list("q").len(), 10);
}

/// Fills the disk with messages of `bytes` bytes, and says how many there are.
fn fill(bench: &mut Bench, segments: u64, bytes: usize) -> u64 {
    bench.disk.set_capacity(Some(segments * SEGMENT));
    let mut stored = 0;
    while publish(bench, "q", stored..stored + 1, bytes) == 1 {
        stored += 1;
        assert!(stored < 10_000, "the disk must become full");
    }
    stored
}

#[test]
fn requeues_on_a_full_disk_never_use_it_up() {
    let mut bench = Bench::new();
    let stored = fill(&mut bench, 14, 10_000);
    let mut sub = bench.attach(A, "q");
    for round in 0..2000 {
        let (txn, items) = bench.reserve(A, sub, 1);
        let answer = bench.answer(A, nack(items.iter().map(|item| item.seq)).of(txn));
        assert!(matches!(answer, Completion::Settled), "round {round}: {answer:?}");
        if round % 500 == 499 {
            bench = bench.kill();
            assert_eq!(bench.list("q").len() as u64, stored);
            sub = bench.attach(A, "q");
        }
    }
    let mut consumed = consume(&mut bench, sub, stored as u32);
    consumed.sort_unstable();
    assert_eq!(consumed, (0..stored).collect::<Vec<u64>>());
    assert_eq!(publish(&mut bench, "q", 500..510, 10_000), 10, "space came back");
}

#[test]
fn publishes_do_not_use_the_reserve_that_requeues_have_begun() {
    let mut bench = Bench::new();
    fill(&mut bench, 8, 10_000);
    while publish(&mut bench, "q", 0..1, 10) == 1 {}
    let sub = bench.attach(A, "q");
    for round in 0..4 {
        let (txn, items) = bench.reserve(A, sub, 1);
        match bench.answer(A, nack(items.iter().map(|item| item.seq)).of(txn)) {
            Completion::Settled => {}
            other => panic!("round {round}: {other:?}"),
        }
        assert_eq!(publish(&mut bench, "q", 0..1, 10), 0, "round {round}");
    }
}

#[test]
fn many_small_messages_are_consumed_one_by_one_on_a_full_disk() {
    let mut bench = Bench::new();
    let mut stored = 0;
    bench.disk.set_capacity(Some(8 * SEGMENT));
    // Packed closely: a settlement takes more of the disk than the message that it ends.
    loop {
        let taken = publish(&mut bench, "q", stored..stored + 100, 30) as u64;
        stored += taken;
        if taken < 100 {
            break;
        }
    }
    let sub = bench.attach(A, "q");
    for expected in 0..stored {
        let (txn, items) = bench.reserve(A, sub, 1);
        assert_eq!(body(&items[0].message), expected);
        let answer = bench.answer(A, ack([items[0].seq]).of(txn));
        assert!(matches!(answer, Completion::Settled), "{expected} of {stored}: {answer:?}");
    }
    assert_eq!(publish(&mut bench, "q", 0..10, 10_000), 10, "space came back");
}

#[test]
fn restarts_and_lost_consumers_on_a_full_disk_never_use_it_up() {
    let mut bench = Bench::new();
    let stored = fill(&mut bench, 8, 5000);
    for round in 0..400 {
        let sub = bench.attach(A, "q");
        let (_, items) = bench.reserve(A, sub, 3);
        assert!(!items.is_empty(), "round {round}");
        if round % 3 == 0 {
            bench.broker.disconnect(bench.now, A);
            bench.run();
        }
        bench = if round % 2 == 0 { bench.kill() } else { bench.restart() };
    }
    assert_eq!(bench.list("q").len() as u64, stored);
    let sub = bench.attach(A, "q");
    assert_eq!(consume(&mut bench, sub, stored as u32).len() as u64, stored);
    assert_eq!(publish(&mut bench, "q", 500..510, 5000), 10, "space came back");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Whatever is requeued, lost or restarted on a full disk: messages can be accepted, and then there is
    /// room again.
    #[test]
    fn messages_can_always_be_accepted_on_a_full_disk(
        bytes in prop_oneof![Just(20_usize), 100..2000_usize, 2000..12_000_usize],
        segments in 6..12_u64,
        steps in prop::collection::vec((0..100_u8, 1..6_u32), 50..500),
    ) {
        let mut bench = Bench::new();
        let mut left = fill(&mut bench, segments, bytes);
        let mut sub = bench.attach(A, "q");
        for (what, count) in steps {
            if left == 0 {
                break;
            }
            if what == 0 {
                bench = bench.kill();
                sub = bench.attach(A, "q");
            }
            let (txn, items) = bench.reserve(A, sub, count);
            let seqs = items.iter().map(|item| item.seq);
            match what {
                1..70 => match bench.answer(A, nack(seqs).of(txn)) {
                    Completion::Settled => {}
                    Completion::Refused(Refusal::StorageFull) => {
                        bench.broker.disconnect(bench.now, A);
                        bench.run();
                        sub = bench.attach(A, "q");
                    }
                    other => prop_assert!(false, "{other:?}"),
                },
                70..75 => {
                    bench.broker.disconnect(bench.now, A);
                    bench.run();
                    sub = bench.attach(A, "q");
                }
                _ => {
                    let answer = bench.answer(A, ack(seqs).of(txn));
                    prop_assert!(matches!(answer, Completion::Settled), "{answer:?}");
                    left -= items.len() as u64;
                }
            }
        }
        while left > 0 {
            let (txn, items) = bench.reserve(A, sub, 1);
            let answer = bench.answer(A, ack([items[0].seq]).of(txn));
            prop_assert!(matches!(answer, Completion::Settled), "{left} left: {answer:?}");
            left -= 1;
        }
        prop_assert_eq!(publish(&mut bench, "q", 500..510, 5000), 10, "space came back");
        let mut bench = bench.restart();
        prop_assert_eq!(bench.list("q").len(), 10);
    }
}

#[test]
fn a_damaged_message_is_never_handed_out() {
    let settings = Settings { cache_bytes: 1000, ..small() };
    let mut bench = Bench::with(settings, SimStorage::new());
    publish(&mut bench, "q", 0..40, 500);
    let file = bench.disk.list().unwrap().into_iter().map(|(file, _)| file);
    let segment = file.filter(|file| matches!(file, FileId::Segment(_))).min().unwrap();
    bench.disk.damage(segment, 3000, 1);
    let sub = bench.attach(A, "q");
    let op = bench.submit(A, reserve(sub, 40));
    let mut answers = bench.answers_to(op);
    if let Some(Completion::Reserved { items, .. }) = answers.pop() {
        assert!(items.len() < 10, "what lies before the damage may have been handed out");
        let op = bench.submit(A, reserve(sub, 40));
        answers = bench.answers_to(op);
    }
    assert!(matches!(answers[..], [] | [Completion::Refused(Refusal::BrokerNotReady)]), "{answers:?}");
    let failure = bench.broker.failure().expect("the damage is named").to_string();
    assert!(failure.contains(&segment.to_string()), "{failure}");
}

#[test]
fn ten_thousand_queues_are_cheap() {
    let mut bench = Bench::with(Settings { index_bytes: 4 << 20, ..small() }, SimStorage::new());
    for start in (0..10_000).step_by(1000) {
        let batch = (start..start + 1000).map(|body| (to(&format!("q.{body}")), message(body, 20)));
        let operation = Operation::Publish { batch: batch.collect(), atomic: false };
        assert_eq!(published(bench.answer(PRODUCER, operation)).len(), 1000);
    }
    let mut bench = bench.kill();
    assert_eq!(bench.recovered.queues, 10_000);
    assert_eq!(bench.broker.stats().index_bytes, 10_000 * 28);
    assert_eq!(bench.list("q.1234"), [(1234, 0)]);
}
