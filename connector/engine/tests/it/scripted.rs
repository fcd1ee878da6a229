//! A broker that does everything wrong that the port allows: it answers late, in any order, loses races,
//! refuses, goes away and takes back. It keeps a ledger of every reserved sequence and checks each
//! settlement against it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use berth_engine::port::{Completion, NackCause, Operation, Readiness, Refusal, Reserved, Stored};
use berth_types::{Encoding, Envelope, Message, MessageId, OpId, Seq, SubId, TxnId};
use bytes::Bytes;

/// What became of a reserved sequence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fate {
    Open,
    Ack,
    Nack(NackCause),
    Release,
    Reject,
    /// Taken back by the broker.
    Void,
}

#[derive(Debug)]
enum Waiting {
    Attach(String),
    Reserve { sub: SubId, max: u32, cancelled: bool },
    Settle { txn: TxnId, fates: Vec<(Seq, Fate)> },
    Publish(usize),
    Unsubscribe(SubId),
}

/// The broker. Everything it is given waits until [`Scripted::complete`] picks it.
#[derive(Default)]
pub(crate) struct Scripted {
    pub(crate) is_ready: bool,
    queue: BTreeMap<String, VecDeque<(u64, u32)>>,
    subs: BTreeMap<SubId, (OpId, String)>,
    waiting: Vec<(OpId, Waiting)>,
    /// Operations that can only end one way, because the broker was lost.
    doomed: VecDeque<(Option<OpId>, Completion)>,
    /// Every sequence ever reserved, the message in it, and what became of it.
    pub(crate) ledger: BTreeMap<(TxnId, Seq), (u64, Fate)>,
    /// Sequences in a settlement that has not been answered.
    in_flight: BTreeSet<(TxnId, Seq)>,
    /// Which reservation and sequence a message was last reserved under.
    pub(crate) reserved_as: BTreeMap<u64, (TxnId, Seq)>,
    channel_of: BTreeMap<TxnId, String>,
    terminal: BTreeSet<OpId>,
    next_message: u64,
    next_txn: u64,
    next_sub: u64,
    next_seq: u64,
}

impl Scripted {
    pub(crate) fn new() -> Self {
        Self { is_ready: true, ..Self::default() }
    }

    /// Puts a new message into a queue.
    pub(crate) fn produce(&mut self, channel: &str) {
        self.next_message += 1;
        self.queue.entry(channel.into()).or_default().push_back((self.next_message, 0));
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len() + self.doomed.len()
    }

    /// Which channel a live subscription consumes.
    pub(crate) fn channel(&self, sub: SubId) -> &str {
        &self.subs[&sub].1
    }

    /// How many messages are ready for the n-th subscription of the connection.
    pub(crate) fn ready(&self, index: usize) -> usize {
        let suffix = format!("-{index}");
        let channel = self.subs.values().map(|(_, channel)| channel).find(|name| name.ends_with(&suffix));
        let queue = self.queue.get(queue_of(channel.expect("the subscription is live")));
        queue.map_or(0, VecDeque::len)
    }

    pub(crate) fn submit(&mut self, op: OpId, operation: Operation) {
        let waiting = match operation {
            Operation::Attach { channel } => Waiting::Attach(channel.as_str().into()),
            Operation::Reserve { sub, max, max_bytes, .. } => {
                assert!(max >= 1 && max_bytes >= 1);
                assert!(!self.has_reserve(sub), "one reservation at a time");
                Waiting::Reserve { sub, max, cancelled: false }
            }
            Operation::Cancel { op } => {
                for (id, waiting) in &mut self.waiting {
                    if let (true, Waiting::Reserve { cancelled, .. }) = (*id == op, waiting) {
                        *cancelled = true;
                    }
                }
                return;
            }
            Operation::Settle { txn, ack, nack, release, reject, cause, .. } => {
                let kinds = [
                    (ack, Fate::Ack),
                    (nack, Fate::Nack(cause)),
                    (release, Fate::Release),
                    (reject, Fate::Reject),
                ];
                let fates: Vec<_> =
                    kinds.iter().flat_map(|(set, fate)| set.iter().map(|seq| (seq, *fate))).collect();
                assert!(!fates.is_empty(), "an empty settlement");
                for (seq, _) in &fates {
                    let (_, fate) = self.ledger.get(&(txn, *seq)).expect("a sequence of this reservation");
                    assert!(matches!(fate, Fate::Open | Fate::Void), "{txn} {seq} was {fate:?} already");
                    assert!(self.in_flight.insert((txn, *seq)), "{txn} {seq} is in two settlements");
                }
                Waiting::Settle { txn, fates }
            }
            Operation::Publish { batch, atomic } => {
                assert!(!atomic);
                Waiting::Publish(batch.len())
            }
            Operation::Unsubscribe { sub, .. } => {
                assert!(!self.has_reserve(sub), "unsubscribed with a reservation waiting");
                Waiting::Unsubscribe(sub)
            }
            other => panic!("not used by queues: {other:?}"),
        };
        self.waiting.push((op, waiting));
    }

    /// Whether a reservation waits that nobody has cancelled.
    fn has_reserve(&self, of: SubId) -> bool {
        let of_sub = |w: &Waiting| matches!(w, Waiting::Reserve { sub, cancelled: false, .. } if *sub == of);
        self.waiting.iter().any(|(_, waiting)| of_sub(waiting))
    }

    /// Answers one of the operations that wait, if it can be answered: `pick` says which, `odds` how.
    pub(crate) fn complete(&mut self, pick: usize, odds: u8) -> Option<(Option<OpId>, Completion)> {
        let count = self.waiting();
        if count == 0 {
            return None;
        }
        let place = pick % count;
        if place < self.doomed.len() {
            let (op, completion) = self.doomed.remove(place)?;
            return Some(self.check(op, completion));
        }
        let (op, waiting) = self.waiting.remove(place - self.doomed.len());
        match self.answer(op, waiting, odds) {
            Ok(completion) => Some(self.check(Some(op), completion)),
            Err(waiting) => {
                self.waiting.push((op, waiting));
                None
            }
        }
    }

    /// Goes away: everything reserved is void, everything asked for will be refused, in any order.
    pub(crate) fn go_away(&mut self) -> Completion {
        self.is_ready = false;
        let open: Vec<_> =
            self.ledger.iter().filter(|(_, (_, fate))| *fate == Fate::Open).map(|(k, _)| *k).collect();
        for key in open {
            self.take_back(key);
        }
        for (op, waiting) in std::mem::take(&mut self.waiting) {
            let completion = match waiting {
                Waiting::Settle { txn, fates } => {
                    fates.iter().for_each(|(seq, _)| assert!(self.in_flight.remove(&(txn, *seq))));
                    Completion::Refused(Refusal::BrokerNotReady)
                }
                Waiting::Unsubscribe(_) => Completion::Done,
                _ => Completion::Refused(Refusal::BrokerNotReady),
            };
            self.doomed.push_back((Some(op), completion));
        }
        for (sub, (op, _)) in std::mem::take(&mut self.subs) {
            let ended = Completion::SubEnded { sub, reason: Refusal::BrokerNotReady };
            self.doomed.push_back((Some(op), ended));
        }
        Completion::Ready(Readiness::NotReady("scripted"))
    }

    pub(crate) fn come_back(&mut self) -> Completion {
        self.is_ready = true;
        Completion::Ready(Readiness::Ready)
    }

    /// Takes one reservation back.
    pub(crate) fn lose(&mut self, pick: usize) -> Option<Completion> {
        let open: Vec<_> = self
            .ledger
            .iter()
            .filter(|(key, (_, fate))| *fate == Fate::Open && !self.in_flight.contains(*key))
            .map(|(k, _)| k.0)
            .collect();
        let txn = *open.get(pick % open.len().max(1))?;
        // Only whole reservations of which nothing is being settled: the rest of the story is `go_away`.
        if self.in_flight.iter().any(|(t, _)| *t == txn) {
            return None;
        }
        let keys: Vec<_> = self
            .ledger
            .iter()
            .filter(|(key, (_, fate))| key.0 == txn && *fate == Fate::Open)
            .map(|(k, _)| *k)
            .collect();
        keys.into_iter().for_each(|key| self.take_back(key));
        Some(Completion::Lost { txn })
    }

    fn take_back(&mut self, key: (TxnId, Seq)) {
        if let Some((message, fate)) = self.ledger.get_mut(&key) {
            *fate = Fate::Void;
            let channel = queue_of(&self.channel_of[&key.0]);
            self.queue.entry(channel.into()).or_default().push_back((*message, 1));
        }
    }

    fn check(&mut self, op: Option<OpId>, completion: Completion) -> (Option<OpId>, Completion) {
        if let Some(op) = op
            && !matches!(completion, Completion::Opened { .. })
        {
            assert!(self.terminal.insert(op), "{op} has two terminal completions");
        }
        (op, completion)
    }

    fn answer(&mut self, op: OpId, waiting: Waiting, odds: u8) -> Result<Completion, Waiting> {
        match waiting {
            Waiting::Attach(_) if odds < 16 => Ok(Completion::Refused(Refusal::NotAuthorized)),
            Waiting::Attach(channel) => {
                self.next_sub += 1;
                let sub = SubId::new(self.next_sub);
                self.subs.insert(sub, (op, channel));
                Ok(Completion::Opened { sub, next_seq: None })
            }
            Waiting::Publish(n) => Ok(Completion::Published(
                (0..n)
                    .map(|i| {
                        let is_full = odds < 64 && i % 2 == 1;
                        if is_full { Err(Refusal::QueueFull) } else { Ok(Stored { seq: Seq::new(1) }) }
                    })
                    .collect(),
            )),
            Waiting::Unsubscribe(sub) => {
                if let Some((op, _)) = self.subs.remove(&sub) {
                    assert!(self.terminal.insert(op), "{op} has two terminal completions");
                }
                Ok(Completion::Done)
            }
            Waiting::Reserve { cancelled: true, .. } if odds < 128 => Ok(Completion::Cancelled),
            Waiting::Reserve { sub, max, cancelled } => self.answer_reserve(sub, max, cancelled, odds),
            Waiting::Settle { txn, fates } => Ok(self.answer_settle(txn, &fates, odds)),
        }
    }

    fn answer_reserve(
        &mut self,
        sub: SubId,
        max: u32,
        cancelled: bool,
        odds: u8,
    ) -> Result<Completion, Waiting> {
        let Some((_, channel)) = self.subs.get(&sub) else {
            return Ok(Completion::Refused(Refusal::Unknown));
        };
        let queue = self.queue.entry(queue_of(channel).into()).or_default();
        if queue.is_empty() {
            if cancelled {
                return Ok(Completion::Cancelled);
            }
            return Err(Waiting::Reserve { sub, max, cancelled });
        }
        self.next_txn += 1;
        let txn = TxnId::new(self.next_txn);
        self.channel_of.insert(txn, channel.clone());
        let count = (usize::from(odds) % 7 + 1).min(max as usize).min(queue.len());
        let mut items = Vec::new();
        for (id, receive_count) in queue.drain(..count) {
            // Gaps between sequences, as when other consumers take a share.
            self.next_seq += 1 + u64::from(odds & 1);
            let seq = Seq::new(self.next_seq);
            self.ledger.insert((txn, seq), (id, Fate::Open));
            self.reserved_as.insert(id, (txn, seq));
            items.push(Reserved {
                seq,
                message: message(id),
                receive_count,
                redelivered: receive_count > 0,
                held_until: None,
            });
        }
        Ok(Completion::Reserved { txn, items })
    }

    fn answer_settle(&mut self, txn: TxnId, fates: &[(Seq, Fate)], odds: u8) -> Completion {
        fates.iter().for_each(|(seq, _)| assert!(self.in_flight.remove(&(txn, *seq))));
        if fates.iter().any(|(seq, _)| self.ledger[&(txn, *seq)].1 == Fate::Void) {
            return Completion::Refused(Refusal::Unknown);
        }
        if odds < 48 {
            return Completion::Refused(Refusal::StorageFull);
        }
        for (seq, fate) in fates {
            let Some((message, now)) = self.ledger.get_mut(&(txn, *seq)) else { continue };
            *now = *fate;
            let queue = self.queue.entry(queue_of(&self.channel_of[&txn]).into()).or_default();
            match fate {
                Fate::Nack(_) => queue.push_back((*message, 1)),
                Fate::Release => queue.push_front((*message, 0)),
                _ => {}
            }
        }
        Completion::Settled
    }
}

/// Channels `jobs-1`, `jobs-2` are two names of one queue, so that the model knows whose a subscription is.
fn queue_of(channel: &str) -> &str {
    channel.split('-').next().unwrap_or(channel)
}

pub(crate) fn message(id: u64) -> Arc<Message> {
    Arc::new(Message {
        id: MessageId::new(id.to_string()),
        envelope: Envelope::default(),
        encoding: Encoding::Plain,
        head: Bytes::new(),
        body: Bytes::from_static(b"x"),
    })
}
