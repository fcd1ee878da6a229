//! The end-to-end tests: one binary against the cluster in KUBECONFIG. See `berth_e2e::suite` for its
//! options.

mod cluster;
mod operator;

use berth_e2e::suite;
use std::process::ExitCode;

fn main() -> ExitCode {
    suite::main(&[cluster::TESTS, operator::TESTS].concat())
}
