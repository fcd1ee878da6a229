//! Why a configuration is refused: one line that names the place, the key and what to change.

/// A configuration that cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{origin}: {key}{}{problem}", if key.is_empty() { "" } else { ": " })]
pub struct Error {
    /// Where it stands: the name of a file, or of an environment variable.
    pub origin: String,
    /// The path of the key, as `stomp.port`; empty when the document as a whole is wrong.
    pub key: String,
    /// What is wrong and what to change. One line.
    pub problem: String,
}

impl Error {
    pub(crate) fn new(origin: &str, key: &str, problem: impl Into<String>) -> Self {
        let problem = problem.into();
        let one_line = problem.split_whitespace().collect::<Vec<_>>().join(" ");
        Self { origin: origin.into(), key: key.into(), problem: one_line }
    }
}
