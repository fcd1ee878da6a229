//! A stored message: an envelope that brokers read, and the producer's own encoding, which they do not.

use bytes::Bytes;

use crate::{MessageId, Timestamp};

/// What a producer sent. Immutable and shared by reference count; bodies are never copied per subscriber.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Message {
    /// Stable id: the sender's own, else generated.
    pub id: MessageId,
    /// What a broker acts on.
    pub envelope: Envelope,
    /// How `head` and `body` are to be read.
    pub encoding: Encoding,
    /// Everything but the body, in the producer's encoding.
    pub head: Bytes,
    /// The body, opaque.
    pub body: Bytes,
}

impl Message {
    /// Bytes that count against limits: head and body.
    pub fn size_bytes(&self) -> usize {
        self.head.len() + self.body.len()
    }
}

/// The part of a message that a broker acts on, whatever protocol it came by.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Envelope {
    /// When the message was published, by the server's wall clock.
    pub published_at: Timestamp,
    /// After this it is dropped instead of handed out.
    pub expires_at: Option<Timestamp>,
    /// Before this it has no place in the queue.
    pub deliver_at: Option<Timestamp>,
    /// 0 to 9, 4 when the sender says nothing. Carried; queues are first in, first out.
    pub priority: Option<u8>,
    /// Message group of FIFO queues.
    pub group: Option<Box<str>>,
}

/// How a message's head is encoded.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Encoding {
    /// An AMQP 1.0 bare message with its annotations.
    Amqp,
    /// STOMP header lines, escaped as STOMP 1.2 says, each ended by a line feed.
    Stomp,
    /// Anypoint MQ properties.
    Anypoint,
    /// KubeMQ metadata and tags.
    KubeMq,
    /// No head.
    Plain,
}

/// A field of a message by its meaning, the same whatever the encoding.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Field<'a> {
    /// MIME type of the body.
    ContentType,
    /// The sender's own id.
    OwnId,
    /// Which request this answers.
    CorrelationId,
    /// Where an answer goes.
    ReplyTo,
    /// The sender's word for the kind of message.
    Type,
    /// When the sender says that it made the message, milliseconds since the epoch.
    Created,
    /// Expiry, milliseconds since the epoch.
    Expires,
    /// 0 to 9.
    Priority,
    /// Whether the sender asked for durability.
    Durable,
    /// Delay in milliseconds.
    Delay,
    /// A property of the sender's own.
    User(&'a str),
}

/// The value of a field.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Value<'a> {
    /// Text that its sender meant as text (an AMQP string or symbol).
    Text(&'a str),
    /// Text without a type (STOMP headers, Anypoint properties): it may stand for a number or a boolean.
    Untyped(&'a str),
    /// A whole number.
    Integer(i64),
    /// A number with a fraction.
    Float(f64),
    /// True or false.
    Boolean(bool),
    /// Bytes.
    Binary(&'a [u8]),
}

/// Reads a message's fields whatever its encoding: one reader per encoding, never a translator for each pair.
pub trait View {
    /// Calls `f` once for each field, in the order of the encoding.
    fn visit(&self, f: &mut dyn FnMut(Field<'_>, Value<'_>));
}
