//! One connection as the server sees it: handshake, version, heart-beats, output, closing.
//!
//! It hands out frames one by one ([`Connection::poll_event`]) and takes answers. It keeps no subscriptions
//! and no pending receipts: in which order answers leave is the caller's business, except that nothing
//! follows an ERROR.
//!
//! The five verbs: `handle_received` and `poll_event` for input, `handle_timeout` and `poll_timeout` for
//! time, `poll_transmit` and `handle_transmitted` for output.
//!
//! Invariants: after `fail` or `close` nothing is added to the output and no timer but those of the output
//! is armed; a heart-beat is only written when no frame waits, so never inside one.

use std::io::IoSlice;
use std::time::Duration;

use berth_types::{DeliveryId, Instant, Timestamp};
use bytes::{BufMut, Bytes, BytesMut};

use crate::connect::{Connect, HeartBeat};
use crate::decode::{DecodeError, Decoder, Foreign, Limits, Mode, Role};
use crate::encode;
use crate::output::{Output, Written};
use crate::timer::{Timer, TimerTable};
use crate::{Command, ErrorFrame, Frame, ProtocolError, Version, Violation};

/// What a connection may do and how long it waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Bounds of a frame.
    pub limits: Limits,
    /// What the server offers as heart-beat in both directions, in milliseconds; 0: no beats.
    pub heart_beat_ms: u64,
    /// How long a peer may take for a complete CONNECT.
    pub connect_timeout: Duration,
    /// How long a socket may accept nothing while something waits; none: for ever.
    pub write_timeout: Option<Duration>,
    /// How long the last output of a closing connection may take.
    pub close_grace: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            heart_beat_ms: 10_000,
            connect_timeout: Duration::from_secs(10),
            write_timeout: None,
            close_grace: Duration::from_secs(5),
        }
    }
}

/// What the peer did.
#[derive(Debug)]
pub enum Event {
    /// It asks to be let in. Answer with [`Connection::accept`] or [`Connection::fail`]; until then no
    /// frame is read.
    Connect(Connect),
    /// A frame of an open connection. After DISCONNECT no further one comes.
    Frame(Frame),
    /// It broke a rule and no further frame is read. Answer with [`Connection::fail`] when what came before
    /// is done.
    Violation(ProtocolError),
    /// It speaks another protocol: close without a word.
    Foreign(Foreign),
}

/// What CONNECTED says.
#[derive(Clone, Copy, Default, Debug)]
pub struct Accept<'a> {
    /// The name of this session.
    pub session: &'a str,
    /// The name of the server; empty: not told.
    pub server: &'a str,
    /// Who the client was found to be.
    pub user_name: Option<&'a str>,
}

/// A MESSAGE before it is encoded.
#[derive(Clone, Copy, Debug)]
pub struct MessageFrame<'a> {
    /// In the form that the subscriber used.
    pub destination: &'a str,
    /// New for every delivery attempt.
    pub message_id: &'a str,
    /// The subscription's id, if it has one.
    pub subscription: Option<&'a str>,
    /// The token by which a 1.2 client settles it.
    pub ack: Option<&'a str>,
    /// Whether it may have been delivered before.
    pub redelivered: bool,
    /// How often it had been received before.
    pub delivery_count: Option<u32>,
    /// When it was published.
    pub timestamp: Timestamp,
    /// The sender's headers: lines escaped as 1.2 says, each ended by a line feed.
    pub head: &'a [u8],
    /// The body.
    pub body: &'a Bytes,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// No CONNECT yet.
    Handshake,
    /// CONNECT was read, the caller has not answered.
    Login,
    /// Frames flow.
    Open,
    /// No more input is read; answers may still be added.
    Ending,
    /// Nothing is added to the output any more.
    Closing,
}

/// A server's side of one connection.
#[derive(Debug)]
pub struct Connection {
    settings: Settings,
    decoder: Decoder,
    output: Output,
    timers: TimerTable,
    phase: Phase,
    version: Option<Version>,
    client_beat: HeartBeat,
    asked_for_beats: bool,
    read_period: Option<Duration>,
    write_period: Option<Duration>,
    is_reading: bool,
    headers_left_out: u64,
}

impl Connection {
    /// A connection that was just accepted.
    pub fn new(settings: Settings, now: Instant) -> Self {
        let mut timers = TimerTable::default();
        timers.arm(Timer::Handshake, now + settings.connect_timeout);
        Self {
            settings,
            decoder: Decoder::new(Role::Server, settings.limits),
            output: Output::default(),
            timers,
            phase: Phase::Handshake,
            version: None,
            client_beat: HeartBeat::default(),
            asked_for_beats: false,
            read_period: None,
            write_period: None,
            is_reading: true,
            headers_left_out: 0,
        }
    }

    /// The agreed version; none before CONNECT.
    pub const fn version(&self) -> Option<Version> {
        self.version
    }

    /// Octets came from the peer; whatever they are, it is alive.
    pub fn handle_received(&mut self, now: Instant) {
        self.arm_read_idle(now);
    }

    /// Tells whether the caller reads the socket. While it does not, the peer's silence means nothing.
    pub fn set_reading(&mut self, now: Instant, is_reading: bool) {
        if self.is_reading == is_reading {
            return;
        }
        self.is_reading = is_reading;
        if is_reading { self.arm_read_idle(now) } else { self.timers.stop(Timer::ReadIdle) }
    }

    /// Takes the next frame from the front of `input` and says what it means; none: nothing more can be
    /// read now. `input` begins with the start of an unfinished frame that an earlier call left in it.
    pub fn poll_event(&mut self, now: Instant, input: &mut BytesMut) -> Option<Event> {
        let mode = match (self.phase, self.version) {
            (Phase::Open, Some(version)) => Mode::Agreed(version),
            (Phase::Handshake, _) => Mode::Handshake,
            (Phase::Login, _) => return None,
            (Phase::Open | Phase::Ending | Phase::Closing, _) => {
                input.clear();
                return None;
            }
        };
        let frame = match self.decoder.next(input, mode) {
            Ok(frame) => frame?,
            Err(DecodeError::Foreign(foreign)) => return self.end_input(Event::Foreign(foreign)),
            Err(DecodeError::Protocol(error)) => return self.end_input(Event::Violation(error)),
        };
        match (self.phase, frame.command()) {
            (Phase::Handshake, _) => Some(self.begin_login(now, frame)),
            (_, Command::Connect | Command::Stomp) => {
                self.end_input(Event::Violation(ProtocolError::new(Violation::AlreadyConnected)))
            }
            (_, Command::Disconnect) => self.end_input(Event::Frame(frame)),
            _ => Some(Event::Frame(frame)),
        }
    }

    /// Gives a frame that has been dealt with back, so that its memory serves the next one.
    pub fn recycle(&mut self, frame: Frame) {
        self.decoder.recycle(frame);
    }

    /// Reads no further frame; what had been read may still be answered.
    pub fn stop_input(&mut self) {
        if self.phase != Phase::Closing {
            self.phase = Phase::Ending;
        }
        self.timers.stop(Timer::Handshake);
        self.timers.stop(Timer::ReadIdle);
    }

    /// Lets the client in: answers CONNECTED and starts the agreed heart-beats.
    pub fn accept(&mut self, now: Instant, accept: &Accept<'_>) {
        if self.phase != Phase::Login {
            return;
        }
        self.phase = Phase::Open;
        let version = self.version.unwrap_or_default();
        let ours = HeartBeat::offer(self.settings.heart_beat_ms);
        self.read_period = self.client_beat.period_to(ours);
        self.write_period = ours.period_to(self.client_beat);
        let shows_beats = version > Version::V1_0 || self.asked_for_beats;
        self.output.push(None, Bytes::new(), b"\n\0", |out| {
            // CONNECTED is never escaped (STOMP 1.2, "Value Encoding"), so a line feed may not get in either.
            encode::push_command(out, Command::Connected);
            encode::push_raw(out, "version", version.as_str());
            if !accept.server.is_empty() {
                encode::push_raw(out, "server", accept.server);
            }
            encode::push_raw(out, "session", accept.session);
            if shows_beats {
                encode::push_raw(out, "heart-beat", &format!("{},{}", ours.sends_ms, ours.wants_ms));
            }
            if let Some(user) = accept.user_name.filter(|user| !user.contains(['\n', '\r'])) {
                encode::push_raw(out, "user-name", user);
            }
        });
        self.note_output(now);
        self.arm_read_idle(now);
        self.arm_write_beat(now);
    }

    /// Answers ERROR as the last frame of this connection, and closes.
    pub fn fail(&mut self, now: Instant, error: &ErrorFrame) {
        if self.phase != Phase::Closing {
            let version = self.version;
            self.output.push(None, Bytes::new(), b"", |out| encode::push_error(out, error, version));
            self.note_output(now);
        }
        self.close(now);
    }

    /// Closes once what waits is written, or when the grace for it is over.
    pub fn close(&mut self, now: Instant) {
        if self.phase == Phase::Closing {
            return;
        }
        self.stop_input();
        self.phase = Phase::Closing;
        self.timers.stop(Timer::WriteHeartbeat);
        self.timers.arm(Timer::CloseGrace, now + self.settings.close_grace);
    }

    /// Forgets all output and every timer: the socket is gone.
    pub fn abandon(&mut self) {
        self.stop_input();
        self.phase = Phase::Closing;
        self.output.clear();
        self.timers.stop_all();
    }

    /// Answers RECEIPT.
    pub fn send_receipt(&mut self, now: Instant, receipt: &str) {
        if self.phase == Phase::Closing {
            return;
        }
        let version = self.version.unwrap_or_default();
        self.output.push(None, Bytes::new(), b"\n\0", |out| {
            encode::push_command(out, Command::Receipt);
            encode::push_header(out, "receipt-id", receipt, version);
        });
        self.note_output(now);
    }

    /// Appends a MESSAGE under a tag, by which it is accounted for and can be withdrawn. Tags rise.
    pub fn send_message(&mut self, now: Instant, tag: DeliveryId, message: &MessageFrame<'_>) {
        if self.phase == Phase::Closing {
            return;
        }
        let version = self.version.unwrap_or_default();
        let mut left_out = 0;
        self.output.push(Some(tag), message.body.clone(), b"\0", |out| {
            left_out = push_message_head(out, message, version);
        });
        self.headers_left_out += u64::from(left_out);
        self.note_output(now);
    }

    /// Takes a MESSAGE back; false when the socket has taken a part of it, or all.
    pub fn withdraw(&mut self, tag: DeliveryId) -> bool {
        let is_withdrawn = self.output.withdraw(tag);
        if self.output.is_empty() {
            self.timers.stop(Timer::WriteStall);
        }
        is_withdrawn
    }

    /// Puts an end of line into an empty output, to find out whether the peer reads. STOMP 1.2, "Augmented
    /// BNF": ends of line may stand between frames.
    pub fn probe(&mut self, now: Instant) {
        if self.phase != Phase::Closing && self.output.is_empty() {
            self.output.push(None, Bytes::new(), b"\n", |_| {});
            self.note_output(now);
        }
    }

    /// Octets that wait for the socket.
    pub fn output_bytes(&self) -> usize {
        self.output.waiting()
    }

    /// Headers that could not be written to a 1.0 client.
    pub const fn headers_left_out(&self) -> u64 {
        self.headers_left_out
    }

    /// Fills `slices` with the output that waits; how many were filled.
    pub fn poll_transmit<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        self.output.slices(slices)
    }

    /// The socket took so many octets.
    pub fn handle_transmitted(&mut self, now: Instant, octets: usize) {
        if octets == 0 {
            return;
        }
        self.output.take(octets);
        self.timers.stop(Timer::WriteStall);
        self.note_output(now);
        self.arm_write_beat(now);
    }

    /// What the socket has taken of named frames, in order, until there is nothing to tell.
    pub fn poll_written(&mut self) -> Option<Written> {
        self.output.poll_written()
    }

    /// When `handle_timeout` is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timers.next()
    }

    /// Does what is due by itself (heart-beats, giving up a close) and returns one timer whose expiry ends
    /// the connection, for the caller to act on.
    pub fn handle_timeout(&mut self, now: Instant) -> Option<Timer> {
        while let Some(timer) = self.timers.take_due(now) {
            match timer {
                Timer::WriteHeartbeat => self.beat(now),
                Timer::CloseGrace => self.abandon(),
                Timer::Handshake | Timer::ReadIdle | Timer::WriteStall => return Some(timer),
            }
        }
        None
    }

    /// The error of a peer that fell silent, with the agreed period.
    pub fn silence(&self) -> ProtocolError {
        let period = self.read_period.unwrap_or_default();
        ProtocolError::new(Violation::HeartBeatTimeout(u64::try_from(period.as_millis()).unwrap_or(u64::MAX)))
    }

    /// Whether no further frame is read.
    pub const fn is_input_ended(&self) -> bool {
        matches!(self.phase, Phase::Ending | Phase::Closing)
    }

    /// Whether `fail` or `close` has been called.
    pub const fn is_closing(&self) -> bool {
        matches!(self.phase, Phase::Closing)
    }

    /// Whether everything has been said and written.
    pub fn is_closed(&self) -> bool {
        self.is_closing() && self.output.is_empty()
    }

    fn begin_login(&mut self, now: Instant, mut frame: Frame) -> Event {
        self.timers.stop(Timer::Handshake);
        let accept = frame.headers().find(|h| h.raw_name() == "accept-version");
        let Some(version) = Version::negotiate(accept.map(|h| h.raw_value())) else {
            return self.violation(Violation::UnsupportedVersion);
        };
        frame.version = version;
        self.version = Some(version);
        let beat = frame.header("heart-beat");
        self.asked_for_beats = beat.is_some();
        match beat.as_deref().map(HeartBeat::parse) {
            None => {}
            Some(Ok(beat)) => self.client_beat = beat,
            Some(Err(violation)) => return self.violation(violation),
        }
        self.phase = Phase::Login;
        self.arm_read_idle(now);
        Event::Connect(Connect { frame })
    }

    fn violation(&mut self, violation: Violation) -> Event {
        self.stop_input();
        Event::Violation(ProtocolError::new(violation))
    }

    fn end_input(&mut self, event: Event) -> Option<Event> {
        self.stop_input();
        Some(event)
    }

    fn beat(&mut self, now: Instant) {
        // When a frame waits the socket is full, and the frame is a beat as soon as the socket takes it.
        if self.output.is_empty() {
            self.output.push(None, Bytes::new(), b"\n", |_| {});
            self.note_output(now);
        }
        self.arm_write_beat(now);
    }

    /// Twice the agreed time: a peer is not dropped for being a little late (STOMP 1.2, "Heart-beating":
    /// error margin).
    fn arm_read_idle(&mut self, now: Instant) {
        if let Some(period) = self.read_period
            && self.is_reading
            && self.phase == Phase::Open
        {
            self.timers.arm(Timer::ReadIdle, now + period.saturating_mul(2));
        }
    }

    /// Counted from the last octet that left, and early by a fifth, so that no gap is longer than agreed.
    fn arm_write_beat(&mut self, now: Instant) {
        if let Some(period) = self.write_period
            && self.phase != Phase::Closing
        {
            self.timers.arm(Timer::WriteHeartbeat, now + period.saturating_mul(4) / 5);
        }
    }

    fn note_output(&mut self, now: Instant) {
        if let Some(timeout) = self.settings.write_timeout
            && !self.output.is_empty()
            && !self.timers.is_armed(Timer::WriteStall)
        {
            self.timers.arm(Timer::WriteStall, now + timeout);
        }
    }
}

fn push_message_head(out: &mut BytesMut, message: &MessageFrame<'_>, version: Version) -> u32 {
    out.reserve(192 + message.head.len());
    encode::push_command(out, Command::Message);
    encode::push_header(out, "destination", message.destination, version);
    encode::push_raw(out, "message-id", message.message_id);
    if let Some(subscription) = message.subscription {
        encode::push_header(out, "subscription", subscription, version);
    }
    if let Some(ack) = message.ack {
        encode::push_raw(out, "ack", ack);
    }
    if message.redelivered {
        encode::push_raw(out, "redelivered", "true");
    }
    if let Some(count) = message.delivery_count {
        encode::push_number(out, "delivery-count", u64::from(count));
    }
    encode::push_timestamp(out, message.timestamp);
    encode::push_number(out, "content-length", message.body.len() as u64);
    // The server's own headers go first: of a repeated header the first one counts, so nothing of the
    // sender's can stand for one of ours.
    let left_out = encode::push_stored(out, message.head, version);
    out.put_u8(b'\n');
    left_out
}
