//! What to do about one child: leave it, write it, wait for it, or leave it to its owner.

use crate::build::Child;
use crate::cover::first_difference;
use crate::names::{APPLIED_HASH_ANNOTATION, INSTANCE_LABEL, KIND_LABEL, MANAGED_BY, MANAGED_BY_LABEL};
use crate::target::Target;
use serde_json::{Value, json};

/// The next step for one child.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChildStep {
    /// It is as it should be.
    Keep,
    /// It is not there.
    Create,
    /// It differs; the path of the first difference.
    Patch(String),
    /// It is being deleted: nothing can be made under its name until it has gone.
    WaitUntilGone,
    /// The name belongs to somebody else, described in words.
    Taken(String),
}

/// Plans one child against what a live read found under its name.
#[must_use]
pub fn plan(target: &Target, child: &Child, live: Option<&Value>) -> ChildStep {
    let Some(live) = live else { return ChildStep::Create };
    if !is_ours(target, live) {
        return ChildStep::Taken(describe_owner(live));
    }
    if is_being_deleted(live) {
        return ChildStep::WaitUntilGone;
    }
    if let Some(path) = first_difference(live, &child.body) {
        return ChildStep::Patch(path);
    }
    // The same fields, but another set of them was applied last: a field that is no longer wanted has to go.
    if applied_hash(live) == Some(&child.hash) {
        ChildStep::Keep
    } else {
        ChildStep::Patch("a field that is no longer wanted".to_owned())
    }
}

/// Whether a live object is this connector's child: its controller is the connector by uid, or it has no
/// controller and carries our labels.
#[must_use]
pub fn is_ours(target: &Target, live: &Value) -> bool {
    match controller(live) {
        Some(owner) => owner["uid"] == target.uid.as_str(),
        None => {
            let labels = &live["metadata"]["labels"];
            labels[MANAGED_BY_LABEL] == MANAGED_BY
                && labels[KIND_LABEL] == target.kind
                && labels[INSTANCE_LABEL] == target.name.as_str()
        }
    }
}

/// The hash of what was last applied to a live object.
#[must_use]
pub fn applied_hash(live: &Value) -> Option<&str> {
    live["metadata"]["annotations"][APPLIED_HASH_ANNOTATION].as_str()
}

/// Whether a live object has a deletion timestamp.
#[must_use]
pub fn is_being_deleted(live: &Value) -> bool {
    live["metadata"]["deletionTimestamp"].is_string()
}

/// What puts a Service right that somebody gave another number for one of our ports: the list is merged
/// by number, so an apply alone would add ours beside it under the same name, which the API server
/// refuses.
#[must_use]
pub fn repair(child: &Child, live: &Value) -> Option<Value> {
    let ports = |object: &Value| object["spec"]["ports"].as_array().cloned().unwrap_or_default();
    let wanted = ports(&child.body);
    let displaced = |there: &Value| {
        wanted.iter().any(|port| port["name"] == there["name"] && port["port"] != there["port"])
    };
    ports(live).iter().any(displaced).then(|| json!({ "spec": { "ports": wanted } }))
}

fn controller(live: &Value) -> Option<&Value> {
    live["metadata"]["ownerReferences"].as_array()?.iter().find(|owner| owner["controller"] == json!(true))
}

fn describe_owner(live: &Value) -> String {
    match controller(live) {
        Some(owner) => format!(
            "belongs to {} {}",
            owner["kind"].as_str().unwrap_or("an object"),
            owner["name"].as_str().unwrap_or_default()
        ),
        None => "was not made by the operator".to_owned(),
    }
}

/// The StatefulSet to apply while one is there: fields that Kubernetes never changes stay as they are on
/// the live one.
///
/// Also returns the first such field that differs for another reason than the size of the volumes, which
/// is moved by making the StatefulSet anew (see [`super::storage`]).
#[must_use]
pub fn keep_fixed_fields(child: &Child, live: &Value) -> (Child, Option<&'static str>) {
    let mut changed = None;
    let mut fixed = child.clone();
    for field in ["serviceName", "podManagementPolicy", "selector"] {
        let (wanted, there) = (&child.body["spec"][field], &live["spec"][field]);
        if first_difference(there, wanted).is_some() {
            changed = changed.or(Some(field));
            fixed = fixed.with(|body| body["spec"][field] = there.clone());
        }
    }
    let wanted = &child.body["spec"]["volumeClaimTemplates"];
    let there = &live["spec"]["volumeClaimTemplates"];
    if first_difference(there, wanted).is_some() {
        if !differs_in_size_only(there, wanted) {
            changed = changed.or(Some("volumeClaimTemplates"));
        }
        fixed = fixed.with(|body| body["spec"]["volumeClaimTemplates"] = applicable(there));
    }
    (fixed, changed)
}

fn differs_in_size_only(there: &Value, wanted: &Value) -> bool {
    let mut resized = wanted.clone();
    for (at, template) in there.as_array().map(Vec::as_slice).unwrap_or_default().iter().enumerate() {
        resized[at]["spec"]["resources"]["requests"] = template["spec"]["resources"]["requests"].clone();
    }
    first_difference(there, &resized).is_none()
}

/// Live claim templates without what only the server writes.
fn applicable(templates: &Value) -> Value {
    let strip = |template: &Value| {
        json!({
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": { "name": template["metadata"]["name"], "labels": template["metadata"]["labels"] },
            "spec": template["spec"],
        })
    };
    templates.as_array().map(|all| all.iter().map(strip).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build;
    use crate::validate::tests::{settled, target};

    fn stateful_set() -> Child {
        let target = target();
        let settled = settled(&target);
        build::children(&target, &settled).pop().unwrap()
    }

    fn with(live: &Value, pointer: &str, value: Value) -> Value {
        let mut live = live.clone();
        *live.pointer_mut(pointer).unwrap() = value;
        live
    }

    #[test]
    fn what_is_there_as_wanted_is_kept() {
        let child = stateful_set();
        assert_eq!(plan(&target(), &child, None), ChildStep::Create);
        assert_eq!(plan(&target(), &child, Some(&child.body)), ChildStep::Keep);
        let drifted = with(&child.body, "/spec/replicas", json!(7));
        assert_eq!(plan(&target(), &child, Some(&drifted)), ChildStep::Patch("spec.replicas".to_owned()));
        let mut more = child.body.clone();
        more["spec"]["ordinals"] = json!({ "start": 0 });
        assert_eq!(plan(&target(), &child, Some(&more)), ChildStep::Keep);
    }

    #[test]
    fn a_field_that_is_no_longer_wanted_is_taken_back() {
        let child = stateful_set();
        let earlier =
            child.with(|body| body["spec"]["template"]["spec"]["priorityClassName"] = json!("high"));
        assert!(matches!(plan(&target(), &child, Some(&earlier.body)), ChildStep::Patch(_)));
    }

    #[test]
    fn only_what_is_ours_is_touched() {
        let child = stateful_set();
        let mut foreign = child.body.clone();
        foreign["metadata"]["ownerReferences"] =
            json!([{ "kind": "Kafka", "name": "x", "uid": "9", "controller": true }]);
        assert_eq!(
            plan(&target(), &child, Some(&foreign)),
            ChildStep::Taken("belongs to Kafka x".to_owned())
        );
        // A namesake of a former time belongs to another uid.
        let former = with(&child.body, "/metadata/ownerReferences/0/uid", json!("older"));
        assert!(matches!(plan(&target(), &child, Some(&former)), ChildStep::Taken(_)));
        // Left behind on purpose (delete --cascade=orphan): no controller, our labels.
        let orphan = with(&child.body, "/metadata/ownerReferences", json!([]));
        assert!(matches!(plan(&target(), &child, Some(&orphan)), ChildStep::Patch(_)));
        let hand_made = json!({ "metadata": { "labels": { "app": "x" } } });
        assert!(matches!(plan(&target(), &child, Some(&hand_made)), ChildStep::Taken(_)));
    }

    #[test]
    fn a_child_that_is_being_deleted_is_waited_for() {
        let child = stateful_set();
        let mut going = child.body.clone();
        going["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        assert_eq!(plan(&target(), &child, Some(&going)), ChildStep::WaitUntilGone);
    }

    #[test]
    fn fixed_fields_stay_as_they_are() {
        let child = stateful_set();
        let (same, changed) = keep_fixed_fields(&child, &child.body);
        assert_eq!((same, changed), (child.clone(), None));

        let size = "/spec/volumeClaimTemplates/0/spec/resources/requests/storage";
        let smaller = with(&child.body, size, json!("512Mi"));
        let (kept, changed) = keep_fixed_fields(&child, &smaller);
        assert_eq!(kept.body.pointer(size), Some(&json!("512Mi")));
        assert_eq!(changed, None);
        assert_ne!(kept.hash, child.hash);

        for (pointer, field, value) in [
            ("/spec/serviceName", "serviceName", json!("other")),
            ("/spec/podManagementPolicy", "podManagementPolicy", json!("OrderedReady")),
            ("/spec/selector/matchLabels", "selector", json!({ "app": "x" })),
            ("/spec/volumeClaimTemplates/0/metadata/name", "volumeClaimTemplates", json!("disk")),
        ] {
            let other = with(&child.body, pointer, value.clone());
            let (kept, changed) = keep_fixed_fields(&child, &other);
            assert_eq!(changed, Some(field));
            assert_eq!(kept.body.pointer(pointer), Some(&value));
        }
    }

    #[test]
    fn an_equal_size_in_another_spelling_is_the_same_template() {
        let child = stateful_set();
        let size = "/spec/volumeClaimTemplates/0/spec/resources/requests/storage";
        let live = with(&child.body, size, json!("1024Mi"));
        assert_eq!(keep_fixed_fields(&child, &live), (child, None));
    }
}
