//! The index of one queue: which sequences are live, where their records lie, in which order they are handed
//! out.
//!
//! Entries that no consumer has taken stand in *blocks*: runs of at most [`INDEX_BLOCK_ENTRIES`] consecutive
//! sequences. They are taken in order, so that a block is only filled at the tail and used up at the head;
//! what lies between may be on disk ([`crate::pager`]). An entry that is taken leaves its block; when it is
//! given back it waits in `returned` at its old place, before every block. `returned` is therefore never
//! larger than what was once in flight together.
//!
//! The same type serves live operation and replay. Replay meets sequences out of order (survivors that were
//! appended again) and settlements of what it never saw taken; both follow from one rule: *everything below
//! the cursor was taken once*.
//!
//! The index decides nothing, reads nothing and knows neither durability nor consumers.

use std::collections::BTreeMap;

use berth_log::{Position, SegmentId};
use berth_types::Seq;
use berth_types::limits::INDEX_BLOCK_ENTRIES;

use crate::record::Counts;

/// What is known of a live message without reading it. 28 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    segment: u32,
    offset: u32,
    length: u32,
    /// Which fact of its commit, from 1; 0 when the record holds nothing else.
    pub(crate) part: u32,
    /// Bytes of head and body.
    pub(crate) size: u32,
    pub(crate) counts: Counts,
}

impl Entry {
    /// Bytes of an entry in the side file.
    pub(crate) const BYTES: usize = 28;

    pub(crate) fn new(position: Position, part: u32, size: u32, counts: Counts) -> Self {
        let segment = u32::try_from(position.segment.0).expect("fewer than 2^32 segments are ever made");
        Self { segment, offset: position.offset, length: position.length, part, size, counts }
    }

    pub(crate) fn position(&self) -> Position {
        Position { segment: self.segment(), offset: self.offset, length: self.length }
    }

    pub(crate) fn segment(&self) -> SegmentId {
        SegmentId(u64::from(self.segment))
    }

    /// The same message, received more often.
    pub(crate) const fn with_counts(self, counts: Counts) -> Self {
        Self { counts, ..self }
    }

    /// Bytes of the journal that this message keeps alive, about; the same for as long as it lies there.
    pub(crate) fn cost(&self) -> u64 {
        match self.part {
            0 => u64::from(self.length) + 32,
            _ => u64::from(self.size) + 96,
        }
    }

    pub(crate) fn to_bytes(self) -> [u8; Self::BYTES] {
        let words = [
            self.segment,
            self.offset,
            self.length,
            self.part,
            self.size,
            self.counts.received,
            self.counts.failures,
        ];
        let mut bytes = [0; Self::BYTES];
        for (place, word) in bytes.chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    pub(crate) fn from_bytes(bytes: &[u8; Self::BYTES]) -> Self {
        let mut words = [0u32; 7];
        for (word, place) in words.iter_mut().zip(bytes.chunks_exact(4)) {
            *word = u32::from_le_bytes(place.try_into().expect("chunks of four"));
        }
        let [segment, offset, length, part, size, received, failures] = words;
        Self { segment, offset, length, part, size, counts: Counts { received, failures } }
    }
}

/// The index of one queue.
#[derive(Debug)]
pub(crate) struct Index {
    blocks: BTreeMap<u64, Block>,
    returned: BTreeMap<u64, Entry>,
    /// Every sequence below was taken once, or never existed.
    cursor: u64,
    /// Every sequence below was given out once.
    next: u64,
    /// Entries in blocks.
    waiting: u64,
}

/// A run of consecutive sequences, named by its first one.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) page: Page,
    /// Entries from the start of the run that have left it.
    taken: u32,
    /// No entry lies in an older segment.
    oldest: u32,
    /// Touched since the pager looked last.
    used: bool,
    /// The pager knows of it.
    pub(crate) listed: bool,
    /// Its survivors are on their way: it stays in memory.
    pub(crate) pinned: bool,
}

/// Where the entries of a block are.
#[derive(Debug)]
pub(crate) enum Page {
    Here(Vec<Entry>),
    /// Being written to a slot of the side file; still here until that is done.
    Leaving(Vec<Entry>, u32),
    /// In a slot of the side file.
    Away {
        slot: u32,
        entries: u32,
    },
    /// Being read back.
    Coming {
        entries: u32,
    },
}

/// What comes next in queue order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Peek {
    Entry(Seq, Entry),
    /// The block that starts here must be read back first.
    Page(u64),
    Empty,
}

impl Index {
    /// An empty index whose next sequence is `next`.
    pub(crate) const fn new(next: Seq) -> Self {
        Self {
            blocks: BTreeMap::new(),
            returned: BTreeMap::new(),
            cursor: next.get(),
            next: next.get(),
            waiting: 0,
        }
    }

    pub(crate) const fn next(&self) -> Seq {
        Seq::new(self.next)
    }

    /// The sequence that comes next, at least.
    pub(crate) fn front(&self) -> u64 {
        self.returned.first_key_value().map_or(self.cursor, |(seq, _)| *seq)
    }

    /// Raises the next sequence.
    pub(crate) fn skip_to(&mut self, next: Seq) {
        self.next = self.next.max(next.get());
    }

    /// Entries that nobody holds.
    pub(crate) fn ready(&self) -> u64 {
        self.waiting + self.returned.len() as u64
    }

    /// Adds the entry of the next sequence. True when a block has reached the size at which the pager wants
    /// it.
    pub(crate) fn push(&mut self, entry: Entry) -> (Seq, Option<u64>) {
        let seq = self.next;
        let worth_listing = self.append(seq, entry);
        self.next = seq + 1;
        (Seq::new(seq), worth_listing)
    }

    /// What comes next.
    pub(crate) fn peek(&self) -> Peek {
        if let Some((seq, entry)) = self.returned.first_key_value() {
            return Peek::Entry(Seq::new(*seq), *entry);
        }
        match self.blocks.first_key_value() {
            None => Peek::Empty,
            Some((first, block)) => match block.entries() {
                None => Peek::Page(*first),
                Some(entries) => {
                    let entry = entries.get(block.taken as usize).expect("a used-up block is removed");
                    Peek::Entry(Seq::new(first + u64::from(block.taken)), *entry)
                }
            },
        }
    }

    /// Takes what [`Index::peek`] has shown. Returns what became free when that used up a block.
    pub(crate) fn take(&mut self) -> Option<Dropped> {
        if self.returned.pop_first().is_some() {
            return None;
        }
        let mut head = self.blocks.first_entry().expect("peek has shown an entry");
        let block = head.get_mut();
        block.taken += 1;
        block.used = true;
        self.cursor = self.cursor.max(*head.key() + u64::from(head.get().taken));
        self.waiting -= 1;
        if head.get().taken < head.get().len() {
            return None;
        }
        Some(Dropped::of(&head.remove()))
    }

    /// Puts an entry back to its old place: it was taken, or is known from the journal as taken.
    pub(crate) fn give_back(&mut self, seq: Seq, entry: Entry) {
        debug_assert!(seq.get() < self.cursor);
        self.returned.insert(seq.get(), entry);
    }

    /// The entries after the next one and including it, in order, as far as they are in memory.
    pub(crate) fn upcoming(&self) -> impl Iterator<Item = (Seq, &Entry)> {
        let returned = self.returned.iter().map(|(seq, entry)| (Seq::new(*seq), entry));
        let blocks = self.blocks.iter().map_while(|(first, block)| Some((first, block, block.entries()?)));
        returned.chain(blocks.flat_map(|(first, block, entries)| {
            let taken = block.taken as usize;
            let seqs = (first + taken as u64..).map(Seq::new);
            seqs.zip(entries.get(taken..).unwrap_or_default())
        }))
    }

    /// The first block that is not in memory, if fewer than `within` entries stand before it.
    pub(crate) fn page_ahead(&self, within: u32) -> Option<u64> {
        let mut before = 0;
        for (first, block) in &self.blocks {
            if before >= within {
                return None;
            }
            if matches!(block.page, Page::Away { .. }) {
                return Some(*first);
            }
            before += block.len() - block.taken;
        }
        None
    }

    /// The live entry of `seq`, if nobody holds it and it is in memory.
    pub(crate) fn get_mut(&mut self, seq: Seq) -> Option<&mut Entry> {
        if let Some(entry) = self.returned.get_mut(&seq.get()) {
            return Some(entry);
        }
        let (first, block) = self.blocks.range_mut(..=seq.get()).next_back()?;
        let at = usize::try_from(seq.get() - first).ok()?;
        if at < block.taken as usize {
            return None;
        }
        block.used = true;
        match &mut block.page {
            Page::Here(entries) | Page::Leaving(entries, _) => entries.get_mut(at),
            Page::Away { .. } | Page::Coming { .. } => None,
        }
    }

    /// The block of `seq`, when it is not in memory.
    pub(crate) fn page_of(&self, seq: Seq) -> Option<u64> {
        if seq.get() >= self.next {
            return None;
        }
        let (first, block) = self.blocks.range(..=seq.get()).next_back()?;
        let covers = seq.get() - first < u64::from(block.len());
        (covers && matches!(block.page, Page::Away { .. })).then_some(*first)
    }

    pub(crate) fn block_mut(&mut self, first: u64) -> Option<&mut Block> {
        self.blocks.get_mut(&first)
    }

    /// Live entries in `segment` that are in memory, and blocks that must be read back to know.
    pub(crate) fn survivors(&self, segment: SegmentId) -> (Vec<(Seq, Entry)>, Vec<u64>) {
        let returned = self.returned.iter().filter(|(_, entry)| entry.segment() == segment);
        let mut found: Vec<_> = returned.map(|(seq, entry)| (Seq::new(*seq), *entry)).collect();
        let mut pages = Vec::new();
        for (first, block) in &self.blocks {
            if u64::from(block.oldest) > segment.0 {
                continue;
            }
            match self.survivors_in(*first, segment) {
                None => pages.push(*first),
                Some(in_block) => found.extend(in_block),
            }
        }
        (found, pages)
    }

    /// Live entries of one block in `segment`; none when it must be read back first.
    pub(crate) fn survivors_in(
        &self,
        first: u64,
        segment: SegmentId,
    ) -> Option<impl Iterator<Item = (Seq, Entry)>> {
        let (taken, entries) = match self.blocks.get(&first) {
            None => (0, &[][..]),
            Some(block) => (block.taken as usize, block.entries()?.as_slice()),
        };
        let seqs = (first + taken as u64..).map(Seq::new);
        let live = seqs.zip(entries.get(taken..).unwrap_or_default());
        Some(live.filter(move |(_, entry)| entry.segment() == segment).map(|(seq, entry)| (seq, *entry)))
    }

    fn append(&mut self, seq: u64, entry: Entry) -> Option<u64> {
        self.waiting += 1;
        let is_last = self.blocks.last_key_value().is_none_or(|(first, _)| *first < seq);
        let before = match is_last {
            true => self.blocks.last_entry().map(|block| (*block.key(), block.into_mut())),
            false => self.blocks.range_mut(..seq).next_back().map(|(first, block)| (*first, block)),
        };
        if let Some((first, block)) = before {
            let extends = first + u64::from(block.len()) == seq;
            if let Page::Here(entries) = &mut block.page
                && extends
                && entries.len() < INDEX_BLOCK_ENTRIES
            {
                entries.push(entry);
                block.used = true;
                block.oldest = block.oldest.min(entry.segment);
                let listed = block.listed || entries.len() < LISTED_FROM;
                block.listed |= !listed;
                return (!listed).then_some(first);
            }
        }
        let page = Page::Here(vec![entry]);
        let oldest = entry.segment;
        let block = Block { page, taken: 0, oldest, used: true, listed: false, pinned: false };
        self.blocks.insert(seq, block);
        None
    }
}

/// Replay: what the journal says, in the order of the journal. Blocks that [`Index::page_of`] and
/// [`Index::page_before`] name must be in memory.
impl Index {
    /// A record appended (or appended again) for `seq`. Returns the entry that it replaces.
    pub(crate) fn replay_appended(&mut self, seq: Seq, entry: Entry) -> Replayed {
        let is_new = seq.get() >= self.next;
        if !is_new && let Some(old) = self.get_mut(seq) {
            return Replayed { replaced: Some(std::mem::replace(old, entry)), in_block: false, listed: None };
        }
        let in_block = seq.get() >= self.cursor;
        let listed = if in_block {
            self.append(seq.get(), entry)
        } else {
            self.returned.insert(seq.get(), entry);
            None
        };
        self.next = self.next.max(seq.get() + 1);
        Replayed { replaced: None, in_block, listed }
    }

    /// `seq` ended, or moved: everything up to it was taken once. Returns its entry, if it was live.
    pub(crate) fn replay_settled(&mut self, seq: Seq, dropped: &mut Dropped) -> Option<Entry> {
        self.replay_taken(seq, dropped);
        self.next = self.next.max(seq.get() + 1);
        self.returned.remove(&seq.get())
    }

    /// Everything up to `upto` counts as received once more. Returns how many messages that were.
    pub(crate) fn replay_redelivered(&mut self, upto: Seq) -> u64 {
        let mut count = 0;
        for entry in self.returned.range_mut(..=upto.get()).map(|(_, entry)| entry) {
            entry.counts.received = entry.counts.received.saturating_add(1);
            count += 1;
        }
        for (first, block) in self.blocks.range_mut(..=upto.get()) {
            let (first, taken) = (*first, block.taken as usize);
            let (Page::Here(entries) | Page::Leaving(entries, _)) = &mut block.page else { continue };
            let upto = usize::try_from(upto.get() - first + 1).unwrap_or(usize::MAX).min(entries.len());
            for entry in entries.get_mut(taken..upto).unwrap_or_default() {
                entry.counts.received = entry.counts.received.saturating_add(1);
                count += 1;
            }
        }
        count
    }

    /// A block not in memory that starts at or before `seq` and at or after the cursor's block.
    pub(crate) fn page_before(&self, seq: Seq) -> Option<u64> {
        let mut away = self.blocks.range(..=seq.get()).filter(|(_, block)| block.entries().is_none());
        away.next().map(|(first, _)| *first)
    }

    /// The journal has been read: nothing below the first block will come.
    pub(crate) fn end_replay(&mut self) {
        let first = self.blocks.first_key_value().map(|(first, block)| first + u64::from(block.taken));
        self.cursor = self.cursor.max(first.unwrap_or(self.next));
    }

    fn replay_taken(&mut self, upto: Seq, dropped: &mut Dropped) {
        while self.cursor <= upto.get() {
            let Some(mut head) = self.blocks.first_entry() else { break };
            let first = *head.key();
            let block = head.get_mut();
            let seq = first + u64::from(block.taken);
            if seq > upto.get() {
                break;
            }
            let (Page::Here(entries) | Page::Leaving(entries, _)) = &block.page else { break };
            self.returned.insert(seq, entries[block.taken as usize]);
            self.waiting -= 1;
            block.taken += 1;
            if block.taken == block.len() {
                let one = Dropped::of(&head.remove());
                dropped.entries += one.entries;
            }
        }
        self.cursor = self.cursor.max(upto.get() + 1);
    }
}

/// What a replayed record did.
#[derive(Debug)]
pub(crate) struct Replayed {
    /// The entry that stood there before.
    pub(crate) replaced: Option<Entry>,
    /// A block has one more entry.
    pub(crate) in_block: bool,
    /// A block that the pager wants to know of.
    pub(crate) listed: Option<u64>,
}

/// Entries whose memory has become free.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Dropped {
    pub(crate) entries: u32,
}

impl Dropped {
    fn of(block: &Block) -> Self {
        Self { entries: block.len() }
    }
}

impl Block {
    /// The entries, when they are in memory.
    pub(crate) const fn entries(&self) -> Option<&Vec<Entry>> {
        match &self.page {
            Page::Here(entries) | Page::Leaving(entries, _) => Some(entries),
            Page::Away { .. } | Page::Coming { .. } => None,
        }
    }

    /// Entries of the run, taken ones included.
    pub(crate) const fn len(&self) -> u32 {
        match &self.page {
            Page::Here(entries) | Page::Leaving(entries, _) => entries.len() as u32,
            Page::Away { entries, .. } | Page::Coming { entries, .. } => *entries,
        }
    }

    /// Whether it was touched since the last call.
    pub(crate) const fn take_used(&mut self) -> bool {
        std::mem::replace(&mut self.used, false)
    }

    /// Its entries have been read back.
    pub(crate) fn arrive(&mut self, entries: Vec<Entry>) {
        self.oldest = entries.iter().map(|entry| entry.segment).min().unwrap_or(u32::MAX);
        self.page = Page::Here(entries);
        self.used = true;
    }
}

/// A block with fewer entries is not worth a slot of the side file.
const LISTED_FROM: usize = 64;
