//! The StatefulSet and its pod template.
//!
//! OnDelete: the operator replaces pods one by one (see [`crate::plan::rollout`]), because a StatefulSet
//! that rolls by itself waits for ever for a pod that a broken template keeps from being ready. Parallel:
//! no pod waits for another one to start. Both, the selector, the headless Service's name and the claim
//! templates never change, since Kubernetes refuses that.

use super::{metadata, template};
use crate::names;
use crate::target::Target;
use crate::validate::{Settled, config_file};
use berth_crds::RESTARTED_AT_ANNOTATION;
use berth_crds::connector::{PullPolicy, WhenDeleted};
use k8s_openapi::DeepMerge as _;
use k8s_openapi::api::apps::v1::{
    StatefulSet, StatefulSetPersistentVolumeClaimRetentionPolicy, StatefulSetSpec, StatefulSetUpdateStrategy,
};
use k8s_openapi::api::core::v1::{
    Capabilities, ConfigMapProjection, Container, ContainerPort, EnvVar, EnvVarSource, ExecAction,
    HTTPGetAction, KeyToPath, Lifecycle, LifecycleHandler, ObjectFieldSelector, PersistentVolumeClaim,
    PersistentVolumeClaimSpec, PodSecurityContext, PodSpec, PodTemplateSpec, Probe, ProjectedVolumeSource,
    SeccompProfile, SecretProjection, SecurityContext, TopologySpreadConstraint, Volume, VolumeMount,
    VolumeProjection, VolumeResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use std::collections::BTreeMap;

/// User and group of the pods; the group also owns the volume.
const USER: i64 = 65532;
/// What Kubernetes adds to the connector's own drain before it kills the pod, in seconds: the wait of the
/// preStop hook and the last writes. One constant for the pod's grace and for the page on operation.
const GRACE_MARGIN_SECONDS: u32 = 10;

pub(super) fn stateful_set(target: &Target, settled: &Settled) -> StatefulSet {
    let storage = target.spec.storage.clone().unwrap_or_default();
    let update = target.spec.update.clone().unwrap_or_default();
    StatefulSet {
        metadata: metadata(target, target.name.clone(), "connector"),
        spec: Some(StatefulSetSpec {
            replicas: Some(settled.replicas),
            service_name: Some(names::headless_service(&target.name)),
            pod_management_policy: Some("Parallel".to_owned()),
            update_strategy: Some(StatefulSetUpdateStrategy {
                type_: Some("OnDelete".to_owned()),
                rolling_update: None,
            }),
            min_ready_seconds: update.min_ready_seconds.filter(|seconds| *seconds > 0),
            revision_history_limit: Some(3),
            persistent_volume_claim_retention_policy: Some(StatefulSetPersistentVolumeClaimRetentionPolicy {
                when_deleted: Some(storage.when_deleted.unwrap_or(WhenDeleted::Retain).as_str().to_owned()),
                when_scaled: Some("Retain".to_owned()),
            }),
            selector: names::label_selector(target.kind, &target.name),
            template: pod_template(target, settled),
            volume_claim_templates: Some(vec![claim(target, settled)]),
            ..StatefulSetSpec::default()
        }),
        status: None,
    }
}

/// Every field that the API server would fill in is written, and so are `apiVersion` and `kind`: without
/// them each apply of the list counts as a change.
fn claim(target: &Target, settled: &Settled) -> PersistentVolumeClaim {
    let storage = target.spec.storage.clone().unwrap_or_default();
    PersistentVolumeClaim {
        metadata: ObjectMeta {
            name: Some(names::DATA_VOLUME.to_owned()),
            labels: Some(names::labels(target.kind, &target.name)),
            ..ObjectMeta::default()
        },
        spec: Some(PersistentVolumeClaimSpec {
            access_modes: Some(vec!["ReadWriteOnce".to_owned()]),
            storage_class_name: storage.storage_class_name,
            volume_mode: Some("Filesystem".to_owned()),
            resources: Some(VolumeResourceRequirements {
                requests: Some(BTreeMap::from([(
                    "storage".to_owned(),
                    Quantity(settled.storage_size.clone()),
                )])),
                limits: None,
            }),
            ..PersistentVolumeClaimSpec::default()
        }),
        status: None,
    }
}

fn pod_template(target: &Target, settled: &Settled) -> PodTemplateSpec {
    let spec = &target.spec;
    let mut labels = spec.pod_labels.clone().unwrap_or_default();
    labels.retain(|key, _| !template::is_reserved_key(key));
    let mut own_labels = names::labels(target.kind, &target.name);
    own_labels.insert(names::COMPONENT_LABEL.to_owned(), "connector".to_owned());
    let mut annotations = spec.pod_annotations.clone().unwrap_or_default();
    annotations.retain(|key, _| !template::is_reserved_key(key));
    annotations.insert("kubectl.kubernetes.io/default-container".to_owned(), names::CONTAINER.to_owned());
    if let Some(restarted_at) = &target.restarted_at {
        annotations.insert(RESTARTED_AT_ANNOTATION.to_owned(), restarted_at.clone());
    }
    let mut template = PodTemplateSpec {
        metadata: Some(ObjectMeta {
            labels: Some(labels.into_iter().chain(own_labels).collect()),
            annotations: Some(annotations),
            ..ObjectMeta::default()
        }),
        spec: Some(pod_spec(target, settled)),
    };
    if let Some(theirs) = &settled.pod_template {
        template.merge_from(theirs.clone());
    }
    template
}

fn pod_spec(target: &Target, settled: &Settled) -> PodSpec {
    let spec = &target.spec;
    PodSpec {
        containers: vec![container(target, settled)],
        volumes: Some(vec![config_volume(target, settled)]),
        service_account_name: Some(spec.service_account_name.clone().unwrap_or_else(|| target.name.clone())),
        automount_service_account_token: Some(false),
        enable_service_links: Some(false),
        termination_grace_period_seconds: Some(i64::from(settled.drain_seconds + GRACE_MARGIN_SECONDS)),
        security_context: Some(PodSecurityContext {
            run_as_non_root: Some(true),
            run_as_user: Some(USER),
            run_as_group: Some(USER),
            fs_group: Some(USER),
            fs_group_change_policy: Some("OnRootMismatch".to_owned()),
            seccomp_profile: Some(SeccompProfile {
                type_: "RuntimeDefault".to_owned(),
                localhost_profile: None,
            }),
            ..PodSecurityContext::default()
        }),
        image_pull_secrets: spec.image.as_ref().and_then(|image| image.pull_secrets.clone()),
        node_selector: spec.node_selector.clone(),
        tolerations: spec.tolerations.clone(),
        affinity: spec.affinity.clone(),
        topology_spread_constraints: Some(
            spec.topology_spread_constraints.clone().unwrap_or_else(|| spread(target)),
        )
        .filter(|constraints| !constraints.is_empty()),
        priority_class_name: spec.priority_class_name.clone(),
        ..PodSpec::default()
    }
}

fn container(target: &Target, settled: &Settled) -> Container {
    let spec = &target.spec;
    let policy = spec.image.as_ref().and_then(|image| image.pull_policy).unwrap_or(PullPolicy::IfNotPresent);
    let mut ports: Vec<_> =
        settled.ports.iter().map(|port| container_port(port.protocol, port.number)).collect();
    ports.push(container_port(names::ADMIN_PORT_NAME, names::ADMIN_PORT));
    Container {
        name: names::CONTAINER.to_owned(),
        image: Some(settled.image.reference()),
        image_pull_policy: Some(policy.as_str().to_owned()),
        command: Some(vec![BINARY.to_owned()]),
        args: Some(vec!["--config".to_owned(), config_file()]),
        ports: Some(ports),
        env: Some(environment(target)),
        env_from: spec.env_from.clone().filter(|sources| !sources.is_empty()),
        resources: spec.resources.clone(),
        // Recovery of a large volume takes its time: the process serves its admin port meanwhile, so
        // liveness may watch it from the start and readiness says when it is done.
        startup_probe: Some(probe("/livez", 1, 60)),
        readiness_probe: Some(probe("/readyz?scope=local", 2, 2)),
        liveness_probe: Some(probe("/livez", 10, 3)),
        lifecycle: Some(Lifecycle {
            pre_stop: Some(LifecycleHandler {
                exec: Some(ExecAction { command: Some(pre_stop_command()) }),
                ..LifecycleHandler::default()
            }),
            ..Lifecycle::default()
        }),
        security_context: Some(SecurityContext {
            allow_privilege_escalation: Some(false),
            read_only_root_filesystem: Some(true),
            capabilities: Some(Capabilities { drop: Some(vec!["ALL".to_owned()]), add: None }),
            ..SecurityContext::default()
        }),
        volume_mounts: Some(vec![
            VolumeMount {
                name: names::DATA_VOLUME.to_owned(),
                mount_path: names::DATA_DIR.to_owned(),
                ..VolumeMount::default()
            },
            VolumeMount {
                name: names::CONFIG_VOLUME.to_owned(),
                mount_path: names::CONFIG_DIR.to_owned(),
                read_only: Some(true),
                ..VolumeMount::default()
            },
        ]),
        ..Container::default()
    }
}

/// The pod's uid, so that a report says which pod it is of, and what the user set.
fn environment(target: &Target) -> Vec<EnvVar> {
    let uid = EnvVar {
        name: POD_UID.to_owned(),
        value_from: Some(EnvVarSource {
            field_ref: Some(ObjectFieldSelector {
                api_version: Some("v1".to_owned()),
                field_path: "metadata.uid".to_owned(),
            }),
            ..EnvVarSource::default()
        }),
        ..EnvVar::default()
    };
    let theirs = target.spec.env.clone().unwrap_or_default();
    std::iter::once(uid).chain(theirs.into_iter().filter(|variable| variable.name != POD_UID)).collect()
}

/// The variable in which a pod finds its uid.
const POD_UID: &str = "POD_UID";

/// Where the connector's binary lies in the image.
const BINARY: &str = "/berth-connector";

fn pre_stop_command() -> Vec<String> {
    [BINARY, "drain", "--prepare", "--config"].map(str::to_owned).into_iter().chain([config_file()]).collect()
}

fn container_port(name: &str, number: i32) -> ContainerPort {
    ContainerPort {
        name: Some(name.to_owned()),
        container_port: number,
        protocol: Some("TCP".to_owned()),
        ..ContainerPort::default()
    }
}

fn probe(path: &str, period_seconds: i32, failure_threshold: i32) -> Probe {
    Probe {
        http_get: Some(HTTPGetAction {
            path: Some(path.to_owned()),
            port: IntOrString::String(names::ADMIN_PORT_NAME.to_owned()),
            scheme: Some("HTTP".to_owned()),
            ..HTTPGetAction::default()
        }),
        period_seconds: Some(period_seconds),
        failure_threshold: Some(failure_threshold),
        success_threshold: Some(1),
        timeout_seconds: Some(2),
        ..Probe::default()
    }
}

/// Both files and the tokens in one volume, so that no mount lies inside another one that is read-only.
fn config_volume(target: &Target, settled: &Settled) -> Volume {
    let config_map = |name: String, key: &str| VolumeProjection {
        config_map: Some(ConfigMapProjection {
            name,
            items: Some(vec![item(key)]),
            ..ConfigMapProjection::default()
        }),
        ..VolumeProjection::default()
    };
    let tokens = super::config::TOKEN_KEYS.map(item).to_vec();
    Volume {
        name: names::CONFIG_VOLUME.to_owned(),
        projected: Some(ProjectedVolumeSource {
            default_mode: Some(0o440),
            sources: Some(vec![
                config_map(names::config_map(&target.name, &settled.config_hash), "config.yaml"),
                config_map(names::dynamic_config_map(&target.name), "dynamic.yaml"),
                VolumeProjection {
                    secret: Some(SecretProjection {
                        name: names::internal_secret(&target.name),
                        items: Some(tokens),
                        ..SecretProjection::default()
                    }),
                    ..VolumeProjection::default()
                },
            ]),
        }),
        ..Volume::default()
    }
}

fn item(key: &str) -> KeyToPath {
    KeyToPath { key: key.to_owned(), path: key.to_owned(), mode: None }
}

fn spread(target: &Target) -> Vec<TopologySpreadConstraint> {
    ["topology.kubernetes.io/zone", "kubernetes.io/hostname"]
        .map(|key| TopologySpreadConstraint {
            max_skew: 1,
            topology_key: key.to_owned(),
            when_unsatisfiable: "ScheduleAnyway".to_owned(),
            label_selector: Some(names::label_selector(target.kind, &target.name)),
            ..TopologySpreadConstraint::default()
        })
        .to_vec()
}
