//! One pass over one connector.
//!
//! The order is fixed: what pods need, then the volumes, then the StatefulSet, then at most one eviction,
//! then what is no longer wanted, then the status. Every write is followed by
//! [`TestExit::after`](crate::context::TestExit) with the step's name, so that tests can end the operator
//! there.

use crate::build::{self, Child};
use crate::cluster::{Dependents, Eviction, Kind, ObjectId};
use crate::context::Context;
use crate::error::Error;
use crate::events::Event;
use crate::names;
use crate::observe::{self, Observed, observe};
use crate::plan::children::{self, ChildStep};
use crate::plan::rollout::{self, RolloutStep, Wait};
use crate::plan::scale::{self, ScaleStep};
use crate::plan::storage::{self, StorageStep};
use crate::status::{self, Findings, Inputs};
use crate::target::Target;
use crate::validate::{self, Settled};
use berth_crds::ConnectorStatus;
use berth_crds::status::StoragePhase;
use jiff::Timestamp;
use serde_json::json;
use std::io::Read as _;
use std::time::{Duration, Instant};

/// When to look again if nothing happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// With the next heartbeat.
    Heartbeat,
    /// After this long.
    After(Duration),
}

/// Runs one pass; `target` has just been read from the API server.
///
/// # Errors
/// When a read or a write fails; everything done so far stands, and the next pass goes on from there.
pub async fn pass(context: &Context, target: &Target) -> Result<Next, Error> {
    if target.is_deleting {
        // Owner references do the rest; a write now could make anew what is being collected.
        return Ok(Next::Heartbeat);
    }
    let set_id = ObjectId::new(Kind::StatefulSet, &target.name);
    let live_set = context.cluster.get(&target.namespace, &set_id).await?;
    let own_set = live_set.filter(|live| children::is_ours(target, live));
    let live_image = own_set.and_then(|live| serde_json::from_value(live).ok());
    let live_image = live_image.as_ref().and_then(observe::live_image);
    match validate::settle(target, &context.release, live_image.as_ref()) {
        Err(invalid) => {
            let ids = fixed_ids(target);
            let observed = observe(context, target, &ids).await?;
            let findings = Findings::default();
            let now = Timestamp::now();
            let inputs =
                Inputs { target, settled: Err(&invalid), observed: &observed, findings: &findings, now };
            report(context, target, status::compute(&inputs)).await?;
            Ok(Next::Heartbeat)
        }
        Ok(settled) => carry_out(context, target, &settled).await,
    }
}

/// Runs a pass for settled values, wherever they come from.
///
/// # Errors
/// As [`pass`].
pub async fn carry_out(context: &Context, target: &Target, settled: &Settled) -> Result<Next, Error> {
    let children = build::children(target, settled);
    let mut ids: Vec<ObjectId> = children.iter().map(|child| child.id.clone()).collect();
    ids.extend(build::possible(target).into_iter().filter(|id| !children.iter().any(|c| c.id == *id)));
    ids.push(ObjectId::new(Kind::Secret, names::internal_secret(&target.name)));
    let observed = observe(context, target, &ids).await?;
    Pass { context, target, settled, children, observed, findings: Findings::default() }.run().await
}

/// What is read when the children cannot be built.
fn fixed_ids(target: &Target) -> Vec<ObjectId> {
    vec![
        ObjectId::new(Kind::StatefulSet, &target.name),
        ObjectId::new(Kind::Service, &target.name),
        ObjectId::new(Kind::Secret, names::internal_secret(&target.name)),
    ]
}

struct Pass<'a> {
    context: &'a Context,
    target: &'a Target,
    settled: &'a Settled,
    children: Vec<Child>,
    observed: Observed,
    findings: Findings,
}

impl Pass<'_> {
    async fn run(&mut self) -> Result<Next, Error> {
        if self.target.is_paused {
            self.finish_recreation().await?;
        } else if self.apply_what_pods_need().await? {
            let goes_on = self.resize_volumes().await?;
            if goes_on && self.apply_stateful_set().await? {
                self.replace_pods().await?;
                self.remove_unwanted().await?;
            }
        }
        let status = status::compute(&self.inputs());
        let phase = status.storage.as_ref().and_then(|storage| storage.phase);
        report(self.context, self.target, status).await?;
        Ok(self.next(phase))
    }

    fn inputs(&self) -> Inputs<'_> {
        Inputs {
            target: self.target,
            settled: Ok(self.settled),
            observed: &self.observed,
            findings: &self.findings,
            now: Timestamp::now(),
        }
    }

    /// Everything but the StatefulSet; false when it may not be touched yet.
    async fn apply_what_pods_need(&mut self) -> Result<bool, Error> {
        self.make_internal_secret().await?;
        for child in self.children.clone() {
            if child.id.kind != Kind::StatefulSet {
                self.apply_child(&child).await?;
            }
        }
        Ok(self.findings.taken.is_empty() && self.findings.leaving.is_empty())
    }

    async fn make_internal_secret(&mut self) -> Result<(), Error> {
        let mut failure = None;
        let secret = build::internal_secret(self.target, || {
            let mut bytes = [0; 32];
            let read = std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
            failure = failure.take().or_else(|| read.err());
            bytes
        });
        if let Some(error) = failure {
            return Err(Error::Random(error));
        }
        let live = self.observed.live.get(&secret.id);
        match children::plan(self.target, &secret, live) {
            // Tokens that are there stay: pods hold them.
            ChildStep::Keep | ChildStep::Patch(_) => Ok(()),
            ChildStep::Create => {
                let made =
                    self.context.cluster.create(&self.target.namespace, &secret.id, &secret.body).await?;
                self.observed.live.insert(secret.id, made);
                self.context.exit.after("make-internal-secret")
            }
            ChildStep::WaitUntilGone => {
                self.findings.leaving.push(secret.id.to_string());
                Ok(())
            }
            ChildStep::Taken(owner) => {
                self.findings.taken.push(format!("{} {owner}", secret.id));
                Ok(())
            }
        }
    }

    async fn apply_child(&mut self, child: &Child) -> Result<(), Error> {
        let step = children::plan(self.target, child, self.observed.live.get(&child.id));
        let why = match step {
            ChildStep::Keep => return Ok(()),
            ChildStep::WaitUntilGone => {
                self.findings.leaving.push(child.id.to_string());
                return Ok(());
            }
            ChildStep::Taken(owner) => {
                self.findings.taken.push(format!("{} {owner}", child.id));
                return Ok(());
            }
            ChildStep::Create => "is not there".to_owned(),
            ChildStep::Patch(path) => format!("differs in {path}"),
        };
        tracing::info!(connector = self.target.name, child = %child.id, why, "Child applied");
        let cluster = &self.context.cluster;
        let applied = match cluster.apply(&self.target.namespace, &child.id, &child.body).await {
            Err(error) if error.status().is_some_and(|status| status.code == 422) => {
                let live = self.observed.live.get(&child.id);
                let Some(repair) = live.and_then(|live| children::repair(child, live)) else {
                    return Err(error);
                };
                cluster.merge(&self.target.namespace, &child.id, &repair).await?;
                cluster.apply(&self.target.namespace, &child.id, &child.body).await?
            }
            other => other?,
        };
        self.observed.live.insert(child.id.clone(), applied);
        self.context.metrics.child_writes.inc();
        self.context.exit.after(&format!("apply-{}", child.id.kind.as_str().to_lowercase()))
    }

    fn storage_step(&self) -> StorageStep {
        let set = self.observed.stateful_set(self.target);
        let live = set.as_ref().map(observe::live_set);
        let claims = observe::claim_views(&self.observed);
        let recorded = self.target.status.storage.as_ref().and_then(|storage| storage.phase);
        storage::plan(&self.settled.storage_size, live.as_ref(), &claims, recorded)
    }

    /// Takes the steps of the storage that can be taken now; false when the StatefulSet may not be applied.
    async fn resize_volumes(&mut self) -> Result<bool, Error> {
        // Each round asks one claim, so there are at most as many rounds as claims.
        for _ in 0..=self.observed.claims.len() {
            let step = self.storage_step();
            self.findings.storage = Some(step.clone());
            match step {
                StorageStep::Grow { claim, uid } => {
                    if !self.grow(&claim, &uid).await? {
                        return Ok(true);
                    }
                }
                StorageStep::Steady | StorageStep::WaitForBinding | StorageStep::Recreate => return Ok(true),
                // The status is written at the end of this pass; the next one deletes the set.
                StorageStep::MarkRecreating => return Ok(false),
                StorageStep::Orphan { uid } => return self.orphan(&uid).await.map(|()| false),
            }
        }
        Ok(true)
    }

    /// Asks one claim for more; false when it is refused or rests after a refusal.
    async fn grow(&mut self, claim: &str, uid: &str) -> Result<bool, Error> {
        let (context, target) = (self.context, self.target);
        if context.backoffs.expansion_rests(&target.uid, target.generation, Instant::now()) {
            self.findings.expansion_refused = Some(self.refusal_so_far());
            return Ok(false);
        }
        let wanted = &self.settled.storage_size;
        let id = ObjectId::new(Kind::PersistentVolumeClaim, claim);
        let body = json!({
            "metadata": { "uid": uid },
            "spec": { "resources": { "requests": { "storage": wanted } } },
        });
        match context.cluster.merge(&target.namespace, &id, &body).await {
            Ok(grown) => {
                let grown = crate::cluster::decode(grown, &id)?;
                let place =
                    self.observed.claims.iter_mut().find(|c| c.metadata.name.as_deref() == Some(claim));
                if let Some(place) = place {
                    *place = grown;
                }
                let note = format!("volume claim {claim} is asked for {wanted}");
                context.events.publish(target, Event::normal("VolumeGrowing", "Resize", note)).await;
                context.exit.after("grow-volume")?;
                Ok(true)
            }
            Err(error) if error.status().is_some_and(|status| [403, 422].contains(&status.code)) => {
                let words = error.status().map(|status| status.message.clone()).unwrap_or_default();
                context.backoffs.expansion_refused(&target.uid, target.generation, Instant::now());
                self.findings.expansion_refused = Some(words);
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// While a refusal rests, the status goes on saying what the server said.
    fn refusal_so_far(&self) -> String {
        let conditions = self.target.status.conditions.as_deref().unwrap_or_default();
        let resizing = conditions.iter().find(|condition| condition.type_ == "Resizing");
        let words = resizing.filter(|condition| condition.reason == "ExpansionRefused");
        words.map_or_else(|| "a larger volume was refused".to_owned(), |condition| condition.message.clone())
    }

    async fn orphan(&self, uid: &str) -> Result<(), Error> {
        let id = ObjectId::new(Kind::StatefulSet, &self.target.name);
        let note =
            format!("{id} is made anew for volumes of {}; its pods go on running", self.settled.storage_size);
        self.context.events.publish(self.target, Event::normal("Recreating", "Resize", note)).await;
        self.context.cluster.delete(&self.target.namespace, &id, uid, Dependents::Orphan).await?;
        self.context.exit.after("orphan-statefulset")
    }

    /// A re-creation that has begun is ended even when the connector is paused: pods without a set are
    /// nobody's.
    async fn finish_recreation(&mut self) -> Result<(), Error> {
        let step = self.storage_step();
        self.findings.storage = Some(step.clone());
        if step == StorageStep::Recreate {
            self.apply_stateful_set().await?;
        }
        Ok(())
    }

    /// False when the name is taken, or is not free yet.
    async fn apply_stateful_set(&mut self) -> Result<bool, Error> {
        let child = self.children.iter().find(|child| child.id.kind == Kind::StatefulSet).cloned();
        let child = child.expect("the StatefulSet is always built");
        let live = self.observed.live.get(&child.id);
        let (child, changed) = match live {
            Some(live) if children::is_ours(self.target, live) => children::keep_fixed_fields(&child, live),
            _ => (child, None),
        };
        self.findings.fixed_field = changed;
        let is_new = live.is_none();
        let live_replicas = live
            .and_then(|live| live["spec"]["replicas"].as_i64())
            .and_then(|count| i32::try_from(count).ok());
        let step = children::plan(self.target, &child, live);
        let was_applied = live.is_some_and(|live| children::applied_hash(live) == Some(&child.hash));
        if step == ChildStep::Patch("spec.replicas".to_owned()) && was_applied {
            // We wrote what we want and somebody else wrote over it: most likely an autoscaler with the
            // wrong target.
            let note =
                "somebody changed the number of pods of the StatefulSet; it is put back: scale the connector";
            let event = Event::warning("ForeignScaler", "Scale", note.to_owned());
            self.context.events.publish(self.target, event).await;
        } else if matches!(step, ChildStep::Create | ChildStep::Patch(_)) {
            self.announce(is_new, live_replicas).await;
        }
        self.apply_child(&child).await?;
        Ok(self.findings.taken.is_empty() && self.findings.leaving.is_empty())
    }

    /// Says what a write to the StatefulSet is about to mean.
    async fn announce(&self, is_new: bool, live_replicas: Option<i32>) {
        let Self { context, target, settled, .. } = self;
        let recreated = self.findings.storage == Some(StorageStep::Recreate);
        if is_new && !recreated {
            let older = |claim: &&k8s_openapi::api::core::v1::PersistentVolumeClaim| {
                claim.metadata.creation_timestamp.as_ref().is_some_and(|time| time.0 < target.created)
            };
            for claim in self.observed.claims.iter().filter(older) {
                let name = claim.metadata.name.as_deref().unwrap_or_default();
                let note =
                    format!("volume claim {name} of an earlier connector is used again, with what is in it");
                context.events.publish(target, Event::normal("VolumeReused", "Create", note)).await;
            }
            let note =
                format!("StatefulSet {} is made with image {}", target.name, settled.image.reference());
            context.events.publish(target, Event::normal("Created", "Create", note)).await;
        }
        match scale::plan(live_replicas, settled.replicas) {
            ScaleStep::Steady => {}
            ScaleStep::Up => {
                let note = format!("pods: {} to {}", live_replicas.unwrap_or(0), settled.replicas);
                context.events.publish(target, Event::normal("ScaledUp", "Scale", note)).await;
            }
            ScaleStep::ToZero => {
                let reason = if target.spec.suspend == Some(true) { "Suspended" } else { "ScaledToZero" };
                for pod in observe::pod_views(target, &self.observed) {
                    let claim = names::claim(&target.name, pod.ordinal);
                    let waits = scale::what_waits(&claim, self.observed.reports.get(&pod.name));
                    let note = format!("pod {} is taken away: {waits}", pod.name);
                    context.events.publish(target, Event::normal(reason, "Scale", note)).await;
                }
            }
        }
    }

    async fn replace_pods(&mut self) -> Result<(), Error> {
        let Some(set) = self.observed.stateful_set(self.target) else { return Ok(()) };
        let pods = observe::pod_views(self.target, &self.observed);
        let update = self.target.spec.update.clone().unwrap_or_default();
        let min_ready = update.min_ready_seconds.and_then(|seconds| u32::try_from(seconds).ok()).unwrap_or(0);
        let step = rollout::plan(&observe::set_view(&set), &pods, min_ready, Timestamp::now());
        self.findings.rollout = Some(step.clone());
        let RolloutStep::Evict { pod, uid } = step else { return Ok(()) };
        let outcome = self.context.cluster.evict(&self.target.namespace, &pod, &uid).await?;
        if outcome == Eviction::Done {
            let note = format!("pod {pod} is replaced: what it reads at start has changed");
            let event = Event::normal("PodReplaced", "Evict", note);
            self.context.events.publish(self.target, event).await;
            self.context.metrics.evictions.inc();
            self.context.exit.after("evict")?;
        }
        self.findings.eviction = Some(outcome);
        Ok(())
    }

    async fn remove_unwanted(&self) -> Result<(), Error> {
        let (context, target) = (self.context, self.target);
        for id in build::possible(target) {
            let wanted = self.children.iter().any(|child| child.id == id);
            let Some(live) = self.observed.live.get(&id).filter(|_| !wanted) else { continue };
            if children::is_ours(target, live) && !children::is_being_deleted(live) {
                let uid = live["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
                context.cluster.delete(&target.namespace, &id, &uid, Dependents::Background).await?;
                tracing::info!(connector = target.name, child = %id, "Child deleted, no longer wanted");
                context.exit.after("delete-child")?;
            }
        }
        let current = names::config_map(&target.name, &self.settled.config_hash);
        for (name, uid) in &self.observed.config_maps {
            if *name != current && !self.observed.config_maps_in_use.contains(name) {
                let id = ObjectId::new(Kind::ConfigMap, name);
                context.cluster.delete(&target.namespace, &id, uid, Dependents::Background).await?;
                context.exit.after("delete-config")?;
            }
        }
        Ok(())
    }

    fn next(&self, phase: Option<StoragePhase>) -> Next {
        let seconds = |seconds: u64| Next::After(Duration::from_secs(seconds));
        if !self.findings.taken.is_empty() {
            return seconds(20);
        }
        if !self.findings.leaving.is_empty() {
            return seconds(2);
        }
        match &self.findings.storage {
            Some(StorageStep::MarkRecreating | StorageStep::Orphan { .. } | StorageStep::Recreate) => {
                return seconds(1);
            }
            Some(StorageStep::WaitForBinding) => return seconds(10),
            Some(StorageStep::Steady | StorageStep::Grow { .. }) | None => {}
        }
        match (&self.findings.eviction, &self.findings.rollout) {
            (Some(Eviction::Blocked(_)), _) => return seconds(10),
            (Some(Eviction::Conflicting(_)), _) => return seconds(60),
            (_, Some(RolloutStep::Wait(Wait::TooFresh(_, left)))) => return seconds(u64::from(*left)),
            (_, Some(RolloutStep::Wait(Wait::NotRecovered(_)))) => return seconds(5),
            (_, Some(RolloutStep::Wait(_) | RolloutStep::Evict { .. })) => return seconds(30),
            (_, Some(RolloutStep::Complete) | None) => {}
        }
        match phase {
            Some(StoragePhase::Growing) => seconds(30),
            Some(StoragePhase::Pending) if self.settled.replicas > 0 => seconds(30),
            _ => Next::Heartbeat,
        }
    }
}

/// Writes the status when it differs from what is there, and the events that follow from it.
///
/// # Errors
/// When the write fails.
pub async fn report(context: &Context, target: &Target, status: ConnectorStatus) -> Result<(), Error> {
    if status == target.status {
        return Ok(());
    }
    for event in status::transition_events(&target.status, &status) {
        context.events.publish(target, event).await;
    }
    let value = serde_json::to_value(&status).expect("a status is plain data");
    context.cluster.apply_status(target, &value).await?;
    context.metrics.status_writes.inc();
    context.exit.after("status")
}
