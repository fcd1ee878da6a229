//! How the program can fail: which line it prints and with which code it exits.

use std::net::SocketAddr;
use std::path::Path;

use berth_log::IoAction;

/// Why the program ends other than in order.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The configuration cannot be used.
    #[error("{0}")]
    Config(#[from] berth_config::Error),
    /// A listener cannot be opened.
    #[error("{key}: cannot listen on {address}: {source}; {advice}")]
    Listen {
        /// The key that names the address.
        key: &'static str,
        /// The address.
        address: SocketAddr,
        /// What the system says.
        source: std::io::Error,
        /// What to change.
        advice: &'static str,
    },
    /// The data folder cannot be used.
    #[error("dataDir: {dir}: {problem}")]
    DataDir {
        /// The folder.
        dir: String,
        /// What is wrong and what to change.
        problem: String,
    },
    /// A second signal ended the drain.
    #[error("ended at once by a second signal")]
    Interrupted,
    /// Anything that fails while the program runs.
    #[error("{}", in_one_line(.0))]
    Other(#[from] anyhow::Error),
}

impl Failure {
    /// The code that the process exits with.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Config(_) | Self::Listen { .. } | Self::DataDir { .. } => 2,
            Self::Interrupted | Self::Other(_) => 1,
        }
    }

    /// A listener that cannot be opened.
    pub(crate) fn listen(key: &'static str, address: SocketAddr, source: std::io::Error) -> Self {
        let advice = match source.kind() {
            std::io::ErrorKind::AddrInUse => "choose another port or stop what listens there",
            std::io::ErrorKind::AddrNotAvailable => "choose an address of this machine",
            std::io::ErrorKind::PermissionDenied => "choose a port above 1023",
            _ => "choose another address",
        };
        Self::Listen { key, address, source, advice }
    }

    /// A data folder that cannot be opened.
    pub(crate) fn data_dir(dir: &Path, error: &berth_log::Error) -> Self {
        let problem = match error {
            berth_log::Error::Io { action: IoAction::Lock, source, .. }
                if source.kind() == std::io::ErrorKind::WouldBlock =>
            {
                String::from("another process uses it; stop that process or choose another folder")
            }
            berth_log::Error::Io { action: IoAction::Create, .. }
                if let Some(file) = dir.ancestors().find(|part| part.is_file()) =>
            {
                format!("a folder is expected, and {} is a file; choose another folder", file.display())
            }
            error => error.to_string(),
        };
        Self::DataDir { dir: dir.display().to_string(), problem }
    }
}

/// An error with its causes, but for those that its text tells already.
pub(crate) fn in_one_line(error: &anyhow::Error) -> String {
    let mut line = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !line.contains(&cause) {
            line = format!("{line}: {cause}");
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::ErrorKind;

    #[test]
    fn a_cause_is_told_once() {
        let source = std::io::Error::from(ErrorKind::StorageFull);
        let (action, file) = (IoAction::Sync, berth_log::FileId::Lock);
        let error = anyhow::Error::from(berth_log::Error::Io { action, file, source });
        let line = Failure::from(error.context("the broker has failed")).to_string();
        assert_eq!(line, "the broker has failed: cannot sync journal.lock: no storage space");
    }

    #[test]
    fn a_file_is_no_folder() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        for dir in [file.clone(), file.join("below")] {
            let error = berth_log::FileStorage::open(&dir).unwrap_err();
            let line = Failure::data_dir(&dir, &error).to_string();
            let reason = format!("a folder is expected, and {} is a file; choose another", file.display());
            assert!(line.contains(&reason), "{line}");
        }
    }

    #[test]
    fn only_a_held_lock_is_another_process() {
        let line = |kind: ErrorKind| {
            let (action, file) = (IoAction::Lock, berth_log::FileId::Lock);
            let error = berth_log::Error::Io { action, file, source: kind.into() };
            Failure::data_dir(Path::new("/data"), &error).to_string()
        };
        assert!(line(ErrorKind::WouldBlock).contains("another process uses it"));
        let text = line(ErrorKind::ReadOnlyFilesystem);
        assert!(text.starts_with("dataDir: /data: cannot lock journal.lock: read-only"), "{text}");
    }
}
