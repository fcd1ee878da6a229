//! The watches and the queue: which connector is looked at when.
//!
//! A pass runs when a connector or something that belongs to it changes, when an earlier pass asked for
//! it, and with every heartbeat. One connector that cannot be read or carried out never keeps another one
//! waiting: the guard around decoding lets the watch go on, and pauses are kept for each connector.

use crate::census::Count;
use crate::context::Context;
use crate::error::Error;
use crate::events::Event;
use crate::metrics::Failure;
use crate::names::{INSTANCE_LABEL, KIND_LABEL, MANAGED_BY, MANAGED_BY_LABEL};
use crate::reconcile::{Next, pass, report};
use crate::status;
use crate::target::{Connector, Target};
use futures::{Stream, StreamExt as _};
use jiff::Timestamp;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{
    ConfigMap, ObjectReference, PersistentVolumeClaim, Pod, Service, ServiceAccount,
};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::core::{DeserializeGuard, PartialObjectMeta};
use kube::runtime::controller::{self, Action, Controller};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher;
use kube::{Api, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The longest a pass may take.
const PASS_SECONDS_MAX: Duration = Duration::from_secs(60);
/// Passes at one time.
const CONCURRENCY: u16 = 8;

/// Runs the controller of one kind in one namespace, or in all of them, until `stop` ends.
pub async fn run<K>(
    context: Arc<Context>,
    namespace: Option<String>,
    stop: impl Future<Output = ()> + Send + Sync + 'static,
) where
    K: Connector<Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    let scope = Scope { kind: K::kind(&()).into_owned(), namespace: namespace.clone() };
    let place = Place { client: context.cluster.client().clone(), namespace };
    let main: Api<DeserializeGuard<K>> = place.api();
    let controller = Controller::new(main, watcher::Config::default());
    let store = controller.store();
    let ours = watcher::Config::default().labels(&format!("{MANAGED_BY_LABEL}={MANAGED_BY}"));
    let controller = controller
        .with_config(controller::Config::default().concurrency(CONCURRENCY))
        .owns(place.api::<StatefulSet>(), ours.clone())
        .owns(place.api::<Service>(), ours.clone())
        .owns(place.api::<ConfigMap>(), ours.clone())
        .owns(place.api::<ServiceAccount>(), ours.clone())
        .owns(place.api::<Role>(), ours.clone())
        .owns(place.api::<RoleBinding>(), ours.clone())
        .owns(place.api::<PodDisruptionBudget>(), ours.clone())
        .watches(place.api::<PartialObjectMeta<Pod>>(), ours.clone(), |pod| by_labels::<K>(&pod))
        .watches(place.api::<PersistentVolumeClaim>(), ours, |claim| by_labels::<K>(&claim))
        .reconcile_all_on(heartbeats(context.clone(), scope, store))
        .graceful_shutdown_on(stop);
    let results = controller.run(reconcile::<K>, error_policy::<K>, context.clone());
    results
        .for_each(|result| {
            if let Err(error) = result {
                log_queue_error(&context, &error);
            }
            futures::future::ready(())
        })
        .await;
}

/// One namespace or all of them.
struct Place {
    client: kube::Client,
    namespace: Option<String>,
}

impl Place {
    fn api<T: Resource<DynamicType = (), Scope = NamespaceResourceScope>>(&self) -> Api<T> {
        match &self.namespace {
            Some(namespace) => Api::namespaced(self.client.clone(), namespace),
            None => Api::all(self.client.clone()),
        }
    }
}

/// What one controller looks after.
struct Scope {
    kind: String,
    namespace: Option<String>,
}

impl Scope {
    /// Unique among the controllers of the process.
    fn name(&self) -> String {
        format!("{}/{}", self.kind, self.namespace.as_deref().unwrap_or("*"))
    }

    /// Whether the connector of this key is one of these.
    fn has(&self, key: &str) -> bool {
        match &self.namespace {
            Some(namespace) => key.starts_with(&format!("{}/{namespace}/", self.kind)),
            None => key.starts_with(&format!("{}/", self.kind)),
        }
    }
}

/// The connector that an object belongs to by its labels; for objects that a StatefulSet owns.
fn by_labels<K: Connector>(object: &impl Resource) -> Option<ObjectRef<DeserializeGuard<K>>> {
    let labels = object.meta().labels.as_ref()?;
    if labels.get(KIND_LABEL).map(String::as_str) != Some(&*K::kind(&())) {
        return None;
    }
    let name = labels.get(INSTANCE_LABEL)?;
    Some(ObjectRef::new(name).within(object.meta().namespace.as_deref()?))
}

/// Ticks, and with each of them counts what there is and forgets what has gone.
fn heartbeats<K>(
    context: Arc<Context>,
    scope: Scope,
    store: Store<DeserializeGuard<K>>,
) -> impl Stream<Item = ()> + Send
where
    K: Connector + Clone + Debug + Send + Sync + 'static,
{
    let mut ticks = tokio::time::interval(context.heartbeat.min(Duration::from_secs(10)));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let state = (context, scope, store, ticks, Instant::now());
    futures::stream::unfold(state, |(context, scope, store, mut ticks, mut last)| async move {
        loop {
            ticks.tick().await;
            count(&context, &scope, &store.state());
            if last.elapsed() >= context.heartbeat {
                last = Instant::now();
                return Some(((), (context, scope, store, ticks, last)));
            }
        }
    })
}

fn count<K: Connector>(context: &Context, scope: &Scope, known: &[Arc<DeserializeGuard<K>>]) {
    let malformed = known.iter().filter(|guard| guard.0.is_err()).count();
    let all = context.census.update(&scope.name(), Count { connectors: known.len(), malformed });
    context.metrics.connectors.set(i64::try_from(all.connectors).unwrap_or(i64::MAX));
    context.metrics.malformed.set(i64::try_from(all.malformed).unwrap_or(i64::MAX));
    context.health.knows(all.connectors, Instant::now());
    context.backoffs.retain(|key| !scope.has(key) || known.iter().any(|guard| key_of(&**guard) == key));
}

/// Kind, namespace and name: what pauses are kept by.
fn key_of<K: Connector>(guard: &DeserializeGuard<K>) -> String {
    let meta = guard.meta();
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    format!("{}/{}/{}", K::kind(&()), text(&meta.namespace), text(&meta.name))
}

async fn reconcile<K>(guard: Arc<DeserializeGuard<K>>, context: Arc<Context>) -> Result<Action, Error>
where
    K: Connector + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    let begun = Instant::now();
    // The pass holds what a whole pass needs, so it lives on the heap.
    let look = Box::pin(look::<K>(&guard, &context));
    let result = match tokio::time::timeout(PASS_SECONDS_MAX, look).await {
        Ok(result) => {
            context.health.passed(Instant::now());
            result
        }
        Err(_) => Err(Error::TimedOut(PASS_SECONDS_MAX)),
    };
    context.metrics.pass_seconds.observe(begun.elapsed().as_secs_f64());
    if result.is_ok() {
        context.metrics.passes.inc();
        context.backoffs.succeeded(&key_of(&guard));
    }
    result
}

async fn look<K>(guard: &DeserializeGuard<K>, context: &Context) -> Result<Action, Error>
where
    K: Connector + DeserializeOwned,
{
    let (name, namespace) = (guard.name_any(), guard.namespace().unwrap_or_default());
    // What the cache holds may be old: what is done next rests on a live read.
    let live = context.cluster.connector(&K::plural(&()), &namespace, &name).await?;
    let Some(live) = live else { return Ok(Action::await_change()) };
    let connector: K = match serde_json::from_value(live.clone()) {
        Ok(connector) => connector,
        Err(error) => {
            malformed::<K>(context, &live, &error.to_string()).await;
            return Ok(Action::await_change());
        }
    };
    let Some(target) = connector.target() else { return Ok(Action::await_change()) };
    match pass(context, &target).await {
        Ok(next) => Ok(action(next)),
        Err(error) => {
            tell(context, &target, &error).await;
            Err(error)
        }
    }
}

const fn action(next: Next) -> Action {
    match next {
        // The heartbeat comes to every connector by itself.
        Next::Heartbeat => Action::await_change(),
        Next::After(pause) => Action::requeue(pause),
    }
}

/// Says in the status what went wrong; a status that cannot be written either changes nothing about that.
async fn tell(context: &Context, target: &Target, error: &Error) {
    if matches!(error, Error::TestExit(_)) {
        return;
    }
    let status = status::with_failure(target, &error.to_string(), Timestamp::now());
    if let Err(error) = report(context, target, status).await {
        tracing::warn!(connector = target.name, %error, "Failure not reported");
    }
}

/// A connector that this version cannot read: it is said once for each change, and left alone.
async fn malformed<K: Connector>(context: &Context, live: &serde_json::Value, error: &str) {
    let text = |pointer: &str| live.pointer(pointer).and_then(|value| value.as_str()).map(str::to_owned);
    let version = text("/metadata/resourceVersion").unwrap_or_default();
    if !context.census.is_news(&text("/metadata/uid").unwrap_or_default(), &version) {
        return;
    }
    tracing::warn!(name = ?text("/metadata/name"), error, "Connector cannot be read");
    context.metrics.failures.get_or_create(&Failure { cause: "malformed" }).inc();
    let about = ObjectReference {
        api_version: Some(K::api_version(&()).into_owned()),
        kind: Some(K::kind(&()).into_owned()),
        name: text("/metadata/name"),
        namespace: text("/metadata/namespace"),
        uid: text("/metadata/uid"),
        ..ObjectReference::default()
    };
    let note = format!("this version of the operator cannot read the object: {error}");
    context.events.publish_about(&about, Event::warning("Malformed", "Read", note)).await;
}

fn error_policy<K>(guard: Arc<DeserializeGuard<K>>, error: &Error, context: Arc<Context>) -> Action
where
    K: Connector,
{
    let key = key_of(&*guard);
    let pause = context.backoffs.failed(&key);
    context.metrics.failures.get_or_create(&Failure { cause: error.label() }).inc();
    tracing::warn!(connector = key, %error, pause_seconds = pause.as_secs_f32(), "Pass failed");
    Action::requeue(pause)
}

fn log_queue_error(context: &Context, error: &controller::Error<Error, watcher::Error>) {
    // Failures of a pass have been logged where they happened.
    if let controller::Error::QueueError(error) = error {
        context.metrics.failures.get_or_create(&Failure { cause: "queue" }).inc();
        tracing::warn!(%error, "Watch failed; it is begun again");
    }
}
