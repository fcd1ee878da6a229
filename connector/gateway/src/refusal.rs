//! The one table from a broker's refusal to what each protocol says.

use berth_engine::port::Refusal;

/// What a protocol's error says about a refusal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StompError {
    /// The `message` header: short and stable.
    pub message: &'static str,
    /// The body: a sentence for a person.
    pub detail: &'static str,
}

/// The ERROR frame for a refusal.
pub const fn stomp_error(refusal: &Refusal) -> StompError {
    let (message, detail) = match refusal {
        Refusal::InvalidDestination => {
            ("invalid destination", "There is no such destination, or the broker cannot carry its name.")
        }
        Refusal::NotAuthorized => ("not authorized", "This client may not do this with this destination."),
        Refusal::QueueFull => ("queue full", "The queue has reached the bound that its policy sets."),
        Refusal::StorageFull => {
            ("storage full", "The broker's disk is full; consuming goes on, so that space comes back.")
        }
        Refusal::MessageTooLarge => ("message too large", "The message is larger than the broker takes."),
        Refusal::BrokerNotReady => {
            ("broker not ready", "The message broker cannot be used at the moment; connect again later.")
        }
        Refusal::Unknown => ("unknown delivery", "The broker does not know this delivery any more."),
        Refusal::Ended => ("subscription ended", "The broker has ended this subscription."),
        Refusal::Unsupported(_) => ("not supported", "The broker behind this connector cannot do this."),
        Refusal::TimedOut => ("timed out", "Nobody answered in time."),
        Refusal::InUse => ("durable subscription in use", "Another connection uses this subscription."),
    };
    StompError { message, detail }
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_engine::port::Capability;

    #[test]
    fn every_refusal_has_a_short_text_of_its_own() {
        let all = [
            (Refusal::InvalidDestination, "invalid destination"),
            (Refusal::NotAuthorized, "not authorized"),
            (Refusal::QueueFull, "queue full"),
            (Refusal::StorageFull, "storage full"),
            (Refusal::MessageTooLarge, "message too large"),
            (Refusal::BrokerNotReady, "broker not ready"),
            (Refusal::Unknown, "unknown delivery"),
            (Refusal::Ended, "subscription ended"),
            (Refusal::Unsupported(Capability::Queues), "not supported"),
            (Refusal::TimedOut, "timed out"),
            (Refusal::InUse, "durable subscription in use"),
        ];
        for (refusal, message) in all {
            let error = stomp_error(&refusal);
            assert_eq!(error.message, message);
            assert!(error.message.len() <= 32 && error.detail.ends_with('.'), "{refusal:?}");
            assert!(!error.message.contains([':', '\n', '\\']), "needs no escape in any version");
        }
    }
}
