//! Without faults: what is appended is confirmed, read, scanned, replayed and given back.

use crate::world::{Step, World, cases, payload, recover, settings};
use berth_log::sim::SimStorage;
use berth_log::{Action, Cursor, Event, Fsync, Log, Lsn, Purpose, Read, Record, Refused, execute};
use berth_types::Instant;
use bytes::Bytes;
use proptest::prelude::*;
use std::time::Duration;

#[test]
fn one_barrier_covers_everything_appended_meanwhile() {
    let mut world = World::new(Fsync::Always);
    world.append(Purpose::Publish, 100).unwrap();
    let first = world.log.poll_storage(world.now).unwrap();
    for _ in 0..50 {
        world.append(Purpose::Publish, 100).unwrap();
    }
    assert!(world.log.poll_storage(world.now).is_none(), "one barrier at a time");
    let stored = execute(&mut world.disk, first);
    world.log.handle_stored(world.now, stored);
    assert_eq!(world.log.confirmed(), Lsn(1));
    let calls = world.disk.calls();
    assert!(world.one());
    assert_eq!(world.log.confirmed(), Lsn(51));
    assert_eq!(world.disk.calls() - calls, 2, "one write and one sync");
    assert!(world.log.is_idle());
}

#[test]
fn a_lazy_record_rides_along_or_waits_ten_milliseconds() {
    let mut world = World::new(Fsync::Always);
    world.append(Purpose::Lazy, 10).unwrap();
    assert!(!world.one());
    assert_eq!(world.log.poll_timeout(), Some(world.now + Log::LAZY_DELAY));
    world.append(Purpose::Publish, 10).unwrap();
    assert!(world.one());
    assert_eq!(world.log.confirmed(), Lsn(2));
    world.append(Purpose::Lazy, 10).unwrap();
    assert!(!world.one());
    world.step(&Step::Wait);
    assert!(world.one());
    assert_eq!(world.log.confirmed(), Lsn(3));
    assert_eq!(world.log.poll_timeout(), None);
}

#[test]
fn interval_confirms_what_is_written_and_syncs_ten_milliseconds_later() {
    let mut world = World::new(Fsync::Interval);
    world.append(Purpose::Publish, 10).unwrap();
    assert!(world.one());
    assert_eq!((world.log.confirmed(), world.log.durable()), (Lsn(1), Lsn(0)));
    assert!(!world.one());
    assert_eq!(world.log.poll_timeout(), Some(world.now + Fsync::INTERVAL));
    world.step(&Step::Wait);
    assert!(world.one());
    assert_eq!(world.log.durable(), Lsn(1));
    assert_eq!(world.log.poll_timeout(), None);
}

#[test]
fn never_syncs_when_a_segment_is_full_or_it_is_asked_for() {
    let mut world = World::new(Fsync::Never);
    world.append(Purpose::Publish, 10).unwrap();
    world.drain();
    world.step(&Step::Wait);
    assert!(!world.one());
    assert_eq!((world.log.confirmed(), world.log.durable()), (Lsn(1), Lsn(0)));
    world.log.request_sync();
    world.drain();
    assert_eq!(world.log.durable(), Lsn(1));
    world.append(Purpose::Publish, 40_000).unwrap();
    world.drain();
    assert_eq!(world.log.durable(), Lsn(1));
    world.append(Purpose::Publish, 40_000).unwrap();
    world.drain();
    assert_eq!(world.log.durable(), Lsn(3));
}

#[test]
fn a_record_is_read_from_memory_and_from_the_disk() {
    let mut world = World::new(Fsync::Always);
    let sizes = [0, 1, 20, 3000, 30_000, 50_000];
    let positions: Vec<_> =
        sizes.iter().map(|len| world.append(Purpose::Publish, *len).unwrap().position).collect();
    for position in &positions {
        assert!(matches!(world.log.read(*position, 9), Read::Ready(_)));
    }
    let op = world.log.poll_storage(world.now).unwrap();
    for position in &positions {
        assert!(matches!(world.log.read(*position, 9), Read::Ready(_)), "also while it is being written");
    }
    let stored = execute(&mut world.disk, op);
    world.log.handle_stored(world.now, stored);
    for (index, position) in positions.iter().enumerate() {
        assert!(matches!(world.log.read(*position, index as u64), Read::Pending));
    }
    world.drain();
    for (index, event) in world.events().into_iter().enumerate() {
        let Event::Read { token, result } = event else { panic!("{event:?}") };
        let Record { position, kind, payload: bytes } = result.unwrap();
        assert_eq!(token, index as u64);
        assert_eq!((position, kind as usize), (positions[index], index + 1));
        assert_eq!(bytes, payload(index as u64 + 1, sizes[index]));
    }
}

#[test]
fn neighbouring_reads_share_an_operation() {
    let mut world = World::new(Fsync::Always);
    let positions: Vec<_> = (0..100).map(|_| world.append(Purpose::Publish, 200).unwrap().position).collect();
    world.drain();
    for (token, position) in positions.iter().enumerate() {
        assert_eq!(world.log.read(*position, token as u64), Read::Pending);
    }
    let mut ops = 0;
    while world.one() {
        ops += 1;
    }
    assert_eq!(ops, 1);
    assert_eq!(world.events().len(), 100);
}

#[test]
fn a_position_outside_the_log_is_an_error_and_not_a_read() {
    let mut world = World::new(Fsync::Always);
    let appended = world.append(Purpose::Publish, 200).unwrap();
    world.drain();
    let beyond = berth_log::Position { offset: appended.position.offset + 4096, ..appended.position };
    assert!(world.read(beyond).is_err());
    let off_by_one = berth_log::Position { offset: appended.position.offset + 1, ..appended.position };
    assert!(world.read(off_by_one).is_err());
    let shorter = berth_log::Position { length: 100, ..appended.position };
    assert!(world.read(shorter).is_err());
    let elsewhere = berth_log::Position { segment: berth_log::SegmentId(99), ..appended.position };
    assert!(world.read(elsewhere).is_err());
}

/// Scans a segment to its end.
fn scan(world: &mut World, segment: berth_log::SegmentId) -> Vec<Record> {
    let mut cursor = Some(Cursor::start(segment));
    let mut all = Vec::new();
    while let Some(from) = cursor {
        world.log.scan(from, 5);
        world.drain();
        let mut events = world.events();
        let Some(Event::Scanned { token: 5, records, next }) = events.pop() else { panic!("no scan") };
        all.extend(records);
        cursor = next;
    }
    all
}

#[test]
fn a_scan_gives_every_written_record_of_a_segment() {
    let mut disk = SimStorage::new();
    let settings = berth_log::Settings { segment_bytes: 4 << 20, ..settings(Fsync::Always) };
    let (log, _) = Log::open(&mut disk, settings, Lsn(0), &mut |_, _| Ok(())).unwrap();
    let mut world = World::new(Fsync::Always);
    (world.log, world.disk) = (log, disk);
    let sizes = [10, 1_500_000, 0, 700_000, 400_000, 1, 100_000];
    for len in sizes {
        world.append(Purpose::Publish, len).unwrap();
        world.drain();
    }
    let segment = world.last_segment();
    world.append(Purpose::Publish, 77).unwrap();
    let records = scan(&mut world, segment);
    // The last one was appended and not written when the scan began; the scan's steps let it be written.
    let lens: Vec<_> = records.iter().map(|record| record.payload.len()).collect();
    assert_eq!(lens[..sizes.len()], sizes);
    for (index, record) in records.iter().enumerate() {
        assert_eq!(record.position, world.model[index].0);
        assert_eq!(record.payload, world.model[index].1);
    }
}

#[test]
fn a_scan_gets_over_any_number_of_marks() {
    let mut world = World::new(Fsync::Always);
    world.append(Purpose::Publish, 10).unwrap();
    for _ in 0..30 {
        world.log.close();
        world.drain();
        world.append(Purpose::Publish, 0).unwrap();
    }
    world.drain();
    let segment = world.last_segment();
    assert_eq!(scan(&mut world, segment).len(), 31);
}

#[test]
fn replay_starts_after_the_record_that_is_asked_for() {
    let mut world = World::new(Fsync::Always);
    for _ in 0..20 {
        world.append(Purpose::Publish, 20_000).unwrap();
        world.drain();
    }
    let mut disk = world.disk.clone();
    for from in [0, 1, 7, 19, 20, 21, u64::MAX] {
        let mut seen = Vec::new();
        let (_, report) = Log::open(&mut disk, settings(Fsync::Always), Lsn(from), &mut |lsn, _| {
            seen.push(lsn.0);
            Ok(())
        })
        .unwrap();
        assert_eq!(seen, (from.saturating_add(1)..=20).collect::<Vec<_>>());
        assert_eq!(report.last_lsn, Lsn(20));
    }
}

#[test]
fn what_the_visitor_refuses_is_named() {
    let mut world = World::new(Fsync::Always);
    let appended = world.append(Purpose::Publish, 20).unwrap();
    world.drain();
    let mut disk = world.disk.clone();
    let mut visitor = |_, _| Err("the kind of the record is not known");
    let error = Log::open(&mut disk, settings(Fsync::Always), Lsn(0), &mut visitor).unwrap_err();
    let expected = format!(
        "journal-0000000000000001.log is damaged at offset {}: the kind of the record is not known",
        appended.position.offset
    );
    assert_eq!(error.to_string(), expected);
}

#[test]
fn a_clean_end_is_seen_and_an_append_takes_it_back() {
    let mut world = World::new(Fsync::Never);
    world.append(Purpose::Publish, 20).unwrap();
    world.log.close();
    world.drain();
    assert!(world.log.is_idle());
    assert_eq!(world.log.durable(), Lsn(1));
    let open = |disk: &mut SimStorage| {
        Log::open(disk, settings(Fsync::Never), Lsn(0), &mut |_, _| Ok(())).unwrap().1
    };
    let report = open(&mut world.disk.clone());
    assert!(report.clean && report.cut.is_none());
    world.append(Purpose::Publish, 20).unwrap();
    world.drain();
    assert!(!open(&mut world.disk.clone()).clean);
}

#[test]
fn a_dropped_segment_is_used_again_and_never_seen_again() {
    let mut world = World::new(Fsync::Always);
    let first = world.append(Purpose::Publish, 30_000).unwrap();
    for _ in 0..30 {
        world.append(Purpose::Publish, 30_000).unwrap();
        world.drain();
        world.step(&Step::KeepSegments(2));
        world.drain();
    }
    // Two in use, the reserve, what is ahead, and at most one more that was kept for later.
    assert!(world.disk.used_bytes() <= 8 * 64 * 1024, "{}", world.disk.used_bytes());
    assert_eq!(world.log.segments().count(), 2);
    assert!(world.read(first.position).is_err());
    let kept = world.first_kept;
    let recovered = world.kill();
    assert_eq!(recovered.records[0].0, kept);
}

#[test]
fn a_segment_that_is_read_is_not_given_back() {
    let mut world = World::new(Fsync::Always);
    let first = world.append(Purpose::Publish, 30_000).unwrap();
    for _ in 0..4 {
        world.append(Purpose::Publish, 30_000).unwrap();
        world.drain();
    }
    assert_eq!(world.log.read(first.position, 3), Read::Pending);
    let read = world.log.poll_storage(world.now).unwrap();
    assert!(matches!(read.action, Action::Read { .. }));
    world.step(&Step::KeepSegments(1));
    world.drain();
    let stored = execute(&mut world.disk, read);
    world.log.handle_stored(world.now, stored);
    assert!(matches!(world.events().as_slice(), [Event::Read { token: 3, result: Ok(_) }]));
    world.drain();
    let names: Vec<_> = world.log.segments().map(|segment| segment.id).collect();
    assert_eq!(names.len(), 1);
}

#[test]
fn a_record_larger_than_a_segment_gets_one_of_its_size() {
    let mut world = World::new(Fsync::Always);
    world.append(Purpose::Publish, 10).unwrap();
    assert_eq!(world.append(Purpose::Publish, 300_000), Err(Refused::Busy));
    world.drain();
    let large = world.append(Purpose::Publish, 300_000).unwrap();
    world.append(Purpose::Publish, 10).unwrap();
    world.drain();
    assert_eq!(world.read(large.position).unwrap().payload, payload(2, 300_000));
    world.append(Purpose::Publish, 60_000).unwrap();
    world.drain();
    assert_eq!(world.kill().records.len(), 4);
}

#[test]
fn a_large_record_may_be_the_first_of_a_log() {
    let mut world = World::new(Fsync::Always);
    world.step(&Step::Append(300_000));
    world.drain();
    assert_eq!(world.log.confirmed(), Lsn(1));
    world.step(&Step::KeepSegments(1));
    world.step(&Step::Append(30));
    world.drain();
    assert_eq!(world.kill().records.len(), 2);
}

#[test]
fn what_is_too_large_is_refused() {
    let mut world = World::new(Fsync::Always);
    let body = Bytes::from(vec![0; Log::RECORD_BYTES_MAX as usize]);
    let parts = [body, Bytes::from_static(b"x")];
    assert_eq!(world.log.append(Purpose::Upkeep, 0, &parts), Err(Refused::TooLarge));
    assert_eq!(world.log.appended(), Lsn(0));
}

#[test]
fn publishes_wait_while_too_much_is_unwritten() {
    let mut disk = SimStorage::new();
    let settings = berth_log::Settings { unwritten_bytes_max: 1000, ..settings(Fsync::Always) };
    let (mut log, _) = Log::open(&mut disk, settings, Lsn(0), &mut |_, _| Ok(())).unwrap();
    let body = [Bytes::from(vec![0; 5000])];
    log.append(Purpose::Publish, 0, &body).expect("one always fits");
    assert_eq!(log.append(Purpose::Publish, 0, &body), Err(Refused::Busy));
    log.append(Purpose::Upkeep, 0, &body).expect("upkeep does not wait");
    let op = log.poll_storage(Instant::ZERO).unwrap();
    assert_eq!(log.append(Purpose::Publish, 0, &body), Err(Refused::Busy));
    let stored = execute(&mut disk, op);
    log.handle_stored(Instant::ZERO + Duration::from_millis(1), stored);
    log.append(Purpose::Publish, 0, &body).unwrap();
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0_usize..3000).prop_map(Step::Append),
        1 => (0_usize..90_000).prop_map(Step::Append),
        2 => (0_usize..100).prop_map(Step::Lazy),
        3 => Just(Step::Drain),
        2 => Just(Step::One),
        1 => Just(Step::Wait),
        1 => (1_usize..4).prop_map(Step::KeepSegments),
        1 => Just(Step::Sync),
    ]
}

proptest! {
    #![proptest_config(cases(64))]

    /// What is replayed is what was appended, and every record can be read where it was said to lie.
    #[test]
    fn replay_equals_what_was_appended(
        steps in prop::collection::vec(any_step(), 1..60),
        fsync in prop_oneof![Just(Fsync::Always), Just(Fsync::Interval), Just(Fsync::Never)],
    ) {
        let mut world = World::new(fsync);
        for step in &steps {
            world.step(step);
        }
        world.log.close();
        world.drain();
        prop_assert!(world.log.is_idle());
        let (_, recovered) = recover(&mut world.disk.clone(), fsync).unwrap();
        world.check(&recovered, world.log.appended());
        for (_, record) in recovered.records {
            prop_assert_eq!(&world.read(record.position).unwrap(), &record);
        }
    }
}
