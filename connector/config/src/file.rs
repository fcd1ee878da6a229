//! `config.yaml` and `dynamic.yaml` as types: every key optional, only what was set is written.
//!
//! The operator fills and serialises them, the connector reads them. Numbers are plain 64-bit integers here:
//! whether one is in its range is for [`crate::load`] to say, in words that name the key. A schema has the
//! ranges too.

use serde::{Deserialize, Serialize};

/// `config.yaml`: read at start.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Config {
    /// Stable name of this node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Folder of the embedded broker's data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_dir: Option<String>,
    /// Seconds from SIGTERM to the end of the process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain_timeout_seconds: Option<i64>,
    /// Bounds of the process as a whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
    /// Which broker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broker: Option<Broker>,
    /// The admin port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admin: Option<Admin>,
    /// The STOMP listener; it runs when this section is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stomp: Option<Stomp>,
    /// What is logged, and how.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logging: Option<Logging>,
}

/// `dynamic.yaml`: read again whenever its content changes. A key in it wins over the same key of
/// `config.yaml`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Dynamic {
    /// Only `level` may stand here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logging: Option<Logging>,
}

/// Bounds of the process as a whole.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Limits {
    /// Memory for what clients hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_memory: Option<Size>,
}

/// A number of bytes as it was written.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Size {
    /// Plain.
    Bytes(u64),
    /// With a unit, or `auto`.
    Text(String),
}

/// Exactly one broker; the embedded one when nothing is said.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Broker {
    /// The broker inside the connector.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub embedded: Option<Embedded>,
}

/// The broker inside the connector.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Embedded {
    /// When a stored message counts as durable: `always` (synced before it is confirmed), `interval` (synced
    /// within 10 ms), `never` (left to the system).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fsync: Option<Fsync>,
}

/// When a stored message counts as durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Fsync {
    /// Synced before it is confirmed; many messages share one sync.
    #[default]
    Always,
    /// Written before it is confirmed, synced at most 10 ms later.
    Interval,
    /// Written before it is confirmed; when it is synced is left to the system.
    Never,
}

/// The admin port: probes, metrics, API.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Admin {
    /// IP address and port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
}

/// What is logged, and how.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Logging {
    /// The least severe events that are logged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub level: Option<LogLevel>,
    /// One line of text or one JSON object per event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<LogFormat>,
}

/// The least severe events that are logged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// Something failed and a person must act.
    Error,
    /// Something is wrong and goes on being served.
    Warn,
    /// What the process does.
    #[default]
    Info,
    /// What each connection does.
    Debug,
    /// Everything.
    Trace,
}

/// How an event is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// One line for people.
    #[default]
    Text,
    /// One JSON object for programs.
    Json,
}

/// The STOMP listener.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Stomp {
    /// IP address to listen on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(max = 45)))]
    pub address: Option<String>,
    /// TCP port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 0, max = 65_535)))]
    pub port: Option<i64>,
    /// What a destination without a leading `/` means.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_pattern: Option<DefaultPattern>,
    /// Messages that an `auto` subscription holds in its output buffer, and the prefetch limit of client
    /// modes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 10_000)))]
    pub subscription_buffer: Option<i64>,
    /// Connections at one time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 1_000_000)))]
    pub max_connections: Option<i64>,
    /// Bytes of one message's body.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 120_000_000)))]
    pub max_body_size: Option<i64>,
    /// Bytes of one header line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 128, max = 1_048_576)))]
    pub max_header_line: Option<i64>,
    /// Header lines of one frame.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 10, max = 10_000)))]
    pub max_headers: Option<i64>,
    /// Heart-beat period in milliseconds that the server offers and asks for; 0 turns it off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 0, max = 3_600_000)))]
    pub heartbeat_ms: Option<i64>,
    /// Seconds in which a client must have sent CONNECT.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 3_600)))]
    pub connect_timeout_seconds: Option<i64>,
    /// Seconds after which a peer that takes no byte is closed; 0 turns it off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 0, max = 86_400)))]
    pub write_timeout_seconds: Option<i64>,
    /// Seconds in which a queue message must be acknowledged before it is delivered again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 604_800)))]
    pub queue_ack_timeout_seconds: Option<i64>,
    /// Subscriptions of one connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 65_536)))]
    pub max_subscriptions: Option<i64>,
    /// Whether MESSAGE frames carry `delivery-count`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivery_count_header: Option<bool>,
}

/// What a STOMP destination without a leading `/` means.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum DefaultPattern {
    /// It is refused.
    #[default]
    None,
    /// A queue.
    Queues,
}

#[cfg(all(test, feature = "schema"))]
mod tests {
    use super::*;
    use crate::keys::{KEYS, Kind};

    #[test]
    fn the_schema_has_the_ranges_of_the_keys() {
        let schema = serde_json::to_value(schemars::schema_for!(Stomp)).unwrap();
        for key in KEYS {
            let Some(name) = key.path.strip_prefix("stomp.") else { continue };
            let property = &schema["properties"][name];
            assert!(property.is_object(), "{name}");
            if let Kind::Integer { min, max, .. } = key.kind {
                assert_eq!(property["minimum"].as_i64(), Some(min), "{name}: {property}");
                assert_eq!(property["maximum"].as_i64(), Some(max), "{name}: {property}");
                assert_eq!(property["format"], "int64", "{name}");
            }
        }
    }
}
