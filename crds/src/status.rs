//! What the operator reports about a connector.
//!
//! Nothing here ticks: a status that is computed twice from the same cluster is the same, so that writing
//! it only when it differs writes nothing in the steady state.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The state of a connector, as the operator last saw it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConnectorStatus {
    /// The generation of the specification that this status answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// How many pods there are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// How many of them are ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_replicas: Option<i32>,
    /// How many of them run the current template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub updated_replicas: Option<i32>,
    /// The label selector of the pods, for kubectl scale and autoscalers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// The image version that the pods run or move to: a tag, or a digest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The broker in effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broker: Option<String>,
    /// Where clients connect, one entry for each protocol.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoints: Option<Vec<Endpoint>>,
    /// The volumes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<StorageStatus>,
    /// What is true of the connector; docs/operations/conditions.md explains every reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conditions: Option<Vec<Condition>>,
}

/// An address for clients.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Endpoint {
    /// The protocol, as in stomp.
    pub protocol: String,
    /// host:port.
    pub address: String,
}

/// The state of the volumes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StorageStatus {
    /// The size asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested: Option<String>,
    /// What every volume has at least, never more than what is asked for: spec.storage.size cannot go
    /// below it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<String>,
    /// Where the volumes stand.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<StoragePhase>,
}

/// Where the volumes stand. Growing and Recreating pass by themselves; Refused waits for a storage class
/// that can grow, or for a smaller size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum StoragePhase {
    /// There is none yet, or one waits to be bound.
    Pending,
    /// All have the size asked for.
    Bound,
    /// Some are growing.
    Growing,
    /// The StatefulSet is being made anew with the new size.
    Recreating,
    /// A larger size was refused.
    Refused,
}
