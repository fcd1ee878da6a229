//! Everything a pass reads: the children by name, the pods, claims and revisions by label, and what the
//! pods say.
//!
//! Reads are live, not from a cache: what is written next must not rest on a stale picture.

use crate::cluster::{Cluster, Kind, ObjectId, decode};
use crate::context::Context;
use crate::error::Error;
use crate::names;
use crate::node::NodeReport;
use crate::plan::children::is_ours;
use crate::plan::rollout::{PodView, SetView};
use crate::plan::storage::{Claim, LiveSet};
use crate::target::Target;
use crate::validate::Image;
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Secret, Service};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// What is there. Not printable: it holds the internal Secret.
#[derive(Clone, Default)]
pub struct Observed {
    /// Objects under the names that children have or may have, whoever they belong to.
    pub live: BTreeMap<ObjectId, Value>,
    /// The pods.
    pub pods: Vec<Pod>,
    /// The volume claims, by ordinal.
    pub claims: Vec<PersistentVolumeClaim>,
    /// ConfigMaps with a configuration, current or former: name and uid.
    pub config_maps: BTreeMap<String, String>,
    /// Names of ConfigMaps that a pod or a revision mentions.
    pub config_maps_in_use: BTreeSet<String>,
    /// What pods said, by the name of the pod; pods that could not be asked are absent.
    pub reports: BTreeMap<String, NodeReport>,
}

impl Observed {
    /// The connector's own StatefulSet, when one is there.
    #[must_use]
    pub fn stateful_set(&self, target: &Target) -> Option<StatefulSet> {
        self.own(target, Kind::StatefulSet)
    }

    /// The connector's own client Service, when one is there.
    #[must_use]
    pub fn client_service(&self, target: &Target) -> Option<Service> {
        self.own(target, Kind::Service)
    }

    fn own<T: serde::de::DeserializeOwned>(&self, target: &Target, kind: Kind) -> Option<T> {
        let live = self.live.get(&ObjectId::new(kind, &target.name))?;
        if is_ours(target, live) { serde_json::from_value(live.clone()).ok() } else { None }
    }
}

/// Reads everything that planning needs.
///
/// `wanted` names the children as built now.
///
/// # Errors
/// When the API server cannot be asked or answers with something else.
pub async fn observe(context: &Context, target: &Target, wanted: &[ObjectId]) -> Result<Observed, Error> {
    let cluster = &context.cluster;
    let namespace = &target.namespace;
    let selector = names::selector_text(target.kind, &target.name);
    let mut observed = Observed::default();
    for id in wanted {
        if let Some(live) = cluster.get(namespace, id).await? {
            observed.live.insert(id.clone(), live);
        }
    }
    observed.pods = cluster.list_as::<Pod>(namespace, Kind::Pod, &selector).await?;
    observed.pods.retain(|pod| is_own_pod(target, pod));
    observed.pods.sort_by_key(|pod| pod.metadata.name.clone());
    observed.claims = cluster.list_as(namespace, Kind::PersistentVolumeClaim, &selector).await?;
    let ordinal = |claim: &PersistentVolumeClaim| {
        claim.metadata.name.as_deref().and_then(|name| names::ordinal_of(&target.name, name))
    };
    observed.claims.retain(|claim| ordinal(claim).is_some());
    observed.claims.sort_by_key(ordinal);
    read_config_maps(cluster, target, &selector, wanted, &mut observed).await?;
    read_reports(context, target, &mut observed).await?;
    Ok(observed)
}

/// Pods of the connector's StatefulSet, and pods that a StatefulSet left behind for its successor.
fn is_own_pod(target: &Target, pod: &Pod) -> bool {
    let owners = pod.metadata.owner_references.as_deref().unwrap_or_default();
    owners
        .iter()
        .find(|owner| owner.controller == Some(true))
        .is_none_or(|owner| owner.kind == "StatefulSet" && owner.name == target.name)
}

async fn read_config_maps(
    cluster: &Cluster,
    target: &Target,
    selector: &str,
    wanted: &[ObjectId],
    observed: &mut Observed,
) -> Result<(), Error> {
    let configs = format!("{selector},{}=config", names::COMPONENT_LABEL);
    for map in cluster.list(&target.namespace, Kind::ConfigMap, &configs).await? {
        let meta = &map["metadata"];
        if let (Some(name), Some(uid)) = (meta["name"].as_str(), meta["uid"].as_str()) {
            observed.config_maps.insert(name.to_owned(), uid.to_owned());
        }
    }
    let is_former = |name: &String| !wanted.contains(&ObjectId::new(Kind::ConfigMap, name));
    if observed.config_maps.keys().any(is_former) {
        let revisions = cluster.list(&target.namespace, Kind::ControllerRevision, selector).await?;
        for revision in &revisions {
            let volumes = &revision["data"]["spec"]["template"]["spec"]["volumes"];
            observed.config_maps_in_use.extend(config_maps_of(volumes));
        }
        for pod in &observed.pods {
            let volumes = pod.spec.as_ref().and_then(|spec| serde_json::to_value(&spec.volumes).ok());
            observed.config_maps_in_use.extend(volumes.iter().flat_map(config_maps_of));
        }
    }
    Ok(())
}

/// The ConfigMaps that projected volumes name.
fn config_maps_of(volumes: &Value) -> Vec<String> {
    let volumes = volumes.as_array().map(Vec::as_slice).unwrap_or_default();
    let sources = volumes.iter().filter_map(|volume| volume["projected"]["sources"].as_array()).flatten();
    sources.filter_map(|source| source["configMap"]["name"].as_str().map(str::to_owned)).collect()
}

async fn read_reports(context: &Context, target: &Target, observed: &mut Observed) -> Result<(), Error> {
    let running: Vec<(String, std::net::IpAddr)> = observed
        .pods
        .iter()
        .filter_map(|pod| {
            let status = pod.status.as_ref().filter(|status| status.phase.as_deref() == Some("Running"))?;
            Some((pod.metadata.name.clone()?, status.pod_ip.as_deref()?.parse().ok()?))
        })
        .collect();
    if running.is_empty() {
        return Ok(());
    }
    let id = ObjectId::new(Kind::Secret, names::internal_secret(&target.name));
    let Some(secret) = observed.live.get(&id) else { return Ok(()) };
    let secret: Secret = decode(secret.clone(), &id)?;
    let token = secret.data.as_ref().and_then(|data| data.get("adminToken"));
    let token = token.and_then(|token| String::from_utf8(token.0.clone()).ok()).unwrap_or_default();
    let answers = running.iter().map(|(name, address)| {
        let token = &token;
        async move { (name.clone(), context.nodes.report(*address, token).await) }
    });
    for (name, report) in futures::future::join_all(answers).await {
        if let Some(report) = report {
            observed.reports.insert(name, report);
        }
    }
    Ok(())
}

/// The pods as a roll-out sees them.
#[must_use]
pub fn pod_views(target: &Target, observed: &Observed) -> Vec<PodView> {
    let view = |pod: &Pod| {
        let name = pod.metadata.name.clone()?;
        let labels = pod.metadata.labels.as_ref();
        Some(PodView {
            ordinal: names::ordinal_of(&target.name, &name)?,
            uid: pod.metadata.uid.clone()?,
            revision: labels
                .and_then(|labels| labels.get(names::REVISION_LABEL))
                .cloned()
                .unwrap_or_default(),
            ready_since: ready_since(pod),
            is_deleting: pod.metadata.deletion_timestamp.is_some(),
            is_recovered: observed.reports.get(&name).map(|report| report.recovered),
            name,
        })
    };
    observed.pods.iter().filter_map(view).collect()
}

fn ready_since(pod: &Pod) -> Option<Timestamp> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let ready = conditions.iter().find(|condition| condition.type_ == "Ready")?;
    let since = ready.last_transition_time.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0);
    (ready.status == "True").then_some(since)
}

/// The StatefulSet as a roll-out sees it.
#[must_use]
pub fn set_view(set: &StatefulSet) -> SetView {
    let status = set.status.as_ref();
    SetView {
        is_observed: is_observed(set),
        update_revision: status.and_then(|status| status.update_revision.clone()).unwrap_or_default(),
        replicas: set.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1),
    }
}

/// Whether the StatefulSet's controller has seen its latest generation.
#[must_use]
pub fn is_observed(set: &StatefulSet) -> bool {
    let seen = set.status.as_ref().and_then(|status| status.observed_generation);
    seen.is_some() && seen == set.metadata.generation
}

/// The StatefulSet as storage sees it.
#[must_use]
pub fn live_set(set: &StatefulSet) -> LiveSet {
    let templates = set.spec.as_ref().and_then(|spec| spec.volume_claim_templates.as_ref());
    let size = templates.and_then(|all| all.first()).and_then(requested);
    LiveSet {
        uid: set.metadata.uid.clone().unwrap_or_default(),
        template_size: size.unwrap_or_default(),
        is_deleting: set.metadata.deletion_timestamp.is_some(),
    }
}

/// The claims as storage sees them.
#[must_use]
pub fn claim_views(observed: &Observed) -> Vec<Claim> {
    let view = |claim: &PersistentVolumeClaim| {
        let status = claim.status.as_ref();
        let capacity = status.and_then(|status| status.capacity.as_ref()).and_then(|all| all.get("storage"));
        Some(Claim {
            name: claim.metadata.name.clone()?,
            uid: claim.metadata.uid.clone()?,
            requested: requested(claim)?,
            capacity: capacity.map(|size| size.0.clone()),
            is_bound: status.and_then(|status| status.phase.as_deref()) == Some("Bound"),
            is_deleting: claim.metadata.deletion_timestamp.is_some(),
        })
    };
    observed.claims.iter().filter_map(view).collect()
}

fn requested(claim: &PersistentVolumeClaim) -> Option<String> {
    let resources = claim.spec.as_ref()?.resources.as_ref()?;
    resources.requests.as_ref()?.get("storage").map(|size| size.0.clone())
}

/// The image that the live StatefulSet runs.
#[must_use]
pub fn live_image(set: &StatefulSet) -> Option<Image> {
    let containers = &set.spec.as_ref()?.template.spec.as_ref()?.containers;
    let container = containers.iter().find(|container| container.name == names::CONTAINER)?;
    container.image.as_deref().map(Image::parse)
}
