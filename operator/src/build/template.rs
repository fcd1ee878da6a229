//! The user's pod template: decoded, checked against the fields that are the operator's, merged over ours.
//!
//! The fields in [`OWNED_POD_FIELDS`] and [`OWNED_CONTAINER_FIELDS`] are a closed list: the operator's
//! promises (stable identity, drain, probes, the configuration in effect) hang on them.

use crate::names::{CONFIG_DIR, CONFIG_VOLUME, CONTAINER, DATA_DIR, DATA_VOLUME, PREFIX};
use crate::validate::Invalid;
use berth_crds::Reason;
use k8s_openapi::api::core::v1::PodTemplateSpec;
use serde_json::Value;

/// Fields of `spec.podTemplate.spec` that are the operator's, and where they are set instead.
pub const OWNED_POD_FIELDS: &[(&str, &str)] = &[
    ("hostname", "pods are named after the connector"),
    ("subdomain", "pods are named after the connector"),
    ("nodeName", "set nodeSelector or affinity"),
    ("restartPolicy", "a StatefulSet always restarts"),
    ("terminationGracePeriodSeconds", "set update.drainTimeout"),
    ("serviceAccountName", "set serviceAccountName"),
    ("serviceAccount", "set serviceAccountName"),
    ("imagePullSecrets", "set image.pullSecrets"),
    ("nodeSelector", "set nodeSelector"),
    ("tolerations", "set tolerations"),
    ("affinity", "set affinity"),
    ("topologySpreadConstraints", "set topologySpreadConstraints"),
    ("priorityClassName", "set priorityClassName"),
];

/// Fields of the container `berth` that are the operator's, and where they are set instead.
pub const OWNED_CONTAINER_FIELDS: &[(&str, &str)] = &[
    ("image", "set image"),
    ("imagePullPolicy", "set image.pullPolicy"),
    ("command", "the operator starts the connector"),
    ("args", "the operator starts the connector"),
    ("workingDir", "the operator starts the connector"),
    ("ports", "set the ports of the protocols"),
    ("env", "set env"),
    ("envFrom", "set envFrom"),
    ("resources", "set resources"),
    ("startupProbe", "the operator watches the connector"),
    ("readinessProbe", "the operator watches the connector"),
    ("livenessProbe", "the operator watches the connector"),
    ("lifecycle", "set update.drainTimeout"),
];

/// Decodes a pod template and refuses what is the operator's.
///
/// # Errors
/// The first field that may not be set, or that no pod template has.
pub fn decode(value: &Value) -> Result<PodTemplateSpec, Invalid> {
    let template: PodTemplateSpec = serde_json::from_value(value.clone())
        .map_err(|error| invalid(format!("podTemplate is no pod template: {error}")))?;
    let understood = serde_json::to_value(&template).expect("API types are plain data");
    if let Some(path) = unknown("podTemplate", value, &understood) {
        return Err(invalid(format!("{path} is no field of a pod template: correct or remove it")));
    }
    check_metadata(value)?;
    let spec = &value["spec"];
    owned("podTemplate.spec", spec, OWNED_POD_FIELDS)?;
    let containers = spec["containers"].as_array().map(Vec::as_slice).unwrap_or_default();
    for container in containers.iter().filter(|container| container["name"] == CONTAINER) {
        owned(&format!("podTemplate.spec.containers[{CONTAINER}]"), container, OWNED_CONTAINER_FIELDS)?;
        for mount in container["volumeMounts"].as_array().map(Vec::as_slice).unwrap_or_default() {
            let path = mount["mountPath"].as_str().unwrap_or_default();
            if [CONFIG_DIR, DATA_DIR].iter().any(|own| path == *own || path.starts_with(&format!("{own}/"))) {
                return Err(invalid(format!("the mount path {path} is the operator's: choose another")));
            }
        }
    }
    for volume in spec["volumes"].as_array().map(Vec::as_slice).unwrap_or_default() {
        if [CONFIG_VOLUME, DATA_VOLUME].iter().any(|own| volume["name"] == *own) {
            return Err(invalid(format!(
                "the volume name {} is the operator's: choose another",
                volume["name"]
            )));
        }
    }
    Ok(template)
}

/// Whether a label or annotation is the operator's.
#[must_use]
pub fn is_reserved_key(key: &str) -> bool {
    key.starts_with(PREFIX) || key.starts_with("app.kubernetes.io/")
}

fn check_metadata(value: &Value) -> Result<(), Invalid> {
    let Some(metadata) = value["metadata"].as_object() else { return Ok(()) };
    for (name, inner) in metadata {
        if !["labels", "annotations"].contains(&name.as_str()) {
            return Err(invalid(format!("podTemplate.metadata.{name} is the operator's: remove it")));
        }
        for key in inner.as_object().into_iter().flat_map(|map| map.keys()) {
            if is_reserved_key(key) {
                return Err(invalid(format!(
                    "podTemplate.metadata.{name}[{key}] is the operator's: remove it"
                )));
            }
        }
    }
    Ok(())
}

fn owned(path: &str, value: &Value, fields: &[(&str, &str)]) -> Result<(), Invalid> {
    match fields.iter().find(|(name, _)| value.get(name).is_some_and(|inner| !inner.is_null())) {
        None => Ok(()),
        Some((name, instead)) => Err(invalid(format!("{path}.{name} is the operator's: {instead}"))),
    }
}

/// The first path of `given` that decoding lost.
fn unknown(path: &str, given: &Value, understood: &Value) -> Option<String> {
    match (given, understood) {
        (Value::Object(given), Value::Object(understood)) => given.iter().find_map(|(name, inner)| {
            let path = format!("{path}.{name}");
            match understood.get(name) {
                Some(known) => unknown(&path, inner, known),
                None if inner.is_null() => None,
                // What is empty may be left out when it is written again.
                None if inner.as_array().is_some_and(Vec::is_empty) => None,
                None => Some(path),
            }
        }),
        (Value::Array(given), Value::Array(understood)) => {
            let pairs = given.iter().zip(understood).enumerate();
            pairs.into_iter().find_map(|(at, (given, known))| unknown(&format!("{path}[{at}]"), given, known))
        }
        _ => None,
    }
}

fn invalid(message: String) -> Invalid {
    Invalid { reason: Reason::InvalidPodTemplate, message }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn refused(value: &Value) -> String {
        decode(value).expect_err("refused").message
    }

    #[test]
    fn sidecars_volumes_and_labels_are_taken() {
        let template = json!({
            "metadata": { "labels": { "team": "orders" } },
            "spec": {
                "containers": [
                    { "name": "berth", "volumeMounts": [{ "name": "certs", "mountPath": "/certs" }] },
                    { "name": "shipper", "image": "shipper:1", "ports": [{ "containerPort": 1 }] },
                ],
                "volumes": [{ "name": "certs", "emptyDir": {} }],
                "hostAliases": [],
            },
        });
        assert!(decode(&template).is_ok());
    }

    #[test]
    fn every_owned_field_is_refused_by_name() {
        for (field, _) in OWNED_POD_FIELDS {
            let value = match *field {
                "terminationGracePeriodSeconds" => json!(1),
                "imagePullSecrets" | "tolerations" | "topologySpreadConstraints" => json!([]),
                "nodeSelector" | "affinity" => json!({}),
                _ => json!("x"),
            };
            let message = refused(&json!({ "spec": { "containers": [], *field: value } }));
            assert!(message.starts_with(&format!("podTemplate.spec.{field} ")), "{message}");
        }
        for (field, _) in OWNED_CONTAINER_FIELDS {
            let value = match *field {
                "image" | "imagePullPolicy" | "workingDir" => json!("x"),
                "command" | "args" | "ports" | "env" | "envFrom" => json!([]),
                _ => json!({}),
            };
            let container = json!({ "name": "berth", *field: value });
            let message = refused(&json!({ "spec": { "containers": [container] } }));
            assert!(message.contains(&format!("containers[berth].{field} ")), "{message}");
            // The same field of a sidecar is the user's.
            let sidecar = json!({ "name": "x", *field: value });
            assert!(decode(&json!({ "spec": { "containers": [sidecar] } })).is_ok(), "{field}");
        }
    }

    #[test]
    fn misspelt_fields_are_named() {
        let template = json!({ "spec": { "containers": [{ "name": "x", "imagee": "y" }] } });
        assert!(refused(&template).starts_with("podTemplate.spec.containers[0].imagee "));
        assert!(refused(&json!({ "spec": { "containers": "x" } })).contains("no pod template"));
    }

    #[test]
    fn volumes_mounts_and_metadata_of_the_operator_are_refused() {
        let volume = json!({ "spec": { "containers": [], "volumes": [{ "name": "data", "emptyDir": {} }] } });
        assert!(refused(&volume).contains("data"));
        let mounts = json!([{ "name": "x", "mountPath": "/var/lib/berth/x" }]);
        let mount = json!({ "spec": { "containers": [{ "name": "berth", "volumeMounts": mounts }] } });
        assert!(refused(&mount).contains("/var/lib/berth/x"));
        assert!(refused(&json!({ "metadata": { "name": "x" } })).contains("metadata.name"));
        let label = json!({ "metadata": { "labels": { "app.kubernetes.io/name": "x" } } });
        assert!(refused(&label).contains("app.kubernetes.io/name"));
    }
}
