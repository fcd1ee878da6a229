//! The port to a broker: what a front-end may ask ([`Operation`]), what comes back ([`Completion`]).
//!
//! Work that takes time leaves as an operation and returns as exactly one terminal completion for its
//! [`OpId`], also after a cancel or a disconnect. `Cancel` has no `OpId` of its own: its target completes
//! `Cancelled`, or with what won the race. `Lost` and `Ready` are notices and carry no `OpId`.
//!
//! A back end is an implementation of [`Backend`]. It never blocks and never calls back: the caller submits,
//! is woken, and polls. A selector is applied by whoever implements the port, before credit is used.
//!
//! This file decides nothing and holds no state.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use berth_types::{
    ChannelName, Destination, Group, Instant, Message, Now, OpId, Pattern, Ranges, Seq, SubId, Timestamp,
    TxnId, View,
};

/// What a front-end asks of a broker.
#[derive(Debug)]
pub enum Operation {
    /// Become a consumer of a queue: the channel is checked and known to be in use before the first
    /// `Reserve`. Completes `Opened` (not terminal), and at the end `SubEnded` when the broker ends it; the
    /// `Done` of its `Unsubscribe` ends it without one. Or `Refused`.
    Attach {
        /// The queue.
        channel: ChannelName,
    },
    /// Store messages, in order. Completes `Published` when they are as durable as configured.
    Publish {
        /// Messages and where each goes.
        batch: Vec<(Destination, Arc<Message>)>,
        /// All or none.
        atomic: bool,
    },
    /// Wait for messages of a queue and take them. Completes `Reserved` with at least one item, `Cancelled`,
    /// or `Refused`.
    Reserve {
        /// From `Opened`.
        sub: SubId,
        /// Most messages to take; at least 1.
        max: u32,
        /// Most bytes to take; one message always fits.
        max_bytes: u32,
        /// Lock time of each delivery, where the broker enforces it (Anypoint); none: the engine's deadlines
        /// rule.
        hold: Option<Duration>,
    },
    /// Give up a waiting operation.
    Cancel {
        /// The operation to give up.
        op: OpId,
    },
    /// Resolve deliveries of one reservation. Completes `Settled`, or `Refused` and then nothing has changed.
    Settle {
        /// The reservation.
        txn: TxnId,
        /// Done with.
        ack: Ranges,
        /// To the tail of the queue, receive count and failures one higher, marked redelivered.
        nack: Ranges,
        /// Never seen by a client: back to the old place, counts unchanged.
        release: Ranges,
        /// Discarded by the consumer: gone, like `ack`, but counted as rejected.
        reject: Ranges,
        /// Why `nack` happens; decides whether it is a failure that a receive limit counts.
        cause: NackCause,
        /// Complete only when the settlement is as durable as configured; else as soon as it is accepted.
        confirm: bool,
    },
    /// A client's transaction, in the client's order: all or nothing. Completes `Committed`.
    Commit {
        /// What to do.
        actions: Vec<Action>,
    },
    /// Move the end of one delivery's lock. Completes `Done` or `Refused`.
    Extend {
        /// The reservation.
        txn: TxnId,
        /// The message in it.
        seq: Seq,
        /// The new end.
        until: Instant,
    },
    /// Subscribe to events, events-store, commands or queries. Completes `Opened` (not terminal) or
    /// `Refused`.
    Subscribe {
        /// Which pattern; never queues.
        pattern: Pattern,
        /// Which channel.
        channel: ChannelName,
        /// Share with the other members of this group.
        group: Option<Group>,
        /// Take only messages that match.
        selector: Option<Arc<dyn Selector>>,
        /// Where to start (events-store).
        start: Start,
        /// Keep the position under this identity (events-store).
        identity: Option<Identity>,
    },
    /// Durable subscriptions: everything up to `seq` is in the client's socket. Completes `Done`.
    Position {
        /// From `Opened`.
        sub: SubId,
        /// The last sequence written.
        seq: Seq,
    },
    /// Let a subscription send more. Completes `Done`.
    Credit {
        /// From `Opened`.
        sub: SubId,
        /// How many more messages.
        n: u32,
        /// How many more bytes.
        max_bytes: u32,
    },
    /// End a consumer or subscription, after its last reservation is resolved and no `Reserve` waits.
    /// Completes `Done` once its position, or its deletion, is durable; that ends the `Attach` or
    /// `Subscribe` too.
    Unsubscribe {
        /// From `Opened`.
        sub: SubId,
        /// Delete the durable identity too.
        forget: bool,
    },
    /// Send a command or query and wait for its reply. Completes `Replied` or `Refused`.
    Request {
        /// Commands or queries, and the channel.
        destination: Destination,
        /// The request.
        message: Arc<Message>,
        /// When the wait ends.
        deadline: Instant,
    },
    /// Answer an `Incoming` request. Completes `Done` or `Refused`.
    Respond {
        /// Which request.
        request: RequestId,
        /// What to answer.
        reply: Reply,
    },
}

/// One step of a client's transaction.
#[derive(Debug)]
pub enum Action {
    /// Store a message.
    Publish(Destination, Arc<Message>),
    /// Resolve deliveries of one reservation.
    Settle {
        /// The reservation.
        txn: TxnId,
        /// Done with.
        ack: Ranges,
        /// Failed.
        nack: Ranges,
        /// Discarded.
        reject: Ranges,
    },
}

/// Why deliveries are nacked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum NackCause {
    /// The client said so, its time ran out, or its connection was lost: a failure that a receive limit
    /// counts.
    #[default]
    Failure,
    /// We gave up on it (drain, buffer): the receive count rises, the failures do not.
    Server,
}

/// What comes back from a broker.
#[derive(Debug)]
pub enum Completion {
    /// `Attach` and `Subscribe`: live. Not terminal: `SubEnded` for the same operation ends it.
    Opened {
        /// The name of the subscription from now on.
        sub: SubId,
        /// Events-store: the sequence that comes next.
        next_seq: Option<Seq>,
    },
    /// Carried out, nothing to report.
    Done,
    /// One result per message, in order.
    Published(Vec<Result<Stored, Refusal>>),
    /// The transaction was applied as a whole, or not at all.
    Committed(Result<(), Refusal>),
    /// Messages, each reserved for the caller until settled.
    Reserved {
        /// Under which they are settled; never used again by this back end.
        txn: TxnId,
        /// At least one, in queue order.
        items: Vec<Reserved>,
    },
    /// The settlement stands.
    Settled,
    /// Notice: the broker has taken a reservation back; settling it now changes nothing.
    Lost {
        /// Which one.
        txn: TxnId,
    },
    /// A message for a subscription. Not terminal; belongs to the operation that subscribed.
    Event {
        /// For whom.
        sub: SubId,
        /// Events-store: its place.
        seq: Option<Seq>,
        /// The message.
        message: Arc<Message>,
    },
    /// The broker has ended a subscription of its own accord. Terminal for the operation that subscribed.
    SubEnded {
        /// Which one.
        sub: SubId,
        /// Why; `BrokerNotReady`: with the broker, and may be asked for again when it is ready.
        reason: Refusal,
    },
    /// The reply to a `Request`.
    Replied {
        /// What the responder said.
        reply: Reply,
    },
    /// A request for a subscription on commands or queries. Not terminal.
    Incoming {
        /// For whom.
        sub: SubId,
        /// Under which it is answered.
        request: RequestId,
        /// The request.
        message: Arc<Message>,
    },
    /// Given up as asked.
    Cancelled,
    /// Not carried out; nothing has changed.
    Refused(Refusal),
    /// Notice: whether the broker can be used. `NotReady` also means that every subscription and
    /// reservation made before is void: the broker takes back what it had reserved.
    Ready(Readiness),
}

/// Where a message was stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stored {
    /// Its sequence in its channel; zero on patterns that store nothing.
    pub seq: Seq,
}

/// One message of a reservation.
#[derive(Clone, Debug)]
pub struct Reserved {
    /// Its name within the reservation.
    pub seq: Seq,
    /// The message.
    pub message: Arc<Message>,
    /// How often it had been received before this time; 0 the first time.
    pub receive_count: u32,
    /// Whether it may have been delivered before.
    pub redelivered: bool,
    /// End of the lock, where the broker enforces one.
    pub held_until: Option<Timestamp>,
}

/// A request that waits for its answer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RequestId(pub u64);

/// The answer to a command or query.
#[derive(Clone, Debug)]
pub struct Reply {
    /// Whether the command was carried out.
    pub executed: bool,
    /// Why not.
    pub error: Option<String>,
    /// What the responder sent.
    pub message: Option<Arc<Message>>,
}

/// Why a broker does not do what was asked. A value, not an error: the peer's program must act.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// No such channel, or a name that this back end cannot carry.
    InvalidDestination,
    /// Not allowed.
    NotAuthorized,
    /// A policy's bound of the queue is reached.
    QueueFull,
    /// Only the space that settlements need is left.
    StorageFull,
    /// Larger than the back end takes.
    MessageTooLarge,
    /// The broker is away or recovering.
    BrokerNotReady,
    /// The reservation, subscription or request is not known (any more).
    Unknown,
    /// The subscription has ended as asked.
    Ended,
    /// The back end cannot do this at all.
    Unsupported(Capability),
    /// Nobody answered in time.
    TimedOut,
    /// The durable identity is in use, here or on another node.
    InUse,
}

impl Refusal {
    /// A stable word for metric labels and logs.
    pub const fn label(&self) -> &'static str {
        match self {
            Self::InvalidDestination => "invalid_destination",
            Self::NotAuthorized => "not_authorized",
            Self::QueueFull => "queue_full",
            Self::StorageFull => "storage_full",
            Self::MessageTooLarge => "message_too_large",
            Self::BrokerNotReady => "broker_not_ready",
            Self::Unknown => "unknown",
            Self::Ended => "ended",
            Self::Unsupported(_) => "unsupported",
            Self::TimedOut => "timed_out",
            Self::InUse => "in_use",
        }
    }
}

/// Whether a broker can be used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Readiness {
    /// It can.
    Ready,
    /// It cannot, for this reason (a constant, fit for `/readyz`).
    NotReady(&'static str),
}

/// Something that not every back end can do.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Capability {
    /// Queues.
    Queues,
    /// Events.
    Events,
    /// Events-store.
    EventsStore,
    /// Commands and queries.
    Requests,
    /// `Commit` as one atomic step.
    AtomicCommit,
    /// `Settle.release`: back to the old place with counts unchanged.
    Release,
    /// `Extend` and `Reserve.hold`.
    Hold,
    /// Settlements that are confirmed durable.
    ConfirmedSettlement,
}

/// What a back end can do. What is not in it is refused by name, never imitated badly.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Capabilities(u16);

impl Capabilities {
    /// A set of capabilities.
    pub fn of(list: &[Capability]) -> Self {
        Self(list.iter().fold(0, |set, capability| set | 1 << *capability as u16))
    }

    /// Whether `capability` is in the set.
    pub const fn has(self, capability: Capability) -> bool {
        self.0 & (1 << capability as u16) != 0
    }
}

/// Where an events-store subscription starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Start {
    /// Only what is stored from now on.
    #[default]
    New,
    /// The oldest kept message.
    First,
    /// The newest message; like `New` on an empty store.
    Last,
    /// This sequence; beyond the end waits for it.
    Sequence(Seq),
    /// The first message stored at or after this time.
    Time(Timestamp),
}

/// Who owns a durable subscription: protocol, client id and subscription name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Identity {
    /// `stomp` or `amqp`.
    pub protocol: &'static str,
    /// AMQP container-id, STOMP client-id.
    pub client: ClientId,
    /// The subscription's name.
    pub subscription: Arc<str>,
}

/// A client's stable name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ClientId(pub Arc<str>);

/// A node's stable name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NodeName(pub Arc<str>);

/// Decides which messages a subscription takes.
pub trait Selector: fmt::Debug + Send + Sync {
    /// True takes the message; false and unknown do not.
    fn matches(&self, message: &dyn View) -> bool;
    /// The text it was made from.
    fn text(&self) -> &str;
}

/// A broker as a connection sees it.
pub trait Backend {
    /// Takes an operation. `op` is new, except for `Cancel`, whose own id is ignored.
    fn submit(&mut self, now: Now, op: OpId, operation: Operation);
    /// The next completion or notice (without an id), until there is none.
    fn poll(&mut self, now: Now) -> Option<(Option<OpId>, Completion)>;
    /// When `poll` must be called again though nothing was submitted.
    fn poll_timeout(&self) -> Option<Instant>;
    /// Whom to wake when `poll` has something.
    fn set_waker(&mut self, waker: &std::task::Waker);
    /// What can be had.
    fn capabilities(&self) -> Capabilities;
}

/// What a durable identity subscribes to: written with the claim, in one write.
#[derive(Clone, Debug)]
pub struct SubscriptionSpec {
    /// Which events-store channel.
    pub channel: ChannelName,
    /// Shared with the members of this group.
    pub group: Option<Group>,
    /// The text of the selector.
    pub selector: Option<Arc<str>>,
    /// Where it started.
    pub start: Start,
}

/// Who owns a durable identity, cluster-wide.
pub trait Claims {
    /// Asks for an identity to be owned by this node.
    fn claim(&mut self, op: OpId, identity: Identity, spec: SubscriptionSpec);
    /// Gives an identity up.
    fn release(&mut self, op: OpId, identity: Identity);
    /// Gives an identity to another node, with its final position.
    fn hand_over(&mut self, op: OpId, identity: Identity, to: NodeName, position: Seq);
    /// The nodes that own identities of a client, as last seen.
    fn owners_of(&self, client: &ClientId) -> Vec<NodeName>;
    /// The next answer, until there is none.
    fn poll(&mut self) -> Option<(OpId, Claim)>;
}

/// The answer to a claim.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Claim {
    /// This node owns it.
    Mine,
    /// Another one does.
    Other {
        /// Which one.
        node: NodeName,
    },
    /// The registry cannot be reached: ask again.
    Unknown,
}

/// The claims of a node that stands alone: every identity is its own.
#[derive(Debug, Default)]
pub struct LocalClaims {
    answers: std::collections::VecDeque<(OpId, Claim)>,
}

impl Claims for LocalClaims {
    fn claim(&mut self, op: OpId, _identity: Identity, _spec: SubscriptionSpec) {
        self.answers.push_back((op, Claim::Mine));
    }

    fn release(&mut self, op: OpId, _identity: Identity) {
        self.answers.push_back((op, Claim::Mine));
    }

    fn hand_over(&mut self, op: OpId, _identity: Identity, to: NodeName, _position: Seq) {
        self.answers.push_back((op, Claim::Other { node: to }));
    }

    fn owners_of(&self, _client: &ClientId) -> Vec<NodeName> {
        Vec::new()
    }

    fn poll(&mut self) -> Option<(OpId, Claim)> {
        self.answers.pop_front()
    }
}
