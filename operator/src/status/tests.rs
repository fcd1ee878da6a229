//! Conditions as tables: what was read and done, and what is said about it.

use super::*;
use crate::cluster::{Kind, ObjectId};
use crate::node::{BrokerReport, NodeReport};
use crate::validate::tests::{from_json, settled};
use serde_json::{Value, json};

const NOW: i64 = 1_767_225_600;

fn now() -> Timestamp {
    Timestamp::from_second(NOW).unwrap()
}

/// A connector of one pod that runs as it should.
struct Scene {
    target: Target,
    observed: Observed,
    findings: Findings,
}

fn stateful_set(generation: i64, observed: i64, ready: i32, target: &Target) -> Value {
    json!({
        "metadata": {
            "name": "orders", "generation": generation,
            "ownerReferences": [{ "uid": target.uid, "controller": true, "kind": "StompConnector",
                "name": "orders", "apiVersion": "berth.dev/v1alpha1" }],
        },
        "spec": { "replicas": 1, "selector": {}, "serviceName": "orders-headless", "template": {} },
        "status": {
            "observedGeneration": observed, "replicas": 1, "readyReplicas": ready, "updateRevision": "new",
            // Under OnDelete this stays old for ever and must not matter.
            "currentRevision": "ancient",
        },
    })
}

fn pod(value: Value) -> Pod {
    let mut pod = json!({
        "metadata": { "name": "orders-0", "uid": "pod", "labels": { "controller-revision-hash": "new" } },
        "spec": { "containers": [], "nodeName": "n1" },
        "status": { "conditions": [{ "type": "Ready", "status": "True" }] },
    });
    if let (Some(pod), Some(value)) = (pod.as_object_mut(), value.as_object()) {
        pod.extend(value.clone());
    }
    serde_json::from_value(pod).unwrap()
}

impl Scene {
    fn new(spec: Value) -> Self {
        let mut spec = spec;
        if spec["replicas"].is_null() {
            spec["replicas"] = json!(1);
        }
        let target = from_json(&spec);
        let mut observed = Observed::default();
        let id = ObjectId::new(Kind::StatefulSet, "orders");
        observed.live.insert(id, stateful_set(2, 2, 1, &target));
        observed.pods = vec![pod(json!({}))];
        let findings = Findings { rollout: Some(RolloutStep::Complete), ..Findings::default() };
        Self { target, observed, findings }
    }

    fn set(&mut self, set: Value) {
        self.observed.live.insert(ObjectId::new(Kind::StatefulSet, "orders"), set);
    }

    fn compute(&self) -> ConnectorStatus {
        let settled = settled(&self.target);
        let (target, observed, findings) = (&self.target, &self.observed, &self.findings);
        compute(&Inputs { target, settled: Ok(&settled), observed, findings, now: now() })
    }

    fn verdict(&self, type_: &str) -> (String, String) {
        let status = self.compute();
        let condition = find(&status, type_);
        condition.map_or_else(Default::default, |c| (c.status.clone(), c.reason.clone()))
    }
}

fn is(verdict: (String, String), status: &str, reason: &str) {
    assert_eq!((verdict.0.as_str(), verdict.1.as_str()), (status, reason));
}

#[test]
fn a_connector_that_runs_as_it_should() {
    let scene = Scene::new(json!({}));
    is(scene.verdict("Ready"), "True", "Available");
    is(scene.verdict("Progressing"), "False", "Idle");
    is(scene.verdict("Degraded"), "False", "Idle");
    is(scene.verdict("ScalingDown"), "False", "Idle");
    is(scene.verdict("Resizing"), "False", "Idle");
    is(scene.verdict("Paused"), "False", "NotPaused");
    is(scene.verdict("Reconciling"), "", "");
    is(scene.verdict("Stalled"), "", "");
    let status = scene.compute();
    assert_eq!(
        (status.replicas, status.ready_replicas, status.updated_replicas),
        (Some(1), Some(1), Some(1))
    );
    assert_eq!(status.version.as_deref(), Some("0.1.0"));
    assert_eq!(status.endpoints.unwrap()[0].address, "orders.shop.svc:61613");
    assert!(status.selector.unwrap().contains("app.kubernetes.io/instance=orders"));
}

#[test]
fn equal_input_makes_an_equal_status_whatever_the_time() {
    let mut scene = Scene::new(json!({}));
    let first = scene.compute();
    scene.target.status = first.clone();
    let settled = settled(&scene.target);
    let later = Timestamp::from_second(NOW + 1000).unwrap();
    let (target, observed, findings) = (&scene.target, &scene.observed, &scene.findings);
    let again = compute(&Inputs { target, settled: Ok(&settled), observed, findings, now: later });
    assert_eq!(again, first);
}

#[test]
fn transitions_keep_their_time_while_the_status_is_the_same() {
    let mut scene = Scene::new(json!({}));
    scene.target.status = scene.compute();
    scene.set(stateful_set(2, 2, 0, &scene.target));
    let settled = settled(&scene.target);
    let later = Timestamp::from_second(NOW + 1000).unwrap();
    let (target, observed, findings) = (&scene.target, &scene.observed, &scene.findings);
    let changed = compute(&Inputs { target, settled: Ok(&settled), observed, findings, now: later });
    assert_eq!(find(&changed, "Ready").unwrap().last_transition_time.0, later);
    assert_eq!(find(&changed, "Degraded").unwrap().last_transition_time.0, now());
}

#[test]
fn ready_needs_an_observed_set_with_enough_pods() {
    let mut scene = Scene::new(json!({}));
    scene.set(stateful_set(3, 2, 1, &scene.target));
    is(scene.verdict("Ready"), "False", "Pending");
    scene.set(stateful_set(3, 3, 0, &scene.target));
    is(scene.verdict("Ready"), "False", "PodsNotReady");
    scene.observed.live.clear();
    is(scene.verdict("Ready"), "False", "Pending");
}

#[test]
fn somebody_elses_set_is_not_ours_to_report() {
    let mut scene = Scene::new(json!({}));
    let mut foreign = stateful_set(2, 2, 1, &scene.target);
    foreign["metadata"]["ownerReferences"] = json!([]);
    scene.set(foreign);
    is(scene.verdict("Ready"), "False", "Pending");
    assert_eq!(scene.compute().ready_replicas, Some(0));
}

#[test]
fn a_roll_out_is_told_from_the_pods_not_from_current_revision() {
    let mut scene = Scene::new(json!({}));
    let labels = json!({ "name": "orders-0", "uid": "pod", "labels": { "controller-revision-hash": "old" } });
    scene.observed.pods = vec![pod(json!({ "metadata": labels }))];
    is(scene.verdict("Progressing"), "True", "RollingOut");
    is(scene.verdict("Reconciling"), "True", "RollingOut");
    is(scene.verdict("Ready"), "True", "Available");
    assert_eq!(scene.compute().updated_replicas, Some(0));
}

#[test]
fn an_eviction_that_is_refused() {
    let mut scene = Scene::new(json!({}));
    scene.findings.eviction = Some(Eviction::Blocked("budget".to_owned()));
    is(scene.verdict("Progressing"), "True", "EvictionBlocked");
    is(scene.verdict("Degraded"), "False", "Idle");
    scene.findings.eviction = Some(Eviction::Conflicting("two budgets".to_owned()));
    is(scene.verdict("Degraded"), "True", "ConflictingBudgets");
}

#[test]
fn no_pods_wanted() {
    is(Scene::new(json!({ "suspend": true })).verdict("Ready"), "False", "Suspended");
    let mut target = Scene::new(json!({}));
    target.target.spec.replicas = 0;
    is(target.verdict("Ready"), "False", "ScaledToZero");
    is(target.verdict("ScalingDown"), "True", "Scaling");
}

#[test]
fn names_that_are_taken_or_not_free_yet() {
    let mut scene = Scene::new(json!({}));
    scene.findings.leaving = vec!["Service orders".to_owned()];
    is(scene.verdict("Ready"), "False", "ChildTerminating");
    scene.findings.taken = vec!["Service orders belongs to Kafka x".to_owned()];
    is(scene.verdict("Ready"), "False", "NameTaken");
    is(scene.verdict("Degraded"), "True", "NameTaken");
}

#[test]
fn a_pod_that_does_not_end_names_the_remedy() {
    let mut scene = Scene::new(json!({}));
    let since = |seconds: i64| Timestamp::from_second(NOW - seconds).unwrap().to_string();
    let leaving = |seconds| {
        let meta = json!({ "name": "orders-0", "uid": "pod", "deletionTimestamp": since(seconds) });
        vec![pod(json!({ "metadata": meta }))]
    };
    scene.observed.pods = leaving(30);
    is(scene.verdict("Degraded"), "False", "Idle");
    scene.observed.pods = leaving(61);
    is(scene.verdict("Degraded"), "True", "PodStuckTerminating");
    let status = scene.compute();
    assert!(find(&status, "Degraded").unwrap().message.contains("taint node n1"));
}

#[test]
fn a_pod_that_waits_for_a_volume() {
    let mut scene = Scene::new(json!({}));
    let claim = json!({
        "metadata": { "name": "data-orders-0", "uid": "c" },
        "spec": { "resources": { "requests": { "storage": "1Gi" } } },
        "status": { "phase": "Pending" },
    });
    scene.observed.claims = vec![serde_json::from_value(claim).unwrap()];
    let waiting = |seconds: i64| {
        let created = Timestamp::from_second(NOW - seconds).unwrap().to_string();
        vec![pod(json!({
            "metadata": { "name": "orders-0", "uid": "pod", "creationTimestamp": created },
            "status": { "conditions": [{ "type": "PodScheduled", "status": "False" }] },
        }))]
    };
    scene.observed.pods = waiting(5);
    is(scene.verdict("Degraded"), "False", "Idle");
    scene.observed.pods = waiting(31);
    is(scene.verdict("Degraded"), "True", "StoragePending");
    assert_eq!(scene.compute().storage.unwrap().phase, Some(StoragePhase::Pending));
}

#[test]
fn a_specification_that_cannot_be_carried_out() {
    let scene = Scene::new(json!({}));
    let invalid = Invalid { reason: Reason::InvalidSpec, message: "set it right".to_owned() };
    let (target, observed, findings) = (&scene.target, &scene.observed, &scene.findings);
    let status = compute(&Inputs { target, settled: Err(&invalid), observed, findings, now: now() });
    let stalled = find(&status, "Stalled").unwrap();
    assert_eq!((stalled.status.as_str(), stalled.reason.as_str()), ("True", "InvalidSpec"));
    assert!(find(&status, "Reconciling").is_none());
    assert_eq!(find(&status, "Ready").unwrap().status, "True");
    assert_eq!(status.observed_generation, Some(1));
}

#[test]
fn storage_phases_show_as_resizing() {
    let mut scene = Scene::new(json!({}));
    scene.findings.storage = Some(StorageStep::MarkRecreating);
    is(scene.verdict("Resizing"), "True", "Recreating");
    scene.findings.storage = Some(StorageStep::WaitForBinding);
    is(scene.verdict("Resizing"), "True", "VolumesPending");
    scene.findings.expansion_refused = Some("no".to_owned());
    is(scene.verdict("Resizing"), "False", "ExpansionRefused");
    is(scene.verdict("Degraded"), "True", "ExpansionRefused");
}

#[test]
fn the_broker_is_what_pods_say() {
    let mut scene = Scene::new(json!({}));
    is(scene.verdict("BrokerReady"), "Unknown", "BrokerUnknown");
    let reason = Some("disk full".to_owned());
    let report = NodeReport { broker: BrokerReport { ready: false, reason }, ..NodeReport::default() };
    scene.observed.reports.insert("orders-0".to_owned(), report.clone());
    is(scene.verdict("BrokerReady"), "False", "BrokerUnavailable");
    assert_eq!(find(&scene.compute(), "BrokerReady").unwrap().message, "disk full");
    let report = NodeReport { broker: BrokerReport { ready: true, reason: None }, ..report };
    scene.observed.reports.insert("orders-0".to_owned(), report);
    is(scene.verdict("BrokerReady"), "True", "BrokerAvailable");
}

#[test]
fn the_endpoint_of_a_load_balancer() {
    let mut scene = Scene::new(json!({ "service": { "type": "LoadBalancer" } }));
    for (ingress, address) in [
        (json!({ "ip": "192.0.2.1" }), "192.0.2.1:61613"),
        (json!({ "ip": "2001:db8::1" }), "[2001:db8::1]:61613"),
        (json!({ "hostname": "lb.example.com" }), "lb.example.com:61613"),
    ] {
        let service = json!({
            "metadata": { "ownerReferences": [{ "uid": scene.target.uid, "controller": true, "kind": "x",
                "name": "x", "apiVersion": "x" }] },
            "status": { "loadBalancer": { "ingress": [ingress] } },
        });
        scene.observed.live.insert(ObjectId::new(Kind::Service, "orders"), service);
        assert_eq!(scene.compute().endpoints.unwrap()[0].address, address);
    }
}

#[test]
fn a_failed_pass_adds_its_words_and_leaves_the_rest() {
    let mut scene = Scene::new(json!({}));
    scene.target.status = scene.compute();
    let failed = with_failure(&scene.target, "forbidden", now());
    assert_eq!(find(&failed, "Ready").unwrap().status, "True");
    let degraded = find(&failed, "Degraded").unwrap();
    assert_eq!((degraded.status.as_str(), degraded.message.as_str()), ("True", "forbidden"));
    // The first pass ever: tools that wait must not take the connector for ready.
    scene.target.status = ConnectorStatus::default();
    let failed = with_failure(&scene.target, "forbidden", now());
    assert_eq!(find(&failed, "Ready").unwrap().status, "False");
    assert_eq!(failed.observed_generation, Some(1));
    scene.target.status = failed.clone();
    assert_eq!(with_failure(&scene.target, "forbidden", Timestamp::from_second(NOW + 5).unwrap()), failed);
}

#[test]
fn events_follow_changes_and_only_those() {
    let mut scene = Scene::new(json!({}));
    let first = scene.compute();
    let words = |old: &ConnectorStatus, new: &ConnectorStatus| {
        transition_events(old, new).into_iter().map(|event| event.reason).collect::<Vec<_>>()
    };
    assert_eq!(words(&ConnectorStatus::default(), &first), ["Ready"]);
    assert_eq!(words(&first, &first), Vec::<&str>::new());
    scene.findings.taken = vec!["Service orders".to_owned()];
    assert_eq!(words(&first, &scene.compute()), ["NameTaken"]);
}
