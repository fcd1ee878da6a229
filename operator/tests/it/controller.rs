//! The queue: what starts passes, and what keeps one connector from stopping another one.

use crate::fake::{Fake, NAMESPACE};
use crate::harness::{Nodes, connector, context};
use berth_crds::StompConnector;
use berth_operator::context::Context;
use berth_operator::controller;
use berth_operator::health::Health;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// An operator whose controller runs beside the test.
struct Running {
    fake: Fake,
    context: Arc<Context>,
    task: tokio::task::JoinHandle<()>,
}

impl Running {
    fn start(connectors: Vec<Value>) -> Self {
        let fake = Fake::new();
        for connector in connectors {
            fake.put("stompconnectors", connector);
        }
        let mut context = context(&fake, &Nodes::silent(), None);
        context.heartbeat = Duration::from_millis(50);
        context.health = Arc::new(Health::new(context.heartbeat, Instant::now()));
        context.health.leads(Instant::now());
        let context = Arc::new(context);
        let place = Some(NAMESPACE.to_owned());
        let run = controller::run::<StompConnector>(context.clone(), place, std::future::pending::<()>());
        Self { fake, context, task: tokio::spawn(run) }
    }

    /// Looks until something is so; the deadline only ends a test that would never end.
    async fn until(&self, what: &str, mut is_so: impl FnMut(&Self) -> bool) {
        let begun = Instant::now();
        while !is_so(self) {
            assert!(begun.elapsed() < Duration::from_secs(30), "waited for {what}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[tokio::test]
async fn a_connector_that_cannot_be_read_stops_no_other() {
    let mut bad = connector(json!({ "stomp": { "port": "not a number" } }));
    bad["metadata"]["name"] = json!("bad");
    let running = Running::start(vec![bad, connector(json!({}))]);
    running.until("the good one to be made", |r| r.fake.get("statefulsets", "orders").is_some()).await;
    running
        .until("the bad one to be named", |r| r.fake.events().iter().any(|(word, _)| word == "Malformed"))
        .await;
    let note = running.fake.events().into_iter().find(|(word, _)| word == "Malformed").unwrap().1;
    assert!(note.contains("not a number"), "{note}");
    // Heartbeats go by, and it is said once.
    let passes = running.context.metrics.passes.get();
    running.until("more passes", |r| r.context.metrics.passes.get() > passes + 10).await;
    let said = running.fake.events().into_iter().filter(|(word, _)| word == "Malformed").count();
    assert_eq!(said, 1);
    running.until("the census", |r| r.context.metrics.malformed.get() == 1).await;
    assert!(running.fake.get("statefulsets", "bad").is_none());
}

#[tokio::test]
async fn a_connector_that_is_refused_stops_no_other() {
    let mut other = connector(json!({ "replicas": 2 }));
    other["metadata"]["name"] = json!("stalled");
    let running = Running::start(vec![other, connector(json!({}))]);
    running.until("the good one to be made", |r| r.fake.get("statefulsets", "orders").is_some()).await;
    running
        .until("the other one to be reported on", |r| {
            let stalled = r.fake.get("stompconnectors", "stalled").unwrap();
            stalled["status"]["conditions"].to_string().contains("InvalidSpec")
        })
        .await;
}

#[tokio::test]
async fn an_operator_whose_api_server_never_answers_is_not_alive() {
    let running = Running::start(vec![connector(json!({}))]);
    running.until("the first passes", |r| r.context.metrics.passes.get() > 0).await;
    running.until("the census", |r| r.context.metrics.connectors.get() == 1).await;
    assert!(running.context.health.is_alive(Instant::now()));
    running.fake.state().hangs = true;
    running.until("death", |r| !r.context.health.is_alive(Instant::now())).await;
    running.fake.state().hangs = false;
}
