//! A broker, its disk and its clock, driven by hand.

use std::sync::Arc;
use std::time::Duration;

use berth_broker::{Broker, Recovered, Settings};
use berth_engine::port::{Completion, NackCause, Operation, Refusal, Reserved, Stored};
use berth_log::execute;
use berth_log::sim::SimStorage;
use berth_types::{
    ChannelName, ConnectionId, Destination, Encoding, Envelope, Instant, Message, MessageId, Now, OpId,
    Pattern, Ranges, Seq, SubId, Timestamp, TxnId,
};
use bytes::Bytes;

pub(crate) type Answer = (ConnectionId, Option<OpId>, Completion);

pub(crate) struct Bench {
    pub(crate) disk: SimStorage,
    pub(crate) broker: Broker,
    pub(crate) recovered: Recovered,
    pub(crate) settings: Settings,
    pub(crate) now: Now,
    pub(crate) answers: Vec<Answer>,
    /// Storage operations so far.
    pub(crate) steps: u64,
    next_op: u64,
}

impl Bench {
    pub(crate) fn new() -> Self {
        Self::with(small(), SimStorage::new())
    }

    pub(crate) fn with(settings: Settings, mut disk: SimStorage) -> Self {
        let wall = Timestamp::from_millis(1_700_000_000_000);
        let now = Now { monotonic: Instant::ZERO + Duration::from_secs(1), wall };
        let (broker, recovered) = Broker::open(&mut disk, settings.clone(), now).unwrap();
        let mut bench =
            Self { disk, broker, recovered, settings, now, answers: Vec::new(), steps: 0, next_op: 0 };
        bench.run();
        bench
    }

    /// The process ends at once; what was written is still there.
    pub(crate) fn kill(mut self) -> Self {
        self.disk.crash(&mut berth_log::sim::keep_all);
        Self::with(self.settings, self.disk)
    }

    /// The process ends in order.
    pub(crate) fn restart(mut self) -> Self {
        self.broker.close(self.now);
        self.run();
        assert!(self.broker.is_closed());
        Self::with(self.settings, self.disk)
    }

    pub(crate) fn submit(&mut self, from: ConnectionId, operation: Operation) -> OpId {
        self.next_op += 1;
        let op = OpId::new(self.next_op);
        self.broker.submit(self.now, from, op, operation);
        op
    }

    /// One storage operation, if there is one.
    pub(crate) fn step(&mut self) -> bool {
        self.collect();
        let Some(op) = self.broker.poll_storage(self.now) else { return false };
        self.steps += 1;
        let stored = execute(&mut self.disk, op);
        self.broker.handle_stored(self.now, stored);
        self.collect();
        true
    }

    /// Until nothing is left to do, short waits of the journal included.
    pub(crate) fn run(&mut self) {
        let mut steps = 0;
        loop {
            while self.step() {
                steps += 1;
                assert!(steps < 10_000, "never quiet");
            }
            steps += 1;
            assert!(steps < 10_000, "never quiet");
            let soon = self.now.monotonic + Duration::from_millis(20);
            match self.broker.poll_timeout() {
                Some(at) if at <= soon => {
                    self.pass(at.saturating_since(self.now.monotonic).max(Duration::from_millis(1)));
                }
                _ => return,
            }
        }
    }

    pub(crate) fn pass(&mut self, time: Duration) {
        self.now.monotonic = self.now.monotonic + time;
        self.now.wall = self.now.wall + time;
        self.broker.handle_timeout(self.now);
    }

    pub(crate) fn collect(&mut self) {
        while let Some(answer) = self.broker.poll() {
            self.answers.push(answer);
        }
    }

    /// Takes the answers to an operation.
    pub(crate) fn answers_to(&mut self, op: OpId) -> Vec<Completion> {
        self.run();
        let (mine, rest) =
            std::mem::take(&mut self.answers).into_iter().partition(|(_, id, _)| *id == Some(op));
        self.answers = rest;
        let mine: Vec<Answer> = mine;
        mine.into_iter().map(|(_, _, completion)| completion).collect()
    }

    pub(crate) fn answer(&mut self, from: ConnectionId, operation: Operation) -> Completion {
        let op = self.submit(from, operation);
        let mut answers = self.answers_to(op);
        assert_eq!(answers.len(), 1, "{answers:?}");
        answers.remove(0)
    }

    pub(crate) fn attach(&mut self, from: ConnectionId, queue: &str) -> SubId {
        match self.answer(from, Operation::Attach { channel: name(queue) }) {
            Completion::Opened { sub, next_seq: None } => sub,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn publish(&mut self, queue: &str, bodies: impl IntoIterator<Item = u64>) -> Vec<Seq> {
        let batch = bodies.into_iter().map(|body| (to(queue), message(body, 20))).collect();
        published(self.answer(PRODUCER, Operation::Publish { batch, atomic: false }))
            .into_iter()
            .map(|stored| stored.unwrap().seq)
            .collect()
    }

    pub(crate) fn reserve(&mut self, from: ConnectionId, sub: SubId, max: u32) -> (TxnId, Vec<Reserved>) {
        match self.answer(from, reserve(sub, max)) {
            Completion::Reserved { txn, items } => (txn, items),
            other => panic!("{other:?}"),
        }
    }

    /// Every message of a queue in its order: body, receive count. Leaves the queue as it was.
    pub(crate) fn list(&mut self, queue: &str) -> Vec<(u64, u32)> {
        let from = ConnectionId::new(999);
        let sub = self.attach(from, queue);
        let mut found = Vec::new();
        let mut txns = Vec::new();
        loop {
            let op = self.submit(from, reserve(sub, 100));
            self.run();
            self.submit(from, Operation::Cancel { op });
            match self.answers_to(op).remove(0) {
                Completion::Reserved { txn, items } => {
                    for item in &items {
                        assert_eq!(item.redelivered, item.receive_count > 0);
                        found.push((body(&item.message), item.receive_count));
                    }
                    txns.push((txn, items.iter().map(|item| item.seq).collect::<Ranges>()));
                }
                Completion::Cancelled => break,
                other => panic!("{other:?}"),
            }
        }
        for (txn, release) in txns {
            let wish = Wish { release, ..Wish::default() };
            assert!(matches!(self.answer(from, wish.of(txn)), Completion::Settled));
        }
        assert!(matches!(self.answer(from, Operation::Unsubscribe { sub, forget: false }), Completion::Done));
        found
    }
}

/// A settlement in the making.
#[derive(Clone, Default)]
pub(crate) struct Wish {
    pub(crate) ack: Ranges,
    pub(crate) nack: Ranges,
    pub(crate) release: Ranges,
    pub(crate) reject: Ranges,
    pub(crate) cause: NackCause,
    pub(crate) confirm: bool,
}

impl Wish {
    pub(crate) fn of(self, txn: TxnId) -> Operation {
        let Self { ack, nack, release, reject, cause, confirm } = self;
        Operation::Settle { txn, ack, nack, release, reject, cause, confirm }
    }
}

pub(crate) fn ack(seqs: impl IntoIterator<Item = Seq>) -> Wish {
    Wish { ack: seqs.into_iter().collect(), confirm: true, ..Wish::default() }
}

pub(crate) fn nack(seqs: impl IntoIterator<Item = Seq>) -> Wish {
    Wish { nack: seqs.into_iter().collect(), confirm: true, ..Wish::default() }
}

pub(crate) fn published(completion: Completion) -> Vec<Result<Stored, Refusal>> {
    match completion {
        Completion::Published(results) => results,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn reserve(sub: SubId, max: u32) -> Operation {
    Operation::Reserve { sub, max, max_bytes: 1 << 20, hold: None }
}

pub(crate) fn name(queue: &str) -> ChannelName {
    ChannelName::parse(queue).unwrap()
}

pub(crate) fn to(queue: &str) -> Destination {
    Destination { pattern: Pattern::Queues, channel: name(queue) }
}

/// A message whose body names itself and has `bytes` bytes.
pub(crate) fn message(number: u64, bytes: usize) -> Arc<Message> {
    let mut body = number.to_le_bytes().to_vec();
    body.resize(bytes.max(8), number as u8);
    Arc::new(Message {
        id: MessageId::new(format!("m{number}")),
        envelope: Envelope::default(),
        encoding: Encoding::Plain,
        head: Bytes::from_static(b"head"),
        body: body.into(),
    })
}

pub(crate) fn body(message: &Message) -> u64 {
    let number = u64::from_le_bytes(message.body[..8].try_into().unwrap());
    assert!(message.body[8..].iter().all(|byte| *byte == number as u8), "a body is whole");
    assert_eq!(message.id.as_str(), format!("m{number}"));
    number
}

/// Small segments, cache and index, so that short histories meet their edges.
pub(crate) fn small() -> Settings {
    let log = berth_log::Settings { segment_bytes: 64 * 1024, ..berth_log::Settings::default() };
    Settings { log, cache_bytes: 64 * 1024, index_bytes: 64 * 1024, ..Settings::default() }
}

pub(crate) const PRODUCER: ConnectionId = ConnectionId::new(1);
pub(crate) const A: ConnectionId = ConnectionId::new(2);
pub(crate) const B: ConnectionId = ConnectionId::new(3);
