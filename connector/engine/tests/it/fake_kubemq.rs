//! First proof of the port: a back end on a KubeMQ server (a `Get` that blocks, settlements without an
//! answer, one request at a time) under cancel, detach and disconnect, driven by the real engine. Whatever
//! happens in whatever order: one terminal completion per operation, nothing captured by a transaction that
//! nobody reads, nothing lost, and nothing whose settlement was confirmed comes back.
//!
//! What the port asks of such a back end, and why it fits, stands in `docs/adr/0004-port.md`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::task::Waker;
use std::time::Duration;

use berth_engine::port::{
    Backend, Capabilities, Capability, Completion, Operation, Readiness, Refusal, Reserved,
};
use berth_engine::{
    Correlation, End, Engine, Event, Mode, Settings, Settlement, Source, Subscribe, SubscriptionKey,
};
use berth_types::{ChannelName, DeliveryId, Instant, Now, OpId, Outcome, Seq, SubId, TxnId};
use proptest::prelude::*;

use crate::kubemq_server::{Request, Response, Server, StreamId};
use crate::scripted::message;

/// The shortest wait of a `Get` that the server accepts.
const GET_WAIT: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Get {
    stream: StreamId,
    /// Who waits for it; nobody after a cancel: its answer is given back.
    op: Option<OpId>,
    max: u32,
}

#[derive(Debug)]
struct Consumer {
    attach: OpId,
    /// Streams on which no transaction is open and no `Get` pending.
    idle: Vec<StreamId>,
    get: Option<Get>,
    /// Unsubscribed; it stays until its last `Get` has answered.
    is_leaving: bool,
}

#[derive(Debug)]
struct Open {
    sub: SubId,
    stream: StreamId,
    server_txn: u64,
    unsettled: BTreeSet<Seq>,
    /// To be released; the server can only release all that is left, so it waits for the others.
    released: BTreeSet<Seq>,
}

/// The back end. A transaction keeps the stream that its `Get` came by to itself, so that a later `Get`
/// never stands before its settlements.
struct FakeKubeMq {
    server: Server,
    is_ready: bool,
    max_items: u32,
    out: VecDeque<(Option<OpId>, Completion)>,
    consumers: BTreeMap<SubId, Consumer>,
    txns: BTreeMap<TxnId, Open>,
    /// Confirms that wait for the answer that proves them, per stream in order.
    proofs: BTreeMap<StreamId, VecDeque<OpId>>,
    next_sub: SubId,
    next_txn: TxnId,
    submitted: BTreeSet<OpId>,
    terminal: BTreeSet<OpId>,
}

impl Backend for FakeKubeMq {
    fn submit(&mut self, _now: Now, op: OpId, operation: Operation) {
        if !matches!(operation, Operation::Cancel { .. }) {
            assert!(self.submitted.insert(op), "{op} is new");
        }
        if !self.is_ready && !matches!(operation, Operation::Cancel { .. } | Operation::Unsubscribe { .. }) {
            return self.answer(op, Completion::Refused(Refusal::BrokerNotReady));
        }
        match operation {
            Operation::Attach { .. } => {
                self.next_sub = self.next_sub.next();
                let consumer = Consumer { attach: op, idle: Vec::new(), get: None, is_leaving: false };
                self.consumers.insert(self.next_sub, consumer);
                self.answer(op, Completion::Opened { sub: self.next_sub, next_seq: None });
            }
            Operation::Reserve { sub, max, .. } => self.reserve(op, sub, max),
            Operation::Cancel { op } => self.cancel(op),
            Operation::Settle { txn, ack, nack, release, reject, confirm, .. } => {
                let done = ack.iter().chain(reject.iter()).collect();
                self.settle(op, txn, done, nack.iter().collect(), release.iter().collect(), confirm);
            }
            Operation::Unsubscribe { sub, .. } => self.unsubscribe(op, sub),
            other => panic!("not used: {other:?}"),
        }
    }

    fn poll(&mut self, _now: Now) -> Option<(Option<OpId>, Completion)> {
        self.out.pop_front()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    fn set_waker(&mut self, _waker: &Waker) {}

    fn capabilities(&self) -> Capabilities {
        Capabilities::of(&[Capability::Queues, Capability::Release, Capability::ConfirmedSettlement])
    }
}

impl FakeKubeMq {
    fn new(max_items: u32) -> Self {
        Self {
            server: Server::default(),
            is_ready: true,
            max_items,
            out: VecDeque::new(),
            consumers: BTreeMap::new(),
            txns: BTreeMap::new(),
            proofs: BTreeMap::new(),
            next_sub: SubId::default(),
            next_txn: TxnId::default(),
            submitted: BTreeSet::new(),
            terminal: BTreeSet::new(),
        }
    }

    fn answer(&mut self, op: OpId, completion: Completion) {
        if !matches!(completion, Completion::Opened { .. }) {
            assert!(self.terminal.insert(op), "{op} has two terminal completions");
        }
        self.out.push_back((Some(op), completion));
    }

    fn reserve(&mut self, op: OpId, sub: SubId, max: u32) {
        let Some(consumer) = self.consumers.get_mut(&sub).filter(|consumer| !consumer.is_leaving) else {
            return self.answer(op, Completion::Refused(Refusal::Unknown));
        };
        if let Some(get) = &mut consumer.get {
            // One that nobody waits for is still under way: its answer is for whoever asks next.
            assert_eq!(get.op, None, "one reservation at a time");
            (get.op, get.max) = (Some(op), max);
            return;
        }
        let stream = consumer.idle.pop().unwrap_or_else(|| self.server.open_stream());
        consumer.get = Some(Get { stream, op: Some(op), max });
        let max = max.min(self.max_items) as usize;
        self.server.send(stream, Request::Get { max, wait: GET_WAIT });
    }

    fn cancel(&mut self, op: OpId) {
        let waits = self.consumers.values_mut().filter_map(|consumer| consumer.get.as_mut());
        if let Some(get) = waits.into_iter().find(|get| get.op == Some(op)) {
            get.op = None;
            self.answer(op, Completion::Cancelled);
        }
    }

    fn settle(
        &mut self,
        op: OpId,
        txn: TxnId,
        done: Vec<Seq>,
        nack: Vec<Seq>,
        release: Vec<Seq>,
        confirm: bool,
    ) {
        let Some(open) = self.txns.get_mut(&txn) else {
            return self.answer(op, Completion::Refused(Refusal::Unknown));
        };
        let (stream, server_txn, sub) = (open.stream, open.server_txn, open.sub);
        done.iter().chain(&nack).for_each(|seq| assert!(open.unsettled.remove(seq), "settled once"));
        open.released.extend(release);
        let numbers = |seqs: &[Seq]| seqs.iter().map(|seq| seq.get()).collect::<Vec<_>>();
        if !done.is_empty() {
            self.server.send(stream, Request::AckRange { txn: server_txn, seqs: numbers(&done) });
        }
        if !nack.is_empty() {
            self.server.send(stream, Request::NackRange { txn: server_txn, seqs: numbers(&nack) });
        }
        if open.unsettled.iter().all(|seq| open.released.contains(seq)) {
            if !open.unsettled.is_empty() {
                self.server.send(stream, Request::Close { txn: server_txn });
            }
            self.txns.remove(&txn);
            match self.consumers.get_mut(&sub).filter(|consumer| !consumer.is_leaving) {
                Some(consumer) => consumer.idle.push(stream),
                None if !confirm => self.server.send(stream, Request::ActiveOffsets),
                None => {}
            }
        }
        if confirm {
            self.server.send(stream, Request::ActiveOffsets);
            self.proofs.entry(stream).or_default().push_back(op);
        } else {
            self.answer(op, Completion::Settled);
        }
    }

    fn unsubscribe(&mut self, op: OpId, sub: SubId) {
        if let Some(consumer) = self.consumers.get_mut(&sub) {
            consumer.is_leaving = true;
            assert!(self.terminal.insert(consumer.attach), "an attach ends once");
            if consumer.get.is_none() {
                self.consumers.remove(&sub);
            }
        }
        self.answer(op, Completion::Done);
    }

    /// Lets one stream move on: the server does a request, the back end reads an answer.
    fn pump(&mut self, now: Instant, pick: usize) {
        let streams = self.server.streams();
        let Some(stream) = streams.get(pick % streams.len().max(1)).copied() else { return };
        self.server.serve(now, stream);
        match self.server.receive(stream) {
            Some(Response::Got { txn, items }) => self.got(stream, txn, items),
            Some(Response::Offsets) => {
                if let Some(op) = self.proofs.get_mut(&stream).and_then(VecDeque::pop_front) {
                    self.answer(op, Completion::Settled);
                }
            }
            None => {}
        }
    }

    fn got(&mut self, stream: StreamId, server_txn: u64, items: Vec<crate::kubemq_server::Stored>) {
        let found = self
            .consumers
            .iter_mut()
            .find(|(_, consumer)| consumer.get.as_ref().is_some_and(|get| get.stream == stream));
        let Some((sub, consumer)) = found else { return };
        let (sub, get) = (*sub, consumer.get.take());
        let Some(get) = get else { return };
        let is_wanted = !items.is_empty() && items.len() <= get.max as usize;
        match get.op {
            Some(op) if is_wanted => {
                self.next_txn = self.next_txn.next();
                let unsettled = items.iter().map(|stored| Seq::new(stored.seq)).collect();
                let open = Open { sub, stream, server_txn, unsettled, released: BTreeSet::new() };
                self.txns.insert(self.next_txn, open);
                let items = items.into_iter().map(reserved).collect();
                self.answer(op, Completion::Reserved { txn: self.next_txn, items });
            }
            op => {
                // Nobody reads it: give it back before anything else is asked on this stream.
                self.server.send(stream, Request::Close { txn: server_txn });
                if consumer.is_leaving {
                    self.consumers.remove(&sub);
                } else {
                    consumer.idle.push(stream);
                    if let Some(op) = op {
                        self.reserve(op, sub, get.max);
                    }
                }
            }
        }
    }

    /// The connection to the server breaks, or the server goes down in order.
    fn cut(&mut self) {
        self.is_ready = false;
        self.server.streams().into_iter().for_each(|stream| self.server.drop_stream(stream));
        for (sub, consumer) in std::mem::take(&mut self.consumers) {
            let refused = || Completion::Refused(Refusal::BrokerNotReady);
            if let Some(op) = consumer.get.and_then(|get| get.op) {
                self.answer(op, refused());
            }
            if !consumer.is_leaving {
                let reason = Refusal::BrokerNotReady;
                self.answer(consumer.attach, Completion::SubEnded { sub, reason });
            }
        }
        for op in std::mem::take(&mut self.proofs).into_values().flatten() {
            self.answer(op, Completion::Refused(Refusal::BrokerNotReady));
        }
        self.txns.clear();
        self.out.push_back((None, Completion::Ready(Readiness::NotReady("cut"))));
    }

    fn heal(&mut self) {
        self.is_ready = true;
        self.out.push_back((None, Completion::Ready(Readiness::Ready)));
    }
}

fn reserved(stored: crate::kubemq_server::Stored) -> Reserved {
    Reserved {
        seq: Seq::new(stored.seq),
        message: message(stored.id),
        receive_count: stored.count,
        redelivered: stored.count > 0,
        held_until: None,
    }
}

#[derive(Clone, Debug)]
enum Step {
    Subscribe {
        window: u32,
    },
    /// Detach.
    Unsubscribe(u8),
    Produce(u8),
    Write(u8),
    Settle {
        pick: u8,
        outcome: u8,
        confirm: bool,
    },
    Pump {
        pick: u8,
        count: u8,
    },
    Advance(u16),
    /// Makes the engine cancel what it waits for, and ask again.
    Output {
        full: bool,
    },
    Cut,
    Heal,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        2 => (1u32..5).prop_map(|window| Step::Subscribe { window }),
        1 => any::<u8>().prop_map(Step::Unsubscribe),
        6 => (1u8..5).prop_map(Step::Produce),
        8 => (0u8..4).prop_map(Step::Write),
        8 => (any::<u8>(), 0u8..4, any::<bool>())
            .prop_map(|(pick, outcome, confirm)| Step::Settle { pick, outcome, confirm }),
        24 => (any::<u8>(), 1u8..12).prop_map(|(pick, count)| Step::Pump { pick, count }),
        8 => (0u16..1500).prop_map(Step::Advance),
        2 => any::<bool>().prop_map(|full| Step::Output { full }),
        1 => Just(Step::Cut),
        2 => Just(Step::Heal),
    ];
    prop::collection::vec(step, 10..150)
}

/// The engine on the back end, with a client that settles what it has got.
struct World {
    engine: Engine,
    backend: FakeKubeMq,
    now: Instant,
    keys: Vec<SubscriptionKey>,
    windows: BTreeMap<SubscriptionKey, usize>,
    buffer: VecDeque<DeliveryId>,
    written: BTreeMap<DeliveryId, u64>,
    unwritten: BTreeMap<DeliveryId, u64>,
    of: BTreeMap<DeliveryId, SubscriptionKey>,
    produced: u64,
    /// Messages that the client has accepted or rejected, ever.
    finished: BTreeSet<u64>,
    confirms: BTreeMap<Correlation, u64>,
    /// Messages whose end was confirmed.
    confirmed: BTreeSet<u64>,
}

impl World {
    fn new(max_items: u32) -> Self {
        let backend = FakeKubeMq::new(max_items);
        let settings = Settings { capabilities: backend.capabilities(), is_ready: true };
        Self {
            engine: Engine::new(settings),
            backend,
            now: Instant::ZERO,
            keys: Vec::new(),
            windows: BTreeMap::new(),
            buffer: VecDeque::new(),
            written: BTreeMap::new(),
            unwritten: BTreeMap::new(),
            of: BTreeMap::new(),
            produced: 0,
            finished: BTreeSet::new(),
            confirms: BTreeMap::new(),
            confirmed: BTreeSet::new(),
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Subscribe { window } if self.keys.len() < 4 => {
                let source = Source::Queue(ChannelName::parse("jobs").unwrap());
                let ack_timeout = Some(Duration::from_secs(5));
                let command = Subscribe { source, mode: Mode::Individual, window, ack_timeout };
                let key = self.engine.subscribe(self.now, command);
                self.keys.push(key);
                self.windows.insert(key, window as usize);
            }
            Step::Subscribe { .. } => {}
            Step::Unsubscribe(pick) => {
                if let Some(key) = self.keys.get(usize::from(pick) % self.keys.len().max(1)) {
                    self.engine.unsubscribe(self.now, *key);
                }
            }
            Step::Produce(count) => {
                for _ in 0..count {
                    self.produced += 1;
                    self.backend.server.produce(self.produced);
                }
            }
            Step::Write(count) => self.write(count),
            Step::Settle { pick, outcome, confirm } => self.settle(pick, outcome, confirm),
            Step::Pump { pick, count } => self.pump(usize::from(pick), count),
            Step::Advance(ms) => self.advance(Duration::from_millis(u64::from(ms))),
            Step::Output { full } => {
                let waiting = if full { usize::MAX } else { 0 };
                self.engine.handle_output_bytes(self.now, waiting);
            }
            Step::Cut if self.backend.is_ready => self.backend.cut(),
            Step::Heal if !self.backend.is_ready => self.backend.heal(),
            Step::Cut | Step::Heal => {}
        }
        self.drain();
    }

    fn write(&mut self, count: u8) {
        for _ in 0..count {
            let Some(delivery) = self.buffer.pop_front() else { break };
            if let Some(message) = self.unwritten.remove(&delivery) {
                self.written.insert(delivery, message);
            }
            self.engine.handle_written(self.now, delivery);
        }
        self.engine.handle_socket_progress(self.now);
    }

    fn settle(&mut self, pick: u8, outcome: u8, confirm: bool) {
        let ids: Vec<_> = self.written.keys().copied().collect();
        let Some(id) = ids.get(usize::from(pick) % ids.len().max(1)).copied() else { return };
        let outcome = [Outcome::Accepted, Outcome::Rejected, Outcome::Modified, Outcome::Released]
            [usize::from(outcome)];
        let message = self.written.remove(&id).unwrap();
        let ends = matches!(outcome, Outcome::Accepted | Outcome::Rejected);
        let correlation = Correlation(id.get());
        let answer = self.engine.settle(self.now, id, outcome, confirm.then_some(correlation));
        if answer != Settlement::Ignored && ends {
            self.finished.insert(message);
            if confirm {
                self.confirms.insert(correlation, message);
            }
        }
    }

    fn pump(&mut self, pick: usize, count: u8) {
        for i in 0..usize::from(count) {
            self.backend.pump(self.now, pick + i);
            self.drain();
        }
    }

    fn advance(&mut self, by: Duration) {
        self.now = self.now + by;
        self.backend.server.advance(self.now);
        if self.engine.poll_timeout().is_some_and(|at| at <= self.now) {
            self.engine.handle_timeout(self.now);
        }
    }

    fn drain(&mut self) {
        let now = Now { monotonic: self.now, ..Now::default() };
        loop {
            let mut withdrawn = Vec::new();
            while let Some(event) = self.engine.poll_event() {
                self.event(event, &mut withdrawn);
            }
            withdrawn.into_iter().for_each(|delivery| self.engine.handle_withdrawn(self.now, delivery));
            while let Some((op, operation)) = self.engine.poll_operation() {
                self.backend.submit(now, op, operation);
            }
            let Some((op, completion)) = self.backend.poll(now) else { break };
            self.engine.handle_completion(self.now, op, completion);
        }
    }

    fn event(&mut self, event: Event, withdrawn: &mut Vec<DeliveryId>) {
        match event {
            Event::Deliver { sub, delivery, message, .. } => {
                let id = message.id.as_str().parse().unwrap();
                let live = self.written.values().chain(self.unwritten.values()).any(|other| *other == id);
                assert!(!live, "two live deliveries of message {id}");
                self.unwritten.insert(delivery, id);
                self.buffer.push_back(delivery);
                self.of.insert(delivery, sub);
                let outstanding = self.written.keys().chain(self.unwritten.keys());
                let outstanding = outstanding.filter(|delivery| self.of[*delivery] == sub).count();
                assert!(outstanding <= self.windows[&sub], "window exceeded");
            }
            Event::Withdraw { delivery } => {
                self.buffer.retain(|other| *other != delivery);
                self.unwritten.remove(&delivery);
                withdrawn.push(delivery);
            }
            Event::Ended { delivery } => {
                self.written.remove(&delivery);
            }
            Event::Settled { correlation, result: Ok(()) } => {
                self.confirmed.extend(self.confirms.remove(&correlation));
            }
            _ => {}
        }
    }

    /// The client is gone; whatever the server still holds for it must come free by itself.
    fn end(&mut self) {
        self.engine.handle_end(self.now, End::Lost);
        self.written.clear();
        self.unwritten.clear();
        for round in 0..60 {
            self.step(Step::Heal);
            self.pump(round, 40);
            self.advance(Duration::from_millis(250));
        }
        assert!(self.engine.is_finished(), "{:?}", self.engine);
        let open: Vec<_> = self.backend.submitted.difference(&self.backend.terminal).collect();
        assert!(open.is_empty(), "operations without an end: {open:?}");
        assert_eq!(self.backend.server.captured(), 0, "captured by something that nobody reads");
        let ready = self.backend.server.ready();
        for message in 1..=self.produced {
            let is_acked = self.backend.server.acked.contains(&message);
            assert!(is_acked || ready.contains(&message), "message {message} is lost");
            assert!(!is_acked || self.finished.contains(&message), "message {message} was acked by nobody");
            let is_confirmed = self.confirmed.contains(&message);
            assert!(!is_confirmed || !ready.contains(&message), "message {message} came back");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn cancel_detach_and_disconnect_lose_and_capture_nothing(steps in steps(), max_items in 1u32..4) {
        let mut world = World::new(max_items);
        world.step(Step::Subscribe { window: 3 });
        for step in steps {
            world.step(step);
        }
        world.end();
    }
}
