//! The world: one virtual time, one heap of events, one source of randomness, and everything that moves.
//!
//! [`World::step`] takes the earliest thing that is to happen and lets it happen. Between two steps nothing
//! moves, so a history is the list of its steps, and a seed is a history.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_broker::Broker;
use berth_types::{ConnectionId, Instant, Now, Timestamp};

use crate::checkers::Checkers;
use crate::client::{Ack, Client, Part, Surroundings};
use crate::disk::Disk;
use crate::network::Link;
use crate::node::{Node, Stopping};
use crate::plan::Plan;
use crate::random::Random;
use crate::trace::Trace;
use crate::{Failed, Mistake, Options, Report};

/// Something that is to happen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Event {
    /// Bytes, or the end of them, reach the server.
    ToServer(usize),
    /// Bytes, or the end of them, reach a client.
    ToClient(usize),
    /// An operation or a completion has crossed between a session and the broker.
    Hop(ConnectionId),
    /// The disk has finished an operation.
    Disk,
    /// A client acts, or wakes and reads.
    Client(usize),
    /// A side learns that its connection is broken.
    ServerTold(usize),
    ClientTold(usize),
    /// The next fault.
    Fault,
    /// The process is started.
    Start,
    /// The next step of an orderly stop.
    Stop,
    /// The disk has room again.
    DiskFreed,
    /// Quiet time begins.
    Quiet,
}

/// A history in the making.
pub(crate) struct World {
    pub(crate) seed: u64,
    pub(crate) now: Instant,
    /// Wall clock less monotonic clock, in milliseconds.
    pub(crate) wall_ms: u64,
    pub(crate) random: Random,
    pub(crate) plan: Plan,
    heap: BTreeMap<(Instant, u64), Event>,
    next_event: u64,
    pub(crate) node: Option<Node>,
    pub(crate) links: Vec<Link>,
    pub(crate) clients: Vec<Client>,
    pub(crate) disk: Disk,
    pub(crate) checkers: Checkers,
    pub(crate) trace: Trace,
    pub(crate) next_conn: ConnectionId,
    pub(crate) is_quiet: bool,
    pub(crate) is_recovery_doomed: bool,
    pub(crate) mistake: Option<Mistake>,
    until: Option<Instant>,
    steps_at_once: u64,
    pub(crate) starts: u64,
    ends_at: Instant,
}

/// Steps without time passing, beyond which something turns in a circle.
const STEPS_AT_ONCE_MAX: u64 = 50_000;

/// The wall clock at the beginning: 2026.
const WALL_MS: u64 = 1_790_000_000_000;

impl World {
    pub(crate) fn new(options: &Options) -> Self {
        let mut random = Random::new(options.seed);
        let plan = options.plan.clone().unwrap_or_else(|| Plan::draw(&mut random));
        let mut world = Self {
            seed: options.seed,
            now: Instant::ZERO,
            wall_ms: WALL_MS,
            checkers: Checkers::new(plan.ack_timeout),
            trace: Trace::new(options.echoes),
            heap: BTreeMap::new(),
            next_event: 0,
            node: None,
            links: Vec::new(),
            clients: Vec::new(),
            disk: Disk::new(options.mistake == Some(Mistake::SkipSync)),
            next_conn: ConnectionId::new(1),
            is_quiet: false,
            is_recovery_doomed: false,
            mistake: options.mistake,
            until: options.until,
            steps_at_once: 0,
            starts: 0,
            ends_at: Instant::MAX,
            random,
            plan,
        };
        let plan = world.plan.clone();
        world.trace.line(Instant::ZERO, format_args!("{plan:?}"));
        for _ in 0..plan.producers {
            world.add_client(Part::Producer { left: plan.messages });
        }
        for _ in 0..plan.consumers {
            let queue = world.random.below(plan.queues);
            let ack = *world.random.pick(&[Ack::Auto, Ack::Client, Ack::Individual, Ack::Individual]);
            let window = world.random.between(1, 20);
            let is_lazy = plan.faults.lazy_consumers && world.random.chance(500);
            world.add_client(Part::Consumer { queue, ack, window, is_lazy });
        }
        world.at(Duration::ZERO, Event::Start);
        world.schedule_fault();
        world.at(plan.duration, Event::Quiet);
        world
    }

    /// Lets the whole history happen.
    pub(crate) fn run(mut self) -> Result<Report, Box<Failed>> {
        while self.checkers.failure.is_none() && self.step() {}
        let figures = self.checkers.figures();
        if let Some(failure) = self.checkers.failure.take() {
            self.trace.line(self.now, format_args!("FAILED {}", failure.text));
            return Err(Box::new(Failed {
                seed: self.seed,
                at: self.now,
                text: failure.text,
                trace: self.trace.shortened(&failure.word),
            }));
        }
        Ok(Report {
            hash: self.trace.hash(),
            steps: self.trace.count,
            sent: figures.0,
            confirmed: figures.1,
            ended: figures.2,
            starts: self.starts,
            at: self.now,
        })
    }

    /// Lets the next thing happen; false when the history is over.
    fn step(&mut self) -> bool {
        let event = self.heap.first_key_value().map(|((at, _), _)| *at);
        let timer = self.node.as_ref().and_then(Node::poll_timeout).map(|at| at.max(self.now));
        let next = [event, timer].into_iter().flatten().min();
        let Some(next) = next else { return false };
        if self.until.is_some_and(|until| next > until) {
            return false;
        }
        self.steps_at_once = if next > self.now { 0 } else { self.steps_at_once + 1 };
        if self.steps_at_once > STEPS_AT_ONCE_MAX {
            self.checkers
                .fail(next, format_args!("turns in a circle; last event {event:?}, timer {timer:?}"));
        }
        self.now = next;
        if event == Some(next) {
            if let Some((_, event)) = self.heap.pop_first() {
                self.handle(event);
            }
        } else {
            self.handle_node_timeout();
        }
        self.check_broker();
        !self.is_over()
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::ToServer(link) => self.pump_link(link),
            Event::ToClient(link) => self.client_reads(link),
            Event::Hop(conn) => self.hop(conn),
            Event::Disk => self.disk_done(),
            Event::Client(client) => self.client_acts(client),
            Event::ServerTold(link) => self.tell_server(link),
            Event::ClientTold(link) => self.tell_client(link),
            Event::Fault => self.fault(),
            Event::Start => self.start(),
            Event::Stop => self.stop_further(),
            Event::DiskFreed => {
                self.note(format_args!("disk has room again"));
                self.disk.bound(None);
            }
            Event::Quiet => self.begin_quiet(),
        }
    }

    /// Quiet time: nothing fails any more, broken connections are reset, everybody but those who empty the
    /// queues goes.
    fn begin_quiet(&mut self) {
        self.note(format_args!("quiet"));
        self.is_quiet = true;
        self.disk.bound(None);
        for index in 0..self.clients.len() {
            self.clients[index].sleeps_until = self.now;
            self.client_ends(index);
            self.clients[index].part = Part::Producer { left: 0 };
        }
        for link in 0..self.links.len() {
            if self.links[link].is_broken() {
                self.at(Duration::from_millis(1), Event::ServerTold(link));
            }
        }
        for queue in 0..self.plan.queues {
            self.add_client(Part::Drainer { queue });
        }
        // The slowest path: a delivery in a dead connection's hands, swept, redelivered, more than once.
        self.ends_at = self.now + 6 * self.plan.ack_timeout + Duration::from_secs(60);
    }

    /// Over when every queue is empty in quiet time, or when it should be.
    fn is_over(&mut self) -> bool {
        let live = self.node.as_ref().map_or(u64::MAX, |node| node.broker.stats().live);
        let is_late = self.now >= self.ends_at;
        let is_done = self.is_quiet && live == 0 && self.now + Duration::from_secs(20) > self.ends_at;
        if !is_done && !is_late {
            return false;
        }
        self.checkers.finished(live);
        true
    }

    pub(crate) fn add_client(&mut self, part: Part) {
        let index = self.clients.len();
        self.clients.push(Client::new(index as u64, part));
        let wait = self.random.millis(1, 500);
        self.at(wait, Event::Client(index));
    }

    pub(crate) fn at(&mut self, wait: Duration, event: Event) {
        self.at_instant(self.now + wait, event);
    }

    pub(crate) fn at_instant(&mut self, at: Instant, event: Event) {
        self.next_event += 1;
        self.heap.insert((at, self.next_event), event);
    }

    pub(crate) fn clock(&self) -> Now {
        let wall_ms = self.wall_ms + self.now.as_nanos() / 1_000_000;
        Now { monotonic: self.now, wall: Timestamp::from_millis(wall_ms) }
    }

    pub(crate) fn note(&mut self, text: std::fmt::Arguments<'_>) {
        self.trace.line(self.now, text);
    }

    /// A client and what it may touch.
    pub(crate) fn with_client<R>(
        &mut self,
        index: usize,
        f: impl FnOnce(&mut Client, &mut Surroundings<'_>) -> R,
    ) -> R {
        let mut around = Surroundings {
            now: self.now,
            random: &mut self.random,
            plan: &self.plan,
            checkers: &mut self.checkers,
            is_quiet: self.is_quiet,
        };
        f(&mut self.clients[index], &mut around)
    }

    /// A failed broker ends the process, as the server does.
    fn check_broker(&mut self) {
        let failure = self.node.as_ref().and_then(|node| node.broker.failure()).map(ToString::to_string);
        if let Some(failure) = failure {
            self.note(format_args!("broker failed: {failure}"));
            self.crash(self.plan.survives_power_cuts());
        }
    }

    /// Starts the process: recovery, and room for connections.
    fn start(&mut self) {
        if self.node.is_some() {
            return;
        }
        let settings = berth_broker::Settings {
            log: berth_log::Settings {
                fsync: self.plan.fsync,
                segment_bytes: self.plan.segment_bytes,
                secret: self.seed,
                ..berth_log::Settings::default()
            },
            cache_bytes: 64 * 1024,
            index_bytes: 64 * 1024,
            ..berth_broker::Settings::default()
        };
        let is_doomed = std::mem::take(&mut self.is_recovery_doomed);
        if is_doomed {
            let calls = self.disk.storage.calls() + self.random.between(1, 6);
            self.disk.storage.crash_at(calls);
        }
        let now = self.clock();
        match Broker::open(&mut self.disk.storage, settings, now) {
            Ok((broker, recovered)) => {
                self.starts += 1;
                self.note(format_args!("started {recovered:?}"));
                self.node = Some(Node { broker, conns: BTreeMap::new(), stopping: Stopping::No });
                self.run_broker();
                if self.disk.storage.is_down() {
                    self.crash(self.plan.survives_power_cuts());
                }
            }
            Err(error) => {
                self.note(format_args!("recovery failed: {error}"));
                let is_excused = is_doomed || self.disk.is_bounded || self.disk.is_error_planned;
                if !is_excused {
                    self.checkers.fail("recovery", format_args!("failed: {error}"));
                }
                if self.plan.survives_power_cuts() {
                    self.disk.cut_power_in_recovery(&mut self.random);
                } else {
                    self.disk.kill(&mut self.random);
                }
                self.at(Duration::from_millis(500), Event::Start);
            }
        }
    }
}
