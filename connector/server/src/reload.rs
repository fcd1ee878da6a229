//! Reads `dynamic.yaml` again while the process runs.
//!
//! By content, every [`PERIOD`]: Kubernetes swaps a symbolic link, which file events miss. A new content that
//! is good takes effect at once; one that is not changes nothing, is logged and counted once, and stands in
//! `/api/node` until it is good again.

use std::sync::Arc;
use std::time::Duration;

use crate::mailbox::lock;
use crate::node::Node;
use crate::sources::Sources;
use crate::telemetry::Telemetry;

/// How often the file is looked at.
pub(crate) const PERIOD: Duration = Duration::from_secs(2);

/// Follows `dynamic.yaml` for as long as the process lives.
pub(crate) struct Reload {
    sources: Sources,
    seen: Result<Option<String>, berth_config::Error>,
    node: Arc<Node>,
    telemetry: Telemetry,
}

impl Reload {
    /// `dynamic` is what the process was started with.
    pub(crate) fn new(
        sources: Sources,
        dynamic: Option<String>,
        node: Arc<Node>,
        telemetry: Telemetry,
    ) -> Self {
        Self { sources, seen: Ok(dynamic), node, telemetry }
    }

    /// Looks again and again.
    pub(crate) async fn run(mut self) {
        let mut ticks = tokio::time::interval(PERIOD);
        loop {
            ticks.tick().await;
            self.telemetry.report_left_out();
            self.look();
        }
    }

    fn look(&mut self) {
        let text = self.sources.read_dynamic();
        if text == self.seen {
            return;
        }
        let loaded = text.clone().and_then(|text| self.sources.load(text.as_deref()));
        self.seen = text;
        let error = match loaded {
            Ok(loaded) => {
                self.telemetry.set_level(loaded.settings.logging.level);
                tracing::info!("Configuration changed");
                None
            }
            Err(error) => {
                self.node.metrics.reload_errors.inc();
                tracing::error!(%error, "New configuration refused, the old one stays");
                Some(error.to_string())
            }
        };
        lock(&self.node.state).config_error = error;
    }
}
