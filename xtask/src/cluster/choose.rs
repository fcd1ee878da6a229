//! Which cluster the commands mean: the one in KUBECONFIG, else kind, else the local cluster.

use super::kind::{self, Engine};
use super::layout;
use super::local;
use anyhow::{Result, ensure};
use std::env;
use std::fs;
use std::path::{Path, PathBuf};

/// The three kinds of cluster.
#[derive(Clone)]
pub(crate) enum Cluster {
    /// Started by us on this machine from its parts.
    Local,
    /// kind, in a container engine.
    Kind(Engine),
    /// Somebody else's, named by KUBECONFIG.
    Foreign(PathBuf),
}

/// Chooses. A foreign cluster must be able to pull the product's image: BERTH_E2E_IMAGE says from where.
pub(crate) fn choose() -> Result<Cluster> {
    let exported = env::var_os("KUBECONFIG").filter(|path| !path.is_empty()).map(PathBuf::from);
    if let Some(path) = exported {
        if is_same(&path, &layout::kubeconfig()) {
            return Ok(Cluster::Local);
        }
        if let Some(engine) = kind::engine().filter(|_| is_same(&path, &kind::kubeconfig())) {
            return Ok(Cluster::Kind(engine));
        }
        let image = env::var("BERTH_E2E_IMAGE").unwrap_or_default();
        ensure!(
            !image.is_empty(),
            "KUBECONFIG names a cluster that is not ours: \
             set BERTH_E2E_IMAGE to an image that it can pull, or unset KUBECONFIG"
        );
        return Ok(Cluster::Foreign(path));
    }
    // A local cluster that is up stays the one that is meant, also when an engine is started later.
    if local::is_up() {
        return Ok(Cluster::Local);
    }
    Ok(kind::engine().map_or(Cluster::Local, Cluster::Kind))
}

/// The same file, also by another name or as a copy; or the same name, when the cluster is down and has no
/// file.
fn is_same(given: &Path, ours: &Path) -> bool {
    given == ours || fs::read(given).is_ok_and(|text| fs::read(ours).is_ok_and(|own| own == text))
}
