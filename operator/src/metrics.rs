//! The operator's metrics, `berth_operator_*`. A value, not a global: tests read counters of their own.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

/// Why a pass failed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Failure {
    /// One of the labels of [`crate::error::Error::label`], `malformed` or `queue`.
    pub cause: &'static str,
}

/// All metrics and the registry that prints them.
pub struct Metrics {
    registry: Registry,
    /// Passes that came to their end.
    pub passes: Counter,
    /// Passes that did not.
    pub failures: Family<Failure, Counter>,
    /// How long a pass takes.
    pub pass_seconds: Histogram,
    /// Writes to children.
    pub child_writes: Counter,
    /// Writes to statuses.
    pub status_writes: Counter,
    /// Pods replaced.
    pub evictions: Counter,
    /// Connectors known.
    pub connectors: Gauge,
    /// Connectors that cannot be read.
    pub malformed: Gauge,
    /// 1 while this process leads.
    pub leader: Gauge,
    /// 1 while the cluster's definitions lack fields that this version uses.
    pub definitions_outdated: Gauge,
}

impl Metrics {
    /// Registers everything. `version` is the operator's.
    #[must_use]
    pub fn new(version: &str) -> Self {
        let mut registry = Registry::with_prefix("berth_operator");
        let metrics = Self {
            passes: Counter::default(),
            failures: Family::default(),
            pass_seconds: Histogram::new(exponential_buckets(0.01, 2.0, 13)),
            child_writes: Counter::default(),
            status_writes: Counter::default(),
            evictions: Counter::default(),
            connectors: Gauge::default(),
            malformed: Gauge::default(),
            leader: Gauge::default(),
            definitions_outdated: Gauge::default(),
            registry: Registry::default(),
        };
        registry.register("passes", "Passes that came to their end", metrics.passes.clone());
        registry.register("pass_failures", "Passes that did not, by cause", metrics.failures.clone());
        registry.register_with_unit("pass", "Time of a pass", Unit::Seconds, metrics.pass_seconds.clone());
        registry.register("child_writes", "Writes to children", metrics.child_writes.clone());
        registry.register("status_writes", "Writes to statuses", metrics.status_writes.clone());
        registry.register("evictions", "Pods replaced", metrics.evictions.clone());
        registry.register("connectors", "Connectors known", metrics.connectors.clone());
        registry.register("malformed", "Connectors that cannot be read", metrics.malformed.clone());
        registry.register("leader", "1 while this process leads", metrics.leader.clone());
        registry.register(
            "definitions_outdated",
            "1 while the cluster's CustomResourceDefinitions lack fields that this version uses",
            metrics.definitions_outdated.clone(),
        );
        let info = prometheus_client::metrics::info::Info::new(vec![("version", version.to_owned())]);
        registry.register("build", "The version that runs", info);
        Self { registry, ..metrics }
    }

    /// The text that a scrape gets.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        if let Err(error) = prometheus_client::encoding::text::encode(&mut text, &self.registry) {
            tracing::error!(%error, "Metrics not written");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_carry_the_prefix_and_the_unit() {
        let metrics = Metrics::new("1.2.3");
        metrics.passes.inc();
        metrics.failures.get_or_create(&Failure { cause: "api" }).inc();
        metrics.pass_seconds.observe(0.1);
        let text = metrics.text();
        for line in [
            "berth_operator_passes_total 1",
            "berth_operator_pass_failures_total{cause=\"api\"} 1",
            "berth_operator_pass_seconds_count 1",
            "berth_operator_leader 0",
            "berth_operator_build_info{version=\"1.2.3\"} 1",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
    }
}
