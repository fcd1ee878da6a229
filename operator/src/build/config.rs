//! What pods read: the two configuration files, and the tokens between operator and pods.

use super::{Child, finish, metadata};
use crate::cluster::Kind;
use crate::names;
use crate::target::Target;
use crate::validate::Settled;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// `config.yaml`, immutable and named after its content: a pod that has not been replaced yet never reads
/// the next configuration.
pub(super) fn config_map(target: &Target, settled: &Settled) -> ConfigMap {
    ConfigMap {
        metadata: metadata(target, names::config_map(&target.name, &settled.config_hash), "config"),
        data: Some(BTreeMap::from([("config.yaml".to_owned(), settled.config_yaml.clone())])),
        immutable: Some(true),
        ..ConfigMap::default()
    }
}

/// `dynamic.yaml`, which pods read again when it changes.
pub(super) fn dynamic_config_map(target: &Target, settled: &Settled) -> ConfigMap {
    ConfigMap {
        metadata: metadata(target, names::dynamic_config_map(&target.name), "dynamic-config"),
        data: Some(BTreeMap::from([("dynamic.yaml".to_owned(), settled.dynamic_yaml.clone())])),
        ..ConfigMap::default()
    }
}

/// The keys of the internal Secret: for the admin port, and for pods among themselves.
pub(super) const TOKEN_KEYS: [&str; 2] = ["adminToken", "peerToken"];

/// The internal Secret with new tokens; made once and never again while it is there. `random` gives 32
/// bytes each.
#[must_use]
pub fn internal_secret(target: &Target, mut random: impl FnMut() -> [u8; 32]) -> Child {
    let data = TOKEN_KEYS.into_iter().map(|key| (key.to_owned(), ByteString(hex(&random()).into_bytes())));
    let secret = Secret {
        metadata: metadata(target, names::internal_secret(&target.name), "internal"),
        type_: Some("Opaque".to_owned()),
        data: Some(data.collect()),
        ..Secret::default()
    };
    let body = serde_json::to_value(&secret).expect("API types are plain data");
    finish(Kind::Secret, body, &target.namespace)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut out, byte| {
        write!(out, "{byte:02x}").expect("a String takes every write");
        out
    })
}
