//! A STOMP connection: what its frames ask for becomes engine commands, what the engine tells becomes frames.
//!
//! It joins [`berth_stomp::Connection`] (the wire) and [`berth_engine::Engine`] (deliveries and their
//! settlement), and adds what neither knows: destinations, the client's names of subscriptions and
//! deliveries, the order of receipts, refusals as ERROR frames, and back-pressure. No I/O, no clock; it is
//! driven through [`Session`].
//!
//! Invariants
//! - Answers leave in the order of the frames; nothing leaves after an ERROR; the RECEIPT of a SUBSCRIBE
//!   precedes its first MESSAGE.
//! - While a bound is reached (answers owed, bytes of unconfirmed publishes, unwritten output) no frame is
//!   processed and the socket is not read; what had been read is kept and processed later.

mod complaint;
mod destination;
mod frames;
mod ids;
mod publish;
mod replies;
mod settings;
mod subscriptions;

use std::fmt;
use std::io::IoSlice;
use std::sync::Arc;

use berth_engine::port::{Completion, Operation, Refusal};
use berth_engine::{Correlation, End, Engine, Event, SubscriptionKey};
use berth_stomp::{
    Accept, AckMode, Connect, Connection, ErrorFrame, Frame, MessageFrame, ProtocolError, Timer, Version,
    Written,
};
use berth_types::limits::{OUTPUT_BYTES_MAX, UNCONFIRMED_BYTES_MAX, UNCONFIRMED_PUBLISHES_MAX};
use berth_types::{ConnectionId, DeliveryId, Destination, Encoding, Instant, Message, Now, OpId};
use bytes::BytesMut;

use crate::access::{Access, Credentials, Login, Principal};
use crate::refusal::stomp_error;
use crate::{Closed, Session};
use complaint::Complaint;
use ids::Ids;
use replies::{Failure, Replies, Turn};
pub use settings::{StompCounters, StompSettings};
use subscriptions::Subscriptions;

/// What a new connection is given.
#[derive(Clone)]
pub struct StompContext {
    /// Its number in logs.
    pub id: ConnectionId,
    /// 128 random bits that no other connection has: names of deliveries come from it.
    pub seed: u128,
    /// The listener's settings.
    pub settings: Arc<StompSettings>,
    /// Who may come in and do what.
    pub access: Arc<dyn Access>,
    /// What the broker can do, and whether it is ready.
    pub engine: berth_engine::Settings,
}

impl fmt::Debug for StompContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StompContext").field("id", &self.id).finish_non_exhaustive()
    }
}

/// One STOMP connection. See the module's documentation.
pub struct StompSession {
    context: StompContext,
    wire: Connection,
    engine: Engine,
    ids: Ids,
    principal: Option<Principal>,
    client_id: Option<Box<str>>,
    host: Option<Box<str>>,
    subs: Subscriptions,
    replies: Replies,
    /// A SUBSCRIBE with a receipt that waits until everything before it has been answered.
    parked: Option<Frame>,
    /// Input that had been read when a bound was reached.
    held: BytesMut,
    input_ended: bool,
    closed: Option<Closed>,
    /// Of the last call.
    now: Now,
    /// The process has memory for more input.
    has_memory: bool,
    /// Deadlines rest because we do not read, for a cause of our own.
    is_resting: bool,
    messages_published: u64,
    last_destination: Option<(Box<str>, Destination)>,
    message_id: String,
    token: String,
    counters: StompCounters,
}

impl fmt::Debug for StompSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StompSession")
            .field("id", &self.context.id)
            .field("version", &self.wire.version())
            .field("closed", &self.closed)
            .finish_non_exhaustive()
    }
}

impl StompSession {
    /// A connection that was just accepted.
    pub fn new(now: Now, context: StompContext) -> Self {
        Self {
            wire: Connection::new(context.settings.connection, now.monotonic),
            engine: Engine::new(context.engine),
            ids: Ids::new(context.seed),
            context,
            principal: None,
            client_id: None,
            host: None,
            subs: Subscriptions::default(),
            replies: Replies::default(),
            parked: None,
            held: BytesMut::new(),
            input_ended: false,
            closed: None,
            now,
            has_memory: true,
            is_resting: false,
            messages_published: 0,
            last_destination: None,
            message_id: String::new(),
            token: String::new(),
            counters: StompCounters::default(),
        }
    }

    /// What this connection has done so far.
    pub fn counters(&self) -> StompCounters {
        StompCounters {
            ack_timeouts: self.engine.stats().expired,
            headers_left_out: self.wire.headers_left_out(),
            ..self.counters
        }
    }

    /// What its engine has done so far.
    pub fn engine_stats(&self) -> berth_engine::Stats {
        self.engine.stats()
    }

    /// Who the client is, once it is let in and has a name.
    pub const fn principal(&self) -> Option<&Principal> {
        self.principal.as_ref()
    }

    /// The client's stable name: its `client-id`, else its login.
    pub fn client_id(&self) -> Option<&str> {
        self.client_id.as_deref()
    }

    /// The virtual host that the client asked for: for the log; it decides nothing.
    pub fn host(&self) -> Option<&str> {
        self.host.as_deref()
    }

    /// The agreed version.
    pub const fn version(&self) -> Option<Version> {
        self.wire.version()
    }

    /// Live subscriptions, and those that are leaving.
    pub fn subscription_count(&self) -> usize {
        self.subs.len()
    }

    /// Deliveries that are not settled, or (auto) not written.
    pub fn delivery_count(&self) -> usize {
        self.engine.outstanding()
    }

    /// Bytes of input that wait to be processed and of publishes that wait for their confirm.
    pub fn inbound_bytes(&self) -> usize {
        self.held.len() + self.engine.unconfirmed().1
    }

    /// Bytes of output that wait for the socket.
    pub fn output_bytes(&self) -> usize {
        self.wire.output_bytes()
    }

    /// Processes what can be processed until everything waits for someone else.
    fn run(&mut self, now: Now, input: &mut BytesMut) {
        loop {
            self.hear_engine(now);
            self.take_turns(now);
            // A turn may have ended the engine, which then takes deliveries back.
            self.hear_engine(now);
            self.engine.handle_output_bytes(now.monotonic, self.wire.output_bytes());
            if !self.can_read() {
                break;
            }
            if let Some(frame) = self.parked.take() {
                self.handle_frame(now, frame);
                continue;
            }
            if input.is_empty() {
                // The start of an unfinished frame, if there is one, lies in the driver's buffer.
                break;
            }
            match self.wire.poll_event(now.monotonic, input) {
                Some(event) => self.handle_event(now, event),
                None => break,
            }
        }
        if self.input_ended && self.can_read() && !self.wire.is_input_ended() {
            self.wire.stop_input();
            self.say_goodbye(now, None);
            self.take_turns(now);
            self.hear_engine(now);
        }
        self.note_reading(now);
    }

    fn run_held(&mut self, now: Now) {
        let mut held = std::mem::take(&mut self.held);
        self.run(now, &mut held);
        if !self.wire.is_input_ended() {
            self.held = held;
        }
    }

    /// Whether no bound is reached.
    fn can_read(&self) -> bool {
        self.has_room() && self.wire.output_bytes() < OUTPUT_BYTES_MAX
    }

    /// Whether no bound of our own is reached: those are what the broker owes us answers for.
    fn has_room(&self) -> bool {
        let bytes = self.engine.unconfirmed().1 + self.replies.receipt_bytes();
        self.has_memory
            && (self.parked.is_none() || self.replies.is_empty())
            && self.replies.len() < UNCONFIRMED_PUBLISHES_MAX
            && bytes < UNCONFIRMED_BYTES_MAX
    }

    /// Lets clocks of the client rest while we do not read it: its heart-beats always, its ack deadlines
    /// when the cause is ours (a client that does not read is a cause of its own).
    fn note_reading(&mut self, now: Now) {
        let rests = !self.has_room();
        if rests != self.is_resting {
            self.is_resting = rests;
            if rests {
                self.engine.pause_deadlines(now.monotonic);
            } else {
                self.engine.resume_deadlines(now.monotonic);
            }
        }
        self.wire.set_reading(now.monotonic, self.can_read());
    }

    fn handle_event(&mut self, now: Now, event: berth_stomp::Event) {
        match event {
            berth_stomp::Event::Connect(connect) => self.handle_connect(now, &connect),
            berth_stomp::Event::Frame(frame) => self.handle_frame(now, frame),
            berth_stomp::Event::Violation(error) => self.violate(now, &error),
            berth_stomp::Event::Foreign(foreign) => {
                self.end(now, End::Closed, Closed::PeerViolated(foreign.label()));
                self.wire.close(now.monotonic);
            }
        }
    }

    fn handle_connect(&mut self, now: Now, connect: &Connect) {
        let (login, passcode) = (connect.login(), connect.passcode());
        let credentials = Credentials { login: login.as_deref(), secret: passcode.as_deref() };
        let Login::Accepted(principal) = self.context.access.login(&credentials) else {
            self.complain(now, &Complaint::AuthenticationFailed, None);
            return;
        };
        self.client_id =
            connect.client_id().or(login).filter(|id| !id.is_empty()).map(|id| id.as_ref().into());
        self.host = connect.host().map(|host| host.as_ref().into());
        let session = self.ids.session();
        let accept = Accept {
            session: &session,
            server: &self.context.settings.server_name,
            user_name: principal.as_ref().map(Principal::as_str),
        };
        self.wire.accept(now.monotonic, &accept);
        self.principal = principal;
    }

    /// The client broke a rule: ERROR when everything before has been answered.
    fn violate(&mut self, now: Now, error: &ProtocolError) {
        let closed = Closed::PeerViolated(error.violation.message());
        self.fail_in_turn(now, Failure { error: error.to_frame(), closed });
    }

    /// A frame cannot be carried out: ERROR, in its turn, with the receipt that it asked for.
    fn complain(&mut self, now: Now, complaint: &Complaint, receipt: Option<Box<str>>) {
        let mut error = complaint.to_frame();
        error.receipt = receipt;
        self.fail_in_turn(now, Failure { error, closed: Closed::PeerViolated(complaint.message()) });
    }

    fn fail_in_turn(&mut self, now: Now, failure: Failure) {
        self.wire.stop_input();
        self.engine.handle_drain(now.monotonic);
        self.replies.push_failure(failure);
    }

    fn say_goodbye(&mut self, now: Now, receipt: Option<Box<str>>) {
        self.engine.handle_drain(now.monotonic);
        self.replies.push_goodbye(receipt);
    }

    /// Answers whatever is due at the front of the row.
    fn take_turns(&mut self, now: Now) {
        while let Some(turn) = self.replies.next() {
            match turn {
                Turn::Receipt(receipt) => self.send_receipt(now, &receipt),
                Turn::Fail(failure) => {
                    let how = if failure.closed == SHUTDOWN { End::Shutdown } else { End::Closed };
                    self.end(now, how, failure.closed);
                    self.counters.errors += 1;
                    self.wire.fail(now.monotonic, &failure.error);
                }
                Turn::Goodbye(receipt) => {
                    self.end(now, End::Closed, Closed::ByPeer);
                    if let Some(receipt) = receipt {
                        self.send_receipt(now, &receipt);
                    }
                    self.wire.close(now.monotonic);
                }
            }
        }
    }

    fn send_receipt(&mut self, now: Now, receipt: &str) {
        self.counters.receipts += 1;
        self.wire.send_receipt(now.monotonic, receipt);
    }

    /// Ends the delivery side: what the client may have seen is nacked, what it has not is taken back.
    fn end(&mut self, now: Now, how: End, closed: Closed) {
        self.wire.stop_input();
        self.engine.handle_end(now.monotonic, how);
        self.hear_engine(now);
        self.closed.get_or_insert(closed);
        self.parked = None;
        self.held = BytesMut::new();
    }

    /// Everything is over at once: nobody is there to be told.
    fn abandon(&mut self, now: Now, closed: Closed) {
        self.replies.clear();
        self.end(now, End::Lost, closed);
        self.wire.abandon();
    }

    /// True when the engine had something to tell.
    fn hear_engine(&mut self, now: Now) -> bool {
        self.now = now;
        let mut has_heard = false;
        while let Some(event) = self.engine.poll_event() {
            has_heard = true;
            self.handle_engine_event(now, event);
        }
        has_heard
    }

    fn handle_engine_event(&mut self, now: Now, event: Event) {
        match event {
            Event::Subscribed { sub } => {
                if let Some(opening) = self.subs.get_mut(sub).and_then(|sub| sub.opening.take()) {
                    self.replies.complete(opening);
                }
            }
            Event::SubscriptionRefused { sub, reason } => self.handle_refused(now, sub, &reason),
            Event::Unsubscribed { sub } => {
                if let Some(leaving) = self.subs.remove(sub).and_then(|sub| sub.leaving) {
                    self.replies.complete(leaving);
                }
            }
            Event::Deliver { sub, delivery, message, redelivered, receive_count, seq: _ } => {
                self.deliver(now, sub, delivery, &message, redelivered, receive_count);
            }
            Event::Withdraw { delivery } => {
                if self.wire.withdraw(delivery) {
                    self.engine.handle_withdrawn(now.monotonic, delivery);
                }
            }
            Event::Probe => self.wire.probe(now.monotonic),
            // Its names resolve to a delivery that is not pending any more; nothing else remembers it.
            Event::Ended { .. } => {}
            Event::Published { correlation, result: Ok(_) } => self.replies.complete(correlation),
            Event::Published { correlation, result: Err(reason) } => {
                self.refuse(now, correlation, &reason);
            }
            Event::Settled { correlation, result } => match result {
                Ok(()) => self.replies.complete(correlation),
                // Too late: it changes nothing, and the client is told that its frame was processed.
                Err(Refusal::Unknown | Refusal::BrokerNotReady) => {
                    self.counters.acks_ignored += 1;
                    self.replies.complete(correlation);
                }
                Err(reason) => self.refuse(now, correlation, &reason),
            },
            Event::SettlementRefused { reason, .. } => {
                if !self.replies.has_end() {
                    self.fail_in_turn(now, failure_of(&reason));
                }
            }
        }
    }

    fn handle_refused(&mut self, now: Now, key: SubscriptionKey, reason: &Refusal) {
        let Some(subscription) = self.subs.remove(key) else { return };
        match subscription.opening {
            Some(opening) => self.refuse(now, opening, reason),
            None if self.replies.has_end() => {}
            None => self.fail_in_turn(now, failure_of(reason)),
        }
        if let Some(leaving) = subscription.leaving {
            self.replies.complete(leaving);
        }
    }

    /// A frame's effect will not come: ERROR instead of its receipt, in its turn.
    fn refuse(&mut self, now: Now, correlation: Correlation, reason: &Refusal) {
        self.wire.stop_input();
        self.engine.handle_drain(now.monotonic);
        self.replies.fail(correlation, failure_of(reason));
    }

    fn deliver(
        &mut self,
        now: Now,
        sub: SubscriptionKey,
        delivery: DeliveryId,
        message: &Message,
        redelivered: bool,
        receive_count: u32,
    ) {
        let Some(subscription) = self.subs.get(sub) else { return };
        self.ids.write_message_id(&mut self.message_id, delivery, subscription.hash);
        let has_token = subscription.ack != AckMode::Auto && self.wire.version() == Some(Version::V1_2);
        if has_token {
            self.ids.write_token(&mut self.token, delivery);
        }
        let frame = MessageFrame {
            destination: &subscription.destination,
            message_id: &self.message_id,
            subscription: subscription.id.as_deref(),
            ack: has_token.then_some(self.token.as_str()),
            redelivered,
            delivery_count: self.context.settings.shows_delivery_count.then_some(receive_count),
            timestamp: message.envelope.published_at,
            head: if message.encoding == Encoding::Stomp { &message.head } else { &[] },
            body: &message.body,
        };
        self.counters.messages_out += 1;
        self.wire.send_message(now.monotonic, delivery, &frame);
    }
}

/// How a connection ends that the process ends.
const SHUTDOWN: Closed = Closed::ByUs(Complaint::ServerShuttingDown.message());

fn failure_of(reason: &Refusal) -> Failure {
    let error = stomp_error(reason);
    Failure { error: ErrorFrame::new(error.message, error.detail), closed: Closed::ByUs(error.message) }
}

impl Session for StompSession {
    fn handle_input(&mut self, now: Now, input: &mut BytesMut) {
        self.wire.handle_received(now.monotonic);
        if !self.held.is_empty() {
            self.held.unsplit(input.split());
            std::mem::swap(&mut self.held, input);
        }
        self.run(now, input);
        if self.wire.is_input_ended() {
            input.clear();
        } else if !self.can_read() {
            self.held = input.split();
        }
    }

    fn handle_input_end(&mut self, now: Now) {
        self.input_ended = true;
        self.run_held(now);
    }

    fn handle_transport_lost(&mut self, now: Now) {
        self.abandon(now, Closed::Transport);
    }

    fn handle_completion(&mut self, now: Now, op: Option<OpId>, completion: Completion) {
        self.engine.handle_completion(now.monotonic, op, completion);
        self.run_held(now);
    }

    fn handle_timeout(&mut self, now: Now) {
        match self.wire.handle_timeout(now.monotonic) {
            None => {}
            Some(Timer::ReadIdle) => {
                let error = self.wire.silence();
                let failure =
                    Failure { error: error.to_frame(), closed: Closed::TimedOut(Timer::ReadIdle.label()) };
                self.fail_in_turn(now, failure);
            }
            Some(timer) => self.abandon(now, Closed::TimedOut(timer.label())),
        }
        self.engine.handle_timeout(now.monotonic);
        self.run_held(now);
    }

    fn handle_drain(&mut self, now: Now) {
        self.engine.handle_drain(now.monotonic);
        self.run_held(now);
    }

    fn handle_shutdown(&mut self, now: Now) {
        if !self.replies.has_end() {
            let error = Complaint::ServerShuttingDown.to_frame();
            self.fail_in_turn(now, Failure { error, closed: SHUTDOWN });
        }
        self.run_held(now);
    }

    fn handle_memory(&mut self, now: Now, has_room: bool) {
        self.has_memory = has_room;
        self.run_held(now);
    }

    fn handle_overload(&mut self, now: Now) {
        self.held = BytesMut::new();
        if !self.replies.has_end() {
            let error = Complaint::ServerBusy.to_frame();
            self.fail_in_turn(now, Failure { error, closed: Closed::ByUs(Complaint::ServerBusy.message()) });
        }
        self.run_held(now);
    }

    fn poll_operation(&mut self) -> Option<(OpId, Operation)> {
        loop {
            let operation = self.engine.poll_operation();
            // Handing out the last operation may have ended something.
            if operation.is_some() || !self.hear_engine(self.now) {
                return operation;
            }
            self.take_turns(self.now);
        }
    }

    fn poll_transmit<'a>(&'a mut self, _now: Now, slices: &mut [IoSlice<'a>]) -> usize {
        self.wire.poll_transmit(slices)
    }

    fn handle_transmitted(&mut self, now: Now, bytes: usize) {
        self.wire.handle_transmitted(now.monotonic, bytes);
        while let Some(written) = self.wire.poll_written() {
            match written {
                Written::Partly(delivery) => self.engine.handle_write_progress(now.monotonic, delivery),
                Written::Wholly(delivery) => self.engine.handle_written(now.monotonic, delivery),
            }
        }
        if bytes > 0 {
            self.engine.handle_socket_progress(now.monotonic);
        }
        self.run_held(now);
    }

    fn wants_input(&self) -> bool {
        self.can_read() && !self.input_ended && !self.wire.is_input_ended()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        [self.wire.poll_timeout(), self.engine.poll_timeout()].into_iter().flatten().min()
    }

    fn is_settled(&self) -> bool {
        if self.wire.is_closing() {
            self.engine.is_finished()
        } else {
            self.engine.is_settled() && self.replies.is_empty()
        }
    }

    fn closed(&self) -> Option<Closed> {
        self.closed.filter(|_| self.wire.is_closing())
    }
}
