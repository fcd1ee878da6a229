//! Plain counters of one engine; the server sums them up and turns them into metrics.

/// What an engine has done since it was made. Counts only rise.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Deliveries given to the front-end.
    pub delivered: u64,
    /// Those of them marked redelivered.
    pub redelivered: u64,
    /// Deliveries accepted: by the client, or by the engine in mode auto.
    pub acked: u64,
    /// Deliveries nacked, for whatever cause.
    pub nacked: u64,
    /// Deliveries given back unseen.
    pub released: u64,
    /// Deliveries discarded by the client.
    pub rejected: u64,
    /// Deliveries nacked because their ack timeout ran out (also counted in `nacked`).
    pub expired: u64,
    /// Deliveries taken back from the output buffer.
    pub withdrawn: u64,
    /// Settlements that were late, unknown or foreign, and those of auto subscriptions.
    pub settlements_ignored: u64,
    /// Settlements that the broker refused.
    pub settlements_refused: u64,
    /// Accepted deliveries of auto subscriptions that were lost unwritten with their connection.
    pub dropped: u64,
    /// Deliveries that the broker took back.
    pub lost: u64,
    /// Messages published and confirmed.
    pub published: u64,
    /// Messages whose publish was refused.
    pub publishes_refused: u64,
}
