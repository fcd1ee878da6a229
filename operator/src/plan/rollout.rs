//! Replacing pods whose template is not the current one, one at a time.
//!
//! A roll-out is complete when every pod carries the StatefulSet's update revision and is ready.
//! `currentRevision` is never asked: under OnDelete it stays old for ever.

use jiff::Timestamp;
use std::cmp::Reverse;

/// The live StatefulSet, as far as a roll-out goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetView {
    /// Whether its controller has seen its latest generation.
    pub is_observed: bool,
    /// The revision that pods should carry; empty until its controller has made it.
    pub update_revision: String,
    /// How many pods are wanted.
    pub replicas: i32,
}

/// A pod of the connector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodView {
    /// Its name.
    pub name: String,
    /// Its uid: a pod made anew under the name is another one.
    pub uid: String,
    /// Its ordinal.
    pub ordinal: u32,
    /// The revision of its template.
    pub revision: String,
    /// Since when it is ready; `None` when it is not.
    pub ready_since: Option<Timestamp>,
    /// Whether it is being deleted.
    pub is_deleting: bool,
    /// What its admin port says: whether it has recovered; `None` when it could not be asked.
    pub is_recovered: Option<bool>,
}

/// The next step of a roll-out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RolloutStep {
    /// Every pod is current and ready.
    Complete,
    /// Not before something has happened.
    Wait(Wait),
    /// Evict this pod.
    Evict {
        /// Its name.
        pod: String,
        /// Its uid.
        uid: String,
    },
}

/// What a roll-out waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wait {
    /// The StatefulSet's controller has not seen the latest template.
    Unobserved,
    /// Not all pods are there.
    Missing,
    /// A pod is on its way out.
    Deleting(String),
    /// A current pod is not ready.
    NotReady(String),
    /// A current pod has not been ready for long enough; seconds to go.
    TooFresh(String, u32),
    /// A current pod does not say that it has recovered.
    NotRecovered(String),
}

/// Plans the next step.
#[must_use]
pub fn plan(set: &SetView, pods: &[PodView], min_ready_seconds: u32, now: Timestamp) -> RolloutStep {
    if !set.is_observed || set.update_revision.is_empty() {
        return RolloutStep::Wait(Wait::Unobserved);
    }
    if let Some(pod) = pods.iter().find(|pod| pod.is_deleting) {
        return RolloutStep::Wait(Wait::Deleting(pod.name.clone()));
    }
    let is_outdated = |pod: &&PodView| pod.revision != set.update_revision;
    let mut outdated: Vec<&PodView> = pods.iter().filter(is_outdated).collect();
    outdated.sort_by_key(|pod| (pod.ready_since.is_some(), Reverse(pod.ordinal)));
    match outdated.first() {
        // A pod that serves nobody is replaced at once: this is how a broken template that was mended
        // gets out.
        Some(pod) if pod.ready_since.is_none() => evict(pod),
        Some(pod) => match unsettled(set, pods, min_ready_seconds, now) {
            Some(wait) => RolloutStep::Wait(wait),
            None => evict(pod),
        },
        None if i64::try_from(pods.len()).unwrap_or(i64::MAX) < i64::from(set.replicas) => {
            RolloutStep::Wait(Wait::Missing)
        }
        None => match pods.iter().find(|pod| pod.ready_since.is_none()) {
            Some(pod) => RolloutStep::Wait(Wait::NotReady(pod.name.clone())),
            None => RolloutStep::Complete,
        },
    }
}

/// Why the next ready pod may not go yet: all pods have to be there, and the current ones have to serve.
fn unsettled(set: &SetView, pods: &[PodView], min_ready_seconds: u32, now: Timestamp) -> Option<Wait> {
    if i64::try_from(pods.len()).unwrap_or(i64::MAX) < i64::from(set.replicas) {
        return Some(Wait::Missing);
    }
    let current = pods.iter().filter(|pod| pod.revision == set.update_revision);
    current.into_iter().find_map(|pod| {
        let Some(since) = pod.ready_since else { return Some(Wait::NotReady(pod.name.clone())) };
        let ready_for = now.as_second().saturating_sub(since.as_second());
        let missing = i64::from(min_ready_seconds).saturating_sub(ready_for);
        if let Ok(missing @ 1..) = u32::try_from(missing) {
            return Some(Wait::TooFresh(pod.name.clone(), missing));
        }
        (pod.is_recovered != Some(true)).then(|| Wait::NotRecovered(pod.name.clone()))
    })
}

fn evict(pod: &PodView) -> RolloutStep {
    RolloutStep::Evict { pod: pod.name.clone(), uid: pod.uid.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOW: i64 = 1_000_000;

    fn now() -> Timestamp {
        Timestamp::from_second(NOW).unwrap()
    }

    fn set(replicas: i32) -> SetView {
        SetView { is_observed: true, update_revision: "new".to_owned(), replicas }
    }

    fn pod(ordinal: u32, revision: &str, is_ready: bool) -> PodView {
        PodView {
            name: format!("x-{ordinal}"),
            uid: format!("uid-{ordinal}-{revision}"),
            ordinal,
            revision: revision.to_owned(),
            ready_since: is_ready.then(|| Timestamp::from_second(NOW - 100).unwrap()),
            is_deleting: false,
            is_recovered: Some(is_ready),
        }
    }

    fn next(replicas: i32, pods: &[PodView]) -> RolloutStep {
        plan(&set(replicas), pods, 0, now())
    }

    fn evicts(step: &RolloutStep) -> Option<&str> {
        match step {
            RolloutStep::Evict { pod, .. } => Some(pod),
            _ => None,
        }
    }

    #[test]
    fn highest_ordinal_first_and_one_at_a_time() {
        let mut pods = vec![pod(0, "old", true), pod(1, "old", true), pod(2, "old", true)];
        assert_eq!(evicts(&next(3, &pods)), Some("x-2"));
        pods[2].is_deleting = true;
        assert_eq!(next(3, &pods), RolloutStep::Wait(Wait::Deleting("x-2".to_owned())));
        pods.pop();
        assert_eq!(next(3, &pods), RolloutStep::Wait(Wait::Missing));
        pods.push(pod(2, "new", false));
        assert_eq!(next(3, &pods), RolloutStep::Wait(Wait::NotReady("x-2".to_owned())));
        pods[2] = pod(2, "new", true);
        assert_eq!(evicts(&next(3, &pods)), Some("x-1"));
    }

    #[test]
    fn a_mended_template_gets_past_the_broken_pod() {
        // The first pod got the broken template, the template was mended: its pod is outdated and not ready.
        let pods = [pod(0, "old", true), pod(1, "broken", false)];
        assert_eq!(evicts(&next(2, &pods)), Some("x-1"));
        // A pod of the current revision is never evicted, however broken.
        let pods = [pod(0, "old", true), pod(1, "new", false)];
        assert_eq!(next(2, &pods), RolloutStep::Wait(Wait::NotReady("x-1".to_owned())));
    }

    #[test]
    fn pods_that_are_not_ready_go_first() {
        let pods = [pod(0, "old", false), pod(1, "old", true)];
        assert_eq!(evicts(&next(2, &pods)), Some("x-0"));
    }

    #[test]
    fn nothing_is_decided_before_the_set_is_observed() {
        let pods = [pod(0, "old", true)];
        let unobserved = SetView { is_observed: false, ..set(1) };
        assert_eq!(plan(&unobserved, &pods, 0, now()), RolloutStep::Wait(Wait::Unobserved));
        let nameless = SetView { update_revision: String::new(), ..set(1) };
        assert_eq!(plan(&nameless, &pods, 0, now()), RolloutStep::Wait(Wait::Unobserved));
    }

    #[test]
    fn the_last_one_has_to_be_ready_for_long_enough_and_recovered() {
        let pods = [pod(0, "old", true), pod(1, "new", true)];
        let wait = plan(&set(2), &pods, 130, now());
        assert_eq!(wait, RolloutStep::Wait(Wait::TooFresh("x-1".to_owned(), 30)));
        for answer in [Some(false), None] {
            let mut silent = pods.clone();
            silent[1].is_recovered = answer;
            assert_eq!(next(2, &silent), RolloutStep::Wait(Wait::NotRecovered("x-1".to_owned())));
        }
    }

    #[test]
    fn complete_is_what_every_pod_carries() {
        assert_eq!(next(1, &[pod(0, "new", true)]), RolloutStep::Complete);
        assert_eq!(next(1, &[pod(0, "new", false)]), RolloutStep::Wait(Wait::NotReady("x-0".to_owned())));
        assert_eq!(next(1, &[]), RolloutStep::Wait(Wait::Missing));
        assert_eq!(next(0, &[]), RolloutStep::Complete);
    }

    proptest! {
        /// Whatever state the pods are in: never a pod of the current revision, never while one is going,
        /// never a ready one while a current one is not ready.
        #[test]
        fn evictions_are_safe(
            states in prop::collection::vec((0_u8..3, any::<bool>(), prop::bool::weighted(0.1)), 1..6),
        ) {
            let revisions = ["old", "new", "older"];
            let pods: Vec<_> = states.iter().enumerate().map(|(at, (revision, ready, deleting))| {
                let mut pod = pod(u32::try_from(at).unwrap(), revisions[usize::from(*revision)], *ready);
                pod.is_deleting = *deleting;
                pod
            }).collect();
            let step = next(i32::try_from(pods.len()).unwrap(), &pods);
            if let Some(name) = evicts(&step) {
                let victim = pods.iter().find(|pod| pod.name == name).unwrap();
                prop_assert!(victim.revision != "new");
                prop_assert!(pods.iter().all(|pod| !pod.is_deleting));
                if victim.ready_since.is_some() {
                    prop_assert!(pods.iter().all(|pod| pod.revision != "new" || pod.ready_since.is_some()));
                }
            }
        }

        /// Carrying out the steps ends, with every pod replaced exactly once.
        #[test]
        fn rolling_ends(replicas in 1_u32..6, broken in prop::option::of(0_u32..6)) {
            let mut pods: Vec<_> = (0..replicas).map(|at| pod(at, "old", broken != Some(at))).collect();
            let mut evicted = Vec::new();
            for _ in 0..20 {
                match next(i32::try_from(replicas).unwrap(), &pods) {
                    RolloutStep::Evict { pod: name, .. } => {
                        evicted.push(name.clone());
                        let at = pods.iter().position(|pod| pod.name == name).unwrap();
                        pods[at] = pod(pods[at].ordinal, "new", true);
                    }
                    RolloutStep::Complete => break,
                    RolloutStep::Wait(wait) => prop_assert!(false, "{wait:?}"),
                }
            }
            prop_assert_eq!(evicted.len(), pods.len());
            prop_assert!(pods.iter().all(|pod| pod.revision == "new"));
        }
    }
}
