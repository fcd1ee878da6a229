//! What a front-end asks of the engine, and what it is told. Plain values; nothing is decided here.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use berth_types::{ChannelName, DeliveryId, Message, Seq};

use crate::port::{Refusal, Stored};

/// A front-end's own name for a command whose end it wants to hear of. The engine only gives it back.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Correlation(pub u64);

/// One subscription of a connection, named by the engine. Never used again on the same connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct SubscriptionKey(pub(crate) u64);

impl fmt::Display for SubscriptionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "k{}", self.0)
    }
}

/// How the deliveries of a subscription end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// The engine accepts a delivery as soon as it stands in the output buffer; the window is that buffer's
    /// size.
    Auto,
    /// The client settles each delivery.
    Individual,
    /// The client settles a delivery and every earlier one of the subscription.
    Cumulative,
}

/// A new subscription.
#[derive(Clone, Debug)]
pub struct Subscribe {
    /// What to consume.
    pub source: Source,
    /// How its deliveries end.
    pub mode: Mode,
    /// Most deliveries outstanding at once, at least 1: not settled (client modes) or not written (auto).
    pub window: u32,
    /// How long a client may take to settle, and a delivery may wait unwritten. None: for ever. Ignored in
    /// mode auto.
    pub ack_timeout: Option<Duration>,
}

/// What a subscription consumes.
#[derive(Clone, Debug)]
pub enum Source {
    /// A queue.
    Queue(ChannelName),
}

/// How the connection of an engine ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// The client said goodbye, or was sent an error: the output buffer is still written.
    Closed,
    /// The transport is gone: what the output buffer holds is lost.
    Lost,
    /// The server goes down: what is nacked is no failure of the client.
    Shutdown,
}

/// The answer to a settlement, at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Settlement {
    /// It covers so many deliveries, at least one. [`Event::Settled`] follows when a confirm was asked for.
    Accepted(u32),
    /// Late, unknown or foreign: nothing changes and no event follows.
    Ignored,
}

/// What the engine tells the front-end.
#[derive(Debug)]
pub enum Event {
    /// The subscription is live, or waits for the broker and becomes live by itself. Once per subscription.
    Subscribed {
        /// Which one.
        sub: SubscriptionKey,
    },
    /// The broker does not serve this subscription (any more). Nothing more is delivered for it; what was
    /// delivered can still be settled.
    SubscriptionRefused {
        /// Which one.
        sub: SubscriptionKey,
        /// Why.
        reason: Refusal,
    },
    /// An unsubscribe has taken effect: what was unwritten is back at the broker, nothing is delivered any
    /// more.
    Unsubscribed {
        /// Which one.
        sub: SubscriptionKey,
    },
    /// Put this into the output buffer.
    Deliver {
        /// For whom.
        sub: SubscriptionKey,
        /// Its name on this connection; rises in delivery order, but is not dense.
        delivery: DeliveryId,
        /// What to send.
        message: Arc<Message>,
        /// Whether it may have been delivered before.
        redelivered: bool,
        /// How often it had been received before this time.
        receive_count: u32,
        /// Its sequence: in its channel, or within its reservation.
        seq: Seq,
    },
    /// Take the wholly unwritten delivery out of the output buffer and call `handle_withdrawn`. When its
    /// first byte has left meanwhile, `handle_write_progress` or `handle_written` is the answer instead.
    Withdraw {
        /// Which one.
        delivery: DeliveryId,
    },
    /// A subscription has given up on the socket until it takes a byte. When nothing waits in the output
    /// buffer, put something harmless there (STOMP: an end of line), or nobody would ever find out.
    Probe,
    /// The delivery is not pending any more, and not by the client: its ack timeout or the broker ended it.
    /// Settling it from now on is ignored.
    Ended {
        /// Which one.
        delivery: DeliveryId,
    },
    /// A publish is as durable as configured, or refused.
    Published {
        /// From the command.
        correlation: Correlation,
        /// Where it is, or why not.
        result: Result<Stored, Refusal>,
    },
    /// A settlement with a confirm is as durable as configured, or refused. `Unknown` and `BrokerNotReady`:
    /// it came too late and changes nothing. Any other refusal: its deliveries are pending again, with
    /// their old deadlines.
    Settled {
        /// From the command.
        correlation: Correlation,
        /// Whether it stands.
        result: Result<(), Refusal>,
    },
    /// The broker refused the settlement of this delivery: it is pending again, with its old deadline.
    SettlementRefused {
        /// Which one.
        delivery: DeliveryId,
        /// Why.
        reason: Refusal,
    },
}
