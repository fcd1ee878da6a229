//! What a peer can do wrong, and the ERROR frame that says so.
//!
//! The frame is derived from the mistake, never written at the place that finds it: one table of short,
//! stable texts. Input of the peer never stands in the `message` header, only (cut and printable) in the
//! body.

use std::fmt;

use crate::Command;

/// A rule of the protocol that the peer broke, and the receipt it asked for in the frame that broke it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProtocolError {
    /// The rule.
    pub violation: Violation,
    /// The `receipt` header of the offending frame, as far as it had been read.
    pub receipt: Option<Box<str>>,
}

impl ProtocolError {
    /// An error of a frame without a receipt.
    pub const fn new(violation: Violation) -> Self {
        Self { violation, receipt: None }
    }

    /// The ERROR frame for it.
    pub fn to_frame(&self) -> ErrorFrame {
        let mut frame = ErrorFrame::new(self.violation.message(), self.violation.detail());
        frame.receipt.clone_from(&self.receipt);
        if self.violation == Violation::UnsupportedVersion {
            frame.headers.push(("version", SUPPORTED_VERSIONS.into()));
        }
        frame
    }
}

impl fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.violation.message())
    }
}

impl std::error::Error for ProtocolError {}

/// The versions this server speaks, as the ERROR for a mismatch lists them.
pub(crate) const SUPPORTED_VERSIONS: &str = "1.0,1.1,1.2";

/// A broken rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Violation {
    /// No command of a client: the word, cut and printable.
    UnknownCommand(Box<str>),
    /// Not a frame.
    Malformed(Malformed),
    /// A header line is longer than this many octets.
    HeaderLineTooLong(usize),
    /// More header lines than this, repeated ones counted.
    TooManyHeaders(usize),
    /// Before login a frame has at most this many octets.
    FrameTooLargeBeforeLogin(usize),
    /// The body is longer than allowed.
    BodyTooLarge {
        /// The `content-length` that was declared, if any.
        declared: Option<u64>,
        /// The bound in octets.
        limit: usize,
    },
    /// `content-length` is no decimal number.
    InvalidContentLength,
    /// The first frame is not CONNECT.
    NotConnected,
    /// A second CONNECT.
    AlreadyConnected,
    /// `accept-version` names no version that we speak.
    UnsupportedVersion,
    /// `heart-beat` is not two decimal numbers.
    InvalidHeartBeat,
    /// A command lacks a header that it must have.
    MissingHeader {
        /// The command.
        command: Command,
        /// The header's name.
        header: &'static str,
    },
    /// `ack` on SUBSCRIBE is none of auto, client, client-individual.
    UnknownAckMode,
    /// The peer promised heart-beats and was silent for twice this many milliseconds.
    HeartBeatTimeout(u64),
}

impl Violation {
    /// The short, stable text of the `message` header; also a metric label.
    pub const fn message(&self) -> &'static str {
        match self {
            Self::UnknownCommand(_) => "unknown command",
            Self::Malformed(_) => "malformed frame",
            Self::HeaderLineTooLong(_) => "header line too long",
            Self::TooManyHeaders(_) => "too many headers",
            Self::FrameTooLargeBeforeLogin(_) => "frame too large",
            Self::BodyTooLarge { .. } => "message too large",
            Self::InvalidContentLength => "invalid content-length",
            Self::NotConnected => "not connected",
            Self::AlreadyConnected => "already connected",
            Self::UnsupportedVersion => "unsupported version",
            Self::InvalidHeartBeat => "invalid heart-beat",
            Self::MissingHeader { .. } => "missing header",
            Self::UnknownAckMode => "unknown ack mode",
            Self::HeartBeatTimeout(_) => "heart-beat timeout",
        }
    }

    /// A sentence for the person who reads the body.
    fn detail(&self) -> String {
        match self {
            Self::UnknownCommand(word) => format!("\"{word}\" is not a command of a STOMP client."),
            Self::Malformed(malformed) => malformed.detail().to_owned(),
            Self::HeaderLineTooLong(limit) => {
                format!("A header line may have {limit} octets (setting maxHeaderLine).")
            }
            Self::TooManyHeaders(limit) => {
                format!("A frame may have {limit} header lines (setting maxHeaders).")
            }
            Self::FrameTooLargeBeforeLogin(limit) => {
                format!("Before CONNECTED a frame may have {limit} octets.")
            }
            Self::BodyTooLarge { declared: Some(declared), limit } => format!(
                "content-length is {declared} octets; a body may have {limit} octets (setting maxBodySize)."
            ),
            Self::BodyTooLarge { declared: None, limit } => {
                format!(
                    "The body has more than {limit} octets, which is all it may have (setting maxBodySize)."
                )
            }
            Self::InvalidContentLength => "content-length must be a decimal number of octets.".to_owned(),
            Self::NotConnected => "The first frame must be CONNECT or STOMP.".to_owned(),
            Self::AlreadyConnected => "This connection is connected already.".to_owned(),
            Self::UnsupportedVersion => format!("This server speaks {SUPPORTED_VERSIONS}."),
            Self::InvalidHeartBeat => {
                "heart-beat must be two decimal numbers of milliseconds, as in 10000,10000.".to_owned()
            }
            Self::MissingHeader { command, header } => {
                format!("{} needs the header \"{header}\".", command.as_str())
            }
            Self::UnknownAckMode => "ack must be auto, client or client-individual.".to_owned(),
            Self::HeartBeatTimeout(period_ms) => format!(
                "Nothing was received for {} ms; the agreed heart-beat is {period_ms} ms.",
                period_ms.saturating_mul(2)
            ),
        }
    }
}

/// Why octets are no frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Malformed {
    /// The command line is longer than any command.
    CommandTooLong,
    /// A NUL in the command or a header line.
    NulInHead,
    /// A header line without a colon.
    NoColon,
    /// A header line that starts with its colon.
    EmptyName,
    /// A carriage return that no line feed follows (1.2).
    BareCarriageReturn,
    /// A backslash that starts no escape of this version.
    UndefinedEscape,
    /// The header block is not UTF-8.
    NotUtf8,
    /// The octet after the declared body is not NUL.
    BodyNotTerminated,
    /// A body on a frame that has none.
    UnexpectedBody,
    /// Too many NULs between two frames.
    Noise,
}

impl Malformed {
    const fn detail(self) -> &'static str {
        match self {
            Self::CommandTooLong => "The command line is too long to be a command.",
            Self::NulInHead => "A NUL stands in the command or in a header line.",
            Self::NoColon => "A header line has no colon.",
            Self::EmptyName => "A header line has no name before its colon.",
            Self::BareCarriageReturn => "A carriage return stands in the head without a line feed after it.",
            Self::UndefinedEscape => "A header holds an escape sequence that this version does not define.",
            Self::NotUtf8 => "The headers are not UTF-8.",
            Self::BodyNotTerminated => "The octet after content-length octets of body is not NUL.",
            Self::UnexpectedBody => "Only SEND may have a body.",
            Self::Noise => "Too many NULs between two frames.",
        }
    }
}

/// An ERROR frame before it is encoded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ErrorFrame {
    /// Short and stable.
    pub message: &'static str,
    /// The `receipt` that the offending frame asked for.
    pub receipt: Option<Box<str>>,
    /// More headers, in order.
    pub headers: Vec<(&'static str, Box<str>)>,
    /// The body: a sentence for a person.
    pub detail: String,
}

impl ErrorFrame {
    /// An ERROR frame without receipt and further headers.
    pub fn new(message: &'static str, detail: impl Into<String>) -> Self {
        Self { message, receipt: None, headers: Vec::new(), detail: detail.into() }
    }
}
