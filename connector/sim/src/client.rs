//! Scripted STOMP clients: they use the codec of the product to read, keep their own books, and behave like
//! people: they wait, forget, change their minds and pull plugs.

use std::collections::VecDeque;
use std::time::Duration;

use berth_stomp::{Command, Decoder, Frame, Limits, Mode, Role, Version, encode_frame};
use berth_types::{ConnectionId, Instant};
use bytes::BytesMut;

use crate::checkers::{Checkers, Key};
use crate::plan::Plan;
use crate::random::Random;

/// How a consumer ends its deliveries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ack {
    Auto,
    Client,
    Individual,
}

impl Ack {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Client => "client",
            Self::Individual => "client-individual",
        }
    }
}

/// What a client is there for.
#[derive(Clone, Debug)]
pub(crate) enum Part {
    Producer {
        left: u64,
    },
    Consumer {
        queue: u64,
        ack: Ack,
        window: u64,
        is_lazy: bool,
    },
    /// A consumer of the quiet time: accepts everything at once.
    Drainer {
        queue: u64,
    },
}

/// What a client waits for the receipt of.
#[derive(Clone, Debug)]
enum Expected {
    Send(Key),
    /// Deliveries that it has accepted or discarded.
    Ended(Vec<String>),
    /// The end of its subscription.
    Unsubscribed,
    Other,
}

#[derive(Clone, Debug)]
struct Held {
    message_id: String,
    token: Option<String>,
    subscription: String,
    due: Instant,
}

/// Where a client stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Standing {
    Off,
    Connecting,
    Open,
    /// It has said goodbye, or was sent an error.
    Leaving,
}

/// One client.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) name: u64,
    pub(crate) part: Part,
    pub(crate) standing: Standing,
    pub(crate) link: Option<usize>,
    pub(crate) conn: ConnectionId,
    version: Version,
    decoder: Decoder,
    input: BytesMut,
    pub(crate) output: BytesMut,
    expected: VecDeque<(String, Expected)>,
    /// Deliveries that it means to answer.
    held: VecDeque<Held>,
    /// Deliveries that it has not answered, forgotten ones too: message-id and subscription, in order.
    open: Vec<(String, String)>,
    subscription: Option<String>,
    is_unsubscribing: bool,
    session: u64,
    number: u64,
    receipts: u64,
    beats: bool,
    last_sent: Instant,
    last_heard: Instant,
    /// It does not read before this.
    pub(crate) sleeps_until: Instant,
    /// When it acts next.
    pub(crate) wakes_at: Instant,
    /// Texts of ERROR frames.
    pub(crate) errors: Vec<String>,
}

/// What a client wants done to its connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wish {
    Nothing,
    /// Pull the plug.
    Drop,
}

/// What a client may look at and draw from.
pub(crate) struct Surroundings<'a> {
    pub(crate) now: Instant,
    pub(crate) random: &'a mut Random,
    pub(crate) plan: &'a Plan,
    pub(crate) checkers: &'a mut Checkers,
    pub(crate) is_quiet: bool,
}

const BEAT: Duration = Duration::from_millis(900);
/// With beats, a server that is silent for so long is given up.
const SILENCE: Duration = Duration::from_secs(4);

impl Client {
    pub(crate) fn new(name: u64, part: Part) -> Self {
        Self {
            name,
            part,
            standing: Standing::Off,
            link: None,
            conn: ConnectionId::default(),
            version: Version::V1_2,
            decoder: Decoder::new(Role::Client, Limits::default()),
            input: BytesMut::new(),
            output: BytesMut::new(),
            expected: VecDeque::new(),
            held: VecDeque::new(),
            open: Vec::new(),
            subscription: None,
            is_unsubscribing: false,
            session: 0,
            number: 0,
            receipts: 0,
            beats: false,
            last_sent: Instant::ZERO,
            last_heard: Instant::ZERO,
            sleeps_until: Instant::ZERO,
            wakes_at: Instant::ZERO,
            errors: Vec::new(),
        }
    }

    /// Whether it has nothing more to do, ever.
    pub(crate) fn is_done(&self) -> bool {
        self.standing == Standing::Off && matches!(self.part, Part::Producer { left: 0 })
    }

    /// The connection stands: says CONNECT.
    pub(crate) fn begin(&mut self, around: &mut Surroundings<'_>, link: usize, conn: ConnectionId) {
        self.standing = Standing::Connecting;
        (self.link, self.conn) = (Some(link), conn);
        self.version = *around.random.pick(&[Version::V1_2, Version::V1_2, Version::V1_1, Version::V1_0]);
        self.decoder = Decoder::new(Role::Client, Limits::default());
        self.input.clear();
        self.output.clear();
        self.expected.clear();
        self.held.clear();
        self.open.clear();
        (self.subscription, self.is_unsubscribing) = (None, false);
        self.session += 1;
        self.number = 0;
        self.beats = around.random.chance(500);
        (self.last_sent, self.last_heard) = (around.now, around.now);
        let accept = self.version.as_str();
        let beat = if self.beats { "1000,1000" } else { "0,0" };
        let headers = [("accept-version", accept), ("host", "/"), ("heart-beat", beat)];
        encode_frame(&mut self.output, self.version, Command::Connect, &headers, b"");
        let is_auto = matches!(self.part, Part::Consumer { ack: Ack::Auto, .. });
        around.checkers.connected(conn, is_auto);
    }

    /// The connection is gone.
    pub(crate) fn end(&mut self) {
        self.standing = Standing::Off;
        self.link = None;
        self.output.clear();
    }

    /// Bytes have arrived. False when they are no STOMP.
    pub(crate) fn read(&mut self, around: &mut Surroundings<'_>, bytes: &[u8]) {
        self.last_heard = around.now;
        self.input.extend_from_slice(bytes);
        loop {
            let mode = if self.standing == Standing::Connecting {
                Mode::Handshake
            } else {
                Mode::Agreed(self.version)
            };
            match self.decoder.decode(&mut self.input, mode) {
                Ok(Some(frame)) => self.take(around, &frame),
                Ok(None) => break,
                Err(error) => {
                    around.checkers.fail(self.conn, format_args!("was sent what is no frame: {error:?}"));
                    break;
                }
            }
        }
    }

    fn take(&mut self, around: &mut Surroundings<'_>, frame: &Frame) {
        match frame.command() {
            Command::Connected => {
                self.standing = Standing::Open;
                if !matches!(self.part, Part::Producer { .. }) {
                    self.subscribe(around);
                }
            }
            Command::Message => self.take_message(around, frame),
            Command::Receipt => self.take_receipt(around, &frame.header("receipt-id").unwrap_or_default()),
            Command::Error => {
                let text = frame.header("message").unwrap_or_default().into_owned();
                const KNOWN: [&str; 4] =
                    ["storage full", "server shutting down", "broker not ready", "heart-beat timeout"];
                if !KNOWN.contains(&text.as_str()) {
                    let body = String::from_utf8_lossy(frame.body()).into_owned();
                    around.checkers.fail(self.conn, format_args!("was sent ERROR {text}: {body}"));
                }
                self.errors.push(text);
                self.standing = Standing::Leaving;
            }
            other => around.checkers.fail(self.conn, format_args!("was sent {other:?}")),
        }
    }

    fn take_message(&mut self, around: &mut Surroundings<'_>, frame: &Frame) {
        let message_id = frame.header("message-id").unwrap_or_default().into_owned();
        let subscription = frame.header("subscription").unwrap_or_default().into_owned();
        let token = frame.header("ack").map(std::borrow::Cow::into_owned);
        let (ack, is_lazy) = match self.part {
            Part::Consumer { ack, is_lazy, .. } => (ack, is_lazy),
            _ => (Ack::Individual, false),
        };
        let wants_token = self.version == Version::V1_2 && ack != Ack::Auto;
        if token.is_some() != wants_token {
            around.checkers.fail(self.conn, format_args!("{message_id} has the ack header {token:?}"));
        }
        if self.subscription.as_ref() != Some(&subscription) {
            around.checkers.fail(self.conn, format_args!("{message_id} follows the end of {subscription}"));
        }
        if ack == Ack::Auto {
            return;
        }
        let patience = if is_lazy { 2 * around.plan.ack_timeout.as_millis() as u64 } else { 300 };
        let due = if around.is_quiet { around.now } else { around.now + around.random.millis(0, patience) };
        self.open.push((message_id.clone(), subscription.clone()));
        self.held.push_back(Held { message_id, token, subscription, due });
    }

    fn take_receipt(&mut self, around: &mut Surroundings<'_>, receipt: &str) {
        let Some((name, expected)) = self.expected.pop_front() else {
            return around.checkers.fail(self.conn, format_args!("has receipt {receipt} for nothing"));
        };
        if name != receipt {
            return around.checkers.fail(self.conn, format_args!("has receipt {receipt} before {name}"));
        }
        match expected {
            Expected::Send(key) => around.checkers.confirmed(key),
            Expected::Ended(message_ids) => {
                around.checkers.answer_receipted(around.now, self.conn, &message_ids);
            }
            Expected::Unsubscribed => (self.subscription, self.is_unsubscribing) = (None, false),
            Expected::Other => {}
        }
    }

    /// Time has come to do something.
    pub(crate) fn act(&mut self, around: &mut Surroundings<'_>) -> Wish {
        if self.beats && around.now.saturating_since(self.last_heard) > SILENCE {
            return Wish::Drop;
        }
        if self.beats && self.output.is_empty() && around.now.saturating_since(self.last_sent) >= BEAT {
            self.output.extend_from_slice(b"\n");
        }
        let wish = if self.standing == Standing::Open { self.work(around) } else { Wish::Nothing };
        if !self.output.is_empty() {
            self.last_sent = around.now;
        }
        wish
    }

    /// When it wants to act again.
    pub(crate) fn pause(&self, around: &mut Surroundings<'_>) -> Duration {
        let beat = if self.beats { BEAT } else { Duration::from_secs(2) };
        let due = self.held.iter().map(|held| held.due.saturating_since(around.now)).min();
        let work = match self.part {
            Part::Producer { .. } => around.random.millis(0, 400),
            _ => around.random.millis(1, 1000),
        };
        let due = due.map_or(work, |due| due.max(Duration::from_micros(500)).min(work));
        due.min(beat)
    }

    fn work(&mut self, around: &mut Surroundings<'_>) -> Wish {
        match self.part {
            Part::Producer { left } => self.produce(around, left),
            Part::Consumer { .. } | Part::Drainer { .. } => self.consume(around),
        }
    }

    fn produce(&mut self, around: &mut Surroundings<'_>, left: u64) -> Wish {
        if left == 0 && self.expected.is_empty() {
            self.disconnect();
            return Wish::Nothing;
        }
        let count = around.random.between(1, 12).min(left);
        let mut sent = 0;
        while sent < count && self.expected.len() < 64 {
            sent += 1;
            self.number += 1;
            let key = Key { producer: self.name, session: self.session, number: self.number };
            let queue = format!("/queue/q{}", around.random.below(around.plan.queues));
            let mut body = key.to_string().into_bytes();
            let padding = around.random.below(around.plan.body_bytes_max);
            body.extend((0..padding).map(|i| (i % 251) as u8));
            let receipt = self.receipt_name();
            around.checkers.sent(key, &queue);
            let headers = [("destination", queue.as_str()), ("receipt", &receipt)];
            encode_frame(&mut self.output, self.version, Command::Send, &headers, &body);
            self.expected.push_back((receipt, Expected::Send(key)));
        }
        self.part = Part::Producer { left: left - sent };
        Wish::Nothing
    }

    fn consume(&mut self, around: &mut Surroundings<'_>) -> Wish {
        while let Some(place) = self.held.iter().position(|held| held.due <= around.now) {
            self.answer(around, place);
        }
        if around.is_quiet {
            return Wish::Nothing;
        }
        match around.random.below(1000) {
            0..20 => {
                self.disconnect();
                Wish::Nothing
            }
            20..30 => Wish::Drop,
            30..60 if self.subscription.is_some() && !self.is_unsubscribing => {
                self.unsubscribe();
                Wish::Nothing
            }
            60..700 if self.subscription.is_none() && self.expected.is_empty() => {
                self.subscribe(around);
                Wish::Nothing
            }
            _ => Wish::Nothing,
        }
    }

    fn subscribe(&mut self, around: &mut Surroundings<'_>) {
        let (queue, ack, window) = match self.part {
            Part::Consumer { queue, ack, window, .. } => (queue, ack, window),
            Part::Drainer { queue } => (queue, Ack::Individual, 50),
            Part::Producer { .. } => return,
        };
        let receipt = self.receipt_name();
        let id = format!("s{}-{}", self.session, self.receipts);
        let (queue, window) = (format!("/queue/q{queue}"), window.to_string());
        let headers = [
            ("destination", queue.as_str()),
            ("id", &id),
            ("ack", ack.as_str()),
            ("prefetch-count", &window),
            ("receipt", &receipt),
        ];
        encode_frame(&mut self.output, self.version, Command::Subscribe, &headers, b"");
        around.checkers.subscribed(self.conn, &id, window.parse().unwrap_or_default());
        self.expected.push_back((receipt, Expected::Other));
        self.subscription = Some(id);
    }

    fn unsubscribe(&mut self) {
        let Some(id) = self.subscription.clone() else { return };
        let receipt = self.receipt_name();
        let headers = [("id", id.as_str()), ("receipt", &receipt)];
        encode_frame(&mut self.output, self.version, Command::Unsubscribe, &headers, b"");
        self.expected.push_back((receipt, Expected::Unsubscribed));
        self.is_unsubscribing = true;
    }

    fn disconnect(&mut self) {
        let receipt = self.receipt_name();
        encode_frame(&mut self.output, self.version, Command::Disconnect, &[("receipt", &receipt)], b"");
        self.expected.push_back((receipt, Expected::Other));
        self.standing = Standing::Leaving;
    }

    /// Accepts, gives back, discards or forgets a delivery, and in mode client everything before it.
    fn answer(&mut self, around: &mut Surroundings<'_>, place: usize) {
        let Some(held) = self.held.remove(place) else { return };
        let ack = if let Part::Consumer { ack, .. } = self.part { ack } else { Ack::Individual };
        let draw = if around.is_quiet { 0 } else { around.random.below(100) };
        if draw >= 92 {
            // Forgotten: the ack timeout will tell.
            return;
        }
        let Some(named) = self.open.iter().position(|(id, _)| *id == held.message_id) else { return };
        let mut message_ids = Vec::new();
        let mut place = 0;
        self.open.retain(|(message_id, subscription)| {
            let is_earlier = place < named && ack == Ack::Client && *subscription == held.subscription;
            let is_covered = place == named || is_earlier;
            place += 1;
            if is_covered {
                message_ids.push(message_id.clone());
            }
            !is_covered
        });
        self.held.retain(|other| !message_ids.contains(&other.message_id));
        self.send_answer(around, &held, message_ids, draw);
    }

    fn send_answer(
        &mut self,
        around: &mut Surroundings<'_>,
        held: &Held,
        message_ids: Vec<String>,
        draw: u64,
    ) {
        let ends = !(75..88).contains(&draw);
        let command = if draw < 75 { Command::Ack } else { Command::Nack };
        let receipt = around.random.chance(500).then(|| self.receipt_name());
        let mut headers: Vec<(&str, &str)> = Vec::new();
        match (&held.token, self.version) {
            (Some(token), Version::V1_2) => headers.push(("id", token)),
            (_, Version::V1_0) => headers.push(("message-id", &held.message_id)),
            _ => {
                headers.push(("message-id", &held.message_id));
                headers.push(("subscription", &held.subscription));
            }
        }
        if command == Command::Nack && ends {
            headers.push(("requeue", "false"));
        }
        if let Some(receipt) = &receipt {
            headers.push(("receipt", receipt));
        }
        encode_frame(&mut self.output, self.version, command, &headers, b"");
        around.checkers.answered(self.conn, &message_ids, ends);
        if let Some(receipt) = receipt {
            let expected = if ends { Expected::Ended(message_ids) } else { Expected::Other };
            self.expected.push_back((receipt, expected));
        }
    }

    fn receipt_name(&mut self) -> String {
        self.receipts += 1;
        format!("r{}", self.receipts)
    }
}
