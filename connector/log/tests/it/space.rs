//! A full disk refuses publishes and nothing else, and a failing one poisons the log.

use crate::world::{Step, World};
use berth_log::sim::{SimStorage, lose_all};
use berth_log::{Error, Event, Fsync, IoAction, Lsn, Purpose, Refused};
use std::time::Duration;

const SEGMENT: u64 = 64 * 1024;

/// A log on a disk with room for so many segments.
fn on_disk_of(segments: u64) -> World {
    let mut disk = SimStorage::new();
    disk.set_capacity(Some(512 + segments * SEGMENT));
    World::on(disk, Fsync::Always).unwrap()
}

fn fill(world: &mut World) {
    loop {
        match world.append(Purpose::Publish, 30_000) {
            Ok(_) => world.drain(),
            Err(Refused::Busy) => assert!(world.one(), "a busy log has something to do"),
            Err(refused) => return assert_eq!(refused, Refused::Full),
        }
    }
}

#[test]
fn publishes_are_refused_when_only_the_reserve_is_left() {
    let mut world = on_disk_of(6);
    fill(&mut world);
    // Two records a segment, and the reserve of two is left.
    assert_eq!(world.log.appended(), Lsn(8));
    assert_eq!(world.log.confirmed(), Lsn(8));
    assert!(matches!(
        world.events().as_slice(),
        [Event::DiskFull(Error::Io { action: IoAction::Create, .. })]
    ));
    assert_eq!(world.append(Purpose::Publish, 30_000), Err(Refused::Full));
    for _ in 0..100 {
        world.append(Purpose::Upkeep, 100).unwrap();
        world.append(Purpose::Lazy, 100).unwrap();
        world.drain();
    }
    assert_eq!(world.log.confirmed(), Lsn(8 + 200));
    assert!(!world.log.is_poisoned());
}

#[test]
fn space_comes_back_when_segments_are_dropped() {
    let mut world = on_disk_of(6);
    fill(&mut world);
    world.events();
    world.step(&Step::KeepSegments(1));
    world.drain();
    world.append(Purpose::Publish, 30_000).unwrap();
    world.drain();
    assert!(matches!(world.events().as_slice(), [Event::DiskFreed]));
    fill(&mut world);
    world.kill();
    world.crash(&mut lose_all);
}

#[test]
fn space_comes_back_when_the_disk_grows() {
    let mut world = on_disk_of(5);
    fill(&mut world);
    assert_eq!(world.append(Purpose::Publish, 30_000), Err(Refused::Full));
    world.disk.set_capacity(None);
    world.drain();
    assert_eq!(world.append(Purpose::Publish, 30_000), Err(Refused::Full), "not tried again yet");
    let retry = world.log.poll_timeout().expect("it is tried again");
    assert!(retry <= world.now + Duration::from_secs(1));
    world.now = retry;
    world.drain();
    world.append(Purpose::Publish, 30_000).unwrap();
}

#[test]
fn relocation_gets_the_last_file_when_upkeep_has_used_up_the_rest() {
    let mut world = on_disk_of(4);
    fill(&mut world);
    while world.append(Purpose::Upkeep, 10_000).is_ok() {
        world.drain();
    }
    assert_eq!(world.append(Purpose::Upkeep, 10_000), Err(Refused::Full));
    assert_eq!(world.append(Purpose::Lazy, 10_000), Err(Refused::Full));
    world.append(Purpose::Relocate, 30_000).unwrap();
    let segments: Vec<_> = world.log.segments().collect();
    world.log.truncate_head(segments[1].id);
    world.first_kept = segments[1].first_lsn;
    world.drain();
    assert!(world.log.is_idle());
    assert_eq!(world.log.oldest(), segments[1].id);
    // The file of the segment that went is the new reserve.
    world.append(Purpose::Relocate, 50_000).unwrap();
    world.drain();
    world.kill();
}

/// Survivors may fill the last file to its end; the mark that gives the oldest segment back still finds
/// room.
#[test]
fn a_mark_finds_room_when_nothing_else_does() {
    let mut world = on_disk_of(4);
    fill(&mut world);
    while world.append(Purpose::Upkeep, 10_000).is_ok() {
        world.drain();
    }
    for len in [60_000, 10_000, 1000, 100, 0] {
        while world.append(Purpose::Relocate, len).is_ok() {
            world.drain();
        }
    }
    world.drain();
    let segments: Vec<_> = world.log.segments().collect();
    world.log.close();
    world.drain();
    assert_eq!(world.append(Purpose::Relocate, 0), Err(Refused::Full));
    world.log.truncate_head(segments[1].id);
    world.first_kept = segments[1].first_lsn;
    world.drain();
    assert_eq!(world.log.segments().next().map(|segment| segment.id), Some(segments[1].id));
    world.append(Purpose::Relocate, 1000).unwrap();
    world.drain();
    world.step(&Step::Wait);
    world.drain();
    assert!(world.log.is_idle());
    world.kill();
}

#[test]
fn a_start_on_a_full_disk_recovers_and_consumes() {
    let mut world = on_disk_of(5);
    fill(&mut world);
    let used = world.disk.used_bytes();
    world.disk.set_capacity(Some(used));
    let recovered = world.kill();
    assert_eq!(recovered.last, world.log.appended());
    assert_eq!(world.append(Purpose::Publish, 60_000), Err(Refused::Full));
    world.append(Purpose::Upkeep, 100).unwrap();
    world.drain();
    assert_eq!(world.log.confirmed(), world.log.appended());
}

#[test]
fn a_large_record_that_the_disk_has_no_room_for_is_refused_alone() {
    let mut world = on_disk_of(6);
    assert_eq!(world.append(Purpose::Publish, 500_000), Err(Refused::Busy));
    world.drain();
    assert_eq!(world.append(Purpose::Publish, 500_000), Err(Refused::Full));
    world.append(Purpose::Publish, 50_000).unwrap();
    world.drain();
    assert_eq!(world.log.confirmed(), Lsn(1));
}

/// Fails in every write and sync of a short history.
#[test]
fn a_failed_write_or_sync_poisons_the_log() {
    let mut poisoned = 0;
    for after in 1..=6 {
        let mut world = World::new(Fsync::Always);
        world.append(Purpose::Publish, 100).unwrap();
        world.drain();
        world.disk.fail_at(world.disk.calls() + after);
        for _ in 0..3 {
            if world.append(Purpose::Publish, 40_000).is_ok() {
                world.drain();
            }
        }
        if !world.log.is_poisoned() {
            continue;
        }
        poisoned += 1;
        let failed: Vec<_> =
            world.events().into_iter().filter(|event| matches!(event, Event::Failed(_))).collect();
        assert!(matches!(
            failed.as_slice(),
            [Event::Failed(Error::Io { action: IoAction::Write | IoAction::Sync, .. })]
        ));
        assert_eq!(world.append(Purpose::Upkeep, 1), Err(Refused::Poisoned));
        assert!(world.log.poll_storage(world.now).is_none());
        assert_eq!(world.log.poll_timeout(), None);
        // What was confirmed before can still be read, and a restart recovers.
        let (position, _) = world.model[0];
        world.read(position).unwrap();
        // What it finds in the page cache it makes durable, although the system takes it for written.
        world.kill();
        world.crash(&mut lose_all);
    }
    assert!(poisoned >= 4, "{poisoned}");
}

#[test]
fn a_failed_read_is_answered_and_poisons_nothing() {
    let mut world = World::new(Fsync::Always);
    let appended = world.append(Purpose::Publish, 100).unwrap();
    world.drain();
    world.disk.fail_reads_of(berth_log::FileId::Segment(appended.position.segment));
    let error = world.read(appended.position).unwrap_err();
    assert!(matches!(error, Error::Io { action: IoAction::Read, .. }));
    world.append(Purpose::Publish, 100).unwrap();
    world.drain();
    assert_eq!(world.log.confirmed(), Lsn(2));
}
