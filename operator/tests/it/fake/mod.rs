//! An API server in memory, honest enough to test an operator against.
//!
//! It has: server-side apply with field ownership, merge patches, create, replace with resourceVersion,
//! delete with uid preconditions and orphaning, evictions, label selectors, status as a subresource,
//! generations, defaults of the kinds that the operator writes, the fields of StatefulSets, ConfigMaps
//! and claims that never change, and a log of every request. An apply that changes nothing moves no
//! resourceVersion, except where the real server does: claim templates without apiVersion and kind.
//!
//! Watches open and then say nothing. It has not: admission, CRD schemas and CEL, conversion, quotas,
//! permissions. Those are tested on a real cluster.

pub(crate) mod ssa;
pub(crate) mod world;

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{BodyExt as _, Either, Full, StreamBody};
use hyper::body::Frame;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use ssa::Owners;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard};

/// The namespace of every test.
pub(crate) const NAMESPACE: &str = "shop";

/// Plural and name.
pub(crate) type Key = (String, String);

/// One request that could change something.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Write {
    pub(crate) method: Method,
    pub(crate) plural: String,
    pub(crate) name: String,
    pub(crate) subresource: String,
    pub(crate) body: Value,
}

/// What the server answers instead of what it would do: for writes to this plural.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) method: Method,
    pub(crate) plural: &'static str,
    pub(crate) subresource: &'static str,
    pub(crate) code: u16,
    pub(crate) reason: &'static str,
    pub(crate) message: &'static str,
    /// How often; 0 is for ever.
    pub(crate) times: u32,
}

impl Fault {
    pub(crate) fn on(method: Method, plural: &'static str, code: u16, message: &'static str) -> Self {
        Self { method, plural, subresource: "", code, reason: "Fault", message, times: 0 }
    }
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) objects: BTreeMap<Key, Value>,
    owners: BTreeMap<Key, Owners>,
    pub(crate) version: u64,
    uids: u64,
    pub(crate) writes: Vec<Write>,
    pub(crate) faults: Vec<Fault>,
    /// Whether claims may grow.
    pub(crate) expansion: bool,
    /// Whether requests are taken and never answered.
    pub(crate) hangs: bool,
}

/// The server; clones share one state.
#[derive(Clone)]
pub(crate) struct Fake {
    state: Arc<Mutex<State>>,
}

impl Fake {
    pub(crate) fn new() -> Self {
        let state = State { expansion: true, ..State::default() };
        Self { state: Arc::new(Mutex::new(state)) }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub(crate) fn client(&self) -> Client {
        let state = self.state.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let state = state.clone();
            async move {
                if state.lock().unwrap().hangs {
                    std::future::pending::<()>().await;
                }
                let (parts, body) = request.into_parts();
                if parts.uri.query().is_some_and(|query| query.contains("watch=true")) {
                    let silence =
                        StreamBody::new(futures::stream::pending::<Result<Frame<Bytes>, Infallible>>());
                    return Ok(Response::new(Either::Left(silence)));
                }
                let body = body.collect().await?.to_bytes();
                let body: Value = serde_json::from_slice(&body).unwrap_or_default();
                let (code, answer) = state.lock().unwrap().answer(&parts.method, &parts.uri, body);
                let answer = Full::new(Bytes::from(answer.to_string()));
                let answer = Response::builder().status(code).body(Either::Right(answer)).unwrap();
                Ok::<_, kube::Error>(answer)
            }
        });
        Client::new(service, NAMESPACE)
    }

    pub(crate) fn get(&self, plural: &str, name: &str) -> Option<Value> {
        self.state().objects.get(&(plural.to_owned(), name.to_owned())).cloned()
    }

    /// Makes or replaces an object by hand, as somebody else would.
    pub(crate) fn put(&self, plural: &str, object: Value) -> Value {
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        self.state().store((plural.to_owned(), name), object)
    }

    pub(crate) fn edit(&self, plural: &str, name: &str, change: impl FnOnce(&mut Value)) {
        let mut object = self.get(plural, name).unwrap_or_else(|| panic!("there is no {plural} {name}"));
        change(&mut object);
        self.put(plural, object);
    }

    pub(crate) fn remove(&self, plural: &str, name: &str) {
        self.state().objects.remove(&(plural.to_owned(), name.to_owned()));
    }

    pub(crate) fn names(&self, plural: &str) -> Vec<String> {
        let state = self.state();
        state.objects.keys().filter(|key| key.0 == plural).map(|key| key.1.clone()).collect()
    }

    /// The writes since the last call; events are left out.
    pub(crate) fn take_writes(&self) -> Vec<Write> {
        let mut state = self.state();
        let all = std::mem::take(&mut state.writes);
        all.into_iter().filter(|write| write.plural != "events").collect()
    }

    pub(crate) fn events(&self) -> Vec<(String, String)> {
        let state = self.state();
        let events = state.objects.iter().filter(|(key, _)| key.0 == "events");
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let mut events: Vec<_> =
            events.map(|(_, e)| (e["eventTime"].clone(), text(&e["reason"]), text(&e["note"]))).collect();
        events.sort_by_key(|(time, ..)| time.to_string());
        events.into_iter().map(|(_, reason, note)| (reason, note)).collect()
    }
}

impl State {
    fn answer(&mut self, method: &Method, uri: &http::Uri, body: Value) -> (u16, Value) {
        let parts: Vec<&str> = uri.path().trim_matches('/').split('/').collect();
        let Some(at) = parts.iter().position(|part| *part == "namespaces") else {
            return failure(404, "NotFound", "not served here");
        };
        let rest = &parts[at + 2..];
        let plural = rest[0].to_owned();
        let name = rest.get(1).copied().unwrap_or_default().to_owned();
        let subresource = rest.get(2).copied().unwrap_or_default().to_owned();
        let query: BTreeMap<String, String> = uri
            .query()
            .unwrap_or_default()
            .split('&')
            .filter_map(|pair| pair.split_once('='))
            .map(|(key, value)| (key.to_owned(), decode(value)))
            .collect();
        if *method == Method::GET {
            return if name.is_empty() {
                (200, self.list(&plural, query.get("labelSelector").map(String::as_str)))
            } else {
                self.objects.get(&(plural, name)).map_or_else(not_found, |object| (200, object.clone()))
            };
        }
        self.writes.push(Write {
            method: method.clone(),
            plural: plural.clone(),
            name: name.clone(),
            subresource: subresource.clone(),
            body: body.clone(),
        });
        let fault = self.faults.iter().position(|fault| {
            fault.method == *method && fault.plural == plural && fault.subresource == subresource
        });
        if let Some(at) = fault {
            let fault = self.faults[at].clone();
            match fault.times {
                0 => {}
                1 => drop(self.faults.remove(at)),
                _ => self.faults[at].times -= 1,
            }
            return failure(fault.code, fault.reason, fault.message);
        }
        let manager = query.get("fieldManager").cloned().unwrap_or_default();
        match (method.as_str(), subresource.as_str()) {
            ("PATCH", "" | "status") if query.contains_key("force") => {
                self.apply(plural, name, body, &manager)
            }
            ("PATCH", "") => self.merge(plural, name, &body),
            ("POST", "") => self.create(plural, body),
            ("PUT", "") => self.replace(plural, name, body),
            ("DELETE", "") => self.delete(plural, name, &body),
            ("POST", "eviction") => self.evict(name, &body),
            _ => failure(405, "MethodNotAllowed", "not served here"),
        }
    }

    fn list(&self, plural: &str, selector: Option<&str>) -> Value {
        let matches = |object: &Value| {
            selector.unwrap_or_default().split(',').filter(|pair| !pair.is_empty()).all(|pair| {
                let (key, value) = pair.split_once('=').unwrap();
                object["metadata"]["labels"][key] == value
            })
        };
        let items: Vec<Value> = self
            .objects
            .iter()
            .filter(|(key, object)| key.0 == plural && matches(object))
            .map(|(_, object)| object.clone())
            .collect();
        let meta = json!({ "resourceVersion": self.version.to_string() });
        json!({ "kind": "List", "apiVersion": "v1", "metadata": meta, "items": items })
    }

    fn apply(&mut self, plural: String, name: String, body: Value, manager: &str) -> (u16, Value) {
        let key = (plural, name);
        let live = self.objects.get(&key).cloned();
        let base = live.clone().unwrap_or_else(|| {
            json!({ "apiVersion": body["apiVersion"], "kind": body["kind"], "metadata": body["metadata"] })
        });
        let mut owners = self.owners.get(&key).cloned().unwrap_or_default();
        let mut object = ssa::apply(&base, &body, manager, &mut owners);
        if let Some(live) = &live {
            if let Some(refusal) = self.refuse(&key.0, live, &object) {
                return failure(422, "Invalid", &refusal);
            }
            // The real server counts claim templates without a type as another value each time.
            let typeless = body["spec"]["volumeClaimTemplates"]
                .as_array()
                .is_some_and(|all| all.iter().any(|t| t["kind"].is_null() || t["apiVersion"].is_null()));
            if typeless {
                object["metadata"]["typeless"] = json!(self.version);
            }
        }
        self.owners.insert(key.clone(), owners);
        (200, self.store(key, object))
    }

    fn merge(&mut self, plural: String, name: String, body: &Value) -> (u16, Value) {
        let key = (plural, name);
        let Some(live) = self.objects.get(&key).cloned() else { return not_found() };
        let uid = &body["metadata"]["uid"];
        if uid.is_string() && *uid != live["metadata"]["uid"] {
            return failure(409, "Conflict", "precondition failed: UID");
        }
        let mut object = live.clone();
        json_merge(&mut object, body);
        if let Some(refusal) = self.refuse(&key.0, &live, &object) {
            return failure(422, "Invalid", &refusal);
        }
        (200, self.store(key, object))
    }

    fn create(&mut self, plural: String, body: Value) -> (u16, Value) {
        let name = body["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        if self.objects.contains_key(&(plural.clone(), name.clone())) {
            return failure(409, "AlreadyExists", "already exists");
        }
        (201, self.store((plural, name), body))
    }

    fn replace(&mut self, plural: String, name: String, body: Value) -> (u16, Value) {
        let key = (plural, name);
        let Some(live) = self.objects.get(&key) else { return not_found() };
        let version = &body["metadata"]["resourceVersion"];
        if version.is_string() && *version != live["metadata"]["resourceVersion"] {
            return failure(409, "Conflict", "the object has been modified");
        }
        (200, self.store(key, body))
    }

    fn delete(&mut self, plural: String, name: String, options: &Value) -> (u16, Value) {
        let key = (plural, name);
        let Some(mut object) = self.objects.get(&key).cloned() else { return not_found() };
        let uid = &options["preconditions"]["uid"];
        if uid.is_string() && *uid != object["metadata"]["uid"] {
            return failure(409, "Conflict", "precondition failed: UID");
        }
        if options["propagationPolicy"] == "Orphan" {
            object["metadata"]["deletionTimestamp"] = json!(world::NOW);
            object["metadata"]["finalizers"] = json!(["orphan"]);
            return (200, self.store(key, object));
        }
        (200, self.objects.remove(&key).unwrap_or_default())
    }

    fn evict(&mut self, pod: String, body: &Value) -> (u16, Value) {
        let key = ("pods".to_owned(), pod);
        let Some(mut object) = self.objects.get(&key).cloned() else { return not_found() };
        let uid = &body["deleteOptions"]["preconditions"]["uid"];
        if *uid != object["metadata"]["uid"] {
            return failure(409, "Conflict", "precondition failed: UID");
        }
        object["metadata"]["deletionTimestamp"] = json!(world::NOW);
        self.store(key, object);
        (201, json!({ "kind": "Status", "apiVersion": "v1", "status": "Success" }))
    }

    /// Stores an object the way the server does: defaults, uid, generation, resourceVersion only when it
    /// changed.
    pub(crate) fn store(&mut self, key: Key, mut object: Value) -> Value {
        world::default_fields(&key.0, &mut object);
        let old = self.objects.get(&key).cloned();
        let meta = &mut object["metadata"];
        if meta["uid"].is_null() {
            self.uids += 1;
            meta["uid"] = json!(format!("uid-{}", self.uids));
        }
        for (name, value) in [
            ("creationTimestamp", json!(world::NOW)),
            ("namespace", json!(NAMESPACE)),
            ("generation", json!(1)),
        ] {
            if meta[name].is_null() {
                meta[name] = value;
            }
        }
        if let Some(old) = &old {
            if old["spec"] != object["spec"] {
                let generation = old["metadata"]["generation"].as_i64().unwrap_or(1) + 1;
                object["metadata"]["generation"] = json!(generation);
            }
            object["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"].clone();
            if *old == object {
                return object;
            }
        }
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.objects.insert(key, object.clone());
        object
    }

    /// What the server never changes, or does not allow to be changed so.
    fn refuse(&self, plural: &str, live: &Value, wanted: &Value) -> Option<String> {
        let differs = |field: &str| live["spec"][field] != wanted["spec"][field];
        match plural {
            "statefulsets" => {
                let mut wanted = wanted.clone();
                world::default_fields(plural, &mut wanted);
                ["serviceName", "podManagementPolicy", "selector", "volumeClaimTemplates"]
                    .into_iter()
                    .find(|field| live["spec"][*field] != wanted["spec"][*field])
                    .map(|field| format!("updates to statefulset spec for {field} are forbidden"))
            }
            "services" => {
                let ports = wanted["spec"]["ports"].as_array().map(Vec::as_slice).unwrap_or_default();
                let mut names: Vec<_> = ports.iter().map(|port| port["name"].to_string()).collect();
                names.sort();
                let duplicate = names.windows(2).any(|pair| pair[0] == pair[1]);
                duplicate.then(|| "spec.ports[1].name: Duplicate value".to_owned())
            }
            "configmaps" if live["immutable"] == true && live["data"] != wanted["data"] => {
                Some("field is immutable when `immutable` is set".to_owned())
            }
            "persistentvolumeclaims" if differs("resources") => {
                if live["status"]["phase"] != "Bound" {
                    Some(
                        "spec is immutable after creation except resources.requests for bound claims"
                            .to_owned(),
                    )
                } else if !self.expansion {
                    Some("the storageclass that provisions the pvc must support resize".to_owned())
                } else {
                    None
                }
            }
            _ => None,
        }
    }
}

fn decode(text: &str) -> String {
    text.replace("%3D", "=").replace("%2C", ",").replace("%2F", "/")
}

fn json_merge(live: &mut Value, patch: &Value) {
    match (live, patch) {
        (Value::Object(live), Value::Object(patch)) => {
            for (name, inner) in patch {
                json_merge(live.entry(name.clone()).or_insert(Value::Null), inner);
            }
        }
        (live, patch) => *live = patch.clone(),
    }
}

fn not_found() -> (u16, Value) {
    failure(404, "NotFound", "not found")
}

fn failure(code: u16, reason: &str, message: &str) -> (u16, Value) {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "message": message,
        "code": code,
    });
    (code, status)
}
