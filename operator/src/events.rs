//! Events: one for every act that a person would ask about.
//!
//! An event that cannot be written is logged and forgotten: it never fails a pass. Whoever reports
//! decides that something is new; nothing is counted or joined here, so that no text is lost.

use crate::cluster::{Cluster, Kind, ObjectId};
use crate::names::MANAGED_BY;
use crate::target::Target;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicU32, Ordering};

/// Whether an event is news or a warning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// News.
    Normal,
    /// Somebody should look.
    Warning,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// News or a warning.
    pub severity: Severity,
    /// What, in one word.
    pub reason: &'static str,
    /// What the operator did, in one word.
    pub action: &'static str,
    /// What, in a sentence.
    pub note: String,
}

impl Event {
    /// News.
    #[must_use]
    pub const fn normal(reason: &'static str, action: &'static str, note: String) -> Self {
        Self { severity: Severity::Normal, reason, action, note }
    }

    /// A warning.
    #[must_use]
    pub const fn warning(reason: &'static str, action: &'static str, note: String) -> Self {
        Self { severity: Severity::Warning, reason, action, note }
    }
}

/// Writes events.
pub struct Events {
    cluster: Cluster,
    instance: String,
    sequence: AtomicU32,
}

impl Events {
    /// Events in the name of this operator pod.
    #[must_use]
    pub const fn new(cluster: Cluster, instance: String) -> Self {
        Self { cluster, instance, sequence: AtomicU32::new(0) }
    }

    /// Writes an event about a connector.
    pub async fn publish(&self, target: &Target, event: Event) {
        self.publish_about(&target.object_reference(), event).await;
    }

    /// Writes an event about any object that has a name and a namespace.
    pub async fn publish_about(&self, about: &ObjectReference, event: Event) {
        let (Some(namespace), Some(name)) = (&about.namespace, &about.name) else { return };
        let now = Timestamp::now();
        // A name that is taken is taken by an event of another instant: the next attempt has another one.
        for _ in 0..2 {
            let sequence = self.sequence.fetch_add(1, Ordering::Relaxed);
            let id = ObjectId::new(Kind::Event, event_name(name, now, sequence));
            let body = body(about, &event, &id.name, &self.instance, now);
            match self.cluster.create(namespace, &id, &body).await {
                Ok(_) => return,
                Err(error) if error.status().is_some_and(kube::core::Status::is_already_exists) => {}
                Err(error) => {
                    tracing::warn!(reason = event.reason, note = event.note, %error, "Event not written");
                    return;
                }
            }
        }
    }
}

/// The longest note that the API server takes, in bytes.
const NOTE_BYTES_MAX: usize = 1024;

fn body(about: &ObjectReference, event: &Event, name: &str, instance: &str, now: Timestamp) -> Value {
    let severity = match event.severity {
        Severity::Normal => "Normal",
        Severity::Warning => "Warning",
    };
    json!({
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": { "name": name, "namespace": about.namespace },
        "eventTime": format!("{now:.6}"),
        "regarding": about,
        "reason": event.reason,
        "action": event.action,
        "note": truncated(&event.note, NOTE_BYTES_MAX),
        "type": severity,
        "reportingController": format!("berth.dev/{MANAGED_BY}"),
        "reportingInstance": instance,
    })
}

/// `<object>.<nanoseconds>.<sequence>`, at most 253 characters.
fn event_name(object: &str, now: Timestamp, sequence: u32) -> String {
    format!("{}.{:x}.{sequence:x}", truncated(object, 200), now.as_nanosecond())
}

fn truncated(text: &str, bytes: usize) -> &str {
    let mut end = bytes.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_cut_between_characters() {
        assert_eq!(truncated("abc", 8), "abc");
        assert_eq!(truncated("aé", 2), "a");
        assert!(truncated(&"é".repeat(600), NOTE_BYTES_MAX).len() <= NOTE_BYTES_MAX);
    }

    #[test]
    fn names_of_events_differ_and_fit() {
        let now = Timestamp::from_second(1).unwrap();
        let name = event_name(&"x".repeat(253), now, 1);
        assert!(name.len() <= 253);
        assert_ne!(name, event_name(&"x".repeat(253), now, 2));
    }

    #[test]
    fn the_time_has_microseconds() {
        let now = Timestamp::from_second(1_700_000_000).unwrap();
        let event = Event::normal("Made", "Make", "x".to_owned());
        let body = body(&ObjectReference::default(), &event, "x.1.1", "pod", now);
        assert_eq!(body["eventTime"], "2023-11-14T22:13:20.000000Z");
    }
}
