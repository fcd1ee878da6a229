//! The driver of one connection: a socket, a [`Session`], a way to the shard. One tokio task each.
//!
//! It is a hand-written future, not a `select!`: each turn takes what the broker has answered, reads once,
//! hands the operations over, writes what the socket takes, looks at the deadline, and turns again until
//! nothing moves. Whatever cannot go on has left its waker behind. All of a turn's operations go to the shard
//! under one lock.
//!
//! End of a connection: when the session is `closed` and its output is written, the write side is shut down
//! and what the client still sends is read and thrown away until it closes too (at most [`LINGER`]), so that
//! no reset eats the last frame. Then the socket goes, and the session stays until the broker has answered
//! what it still waits for.
//!
//! Invariants: the socket is read only while the session wants input, the shard has room and the budget of
//! memory too (see `memory.rs`: what a connection holds is charged once a turn); an idle
//! connection holds no read buffer; a peer that never reads its last frame is given up after [`FLUSH`].

use std::collections::VecDeque;
use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use berth_gateway::{Closed, Session};
use berth_types::Instant;
use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::Sleep;
use tokio_util::io::poll_read_buf;

use crate::clock::Clock;
use crate::connections::Entry;
use crate::mailbox::{Event, Inbox};
use crate::memory::Charge;
use crate::metrics::{ConnectionMeter, Tally};
use crate::shard::Letter;

/// How long a client may take to close its side after we have closed ours.
pub(crate) const LINGER: Duration = Duration::from_secs(2);

/// How long the last output may wait for a peer that does not read.
pub(crate) const FLUSH: Duration = Duration::from_secs(5);

/// Bytes that are read and thrown away at the end, beyond which a reset is the client's own doing.
const LINGER_BYTES_MAX: usize = 4 * 1024 * 1024;

/// One read asks for so much at first, and for more while reads come back full.
const READ_BYTES_MIN: usize = 8 * 1024;
const READ_BYTES_MAX: usize = 64 * 1024;

/// Slices in one vectored write.
const SLICES_MAX: usize = 64;

/// Turns before other tasks of the worker get theirs.
const TURNS_MAX: u32 = 32;

/// A socket that can say cheaply whether a read is worth trying.
pub(crate) trait Socket: AsyncRead + AsyncWrite + Unpin {
    /// Ready when a read might return something.
    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<()>;
}

impl Socket for TcpStream {
    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.poll_read_ready(cx).map(|_| ())
    }
}

/// A session that says what it has done.
pub(crate) trait Observed: Session {
    /// Counts since it was made.
    fn tally(&self) -> Tally;
    /// Bytes of input that wait to be processed and of publishes without a confirm.
    fn inbound_bytes(&self) -> usize;
    /// Bytes of output that wait for the socket.
    fn output_bytes(&self) -> usize;
    /// The client's stable name, once it is known.
    fn client(&self) -> Option<&str>;
}

/// Drives one session over one socket; resolves when both are done with.
pub(crate) struct Driver<S, I> {
    session: S,
    socket: Option<I>,
    entry: Arc<Entry>,
    inbox: Arc<Inbox<Letter>>,
    clock: Clock,
    meter: ConnectionMeter,
    charge: Charge,
    has_room: bool,
    has_moved: bool,
    input: BytesMut,
    read_bytes: usize,
    input_ended: bool,
    phase: Phase,
    events: VecDeque<Event>,
    letters: Vec<Letter>,
    sleep: Pin<Box<Sleep>>,
    armed: Instant,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// The session speaks with its client.
    Serving,
    /// The session is closed; its last output is being written until then.
    Flushing(Instant),
    /// Our side is shut down; the client's bytes are thrown away until then, at most so many.
    Lingering(Instant, usize),
    /// The socket is gone; the session waits for the broker's last answers.
    Settling,
}

impl<S: Observed, I: Socket> Driver<S, I> {
    /// A driver that has done nothing yet. The shard knows the connection already.
    pub(crate) fn new(
        session: S,
        socket: I,
        entry: Arc<Entry>,
        inbox: Arc<Inbox<Letter>>,
        clock: Clock,
        meter: ConnectionMeter,
        charge: Charge,
    ) -> Self {
        let armed = Instant::MAX;
        Self {
            session,
            socket: Some(socket),
            entry,
            inbox,
            clock,
            meter,
            charge,
            has_room: true,
            has_moved: false,
            input: BytesMut::new(),
            read_bytes: READ_BYTES_MIN,
            input_ended: false,
            phase: Phase::Serving,
            events: VecDeque::new(),
            letters: Vec::new(),
            sleep: Box::pin(tokio::time::sleep_until(clock.runtime_instant(armed))),
            armed,
        }
    }

    /// Takes what the broker and the supervisor have said. True: something moved.
    fn hear(&mut self, cx: &Context<'_>) -> bool {
        if self.entry.outbox.poll_take(cx, &mut self.events).is_pending() {
            return false;
        }
        let now = self.clock.now();
        while let Some(event) = self.events.pop_front() {
            match event {
                Event::Completion(op, completion) => {
                    self.meter.heard(now.monotonic, op, &completion);
                    self.session.handle_completion(now, op, completion);
                }
                Event::Overload => {
                    self.input = BytesMut::new();
                    self.session.handle_overload(now);
                }
                Event::Drain => self.session.handle_drain(now),
                Event::Shutdown => self.session.handle_shutdown(now),
            }
            self.collect(now.monotonic);
        }
        true
    }

    /// Charges what is held, and tells the session when there is no room for more, or there is again.
    fn account(&mut self, cx: &Context<'_>) {
        let inbound = self.input.len() + self.session.inbound_bytes();
        let has_moved = std::mem::take(&mut self.has_moved);
        self.charge.set(self.clock, inbound + self.session.output_bytes(), has_moved);
        let has_room = self.phase != Phase::Serving || self.charge.poll_room(cx, inbound).is_ready();
        if has_room != self.has_room {
            self.has_room = has_room;
            let now = self.clock.now();
            self.session.handle_memory(now, has_room);
            self.collect(now.monotonic);
        }
    }

    /// Reads once, if reading is wanted.
    fn read(&mut self, cx: &mut Context<'_>) -> bool {
        if self.phase != Phase::Serving || self.input_ended || !self.session.wants_input() {
            return false;
        }
        if self.inbox.poll_space(cx).is_pending() {
            return false;
        }
        let Poll::Ready(result) = self.poll_read(cx) else { return false };
        let now = self.clock.now();
        match result {
            Ok(0) => {
                self.input_ended = true;
                self.session.handle_input(now, &mut self.input);
                self.collect(now.monotonic);
                self.session.handle_input_end(now);
            }
            Ok(bytes) => {
                self.has_moved = true;
                self.meter.read(bytes);
                self.session.handle_input(now, &mut self.input);
            }
            Err(_) => self.lose(),
        }
        self.collect(now.monotonic);
        true
    }

    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let Some(socket) = &mut self.socket else { return Poll::Pending };
        ready!(socket.poll_readable(cx));
        self.input.reserve(self.read_bytes);
        let room = self.input.capacity() - self.input.len();
        let polled = poll_read_buf(Pin::new(socket), cx, &mut self.input);
        match &polled {
            Poll::Ready(Ok(bytes)) if *bytes == room => {
                self.read_bytes = (self.read_bytes * 2).min(READ_BYTES_MAX);
            }
            Poll::Ready(Ok(bytes)) if *bytes < self.read_bytes / 4 => {
                self.read_bytes = (self.read_bytes / 2).max(READ_BYTES_MIN);
            }
            _ => {}
        }
        polled
    }

    /// Gives the read buffer back when it holds no part of a frame.
    fn release_buffer(&mut self) {
        if self.input.is_empty() {
            self.input = BytesMut::new();
        }
    }

    /// Moves the session's operations into this turn's batch.
    fn collect(&mut self, now: Instant) {
        while let Some((op, operation)) = self.session.poll_operation() {
            self.meter.asked(now, op, &operation);
            self.letters.push(Letter::Operation(self.entry.id, op, operation));
        }
    }

    /// Hands the batch to the shard.
    fn submit(&mut self) {
        if !self.letters.is_empty() {
            self.inbox.push(self.letters.drain(..));
        }
    }

    /// Writes what the socket takes. True: something moved.
    fn write(&mut self, cx: &mut Context<'_>) -> bool {
        let mut moved = false;
        while let Some(socket) = &mut self.socket {
            let now = self.clock.now();
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            let filled = self.session.poll_transmit(now, &mut slices);
            if filled == 0 {
                return moved;
            }
            match Pin::new(socket).poll_write_vectored(cx, &slices[..filled]) {
                Poll::Pending => return moved,
                Poll::Ready(Ok(bytes)) if bytes > 0 => {
                    self.has_moved = true;
                    self.meter.wrote(bytes);
                    self.session.handle_transmitted(now, bytes);
                }
                Poll::Ready(_) => self.lose(),
            }
            self.collect(now.monotonic);
            moved = true;
        }
        moved
    }

    fn has_output(&mut self) -> bool {
        let now = self.clock.now();
        self.session.poll_transmit(now, &mut [IoSlice::new(&[])]) > 0
    }

    /// The socket is of no more use.
    fn lose(&mut self) {
        if self.phase != Phase::Settling {
            self.socket = None;
            self.phase = Phase::Settling;
            let now = self.clock.now();
            self.session.handle_transport_lost(now);
            self.collect(now.monotonic);
        }
    }

    /// Fires what is due and sleeps until what comes next. True: something moved.
    fn keep_time(&mut self, cx: &mut Context<'_>) -> bool {
        let next = match self.phase {
            Phase::Flushing(until) | Phase::Lingering(until, _) => Some(until),
            Phase::Serving | Phase::Settling => None,
        };
        let next = [next, self.session.poll_timeout()].into_iter().flatten().min();
        let Some(next) = next else { return false };
        let now = self.clock.now();
        if next <= now.monotonic {
            if self.session.poll_timeout().is_some_and(|at| at <= now.monotonic) {
                self.session.handle_timeout(now);
                self.collect(now.monotonic);
            }
            return true;
        }
        if next < self.armed || self.armed <= now.monotonic {
            self.sleep.as_mut().reset(self.clock.runtime_instant(next));
            self.armed = next;
        }
        // A sleep that ends early (the deadline has moved on since) is armed again.
        let woken = self.sleep.as_mut().poll(cx).is_ready();
        if woken {
            self.armed = now.monotonic;
        }
        woken
    }

    /// Goes from phase to phase. True: something moved.
    fn advance(&mut self, cx: &mut Context<'_>) -> bool {
        let now = self.clock.monotonic();
        let phase = self.phase;
        match phase {
            Phase::Serving if self.session.closed().is_some() => {
                self.phase = Phase::Flushing(now + FLUSH);
                self.input = BytesMut::new();
                true
            }
            Phase::Flushing(until) if now >= until => {
                self.lose();
                true
            }
            Phase::Flushing(_) if !self.has_output() => self.shut_down(cx, now),
            Phase::Lingering(until, left) => self.linger(cx, now, until, left),
            Phase::Serving | Phase::Flushing(_) | Phase::Settling => false,
        }
    }

    fn shut_down(&mut self, cx: &mut Context<'_>, now: Instant) -> bool {
        let Some(socket) = &mut self.socket else { return false };
        match Pin::new(socket).poll_shutdown(cx) {
            Poll::Pending => return false,
            Poll::Ready(Ok(())) if !self.input_ended => {
                self.phase = Phase::Lingering(now + LINGER, LINGER_BYTES_MAX);
            }
            Poll::Ready(_) => self.end_socket(),
        }
        true
    }

    fn linger(&mut self, cx: &mut Context<'_>, now: Instant, until: Instant, left: usize) -> bool {
        if now >= until {
            self.end_socket();
            return true;
        }
        let Poll::Ready(result) = self.poll_read(cx) else { return false };
        self.input.clear();
        match result {
            Ok(bytes) if bytes > 0 && bytes < left => self.phase = Phase::Lingering(until, left - bytes),
            _ => self.end_socket(),
        }
        true
    }

    /// The conversation is over and said goodbye to.
    fn end_socket(&mut self) {
        self.socket = None;
        self.input = BytesMut::new();
        self.phase = Phase::Settling;
    }

    /// How it ended, once nothing is left to do.
    fn finished(&self) -> Option<Closed> {
        let is_over = self.phase == Phase::Settling && self.session.is_settled();
        self.session.closed().filter(|_| is_over)
    }

    /// One line, one metric.
    fn report(&mut self, closed: Closed) {
        self.meter.tally(self.session.tally());
        self.meter.closed(closed);
        let reason = match closed {
            Closed::TimedOut(reason) | Closed::PeerViolated(reason) | Closed::ByUs(reason) => reason,
            Closed::ByPeer | Closed::Transport => "",
        };
        let (connection, remote) = (&self.entry.id, &self.entry.remote);
        let client = self.session.client().unwrap_or_default();
        let cause = closed.label();
        tracing::info!(%connection, %remote, client, cause, reason, "Connection ended");
    }
}

impl<S: Observed + Unpin, I: Socket> Future for Driver<S, I> {
    type Output = Closed;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Closed> {
        let this = self.get_mut();
        for _ in 0..TURNS_MAX {
            let mut moved = this.hear(cx);
            this.account(cx);
            moved |= this.read(cx);
            this.submit();
            moved |= this.write(cx);
            moved |= this.keep_time(cx);
            moved |= this.advance(cx);
            this.submit();
            this.entry.report_settled(this.session.is_settled());
            if let Some(closed) = this.finished() {
                this.report(closed);
                return Poll::Ready(closed);
            }
            if !moved {
                this.release_buffer();
                this.meter.tally(this.session.tally());
                return Poll::Pending;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

#[cfg(test)]
mod tests;
