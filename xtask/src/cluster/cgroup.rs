//! The cgroups of the local cluster: one for each of our processes, and one root for the pods of each node.
//!
//! A process that our parts start (a container, its shim) is in one of these groups, whatever became of its
//! parent. That is how `down` finds all of them without looking at names. Both cgroup versions are served.

use super::layout::Node;
use super::process;
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

const ROOT: &str = "/sys/fs/cgroup";
/// Our processes' groups lie below this one.
const PARTS: &str = "berth-cluster";
/// The hierarchies that the kubelet wants on version 1.
const CONTROLLERS: [&str; 9] =
    ["cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids", "systemd"];

/// Makes the group of one part and returns its folder.
pub(crate) fn make(part: &str) -> Result<String> {
    let folder = tracker().join(PARTS).join(part);
    fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
    Ok(folder.display().to_string())
}

/// Makes the root group of a node's pods in every hierarchy.
pub(crate) fn make_node(node: Node) -> Result<()> {
    if is_unified() {
        // Best effort: a controller that the machine lacks is missed by the kubelet with a clear message.
        for controller in ["cpu", "cpuset", "memory", "pids", "io"] {
            fs::write(Path::new(ROOT).join("cgroup.subtree_control"), format!("+{controller}")).ok();
        }
        return Ok(fs::create_dir_all(Path::new(ROOT).join(node.cgroup()))?);
    }
    for controller in CONTROLLERS {
        let parent = Path::new(ROOT).join(controller);
        let folder = parent.join(node.cgroup());
        fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
        // A new cpuset has neither processors nor memory nodes and takes no process until it has.
        for file in ["cpuset.cpus", "cpuset.mems"] {
            if controller == "cpuset" && fs::read_to_string(folder.join(file))?.trim().is_empty() {
                let value = fs::read_to_string(parent.join(file))?;
                fs::write(folder.join(file), value.trim()).with_context(|| format!("setting {file}"))?;
            }
        }
    }
    Ok(())
}

/// Kills every process in the groups of one part or of a node's pods, and whatever they start meanwhile.
pub(crate) fn kill(groups: &[PathBuf]) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let members: Vec<u32> = groups.iter().flat_map(|group| members(group)).collect();
        if members.is_empty() {
            return Ok(());
        }
        if Instant::now() > deadline {
            bail!("processes {members:?} do not end");
        }
        for pid in members {
            process::signal(pid, "KILL");
        }
        sleep(Duration::from_millis(50));
    }
}

/// The group of one part.
pub(crate) fn of_part(part: &str) -> Vec<PathBuf> {
    vec![tracker().join(PARTS).join(part)]
}

/// The groups of a node's pods.
pub(crate) fn of_node(node: Node) -> Vec<PathBuf> {
    hierarchies().into_iter().map(|root| root.join(node.cgroup())).collect()
}

/// Every group of the cluster.
pub(crate) fn all() -> Vec<PathBuf> {
    let mut groups: Vec<_> = Node::all().flat_map(of_node).collect();
    groups.push(tracker().join(PARTS));
    groups
}

/// Removes the groups, innermost first. They must be empty of processes.
pub(crate) fn remove(groups: &[PathBuf]) -> Result<()> {
    for group in groups.iter().filter(|group| group.is_dir()) {
        for inner in below(group) {
            remove_one(&inner)?;
        }
    }
    Ok(())
}

/// A group whose last process has just died is busy for a moment.
fn remove_one(group: &Path) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        match fs::remove_dir(group) {
            Err(error) if group.exists() => {
                if Instant::now() > deadline {
                    return Err(error).with_context(|| format!("removing {}", group.display()));
                }
                sleep(Duration::from_millis(20));
            }
            _ => return Ok(()),
        }
    }
}

fn members(group: &Path) -> Vec<u32> {
    let lists = below(group).into_iter().filter_map(|g| fs::read_to_string(g.join("cgroup.procs")).ok());
    lists.flat_map(|list| list.lines().filter_map(|pid| pid.parse().ok()).collect::<Vec<u32>>()).collect()
}

/// The group and all groups in it, innermost first.
fn below(group: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(group).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.extend(below(&entry.path()));
        }
    }
    if group.is_dir() {
        found.push(group.to_path_buf());
    }
    found
}

fn is_unified() -> bool {
    Path::new(ROOT).join("cgroup.controllers").exists()
}

fn hierarchies() -> Vec<PathBuf> {
    if is_unified() {
        return vec![ROOT.into()];
    }
    // Every mounted hierarchy, not only the ones we made: runc makes its groups in all of them.
    let entries = fs::read_dir(ROOT).into_iter().flatten().flatten();
    let mut roots: Vec<_> = entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
    roots.sort();
    roots
}

/// The hierarchy in which our own processes are grouped; "pids" costs nothing.
fn tracker() -> PathBuf {
    if is_unified() { ROOT.into() } else { Path::new(ROOT).join("pids") }
}
