//! The disk as the log sees it: eight blocking methods, operations as values, and the one implementation on
//! files.

#![allow(clippy::disallowed_types, reason = "the one place of the pure crates that touches files")]

use crate::error::{Error, IoAction};
use crate::position::SegmentId;
use bytes::{Bytes, BytesMut};
use std::collections::BTreeMap;
use std::fmt;
use std::fs::{File, TryLockError};
use std::io::{self, IoSlice, Seek, SeekFrom, Write as _};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// A file of the data directory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum FileId {
    /// Holds the lock on the data directory; never listed.
    Lock,
    /// The journal's identity: format version and secret.
    Meta,
    /// A segment of the journal; fully allocated.
    Segment(SegmentId),
    /// A file of the log's owner that can be rebuilt from the journal. It grows by writing and may meet a
    /// full disk.
    Side(u64),
}

impl fmt::Display for FileId {
    /// The file's name in the data directory.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lock => f.write_str(LOCK_NAME),
            Self::Meta => f.write_str("journal.meta"),
            Self::Segment(id) => write!(f, "journal-{:016x}.log", id.0),
            Self::Side(id) => write!(f, "side-{id:016x}.idx"),
        }
    }
}

impl FileId {
    /// The file of that name, if it is one that is listed.
    fn parse(name: &str) -> Option<Self> {
        let number = |prefix, suffix| {
            let digits = name.strip_prefix(prefix)?.strip_suffix(suffix)?;
            u64::from_str_radix(digits, 16).ok()
        };
        let id = if name == "journal.meta" {
            Self::Meta
        } else if let Some(id) = number("journal-", ".log") {
            Self::Segment(SegmentId(id))
        } else {
            Self::Side(number("side-", ".idx")?)
        };
        (id.to_string() == name).then_some(id)
    }
}

/// A blocking disk. The server's log thread and the simulator own one each.
///
/// Names are durable when a method that changes them returns; contents only after [`Storage::sync`].
pub trait Storage {
    /// Every file with its length in bytes, in ascending order of [`FileId`].
    fn list(&mut self) -> io::Result<Vec<(FileId, u64)>>;

    /// Makes `file` with `len` bytes of zeros that are allocated on the disk, so that no later write or
    /// sync of them meets a full disk. All or nothing, also over a crash. Replaces a file of that name.
    fn create(&mut self, file: FileId, len: u64) -> io::Result<()>;

    /// Writes `parts` one after the other from `offset` on. Not durable before [`Storage::sync`]; a crash
    /// leaves any mixture of old and new sectors.
    fn write_at(&mut self, file: FileId, offset: u64, parts: &[Bytes]) -> io::Result<()>;

    /// Makes everything written to `file` durable.
    fn sync(&mut self, file: FileId) -> io::Result<()>;

    /// Exactly `len` bytes from `offset` on.
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`] when the file ends before.
    fn read_at(&mut self, file: FileId, offset: u64, len: usize) -> io::Result<Bytes>;

    /// Cuts or grows (with zeros that are not allocated) `file` to `len` bytes.
    fn truncate(&mut self, file: FileId, len: u64) -> io::Result<()>;

    /// Removes `file`.
    fn remove(&mut self, file: FileId) -> io::Result<()>;

    /// Gives `from` the name `to`, replacing a file of that name, in one step.
    fn rename(&mut self, from: FileId, to: FileId) -> io::Result<()>;
}

/// Who asked for an operation and gets its result.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Tag {
    /// [`crate::Log`]; the number is its own.
    Log(u64),
    /// The log's owner, for its side files; the number is its own.
    Side(u64),
}

/// One thing to do on the disk, as a value that may cross to another thread.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StorageOp {
    /// Comes back in [`Stored::tag`].
    pub tag: Tag,
    /// What to do.
    pub action: Action,
}

/// What to do on the disk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// The writes in order, then the syncs in order. With at least one sync this is a barrier.
    Write {
        /// Each a run of bytes in one file.
        writes: Vec<Write>,
        /// Files to make durable.
        sync: Vec<FileId>,
    },
    /// [`Storage::read_at`].
    Read {
        /// Which file.
        file: FileId,
        /// From where, in bytes.
        offset: u64,
        /// How many bytes.
        len: usize,
    },
    /// [`Storage::create`].
    Create {
        /// Which file.
        file: FileId,
        /// Its length in bytes.
        len: u64,
    },
    /// [`Storage::truncate`].
    Truncate {
        /// Which file.
        file: FileId,
        /// Its new length in bytes.
        len: u64,
    },
    /// [`Storage::remove`].
    Remove {
        /// Which file.
        file: FileId,
    },
    /// [`Storage::rename`].
    Rename {
        /// The old name.
        from: FileId,
        /// The new name.
        to: FileId,
    },
}

/// Bytes for one place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Write {
    /// Which file.
    pub file: FileId,
    /// From where, in bytes.
    pub offset: u64,
    /// What, in order.
    pub parts: Vec<Bytes>,
}

/// What became of a [`StorageOp`].
#[derive(Debug)]
pub struct Stored {
    /// The tag of the operation.
    pub tag: Tag,
    /// What became of it.
    pub outcome: Outcome,
}

/// What became of an [`Action`].
#[derive(Debug)]
pub enum Outcome {
    /// It is done.
    Done,
    /// What was read.
    Data(Bytes),
    /// It failed at this step; the steps after it were not tried.
    Failed {
        /// What failed.
        action: IoAction,
        /// On which file.
        file: FileId,
        /// Why.
        source: io::Error,
    },
}

/// Does `op` on `storage`, blocking. The log thread's and the simulator's only call.
pub fn execute(storage: &mut impl Storage, op: StorageOp) -> Stored {
    let outcome = match run(storage, op.action) {
        Ok(outcome) => outcome,
        Err((action, file, source)) => Outcome::Failed { action, file, source },
    };
    Stored { tag: op.tag, outcome }
}

type Failure = (IoAction, FileId, io::Error);

fn run(storage: &mut impl Storage, action: Action) -> Result<Outcome, Failure> {
    let done = |result: io::Result<()>, action, file| match result {
        Ok(()) => Ok(Outcome::Done),
        Err(source) => Err((action, file, source)),
    };
    match action {
        Action::Write { writes, sync } => {
            for write in writes {
                storage
                    .write_at(write.file, write.offset, &write.parts)
                    .map_err(|source| (IoAction::Write, write.file, source))?;
            }
            for file in sync {
                storage.sync(file).map_err(|source| (IoAction::Sync, file, source))?;
            }
            Ok(Outcome::Done)
        }
        Action::Read { file, offset, len } => match storage.read_at(file, offset, len) {
            Ok(data) => Ok(Outcome::Data(data)),
            Err(source) => Err((IoAction::Read, file, source)),
        },
        Action::Create { file, len } => done(storage.create(file, len), IoAction::Create, file),
        Action::Truncate { file, len } => done(storage.truncate(file, len), IoAction::Truncate, file),
        Action::Remove { file } => done(storage.remove(file), IoAction::Remove, file),
        Action::Rename { from, to } => done(storage.rename(from, to), IoAction::Rename, from),
    }
}

/// The data directory on a real file system, locked against a second process for as long as it lives.
///
/// A segment is allocated with `fallocate` where the file system has it, else by writing zeros. Names that
/// the log does not know are left alone.
#[derive(Debug)]
pub struct FileStorage {
    dir: PathBuf,
    /// Synced after every change of a name.
    names: File,
    handles: BTreeMap<FileId, Handle>,
    uses: u64,
    /// Holds the lock.
    _lock: File,
}

/// An open file.
#[derive(Debug)]
struct Handle {
    file: File,
    last_use: u64,
    /// Stays open: it is written and not synced, and no error of the write-back may be missed; or it is
    /// new, and its first write shall not fail for want of a descriptor.
    is_kept: bool,
}

/// Clean files that stay open: a backlog of any size costs no more descriptors.
const HANDLES_MAX: usize = 64;
/// What one call takes (IOV_MAX of Linux).
const SLICES_MAX: usize = 1024;
const LOCK_NAME: &str = "journal.lock";
const UNFINISHED: &str = ".new";

impl FileStorage {
    /// Opens (and makes, with its parents) the data directory and locks it.
    ///
    /// # Errors
    /// [`Error::Io`]; with [`IoAction::Lock`] when another process holds the directory.
    pub fn open(dir: &Path) -> Result<Self, Error> {
        let failed = |action| move |source| Error::Io { action, file: FileId::Lock, source };
        make_dir(dir).map_err(failed(IoAction::Create))?;
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(dir.join(LOCK_NAME))
            .map_err(failed(IoAction::Lock))?;
        lock.try_lock().map_err(|error| failed(IoAction::Lock)(explain(error, dir)))?;
        let names = File::open(dir).map_err(failed(IoAction::List))?;
        let storage = Self { dir: dir.to_owned(), names, handles: BTreeMap::new(), uses: 0, _lock: lock };
        storage.remove_unfinished().map_err(failed(IoAction::Remove))?;
        Ok(storage)
    }

    /// Removes what a crash left of a [`Storage::create`].
    fn remove_unfinished(&self) -> io::Result<()> {
        for entry in std::fs::read_dir(&self.dir)? {
            let name = entry?.file_name();
            let Some(id) = name.to_str().and_then(|name| name.strip_suffix(UNFINISHED)) else { continue };
            if FileId::parse(id).is_some() {
                std::fs::remove_file(self.dir.join(&name))?;
            }
        }
        self.names.sync_all()
    }

    fn path(&self, file: FileId) -> PathBuf {
        self.dir.join(file.to_string())
    }

    fn handle(&mut self, id: FileId) -> io::Result<&mut Handle> {
        self.uses += 1;
        if !self.handles.contains_key(&id) {
            self.make_room_for_a_handle();
            let file = File::options().read(true).write(true).open(self.path(id))?;
            self.handles.insert(id, Handle { file, last_use: 0, is_kept: false });
        }
        let handle = self.handles.get_mut(&id).expect("invariant: it was inserted above");
        handle.last_use = self.uses;
        Ok(handle)
    }

    /// Keeps a file open that will be written, so that its first write needs no descriptor.
    fn keep(&mut self, id: FileId, file: File) {
        self.uses += 1;
        self.make_room_for_a_handle();
        self.handles.insert(id, Handle { file, last_use: self.uses, is_kept: true });
    }

    fn make_room_for_a_handle(&mut self) {
        if self.handles.len() < HANDLES_MAX {
            return;
        }
        let clean = self.handles.iter().filter(|(_, handle)| !handle.is_kept);
        if let Some((&oldest, _)) = clean.min_by_key(|(_, handle)| handle.last_use) {
            self.handles.remove(&oldest);
        }
    }
}

impl Storage for FileStorage {
    fn list(&mut self) -> io::Result<Vec<(FileId, u64)>> {
        let mut files = Vec::new();
        for entry in std::fs::read_dir(&self.dir)? {
            let entry = entry?;
            if let Some(id) = entry.file_name().to_str().and_then(FileId::parse) {
                files.push((id, entry.metadata()?.len()));
            }
        }
        files.sort_unstable();
        Ok(files)
    }

    fn create(&mut self, file: FileId, len: u64) -> io::Result<()> {
        self.handles.remove(&file);
        let path = self.path(file);
        let unfinished = self.dir.join(format!("{file}{UNFINISHED}"));
        let made = || -> io::Result<()> {
            let new = File::options().create(true).truncate(true).write(true).open(&unfinished)?;
            allocate(&new, len)?;
            new.sync_all()?;
            std::fs::rename(&unfinished, &path)
        };
        if let Err(error) = made() {
            // What is left is in nobody's way: it is overwritten by the next try or removed at the next
            // start.
            std::fs::remove_file(&unfinished).ok();
            return Err(error);
        }
        self.names.sync_all()
    }

    fn write_at(&mut self, file: FileId, offset: u64, parts: &[Bytes]) -> io::Result<()> {
        let handle = self.handle(file)?;
        handle.is_kept = true;
        write_all(&mut handle.file, offset, parts)
    }

    fn sync(&mut self, file: FileId) -> io::Result<()> {
        let handle = self.handle(file)?;
        handle.file.sync_data()?;
        handle.is_kept = false;
        Ok(())
    }

    fn read_at(&mut self, file: FileId, offset: u64, len: usize) -> io::Result<Bytes> {
        let handle = self.handle(file)?;
        let mut data = BytesMut::zeroed(len);
        handle.file.read_exact_at(&mut data, offset)?;
        Ok(data.freeze())
    }

    fn truncate(&mut self, file: FileId, len: u64) -> io::Result<()> {
        let handle = self.handle(file)?;
        handle.is_kept = true;
        handle.file.set_len(len)
    }

    fn remove(&mut self, file: FileId) -> io::Result<()> {
        self.handles.remove(&file);
        std::fs::remove_file(self.path(file))?;
        self.names.sync_all()
    }

    fn rename(&mut self, from: FileId, to: FileId) -> io::Result<()> {
        self.handles.remove(&to);
        std::fs::rename(self.path(from), self.path(to))?;
        if let Some(handle) = self.handles.remove(&from) {
            self.keep(to, handle.file);
        }
        self.names.sync_all()
    }
}

fn explain(error: TryLockError, dir: &Path) -> io::Error {
    match error {
        TryLockError::Error(error) => error,
        TryLockError::WouldBlock => {
            let text = format!("{} is in use by another process", dir.display());
            io::Error::new(io::ErrorKind::WouldBlock, text)
        }
    }
}

/// Makes `dir` with its parents, all of their names durable.
fn make_dir(dir: &Path) -> io::Result<()> {
    let missing: Vec<_> = dir.ancestors().take_while(|dir| !dir.exists()).collect();
    std::fs::create_dir_all(dir)?;
    for made in missing {
        let parent = made.parent().filter(|parent| !parent.as_os_str().is_empty());
        File::open(parent.unwrap_or_else(|| Path::new(".")))?.sync_all()?;
    }
    Ok(())
}

/// Gives `file` its length and its place on the disk.
fn allocate(file: &File, len: u64) -> io::Result<()> {
    if len == 0 {
        return Ok(());
    }
    #[cfg(target_os = "linux")]
    {
        use nix::errno::Errno;
        let size = i64::try_from(len).map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))?;
        loop {
            match nix::fcntl::fallocate(file, nix::fcntl::FallocateFlags::empty(), 0, size) {
                Err(Errno::EINTR) => {}
                Err(Errno::EOPNOTSUPP | Errno::ENOSYS) => break,
                other => return other.map_err(io::Error::from),
            }
        }
    }
    let zeros = vec![0; 1 << 20];
    let mut written = 0;
    while written < len {
        let step = (len - written).min(1 << 20);
        file.write_all_at(&zeros[..usize::try_from(step).unwrap_or(1 << 20)], written)?;
        written += step;
    }
    Ok(())
}

/// Writes `parts` one after the other, as many in one call as the system takes.
fn write_all(file: &mut File, offset: u64, parts: &[Bytes]) -> io::Result<()> {
    if let [one] = parts {
        return file.write_all_at(one, offset);
    }
    file.seek(SeekFrom::Start(offset))?;
    for some in parts.chunks(SLICES_MAX) {
        let mut slices: Vec<_> = some.iter().map(|part| IoSlice::new(part)).collect();
        let mut left = slices.as_mut_slice();
        IoSlice::advance_slices(&mut left, 0);
        while !left.is_empty() {
            match file.write_vectored(left) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => IoSlice::advance_slices(&mut left, n),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}
