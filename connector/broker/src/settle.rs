//! Reservations and how they end.
//!
//! Every sequence of a reservation is resolved once. A settlement names sequences of one reservation of its
//! own connection that are still open, each once; else it is refused and nothing has changed.

use berth_engine::port::{Completion, NackCause, Refusal};
use berth_log::{Appended, Purpose, Refused};
use berth_types::{ConnectionId, OpId, Ranges, Seq, TxnId};

use crate::broker::Broker;
use crate::index::Entry;
use crate::job::{Job, Ran};
use crate::journal::{Durable, Journal, Part};
use crate::record::{ChannelId, Counts, Requeue, SmallFact};

/// A reservation with open deliveries.
#[derive(Debug)]
pub(crate) struct Txn {
    pub(crate) connection: ConnectionId,
    pub(crate) channel: ChannelId,
    /// In order of their sequences.
    pub(crate) items: Vec<Item>,
    pub(crate) open: u32,
}

/// One delivery of a reservation.
#[derive(Debug)]
pub(crate) struct Item {
    pub(crate) seq: Seq,
    pub(crate) entry: Entry,
    pub(crate) is_open: bool,
}

/// What a client wants to become of its deliveries.
#[derive(Debug, Default)]
pub(crate) struct Wish {
    pub(crate) ack: Ranges,
    pub(crate) nack: Ranges,
    pub(crate) release: Ranges,
    pub(crate) reject: Ranges,
    pub(crate) cause: NackCause,
}

/// Deliveries that a settlement has taken: no other one can name them.
#[derive(Debug)]
pub(crate) struct Claim {
    pub(crate) txn: TxnId,
    pub(crate) channel: ChannelId,
    /// Places in the reservation, for each outcome ascending.
    gone: Vec<usize>,
    nacked: Vec<usize>,
    released: Vec<usize>,
}

impl Txn {
    /// Takes the open deliveries that `ranges` name; false when one of them is not open or not here. What was
    /// taken stands in `taken` in either case.
    fn take(&mut self, ranges: &Ranges, taken: &mut Vec<usize>) -> bool {
        for (first, last) in ranges.as_slice() {
            let mut at = self.items.partition_point(|item| item.seq < *first);
            let before = taken.len();
            while let Some(item) = self.items.get_mut(at).filter(|item| item.seq <= *last) {
                if !std::mem::replace(&mut item.is_open, false) {
                    return false;
                }
                taken.push(at);
                at += 1;
            }
            if (taken.len() - before) as u64 != last.get() - first.get() + 1 {
                return false;
            }
        }
        true
    }
}

impl Wish {
    /// Whether something ends by it.
    pub(crate) fn settles(&self) -> bool {
        !self.ack.is_empty() || !self.reject.is_empty()
    }
}

impl Claim {
    fn is_empty(&self) -> bool {
        self.gone.is_empty() && self.nacked.is_empty()
    }
}

impl Broker {
    /// Carries out `Settle`.
    pub(crate) fn run_settle(
        &mut self,
        connection: ConnectionId,
        op: OpId,
        txn: TxnId,
        wish: Wish,
        confirm: bool,
    ) -> Ran {
        let Some(claim) = self.claim(connection, txn, &wish) else {
            self.stats.unknown_settlements += 1;
            self.complete(connection, op, Completion::Refused(Refusal::Unknown));
            return Ran::Done;
        };
        match self.append_settlement(&claim, &wish, confirm) {
            Ok(appended) => {
                self.apply(claim, &wish, appended);
                match appended {
                    Some(appended) if confirm => {
                        let completion = Completion::Settled;
                        let then = Durable::Completed { connection, op, completion };
                        self.journal.when_durable(appended.lsn, then);
                    }
                    _ => self.complete(connection, op, Completion::Settled),
                }
                Ran::Done
            }
            Err(refused) => {
                self.unclaim(claim);
                match refused {
                    Refused::Busy => Ran::Stalled(Job::Settle { connection, op, txn, wish, confirm }),
                    refused => {
                        self.complete(connection, op, Completion::Refused(refusal(refused)));
                        Ran::Done
                    }
                }
            }
        }
    }

    /// Takes back what is open of a reservation whose connection is gone.
    pub(crate) fn run_abandon(&mut self, txn: TxnId, cause: NackCause) -> Ran {
        let Some(reservation) = self.txns.get(&txn) else { return Ran::Done };
        let open = reservation.items.iter().filter(|item| item.is_open);
        let nack: Ranges = open.map(|item| item.seq).collect();
        let wish = Wish { nack, cause, ..Wish::default() };
        let connection = reservation.connection;
        let claim = self.claim(connection, txn, &wish).expect("open deliveries can be claimed");
        match self.append_settlement(&claim, &wish, false) {
            Ok(appended) => self.apply(claim, &wish, appended),
            Err(refused) => {
                self.unclaim(claim);
                match refused {
                    Refused::Poisoned => {}
                    Refused::Full | Refused::TooLarge => self.abandon_unwritten(txn, wish),
                    Refused::Busy => return Ran::Stalled(Job::Abandon { txn, cause }),
                }
            }
        }
        Ran::Done
    }

    /// Takes back what is open without a word in the journal, which has no room for it: nothing may wait for
    /// that. The messages keep their places and sequences. Their counts go up in memory and are written with
    /// the next requeue or move; after a crash the delivery mark still says that they were handed out.
    fn abandon_unwritten(&mut self, txn: TxnId, wish: Wish) {
        let Some(reservation) = self.txns.get_mut(&txn) else { return };
        for item in reservation.items.iter_mut().filter(|item| item.is_open) {
            item.entry = item.entry.with_counts(raised(item.entry.counts, wish.cause));
        }
        let connection = reservation.connection;
        let wish = Wish { release: wish.nack, cause: wish.cause, ..Wish::default() };
        let claim = self.claim(connection, txn, &wish).expect("open deliveries can be claimed");
        self.apply(claim, &wish, None);
    }

    /// Claims what a settlement names.
    pub(crate) fn claim(&mut self, connection: ConnectionId, txn: TxnId, wish: &Wish) -> Option<Claim> {
        let reservation = self.txns.get_mut(&txn).filter(|txn| txn.connection == connection)?;
        let channel = reservation.channel;
        let mut claim = Claim { txn, channel, gone: Vec::new(), nacked: Vec::new(), released: Vec::new() };
        let taken = reservation.take(&wish.ack, &mut claim.gone)
            && reservation.take(&wish.reject, &mut claim.gone)
            && reservation.take(&wish.nack, &mut claim.nacked)
            && reservation.take(&wish.release, &mut claim.released);
        if taken {
            return Some(claim);
        }
        self.unclaim(claim);
        None
    }

    /// Gives up a claim: nothing has changed.
    pub(crate) fn unclaim(&mut self, claim: Claim) {
        let Some(reservation) = self.txns.get_mut(&claim.txn) else { return };
        for at in claim.gone.into_iter().chain(claim.nacked).chain(claim.released) {
            reservation.items[at].is_open = true;
        }
    }

    /// What a claim requeues, with the counts from now on.
    pub(crate) fn requeues(&self, claim: &Claim, cause: NackCause) -> Vec<Requeue> {
        let Some(reservation) = self.txns.get(&claim.txn) else { return Vec::new() };
        let items = claim.nacked.iter().map(|at| &reservation.items[*at]);
        let requeue = |item: &Item| Requeue { seq: item.seq, counts: raised(item.entry.counts, cause) };
        items.map(requeue).collect()
    }

    /// Changes the state as the fact says.
    pub(crate) fn apply(&mut self, claim: Claim, wish: &Wish, appended: Option<Appended>) {
        let requeues = self.requeues(&claim, wish.cause);
        let Some(reservation) = self.txns.get_mut(&claim.txn) else { return };
        let resolved = claim.gone.len() + claim.nacked.len() + claim.released.len();
        let queue = self.queues.known(claim.channel);
        queue.in_flight -= resolved as u64;
        reservation.open -= resolved as u32;
        for at in claim.gone {
            let entry = &reservation.items[at].entry;
            queue.bytes -= u64::from(entry.size);
            self.live.remove(entry);
        }
        for (at, requeue) in claim.nacked.iter().zip(requeues) {
            let entry = reservation.items[*at].entry.with_counts(requeue.counts);
            let (_, listed) = queue.index.push(entry);
            self.pager.added(claim.channel, listed);
        }
        for at in &claim.released {
            let item = &reservation.items[*at];
            queue.index.give_back(item.seq, item.entry);
        }
        if let Some(appended) = appended
            && !claim.nacked.is_empty()
        {
            let end = queue.index.next().get();
            self.journal.when_ready(appended.lsn, claim.channel, end);
        }
        self.stats.accepted += wish.ack.count();
        self.stats.rejected += wish.reject.count();
        self.stats.requeued += claim.nacked.len() as u64;
        self.stats.released += claim.released.len() as u64;
        if reservation.open == 0 {
            let connection = reservation.connection;
            self.txns.remove(&claim.txn);
            if let Some(connection) = self.connections.get_mut(&connection) {
                connection.txns.remove(&claim.txn);
            }
        }
        self.mark_due(claim.channel);
    }

    /// Writes what a claim decides, as one record. None when there is nothing to write: a release changes
    /// nothing that lasts. When nobody waits for it, it goes with the next barrier or makes one in time.
    fn append_settlement(
        &mut self,
        claim: &Claim,
        wish: &Wish,
        confirm: bool,
    ) -> Result<Option<Appended>, Refused> {
        if claim.is_empty() {
            return Ok(None);
        }
        let channel = claim.channel;
        let items = self.requeues(claim, wish.cause);
        let first = self.queues.known(channel).index.next();
        let settled = SmallFact::Settled { channel, accepted: &wish.ack, rejected: &wish.reject };
        let requeued = SmallFact::Requeued { channel, first, items: &items };
        let appended = match (claim.gone.is_empty(), claim.nacked.is_empty()) {
            (_, true) => {
                let purpose = if confirm { Purpose::Upkeep } else { Purpose::Lazy };
                self.append_upkeep(purpose, |journal, purpose| journal.append_fact(purpose, &settled))?
            }
            (true, false) => {
                let append = |journal: &mut Journal, purpose| journal.append_fact(purpose, &requeued);
                self.append_upkeep(Purpose::Requeue, append)?
            }
            (false, false) => {
                let parts = [Part::Small(settled), Part::Small(requeued)];
                let append = |journal: &mut Journal, purpose| journal.append_commit(purpose, &parts);
                self.append_upkeep(Purpose::Requeue, append)?
            }
        };
        Ok(Some(appended))
    }
}

/// The counts after one more delivery that ended without being accepted.
fn raised(counts: Counts, cause: NackCause) -> Counts {
    Counts {
        received: counts.received.saturating_add(1),
        failures: counts.failures.saturating_add(u32::from(cause == NackCause::Failure)),
    }
}

/// Why an append was refused, in the words of the port.
pub(crate) const fn refusal(refused: Refused) -> Refusal {
    match refused {
        Refused::Full => Refusal::StorageFull,
        Refused::TooLarge => Refusal::MessageTooLarge,
        Refused::Busy | Refused::Poisoned => Refusal::BrokerNotReady,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Settings;
    use crate::index::Peek;
    use berth_engine::port::Operation;
    use berth_log::execute;
    use berth_log::sim::SimStorage;
    use berth_types::{ChannelName, Destination, Encoding, Envelope, Message, MessageId, Now, Pattern};
    use std::sync::Arc;

    const CONSUMER: ConnectionId = ConnectionId::new(1);

    fn open(disk: &mut SimStorage) -> Broker {
        Broker::open(disk, Settings::default(), Now::default()).unwrap().0
    }

    fn ask(broker: &mut Broker, disk: &mut SimStorage, operation: Operation) -> Completion {
        broker.submit(Now::default(), CONSUMER, OpId::new(1), operation);
        loop {
            if let Some((_, _, completion)) = broker.poll() {
                return completion;
            }
            let stored = execute(disk, broker.poll_storage(Now::default()).unwrap());
            broker.handle_stored(Now::default(), stored);
        }
    }

    fn counts(broker: &mut Broker) -> Counts {
        let channel = broker.queues.find(&ChannelName::parse("q").unwrap()).unwrap();
        match broker.queues.known(channel).index.peek() {
            Peek::Entry(_, entry) => entry.counts,
            other => panic!("{other:?}"),
        }
    }

    /// A receive limit looks at failures, clients at receives: drain and crash raise only the latter.
    #[test]
    fn failures_are_counted_apart_from_receives_and_survive() {
        let mut disk = SimStorage::new();
        let mut broker = open(&mut disk);
        let channel = ChannelName::parse("q").unwrap();
        let message = Arc::new(Message {
            id: MessageId::new("m"),
            envelope: Envelope::default(),
            encoding: Encoding::Plain,
            head: Default::default(),
            body: Default::default(),
        });
        let destination = Destination { pattern: Pattern::Queues, channel: channel.clone() };
        let batch = vec![(destination, message)];
        ask(&mut broker, &mut disk, Operation::Publish { batch, atomic: false });
        let attached = ask(&mut broker, &mut disk, Operation::Attach { channel });
        let Completion::Opened { sub, .. } = attached else { panic!("{attached:?}") };
        for cause in [NackCause::Failure, NackCause::Server, NackCause::Failure] {
            let operation = Operation::Reserve { sub, max: 1, max_bytes: 1, hold: None };
            let reserved = ask(&mut broker, &mut disk, operation);
            let Completion::Reserved { txn, items } = reserved else { panic!("{reserved:?}") };
            let nack = [items[0].seq].into_iter().collect();
            let (ack, release, reject) = (Ranges::new(), Ranges::new(), Ranges::new());
            let operation = Operation::Settle { txn, ack, nack, release, reject, cause, confirm: true };
            assert!(matches!(ask(&mut broker, &mut disk, operation), Completion::Settled));
        }
        assert_eq!(counts(&mut broker), Counts { received: 3, failures: 2 });
        drop(broker);
        let mut broker = open(&mut disk);
        assert_eq!(counts(&mut broker), Counts { received: 4, failures: 2 }, "a crash is no failure");
    }
}
