//! What the gateway itself says ERROR about: frames that are well formed and still cannot be carried out.
//!
//! Broken rules of the wire are [`berth_stomp::Violation`]; refusals of the broker are in `refusal.rs`.
//! Every text of the three stands in `docs/operations/stomp-errors.md`.

use berth_stomp::ErrorFrame;
use berth_types::limits::STOMP_PREFETCH_MAX;
use berth_types::{Destination, InvalidChannel};

use crate::access::Right;

/// A frame that is not carried out, and why.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Complaint {
    /// The login was not accepted; why is not told.
    AuthenticationFailed,
    /// A destination of no form that we know.
    UnknownDestination,
    /// A destination without a leading slash, where the setting allows none.
    NoDefaultPattern,
    /// The name in the destination is none.
    InvalidChannel(InvalidChannel),
    /// A form that has nothing behind it yet.
    PatternNotSupported(&'static str),
    /// BEGIN, COMMIT, ABORT, or a `transaction` header.
    TransactionsNotSupported,
    /// No permission.
    NotAuthorized(Right, Destination),
    /// The id belongs to a live subscription.
    SubscriptionIdInUse,
    /// So many a connection may have.
    TooManySubscriptions(usize),
    /// A selector on a queue.
    SelectorNotSupported,
    /// A durable name on a queue.
    DurableNeedsStore,
    /// `prefetch-count` is no number.
    InvalidPrefetchCount,
    /// UNSUBSCRIBE of what is not there.
    UnknownSubscription,
    /// The process goes down.
    ServerShuttingDown,
    /// The process needs the memory that this client holds.
    ServerBusy,
}

impl Complaint {
    /// The short, stable text of the `message` header.
    pub(crate) const fn message(&self) -> &'static str {
        match self {
            Self::AuthenticationFailed => "authentication failed",
            Self::UnknownDestination | Self::NoDefaultPattern | Self::InvalidChannel(_) => {
                "invalid destination"
            }
            Self::PatternNotSupported(_) | Self::TransactionsNotSupported => "not supported",
            Self::NotAuthorized(..) => "not authorized",
            Self::SubscriptionIdInUse => "subscription id in use",
            Self::TooManySubscriptions(_) => "too many subscriptions",
            Self::SelectorNotSupported => "selector not supported",
            Self::DurableNeedsStore => "durable needs /store/<ch>",
            Self::InvalidPrefetchCount => "invalid prefetch-count",
            Self::UnknownSubscription => "unknown subscription",
            Self::ServerShuttingDown => "server shutting down",
            Self::ServerBusy => "server busy",
        }
    }

    /// The ERROR frame.
    pub(crate) fn to_frame(&self) -> ErrorFrame {
        ErrorFrame::new(self.message(), self.detail())
    }

    fn detail(&self) -> String {
        match self {
            Self::AuthenticationFailed => "The login was not accepted.".to_owned(),
            Self::UnknownDestination => "A destination is /queue/<channel>.".to_owned(),
            Self::NoDefaultPattern => {
                "A destination must begin with a slash, as in /queue/<channel>.".to_owned()
            }
            Self::InvalidChannel(reason) => format!("This is no channel name: {reason}."),
            Self::PatternNotSupported(what) => {
                format!("{what} are not supported yet; use /queue/<channel>.")
            }
            Self::TransactionsNotSupported => {
                "Transactions are not supported yet; send frames without a transaction header.".to_owned()
            }
            Self::NotAuthorized(Right::Read, destination) => {
                format!("This client may not consume from {destination}.")
            }
            Self::NotAuthorized(Right::Write, destination) => {
                format!("This client may not send to {destination}.")
            }
            Self::SubscriptionIdInUse => {
                "This id belongs to a live subscription of this connection.".to_owned()
            }
            Self::TooManySubscriptions(max) => {
                format!("A connection may have {max} subscriptions (setting maxSubscriptions).")
            }
            Self::SelectorNotSupported => {
                "A queue has no selectors: each message goes to one consumer.".to_owned()
            }
            Self::DurableNeedsStore => {
                "Only stored events have durable subscriptions; a queue keeps every message anyway."
                    .to_owned()
            }
            Self::InvalidPrefetchCount => {
                format!("prefetch-count must be a decimal number from 1 to {STOMP_PREFETCH_MAX}.")
            }
            Self::UnknownSubscription => "This connection has no such subscription.".to_owned(),
            Self::ServerShuttingDown => "The server is going down; connect again.".to_owned(),
            Self::ServerBusy => {
                "The server's clients hold more memory than it has (setting limits.maxMemory); try again \
                 later."
                    .to_owned()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_engine::port::{Capability, Refusal};
    use berth_stomp::{Malformed, Violation};
    use berth_types::{ChannelName, Pattern};

    fn complaints() -> Vec<Complaint> {
        let destination = Destination { pattern: Pattern::Queues, channel: ChannelName::parse("q").unwrap() };
        vec![
            Complaint::AuthenticationFailed,
            Complaint::UnknownDestination,
            Complaint::NoDefaultPattern,
            Complaint::InvalidChannel(InvalidChannel::TooLong),
            Complaint::PatternNotSupported("Events"),
            Complaint::TransactionsNotSupported,
            Complaint::NotAuthorized(Right::Read, destination),
            Complaint::SubscriptionIdInUse,
            Complaint::TooManySubscriptions(1),
            Complaint::SelectorNotSupported,
            Complaint::DurableNeedsStore,
            Complaint::InvalidPrefetchCount,
            Complaint::UnknownSubscription,
            Complaint::ServerShuttingDown,
            Complaint::ServerBusy,
        ]
    }

    fn violations() -> Vec<Violation> {
        vec![
            Violation::UnknownCommand("X".into()),
            Violation::Malformed(Malformed::NoColon),
            Violation::HeaderLineTooLong(1),
            Violation::TooManyHeaders(1),
            Violation::FrameTooLargeBeforeLogin(1),
            Violation::BodyTooLarge { declared: None, limit: 1 },
            Violation::InvalidContentLength,
            Violation::NotConnected,
            Violation::AlreadyConnected,
            Violation::UnsupportedVersion,
            Violation::InvalidHeartBeat,
            Violation::MissingHeader { command: berth_stomp::Command::Ack, header: "id" },
            Violation::UnknownAckMode,
            Violation::HeartBeatTimeout(1),
        ]
    }

    fn refusals() -> Vec<Refusal> {
        vec![
            Refusal::InvalidDestination,
            Refusal::NotAuthorized,
            Refusal::QueueFull,
            Refusal::StorageFull,
            Refusal::MessageTooLarge,
            Refusal::BrokerNotReady,
            Refusal::Unknown,
            Refusal::Ended,
            Refusal::Unsupported(Capability::Queues),
            Refusal::TimedOut,
            Refusal::InUse,
        ]
    }

    #[test]
    fn every_text_is_short_needs_no_escape_and_stands_in_the_operators_page() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operations/stomp-errors.md");
        let page = std::fs::read_to_string(path).unwrap();
        let texts = complaints()
            .iter()
            .map(Complaint::message)
            .chain(violations().iter().map(Violation::message))
            .chain(refusals().iter().map(|refusal| crate::stomp_error(refusal).message))
            .collect::<std::collections::BTreeSet<_>>();
        for text in &texts {
            assert!(text.len() <= 32 && !text.contains([':', '\n', '\\']), "{text}");
            assert!(page.contains(&format!("| `{text}` |")), "{text} is not explained in {path}");
        }
        let rows = page.lines().filter(|line| line.starts_with("| `")).count();
        assert_eq!(rows, texts.len() + 1, "no text that nobody says, and the server's own one");
    }

    #[test]
    fn every_body_is_a_sentence() {
        for complaint in complaints() {
            let frame = complaint.to_frame();
            assert!(frame.detail.ends_with('.'), "{frame:?}");
        }
    }
}
