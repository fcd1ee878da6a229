//! Power cuts in every storage call of short histories, with every way of losing and tearing what was not
//! synced.

use crate::world::{Recovered, Step, World, cases, recover};
use berth_log::Fsync;
use berth_log::sim::{SimStorage, Survivor, Unsynced, by_mask, by_seed, keep_all, lose_all};
use proptest::prelude::*;

/// Runs `steps` until the power fails in call `call`. None: it did not come to that.
fn cut_short(steps: &[Step], fsync: Fsync, call: u64) -> Option<Result<World, SimStorage>> {
    let mut disk = SimStorage::new();
    disk.crash_at(call);
    let Ok(mut world) = World::on(disk.clone(), fsync) else {
        return Some(Err(disk_after_failed_start(disk, fsync)));
    };
    for step in steps {
        world.step(step);
        if world.disk.is_down() {
            return Some(Ok(world));
        }
    }
    None
}

/// The disk as a start that the power cut left it.
fn disk_after_failed_start(mut disk: SimStorage, fsync: Fsync) -> SimStorage {
    assert!(recover(&mut disk, fsync).is_err());
    assert!(disk.is_down());
    disk
}

type Pick = Box<dyn FnMut(Unsynced) -> Survivor>;

/// Every subset of the unsynced sectors when there are few; else a spread of them.
fn picks(unsynced: usize) -> Vec<Pick> {
    let mut picks: Vec<Pick> = vec![Box::new(lose_all), Box::new(keep_all)];
    if unsynced <= 6 {
        picks.extend((1..(1_u64 << unsynced) - 1).map(|mask| Box::new(by_mask(mask)) as Pick));
    } else {
        let some = [0, 1, 2, 3, unsynced / 2, unsynced - 2, unsynced - 1];
        let one_lost = some.map(|one| Box::new(move |at: Unsynced| keep_if(at, at.index != one)) as Pick);
        let one_kept = some.map(|one| Box::new(move |at: Unsynced| keep_if(at, at.index == one)) as Pick);
        picks.extend(one_lost.into_iter().chain(one_kept));
    }
    picks.extend((0..8).map(|seed| Box::new(by_seed(seed, seed % 2 == 0)) as Pick));
    picks
}

fn keep_if(unsynced: Unsynced, is_kept: bool) -> Survivor {
    Survivor::Version(if is_kept { unsynced.versions } else { 0 })
}

/// The world after a power cut, opened, checked, opened once more, cut again while it is opened, and used.
fn survive(world: &World, pick: &mut dyn FnMut(Unsynced) -> Survivor, fsync: Fsync) {
    let mut after = world.fork();
    after.disk.crash(pick);
    let torn = after.disk.clone();
    let recovered = after.crash(&mut keep_all);
    let again = recover(&mut after.disk.clone(), fsync).expect("once more").1;
    assert_eq!(again, recovered, "recovery is idempotent");
    recover_interrupted(&torn, &recovered, fsync);
    after.step(&Append(700));
    after.step(&Append(10));
    after.drain();
    after.step(&Append(60_000));
    after.drain();
    after.log.request_sync();
    after.drain();
    after.crash(&mut lose_all);
}

/// The power fails in every call of a recovery; the next recovery must find the same.
fn recover_interrupted(torn: &SimStorage, expected: &Recovered, fsync: Fsync) {
    let mut call = torn.calls() + 1;
    loop {
        let mut disk = torn.clone();
        disk.crash_at(call);
        if recover(&mut disk, fsync).is_ok() {
            return;
        }
        for seed in 0..2 {
            let mut disk = disk.clone();
            disk.crash(&mut by_seed(seed, false));
            let found = recover(&mut disk, fsync).expect("after a power cut in recovery").1;
            assert_eq!(found, *expected);
        }
        call += 1;
    }
}

/// Cuts the power in every call of `steps`, in every way.
fn crash_everywhere(steps: &[Step], fsync: Fsync) {
    let mut call = 1;
    while let Some(cut) = cut_short(steps, fsync, call) {
        match cut {
            Ok(world) => {
                for mut pick in picks(world.disk.unsynced_sectors()) {
                    survive(&world, &mut pick, fsync);
                }
            }
            Err(disk) => {
                for mut pick in picks(disk.unsynced_sectors()) {
                    let mut disk = disk.clone();
                    disk.crash(&mut pick);
                    let (_, recovered) = recover(&mut disk, fsync).expect("a new log");
                    assert_eq!(recovered.records, []);
                }
            }
        }
        call += 1;
    }
    assert!(call > 10, "the history has calls");
}

use Step::{Append, Close, Drain, KeepSegments, Lazy, One, Sync, Wait};

#[test]
fn small_batches() {
    let steps =
        [Append(10), Drain, Append(600), Lazy(20), Append(30), Drain, Append(1500), One, Append(5), Drain];
    for fsync in [Fsync::Always, Fsync::Interval, Fsync::Never] {
        crash_everywhere(&steps, fsync);
    }
}

#[test]
fn a_barrier_over_two_segments() {
    let steps = [Append(100), Drain, Append(40_000), Append(30_000), Append(100), Drain, Append(9), Drain];
    for fsync in [Fsync::Always, Fsync::Interval, Fsync::Never] {
        crash_everywhere(&steps, fsync);
    }
}

#[test]
fn the_first_barrier_of_a_log_over_several_segments() {
    let steps = [
        Append(100),
        Append(40_000),
        Append(40_000),
        KeepSegments(1),
        Append(40_000),
        Drain,
        Append(7),
        Drain,
    ];
    for fsync in [Fsync::Always, Fsync::Never] {
        crash_everywhere(&steps, fsync);
    }
}

#[test]
fn segments_are_given_back() {
    let steps = [
        Append(40_000),
        Drain,
        Append(40_000),
        Drain,
        Append(40_000),
        Drain,
        KeepSegments(1),
        Drain,
        Append(40_000),
        Append(300),
        KeepSegments(1),
        Append(3),
        Drain,
        Append(40_000),
        Drain,
        Append(40_000),
        Drain,
    ];
    for fsync in [Fsync::Always, Fsync::Interval, Fsync::Never] {
        crash_everywhere(&steps, fsync);
    }
}

#[test]
fn a_large_record_and_a_clean_end() {
    let steps =
        [Append(10), Drain, Append(100_000), Drain, Append(10), Drain, Close, Drain, Append(40), Drain];
    for fsync in [Fsync::Always, Fsync::Never] {
        crash_everywhere(&steps, fsync);
    }
}

#[test]
fn many_unsynced_batches() {
    let steps = [
        Append(10),
        One,
        Append(10),
        One,
        Append(10),
        One,
        Wait,
        One,
        Append(10),
        One,
        Append(10),
        One,
        Sync,
        Drain,
    ];
    for fsync in [Fsync::Interval, Fsync::Never] {
        crash_everywhere(&steps, fsync);
    }
}

/// The power fails, and of the unsynced sectors exactly these are lost, counted from the first one.
fn lose(lost: &'static [usize]) -> impl FnMut(Unsynced) -> Survivor {
    move |unsynced| keep_if(unsynced, !lost.contains(&unsynced.index))
}

/// The same, counted from the start of the file.
fn lose_sectors(lost: &'static [u64]) -> impl FnMut(Unsynced) -> Survivor {
    move |unsynced| keep_if(unsynced, !lost.contains(&unsynced.sector))
}

/// Every batch fills one sector. What was cut lies where the batch after the new one would.
#[test]
fn a_whole_batch_behind_the_cut_never_comes_back() {
    let mut world = World::new(Fsync::Never);
    for _ in 0..4 {
        world.step(&Append(300));
        world.drain();
    }
    world.log.request_sync();
    world.drain();
    for _ in 0..4 {
        world.step(&Append(300));
        world.drain();
    }
    assert_eq!(world.crash(&mut lose(&[0])).last.0, 4);
    let sector = |position: berth_log::Position| u64::from(position.offset) / 512;
    let cut = sector(world.model[3].0) + 2;
    world.step(&Append(300));
    world.drain();
    let mut powerless = world.fork();
    // Also when the power fails now and what was done to that place since is lost.
    let found = powerless.crash(&mut |unsynced| keep_if(unsynced, unsynced.sector != cut));
    assert_eq!(found.last.0, 5);
    assert_eq!(world.kill().last.0, 5);
}

/// A batch of three records, of which each sector but that of the second survived, is cut. Then another of
/// the same sizes is written in its place, and the sectors of its third record are lost: the old ones must
/// not take their place.
#[test]
fn a_new_batch_never_adopts_records_of_the_one_that_was_cut() {
    let mut world = World::new(Fsync::Always);
    let batch = |world: &mut World| {
        for len in [1100, 860, 1100] {
            world.step(&Append(len));
        }
        let call = world.disk.calls() + 1;
        world.disk.crash_at(call);
        world.drain();
    };
    // Sector 0 is the segment header; records 1 to 3 begin in sectors 1, 3 and 5, the third at its very
    // start.
    batch(&mut world);
    assert_eq!(world.crash(&mut lose_sectors(&[4])).records, []);
    batch(&mut world);
    assert_eq!(world.crash(&mut lose_sectors(&[5, 6, 7])).records, []);
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => (0_usize..2500).prop_map(Append),
        1 => (20_000_usize..90_000).prop_map(Append),
        2 => (0_usize..100).prop_map(Lazy),
        4 => Just(Drain),
        3 => Just(One),
        1 => Just(Wait),
        2 => (1_usize..4).prop_map(KeepSegments),
        1 => Just(Sync),
        1 => Just(Close),
    ]
}

fn any_life() -> impl Strategy<Value = (Vec<Step>, u64, u64, bool)> {
    (prop::collection::vec(any_step(), 1..25), 1_u64..60, any::<u64>(), any::<bool>())
}

proptest! {
    #![proptest_config(cases(96))]

    /// One log lives through several power cuts and ends of its process, each at a random call of a random
    /// history.
    #[test]
    fn many_lives(
        lives in prop::collection::vec(any_life(), 1..6),
        fsync in prop_oneof![2 => Just(Fsync::Always), 1 => Just(Fsync::Interval), 1 => Just(Fsync::Never)],
        garbage in any::<bool>(),
    ) {
        let mut world = World::new(fsync);
        for (steps, call, seed, is_power_cut) in lives {
            world.disk.crash_at(world.disk.calls() + call);
            for step in &steps {
                if !world.disk.is_down() {
                    world.step(step);
                }
            }
            if is_power_cut {
                world.crash(&mut by_seed(seed, garbage));
            } else {
                world.kill();
            }
        }
    }
}
