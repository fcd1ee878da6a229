//! Settling: images and pins, what is refused, the two files; and the connectors that other tests build from.

use super::*;
use crate::target::Connector as _;
use berth_config::{Embedded, LogLevel, Stomp};
use berth_crds::connector::{StorageSpec, UpdateSpec};
use berth_crds::duration::Duration;
use berth_crds::{StompConnector, StompConnectorSpec};
use serde_json::json;

/// A connector called `orders` with nothing set.
pub(crate) fn target() -> Target {
    from_spec(StompConnectorSpec::default())
}

/// A connector called `orders` with this specification.
pub(crate) fn from_spec(spec: StompConnectorSpec) -> Target {
    let mut spec = serde_json::to_value(&spec).unwrap();
    if spec["replicas"] == json!(0) {
        spec["replicas"] = json!(1);
    }
    from_json(&spec)
}

/// A connector called `orders` with this specification, as the API server holds it.
pub(crate) fn from_json(spec: &serde_json::Value) -> Target {
    let object = json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "StompConnector",
        "metadata": {
            "name": "orders", "namespace": "shop", "uid": "11111111-2222-3333-4444-555555555555",
            "generation": 1, "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": spec,
    });
    serde_json::from_value::<StompConnector>(object).unwrap().target().unwrap()
}

/// The release that tests run.
pub(crate) fn release() -> Image {
    Image::parse("registry.example.com/berth:0.1.0")
}

/// What a valid target settles to.
pub(crate) fn settled(target: &Target) -> Settled {
    settle(target, &release(), None).expect("the target is valid")
}

fn refused(spec: serde_json::Value) -> String {
    settle(&from_json(&spec), &release(), None).expect_err("refused").message
}

#[test]
fn images_are_taken_apart_and_put_together() {
    for (text, repository, version) in [
        ("berth", "berth", "latest"),
        ("berth:1.2", "berth", "1.2"),
        ("host:5000/team/berth", "host:5000/team/berth", "latest"),
        ("host:5000/team/berth:1", "host:5000/team/berth", "1"),
        ("host/berth:1@sha256:abc", "host/berth", "sha256:abc"),
        ("host:5000/berth@sha256:abc", "host:5000/berth", "sha256:abc"),
    ] {
        let image = Image::parse(text);
        assert_eq!((image.repository.as_str(), image.version.as_str()), (repository, version), "{text}");
        assert_eq!(Image::parse(&image.reference()), image, "{text}");
    }
}

#[test]
fn the_pin_holds_until_somebody_moves_it() {
    let image = |spec: serde_json::Value, pinned: Option<&str>, live: Option<&str>| {
        let mut target = from_json(&spec);
        target.status.version = pinned.map(str::to_owned);
        let live = live.map(Image::parse);
        settle(&target, &release(), live.as_ref()).unwrap().image.reference()
    };
    let plain = json!({});
    assert_eq!(image(plain.clone(), None, None), "registry.example.com/berth:0.1.0");
    assert_eq!(image(plain.clone(), Some("0.0.9"), None), "registry.example.com/berth:0.0.9");
    assert_eq!(image(plain.clone(), None, Some("x/y:0.0.8")), "registry.example.com/berth:0.0.8");
    assert_eq!(image(plain, Some("0.0.9"), Some("x/y:0.0.8")), "registry.example.com/berth:0.0.9");
    let tagged = json!({ "image": { "tag": "2" } });
    assert_eq!(image(tagged, Some("0.0.9"), None), "registry.example.com/berth:2");
    let digest = json!({ "image": { "repository": "r/b", "tag": "2", "digest": "sha256:ab" } });
    assert_eq!(image(digest, Some("0.0.9"), None), "r/b@sha256:ab");
    let follows = json!({ "update": { "followOperator": true } });
    assert_eq!(image(follows, Some("0.0.9"), Some("x/y:0.0.8")), "registry.example.com/berth:0.1.0");
}

#[test]
fn suspension_is_no_pods_whatever_replicas_say() {
    let target = from_json(&json!({ "replicas": 1, "suspend": true }));
    assert_eq!(settled(&target).replicas, 0);
}

#[test]
fn what_cannot_work_is_refused_with_what_to_change() {
    assert!(refused(json!({ "replicas": 2 })).contains("set replicas to 0 or 1"));
    assert!(refused(json!({ "replicas": -1 })).contains("replicas"));
    assert!(refused(json!({ "broker": {} })).contains("embedded"));
    assert!(refused(json!({ "storage": { "size": "lots" } })).contains("storage.size"));
    assert!(refused(json!({ "storage": { "size": "0" } })).contains("storage.size"));
    assert!(refused(json!({ "stomp": { "port": 9090 } })).contains("admin"));
    assert!(refused(json!({ "stomp": { "port": 0 } })).contains("stomp.port"));
    assert!(refused(json!({ "update": { "drainTimeout": "0s" } })).contains("drainTimeout"));
    assert!(refused(json!({ "update": { "drainTimeout": "2h" } })).contains("drainTimeout"));
    assert!(refused(json!({ "podTemplate": { "spec": { "hostname": "x" } } })).contains("hostname"));
}

#[test]
fn the_file_holds_what_was_set_and_what_the_cluster_decides() {
    let plain = settled(&target());
    assert_eq!(
        plain.config_yaml,
        "dataDir: /var/lib/berth\ndrainTimeoutSeconds: 20\nadmin:\n  address: '[::]:9090'\nstomp:\n  \
        address: \
         '[::]'\nlogging:\n  format: json\n"
    );
    assert_eq!(plain.dynamic_yaml, "{}\n");
    let mut spec = StompConnectorSpec {
        stomp: Some(Stomp { queue_ack_timeout_seconds: Some(5), ..Stomp::default() }),
        ..StompConnectorSpec::default()
    };
    spec.common.broker =
        Some(Broker { embedded: Some(Embedded { fsync: Some(berth_config::Fsync::Interval) }) });
    spec.common.update =
        Some(UpdateSpec { drain_timeout: Some(Duration::from_seconds(60)), ..UpdateSpec::default() });
    spec.common.logging = Some(Logging { level: Some(LogLevel::Debug), format: None });
    let set = settled(&from_spec(spec));
    for line in ["drainTimeoutSeconds: 60", "fsync: interval", "queueAckTimeoutSeconds: 5"] {
        assert!(set.config_yaml.contains(line), "{}", set.config_yaml);
    }
    assert!(!set.config_yaml.contains("debug"), "the level is dynamic");
    assert_eq!(set.dynamic_yaml, "logging:\n  level: debug\n");
}

/// What the operator writes, the connector of this release reads and takes for what was meant.
#[test]
fn the_connector_understands_the_files() {
    let spec = json!({
        "stomp": { "port": 61700, "queueAckTimeoutSeconds": 5 },
        "broker": { "embedded": { "fsync": "never" } },
        "logging": { "level": "trace", "format": "text" },
    });
    let settled = settled(&from_json(&spec));
    let config = berth_config::Document { name: "config.yaml", text: &settled.config_yaml };
    let dynamic = berth_config::Document { name: "dynamic.yaml", text: &settled.dynamic_yaml };
    let loaded = berth_config::load(Some(config), Some(dynamic), [], "orders-0").unwrap();
    let stomp = loaded.settings.stomp.expect("the listener runs");
    assert_eq!(stomp.listen.to_string(), "[::]:61700");
    assert_eq!(stomp.ack_timeout.as_secs(), 5);
    assert_eq!(loaded.settings.logging.level, LogLevel::Trace);
    assert_eq!(loaded.settings.node, "orders-0");
    assert_eq!(loaded.settings.admin.map(|a| a.to_string()).as_deref(), Some("[::]:9090"));
}

#[test]
fn the_hash_covers_what_is_read_at_start_and_nothing_else() {
    let hash = |spec: serde_json::Value| settled(&from_json(&spec)).config_hash;
    let plain = hash(json!({}));
    for same in [
        json!({ "replicas": 0 }),
        json!({ "logging": { "level": "debug" } }),
        json!({ "storage": { "size": "5Gi" } }),
        json!({ "podLabels": { "a": "b" } }),
        json!({ "service": { "type": "NodePort" } }),
        json!({ "image": { "tag": "2" } }),
    ] {
        assert_eq!(hash(same.clone()), plain, "{same}");
    }
    for other in [
        json!({ "stomp": { "queueAckTimeoutSeconds": 5 } }),
        json!({ "logging": { "format": "text" } }),
        json!({ "update": { "drainTimeout": "30s" } }),
    ] {
        assert_ne!(hash(other.clone()), plain, "{other}");
    }
    assert_eq!(plain.len(), 10);
}

#[test]
fn storage_defaults_to_one_gibibyte() {
    assert_eq!(settled(&target()).storage_size, "1Gi");
    let spec = StorageSpec { size: Some("2Gi".to_owned()), ..StorageSpec::default() };
    let mut target = target();
    target.spec.storage = Some(spec);
    assert_eq!(settled(&target).storage_size, "2Gi");
}
