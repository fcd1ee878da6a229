//! The promises of `docs/delivery.md` as code. The ledger hears what passes between sessions and the
//! broker, what leaves through each socket, and what clients say and are told; the first thing that
//! contradicts a promise ends the history.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::time::Duration;

use berth_engine::port::{Completion, Operation, Refusal, Reserved};
use berth_types::{ConnectionId, Instant, OpId, Ranges, Seq, TxnId};

/// A settlement without a receipt may be lost with a crash if it is younger than this (and the barrier that
/// ran).
const UNSYNCED_MAX: Duration = Duration::from_millis(10);

/// A message by its producer, the producer's connection and its number there. Written at the start of every
/// body.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Key {
    pub(crate) producer: u64,
    pub(crate) session: u64,
    pub(crate) number: u64,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "m{}.{}.{};", self.producer, self.session, self.number)
    }
}

impl Key {
    /// Reads the key that a body begins with.
    pub(crate) fn read(body: &[u8]) -> Option<Self> {
        let end = body.iter().position(|byte| *byte == b';')?;
        let text = std::str::from_utf8(body.get(1..end)?).ok()?;
        let mut numbers = text.split('.').map(str::parse);
        let mut next = || numbers.next()?.ok();
        Some(Self { producer: next()?, session: next()?, number: next()? })
    }
}

/// What is to become of a delivery that is being settled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    Ended,
    Nacked,
    Released,
}

/// One sequence of a settlement.
type Named = (Key, TxnId, Seq, Fate);

#[derive(Clone, Copy, Debug)]
struct Live {
    conn: ConnectionId,
    txn: TxnId,
    seq: Seq,
    /// Named in a settlement that the broker has not answered.
    is_resolving: bool,
}

#[derive(Clone, Copy, Debug)]
struct Ended {
    life: u64,
    at: Instant,
    /// It was old enough before the crash to be on the disk.
    is_durable: bool,
}

/// Everything known about one message.
#[derive(Debug, Default)]
struct Fact {
    is_confirmed: bool,
    reservations: u64,
    nacks: u64,
    /// Deliveries whose last byte has left.
    written: u64,
    live: Option<Live>,
    ended: Option<Ended>,
    /// A settlement that ended it was under way when the process died.
    is_end_open: bool,
    /// Connections on which the client has accepted or discarded it.
    done_by: BTreeSet<ConnectionId>,
    /// The client was told that its accept or discard stands.
    is_end_receipted: bool,
}

/// What left through one socket.
#[derive(Debug, Default)]
struct Wire {
    is_auto: bool,
    /// The broker has said that it is gone: what is settled from then on is late.
    is_void: bool,
    /// Reserved and not seen on the wire, in order.
    expected: VecDeque<Key>,
    /// By message-id: which message, in which subscription, when its last byte left, dead before it did.
    written: BTreeMap<String, Written>,
    windows: BTreeMap<String, usize>,
}

/// A delivery whose last byte has left.
#[derive(Clone, Debug)]
pub(crate) struct Written {
    pub(crate) key: Key,
    pub(crate) subscription: String,
    pub(crate) at: Instant,
    /// The peer took no byte of it for so long that it was nacked before it was whole.
    pub(crate) is_late: bool,
    /// The client has answered it.
    is_answered: bool,
}

/// A MESSAGE as a tap has read it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OnWire<'a> {
    pub(crate) message_id: &'a str,
    pub(crate) subscription: &'a str,
    pub(crate) key: Key,
    pub(crate) is_redelivered: bool,
    /// It rested unfinished for longer than the ack timeout.
    pub(crate) is_late: bool,
}

/// The ledger.
#[derive(Debug)]
pub(crate) struct Checkers {
    facts: BTreeMap<Key, Fact>,
    wires: BTreeMap<ConnectionId, Wire>,
    reserved: BTreeMap<(TxnId, Seq), Key>,
    settling: BTreeMap<(ConnectionId, OpId), Vec<Named>>,
    /// Highest number that was ever reserved, per producer's connection and queue.
    first_order: BTreeMap<(u64, u64, String), u64>,
    queues: BTreeMap<Key, String>,
    ack_timeout: Duration,
    life: u64,
    is_unclean: bool,
    pub(crate) failure: Option<Failure>,
}

/// The first broken promise.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    /// In words.
    pub(crate) text: String,
    /// What to look for in the trace.
    pub(crate) word: String,
}

impl Checkers {
    pub(crate) fn new(ack_timeout: Duration) -> Self {
        Self {
            facts: BTreeMap::new(),
            wires: BTreeMap::new(),
            reserved: BTreeMap::new(),
            settling: BTreeMap::new(),
            first_order: BTreeMap::new(),
            queues: BTreeMap::new(),
            ack_timeout,
            life: 1,
            is_unclean: false,
            failure: None,
        }
    }

    /// A promise is broken.
    pub(crate) fn fail(&mut self, word: impl fmt::Display, text: impl fmt::Display) {
        if self.failure.is_none() {
            self.failure = Some(Failure { text: format!("{word} {text}"), word: word.to_string() });
        }
    }

    /// A client has sent a message.
    pub(crate) fn sent(&mut self, key: Key, queue: &str) {
        self.facts.insert(key, Fact::default());
        self.queues.insert(key, queue.into());
    }

    /// A client has the receipt of a message.
    pub(crate) fn confirmed(&mut self, key: Key) {
        if let Some(fact) = self.facts.get_mut(&key) {
            fact.is_confirmed = true;
        }
    }

    /// A client has been let in.
    pub(crate) fn connected(&mut self, conn: ConnectionId, is_auto: bool) {
        self.wires.insert(conn, Wire { is_auto, ..Wire::default() });
    }

    /// A client has asked for a subscription.
    pub(crate) fn subscribed(&mut self, conn: ConnectionId, subscription: &str, window: usize) {
        if let Some(wire) = self.wires.get_mut(&conn) {
            wire.windows.insert(subscription.into(), window);
        }
    }

    /// An operation reaches the broker.
    pub(crate) fn submitted(&mut self, conn: ConnectionId, op: OpId, operation: &Operation) {
        let Operation::Settle { txn, ack, nack, release, reject, .. } = operation else { return };
        let sets: [(&Ranges, Fate); 4] =
            [(ack, Fate::Ended), (reject, Fate::Ended), (nack, Fate::Nacked), (release, Fate::Released)];
        let mut named = Vec::new();
        for (set, fate) in sets {
            for seq in set.iter() {
                let Some(key) = self.reserved.get(&(*txn, seq)).copied() else {
                    self.fail(format_args!("{txn} {seq}"), "is settled and was never reserved");
                    return;
                };
                named.push((key, *txn, seq, fate));
            }
        }
        for (key, txn, seq, fate) in &named {
            self.settle(conn, *key, *txn, *seq, *fate);
        }
        self.settling.insert((conn, op), named);
    }

    fn settle(&mut self, conn: ConnectionId, key: Key, txn: TxnId, seq: Seq, fate: Fate) {
        let is_auto = self.wires.get(&conn).is_some_and(|wire| wire.is_auto);
        let Some(fact) = self.facts.get_mut(&key) else { return };
        if fate == Fate::Ended && !is_auto && !fact.done_by.contains(&conn) {
            return self.fail(key, format_args!("is ended on {conn}, whose client has not said so"));
        }
        match &mut fact.live {
            Some(live) if (live.txn, live.seq) == (txn, seq) && !live.is_resolving => {
                live.is_resolving = true;
                fact.nacks += u64::from(fate == Fate::Nacked);
            }
            live => {
                let text = format!("is settled twice as {txn} {seq} on {conn}: {live:?}");
                self.fail(key, text);
            }
        }
    }

    /// The broker has answered.
    pub(crate) fn completed(
        &mut self,
        now: Instant,
        conn: ConnectionId,
        op: Option<OpId>,
        completion: &Completion,
    ) {
        match completion {
            Completion::Reserved { txn, items } => {
                for item in items {
                    self.reserved(conn, *txn, item);
                }
            }
            Completion::Settled | Completion::Refused(_) => {
                let is_done = matches!(completion, Completion::Settled);
                // The broker has failed and cannot say what became of it.
                let is_unknown = matches!(completion, Completion::Refused(Refusal::BrokerNotReady));
                let named = op.and_then(|op| self.settling.remove(&(conn, op))).unwrap_or_default();
                for (key, txn, seq, fate) in named {
                    if let (true, Fate::Ended, Some(fact)) = (is_unknown, fate, self.facts.get_mut(&key)) {
                        fact.is_end_open = true;
                    }
                    self.settled(now, key, (txn, seq), fate, is_done);
                }
            }
            _ => {}
        }
    }

    fn settled(&mut self, now: Instant, key: Key, at: (TxnId, Seq), fate: Fate, is_done: bool) {
        let life = self.life;
        let Some(fact) = self.facts.get_mut(&key) else { return };
        let live = fact.live.filter(|live| (live.txn, live.seq) == at);
        if is_done {
            if live.is_some() {
                fact.live = None;
            }
            if fate == Fate::Ended {
                fact.ended = Some(Ended { life, at: now, is_durable: false });
            }
        } else if let Some(live) = live {
            fact.live = Some(Live { is_resolving: false, ..live });
            fact.nacks -= u64::from(fate == Fate::Nacked);
        }
    }

    fn reserved(&mut self, conn: ConnectionId, txn: TxnId, item: &Reserved) {
        let Some(key) = Key::read(&item.message.body) else {
            return self.fail(format_args!("{txn} {}", item.seq), "has a body that nobody sent");
        };
        self.reserved.insert((txn, item.seq), key);
        if let Some(wire) = self.wires.get_mut(&conn) {
            wire.expected.push_back(key);
        }
        let (life, is_unclean) = (self.life, self.is_unclean);
        let Some(fact) = self.facts.get_mut(&key) else { return };
        let broken = broken_by_reservation(fact, life, is_unclean, item);
        fact.live = Some(Live { conn, txn, seq: item.seq, is_resolving: false });
        fact.reservations += 1;
        (fact.ended, fact.is_end_open) = (None, false);
        let is_first = fact.reservations == 1;
        if let Some(text) = broken {
            return self.fail(key, text);
        }
        if is_first {
            self.check_order(key);
        }
    }

    /// Messages of one producer to one queue are handed out for the first time in the order in which they
    /// were sent.
    fn check_order(&mut self, key: Key) {
        let queue = self.queues.get(&key).cloned().unwrap_or_default();
        let last = self.first_order.entry((key.producer, key.session, queue)).or_default();
        let before = std::mem::replace(last, key.number.max(*last));
        if before > key.number {
            self.fail(key, format_args!("is handed out after number {before} of the same producer"));
        }
    }

    /// The last byte of a MESSAGE is in a socket.
    pub(crate) fn written(&mut self, now: Instant, conn: ConnectionId, delivery: &OnWire<'_>) {
        let OnWire { message_id, subscription, key, is_redelivered, is_late } = *delivery;
        let timeout = self.ack_timeout;
        let Some(wire) = self.wires.get_mut(&conn) else { return };
        let place = wire.expected.iter().position(|expected| *expected == key);
        wire.expected.drain(..place.map_or(0, |place| place + 1));
        let subscription = subscription.to_owned();
        let written =
            Written { key, subscription: subscription.clone(), at: now, is_late, is_answered: false };
        if wire.written.insert(message_id.into(), written).is_some() {
            return self.fail(key, format_args!("has the message-id {message_id} of another delivery"));
        }
        let is_open = |written: &&Written| {
            written.subscription == subscription
                && !written.is_answered
                && !written.is_late
                && now < written.at + timeout
        };
        let outstanding = if wire.is_auto { 0 } else { wire.written.values().filter(is_open).count() };
        let window = wire.windows.get(&subscription).copied();
        if place.is_none() {
            return self.fail(key, format_args!("is on the wire of {conn} out of order or unreserved"));
        }
        match window {
            None => return self.fail(key, format_args!("is for the unknown subscription {subscription}")),
            Some(window) if outstanding > window => {
                return self.fail(key, format_args!("exceeds the window: {outstanding} of {window}"));
            }
            Some(_) => {}
        }
        let Some(fact) = self.facts.get_mut(&key) else { return };
        fact.written += 1;
        if fact.written > 1 && !is_redelivered && !is_late {
            self.fail(key, format_args!("is delivered again on {conn} and not marked redelivered"));
        }
    }

    /// The delivery that a client names.
    pub(crate) fn delivery(&self, conn: ConnectionId, message_id: &str) -> Option<Written> {
        self.wires.get(&conn)?.written.get(message_id).cloned()
    }

    /// A client answers deliveries: it accepts or discards them, or gives them back.
    pub(crate) fn answered(&mut self, conn: ConnectionId, message_ids: &[String], ends: bool) {
        let Some(wire) = self.wires.get_mut(&conn) else { return };
        for message_id in message_ids {
            let Some(written) = wire.written.get_mut(message_id) else { continue };
            written.is_answered = true;
            if let (true, Some(fact)) = (ends, self.facts.get_mut(&written.key)) {
                fact.done_by.insert(conn);
            }
        }
    }

    /// A client has the receipt of such an answer. It counts for the deliveries that were certainly live.
    pub(crate) fn answer_receipted(&mut self, now: Instant, conn: ConnectionId, message_ids: &[String]) {
        if self.wires.get(&conn).is_none_or(|wire| wire.is_void) {
            return;
        }
        for message_id in message_ids {
            let Some(written) = self.delivery(conn, message_id) else { continue };
            if !written.is_late
                && now < written.at + self.ack_timeout
                && let Some(fact) = self.facts.get_mut(&written.key)
            {
                fact.is_end_receipted = true;
            }
        }
    }

    /// The broker has failed and says so: nothing that is settled from now on counts.
    pub(crate) fn broker_failed(&mut self) {
        self.wires.values_mut().for_each(|wire| wire.is_void = true);
    }

    /// The server has forgotten a connection.
    pub(crate) fn disconnected(&mut self, conn: ConnectionId) {
        let left = self.facts.iter().find(|(_, fact)| fact.live.is_some_and(|live| live.conn == conn));
        if let Some(key) = left.map(|(key, _)| *key) {
            self.fail(key, format_args!("is left unresolved by {conn}"));
        }
    }

    /// The process has stopped in order.
    pub(crate) fn stopped(&mut self) {
        if let Some(key) = self.facts.iter().find(|(_, fact)| fact.live.is_some()).map(|(key, _)| *key) {
            self.fail(key, "is reserved after an orderly stop");
        }
        self.forget_process();
    }

    /// The process has died. Everything handed over before `durable_before` was on the disk.
    pub(crate) fn crashed(&mut self, durable_before: Instant) {
        for named in self.settling.values() {
            for (key, .., fate) in named {
                if let (Fate::Ended, Some(fact)) = (fate, self.facts.get_mut(key)) {
                    fact.is_end_open = true;
                }
            }
        }
        for fact in self.facts.values_mut() {
            fact.live = None;
            if let Some(ended) = &mut fact.ended
                && ended.life == self.life
            {
                ended.is_durable = ended.at + UNSYNCED_MAX < durable_before;
            }
        }
        self.is_unclean = true;
        self.forget_process();
    }

    fn forget_process(&mut self) {
        self.life += 1;
        self.settling.clear();
        self.reserved.clear();
    }

    /// Everything is over and has had its time: what was confirmed has been ended by a client.
    pub(crate) fn finished(&mut self, still_live: u64) {
        let lost = self
            .facts
            .iter()
            .find(|(_, fact)| fact.is_confirmed && fact.ended.is_none() && !fact.is_end_open)
            .map(|(key, _)| *key);
        if let Some(key) = lost {
            return self.fail(key, "was confirmed, has never been ended by a client, and is gone or stuck");
        }
        if still_live > 0 {
            self.fail(still_live, "messages are stuck at the broker after quiet time");
        }
    }

    /// Messages sent, confirmed, ended.
    pub(crate) fn figures(&self) -> (usize, usize, usize) {
        let confirmed = self.facts.values().filter(|fact| fact.is_confirmed).count();
        let ended = self.facts.values().filter(|fact| fact.ended.is_some()).count();
        (self.facts.len(), confirmed, ended)
    }
}

/// What is wrong with handing this message out now, if anything.
fn broken_by_reservation(fact: &Fact, life: u64, is_unclean: bool, item: &Reserved) -> Option<String> {
    if let Some(live) = fact.live.filter(|live| !live.is_resolving) {
        return Some(format!("has two live deliveries, the first on {}", live.conn));
    }
    if fact.is_end_receipted {
        return Some("was ended with a receipt and comes back".into());
    }
    if let Some(ended) = fact.ended {
        if ended.life == life {
            return Some("was ended and comes back".into());
        }
        if ended.is_durable {
            return Some(format!("was ended at {}, long before the crash, and comes back", ended.at));
        }
    }
    if fact.written > 0 && !item.redelivered {
        return Some("was delivered before and is not marked redelivered".into());
    }
    if is_unclean {
        return None;
    }
    if item.redelivered != (fact.nacks > 0) {
        return Some(format!("is redelivered: {}, after {} nacks", item.redelivered, fact.nacks));
    }
    let count = u64::from(item.receive_count);
    (count != fact.nacks).then(|| format!("has receive count {count} after {} nacks", fact.nacks))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use berth_engine::port::NackCause;
    use berth_types::{Encoding, Envelope, Message, MessageId};
    use bytes::Bytes;

    use super::*;

    const CONN: ConnectionId = ConnectionId::new(1);
    const QUEUE: &str = "/queue/q";

    fn key(number: u64) -> Key {
        Key { producer: 7, session: 1, number }
    }

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    struct Script(Checkers);

    impl Script {
        /// A ledger that knows messages 1 to 3 and one consumer with a window of 1.
        fn new() -> Self {
            let mut checkers = Checkers::new(Duration::from_secs(1));
            (1..=3).for_each(|number| checkers.sent(key(number), QUEUE));
            checkers.connected(CONN, false);
            checkers.subscribed(CONN, "s", 1);
            Self(checkers)
        }

        fn reserve(mut self, txn: u64, number: u64, redelivered: bool) -> Self {
            let message = Arc::new(Message {
                id: MessageId::new("x"),
                envelope: Envelope::default(),
                encoding: Encoding::Plain,
                head: Bytes::new(),
                body: Bytes::from(key(number).to_string()),
            });
            let (seq, receive_count) = (Seq::new(number), u32::from(redelivered));
            let items = vec![Reserved { seq, message, receive_count, redelivered, held_until: None }];
            let completion = Completion::Reserved { txn: TxnId::new(txn), items };
            self.0.completed(at(0), CONN, Some(OpId::new(100)), &completion);
            self
        }

        fn write(mut self, number: u64, is_redelivered: bool) -> Self {
            let message_id = format!("{number}{is_redelivered}");
            let key = key(number);
            let delivery =
                OnWire { message_id: &message_id, subscription: "s", key, is_redelivered, is_late: false };
            self.0.written(at(1), CONN, &delivery);
            self
        }

        fn say_done(mut self, number: u64) -> Self {
            self.0.answered(CONN, &[format!("{number}false")], true);
            self
        }

        fn ack(mut self, txn: u64, number: u64) -> Self {
            let op = OpId::new(txn * 10 + number);
            let settle = Operation::Settle {
                txn: TxnId::new(txn),
                ack: [Seq::new(number)].into_iter().collect(),
                nack: Ranges::new(),
                release: Ranges::new(),
                reject: Ranges::new(),
                cause: NackCause::Failure,
                confirm: true,
            };
            self.0.submitted(CONN, op, &settle);
            self.0.completed(at(2), CONN, Some(op), &Completion::Settled);
            self
        }

        fn with(mut self, f: impl FnOnce(&mut Checkers)) -> Self {
            f(&mut self.0);
            self
        }

        fn fails(self, words: &str) {
            let text = self.0.failure.map(|failure| failure.text).unwrap_or_default();
            assert!(text.contains(words), "{text:?} instead of {words:?}");
        }
    }

    fn done(number: u64) -> Script {
        Script::new().reserve(1, number, false).write(number, false).say_done(number).ack(1, number)
    }

    #[test]
    fn a_receipted_end_is_for_ever_and_one_without_for_as_long_as_the_process() {
        let receipted = |checkers: &mut Checkers| checkers.answer_receipted(at(3), CONN, &["1false".into()]);
        let crash = |checkers: &mut Checkers| checkers.crashed(at(0));
        assert!(done(1).with(crash).reserve(2, 1, true).0.failure.is_none(), "it was young");
        done(1).reserve(2, 1, true).fails("was ended and comes back");
        done(1).with(receipted).with(crash).reserve(2, 1, true).fails("with a receipt and comes back");
        done(1).with(|checkers| checkers.crashed(at(500))).reserve(2, 1, true).fails("long before the crash");
    }

    #[test]
    fn an_end_needs_the_word_of_the_client() {
        Script::new().reserve(1, 1, false).write(1, false).ack(1, 1).fails("has not said so");
        done(1).ack(1, 1).fails("is settled twice");
        Script::new().ack(9, 1).fails("never reserved");
    }

    #[test]
    fn deliveries_are_single_marked_ordered_and_within_the_window() {
        Script::new().reserve(1, 1, false).reserve(2, 1, false).fails("two live deliveries");
        Script::new().reserve(1, 2, false).reserve(1, 1, false).fails("is handed out after number 2");
        Script::new().reserve(1, 1, true).fails("is redelivered: true, after 0 nacks");
        Script::new().reserve(1, 1, false).write(2, false).fails("out of order or unreserved");
        let two = Script::new().reserve(1, 1, false).reserve(1, 2, false);
        two.write(1, false).write(2, false).fails("exceeds the window: 2 of 1");
        let crash = |checkers: &mut Checkers| checkers.crashed(at(0));
        let once = || Script::new().reserve(1, 1, false).write(1, false).with(crash);
        once().reserve(1, 1, false).fails("was delivered before and is not marked redelivered");
        Script::new().reserve(1, 1, false).with(|c| c.disconnected(CONN)).fails("left unresolved");
    }

    #[test]
    fn what_was_confirmed_is_ended_by_somebody() {
        Script::new().with(|c| c.confirmed(key(1))).with(|c| c.finished(0)).fails("has never been ended");
        Script::new().with(|c| c.finished(2)).fails("stuck at the broker");
        assert!(done(1).with(|c| c.confirmed(key(1))).with(|c| c.finished(0)).0.failure.is_none());
    }
}
