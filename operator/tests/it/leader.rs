//! The election over a Lease on the fake server.

use crate::fake::{Fake, NAMESPACE};
use berth_operator::cluster::Cluster;
use berth_operator::leader::{Candidate, Election};
use serde_json::json;
use std::time::{Duration, Instant};

/// Short, but whole seconds, as the Lease holds them.
const DURATION: Duration = Duration::from_secs(3);

fn candidate(fake: &Fake, identity: &str) -> Candidate {
    let election = Election {
        namespace: NAMESPACE.to_owned(),
        name: "berth-operator".to_owned(),
        identity: identity.to_owned(),
        duration: DURATION,
    };
    Candidate::new(Cluster::new(fake.client(), fake.client()), election)
}

fn holder(fake: &Fake) -> String {
    let lease = fake.get("leases", "berth-operator").unwrap();
    lease["spec"]["holderIdentity"].as_str().unwrap().to_owned()
}

/// Whether a future is not over within a moment that is far shorter than the Lease.
async fn waits(future: impl Future<Output = ()>) -> bool {
    tokio::time::timeout(Duration::from_millis(500), future).await.is_err()
}

#[tokio::test]
async fn one_leads_and_the_next_begins_when_it_lets_go() {
    let fake = Fake::new();
    let (mut first, mut second) = (candidate(&fake, "first"), candidate(&fake, "second"));
    first.acquire().await;
    assert_eq!(holder(&fake), "first");
    assert!(waits(second.acquire()).await);
    first.release().await.unwrap();
    second.acquire().await;
    assert_eq!(holder(&fake), "second");
    // The pod of a holder that starts again takes its own Lease at once.
    candidate(&fake, "second").acquire().await;
    let lease = fake.get("leases", "berth-operator").unwrap();
    assert_eq!(lease["spec"]["leaseTransitions"], 1);
}

#[tokio::test]
async fn a_holder_that_was_robbed_stops() {
    let fake = Fake::new();
    let mut holder = candidate(&fake, "first");
    holder.acquire().await;
    fake.edit("leases", "berth-operator", |lease| {
        lease["spec"]["holderIdentity"] = json!("thief");
        lease["spec"]["leaseDurationSeconds"] = json!(3600);
    });
    let begun = Instant::now();
    holder.hold().await;
    assert!(begun.elapsed() < DURATION, "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_holder_whose_server_does_not_answer_stops_before_the_lease_is_over() {
    let fake = Fake::new();
    let mut holder = candidate(&fake, "first");
    holder.acquire().await;
    let renewed = Instant::now();
    fake.state().hangs = true;
    holder.hold().await;
    assert!(renewed.elapsed() < DURATION, "{:?}", renewed.elapsed());
}

#[tokio::test]
async fn a_lease_that_nobody_renews_is_taken() {
    let fake = Fake::new();
    candidate(&fake, "gone").acquire().await;
    let mut next = candidate(&fake, "next");
    let begun = Instant::now();
    next.acquire().await;
    assert!(begun.elapsed() >= DURATION, "taken after {:?}", begun.elapsed());
    assert_eq!(holder(&fake), "next");
}
