//! The identity of the pods: ServiceAccount, Role, RoleBinding.
//!
//! The Role allows a pod to read the connector that it belongs to, by name, and nothing else. The
//! operator may grant only what it has itself, so its own rules (in the chart) hold every rule that
//! stands here.

use super::metadata;
use crate::target::Target;
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::rbac::v1::{PolicyRule, Role, RoleBinding, RoleRef, Subject};

pub(super) fn service_account(target: &Target) -> ServiceAccount {
    ServiceAccount {
        metadata: metadata(target, target.name.clone(), "access"),
        automount_service_account_token: Some(false),
        ..ServiceAccount::default()
    }
}

pub(super) fn role(target: &Target) -> Role {
    let own = PolicyRule {
        api_groups: Some(vec![berth_crds::GROUP.to_owned()]),
        resources: Some(vec![target.plural.to_owned()]),
        resource_names: Some(vec![target.name.clone()]),
        verbs: vec!["get".to_owned()],
        ..PolicyRule::default()
    };
    Role { metadata: metadata(target, target.name.clone(), "access"), rules: Some(vec![own]) }
}

pub(super) fn role_binding(target: &Target) -> RoleBinding {
    let account = target.spec.service_account_name.clone().unwrap_or_else(|| target.name.clone());
    RoleBinding {
        metadata: metadata(target, target.name.clone(), "access"),
        role_ref: RoleRef {
            api_group: Some("rbac.authorization.k8s.io".to_owned()),
            kind: "Role".to_owned(),
            name: target.name.clone(),
        },
        subjects: Some(vec![Subject {
            kind: "ServiceAccount".to_owned(),
            name: account,
            namespace: Some(target.namespace.clone()),
            ..Subject::default()
        }]),
    }
}
