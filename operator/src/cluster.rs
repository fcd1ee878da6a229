//! The API server, as the operator uses it: a closed set of kinds, and JSON in and out.
//!
//! Not here: what to write (see [`crate::plan`]). Children are JSON because a server-side apply sends
//! exactly what was built and reads back what others added; what has to be understood is decoded by its
//! reader.
//!
//! Two clients: the ordinary one tries again by itself; the other one never does and serves evictions,
//! whose 429 is an answer, and leases, whose calls must end before the lease does.

use crate::error::Error;
use crate::target::Target;
use crate::{FIELD_MANAGER, STATUS_MANAGER};
use http::{Method, Request, header};
use kube::Client;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::fmt;

/// The kinds that the operator reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// `v1`.
    ServiceAccount,
    /// `rbac.authorization.k8s.io/v1`.
    Role,
    /// `rbac.authorization.k8s.io/v1`.
    RoleBinding,
    /// `v1`.
    Secret,
    /// `v1`.
    ConfigMap,
    /// `v1`.
    Service,
    /// `policy/v1`.
    PodDisruptionBudget,
    /// `apps/v1`.
    StatefulSet,
    /// `apps/v1`.
    ControllerRevision,
    /// `v1`.
    Pod,
    /// `v1`.
    PersistentVolumeClaim,
    /// `coordination.k8s.io/v1`.
    Lease,
    /// `events.k8s.io/v1`.
    Event,
}

impl Kind {
    /// The kind's name in the API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ServiceAccount => "ServiceAccount",
            Self::Role => "Role",
            Self::RoleBinding => "RoleBinding",
            Self::Secret => "Secret",
            Self::ConfigMap => "ConfigMap",
            Self::Service => "Service",
            Self::PodDisruptionBudget => "PodDisruptionBudget",
            Self::StatefulSet => "StatefulSet",
            Self::ControllerRevision => "ControllerRevision",
            Self::Pod => "Pod",
            Self::PersistentVolumeClaim => "PersistentVolumeClaim",
            Self::Lease => "Lease",
            Self::Event => "Event",
        }
    }

    /// Group and version: `v1`, `apps/v1`.
    #[must_use]
    pub const fn api_version(self) -> &'static str {
        match self {
            Self::ServiceAccount
            | Self::Secret
            | Self::ConfigMap
            | Self::Service
            | Self::Pod
            | Self::PersistentVolumeClaim => "v1",
            Self::Role | Self::RoleBinding => "rbac.authorization.k8s.io/v1",
            Self::PodDisruptionBudget => "policy/v1",
            Self::StatefulSet | Self::ControllerRevision => "apps/v1",
            Self::Lease => "coordination.k8s.io/v1",
            Self::Event => "events.k8s.io/v1",
        }
    }

    const fn plural(self) -> &'static str {
        match self {
            Self::ServiceAccount => "serviceaccounts",
            Self::Role => "roles",
            Self::RoleBinding => "rolebindings",
            Self::Secret => "secrets",
            Self::ConfigMap => "configmaps",
            Self::Service => "services",
            Self::PodDisruptionBudget => "poddisruptionbudgets",
            Self::StatefulSet => "statefulsets",
            Self::ControllerRevision => "controllerrevisions",
            Self::Pod => "pods",
            Self::PersistentVolumeClaim => "persistentvolumeclaims",
            Self::Lease => "leases",
            Self::Event => "events",
        }
    }

    fn path(self, namespace: &str) -> String {
        path_of(self.api_version(), self.plural(), namespace)
    }
}

/// A kind and a name: what messages and events call an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId {
    /// The kind.
    pub kind: Kind,
    /// The name.
    pub name: String,
}

impl ObjectId {
    /// An id.
    #[must_use]
    pub fn new(kind: Kind, name: impl Into<String>) -> Self {
        Self { kind, name: name.into() }
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind.as_str(), self.name)
    }
}

/// What an eviction came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Eviction {
    /// The pod is going.
    Done,
    /// The pod had gone, or it is another one by now.
    Gone,
    /// A budget does not allow it now; the server's words.
    Blocked(String),
    /// More than one budget selects the pod; the server's words.
    Conflicting(String),
}

/// What becomes of an object's dependents when it is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dependents {
    /// The garbage collector deletes them.
    Background,
    /// They stay, without an owner.
    Orphan,
}

/// The API server.
#[derive(Clone)]
pub struct Cluster {
    client: Client,
    once: Client,
}

impl Cluster {
    /// `client` may try again by itself; `once` must not.
    #[must_use]
    pub const fn new(client: Client, once: Client) -> Self {
        Self { client, once }
    }

    /// The client that tries again, for watches.
    #[must_use]
    pub const fn client(&self) -> &Client {
        &self.client
    }

    /// Reads one object; `None` when there is none.
    ///
    /// # Errors
    /// When the server cannot be asked.
    pub async fn get(&self, namespace: &str, id: &ObjectId) -> Result<Option<Value>, Error> {
        let path = format!("{}/{}", id.kind.path(namespace), id.name);
        found(self.send(&self.client, id, Call::read("reading", path)).await)
    }

    /// [`Cluster::get`], decoded.
    ///
    /// # Errors
    /// When the server cannot be asked or answers with something else.
    pub async fn get_as<T: DeserializeOwned>(
        &self,
        namespace: &str,
        id: &ObjectId,
    ) -> Result<Option<T>, Error> {
        self.get(namespace, id).await?.map(|value| decode(value, id)).transpose()
    }

    /// Reads all objects of a kind that a label selector selects; at most 500.
    ///
    /// # Errors
    /// When the server cannot be asked.
    pub async fn list(&self, namespace: &str, kind: Kind, selector: &str) -> Result<Vec<Value>, Error> {
        let query: String = selector.replace('=', "%3D").replace(',', "%2C").replace('/', "%2F");
        let path = format!("{}?limit=500&labelSelector={query}", kind.path(namespace));
        let call = Call::read("listing", path);
        let mut answer = self.send(&self.client, kind.plural(), call).await?;
        let Value::Array(mut items) = answer["items"].take() else { return Ok(Vec::new()) };
        // Items of a list carry neither; their readers want both.
        for item in &mut items {
            item["apiVersion"] = json!(kind.api_version());
            item["kind"] = json!(kind.as_str());
        }
        Ok(items)
    }

    /// [`Cluster::list`], decoded; what cannot be decoded is an error.
    ///
    /// # Errors
    /// When the server cannot be asked or answers with something else.
    pub async fn list_as<T: DeserializeOwned>(
        &self,
        namespace: &str,
        kind: Kind,
        selector: &str,
    ) -> Result<Vec<T>, Error> {
        let items = self.list(namespace, kind, selector).await?;
        items.into_iter().map(|item| decode(item, &ObjectId::new(kind, "list"))).collect()
    }

    /// Makes the object be as `body` says, and gives up fields that earlier bodies named; returns what
    /// there is then.
    ///
    /// # Errors
    /// When the server refuses or cannot be asked.
    pub async fn apply(&self, namespace: &str, id: &ObjectId, body: &Value) -> Result<Value, Error> {
        let path = format!("{}/{}?fieldManager={FIELD_MANAGER}&force=true", id.kind.path(namespace), id.name);
        let call = Call::write("applying", Method::PATCH, path, body).typed(APPLY);
        self.send(&self.client, id, call).await
    }

    /// Makes an object that is not there yet.
    ///
    /// # Errors
    /// When the server refuses, also because it is there by now, or cannot be asked.
    pub async fn create(&self, namespace: &str, id: &ObjectId, body: &Value) -> Result<Value, Error> {
        let path = format!("{}?fieldManager={FIELD_MANAGER}", id.kind.path(namespace));
        self.send(&self.client, id, Call::write("making", Method::POST, path, body)).await
    }

    /// Changes some fields; used where the object is somebody else's and only a field is ours to move.
    ///
    /// # Errors
    /// When the server refuses or cannot be asked.
    pub async fn merge(&self, namespace: &str, id: &ObjectId, body: &Value) -> Result<Value, Error> {
        let path = format!("{}/{}?fieldManager={FIELD_MANAGER}", id.kind.path(namespace), id.name);
        let call = Call::write("changing", Method::PATCH, path, body).typed(MERGE);
        self.send(&self.once, id, call).await
    }

    /// Replaces an object whose `resourceVersion` is in `body`; for leases.
    ///
    /// # Errors
    /// When somebody else was faster (409), when the server refuses or cannot be asked.
    pub async fn replace(&self, namespace: &str, id: &ObjectId, body: &Value) -> Result<Value, Error> {
        let path = format!("{}/{}?fieldManager={FIELD_MANAGER}", id.kind.path(namespace), id.name);
        self.send(&self.once, id, Call::write("replacing", Method::PUT, path, body)).await
    }

    /// Deletes this very object, never a namesake that came after it.
    ///
    /// # Errors
    /// When the server refuses or cannot be asked; an object that has gone already is none.
    pub async fn delete(
        &self,
        namespace: &str,
        id: &ObjectId,
        uid: &str,
        dependents: Dependents,
    ) -> Result<(), Error> {
        let policy = match dependents {
            Dependents::Background => "Background",
            Dependents::Orphan => "Orphan",
        };
        let body = json!({
            "apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": policy,
            "preconditions": { "uid": uid },
        });
        let path = format!("{}/{}", id.kind.path(namespace), id.name);
        let call = Call::write("deleting", Method::DELETE, path, &body);
        let answer = self.send(&self.client, id, call).await;
        // 409: there is a namesake by now, so this one has gone.
        match answer {
            Err(error) if error.status().is_some_and(|status| status.is_conflict()) => Ok(()),
            other => found(other).map(|_| ()),
        }
    }

    /// Asks for this very pod to go, within its disruption budgets.
    ///
    /// # Errors
    /// When the server cannot be asked or refuses for another reason than a budget.
    pub async fn evict(&self, namespace: &str, pod: &str, uid: &str) -> Result<Eviction, Error> {
        let id = ObjectId::new(Kind::Pod, pod);
        let path = format!("{}/{pod}/eviction", Kind::Pod.path(namespace));
        let body = json!({
            "apiVersion": "policy/v1", "kind": "Eviction",
            "metadata": { "name": pod, "namespace": namespace },
            "deleteOptions": { "preconditions": { "uid": uid } },
        });
        let call = Call::write("evicting", Method::POST, path, &body);
        let answer = self.send(&self.once, &id, call).await;
        let Err(error) = answer else { return Ok(Eviction::Done) };
        let Some(status) = error.status() else { return Err(error) };
        match status.code {
            404 | 409 => Ok(Eviction::Gone),
            429 => Ok(Eviction::Blocked(status.message.clone())),
            500 if status.message.contains("more than one PodDisruptionBudget") => {
                Ok(Eviction::Conflicting(status.message.clone()))
            }
            _ => Err(error),
        }
    }

    /// Reads a connector by its plural; `None` when there is none.
    ///
    /// # Errors
    /// When the server cannot be asked.
    pub async fn connector(&self, plural: &str, namespace: &str, name: &str) -> Result<Option<Value>, Error> {
        let path = format!("{}/{name}", path_of(&connector_version(), plural, namespace));
        found(self.send(&self.client, format!("{plural} {name}"), Call::read("reading", path)).await)
    }

    /// Whether there is any connector of a kind in a namespace, or in all of them.
    ///
    /// # Errors
    /// When they may not be listed, or the server cannot be asked.
    pub async fn has_connectors(&self, plural: &str, namespace: Option<&str>) -> Result<bool, Error> {
        let version = connector_version();
        let path = match namespace {
            Some(namespace) => format!("{}?limit=1", path_of(&version, plural, namespace)),
            None => format!("/apis/{version}/{plural}?limit=1"),
        };
        let answer = self.send(&self.client, plural, Call::read("listing", path)).await?;
        Ok(answer["items"].as_array().is_some_and(|items| !items.is_empty()))
    }

    /// The server's description of the group, which any client may read; `None` when the group is not there.
    ///
    /// # Errors
    /// When the server cannot be asked.
    pub async fn open_api(&self) -> Result<Option<Value>, Error> {
        let path = format!("/openapi/v3/apis/{}", connector_version());
        found(self.send(&self.client, "the description of berth.dev", Call::read("reading", path)).await)
    }

    /// Writes a connector's status as a whole; never that of a namesake that came after it.
    ///
    /// # Errors When the server refuses, also because the connector is another one by now, or cannot be
    /// asked. A connector that has gone is none.
    pub async fn apply_status(&self, target: &Target, status: &Value) -> Result<(), Error> {
        let version = connector_version();
        let Target { kind, plural, namespace, name, uid, .. } = target;
        let manager = STATUS_MANAGER.replace('/', "%2F");
        let place = path_of(&version, plural, namespace);
        let path = format!("{place}/{name}/status?fieldManager={manager}&force=true");
        let body = json!({
            "apiVersion": version, "kind": kind,
            "metadata": { "name": name, "namespace": namespace, "uid": uid },
            "status": status,
        });
        let call = Call::write("writing", Method::PATCH, path, &body).typed(APPLY);
        found(self.send(&self.client, format!("the status of {kind} {name}"), call).await).map(drop)
    }

    async fn send(&self, client: &Client, object: impl fmt::Display, call: Call<'_>) -> Result<Value, Error> {
        let action = call.action;
        let failed = |source| Error::Api { action, object: object.to_string(), source: Box::new(source) };
        let bytes = call.body.map(Value::to_string).unwrap_or_default().into_bytes();
        let mut request = Request::builder().method(call.method).uri(call.path);
        if call.body.is_some() {
            request = request.header(header::CONTENT_TYPE, call.content_type);
        }
        let request = request.body(bytes).map_err(|error| failed(kube::Error::HttpError(error)))?;
        client.request(request).await.map_err(failed)
    }
}

/// One request: what it does in words, and on the wire.
struct Call<'a> {
    action: &'static str,
    method: Method,
    path: String,
    body: Option<&'a Value>,
    content_type: &'static str,
}

impl<'a> Call<'a> {
    const fn read(action: &'static str, path: String) -> Self {
        Self { action, method: Method::GET, path, body: None, content_type: JSON }
    }

    const fn write(action: &'static str, method: Method, path: String, body: &'a Value) -> Self {
        Self { action, method, path, body: Some(body), content_type: JSON }
    }

    const fn typed(mut self, content_type: &'static str) -> Self {
        self.content_type = content_type;
        self
    }
}

const APPLY: &str = "application/apply-patch+yaml";
const MERGE: &str = "application/merge-patch+json";
const JSON: &str = "application/json";

fn connector_version() -> String {
    format!("{}/{}", berth_crds::GROUP, berth_crds::VERSION)
}

fn path_of(api_version: &str, plural: &str, namespace: &str) -> String {
    let root = if api_version.contains('/') { "apis" } else { "api" };
    format!("/{root}/{api_version}/namespaces/{namespace}/{plural}")
}

fn found(answer: Result<Value, Error>) -> Result<Option<Value>, Error> {
    match answer {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.status().is_some_and(kube::core::Status::is_not_found) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Decodes an object that the server sent.
///
/// # Errors
/// When it is something else.
pub fn decode<T: DeserializeOwned>(value: Value, id: &ObjectId) -> Result<T, Error> {
    serde_json::from_value(value).map_err(|source| Error::Answer { object: id.to_string(), source })
}
