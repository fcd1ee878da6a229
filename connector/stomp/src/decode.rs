//! The incremental frame decoder.
//!
//! It reads one frame at a time from the front of a buffer that its caller fills, and leaves an unfinished
//! frame there, remembering how far it has looked: no octet is searched twice, however the input is cut,
//! and the outcome (frames and errors) is the same for every segmentation. Frames share the buffer's
//! memory; nothing is copied.
//!
//! It decodes one frame per call because the version, and with it the meaning of a backslash, is settled by
//! the first frame. It does not know what a frame means beyond that.
//!
//! Limits are applied while reading: each search for the end of a line stops at the bound, and a declared
//! body length is judged when the header block is complete, before the body arrives.

use berth_types::limits::{
    STOMP_COMMAND_BYTES_MAX, STOMP_FRAME_BYTES_BEFORE_LOGIN_MAX, STOMP_NULS_BETWEEN_FRAMES_MAX,
    STOMP_STRAY_BODY_BYTES_MAX,
};
use bytes::{Buf, Bytes, BytesMut};
use memchr::{memchr, memchr2};

use crate::frame::Line;
use crate::{Command, Frame, Malformed, ProtocolError, Version, Violation};

/// Bounds of a frame that are settings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Octets of one header line without its end of line.
    pub header_line_bytes_max: usize,
    /// Header lines of one frame, repeated ones counted.
    pub headers_max: usize,
    /// Octets of a body.
    pub body_bytes_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { header_line_bytes_max: 8192, headers_max: 100, body_bytes_max: 100 * 1024 * 1024 }
    }
}

/// Whose frames are decoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// We are a server: frames of a client.
    Server,
    /// We are a client (a test, a load generator): frames of a server.
    Client,
}

/// What is known when a frame is decoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Nothing: the first frame of a connection.
    Handshake,
    /// The version that the handshake settled.
    Agreed(Version),
}

/// Another protocol's first octets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Foreign {
    /// A TLS hello on a plain port.
    Tls,
    /// An HTTP request.
    Http,
}

impl Foreign {
    /// For the log and as a metric label.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Tls => "tls on a plain port",
            Self::Http => "http on a stomp port",
        }
    }
}

/// Why no further frame can be read: framing is lost.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum DecodeError {
    /// Close without a word.
    Foreign(Foreign),
    /// Say ERROR and close.
    Protocol(ProtocolError),
}

impl From<Violation> for DecodeError {
    fn from(violation: Violation) -> Self {
        Self::Protocol(ProtocolError::new(violation))
    }
}

const HTTP_METHODS: [&[u8]; 10] = [
    b"GET ",
    b"HEAD ",
    b"POST ",
    b"PUT ",
    b"DELETE ",
    b"CONNECT ",
    b"OPTIONS ",
    b"TRACE ",
    b"PATCH ",
    b"PRI ",
];

/// Reads frames from the front of a buffer. See the module's documentation.
#[derive(Debug)]
pub struct Decoder {
    limits: Limits,
    role: Role,
    phase: Phase,
    /// Offset in the unfinished frame up to which nothing of interest was found.
    scanned: usize,
    /// Offset where the line that is being read starts.
    line_start: usize,
    /// None: a word that is no command; the frame is refused when its headers, and so its receipt, are known.
    command: Option<Command>,
    lines: Vec<Line>,
    nuls_between: usize,
    /// Octets skipped before the first frame.
    idle_octets: usize,
    /// Of the call that is running.
    mode: Mode,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Between,
    Command,
    Headers,
    /// The body has a declared length.
    Counted {
        start: usize,
        len: usize,
    },
    /// The body ends at the first NUL.
    UntilNul {
        start: usize,
    },
    /// There is no body, but end-of-line octets before the NUL are forgiven.
    Bodyless {
        start: usize,
    },
}

impl Decoder {
    /// A decoder at the start of a connection.
    pub const fn new(role: Role, limits: Limits) -> Self {
        Self {
            limits,
            role,
            phase: Phase::Between,
            scanned: 0,
            line_start: 0,
            command: None,
            lines: Vec::new(),
            nuls_between: 0,
            idle_octets: 0,
            mode: Mode::Handshake,
        }
    }

    /// Takes the next frame from the front of `input`; none: more octets are needed. After an error, or
    /// after another protocol's octets, do not call again.
    ///
    /// # Errors
    /// The rule that was broken; framing is lost.
    pub fn decode(&mut self, input: &mut BytesMut, mode: Mode) -> Result<Option<Frame>, ProtocolError> {
        match self.next(input, mode) {
            Ok(frame) => Ok(frame),
            Err(DecodeError::Protocol(error)) => Err(error),
            Err(DecodeError::Foreign(_)) => {
                Err(ProtocolError::new(Violation::Malformed(Malformed::CommandTooLong)))
            }
        }
    }

    pub(crate) fn next(&mut self, input: &mut BytesMut, mode: Mode) -> Result<Option<Frame>, DecodeError> {
        self.mode = mode;
        if self.phase == Phase::Between && !self.skip_between(input)? {
            return Ok(None);
        }
        if self.phase == Phase::Command && !self.read_command(input)? {
            return Ok(None);
        }
        if self.phase == Phase::Headers && !self.read_headers(input)? {
            return Ok(None);
        }
        let Some((start, len)) = self.find_body(input)? else { return Ok(None) };
        Ok(Some(self.take(input, start, len)))
    }

    /// Gives the memory of a frame's header table back, so that the next frame need not allocate one.
    pub fn recycle(&mut self, frame: Frame) {
        let mut lines = frame.lines;
        if self.lines.capacity() < lines.capacity() && self.lines.is_empty() {
            lines.clear();
            self.lines = lines;
        }
    }

    /// Whether an unfinished frame waits for its rest.
    pub fn is_inside_frame(&self) -> bool {
        self.phase != Phase::Between
    }

    /// Skips ends of lines and stray NULs; true when a frame starts at the front of `input`.
    fn skip_between(&mut self, input: &mut BytesMut) -> Result<bool, DecodeError> {
        let mut at = 0;
        let found = loop {
            match (input.get(at), input.get(at + 1)) {
                (Some(b'\n'), _) => at += 1,
                (Some(b'\r'), Some(b'\n')) => at += 2,
                (Some(0), _) => {
                    at += 1;
                    self.nuls_between += 1;
                    if self.nuls_between > STOMP_NULS_BETWEEN_FRAMES_MAX {
                        return Err(malformed(Malformed::Noise));
                    }
                }
                (None, _) | (Some(b'\r'), None) => break false,
                // A TLS record: handshake, version 3.x (RFC 8446, section 5.1).
                (Some(0x16), None) if self.mode == Mode::Handshake => break false,
                (Some(0x16), Some(3)) if self.mode == Mode::Handshake => {
                    return Err(DecodeError::Foreign(Foreign::Tls));
                }
                (Some(_), _) => break true,
            }
            if self.mode == Mode::Handshake && self.idle_octets + at > STOMP_FRAME_BYTES_BEFORE_LOGIN_MAX {
                return Err(Violation::FrameTooLargeBeforeLogin(STOMP_FRAME_BYTES_BEFORE_LOGIN_MAX).into());
            }
        };
        input.advance(at);
        self.idle_octets = self.idle_octets.saturating_add(at);
        if found {
            self.nuls_between = 0;
            self.phase = Phase::Command;
            self.scanned = 0;
            self.lines.clear();
        }
        Ok(found)
    }

    fn read_command(&mut self, input: &[u8]) -> Result<bool, DecodeError> {
        // One CR and the LF may follow the longest command.
        let window = STOMP_COMMAND_BYTES_MAX + 2;
        let end = match self.find_line_end(input, window) {
            Found::End(end) => end,
            Found::Nothing => return Ok(false),
            Found::TooLong => return Err(foreign_or(input, self.mode, Malformed::CommandTooLong)),
            Found::Nul => return Err(foreign_or(input, self.mode, Malformed::NulInHead)),
        };
        let word = without_cr(input.get(..end).unwrap_or_default());
        if word.len() > STOMP_COMMAND_BYTES_MAX {
            return Err(foreign_or(input, self.mode, Malformed::CommandTooLong));
        }
        self.command = Command::parse(word).filter(|c| c.is_from_server() == (self.role == Role::Client));
        if self.command.is_none() && self.mode == Mode::Handshake && is_http(word) {
            return Err(DecodeError::Foreign(Foreign::Http));
        }
        self.phase = Phase::Headers;
        self.line_start = end + 1;
        self.scanned = self.line_start;
        Ok(true)
    }

    /// Reads header lines up to the empty one, then decides how the body ends.
    fn read_headers(&mut self, input: &[u8]) -> Result<bool, DecodeError> {
        loop {
            let line_window = self.line_start.saturating_add(self.limits.header_line_bytes_max + 2);
            let frame_window = frame_bytes_max(self.mode);
            let end = match self.find_line_end(input, line_window.min(frame_window)) {
                Found::End(end) => end,
                Found::Nothing => return Ok(false),
                Found::Nul => return Err(self.refuse(input, Violation::Malformed(Malformed::NulInHead))),
                Found::TooLong if frame_window < line_window => {
                    return Err(self.refuse(input, Violation::FrameTooLargeBeforeLogin(frame_window)));
                }
                Found::TooLong => return Err(self.refuse(input, self.line_too_long())),
            };
            let line = without_cr(input.get(self.line_start..end).unwrap_or_default());
            let start = self.line_start;
            self.line_start = end + 1;
            self.scanned = self.line_start;
            if line.is_empty() {
                self.phase = self.finish_headers(input, end + 1)?;
                return Ok(true);
            }
            if let Err(violation) = self.add_line(line, start) {
                return Err(self.refuse(input, violation));
            }
        }
    }

    fn add_line(&mut self, line: &[u8], start: usize) -> Result<(), Violation> {
        if line.len() > self.limits.header_line_bytes_max {
            return Err(self.line_too_long());
        }
        if self.lines.len() >= self.limits.headers_max {
            return Err(Violation::TooManyHeaders(self.limits.headers_max));
        }
        // Split on the first colon: further ones are data (STOMP 1.0, and clients that forget to escape).
        let colon = match memchr(b':', line) {
            None => return Err(Violation::Malformed(Malformed::NoColon)),
            Some(0) => return Err(Violation::Malformed(Malformed::EmptyName)),
            Some(colon) => colon,
        };
        self.lines.push(Line {
            start: offset(start),
            colon: offset(start + colon),
            end: offset(start + line.len()),
            is_escaped: false,
        });
        Ok(())
    }

    const fn line_too_long(&self) -> Violation {
        Violation::HeaderLineTooLong(self.limits.header_line_bytes_max)
    }

    /// Judges the header block as a whole and says how the body ends.
    fn finish_headers(&mut self, input: &[u8], start: usize) -> Result<Phase, DecodeError> {
        let head = input.get(..start).unwrap_or_default();
        if std::str::from_utf8(head).is_err() {
            return Err(self.refuse(input, Violation::Malformed(Malformed::NotUtf8)));
        }
        let Some(command) = self.command else {
            let word = head.split(|b| *b == b'\n').next().unwrap_or_default();
            let word = printable(without_cr(word));
            return Err(self.refuse(input, Violation::UnknownCommand(word)));
        };
        if self.mode == Mode::Handshake && self.role == Role::Server && !command.is_handshake() {
            return Err(self.refuse(input, Violation::NotConnected));
        }
        if let Mode::Agreed(version) = self.mode
            && !command.is_handshake()
            && memchr2(b'\\', b'\r', head).is_some()
            && let Err(malformed) = check_escapes(&mut self.lines, head, version)
        {
            return Err(self.refuse(input, Violation::Malformed(malformed)));
        }
        if !command.has_body() {
            // Clients copy content-length of a MESSAGE into their ACK: it is ignored where no body can be.
            return Ok(Phase::Bodyless { start });
        }
        match self.content_length(input) {
            None => Ok(Phase::UntilNul { start }),
            Some(Ok(len)) => Ok(Phase::Counted { start, len }),
            Some(Err(violation)) => Err(self.refuse(input, violation)),
        }
    }

    /// The first `content-length`, judged. Later ones mean nothing (STOMP 1.2, "Repeated Header Entries").
    fn content_length(&self, input: &[u8]) -> Option<Result<usize, Violation>> {
        let limit = self.limits.body_bytes_max;
        let value = self.raw_value(input, b"content-length")?;
        let value = if self.mode == Mode::Agreed(Version::V1_0) { value.trim_ascii() } else { value };
        if value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
            return Some(Err(Violation::InvalidContentLength));
        }
        let declared =
            std::str::from_utf8(value).ok().and_then(|v| v.parse::<u64>().ok()).unwrap_or(u64::MAX);
        Some(match usize::try_from(declared) {
            Ok(len) if len <= limit => Ok(len),
            _ => Err(Violation::BodyTooLarge { declared: Some(declared), limit }),
        })
    }

    /// Where the body starts and how long it is, once its end is there.
    fn find_body(&mut self, input: &[u8]) -> Result<Option<(usize, usize)>, DecodeError> {
        match self.phase {
            Phase::Counted { start, len } => match input.get(start + len) {
                None => Ok(None),
                Some(0) => Ok(Some((start, len))),
                Some(_) => Err(self.refuse(input, Violation::Malformed(Malformed::BodyNotTerminated))),
            },
            Phase::UntilNul { start } => {
                let limit = self.limits.body_bytes_max;
                let window = input.len().min(start.saturating_add(limit).saturating_add(1));
                let fresh = input.get(self.scanned..window).unwrap_or_default();
                if let Some(nul) = memchr(0, fresh) {
                    return Ok(Some((start, self.scanned + nul - start)));
                }
                if window - start > limit {
                    return Err(self.refuse(input, Violation::BodyTooLarge { declared: None, limit }));
                }
                self.scanned = window;
                Ok(None)
            }
            Phase::Bodyless { start } => self.skip_stray_body(input, start),
            Phase::Between | Phase::Command | Phase::Headers => Ok(None),
        }
    }

    fn skip_stray_body(&mut self, input: &[u8], start: usize) -> Result<Option<(usize, usize)>, DecodeError> {
        let forgives_all = matches!(self.mode, Mode::Handshake | Mode::Agreed(Version::V1_0));
        let window = (start + STOMP_STRAY_BODY_BYTES_MAX + 1).min(frame_bytes_max(self.mode));
        while let Some(octet) = input.get(self.scanned) {
            if *octet == 0 && self.scanned < window {
                return Ok(Some((self.scanned, 0)));
            }
            let is_eol = matches!(octet, b'\n' | b'\r');
            if self.scanned + 1 >= window && self.mode == Mode::Handshake {
                let limit = STOMP_FRAME_BYTES_BEFORE_LOGIN_MAX;
                return Err(self.refuse(input, Violation::FrameTooLargeBeforeLogin(limit)));
            }
            if self.scanned + 1 >= window || !(is_eol || forgives_all) {
                return Err(self.refuse(input, Violation::Malformed(Malformed::UnexpectedBody)));
            }
            self.scanned += 1;
        }
        Ok(None)
    }

    /// Splits the finished frame from the buffer.
    fn take(&mut self, input: &mut BytesMut, start: usize, len: usize) -> Frame {
        let head = input.split_to(start).freeze();
        let body = if len == 0 { Bytes::new() } else { input.split_to(len).freeze() };
        input.advance(1);
        self.phase = Phase::Between;
        Frame {
            // Only a known command gets past its headers.
            command: self.command.take().unwrap_or(Command::Error),
            head,
            lines: std::mem::take(&mut self.lines),
            body,
            version: match self.mode {
                Mode::Handshake => Version::V1_0,
                Mode::Agreed(version) => version,
            },
        }
    }

    /// Searches the end of the line that is being read, at offsets below `window`.
    fn find_line_end(&mut self, input: &[u8], window: usize) -> Found {
        let visible = input.len().min(window);
        let Some(fresh) = input.get(self.scanned..visible) else { return Found::Nothing };
        match memchr2(b'\n', 0, fresh) {
            Some(at) if fresh.get(at) == Some(&b'\n') => Found::End(self.scanned + at),
            Some(_) => Found::Nul,
            None if input.len() >= window => Found::TooLong,
            None => {
                self.scanned = visible;
                Found::Nothing
            }
        }
    }

    /// An error about the frame at the front of `input`, with the receipt it asks for if that line has been
    /// read.
    fn refuse(&self, input: &[u8], violation: Violation) -> DecodeError {
        let receipt = self
            .raw_value(input, b"receipt")
            .and_then(|value| std::str::from_utf8(value).ok())
            .map(|value| match self.mode {
                Mode::Handshake => value.into(),
                Mode::Agreed(Version::V1_0) => value.trim().into(),
                Mode::Agreed(_) => crate::frame::unescape(value).into(),
            });
        DecodeError::Protocol(ProtocolError { violation, receipt })
    }

    fn raw_value<'a>(&self, input: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
        let line = self.lines.iter().find(|line| input.get(range(line.start, line.colon)) == Some(name))?;
        input.get(range(line.colon + 1, line.end))
    }
}

enum Found {
    End(usize),
    Nul,
    TooLong,
    Nothing,
}

/// Checks every line for escapes that are undefined and, in 1.2, for a CR without LF; marks the lines that
/// hold escapes.
fn check_escapes(lines: &mut [Line], head: &[u8], version: Version) -> Result<(), Malformed> {
    if version == Version::V1_0 {
        return Ok(());
    }
    for line in lines {
        let text = head.get(range(line.start, line.end)).unwrap_or_default();
        let mut rest = text;
        while let Some(at) = memchr2(b'\\', b'\r', rest) {
            if rest.get(at) == Some(&b'\r') {
                if version == Version::V1_2 {
                    return Err(Malformed::BareCarriageReturn);
                }
                rest = rest.get(at + 1..).unwrap_or_default();
                continue;
            }
            match rest.get(at + 1) {
                Some(b'n' | b'c' | b'\\') => {}
                Some(b'r') if version == Version::V1_2 => {}
                _ => return Err(Malformed::UndefinedEscape),
            }
            line.is_escaped = true;
            rest = rest.get(at + 2..).unwrap_or_default();
        }
    }
    Ok(())
}

const fn frame_bytes_max(mode: Mode) -> usize {
    match mode {
        Mode::Handshake => STOMP_FRAME_BYTES_BEFORE_LOGIN_MAX,
        Mode::Agreed(_) => usize::MAX,
    }
}

const fn range(start: u32, end: u32) -> std::ops::Range<usize> {
    start as usize..end as usize
}

/// Offsets in a head fit 32 bits: it is bounded by the number and the length of its lines.
fn offset(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX)
}

fn without_cr(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\r").unwrap_or(line)
}

const fn malformed(why: Malformed) -> DecodeError {
    DecodeError::Protocol(ProtocolError::new(Violation::Malformed(why)))
}

fn foreign_or(input: &[u8], mode: Mode, why: Malformed) -> DecodeError {
    if mode == Mode::Handshake && is_http(input) {
        DecodeError::Foreign(Foreign::Http)
    } else {
        malformed(why)
    }
}

fn is_http(line: &[u8]) -> bool {
    HTTP_METHODS.iter().any(|method| line.starts_with(method))
}

fn printable(word: &[u8]) -> Box<str> {
    word.iter().map(|b| if b.is_ascii_graphic() || *b == b' ' { char::from(*b) } else { '?' }).collect()
}
