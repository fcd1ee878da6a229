//! From settled values to the children of a connector: pure, golden-tested.
//!
//! Every child is a full body for server-side apply: `apiVersion`, `kind`, name, labels, the owner
//! reference, and every field that is ours. The pod template depends on the specification and the pinned
//! version alone: a new operator changes no template by itself (`tests/golden/` holds the released ones).

mod access;
mod budget;
mod config;
mod services;
mod statefulset;
pub mod template;

use crate::cluster::{Kind, ObjectId};
use crate::names;
use crate::target::Target;
use crate::validate::{Settled, hash10};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Serialize;
use serde_json::{Value, json};

pub use config::internal_secret;

/// One child as it should be.
#[derive(Clone, Debug, PartialEq)]
pub struct Child {
    /// Which.
    pub id: ObjectId,
    /// The body to apply, with its own hash in the annotations.
    pub body: Value,
    /// The hash of the body without the annotation.
    pub hash: String,
}

/// Builds every child but the internal Secret (see [`internal_secret`]), in the order in which they are
/// applied: what pods need comes before the pods.
#[must_use]
pub fn children(target: &Target, settled: &Settled) -> Vec<Child> {
    let mut children = Vec::new();
    if target.spec.service_account_name.is_none() {
        children.push(child(target, Kind::ServiceAccount, &access::service_account(target)));
    }
    children.push(child(target, Kind::Role, &access::role(target)));
    children.push(child(target, Kind::RoleBinding, &access::role_binding(target)));
    children.push(child(target, Kind::ConfigMap, &config::config_map(target, settled)));
    children.push(child(target, Kind::ConfigMap, &config::dynamic_config_map(target, settled)));
    children.push(child(target, Kind::Service, &services::headless(target, settled)));
    children.push(child(target, Kind::Service, &services::client(target, settled)));
    let budget = target.spec.pod_disruption_budget.as_ref().and_then(|budget| budget.enabled);
    if budget != Some(false) {
        children.push(child(target, Kind::PodDisruptionBudget, &budget::budget(target)));
    }
    children.push(child(target, Kind::StatefulSet, &statefulset::stateful_set(target, settled)));
    children
}

/// Kinds and names that a connector may have as children, besides its ConfigMaps of former
/// configurations: what is there, ours and not wanted goes.
#[must_use]
pub fn possible(target: &Target) -> Vec<ObjectId> {
    vec![
        ObjectId::new(Kind::ServiceAccount, &target.name),
        ObjectId::new(Kind::PodDisruptionBudget, &target.name),
    ]
}

/// Name, namespace, labels and owner of a child.
pub(crate) fn metadata(target: &Target, name: String, component: &str) -> ObjectMeta {
    let mut labels = names::labels(target.kind, &target.name);
    labels.insert(names::COMPONENT_LABEL.to_owned(), component.to_owned());
    ObjectMeta {
        name: Some(name),
        namespace: Some(target.namespace.clone()),
        labels: Some(labels),
        owner_references: Some(vec![target.owner_reference()]),
        ..ObjectMeta::default()
    }
}

fn child(target: &Target, kind: Kind, object: &impl Serialize) -> Child {
    let body = serde_json::to_value(object).expect("API types are plain data");
    finish(kind, body, &target.namespace)
}

/// Hashes a body and writes the hash into it.
fn finish(kind: Kind, mut body: Value, namespace: &str) -> Child {
    debug_assert_eq!(body["metadata"]["namespace"], namespace, "children live where their connector does");
    let hash = hash10(&body.to_string());
    let annotations = &mut body["metadata"]["annotations"];
    if annotations.is_null() {
        *annotations = json!({});
    }
    annotations[names::APPLIED_HASH_ANNOTATION] = json!(hash);
    let name = body["metadata"]["name"].as_str().expect("children have names").to_owned();
    Child { id: ObjectId::new(kind, name), body, hash }
}

impl Child {
    /// The same child with some fields as they are on the live object, hashed anew.
    #[must_use]
    pub fn with(&self, change: impl FnOnce(&mut Value)) -> Self {
        let mut body = self.body.clone();
        if let Some(annotations) = body["metadata"]["annotations"].as_object_mut() {
            annotations.remove(names::APPLIED_HASH_ANNOTATION);
        }
        change(&mut body);
        let namespace = body["metadata"]["namespace"].as_str().unwrap_or_default().to_owned();
        finish(self.id.kind, body, &namespace)
    }
}
