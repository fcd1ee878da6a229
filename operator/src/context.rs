//! What every pass shares.

use crate::backoff::Backoffs;
use crate::census::Census;
use crate::cluster::Cluster;
use crate::error::Error;
use crate::events::Events;
use crate::health::Health;
use crate::metrics::Metrics;
use crate::node::NodeApi;
use crate::validate::Image;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// What every pass shares; nothing in it decides what is right for a connector.
pub struct Context {
    /// The API server.
    pub cluster: Cluster,
    /// The pods.
    pub nodes: Arc<dyn NodeApi>,
    /// Where events go.
    pub events: Events,
    /// Counters.
    pub metrics: Metrics,
    /// What the probes say.
    pub health: Arc<Health>,
    /// Pauses between attempts, for each connector.
    pub backoffs: Backoffs,
    /// What there is.
    pub census: Census,
    /// The operator's own image: what new connectors run.
    pub release: Image,
    /// Time between two passes over a connector on which nothing happens.
    pub heartbeat: Duration,
    /// Ends the process after a named step, for tests.
    pub exit: TestExit,
}

/// `BERTH_TEST_EXIT_AFTER`: the process ends as if killed right after the step of this name has written.
#[derive(Clone, Debug)]
pub struct TestExit {
    step: Option<String>,
    reached: watch::Sender<bool>,
}

impl TestExit {
    /// Ends after `step`; `None` never.
    #[must_use]
    pub fn new(step: Option<String>) -> Self {
        Self { step, reached: watch::channel(false).0 }
    }

    /// Says that a step has just written.
    ///
    /// # Errors
    /// When this is the step: whoever gets the error writes nothing more.
    pub fn after(&self, step: &str) -> Result<(), Error> {
        if *self.reached.borrow() {
            return Err(Error::TestExit("an earlier step".to_owned()));
        }
        if self.step.as_deref() != Some(step) {
            return Ok(());
        }
        self.reached.send_replace(true);
        Err(Error::TestExit(step.to_owned()))
    }

    /// Ends when the step has been reached.
    pub async fn reached(&self) {
        let mut reached = self.reached.subscribe();
        // The sender lives as long as self, so waiting cannot fail.
        if reached.wait_for(|reached| *reached).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
