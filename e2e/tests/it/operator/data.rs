//! Messages and volumes: nothing that was confirmed is lost by what an administrator does.

use super::{
    KIND, LATER, NAME, SOON, STOMP_PORT, install, notes, ready, send, start, take, uid, wait_reason,
};
use anyhow::{Context, Result, bail, ensure};
use berth_e2e::forward::PortForward;
use berth_e2e::kubectl::{Kubectl, Namespace, text};
use berth_e2e::stomp::Client;
use berth_e2e::suite::skip;
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// Takes three of the messages, acknowledges the first, and keeps the others in hand.
fn hold(space: &Namespace, queue: &str) -> Result<(PortForward, Client)> {
    let forward = PortForward::start(space, "pod/orders-0", STOMP_PORT)?;
    let mut client = Client::connect(forward.address())?;
    client.send(format!(
        "SUBSCRIBE\nid:1\ndestination:/queue/{queue}\nack:client-individual\nprefetch-count:3\n\n\0"
    ))?;
    let first = client.expect("MESSAGE")?;
    let token = first.header("ack").context("a token")?.to_owned();
    client.expect("MESSAGE")?;
    client.expect("MESSAGE")?;
    // With one of three settled a fourth would come; the subscription ends instead, which keeps what was
    // given.
    client.send("UNSUBSCRIBE\nid:1\nreceipt:ended\n\n\0")?;
    client.expect("RECEIPT")?;
    client.send(format!("ACK\nid:{token}\nreceipt:acked\n\n\0"))?;
    client.expect("RECEIPT")?;
    Ok((forward, client))
}

/// All of `2..=last` once, and of these only 2 and 3 marked as delivered before.
fn check_rest(taken: &[(u32, bool)], last: u32) -> Result<()> {
    let bodies: BTreeSet<u32> = taken.iter().map(|(body, _)| *body).collect();
    ensure!(bodies == (2..=last).collect() && taken.len() == bodies.len(), "taken: {taken:?}");
    let again: BTreeSet<u32> = taken.iter().filter(|(_, again)| *again).map(|(body, _)| *body).collect();
    ensure!(again == BTreeSet::from([2, 3]), "marked as redelivered: {again:?} of {taken:?}");
    Ok(())
}

pub(super) fn a_deleted_pod_comes_back_with_everything(space: &Namespace) -> Result<()> {
    install(&space.kubectl, &[])?;
    start(space, &json!({ "update": { "drainTimeout": "5s" } }))?;
    send(space, "jobs", 1, 10)?;
    let held = hold(space, "jobs")?;
    let (pod, claim) = (uid(space, "pod", "orders-0")?, uid(space, "pvc", "data-orders-0")?);
    space.run(&["delete", "pod", "orders-0", "--wait=false"])?;
    space.wait("another pod of the same name", LATER, |space| {
        let found = space.find("pod", "orders-0")?;
        Ok(found.filter(|object| text(object, "/metadata/uid") != pod).map(drop))
    })?;
    drop(held);
    ready(space)?;
    ensure!(uid(space, "pvc", "data-orders-0")? == claim, "another volume");
    check_rest(&take(space, "jobs", 9)?, 10)
}

pub(super) fn scaling_to_zero_keeps_messages_and_says_so(space: &Namespace) -> Result<()> {
    install(&space.kubectl, &[])?;
    start(space, &json!({ "update": { "drainTimeout": "5s" } }))?;
    send(space, "jobs", 1, 4)?;
    let claim = uid(space, "pvc", "data-orders-0")?;
    space.run(&["scale", KIND, NAME, "--replicas=0"])?;
    wait_reason(space, "Ready", "False", "ScaledToZero")?;
    no_pod(space)?;
    let note = super::wait_note(space, "ScaledToZero")?;
    ensure!(note.contains("4 messages") && note.contains("data-orders-0"), "{note}");
    space.run(&["scale", KIND, NAME, "--replicas=1"])?;
    ready(space)?;

    space.patch(KIND, NAME, &json!({ "spec": { "suspend": true } }))?;
    wait_reason(space, "Ready", "False", "Suspended")?;
    no_pod(space)?;
    space.patch(KIND, NAME, &json!({ "spec": { "suspend": false } }))?;
    ready(space)?;
    ensure!(uid(space, "pvc", "data-orders-0")? == claim, "another volume");
    let taken = take(space, "jobs", 4)?;
    ensure!(taken.iter().map(|(body, _)| *body).eq([1, 2, 3, 4]), "{taken:?}");
    Ok(())
}

fn no_pod(space: &Namespace) -> Result<()> {
    space
        .wait("the pod to be gone", LATER, |space| Ok(space.find("pod", "orders-0")?.is_none().then_some(())))
}

pub(super) fn volumes_grow_and_never_shrink(space: &Namespace) -> Result<()> {
    if !expands(&space.kubectl)? {
        return skip("the default storage class cannot grow volumes");
    }
    install(&space.kubectl, &[])?;
    // The claims belong to the StatefulSet then, which is deleted and made anew on the way.
    start(space, &json!({ "storage": { "size": "1Gi", "whenDeleted": "Delete" } }))?;
    let claim = uid(space, "pvc", "data-orders-0")?;
    send(space, "jobs", 1, 2)?;
    let (pod, set) = (uid(space, "pod", "orders-0")?, uid(space, "statefulset", NAME)?);
    space.patch(KIND, NAME, &json!({ "spec": { "storage": { "size": "2Gi" } } }))?;
    space.wait("the volume to have grown", LATER, |space| {
        let object = space.get(KIND, NAME)?;
        let storage = &object["status"]["storage"];
        if storage["capacity"] == "2Gi" && storage["phase"] == "Bound" {
            return Ok(Some(()));
        }
        bail!("{storage}")
    })?;
    ready(space)?;
    let made = space.get("statefulset", NAME)?;
    let size = text(&made, "/spec/volumeClaimTemplates/0/spec/resources/requests/storage");
    ensure!(size == "2Gi", "the template says {size}");
    ensure!(text(&made, "/metadata/uid") != set, "the StatefulSet was not made anew");
    ensure!(uid(space, "pod", "orders-0")? == pod, "growing replaced the pod");
    ensure!(uid(space, "pvc", "data-orders-0")? == claim, "growing replaced the volume");
    for smaller in [json!({ "size": "1Gi" }), json!({ "size": null })] {
        match space.patch(KIND, NAME, &json!({ "spec": { "storage": smaller } })) {
            Ok(()) => bail!("shrinking to {smaller} was accepted"),
            Err(error) => ensure!(format!("{error:#}").contains("volumes cannot shrink"), "{error:#}"),
        }
    }
    let taken = take(space, "jobs", 2)?;
    ensure!(taken == [(1, false), (2, false)], "{taken:?}");
    Ok(())
}

pub(super) fn a_class_that_cannot_grow_is_said(space: &Namespace) -> Result<()> {
    let Some(class) = default_class(&space.kubectl)? else {
        return skip("there is no default storage class");
    };
    install(&space.kubectl, &[])?;
    let fixed = FixedClass::make(space, &class)?;
    start(space, &json!({ "storage": { "size": "1Gi", "storageClassName": fixed.name } }))?;
    space.patch(KIND, NAME, &json!({ "spec": { "storage": { "size": "2Gi" } } }))?;
    let object = wait_reason(space, "Resizing", "False", "ExpansionRefused")?;
    ensure!(
        super::condition(&object, "Degraded").1 == "ExpansionRefused",
        "{}",
        object["status"]["conditions"]
    );
    let message = super::condition(&object, "Resizing").2;
    ensure!(message.contains("must support resize"), "{message}");
    space.patch(KIND, NAME, &json!({ "spec": { "storage": { "size": "1Gi" } } }))?;
    wait_reason(space, "Degraded", "False", "Idle")?;
    ready(space).map(drop)
}

/// A storage class that cannot grow volumes; it goes when this is dropped.
struct FixedClass {
    kubectl: Kubectl,
    name: String,
}

impl FixedClass {
    fn make(space: &Namespace, like: &Value) -> Result<Self> {
        let made = Self { kubectl: space.kubectl.clone(), name: space.name.clone() };
        let class = json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": { "name": made.name },
            "provisioner": like["provisioner"], "parameters": like["parameters"],
            "volumeBindingMode": like["volumeBindingMode"], "allowVolumeExpansion": false,
        });
        space.apply(&class.to_string())?;
        Ok(made)
    }
}

impl Drop for FixedClass {
    fn drop(&mut self) {
        if let Err(error) = self.kubectl.run(&["delete", "storageclass", &self.name]) {
            eprintln!("deleting the storage class {}: {error:#}", self.name);
        }
    }
}

fn expands(kubectl: &Kubectl) -> Result<bool> {
    Ok(default_class(kubectl)?.is_some_and(|class| class["allowVolumeExpansion"] == true))
}

fn default_class(kubectl: &Kubectl) -> Result<Option<Value>> {
    let classes = kubectl.json(&["get", "storageclasses"])?;
    let default = "storageclass.kubernetes.io/is-default-class";
    let classes = classes["items"].as_array().cloned().unwrap_or_default();
    Ok(classes.into_iter().find(|class| class["metadata"]["annotations"][default] == "true"))
}

pub(super) fn a_drained_node_gives_the_connector_away(space: &Namespace) -> Result<()> {
    if space.kubectl.workers()?.len() < 2 {
        return skip("one node alone cannot give a pod to another one");
    }
    install(&space.kubectl, &[])?;
    start(space, &json!({ "update": { "drainTimeout": "5s" } }))?;
    send(space, "jobs", 1, 3)?;
    let claim = uid(space, "pvc", "data-orders-0")?;
    let node = text(&space.get("pod", "orders-0")?, "/spec/nodeName");
    let opened = Uncordon { kubectl: space.kubectl.clone(), node: node.clone() };
    space.kubectl.run(&[
        "drain",
        &node,
        "--ignore-daemonsets",
        "--delete-emptydir-data",
        "--force",
        "--timeout=150s",
    ])?;
    space.wait("the pod to run elsewhere", LATER, |space| {
        let pod = space.find("pod", "orders-0")?;
        Ok(pod.filter(|pod| ![String::new(), node.clone()].contains(&text(pod, "/spec/nodeName"))).map(drop))
    })?;
    ready(space)?;
    drop(opened);
    ensure!(uid(space, "pvc", "data-orders-0")? == claim, "another volume");
    let taken = take(space, "jobs", 3)?;
    ensure!(taken.iter().map(|(body, _)| *body).eq([1, 2, 3]), "{taken:?}");
    ensure!(notes(space, "PodReplaced")?.is_empty(), "the operator replaced what the drain moved");
    let system = super::system(&space.kubectl);
    system.wait("the operator to be back", SOON, |system| {
        let deployment = system.get("deployment", "berth")?;
        Ok((deployment["status"]["readyReplicas"] == 1).then_some(()))
    })
}

/// Opens the node again, whatever the test comes to.
struct Uncordon {
    kubectl: Kubectl,
    node: String,
}

impl Drop for Uncordon {
    fn drop(&mut self) {
        if let Err(error) = self.kubectl.run(&["uncordon", &self.node]) {
            eprintln!("uncordoning {}: {error:#}", self.node);
        }
    }
}
