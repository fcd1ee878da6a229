//! The server process: sessions and the broker, and a tap on every socket. It holds no time and no
//! randomness; the world drives it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use berth_broker::Broker;
use berth_engine::port::{Completion, Operation};
use berth_gateway::{OpenAccess, Session, StompContext, StompSession, StompSettings};
use berth_stomp::{Command, Decoder, Limits, Mode, Role, Version};
use berth_types::{ConnectionId, Instant, Now, OpId};
use bytes::BytesMut;

use crate::checkers::{Checkers, Key};
use crate::plan::Plan;

/// How far an orderly stop has come.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Stopping {
    No,
    Draining,
    ShuttingDown,
    Closing,
}

/// The process.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) broker: Broker,
    pub(crate) conns: BTreeMap<ConnectionId, Conn>,
    pub(crate) stopping: Stopping,
}

/// One connection of the process.
#[derive(Debug)]
pub(crate) struct Conn {
    pub(crate) link: usize,
    pub(crate) session: StompSession,
    pub(crate) input: BytesMut,
    /// Operations on their way to the broker, and what comes back: each in order, when they arrive.
    pub(crate) there: VecDeque<(Instant, OpId, Operation)>,
    pub(crate) back: VecDeque<(Instant, Option<OpId>, Completion)>,
    pub(crate) tap: Tap,
    pub(crate) saw_end: bool,
    /// The server has closed its side.
    pub(crate) is_shut: bool,
}

impl Conn {
    pub(crate) fn new(now: Now, id: ConnectionId, link: usize, seed: u128, plan: &Plan) -> Self {
        let settings = StompSettings {
            connection: berth_stomp::Settings { heart_beat_ms: 1000, ..berth_stomp::Settings::default() },
            ack_timeout: plan.ack_timeout,
            subscription_buffer: 10,
            shows_delivery_count: true,
            ..StompSettings::default()
        };
        let context = StompContext {
            id,
            seed,
            settings: Arc::new(settings),
            access: Arc::new(OpenAccess),
            engine: berth_engine::Settings { capabilities: Broker::capabilities(), is_ready: true },
        };
        Self {
            link,
            session: StompSession::new(now, context),
            input: BytesMut::new(),
            there: VecDeque::new(),
            back: VecDeque::new(),
            tap: Tap::new(),
            saw_end: false,
            is_shut: false,
        }
    }

    /// Whether everything between it and the broker has been said.
    pub(crate) fn is_over(&self) -> bool {
        self.session.closed().is_some()
            && self.is_shut
            && self.there.is_empty()
            && self.back.is_empty()
            && self.session.is_settled()
    }
}

impl Node {
    /// When something is due by itself.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let sessions = self.conns.values().filter_map(|conn| conn.session.poll_timeout()).min();
        [sessions, self.broker.poll_timeout()].into_iter().flatten().min()
    }
}

/// Reads what the server writes into a socket, as it is written.
#[derive(Debug)]
pub(crate) struct Tap {
    decoder: Decoder,
    input: BytesMut,
    version: Option<Version>,
    last: Instant,
    /// The longest rest inside the frame that is being written.
    rest: std::time::Duration,
    /// The session has ended its deliveries: a frame that it had begun is only finished.
    pub(crate) has_ended: bool,
}

impl Tap {
    fn new() -> Self {
        Self {
            decoder: Decoder::new(Role::Client, Limits::default()),
            input: BytesMut::new(),
            version: None,
            last: Instant::ZERO,
            rest: std::time::Duration::ZERO,
            has_ended: false,
        }
    }

    /// The socket has taken these bytes.
    pub(crate) fn feed(
        &mut self,
        now: Instant,
        conn: ConnectionId,
        bytes: &[u8],
        plan: &Plan,
        checkers: &mut Checkers,
    ) {
        if self.decoder.is_inside_frame() || !self.input.is_empty() {
            self.rest = self.rest.max(now.saturating_since(self.last));
        }
        self.last = now;
        self.input.extend_from_slice(bytes);
        loop {
            let mode = self.version.map_or(Mode::Handshake, Mode::Agreed);
            let frame = match self.decoder.decode(&mut self.input, mode) {
                Ok(Some(frame)) => frame,
                Ok(None) => break,
                Err(error) => return checkers.fail(conn, format_args!("writes no frame: {error:?}")),
            };
            let rest = std::mem::take(&mut self.rest);
            match frame.command() {
                Command::Connected => {
                    self.version = match &*frame.header("version").unwrap_or_default() {
                        "1.2" => Some(Version::V1_2),
                        "1.1" => Some(Version::V1_1),
                        _ => Some(Version::V1_0),
                    };
                }
                Command::Message => {
                    let header = |name| frame.header(name).unwrap_or_default();
                    let Some(key) = Key::read(frame.body()) else {
                        return checkers.fail(conn, "writes a message that nobody sent");
                    };
                    let delivery = crate::checkers::OnWire {
                        message_id: &header("message-id"),
                        subscription: &header("subscription"),
                        key,
                        is_redelivered: header("redelivered") == "true",
                        is_late: self.has_ended || rest >= plan.ack_timeout,
                    };
                    checkers.written(now, conn, &delivery);
                }
                _ => {}
            }
        }
    }
}
