//! What a frame of an open connection asks for: commands with the headers that their version needs.
//!
//! Everything borrows from the frame. Nothing here knows whether a destination or a subscription exists.

use std::borrow::Cow;

use crate::{Command, Frame, ProtocolError, Version, Violation};

/// How the deliveries of a subscription are settled.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum AckMode {
    /// By being written.
    #[default]
    Auto,
    /// One ACK settles all up to the named one.
    Client,
    /// One ACK settles one.
    ClientIndividual,
}

impl AckMode {
    /// The word on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Client => "client",
            Self::ClientIndividual => "client-individual",
        }
    }
}

/// Which delivery an ACK or NACK names, per version.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AckTarget<'a> {
    /// 1.2: the `ack` header of the MESSAGE.
    Token(Cow<'a, str>),
    /// 1.1: message-id and subscription.
    Pair {
        /// The `message-id` header of the MESSAGE.
        message_id: Cow<'a, str>,
        /// The subscription's id.
        subscription: Cow<'a, str>,
    },
    /// 1.0: the message-id alone.
    MessageId(Cow<'a, str>),
}

/// Which subscription UNSUBSCRIBE ends.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Unsubscribe<'a> {
    /// The one with this id.
    Id(Cow<'a, str>),
    /// 1.0: the oldest one without an id on this destination.
    Destination(Cow<'a, str>),
}

/// A frame of an open connection, with the headers that its command needs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request<'a> {
    /// SEND.
    Send {
        /// Not empty.
        destination: Cow<'a, str>,
    },
    /// SUBSCRIBE.
    Subscribe {
        /// Not empty.
        destination: Cow<'a, str>,
        /// Always there from 1.1 on.
        id: Option<Cow<'a, str>>,
        /// auto when the header is absent.
        ack: AckMode,
    },
    /// UNSUBSCRIBE.
    Unsubscribe(Unsubscribe<'a>),
    /// ACK.
    Ack(AckTarget<'a>),
    /// NACK.
    Nack {
        /// Which delivery.
        target: AckTarget<'a>,
        /// False discards instead of giving back.
        requeue: bool,
    },
    /// BEGIN of this transaction.
    Begin(Cow<'a, str>),
    /// COMMIT of this transaction.
    Commit(Cow<'a, str>),
    /// ABORT of this transaction.
    Abort(Cow<'a, str>),
    /// DISCONNECT.
    Disconnect,
}

impl Frame {
    /// The `receipt` header, on every frame but those of the handshake. An empty value counts.
    pub fn receipt(&self) -> Option<Cow<'_, str>> {
        if self.command().is_handshake() { None } else { self.header("receipt") }
    }

    /// The transaction that a SEND, ACK or NACK belongs to.
    pub fn transaction(&self) -> Option<Cow<'_, str>> {
        match self.command() {
            Command::Send | Command::Ack | Command::Nack => self.header("transaction"),
            _ => None,
        }
    }

    /// What the frame asks for.
    ///
    /// # Errors
    /// A header that the command needs in this version is missing or empty, or `ack` is no ack mode.
    pub fn request(&self) -> Result<Request<'_>, ProtocolError> {
        Ok(match self.command() {
            Command::Send => Request::Send { destination: self.required("destination")? },
            Command::Subscribe => self.subscribe()?,
            Command::Unsubscribe => Request::Unsubscribe(self.unsubscribe()?),
            Command::Ack => Request::Ack(self.ack_target()?),
            Command::Nack => Request::Nack { target: self.ack_target()?, requeue: self.requeue() },
            Command::Begin => Request::Begin(self.required("transaction")?),
            Command::Commit => Request::Commit(self.required("transaction")?),
            Command::Abort => Request::Abort(self.required("transaction")?),
            Command::Disconnect => Request::Disconnect,
            Command::Connect | Command::Stomp => return Err(self.error(Violation::AlreadyConnected)),
            Command::Connected | Command::Message | Command::Receipt | Command::Error => {
                return Err(self.error(Violation::UnknownCommand(self.command().as_str().into())));
            }
        })
    }

    /// An error about this frame, with the receipt it asked for.
    pub fn error(&self, violation: Violation) -> ProtocolError {
        ProtocolError { violation, receipt: self.receipt().map(|r| r.as_ref().into()) }
    }

    fn subscribe(&self) -> Result<Request<'_>, ProtocolError> {
        let destination = self.required("destination")?;
        let id = match self.version() {
            Version::V1_0 => self.header("id").filter(|id| !id.is_empty()),
            Version::V1_1 | Version::V1_2 => Some(self.required("id")?),
        };
        let ack = match self.header("ack").as_deref() {
            None | Some("auto") => AckMode::Auto,
            Some("client") => AckMode::Client,
            Some("client-individual") => AckMode::ClientIndividual,
            Some(_) => return Err(self.error(Violation::UnknownAckMode)),
        };
        Ok(Request::Subscribe { destination, id, ack })
    }

    fn unsubscribe(&self) -> Result<Unsubscribe<'_>, ProtocolError> {
        match self.header("id").filter(|id| !id.is_empty()) {
            Some(id) => Ok(Unsubscribe::Id(id)),
            None if self.version() == Version::V1_0 => {
                Ok(Unsubscribe::Destination(self.required("destination")?))
            }
            None => Err(self.error(Violation::MissingHeader { command: self.command(), header: "id" })),
        }
    }

    fn ack_target(&self) -> Result<AckTarget<'_>, ProtocolError> {
        Ok(match self.version() {
            Version::V1_2 => AckTarget::Token(self.required("id")?),
            Version::V1_1 => AckTarget::Pair {
                message_id: self.required("message-id")?,
                subscription: self.required("subscription")?,
            },
            Version::V1_0 => AckTarget::MessageId(self.required("message-id")?),
        })
    }

    /// Python clients write booleans with a capital letter.
    fn requeue(&self) -> bool {
        !matches!(self.header("requeue").as_deref(), Some("false" | "False"))
    }

    fn required(&self, header: &'static str) -> Result<Cow<'_, str>, ProtocolError> {
        self.header(header)
            .filter(|value| !value.is_empty())
            .ok_or_else(|| self.error(Violation::MissingHeader { command: self.command(), header }))
    }
}
