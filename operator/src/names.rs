//! Names, labels and annotations of a connector's children: the one place that knows them.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use std::collections::BTreeMap;

/// Value of `app.kubernetes.io/managed-by` on everything the operator makes.
pub const MANAGED_BY: &str = "berth-operator";
/// Label with the kind of the connector.
pub const KIND_LABEL: &str = "berth.dev/kind";
/// Label with the name of the connector.
pub const INSTANCE_LABEL: &str = "app.kubernetes.io/instance";
/// Label with [`MANAGED_BY`].
pub const MANAGED_BY_LABEL: &str = "app.kubernetes.io/managed-by";
/// Label that tells the parts of one connector apart.
pub const COMPONENT_LABEL: &str = "app.kubernetes.io/component";
/// Annotation with the hash of what was last applied to a child.
pub const APPLIED_HASH_ANNOTATION: &str = "berth.dev/applied-hash";
/// Pod label that the StatefulSet controller sets.
pub const REVISION_LABEL: &str = "controller-revision-hash";

/// Name of the connector's container.
pub const CONTAINER: &str = "berth";
/// Name of the volume claim template; claims are `data-<pod>`.
pub const DATA_VOLUME: &str = "data";
/// Name of the volume with the configuration and the internal Secret.
pub const CONFIG_VOLUME: &str = "config";
/// Where [`CONFIG_VOLUME`] is mounted.
pub const CONFIG_DIR: &str = "/etc/berth";
/// Where the data volume is mounted.
pub const DATA_DIR: &str = "/var/lib/berth";
/// Name of the admin port in pods and Services.
pub const ADMIN_PORT_NAME: &str = "admin";
/// The admin port of a connector's pod.
pub const ADMIN_PORT: i32 = 9090;
/// Prefix of labels and annotations that are the project's.
pub const PREFIX: &str = "berth.dev/";

/// The StatefulSet, the client Service, the ServiceAccount and the budget are named like the connector.
#[must_use]
pub fn headless_service(connector: &str) -> String {
    format!("{connector}-headless")
}

/// The Secret with the tokens between operator and pods.
#[must_use]
pub fn internal_secret(connector: &str) -> String {
    format!("{connector}-internal")
}

/// The immutable ConfigMap with this `config.yaml`.
#[must_use]
pub fn config_map(connector: &str, hash: &str) -> String {
    format!("{connector}-config-{hash}")
}

/// The ConfigMap with `dynamic.yaml`.
#[must_use]
pub fn dynamic_config_map(connector: &str) -> String {
    format!("{connector}-dynamic")
}

/// The volume claim of a pod.
#[must_use]
pub fn claim(connector: &str, ordinal: u32) -> String {
    format!("{DATA_VOLUME}-{connector}-{ordinal}")
}

/// The ordinal in the name of a pod or a claim of this connector.
#[must_use]
pub fn ordinal_of(connector: &str, name: &str) -> Option<u32> {
    let of_pod = |name: &str| name.strip_prefix(connector)?.strip_prefix('-')?.parse().ok();
    of_pod(name).or_else(|| of_pod(name.strip_prefix(DATA_VOLUME)?.strip_prefix('-')?))
}

/// The labels that select a connector's pods; they never change, since selectors cannot.
#[must_use]
pub fn selector_labels(kind: &str, connector: &str) -> BTreeMap<String, String> {
    BTreeMap::from([
        ("app.kubernetes.io/name".to_owned(), "berth".to_owned()),
        (INSTANCE_LABEL.to_owned(), connector.to_owned()),
        (KIND_LABEL.to_owned(), kind.to_owned()),
    ])
}

/// The labels of every child.
#[must_use]
pub fn labels(kind: &str, connector: &str) -> BTreeMap<String, String> {
    let mut labels = selector_labels(kind, connector);
    labels.insert(MANAGED_BY_LABEL.to_owned(), MANAGED_BY.to_owned());
    labels.insert("app.kubernetes.io/part-of".to_owned(), "berth".to_owned());
    labels
}

/// [`selector_labels`] as a selector of the API.
#[must_use]
pub fn label_selector(kind: &str, connector: &str) -> LabelSelector {
    LabelSelector { match_labels: Some(selector_labels(kind, connector)), match_expressions: None }
}

/// [`selector_labels`] as text, for lists and for the scale subresource.
#[must_use]
pub fn selector_text(kind: &str, connector: &str) -> String {
    let pairs = selector_labels(kind, connector);
    pairs.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinals_are_read_from_pods_and_claims() {
        assert_eq!(ordinal_of("orders", "orders-3"), Some(3));
        assert_eq!(ordinal_of("orders", "data-orders-12"), Some(12));
        assert_eq!(ordinal_of("data", "data-data-1"), Some(1));
        assert_eq!(ordinal_of("data", "data-1"), Some(1));
        assert_eq!(ordinal_of("orders", "orders-eu-0"), None);
        assert_eq!(ordinal_of("orders", "other-0"), None);
    }

    #[test]
    fn names_fit_the_limits_of_kubernetes() {
        let longest = "a".repeat(berth_crds::CONNECTOR_NAME_MAX);
        for name in [
            headless_service(&longest),
            internal_secret(&longest),
            config_map(&longest, "0123456789"),
            dynamic_config_map(&longest),
        ] {
            assert!(name.len() <= 63, "{name}");
        }
        // The pods' controller-revision-hash is <StatefulSet>-<10 characters>.
        assert!(longest.len() + 11 <= 63);
    }
}
