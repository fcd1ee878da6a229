//! What the end-to-end tests share: a cluster seen through kubectl, a namespace for each test, and the
//! order in which tests run.
//!
//! The tests read KUBECONFIG and BERTH_E2E_IMAGE and nothing else. They start no cluster: `cargo xtask
//! cluster up` does, and `cargo xtask test` calls both.
//!
//! - [`kubectl`]: commands, and [`kubectl::Namespace`] with `apply`, `get`, `exec`, `logs`, `wait`, `dump`.
//! - [`suite`]: [`suite::Test`], the groups, and the main function of the test binary.
//! - [`cluster`]: cutting a node off and healing it.

pub mod cluster;
pub mod forward;
pub mod kubectl;
pub mod process;
pub mod python;
pub mod stomp;
pub mod suite;

/// The product's image that tests deploy: BERTH_E2E_IMAGE, else what `cargo xtask image` and
/// `cargo xtask cluster load` put into a cluster of ours.
#[must_use]
pub fn product_image() -> String {
    let set = std::env::var("BERTH_E2E_IMAGE").ok().filter(|image| !image.is_empty());
    set.unwrap_or_else(|| "berth.local/berth:dev".to_owned())
}
