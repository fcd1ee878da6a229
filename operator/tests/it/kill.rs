//! The operator ends after any step that wrote, and whoever comes next goes on from there.

use crate::harness::Harness;
use serde_json::{Value, json};

/// Every step that a pass can end after, as `BERTH_TEST_EXIT_AFTER` names them.
const STEPS: &[&str] = &[
    "make-internal-secret",
    "apply-serviceaccount",
    "apply-role",
    "apply-rolebinding",
    "apply-configmap",
    "apply-service",
    "apply-poddisruptionbudget",
    "apply-statefulset",
    "grow-volume",
    "orphan-statefulset",
    "evict",
    "delete-child",
    "delete-config",
    "status",
];

/// Changes the connector, ends the operator after `step` as often as that step comes, and lets the last
/// one end it.
async fn ended_after(step: &str, change: &[(&str, Value)]) -> (Harness, bool) {
    let mut harness = Harness::new(json!({}));
    harness.converge().await;
    for (pointer, value) in change {
        harness.set(pointer, value.clone());
    }
    let mut was_ended = false;
    for _ in 0..10 {
        harness.restart(Some(step));
        let mut ended = false;
        for _ in 0..20 {
            let before = harness.fake.state().version;
            if harness.try_pass().await.is_err() {
                ended = true;
            }
            harness.fake.turn();
            if ended || harness.fake.state().version == before {
                break;
            }
        }
        if !ended {
            break;
        }
        was_ended = true;
    }
    harness.restart(None);
    harness.converge().await;
    (harness, was_ended)
}

#[tokio::test]
async fn growing_volumes_converges_from_every_step() {
    let mut ended = Vec::new();
    for step in STEPS {
        let (harness, was_ended) = ended_after(step, &[("/spec/storage", json!({ "size": "2Gi" }))]).await;
        ended.extend(was_ended.then_some(*step));
        let claim = harness.fake.get("persistentvolumeclaims", "data-orders-0").unwrap();
        assert_eq!(claim["spec"]["resources"]["requests"]["storage"], "2Gi", "{step}");
        let set = harness.fake.get("statefulsets", "orders").unwrap();
        let size = "/spec/volumeClaimTemplates/0/spec/resources/requests/storage";
        assert_eq!(set.pointer(size), Some(&json!("2Gi")), "{step}");
        assert_eq!(harness.status_of("Ready"), "True", "{step}");
        assert_eq!(harness.connector()["status"]["storage"]["phase"], "Bound", "{step}");
        // No pod was replaced: the only one is of the first revision still.
        let pod = harness.fake.get("pods", "orders-0").unwrap();
        assert_eq!(pod["metadata"]["labels"]["controller-revision-hash"], "orders-rev1", "{step}");
        assert!(!harness.has_event("PodReplaced"), "{step}");
    }
    assert_eq!(ended, ["apply-statefulset", "grow-volume", "orphan-statefulset", "status"]);
}

#[tokio::test]
async fn a_begun_recreation_is_ended_even_when_the_connector_is_paused() {
    let mut harness = Harness::new(json!({}));
    harness.converge().await;
    harness.set("/spec/storage", json!({ "size": "2Gi" }));
    harness.restart(Some("orphan-statefulset"));
    for _ in 0..10 {
        if harness.try_pass().await.is_err() {
            break;
        }
    }
    harness.fake.settle();
    assert!(harness.fake.get("statefulsets", "orders").is_none());
    assert!(harness.fake.get("pods", "orders-0").is_some());
    harness.set("/metadata/annotations/berth.dev~1paused", json!("true"));
    harness.restart(None);
    harness.converge().await;
    assert!(harness.fake.get("statefulsets", "orders").is_some());
    assert_eq!(harness.reason_of("Paused"), "PausedByAnnotation");
    assert!(!harness.has_event("PodReplaced"));
}

#[tokio::test]
async fn rolling_converges_from_every_step() {
    let mut ended = Vec::new();
    for step in STEPS {
        let change = [
            ("/spec/stomp", json!({ "queueAckTimeoutSeconds": 5 })),
            ("/spec/podDisruptionBudget", json!({ "enabled": false })),
        ];
        let (harness, was_ended) = ended_after(step, &change).await;
        ended.extend(was_ended.then_some(*step));
        assert_eq!(harness.status_of("Ready"), "True", "{step}");
        assert_eq!(harness.status_of("Progressing"), "False", "{step}");
        let pod = harness.fake.get("pods", "orders-0").unwrap();
        assert_eq!(pod["metadata"]["labels"]["controller-revision-hash"], "orders-rev2", "{step}");
        let replaced = harness.fake.events().into_iter().filter(|(word, _)| word == "PodReplaced").count();
        assert_eq!(replaced, 1, "{step}: the pod is replaced once, whoever does it");
        assert!(harness.fake.get("poddisruptionbudgets", "orders").is_none(), "{step}");
    }
    assert_eq!(ended, ["apply-configmap", "apply-statefulset", "evict", "delete-child", "status"]);
}

#[tokio::test]
async fn making_a_connector_converges_from_every_step() {
    for step in STEPS {
        let mut harness = Harness::new(json!({}));
        for _ in 0..10 {
            harness.restart(Some(step));
            if harness.try_pass().await.is_ok() {
                break;
            }
        }
        harness.restart(None);
        harness.converge().await;
        assert_eq!(harness.status_of("Ready"), "True", "{step}");
    }
}

#[tokio::test]
async fn scaling_to_zero_and_back_converges_from_every_step() {
    for step in STEPS {
        let (harness, _) = ended_after(step, &[("/spec/replicas", json!(0))]).await;
        assert_eq!(harness.reason_of("Ready"), "ScaledToZero", "{step}");
        assert!(harness.fake.get("persistentvolumeclaims", "data-orders-0").is_some(), "{step}");
        harness.set("/spec/replicas", json!(1));
        harness.converge().await;
        assert_eq!(harness.status_of("Ready"), "True", "{step}");
    }
}
