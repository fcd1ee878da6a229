//! The control plane of the local cluster: etcd, API server, controller manager and scheduler, on the
//! machine itself.

use super::layout::{API_PORT, HOST_ADDRESS, MEMORY, POD_NETWORK, SERVICE_NETWORK, kubeconfig, state};
use super::pki;
use super::process::{Part, Processes};
use super::shell;
use super::tools::Tools;
use anyhow::{Context, Result};
use std::path::Path;
use std::time::Duration;

/// Not etcd's own ports: the machine may run another etcd.
const ETCD_CLIENT: &str = "http://127.0.0.1:23479";
const ETCD_PEER: &str = "http://127.0.0.1:23480";

/// The parts, in the order in which they go down again (backwards).
pub(crate) const PARTS: [&str; 4] = ["etcd", "apiserver", "controller-manager", "scheduler"];

/// Starts what does not run; says whether anything had to be started.
pub(crate) fn ensure(processes: &Processes, tools: &Tools) -> Result<bool> {
    let etcd = processes.ensure(&etcd()?)?;
    let api = processes.ensure(&apiserver(tools))?;
    let controllers = processes.ensure(&controller_manager(tools))?;
    let scheduler = processes.ensure(&scheduler(tools))?;
    Ok(etcd | api | controllers | scheduler)
}

/// Whether etcd has kept something.
pub(crate) fn has_data() -> bool {
    Path::new(MEMORY).join("etcd/member/wal").is_dir()
}

/// Whether the API server says that it is ready.
pub(crate) fn is_ready(tools: &Tools) -> bool {
    let config = format!("--kubeconfig={}", kubeconfig().display());
    shell::succeeds(tools.program("kubectl"), &[&config, "--request-timeout=3s", "get", "--raw=/readyz"])
}

/// Stops all of it, the newest first.
pub(crate) fn stop(processes: &Processes) -> Result<()> {
    for part in PARTS.iter().rev() {
        processes.stop(part, Duration::from_secs(2))?;
    }
    Ok(())
}

fn etcd() -> Result<Part> {
    let program = shell::find("etcd").context("etcd is not installed")?;
    let args = [
        format!("--data-dir={MEMORY}/etcd"),
        "--name=berth".into(),
        format!("--listen-client-urls={ETCD_CLIENT}"),
        format!("--advertise-client-urls={ETCD_CLIENT}"),
        format!("--listen-peer-urls={ETCD_PEER}"),
        format!("--initial-advertise-peer-urls={ETCD_PEER}"),
        format!("--initial-cluster=berth={ETCD_PEER}"),
        "--auto-compaction-retention=1h".into(),
        "--logger=zap".into(),
    ];
    Ok(frugal(Part::new("etcd", &program, &args)))
}

fn apiserver(tools: &Tools) -> Part {
    let file = |name: &str, extension: &str| pki::path(name, extension).display().to_string();
    let args = [
        format!("--etcd-servers={ETCD_CLIENT}"),
        format!("--bind-address={HOST_ADDRESS}"),
        format!("--advertise-address={HOST_ADDRESS}"),
        format!("--secure-port={API_PORT}"),
        format!("--service-cluster-ip-range={SERVICE_NETWORK}"),
        "--authorization-mode=Node,RBAC".into(),
        "--enable-admission-plugins=NodeRestriction".into(),
        format!("--client-ca-file={}", file("ca", "crt")),
        format!("--tls-cert-file={}", file("apiserver", "crt")),
        format!("--tls-private-key-file={}", file("apiserver", "key")),
        format!("--kubelet-client-certificate={}", file("apiserver-kubelet", "crt")),
        format!("--kubelet-client-key={}", file("apiserver-kubelet", "key")),
        "--kubelet-preferred-address-types=InternalIP".into(),
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local".into(),
        format!("--service-account-key-file={}", file("sa", "pub")),
        format!("--service-account-signing-key-file={}", file("sa", "key")),
        // Pods leave a lost node after seconds, not minutes: fail-over tests wait for that.
        "--default-not-ready-toleration-seconds=5".into(),
        "--default-unreachable-toleration-seconds=5".into(),
    ];
    frugal(Part::new("apiserver", &tools.program("kube-apiserver"), &args))
}

fn controller_manager(tools: &Tools) -> Part {
    let file = |name: &str, extension: &str| pki::path(name, extension).display().to_string();
    let args = [
        format!("--kubeconfig={}", file("controller-manager", "kubeconfig")),
        "--use-service-account-credentials".into(),
        format!("--service-account-private-key-file={}", file("sa", "key")),
        format!("--root-ca-file={}", file("ca", "crt")),
        format!("--cluster-signing-cert-file={}", file("ca", "crt")),
        format!("--cluster-signing-key-file={}", file("ca", "key")),
        format!("--cluster-cidr={POD_NETWORK}"),
        format!("--flex-volume-plugin-dir={}", state("volume-plugins").display()),
        "--leader-elect=false".into(),
        "--bind-address=127.0.0.1".into(),
        "--node-monitor-period=2s".into(),
        "--node-monitor-grace-period=16s".into(),
    ];
    frugal(Part::new("controller-manager", &tools.program("kube-controller-manager"), &args))
}

fn scheduler(tools: &Tools) -> Part {
    let config = pki::path("scheduler", "kubeconfig").display().to_string();
    let args =
        [format!("--kubeconfig={config}"), "--leader-elect=false".into(), "--bind-address=127.0.0.1".into()];
    frugal(Part::new("scheduler", &tools.program("kube-scheduler"), &args))
}

/// A part written in Go that gives memory back early, and that starts anew when its authority changed.
pub(crate) fn frugal(mut part: Part) -> Part {
    part.environment.push(("GOGC", "60".into()));
    part.reads.push(modified(&state("pki/complete")));
    part
}

/// The time of a file's last change, as text; empty when there is none.
fn modified(path: &Path) -> String {
    let time = path.metadata().and_then(|found| found.modified());
    time.map(|time| format!("{time:?}")).unwrap_or_default()
}
