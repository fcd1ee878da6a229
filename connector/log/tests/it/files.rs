//! The same on real files.

use crate::world::{payload, settings};
use berth_log::{
    Error, FileId, FileStorage, Fsync, IoAction, Log, Lsn, Purpose, Record, SegmentId, Storage, execute,
};
use berth_types::Instant;
use bytes::Bytes;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

const CHILD: &str = "BERTH_LOG_TEST_CHILD_DIR";

fn open(storage: &mut FileStorage) -> (Log, Vec<(Lsn, Record)>) {
    let mut records = Vec::new();
    let (log, _) = Log::open(storage, settings(Fsync::Always), Lsn(0), &mut |lsn, record| {
        records.push((lsn, record));
        Ok(())
    })
    .unwrap();
    (log, records)
}

fn drain(log: &mut Log, storage: &mut FileStorage) {
    while let Some(op) = log.poll_storage(Instant::ZERO) {
        let stored = execute(storage, op);
        log.handle_stored(Instant::ZERO, stored);
    }
    assert!(!log.is_poisoned());
}

#[test]
fn a_log_on_files_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let lens = [10, 0, 3000, 40_000, 50_000, 100_000, 7, 2049];
    {
        let mut storage = FileStorage::open(dir.path()).unwrap();
        let (mut log, _) = open(&mut storage);
        for (index, len) in lens.iter().enumerate() {
            let bytes = Bytes::from(payload(index as u64 + 1, *len));
            let parts = [bytes.slice(..len / 2), bytes.slice(len / 2..)];
            while log.append(Purpose::Publish, 3, &parts).is_err() {
                drain(&mut log, &mut storage);
            }
        }
        drain(&mut log, &mut storage);
        assert_eq!(log.confirmed(), Lsn(lens.len() as u64));
    }
    let mut storage = FileStorage::open(dir.path()).unwrap();
    let (mut log, records) = open(&mut storage);
    assert_eq!(records.len(), lens.len());
    for ((lsn, record), len) in records.iter().zip(lens) {
        assert_eq!(record.payload, payload(lsn.0, len));
    }
    let last = log.segments().last().unwrap().id;
    log.truncate_head(last);
    drain(&mut log, &mut storage);
    assert_eq!(log.segments().count(), 1);
}

#[test]
fn segments_are_allocated_in_full() {
    let dir = tempfile::tempdir().unwrap();
    let mut storage = FileStorage::open(dir.path()).unwrap();
    let file = FileId::Segment(SegmentId(7));
    storage.create(file, 1 << 20).unwrap();
    let metadata = std::fs::metadata(dir.path().join(file.to_string())).unwrap();
    assert_eq!(metadata.len(), 1 << 20);
    assert!(metadata.blocks() * 512 >= 1 << 20, "{} blocks", metadata.blocks());
    assert_eq!(storage.read_at(file, 5000, 3).unwrap(), [0, 0, 0].as_slice());
    let beyond = storage.read_at(file, (1 << 20) - 1, 2).unwrap_err();
    assert_eq!(beyond.kind(), io::ErrorKind::UnexpectedEof);
}

#[test]
fn every_method_does_what_it_says() {
    let dir = tempfile::tempdir().unwrap();
    let mut storage = FileStorage::open(dir.path()).unwrap();
    let (one, two) = (FileId::Side(1), FileId::Side(0xabc));
    storage.create(one, 0).unwrap();
    // More parts than one call takes.
    let parts: Vec<_> = (0..3000_u32).map(|n| Bytes::copy_from_slice(&n.to_le_bytes())).collect();
    storage.write_at(one, 100, &parts).unwrap();
    storage.sync(one).unwrap();
    assert_eq!(storage.list().unwrap(), [(one, 12_100)]);
    assert_eq!(storage.read_at(one, 100 + 4 * 2999, 4).unwrap(), 2999_u32.to_le_bytes().as_slice());
    storage.create(two, 10).unwrap();
    storage.rename(one, two).unwrap();
    assert_eq!(storage.list().unwrap(), [(two, 12_100)]);
    storage.truncate(two, 104).unwrap();
    assert_eq!(storage.read_at(two, 99, 5).unwrap(), [0; 5].as_slice());
    assert_eq!(storage.read_at(one, 0, 1).unwrap_err().kind(), io::ErrorKind::NotFound);
    storage.remove(two).unwrap();
    assert_eq!(storage.list().unwrap(), []);
}

#[test]
fn more_files_than_are_kept_open() {
    let dir = tempfile::tempdir().unwrap();
    let mut storage = FileStorage::open(dir.path()).unwrap();
    for id in 0..200 {
        storage.create(FileId::Side(id), 0).unwrap();
        storage.write_at(FileId::Side(id), 0, &[Bytes::copy_from_slice(&id.to_le_bytes())]).unwrap();
        storage.sync(FileId::Side(id)).unwrap();
    }
    let open = std::fs::read_dir("/proc/self/fd").unwrap().filter(|fd| {
        let target = std::fs::read_link(fd.as_ref().unwrap().path());
        target.is_ok_and(|target| target.starts_with(dir.path()))
    });
    assert!(open.count() < 80);
    for id in 0..200 {
        assert_eq!(storage.read_at(FileId::Side(id), 0, 8).unwrap(), id.to_le_bytes().as_slice());
    }
}

#[test]
fn what_a_crash_left_of_a_create_is_removed_and_strange_files_are_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let unfinished = dir.path().join("journal-0000000000000003.log.new");
    let strange = dir.path().join("notes.txt.new");
    std::fs::write(&unfinished, "half").unwrap();
    std::fs::write(&strange, "mine").unwrap();
    std::fs::write(dir.path().join("journal-3.log"), "not a name of ours").unwrap();
    let mut storage = FileStorage::open(dir.path()).unwrap();
    assert!(!unfinished.exists() && strange.exists());
    assert_eq!(storage.list().unwrap(), []);
}

#[test]
fn a_second_holder_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let first = FileStorage::open(dir.path()).unwrap();
    let error = FileStorage::open(dir.path()).unwrap_err();
    assert!(matches!(error, Error::Io { action: IoAction::Lock, file: FileId::Lock, .. }));
    assert!(error.to_string().ends_with("is in use by another process"), "{error}");
    drop(first);
    FileStorage::open(dir.path()).unwrap();
}

#[test]
fn a_second_process_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let first = FileStorage::open(dir.path()).unwrap();
    assert_eq!(open_in_child(dir.path()), "refused");
    drop(first);
    assert_eq!(open_in_child(dir.path()), "opened");
}

/// Not a test of its own: the second process of the one above.
#[test]
fn child() {
    if let Some(dir) = std::env::var_os(CHILD) {
        let is_refused = FileStorage::open(Path::new(&dir)).is_err();
        println!("child: {}", if is_refused { "refused" } else { "opened" });
    }
}

fn open_in_child(dir: &Path) -> String {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["files::child", "--exact", "--nocapture"])
        .env(CHILD, dir)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let word = text.lines().find_map(|line| line.split("child: ").nth(1));
    word.unwrap_or_else(|| panic!("{text}")).to_owned()
}

#[test]
fn a_directory_that_cannot_be_written_is_refused_with_a_reason() {
    let dir = tempfile::tempdir().unwrap();
    let closed = dir.path().join("closed");
    std::fs::create_dir(&closed).unwrap();
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o555)).unwrap();
    // The superuser may write there nevertheless; a part of the kernel's tree refuses also him.
    let is_superuser = std::fs::write(closed.join("probe"), "").is_ok();
    let place = if is_superuser { Path::new("/sys/kernel") } else { closed.as_path() };
    let error = FileStorage::open(place).unwrap_err();
    assert!(matches!(error, Error::Io { action: IoAction::Lock, .. }), "{error}");
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let error = FileStorage::open(&file.join("below")).unwrap_err();
    assert!(matches!(error, Error::Io { action: IoAction::Create, .. }), "{error}");
}
