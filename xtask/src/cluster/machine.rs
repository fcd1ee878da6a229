//! What the cluster changes on the machine outside its own folders, and how that is put back.
//!
//! The kubelet sets a few kernel parameters; containerd, runc and CNI make a few folders that no option
//! moves. What was there before is written down before the first of them starts.

use super::layout::state;
use super::{mounts, shell};
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

/// What every start of a kubelet may set (kubelet, "setupKernelTunables").
const PARAMETERS: [&str; 6] = [
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
];

/// Folders that appear although every option that names a folder names one of ours; outer ones last.
const FOLDERS: [&str; 12] = [
    "/run/mount",
    "/run/containerd",
    "/run/runc",
    "/var/log/containers",
    "/var/log/pods",
    "/var/lib/cni",
    "/var/lib/kubelet",
    "/var/lib/containerd",
    "/opt/containerd",
    "/opt/cni",
    "/etc/cni/net.d",
    "/etc/cni",
];

/// Of these, other programs of the machine may need this one meanwhile: it goes only when it is empty.
const SHARED: &str = "/run/mount";

/// Writes down how the machine is, once.
pub(crate) fn remember() -> Result<()> {
    let file = state("machine.json");
    if file.exists() {
        return Ok(());
    }
    let read = |name: &str| fs::read_to_string(Path::new("/proc/sys").join(name)).ok();
    let parameters: Vec<Value> = PARAMETERS
        .into_iter()
        .filter_map(|name| Some(json!({ "name": name, "value": read(name)?.trim() })))
        .collect();
    let absent: Vec<_> = FOLDERS.into_iter().filter(|folder| !Path::new(folder).exists()).collect();
    shell::write_file(&file, &json!({ "parameters": parameters, "absent": absent }).to_string()).map(drop)
}

/// Puts everything back. Nothing of the cluster runs any more.
pub(crate) fn restore() -> Result<()> {
    let file = state("machine.json");
    let Ok(text) = fs::read_to_string(&file) else { return Ok(()) };
    let known: Value = serde_json::from_str(&text).with_context(|| format!("reading {}", file.display()))?;
    for parameter in known["parameters"].as_array().into_iter().flatten() {
        let (Some(name), Some(value)) = (parameter["name"].as_str(), parameter["value"].as_str()) else {
            continue;
        };
        let path = Path::new("/proc/sys").join(name);
        if fs::read_to_string(&path).is_ok_and(|now| now.trim() != value) {
            fs::write(&path, value).with_context(|| format!("putting {name} back to {value}"))?;
        }
    }
    for folder in known["absent"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        // Only names from our own list are ever removed, whatever the file says.
        if folder == SHARED {
            fs::remove_dir(folder).ok();
        } else if FOLDERS.contains(&folder) && Path::new(folder).exists() {
            mounts::unmount_below(Path::new(folder))?;
            fs::remove_dir_all(folder).with_context(|| format!("removing {folder}"))?;
        }
    }
    Ok(())
}

/// The id of the machine's current run; processes and namespaces of another one are gone.
pub(crate) fn boot() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}
