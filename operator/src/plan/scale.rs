//! The number of pods.
//!
//! Only 0 and 1 are reachable with the embedded broker. Going to 0 keeps the volume; what waits in it is
//! said in an event, so that nobody finds out later by accident.

use crate::node::NodeReport;

/// What a change of the number of pods means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScaleStep {
    /// The number is as wanted, or there is no StatefulSet yet.
    Steady,
    /// More pods.
    Up,
    /// No pod is left; volumes stay.
    ToZero,
}

/// Compares the live number of pods with the wanted one.
#[must_use]
pub fn plan(live: Option<i32>, wanted: i32) -> ScaleStep {
    match live {
        Some(live) if wanted > live => ScaleStep::Up,
        Some(live) if wanted < live => ScaleStep::ToZero,
        _ => ScaleStep::Steady,
    }
}

/// What waits in a pod's volume, in words. Not knowing is said, never taken for nothing.
#[must_use]
pub fn what_waits(claim: &str, report: Option<&NodeReport>) -> String {
    let Some(report) = report.filter(|report| report.recovered) else {
        return format!(
            "its volume {claim} is kept; what waits in it is not known, since the pod did not answer"
        );
    };
    let (messages, unacked) = (report.own_messages, report.unacked);
    let durable = report.durable_subscriptions.len();
    if messages == 0 && unacked == 0 && durable == 0 {
        return format!("its volume {claim} is kept; nothing waits in it");
    }
    format!(
        "its volume {claim} is kept; {messages} messages wait in it, {unacked} of them unacknowledged, and \
         {durable} durable subscriptions"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directions() {
        assert_eq!(plan(None, 1), ScaleStep::Steady);
        assert_eq!(plan(Some(1), 1), ScaleStep::Steady);
        assert_eq!(plan(Some(0), 1), ScaleStep::Up);
        assert_eq!(plan(Some(1), 0), ScaleStep::ToZero);
    }

    #[test]
    fn unknown_is_not_nothing() {
        let mut report = NodeReport { recovered: true, ..NodeReport::default() };
        assert!(what_waits("data-x-0", Some(&report)).contains("nothing waits"));
        report.own_messages = 7;
        assert!(what_waits("data-x-0", Some(&report)).contains("7 messages"));
        report.recovered = false;
        assert!(what_waits("data-x-0", Some(&report)).contains("not known"));
        assert!(what_waits("data-x-0", None).contains("not known"));
    }
}
