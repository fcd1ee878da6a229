//! One connector of whatever kind, as the rest of the operator sees it.

use berth_config::Stomp;
use berth_crds::{
    ConnectorSpec, ConnectorStatus, PAUSED_ANNOTATION, RESTARTED_AT_ANNOTATION, StompConnector,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Resource;

/// A kind of connector: what differs between kinds is where their sections stand.
pub trait Connector: Resource<DynamicType = ()> {
    /// The neutral form; `None` when the API server has not filled in what it always fills in.
    fn target(&self) -> Option<Target>;
}

/// A connector, whatever its kind.
#[derive(Clone, Debug)]
pub struct Target {
    /// The kind, as in `StompConnector`.
    pub kind: &'static str,
    /// The plural of the kind, as in URLs and rules.
    pub plural: &'static str,
    /// Its name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Its uid: a connector made anew under the same name is another one.
    pub uid: String,
    /// The generation of its specification.
    pub generation: i64,
    /// When it was made.
    pub created: Timestamp,
    /// Whether it is being deleted.
    pub is_deleting: bool,
    /// Whether `berth.dev/paused` stands.
    pub is_paused: bool,
    /// The value of `berth.dev/restartedAt`.
    pub restarted_at: Option<String>,
    /// The shared specification.
    pub spec: ConnectorSpec,
    /// The STOMP section; the listener runs when it is there.
    pub stomp: Option<Stomp>,
    /// The status as last written.
    pub status: ConnectorStatus,
}

impl Target {
    /// The owner reference that every child carries.
    #[must_use]
    pub fn owner_reference(&self) -> OwnerReference {
        OwnerReference {
            api_version: self.api_version(),
            kind: self.kind.to_owned(),
            name: self.name.clone(),
            uid: self.uid.clone(),
            controller: Some(true),
            block_owner_deletion: Some(true),
        }
    }

    /// `group/version`.
    #[must_use]
    pub fn api_version(&self) -> String {
        format!("{}/{}", berth_crds::GROUP, berth_crds::VERSION)
    }

    /// What an event refers to.
    #[must_use]
    pub fn object_reference(&self) -> ObjectReference {
        ObjectReference {
            api_version: Some(self.api_version()),
            kind: Some(self.kind.to_owned()),
            name: Some(self.name.clone()),
            namespace: Some(self.namespace.clone()),
            uid: Some(self.uid.clone()),
            ..ObjectReference::default()
        }
    }

    fn new(kind: (&'static str, &'static str), meta: &ObjectMeta, spec: ConnectorSpec) -> Option<Self> {
        let annotation = |key: &str| meta.annotations.as_ref().and_then(|all| all.get(key)).cloned();
        Some(Self {
            kind: kind.0,
            plural: kind.1,
            name: meta.name.clone()?,
            namespace: meta.namespace.clone()?,
            uid: meta.uid.clone()?,
            generation: meta.generation.unwrap_or_default(),
            created: meta.creation_timestamp.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0),
            is_deleting: meta.deletion_timestamp.is_some(),
            is_paused: annotation(PAUSED_ANNOTATION).as_deref() == Some("true"),
            restarted_at: annotation(RESTARTED_AT_ANNOTATION),
            spec,
            stomp: None,
            status: ConnectorStatus::default(),
        })
    }
}

impl Connector for StompConnector {
    fn target(&self) -> Option<Target> {
        let kind = ("StompConnector", "stompconnectors");
        let mut target = Target::new(kind, &self.metadata, self.spec.common.clone())?;
        // The kind's own listener is always on.
        target.stomp = Some(self.spec.stomp.clone().unwrap_or_default());
        target.status = self.status.clone().unwrap_or_default();
        Some(target)
    }
}
