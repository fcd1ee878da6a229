//! Which blocks of the queues' indexes are in memory, and the side file for the others.
//!
//! The pager counts the entries that are in memory. Beyond its budget it sends the blocks that were not
//! touched lately to slots of one side file (second chance: a block that was touched since the last look
//! stays for another round). A block keeps its entries until they are written, since reads may overtake
//! writes. The side file holds nothing that the journal does not hold, so it starts empty with every process,
//! is never synced, and a full disk only means that blocks stay in memory for a while longer.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use berth_log::{Action, FileId, IoAction, Outcome, StorageOp, Tag, Write};
use berth_types::Instant;
use berth_types::limits::INDEX_BLOCK_ENTRIES;
use bytes::{BufMut, Bytes, BytesMut};

use crate::index::{Dropped, Entry, Index, Page};
use crate::record::ChannelId;

/// Bookkeeping of blocks in memory and on disk.
#[derive(Debug)]
pub(crate) struct Pager {
    entries_max: u64,
    entries: u64,
    /// Blocks in memory that may leave, some of them gone since.
    clock: VecDeque<(ChannelId, u64)>,
    free: Vec<u32>,
    slots: u32,
    ops: VecDeque<StorageOp>,
    running: BTreeMap<u64, Running>,
    leaving: usize,
    next_op: u64,
    /// No block is sent away before this time: the disk was full.
    rests_until: Instant,
}

/// An operation on the side file that has been handed out.
#[derive(Debug)]
enum Running {
    Leaving { channel: ChannelId, first: u64, slot: u32 },
    Coming { channel: ChannelId, first: u64, slot: u32 },
}

/// Why an index cannot be read back.
pub(crate) type Failure = (IoAction, FileId, std::io::Error);

/// Finds the index of a queue that still exists.
pub(crate) trait Indexes {
    fn index(&mut self, channel: ChannelId) -> Option<&mut Index>;
}

impl Pager {
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self {
            entries_max: (bytes_max / Entry::BYTES) as u64,
            entries: 0,
            clock: VecDeque::new(),
            free: Vec::new(),
            slots: 0,
            ops: VecDeque::new(),
            running: BTreeMap::new(),
            leaving: 0,
            next_op: 0,
            rests_until: Instant::ZERO,
        }
    }

    /// Bytes of index in memory.
    pub(crate) const fn bytes(&self) -> u64 {
        self.entries * Entry::BYTES as u64
    }

    /// Whether another block can be in memory without sending one away.
    pub(crate) const fn has_room(&self) -> bool {
        self.entries + INDEX_BLOCK_ENTRIES as u64 <= self.entries_max
    }

    /// One entry was added; `listed` is a block that has become worth a slot by it.
    pub(crate) fn added(&mut self, channel: ChannelId, listed: Option<u64>) {
        self.entries += 1;
        if let Some(first) = listed {
            self.clock.push_back((channel, first));
        }
    }

    /// A block is used up.
    pub(crate) fn dropped(&mut self, dropped: Dropped) {
        self.entries -= u64::from(dropped.entries);
    }

    /// Sends blocks away until the budget is kept, as far as there are any.
    pub(crate) fn shrink(&mut self, now: Instant, indexes: &mut impl Indexes) {
        let mut looks = 2 * self.clock.len();
        let on_the_way = |pager: &Self| (pager.leaving * INDEX_BLOCK_ENTRIES) as u64;
        while self.entries > self.entries_max + on_the_way(self) && self.leaving < LEAVING_MAX {
            if looks == 0 || now < self.rests_until {
                return;
            }
            looks -= 1;
            let Some((channel, first)) = self.clock.pop_front() else { return };
            let Some(block) = indexes.index(channel).and_then(|index| index.block_mut(first)) else {
                continue;
            };
            if block.take_used() || block.pinned {
                self.clock.push_back((channel, first));
                continue;
            }
            block.listed = false;
            if let Page::Here(entries) = &mut block.page {
                let entries = std::mem::take(entries);
                let slot = self.slot();
                self.write(slot, &entries, Running::Leaving { channel, first, slot });
                block.page = Page::Leaving(entries, slot);
            }
        }
    }

    /// Reads a block back, if that is not under way.
    pub(crate) fn load(&mut self, channel: ChannelId, first: u64, index: &mut Index) {
        let Some(block) = index.block_mut(first) else { return };
        let Page::Away { slot, entries } = block.page else { return };
        block.page = Page::Coming { entries };
        let len = entries as usize * Entry::BYTES;
        let action = Action::Read { file: FILE, offset: offset(slot), len };
        self.hand_out(action, Running::Coming { channel, first, slot });
    }

    pub(crate) fn poll_storage(&mut self) -> Option<StorageOp> {
        self.ops.pop_front()
    }

    /// Takes the result of an operation. Returns the queue whose block has come back.
    pub(crate) fn handle_stored(
        &mut self,
        now: Instant,
        number: u64,
        outcome: Outcome,
        indexes: &mut impl Indexes,
    ) -> Result<Option<ChannelId>, Failure> {
        match self.running.remove(&number) {
            Some(Running::Leaving { channel, first, slot }) => {
                self.leaving -= 1;
                let failed = matches!(outcome, Outcome::Failed { .. });
                if failed {
                    self.rests_until = now + REST;
                }
                let index = indexes.index(channel);
                let gone = index.is_some_and(|index| self.left(index, channel, first, slot, failed));
                if !gone {
                    self.free.push(slot);
                }
                Ok(None)
            }
            Some(Running::Coming { channel, first, slot }) => {
                let data = match outcome {
                    Outcome::Data(data) => data,
                    Outcome::Failed { action, file, source } => return Err((action, file, source)),
                    Outcome::Done => unreachable!("a read ends with data or fails"),
                };
                self.free.push(slot);
                let block = indexes.index(channel).and_then(|index| index.block_mut(first));
                let block = block.expect("a block that is being read back is not empty");
                let entries = decode(&data);
                self.entries += entries.len() as u64;
                block.arrive(entries);
                block.listed = true;
                self.clock.push_back((channel, first));
                Ok(Some(channel))
            }
            None => unreachable!("each operation ends once"),
        }
    }

    /// A block is written; unless it was touched meanwhile it leaves the memory. True when it has left.
    fn left(&mut self, index: &mut Index, channel: ChannelId, first: u64, slot: u32, failed: bool) -> bool {
        let Some(block) = index.block_mut(first) else { return false };
        let used = block.take_used() || block.pinned;
        let Page::Leaving(entries, of) = &mut block.page else { return false };
        if *of != slot {
            return false;
        }
        let entries = std::mem::take(entries);
        if failed || used {
            block.page = Page::Here(entries);
            block.listed = true;
            self.clock.push_back((channel, first));
            return false;
        }
        self.entries -= entries.len() as u64;
        block.page = Page::Away { slot, entries: entries.len() as u32 };
        true
    }

    fn slot(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.slots += 1;
            self.slots - 1
        })
    }

    fn write(&mut self, slot: u32, entries: &[Entry], running: Running) {
        let write = Write { file: FILE, offset: offset(slot), parts: vec![encode(entries)] };
        self.leaving += 1;
        self.hand_out(Action::Write { writes: vec![write], sync: Vec::new() }, running);
    }

    fn hand_out(&mut self, action: Action, running: Running) {
        let number = self.next_op;
        self.next_op += 1;
        self.running.insert(number, running);
        self.ops.push_back(StorageOp { tag: Tag::Side(number), action });
    }
}

/// The side file.
pub(crate) const FILE: FileId = FileId::Side(0);

fn offset(slot: u32) -> u64 {
    u64::from(slot) * (INDEX_BLOCK_ENTRIES * Entry::BYTES) as u64
}

fn encode(entries: &[Entry]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(entries.len() * Entry::BYTES);
    entries.iter().for_each(|entry| bytes.put_slice(&entry.to_bytes()));
    bytes.freeze()
}

fn decode(bytes: &[u8]) -> Vec<Entry> {
    let chunks = bytes.chunks_exact(Entry::BYTES);
    chunks.map(|chunk| Entry::from_bytes(chunk.try_into().expect("exact chunks"))).collect()
}

/// Blocks that are being written at once.
const LEAVING_MAX: usize = 16;
/// How long a disk that was full is left alone.
const REST: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::Peek;
    use crate::record::Counts;
    use berth_log::{Position, SegmentId, Stored};
    use berth_types::Seq;
    use proptest::prelude::*;

    /// One queue, its side file as bytes, and what the queue must hold: by sequence, in order.
    struct Bench {
        index: Index,
        pager: Pager,
        file: Vec<u8>,
        fails: bool,
        model: BTreeMap<u64, Entry>,
        held: Vec<(Seq, Entry)>,
    }

    struct One<'a>(&'a mut Index);

    impl Indexes for One<'_> {
        fn index(&mut self, _channel: ChannelId) -> Option<&mut Index> {
            Some(self.0)
        }
    }

    const CHANNEL: ChannelId = ChannelId(1);

    impl Bench {
        fn new() -> Self {
            let index = Index::new(Seq::new(1));
            let pager = Pager::new(1500 * Entry::BYTES);
            Self { index, pager, file: Vec::new(), fails: false, model: BTreeMap::new(), held: Vec::new() }
        }

        fn push(&mut self, count: u64) {
            for _ in 0..count {
                let at = self.index.next().get() as u32;
                let position =
                    Position { segment: SegmentId(u64::from(at / 700)), offset: at, length: at + 1 };
                let entry = Entry::new(position, at % 3, at, Counts { received: at % 5, failures: at % 2 });
                let (seq, listed) = self.index.push(entry);
                self.pager.added(CHANNEL, listed);
                self.model.insert(seq.get(), entry);
            }
        }

        fn take(&mut self, count: u64) {
            for _ in 0..count {
                match self.index.peek() {
                    Peek::Empty => assert!(self.model.is_empty()),
                    Peek::Page(first) => {
                        self.pager.load(CHANNEL, first, &mut self.index);
                        self.run();
                    }
                    Peek::Entry(seq, entry) => {
                        assert_eq!(self.model.pop_first(), Some((seq.get(), entry)));
                        if let Some(dropped) = self.index.take() {
                            self.pager.dropped(dropped);
                        }
                        self.held.push((seq, entry));
                    }
                }
            }
        }

        fn give_back(&mut self, count: usize) {
            for (seq, entry) in self.held.drain(..count.min(self.held.len())) {
                self.index.give_back(seq, entry);
                self.model.insert(seq.get(), entry);
            }
        }

        fn run(&mut self) {
            while let Some(op) = self.pager.poll_storage() {
                let stored = self.execute(op);
                let Tag::Side(number) = stored.tag else { panic!("a tag of the pager") };
                let arrived = self.pager.handle_stored(
                    Instant::ZERO,
                    number,
                    stored.outcome,
                    &mut One(&mut self.index),
                );
                arrived.unwrap();
            }
        }

        fn execute(&mut self, op: StorageOp) -> Stored {
            let outcome = match op.action {
                Action::Write { writes, .. } if self.fails => Outcome::Failed {
                    action: IoAction::Write,
                    file: writes[0].file,
                    source: std::io::ErrorKind::StorageFull.into(),
                },
                Action::Write { writes, .. } => {
                    let (at, bytes) = (writes[0].offset as usize, &writes[0].parts[0]);
                    self.file.resize(self.file.len().max(at + bytes.len()), 0);
                    self.file[at..at + bytes.len()].copy_from_slice(bytes);
                    Outcome::Done
                }
                Action::Read { offset, len, .. } => {
                    Outcome::Data(Bytes::copy_from_slice(&self.file[offset as usize..offset as usize + len]))
                }
                _ => panic!("the pager reads and writes"),
            };
            Stored { tag: op.tag, outcome }
        }

        fn shrink(&mut self, now: Instant) {
            self.pager.shrink(now, &mut One(&mut self.index));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn a_paged_index_is_a_list(ops in proptest::collection::vec((0u8..5, 1u64..2500), 1..40)) {
            let mut bench = Bench::new();
            for (op, count) in ops {
                match op {
                    0 | 1 => bench.push(count),
                    2 => bench.take(count),
                    3 => bench.give_back(count as usize),
                    _ => bench.shrink(Instant::ZERO),
                }
                // Writes finish late now and then: what is written may be touched meanwhile.
                if count % 3 != 0 {
                    bench.run();
                }
                prop_assert_eq!(bench.index.ready(), bench.model.len() as u64);
            }
            bench.run();
            bench.take(bench.model.len() as u64 + 1000);
            prop_assert!(bench.model.is_empty());
            prop_assert_eq!(bench.pager.entries, 0, "every entry that was counted is gone");
        }
    }

    #[test]
    fn a_backlog_keeps_to_the_budget_and_slots_are_used_again() {
        let mut bench = Bench::new();
        for round in 0..4 {
            for _ in 0..50 {
                bench.push(1000);
                for _ in 0..4 {
                    bench.shrink(Instant::ZERO);
                    bench.run();
                }
                assert!(bench.pager.entries <= 1500 + 2 * 1024, "{} in memory", bench.pager.entries);
            }
            bench.take(51_000);
            assert!(bench.model.is_empty(), "round {round}");
        }
        assert!(bench.pager.slots <= 60, "{} slots", bench.pager.slots);
    }

    #[test]
    fn a_full_disk_keeps_blocks_in_memory_for_a_while() {
        let mut bench = Bench::new();
        bench.push(10_000);
        bench.fails = true;
        for _ in 0..30 {
            bench.shrink(Instant::ZERO);
        }
        bench.run();
        assert_eq!(bench.pager.entries, 10_000);
        bench.shrink(Instant::ZERO);
        assert!(bench.pager.poll_storage().is_none(), "the disk is left alone");
        bench.fails = false;
        for _ in 0..30 {
            bench.shrink(Instant::ZERO + REST);
            bench.run();
        }
        assert!(bench.pager.entries < 3000);
        bench.take(20_000);
        assert!(bench.model.is_empty());
    }
}
