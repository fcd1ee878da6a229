//! Whether the cluster has the definitions of the custom resources, and whether they are as new as this
//! program.
//!
//! An older definition silently drops fields that it does not know: a status without its new fields, a
//! specification that does less than it says. So what is missing is named, in the log and by a metric.

use crate::context::Context;
use serde_json::Value;
use std::time::Duration;

/// Time between two looks.
const INTERVAL: Duration = Duration::from_secs(60);
/// What an administrator has to do.
const ADVICE: &str = "apply those of its release";
/// Time between two looks while the definitions are not there.
const IMPATIENT: Duration = Duration::from_secs(2);

/// Looks for ever; the first look that finds the definitions makes the process ready.
pub async fn watch(context: &Context) {
    let mut told = Vec::new();
    loop {
        let pause = match context.cluster.open_api().await {
            Ok(Some(document)) => {
                context.health.definitions_seen();
                let missing = missing_fields(&document);
                context.metrics.definitions_outdated.set(i64::from(!missing.is_empty()));
                if missing != told && !missing.is_empty() {
                    let fields = missing.join(", ");
                    tracing::error!(
                        fields,
                        "CustomResourceDefinitions are older than this operator: {ADVICE}"
                    );
                }
                told = missing;
                INTERVAL
            }
            Ok(None) => {
                tracing::error!("CustomResourceDefinitions of berth.dev are not there: apply them");
                IMPATIENT
            }
            Err(error) => {
                tracing::warn!(%error, "CustomResourceDefinitions not looked at");
                IMPATIENT
            }
        };
        tokio::time::sleep(pause).await;
    }
}

/// Fields of our definitions that the API server's description of the group lacks.
#[must_use]
pub fn missing_fields(document: &Value) -> Vec<String> {
    let mut missing = Vec::new();
    for definition in berth_crds::definitions() {
        let kind = definition.value["spec"]["names"]["kind"].as_str().unwrap_or_default().to_owned();
        let ours = &definition.value["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        let theirs = document["components"]["schemas"].as_object().and_then(|schemas| {
            schemas.iter().find(|(name, _)| name.rsplit('.').next() == Some(kind.as_str())).map(|(_, s)| s)
        });
        match theirs {
            None => missing.push(kind),
            Some(theirs) => {
                for part in ["spec", "status"] {
                    compare(
                        &format!("{kind}.{part}"),
                        &ours["properties"][part],
                        &theirs["properties"][part],
                        &mut missing,
                    );
                }
            }
        }
    }
    missing
}

fn compare(path: &str, ours: &Value, theirs: &Value, missing: &mut Vec<String>) {
    let Some(properties) = ours["properties"].as_object() else { return };
    for (name, inner) in properties {
        let path = format!("{path}.{name}");
        match theirs["properties"].get(name) {
            Some(known) => compare(&path, inner, known, missing),
            None => missing.push(path),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn document() -> Value {
        let schema =
            berth_crds::definitions()[0].value["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone();
        json!({ "components": { "schemas": { "dev.berth.v1alpha1.StompConnector": schema } } })
    }

    #[test]
    fn an_equal_definition_lacks_nothing() {
        assert_eq!(missing_fields(&document()), Vec::<String>::new());
    }

    #[test]
    fn what_an_older_definition_lacks_is_named() {
        let mut older = document();
        let schema = &mut older["components"]["schemas"]["dev.berth.v1alpha1.StompConnector"];
        for (part, field) in [("spec", "suspend"), ("status", "version")] {
            schema["properties"][part]["properties"].as_object_mut().unwrap().remove(field);
        }
        assert_eq!(missing_fields(&older), ["StompConnector.spec.suspend", "StompConnector.status.version"]);
        assert_eq!(missing_fields(&json!({})), ["StompConnector"]);
    }
}
