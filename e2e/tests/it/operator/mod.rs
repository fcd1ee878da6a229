//! The operator on a real cluster: installed by its chart, used by kubectl, with real clients on the queues.
//!
//! All of these tests share the operator and the definitions, so they run one by one. Each says with
//! [`install`] how it wants the operator, and has a namespace of its own for connectors.

mod data;
mod lifecycle;
mod process;
mod refusals;
mod rolling;

use anyhow::{Context, Result, bail, ensure};
use berth_e2e::forward::PortForward;
use berth_e2e::kubectl::{Kubectl, Namespace, text};
use berth_e2e::suite::{Group, Test};
use berth_e2e::{product_image, python};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

macro_rules! tests {
    ($($module:ident::$name:ident,)*) => {
        pub(crate) const TESTS: &[Test] = &[
            $(Test {
                name: concat!("operator::", stringify!($name)),
                group: Group::Alone,
                run: $module::$name,
            },)*
        ];
    };
}

tests![
    lifecycle::a_connector_becomes_ready,
    refusals::what_cannot_work_is_refused_with_what_to_change,
    lifecycle::every_child_comes_back,
    lifecycle::nothing_is_written_in_the_steady_state,
    data::a_deleted_pod_comes_back_with_everything,
    data::scaling_to_zero_keeps_messages_and_says_so,
    rolling::a_changed_setting_restarts_once_and_a_log_level_never,
    rolling::a_broken_image_that_is_mended_converges,
    rolling::budgets_are_kept_and_never_forced,
    data::volumes_grow_and_never_shrink,
    data::a_class_that_cannot_grow_is_said,
    refusals::a_name_that_is_taken_is_waited_for,
    lifecycle::a_deleted_connector_leaves_its_volume_alone,
    data::a_drained_node_gives_the_connector_away,
    process::an_operator_ended_after_any_step_is_continued,
    process::a_restarted_operator_changes_nothing,
    process::an_operator_without_its_lease_writes_nothing,
    process::a_malformed_connector_stops_no_other,
    process::a_namespace_goes_while_the_operator_is_away,
    process::an_unwatched_namespace_is_left_alone,
    process::uninstalling_keeps_definitions_and_connectors,
];

/// Where the operator is installed.
const SYSTEM: &str = "berth-system";
const RELEASE: &str = "berth";
/// The connector of every test.
const NAME: &str = "orders";
const KIND: &str = "stompconnector";
const STOMP_PORT: u16 = 61613;

const SOON: Duration = Duration::from_secs(60);
const LATER: Duration = Duration::from_secs(180);

/// Installs the chart, or brings it to these settings (`--set` of helm), and waits until the operator is
/// ready.
fn install(kubectl: &Kubectl, settings: &[&str]) -> Result<()> {
    let image = product_image();
    let (repository, tag) = image.rsplit_once(':').context("BERTH_E2E_IMAGE has a tag")?;
    let mut helm = kubectl.helm();
    helm.args(["upgrade", "--install", RELEASE]).arg(chart());
    helm.args(["--namespace", SYSTEM, "--create-namespace", "--reset-values", "--wait", "--timeout", "180s"]);
    let image = [format!("image.repository={repository}"), format!("image.tag={tag}")];
    let quick = ["operator.heartbeatSeconds=2".to_owned(), "operator.leaseSeconds=8".to_owned()];
    for setting in image.iter().chain(&quick).map(String::as_str).chain(settings.iter().copied()) {
        helm.args(["--set", setting]);
    }
    run(helm)?;
    let rollout = ["--namespace", SYSTEM, "rollout", "status", "deployment/berth", "--timeout=120s"];
    kubectl.run(&rollout).map(drop)
}

fn helm(kubectl: &Kubectl, args: &[&str]) -> Result<String> {
    let mut helm = kubectl.helm();
    helm.args(args).args(["--namespace", SYSTEM]);
    run(helm)
}

fn run(mut command: Command) -> Result<String> {
    let output = command.output().with_context(|| format!("starting {command:?}"))?;
    let words = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(
        output.status.success(),
        "{command:?} failed: {words}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(words)
}

fn chart() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../charts/berth")
}

/// The namespace of the operator itself.
fn system(kubectl: &Kubectl) -> Namespace {
    Namespace { kubectl: kubectl.clone(), name: SYSTEM.to_owned() }
}

fn connector(spec: &Value) -> Value {
    json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "StompConnector",
        "metadata": { "name": NAME },
        "spec": spec,
    })
}

/// Applies the connector and waits until it is ready.
fn start(space: &Namespace, spec: &Value) -> Result<Value> {
    space.apply(&connector(spec).to_string())?;
    ready(space)
}

/// Waits until the connector says of its latest generation that it is ready and at rest.
fn ready(space: &Namespace) -> Result<Value> {
    space.wait("the connector to be ready and at rest", LATER, |space| {
        let object = space.get(KIND, NAME)?;
        let status = &object["status"];
        let seen = status["observedGeneration"] == object["metadata"]["generation"];
        let at_rest = condition(&object, "Progressing").0 == "False";
        if seen && at_rest && condition(&object, "Ready").0 == "True" {
            return Ok(Some(object));
        }
        bail!("{}", object["status"]["conditions"])
    })
}

/// Waits until a condition has this status and reason.
fn wait_reason(space: &Namespace, type_: &str, status: &str, reason: &str) -> Result<Value> {
    space.wait(&format!("{type_}={status} for {reason}"), LATER, |space| {
        let object = space.get(KIND, NAME)?;
        let (is, why, _) = condition(&object, type_);
        if is == status && why == reason {
            return Ok(Some(object));
        }
        bail!("{}", object["status"]["conditions"])
    })
}

/// Status, reason and message of a condition; empty when there is none.
fn condition(object: &Value, type_: &str) -> (String, String, String) {
    let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let found = conditions.into_iter().find(|condition| condition["type"] == type_).unwrap_or_default();
    (text(&found, "/status"), text(&found, "/reason"), text(&found, "/message"))
}

/// The uid of an object.
fn uid(space: &Namespace, kind: &str, name: &str) -> Result<String> {
    Ok(text(&space.get(kind, name)?, "/metadata/uid"))
}

/// The notes of the connector's events with this reason, oldest first.
fn notes(space: &Namespace, reason: &str) -> Result<Vec<String>> {
    let events = space.list("events.events.k8s.io", "")?;
    let mut found: Vec<_> = events.iter().filter(|event| event["reason"] == reason).collect();
    found.sort_by_key(|event| text(event, "/eventTime"));
    Ok(found.into_iter().map(|event| text(event, "/note")).collect())
}

fn wait_note(space: &Namespace, reason: &str) -> Result<String> {
    space.wait(&format!("an event {reason}"), SOON, |space| Ok(notes(space, reason)?.pop()))
}

/// What belongs to the connector, with kinds as kubectl names them.
const CHILDREN: &[(&str, &str)] = &[
    ("statefulset", NAME),
    ("service", NAME),
    ("service", "orders-headless"),
    ("configmap", "orders-dynamic"),
    ("secret", "orders-internal"),
    ("serviceaccount", NAME),
    ("role", NAME),
    ("rolebinding", NAME),
    ("poddisruptionbudget", NAME),
];

/// Kind, name and resourceVersion of the connector and everything that carries its labels.
fn versions(space: &Namespace) -> Result<Vec<(String, String, String)>> {
    let kinds = "statefulsets,services,configmaps,secrets,serviceaccounts,roles,rolebindings,\
                 poddisruptionbudgets,persistentvolumeclaims,pods";
    let mut objects = space.list(kinds, "app.kubernetes.io/instance=orders")?;
    objects.push(space.get(KIND, NAME)?);
    let mut all: Vec<_> = objects
        .iter()
        .map(|object| {
            (text(object, "/kind"), text(object, "/metadata/name"), text(object, "/metadata/resourceVersion"))
        })
        .collect();
    all.sort();
    Ok(all)
}

/// Sends the bodies `first..=last` with stomp.py, each with a receipt.
fn send(space: &Namespace, queue: &str, first: u32, last: u32) -> Result<()> {
    client(space, &["send", queue, &first.to_string(), &last.to_string()]).map(drop)
}

/// Takes `count` messages with stomp.py, acknowledges each by itself, and returns body and redelivery mark.
fn take(space: &Namespace, queue: &str, count: usize) -> Result<Vec<(u32, bool)>> {
    let printed = client(space, &["take", queue, &count.to_string()])?;
    printed
        .lines()
        .map(|line| {
            let message: Value = serde_json::from_str(line)?;
            let body = text(&message, "/body").parse().with_context(|| format!("body of {line}"))?;
            Ok((body, message["redelivered"] == true))
        })
        .collect()
}

fn client(space: &Namespace, args: &[&str]) -> Result<String> {
    let forward = PortForward::start(space, &format!("service/{NAME}"), STOMP_PORT)?;
    let address = forward.address();
    let mut command = Command::new(python::interpreter()?);
    command.arg(python::script("queue_client.py"));
    command.args([address.ip().to_string(), address.port().to_string()]).args(args);
    run(command)
}
