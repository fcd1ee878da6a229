//! The custom resources of `berth.dev/v1alpha1` as Rust types, and their definitions as YAML.
//!
//! Not here: any talk with an API server. The operator and the connector depend on this crate for the types;
//! `cargo run -p berth-crds` writes the definitions to `crds/yaml/` and into the chart, and a test fails when
//! those files and the types differ.
//!
//! A definition is what the derive macros make of the types, plus what they cannot say: the CEL rules and the
//! bounds that keep them within the API server's cost budget ([`rules`]).

pub mod conditions;
pub mod connector;
pub mod definition;
pub mod duration;
pub mod rules;
pub mod status;
pub mod stomp;

pub use conditions::{ConditionType, Reason};
pub use connector::ConnectorSpec;
pub use definition::definitions;
pub use status::ConnectorStatus;
pub use stomp::{StompConnector, StompConnectorSpec};

/// The API group of every resource, and the prefix of the project's labels and annotations.
pub const GROUP: &str = "berth.dev";
/// The only version there is.
pub const VERSION: &str = "v1alpha1";

/// `"true"` on a connector: the operator changes nothing and only keeps the status fresh.
pub const PAUSED_ANNOTATION: &str = "berth.dev/paused";
/// Any new value on a connector restarts its pods, one at a time.
pub const RESTARTED_AT_ANNOTATION: &str = "berth.dev/restartedAt";

/// The longest name a connector may have, in characters: it names Services and pods.
pub const CONNECTOR_NAME_MAX: usize = 40;
/// The size of a volume when the spec names none.
pub const STORAGE_SIZE_DEFAULT: &str = "1Gi";
