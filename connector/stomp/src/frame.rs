//! A decoded frame: its command, its header lines as they were on the wire, its body.
//!
//! Header lines stay where they were read, as offsets into one reference-counted block; escapes are undone
//! when a header is looked at. The decoder has checked before that every escape is valid and that the block
//! is UTF-8, so reading a header cannot fail.

use std::borrow::Cow;

use bytes::Bytes;

use crate::Version;

/// What a frame asks for or tells. The last four come from servers only.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Command {
    /// Opens a connection.
    Connect,
    /// The same under the name that 1.1 introduced.
    Stomp,
    /// Publishes a message.
    Send,
    /// Opens a subscription.
    Subscribe,
    /// Ends one.
    Unsubscribe,
    /// Accepts deliveries.
    Ack,
    /// Gives deliveries back.
    Nack,
    /// Opens a transaction.
    Begin,
    /// Applies it.
    Commit,
    /// Drops it.
    Abort,
    /// Says goodbye.
    Disconnect,
    /// The handshake is done.
    Connected,
    /// A delivery.
    Message,
    /// A frame has been processed.
    Receipt,
    /// The last frame of a connection.
    Error,
}

impl Command {
    /// The word on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Connect => "CONNECT",
            Self::Stomp => "STOMP",
            Self::Send => "SEND",
            Self::Subscribe => "SUBSCRIBE",
            Self::Unsubscribe => "UNSUBSCRIBE",
            Self::Ack => "ACK",
            Self::Nack => "NACK",
            Self::Begin => "BEGIN",
            Self::Commit => "COMMIT",
            Self::Abort => "ABORT",
            Self::Disconnect => "DISCONNECT",
            Self::Connected => "CONNECTED",
            Self::Message => "MESSAGE",
            Self::Receipt => "RECEIPT",
            Self::Error => "ERROR",
        }
    }

    /// Commands are case-sensitive and match as a whole (STOMP 1.2, "STOMP Frames").
    pub(crate) fn parse(word: &[u8]) -> Option<Self> {
        Some(match word {
            b"SEND" => Self::Send,
            b"ACK" => Self::Ack,
            b"NACK" => Self::Nack,
            b"CONNECT" => Self::Connect,
            b"STOMP" => Self::Stomp,
            b"SUBSCRIBE" => Self::Subscribe,
            b"UNSUBSCRIBE" => Self::Unsubscribe,
            b"BEGIN" => Self::Begin,
            b"COMMIT" => Self::Commit,
            b"ABORT" => Self::Abort,
            b"DISCONNECT" => Self::Disconnect,
            b"CONNECTED" => Self::Connected,
            b"MESSAGE" => Self::Message,
            b"RECEIPT" => Self::Receipt,
            b"ERROR" => Self::Error,
            _ => return None,
        })
    }

    /// Whether a server sends it.
    pub const fn is_from_server(self) -> bool {
        matches!(self, Self::Connected | Self::Message | Self::Receipt | Self::Error)
    }

    /// Only these may have a body (STOMP 1.2, "Body").
    pub(crate) const fn has_body(self) -> bool {
        matches!(self, Self::Send | Self::Message | Self::Error)
    }

    /// CONNECT is never escaped and neither is CONNECTED (STOMP 1.2, "Value Encoding").
    pub(crate) const fn is_handshake(self) -> bool {
        matches!(self, Self::Connect | Self::Stomp | Self::Connected)
    }
}

/// One header line, as offsets into the head of its frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Line {
    pub(crate) start: u32,
    pub(crate) colon: u32,
    pub(crate) end: u32,
    /// Holds an escape that means something in the frame's version.
    pub(crate) is_escaped: bool,
}

/// A frame as it was received.
#[derive(Clone, Debug)]
pub struct Frame {
    pub(crate) command: Command,
    /// From the command to the end of the header block.
    pub(crate) head: Bytes,
    pub(crate) lines: Vec<Line>,
    pub(crate) body: Bytes,
    pub(crate) version: Version,
}

impl Frame {
    /// Its command.
    pub const fn command(&self) -> Command {
        self.command
    }

    /// The version under which it was read. For CONNECT: the one that its own headers settle.
    pub const fn version(&self) -> Version {
        self.version
    }

    /// Its body; empty when it has none.
    pub const fn body(&self) -> &Bytes {
        &self.body
    }

    /// Takes the body out of the frame.
    pub fn take_body(&mut self) -> Bytes {
        std::mem::take(&mut self.body)
    }

    /// Bytes of the head on the wire: command and header lines.
    pub const fn head_bytes(&self) -> usize {
        self.head.len()
    }

    /// The value of the first header of this name, unescaped. `name` is one of the protocol's own, which
    /// holds nothing that would be escaped; so an escaped name on the wire is never equal to it.
    ///
    /// In 1.0 the value is without blanks at both ends: clients of that time pad.
    pub fn header(&self, name: &str) -> Option<Cow<'_, str>> {
        let is_named =
            |line: &&Line| self.head.get(line.start as usize..line.colon as usize) == Some(name.as_bytes());
        let line = self.lines.iter().find(is_named)?;
        // The decoder checked the whole head; a part between ASCII octets of UTF-8 is UTF-8.
        let value = self.head.get(line.colon as usize + 1..line.end as usize)?;
        let value = std::str::from_utf8(value).ok()?;
        let value = if line.is_escaped { unescape(value) } else { Cow::Borrowed(value) };
        Some(match (self.version, value) {
            (Version::V1_0, Cow::Borrowed(value)) => Cow::Borrowed(value.trim_matches(is_blank)),
            (_, value) => value,
        })
    }

    /// All headers in the order of the wire, repeated ones too.
    pub fn headers(&self) -> impl Iterator<Item = Header<'_>> {
        // Checked by the decoder already; looking again costs less than a check per header.
        let head = std::str::from_utf8(&self.head).unwrap_or_default();
        self.lines.iter().map(move |line| Header { head, line: *line, version: self.version })
    }
}

fn is_blank(c: char) -> bool {
    c == ' ' || c == '\t'
}

/// One header of a frame.
#[derive(Clone, Copy, Debug)]
pub struct Header<'a> {
    head: &'a str,
    line: Line,
    version: Version,
}

impl<'a> Header<'a> {
    /// The name as it was on the wire.
    pub fn raw_name(&self) -> &'a str {
        self.text(self.line.start, self.line.colon)
    }

    /// The value as it was on the wire.
    pub fn raw_value(&self) -> &'a str {
        let value = self.text(self.line.colon + 1, self.line.end);
        // STOMP 1.0 says nothing about blanks; its own examples are padded.
        if self.version == Version::V1_0 { value.trim_start_matches(is_blank) } else { value }
    }

    /// The name.
    pub fn name(&self) -> Cow<'a, str> {
        self.unescaped(self.raw_name())
    }

    /// The value.
    pub fn value(&self) -> Cow<'a, str> {
        self.unescaped(self.raw_value())
    }

    /// Whether the line can be copied as it stands into a head that is escaped as STOMP 1.2 says.
    pub(crate) fn is_plain(&self) -> bool {
        let value = self.raw_value().as_bytes();
        match self.version {
            // An escape of 1.1 or 1.2 is one of 1.2. A colon may stand unescaped, from clients that forget
            // to escape.
            Version::V1_1 => memchr::memchr2(b':', b'\r', value).is_none() && !self.raw_name().contains('\r'),
            Version::V1_2 => memchr::memchr(b':', value).is_none(),
            Version::V1_0 => {
                memchr::memchr3(b':', b'\r', b'\\', value).is_none()
                    && memchr::memchr2(b'\r', b'\\', self.raw_name().as_bytes()).is_none()
            }
        }
    }

    fn unescaped(&self, text: &'a str) -> Cow<'a, str> {
        if self.line.is_escaped { unescape(text) } else { Cow::Borrowed(text) }
    }

    fn text(&self, start: u32, end: u32) -> &'a str {
        self.head.get(start as usize..end as usize).unwrap_or_default()
    }
}

/// Undoes the escapes of 1.2, which include those of 1.1, in one pass. `text` has been checked.
pub(crate) fn unescape(text: &str) -> Cow<'_, str> {
    let Some(first) = memchr::memchr(b'\\', text.as_bytes()) else { return Cow::Borrowed(text) };
    let (clean, mut rest) = text.split_at(first);
    let mut out = String::with_capacity(text.len());
    out.push_str(clean);
    while let Some(after) = rest.strip_prefix('\\') {
        let mut chars = after.chars();
        match chars.next() {
            Some('n') => out.push('\n'),
            Some('r') => out.push('\r'),
            Some('c') => out.push(':'),
            Some(other) => out.push(other),
            None => {}
        }
        let tail = chars.as_str();
        let next = memchr::memchr(b'\\', tail.as_bytes()).unwrap_or(tail.len());
        let (clean, escape) = tail.split_at(next);
        out.push_str(clean);
        rest = escape;
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unescaping_is_one_pass() {
        assert_eq!(unescape(r"a\\nb"), r"a\nb");
        assert_eq!(unescape(r"\n\c\\\r"), "\n:\\\r");
        assert_eq!(unescape("plain"), "plain");
        assert_eq!(unescape(r"\\\\"), r"\\");
    }

    #[test]
    fn every_command_reads_back() {
        for command in [
            Command::Connect,
            Command::Stomp,
            Command::Send,
            Command::Subscribe,
            Command::Unsubscribe,
            Command::Ack,
            Command::Nack,
            Command::Begin,
            Command::Commit,
            Command::Abort,
            Command::Disconnect,
            Command::Connected,
            Command::Message,
            Command::Receipt,
            Command::Error,
        ] {
            assert_eq!(Command::parse(command.as_str().as_bytes()), Some(command));
            assert_eq!(Command::parse(command.as_str().to_lowercase().as_bytes()), None);
        }
    }
}
