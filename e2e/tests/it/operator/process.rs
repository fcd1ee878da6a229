//! The operator as a process: ended, restarted, without its lease, away, uninstalled.

use super::{
    KIND, LATER, NAME, SOON, SYSTEM, condition, connector, helm, install, notes, ready, start, system, uid,
    versions, wait_reason,
};
use anyhow::{Context, Result, bail, ensure};
use berth_e2e::kubectl::{Kubectl, Namespace, text};
use serde_json::{Value, json};
use std::thread::sleep;
use std::time::Duration;

/// The exit code of an operator that was told to end after a step.
const TEST_EXIT_CODE: u64 = 86;

/// The pods of the operator that are not on their way out.
fn operators(kubectl: &Kubectl) -> Result<Vec<Value>> {
    let pods = system(kubectl).list("pods", "app.kubernetes.io/name=berth-operator")?;
    Ok(pods.into_iter().filter(|pod| !pod["metadata"]["deletionTimestamp"].is_string()).collect())
}

/// Waits until the pod that holds the lease is one that runs.
fn led(kubectl: &Kubectl) -> Result<String> {
    system(kubectl).wait("an operator to lead", SOON, |system| {
        let lease = system.find("lease", "berth")?.context("there is no lease")?;
        let holder = text(&lease, "/spec/holderIdentity");
        let names: Vec<_> = operators(kubectl)?.iter().map(|pod| text(pod, "/metadata/name")).collect();
        if names.contains(&holder) { Ok(Some(holder)) } else { bail!("{holder:?} holds it, {names:?} run") }
    })
}

fn end_after(kubectl: &Kubectl, step: Option<&str>) -> Result<()> {
    let variable = step
        .map_or_else(|| "BERTH_TEST_EXIT_AFTER-".to_owned(), |step| format!("BERTH_TEST_EXIT_AFTER={step}"));
    kubectl.run(&["--namespace", SYSTEM, "set", "env", "deployment/berth", &variable])?;
    let status = ["--namespace", SYSTEM, "rollout", "status", "deployment/berth", "--timeout=120s"];
    // With a step that comes at once the new pod may never be ready; without one it has to be.
    let rolled = kubectl.run(&status).map(drop);
    if step.is_none() {
        rolled?;
        led(kubectl)?;
    }
    Ok(())
}

fn has_ended(kubectl: &Kubectl) -> Result<bool> {
    let code = |pod: &Value| {
        let container = &pod["status"]["containerStatuses"][0];
        let ended = ["state", "lastState"].map(|state| container[state]["terminated"]["exitCode"].as_u64());
        ended.contains(&Some(TEST_EXIT_CODE))
    };
    Ok(operators(kubectl)?.iter().any(code))
}

pub(super) fn an_operator_ended_after_any_step_is_continued(space: &Namespace) -> Result<()> {
    let kubectl = &space.kubectl;
    install(kubectl, &[])?;
    // Making: the connector comes to be although the operator ends in the middle.
    let making = ["make-internal-secret", "apply-service", "apply-statefulset"];
    for step in making {
        end_after(kubectl, Some(step))?;
        space.apply(&connector(&json!({ "update": { "drainTimeout": "2s" } })).to_string())?;
        ended(space, step)?;
        end_after(kubectl, None)?;
        ready(space).with_context(|| format!("after {step}"))?;
        if step != making[making.len() - 1] {
            space.run(&["delete", KIND, NAME, "--wait=true"])?;
            space.wait("the pod to be gone", LATER, |s| {
                Ok(s.find("pod", "orders-0")?.is_none().then_some(()))
            })?;
        }
    }
    // Growing: four steps, and no pod is replaced.
    let pod = uid(space, "pod", "orders-0")?;
    for (step, size) in [
        ("grow-volume", "2Gi"),
        ("status", "3Gi"),
        ("orphan-statefulset", "4Gi"),
        ("apply-statefulset", "5Gi"),
    ] {
        end_after(kubectl, Some(step))?;
        space.patch(KIND, NAME, &json!({ "spec": { "storage": { "size": size } } }))?;
        ended(space, step)?;
        end_after(kubectl, None)?;
        space.wait(&format!("the volume to have {size} after {step}"), LATER, |space| {
            let object = space.get(KIND, NAME)?;
            let storage = &object["status"]["storage"];
            let there = storage["capacity"] == size && storage["phase"] == "Bound";
            if there { Ok(Some(())) } else { bail!("{storage}") }
        })?;
        ready(space).with_context(|| format!("after {step}"))?;
        ensure!(uid(space, "pod", "orders-0")? == pod, "{step} cost the pod");
    }
    // Rolling: each change costs each pod one replacement, whoever does it.
    let mut timeout = 10;
    for step in ["apply-configmap", "apply-statefulset", "evict"] {
        let before = notes(space, "PodReplaced")?.len();
        timeout += 1;
        end_after(kubectl, Some(step))?;
        space.patch(KIND, NAME, &json!({ "spec": { "stomp": { "queueAckTimeoutSeconds": timeout } } }))?;
        ended(space, step)?;
        end_after(kubectl, None)?;
        ready(space).with_context(|| format!("after {step}"))?;
        let replaced = notes(space, "PodReplaced")?.len() - before;
        ensure!(replaced == 1, "{step}: replaced {replaced} times");
    }
    // Scaling to zero.
    end_after(kubectl, Some("apply-statefulset"))?;
    space.run(&["scale", KIND, NAME, "--replicas=0"])?;
    ended(space, "apply-statefulset")?;
    end_after(kubectl, None)?;
    wait_reason(space, "Ready", "False", "ScaledToZero").map(drop)
}

fn ended(space: &Namespace, step: &str) -> Result<()> {
    space.wait(&format!("the operator to end after {step}"), LATER, |space| {
        Ok(has_ended(&space.kubectl)?.then_some(()))
    })
}

pub(super) fn a_restarted_operator_changes_nothing(space: &Namespace) -> Result<()> {
    let kubectl = &space.kubectl;
    install(kubectl, &[])?;
    start(space, &json!({}))?;
    sleep(Duration::from_secs(3));
    let before = versions(space)?;
    let first = led(kubectl)?;
    kubectl.run(&["--namespace", SYSTEM, "rollout", "restart", "deployment/berth"])?;
    kubectl.run(&["--namespace", SYSTEM, "rollout", "status", "deployment/berth", "--timeout=120s"])?;
    space.wait("another operator to lead", SOON, |_| Ok((led(kubectl)? != first).then_some(())))?;
    // Several heartbeats.
    sleep(Duration::from_secs(6));
    let after = versions(space)?;
    let changed: Vec<_> = after.iter().filter(|version| !before.contains(version)).collect();
    ensure!(changed.is_empty(), "written by an operator that only started: {changed:?}");
    Ok(())
}

pub(super) fn an_operator_without_its_lease_writes_nothing(space: &Namespace) -> Result<()> {
    let kubectl = &space.kubectl;
    install(kubectl, &[])?;
    start(space, &json!({}))?;
    let holder = led(kubectl)?;
    let restarts = |kubectl: &Kubectl| -> Result<u64> {
        let pod = system(kubectl).get("pod", &holder)?;
        Ok(pod["status"]["containerStatuses"][0]["restartCount"].as_u64().unwrap_or(0))
    };
    let before = restarts(kubectl)?;
    let thief = json!({ "spec": { "holderIdentity": "thief", "leaseDurationSeconds": 3600 } });
    system(kubectl).patch("lease", "berth", &thief)?;
    space.wait("the old leader to end", SOON, |space| {
        Ok((restarts(&space.kubectl)? > before).then_some(()))
    })?;
    let written = versions(space)?;
    space.patch(KIND, NAME, &json!({ "metadata": { "annotations": { "test": "x" } } }))?;
    space.run(&["delete", "poddisruptionbudget", NAME])?;
    sleep(Duration::from_secs(8));
    ensure!(space.find("poddisruptionbudget", NAME)?.is_none(), "an operator without its lease wrote");
    let children = |all: Vec<(String, String, String)>| -> Vec<_> {
        all.into_iter()
            .filter(|(kind, ..)| kind != "StompConnector" && kind != "PodDisruptionBudget")
            .collect()
    };
    ensure!(children(versions(space)?) == children(written), "an operator without its lease wrote");
    system(kubectl).run(&["delete", "lease", "berth"])?;
    led(kubectl)?;
    space.wait("the budget to come back", SOON, |space| space.find("poddisruptionbudget", NAME)).map(drop)
}

/// Puts the definition back as it was, whatever the test comes to.
struct Definition {
    kubectl: Kubectl,
}

const DEFINITION: &str = "stompconnectors.berth.dev";

impl Definition {
    /// Takes the schema of the section `stomp` away, so that anything may stand there.
    fn loosen(kubectl: &Kubectl) -> Result<Self> {
        let path = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/stomp";
        let loose = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
        let patch = json!([{ "op": "replace", "path": path, "value": loose }]).to_string();
        let restored = Self { kubectl: kubectl.clone() };
        kubectl.run(&["patch", "crd", DEFINITION, "--type=json", "--patch", &patch])?;
        Ok(restored)
    }
}

impl Drop for Definition {
    fn drop(&mut self) {
        let file = format!("{}/../crds/yaml/{DEFINITION}.yaml", env!("CARGO_MANIFEST_DIR"));
        let schema = std::fs::read_to_string(file).unwrap_or_default();
        let args = ["apply", "--server-side", "--force-conflicts", "--field-manager=e2e-restore", "-f", "-"];
        if let Err(error) = self.kubectl.feed(&args, &schema) {
            eprintln!("putting the definition back: {error:#}");
        }
    }
}

pub(super) fn a_malformed_connector_stops_no_other(space: &Namespace) -> Result<()> {
    let kubectl = &space.kubectl;
    install(kubectl, &[])?;
    let definition = Definition::loosen(kubectl)?;
    let mut bad = connector(&json!({ "stomp": { "port": "not a number" } }));
    bad["metadata"]["name"] = json!("bad");
    space.wait("the looser definition to be in effect", SOON, |space| {
        space.apply(&bad.to_string()).map(Some)
    })?;
    start(space, &json!({}))?;
    super::wait_note(space, "Malformed")?;
    // An operator that starts now meets the bad object in its first list, and says what the definition lacks.
    kubectl.run(&["--namespace", SYSTEM, "rollout", "restart", "deployment/berth"])?;
    kubectl.run(&["--namespace", SYSTEM, "rollout", "status", "deployment/berth", "--timeout=120s"])?;
    let leader = led(kubectl)?;
    system(kubectl).wait("the operator to name what the definition lacks", SOON, |system| {
        Ok(system.logs(&leader)?.contains("StompConnector.spec.stomp.port").then_some(()))
    })?;
    space.patch(KIND, NAME, &json!({ "spec": { "logging": { "level": "debug" } } }))?;
    space.wait("the good connector to be carried out", SOON, |space| {
        let map = space.get("configmap", "orders-dynamic")?;
        Ok(text(&map, "/data/dynamic.yaml").contains("debug").then_some(()))
    })?;
    space.run(&["delete", KIND, "bad"])?;
    drop(definition);
    Ok(())
}

pub(super) fn a_namespace_goes_while_the_operator_is_away(space: &Namespace) -> Result<()> {
    let kubectl = &space.kubectl;
    install(kubectl, &[])?;
    let doomed = Namespace::create(kubectl, "doomed")?;
    start(&doomed, &json!({ "update": { "drainTimeout": "2s" } }))?;
    install(kubectl, &["replicas=0"])?;
    system(kubectl)
        .wait("the operator to be away", SOON, |_| Ok(operators(kubectl)?.is_empty().then_some(())))?;
    doomed.delete()?;
    doomed.wait("the namespace to be gone", LATER, |space| {
        Ok(kubectl.find(&["get", "namespace", &space.name])?.is_none().then_some(()))
    })?;
    install(kubectl, &[])
}

pub(super) fn an_unwatched_namespace_is_left_alone(space: &Namespace) -> Result<()> {
    let kubectl = &space.kubectl;
    let other = Namespace::create(kubectl, "unwatched")?;
    let result = watched_and_not(space, &other);
    other.delete()?;
    // Back to all namespaces, for the tests that follow.
    let restored = install(kubectl, &[]);
    result.and(restored)
}

fn watched_and_not(space: &Namespace, other: &Namespace) -> Result<()> {
    let kubectl = &space.kubectl;
    install(kubectl, &[&format!("watchNamespaces={{{}}}", space.name)])?;
    let role = kubectl.find(&["get", "clusterrole", "berth"])?;
    ensure!(role.is_none(), "a Role in each namespace was asked for and a ClusterRole is there");
    other.apply(&connector(&json!({})).to_string())?;
    // A whole life within the permissions of a Role: made, changed, rolled, grown smaller, deleted.
    start(space, &json!({ "update": { "drainTimeout": "2s" } }))?;
    space.patch(KIND, NAME, &json!({ "spec": { "stomp": { "queueAckTimeoutSeconds": 5 } } }))?;
    ready(space)?;
    space.patch(KIND, NAME, &json!({ "spec": { "podDisruptionBudget": { "enabled": false } } }))?;
    space.wait("the budget to go", SOON, |s| {
        Ok(s.find("poddisruptionbudget", NAME)?.is_none().then_some(()))
    })?;
    let object = ready(space)?;
    ensure!(condition(&object, "Degraded").0 == "False", "{:?}", condition(&object, "Degraded"));
    let left = other.get(KIND, NAME)?;
    ensure!(left["status"].is_null(), "an unwatched connector got a status: {}", left["status"]);
    ensure!(other.find("statefulset", NAME)?.is_none(), "an unwatched connector got children");
    Ok(())
}

pub(super) fn uninstalling_keeps_definitions_and_connectors(space: &Namespace) -> Result<()> {
    let kubectl = &space.kubectl;
    install(kubectl, &[])?;
    start(space, &json!({}))?;
    let pod = uid(space, "pod", "orders-0")?;
    helm(kubectl, &["uninstall", "berth", "--wait"])?;
    ensure!(kubectl.find(&["get", "crd", DEFINITION])?.is_some(), "the definition went");
    let object = space.get(KIND, NAME)?;
    ensure!(condition(&object, "Ready").0 == "True", "the connector does not serve any more");
    ensure!(uid(space, "pod", "orders-0")? == pod, "the pod went");
    install(kubectl, &[])?;
    led(kubectl)?;
    space.patch(KIND, NAME, &json!({ "spec": { "logging": { "level": "warn" } } }))?;
    space.wait("the new operator to take over", LATER, |space| {
        let map = space.get("configmap", "orders-dynamic")?;
        Ok(text(&map, "/data/dynamic.yaml").contains("warn").then_some(()))
    })?;
    ensure!(uid(space, "pod", "orders-0")? == pod, "taking over replaced the pod");
    Ok(())
}
