//! Damage to what was synced is found and named, wherever it is; only the very last batch reads as a torn
//! tail.

use crate::world::{World, cases, recover, settings};
use berth_log::sim::SimStorage;
use berth_log::{Error, FileId, Fsync, Log, Lsn, Purpose, SegmentId};
use proptest::prelude::*;

/// A log of 9 batches in 3 segments, each synced before the next was written.
fn sound() -> World {
    let mut world = World::new(Fsync::Always);
    for len in [30, 0, 60_000, 700, 63_000, 10, 1600, 0, 44] {
        world.append(Purpose::Publish, len).unwrap();
        world.drain();
    }
    assert_eq!(world.log.segments().count(), 3);
    world
}

/// Where each batch starts and ends in its file, in order; the header is 64 bytes before the record.
fn batches(world: &World) -> Vec<(SegmentId, u64, u64)> {
    let of = |position: berth_log::Position| {
        let offset = u64::from(position.offset);
        (position.segment, offset - 64, offset + 12 + u64::from(position.length))
    };
    world.model.iter().map(|(position, _)| of(*position)).collect()
}

/// Where the error says the damage is.
fn place(error: &Error) -> (FileId, u64) {
    match error {
        Error::Corrupt { file, offset, .. } => (*file, *offset),
        Error::NewerFormat { file, .. } => (*file, 0),
        Error::Io { .. } | Error::Poisoned => panic!("{error}"),
        _ => panic!("a new kind of error: {error}"),
    }
}

/// Every byte of a batch: all of a short one, the ends and some of the middle of a long one.
fn bytes_of(start: u64, end: u64) -> impl Iterator<Item = u64> {
    (start..end).filter(move |at| *at < start + 200 || *at + 20 > end || at % 997 == 0)
}

#[test]
fn a_flipped_byte_of_a_synced_batch_is_damage() {
    let world = sound();
    let batches = batches(&world);
    for (segment, start, end) in &batches[..batches.len() - 1] {
        for at in bytes_of(*start, *end) {
            let mut disk = world.disk.clone();
            disk.damage(FileId::Segment(*segment), at, 1 << (at % 8));
            let error = recover(&mut disk, Fsync::Always).expect_err("damage");
            let (file, offset) = place(&error);
            assert_eq!(file, FileId::Segment(*segment), "byte {at}: {error}");
            assert!((*start..=at).contains(&offset), "byte {at} of {start}..{end}: {error}");
        }
    }
}

#[test]
fn a_flipped_byte_of_the_last_batch_is_a_torn_tail() {
    let world = sound();
    let &(segment, start, end) = batches(&world).last().unwrap();
    for at in start..end {
        let mut disk = world.disk.clone();
        disk.damage(FileId::Segment(segment), at, 0x10);
        let (_, report) = Log::open(&mut disk, settings(Fsync::Always), Lsn(0), &mut |_, _| Ok(())).unwrap();
        assert_eq!(report.last_lsn, Lsn(8));
        // Without its header a batch leaves no trace, so there is nothing to warn of.
        assert_eq!(report.cut, (at >= start + 64).then_some((segment, start as u32)), "byte {at}");
    }
}

#[test]
fn a_clean_end_leaves_no_byte_of_a_record_unproven() {
    let mut world = sound();
    world.log.close();
    world.drain();
    let &(segment, start, end) = batches(&world).last().unwrap();
    for at in start..end {
        let mut disk = world.disk.clone();
        disk.damage(FileId::Segment(segment), at, 0x10);
        let error = recover(&mut disk, Fsync::Always).expect_err("damage");
        assert_eq!(place(&error).0, FileId::Segment(segment));
    }
}

#[test]
fn a_flipped_byte_of_a_segment_header_is_damage() {
    let world = sound();
    for segment in world.log.segments() {
        for at in 0..512 {
            let mut disk = world.disk.clone();
            disk.damage(FileId::Segment(segment.id), at, 0x20);
            let error = recover(&mut disk, Fsync::Always).expect_err("damage");
            assert_eq!(place(&error), (FileId::Segment(segment.id), 0), "byte {at}: {error}");
        }
    }
}

#[test]
fn a_flipped_byte_of_the_identity_is_damage() {
    let world = sound();
    for at in 0..512 {
        let mut disk = world.disk.clone();
        disk.damage(FileId::Meta, at, 0x02);
        let error = recover(&mut disk, Fsync::Always).expect_err("damage");
        assert_eq!(place(&error), (FileId::Meta, 0));
    }
}

#[test]
fn a_flipped_byte_elsewhere_changes_nothing() {
    let world = sound();
    let expected = recover(&mut world.disk.clone(), Fsync::Always).unwrap().1;
    let batches = batches(&world);
    let mut tried = 0;
    for (file, len) in berth_log::Storage::list(&mut world.disk.clone()).unwrap() {
        let FileId::Segment(id) = file else { continue };
        let is_spare = world.log.segments().all(|segment| segment.id != id);
        for at in (0..len).step_by(if is_spare { 4111 } else { 97 }) {
            let is_in_batch =
                batches.iter().any(|(segment, start, end)| *segment == id && (*start..*end).contains(&at));
            if is_in_batch || (at < 512 && !is_spare) {
                continue;
            }
            let mut disk = world.disk.clone();
            disk.damage(file, at, 0x04);
            assert_eq!(recover(&mut disk, Fsync::Always).unwrap().1, expected);
            tried += 1;
        }
    }
    assert!(tried > 100);
}

#[test]
fn a_missing_segment_is_damage() {
    let mut world = sound();
    world.log.close();
    world.drain();
    for segment in world.log.segments() {
        let mut disk = world.disk.clone();
        disk.steal(FileId::Segment(segment.id));
        // When the last segment is gone, nothing is left that says it was there but the files of the
        // reserve behind it.
        let result = recover(&mut disk, Fsync::Always);
        if segment.id == world.last_segment() {
            assert!(result.unwrap().1.last < Lsn(9));
        } else {
            assert_eq!(place(&result.unwrap_err()), (FileId::Segment(segment.id), 0));
        }
    }
}

#[test]
fn a_missing_identity_is_damage() {
    let mut world = sound();
    world.disk.steal(FileId::Meta);
    let error = recover(&mut world.disk, Fsync::Always).unwrap_err();
    assert_eq!(error.to_string(), "journal.meta is damaged at offset 0: the file is missing");
}

#[test]
fn a_segment_under_another_name_is_damage() {
    let mut world = sound();
    let ids: Vec<_> = world.log.segments().map(|segment| segment.id).collect();
    let far = FileId::Segment(SegmentId(900));
    berth_log::Storage::rename(&mut world.disk, FileId::Segment(ids[0]), far).unwrap();
    let error = recover(&mut world.disk, Fsync::Always).unwrap_err();
    assert_eq!(place(&error).0, FileId::Segment(ids[0]));
}

#[test]
fn damage_before_a_checkpoint_is_found_when_it_is_read() {
    let mut world = sound();
    let (position, _) = world.model[2];
    world.disk.damage(FileId::Segment(position.segment), u64::from(position.offset) + 500, 1);
    // The segment is not read at the start, for the caller knows what is in it.
    let opened = Log::open(&mut world.disk, settings(Fsync::Always), Lsn(4), &mut |_, _| Ok(()));
    world.log = opened.unwrap().0;
    let error = world.read(position).unwrap_err();
    assert_eq!(place(&error), (FileId::Segment(position.segment), position.offset.into()));
}

#[test]
fn a_torn_batch_before_a_synced_one_is_damage_also_without_syncs_between() {
    // fsync never: the batches of one segment are not synced one by one, but the segment is when it is
    // full.
    let mut world = World::new(Fsync::Never);
    for len in [10, 10, 60_000, 10, 64_000, 10] {
        world.append(Purpose::Publish, len).unwrap();
        world.drain();
    }
    let (position, _) = world.model[1];
    world.disk.crash(&mut berth_log::sim::keep_all);
    world.disk.damage(FileId::Segment(position.segment), position.offset.into(), 1);
    let error = recover(&mut world.disk, Fsync::Never).unwrap_err();
    assert_eq!(place(&error), (FileId::Segment(position.segment), position.offset.into()));
}

#[test]
fn a_disk_that_cannot_be_read_is_not_called_damaged() {
    let mut world = sound();
    world.disk.fail_reads_of(FileId::Segment(SegmentId(2)));
    let error = recover(&mut world.disk, Fsync::Always).unwrap_err();
    assert!(matches!(error, Error::Io { .. }), "{error}");
}

#[test]
fn arbitrary_bytes_are_refused_or_cut_and_never_panic() {
    for seed in 0..200_u64 {
        let mut world = sound();
        world.disk.crash(&mut berth_log::sim::keep_all);
        let mut draw = seed;
        for _ in 0..20 {
            draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let segment = SegmentId(1 + (draw >> 33) % 5);
            world.disk.damage(FileId::Segment(segment), (draw >> 40) % 65_536, (draw >> 8) as u8);
        }
        let result = recover(&mut world.disk, Fsync::Always);
        assert!(matches!(result, Err(Error::Corrupt { .. } | Error::NewerFormat { .. }) | Ok(_)));
    }
}

/// The bytes of one log put into another prove nothing there.
#[test]
fn segments_of_another_log_are_not_taken() {
    let world = sound();
    let mut other = SimStorage::new();
    let foreign = berth_log::Settings { secret: 78, ..settings(Fsync::Always) };
    drop(Log::open(&mut other, foreign, Lsn(0), &mut |_, _| Ok(())).unwrap());
    let file = FileId::Segment(SegmentId(1));
    let mut disk = world.disk;
    let bytes = berth_log::Storage::read_at(&mut disk, file, 0, 65_536).unwrap();
    berth_log::Storage::write_at(&mut other, file, 0, &[bytes]).unwrap();
    let (_, recovered) = recover(&mut other, Fsync::Always).unwrap();
    assert_eq!(recovered.records, []);
}

/// What fuzzing found worth keeping.
#[test]
fn the_corpus_of_the_fuzzer() {
    let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz/corpus/log_recover");
    let mut inputs = 0;
    for entry in std::fs::read_dir(corpus).unwrap() {
        berth_log::fuzz_recover(&std::fs::read(entry.unwrap().path()).unwrap());
        inputs += 1;
    }
    assert!(inputs >= 7);
}

proptest! {
    #![proptest_config(cases(128))]

    /// Also headers that pass although nobody wrote them end in a log that works or in an error.
    #[test]
    fn whatever_the_files_hold_recovery_ends(
        changes in prop::collection::vec(prop::array::uniform32(any::<u8>()), 1..12),
    ) {
        // A change has 48 bytes.
        let parts = changes.iter().map(|part| [&part[..], &part[..16]].concat());
        berth_log::fuzz_recover(&parts.collect::<Vec<_>>().concat());
    }
}
