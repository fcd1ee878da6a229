//! A cluster by kind, where a container engine answers: three node containers, described in `e2e/kind.yaml`.
//!
//! kind's own StorageClass cannot grow volumes and ties them to a node, so the provisioner serves this
//! cluster too: kind.yaml mounts one folder of the machine into every node.

use super::images::{self, TESTPOD_IMAGE};
use super::process::{Part, Processes};
use super::shell;
use super::tools::installed_or_built;
use super::{marker, provisioner};
use crate::image::repository;
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const NAME: &str = "berth";
/// The folder of all volumes inside every node; kind.yaml mounts it.
const VOLUMES: &str = "/var/lib/berth-volumes";
const PARTS: [&str; 2] = ["provisioner", "provisioner-api"];

/// A container engine that answers: `docker` or `podman`.
#[derive(Clone, Copy)]
pub(crate) struct Engine(&'static str);

/// The first engine that answers.
pub(crate) fn engine() -> Option<Engine> {
    let answers = |name: &&str| shell::find(name).is_some() && shell::succeeds(name, &["info"]);
    ["docker", "podman"].into_iter().find(answers).map(Engine)
}

/// Where kind's kubeconfig lies; it names the one cluster of this user.
pub(crate) fn kubeconfig() -> PathBuf {
    folder().join("kubeconfig")
}

fn folder() -> PathBuf {
    let chosen = std::env::var_os("XDG_STATE_HOME").filter(|path| !path.is_empty()).map(PathBuf::from);
    let home = || PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".local/state");
    chosen.unwrap_or_else(home).join("berth-kind")
}

/// Creates the cluster unless it is there, loads the test program, starts the provisioner.
pub(crate) fn up(engine: Engine) -> Result<()> {
    let (kind, kubectl, helm) =
        (installed_or_built("kind")?, installed_or_built("kubectl")?, installed_or_built("helm")?);
    fs::create_dir_all(folder())?;
    let config = kubeconfig().display().to_string();
    if !exists(engine, &kind)? {
        let description = repository().join("e2e/kind.yaml").display().to_string();
        let args = ["create", "cluster", "--name", NAME, "--config", &description, "--kubeconfig", &config];
        let status = kind_command(engine, &kind).args(args).args(["--wait", "180s"]).status()?;
        ensure!(status.success(), "kind could not create the cluster");
    } else {
        // The containers may have been stopped, by a restart of the machine for example.
        for node in nodes(engine, &kind)? {
            shell::run(engine.0, &["start", &node])?;
        }
        let args = ["export", "kubeconfig", "--name", NAME, "--kubeconfig", &config];
        shell::output(kind_command(engine, &kind).args(args))?;
    }
    for (name, path) in [("kubectl", &kubectl), ("helm", &helm)] {
        super::link(path, &folder().join("bin").join(name))?;
    }
    let all = nodes(engine, &kind)?;
    let images = images::ensure()?;
    load_into(engine, &all, &images.testpod)?;
    // kind's own class must not stay the default one beside ours.
    let kubeconfig = format!("--kubeconfig={config}");
    let class = ["delete", "storageclass", "standard", "--ignore-not-found"];
    shell::output(Command::new(&kubectl).arg(&kubeconfig).args(class))?;
    let manifest = [provisioner::manifest(), marker("kind", TESTPOD_IMAGE)].join("---\n");
    super::apply(&kubectl, Path::new(&config), &manifest)?;
    start_provisioner(engine, &kubectl, all.first().context("kind has no nodes")?)?;
    let wait = ["wait", "--for=condition=Ready", "nodes", "--all", "--timeout=180s"];
    shell::output(Command::new(&kubectl).arg(&kubeconfig).args(wait)).map(drop)
}

fn start_provisioner(engine: Engine, kubectl: &Path, node: &str) -> Result<()> {
    let processes = Processes::new(folder(), false);
    let socket = folder().join("api.sock");
    let api = super::api_proxy(kubectl, &kubeconfig(), &socket);
    processes.ensure(&api)?;
    let program = super::copy_program(&folder().join("bin"))?;
    let mut args = super::provisioner_args(&socket, VOLUMES);
    args.extend(["--through", engine.0, "exec", node].map(str::to_owned));
    processes.ensure(&Part::new("provisioner", &program, &args)).map(drop)
}

/// Whether there is such a cluster.
pub(crate) fn is_up(engine: Engine) -> Result<bool> {
    exists(engine, &installed_or_built("kind")?)
}

/// Deletes the cluster, its volumes and our processes.
pub(crate) fn down(engine: Engine) -> Result<()> {
    let processes = Processes::new(folder(), false);
    for part in PARTS {
        processes.stop(part, Duration::from_secs(2))?;
    }
    let kind = installed_or_built("kind")?;
    if exists(engine, &kind)? {
        // What pods wrote belongs to other users; only a node may remove it.
        if let Some(node) = nodes(engine, &kind)?.first() {
            let empty = format!("rm -rf {VOLUMES}/*");
            shell::run(engine.0, &["exec", node, "sh", "-c", &empty]).ok();
        }
        shell::output(kind_command(engine, &kind).args(["delete", "cluster", "--name", NAME]))?;
    }
    if folder().exists() {
        fs::remove_dir_all(folder()).context("removing the state of the kind cluster")?;
    }
    Ok(())
}

/// Loads an image into every node.
pub(crate) fn load(engine: Engine, image: &Path) -> Result<()> {
    let kind = installed_or_built("kind")?;
    load_into(engine, &nodes(engine, &kind)?, image)
}

fn load_into(engine: Engine, nodes: &[String], image: &Path) -> Result<()> {
    ensure!(!nodes.is_empty(), "the cluster is not up: cargo xtask cluster up");
    let bytes = fs::read(image).with_context(|| format!("reading {}", image.display()))?;
    for node in nodes {
        let mut command = Command::new(engine.0);
        command.args(["exec", "--interactive", node, "ctr", "--namespace=k8s.io", "images", "import", "-"]);
        shell::feed(&mut command, &bytes)?;
    }
    Ok(())
}

/// The node's packets are dropped in both directions, its own and its pods': table, and rule.
const RULES: [(&str, &str); 2] =
    [("raw", "PREROUTING -i eth0 -j DROP"), ("mangle", "POSTROUTING -o eth0 -j DROP")];

/// Cuts the node off (`is_cut`) or heals it.
pub(crate) fn set_cut(engine: Engine, node: &str, is_cut: bool) -> Result<()> {
    let kind = installed_or_built("kind")?;
    let known = nodes(engine, &kind)?;
    ensure!(
        known.iter().any(|name| name == node),
        "no node is called {node}; there are {}",
        known.join(", ")
    );
    for (table, rule) in RULES {
        // Taken out first, so that cutting twice leaves one rule and healing a healthy node is harmless.
        let remove = format!("iptables -t {table} -D {rule} 2>/dev/null");
        let add = if is_cut { format!("iptables -t {table} -A {rule}") } else { "true".to_owned() };
        shell::run(engine.0, &["exec", node, "sh", "-c", &format!("{remove}; {add}")])?;
    }
    Ok(())
}

fn exists(engine: Engine, kind: &Path) -> Result<bool> {
    let listed = shell::output(kind_command(engine, kind).args(["get", "clusters"]))?;
    Ok(listed.lines().any(|name| name == NAME))
}

fn nodes(engine: Engine, kind: &Path) -> Result<Vec<String>> {
    let listed = shell::output(kind_command(engine, kind).args(["get", "nodes", "--name", NAME]))?;
    let mut names: Vec<_> = listed.lines().filter(|name| name.starts_with(NAME)).map(str::to_owned).collect();
    names.sort();
    Ok(names)
}

fn kind_command(engine: Engine, kind: &Path) -> Command {
    let mut command = Command::new(kind);
    command.env("KIND_EXPERIMENTAL_PROVIDER", engine.0);
    command
}
