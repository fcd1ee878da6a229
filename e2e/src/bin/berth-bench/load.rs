//! The load: producers and consumers of one queue, all in one thread around one epoll.
//!
//! Closed loop: every producer keeps as much in flight as the plan allows. Open loop (`rate` set): message
//! `n` is due `n / rate` seconds after the start, whether or not earlier ones were answered, and every
//! latency counts from that moment, so that a server which stalls is charged for what it kept waiting.
//!
//! A run has a warm-up, a measured part and a drain; `watch` is called at the edges of the measured part.
//! Every message has a number; sums of the numbers show loss and duplicates.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use hdrhistogram::Histogram;
use memchr::memmem::Finder;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::time::{TimeSpec, TimeValLike};
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

use crate::conn::{Conn, shown};
use crate::wire::{self, SendTemplate};

/// Whom to load, and in which words.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) address: SocketAddr,
    /// The queue, as this server writes it.
    pub(crate) destination: String,
    /// CONNECT, whole.
    pub(crate) connect: String,
    /// Header lines of SEND that make a message durable.
    pub(crate) send_headers: String,
    /// Header lines of SUBSCRIBE that set how much may be unacknowledged.
    pub(crate) subscribe_headers: String,
}

/// What to do to it.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) producers: usize,
    pub(crate) consumers: usize,
    pub(crate) body_bytes: usize,
    /// Ask for a receipt of every SEND and keep at most so many unanswered on each connection.
    pub(crate) in_flight: Option<u64>,
    /// Most messages sent and not yet delivered, over all connections.
    pub(crate) backlog: u64,
    /// Consumers acknowledge every message (client-individual); else auto.
    pub(crate) acks: bool,
    /// Open loop at so many messages a second.
    pub(crate) rate: Option<f64>,
    /// Send only when no unread byte is left in the input buffer, as some clients do.
    pub(crate) lazy_flush: bool,
    pub(crate) until: Until,
}

/// When a run ends.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Until {
    /// After a warm-up and a measured time.
    Time { warm: Duration, measure: Duration },
    /// When so many messages were sent and confirmed (with producers) and delivered (with consumers).
    Count(u64),
}

/// The edges of the measured part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Edge {
    Begin,
    End,
}

/// What happened.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// Seconds of the measured part.
    pub(crate) seconds: f64,
    /// Messages delivered in it, or confirmed when nobody consumes.
    pub(crate) messages: u64,
    /// Over the whole run.
    pub(crate) sent: u64,
    pub(crate) delivered: u64,
    /// Whether the numbers delivered are not exactly the numbers sent.
    pub(crate) differs: bool,
    /// Nanoseconds from when a message was due to its delivery; open loop only.
    pub(crate) delivery: Histogram<u64>,
    /// The same to its receipt.
    pub(crate) confirm: Histogram<u64>,
}

/// Runs `plan` against `target`.
pub(crate) fn run(target: &Target, plan: &Plan, watch: &mut dyn FnMut(Edge)) -> Result<Outcome> {
    let mut load = Load::open(target, plan)?;
    load.drive(watch)?;
    load.close()
}

struct Producer {
    conn: Conn,
    unanswered: u64,
    /// Of the closed loop: numbers are dealt out one by one over all producers.
    open: bool,
}

struct Load<'a> {
    plan: &'a Plan,
    epoll: Epoll,
    timer: TimerFd,
    template: SendTemplate,
    producers: Vec<Producer>,
    consumers: Vec<Conn>,
    counts: Counts,
    start: Instant,
    measured: Option<(Instant, Counts)>,
    finished: Option<(Instant, Counts)>,
    latency: Latency,
    ack: Finder<'static>,
    receipt_id: Finder<'static>,
}

#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
struct Counts {
    sent: u64,
    confirmed: u64,
    delivered: u64,
    sent_sum: u64,
    delivered_sum: u64,
}

struct Latency {
    rate: Option<f64>,
    /// Numbers due before this one belong to the warm-up.
    first: u64,
    /// Numbers from this one on are due after the measured part.
    end: u64,
    delivery: Histogram<u64>,
    confirm: Histogram<u64>,
}

impl Latency {
    fn due(&self, number: u64) -> Option<Duration> {
        let rate = self.rate.filter(|_| (self.first..self.end).contains(&number))?;
        Some(Duration::from_secs_f64(number as f64 / rate))
    }

    fn delivered(&mut self, number: u64, now: Duration) {
        if let Some(due) = self.due(number) {
            self.delivery.saturating_record(nanos(now.saturating_sub(due)));
        }
    }

    fn confirmed(&mut self, number: u64, now: Duration) {
        if let Some(due) = self.due(number) {
            self.confirm.saturating_record(nanos(now.saturating_sub(due)));
        }
    }
}

impl<'a> Load<'a> {
    fn open(target: &Target, plan: &'a Plan) -> Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::empty())?;
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, TimerFlags::TFD_NONBLOCK)?;
        epoll.add(&timer, EpollEvent::new(EpollFlags::EPOLLIN, TIMER))?;
        let mut consumers = Vec::new();
        for index in 0..plan.consumers {
            let mut conn = Conn::open(target.address, &target.connect, INPUT_BYTES)?;
            conn.ask(&subscribe(target, plan.acks), b"RECEIPT")?;
            conn.register(&epoll, CONSUMERS + index as u64)?;
            consumers.push(conn);
        }
        let mut producers = Vec::new();
        for index in 0..plan.producers {
            let mut conn = Conn::open(target.address, &target.connect, INPUT_BYTES)?;
            conn.register(&epoll, index as u64)?;
            producers.push(Producer { conn, unanswered: 0, open: true });
        }
        let headers = format!("{}content-type:text/plain\n", target.send_headers);
        let receipts = plan.in_flight.is_some();
        let template = SendTemplate::new(&target.destination, &headers, plan.body_bytes, receipts);
        let (first, end) = match (plan.until, plan.rate) {
            (Until::Time { warm, measure }, Some(rate)) => {
                ((warm.as_secs_f64() * rate) as u64, ((warm + measure).as_secs_f64() * rate) as u64)
            }
            _ => (0, u64::MAX),
        };
        let (delivery, confirm) = (histogram()?, histogram()?);
        let latency = Latency { rate: plan.rate, first, end, delivery, confirm };
        Ok(Self {
            plan,
            epoll,
            timer,
            template,
            producers,
            consumers,
            counts: Counts::default(),
            start: Instant::now(),
            measured: None,
            finished: None,
            latency,
            ack: Finder::new("\nack:"),
            receipt_id: Finder::new("\nreceipt-id:"),
        })
    }

    fn drive(&mut self, watch: &mut dyn FnMut(Edge)) -> Result<()> {
        let mut events = vec![EpollEvent::empty(); 64];
        let mut progress = (self.counts, Instant::now());
        // What came in with the answers to the handshakes.
        for index in 0..self.consumers.len() {
            self.consume(index)?;
        }
        for index in 0..self.producers.len() {
            self.receipts(index)?;
        }
        loop {
            let now = Instant::now();
            if self.phase(now, watch) {
                return Ok(());
            }
            if self.counts != progress.0 {
                progress = (self.counts, now);
            } else if now.duration_since(progress.1) > STALL {
                if self.finished.is_some() {
                    return Ok(());
                }
                bail!("nothing has moved for {} s: {:?}", STALL.as_secs(), self.counts);
            }
            let more = self.pump(now)?;
            let timeout = if more { EpollTimeout::ZERO } else { EpollTimeout::from(WAIT_MS) };
            let ready = self.epoll.wait(&mut events, timeout)?;
            for event in &events[..ready] {
                self.dispatch(*event)?;
            }
        }
    }

    /// Notes the edges of the measured part. True when the run is over.
    fn phase(&mut self, now: Instant, watch: &mut dyn FnMut(Edge)) -> bool {
        let elapsed = now.duration_since(self.start);
        let (begins, ends) = match self.plan.until {
            Until::Time { warm, measure } => {
                let all_sent = self.plan.rate.is_none() || self.counts.sent >= self.latency.end;
                (elapsed >= warm, elapsed >= warm + measure && all_sent)
            }
            Until::Count(n) => (true, self.reached(n)),
        };
        if begins && self.measured.is_none() {
            watch(Edge::Begin);
            self.measured = Some((Instant::now(), self.counts));
        }
        if ends && self.finished.is_none() {
            self.finished = Some((Instant::now(), self.counts));
            watch(Edge::End);
        }
        self.finished.is_some() && self.is_drained()
    }

    fn reached(&self, n: u64) -> bool {
        let stored = self.plan.producers == 0 || (self.counts.sent >= n && self.all_confirmed());
        stored && (self.plan.consumers == 0 || self.counts.delivered >= n)
    }

    fn all_confirmed(&self) -> bool {
        self.plan.in_flight.is_none() || self.counts.confirmed >= self.counts.sent
    }

    fn is_drained(&self) -> bool {
        let acked = self.consumers.iter().all(|conn| conn.unsent_bytes() == 0);
        let delivered =
            self.plan.consumers == 0 || self.plan.producers == 0 || self.counts.delivered >= self.counts.sent;
        acked && delivered && self.all_confirmed()
    }

    fn dispatch(&mut self, event: EpollEvent) -> Result<()> {
        match event.data() {
            TIMER => drop(self.timer.wait()),
            token if token >= CONSUMERS => {
                let index = (token - CONSUMERS) as usize;
                if event.events().contains(EpollFlags::EPOLLOUT) {
                    self.consumers[index].flush(&self.epoll)?;
                }
                if !self.consumers[index].read()? {
                    bail!("the server has closed a consumer");
                }
                self.consume(index)?;
            }
            token => {
                let index = token as usize;
                if event.events().contains(EpollFlags::EPOLLOUT) {
                    self.producers[index].conn.flush(&self.epoll)?;
                }
                if !self.producers[index].conn.read()? {
                    bail!("the server has closed a producer");
                }
                self.receipts(index)?;
            }
        }
        Ok(())
    }

    fn consume(&mut self, index: usize) -> Result<()> {
        let now = self.start.elapsed();
        let (acks, body_bytes, lazy) = (self.plan.acks, self.plan.body_bytes, self.plan.lazy_flush);
        let (counts, latency, ack) = (&mut self.counts, &mut self.latency, &self.ack);
        let mut problem = None;
        let conn = &mut self.consumers[index];
        conn.frames(!lazy, |frame, output| match frame.first() {
            Some(b'M') => {
                let Some(number) = wire::body_number(frame, body_bytes) else {
                    problem = Some(format!("a body was changed: {}", shown(frame)));
                    return;
                };
                counts.delivered += 1;
                counts.delivered_sum = counts.delivered_sum.wrapping_add(number);
                latency.delivered(number, now);
                if acks {
                    let Some(token) = wire::header(frame, ack) else {
                        problem = Some(format!("no ack header: {}", shown(frame)));
                        return;
                    };
                    output.extend_from_slice(b"ACK\nid:");
                    output.extend_from_slice(token);
                    output.extend_from_slice(b"\n\n\0");
                }
            }
            _ => problem = Some(shown(frame)),
        });
        if let Some(problem) = problem {
            bail!("a consumer got {problem}");
        }
        if conn.unsent_bytes() > 0 && (!lazy || conn.input_is_empty()) {
            conn.flush(&self.epoll)?;
        }
        Ok(())
    }

    fn receipts(&mut self, index: usize) -> Result<()> {
        let now = self.start.elapsed();
        let lazy = self.plan.lazy_flush;
        let (counts, latency, receipt_id) = (&mut self.counts, &mut self.latency, &self.receipt_id);
        let mut problem = None;
        let mut answered = 0;
        let producer = &mut self.producers[index];
        producer.conn.frames(!lazy, |frame, _| {
            let id = wire::header(frame, receipt_id).and_then(wire::parse_hex);
            match (frame.first(), id) {
                (Some(b'R'), Some(number)) => {
                    answered += 1;
                    latency.confirmed(number, now);
                }
                _ => problem = Some(shown(frame)),
            }
        });
        if let Some(problem) = problem {
            bail!("a producer got {problem}");
        }
        counts.confirmed += answered;
        producer.unanswered = producer.unanswered.saturating_sub(answered);
        producer.open = !lazy || producer.conn.input_is_empty();
        Ok(())
    }

    /// Sends what may be sent. True when a producer could go on at once.
    fn pump(&mut self, now: Instant) -> Result<bool> {
        let mut more = false;
        let limit = self.sendable(now);
        let chunk = (CHUNK_BYTES / self.template.frame_bytes()).max(1) as u64;
        // An open loop deals message by message, so that no producer sends in bursts.
        let step = if self.plan.rate.is_some() { 1 } else { chunk };
        loop {
            let before = self.counts.sent;
            for producer in &mut self.producers {
                let room =
                    self.plan.in_flight.map_or(u64::MAX, |max| max.saturating_sub(producer.unanswered));
                let room = if self.plan.rate.is_some() { u64::MAX } else { room };
                let backlog = limit.saturating_sub(self.counts.sent);
                let full = self.plan.rate.is_none() && producer.conn.unsent_bytes() >= CHUNK_BYTES;
                let n = if full || !producer.open { 0 } else { step.min(room).min(backlog) };
                for number in self.counts.sent..self.counts.sent + n {
                    self.template.append(number, &mut producer.conn.output);
                    self.counts.sent_sum = self.counts.sent_sum.wrapping_add(number);
                }
                self.counts.sent += n;
                producer.unanswered += n;
            }
            if self.plan.rate.is_none() || self.counts.sent == before {
                break;
            }
        }
        for producer in &mut self.producers {
            if producer.conn.unsent_bytes() > 0 && producer.conn.flush(&self.epoll)? {
                let free = self.plan.in_flight.is_none_or(|max| producer.unanswered < max);
                more |= producer.open && free && self.counts.sent < limit && self.plan.rate.is_none();
            }
        }
        self.arm()?;
        Ok(more)
    }

    /// The number up to which messages may be sent now.
    fn sendable(&self, now: Instant) -> u64 {
        if self.finished.is_some() {
            return self.counts.sent;
        }
        let total = match self.plan.until {
            Until::Count(n) => n,
            Until::Time { .. } => u64::MAX,
        };
        match self.plan.rate {
            Some(rate) => {
                let due = (now.duration_since(self.start).as_secs_f64() * rate) as u64 + 1;
                due.min(self.latency.end).min(total)
            }
            None if self.plan.consumers == 0 => total,
            None => total.min(self.counts.delivered + self.plan.backlog),
        }
    }

    /// Wakes the loop when the next message of an open loop is due.
    fn arm(&self) -> Result<()> {
        let Some(rate) = self.plan.rate.filter(|_| self.finished.is_none()) else { return Ok(()) };
        let due = Duration::from_secs_f64(self.counts.sent as f64 / rate);
        let wait = due.saturating_sub(self.start.elapsed()).max(TIMER_MIN);
        let wait = TimeSpec::nanoseconds(i64::try_from(wait.as_nanos()).context("the rate is too low")?);
        self.timer.set(Expiration::OneShot(wait), TimerSetTimeFlags::empty())?;
        Ok(())
    }

    fn close(mut self) -> Result<Outcome> {
        let (begin, at_begin) = self.measured.context("the measured part never began")?;
        let (end, at_end) = self.finished.context("the measured part never ended")?;
        for conn in self.consumers.iter_mut().chain(self.producers.iter_mut().map(|p| &mut p.conn)) {
            conn.output.extend_from_slice(b"DISCONNECT\n\n\0");
            conn.flush(&self.epoll)?;
        }
        let counts = self.counts;
        let messages = if self.plan.consumers > 0 {
            at_end.delivered - at_begin.delivered
        } else {
            at_end.confirmed - at_begin.confirmed
        };
        let both = self.plan.producers > 0 && self.plan.consumers > 0;
        let differs = both && (counts.sent, counts.sent_sum) != (counts.delivered, counts.delivered_sum);
        Ok(Outcome {
            seconds: end.duration_since(begin).as_secs_f64(),
            messages,
            sent: counts.sent,
            delivered: counts.delivered,
            differs,
            delivery: self.latency.delivery,
            confirm: self.latency.confirm,
        })
    }
}

fn subscribe(target: &Target, acks: bool) -> String {
    let ack = if acks { "client-individual" } else { "auto" };
    let (destination, headers) = (&target.destination, &target.subscribe_headers);
    format!("SUBSCRIBE\nid:0\ndestination:{destination}\nack:{ack}\n{headers}receipt:sub\n\n\0")
}

fn histogram() -> Result<Histogram<u64>> {
    Histogram::new_with_bounds(1_000, LATENCY_MAX_NS, 3).context("the bounds of the histogram")
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

const TIMER: u64 = u64::MAX;
/// Tokens of consumers start here, those of producers at zero.
const CONSUMERS: u64 = 1 << 32;
const INPUT_BYTES: usize = 256 * 1024;
const CHUNK_BYTES: usize = 64 * 1024;
const WAIT_MS: u16 = 20;
const TIMER_MIN: Duration = Duration::from_micros(20);
/// A run in which nothing moves for so long has failed, or, while draining, has lost something.
const STALL: Duration = Duration::from_secs(15);
const LATENCY_MAX_NS: u64 = 60_000_000_000;

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn null_server() -> Target {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let address = listener.local_addr().expect("an address");
        std::thread::spawn(move || crate::null::serve(&listener));
        Target {
            address,
            destination: "/queue/a".into(),
            connect: "CONNECT\naccept-version:1.2\nhost:/\n\n\0".into(),
            send_headers: String::new(),
            subscribe_headers: String::new(),
        }
    }

    fn plan(each: usize) -> Plan {
        Plan {
            producers: each,
            consumers: each,
            body_bytes: 100,
            in_flight: Some(16),
            backlog: 500,
            acks: true,
            rate: None,
            lazy_flush: false,
            until: Until::Count(5_000),
        }
    }

    #[test]
    fn every_message_is_sent_confirmed_and_delivered_once() {
        let target = null_server();
        for plan in [
            plan(3),
            Plan { in_flight: None, acks: false, ..plan(1) },
            Plan { lazy_flush: true, ..plan(2) },
            Plan { body_bytes: 70_000, until: Until::Count(100), ..plan(2) },
        ] {
            let mut edges = Vec::new();
            let outcome = run(&target, &plan, &mut |edge| edges.push(edge)).expect("a run");
            let Until::Count(count) = plan.until else { unreachable!("all plans count") };
            assert_eq!((outcome.sent, outcome.delivered, outcome.messages), (count, count, count));
            assert!(!outcome.differs);
            assert_eq!(edges, [Edge::Begin, Edge::End]);
        }
    }

    #[test]
    fn an_open_loop_sends_what_is_due_and_times_it_all() {
        let target = null_server();
        let (warm, measure) = (Duration::from_millis(100), Duration::from_millis(400));
        let plan = Plan { rate: Some(5_000.0), until: Until::Time { warm, measure }, ..plan(2) };
        let outcome = run(&target, &plan, &mut |_| ()).expect("a run");
        assert_eq!((outcome.sent, outcome.delivered), (2_500, 2_500));
        assert_eq!((outcome.delivery.len(), outcome.confirm.len()), (2_000, 2_000));
    }

    #[test]
    fn an_error_of_the_server_ends_the_run_with_its_text() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let address = listener.local_addr().expect("an address");
        std::thread::spawn(move || {
            let (stream, _) = listener.accept().expect("a client");
            std::io::Write::write_all(&mut &stream, b"CONNECTED\n\n\0ERROR\nmessage:queue full\n\n\0")
                .expect("written");
            std::io::copy(&mut &stream, &mut std::io::sink()).ok();
        });
        let target = Target { address, ..null_server() };
        let plan = Plan { consumers: 0, ..plan(1) };
        let error = run(&target, &plan, &mut |_| ()).expect_err("an error");
        assert!(format!("{error:#}").contains("queue full"), "{error:#}");
    }
}
