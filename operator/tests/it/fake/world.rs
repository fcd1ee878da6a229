//! The rest of the cluster, one step at a time: the StatefulSet controller, the garbage collector, the
//! volume binder and the kubelet, as far as the operator can tell.

use super::{Fake, Key, State};
use serde_json::{Value, json};

/// The time at which everything happens in the fake cluster.
pub(crate) const NOW: &str = "2026-01-01T00:00:00Z";

/// An image of this tag never becomes ready.
pub(crate) const BROKEN_TAG: &str = ":broken";

/// Fills in what the API server fills in, for the kinds and fields that the operator writes.
pub(crate) fn default_fields(plural: &str, object: &mut Value) {
    match plural {
        "statefulsets" => {
            for template in object["spec"]["volumeClaimTemplates"].as_array_mut().into_iter().flatten() {
                template["apiVersion"] = json!("v1");
                template["kind"] = json!("PersistentVolumeClaim");
                default(&mut template["spec"], "volumeMode", json!("Filesystem"));
                template["status"] = json!({ "phase": "Pending" });
                canonical(&mut template["spec"]["resources"]["requests"]["storage"]);
            }
            omit(&mut object["spec"], "minReadySeconds", &json!(0));
            let pod = &mut object["spec"]["template"]["spec"];
            omit(pod, "hostNetwork", &json!(false));
            for (name, value) in [
                ("restartPolicy", json!("Always")),
                ("dnsPolicy", json!("ClusterFirst")),
                ("schedulerName", json!("default-scheduler")),
            ] {
                default(pod, name, value);
            }
            for container in pod["containers"].as_array_mut().into_iter().flatten() {
                for variable in container["env"].as_array_mut().into_iter().flatten() {
                    omit(variable, "value", &json!(""));
                }
                default(container, "terminationMessagePath", json!("/dev/termination-log"));
                default(container, "terminationMessagePolicy", json!("File"));
                default(container, "resources", json!({}));
                for kind in ["requests", "limits"] {
                    if let Some(quantities) = container["resources"][kind].as_object_mut() {
                        quantities.values_mut().for_each(canonical);
                    } else if let Some(resources) = container["resources"].as_object_mut() {
                        resources.remove(kind);
                    }
                }
            }
            default(&mut object["status"], "replicas", json!(0));
        }
        "services" => {
            let spec = &mut object["spec"];
            default(spec, "clusterIP", json!("10.96.0.7"));
            default(spec, "internalTrafficPolicy", json!("Cluster"));
            default(spec, "ipFamilies", json!(["IPv4"]));
            default(spec, "ipFamilyPolicy", json!("SingleStack"));
            default(spec, "sessionAffinity", json!("None"));
            if spec["sessionAffinity"] == "ClientIP" {
                default(spec, "sessionAffinityConfig", json!({ "clientIP": { "timeoutSeconds": 10800 } }));
            }
            default(&mut object["status"], "loadBalancer", json!({}));
        }
        _ => {}
    }
}

fn default(object: &mut Value, name: &str, value: Value) {
    if object[name].is_null() {
        object[name] = value;
    }
}

/// Takes out what the server never writes: zeros of fields that are no pointers.
fn omit(object: &mut Value, name: &str, zero: &Value) {
    if object[name] == *zero
        && let Some(map) = object.as_object_mut()
    {
        map.remove(name);
    }
}

/// A few spellings that the server changes.
fn canonical(quantity: &mut Value) {
    let other = match quantity.as_str() {
        Some("0.5") => "500m",
        Some("1.5Gi") => "1536Mi",
        Some("1024Mi") => "1Gi",
        _ => return,
    };
    *quantity = json!(other);
}

impl Fake {
    /// Lets the rest of the cluster do one round of its work.
    pub(crate) fn turn(&self) {
        let mut state = self.state();
        state.collect();
        state.end_pods();
        state.run_sets();
        state.bind_claims();
    }

    /// Rounds until nothing changes any more.
    pub(crate) fn settle(&self) {
        for _ in 0..20 {
            let before = self.state().version;
            self.turn();
            if self.state().version == before {
                return;
            }
        }
        panic!("the fake cluster does not come to rest");
    }
}

impl State {
    fn of(&self, plural: &str) -> Vec<(Key, Value)> {
        let all = self.objects.iter().filter(|(key, _)| key.0 == plural);
        all.map(|(key, object)| (key.clone(), object.clone())).collect()
    }

    /// Orphans what is to be orphaned, and removes what has lost its owner.
    fn collect(&mut self) {
        let orphaning: Vec<Key> = self
            .objects
            .iter()
            .filter(|(_, object)| object["metadata"]["finalizers"] == json!(["orphan"]))
            .map(|(key, _)| key.clone())
            .collect();
        for key in orphaning {
            let uid = self.objects[&key]["metadata"]["uid"].clone();
            for (dependent, mut object) in self.objects.clone() {
                let owners = object["metadata"]["ownerReferences"].as_array().cloned().unwrap_or_default();
                if owners.iter().any(|owner| owner["uid"] == uid) {
                    object["metadata"]["ownerReferences"] =
                        owners.into_iter().filter(|owner| owner["uid"] != uid).collect();
                    self.store(dependent, object);
                }
            }
            self.objects.remove(&key);
            self.version += 1;
        }
        let uids: Vec<Value> =
            self.objects.values().map(|object| object["metadata"]["uid"].clone()).collect();
        let lost: Vec<Key> = self
            .objects
            .iter()
            .filter(|(_, object)| {
                let owners = object["metadata"]["ownerReferences"].as_array();
                owners.is_some_and(|owners| {
                    !owners.is_empty() && owners.iter().all(|owner| !uids.contains(&owner["uid"]))
                })
            })
            .map(|(key, _)| key.clone())
            .collect();
        for key in lost {
            self.objects.remove(&key);
            self.version += 1;
        }
    }

    fn end_pods(&mut self) {
        for (key, pod) in self.of("pods") {
            if pod["metadata"]["deletionTimestamp"].is_string() {
                self.objects.remove(&key);
                self.version += 1;
            }
        }
    }

    fn run_sets(&mut self) {
        for (key, mut set) in self.of("statefulsets") {
            if set["metadata"]["deletionTimestamp"].is_string() {
                continue;
            }
            let name = key.1.clone();
            let uid = set["metadata"]["uid"].clone();
            let revision = self.revision(&name, &set);
            let wanted = set["spec"]["replicas"].as_u64().unwrap_or(1);
            let owner = json!([{
                "apiVersion": "apps/v1", "kind": "StatefulSet", "name": name, "uid": uid, "controller": true,
            }]);
            for ordinal in 0..wanted {
                self.ensure_pod(&set, &name, ordinal, &revision, &owner);
            }
            let prefix = format!("{name}-");
            for (pod_key, pod) in self.of("pods") {
                let ordinal = pod_key.1.strip_prefix(&prefix).and_then(|text| text.parse::<u64>().ok());
                if ordinal.is_some_and(|ordinal| ordinal >= wanted)
                    && pod["metadata"]["ownerReferences"] == owner
                {
                    self.objects.remove(&pod_key);
                    self.version += 1;
                }
            }
            let pods: Vec<Value> = self
                .of("pods")
                .into_iter()
                .filter(|(_, pod)| pod["metadata"]["ownerReferences"][0]["uid"] == uid)
                .map(|(_, pod)| pod)
                .collect();
            let ready = pods.iter().filter(|pod| pod["status"]["conditions"][0]["status"] == "True").count();
            let updated = pods
                .iter()
                .filter(|p| p["metadata"]["labels"]["controller-revision-hash"] == revision.as_str());
            set["status"] = json!({
                "observedGeneration": set["metadata"]["generation"],
                "replicas": pods.len(),
                "readyReplicas": ready,
                "availableReplicas": ready,
                "updatedReplicas": updated.count(),
                "updateRevision": revision,
                // Under OnDelete this never moves.
                "currentRevision": set["status"]["currentRevision"].as_str().unwrap_or(&revision),
            });
            self.store(key, set);
        }
    }

    /// The revision of the template: a name that is the same for the same template.
    fn revision(&mut self, name: &str, set: &Value) -> String {
        let template = &set["spec"]["template"];
        for (key, revision) in self.of("controllerrevisions") {
            if revision["data"]["spec"]["template"] == *template {
                return key.1;
            }
        }
        let number = self.of("controllerrevisions").len() + 1;
        let revision = format!("{name}-rev{number}");
        let object = json!({
            "apiVersion": "apps/v1", "kind": "ControllerRevision",
            "metadata": { "name": revision, "labels": set["spec"]["selector"]["matchLabels"] },
            "data": { "spec": { "template": template } },
            "revision": number,
        });
        self.store(("controllerrevisions".to_owned(), revision.clone()), object);
        revision
    }

    fn ensure_pod(&mut self, set: &Value, name: &str, ordinal: u64, revision: &str, owner: &Value) {
        let pod_name = format!("{name}-{ordinal}");
        for template in set["spec"]["volumeClaimTemplates"].as_array().into_iter().flatten() {
            let claim = format!("{}-{pod_name}", template["metadata"]["name"].as_str().unwrap());
            let key = ("persistentvolumeclaims".to_owned(), claim.clone());
            if !self.objects.contains_key(&key) {
                let object = json!({
                    "apiVersion": "v1", "kind": "PersistentVolumeClaim",
                    "metadata": { "name": claim, "labels": template["metadata"]["labels"] },
                    "spec": template["spec"], "status": { "phase": "Pending" },
                });
                self.store(key, object);
            }
        }
        let key = ("pods".to_owned(), pod_name.clone());
        if let Some(mut pod) = self.objects.get(&key).cloned() {
            // A pod that an earlier set left behind is adopted as it is.
            if pod["metadata"]["ownerReferences"].as_array().is_none_or(Vec::is_empty) {
                pod["metadata"]["ownerReferences"] = owner.clone();
                self.store(key, pod);
            }
            return;
        }
        let template = &set["spec"]["template"];
        let mut labels = template["metadata"]["labels"].clone();
        labels["controller-revision-hash"] = json!(revision);
        let image = template["spec"]["containers"][0]["image"].as_str().unwrap_or_default();
        let is_ready = if image.ends_with(BROKEN_TAG) { "False" } else { "True" };
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": pod_name, "labels": labels, "ownerReferences": owner },
            "spec": template["spec"],
            "status": {
                "phase": "Running", "podIP": format!("10.244.1.{}", ordinal + 1),
                "conditions": [{ "type": "Ready", "status": is_ready, "lastTransitionTime": NOW }],
            },
        });
        self.store(key, pod);
    }

    fn bind_claims(&mut self) {
        for (key, mut claim) in self.of("persistentvolumeclaims") {
            if claim["status"]["phase"] == "Bound" || claim["metadata"]["labels"]["unbound"] == "true" {
                let asked = claim["spec"]["resources"]["requests"]["storage"].clone();
                if claim["status"]["phase"] == "Bound" && claim["status"]["capacity"]["storage"] != asked {
                    claim["status"]["capacity"]["storage"] = asked;
                    self.store(key, claim);
                }
                continue;
            }
            let size = claim["spec"]["resources"]["requests"]["storage"].clone();
            claim["status"] = json!({ "phase": "Bound", "capacity": { "storage": size } });
            self.store(key, claim);
        }
    }
}
