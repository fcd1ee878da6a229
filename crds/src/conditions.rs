//! The types and reasons of a connector's conditions: both lists are closed, so that alerts can rely on them.
//!
//! docs/operations/conditions.md explains each reason to the person who meets it; a test holds the two
//! together.

/// What a condition speaks about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConditionType {
    /// Clients are served at the requested size; a roll-out may be going on.
    Ready,
    /// Something is being changed: pods, volumes, the number of pods.
    Progressing,
    /// A person has to look.
    Degraded,
    /// The broker takes messages.
    BrokerReady,
    /// Pods are being taken away.
    ScalingDown,
    /// Volumes are growing.
    Resizing,
    /// The annotation `berth.dev/paused` stands: nothing is changed.
    Paused,
    /// kstatus: work is going on. Present only when True.
    Reconciling,
    /// kstatus: no progress without a change by a person. Present only when True.
    Stalled,
}

impl ConditionType {
    /// Every type, in the order in which a status lists them.
    pub const ALL: [Self; 9] = [
        Self::Ready,
        Self::Progressing,
        Self::Degraded,
        Self::BrokerReady,
        Self::ScalingDown,
        Self::Resizing,
        Self::Paused,
        Self::Reconciling,
        Self::Stalled,
    ];

    /// The word in the status.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "Ready",
            Self::Progressing => "Progressing",
            Self::Degraded => "Degraded",
            Self::BrokerReady => "BrokerReady",
            Self::ScalingDown => "ScalingDown",
            Self::Resizing => "Resizing",
            Self::Paused => "Paused",
            Self::Reconciling => "Reconciling",
            Self::Stalled => "Stalled",
        }
    }
}

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Why a condition is as it is.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Reason { $($(#[$doc])* $name,)* }

        impl Reason {
            /// Every reason there is.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The word in the status.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)* }
            }
        }
    };
}

reasons! {
    /// Ready: enough pods are ready.
    Available,
    /// Ready, Progressing: pods are starting or are not ready.
    PodsNotReady,
    /// Ready: the operator has not yet seen what became of its last change.
    Pending,
    /// Ready: `spec.replicas` is 0.
    ScaledToZero,
    /// Ready: `spec.suspend` is set.
    Suspended,
    /// Ready, Degraded: a child's name belongs to an object that is not the connector's.
    NameTaken,
    /// Ready: a child is being deleted and has to go first.
    ChildTerminating,
    /// Progressing, Resizing, ScalingDown, Degraded: nothing is going on.
    Idle,
    /// Progressing: pods are being replaced one at a time.
    RollingOut,
    /// Progressing: an eviction is refused for now, by a disruption budget.
    EvictionBlocked,
    /// Degraded: several disruption budgets select one pod, so no eviction can succeed.
    ConflictingBudgets,
    /// Progressing: pods come or go because the number of pods was changed.
    Scaling,
    /// Resizing: the volumes are being asked for more.
    VolumesGrowing,
    /// Resizing: volumes are not bound yet.
    VolumesPending,
    /// Resizing: the StatefulSet is being made anew with the new size; pods go on running.
    Recreating,
    /// Resizing: the API server or the storage class refuses larger volumes.
    ExpansionRefused,
    /// Degraded: no volume is to be had for a pod.
    StoragePending,
    /// Degraded: a pod cannot end; its node is probably lost.
    PodStuckTerminating,
    /// Stalled, Degraded: `spec.podTemplate` sets a field that is the operator's, or is no pod template.
    InvalidPodTemplate,
    /// Stalled, Degraded: the specification cannot be carried out as it stands.
    InvalidSpec,
    /// Stalled, Degraded: a field that Kubernetes never changes differs from what is wanted.
    ImmutableFieldChanged,
    /// Degraded: the API server refused a write; it is tried again.
    ApplyFailed,
    /// BrokerReady: the broker takes messages.
    BrokerAvailable,
    /// BrokerReady: no pod says that its broker takes messages.
    BrokerUnavailable,
    /// BrokerReady: no pod could be asked.
    BrokerUnknown,
    /// Paused: the annotation stands.
    PausedByAnnotation,
    /// Paused: the annotation does not stand.
    NotPaused,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_words_that_kubernetes_accepts() {
        for reason in Reason::ALL {
            let word = reason.as_str();
            assert!(word.len() <= 128 && word.starts_with(|c: char| c.is_ascii_uppercase()), "{word}");
            assert!(word.bytes().all(|b| b.is_ascii_alphanumeric()), "{word}");
        }
    }

    #[test]
    fn every_reason_and_type_is_explained() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/operations/conditions.md");
        let text = std::fs::read_to_string(path).expect("the page of reasons is there");
        for word in
            Reason::ALL.iter().map(|r| r.as_str()).chain(ConditionType::ALL.iter().map(|t| t.as_str()))
        {
            assert!(text.contains(&format!("| `{word}` |")), "{path} does not explain {word}");
        }
        let explained = text.lines().filter(|line| line.starts_with("| `")).count();
        assert_eq!(explained, Reason::ALL.len() + ConditionType::ALL.len(), "{path} explains what is gone");
    }
}
