//! Rolling several pods. No broker of today takes more than one, so the number of pods is set past the
//! validation.

use crate::harness::Harness;
use berth_operator::reconcile::carry_out;
use berth_operator::validate::{Image, settle};
use serde_json::{Value, json};

const PODS: [&str; 3] = ["orders-0", "orders-1", "orders-2"];

async fn pass(harness: &Harness) {
    let target = harness.target();
    let release = Image::parse("registry.example.com/berth:0.1.0");
    let mut settled = settle(&target, &release, None).unwrap();
    settled.replicas = 3;
    carry_out(&harness.context, &target, &settled).await.unwrap();
}

/// Passes and the cluster's work in turn; `look` sees the pods after each step of either.
async fn converge(harness: &Harness, mut look: impl FnMut(&[(String, String, bool)])) {
    for _ in 0..60 {
        let before = harness.fake.state().version;
        pass(harness).await;
        look(&pods(harness));
        harness.fake.turn();
        look(&pods(harness));
        if harness.fake.state().version == before {
            return;
        }
    }
    panic!("no rest");
}

/// Name, revision, and whether it serves.
fn pods(harness: &Harness) -> Vec<(String, String, bool)> {
    let view = |name: &&str| {
        let pod = harness.fake.get("pods", name)?;
        let text =
            |pointer: &str| pod.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        let is_going = pod["metadata"]["deletionTimestamp"].is_string();
        let is_ready = text("/status/conditions/0/status") == "True" && !is_going;
        Some(((*name).to_owned(), text("/metadata/labels/controller-revision-hash"), is_ready))
    };
    PODS.iter().filter_map(view).collect()
}

fn serving(pods: &[(String, String, bool)]) -> usize {
    pods.iter().filter(|(.., is_ready)| *is_ready).count()
}

async fn three_pods() -> Harness {
    let harness = Harness::new(json!({}));
    converge(&harness, |_| {}).await;
    assert_eq!(serving(&pods(&harness)), 3);
    harness
}

#[tokio::test]
async fn pods_are_replaced_one_at_a_time_from_the_last_to_the_first() {
    let harness = three_pods().await;
    harness.set("/spec/stomp", json!({ "queueAckTimeoutSeconds": 5 }));
    let mut order = Vec::new();
    converge(&harness, |pods| {
        assert!(serving(pods) >= 2, "{pods:?}");
        for (name, revision, _) in pods {
            if revision == "orders-rev2" && !order.contains(name) {
                order.push(name.clone());
            }
        }
    })
    .await;
    assert_eq!(order, ["orders-2", "orders-1", "orders-0"]);
    assert_eq!(serving(&pods(&harness)), 3);
}

#[tokio::test]
async fn a_broken_template_costs_one_pod_and_mending_it_gets_past_that_pod() {
    let harness = three_pods().await;
    harness.set("/spec/image", json!({ "tag": "broken" }));
    converge(&harness, |pods| assert!(serving(pods) >= 2, "{pods:?}")).await;
    let stuck = pods(&harness);
    assert_eq!(serving(&stuck), 2, "{stuck:?}");
    assert_eq!(stuck[2].1, "orders-rev2");
    harness.set("/spec/image", json!({ "tag": "0.1.1" }));
    converge(&harness, |pods| assert!(serving(pods) >= 2, "{pods:?}")).await;
    let mended = pods(&harness);
    assert!(
        mended.iter().all(|(_, revision, is_ready)| revision == "orders-rev3" && *is_ready),
        "{mended:?}"
    );
}

#[tokio::test]
async fn the_next_pod_waits_until_the_last_one_says_that_it_has_recovered() {
    let harness = three_pods().await;
    harness.set("/spec/stomp", json!({ "queueAckTimeoutSeconds": 5 }));
    harness.answer(None);
    converge(&harness, |_| {}).await;
    let replaced =
        |harness: &Harness| pods(harness).iter().filter(|(_, revision, _)| revision == "orders-rev2").count();
    assert_eq!(replaced(&harness), 1);
    let report = berth_operator::node::NodeReport { recovered: true, ..Default::default() };
    harness.answer(Some(report));
    converge(&harness, |_| {}).await;
    assert_eq!(replaced(&harness), 3);
}
