//! The local cluster: in which order its parts come up, how it is repaired, and how it goes down without a
//! trace.
//!
//! `up` looks at every part and starts what is missing, so the same walk starts, repairs and does nothing.
//! When the result is not ready in time, it takes everything down and starts from nothing, once. What
//! stands for all that is in `layout.rs`; who may change it at a time holds a lock on the folder /run/lock,
//! which leaves no file behind.

use super::images::TESTPOD_IMAGE;
use super::layout::{self, MEMORY, Node, RUN, STATE, state};
use super::node::PAUSE_IMAGE;
use super::process::{Part, Processes};
use super::tools::{self, Tools};
use super::{cgroup, control_plane, dns, images, machine, mounts, network, node, pki, provisioner, shell};
use anyhow::{Context, Result, bail, ensure};
use std::fmt;
use std::fs::{self, File, TryLockError};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The socket of `kubectl proxy`, in the run folder.
const SOCKET: &str = "api.sock";
const READY_IN: Duration = Duration::from_secs(90);
/// A part that ends more often than this is broken.
const STARTS_MAX: u32 = 4;
const DETACHED: [&str; 3] = ["provisioner", "provisioner-api", dns::PART];

/// Brings the cluster up, or repairs it.
pub(crate) fn up() -> Result<()> {
    ensure_root()?;
    let _lock = lock()?;
    let begun = Instant::now();
    tools::ensure_packages()?;
    network::refuse_overlap()?;
    let tools = Tools::ensure()?;
    let images = images::ensure()?;
    if is_of_another_boot() {
        println!("the machine was restarted: starting from nothing");
        take_down()?;
    }
    let mut attempt = start_patiently(&tools, &images);
    if let Err(error) = attempt {
        println!("the cluster cannot be repaired ({error:#}): starting from nothing");
        keep_logs();
        take_down()?;
        attempt = start_patiently(&tools, &images);
    }
    attempt.with_context(|| {
        format!("the cluster is not ready; logs are in {}", state("parts/logs").display())
    })?;
    println!("the cluster is up after {:.1} s", begun.elapsed().as_secs_f64());
    Ok(())
}

/// A part that ends while others come up is started again: it may have waited for them too briefly, or have
/// been dying when we looked.
fn start_patiently(tools: &Tools, images: &images::Images) -> Result<()> {
    let mut tries = 0;
    loop {
        let result = start(tools, images).and_then(|()| wait_ready(tools));
        tries += 1;
        match result {
            Err(error) if error.is::<Ended>() && tries < STARTS_MAX => println!("{error}; starting it again"),
            other => return other,
        }
    }
}

/// Takes the cluster down; harmless when there is none.
pub(crate) fn down() -> Result<()> {
    ensure_root()?;
    let _lock = lock()?;
    take_down()
}

/// Whether `up` was called since the last `down`; the cluster may still want a repair.
pub(crate) fn is_up() -> bool {
    state("boot").exists()
}

/// Loads an image into every node.
pub(crate) fn load(image: &Path) -> Result<()> {
    ensure_up()?;
    Node::all().try_for_each(|each| node::load(each, image))
}

/// Cuts a node off (`is_cut`) or heals it.
pub(crate) fn set_cut(name: &str, is_cut: bool) -> Result<()> {
    ensure_up()?;
    let node = node::by_name(name)?;
    if is_cut { network::cut(node) } else { network::heal(node) }
}

fn ensure_up() -> Result<()> {
    ensure_root()?;
    ensure!(is_up(), "the cluster is not up: cargo xtask cluster up");
    Ok(())
}

fn processes() -> Processes {
    Processes::new(state("parts"), true)
}

/// Starts whatever is missing, in order. Everything that can be is started before anything is waited for.
fn start(tools: &Tools, images: &images::Images) -> Result<()> {
    for folder in [STATE, RUN, MEMORY] {
        fs::create_dir_all(folder).with_context(|| format!("making {folder}"))?;
        fs::set_permissions(folder, fs::Permissions::from_mode(0o711))?;
    }
    shell::write_file(&state("boot"), &machine::boot())?;
    machine::remember()?;
    // Objects were signed with these keys and lie in this data: without them nothing fits together any more.
    let applied = state("applied");
    if applied.exists() {
        ensure!(pki::is_complete(), "certificates are missing");
        ensure!(control_plane::has_data(), "the data of etcd is missing");
    }
    network::up()?;
    pki::ensure()?;
    let processes = processes();
    let mut started = control_plane::ensure(&processes, tools)?;
    fs::create_dir_all(node::volumes())?;
    let loaded = [(PAUSE_IMAGE, &*images.pause), (TESTPOD_IMAGE, &*images.testpod)];
    for each in Node::all() {
        started |= node::ensure(&processes, tools, each, &loaded)?;
    }
    for name in ["kubectl", "helm"] {
        super::link(&tools.program(name), &state("bin").join(name))?;
    }
    wait("the API server", &control_plane::PARTS, || control_plane::is_ready(tools))?;
    let manifests =
        [dns::manifest(), provisioner::manifest(), super::marker("local", TESTPOD_IMAGE)].join("---\n");
    if started || fs::read_to_string(&applied).ok().as_deref() != Some(&manifests) {
        super::apply(&tools.program("kubectl"), &layout::kubeconfig(), &manifests)?;
        shell::write_file(&applied, &manifests)?;
    }
    dns::ensure(&processes, tools)?;
    let socket = layout::run(SOCKET);
    if !socket.exists() {
        processes.stop("provisioner-api", Duration::ZERO)?;
    }
    processes.ensure(&super::api_proxy(&tools.program("kubectl"), &layout::kubeconfig(), &socket))?;
    let program = super::copy_program(&state("bin"))?;
    let args = super::provisioner_args(&socket, &node::volumes().display().to_string());
    processes.ensure(&Part::new("provisioner", &program, &args)).map(drop)
}

/// Ready: every part is well, both nodes say so, and DNS answers through its Service.
fn wait_ready(tools: &Tools) -> Result<()> {
    let recorded = processes().recorded();
    let all: Vec<_> = recorded.iter().map(String::as_str).collect();
    wait("the parts of the nodes", &all, || Node::all().all(node::is_healthy))?;
    wait("nodes that are ready", &all, || ready_nodes(tools) == Node::all().count())?;
    let name = "kubernetes.default.svc.cluster.local";
    wait("DNS", &all, || dns::resolve(name).is_ok_and(|address| address.to_string() == layout::API_SERVICE))?;
    wait("the provisioner", &all, || UnixStream::connect(layout::run(SOCKET)).is_ok())?;
    // Without it the first pod that a person makes is refused.
    let config = layout::kubeconfig().display().to_string();
    let account = ["--kubeconfig", &config, "get", "serviceaccount", "default"];
    wait("the default service account", &all, || shell::succeeds(tools.program("kubectl"), &account))?;
    // Once more, for what has ended since it was last looked at.
    ensure_alive(&all)
}

fn ensure_alive(parts: &[&str]) -> Result<()> {
    let processes = processes();
    match parts.iter().find(|part| processes.running(part).is_none()) {
        Some(part) => Err(anyhow::Error::new(Ended((*part).to_owned()))),
        None => Ok(()),
    }
}

/// A part has ended by itself.
#[derive(Debug)]
struct Ended(String);

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ended by itself (log: {})", self.0, processes().log(&self.0).display())
    }
}

impl std::error::Error for Ended {}

fn ready_nodes(tools: &Tools) -> usize {
    let config = layout::kubeconfig().display().to_string();
    let path = "-o=jsonpath={.items[*].status.conditions[?(@.type==\"Ready\")].status}";
    let args = ["--kubeconfig", &config, "--request-timeout=3s", "get", "nodes", path];
    let printed = shell::run(tools.program("kubectl"), &args).unwrap_or_default();
    printed.split_whitespace().filter(|status| *status == "True").count()
}

/// Waits for something that needs these parts; ends as soon as one of them does.
fn wait(what: &str, parts: &[&str], mut is_there: impl FnMut() -> bool) -> Result<()> {
    let begun = Instant::now();
    while !is_there() {
        ensure_alive(parts)?;
        if begun.elapsed() > READY_IN {
            bail!("waited {} s for {what}", READY_IN.as_secs());
        }
        sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// Everything, in the order in which nothing can come back: nodes, control plane, network, traces, fence.
fn take_down() -> Result<()> {
    let processes = processes();
    for part in DETACHED {
        processes.stop(part, Duration::from_secs(2))?;
    }
    for each in Node::all() {
        node::wipe(&processes, each).with_context(|| format!("taking node {} down", each.name()))?;
    }
    control_plane::stop(&processes)?;
    for part in processes.recorded() {
        processes.stop(&part, Duration::ZERO)?;
    }
    cgroup::kill(&cgroup::all())?;
    network::down()?;
    for folder in [RUN, STATE, MEMORY] {
        mounts::unmount_below(Path::new(folder))?;
    }
    cgroup::remove(&cgroup::all())?;
    machine::restore()?;
    // The state folder last of the three: it holds what an interrupted `down` needs to go on.
    for folder in [RUN, MEMORY, STATE] {
        if Path::new(folder).exists() {
            fs::remove_dir_all(folder).with_context(|| format!("removing {folder}"))?;
        }
    }
    network::unfence()
}

/// The logs of a start that failed are what a person needs; the second start would remove them.
fn keep_logs() {
    let kept = std::env::temp_dir().join("berth-cluster-logs");
    let (from, to) = (state("parts/logs").display().to_string(), kept.display().to_string());
    if shell::succeeds("cp", &["-rT", &from, &to]) {
        println!("its logs are kept in {to}");
    }
}

fn is_of_another_boot() -> bool {
    fs::read_to_string(state("boot")).is_ok_and(|boot| boot != machine::boot())
}

fn ensure_root() -> Result<()> {
    let user = shell::run("id", &["-u"])?;
    ensure!(
        user.trim() == "0",
        "the local cluster needs root: run as root, or start Docker or Podman for kind"
    );
    Ok(())
}

/// One command at a time on the machine, whichever clone it comes from.
fn lock() -> Result<File> {
    let folder = if Path::new("/run/lock").is_dir() { "/run/lock" } else { "/run" };
    let file = File::open(folder).with_context(|| format!("opening {folder}"))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            println!("another cluster command is running; waiting for it");
            file.lock()?;
        }
        Err(TryLockError::Error(error)) => return Err(error).with_context(|| format!("locking {folder}")),
    }
    Ok(file)
}
