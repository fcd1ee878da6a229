//! What is built for a specification, held against files: a change of a template rolls every connector
//! that exists, so it has to be seen.
//!
//! `BERTH_UPDATE_GOLDEN=1 cargo test -p berth-operator golden` writes the files anew.

use berth_crds::StompConnector;
use berth_operator::build;
use berth_operator::target::Connector as _;
use berth_operator::validate::{Image, settle};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::PathBuf;

fn rendered(spec: Value, annotations: Value) -> String {
    let object = json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "StompConnector",
        "metadata": {
            "name": "orders", "namespace": "shop", "uid": "11111111-2222-3333-4444-555555555555",
            "generation": 1, "creationTimestamp": "2026-01-01T00:00:00Z", "annotations": annotations,
        },
        "spec": spec,
    });
    let connector: StompConnector = serde_json::from_value(object).unwrap();
    let target = connector.target().unwrap();
    let release = Image::parse("registry.example.com/berth:0.1.0");
    let settled = settle(&target, &release, None).unwrap();
    let mut children = build::children(&target, &settled);
    children.insert(0, build::internal_secret(&target, || [7; 32]));
    children.iter().fold(String::new(), |mut out, child| {
        write!(out, "---\n{}", serde_yaml::to_string(&child.body).unwrap()).unwrap();
        out
    })
}

fn check(name: &str, actual: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("BERTH_UPDATE_GOLDEN").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, actual).unwrap();
        return;
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    let first = expected.lines().zip(actual.lines()).position(|(expected, actual)| expected != actual);
    assert!(expected == actual, "{} differs, first in line {:?}", path.display(), first.map(|at| at + 1));
}

#[test]
fn a_connector_with_nothing_set() {
    check("minimal.yaml", &rendered(json!({}), json!({})));
}

#[test]
fn a_connector_with_everything_set() {
    let spec = json!({
        "replicas": 1,
        "image": {
            "repository": "mirror.example.com/berth",
            "digest": format!("sha256:{}", "ab".repeat(32)),
            "pullPolicy": "Always",
            "pullSecrets": [{ "name": "mirror" }],
        },
        "broker": { "embedded": { "fsync": "interval" } },
        "stomp": { "port": 61700, "queueAckTimeoutSeconds": 5, "maxConnections": 10 },
        "storage": { "size": "5Gi", "storageClassName": "fast", "whenDeleted": "Delete" },
        "service": {
            "type": "LoadBalancer",
            "annotations": { "cloud.example.com/internal": "true" },
            "ipFamilyPolicy": "PreferDualStack",
            "externalTrafficPolicy": "Local",
            "loadBalancerSourceRanges": ["10.0.0.0/8"],
            "sessionAffinity": "None",
        },
        "update": { "minReadySeconds": 3, "drainTimeout": "1m", "followOperator": true },
        "podDisruptionBudget": { "enabled": false },
        "resources": { "requests": { "cpu": "100m" }, "limits": { "memory": "1Gi" } },
        "nodeSelector": { "pool": "brokers" },
        "tolerations": [{ "key": "brokers", "operator": "Exists" }],
        "affinity": { "podAntiAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": [] } },
        "topologySpreadConstraints": [],
        "priorityClassName": "high",
        "serviceAccountName": "shop",
        "podLabels": { "team": "orders", "app.kubernetes.io/name": "not-taken" },
        "podAnnotations": { "note": "x", "berth.dev/x": "not-taken" },
        "env": [{ "name": "BERTH_STOMP__MAX_HEADERS", "value": "50" }],
        "envFrom": [{ "secretRef": { "name": "more" } }],
        "podTemplate": {
            "metadata": { "labels": { "mesh": "on" } },
            "spec": {
                "containers": [
                    { "name": "berth", "volumeMounts": [{ "name": "extra", "mountPath": "/extra" }] },
                    { "name": "sidecar", "image": "sidecar:1" },
                ],
                "volumes": [{ "name": "extra", "emptyDir": {} }],
                "dnsPolicy": "None",
            },
        },
        "logging": { "level": "debug", "format": "text" },
        "suspend": true,
    });
    check("full.yaml", &rendered(spec, json!({ "berth.dev/restartedAt": "2026-01-02T00:00:00Z" })));
}

/// The pod template of released versions: a new operator alone rolls nothing.
#[test]
fn the_pod_template_of_a_release_stays_as_it_is() {
    let all = rendered(json!({}), json!({}));
    let set = all.split("---\n").last().unwrap();
    let set: Value = serde_yaml::from_str(set).unwrap();
    check("template-0.1.yaml", &serde_yaml::to_string(&set["spec"]["template"]).unwrap());
}

/// Growing a volume, scaling, a label on the Service: none of it is in the template.
#[test]
fn the_template_depends_on_what_pods_read_alone() {
    let template = |spec: Value| {
        let all = rendered(spec, json!({}));
        let set: Value = serde_yaml::from_str(all.split("---\n").last().unwrap()).unwrap();
        set["spec"]["template"].clone()
    };
    let plain = template(json!({}));
    for spec in [
        json!({ "replicas": 0 }),
        json!({ "suspend": true }),
        json!({ "storage": { "size": "9Gi", "whenDeleted": "Delete" } }),
        json!({ "service": { "type": "NodePort" } }),
        json!({ "logging": { "level": "trace" } }),
        json!({ "update": { "minReadySeconds": 9, "followOperator": true } }),
        json!({ "podDisruptionBudget": { "enabled": false } }),
    ] {
        assert_eq!(template(spec.clone()), plain, "{spec}");
    }
}
