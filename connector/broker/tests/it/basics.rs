//! What each operation does, one at a time.

use std::time::Duration;

use berth_broker::{Broker, Settings};
use berth_engine::port::{Action, Capability, Completion, NackCause, Operation, Readiness, Refusal, Start};
use berth_log::Fsync;
use berth_log::sim::SimStorage;
use berth_types::{ConnectionId, Destination, OpId, Pattern, Ranges, Seq, SubId, TxnId};

use crate::bench::*;

fn seqs(numbers: &[u64]) -> Vec<Seq> {
    numbers.iter().copied().map(Seq::new).collect()
}

#[test]
fn first_in_first_out_and_gone_when_acknowledged() {
    let mut bench = Bench::new();
    assert_eq!(bench.publish("q", [10, 11, 12]), seqs(&[1, 2, 3]));
    let sub = bench.attach(A, "q");
    let (txn, items) = bench.reserve(A, sub, 2);
    assert_eq!(items.iter().map(|item| body(&item.message)).collect::<Vec<_>>(), [10, 11]);
    assert!(items.iter().all(|item| item.receive_count == 0 && !item.redelivered));
    assert!(matches!(bench.answer(A, ack(seqs(&[1, 2])).of(txn)), Completion::Settled));
    assert_eq!(bench.list("q"), [(12, 0)]);
    let stats = bench.broker.stats();
    assert_eq!((stats.published, stats.accepted, stats.live, stats.in_flight), (3, 2, 1, 0));
}

#[test]
fn a_publish_is_confirmed_by_the_sync_and_handed_out_after_it() {
    let mut bench = Bench::new();
    let sub = bench.attach(A, "q");
    let waiting = bench.submit(A, reserve(sub, 1));
    bench.run();
    let batch = vec![(to("q"), message(1, 20))];
    bench.submit(PRODUCER, Operation::Publish { batch, atomic: false });
    bench.collect();
    assert!(bench.answers.is_empty(), "nothing before the barrier: {:?}", bench.answers);
    assert!(bench.step());
    let ops: Vec<_> = bench.answers.iter().map(|(connection, ..)| *connection).collect();
    assert!(ops.contains(&PRODUCER), "the publish is confirmed");
    assert!(ops.contains(&A), "the mark shared its barrier: {:?}", bench.answers);
    assert_eq!(bench.disk.unsynced_sectors(), 0);
    assert!(matches!(bench.answers_to(waiting)[..], [Completion::Reserved { .. }]));
}

#[test]
fn publishes_that_come_together_share_a_barrier() {
    let mut bench = Bench::new();
    bench.publish("q", [0]);
    let calls = bench.disk.calls();
    for number in 1..100 {
        let batch = vec![(to("q"), message(number, 20))];
        bench.submit(ConnectionId::new(number), Operation::Publish { batch, atomic: false });
    }
    bench.run();
    assert_eq!(bench.answers.len(), 99);
    assert!(bench.disk.calls() - calls <= 3, "{} calls", bench.disk.calls() - calls);
}

#[test]
fn nacked_goes_to_the_tail_released_to_its_place() {
    let mut bench = Bench::new();
    bench.publish("q", 1..6);
    let sub = bench.attach(A, "q");
    let (txn, _) = bench.reserve(A, sub, 4);
    let wish = Wish {
        nack: [Seq::new(1), Seq::new(3)].into_iter().collect(),
        release: [Seq::new(2)].into_iter().collect(),
        reject: [Seq::new(4)].into_iter().collect(),
        confirm: true,
        ..Wish::default()
    };
    assert!(matches!(bench.answer(A, wish.of(txn)), Completion::Settled));
    assert_eq!(bench.list("q"), [(2, 0), (5, 0), (1, 1), (3, 1)]);
    let stats = bench.broker.stats();
    assert_eq!((stats.rejected, stats.requeued, stats.released), (1, 2, 1 + 4));
    assert_eq!(bench.publish("q", [9]), seqs(&[8]), "requeued messages have sequences of their own");
}

#[test]
fn a_settlement_is_right_as_a_whole_or_changes_nothing() {
    let mut bench = Bench::new();
    bench.publish("q", 1..6);
    let sub = bench.attach(A, "q");
    let (txn, _) = bench.reserve(A, sub, 3);
    let both = Wish { nack: [Seq::new(2)].into_iter().collect(), ..ack(seqs(&[1, 2])) };
    let far: Ranges = [Seq::new(3), Seq::new(4)].into_iter().collect();
    let wrong = [
        (A, ack(seqs(&[1])), TxnId::new(77)),
        (B, ack(seqs(&[1])), txn),
        (A, ack(seqs(&[1, 4])), txn),
        (A, both, txn),
        (A, Wish { release: far, ..ack(seqs(&[1])) }, txn),
        (A, ack([Seq::new(u64::MAX)]), txn),
    ];
    for (from, wish, txn) in wrong {
        let answer = bench.answer(from, wish.of(txn));
        assert!(matches!(answer, Completion::Refused(Refusal::Unknown)), "{answer:?}");
    }
    assert_eq!(bench.broker.stats().unknown_settlements, 6);
    assert!(matches!(bench.answer(A, ack(seqs(&[1, 2, 3])).of(txn)), Completion::Settled));
    let again = bench.answer(A, ack(seqs(&[1])).of(txn));
    assert!(matches!(again, Completion::Refused(Refusal::Unknown)), "resolved once: {again:?}");
    assert_eq!(bench.list("q"), [(4, 0), (5, 0)]);
}

#[test]
fn waiting_reserves_are_served_in_order_and_can_be_cancelled() {
    let mut bench = Bench::new();
    let (a, b) = (bench.attach(A, "q"), bench.attach(B, "q"));
    let first = bench.submit(A, reserve(a, 2));
    let second = bench.submit(B, reserve(b, 5));
    let third = bench.submit(A, reserve(a, 5));
    bench.submit(B, Operation::Cancel { op: second });
    assert!(matches!(bench.answers_to(second)[..], [Completion::Cancelled]));
    bench.submit(B, Operation::Cancel { op: second });
    bench.submit(B, Operation::Cancel { op: first });
    bench.publish("q", 1..6);
    let bodies = |answers: Vec<Completion>| -> Vec<u64> {
        match &answers[..] {
            [Completion::Reserved { items, .. }] => items.iter().map(|item| body(&item.message)).collect(),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(bodies(bench.answers_to(first)), [1u64, 2]);
    assert_eq!(bodies(bench.answers_to(third)), [3u64, 4, 5]);
    assert!(bench.answers.is_empty(), "each operation completes once: {:?}", bench.answers);
}

#[test]
fn a_reservation_keeps_to_its_bytes_but_one_message_always_fits() {
    let mut bench = Bench::new();
    let batch = [300, 300, 2000, 10].map(|bytes| (to("q"), message(bytes as u64, bytes))).to_vec();
    published(bench.answer(PRODUCER, Operation::Publish { batch, atomic: false }));
    let sub = bench.attach(A, "q");
    let mut counts = Vec::new();
    for _ in 0..3 {
        let operation = Operation::Reserve { sub, max: 10, max_bytes: 700, hold: None };
        match bench.answer(A, operation) {
            Completion::Reserved { items, .. } => counts.push(items.len()),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(counts, [2, 1, 1]);
}

#[test]
fn a_lost_connection_gives_back_what_it_held() {
    let mut bench = Bench::new();
    bench.publish("q", 1..6);
    let (a, b) = (bench.attach(A, "q"), bench.attach(B, "q"));
    bench.reserve(A, a, 1);
    bench.reserve(B, b, 1);
    bench.reserve(A, a, 1);
    let waiting = bench.submit(A, Operation::Attach { channel: name("other") });
    bench.run();
    bench.broker.disconnect(bench.now, A);
    bench.broker.disconnect(bench.now, A);
    bench.answers_to(waiting);
    assert_eq!(bench.list("q"), [(4, 0), (5, 0), (1, 1), (3, 1)]);
    bench.broker.disconnect(bench.now, B);
    assert_eq!(bench.list("q"), [(4, 0), (5, 0), (1, 1), (3, 1), (2, 1)]);
    assert!(bench.answers.is_empty(), "{:?}", bench.answers);
}

#[test]
fn a_reservation_outlives_its_consumer() {
    let mut bench = Bench::new();
    bench.publish("q", [1]);
    let sub = bench.attach(A, "q");
    let (txn, _) = bench.reserve(A, sub, 1);
    let waiting = bench.submit(A, reserve(sub, 1));
    let answer = bench.answer(A, Operation::Unsubscribe { sub, forget: false });
    assert!(matches!(answer, Completion::Done));
    assert!(matches!(bench.answers_to(waiting)[..], [Completion::Cancelled]));
    for operation in [reserve(sub, 1), Operation::Unsubscribe { sub, forget: false }] {
        let answer = bench.answer(A, operation);
        assert!(matches!(answer, Completion::Refused(Refusal::Unknown)), "{answer:?}");
    }
    assert!(matches!(bench.answer(A, ack([Seq::new(1)]).of(txn)), Completion::Settled));
    assert_eq!(bench.broker.stats().live, 0);
}

#[test]
fn a_commit_is_applied_in_the_clients_order_or_not_at_all() {
    let mut bench = Bench::new();
    bench.publish("q", 1..5);
    let sub = bench.attach(A, "q");
    let (txn, _) = bench.reserve(A, sub, 3);
    let one = |seq| [Seq::new(seq)].into_iter().collect::<Ranges>();
    let settle = |ack: Ranges, nack: Ranges| Action::Settle { txn, ack, nack, reject: Ranges::new() };
    let wrong = vec![
        Action::Publish(to("new"), message(50, 20)),
        settle(one(1), one(2)),
        settle(one(2), Ranges::new()),
    ];
    let answer = bench.answer(A, Operation::Commit { actions: wrong });
    assert!(matches!(answer, Completion::Committed(Err(Refusal::Unknown))), "{answer:?}");
    assert_eq!(bench.broker.stats().live, 4);
    let right = vec![
        Action::Publish(to("q"), message(60, 20)),
        settle(one(1), one(2)),
        Action::Publish(to("q"), message(61, 20)),
        Action::Publish(to("other"), message(62, 20)),
        settle(Ranges::new(), one(3)),
    ];
    let answer = bench.answer(A, Operation::Commit { actions: right });
    assert!(matches!(answer, Completion::Committed(Ok(()))), "{answer:?}");
    let expected = [(4, 0), (60, 0), (2, 1), (61, 0), (3, 1)];
    assert_eq!(bench.list("q"), expected);
    assert_eq!(bench.list("other"), [(62, 0)]);
    let mut bench = bench.restart();
    assert_eq!(bench.list("q"), expected, "messages of a commit are read back from its record");
    assert_eq!(bench.list("other"), [(62, 0)]);
    assert!(matches!(
        bench.answer(A, Operation::Commit { actions: Vec::new() }),
        Completion::Committed(Ok(()))
    ));
}

#[test]
fn an_atomic_publish_is_all_or_nothing() {
    let mut bench = Bench::new();
    let events = Destination { pattern: Pattern::Events, channel: name("e") };
    let mixed = vec![(to("q"), message(1, 20)), (events, message(2, 20)), (to("q"), message(3, 20))];
    let alone = published(bench.answer(PRODUCER, Operation::Publish { batch: mixed.clone(), atomic: false }));
    assert!(alone[0].is_ok() && alone[2].is_ok());
    assert_eq!(alone[1], Err(Refusal::Unsupported(Capability::Events)));
    let whole = published(bench.answer(PRODUCER, Operation::Publish { batch: mixed, atomic: true }));
    assert_eq!(whole, vec![Err(Refusal::Unsupported(Capability::Events)); 3]);
    let batch = vec![(to("q"), message(4, 20)), (to("r"), message(5, 20)), (to("q"), message(6, 20))];
    let whole = published(bench.answer(PRODUCER, Operation::Publish { batch, atomic: true }));
    assert_eq!(whole.iter().map(|stored| stored.as_ref().unwrap().seq.get()).collect::<Vec<_>>(), [3, 1, 4]);
    assert_eq!(bench.list("q"), [(1, 0), (3, 0), (4, 0), (6, 0)]);
}

#[test]
fn what_it_cannot_do_is_refused_by_name() {
    let mut bench = Bench::new();
    let sub = bench.attach(A, "q");
    let hold = Some(Duration::from_secs(1));
    let subscribe = |pattern| Operation::Subscribe {
        pattern,
        channel: name("e"),
        group: None,
        selector: None,
        start: Start::New,
        identity: None,
    };
    let until = bench.now.monotonic;
    let cases = [
        (Operation::Reserve { sub, max: 1, max_bytes: 1, hold }, Capability::Hold),
        (Operation::Extend { txn: TxnId::new(1), seq: Seq::new(1), until }, Capability::Hold),
        (subscribe(Pattern::Events), Capability::Events),
        (subscribe(Pattern::EventsStore), Capability::EventsStore),
        (subscribe(Pattern::Commands), Capability::Requests),
        (Operation::Position { sub, seq: Seq::new(1) }, Capability::EventsStore),
    ];
    for (operation, capability) in cases {
        assert!(!Broker::capabilities().has(capability));
        let answer = bench.answer(A, operation);
        assert!(
            matches!(&answer, Completion::Refused(Refusal::Unsupported(missing)) if *missing == capability),
            "{answer:?}"
        );
    }
    let answer = bench.answer(A, reserve(SubId::new(99), 1));
    assert!(matches!(answer, Completion::Refused(Refusal::Unknown)));
    let answer = bench.answer(B, reserve(sub, 1));
    assert!(matches!(answer, Completion::Refused(Refusal::Unknown)), "another connection's consumer");
}

#[test]
fn an_idle_queue_is_forgotten_and_its_sequences_are_not_used_again() {
    let settings = Settings { idle_expiry: Duration::from_secs(60), ..small() };
    let mut bench = Bench::with(settings, SimStorage::new());
    bench.publish("q", 1..4);
    bench.publish("kept", [9]);
    let sub = bench.attach(A, "q");
    let (txn, _) = bench.reserve(A, sub, 3);
    bench.answer(A, ack(seqs(&[1, 2, 3])).of(txn));
    bench.pass(Duration::from_secs(61));
    bench.run();
    assert_eq!(bench.broker.queues(None, 10).len(), 2, "a queue with a consumer is in use");
    bench.answer(A, Operation::Unsubscribe { sub, forget: false });
    bench.pass(Duration::from_secs(59));
    bench.run();
    assert_eq!(bench.broker.queues(None, 10).len(), 2);
    bench.pass(Duration::from_secs(2));
    bench.run();
    let names = |bench: &Bench| -> Vec<String> {
        bench.broker.queues(None, 10).iter().map(|queue| queue.name.to_string()).collect()
    };
    assert_eq!(names(&bench), ["kept"]);
    let mut bench = bench.kill();
    assert_eq!(names(&bench), ["kept"]);
    assert_eq!(bench.publish("q", [5]), seqs(&[4]));
    assert_eq!(bench.list("kept"), [(9, 0)]);
}

#[test]
fn queues_are_listed_in_pages() {
    let mut bench = Bench::new();
    for queue in ["b", "a", "c"] {
        bench.publish(queue, [1, 2]);
    }
    let sub = bench.attach(A, "b");
    bench.reserve(A, sub, 1);
    let page = bench.broker.queues(Some(&name("a")), 1);
    assert_eq!(page.len(), 1);
    let queue = &page[0];
    assert_eq!((queue.name.as_str(), queue.ready, queue.in_flight, queue.consumers), ("b", 1, 1, 1));
    assert_eq!(queue.bytes, 48);
    assert!(queue.oldest.is_some());
    assert_eq!(bench.broker.queues(Some(&name("c")), 5).len(), 0);
}

#[test]
fn a_clean_restart_keeps_everything_and_marks_nothing() {
    let mut bench = Bench::new();
    bench.publish("q", 1..7);
    let sub = bench.attach(A, "q");
    let (txn, _) = bench.reserve(A, sub, 4);
    let nack = [Seq::new(1)].into_iter().collect();
    let release = [Seq::new(2)].into_iter().collect();
    let wish = Wish { nack, release, confirm: true, ..ack(seqs(&[3])) };
    bench.answer(A, wish.of(txn));
    let mut bench = bench.restart();
    assert_eq!(bench.recovered.redelivered, 0);
    assert!(bench.recovered.log.clean);
    assert_eq!(bench.list("q"), [(2, 0), (5, 0), (6, 0), (1, 1), (4, 1)], "4 was in flight at the end");
    let mut bench = bench.restart();
    assert_eq!(bench.list("q"), [(2, 0), (5, 0), (6, 0), (1, 1), (4, 1)]);
}

#[test]
fn after_a_kill_what_may_have_been_delivered_counts_once_more_once() {
    let mut bench = Bench::new();
    bench.publish("q", 1..4);
    bench.publish("untouched", [7]);
    let sub = bench.attach(A, "q");
    let (txn, _) = bench.reserve(A, sub, 2);
    bench.answer(A, ack(seqs(&[1])).of(txn));
    let bench = bench.kill();
    assert!(!bench.recovered.log.clean);
    assert_eq!(bench.recovered.redelivered, 2, "2 was delivered, 3 lies below the mark");
    let bench = bench.kill();
    assert_eq!(bench.recovered.redelivered, 0, "nothing was delivered since");
    let mut bench = bench.kill();
    assert_eq!(bench.list("untouched"), [(7, 0)]);
    assert_eq!(bench.list("q"), [(2, 1), (3, 1)]);
    let mut bench = bench.kill();
    assert_eq!(bench.list("q"), [(2, 2), (3, 2)], "they were handed out by the listing");
}

#[test]
fn the_mark_goes_no_further_ahead_than_its_stride() {
    let mut bench = Bench::new();
    bench.publish("q", 1..5001);
    let sub = bench.attach(A, "q");
    for _ in 0..4 {
        bench.reserve(A, sub, 700);
    }
    let in_flight = bench.broker.stats().in_flight;
    let mut bench = bench.kill();
    let marked = bench.recovered.redelivered;
    assert!((in_flight..=in_flight + 1024).contains(&marked), "{marked} marked, {in_flight} were in flight");
    // One delivery after the restart: of those that were in flight before, most were not delivered again.
    let sub = bench.attach(A, "q");
    bench.reserve(A, sub, 1);
    let bench = bench.kill();
    assert!(bench.recovered.redelivered <= 1 + 1024, "{}", bench.recovered.redelivered);
}

#[test]
fn every_nack_raises_the_receive_count_whatever_its_cause() {
    let mut bench = Bench::new();
    bench.publish("q", [1]);
    let sub = bench.attach(A, "q");
    let (txn, _) = bench.reserve(A, sub, 1);
    bench.answer(A, Wish { cause: NackCause::Server, ..nack(seqs(&[1])) }.of(txn));
    let (txn, items) = bench.reserve(A, sub, 1);
    assert_eq!(items[0].receive_count, 1);
    bench.answer(A, nack([items[0].seq]).of(txn));
    let mut bench = bench.restart();
    assert_eq!(bench.list("q"), [(1, 2)]);
}

#[test]
fn a_failed_disk_refuses_everything_and_says_so() {
    let mut bench = Bench::new();
    bench.publish("q", [1, 2]);
    let sub = bench.attach(A, "q");
    bench.reserve(A, sub, 1);
    let txn = TxnId::new(1);
    bench.reserve(A, sub, 1);
    let waiting = bench.submit(A, reserve(sub, 1));
    bench.run();
    bench.disk.fail_at(bench.disk.calls() + 1);
    let batch = vec![(to("q"), message(3, 20))];
    let answer = bench.answer(PRODUCER, Operation::Publish { batch: batch.clone(), atomic: false });
    assert_eq!(published(answer), [Err(Refusal::BrokerNotReady)]);
    assert!(matches!(bench.answers_to(waiting)[..], [Completion::Refused(Refusal::BrokerNotReady)]));
    assert!(bench.broker.failure().is_some());
    let notices = bench.answers.iter().filter(|(_, op, completion)| {
        op.is_none() && matches!(completion, Completion::Ready(Readiness::NotReady(_)))
    });
    assert_eq!(notices.count(), 2, "one for each connection");
    for operation in [ack(seqs(&[1])).of(txn), Operation::Attach { channel: name("q") }, reserve(sub, 1)] {
        let answer = bench.answer(A, operation);
        assert!(matches!(answer, Completion::Refused(Refusal::BrokerNotReady)), "{answer:?}");
    }
    let answer = bench.answer(PRODUCER, Operation::Publish { batch, atomic: false });
    assert_eq!(published(answer), [Err(Refusal::BrokerNotReady)]);
    bench.broker.submit(bench.now, A, OpId::new(0), Operation::Cancel { op: waiting });
    let mut bench = bench.kill();
    let bodies: Vec<u64> = bench.list("q").into_iter().map(|(body, _)| body).collect();
    assert_eq!(bodies[..2], [1, 2]);
}

#[test]
fn with_interval_a_confirm_comes_with_the_write() {
    for fsync in [Fsync::Interval, Fsync::Never] {
        let log = berth_log::Settings { fsync, ..small().log };
        let mut bench = Bench::with(Settings { log, ..small() }, SimStorage::new());
        let batch = vec![(to("q"), message(1, 20))];
        bench.submit(PRODUCER, Operation::Publish { batch, atomic: false });
        while bench.answers.is_empty() {
            assert!(bench.step());
        }
        assert!(bench.disk.unsynced_sectors() > 0, "confirmed before the sync");
        let mut bench = bench.kill();
        assert_eq!(bench.list("q"), [(1, 0)]);
    }
}
