//! What a pass reports: a pure function of what was read and done, equal for equal input.

use crate::cluster::Eviction;
use crate::events::Event;
use crate::names;
use crate::observe::{Observed, is_observed, pod_views, set_view};
use crate::plan::rollout::{RolloutStep, Wait};
use crate::plan::storage::{self, StorageStep};
use crate::target::Target;
use crate::validate::{Invalid, Settled};
use berth_crds::status::{Endpoint, StoragePhase};
use berth_crds::{ConditionType, ConnectorStatus, Reason};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// What a pass found out and did, besides what it read.
#[derive(Clone, Debug, Default)]
pub struct Findings {
    /// Children whose names belong to somebody else, in words.
    pub taken: Vec<String>,
    /// Children that have to go before they can be made, in words.
    pub leaving: Vec<String>,
    /// A field of the StatefulSet that is not as wanted and cannot be changed.
    pub fixed_field: Option<&'static str>,
    /// The last step of the storage.
    pub storage: Option<StorageStep>,
    /// The server's words when it refused a larger volume.
    pub expansion_refused: Option<String>,
    /// The last step of the roll-out.
    pub rollout: Option<RolloutStep>,
    /// What the last eviction came to.
    pub eviction: Option<Eviction>,
}

/// Everything that a status is made from.
pub struct Inputs<'a> {
    /// The connector, with its status so far.
    pub target: &'a Target,
    /// Its settled values, or why there are none.
    pub settled: Result<&'a Settled, &'a Invalid>,
    /// What was read, brought up to date with what was written.
    pub observed: &'a Observed,
    /// What was found and done.
    pub findings: &'a Findings,
    /// The time, for transitions and deadlines.
    pub now: Timestamp,
}

/// How long a pod may wait for its volume before a person should look, in seconds.
pub const STORAGE_PATIENCE_SECONDS: i64 = 30;
/// How long a pod may be overdue before a person should look, in seconds.
const TERMINATION_PATIENCE_SECONDS: i64 = 60;

/// Makes the status.
#[must_use]
pub fn compute(inputs: &Inputs<'_>) -> ConnectorStatus {
    let Inputs { target, settled, observed, findings, .. } = inputs;
    let set = observed.stateful_set(target);
    let set_status = set.as_ref().and_then(|set| set.status.as_ref());
    let updated = set.as_ref().map(|set| {
        let view = set_view(set);
        pod_views(target, observed).iter().filter(|pod| pod.revision == view.update_revision).count()
    });
    let old = &target.status;
    let settled = settled.as_ref().ok();
    let storage = settled.map(|settled| {
        let step = findings.storage.clone().unwrap_or(StorageStep::Steady);
        let claims = crate::observe::claim_views(observed);
        storage::status(&settled.storage_size, &claims, &step, findings.expansion_refused.is_some())
    });
    ConnectorStatus {
        observed_generation: Some(target.generation),
        replicas: Some(set_status.map_or(0, |status| status.replicas)),
        ready_replicas: Some(set_status.and_then(|status| status.ready_replicas).unwrap_or(0)),
        updated_replicas: Some(updated.and_then(|count| i32::try_from(count).ok()).unwrap_or(0)),
        selector: Some(names::selector_text(target.kind, &target.name)),
        version: settled.map(|settled| settled.image.version.clone()).or_else(|| old.version.clone()),
        broker: Some("embedded".to_owned()),
        endpoints: settled
            .map(|settled| endpoints(target, settled, observed.client_service(target).as_ref()))
            .or_else(|| old.endpoints.clone()),
        storage: storage.or_else(|| old.storage.clone()),
        conditions: Some(conditions(inputs, set.as_ref())),
    }
}

/// A condition without what is the same for all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Verdict {
    type_: ConditionType,
    /// `None` is Unknown.
    is_true: Option<bool>,
    reason: Reason,
    message: String,
}

impl Verdict {
    fn new(type_: ConditionType, is_true: bool, reason: Reason, message: impl Into<String>) -> Self {
        Self { type_, is_true: Some(is_true), reason, message: message.into() }
    }
}

fn conditions(inputs: &Inputs<'_>, set: Option<&StatefulSet>) -> Vec<Condition> {
    let progressing = progressing(inputs, set);
    let degraded = degraded(inputs);
    let stalled =
        is_terminal(degraded.reason).then(|| Verdict { type_: ConditionType::Stalled, ..degraded.clone() });
    let reconciling = (progressing.is_true == Some(true) && stalled.is_none())
        .then(|| Verdict { type_: ConditionType::Reconciling, ..progressing.clone() });
    let mut verdicts = vec![
        ready(inputs, set),
        progressing,
        degraded,
        broker_ready(inputs),
        scaling_down(inputs, set),
        resizing(inputs),
        paused(inputs.target),
    ];
    verdicts.extend(reconciling);
    verdicts.extend(stalled);
    verdicts.into_iter().map(|verdict| condition(inputs, verdict)).collect()
}

fn condition(inputs: &Inputs<'_>, verdict: Verdict) -> Condition {
    let status = match verdict.is_true {
        Some(true) => "True",
        Some(false) => "False",
        None => "Unknown",
    };
    let old = find(&inputs.target.status, verdict.type_.as_str()).filter(|old| old.status == status);
    Condition {
        type_: verdict.type_.as_str().to_owned(),
        status: status.to_owned(),
        reason: verdict.reason.as_str().to_owned(),
        message: verdict.message,
        observed_generation: Some(inputs.target.generation),
        last_transition_time: old
            .map_or_else(|| Time(to_seconds(inputs.now)), |old| old.last_transition_time.clone()),
    }
}

/// Times in the API have whole seconds; others would differ from what is read back.
fn to_seconds(now: Timestamp) -> Timestamp {
    Timestamp::from_second(now.as_second()).unwrap_or(now)
}

fn find<'a>(status: &'a ConnectorStatus, type_: &str) -> Option<&'a Condition> {
    status.conditions.as_ref()?.iter().find(|condition| condition.type_ == type_)
}

fn ready(inputs: &Inputs<'_>, set: Option<&StatefulSet>) -> Verdict {
    let verdict =
        |is_true, reason, message: String| Verdict::new(ConditionType::Ready, is_true, reason, message);
    let Inputs { target, findings, .. } = inputs;
    if !findings.taken.is_empty() {
        return verdict(false, Reason::NameTaken, taken_message(&findings.taken));
    }
    if target.spec.suspend == Some(true) {
        return verdict(false, Reason::Suspended, "suspended: unset spec.suspend to serve again".to_owned());
    }
    let wanted = target.spec.replicas;
    if wanted <= 0 {
        return verdict(false, Reason::ScaledToZero, "set spec.replicas to 1 to serve again".to_owned());
    }
    if !findings.leaving.is_empty() {
        let message = format!("waiting until {} is gone", findings.leaving.join(" and "));
        return verdict(false, Reason::ChildTerminating, message);
    }
    let Some(set) = set.filter(|set| is_observed(set)) else {
        return verdict(false, Reason::Pending, "the StatefulSet has not been looked at yet".to_owned());
    };
    let there = set.status.as_ref().and_then(|status| status.ready_replicas).unwrap_or(0);
    let message = format!("{there} of {wanted} pods are ready");
    if there >= (wanted - 1).max(1) {
        return verdict(true, Reason::Available, message);
    }
    verdict(false, Reason::PodsNotReady, message)
}

fn progressing(inputs: &Inputs<'_>, set: Option<&StatefulSet>) -> Verdict {
    let verdict =
        |is_true, reason, message: String| Verdict::new(ConditionType::Progressing, is_true, reason, message);
    let Inputs { target, findings, observed, .. } = inputs;
    if inputs.settled.is_err() || target.is_paused {
        return verdict(false, Reason::Idle, String::new());
    }
    match &findings.eviction {
        Some(Eviction::Blocked(words)) => return verdict(true, Reason::EvictionBlocked, words.clone()),
        Some(Eviction::Conflicting(words)) => {
            return verdict(true, Reason::EvictionBlocked, words.clone());
        }
        Some(Eviction::Done | Eviction::Gone) | None => {}
    }
    let Some(set) = set else {
        return verdict(true, Reason::Scaling, "the StatefulSet is not there yet".to_owned());
    };
    let view = set_view(set);
    let pods = pod_views(target, observed);
    let outdated = pods.iter().filter(|pod| pod.revision != view.update_revision).count();
    if !view.is_observed {
        return verdict(true, Reason::RollingOut, "the StatefulSet has not been looked at yet".to_owned());
    }
    if outdated > 0 {
        let message = format!("{outdated} of {} pods have yet to be replaced", pods.len());
        return verdict(true, Reason::RollingOut, message);
    }
    if i64::try_from(pods.len()).ok() != Some(i64::from(view.replicas)) {
        let message = format!("{} of {} pods are there", pods.len(), view.replicas);
        return verdict(true, Reason::Scaling, message);
    }
    match &findings.rollout {
        Some(RolloutStep::Wait(Wait::NotReady(pod))) => {
            verdict(true, Reason::PodsNotReady, format!("pod {pod} is not ready"))
        }
        _ => verdict(false, Reason::Idle, String::new()),
    }
}

fn degraded(inputs: &Inputs<'_>) -> Verdict {
    let verdict = |reason, message: String| Verdict::new(ConditionType::Degraded, true, reason, message);
    let Inputs { target, findings, .. } = inputs;
    if let Err(invalid) = &inputs.settled {
        return verdict(invalid.reason, invalid.message.clone());
    }
    if let Some(field) = findings.fixed_field {
        let name = &target.name;
        let message = format!(
            "StatefulSet {name} has another spec.{field} than wanted, and Kubernetes never changes it: \
            delete it \
             with --cascade=orphan, and it is made anew around its pods"
        );
        return verdict(Reason::ImmutableFieldChanged, message);
    }
    if !findings.taken.is_empty() {
        return verdict(Reason::NameTaken, taken_message(&findings.taken));
    }
    if let Some(Eviction::Conflicting(words)) = &findings.eviction {
        return verdict(Reason::ConflictingBudgets, words.clone());
    }
    if let Some(pod) = inputs.observed.pods.iter().find(|pod| is_stuck(pod, inputs.now)) {
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or("unknown");
        let message = format!(
            "pod {name} should have ended and its node {node} does not confirm it; when that node is \
            certainly \
             off: kubectl taint node {node} node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
        );
        return verdict(Reason::PodStuckTerminating, message);
    }
    if let Some(claim) = missing_volume(inputs) {
        let message = format!("no volume is to be had for {claim}: kubectl describe pvc {claim} says why");
        return verdict(Reason::StoragePending, message);
    }
    if let Some(words) = &findings.expansion_refused {
        return verdict(Reason::ExpansionRefused, words.clone());
    }
    Verdict::new(ConditionType::Degraded, false, Reason::Idle, String::new())
}

/// Reasons that nothing but a change by a person takes away.
const fn is_terminal(reason: Reason) -> bool {
    matches!(reason, Reason::InvalidSpec | Reason::InvalidPodTemplate | Reason::ImmutableFieldChanged)
}

/// The deletion timestamp is when the pod should have been gone at the latest.
fn is_stuck(pod: &Pod, now: Timestamp) -> bool {
    let deadline = pod.metadata.deletion_timestamp.as_ref().map(|time| time.0.as_second());
    deadline.is_some_and(|deadline| now.as_second() - deadline > TERMINATION_PATIENCE_SECONDS)
}

fn missing_volume(inputs: &Inputs<'_>) -> Option<String> {
    let waiting = |name: &str| {
        let pod = inputs.observed.pods.iter().find(|pod| pod.metadata.name.as_deref() == Some(name))?;
        let age = inputs.now.as_second() - pod.metadata.creation_timestamp.as_ref()?.0.as_second();
        let scheduled =
            pod.status.as_ref()?.conditions.as_ref()?.iter().find(|c| c.type_ == "PodScheduled")?;
        (scheduled.status == "False" && age >= STORAGE_PATIENCE_SECONDS).then_some(())
    };
    let claims = crate::observe::claim_views(inputs.observed);
    let pending = claims.iter().find(|claim| {
        let pod = claim.name.strip_prefix("data-").unwrap_or_default();
        !claim.is_bound && waiting(pod).is_some()
    });
    pending.map(|claim| claim.name.clone())
}

fn broker_ready(inputs: &Inputs<'_>) -> Verdict {
    let verdict = |is_true, reason, message: String| Verdict {
        type_: ConditionType::BrokerReady,
        is_true,
        reason,
        message,
    };
    let reports = &inputs.observed.reports;
    if reports.is_empty() {
        return verdict(None, Reason::BrokerUnknown, "no pod could be asked".to_owned());
    }
    if reports.values().any(|report| report.broker.ready) {
        return verdict(Some(true), Reason::BrokerAvailable, String::new());
    }
    let why = reports.values().find_map(|report| report.broker.reason.clone()).unwrap_or_default();
    verdict(Some(false), Reason::BrokerUnavailable, why)
}

fn scaling_down(inputs: &Inputs<'_>, set: Option<&StatefulSet>) -> Verdict {
    let there = set.and_then(|set| set.status.as_ref()).map_or(0, |status| status.replicas);
    let wanted = inputs.settled.as_ref().map_or(there, |settled| settled.replicas);
    if there > wanted {
        let message = format!("{there} pods on the way to {wanted}");
        return Verdict::new(ConditionType::ScalingDown, true, Reason::Scaling, message);
    }
    Verdict::new(ConditionType::ScalingDown, false, Reason::Idle, "")
}

fn resizing(inputs: &Inputs<'_>) -> Verdict {
    let verdict =
        |is_true, reason, message: &str| Verdict::new(ConditionType::Resizing, is_true, reason, message);
    if let Some(words) = &inputs.findings.expansion_refused {
        return verdict(false, Reason::ExpansionRefused, words);
    }
    let Ok(settled) = inputs.settled else { return verdict(false, Reason::Idle, "") };
    let step = inputs.findings.storage.clone().unwrap_or(StorageStep::Steady);
    let claims = crate::observe::claim_views(inputs.observed);
    let status = storage::status(&settled.storage_size, &claims, &step, false);
    match (status.phase, &step) {
        (Some(StoragePhase::Recreating), _) => {
            verdict(true, Reason::Recreating, "the StatefulSet is being made anew; pods go on running")
        }
        (Some(StoragePhase::Growing), _) => verdict(true, Reason::VolumesGrowing, "volumes are growing"),
        (_, StorageStep::WaitForBinding) => {
            verdict(true, Reason::VolumesPending, "volumes that are not bound yet cannot grow")
        }
        _ => verdict(false, Reason::Idle, ""),
    }
}

fn paused(target: &Target) -> Verdict {
    if target.is_paused {
        let message = "remove the annotation berth.dev/paused to go on";
        return Verdict::new(ConditionType::Paused, true, Reason::PausedByAnnotation, message);
    }
    Verdict::new(ConditionType::Paused, false, Reason::NotPaused, "")
}

fn taken_message(taken: &[String]) -> String {
    format!("{}: rename or delete it, or give the connector another name", taken.join("; "))
}

fn endpoints(target: &Target, settled: &Settled, service: Option<&Service>) -> Vec<Endpoint> {
    let balancer = service
        .and_then(|service| service.status.as_ref()?.load_balancer.as_ref()?.ingress.as_ref()?.first())
        .and_then(|ingress| ingress.hostname.clone().or_else(|| ingress.ip.clone()));
    let host = balancer.unwrap_or_else(|| format!("{}.{}.svc", target.name, target.namespace));
    let host = if host.contains(':') { format!("[{host}]") } else { host };
    let entry = |port: &crate::validate::ClientPort| Endpoint {
        protocol: port.protocol.to_owned(),
        address: format!("{host}:{}", port.number),
    };
    settled.ports.iter().map(entry).collect()
}

/// The same status with the words of a failed pass: what was true before is left as it was.
#[must_use]
pub fn with_failure(target: &Target, words: &str, now: Timestamp) -> ConnectorStatus {
    let mut status = target.status.clone();
    status.observed_generation = Some(target.generation);
    let mut conditions = status.conditions.take().unwrap_or_default();
    let old = conditions.iter().find(|condition| condition.type_ == "Degraded" && condition.status == "True");
    let since = old.map_or_else(|| Time(to_seconds(now)), |old| old.last_transition_time.clone());
    let failure = |type_: ConditionType, status: &str, reason: Reason, words: &str, since: Time| Condition {
        type_: type_.as_str().to_owned(),
        status: status.to_owned(),
        reason: reason.as_str().to_owned(),
        message: words.to_owned(),
        observed_generation: Some(target.generation),
        last_transition_time: since,
    };
    // Without conditions at all, tools that wait would take the connector for ready.
    if !conditions.iter().any(|condition| condition.type_ == "Ready") {
        let since = Time(to_seconds(now));
        let words = "the first pass has not come to its end";
        conditions.insert(0, failure(ConditionType::Ready, "False", Reason::Pending, words, since));
    }
    conditions.retain(|condition| condition.type_ != "Degraded");
    conditions.push(failure(ConditionType::Degraded, "True", Reason::ApplyFailed, words, since));
    conditions.sort_by_key(|condition| {
        ConditionType::ALL.iter().position(|type_| type_.as_str() == condition.type_)
    });
    status.conditions = Some(conditions);
    status
}

/// Events about conditions that have changed.
#[must_use]
pub fn transition_events(old: &ConnectorStatus, new: &ConnectorStatus) -> Vec<Event> {
    let changed = |type_: ConditionType| {
        let (old, new) = (find(old, type_.as_str()), find(new, type_.as_str())?);
        let same = old.is_some_and(|old| old.status == new.status && old.reason == new.reason);
        (!same).then_some(new)
    };
    let mut events = Vec::new();
    if let Some(ready) = changed(ConditionType::Ready).filter(|ready| ready.status == "True") {
        events.push(Event::normal("Ready", "Report", ready.message.clone()));
    }
    if let Some(degraded) = changed(ConditionType::Degraded).filter(|degraded| degraded.status == "True") {
        let known = Reason::ALL.iter().map(|reason| reason.as_str()).find(|word| *word == degraded.reason);
        events.push(Event::warning(known.unwrap_or("Degraded"), "Report", degraded.message.clone()));
    }
    if let Some(blocked) = changed(ConditionType::Progressing).filter(|new| new.reason == "EvictionBlocked") {
        events.push(Event::warning("EvictionBlocked", "Evict", blocked.message.clone()));
    }
    if let Some(paused) = changed(ConditionType::Paused).filter(|paused| paused.status == "True") {
        events.push(Event::normal("Paused", "Report", paused.message.clone()));
    }
    events
}

#[cfg(test)]
mod tests;
