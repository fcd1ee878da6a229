//! What a STOMP listener is set to; shared by all its connections.

use std::time::Duration;

use berth_types::Pattern;

/// Settings of the STOMP front-end.
#[derive(Clone, Debug)]
pub struct StompSettings {
    /// Frame limits, heart-beat offer, time-outs of the connection.
    pub connection: berth_stomp::Settings,
    /// What CONNECTED calls the server; empty: nothing.
    pub server_name: Box<str>,
    /// What a destination without a leading slash means; none: it is refused.
    pub default_pattern: Option<Pattern>,
    /// Deliveries that a subscription may have outstanding when it does not say, and the output buffer of
    /// auto ones. 1 to [`STOMP_PREFETCH_MAX`](berth_types::limits::STOMP_PREFETCH_MAX).
    pub subscription_buffer: u32,
    /// Subscriptions of one connection.
    pub subscriptions_max: usize,
    /// How long a client may take to settle a delivery.
    pub ack_timeout: Duration,
    /// Whether MESSAGE carries `delivery-count`.
    pub shows_delivery_count: bool,
}

impl Default for StompSettings {
    fn default() -> Self {
        Self {
            connection: berth_stomp::Settings::default(),
            server_name: concat!("berth/", env!("CARGO_PKG_VERSION")).into(),
            default_pattern: Some(Pattern::Events),
            subscription_buffer: 100,
            subscriptions_max: 256,
            ack_timeout: Duration::from_secs(30),
            shows_delivery_count: false,
        }
    }
}

/// What one STOMP connection has done so far. Counts only rise; the server sums them up and makes metrics
/// of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StompCounters {
    /// SEND frames that were handed to the broker.
    pub messages_in: u64,
    /// MESSAGE frames put into the output.
    pub messages_out: u64,
    /// ACK and NACK frames that settled nothing: late, unknown, foreign, or on an auto subscription.
    pub acks_ignored: u64,
    /// Deliveries whose ack timeout ran out.
    pub ack_timeouts: u64,
    /// RECEIPT frames sent.
    pub receipts: u64,
    /// ERROR frames sent: 0 or 1.
    pub errors: u64,
    /// Headers that a 1.0 client could not be sent.
    pub headers_left_out: u64,
}
