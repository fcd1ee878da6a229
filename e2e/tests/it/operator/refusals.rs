//! What the API server refuses, in words that say what to change, and what the operator waits for.

use super::{KIND, LATER, NAME, SOON, connector, install, ready, start, wait_note, wait_reason};
use anyhow::{Result, bail, ensure};
use berth_e2e::kubectl::Namespace;
use serde_json::{Value, json};

fn refused(space: &Namespace, object: &Value, words: &str) -> Result<()> {
    match space.apply(&object.to_string()) {
        Ok(()) => bail!("accepted: {object}"),
        Err(error) => {
            let said = format!("{error:#}");
            ensure!(said.contains(words), "{object} was refused without {words:?}: {said}");
            Ok(())
        }
    }
}

pub(super) fn what_cannot_work_is_refused_with_what_to_change(space: &Namespace) -> Result<()> {
    install(&space.kubectl, &[])?;
    for (spec, words) in [
        (json!({ "replicas": 2 }), "the embedded broker lives in one pod: set replicas to 0 or 1"),
        (json!({ "replicas": -1 }), "greater than or equal to 0"),
        (json!({ "broker": {} }), "name exactly one broker"),
        (json!({ "stomp": { "port": 0 } }), "greater than or equal to 1"),
        (json!({ "storage": { "size": "big" } }), "spec.storage.size"),
        (json!({ "update": { "drainTimeout": "soon" } }), "spec.update.drainTimeout"),
        (json!({ "logging": { "level": "loud" } }), "Unsupported value"),
        (json!({ "service": { "externalTrafficPolicy": "Local" } }), "set type to NodePort or LoadBalancer"),
        (json!({ "service": { "loadBalancerSourceRanges": ["10.0.0.0/8"] } }), "set type to LoadBalancer"),
        (json!({ "replica": 1 }), "replica"),
    ] {
        refused(space, &connector(&spec), words)?;
    }
    for (name, words) in [
        ("a".repeat(41), "at most 40 characters"),
        ("1st".to_owned(), "starts with a letter"),
        ("a.b".to_owned(), "starts with a letter"),
    ] {
        let mut object = connector(&json!({}));
        object["metadata"]["name"] = json!(name);
        refused(space, &object, words)?;
    }

    start(space, &json!({ "storage": { "size": "1Gi" } }))?;
    for arguments in [
        vec!["scale", KIND, NAME, "--replicas=2"],
        vec!["patch", KIND, NAME, "--type=merge", "--patch", r#"{"spec":{"replicas":2}}"#],
    ] {
        let Err(error) = space.run(&arguments) else { bail!("{arguments:?} was accepted") };
        ensure!(format!("{error:#}").contains("set replicas to 0 or 1"), "{error:#}");
    }
    let class = "storageClassName is fixed when the connector is made";
    refused(space, &connector(&json!({ "storage": { "storageClassName": "other" } })), class)?;
    ready(space).map(drop)
}

pub(super) fn a_name_that_is_taken_is_waited_for(space: &Namespace) -> Result<()> {
    install(&space.kubectl, &[])?;
    let foreign = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": { "name": NAME, "labels": { "app": "shop" } },
        "spec": { "ports": [{ "port": 80 }], "selector": { "app": "shop" } },
    });
    space.apply(&foreign.to_string())?;
    let before = space.get("service", NAME)?;
    space.apply(&connector(&json!({})).to_string())?;
    let object = wait_reason(space, "Ready", "False", "NameTaken")?;
    let message = super::condition(&object, "Ready").2;
    ensure!(message.contains("Service orders"), "{message}");
    wait_note(space, "NameTaken")?;
    ensure!(space.get("service", NAME)? == before, "somebody else's Service was touched");
    ensure!(space.find("statefulset", NAME)?.is_none(), "pods before what they need");
    space.run(&["delete", "service", NAME])?;
    space.wait("the connector to heal", LATER, |space| {
        let object = space.get(KIND, NAME)?;
        Ok((super::condition(&object, "Ready").0 == "True").then_some(()))
    })?;
    // The event was said once, not at every look.
    let said = super::notes(space, "NameTaken")?.len();
    ensure!(said == 1, "said {said} times within {} s", SOON.as_secs());
    Ok(())
}
