//! Leader election by a Lease: at most one operator writes.
//!
//! A holder renews every third of the duration; one that could not renew for two thirds stops before
//! anybody else may take over. The decision is a pure function of the Lease and of when this process last
//! saw it change, by its own clock: clocks of machines are never compared.

use crate::cluster::{Cluster, Kind, ObjectId};
use crate::error::Error;
use jiff::Timestamp;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Where and as whom to lead.
#[derive(Clone, Debug)]
pub struct Election {
    /// The namespace of the Lease: the operator's own.
    pub namespace: String,
    /// The name of the Lease.
    pub name: String,
    /// Who this is: the name of the pod.
    pub identity: String,
    /// How long a Lease lasts without being renewed.
    pub duration: Duration,
}

/// What to do about a Lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Move {
    /// There is none: make it.
    Create,
    /// It is ours, free, or has not changed for its duration: write it.
    Take,
    /// Somebody else holds it.
    Wait,
}

/// Decides about a Lease that was read now; `unchanged` is how long this process has seen it as it is.
#[must_use]
pub fn decide(lease: Option<&Value>, identity: &str, unchanged: Duration) -> Move {
    let Some(lease) = lease else { return Move::Create };
    let holder = lease["spec"]["holderIdentity"].as_str().unwrap_or_default();
    let duration = lease["spec"]["leaseDurationSeconds"].as_u64().unwrap_or(0);
    if holder.is_empty() || holder == identity || unchanged > Duration::from_secs(duration) {
        Move::Take
    } else {
        Move::Wait
    }
}

/// Takes part in the election.
pub struct Candidate {
    cluster: Cluster,
    election: Election,
    seen: Option<(String, Instant)>,
}

impl Candidate {
    /// A candidate that has seen nothing yet.
    #[must_use]
    pub const fn new(cluster: Cluster, election: Election) -> Self {
        Self { cluster, election, seen: None }
    }

    /// Comes back when this process leads.
    pub async fn acquire(&mut self) {
        loop {
            match self.attempt().await {
                Ok(true) => return,
                Ok(false) => {}
                Err(error) => tracing::warn!(%error, "Lease not taken"),
            }
            tokio::time::sleep(self.election.duration / 8).await;
        }
    }

    /// Renews for as long as this process leads; comes back when it does not any more.
    ///
    /// It comes back at the latest two thirds of the duration after the last renewal, whatever the server
    /// does: nobody else takes the Lease before the whole duration is over.
    pub async fn hold(&mut self) {
        let third = self.election.duration / 3;
        loop {
            tokio::time::sleep(third).await;
            match tokio::time::timeout(third, self.renew()).await {
                Ok(true) => {}
                Ok(false) | Err(_) => return,
            }
        }
    }

    /// Tries until the server has answered: true when this process still leads.
    async fn renew(&mut self) -> bool {
        loop {
            match self.attempt().await {
                Ok(leads) => return leads,
                Err(error) => tracing::warn!(%error, "Lease not renewed"),
            }
            tokio::time::sleep(self.election.duration / 20).await;
        }
    }

    /// Gives the Lease up, so that the next one need not wait.
    ///
    /// # Errors
    /// When the server cannot be asked; the Lease ends by itself then.
    pub async fn release(&mut self) -> Result<(), Error> {
        let id = ObjectId::new(Kind::Lease, &self.election.name);
        let Some(mut lease) = self.cluster.get(&self.election.namespace, &id).await? else { return Ok(()) };
        if lease["spec"]["holderIdentity"] == self.election.identity.as_str() {
            lease["spec"]["holderIdentity"] = json!("");
            lease["spec"]["leaseDurationSeconds"] = json!(1);
            self.cluster.replace(&self.election.namespace, &id, &lease).await?;
        }
        Ok(())
    }

    /// One read and at most one write; true when this process leads after it. Bounded, so that a server
    /// that does not answer cannot make a holder believe for longer than the Lease lasts.
    async fn attempt(&mut self) -> Result<bool, Error> {
        let bound = self.election.duration / 6;
        match tokio::time::timeout(bound, self.attempt_unbounded()).await {
            Ok(result) => result,
            Err(_) => Err(Error::TimedOut(bound)),
        }
    }

    async fn attempt_unbounded(&mut self) -> Result<bool, Error> {
        let id = ObjectId::new(Kind::Lease, &self.election.name);
        let lease = self.cluster.get(&self.election.namespace, &id).await?;
        let version = lease.as_ref().and_then(|lease| lease["metadata"]["resourceVersion"].as_str());
        let version = version.unwrap_or_default().to_owned();
        let since = match &self.seen {
            Some((seen, since)) if *seen == version => *since,
            _ => {
                let now = Instant::now();
                self.seen = Some((version, now));
                now
            }
        };
        let written = match decide(lease.as_ref(), &self.election.identity, since.elapsed()) {
            Move::Wait => return Ok(false),
            Move::Create => {
                let body = self.lease(None);
                self.cluster.create(&self.election.namespace, &id, &body).await
            }
            Move::Take => {
                let body = self.lease(lease);
                self.cluster.replace(&self.election.namespace, &id, &body).await
            }
        };
        match written {
            Ok(_) => Ok(true),
            // Somebody else was faster.
            Err(error) if error.status().is_some_and(kube::core::Status::is_conflict) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The Lease as this holder writes it; the resourceVersion of what was read makes the write exclusive.
    fn lease(&self, read: Option<Value>) -> Value {
        let now = format!("{:.6}", Timestamp::now());
        let mut lease = read.unwrap_or_else(|| {
            json!({
                "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                "metadata": { "name": self.election.name, "namespace": self.election.namespace },
            })
        });
        let spec = &mut lease["spec"];
        if spec["holderIdentity"] != self.election.identity.as_str() {
            let transitions = spec["leaseTransitions"].as_u64().map_or(0, |count| count + 1);
            spec["leaseTransitions"] = json!(transitions);
            spec["acquireTime"] = json!(now);
        }
        spec["holderIdentity"] = json!(self.election.identity);
        spec["leaseDurationSeconds"] = json!(self.election.duration.as_secs());
        spec["renewTime"] = json!(now);
        lease
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(holder: &str) -> Value {
        json!({ "spec": { "holderIdentity": holder, "leaseDurationSeconds": 30 } })
    }

    #[test]
    fn a_lease_is_taken_when_it_is_free_ours_or_stale() {
        let fresh = Duration::from_secs(5);
        assert_eq!(decide(None, "a", fresh), Move::Create);
        assert_eq!(decide(Some(&lease("")), "a", fresh), Move::Take);
        assert_eq!(decide(Some(&lease("a")), "a", fresh), Move::Take);
        assert_eq!(decide(Some(&lease("b")), "a", fresh), Move::Wait);
        assert_eq!(decide(Some(&lease("b")), "a", Duration::from_secs(30)), Move::Wait);
        assert_eq!(decide(Some(&lease("b")), "a", Duration::from_secs(31)), Move::Take);
    }
}
