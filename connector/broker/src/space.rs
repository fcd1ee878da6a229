//! Giving the journal's space back.
//!
//! The broker counts what is live in each segment. Segments at the head without live messages are dropped,
//! after the facts that must outlast them (which channels there are, from which sequence they go on) were
//! written again. When the journal has grown beyond about twice what is live, the survivors of its oldest
//! segment are appended again, each under the sequence it has, and the segment goes too. So a settlement
//! always lies after the message that it settles, and every segment needs no more than those after it.

use std::collections::{BTreeMap, VecDeque};

use berth_log::{Position, Purpose, Read, Record, Refused, SegmentId};
use berth_types::{Pattern, Seq, TxnId};

use crate::broker::Broker;
use crate::consume::foreign;
use crate::index::Entry;
use crate::queue::Queues;
use crate::record::{self, ChannelId, SmallFact};

/// What is live, by segment.
#[derive(Debug, Default)]
pub(crate) struct Live {
    segments: BTreeMap<SegmentId, (u64, u64)>,
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
}

impl Live {
    pub(crate) fn add(&mut self, entry: &Entry) {
        let (messages, bytes) = self.segments.entry(entry.segment()).or_default();
        *messages += 1;
        *bytes += entry.cost();
        self.messages += 1;
        self.bytes += entry.cost();
    }

    pub(crate) fn remove(&mut self, entry: &Entry) {
        let segment = entry.segment();
        let (messages, bytes) = self.segments.get_mut(&segment).expect("what is removed was added");
        *messages -= 1;
        *bytes -= entry.cost();
        if *messages == 0 {
            self.segments.remove(&segment);
        }
        self.messages -= 1;
        self.bytes -= entry.cost();
    }

    /// The oldest segment with something live.
    fn oldest(&self) -> Option<SegmentId> {
        self.segments.first_key_value().map(|(segment, _)| *segment)
    }
}

/// What is known about the journal's space.
#[derive(Debug, Default)]
pub(crate) struct Space {
    /// The segment of the last append.
    active: SegmentId,
    /// Segments before this one are given back.
    head: SegmentId,
    /// The active segment when it was last considered whether survivors must move.
    considered: Option<SegmentId>,
    moving: Option<Moving>,
    /// The journal took no more: survivors wait for its next write.
    pub(crate) is_stalled: bool,
}

/// Survivors of one segment on their way to the end of the journal.
#[derive(Debug)]
struct Moving {
    segment: SegmentId,
    todo: VecDeque<Todo>,
    reading: BTreeMap<u64, Survivor>,
    /// The block that must stay in memory until its survivors have moved.
    pinned: Option<(ChannelId, u64)>,
}

#[derive(Debug)]
enum Todo {
    Message(Survivor),
    /// Entries of this block may lie in the segment.
    Page {
        channel: ChannelId,
        first: u64,
    },
}

/// A live message that must move.
#[derive(Clone, Copy, Debug)]
struct Survivor {
    channel: ChannelId,
    seq: Seq,
    /// Under which it was reserved when it was found.
    txn: Option<TxnId>,
    position: Position,
}

impl Space {
    /// Whether a survivor is read under this token.
    pub(crate) fn is_reading(&self, token: u64) -> bool {
        self.moving.as_ref().is_some_and(|moving| moving.reading.contains_key(&token))
    }

    /// Whether a read of the moving segment is out.
    fn reads_before(&self, head: SegmentId) -> bool {
        let reading = self.moving.iter().flat_map(|moving| moving.reading.values());
        reading.into_iter().any(|survivor| survivor.position.segment < head)
    }
}

impl Broker {
    /// Drops segments that nobody needs, and moves survivors when there is too much that nobody needs.
    pub(crate) fn reclaim(&mut self) {
        self.space.active = self.space.active.max(self.journal.active());
        self.space.head = self.space.head.max(self.journal.log.oldest());
        self.drop_head();
        if self.space.moving.is_none() && self.space.considered != Some(self.space.active) {
            self.space.considered = Some(self.space.active);
            self.consider_moving();
        }
        self.move_survivors();
    }

    /// Records read for a move.
    pub(crate) fn handle_survivor(&mut self, token: u64, record: &Record) {
        let moving = self.space.moving.as_mut();
        let Some(survivor) = moving.and_then(|moving| moving.reading.remove(&token)) else { return };
        let Some(entry) = self.entry_at(&survivor) else { return };
        let Ok((header, message)) = record::message(record.kind, &record.payload, entry.part) else {
            self.fail(foreign(record.position));
            return;
        };
        if header.channel != survivor.channel {
            self.fail(foreign(record.position));
            return;
        }
        let Survivor { channel, seq, .. } = survivor;
        match self.journal.append_message(Purpose::Relocate, channel, seq, entry.counts, &message) {
            Ok(appended) => {
                let moved = Entry::new(appended.position, 0, entry.size, entry.counts);
                self.set_entry(&survivor, moved);
                self.live.remove(&entry);
                self.live.add(&moved);
                self.stats.relocated += 1;
            }
            Err(Refused::Busy) => {
                self.space.is_stalled = true;
                if let Some(moving) = &mut self.space.moving {
                    moving.todo.push_back(Todo::Message(survivor));
                }
            }
            Err(_) => self.end_moving(),
        }
    }

    /// Writes what the journal must go on to say about a queue, if it says nothing yet.
    pub(crate) fn state_channel(&mut self, channel: ChannelId) -> Result<(), Refused> {
        match self.queues.known(channel).stated_in {
            Some(_) => Ok(()),
            None => self.state_again(channel, Purpose::Publish),
        }
    }

    fn state_again(&mut self, channel: ChannelId, purpose: Purpose) -> Result<(), Refused> {
        let queue = self.queues.known(channel);
        let fact = SmallFact::Channel {
            id: channel,
            pattern: Pattern::Queues,
            next_seq: queue.index.next(),
            mark: Seq::new(queue.mark),
            name: &queue.name,
        };
        let appended = self.journal.append_fact(purpose, &fact)?;
        queue.stated_in = Some(appended.position.segment);
        Ok(())
    }

    /// Writes the numbers that no queue carries.
    pub(crate) fn state_catalog(&mut self, purpose: Purpose) -> Result<(), Refused> {
        let (next_channel, seq_floor) = self.queues.catalog();
        let fact = SmallFact::Catalog { next_channel, seq_floor };
        let appended = self.journal.append_fact(purpose, &fact)?;
        self.queues.catalog_in = Some(appended.position.segment);
        Ok(())
    }

    fn drop_head(&mut self) {
        let head = self.live.oldest().unwrap_or(self.space.active).min(self.space.active);
        if head <= self.space.head || self.is_opening() {
            return;
        }
        if self.reads.reads_before(head) || self.space.reads_before(head) {
            return;
        }
        let stated = self.queues.iter().filter(|(_, queue)| queue.stated_in.is_some_and(|at| at < head));
        let stated: Vec<ChannelId> = stated.map(|(channel, _)| channel).collect();
        for channel in stated {
            if self.state_again(channel, Purpose::Relocate).is_err() {
                return;
            }
        }
        if self.queues.catalog_in.is_some_and(|at| at < head)
            && self.state_catalog(Purpose::Relocate).is_err()
        {
            return;
        }
        self.journal.log.truncate_head(head);
        self.space.head = head;
        self.space.considered = None;
    }

    /// Starts to move the survivors of the oldest segment, if that is due.
    fn consider_moving(&mut self) {
        let used: u64 = self.journal.log.segments().map(|segment| u64::from(segment.used_bytes)).sum();
        let slack = MOVING_SLACK_SEGMENTS * u64::from(self.settings.log.segment_bytes);
        let Some(segment) = self.live.oldest() else { return };
        if used <= 2 * self.live.bytes + slack || segment >= self.space.active {
            return;
        }
        let mut todo = VecDeque::new();
        for (channel, queue) in self.queues.iter() {
            let (survivors, pages) = queue.index.survivors(segment);
            let survivors = survivors.into_iter().map(|(seq, entry)| Survivor {
                channel,
                seq,
                txn: None,
                position: entry.position(),
            });
            todo.extend(survivors.map(Todo::Message));
            todo.extend(pages.into_iter().map(|first| Todo::Page { channel, first }));
        }
        for (txn, reservation) in &self.txns {
            let open = reservation.items.iter().filter(|item| item.is_open);
            let here = open.filter(|item| item.entry.segment() == segment).map(|item| Survivor {
                channel: reservation.channel,
                seq: item.seq,
                txn: Some(*txn),
                position: item.entry.position(),
            });
            todo.extend(here.map(Todo::Message));
        }
        self.space.moving = Some(Moving { segment, todo, reading: BTreeMap::new(), pinned: None });
    }

    fn move_survivors(&mut self) {
        while let Some(moving) = &mut self.space.moving {
            let enough = moving.reading.len() >= MOVING_READS_MAX;
            if enough || self.space.is_stalled || self.journal.is_behind() {
                return;
            }
            match moving.todo.pop_front() {
                Some(page @ Todo::Page { .. }) if !moving.reading.is_empty() => {
                    moving.todo.push_front(page);
                    return;
                }
                Some(Todo::Page { channel, first }) => {
                    if !self.expand(channel, first) {
                        return;
                    }
                }
                Some(Todo::Message(survivor)) => {
                    if self.entry_at(&survivor).is_some() {
                        self.read_survivor(survivor);
                    }
                }
                None if moving.reading.is_empty() => {
                    self.end_moving();
                    self.space.considered = None;
                }
                None => return,
            }
        }
    }

    /// Replaces a block by the survivors in it; false when it must be read back first.
    fn expand(&mut self, channel: ChannelId, first: u64) -> bool {
        let Some(moving) = &mut self.space.moving else { return false };
        if let Some((channel, first)) = moving.pinned.take() {
            pin(&mut self.queues, channel, first, false);
        }
        let Some(queue) = self.queues.get_mut(channel) else { return true };
        let found = queue.index.survivors_in(first, moving.segment);
        let Some(found) = found.map(Iterator::collect::<Vec<(Seq, Entry)>>) else {
            self.pager.load(channel, first, &mut queue.index);
            moving.todo.push_front(Todo::Page { channel, first });
            return false;
        };
        pin(&mut self.queues, channel, first, true);
        moving.pinned = Some((channel, first));
        for (seq, entry) in found.into_iter().rev() {
            let position = entry.position();
            moving.todo.push_front(Todo::Message(Survivor { channel, seq, txn: None, position }));
        }
        true
    }

    fn end_moving(&mut self) {
        let pinned = self.space.moving.take().and_then(|moving| moving.pinned);
        if let Some((channel, first)) = pinned {
            pin(&mut self.queues, channel, first, false);
        }
    }

    fn read_survivor(&mut self, survivor: Survivor) {
        let token = self.reads.token();
        if let Some(moving) = &mut self.space.moving {
            moving.reading.insert(token, survivor);
        }
        if let Read::Ready(record) = self.journal.log.read(survivor.position, token) {
            self.handle_survivor(token, &record);
        }
    }

    /// The entry of a survivor, while it is where it was found.
    fn entry_at(&mut self, survivor: &Survivor) -> Option<Entry> {
        let entry = match survivor.txn {
            None => *self.queues.get_mut(survivor.channel)?.index.get_mut(survivor.seq)?,
            Some(txn) => {
                let items = &self.txns.get(&txn)?.items;
                let at = items.binary_search_by_key(&survivor.seq, |item| item.seq).ok()?;
                items.get(at).filter(|item| item.is_open)?.entry
            }
        };
        (entry.position() == survivor.position).then_some(entry)
    }

    fn set_entry(&mut self, survivor: &Survivor, entry: Entry) {
        match survivor.txn {
            None => {
                let index = &mut self.queues.known(survivor.channel).index;
                if let Some(place) = index.get_mut(survivor.seq) {
                    *place = entry;
                }
            }
            Some(txn) => {
                let Some(reservation) = self.txns.get_mut(&txn) else { return };
                let found = reservation.items.binary_search_by_key(&survivor.seq, |item| item.seq);
                if let Ok(at) = found {
                    reservation.items[at].entry = entry;
                }
            }
        }
    }
}

fn pin(queues: &mut Queues, channel: ChannelId, first: u64, pinned: bool) {
    if let Some(block) = queues.get_mut(channel).and_then(|queue| queue.index.block_mut(first)) {
        block.pinned = pinned;
    }
}

/// The journal may be larger than twice what is live by so many segments.
const MOVING_SLACK_SEGMENTS: u64 = 4;
/// Records of moving messages that are read at once.
const MOVING_READS_MAX: usize = 64;
