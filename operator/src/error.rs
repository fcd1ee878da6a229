//! What can go wrong in a pass, typed by who has to act.

use berth_crds::Reason;
use std::time::Duration;

/// A pass did not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server refused or could not be reached; tried again with growing pauses.
    #[error("{action} {object}: {source}")]
    Api {
        /// What was tried, as a verb.
        action: &'static str,
        /// On what.
        object: String,
        /// What the client says.
        #[source]
        source: Box<kube::Error>,
    },
    /// The API server answered with something else than was asked for.
    #[error("reading {object}: {source}")]
    Answer {
        /// What was read.
        object: String,
        /// What does not fit.
        #[source]
        source: serde_json::Error,
    },
    /// The pass took longer than it may.
    #[error("the pass took longer than {} s", .0.as_secs())]
    TimedOut(Duration),
    /// The machine gives no random numbers for the internal Secret.
    #[error("reading random numbers: {0}")]
    Random(#[source] std::io::Error),
    /// `BERTH_TEST_EXIT_AFTER` named the step that was just done: the process ends as if it had been killed.
    #[error("ended after the step {0}, as the test asked")]
    TestExit(String),
}

impl Error {
    /// The reason that the status gives, and the label of metrics.
    #[must_use]
    pub const fn reason(&self) -> Reason {
        match self {
            Self::Api { .. }
            | Self::Answer { .. }
            | Self::TimedOut(_)
            | Self::Random(_)
            | Self::TestExit(_) => Reason::ApplyFailed,
        }
    }

    /// A word for metrics.
    #[must_use]
    pub const fn label(&self) -> &'static str {
        match self {
            Self::Api { .. } => "api",
            Self::Answer { .. } => "answer",
            Self::TimedOut(_) => "timeout",
            Self::Random(_) => "random",
            Self::TestExit(_) => "test_exit",
        }
    }

    /// The HTTP status with which the API server refused, when it did.
    #[must_use]
    pub fn status(&self) -> Option<&kube::core::Status> {
        match self {
            Self::Api { source, .. } => match source.as_ref() {
                kube::Error::Api(status) => Some(status),
                _ => None,
            },
            _ => None,
        }
    }
}
