//! Gives claims their volumes: a folder for each, in one place that every node sees.
//!
//! It does for a test cluster what a CSI driver's provisioner and resizer do: binds a claim to a new
//! volume, completes an expansion in the claim's status, removes the folder of a volume that was given up.
//! A volume has no node affinity, so a drain can move its pod. Sizes are not enforced. It is a loop over
//! the whole state, twice a second: nothing is remembered, so a restart at any point goes on where things
//! stand.
//!
//! Started by `up` as `xtask cluster provisioner ...`, from a copy of the program.

use super::api::Api;
use super::shell;
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::thread::sleep;
use std::time::Duration;

/// Its name in StorageClass objects. Tests may make classes of their own with it.
const NAME: &str = "berth.dev/local";
const PERIOD: Duration = Duration::from_millis(500);

/// What the loop needs to know.
#[derive(clap::Args)]
pub(crate) struct Settings {
    /// The socket of `kubectl proxy`.
    #[arg(long)]
    socket: PathBuf,
    /// The folder of all volumes, as the nodes see it.
    #[arg(long)]
    volumes: String,
    /// How to get to where that folder is, for example `docker exec NODE`; nothing on the machine itself.
    #[arg(long, num_args = 0.., allow_hyphen_values = true)]
    through: Vec<String>,
}

/// The default StorageClass.
pub(crate) fn manifest() -> String {
    format!(
        "apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata:
  name: berth-local
  annotations: {{ storageclass.kubernetes.io/is-default-class: \"true\" }}
provisioner: {NAME}
reclaimPolicy: Delete
volumeBindingMode: Immediate
allowVolumeExpansion: true
"
    )
}

/// Runs for ever; what goes wrong is printed and tried again.
pub(crate) fn run(settings: Settings) -> Result<()> {
    let provisioner = Provisioner { api: Api { socket: settings.socket.clone() }, settings };
    let mut last = String::new();
    loop {
        let problem = provisioner.look().err().map(|error| format!("{error:#}")).unwrap_or_default();
        if problem != last && !problem.is_empty() {
            println!("{problem}");
        }
        last = problem;
        sleep(PERIOD);
    }
}

struct Provisioner {
    api: Api,
    settings: Settings,
}

/// What a claim or a volume needs next.
#[derive(Debug, PartialEq)]
enum Step {
    Provision,
    Grow,
    Remove,
}

impl Provisioner {
    fn look(&self) -> Result<()> {
        let mut problems = Vec::new();
        // resourceVersion=0: from the server's cache, which costs it next to nothing.
        for claim in items(self.api.get("/api/v1/persistentvolumeclaims?resourceVersion=0")?) {
            let result = match step_of_claim(&claim) {
                Some(Step::Provision) => self.provision(&claim),
                Some(Step::Grow) => self.grow(&claim),
                _ => Ok(()),
            };
            problems.extend(result.err().map(|error| format!("{}: {error:#}", name(&claim))));
        }
        for volume in items(self.api.get("/api/v1/persistentvolumes?resourceVersion=0")?) {
            if step_of_volume(&volume).is_some() {
                let result = self.remove(&volume);
                problems.extend(result.err().map(|error| format!("{}: {error:#}", name(&volume))));
            }
        }
        ensure!(problems.is_empty(), "{}", problems.join("\n"));
        Ok(())
    }

    fn provision(&self, claim: &Value) -> Result<()> {
        let class = text(claim, "/spec/storageClassName");
        let class = self.api.get(&format!("/apis/storage.k8s.io/v1/storageclasses/{class}"))?;
        let volume = volume_for(claim, &class, &self.settings.volumes);
        let folder = text(&volume, "/spec/hostPath/path");
        self.command(&["mkdir", "-p", &folder])?;
        // Whoever the pod runs as may write: a hostPath volume gets no fsGroup.
        self.command(&["chmod", "0777", &folder])?;
        // 409: made before, and the cache does not show it yet.
        self.api.create("/api/v1/persistentvolumes", &volume)?.allow(&[409], "creating the volume")?;
        Ok(())
    }

    /// First the volume, then the claim's status, as the resizer of a CSI driver does.
    fn grow(&self, claim: &Value) -> Result<()> {
        let size = text(claim, "/spec/resources/requests/storage");
        let volume = format!("/api/v1/persistentvolumes/{}", text(claim, "/spec/volumeName"));
        let capacity = json!({ "capacity": { "storage": size } });
        self.api.patch(&volume, &json!({ "spec": capacity }))?.allow(&[], "growing the volume")?;
        let namespace = text(claim, "/metadata/namespace");
        let path = format!("/api/v1/namespaces/{namespace}/persistentvolumeclaims/{}/status", name(claim));
        let status = json!({
            "metadata": { "resourceVersion": claim["metadata"]["resourceVersion"] },
            "status": {
                "capacity": { "storage": size },
                "allocatedResources": { "storage": size },
                "allocatedResourceStatuses": null,
                "conditions": null,
            },
        });
        // 409: the claim has changed; the next look takes it up again.
        self.api.patch(&path, &status)?.allow(&[404, 409], "writing the claim's new capacity")
    }

    fn remove(&self, volume: &Value) -> Result<()> {
        let folder = text(volume, "/spec/hostPath/path");
        let inside = folder.strip_prefix(&self.settings.volumes).and_then(|rest| rest.strip_prefix('/'));
        let inside = inside.with_context(|| format!("{folder} is not ours to remove"))?;
        ensure!(!inside.is_empty() && !inside.contains(['/', '.']), "{folder} is not ours to remove");
        self.command(&["rm", "-rf", &folder])?;
        let path = format!("/api/v1/persistentvolumes/{}", name(volume));
        self.api.delete(&path)?.allow(&[404], "deleting the volume")
    }

    fn command(&self, words: &[&str]) -> Result<()> {
        let mut all: Vec<&str> = self.settings.through.iter().map(String::as_str).collect();
        all.extend_from_slice(words);
        let (program, args) = all.split_first().context("a command has a program")?;
        shell::run(program, args).map(drop)
    }
}

fn step_of_claim(claim: &Value) -> Option<Step> {
    // Claims name the provisioner under either key; the first is the older one.
    let keys = ["volume.beta.kubernetes.io/storage-provisioner", "volume.kubernetes.io/storage-provisioner"];
    let ours = keys.iter().any(|key| claim["metadata"]["annotations"][key] == NAME);
    if !ours || claim["metadata"]["deletionTimestamp"].is_string() {
        return None;
    }
    let wanted = quantity(&text(claim, "/spec/resources/requests/storage"));
    let given = quantity(&text(claim, "/status/capacity/storage"));
    match claim["status"]["phase"].as_str() {
        Some("Pending") if text(claim, "/spec/volumeName").is_empty() => Some(Step::Provision),
        Some("Bound") if wanted > given => Some(Step::Grow),
        _ => None,
    }
}

fn step_of_volume(volume: &Value) -> Option<Step> {
    let ours = volume["metadata"]["annotations"]["pv.kubernetes.io/provisioned-by"] == NAME;
    let given_up = volume["status"]["phase"] == "Released"
        && volume["spec"]["persistentVolumeReclaimPolicy"] == "Delete"
        && volume["metadata"]["deletionTimestamp"].is_null();
    (ours && given_up).then_some(Step::Remove)
}

/// The volume for a claim. Its name comes from the claim's uid, so that a second attempt makes the same one.
fn volume_for(claim: &Value, class: &Value, volumes: &str) -> Value {
    let name = format!("pvc-{}", text(claim, "/metadata/uid"));
    json!({
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": { "name": name, "annotations": { "pv.kubernetes.io/provisioned-by": NAME } },
        "spec": {
            "capacity": { "storage": claim["spec"]["resources"]["requests"]["storage"] },
            "accessModes": claim["spec"]["accessModes"],
            "volumeMode": "Filesystem",
            "storageClassName": claim["spec"]["storageClassName"],
            "persistentVolumeReclaimPolicy": class["reclaimPolicy"].as_str().unwrap_or("Delete"),
            "hostPath": { "path": format!("{volumes}/{name}"), "type": "Directory" },
            "claimRef": {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "namespace": claim["metadata"]["namespace"],
                "name": claim["metadata"]["name"],
                "uid": claim["metadata"]["uid"],
            },
        },
    })
}

/// The value of a quantity in its unit (Kubernetes API conventions, "Quantity"); None when it is no number.
fn quantity(text: &str) -> Option<f64> {
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let factor = match unit {
        "" => 1.0,
        "m" => 1e-3,
        "k" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "T" => 1e12,
        "Ki" => 1024.0,
        "Mi" => 1024_f64.powi(2),
        "Gi" => 1024_f64.powi(3),
        "Ti" => 1024_f64.powi(4),
        _ => return None,
    };
    number.parse::<f64>().ok().map(|number| number * factor)
}

fn items(mut list: Value) -> Vec<Value> {
    match list["items"].take() {
        Value::Array(items) => items,
        _ => Vec::new(),
    }
}

fn text(object: &Value, pointer: &str) -> String {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn name(object: &Value) -> String {
    text(object, "/metadata/name")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(phase: &str, wanted: &str, given: &str) -> Value {
        json!({
            "metadata": {
                "name": "data-0", "namespace": "test", "uid": "1-2",
                "annotations": { "volume.kubernetes.io/storage-provisioner": NAME },
            },
            "spec": {
                "storageClassName": "berth-local", "accessModes": ["ReadWriteOnce"],
                "resources": { "requests": { "storage": wanted } },
            },
            "status": { "phase": phase, "capacity": { "storage": given } },
        })
    }

    #[test]
    fn claims_are_provisioned_and_grown_and_never_shrunk() {
        assert_eq!(step_of_claim(&claim("Pending", "1Gi", "")), Some(Step::Provision));
        assert_eq!(step_of_claim(&claim("Bound", "2Gi", "1Gi")), Some(Step::Grow));
        assert_eq!(step_of_claim(&claim("Bound", "1Gi", "1024Mi")), None);
        assert_eq!(step_of_claim(&claim("Bound", "1G", "1Gi")), None);
        assert_eq!(step_of_claim(&claim("Lost", "2Gi", "1Gi")), None);
        let mut foreign = claim("Pending", "1Gi", "");
        foreign["metadata"]["annotations"] = json!({ "volume.kubernetes.io/storage-provisioner": "other" });
        assert_eq!(step_of_claim(&foreign), None);
        let mut deleted = claim("Pending", "1Gi", "");
        deleted["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        assert_eq!(step_of_claim(&deleted), None);
    }

    #[test]
    fn only_volumes_given_up_with_policy_delete_are_removed() {
        let class = json!({ "reclaimPolicy": "Delete" });
        let mut volume = volume_for(&claim("Pending", "1Gi", ""), &class, "/volumes");
        assert_eq!(volume["spec"]["hostPath"]["path"], "/volumes/pvc-1-2");
        assert_eq!(volume["spec"]["claimRef"]["uid"], "1-2");
        assert!(volume["spec"]["nodeAffinity"].is_null());
        assert_eq!(step_of_volume(&volume), None);
        volume["status"] = json!({ "phase": "Released" });
        assert_eq!(step_of_volume(&volume), Some(Step::Remove));
        volume["spec"]["persistentVolumeReclaimPolicy"] = json!("Retain");
        assert_eq!(step_of_volume(&volume), None);
    }

    #[test]
    fn quantities_compare_across_units() {
        assert_eq!(quantity("1Gi"), quantity("1024Mi"));
        assert_eq!(quantity("1500m"), Some(1.5));
        assert_eq!(quantity("1Zi"), None);
        assert_eq!(quantity(""), None);
    }
}
