//! A queue broker in memory, just enough for sessions: first in first out, reservations, nack to the tail,
//! release to the old place. It can be away, hold its confirms back, refuse, and it remembers every
//! settlement.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use berth_engine::port::{
    Capabilities, Capability, Completion, NackCause, Operation, Readiness, Refusal, Reserved, Stored,
};
use berth_types::{ChannelName, Message, OpId, Ranges, Seq, SubId, TxnId};

/// Which connection asks.
pub(crate) type Client = usize;

#[derive(Clone, Debug)]
struct Item {
    place: u64,
    message: Arc<Message>,
    receive_count: u32,
}

/// What a `Settle` asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Settled {
    pub(crate) txn: TxnId,
    pub(crate) ack: Vec<u64>,
    pub(crate) nack: Vec<u64>,
    pub(crate) release: Vec<u64>,
    pub(crate) reject: Vec<u64>,
    pub(crate) cause: NackCause,
}

#[derive(Debug)]
struct Waiting {
    client: Client,
    op: OpId,
    sub: SubId,
    max: u32,
}

#[derive(Debug, Default)]
pub(crate) struct Broker {
    is_away: bool,
    queues: BTreeMap<ChannelName, VecDeque<Item>>,
    consumers: BTreeMap<SubId, (Client, OpId, ChannelName)>,
    waiting: Vec<Waiting>,
    txns: BTreeMap<TxnId, (ChannelName, BTreeMap<Seq, Item>)>,
    next: u64,
    out: VecDeque<(Client, Option<OpId>, Completion)>,
    held: VecDeque<(Client, Option<OpId>, Completion)>,
    /// Confirms wait until [`Broker::release_confirms`].
    pub(crate) holds_confirms: bool,
    /// What publishes to a queue are answered with.
    pub(crate) refuses_publish: BTreeMap<String, Refusal>,
    /// What settlements are answered with.
    pub(crate) refuses_settle: Option<Refusal>,
    /// What attaching is answered with.
    pub(crate) refuses_attach: Option<Refusal>,
    pub(crate) settled: Vec<Settled>,
    /// Messages stored so far.
    pub(crate) stored: u64,
    /// Deliveries acked, most recent last: bodies.
    pub(crate) acked: Vec<String>,
}

impl Broker {
    pub(crate) fn capabilities() -> Capabilities {
        Capabilities::of(&[
            Capability::Queues,
            Capability::Release,
            Capability::AtomicCommit,
            Capability::ConfirmedSettlement,
        ])
    }

    pub(crate) fn is_ready(&self) -> bool {
        !self.is_away
    }

    /// Goes away or comes back; every connection is told.
    pub(crate) fn set_ready(&mut self, is_ready: bool, clients: usize) {
        self.is_away = !is_ready;
        if self.is_away {
            // What was reserved is late; the queue has it again.
            for (_, (channel, items)) in std::mem::take(&mut self.txns) {
                for mut item in items.into_values().rev() {
                    item.receive_count += 1;
                    self.queues.entry(channel.clone()).or_default().push_front(item);
                }
            }
        }
        let readiness = if is_ready { Readiness::Ready } else { Readiness::NotReady("test") };
        for client in 0..clients {
            self.out.push_back((client, None, Completion::Ready(readiness.clone())));
        }
        if self.is_away {
            // Every operation has its end.
            for waiting in std::mem::take(&mut self.waiting) {
                let refused = Completion::Refused(Refusal::BrokerNotReady);
                self.out.push_back((waiting.client, Some(waiting.op), refused));
            }
            for (sub, (client, op, _)) in std::mem::take(&mut self.consumers) {
                let ended = Completion::SubEnded { sub, reason: Refusal::BrokerNotReady };
                self.out.push_back((client, Some(op), ended));
            }
        }
    }

    /// Bodies that wait in a queue, in order.
    pub(crate) fn ready(&self, channel: &str) -> Vec<String> {
        let name = ChannelName::parse(channel).unwrap();
        self.queues.get(&name).into_iter().flatten().map(|item| text(&item.message)).collect()
    }

    /// Bodies that are reserved.
    pub(crate) fn reserved(&self) -> Vec<String> {
        self.txns.values().flat_map(|(_, items)| items.values()).map(|item| text(&item.message)).collect()
    }

    /// Live consumers.
    pub(crate) fn consumers(&self) -> usize {
        self.consumers.len()
    }

    pub(crate) fn release_confirms(&mut self) {
        self.holds_confirms = false;
        self.out.append(&mut self.held);
    }

    /// The oldest confirm that is held back goes out.
    pub(crate) fn release_one_confirm(&mut self) {
        self.out.extend(self.held.pop_front());
    }

    pub(crate) fn poll(&mut self) -> Option<(Client, Option<OpId>, Completion)> {
        self.out.pop_front()
    }

    pub(crate) fn submit(&mut self, client: Client, op: OpId, operation: Operation) {
        match operation {
            Operation::Attach { .. } | Operation::Publish { .. } | Operation::Settle { .. }
                if self.is_away =>
            {
                self.answer(client, op, Completion::Refused(Refusal::BrokerNotReady));
            }
            Operation::Attach { channel } => self.attach(client, op, channel),
            Operation::Publish { batch, .. } => {
                let results = batch
                    .into_iter()
                    .map(|(destination, message)| {
                        if let Some(refusal) = self.refuses_publish.get(destination.channel.as_str()) {
                            return Err(refusal.clone());
                        }
                        self.next += 1;
                        self.stored += 1;
                        let item = Item { place: self.next, message, receive_count: 0 };
                        self.queues.entry(destination.channel).or_default().push_back(item);
                        Ok(Stored { seq: Seq::new(self.next) })
                    })
                    .collect();
                self.confirm(client, op, Completion::Published(results));
            }
            Operation::Reserve { sub, max, .. } => self.waiting.push(Waiting { client, op, sub, max }),
            Operation::Cancel { op } => {
                if let Some(at) = self.waiting.iter().position(|w| w.client == client && w.op == op) {
                    self.waiting.remove(at);
                    self.answer(client, op, Completion::Cancelled);
                }
            }
            Operation::Settle { txn, ack, nack, release, reject, cause, confirm } => {
                self.settle(client, op, txn, [ack, nack, release, reject], cause, confirm);
            }
            Operation::Unsubscribe { sub, .. } => {
                if let Some((client, attach, _)) = self.consumers.remove(&sub) {
                    self.answer(client, attach, Completion::SubEnded { sub, reason: Refusal::Ended });
                }
                self.answer(client, op, Completion::Done);
            }
            other => panic!("not for queues: {other:?}"),
        }
        self.serve();
    }

    fn attach(&mut self, client: Client, op: OpId, channel: ChannelName) {
        if let Some(refusal) = self.refuses_attach.clone() {
            self.answer(client, op, Completion::Refused(refusal));
            return;
        }
        self.next += 1;
        let sub = SubId::new(self.next);
        self.consumers.insert(sub, (client, op, channel));
        self.answer(client, op, Completion::Opened { sub, next_seq: None });
    }

    fn settle(
        &mut self,
        client: Client,
        op: OpId,
        txn: TxnId,
        [ack, nack, release, reject]: [Ranges; 4],
        cause: NackCause,
        confirm: bool,
    ) {
        if let Some(refusal) = self.refuses_settle.clone() {
            self.answer(client, op, Completion::Refused(refusal));
            return;
        }
        let Some((channel, items)) = self.txns.get_mut(&txn) else {
            self.answer(client, op, Completion::Refused(Refusal::Unknown));
            return;
        };
        let seqs = |ranges: &Ranges| ranges.iter().map(Seq::get).collect::<Vec<_>>();
        self.settled.push(Settled {
            txn,
            ack: seqs(&ack),
            nack: seqs(&nack),
            release: seqs(&release),
            reject: seqs(&reject),
            cause,
        });
        let queue = self.queues.entry(channel.clone()).or_default();
        for seq in ack.iter().chain(reject.iter()) {
            let item = items.remove(&seq).expect("resolved once");
            if ack.contains(seq) {
                self.acked.push(text(&item.message));
            }
        }
        for seq in nack.iter() {
            let mut item = items.remove(&seq).expect("resolved once");
            item.receive_count += 1;
            self.next += 1;
            item.place = self.next;
            queue.push_back(item);
        }
        for seq in release.iter() {
            let item = items.remove(&seq).expect("resolved once");
            let at = queue.partition_point(|other| other.place < item.place);
            queue.insert(at, item);
        }
        if items.is_empty() {
            self.txns.remove(&txn);
        }
        if confirm {
            self.confirm(client, op, Completion::Settled);
        } else {
            self.answer(client, op, Completion::Settled);
        }
    }

    /// Hands out what waits, one reservation after the other.
    fn serve(&mut self) {
        let mut at = 0;
        while let Some(waiting) = self.waiting.get(at) {
            let Some((_, _, channel)) = self.consumers.get(&waiting.sub) else {
                let waiting = self.waiting.remove(at);
                self.answer(waiting.client, waiting.op, Completion::Refused(Refusal::Ended));
                continue;
            };
            let queue = self.queues.entry(channel.clone()).or_default();
            if queue.is_empty() {
                at += 1;
                continue;
            }
            let count = queue.len().min(waiting.max as usize);
            let items: Vec<Item> = queue.drain(..count).collect();
            self.next += 1;
            let txn = TxnId::new(self.next);
            let channel = channel.clone();
            let waiting = self.waiting.remove(at);
            let mut open = BTreeMap::new();
            let mut reserved = Vec::new();
            for (seq, item) in (1..).map(Seq::new).zip(items) {
                reserved.push(Reserved {
                    seq,
                    message: item.message.clone(),
                    receive_count: item.receive_count,
                    redelivered: item.receive_count > 0,
                    held_until: None,
                });
                open.insert(seq, item);
            }
            self.txns.insert(txn, (channel, open));
            self.answer(waiting.client, waiting.op, Completion::Reserved { txn, items: reserved });
        }
    }

    fn answer(&mut self, client: Client, op: OpId, completion: Completion) {
        self.out.push_back((client, Some(op), completion));
    }

    fn confirm(&mut self, client: Client, op: OpId, completion: Completion) {
        if self.holds_confirms {
            self.held.push_back((client, Some(op), completion));
        } else {
            self.answer(client, op, completion);
        }
    }
}

fn text(message: &Message) -> String {
    String::from_utf8_lossy(&message.body).into_owned()
}
