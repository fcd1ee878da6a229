//! Facts to state: what a process finds when it starts.
//!
//! Replay decides nothing. Each fact changes the state as it did when it was written; what only lived in
//! memory (who had reserved what) is gone, so that everything that is not settled is ready at its place. If
//! the last process did not stop in order, everything that may have been delivered counts as received once
//! more; that is a decision, so it is written down as a fact before anything else.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;

use berth_log::{Error, FileId, Log, Position, Record, Report, SegmentId, Storage, Tag, execute};
use berth_types::{ChannelName, Instant, Pattern, Seq};
use bytes::Bytes;

use crate::Settings;
use crate::index::{Dropped, Entry, Index};
use crate::pager::{self, Indexes, Pager};
use crate::queue::{Queue, Queues};
use crate::record::{self, ChannelId, Fact, Header};
use crate::space::Live;

/// What was found at start: one line of the log for the operator.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Recovered {
    /// What the journal found.
    pub log: Report,
    /// Queues that exist.
    pub queues: u64,
    /// Messages that are live.
    pub messages: u64,
    /// Messages marked redelivered because the last process did not stop in order.
    pub redelivered: u64,
}

/// The state that the journal describes.
pub(crate) struct Restored {
    pub(crate) log: Log,
    pub(crate) queues: Queues,
    pub(crate) pager: Pager,
    pub(crate) live: Live,
    /// The fact to write first: what counts as received once more. None in a new journal.
    pub(crate) opened: Option<Vec<(ChannelId, Seq)>>,
}

/// Reads the journal.
pub(crate) fn replay<S: Storage>(
    storage: &mut S,
    settings: &Settings,
) -> Result<(Restored, Recovered), Error> {
    let shared = RefCell::new(storage);
    let mut shared = Shared(&shared);
    let side = shared.create(pager::FILE, 0);
    side.map_err(|source| Error::Io { action: berth_log::IoAction::Create, file: pager::FILE, source })?;
    let mut replay = Replay {
        storage: shared,
        lanes: Lanes::default(),
        pager: Pager::new(settings.index_bytes),
        live: Live::default(),
        next_channel: 1,
        seq_floor: 0,
        catalog_in: None,
    };
    let visit = &mut |_, record: Record| replay.record(&record);
    let (log, report) = Log::open(&mut Shared(shared.0), settings.log.clone(), berth_log::Lsn(0), visit)?;
    replay.lanes.0.retain(|_, lane| lane.name.is_some() || lane.index.ready() > 0);
    if replay.lanes.0.values().any(|lane| lane.name.is_none()) {
        return Err(Error::Corrupt { file: FileId::Meta, offset: 0, reason: "a queue in use has no name" });
    }
    let mut redelivered = Vec::new();
    let mut messages = 0;
    if !report.clean {
        let marks = replay.lanes.0.iter().filter(|(_, lane)| lane.mark.get() > 0);
        let marks: Vec<(ChannelId, Seq)> = marks.map(|(channel, lane)| (*channel, lane.mark)).collect();
        for (channel, upto) in marks {
            let count = replay.redelivered(channel, upto).map_err(unreadable)?;
            if count > 0 {
                redelivered.push((channel, upto));
                messages += count;
            }
        }
    }
    let restored = replay.restored();
    let recovered = Recovered {
        queues: restored.1.len() as u64,
        messages: restored.2.messages,
        redelivered: messages,
        log: report,
    };
    let opened = (recovered.log.last_lsn > berth_log::Lsn(0)).then_some(redelivered);
    let (pager, queues, live) = restored;
    Ok((Restored { log, queues, pager, live, opened }, recovered))
}

/// The state while facts come in.
struct Replay<'a, S> {
    storage: Shared<'a, S>,
    lanes: Lanes,
    pager: Pager,
    live: Live,
    next_channel: u32,
    seq_floor: u64,
    catalog_in: Option<SegmentId>,
}

#[derive(Default)]
struct Lanes(BTreeMap<ChannelId, Lane>);

/// A queue as far as the facts have described it; its name may come last.
struct Lane {
    name: Option<ChannelName>,
    index: Index,
    mark: Seq,
    stated_in: Option<SegmentId>,
    bytes: u64,
}

type Visited = Result<(), &'static str>;

impl<S: Storage> Replay<'_, S> {
    fn record(&mut self, record: &Record) -> Visited {
        let fact = record::read(record.kind, &record.payload).map_err(|_| "not a fact of this release")?;
        self.fact(fact, record.position)?;
        self.shrink()
    }

    fn fact(&mut self, fact: Fact, position: Position) -> Visited {
        match fact {
            Fact::Opened { redelivered } => {
                for (channel, upto) in redelivered {
                    self.redelivered(channel, upto)?;
                }
                self.lanes.0.values_mut().for_each(|lane| lane.mark = Seq::new(0));
            }
            Fact::Catalog { next_channel, seq_floor } => {
                self.next_channel = self.next_channel.max(next_channel);
                self.seq_floor = self.seq_floor.max(seq_floor);
                self.catalog_in = Some(position.segment);
            }
            Fact::Channel { id, pattern: Pattern::Queues, next_seq, mark, name } => {
                let lane = self.lane(id);
                lane.name = Some(name);
                lane.mark = mark;
                lane.stated_in = Some(position.segment);
                lane.index.skip_to(next_seq);
            }
            Fact::Channel { .. } => return Err("a channel of a pattern that this release does not store"),
            Fact::Forgotten { id } => {
                if let Some(lane) = self.lanes.0.remove(&id) {
                    if lane.index.ready() > 0 {
                        return Err("a queue was forgotten that is not empty");
                    }
                    self.seq_floor = self.seq_floor.max(lane.index.next().get() - 1);
                }
            }
            Fact::Appended(header) => self.appended(&header, position)?,
            Fact::Settled { channel, accepted, rejected } => {
                for (first, last) in accepted.into_iter().chain(rejected) {
                    self.settled(channel, first, last)?;
                }
            }
            Fact::Requeued { channel, first, items } => {
                for (new, item) in (first.get()..).zip(items) {
                    self.load_before(channel, item.seq)?;
                    let mut dropped = Dropped::default();
                    let lane = self.lane(channel);
                    let old = lane.index.replay_settled(item.seq, &mut dropped);
                    self.pager.dropped(dropped);
                    match old {
                        Some(entry) => {
                            let entry = entry.with_counts(item.counts);
                            self.place(channel, Seq::new(new), entry)?;
                        }
                        None => self.lane(channel).index.skip_to(Seq::new(new + 1)),
                    }
                }
            }
            Fact::Mark { channel, upto } => self.lane(channel).mark = upto,
            Fact::Commit(facts) => {
                for fact in facts {
                    self.fact(fact, position)?;
                }
            }
        }
        Ok(())
    }

    fn appended(&mut self, header: &Header, position: Position) -> Visited {
        let entry = Entry::new(position, header.part, header.size, header.counts);
        self.live.add(&entry);
        self.lane(header.channel).bytes += u64::from(header.size);
        if let Some(old) = self.place(header.channel, header.seq, entry)? {
            self.live.remove(&old);
            self.lane(header.channel).bytes -= u64::from(old.size);
        }
        Ok(())
    }

    /// Puts an entry to its place; returns what stood there.
    fn place(&mut self, channel: ChannelId, seq: Seq, entry: Entry) -> Result<Option<Entry>, &'static str> {
        while let Some(first) = self.lane(channel).index.page_of(seq) {
            self.load(channel, first)?;
        }
        let placed = self.lane(channel).index.replay_appended(seq, entry);
        if placed.in_block {
            self.pager.added(channel, placed.listed);
        }
        Ok(placed.replaced)
    }

    fn settled(&mut self, channel: ChannelId, first: Seq, last: Seq) -> Visited {
        self.load_before(channel, last)?;
        for seq in first.get()..=last.get() {
            let mut dropped = Dropped::default();
            let lane = self.lane(channel);
            let entry = lane.index.replay_settled(Seq::new(seq), &mut dropped);
            if let Some(entry) = entry {
                lane.bytes -= u64::from(entry.size);
                self.live.remove(&entry);
            }
            self.pager.dropped(dropped);
        }
        Ok(())
    }

    fn redelivered(&mut self, channel: ChannelId, upto: Seq) -> Result<u64, &'static str> {
        self.load_before(channel, upto)?;
        Ok(self.lane(channel).index.replay_redelivered(upto))
    }

    fn lane(&mut self, channel: ChannelId) -> &mut Lane {
        self.next_channel = self.next_channel.max(channel.0.saturating_add(1));
        self.lanes.0.entry(channel).or_insert_with(|| Lane {
            name: None,
            index: Index::new(Seq::new(1)),
            mark: Seq::new(0),
            stated_in: None,
            bytes: 0,
        })
    }

    fn load_before(&mut self, channel: ChannelId, seq: Seq) -> Visited {
        while let Some(first) = self.lane(channel).index.page_before(seq) {
            self.load(channel, first)?;
        }
        Ok(())
    }

    fn load(&mut self, channel: ChannelId, first: u64) -> Visited {
        let index = &mut self.lanes.0.get_mut(&channel).ok_or("a queue that is not there")?.index;
        self.pager.load(channel, first, index);
        self.run_pager()
    }

    fn shrink(&mut self) -> Visited {
        self.pager.shrink(Instant::ZERO, &mut self.lanes);
        self.run_pager()
    }

    fn run_pager(&mut self) -> Visited {
        while let Some(op) = self.pager.poll_storage() {
            let stored = execute(&mut self.storage, op);
            let Tag::Side(number) = stored.tag else { return Err("an operation of somebody else") };
            let done = self.pager.handle_stored(Instant::ZERO, number, stored.outcome, &mut self.lanes);
            done.map_err(|_| "the index that was put aside cannot be read back")?;
        }
        Ok(())
    }

    fn restored(self) -> (Pager, Queues, Live) {
        let mut queues = Queues::restored(self.next_channel, self.seq_floor, self.catalog_in);
        for (channel, lane) in self.lanes.0 {
            let Some(name) = lane.name else { continue };
            let mut index = lane.index;
            index.end_replay();
            let mut queue = Queue::new(name, index);
            queue.stated_in = lane.stated_in;
            queue.bytes = lane.bytes;
            queues.insert(channel, queue);
        }
        (self.pager, queues, self.live)
    }
}

impl Indexes for Lanes {
    fn index(&mut self, channel: ChannelId) -> Option<&mut Index> {
        self.0.get_mut(&channel).map(|lane| &mut lane.index)
    }
}

fn unreadable(reason: &'static str) -> Error {
    Error::Corrupt { file: pager::FILE, offset: 0, reason }
}

/// One storage for the log and, between its calls, for the index.
struct Shared<'a, S>(&'a RefCell<&'a mut S>);

impl<S> Clone for Shared<'_, S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S> Copy for Shared<'_, S> {}

impl<S: Storage> Storage for Shared<'_, S> {
    fn list(&mut self) -> io::Result<Vec<(FileId, u64)>> {
        self.0.borrow_mut().list()
    }

    fn create(&mut self, file: FileId, len: u64) -> io::Result<()> {
        self.0.borrow_mut().create(file, len)
    }

    fn write_at(&mut self, file: FileId, offset: u64, parts: &[Bytes]) -> io::Result<()> {
        self.0.borrow_mut().write_at(file, offset, parts)
    }

    fn sync(&mut self, file: FileId) -> io::Result<()> {
        self.0.borrow_mut().sync(file)
    }

    fn read_at(&mut self, file: FileId, offset: u64, len: usize) -> io::Result<Bytes> {
        self.0.borrow_mut().read_at(file, offset, len)
    }

    fn truncate(&mut self, file: FileId, len: u64) -> io::Result<()> {
        self.0.borrow_mut().truncate(file, len)
    }

    fn remove(&mut self, file: FileId) -> io::Result<()> {
        self.0.borrow_mut().remove(file)
    }

    fn rename(&mut self, from: FileId, to: FileId) -> io::Result<()> {
        self.0.borrow_mut().rename(from, to)
    }
}
