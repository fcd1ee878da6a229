//! Single promises of the engine, one test each, with the figures that `docs/delivery.md` names.

use std::time::Duration;

use berth_engine::port::{
    Capabilities, Capability, Completion, NackCause, Operation, Readiness, Refusal, Reserved,
};
use berth_engine::{
    Correlation, End, Engine, Event, Mode, Settings, Settlement, Source, Subscribe, SubscriptionKey,
};
use berth_types::{
    ChannelName, DeliveryId, Destination, Instant, OpId, Outcome, Pattern, Ranges, Seq, SubId, TxnId,
};

use crate::scripted::message;

const ACK_TIMEOUT: Duration = Duration::from_secs(30);

fn at(ms: u64) -> Instant {
    Instant::from_nanos(ms * 1_000_000)
}

fn engine() -> Engine {
    let capabilities = Capabilities::of(&[Capability::Queues, Capability::Release]);
    Engine::new(Settings { capabilities, is_ready: true })
}

fn command(mode: Mode, window: u32) -> Subscribe {
    let source = Source::Queue(ChannelName::parse("jobs").unwrap());
    Subscribe { source, mode, window, ack_timeout: Some(ACK_TIMEOUT) }
}

/// A live subscription and its first reservation.
fn live(engine: &mut Engine, mode: Mode, window: u32) -> (SubscriptionKey, OpId) {
    let key = engine.subscribe(at(0), command(mode, window));
    let (attach, operation) = engine.poll_operation().expect("an attach");
    assert!(matches!(operation, Operation::Attach { .. }));
    let opened = Completion::Opened { sub: SubId::new(attach.get()), next_seq: None };
    engine.handle_completion(at(0), Some(attach), opened);
    assert!(matches!(engine.poll_event(), Some(Event::Subscribed { .. })));
    (key, reserve(engine, window))
}

fn reserve(engine: &mut Engine, expected: u32) -> OpId {
    let (op, operation) = engine.poll_operation().expect("a reservation");
    let Operation::Reserve { max, .. } = operation else { panic!("{operation:?}") };
    assert_eq!(max, expected);
    op
}

fn hand_out(engine: &mut Engine, op: OpId, txn: u64, seqs: impl Iterator<Item = u64>) -> Vec<DeliveryId> {
    let items = seqs
        .map(|seq| Reserved {
            seq: Seq::new(seq),
            message: message(seq),
            receive_count: 0,
            redelivered: false,
            held_until: None,
        })
        .collect();
    engine.handle_completion(engine_now(), Some(op), Completion::Reserved { txn: TxnId::new(txn), items });
    let mut deliveries = Vec::new();
    while let Some(Event::Deliver { delivery, .. }) = engine.poll_event() {
        deliveries.push(delivery);
    }
    deliveries
}

fn engine_now() -> Instant {
    at(0)
}

fn write(engine: &mut Engine, now: Instant, deliveries: &[DeliveryId]) {
    deliveries.iter().for_each(|delivery| engine.handle_written(now, *delivery));
}

fn ranges(seqs: impl IntoIterator<Item = u64>) -> Ranges {
    seqs.into_iter().map(Seq::new).collect()
}

fn operations(engine: &mut Engine) -> Vec<(OpId, Operation)> {
    std::iter::from_fn(|| engine.poll_operation()).collect()
}

fn settles(engine: &mut Engine) -> Vec<(u64, Ranges, Ranges, Ranges)> {
    operations(engine)
        .into_iter()
        .filter_map(|(_, operation)| match operation {
            Operation::Settle { txn, ack, nack, release, .. } => Some((txn.get(), ack, nack, release)),
            _ => None,
        })
        .collect()
}

#[test]
fn a_cumulative_ack_is_one_range_per_reservation() {
    let mut engine = engine();
    let (_, first) = live(&mut engine, Mode::Cumulative, 10);
    let mut all = hand_out(&mut engine, first, 7, 1..=3);
    let second = reserve(&mut engine, 7);
    all.extend(hand_out(&mut engine, second, 8, [5, 9].into_iter()));
    write(&mut engine, at(1), &all);
    operations(&mut engine);
    assert_eq!(engine.settle(at(2), all[1], Outcome::Modified, None), Settlement::Accepted(2));
    assert_eq!(
        engine.settle(at(2), all[4], Outcome::Accepted, Some(Correlation(1))),
        Settlement::Accepted(3)
    );
    let settled = operations(&mut engine);
    let [
        (a, Operation::Settle { txn: t7, ack: a7, nack: n7, .. }),
        (b, Operation::Settle { txn: t8, ack: a8, confirm, .. }),
    ] = &settled[..]
    else {
        panic!("{settled:?}")
    };
    assert_eq!((t7.get(), a7, n7), (7, &ranges([3]), &ranges([1, 2])));
    assert_eq!((t8.get(), a8, *confirm), (8, &ranges([5, 9]), true));
    engine.handle_completion(at(3), Some(*b), Completion::Settled);
    assert!(engine.poll_event().is_none(), "the confirm waits for both reservations");
    engine.handle_completion(at(3), Some(*a), Completion::Settled);
    assert!(matches!(
        engine.poll_event(),
        Some(Event::Settled { correlation: Correlation(1), result: Ok(()) })
    ));
    assert_eq!(engine.outstanding(), 0);
}

#[test]
fn a_window_settled_one_by_one_does_not_reserve_one_by_one() {
    let mut engine = engine();
    let (_, first) = live(&mut engine, Mode::Individual, 100);
    let all = hand_out(&mut engine, first, 1, 1..=100);
    write(&mut engine, at(0), &all);
    let mut reserved = Vec::new();
    for delivery in &all[..50] {
        engine.settle(at(1), *delivery, Outcome::Accepted, None);
        for (op, operation) in operations(&mut engine) {
            match operation {
                Operation::Reserve { max, .. } => reserved.push((op, max)),
                _ => engine.handle_completion(at(1), Some(op), Completion::Settled),
            }
        }
    }
    assert_eq!(reserved.len(), 1, "the first waits at the broker");
    assert_eq!(reserved[0].1, 25);
}

#[test]
fn a_little_room_is_used_after_a_moment() {
    let mut engine = engine();
    let (_, first) = live(&mut engine, Mode::Individual, 100);
    let all = hand_out(&mut engine, first, 1, 1..=100);
    write(&mut engine, at(0), &all);
    assert_eq!(engine.poll_operation().map(|_| ()), None, "the window is full");
    engine.settle(at(5), all[0], Outcome::Accepted, None);
    assert!(settles(&mut engine).len() == 1);
    assert_eq!(engine.poll_timeout(), Some(at(7)));
    engine.handle_timeout(at(7));
    reserve(&mut engine, 1);
}

#[test]
fn the_ack_timeout_runs_from_the_last_byte_and_is_swept_within_a_second() {
    let mut engine = engine();
    let (_, op) = live(&mut engine, Mode::Individual, 2);
    let all = hand_out(&mut engine, op, 1, 1..=2);
    write(&mut engine, at(20_300), &all);
    operations(&mut engine);
    // The entry that was made when they entered the buffer comes due, finds nothing due and is moved.
    engine.handle_timeout(at(30_000));
    assert_eq!(engine.poll_timeout(), Some(at(51_000)));
    engine.handle_timeout(at(50_999));
    assert!(engine.is_pending(all[0]));
    assert_eq!(engine.settle(at(50_999), all[1], Outcome::Accepted, None), Settlement::Accepted(1));
    operations(&mut engine);
    engine.handle_timeout(at(51_000));
    assert!(matches!(engine.poll_event(), Some(Event::Ended { delivery }) if delivery == all[0]));
    assert_eq!(settles(&mut engine), [(1, ranges([]), ranges([1]), ranges([]))]);
    assert_eq!(engine.settle(at(51_001), all[0], Outcome::Accepted, None), Settlement::Ignored);
    assert_eq!((engine.stats().expired, engine.stats().settlements_ignored), (1, 1));
}

#[test]
fn a_tick_costs_what_is_due_not_what_is_pending() {
    let mut engine = engine();
    let mut keys = Vec::new();
    for _ in 0..100 {
        let (key, op) = live(&mut engine, Mode::Individual, 1000);
        let txn = 1 + keys.len() as u64;
        keys.push(key);
        let all = hand_out(&mut engine, op, txn, 1..=1000);
        write(&mut engine, at(10 * txn), &all);
        operations(&mut engine);
    }
    assert_eq!(engine.outstanding(), 100_000);
    engine.handle_timeout(at(29_999));
    assert_eq!(engine.deadlines_visited(), 0, "nothing is due, nothing is looked at");
    engine.handle_timeout(at(31_000));
    assert_eq!((engine.stats().expired, engine.stats().nacked), (100_000, 0), "the broker has not answered");
    let nacked: u64 = settles(&mut engine).iter().map(|(_, _, nack, _)| nack.count()).sum();
    assert_eq!(nacked, 100_000);
    let visited = engine.deadlines_visited();
    assert!((100_000..=100_300).contains(&visited), "{visited} entries for 100 000 due");
}

#[test]
fn auto_accepts_what_is_in_the_buffer_and_takes_no_more_than_it_holds() {
    let mut engine = engine();
    let (_, op) = live(&mut engine, Mode::Auto, 4);
    let all = hand_out(&mut engine, op, 1, 1..=4);
    assert_eq!(settles(&mut engine), [(1, ranges(1..=4), ranges([]), ranges([]))]);
    assert_eq!(engine.settle(at(1), all[0], Outcome::Modified, None), Settlement::Ignored);
    write(&mut engine, at(1), &all[..3]);
    reserve(&mut engine, 3);
    assert_eq!(engine.poll_timeout(), None, "no ack timeout");
}

#[test]
fn what_was_written_can_be_settled_after_unsubscribe_and_the_rest_goes_back() {
    let mut engine = engine();
    let (key, op) = live(&mut engine, Mode::Cumulative, 4);
    let all = hand_out(&mut engine, op, 1, 1..=3);
    write(&mut engine, at(1), &all[..2]);
    let waiting = reserve(&mut engine, 1);
    engine.unsubscribe(at(2), key);
    assert!(matches!(engine.poll_event(), Some(Event::Withdraw { delivery }) if delivery == all[2]));
    assert!(matches!(engine.poll_operation(), Some((_, Operation::Cancel { op })) if op == waiting));
    engine.handle_withdrawn(at(2), all[2]);
    engine.handle_completion(at(2), Some(waiting), Completion::Cancelled);
    let (release, _) = engine.poll_operation().expect("a release");
    assert!(engine.poll_event().is_none(), "told only when it has gone back");
    engine.handle_completion(at(3), Some(release), Completion::Settled);
    assert!(matches!(engine.poll_event(), Some(Event::Unsubscribed { sub }) if sub == key));
    assert!(engine.poll_operation().is_none(), "the broker's end waits for the pending ones");
    assert_eq!(engine.settle(at(4), all[1], Outcome::Accepted, None), Settlement::Accepted(2));
    let (settle, _) = engine.poll_operation().expect("an ack");
    engine.handle_completion(at(5), Some(settle), Completion::Settled);
    assert!(matches!(engine.poll_operation(), Some((_, Operation::Unsubscribe { .. }))));
}

#[test]
fn a_subscription_waits_for_the_broker_and_a_publish_does_not() {
    let mut engine = engine();
    let away = || Completion::Ready(Readiness::NotReady("away"));
    engine.handle_completion(at(0), None, away());
    let key = engine.subscribe(at(0), command(Mode::Individual, 2));
    assert!(matches!(engine.poll_event(), Some(Event::Subscribed { sub }) if sub == key), "accepted at once");
    assert!(engine.poll_operation().is_none());
    let destination = Destination { pattern: Pattern::Queues, channel: ChannelName::parse("jobs").unwrap() };
    engine.publish(at(0), Correlation(1), destination, message(1));
    assert!(matches!(
        engine.poll_event(),
        Some(Event::Published { result: Err(Refusal::BrokerNotReady), .. })
    ));
    engine.handle_completion(at(1), None, Completion::Ready(Readiness::Ready));
    let (attach, _) = engine.poll_operation().expect("an attach");
    engine.handle_completion(at(1), Some(attach), Completion::Opened { sub: SubId::new(1), next_seq: None });
    let op = reserve(&mut engine, 2);
    let all = hand_out(&mut engine, op, 1, 1..=2);
    write(&mut engine, at(1), &all[..1]);
    engine.handle_completion(at(2), None, away());
    assert!(matches!(engine.poll_event(), Some(Event::Ended { delivery }) if delivery == all[0]));
    assert!(matches!(engine.poll_event(), Some(Event::Withdraw { delivery }) if delivery == all[1]));
    assert_eq!(engine.settle(at(2), all[0], Outcome::Accepted, None), Settlement::Ignored, "late");
    engine.handle_withdrawn(at(2), all[1]);
    assert!(engine.poll_operation().is_none(), "a lost reservation is not settled");
    engine.handle_completion(at(3), None, Completion::Ready(Readiness::Ready));
    assert!(matches!(engine.poll_operation(), Some((_, Operation::Attach { .. }))), "attached again");
}

#[test]
fn a_delivery_that_the_socket_does_not_take_goes_back_and_none_follows_until_it_does() {
    let mut engine = engine();
    let (_, op) = live(&mut engine, Mode::Individual, 3);
    let all = hand_out(&mut engine, op, 1, 1..=2);
    let waiting = reserve(&mut engine, 1);
    engine.handle_write_progress(at(10_000), all[0]);
    engine.handle_timeout(at(30_000));
    assert!(matches!(engine.poll_event(), Some(Event::Withdraw { delivery }) if delivery == all[1]));
    assert!(matches!(engine.poll_event(), Some(Event::Probe)));
    assert!(matches!(engine.poll_operation(), Some((_, Operation::Cancel { op })) if op == waiting));
    engine.handle_withdrawn(at(30_000), all[1]);
    engine.handle_completion(at(30_000), Some(waiting), Completion::Cancelled);
    assert_eq!(settles(&mut engine), [(1, ranges([]), ranges([]), ranges([2]))]);
    // Its first byte has left: nacked, but only when the peer has taken no byte of it for the whole timeout.
    engine.handle_write_progress(at(35_000), all[0]);
    engine.handle_socket_progress(at(35_000));
    reserve(&mut engine, 2);
    engine.handle_timeout(at(64_999));
    assert!(engine.is_pending(all[0]));
    engine.handle_timeout(at(65_000));
    assert_eq!(settles(&mut engine), [(1, ranges([]), ranges([1]), ranges([]))]);
    engine.handle_written(at(66_000), all[0]);
    assert_eq!(engine.settle(at(66_001), all[0], Outcome::Accepted, None), Settlement::Ignored);
}

#[test]
fn a_refused_settlement_leaves_the_delivery_pending_with_its_old_deadline() {
    let mut engine = engine();
    let (_, op) = live(&mut engine, Mode::Cumulative, 2);
    let all = hand_out(&mut engine, op, 1, 1..=2);
    write(&mut engine, at(10_000), &all[..1]);
    engine.handle_write_progress(at(10_000), all[1]);
    operations(&mut engine);
    // A client that settles on the first bytes; the last ones leave while the broker thinks.
    assert_eq!(engine.settle(at(15_000), all[1], Outcome::Accepted, None), Settlement::Accepted(2));
    let (settle, _) = engine.poll_operation().expect("an ack");
    engine.handle_written(at(20_000), all[1]);
    assert_eq!(engine.settle(at(20_001), all[1], Outcome::Accepted, None), Settlement::Ignored, "once");
    engine.handle_completion(at(21_000), Some(settle), Completion::Refused(Refusal::StorageFull));
    for expected in &all {
        let Some(Event::SettlementRefused { delivery, reason }) = engine.poll_event() else { panic!() };
        assert_eq!((delivery, reason), (*expected, Refusal::StorageFull));
    }
    for (due, seq) in [(40_000, 1), (50_000, 2)] {
        engine.handle_timeout(at(due - 1));
        assert!(settles(&mut engine).is_empty(), "not before its old deadline");
        engine.handle_timeout(at(due));
        assert_eq!(settles(&mut engine), [(1, ranges([]), ranges([seq]), ranges([]))]);
    }
}

#[test]
fn deadlines_rest_while_the_server_does_not_read() {
    let mut engine = engine();
    let (_, op) = live(&mut engine, Mode::Individual, 1);
    let all = hand_out(&mut engine, op, 1, 1..=1);
    write(&mut engine, at(0), &all);
    engine.pause_deadlines(at(29_500));
    assert_eq!(engine.poll_timeout(), None);
    engine.handle_timeout(at(90_000));
    assert!(engine.is_pending(all[0]));
    engine.resume_deadlines(at(100_000));
    assert_eq!(engine.poll_timeout(), Some(at(101_000)), "what had arrived is processed first");
    assert_eq!(engine.settle(at(100_500), all[0], Outcome::Accepted, None), Settlement::Accepted(1));
}

#[test]
fn the_end_nacks_what_was_seen_and_releases_what_was_not() {
    for (end, expected) in [(End::Lost, NackCause::Failure), (End::Shutdown, NackCause::Server)] {
        let mut engine = engine();
        let (_, op) = live(&mut engine, Mode::Individual, 4);
        let all = hand_out(&mut engine, op, 1, 1..=4);
        write(&mut engine, at(1), &all[..2]);
        engine.handle_write_progress(at(1), all[2]);
        engine.handle_end(at(2), end);
        engine.handle_end(at(2), end);
        let mut seen = 0;
        for (op, operation) in operations(&mut engine) {
            let Operation::Settle { nack, release, cause, .. } = operation else { panic!("{operation:?}") };
            seen += 1;
            match cause {
                cause if !nack.is_empty() => {
                    assert_eq!((cause, nack), (expected, ranges([1, 2, 3])));
                }
                _ => assert_eq!(release, ranges([4])),
            }
            engine.handle_completion(at(3), Some(op), Completion::Settled);
        }
        assert!(seen <= 2);
        let (op, _) = engine.poll_operation().expect("the broker's end of the subscription");
        engine.handle_completion(at(3), Some(op), Completion::Done);
        assert!(engine.is_finished());
        assert_eq!((engine.stats().nacked, engine.stats().released), (3, 1));
    }
}

#[test]
fn a_back_end_that_cannot_release_is_given_a_nack_that_is_no_failure() {
    let mut engine =
        Engine::new(Settings { capabilities: Capabilities::of(&[Capability::Queues]), is_ready: true });
    let (_, op) = live(&mut engine, Mode::Individual, 1);
    hand_out(&mut engine, op, 1, 1..=1);
    engine.handle_end(at(1), End::Closed);
    let (_, operation) = engine.poll_operation().expect("a settlement");
    let Operation::Settle { nack, release, cause, .. } = operation else { panic!("{operation:?}") };
    assert_eq!((nack, release, cause), (ranges([1]), ranges([]), NackCause::Server));
}

#[test]
fn publishes_of_one_input_are_one_operation() {
    let mut engine = engine();
    let destination = Destination { pattern: Pattern::Queues, channel: ChannelName::parse("q").unwrap() };
    for i in 0..3 {
        engine.publish(at(0), Correlation(i), destination.clone(), message(i));
    }
    assert_eq!(engine.unconfirmed(), (3, 3));
    let (op, operation) = engine.poll_operation().expect("a publish");
    assert!(matches!(operation, Operation::Publish { batch, .. } if batch.len() == 3));
    assert!(engine.poll_operation().is_none());
    let stored = || Ok(berth_engine::port::Stored { seq: Seq::new(1) });
    let results = vec![stored(), Err(Refusal::QueueFull), stored()];
    engine.handle_completion(at(1), Some(op), Completion::Published(results));
    for i in 0..3 {
        let Some(Event::Published { correlation, result }) = engine.poll_event() else { panic!() };
        assert_eq!((correlation, result.is_ok()), (Correlation(i), i != 1));
    }
    assert_eq!(engine.unconfirmed(), (0, 0));
}
