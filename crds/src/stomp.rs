//! `StompConnector`: a connector whose clients speak STOMP 1.0, 1.1 or 1.2.

use crate::connector::ConnectorSpec;
use crate::status::ConnectorStatus;
use berth_config::Stomp;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a StompConnector is told.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema, CustomResource)]
#[expect(clippy::duplicated_attributes, reason = "each printer column has a type of its own")]
#[serde(rename_all = "camelCase")]
#[kube(
    group = "berth.dev",
    version = "v1alpha1",
    kind = "StompConnector",
    plural = "stompconnectors",
    shortname = "stompc",
    category = "berth",
    namespaced,
    status = "ConnectorStatus",
    derive = "PartialEq",
    doc = "Lets clients that speak STOMP 1.0, 1.1 or 1.2 run on Kubernetes: pods of stable identity with a \
           durable broker, a Service to connect to, and all around them. `spec: {}` is enough.",
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    printcolumn(
        name = "Desired",
        type_ = "integer",
        json_path = ".spec.replicas",
        description = "How many pods are wanted"
    ),
    printcolumn(
        name = "Ready",
        type_ = "integer",
        json_path = ".status.readyReplicas",
        description = "How many pods are ready"
    ),
    printcolumn(
        name = "Status",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].reason"#,
        description = "Why the connector is ready or not"
    ),
    printcolumn(
        name = "Broker",
        type_ = "string",
        json_path = ".status.broker",
        description = "Where messages are kept"
    ),
    printcolumn(
        name = "Endpoint",
        type_ = "string",
        json_path = ".status.endpoints[0].address",
        description = "Where clients connect",
        priority = 1
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
pub struct StompConnectorSpec {
    /// The part that every kind shares.
    #[serde(flatten)]
    pub common: ConnectorSpec,
    /// The STOMP listener. It always runs; every setting has a default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stomp: Option<Stomp>,
}
