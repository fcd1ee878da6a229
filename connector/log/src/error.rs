//! Errors by who must act: [`Refused`] goes back to the caller's peer, [`Error`] to the operator.

use crate::storage::FileId;
use std::fmt;
use std::io;

/// The journal or its disk is not as it must be. An operator acts: see the file and offset named.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The disk refused. A failed write or sync of a segment poisons the log.
    #[error("cannot {action} {file}: {source}")]
    Io {
        /// What was tried.
        action: IoAction,
        /// On which file.
        file: FileId,
        /// What the system said.
        source: io::Error,
    },
    /// Bytes that were synced are not as they were written. Nothing is skipped: restore the file or the
    /// backup.
    #[error("{file} is damaged at offset {offset}: {reason}")]
    Corrupt {
        /// The damaged file.
        file: FileId,
        /// Where the first bad thing starts, in bytes from the start of the file.
        offset: u64,
        /// What is wrong there.
        reason: &'static str,
    },
    /// A later release wrote this journal.
    #[error("{file} has format version {version}, this release reads up to {supported}")]
    NewerFormat {
        /// The file that says so.
        file: FileId,
        /// Its version.
        version: u32,
        /// The newest version that is read here.
        supported: u32,
    },
    /// An earlier write or sync failed; nothing is accepted until a restart has recovered the log.
    #[error("the journal is poisoned by an earlier failure")]
    Poisoned,
}

/// What was tried on a file; the words of error messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IoAction {
    /// List the data directory.
    List,
    /// Create and allocate a file.
    Create,
    /// Write.
    Write,
    /// Sync to the disk.
    Sync,
    /// Read.
    Read,
    /// Cut to a length.
    Truncate,
    /// Remove a file.
    Remove,
    /// Rename a file.
    Rename,
    /// Lock the data directory.
    Lock,
}

impl fmt::Display for IoAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::List => "list",
            Self::Create => "create",
            Self::Write => "write",
            Self::Sync => "sync",
            Self::Read => "read",
            Self::Truncate => "truncate",
            Self::Remove => "remove",
            Self::Rename => "rename",
            Self::Lock => "lock",
        })
    }
}

/// Why an append was not taken. Nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refused {
    /// The disk is full: only the reserve is left (publishes), or not even that (upkeep).
    #[error("the disk is full")]
    Full,
    /// Too much is unwritten, or a segment is being made. Try again after the next
    /// [`crate::Log::handle_stored`].
    #[error("the journal is behind")]
    Busy,
    /// Larger than [`crate::Log::RECORD_BYTES_MAX`].
    #[error("the record is too large")]
    TooLarge,
    /// See [`Error::Poisoned`].
    #[error("the journal is poisoned by an earlier failure")]
    Poisoned,
}
