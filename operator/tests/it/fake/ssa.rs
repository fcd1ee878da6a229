//! Server-side apply on JSON: field ownership by manager, lists merged by key, forced conflicts.
//!
//! Limits: ownership is by leaf; a list that is not in the table is atomic; conflicts are always forced;
//! sets are treated as atomic lists. The table is written down from the `x-kubernetes-list-map-keys` of
//! Kubernetes 1.36 for the fields that the operator writes.

use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// A path to a leaf: names of fields, and keys of list elements as JSON text.
pub(crate) type Path = Vec<String>;
/// Which leaves each manager owns.
pub(crate) type Owners = BTreeMap<String, BTreeSet<Path>>;

fn keys_of(list: &str) -> Option<&'static [&'static str]> {
    Some(match list {
        "containers" | "initContainers" | "env" | "volumes" | "imagePullSecrets" => &["name"],
        "volumeMounts" => &["mountPath"],
        "topologySpreadConstraints" => &["topologyKey", "whenUnsatisfiable"],
        "ownerReferences" => &["uid"],
        "conditions" => &["type"],
        "endpoints" => &["protocol"],
        "ports" => &["containerPort|port", "protocol"],
        _ => return None,
    })
}

fn key_text(element: &Value, keys: &[&str]) -> String {
    let mut key = Map::new();
    for name in keys {
        let alternatives = name.split('|');
        for name in alternatives {
            if let Some(value) = element.get(name) {
                key.insert(name.to_owned(), value.clone());
            } else if name == "protocol" {
                key.insert(name.to_owned(), json!("TCP"));
            }
        }
    }
    Value::Object(key).to_string()
}

/// Applies `body` for `manager` onto `live`; returns the new object.
pub(crate) fn apply(live: &Value, body: &Value, manager: &str, owners: &mut Owners) -> Value {
    let mut wanted = body.clone();
    for name in ["apiVersion", "kind"] {
        if let Some(object) = wanted.as_object_mut() {
            object.remove(name);
        }
    }
    let mut new_paths = BTreeSet::new();
    leaves(&wanted, &mut Vec::new(), &mut new_paths);
    let mut object = live.clone();
    let old_paths = owners.remove(manager).unwrap_or_default();
    for path in old_paths.difference(&new_paths) {
        let shared = owners.values().any(|paths| paths.contains(path));
        // A leaf that became the parent of others, or lies in an atomic list, is replaced by the merge.
        if !shared && !new_paths.iter().any(|new| new.starts_with(path)) {
            remove(&mut object, path);
        }
    }
    merge(&mut object, &wanted, "");
    for paths in owners.values_mut() {
        // Forced: what we name is ours alone.
        paths.retain(|path| !new_paths.contains(path));
    }
    owners.insert(manager.to_owned(), new_paths);
    object
}

/// Every leaf of a value; an empty object is one, and so is an atomic list.
pub(crate) fn leaves(value: &Value, path: &mut Path, out: &mut BTreeSet<Path>) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            for (name, inner) in map {
                path.push(name.clone());
                leaves(inner, path, out);
                path.pop();
            }
        }
        Value::Array(list) => match path.last().and_then(|name| keys_of(name)) {
            Some(keys) if !list.is_empty() => {
                for element in list {
                    path.push(key_text(element, keys));
                    leaves(element, path, out);
                    path.pop();
                }
            }
            _ => {
                out.insert(path.clone());
            }
        },
        _ => {
            out.insert(path.clone());
        }
    }
}

fn merge(live: &mut Value, wanted: &Value, name: &str) {
    match (live, wanted) {
        (Value::Object(live), Value::Object(wanted)) => {
            for (name, inner) in wanted {
                merge(live.entry(name.clone()).or_insert(Value::Null), inner, name);
            }
        }
        (Value::Array(live), Value::Array(wanted)) if keys_of(name).is_some() => {
            let keys = keys_of(name).unwrap_or_default();
            for element in wanted {
                let key = key_text(element, keys);
                match live.iter_mut().find(|there| key_text(there, keys) == key) {
                    Some(there) => merge(there, element, ""),
                    None => live.push(element.clone()),
                }
            }
        }
        (live, wanted) => *live = wanted.clone(),
    }
}

/// Takes a leaf out, and parents that it leaves empty.
fn remove(value: &mut Value, path: &[String]) -> bool {
    let Some((first, rest)) = path.split_first() else { return true };
    match value {
        Value::Object(map) => {
            let Some(inner) = map.get_mut(first) else { return false };
            if remove(inner, rest) {
                map.remove(first);
            }
            map.is_empty()
        }
        Value::Array(list) => {
            let key: Value = serde_json::from_str(first).unwrap_or_default();
            let matches = |element: &Value| {
                key.as_object().is_some_and(|key| {
                    key.iter().all(|(name, value)| {
                        element.get(name).cloned().unwrap_or_else(|| json!("TCP")) == *value
                    })
                })
            };
            let Some(at) = list.iter().position(matches) else { return false };
            // The key fields themselves go last, with the element.
            let is_key = rest.len() == 1 && key.get(&rest[0]).is_some();
            if is_key || remove(&mut list[at], rest) {
                list.remove(at);
            }
            list.is_empty()
        }
        _ => true,
    }
}

#[test]
fn fields_that_are_no_longer_applied_go_and_those_of_others_stay() {
    let mut owners = Owners::new();
    let first = json!({ "spec": { "a": 1, "b": 2, "env": [{ "name": "X", "value": "1" }] } });
    let live = apply(&json!({}), &first, "me", &mut owners);
    let mut live = apply(&live, &json!({ "spec": { "c": 3 } }), "other", &mut owners);
    live["spec"]["defaulted"] = json!(true);
    let live = apply(&live, &json!({ "spec": { "a": 5 } }), "me", &mut owners);
    assert_eq!(live, json!({ "spec": { "a": 5, "c": 3, "defaulted": true } }));
}

#[test]
fn lists_are_merged_by_key() {
    let mut owners = Owners::new();
    let body = json!({ "containers": [{ "name": "a", "image": "1" }, { "name": "b" }] });
    let live = apply(&json!({}), &body, "me", &mut owners);
    let sidecar = json!({ "containers": [{ "name": "s" }] });
    let live = apply(&live, &sidecar, "mesh", &mut owners);
    let live = apply(&live, &json!({ "containers": [{ "name": "a", "image": "2" }] }), "me", &mut owners);
    assert_eq!(live, json!({ "containers": [{ "name": "a", "image": "2" }, { "name": "s" }] }));
}
