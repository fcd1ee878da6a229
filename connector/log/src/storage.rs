//! The disk as the log sees it: eight blocking methods, operations as values, and the one implementation on
//! files.

use crate::error::IoAction;
use crate::position::SegmentId;
use bytes::Bytes;
use std::fmt;
use std::io;
use std::path::Path;

/// A file of the data directory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum FileId {
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
            Self::Meta => f.write_str("journal.meta"),
            Self::Segment(id) => write!(f, "journal-{:016x}.log", id.0),
            Self::Side(id) => write!(f, "side-{id:016x}.idx"),
        }
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

/// The data directory on a real file system, locked against a second process.
#[derive(Debug)]
pub struct FileStorage {}

impl FileStorage {
    /// Opens (and makes, with its parents) the data directory and locks it.
    ///
    /// # Errors
    /// [`crate::Error::Io`]; with [`IoAction::Lock`] when another process holds the directory.
    pub fn open(dir: &Path) -> Result<Self, crate::Error> {
        unimplemented!("{}", dir.display())
    }
}
