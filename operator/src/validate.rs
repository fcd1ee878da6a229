//! From a specification to settled values: every default filled in, everything that cannot work refused.
//!
//! Pure. What the API server refuses by itself (see `berth_crds::rules`) is refused here too, since a
//! stored object may be older than a rule.

use crate::names::{ADMIN_PORT, ADMIN_PORT_NAME, CONFIG_DIR, DATA_DIR};
use crate::target::Target;
use berth_config::{Admin, Broker, Config, Dynamic, LogFormat, Logging};
use berth_crds::connector::{ConnectorSpec, ImageSpec};
use berth_crds::{Reason, STORAGE_SIZE_DEFAULT};
use k8s_openapi::api::core::v1::PodTemplateSpec;
use sha2::{Digest, Sha256};
use std::fmt::Write as _;

/// An image: repository and version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// As in `registry.example.com/berth`.
    pub repository: String,
    /// A tag, or a digest with its algorithm.
    pub version: String,
}

impl Image {
    /// Takes a reference apart; without a tag and a digest the version is `latest`.
    #[must_use]
    pub fn parse(reference: &str) -> Self {
        if let Some((repository, digest)) = reference.split_once('@') {
            // A tag before a digest says nothing that the digest does not.
            let repository = split_tag(repository).0;
            return Self { repository: repository.to_owned(), version: digest.to_owned() };
        }
        let (repository, tag) = split_tag(reference);
        Self { repository: repository.to_owned(), version: tag.unwrap_or("latest").to_owned() }
    }

    /// The reference that a pod names.
    #[must_use]
    pub fn reference(&self) -> String {
        let separator = if self.version.contains(':') { '@' } else { ':' };
        format!("{}{separator}{}", self.repository, self.version)
    }
}

/// A colon after the last slash starts a tag; one before it belongs to a port.
fn split_tag(reference: &str) -> (&str, Option<&str>) {
    match reference.rsplit_once(':') {
        Some((repository, tag)) if !tag.contains('/') => (repository, Some(tag)),
        _ => (reference, None),
    }
}

/// A port of the connector that clients use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientPort {
    /// The protocol; also the name of the port in pods and Services.
    pub protocol: &'static str,
    /// The number.
    pub number: i32,
}

/// Everything about a connector that building needs, settled.
#[derive(Clone, Debug)]
pub struct Settled {
    /// What the pods run.
    pub image: Image,
    /// How many pods are wanted: 0 when suspended.
    pub replicas: i32,
    /// The size of each volume, as written.
    pub storage_size: String,
    /// Seconds from SIGTERM to the end of the connector.
    pub drain_seconds: u32,
    /// Where clients connect.
    pub ports: Vec<ClientPort>,
    /// The text of `config.yaml`.
    pub config_yaml: String,
    /// The text of `dynamic.yaml`.
    pub dynamic_yaml: String,
    /// Ten hexadecimal digits of the hash of `config_yaml`.
    pub config_hash: String,
    /// The user's pod template, decoded.
    pub pod_template: Option<PodTemplateSpec>,
}

/// A specification that cannot be carried out until a person changes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalid {
    /// `InvalidSpec` or `InvalidPodTemplate`.
    pub reason: Reason,
    /// What to change.
    pub message: String,
}

impl Invalid {
    fn spec(message: impl Into<String>) -> Self {
        Self { reason: Reason::InvalidSpec, message: message.into() }
    }
}

/// Settles a specification.
///
/// `release` is the operator's own image; `live` the image that the StatefulSet runs, when there is one.
///
/// # Errors
/// What a person has to change.
pub fn settle(target: &Target, release: &Image, live: Option<&Image>) -> Result<Settled, Invalid> {
    let spec = &target.spec;
    if spec.replicas < 0 {
        return Err(Invalid::spec("replicas is negative: set it to 0 or more"));
    }
    if spec.replicas > 1 {
        return Err(Invalid::spec("the embedded broker lives in one pod: set replicas to 0 or 1"));
    }
    if spec.broker.as_ref().is_some_and(|broker| broker.embedded.is_none()) {
        return Err(Invalid::spec("broker names none: name exactly one, embedded"));
    }
    let storage_size = spec.storage.as_ref().and_then(|storage| storage.size.clone());
    let storage_size = storage_size.unwrap_or_else(|| STORAGE_SIZE_DEFAULT.to_owned());
    if crate::quantity::milli(&storage_size).is_none_or(|size| size <= 0) {
        return Err(Invalid::spec(format!("storage.size {storage_size:?} is no size: write it as in 1Gi")));
    }
    let ports = client_ports(target)?;
    let drain_seconds = drain_seconds(spec)?;
    let config_yaml = config_yaml(target, drain_seconds);
    Ok(Settled {
        image: image(spec, target.status.version.as_deref(), release, live),
        replicas: if spec.suspend == Some(true) { 0 } else { spec.replicas },
        storage_size,
        drain_seconds,
        ports,
        config_hash: hash10(&config_yaml),
        config_yaml,
        dynamic_yaml: dynamic_yaml(spec),
        pod_template: spec.pod_template.as_ref().map(crate::build::template::decode).transpose()?,
    })
}

/// What a connector gets to drain when the spec says nothing, in seconds.
pub const DRAIN_SECONDS_DEFAULT: u32 = 20;
/// The longest drain, in seconds.
pub const DRAIN_SECONDS_MAX: u32 = 3600;
const STOMP_PORT_DEFAULT: i32 = 61613;

fn drain_seconds(spec: &ConnectorSpec) -> Result<u32, Invalid> {
    let asked = spec.update.as_ref().and_then(|update| update.drain_timeout);
    let seconds = asked.map_or(DRAIN_SECONDS_DEFAULT, berth_crds::duration::Duration::seconds);
    if (1..=DRAIN_SECONDS_MAX).contains(&seconds) {
        return Ok(seconds);
    }
    Err(Invalid::spec(format!("update.drainTimeout is {seconds} s: set it between 1s and 1h")))
}

fn client_ports(target: &Target) -> Result<Vec<ClientPort>, Invalid> {
    let mut ports = Vec::new();
    if let Some(stomp) = &target.stomp {
        let number = match stomp.port {
            None => STOMP_PORT_DEFAULT,
            Some(port) => i32::try_from(port)
                .ok()
                .filter(|port| (1..=65_535).contains(port))
                .ok_or_else(|| Invalid::spec(format!("stomp.port {port} is no port: set 1 to 65535")))?,
        };
        ports.push(ClientPort { protocol: "stomp", number });
    }
    if let Some(port) = ports.iter().find(|port| port.number == ADMIN_PORT) {
        let protocol = port.protocol;
        return Err(Invalid::spec(format!(
            "{protocol}.port {ADMIN_PORT} is taken by the port {ADMIN_PORT_NAME} of every pod: choose another"
        )));
    }
    Ok(ports)
}

/// The pin: the status says it, else the running pods do, else it is the operator's release.
fn image(spec: &ConnectorSpec, pinned: Option<&str>, release: &Image, live: Option<&Image>) -> Image {
    let asked = spec.image.clone().unwrap_or_default();
    let ImageSpec { repository, tag, digest, .. } = asked;
    let follows = spec.update.as_ref().and_then(|update| update.follow_operator) == Some(true);
    let pin = if follows { None } else { pinned.or_else(|| live.map(|image| image.version.as_str())) };
    let version = digest.or(tag).unwrap_or_else(|| pin.unwrap_or(&release.version).to_owned());
    Image { repository: repository.unwrap_or_else(|| release.repository.clone()), version }
}

/// Only keys that the user set and those that the cluster decides, so that an older connector can read
/// the file of a newer operator.
fn config_yaml(target: &Target, drain_seconds: u32) -> String {
    let spec = &target.spec;
    let format = spec.logging.as_ref().and_then(|logging| logging.format).unwrap_or(LogFormat::Json);
    let config = Config {
        data_dir: Some(DATA_DIR.to_owned()),
        drain_timeout_seconds: Some(i64::from(drain_seconds)),
        broker: spec.broker.clone().filter(|broker| *broker != Broker::default()),
        admin: Some(Admin { address: Some(format!("[::]:{ADMIN_PORT}")) }),
        stomp: target.stomp.clone().map(|mut stomp| {
            stomp.address = Some("[::]".to_owned());
            stomp
        }),
        logging: Some(Logging { level: None, format: Some(format) }),
        ..Config::default()
    };
    yaml(&config)
}

fn dynamic_yaml(spec: &ConnectorSpec) -> String {
    let level = spec.logging.as_ref().and_then(|logging| logging.level);
    let logging = level.map(|level| Logging { level: Some(level), format: None });
    yaml(&Dynamic { logging })
}

fn yaml(value: &impl serde::Serialize) -> String {
    serde_yaml::to_string(value).expect("the types of the configuration are plain data")
}

/// The first ten hexadecimal digits of the SHA-256 of a text.
#[must_use]
pub fn hash10(text: &str) -> String {
    let mut out = String::with_capacity(10);
    for byte in Sha256::digest(text.as_bytes()).iter().take(5) {
        write!(out, "{byte:02x}").expect("a String takes every write");
    }
    out
}

/// The directory of the configuration in a pod, for messages.
#[must_use]
pub fn config_file() -> String {
    format!("{CONFIG_DIR}/config.yaml")
}

#[cfg(test)]
pub(crate) mod tests;
