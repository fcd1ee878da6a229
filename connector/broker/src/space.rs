//! Giving the journal's space back.
//!
//! The broker counts what is live in each segment. Segments at the head without live messages are dropped,
//! after the facts that must outlast them (which channels there are, from which sequence they go on) were
//! written again. When the journal has grown beyond about twice what is live, the survivors of its oldest
//! segment are appended again, each under the sequence it has, and the segment goes too. So a settlement
//! always lies after the message that it settles, and every segment needs no more than those after it.
//!
//! On a full disk that is not waited for. Publishes leave the reserve alone; requeues, settlements and marks
//! eat it up. Once they have begun to, survivors move, segment by segment, as long as some segment has what
//! nobody needs, and only when there is room for the survivors of a whole segment. Requeues are refused
//! first, so that settlements have room meanwhile; when that is used up too, they wait for the move. Where
//! no move can help they may use what is left: only they free space then.

use std::collections::{BTreeMap, VecDeque};

use berth_log::{Appended, Position, Purpose, Read, Record, Refused, SegmentId};
use berth_types::{Pattern, Seq, TxnId};

use crate::broker::Broker;
use crate::consume::foreign;
use crate::index::Entry;
use crate::journal::Journal;
use crate::queue::Queues;
use crate::record::{self, ChannelId, SmallFact};

/// What is live, by segment.
#[derive(Debug, Default)]
pub(crate) struct Live {
    segments: BTreeMap<SegmentId, LiveIn>,
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
}

/// What is live in a segment.
#[derive(Clone, Copy, Debug, Default)]
struct LiveIn {
    messages: u64,
    bytes: u64,
    /// No message of it was larger.
    largest: u64,
}

impl Live {
    pub(crate) fn add(&mut self, entry: &Entry) {
        let within = self.segments.entry(entry.segment()).or_default();
        within.messages += 1;
        within.bytes += entry.cost();
        within.largest = within.largest.max(entry.cost());
        self.messages += 1;
        self.bytes += entry.cost();
    }

    pub(crate) fn remove(&mut self, entry: &Entry) {
        let segment = entry.segment();
        let within = self.segments.get_mut(&segment).expect("what is removed was added");
        within.messages -= 1;
        within.bytes -= entry.cost();
        if within.messages == 0 {
            self.segments.remove(&segment);
        }
        self.messages -= 1;
        self.bytes -= entry.cost();
    }

    fn of(&self, segment: SegmentId) -> LiveIn {
        self.segments.get(&segment).copied().unwrap_or_default()
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
    /// When it was last considered whether survivors must move.
    considered: Option<Stage>,
    /// Since when survivors have moved because the disk is short.
    lap: Option<Lap>,
    moving: Option<Moving>,
    /// The journal took no more: survivors wait for its next write.
    pub(crate) is_stalled: bool,
}

/// What decides whether survivors must move: the active segment, and on a full disk how much room is left, in
/// sixteenths of a segment.
type Stage = (SegmentId, Option<u64>);

/// One time through the whole journal, on a full disk.
#[derive(Clone, Copy, Debug)]
struct Lap {
    /// The segment that was active when it began.
    end: SegmentId,
    /// Settlements until then. A lap during which there was none is the last one: what it did not gain, the
    /// next one does not either.
    settled: u64,
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
        let was_moving = self.space.moving.is_some();
        if !was_moving && !self.is_opening() {
            self.consider_moving();
        }
        self.move_survivors();
        if was_moving && self.space.moving.is_none() {
            self.drop_head();
            self.run_waiting();
        }
    }

    /// Appends what goes on when the disk is full. It waits for a move, which takes room before it gives more
    /// back. Else what frees space uses the room that is kept for moves.
    pub(crate) fn append_upkeep(
        &mut self,
        purpose: Purpose,
        append: impl Fn(&mut Journal, Purpose) -> Result<Appended, Refused>,
    ) -> Result<Appended, Refused> {
        match append(&mut self.journal, purpose) {
            Err(Refused::Full) if self.is_giving_back() => Err(Refused::Busy),
            Err(Refused::Full) if purpose != Purpose::Requeue => append(&mut self.journal, Purpose::Relocate),
            appended => appended,
        }
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
            // The rest has to wait until there is other room.
            Err(_) => {
                self.end_moving();
                self.space.considered = Some(self.stage());
            }
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

    /// Whether a segment is about to be given back: its survivors move, or it is still read.
    fn is_giving_back(&self) -> bool {
        self.space.moving.is_some() || self.reads.reads_before(self.needed_from())
    }

    /// The oldest segment that somebody needs.
    fn needed_from(&self) -> SegmentId {
        self.live.oldest().unwrap_or(self.space.active).min(self.space.active)
    }

    fn drop_head(&mut self) {
        let head = self.needed_from();
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

    fn stage(&self) -> Stage {
        let log = &self.journal.log;
        let sixteenth = u64::from(self.settings.log.segment_bytes / 16).max(1);
        (self.space.active, log.is_short().then(|| log.room_bytes() / sixteenth))
    }

    /// Starts to move the survivors of the oldest segment, if that is due.
    fn consider_moving(&mut self) {
        let stage = self.stage();
        let is_short = stage.1.is_some();
        // What is given back on a full disk is awaited: it is the room for the next move.
        let is_awaited =
            is_short && (self.journal.log.is_reclaiming() || self.needed_from() > self.space.head);
        if self.space.considered == Some(stage) || is_awaited {
            return;
        }
        self.space.considered = Some(stage);
        let Some(segment) = self.live.oldest().filter(|oldest| *oldest < self.space.active) else { return };
        if self.is_sparse() || (is_short && self.gains(segment)) {
            self.start_moving(segment);
        }
    }

    /// Whether the journal is much larger than what is live.
    fn is_sparse(&self) -> bool {
        let used: u64 = self.journal.log.segments().map(|segment| u64::from(segment.used_bytes)).sum();
        let slack = MOVING_SLACK_SEGMENTS * u64::from(self.settings.log.segment_bytes);
        used > 2 * self.live.bytes + slack
    }

    /// Whether moves that begin with that of `oldest` gain space, and there is room for it.
    fn gains(&mut self, oldest: SegmentId) -> bool {
        let mut stated: BTreeMap<SegmentId, u64> = BTreeMap::new();
        for (_, queue) in self.queues.iter() {
            if let Some(segment) = queue.stated_in {
                *stated.entry(segment).or_default() += queue.name.as_str().len() as u64 + STATED_BYTES;
            }
        }
        let (mut need, mut is_dead) = (u64::MAX, false);
        for segment in self.journal.log.segments() {
            let live = self.live.of(segment.id);
            let needed = live.bytes + stated.get(&segment.id).copied().unwrap_or_default();
            let used = u64::from(segment.used_bytes);
            is_dead |= used.saturating_sub(needed) > u64::from(segment.capacity_bytes) / 16;
            if segment.id == oldest {
                let moved = needed.min(used);
                need = moved + moved / 8 + live.largest;
            }
        }
        let stats = &self.stats;
        let settled = stats.accepted + stats.rejected + stats.requeued + stats.released;
        let lap = Lap { end: self.space.active, settled };
        let before = *self.space.lap.get_or_insert(lap);
        if oldest > before.end {
            if settled == before.settled {
                return false;
            }
            self.space.lap = Some(lap);
        }
        is_dead && need <= self.journal.log.room_bytes()
    }

    fn start_moving(&mut self, segment: SegmentId) {
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
/// Bytes of the fact that states a queue, besides its name; about, and rather more.
const STATED_BYTES: u64 = 64;
/// Records of moving messages that are read at once.
const MOVING_READS_MAX: usize = 64;
