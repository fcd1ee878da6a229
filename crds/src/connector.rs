//! The part of the specification that every kind of connector shares.
//!
//! Every field is optional: `spec: {}` gives a working connector. A field stands here only when something
//! honours it. The doc comments are what `kubectl explain` prints.

use crate::duration::Duration;
use berth_config::{Broker, Logging};
use k8s_openapi::api::core::v1::{
    Affinity, EnvFromSource, EnvVar, LocalObjectReference, ResourceRequirements, Toleration,
    TopologySpreadConstraint,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What every connector can be told, whatever protocol it speaks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConnectorSpec {
    /// How many pods run. 1 by default; 0 stops the connector and keeps its volume. The embedded broker
    /// lives in one pod, so with it only 0 and 1 are accepted. `kubectl scale` works.
    #[serde(default = "one_replica")]
    #[schemars(range(min = 0, max = 1000))]
    pub replicas: i32,
    /// The connector's image. By default the release that the operator had when the connector was made;
    /// it stays (see status.version) until this field or update.followOperator moves it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageSpec>,
    /// Where messages are kept. The embedded broker by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broker: Option<Broker>,
    /// The volume of each pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<StorageSpec>,
    /// The Service that clients connect to. It is named like the connector.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<ServiceSpec>,
    /// How pods are replaced when something they read at start has changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update: Option<UpdateSpec>,
    /// The budget that keeps a drain of nodes from taking more than one pod at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_disruption_budget: Option<PodDisruptionBudgetSpec>,
    /// Requests and limits of the connector's container. The connector bounds its memory by the limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,
    /// Labels a node must have to run the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("maxProperties" = 64))]
    pub node_selector: Option<BTreeMap<String, String>>,
    /// Taints of nodes that the pods tolerate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub tolerations: Option<Vec<Toleration>>,
    /// Rules about which nodes and neighbours the pods want.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity: Option<Affinity>,
    /// How the pods are spread. By default over zones and hosts, where that can be had; an empty list
    /// turns that off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub topology_spread_constraints: Option<Vec<TopologySpreadConstraint>>,
    /// The priority class of the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub priority_class_name: Option<String>,
    /// A ServiceAccount of yours to run the pods under. By default the operator makes one, named like the
    /// connector.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub service_account_name: Option<String>,
    /// Labels to add to the pods. Labels under app.kubernetes.io/ and berth.dev/ are the operator's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("maxProperties" = 64))]
    pub pod_labels: Option<BTreeMap<String, String>>,
    /// Annotations to add to the pods. Annotations under berth.dev/ are the operator's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("maxProperties" = 64))]
    pub pod_annotations: Option<BTreeMap<String, String>>,
    /// Environment variables of the connector. BERTH_<KEY> overrides that key of its configuration file,
    /// with __ between levels: BERTH_STOMP__MAX_CONNECTIONS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub env: Option<Vec<EnvVar>>,
    /// Sources of environment variables of the connector.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub env_from: Option<Vec<EnvFromSource>>,
    /// A pod template merged over the operator's: for sidecars, more volumes, another security context.
    /// Its form is that of a StatefulSet's spec.template; the connector's container is called berth.
    /// Fields that the operator owns are refused with reason InvalidPodTemplate, which names them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "any_object")]
    pub pod_template: Option<serde_json::Value>,
    /// What the connector logs. A new level is taken up without a restart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logging: Option<Logging>,
    /// Stops all pods and remembers replicas. Volumes and their messages stay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspend: Option<bool>,
}

/// Which image the pods run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImageSpec {
    /// The repository without a tag, as in registry.example.com/team/berth. By default the operator's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 255))]
    pub repository: Option<String>,
    /// The tag. By default the pinned version, see status.version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128), regex(pattern = r"^[A-Za-z0-9_][A-Za-z0-9._-]*$"))]
    pub tag: Option<String>,
    /// The digest, as in sha256:5f0e…; it wins over the tag.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 135), regex(pattern = r"^sha(256|512):[0-9a-f]{64,128}$"))]
    pub digest: Option<String>,
    /// When the node pulls the image. IfNotPresent by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pull_policy: Option<PullPolicy>,
    /// Secrets of type kubernetes.io/dockerconfigjson in this namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub pull_secrets: Option<Vec<LocalObjectReference>>,
}

/// When a node pulls the image. IfNotPresent by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PullPolicy {
    /// At every start of a container.
    Always,
    /// When the node has no copy.
    IfNotPresent,
    /// Never: the image has to be there.
    Never,
}

impl PullPolicy {
    /// The word Kubernetes uses.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Always => "Always",
            Self::IfNotPresent => "IfNotPresent",
            Self::Never => "Never",
        }
    }
}

/// The volume of each pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StorageSpec {
    /// The size, 1Gi by default. It may grow at any time, when the storage class can; it never shrinks
    /// below what the volumes already have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(max = 24),
        regex(pattern = r"^(0\.[0-9]+|[1-9][0-9]*(\.[0-9]+)?)(k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$")
    )]
    pub size: Option<String>,
    /// The storage class; by default the cluster's. It cannot be changed later, set or unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub storage_class_name: Option<String>,
    /// What becomes of the volumes when the connector is deleted. Retain (the default) keeps them, and a
    /// connector of the same name finds its messages again; Delete removes them with all messages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when_deleted: Option<WhenDeleted>,
}

/// What becomes of the volumes when the connector is deleted. Retain (the default) keeps them, and a
/// connector of the same name finds its messages again; Delete removes them with all messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum WhenDeleted {
    /// They stay.
    #[default]
    Retain,
    /// They go, with all that is in them.
    Delete,
}

impl WhenDeleted {
    /// The word Kubernetes uses.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Retain => "Retain",
            Self::Delete => "Delete",
        }
    }
}

/// The Service that clients connect to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServiceSpec {
    /// ClusterIP (the default), NodePort or LoadBalancer.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub type_: Option<ServiceType>,
    /// Annotations of the Service, for example for a cloud's load balancer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("maxProperties" = 64))]
    pub annotations: Option<BTreeMap<String, String>>,
    /// Whether the Service has one address family or two. The cluster's default when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ip_family_policy: Option<IpFamilyPolicy>,
    /// Local keeps the client's address and refuses nodes without a pod; Cluster is the default. Only for
    /// NodePort and LoadBalancer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external_traffic_policy: Option<ExternalTrafficPolicy>,
    /// Address ranges that may use the load balancer, as in 10.0.0.0/8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub load_balancer_source_ranges: Option<Vec<String>>,
    /// ClientIP (the default) keeps all connections of one client on one pod; None spreads them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_affinity: Option<SessionAffinity>,
}

/// Who reaches the Service. ClusterIP (the default): clients in the cluster; NodePort: also those that
/// reach a node; LoadBalancer: also those that reach the load balancer of the cluster's provider.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ServiceType {
    /// Reached inside the cluster.
    #[default]
    ClusterIP,
    /// Reached on a port of every node too.
    NodePort,
    /// Reached through the cloud's load balancer too.
    LoadBalancer,
}

impl ServiceType {
    /// The word Kubernetes uses.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ClusterIP => "ClusterIP",
            Self::NodePort => "NodePort",
            Self::LoadBalancer => "LoadBalancer",
        }
    }
}

/// Whether the Service has one address family or two. By default what the cluster does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum IpFamilyPolicy {
    /// One family.
    SingleStack,
    /// Two where the cluster has two.
    PreferDualStack,
    /// Two, or none at all.
    RequireDualStack,
}

impl IpFamilyPolicy {
    /// The word Kubernetes uses.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::SingleStack => "SingleStack",
            Self::PreferDualStack => "PreferDualStack",
            Self::RequireDualStack => "RequireDualStack",
        }
    }
}

/// Cluster (the default) spreads traffic from outside over all pods; Local keeps the client's address and
/// serves only on nodes that have a pod. Only for NodePort and LoadBalancer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ExternalTrafficPolicy {
    /// Over all nodes.
    Cluster,
    /// Only to pods on the node it came to.
    Local,
}

impl ExternalTrafficPolicy {
    /// The word Kubernetes uses.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Cluster => "Cluster",
            Self::Local => "Local",
        }
    }
}

/// ClientIP (the default) keeps all connections of one client on one pod; None spreads them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SessionAffinity {
    /// By the client's address.
    #[default]
    ClientIP,
    /// Connections are spread.
    None,
}

impl SessionAffinity {
    /// The word Kubernetes uses.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ClientIP => "ClientIP",
            Self::None => "None",
        }
    }
}

/// How pods are replaced.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UpdateSpec {
    /// How long a new pod has to be Ready before the next one is replaced, in seconds. 0 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 3600))]
    pub min_ready_seconds: Option<i32>,
    /// How long a pod that is asked to stop may take to let its clients finish, as in 20s (the default)
    /// or 5m. Kubernetes ends the pod 10 s later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain_timeout: Option<Duration>,
    /// Whether the pods move to the operator's release whenever the operator is upgraded. false by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follow_operator: Option<bool>,
}

/// The pod disruption budget.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodDisruptionBudgetSpec {
    /// Whether there is one: at most one pod away, pods that are not Ready may always be evicted. true by
    /// default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
}

fn one_replica() -> i32 {
    1
}

fn any_object(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true })
}
