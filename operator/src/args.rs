//! What the operator is told when it starts.

use clap::Parser;
use std::net::SocketAddr;

/// Turns connectors of berth.dev into StatefulSets.
#[derive(Clone, Debug, Parser)]
#[command(name = "berth-operator", version, about)]
pub struct Args {
    /// The image of this operator, which new connectors run too: repository:tag or repository@digest.
    #[arg(long, env = "BERTH_OPERATOR_IMAGE")]
    pub image: String,
    /// Namespaces to watch, separated by commas; all when there is none.
    #[arg(long, env = "BERTH_OPERATOR_WATCH_NAMESPACES", value_delimiter = ',')]
    pub watch_namespaces: Vec<String>,
    /// The namespace that this operator runs in.
    #[arg(long, env = "BERTH_OPERATOR_NAMESPACE", default_value = "default")]
    pub namespace: String,
    /// The name of this pod: the identity in the Lease, and in events.
    #[arg(long, env = "BERTH_OPERATOR_POD", default_value = "berth-operator")]
    pub pod: String,
    /// The name of the Lease.
    #[arg(long, env = "BERTH_OPERATOR_LEASE", default_value = "berth-operator")]
    pub lease: String,
    /// How long a Lease lasts without being renewed, in seconds.
    #[arg(
        long,
        env = "BERTH_OPERATOR_LEASE_SECONDS",
        default_value_t = 30,
        value_parser = clap::value_parser!(u64).range(6..=3600)
    )]
    pub lease_seconds: u64,
    /// Where /livez, /readyz and /metrics are served.
    #[arg(long, env = "BERTH_OPERATOR_ADDRESS", default_value = "[::]:8080")]
    pub address: SocketAddr,
    /// Seconds between two passes over a connector on which nothing happens.
    #[arg(
        long,
        env = "BERTH_OPERATOR_HEARTBEAT_SECONDS",
        default_value_t = 300,
        value_parser = clap::value_parser!(u64).range(1..=3600)
    )]
    pub heartbeat_seconds: u64,
    /// What is logged, as in info or berth_operator=debug.
    #[arg(long, env = "BERTH_OPERATOR_LOG", default_value = "info")]
    pub log: String,
    /// Look whether the definitions, the permissions and a leading operator are there, and end.
    #[arg(long)]
    pub check: bool,
    /// For tests: end as if killed right after the step of this name has written.
    #[arg(long, env = "BERTH_TEST_EXIT_AFTER", hide = true)]
    pub test_exit_after: Option<String>,
}

impl Args {
    /// The namespaces to watch; `None` is all of them.
    #[must_use]
    pub fn namespaces(&self) -> Option<Vec<String>> {
        let named: Vec<String> = self
            .watch_namespaces
            .iter()
            .map(|name| name.trim().to_owned())
            .filter(|n| !n.is_empty())
            .collect();
        (!named.is_empty()).then_some(named)
    }
}
