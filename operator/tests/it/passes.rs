//! What passes do, and what they leave alone.

use crate::fake::{Fault, NAMESPACE, world};
use crate::harness::Harness;
use berth_operator::node::{DurableReport, NodeReport};
use berth_operator::reconcile::Next;
use http::Method;
use serde_json::{Value, json};
use std::collections::BTreeMap;

const CHILDREN: &[(&str, &str)] = &[
    ("serviceaccounts", "orders"),
    ("roles", "orders"),
    ("rolebindings", "orders"),
    ("secrets", "orders-internal"),
    ("configmaps", "orders-dynamic"),
    ("services", "orders"),
    ("services", "orders-headless"),
    ("poddisruptionbudgets", "orders"),
    ("statefulsets", "orders"),
];

fn versions(harness: &Harness) -> BTreeMap<String, Value> {
    let state = harness.fake.state();
    let objects = state.objects.iter();
    objects
        .map(|((plural, name), o)| (format!("{plural} {name}"), o["metadata"]["resourceVersion"].clone()))
        .collect()
}

#[tokio::test]
async fn the_resource_version_of_every_child_is_constant_over_ten_passes() {
    // Spellings and fields that the server rewrites or fills in.
    let harness = Harness::new(json!({
        "storage": { "size": "1.5Gi" },
        "resources": { "requests": { "cpu": "0.5", "memory": "1024Mi" } },
        "update": { "minReadySeconds": 0 },
        "env": [{ "name": "A", "value": "" }, { "name": "B", "value": "1" }],
        "podTemplate": { "spec": {
            "hostNetwork": false,
            "containers": [{ "name": "sidecar", "image": "x", "resources": { "limits": { "cpu": "0.5" } } }],
        } },
    }));
    harness.converge().await;
    for (plural, name) in CHILDREN {
        assert!(harness.fake.get(plural, name).is_some(), "{plural} {name}");
    }
    assert_eq!(harness.status_of("Ready"), "True", "{:?}", harness.condition("Ready"));
    let before = versions(&harness);
    harness.fake.take_writes();
    for _ in 0..10 {
        harness.pass().await;
        harness.fake.turn();
    }
    assert_eq!(versions(&harness), before);
    // And not only without effect: nothing is written at all.
    assert_eq!(harness.fake.take_writes(), []);
}

#[tokio::test]
async fn the_fake_server_counts_claim_templates_without_a_type_as_changes() {
    // Were this not so, the test above would prove nothing about them.
    let harness = Harness::new(json!({}));
    harness.converge().await;
    let mut body = harness.fake.get("statefulsets", "orders").unwrap();
    for field in ["managedFields", "resourceVersion", "uid", "generation"] {
        body["metadata"].as_object_mut().unwrap().remove(field);
    }
    let template = body["spec"]["volumeClaimTemplates"][0].as_object_mut().unwrap();
    template.remove("kind");
    let id = berth_operator::cluster::ObjectId::new(berth_operator::cluster::Kind::StatefulSet, "orders");
    let mut seen = Vec::new();
    for _ in 0..3 {
        let applied = harness.context.cluster.apply(NAMESPACE, &id, &body).await.unwrap();
        seen.push(applied["metadata"]["resourceVersion"].as_str().unwrap().to_owned());
    }
    seen.dedup();
    assert_eq!(seen.len(), 3);
}

#[tokio::test]
async fn an_operator_that_starts_again_writes_nothing() {
    let mut harness = Harness::new(json!({}));
    harness.converge().await;
    harness.fake.take_writes();
    harness.restart(None);
    harness.pass().await;
    assert_eq!(harness.fake.take_writes(), []);
}

#[tokio::test]
async fn a_child_that_is_deleted_or_changed_comes_back() {
    let harness = Harness::new(json!({}));
    harness.converge().await;
    for (plural, name) in CHILDREN {
        harness.fake.remove(plural, name);
        harness.pass().await;
        assert!(harness.fake.get(plural, name).is_some(), "{plural} {name}");
    }
    harness.fake.edit("services", "orders", |service| service["spec"]["ports"][0]["port"] = json!(1));
    harness.fake.edit("poddisruptionbudgets", "orders", |pdb| pdb["spec"]["maxUnavailable"] = json!(0));
    harness.pass().await;
    assert_eq!(harness.fake.get("services", "orders").unwrap()["spec"]["ports"][0]["port"], 61613);
    assert_eq!(harness.fake.get("poddisruptionbudgets", "orders").unwrap()["spec"]["maxUnavailable"], 1);
}

#[tokio::test]
async fn the_internal_secret_is_made_once() {
    let harness = Harness::new(json!({}));
    harness.converge().await;
    let tokens = harness.fake.get("secrets", "orders-internal").unwrap()["data"].clone();
    assert_ne!(tokens["adminToken"], tokens["peerToken"]);
    harness.set("/spec/suspend", json!(true));
    harness.converge().await;
    assert_eq!(harness.fake.get("secrets", "orders-internal").unwrap()["data"], tokens);
}

#[tokio::test]
async fn what_others_add_to_a_child_stays() {
    let harness = Harness::new(json!({}));
    harness.converge().await;
    harness.fake.edit("services", "orders", |service| {
        service["metadata"]["annotations"]["cloud/id"] = json!("7");
    });
    harness.set("/spec/service", json!({ "annotations": { "team": "shop" } }));
    harness.converge().await;
    let annotations = harness.fake.get("services", "orders").unwrap()["metadata"]["annotations"].clone();
    assert_eq!((&annotations["cloud/id"], &annotations["team"]), (&json!("7"), &json!("shop")));
    // What is no longer wanted is taken back.
    harness.set("/spec/service", json!({}));
    harness.converge().await;
    let annotations = harness.fake.get("services", "orders").unwrap()["metadata"]["annotations"].clone();
    assert_eq!((&annotations["cloud/id"], &annotations["team"]), (&json!("7"), &Value::Null));
}

#[tokio::test]
async fn a_name_that_belongs_to_somebody_else_is_waited_for() {
    for (plural, name) in CHILDREN {
        let harness = Harness::new(json!({}));
        let foreign = json!({
            "apiVersion": "v1", "kind": "X",
            "metadata": { "name": name, "labels": { "app.kubernetes.io/instance": "orders" } },
            "spec": { "replicas": 3, "template": { "spec": { "containers": [] } } },
        });
        let before = harness.fake.put(plural, foreign);
        let next = harness.pass().await;
        assert!(matches!(next, Next::After(pause) if (15..=30).contains(&pause.as_secs())), "{next:?}");
        assert_eq!(harness.fake.get(plural, name).unwrap(), before, "{plural} is not touched");
        assert_eq!(harness.condition("Ready").1, "NameTaken");
        assert_eq!(harness.status_of("Ready"), "False");
        assert!(harness.condition("Ready").2.contains(name), "{:?}", harness.condition("Ready"));
        assert!(harness.has_event("NameTaken"));
        let events = harness.fake.events().len();
        harness.pass().await;
        assert_eq!(harness.fake.events().len(), events, "said once");
        if *plural != "statefulsets" {
            assert!(harness.fake.get("statefulsets", "orders").is_none(), "no pods before what they need");
        }
        harness.fake.remove(plural, name);
        harness.converge().await;
        assert_eq!(harness.status_of("Ready"), "True", "{plural}");
    }
}

#[tokio::test]
async fn children_of_a_former_connector_of_the_same_name_are_waited_for() {
    let harness = Harness::new(json!({}));
    harness.converge().await;
    // Deleted and made again before the garbage collector came by.
    harness.fake.edit("stompconnectors", "orders", |object| {
        object["metadata"]["uid"] = json!("another");
        object.as_object_mut().unwrap().remove("status");
    });
    harness.fake.take_writes();
    harness.pass().await;
    let writes = harness.fake.take_writes();
    assert!(writes.iter().all(|write| write.subresource == "status"), "{writes:?}");
    assert_eq!(harness.reason_of("Ready"), "NameTaken");
    harness.converge().await;
    assert_eq!(harness.status_of("Ready"), "True");
    assert!(harness.has_event("Created"));
}

#[tokio::test]
async fn a_child_that_is_being_deleted_is_not_written_to() {
    let harness = Harness::new(json!({}));
    harness.converge().await;
    harness.fake.edit("services", "orders", |service| {
        service["metadata"]["deletionTimestamp"] = json!(world::NOW);
        service["spec"]["ports"] = json!([]);
    });
    harness.fake.take_writes();
    harness.pass().await;
    let writes = harness.fake.take_writes();
    assert!(writes.iter().all(|write| write.subresource == "status"), "{writes:?}");
    assert_eq!(harness.reason_of("Ready"), "ChildTerminating");
    harness.fake.remove("services", "orders");
    harness.converge().await;
    assert_eq!(harness.status_of("Ready"), "True");
}

#[tokio::test]
async fn a_connector_that_is_being_deleted_gets_no_writes() {
    let harness = Harness::new(json!({}));
    harness.converge().await;
    harness.fake.edit("stompconnectors", "orders", |object| {
        object["metadata"]["deletionTimestamp"] = json!(world::NOW);
    });
    harness.fake.remove("services", "orders");
    harness.fake.take_writes();
    harness.pass().await;
    assert_eq!(harness.fake.take_writes(), []);
}

#[tokio::test]
async fn a_change_that_pods_read_at_start_replaces_each_pod_once() {
    let harness = Harness::new(json!({}));
    harness.converge().await;
    let old = harness.uid("pods", "orders-0");
    harness.fake.take_writes();
    harness.set("/spec/stomp", json!({ "queueAckTimeoutSeconds": 5 }));
    harness.converge().await;
    let evictions = harness.fake.take_writes().into_iter().filter(|write| write.subresource == "eviction");
    let evictions: Vec<_> = evictions.collect();
    assert_eq!(evictions.len(), 1);
    assert_eq!(evictions[0].body["deleteOptions"]["preconditions"]["uid"], old.as_str());
    assert_ne!(harness.uid("pods", "orders-0"), old);
    assert_eq!(harness.status_of("Ready"), "True");
    assert_eq!(harness.status_of("Progressing"), "False");
    assert!(harness.has_event("PodReplaced"));
}

#[tokio::test]
async fn what_pods_take_up_by_themselves_restarts_none() {
    let harness = Harness::new(json!({}));
    harness.converge().await;
    let pod = harness.uid("pods", "orders-0");
    for (pointer, value) in [
        ("/spec/logging", json!({ "level": "debug" })),
        ("/spec/service", json!({ "type": "NodePort" })),
        ("/spec/podDisruptionBudget", json!({ "enabled": false })),
        ("/spec/update", json!({ "minReadySeconds": 5 })),
    ] {
        harness.set(pointer, value);
        harness.converge().await;
        assert_eq!(harness.uid("pods", "orders-0"), pod, "{pointer}");
    }
    let dynamic = harness.fake.get("configmaps", "orders-dynamic").unwrap();
    assert!(dynamic["data"]["dynamic.yaml"].as_str().unwrap().contains("debug"));
    assert!(harness.fake.get("poddisruptionbudgets", "orders").is_none(), "no longer wanted");
}

#[tokio::test]
async fn former_configurations_stay_while_something_names_them() {
    let harness = Harness::new(json!({}));
    harness.converge().await;
    let configs = |harness: &Harness| {
        let names = harness.fake.names("configmaps");
        names.into_iter().filter(|name| name.contains("-config-")).collect::<Vec<_>>()
    };
    let first = configs(&harness);
    assert_eq!(first.len(), 1);
    harness.set("/spec/stomp", json!({ "queueAckTimeoutSeconds": 5 }));
    harness.converge().await;
    assert_eq!(configs(&harness).len(), 2, "the revision names the former one");
    harness.fake.remove("controllerrevisions", "orders-rev1");
    harness.pass().await;
    let left = configs(&harness);
    assert_eq!(left.len(), 1);
    assert_ne!(left, first);
}

#[tokio::test]
async fn a_broken_image_that_is_mended_converges_without_help() {
    let harness = Harness::new(json!({}));
    harness.converge().await;
    harness.set("/spec/image", json!({ "tag": "broken" }));
    harness.converge().await;
    assert_eq!(harness.status_of("Ready"), "False");
    assert_eq!(harness.reason_of("Progressing"), "PodsNotReady");
    harness.set("/spec/image", json!({ "tag": "0.1.1" }));
    harness.converge().await;
    assert_eq!(harness.status_of("Ready"), "True");
    assert_eq!(harness.connector()["status"]["version"], "0.1.1");
    // The pin stays where it was moved to.
    harness.set("/spec/image", Value::Null);
    harness.converge().await;
    let set = harness.fake.get("statefulsets", "orders").unwrap();
    assert_eq!(set["spec"]["template"]["spec"]["containers"][0]["image"], "registry.example.com/berth:0.1.1");
}

#[tokio::test]
async fn evictions_that_budgets_refuse_are_waited_for_and_never_forced() {
    let mut harness = Harness::new(json!({}));
    harness.converge().await;
    let pod = harness.uid("pods", "orders-0");
    let fault =
        |code, message| Fault { subresource: "eviction", ..Fault::on(Method::POST, "pods", code, message) };
    harness.fake.state().faults = vec![fault(429, "Cannot evict pod as it would violate the pod's budget.")];
    harness.set("/metadata/annotations/berth.dev~1restartedAt", json!("now"));
    for _ in 0..4 {
        harness.pass().await;
        harness.fake.turn();
    }
    assert_eq!(harness.reason_of("Progressing"), "EvictionBlocked");
    assert_eq!(harness.status_of("Degraded"), "False");
    harness.fake.state().faults = vec![fault(
        500,
        "This pod has more than one PodDisruptionBudget, which the eviction does not support.",
    )];
    harness.pass().await;
    assert_eq!(harness.reason_of("Degraded"), "ConflictingBudgets");
    assert_eq!(harness.uid("pods", "orders-0"), pod);
    assert!(harness.fake.take_writes().iter().all(|write| write.method != Method::DELETE));
    harness.fake.state().faults.clear();
    harness.restart(None);
    harness.converge().await;
    assert_ne!(harness.uid("pods", "orders-0"), pod);
    assert_eq!(harness.status_of("Degraded"), "False");
}

#[tokio::test]
async fn scaling_to_zero_keeps_the_volume_and_says_what_waits_in_it() {
    for (pointer, value, reason) in
        [("/spec/replicas", json!(0), "ScaledToZero"), ("/spec/suspend", json!(true), "Suspended")]
    {
        let harness = Harness::new(json!({}));
        harness.converge().await;
        let claim = harness.uid("persistentvolumeclaims", "data-orders-0");
        let waiting = NodeReport {
            recovered: true,
            own_messages: 7,
            unacked: 2,
            durable_subscriptions: vec![DurableReport::default()],
            ..NodeReport::default()
        };
        harness.answer(Some(waiting));
        harness.set(pointer, value);
        harness.converge().await;
        assert!(harness.fake.get("pods", "orders-0").is_none());
        assert_eq!(harness.uid("persistentvolumeclaims", "data-orders-0"), claim);
        assert_eq!(harness.reason_of("Ready"), reason);
        let notes: Vec<_> = harness.fake.events().into_iter().filter(|(word, _)| word == reason).collect();
        assert_eq!(notes.len(), 1, "{notes:?}");
        assert!(notes[0].1.contains("7 messages") && notes[0].1.contains("data-orders-0"), "{notes:?}");
        harness.set("/spec/suspend", json!(false));
        harness.set("/spec/replicas", json!(1));
        harness.converge().await;
        assert_eq!(harness.status_of("Ready"), "True");
        assert_eq!(harness.uid("persistentvolumeclaims", "data-orders-0"), claim);
    }
}

#[tokio::test]
async fn a_pod_that_does_not_answer_is_not_taken_for_empty() {
    let harness = Harness::new(json!({}));
    harness.converge().await;
    harness.answer(None);
    harness.set("/spec/replicas", json!(0));
    harness.converge().await;
    let events = harness.fake.events();
    assert!(
        events.iter().any(|(word, note)| word == "ScaledToZero" && note.contains("not known")),
        "{events:?}"
    );
}

#[tokio::test]
async fn replicas_that_somebody_else_changed_are_put_back_and_it_is_said() {
    let harness = Harness::new(json!({}));
    harness.converge().await;
    harness.fake.edit("statefulsets", "orders", |set| set["spec"]["replicas"] = json!(3));
    harness.pass().await;
    assert_eq!(harness.fake.get("statefulsets", "orders").unwrap()["spec"]["replicas"], 1);
    assert!(harness.has_event("ForeignScaler"));
}

#[tokio::test]
async fn more_replicas_than_the_embedded_broker_has_room_for_are_refused() {
    let harness = Harness::new(json!({}));
    harness.converge().await;
    harness.fake.take_writes();
    harness.set("/spec/replicas", json!(2));
    harness.pass().await;
    let writes = harness.fake.take_writes();
    assert!(writes.iter().all(|write| write.subresource == "status"), "{writes:?}");
    assert_eq!(harness.condition("Stalled").1, "InvalidSpec");
    assert_eq!(harness.status_of("Ready"), "True", "what runs goes on serving");
    harness.set("/spec/replicas", json!(1));
    harness.converge().await;
    assert_eq!(harness.status_of("Stalled"), "");
    assert_eq!(harness.status_of("Degraded"), "False");
}

#[tokio::test]
async fn a_pod_template_that_takes_what_is_ours_stalls() {
    let harness = Harness::new(json!({ "podTemplate": { "spec": { "restartPolicy": "Never" } } }));
    harness.pass().await;
    assert_eq!(harness.condition("Stalled").1, "InvalidPodTemplate");
    assert!(harness.condition("Degraded").2.contains("restartPolicy"));
    assert!(harness.fake.get("statefulsets", "orders").is_none());
    assert_eq!(harness.connector()["status"]["observedGeneration"], 1);
    assert_eq!(harness.status_of("Ready"), "False");
}

#[tokio::test]
async fn a_paused_connector_is_only_reported_on() {
    let harness = Harness::new(json!({}));
    harness.converge().await;
    harness.set("/metadata/annotations/berth.dev~1paused", json!("true"));
    harness.set("/spec/stomp", json!({ "queueAckTimeoutSeconds": 5 }));
    harness.fake.remove("services", "orders");
    harness.fake.take_writes();
    harness.pass().await;
    let writes = harness.fake.take_writes();
    assert!(writes.iter().all(|write| write.subresource == "status"), "{writes:?}");
    assert_eq!(harness.reason_of("Paused"), "PausedByAnnotation");
    assert_eq!(harness.connector()["status"]["observedGeneration"], 2);
    // The status stays fresh.
    harness.fake.edit("statefulsets", "orders", |set| set["status"]["readyReplicas"] = json!(0));
    harness.pass().await;
    assert_eq!(harness.status_of("Ready"), "False");
    harness.set("/metadata/annotations/berth.dev~1paused", Value::Null);
    harness.converge().await;
    assert_eq!(harness.status_of("Ready"), "True");
    assert!(harness.fake.get("services", "orders").is_some());
}

#[tokio::test]
async fn volumes_grow_and_pods_go_on_running() {
    let harness = Harness::new(json!({}));
    harness.converge().await;
    let pod = harness.uid("pods", "orders-0");
    let set = harness.uid("statefulsets", "orders");
    harness.set("/spec/storage", json!({ "size": "3Gi" }));
    harness.converge().await;
    let claim = harness.fake.get("persistentvolumeclaims", "data-orders-0").unwrap();
    assert_eq!(claim["spec"]["resources"]["requests"]["storage"], "3Gi");
    let made_anew = harness.fake.get("statefulsets", "orders").unwrap();
    let size = "/spec/volumeClaimTemplates/0/spec/resources/requests/storage";
    assert_eq!(made_anew.pointer(size), Some(&json!("3Gi")));
    assert_ne!(harness.uid("statefulsets", "orders"), set);
    assert_eq!(harness.uid("pods", "orders-0"), pod, "no pod was replaced");
    let status = harness.connector()["status"]["storage"].clone();
    assert_eq!(status, json!({ "requested": "3Gi", "capacity": "3Gi", "phase": "Bound" }));
    assert_eq!(harness.status_of("Resizing"), "False");
}

#[tokio::test]
async fn a_refused_expansion_is_said_and_not_asked_for_again_soon() {
    let mut harness = Harness::new(json!({}));
    harness.converge().await;
    harness.fake.state().expansion = false;
    harness.set("/spec/storage", json!({ "size": "3Gi" }));
    harness.converge().await;
    assert_eq!(harness.condition("Resizing").1, "ExpansionRefused");
    assert_eq!(harness.status_of("Resizing"), "False");
    assert_eq!(harness.reason_of("Degraded"), "ExpansionRefused");
    assert!(harness.condition("Resizing").2.contains("must support resize"));
    harness.fake.take_writes();
    for _ in 0..5 {
        harness.pass().await;
    }
    assert_eq!(harness.fake.take_writes(), []);
    // The other wishes are carried out meanwhile.
    harness.set("/spec/logging", json!({ "level": "warn" }));
    harness.converge().await;
    let dynamic = harness.fake.get("configmaps", "orders-dynamic").unwrap();
    assert!(dynamic["data"]["dynamic.yaml"].as_str().unwrap().contains("warn"));
    // The old size takes it back.
    harness.set("/spec/storage", json!({ "size": "1Gi" }));
    harness.converge().await;
    assert_eq!(harness.status_of("Degraded"), "False");
    harness.fake.state().expansion = true;
    harness.set("/spec/storage", json!({ "size": "3Gi" }));
    harness.restart(None);
    harness.converge().await;
    assert_eq!(harness.connector()["status"]["storage"]["capacity"], "3Gi");
}

#[tokio::test]
async fn a_volume_of_an_earlier_connector_is_used_again_and_it_is_said() {
    let harness = Harness::new(json!({}));
    harness.converge().await;
    for (plural, name) in CHILDREN {
        harness.fake.remove(plural, name);
    }
    harness.fake.remove("pods", "orders-0");
    harness.fake.edit("stompconnectors", "orders", |object| {
        object["metadata"]["uid"] = json!("another");
        object["metadata"]["creationTimestamp"] = json!("2026-02-01T00:00:00Z");
        object.as_object_mut().unwrap().remove("status");
    });
    let claim = harness.uid("persistentvolumeclaims", "data-orders-0");
    harness.converge().await;
    assert!(harness.has_event("VolumeReused"));
    assert_eq!(harness.uid("persistentvolumeclaims", "data-orders-0"), claim);
}

#[tokio::test]
async fn a_stateful_set_with_other_fixed_fields_is_left_alone_and_named() {
    let harness = Harness::new(json!({}));
    harness.converge().await;
    harness.fake.edit("statefulsets", "orders", |set| {
        set["spec"]["podManagementPolicy"] = json!("OrderedReady");
    });
    harness.converge().await;
    assert_eq!(harness.condition("Stalled").1, "ImmutableFieldChanged");
    assert!(harness.condition("Stalled").2.contains("podManagementPolicy"));
    harness.fake.take_writes();
    for _ in 0..3 {
        harness.pass().await;
    }
    assert_eq!(harness.fake.take_writes(), [], "no storm of refused writes");
}

#[tokio::test]
async fn a_refused_write_is_reported_and_the_next_pass_goes_on() {
    let mut harness = Harness::new(json!({}));
    let words = "spec.ports[0].nodePort: provided port is not in the valid range";
    harness.fake.state().faults = vec![Fault::on(Method::PATCH, "services", 422, words)];
    let error = harness.try_pass().await.unwrap_err();
    assert_eq!(error.reason().as_str(), "ApplyFailed");
    assert!(error.to_string().contains("not in the valid range"), "{error}");
    assert!(harness.fake.get("statefulsets", "orders").is_none());
    harness.fake.state().faults.clear();
    harness.restart(None);
    harness.converge().await;
    assert_eq!(harness.status_of("Ready"), "True");
}

#[tokio::test]
async fn an_account_of_the_user_replaces_ours() {
    let harness = Harness::new(json!({}));
    harness.converge().await;
    harness.set("/spec/serviceAccountName", json!("mine"));
    harness.converge().await;
    assert!(harness.fake.get("serviceaccounts", "orders").is_none());
    let binding = harness.fake.get("rolebindings", "orders").unwrap();
    assert_eq!(binding["subjects"][0]["name"], "mine");
    let set = harness.fake.get("statefulsets", "orders").unwrap();
    assert_eq!(set["spec"]["template"]["spec"]["serviceAccountName"], "mine");
}

#[tokio::test]
async fn events_that_cannot_be_written_fail_nothing() {
    let harness = Harness::new(json!({}));
    harness.fake.state().faults = vec![Fault::on(Method::POST, "events", 403, "no events")];
    harness.converge().await;
    assert_eq!(harness.status_of("Ready"), "True");
}

#[tokio::test]
async fn an_event_whose_name_is_taken_gets_another_one() {
    let harness = Harness::new(json!({}));
    let taken = Fault {
        reason: "AlreadyExists",
        times: 1,
        ..Fault::on(Method::POST, "events", 409, "already exists")
    };
    harness.fake.state().faults = vec![taken];
    harness.converge().await;
    assert!(harness.has_event("Created"));
}

/// What a released operator made, met by this one: nothing is refused, nothing is restarted.
#[tokio::test]
async fn the_stateful_set_of_an_earlier_release_is_taken_over() {
    let harness = Harness::new(json!({}));
    harness.converge().await;
    let fixture = include_str!("../golden/minimal.yaml").split("---\n").last().unwrap();
    let mut made: Value = serde_yaml::from_str(fixture).unwrap();
    let live = harness.fake.get("statefulsets", "orders").unwrap();
    for field in ["uid", "namespace", "resourceVersion", "generation", "ownerReferences"] {
        made["metadata"][field] = live["metadata"][field].clone();
    }
    made["metadata"]["annotations"]["berth.dev/applied-hash"] = json!("of another release");
    made["status"] = live["status"].clone();
    harness.fake.put("statefulsets", made);
    harness.fake.settle();
    let pod = harness.uid("pods", "orders-0");
    harness.converge().await;
    assert_eq!(harness.status_of("Ready"), "True");
    assert_eq!(harness.status_of("Degraded"), "False");
    assert_eq!(harness.uid("pods", "orders-0"), pod);
}
