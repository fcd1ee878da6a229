//! From `kubectl apply` to `kubectl delete`.

use super::{
    CHILDREN, KIND, LATER, NAME, SOON, STOMP_PORT, helm, install, notes, ready, send, start, take, uid,
    versions, wait_note,
};
use anyhow::{Result, ensure};
use berth_e2e::forward::PortForward;
use berth_e2e::kubectl::{Namespace, text};
use berth_e2e::stomp::Client;
use serde_json::{Value, json};
use std::thread::sleep;
use std::time::{Duration, Instant};

pub(super) fn a_connector_becomes_ready(space: &Namespace) -> Result<()> {
    install(&space.kubectl, &[])?;
    let object = start(space, &json!({}))?;
    for (kind, name) in CHILDREN {
        space.get(kind, name)?;
    }
    ensure!(object["status"]["broker"] == "embedded" && object["status"]["version"].is_string());
    let address = text(&object, "/status/endpoints/0/address");
    ensure!(address == format!("{NAME}.{}.svc:{STOMP_PORT}", space.name), "endpoint {address}");
    ensure!(object["status"]["storage"]["phase"] == "Bound", "{}", object["status"]["storage"]);

    let table = space.run(&["get", "stompc", "-o", "wide"])?;
    let words: Vec<_> = table.split_whitespace().collect();
    for column in ["NAME", "DESIRED", "READY", "STATUS", "BROKER", "ENDPOINT", "AGE", "Available", "embedded"]
    {
        ensure!(words.contains(&column), "{column} is not in\n{table}");
    }
    let explained = space.run(&["explain", "stompconnector.spec.storage.size"])?;
    ensure!(explained.contains("It may grow at any time"), "{explained}");

    let path = format!("/apis/berth.dev/v1alpha1/namespaces/{}/stompconnectors/{NAME}/scale", space.name);
    let scale: Value = serde_json::from_str(&space.kubectl.run(&["get", "--raw", &path])?)?;
    ensure!(text(&scale, "/status/selector").contains("app.kubernetes.io/instance=orders"), "{scale}");
    ensure!(scale["status"]["replicas"] == 1, "{scale}");

    ensure!(!notes(space, "Created")?.is_empty() && !notes(space, "Ready")?.is_empty(), "events are missing");
    send(space, "hello", 1, 3)?;
    let taken = take(space, "hello", 3)?;
    ensure!(taken == [(1, false), (2, false), (3, false)], "{taken:?}");
    helm(&space.kubectl, &["test", "berth", "--timeout", "120s"]).map(drop)
}

pub(super) fn every_child_comes_back(space: &Namespace) -> Result<()> {
    install(&space.kubectl, &[])?;
    start(space, &json!({}))?;
    let pod = uid(space, "pod", "orders-0")?;
    // All but the StatefulSet, whose pods would go with it, and the tokens that the running pod holds.
    for (kind, name) in CHILDREN.iter().filter(|(kind, _)| !["statefulset", "secret"].contains(kind)) {
        let before = uid(space, kind, name)?;
        space.run(&["delete", kind, name])?;
        space.wait(&format!("{kind} {name} to come back"), Duration::from_secs(10), |space| {
            let found = space.find(kind, name)?;
            Ok(found.filter(|object| text(object, "/metadata/uid") != before).map(drop))
        })?;
    }
    space.run(&["delete", "statefulset", NAME, "--cascade=orphan"])?;
    space.wait("the StatefulSet to come back", Duration::from_secs(20), |s| s.find("statefulset", NAME))?;
    space.patch(
        "service",
        NAME,
        &json!({ "spec": { "ports": [
        { "name": "stomp", "port": 1, "targetPort": "stomp", "protocol": "TCP" } ] } }),
    )?;
    space.wait("the Service's port to be put back", SOON, |space| {
        let service = space.get("service", NAME)?;
        let ports = service["spec"]["ports"].as_array().map(Vec::len);
        Ok((ports == Some(1) && service["spec"]["ports"][0]["port"] == STOMP_PORT).then_some(()))
    })?;
    ready(space)?;
    ensure!(uid(space, "pod", "orders-0")? == pod, "the pod was replaced");
    space.run(&["scale", "statefulset", NAME, "--replicas=0"])?;
    wait_note(space, "ForeignScaler")?;
    ready(space).map(drop)
}

pub(super) fn nothing_is_written_in_the_steady_state(space: &Namespace) -> Result<()> {
    install(&space.kubectl, &["operator.heartbeatSeconds=1"])?;
    // Spellings that the API server changes, and fields that it leaves out.
    start(
        space,
        &json!({
            "storage": { "size": "1.5Gi" },
            "resources": {
                "requests": { "cpu": "0.05", "memory": "65536Ki" },
                "limits": { "memory": "0.5Gi" },
            },
            "env": [{ "name": "EMPTY", "value": "" }],
            "service": { "annotations": { "note": "x" } },
            "podTemplate": { "spec": { "hostNetwork": false, "shareProcessNamespace": false } },
        }),
    )?;
    sleep(Duration::from_secs(3));
    let before = versions(space)?;
    // More than ten passes.
    sleep(Duration::from_secs(12));
    let after = versions(space)?;
    let changed: Vec<_> = after.iter().filter(|version| !before.contains(version)).collect();
    ensure!(changed.is_empty(), "written in the steady state: {changed:?}");
    Ok(())
}

pub(super) fn a_deleted_connector_leaves_its_volume_alone(space: &Namespace) -> Result<()> {
    install(&space.kubectl, &[])?;
    start(space, &json!({}))?;
    send(space, "kept", 1, 2)?;
    let claim = uid(space, "pvc", "data-orders-0")?;
    // A client that never settles what it was given keeps nobody alive.
    let forward = PortForward::start(space, "pod/orders-0", STOMP_PORT)?;
    let mut client = Client::connect(forward.address())?;
    client.send("SUBSCRIBE\nid:1\ndestination:/queue/kept\nack:client-individual\n\n\0")?;
    client.expect("MESSAGE")?;
    let begun = Instant::now();
    space.run(&["delete", KIND, NAME, "--wait=true", "--timeout=30s"])?;
    gone(space)?;
    // 30 s of grace and 10 more.
    ensure!(begun.elapsed() < Duration::from_secs(45), "the pod took {} s to go", begun.elapsed().as_secs());
    drop(client);
    ensure!(uid(space, "pvc", "data-orders-0")? == claim, "the volume went");

    start(space, &json!({ "storage": { "whenDeleted": "Delete" } }))?;
    wait_note(space, "VolumeReused")?;
    let mut taken = take(space, "kept", 2)?;
    taken.sort_unstable();
    ensure!(taken.iter().map(|(body, _)| *body).eq([1, 2]), "{taken:?}");
    space.run(&["delete", KIND, NAME, "--wait=true", "--timeout=30s"])?;
    gone(space)?;
    space.wait("the volume to go with it", SOON, |space| {
        Ok(space.find("pvc", "data-orders-0")?.is_none().then_some(()))
    })
}

/// Waits until nothing but the volume is left.
fn gone(space: &Namespace) -> Result<()> {
    space.wait("everything but the volume to be gone", LATER, |space| {
        let kinds = "statefulsets,pods,services,configmaps,secrets,serviceaccounts,roles,rolebindings,\
                     poddisruptionbudgets";
        let left = space.list(kinds, "app.kubernetes.io/instance=orders")?;
        if left.is_empty() {
            return Ok(Some(()));
        }
        let names: Vec<_> = left.iter().map(|o| (text(o, "/kind"), text(o, "/metadata/name"))).collect();
        anyhow::bail!("left: {names:?}")
    })
}
