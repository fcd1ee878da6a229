//! The disruption budget: one pod at a time, and a pod that does not serve anyway never stands in the way
//! of a drain.

use super::metadata;
use crate::names;
use crate::target::Target;
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

pub(super) fn budget(target: &Target) -> PodDisruptionBudget {
    PodDisruptionBudget {
        metadata: metadata(target, target.name.clone(), "connector"),
        spec: Some(PodDisruptionBudgetSpec {
            // minAvailable would forbid the drain of a node that runs the only pod, for ever.
            max_unavailable: Some(IntOrString::Int(1)),
            selector: Some(names::label_selector(target.kind, &target.name)),
            unhealthy_pod_eviction_policy: Some("AlwaysAllow".to_owned()),
            ..PodDisruptionBudgetSpec::default()
        }),
        status: None,
    }
}
