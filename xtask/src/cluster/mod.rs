//! `cargo xtask cluster`: a real Kubernetes cluster in one command.
//!
//! Tests and newcomers get one of three (`choose.rs`): the cluster in KUBECONFIG; else kind, when a
//! container engine answers; else the local cluster, built and started from its real parts on a machine
//! that has neither an engine nor a registry (`local.rs`). docs/operations/local-cluster.md tells what it
//! is made of and what it costs.
//!
//! It is not a mock and not a control plane alone: pods run, volumes grow, nodes can be drained and cut
//! off. It needs no code of the product.

mod api;
mod cgroup;
mod choose;
mod control_plane;
mod dns;
mod images;
mod kind;
mod layout;
mod local;
mod machine;
mod mounts;
mod network;
mod node;
mod pki;
mod process;
mod provisioner;
mod session;
mod shell;
mod tools;

use anyhow::{Context, Result, bail};
use choose::{Cluster, choose};
use process::Part;
pub(crate) use session::Session;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
pub(crate) use tools::cache;

/// What `cargo xtask cluster` can do.
#[derive(clap::Subcommand)]
pub(crate) enum Action {
    /// Start the cluster, or repair it; harmless when it is up.
    Up,
    /// Take it down and leave nothing behind.
    Down,
    /// Load an image (an OCI layout or `docker save`, in a tar file) into every node.
    Load { image: PathBuf },
    /// Print the path of its kubeconfig: `export KUBECONFIG=$(cargo xtask cluster kubeconfig)`.
    Kubeconfig,
    /// Take a node's network away; it keeps running, alone.
    Cut { node: String },
    /// Give a node its network back.
    Heal { node: String },
    /// The loop that gives claims their volumes; `up` starts it.
    #[command(hide = true)]
    Provisioner(provisioner::Settings),
}

/// Does it.
pub(crate) fn run(action: Action) -> Result<()> {
    let action = match action {
        Action::Provisioner(settings) => return provisioner::run(settings),
        other => other,
    };
    match (action, choose()?) {
        (Action::Up, cluster) => up(&cluster),
        (Action::Down, Cluster::Local) => local::down(),
        (Action::Down, Cluster::Kind(engine)) => kind::down(engine),
        (Action::Load { image }, Cluster::Local) => local::load(&image),
        (Action::Load { image }, Cluster::Kind(engine)) => kind::load(engine, &image),
        (Action::Kubeconfig, cluster) => {
            println!("{}", kubeconfig(&cluster).display());
            Ok(())
        }
        (Action::Cut { node }, Cluster::Local) => local::set_cut(&node, true),
        (Action::Heal { node }, Cluster::Local) => local::set_cut(&node, false),
        (Action::Cut { node }, Cluster::Kind(engine)) => kind::set_cut(engine, &node, true),
        (Action::Heal { node }, Cluster::Kind(engine)) => kind::set_cut(engine, &node, false),
        (_, Cluster::Foreign(path)) => {
            bail!("{} is not a cluster of ours: it is left as it is", path.display())
        }
        (Action::Provisioner(_), _) => Ok(()),
    }
}

fn up(cluster: &Cluster) -> Result<()> {
    match cluster {
        Cluster::Local => local::up()?,
        Cluster::Kind(engine) => kind::up(*engine)?,
        Cluster::Foreign(path) => {
            let kubectl = tools::installed_or_built("kubectl")?;
            let config = format!("--kubeconfig={}", path.display());
            shell::output(Command::new(kubectl).args([&config, "get", "nodes", "--request-timeout=10s"]))
                .context("the cluster in KUBECONFIG does not answer")?;
        }
    }
    println!("export KUBECONFIG={}", kubeconfig(cluster).display());
    if let Some(programs) =
        kubeconfig(cluster).parent().map(|folder| folder.join("bin")).filter(|bin| bin.is_dir())
    {
        println!("export PATH={}:$PATH   # kubectl and helm that fit", programs.display());
    }
    Ok(())
}

/// Brings the chosen cluster up, or checks that it answers.
pub(crate) fn ready() -> Result<Session> {
    let cluster = choose()?;
    up(&cluster)?;
    let kubeconfig = kubeconfig(&cluster);
    Session::new(cluster, kubeconfig)
}

/// Takes the chosen cluster down when it is ours; else leaves it alone and says so with `false`.
pub(crate) fn down_if_ours() -> Result<bool> {
    match choose()? {
        Cluster::Local => local::down().map(|()| true),
        Cluster::Kind(engine) => kind::down(engine).map(|()| true),
        Cluster::Foreign(_) => Ok(false),
    }
}

/// helm: the installed one, else built.
pub(crate) fn helm() -> Result<PathBuf> {
    tools::installed_or_built("helm")
}

/// Runs `work` with a cluster that is up. One that was up before stays up; else it goes down again, also when
/// the work failed.
pub(crate) fn with_cluster(work: impl FnOnce(&Session) -> Result<()>) -> Result<()> {
    let cluster = choose()?;
    let was_up = match &cluster {
        Cluster::Local => local::is_up(),
        Cluster::Kind(engine) => kind::is_up(*engine)?,
        Cluster::Foreign(_) => true,
    };
    let session = || Session::new(cluster.clone(), kubeconfig(&cluster));
    let result = up(&cluster).and_then(|()| work(&session()?));
    let down = match &cluster {
        _ if was_up => Ok(()),
        Cluster::Local => local::down(),
        Cluster::Kind(engine) => kind::down(*engine),
        Cluster::Foreign(_) => Ok(()),
    };
    result.and(down)
}

fn kubeconfig(cluster: &Cluster) -> PathBuf {
    match cluster {
        Cluster::Local => layout::kubeconfig(),
        Cluster::Kind(_) => kind::kubeconfig(),
        Cluster::Foreign(path) => path.clone(),
    }
}

/// Says in the cluster whose it is: the self-test runs only where it finds this.
fn marker(kind: &str, testpod: &str) -> String {
    format!(
        "apiVersion: v1
kind: ConfigMap
metadata: {{ name: berth-cluster, namespace: kube-system }}
data: {{ kind: {kind}, testpod: \"{testpod}\" }}
"
    )
}

/// Applies manifests by server-side apply.
fn apply(kubectl: &Path, kubeconfig: &Path, manifests: &str) -> Result<()> {
    let mut command = Command::new(kubectl);
    command.arg(format!("--kubeconfig={}", kubeconfig.display()));
    command.args(["apply", "--server-side", "--force-conflicts", "--field-manager=berth-cluster", "-f", "-"]);
    shell::feed(&mut command, manifests.as_bytes()).map(drop)
}

/// The provisioner's way to the API server.
fn api_proxy(kubectl: &Path, kubeconfig: &Path, socket: &Path) -> Part {
    let args = [
        format!("--kubeconfig={}", kubeconfig.display()),
        "proxy".into(),
        format!("--unix-socket={}", socket.display()),
    ];
    let mut part = Part::new("provisioner-api", kubectl, &args);
    // A new cluster has new certificates.
    part.reads.push(fs::read_to_string(kubeconfig).unwrap_or_default());
    part
}

fn provisioner_args(socket: &Path, volumes: &str) -> Vec<String> {
    let socket = socket.display().to_string();
    ["cluster", "provisioner", "--socket", &socket, "--volumes", volumes].map(str::to_owned).into()
}

/// Copies this program, named by its content: a rebuild neither disturbs the running copy nor is missed.
fn copy_program(folder: &Path) -> Result<PathBuf> {
    let bytes = fs::read(std::env::current_exe()?).context("reading this program")?;
    let short: String = crate::image::hex(&bytes).chars().take(12).collect();
    let copy = folder.join(format!("xtask-{short}"));
    if !copy.exists() {
        fs::create_dir_all(folder)?;
        let partial = folder.join("xtask.partial");
        fs::copy(std::env::current_exe()?, &partial).context("copying this program")?;
        fs::rename(&partial, &copy)?;
    }
    Ok(copy)
}

/// Points the link at the target.
fn link(target: &Path, link: &Path) -> Result<()> {
    if fs::read_link(link).is_ok_and(|old| old == target) {
        return Ok(());
    }
    if let Some(folder) = link.parent() {
        fs::create_dir_all(folder)?;
    }
    if link.symlink_metadata().is_ok() {
        fs::remove_file(link)?;
    }
    std::os::unix::fs::symlink(target, link).with_context(|| format!("linking {}", link.display()))
}
