//! Volumes: growing them, and making the StatefulSet anew so that its claim template says the new size.
//!
//! The order is: every bound claim is asked for more; the status says `Recreating`; the StatefulSet is
//! deleted and its pods are not; when it has gone it is made again. Each step compares what is there with
//! what is wanted, so that beginning anywhere ends in the same state. Claims are compared one by one
//! every time: a StatefulSet that already has the new size proves nothing about them.

use crate::quantity::milli;
use berth_crds::status::{StoragePhase, StorageStatus};

/// A volume claim of the connector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// What it asks for.
    pub requested: String,
    /// What it has; `None` before it is bound.
    pub capacity: Option<String>,
    /// Whether it is bound.
    pub is_bound: bool,
    /// Whether it is being deleted.
    pub is_deleting: bool,
}

/// The live StatefulSet, as far as storage goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveSet {
    /// Its uid.
    pub uid: String,
    /// The size in its claim template.
    pub template_size: String,
    /// Whether it is being deleted.
    pub is_deleting: bool,
}

/// The next step of the storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StorageStep {
    /// Every volume and the template have the size, or there is no StatefulSet yet.
    Steady,
    /// Ask this claim for more.
    Grow {
        /// The claim.
        claim: String,
        /// Its uid.
        uid: String,
    },
    /// Claims that are not bound cannot be asked; they are looked at again.
    WaitForBinding,
    /// Write the phase `Recreating` into the status: whoever comes next knows that a re-creation has begun.
    MarkRecreating,
    /// Delete the StatefulSet by this uid and leave its pods.
    Orphan {
        /// The uid.
        uid: String,
    },
    /// The StatefulSet is going, or has gone and has to be made again.
    Recreate,
}

/// Plans the next step. `recorded` is the phase in the status.
#[must_use]
pub fn plan(
    wanted: &str,
    set: Option<&LiveSet>,
    claims: &[Claim],
    recorded: Option<StoragePhase>,
) -> StorageStep {
    let Some(set) = set else {
        return if recorded == Some(StoragePhase::Recreating) {
            StorageStep::Recreate
        } else {
            StorageStep::Steady
        };
    };
    if set.is_deleting {
        return StorageStep::Recreate;
    }
    let smaller = |claim: &&Claim| !claim.is_deleting && milli(&claim.requested) < milli(wanted);
    if let Some(claim) = claims.iter().filter(smaller).find(|claim| claim.is_bound) {
        return StorageStep::Grow { claim: claim.name.clone(), uid: claim.uid.clone() };
    }
    if claims.iter().any(|claim| smaller(&claim)) {
        return StorageStep::WaitForBinding;
    }
    if milli(&set.template_size) == milli(wanted) {
        return StorageStep::Steady;
    }
    match recorded {
        Some(StoragePhase::Recreating) => StorageStep::Orphan { uid: set.uid.clone() },
        _ => StorageStep::MarkRecreating,
    }
}

/// What the status says about storage after a pass.
#[must_use]
pub fn status(wanted: &str, claims: &[Claim], step: &StorageStep, refused: bool) -> StorageStatus {
    let live: Vec<&Claim> = claims.iter().filter(|claim| !claim.is_deleting).collect();
    let phase = if refused {
        StoragePhase::Refused
    } else {
        match step {
            StorageStep::MarkRecreating | StorageStep::Orphan { .. } | StorageStep::Recreate => {
                StoragePhase::Recreating
            }
            StorageStep::Grow { .. } => StoragePhase::Growing,
            StorageStep::WaitForBinding => StoragePhase::Pending,
            StorageStep::Steady => steady_phase(&live),
        }
    };
    StorageStatus {
        requested: Some(wanted.to_owned()),
        capacity: capacity(wanted, &live),
        phase: Some(phase),
    }
}

fn steady_phase(claims: &[&Claim]) -> StoragePhase {
    if claims.is_empty() || claims.iter().any(|claim| !claim.is_bound) {
        return StoragePhase::Pending;
    }
    let short = |claim: &&&Claim| claim.capacity.as_deref().and_then(milli) < milli(&claim.requested);
    if claims.iter().any(|claim| short(&claim)) { StoragePhase::Growing } else { StoragePhase::Bound }
}

/// The least capacity of all volumes, but never more than what is asked for: the API server holds
/// `spec.storage.size` to it, and a volume that was larger all along is no reason to refuse the
/// specification.
fn capacity(wanted: &str, claims: &[&Claim]) -> Option<String> {
    let least = claims.iter().filter_map(|claim| claim.capacity.as_deref()).min_by_key(|text| milli(text))?;
    Some(if milli(least) > milli(wanted) { wanted } else { least }.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn claim(ordinal: usize, requested: &str, capacity: Option<&str>) -> Claim {
        Claim {
            name: format!("data-x-{ordinal}"),
            uid: format!("uid-{ordinal}"),
            requested: requested.to_owned(),
            capacity: capacity.map(str::to_owned),
            is_bound: capacity.is_some(),
            is_deleting: false,
        }
    }

    fn set(size: &str) -> LiveSet {
        LiveSet { uid: "set".to_owned(), template_size: size.to_owned(), is_deleting: false }
    }

    #[test]
    fn claims_first_then_the_status_then_the_set() {
        let grow = StorageStep::Grow { claim: "data-x-1".to_owned(), uid: "uid-1".to_owned() };
        let claims = [claim(0, "2Gi", Some("1Gi")), claim(1, "1Gi", Some("1Gi"))];
        assert_eq!(plan("2Gi", Some(&set("1Gi")), &claims, None), grow);
        let asked = [claim(0, "2Gi", Some("1Gi")), claim(1, "2Gi", Some("1Gi"))];
        assert_eq!(plan("2Gi", Some(&set("1Gi")), &asked, None), StorageStep::MarkRecreating);
        let recorded = Some(StoragePhase::Recreating);
        let orphan = StorageStep::Orphan { uid: "set".to_owned() };
        assert_eq!(plan("2Gi", Some(&set("1Gi")), &asked, recorded), orphan);
        assert_eq!(plan("2Gi", None, &asked, recorded), StorageStep::Recreate);
        assert_eq!(plan("2Gi", Some(&set("2Gi")), &asked, recorded), StorageStep::Steady);
    }

    #[test]
    fn a_set_of_the_new_size_proves_nothing_about_the_claims() {
        let step = plan("2Gi", Some(&set("2Gi")), &[claim(0, "1Gi", Some("1Gi"))], None);
        assert!(matches!(step, StorageStep::Grow { .. }));
    }

    #[test]
    fn unbound_claims_wait_and_larger_ones_are_left_alone() {
        assert_eq!(
            plan("2Gi", Some(&set("1Gi")), &[claim(0, "1Gi", None)], None),
            StorageStep::WaitForBinding
        );
        let larger = [claim(0, "5Gi", Some("5Gi"))];
        assert_eq!(plan("2Gi", Some(&set("2Gi")), &larger, None), StorageStep::Steady);
        let status = status("2Gi", &larger, &StorageStep::Steady, false);
        assert_eq!(status.capacity.as_deref(), Some("2Gi"));
        assert_eq!(status.phase, Some(StoragePhase::Bound));
    }

    #[test]
    fn claims_that_are_going_are_neither_asked_nor_counted() {
        let mut going = claim(0, "1Gi", Some("1Gi"));
        going.is_deleting = true;
        assert_eq!(plan("2Gi", Some(&set("2Gi")), &[going.clone()], None), StorageStep::Steady);
        assert_eq!(status("2Gi", &[going], &StorageStep::Steady, false).capacity, None);
    }

    #[test]
    fn the_phase_follows_the_volumes() {
        let phase = |claims: &[Claim]| status("2Gi", claims, &StorageStep::Steady, false).phase;
        assert_eq!(phase(&[]), Some(StoragePhase::Pending));
        assert_eq!(phase(&[claim(0, "2Gi", None)]), Some(StoragePhase::Pending));
        assert_eq!(phase(&[claim(0, "2Gi", Some("1Gi"))]), Some(StoragePhase::Growing));
        assert_eq!(phase(&[claim(0, "2Gi", Some("2Gi"))]), Some(StoragePhase::Bound));
        assert_eq!(status("2Gi", &[], &StorageStep::Steady, true).phase, Some(StoragePhase::Refused));
    }

    /// What the API holds about the storage of one connector; carrying out a step changes it.
    #[derive(Clone, Debug)]
    struct World {
        set: Option<LiveSet>,
        claims: Vec<Claim>,
        recorded: Option<StoragePhase>,
        made: u32,
    }

    impl World {
        fn step(&mut self, wanted: &str) -> bool {
            match plan(wanted, self.set.as_ref(), &self.claims, self.recorded) {
                StorageStep::Steady if self.set.is_some() => {
                    self.recorded = Some(StoragePhase::Bound);
                    return false;
                }
                StorageStep::Grow { claim, .. } => {
                    let claim = self.claims.iter_mut().find(|c| c.name == claim).unwrap();
                    claim.requested = wanted.to_owned();
                    claim.capacity = Some(wanted.to_owned());
                }
                StorageStep::WaitForBinding => {
                    for claim in self.claims.iter_mut().filter(|claim| !claim.is_bound) {
                        claim.is_bound = true;
                        claim.capacity = Some(claim.requested.clone());
                    }
                }
                StorageStep::MarkRecreating => self.recorded = Some(StoragePhase::Recreating),
                StorageStep::Orphan { .. } => self.set = None,
                StorageStep::Recreate | StorageStep::Steady => {
                    self.made += 1;
                    self.set = Some(set(wanted));
                }
            }
            true
        }
    }

    proptest! {
        /// From any prefix of the steps, and with the wish changed on the way, going on converges: every
        /// claim has the size and the set was made anew at most once for each wish.
        #[test]
        fn any_prefix_converges(
            sizes in prop::collection::vec(1_u32..6, 1..4),
            first in 1_u32..6,
            bound in prop::collection::vec(any::<bool>(), 1..4),
            cuts in prop::collection::vec(0_usize..6, 1..4),
        ) {
            let start = format!("{first}Gi");
            let claims = bound.iter().enumerate().map(|(at, bound)| {
                claim(at, &start, bound.then_some(start.as_str()))
            });
            let mut world =
                World { set: Some(set(&start)), claims: claims.collect(), recorded: None, made: 0 };
            for (size, cut) in sizes.iter().zip(cuts.iter().cycle()) {
                // Cut short: the next round begins from the API alone, with another wish.
                for _ in 0..*cut {
                    if !world.step(&format!("{size}Gi")) {
                        break;
                    }
                }
            }
            let last = format!("{}Gi", sizes[sizes.len() - 1]);
            let mut steps = 0;
            while world.step(&last) {
                steps += 1;
                prop_assert!(steps < 20, "{world:?}");
            }
            prop_assert!(world.claims.iter().all(|claim| milli(&claim.requested) >= milli(&last)));
            prop_assert_eq!(world.set, Some(set(&last)));
            prop_assert!(world.made as usize <= sizes.len());
        }
    }
}
