//! The CEL rules of the custom resources: what the API server refuses, and the words it refuses it with.
//!
//! A message says what to change. Rules on `spec` see an update as a whole, so that a field that is unset is
//! covered like one that is set; rules at the root may read the name and the status.

use crate::{CONNECTOR_NAME_MAX, STORAGE_SIZE_DEFAULT};
use serde_json::{Value, json};

/// One rule, where it stands and what it says when it refuses.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Path of properties from the root of the schema; empty is the root itself.
    pub at: &'static [&'static str],
    /// The CEL expression.
    pub rule: String,
    /// What the user reads.
    pub message: String,
}

/// The rules of every kind of connector.
#[must_use]
pub fn connector_rules() -> Vec<Rule> {
    vec![
        Rule {
            at: &[],
            rule: format!("self.metadata.name.size() <= {CONNECTOR_NAME_MAX}"),
            message: format!(
                "a connector's name has at most {CONNECTOR_NAME_MAX} characters, since its pods and \
                Services are \
                 named after it: choose a shorter one"
            ),
        },
        Rule {
            at: &[],
            rule: "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')".to_owned(),
            message:
                "a connector's name has only small letters, digits and hyphens, and starts with a letter, \
                      since Services are named after it: choose another one"
                    .to_owned(),
        },
        Rule {
            at: &[],
            rule: format!(
                "!has(self.status) || !has(self.status.storage) || !has(self.status.storage.capacity) || \
                 quantity(has(self.spec.storage) && has(self.spec.storage.size) ? self.spec.storage.size : \
                 '{STORAGE_SIZE_DEFAULT}').compareTo(quantity(self.status.storage.capacity)) >= 0"
            ),
            message: format!(
                "volumes cannot shrink: set spec.storage.size to status.storage.capacity or more \
                 (unset means {STORAGE_SIZE_DEFAULT})"
            ),
        },
        Rule {
            at: &["spec"],
            rule: "self.replicas <= 1 || (has(self.broker) && !has(self.broker.embedded))".to_owned(),
            message: "the embedded broker lives in one pod: set replicas to 0 or 1".to_owned(),
        },
        Rule {
            at: &["spec"],
            rule: "(has(self.storage) && has(self.storage.storageClassName)) == (has(oldSelf.storage) && \
                   has(oldSelf.storage.storageClassName)) && (!has(self.storage) || \
                   !has(self.storage.storageClassName) || self.storage.storageClassName == \
                   oldSelf.storage.storageClassName)"
                .to_owned(),
            message:
                "storage.storageClassName is fixed when the connector is made, set or unset: make a new \
                      connector with the other class"
                    .to_owned(),
        },
        Rule {
            at: &["spec", "broker"],
            rule: "has(self.embedded)".to_owned(),
            message: "name exactly one broker: embedded".to_owned(),
        },
        Rule {
            at: &["spec", "service"],
            rule: "!has(self.externalTrafficPolicy) || (has(self.type) && self.type != 'ClusterIP')"
                .to_owned(),
            message:
                "externalTrafficPolicy needs traffic from outside: set type to NodePort or LoadBalancer, or \
                      leave it out"
                    .to_owned(),
        },
        Rule {
            at: &["spec", "service"],
            rule: "!has(self.loadBalancerSourceRanges) || (has(self.type) && self.type == 'LoadBalancer')"
                .to_owned(),
            message:
                "loadBalancerSourceRanges needs a load balancer: set type to LoadBalancer, or leave it out"
                    .to_owned(),
        },
    ]
}

/// Writes the rules into a schema.
///
/// # Panics
/// When a rule's path does not exist in the schema: the rules and the types are built together.
pub(crate) fn write_rules(schema: &mut Value, rules: &[Rule]) {
    for rule in rules {
        let mut place = &mut *schema;
        for name in rule.at {
            place = place
                .pointer_mut(&format!("/properties/{name}"))
                .unwrap_or_else(|| panic!("no property {name} on the way to {:?}", rule.at));
        }
        let object = place.as_object_mut().expect("a schema is an object");
        let list = object.entry("x-kubernetes-validations").or_insert_with(|| json!([]));
        let entry = json!({ "rule": rule.rule, "message": rule.message });
        list.as_array_mut().expect("made as a list").push(entry);
    }
}
