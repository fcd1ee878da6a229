//! Changes that pods read at start, and changes that they take up by themselves.

use super::{KIND, LATER, NAME, SOON, install, notes, ready, start, uid, wait_reason};
use anyhow::{Result, ensure};
use berth_e2e::kubectl::{Namespace, text};
use berth_e2e::product_image;
use serde_json::json;
use std::thread::sleep;
use std::time::Duration;

pub(super) fn a_changed_setting_restarts_once_and_a_log_level_never(space: &Namespace) -> Result<()> {
    install(&space.kubectl, &[])?;
    start(space, &json!({ "update": { "drainTimeout": "5s" } }))?;
    let first = uid(space, "pod", "orders-0")?;
    space.patch(KIND, NAME, &json!({ "spec": { "stomp": { "queueAckTimeoutSeconds": 5 } } }))?;
    ready(space)?;
    let second = uid(space, "pod", "orders-0")?;
    ensure!(first != second, "the pod was not replaced");
    let replaced = notes(space, "PodReplaced")?;
    ensure!(replaced.len() == 1, "replaced {} times", replaced.len());

    space.patch(KIND, NAME, &json!({ "spec": { "logging": { "level": "debug" } } }))?;
    space.wait("the level to be written", SOON, |space| {
        let map = space.get("configmap", "orders-dynamic")?;
        Ok(text(&map, "/data/dynamic.yaml").contains("debug").then_some(()))
    })?;
    ready(space)?;
    sleep(Duration::from_secs(5));
    let pod = space.get("pod", "orders-0")?;
    ensure!(text(&pod, "/metadata/uid") == second, "a log level replaced the pod");
    ensure!(
        pod["status"]["containerStatuses"][0]["restartCount"] == 0,
        "a log level restarted the container"
    );

    let annotation = json!({ "metadata": { "annotations": { "berth.dev/restartedAt": "now" } } });
    space.patch(KIND, NAME, &annotation)?;
    space.wait("the pod to be replaced on request", LATER, |space| {
        let pod = space.find("pod", "orders-0")?;
        Ok(pod.filter(|pod| text(pod, "/metadata/uid") != second).map(drop))
    })?;
    ready(space)?;

    space.patch(KIND, NAME, &json!({ "metadata": { "annotations": { "berth.dev/paused": "true" } } }))?;
    let paused = uid(space, "pod", "orders-0")?;
    space.patch(KIND, NAME, &json!({ "spec": { "stomp": { "queueAckTimeoutSeconds": 6 } } }))?;
    wait_reason(space, "Paused", "True", "PausedByAnnotation")?;
    sleep(Duration::from_secs(5));
    ensure!(uid(space, "pod", "orders-0")? == paused, "a paused connector was changed");
    space.patch(KIND, NAME, &json!({ "metadata": { "annotations": { "berth.dev/paused": null } } }))?;
    space.wait("the change that was held back", LATER, |space| {
        let pod = space.find("pod", "orders-0")?;
        Ok(pod.filter(|pod| text(pod, "/metadata/uid") != paused).map(drop))
    })?;
    ready(space)?;

    let events = space.list("events", "")?;
    let failed: Vec<_> = events.iter().filter(|event| event["reason"] == "FailedPreStopHook").collect();
    ensure!(failed.is_empty(), "{failed:?}");
    Ok(())
}

pub(super) fn a_broken_image_that_is_mended_converges(space: &Namespace) -> Result<()> {
    install(&space.kubectl, &[])?;
    start(space, &json!({ "update": { "drainTimeout": "5s" } }))?;
    let image = product_image();
    let tag = image.rsplit(':').next().unwrap_or_default().to_owned();
    let broken = json!({ "spec": { "image": { "tag": "no-such-tag", "pullPolicy": "Never" } } });
    space.patch(KIND, NAME, &broken)?;
    wait_reason(space, "Progressing", "True", "PodsNotReady")?;
    let object = space.get(KIND, NAME)?;
    ensure!(super::condition(&object, "Ready").0 == "False");
    space.patch(KIND, NAME, &json!({ "spec": { "image": { "tag": tag } } }))?;
    let object = ready(space)?;
    ensure!(text(&object, "/status/version") == tag, "{}", object["status"]["version"]);
    Ok(())
}

pub(super) fn budgets_are_kept_and_never_forced(space: &Namespace) -> Result<()> {
    install(&space.kubectl, &[])?;
    start(space, &json!({ "update": { "drainTimeout": "2s" } }))?;
    let pod = uid(space, "pod", "orders-0")?;
    let theirs = json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": { "name": "theirs" },
        "spec": {
            "minAvailable": 1,
            "selector": { "matchLabels": { "app.kubernetes.io/instance": NAME } },
        },
    });
    space.apply(&theirs.to_string())?;
    space.patch(KIND, NAME, &json!({ "spec": { "stomp": { "queueAckTimeoutSeconds": 7 } } }))?;
    wait_reason(space, "Degraded", "True", "ConflictingBudgets")?;
    space.patch(KIND, NAME, &json!({ "spec": { "podDisruptionBudget": { "enabled": false } } }))?;
    wait_reason(space, "Progressing", "True", "EvictionBlocked")?;
    wait_reason(space, "Degraded", "False", "Idle")?;
    ensure!(uid(space, "pod", "orders-0")? == pod, "the budget was not kept");
    space.run(&["delete", "poddisruptionbudget", "theirs"])?;
    ready(space)?;
    ensure!(uid(space, "pod", "orders-0")? != pod, "the pod was not replaced in the end");
    Ok(())
}
