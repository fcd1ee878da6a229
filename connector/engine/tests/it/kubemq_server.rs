//! A KubeMQ server as far as its queues decide what a back end must do, with the habits that hurt: a stream
//! does one request at a time, a `Get` answers early only when it is full, success of a settlement is
//! silent, and an open transaction with a free place goes on taking messages that nobody sees.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use berth_types::Instant;

/// One stream to the server.
pub(crate) type StreamId = u64;

/// A message as the server keeps it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Stored {
    pub(crate) seq: u64,
    pub(crate) id: u64,
    pub(crate) count: u32,
}

#[derive(Clone, Debug)]
pub(crate) enum Request {
    Get { max: usize, wait: Duration },
    AckRange { txn: u64, seqs: Vec<u64> },
    NackRange { txn: u64, seqs: Vec<u64> },
    Close { txn: u64 },
    ActiveOffsets,
}

#[derive(Clone, Debug)]
pub(crate) enum Response {
    Got { txn: u64, items: Vec<Stored> },
    Offsets,
}

#[derive(Debug)]
struct Get {
    max: usize,
    until: Instant,
    got: Vec<Stored>,
}

#[derive(Debug, Default)]
struct Stream {
    requests: VecDeque<Request>,
    get: Option<Get>,
    responses: VecDeque<Response>,
}

#[derive(Debug)]
struct Txn {
    stream: StreamId,
    max: usize,
    unsettled: Vec<Stored>,
    /// Taken after the `Get` was answered: nobody sees them until the transaction closes.
    hidden: Vec<Stored>,
}

/// One queue of one server.
#[derive(Debug, Default)]
pub(crate) struct Server {
    queue: VecDeque<Stored>,
    streams: BTreeMap<StreamId, Stream>,
    /// `Get`s whose stream was dropped: they run on to their end.
    orphans: Vec<Get>,
    txns: BTreeMap<u64, Txn>,
    /// Ids of messages that were acked.
    pub(crate) acked: BTreeSet<u64>,
    next_seq: u64,
    next_txn: u64,
    next_stream: StreamId,
    turn: usize,
}

impl Server {
    pub(crate) fn produce(&mut self, id: u64) {
        self.next_seq += 1;
        self.queue.push_back(Stored { seq: self.next_seq, id, count: 0 });
    }

    pub(crate) fn open_stream(&mut self) -> StreamId {
        self.next_stream += 1;
        self.streams.insert(self.next_stream, Stream::default());
        self.next_stream
    }

    pub(crate) fn send(&mut self, stream: StreamId, request: Request) {
        if let Some(stream) = self.streams.get_mut(&stream) {
            stream.requests.push_back(request);
        }
    }

    pub(crate) fn streams(&self) -> Vec<StreamId> {
        self.streams.keys().copied().collect()
    }

    pub(crate) fn receive(&mut self, stream: StreamId) -> Option<Response> {
        self.streams.get_mut(&stream)?.responses.pop_front()
    }

    /// The client drops a stream: its transactions close, what it had not settled is back at its place; a
    /// `Get` that is pending runs on.
    pub(crate) fn drop_stream(&mut self, stream: StreamId) {
        if let Some(dropped) = self.streams.remove(&stream) {
            self.orphans.extend(dropped.get);
        }
        let closed: Vec<_> =
            self.txns.iter().filter(|(_, txn)| txn.stream == stream).map(|(id, _)| *id).collect();
        closed.into_iter().for_each(|txn| self.close(txn));
    }

    /// Does the next request of a stream, unless a `Get` blocks it.
    pub(crate) fn serve(&mut self, now: Instant, id: StreamId) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if stream.get.is_some() {
            return;
        }
        match stream.requests.pop_front() {
            Some(Request::Get { max, wait }) => {
                stream.get = Some(Get { max, until: now + wait, got: Vec::new() });
            }
            Some(Request::ActiveOffsets) => stream.responses.push_back(Response::Offsets),
            Some(Request::AckRange { txn, seqs }) => {
                for stored in self.take(txn, &seqs) {
                    self.acked.insert(stored.id);
                }
                self.close_if_empty(txn);
            }
            Some(Request::NackRange { txn, seqs }) => {
                for stored in self.take(txn, &seqs) {
                    self.next_seq += 1;
                    let copy = Stored { seq: self.next_seq, count: stored.count + 1, ..stored };
                    self.queue.push_back(copy);
                }
                self.close_if_empty(txn);
            }
            Some(Request::Close { txn }) => self.close(txn),
            None => {}
        }
        self.advance(now);
    }

    /// Hands messages to whoever takes them, in turn, and answers every `Get` that is full or over.
    pub(crate) fn advance(&mut self, now: Instant) {
        while let Some(stored) = self.queue.front().copied() {
            let takers = self.takers();
            if takers.is_empty() {
                break;
            }
            self.queue.pop_front();
            self.turn += 1;
            match takers[self.turn % takers.len()] {
                Taker::Get(stream) => {
                    let get = self.streams.get_mut(&stream).and_then(|stream| stream.get.as_mut());
                    get.expect("a taker").got.push(stored);
                }
                Taker::Orphan(place) => self.orphans[place].got.push(stored),
                Taker::Txn(txn) => self.txns.get_mut(&txn).expect("a taker").hidden.push(stored),
            }
        }
        let ids = self.streams();
        for id in ids {
            self.answer(now, id);
        }
        let (over, running) = std::mem::take(&mut self.orphans)
            .into_iter()
            .partition::<Vec<_>, _>(|get| get.until <= now || get.got.len() == get.max);
        self.orphans = running;
        over.into_iter().for_each(|get| self.give_back(get.got));
    }

    fn answer(&mut self, now: Instant, id: StreamId) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let is_over = stream.get.as_ref().is_some_and(|get| get.until <= now || get.got.len() == get.max);
        if is_over && let Some(get) = stream.get.take() {
            self.next_txn += 1;
            let txn = self.next_txn;
            stream.responses.push_back(Response::Got { txn, items: get.got.clone() });
            if !get.got.is_empty() {
                let open = Txn { stream: id, max: get.max, unsettled: get.got, hidden: Vec::new() };
                self.txns.insert(txn, open);
            }
        }
    }

    fn takers(&self) -> Vec<Taker> {
        let gets = self.streams.iter().filter_map(|(id, stream)| {
            let get = stream.get.as_ref()?;
            (get.got.len() < get.max).then_some(Taker::Get(*id))
        });
        let orphans = (0..self.orphans.len()).filter(|i| self.orphans[*i].got.len() < self.orphans[*i].max);
        let txns = self.txns.iter().filter(|(_, txn)| txn.unsettled.len() + txn.hidden.len() < txn.max);
        gets.chain(orphans.map(Taker::Orphan)).chain(txns.map(|(id, _)| Taker::Txn(*id))).collect()
    }

    fn take(&mut self, txn: u64, seqs: &[u64]) -> Vec<Stored> {
        let txn = self.txns.get_mut(&txn).expect("an open transaction");
        seqs.iter()
            .map(|seq| {
                let place = txn.unsettled.iter().position(|stored| stored.seq == *seq);
                txn.unsettled.remove(place.expect("a sequence of this transaction"))
            })
            .collect()
    }

    fn close_if_empty(&mut self, txn: u64) {
        if self.txns[&txn].unsettled.is_empty() {
            self.close(txn);
        }
    }

    fn close(&mut self, txn: u64) {
        if let Some(closed) = self.txns.remove(&txn) {
            self.give_back(closed.unsettled);
            self.give_back(closed.hidden);
        }
    }

    fn give_back(&mut self, stored: Vec<Stored>) {
        self.queue.extend(stored);
        self.queue.make_contiguous().sort_unstable();
    }

    /// Messages that a consumer could get now.
    pub(crate) fn ready(&self) -> BTreeSet<u64> {
        self.queue.iter().map(|stored| stored.id).collect()
    }

    /// Messages that a transaction or a forgotten `Get` holds.
    pub(crate) fn captured(&self) -> usize {
        let held = |get: &Get| get.got.len();
        self.txns.values().map(|txn| txn.unsettled.len() + txn.hidden.len()).sum::<usize>()
            + self.orphans.iter().map(held).sum::<usize>()
            + self.streams.values().filter_map(|stream| stream.get.as_ref()).map(held).sum::<usize>()
    }
}

#[derive(Clone, Copy, Debug)]
enum Taker {
    Get(StreamId),
    Orphan(usize),
    Txn(u64),
}
