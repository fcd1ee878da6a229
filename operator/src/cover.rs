//! Whether a live object already is as wanted: everything that was built stands in it, whatever others added.
//!
//! The API server fills in defaults, other managers add fields and list elements, and quantities come
//! back in another spelling. None of that is a difference. A field that we no longer want is not seen
//! here; the hash of what was last applied shows it (see [`crate::plan::children`]).

use crate::quantity;
use serde_json::{Map, Value};

/// Whether `live` has everything that `wanted` has.
#[must_use]
pub fn covers(live: &Value, wanted: &Value) -> bool {
    first_difference(live, wanted).is_none()
}

/// The path of the first field of `wanted` that `live` lacks or has otherwise, as in `spec.replicas`.
#[must_use]
pub fn first_difference(live: &Value, wanted: &Value) -> Option<String> {
    difference("", live, wanted)
}

fn difference(path: &str, live: &Value, wanted: &Value) -> Option<String> {
    match (live, wanted) {
        (Value::Object(live), Value::Object(wanted)) => objects(path, live, wanted),
        (Value::Array(live), Value::Array(wanted)) => lists(path, live, wanted),
        (Value::String(live), Value::String(wanted)) => {
            let same = live == wanted || is_quantity(path) && quantity::same(live, wanted);
            (!same).then(|| path.to_owned())
        }
        (live, wanted) => (live != wanted).then(|| path.to_owned()),
    }
}

fn objects(path: &str, live: &Map<String, Value>, wanted: &Map<String, Value>) -> Option<String> {
    wanted.iter().find_map(|(name, wanted)| {
        let inner = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        match live.get(name) {
            Some(live) => difference(&inner, live, wanted),
            None if may_be_absent(name, wanted) => None,
            None => Some(inner),
        }
    })
}

fn lists(path: &str, live: &[Value], wanted: &[Value]) -> Option<String> {
    let name = path.rsplit('.').next().unwrap_or(path);
    if let Some(keys) = merge_keys(name, wanted) {
        return wanted.iter().find_map(|wanted| {
            let same = |live: &&Value| keys.iter().all(|key| live.get(*key) == wanted.get(*key));
            match live.iter().find(same) {
                Some(live) => difference(path, live, wanted),
                None => Some(path.to_owned()),
            }
        });
    }
    if live.len() != wanted.len() {
        return Some(path.to_owned());
    }
    live.iter().zip(wanted).find_map(|(live, wanted)| difference(path, live, wanted))
}

/// The keys by which server-side apply merges the elements of a list of this name; `None`: as a whole.
///
/// Taken from the `x-kubernetes-list-map-keys` of the kinds that the operator writes. A port without a
/// protocol has the protocol that the server fills in, so the number alone is the key there.
#[must_use]
pub fn merge_keys(list: &str, elements: &[Value]) -> Option<&'static [&'static str]> {
    let keys: &'static [&'static str] = match list {
        "containers" | "initContainers" | "ephemeralContainers" | "env" | "volumes" | "imagePullSecrets" => {
            &["name"]
        }
        "volumeMounts" => &["mountPath"],
        "ports" if elements.iter().all(|port| port.get("containerPort").is_some()) => &["containerPort"],
        "ports" => &["port"],
        "topologySpreadConstraints" => &["topologyKey", "whenUnsatisfiable"],
        "ownerReferences" => &["uid"],
        "conditions" => &["type"],
        _ => return None,
    };
    elements.iter().all(|element| keys.iter().all(|key| element.get(*key).is_some())).then_some(keys)
}

fn is_quantity(path: &str) -> bool {
    path.contains(".requests.") || path.contains(".limits.") || path.ends_with(".sizeLimit")
}

/// The server leaves out what is empty, and zeros of fields that mean the same when they are absent.
fn may_be_absent(name: &str, value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(flag) => !flag && !TRUE_WHEN_ABSENT.contains(&name),
        Value::String(text) => text.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Number(number) => number.as_i64() == Some(0),
    }
}

/// Switches of a pod template that are on when they are absent.
const TRUE_WHEN_ABSENT: &[&str] =
    &["automountServiceAccountToken", "enableServiceLinks", "allowPrivilegeEscalation"];

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_others_added_is_no_difference() {
        let wanted = json!({ "spec": { "replicas": 1, "containers": [{ "name": "berth", "image": "a" }] } });
        let live = json!({
            "metadata": { "uid": "1" },
            "spec": {
                "replicas": 1, "revisionHistoryLimit": 10,
                "containers": [{ "name": "sidecar" }, { "name": "berth", "image": "a", "tty": false }],
            },
        });
        assert_eq!(first_difference(&live, &wanted), None);
    }

    #[test]
    fn a_changed_field_is_named() {
        let wanted = json!({ "spec": { "containers": [{ "name": "berth", "image": "a" }] } });
        let live = json!({ "spec": { "containers": [{ "name": "berth", "image": "b" }] } });
        assert_eq!(first_difference(&live, &wanted).as_deref(), Some("spec.containers.image"));
        let gone = json!({ "spec": { "containers": [] } });
        assert_eq!(first_difference(&gone, &wanted).as_deref(), Some("spec.containers"));
    }

    #[test]
    fn quantities_are_compared_as_numbers_and_only_where_quantities_stand() {
        let wanted = json!({ "resources": { "limits": { "cpu": "0.5", "memory": "1Gi" } } });
        let live = json!({ "resources": { "limits": { "cpu": "500m", "memory": "1024Mi" } } });
        assert!(covers(&live, &wanted));
        assert!(!covers(&json!({ "name": "500m" }), &json!({ "name": "0.5" })));
    }

    #[test]
    fn lists_without_keys_are_replaced_as_a_whole() {
        let wanted = json!({ "args": ["a", "b"] });
        assert!(!covers(&json!({ "args": ["a", "b", "c"] }), &wanted));
        assert!(!covers(&json!({ "args": ["b", "a"] }), &wanted));
        assert!(covers(&json!({ "args": ["a", "b"] }), &wanted));
    }

    #[test]
    fn what_is_empty_may_be_absent() {
        assert!(covers(&json!({}), &json!({ "annotations": {}, "list": [] })));
        assert!(!covers(&json!({}), &json!({ "emptyDir": { "medium": "Memory" } })));
        assert!(covers(&json!({}), &json!({ "hostNetwork": false })));
        assert!(!covers(&json!({}), &json!({ "enableServiceLinks": false })));
        assert!(covers(&json!({}), &json!({ "minReadySeconds": 0 })));
        assert!(!covers(&json!({ "replicas": 1 }), &json!({ "replicas": 0 })));
    }
}
