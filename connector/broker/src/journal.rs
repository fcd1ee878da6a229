//! The journal as the broker uses it: facts in, places out, and what waits until they are durable.
//!
//! Not decided here: what a fact means.

use std::collections::VecDeque;

use berth_engine::port::Completion;
use berth_log::{Appended, Log, Lsn, Purpose, Refused, SegmentId};
use berth_types::{ConnectionId, Message, OpId, Seq};
use bytes::{Bytes, BytesMut};

use crate::record::{self, APPENDED, COMMIT, ChannelId, Counts, SmallFact};
use crate::varint;

/// The log, and who waits for which of its records.
#[derive(Debug)]
pub(crate) struct Journal {
    pub(crate) log: Log,
    /// The segment of the last record.
    active: SegmentId,
    scratch: BytesMut,
    waiting: VecDeque<(Lsn, Durable)>,
}

/// What happens when a record is as durable as configured.
#[derive(Debug)]
pub(crate) enum Durable {
    /// Sequences of the queue below `end` may be handed out.
    Ready { channel: ChannelId, end: u64 },
    /// The delivery mark stands.
    Mark { channel: ChannelId, upto: u64 },
    /// The operation is done.
    Completed { connection: ConnectionId, op: OpId, completion: Completion },
}

/// A fact of a commit.
#[derive(Debug)]
pub(crate) enum Part<'a> {
    Appended { channel: ChannelId, seq: Seq, message: &'a Message },
    Small(SmallFact<'a>),
}

impl Journal {
    pub(crate) fn new(log: Log) -> Self {
        let active = log.segments().last().map_or(SegmentId(0), |segment| segment.id);
        Self { log, active, scratch: BytesMut::new(), waiting: VecDeque::new() }
    }

    /// Appends a message.
    pub(crate) fn append_message(
        &mut self,
        purpose: Purpose,
        channel: ChannelId,
        seq: Seq,
        counts: Counts,
        message: &Message,
    ) -> Result<Appended, Refused> {
        self.make_room(record::appended_prefix_bytes(message, counts));
        record::write_appended(&mut self.scratch, channel, seq, counts, message);
        let prefix = self.scratch.split().freeze();
        self.append(purpose, APPENDED, &[prefix, message.head.clone(), message.body.clone()])
    }

    /// Appends a fact without a message.
    pub(crate) fn append_fact(
        &mut self,
        purpose: Purpose,
        fact: &SmallFact<'_>,
    ) -> Result<Appended, Refused> {
        self.make_room(FACT_BYTES);
        let kind = record::write(&mut self.scratch, fact);
        let payload = self.scratch.split().freeze();
        self.append(purpose, kind, &[payload])
    }

    /// Appends several facts that count as a whole.
    pub(crate) fn append_commit(
        &mut self,
        purpose: Purpose,
        facts: &[Part<'_>],
    ) -> Result<Appended, Refused> {
        let mut parts: Vec<Bytes> = Vec::with_capacity(1 + 3 * facts.len());
        varint::write(&mut self.scratch, facts.len() as u64);
        for fact in facts {
            match fact {
                Part::Appended { channel, seq, message } => {
                    let counts = Counts::default();
                    let bytes = record::appended_prefix_bytes(message, counts) + message.size_bytes();
                    record::write_part_header(&mut self.scratch, APPENDED, bytes);
                    record::write_appended(&mut self.scratch, *channel, *seq, counts, message);
                    parts.push(self.scratch.split().freeze());
                    parts.extend([message.head.clone(), message.body.clone()]);
                }
                Part::Small(fact) => {
                    let mut payload = BytesMut::new();
                    let kind = record::write(&mut payload, fact);
                    record::write_part_header(&mut self.scratch, kind, payload.len());
                    self.scratch.extend_from_slice(&payload);
                }
            }
        }
        parts.push(self.scratch.split().freeze());
        self.append(purpose, COMMIT, &parts)
    }

    /// The segment of the last record.
    pub(crate) const fn active(&self) -> SegmentId {
        self.active
    }

    /// So much is unwritten that what can wait should.
    pub(crate) fn is_behind(&self) -> bool {
        self.log.unwritten_bytes() > BEHIND_BYTES
    }

    fn append(&mut self, purpose: Purpose, kind: u8, parts: &[Bytes]) -> Result<Appended, Refused> {
        let appended = self.log.append(purpose, kind, parts)?;
        self.active = appended.position.segment;
        Ok(appended)
    }

    /// When the record `lsn` is as durable as configured, `then` is due; not before what was said earlier.
    pub(crate) fn when_durable(&mut self, lsn: Lsn, then: Durable) {
        let lsn = self.waiting.back().map_or(lsn, |(last, _)| lsn.max(*last));
        self.waiting.push_back((lsn, then));
    }

    /// When the record `lsn` is as durable as configured, sequences of the queue below `end` are ready.
    pub(crate) fn when_ready(&mut self, lsn: Lsn, channel: ChannelId, end: u64) {
        if let Some((last, Durable::Ready { channel: of, end: upto })) = self.waiting.back_mut()
            && *of == channel
        {
            (*last, *upto) = (lsn.max(*last), end);
            return;
        }
        self.when_durable(lsn, Durable::Ready { channel, end });
    }

    /// The next thing that has become due.
    pub(crate) fn poll_durable(&mut self) -> Option<Durable> {
        let confirmed = self.log.confirmed();
        self.waiting.pop_front_if(|(lsn, _)| *lsn <= confirmed).map(|(_, then)| then)
    }

    /// Everything that waits, after the log has failed.
    pub(crate) fn take_waiting(&mut self) -> VecDeque<(Lsn, Durable)> {
        std::mem::take(&mut self.waiting)
    }

    /// Prefixes of many messages share one allocation.
    fn make_room(&mut self, bytes: usize) {
        if self.scratch.capacity() < bytes {
            self.scratch.reserve(bytes.max(SCRATCH_BYTES));
        }
    }
}

/// Room for a small fact; a larger one makes the buffer grow.
const FACT_BYTES: usize = 512;
const SCRATCH_BYTES: usize = 64 * 1024;
/// Unwritten bytes beyond which survivors are not moved for now.
const BEHIND_BYTES: u64 = 1024 * 1024;
