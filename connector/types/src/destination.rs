//! Where a message is sent: one of five patterns and a channel name that all front-ends share.

use std::fmt;
use std::sync::Arc;

use crate::limits::CHANNEL_NAME_BYTES_MAX;

/// How messages of a channel are delivered.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Pattern {
    /// Each message to one consumer, kept until settled.
    Queues,
    /// A copy to each live subscriber, nothing stored.
    Events,
    /// A stored log with replay and durable identities.
    EventsStore,
    /// A request with a reply that says whether it was carried out.
    Commands,
    /// A request with a reply that carries data.
    Queries,
}

impl Pattern {
    /// The address word of the pattern, as in `queues/jobs`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Queues => "queues",
            Self::Events => "events",
            Self::EventsStore => "events-store",
            Self::Commands => "commands",
            Self::Queries => "queries",
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why a text is no channel name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InvalidChannel {
    /// No text at all, or nothing between two separators.
    EmptySegment,
    /// Longer than [`CHANNEL_NAME_BYTES_MAX`] bytes.
    TooLong,
    /// White space, a control character, or one of `*`, `>`, `;`, `:`.
    Character(char),
}

impl fmt::Display for InvalidChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EmptySegment => f.write_str("an empty name or an empty segment"),
            Self::TooLong => write!(f, "longer than {CHANNEL_NAME_BYTES_MAX} bytes"),
            Self::Character(c) => write!(f, "the character {c:?} is not allowed"),
        }
    }
}

impl std::error::Error for InvalidChannel {}

/// A channel's name: segments joined by `.`, at most [`CHANNEL_NAME_BYTES_MAX`] bytes of UTF-8. Cheap to
/// clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ChannelName(Arc<str>);

impl ChannelName {
    /// Reads a name as any protocol writes it: `/` separates like `.` and becomes `.`.
    pub fn parse(text: &str) -> Result<Self, InvalidChannel> {
        if text.len() > CHANNEL_NAME_BYTES_MAX {
            return Err(InvalidChannel::TooLong);
        }
        if text.split(['.', '/']).any(str::is_empty) {
            return Err(InvalidChannel::EmptySegment);
        }
        if let Some(c) = text.chars().find(|c| !is_allowed(*c)) {
            return Err(InvalidChannel::Character(c));
        }
        Ok(Self(if text.contains('/') { text.replace('/', ".").into() } else { text.into() }))
    }

    /// The name with `.` between its segments.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ChannelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn is_allowed(c: char) -> bool {
    !c.is_whitespace() && !c.is_control() && !"*>;:".contains(c)
}

/// Where a message is sent: a pattern and a channel.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Destination {
    /// How it is delivered.
    pub pattern: Pattern,
    /// To whom.
    pub channel: ChannelName,
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.pattern, self.channel)
    }
}

/// A consumer group on events and events-store: one member gets each message.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Group(Arc<str>);

impl Group {
    /// Wraps a group's name.
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self(name.into())
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slash_and_dot_are_one_separator() {
        assert_eq!(ChannelName::parse("jobs/email"), ChannelName::parse("jobs.email"));
        assert_eq!(ChannelName::parse("jobs/email").unwrap().as_str(), "jobs.email");
    }

    #[test]
    fn refuses_what_no_back_end_can_name() {
        for text in ["", "/a", "a/", "a//b", "a..b", ".", "a./b"] {
            assert_eq!(ChannelName::parse(text), Err(InvalidChannel::EmptySegment), "{text:?}");
        }
        for (text, c) in [
            ("a b", ' '),
            ("a\tb", '\t'),
            ("a*", '*'),
            ("a>", '>'),
            ("a;b", ';'),
            ("a:b", ':'),
            ("a\0b", '\0'),
        ] {
            assert_eq!(ChannelName::parse(text), Err(InvalidChannel::Character(c)), "{text:?}");
        }
        assert_eq!(ChannelName::parse(&"a".repeat(256)), Err(InvalidChannel::TooLong));
        assert!(ChannelName::parse(&"a".repeat(255)).is_ok());
    }
}
