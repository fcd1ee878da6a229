//! One operator and one connector on a fake cluster.

use crate::fake::{Fake, NAMESPACE};
use berth_crds::StompConnector;
use berth_operator::backoff::Backoffs;
use berth_operator::census::Census;
use berth_operator::cluster::Cluster;
use berth_operator::context::{Context, TestExit};
use berth_operator::error::Error;
use berth_operator::events::Events;
use berth_operator::health::Health;
use berth_operator::metrics::Metrics;
use berth_operator::node::{BrokerReport, NodeApi, NodeReport};
use berth_operator::reconcile::{Next, pass};
use berth_operator::target::{Connector as _, Target};
use berth_operator::validate::Image;
use futures::future::BoxFuture;
use serde_json::{Value, json};
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Pods that answer what they are told to; none at all when told `None`.
#[derive(Clone)]
pub(crate) struct Nodes(Arc<Mutex<Option<NodeReport>>>);

impl Nodes {
    /// Pods that do not answer.
    pub(crate) fn silent() -> Self {
        Self(Arc::new(Mutex::new(None)))
    }
}

impl NodeApi for Nodes {
    fn report<'a>(&'a self, _: IpAddr, token: &'a str) -> BoxFuture<'a, Option<NodeReport>> {
        assert_eq!(token.len(), 64, "the token of the internal Secret");
        let answer = self.0.lock().unwrap().clone();
        Box::pin(async move { answer })
    }
}

/// A connector called `orders` on a cluster of its own.
pub(crate) struct Harness {
    pub(crate) fake: Fake,
    pub(crate) nodes: Nodes,
    pub(crate) context: Context,
}

impl Harness {
    pub(crate) fn new(spec: Value) -> Self {
        let fake = Fake::new();
        fake.put("stompconnectors", connector(spec));
        let broker = BrokerReport { ready: true, reason: None };
        let report = NodeReport { recovered: true, broker, ..NodeReport::default() };
        let nodes = Nodes(Arc::new(Mutex::new(Some(report))));
        let context = context(&fake, &nodes, None);
        Self { fake, nodes, context }
    }

    /// The operator starts again, and may be told to end after a step.
    pub(crate) fn restart(&mut self, exit_after: Option<&str>) {
        self.context = context(&self.fake, &self.nodes, exit_after);
    }

    pub(crate) fn answer(&self, report: Option<NodeReport>) {
        *self.nodes.0.lock().unwrap() = report;
    }

    pub(crate) fn target(&self) -> Target {
        let object = self.connector();
        let mut object: StompConnector = serde_json::from_value(object).unwrap();
        // The schema's default.
        object.spec.common.replicas = object.spec.common.replicas.max(0);
        object.target().unwrap()
    }

    pub(crate) fn connector(&self) -> Value {
        self.fake.get("stompconnectors", "orders").unwrap()
    }

    pub(crate) async fn try_pass(&self) -> Result<Next, Error> {
        pass(&self.context, &self.target()).await
    }

    pub(crate) async fn pass(&self) -> Next {
        self.try_pass().await.unwrap()
    }

    /// Passes and the cluster's work in turn, until both are at rest.
    pub(crate) async fn converge(&self) {
        for _ in 0..40 {
            let before = self.fake.state().version;
            self.pass().await;
            self.fake.turn();
            if self.fake.state().version == before {
                return;
            }
        }
        panic!("no rest: {:#?}", self.fake.take_writes());
    }

    pub(crate) fn set(&self, pointer: &str, value: Value) {
        self.fake.edit("stompconnectors", "orders", |object| {
            let (parent, name) = pointer.rsplit_once('/').unwrap();
            let parent = format!("/{}", parent.trim_start_matches('/'));
            let parent = if parent == "/" { String::new() } else { parent };
            let place = object.pointer_mut(&parent).unwrap_or_else(|| panic!("no {parent}"));
            let name = name.replace("~1", "/");
            if value.is_null() {
                place.as_object_mut().unwrap().remove(&name);
            } else {
                place[name] = value;
            }
        });
    }

    pub(crate) fn condition(&self, type_: &str) -> (String, String, String) {
        let object = self.connector();
        let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let found = conditions.iter().find(|condition| condition["type"] == type_);
        let text = |name: &str| found.and_then(|c| c[name].as_str()).unwrap_or_default().to_owned();
        (text("status"), text("reason"), text("message"))
    }

    pub(crate) fn status_of(&self, type_: &str) -> String {
        self.condition(type_).0
    }

    pub(crate) fn reason_of(&self, type_: &str) -> String {
        self.condition(type_).1
    }

    pub(crate) fn uid(&self, plural: &str, name: &str) -> String {
        let object = self.fake.get(plural, name).unwrap_or_else(|| panic!("no {plural} {name}"));
        object["metadata"]["uid"].as_str().unwrap().to_owned()
    }

    pub(crate) fn has_event(&self, reason: &str) -> bool {
        self.fake.events().iter().any(|(word, _)| word == reason)
    }
}

pub(crate) fn connector(mut spec: Value) -> Value {
    if spec["replicas"].is_null() {
        spec["replicas"] = json!(1);
    }
    json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "StompConnector",
        "metadata": { "name": "orders", "namespace": NAMESPACE, "annotations": {} },
        "spec": spec,
    })
}

pub(crate) fn context(fake: &Fake, nodes: &Nodes, exit_after: Option<&str>) -> Context {
    let cluster = Cluster::new(fake.client(), fake.client());
    let heartbeat = Duration::from_secs(300);
    Context {
        events: Events::new(cluster.clone(), "operator-pod".to_owned()),
        nodes: Arc::new(nodes.clone()),
        metrics: Metrics::new("0.0.0"),
        health: Arc::new(Health::new(heartbeat, Instant::now())),
        backoffs: Backoffs::default(),
        census: Census::default(),
        release: Image::parse("registry.example.com/berth:0.1.0"),
        heartbeat,
        exit: TestExit::new(exit_after.map(str::to_owned)),
        cluster,
    }
}
