//! Messages in memory: those just appended, and those read back ahead of a consumer.
//!
//! Each queue has its [`Bodies`]; one [`Cache`] bounds them all. A consumer that keeps up finds what it takes
//! among the recently appended and never reads the disk. The cache decides only what is forgotten: the oldest
//! appended first.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use berth_types::{Message, Seq};

use crate::record::ChannelId;

/// The bound over all queues.
#[derive(Debug)]
pub(crate) struct Cache {
    bytes_max: usize,
    bytes: usize,
    /// Those of them that were read back.
    ahead_bytes: usize,
    messages: usize,
    /// What was appended, oldest first; some of it is gone since.
    order: VecDeque<(ChannelId, Seq)>,
}

/// The messages of one queue that are in memory.
#[derive(Debug, Default)]
pub(crate) struct Bodies {
    /// Appended lately: consecutive sequences from `recent_first` on.
    recent: VecDeque<Option<Arc<Message>>>,
    recent_first: u64,
    /// Read back, or (none) being read.
    ahead: BTreeMap<u64, Option<Arc<Message>>>,
    /// Bytes of what was read back.
    ahead_bytes: usize,
}

impl Cache {
    pub(crate) const fn new(bytes_max: usize) -> Self {
        Self { bytes_max, bytes: 0, ahead_bytes: 0, messages: 0, order: VecDeque::new() }
    }

    /// Bytes in memory, with what a message costs besides its bytes.
    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether there is no room for reading ahead: half of it all at most, since what was read back is wanted
    /// soon and what was appended lately may not be.
    pub(crate) const fn is_full(&self) -> bool {
        self.ahead_bytes >= self.bytes_max / 2
    }

    /// Keeps a message that was just appended. Call [`Cache::oldest_beyond`] until it has nothing more.
    pub(crate) fn keep(&mut self, channel: ChannelId, bodies: &mut Bodies, seq: Seq, message: Arc<Message>) {
        self.bytes += cost(&message);
        self.messages += 1;
        self.order.push_back((channel, seq));
        bodies.append(seq, message);
    }

    /// A message to look at so that the bound is kept: pass it to [`Cache::forget`] or, when it may stay, to
    /// [`Cache::stays`].
    pub(crate) fn oldest_beyond(&mut self) -> Option<(ChannelId, Seq, bool)> {
        let beyond = self.bytes > self.bytes_max;
        let worn = self.order.len() > 2 * self.messages + ORDER_SLACK;
        if !beyond && !worn {
            return None;
        }
        self.order.pop_front().map(|(channel, seq)| (channel, seq, beyond))
    }

    /// Forgets a message of the recently appended, if it is still there.
    pub(crate) fn forget(&mut self, bodies: &mut Bodies, seq: Seq) {
        if let Some(message) = bodies.take_recent(seq) {
            self.bytes -= cost(&message);
            self.messages -= 1;
        }
    }

    /// Puts a message to the end of the order, if it is still there.
    pub(crate) fn stays(&mut self, channel: ChannelId, bodies: &Bodies, seq: Seq) {
        if bodies.has_recent(seq) {
            self.order.push_back((channel, seq));
        }
    }

    /// Takes a message out for a consumer.
    pub(crate) fn take(&mut self, bodies: &mut Bodies, seq: Seq) -> Option<Arc<Message>> {
        if let Some(message) = bodies.take_recent(seq) {
            self.bytes -= cost(&message);
            self.messages -= 1;
            return Some(message);
        }
        let message = bodies.ahead.remove(&seq.get())??;
        self.bytes -= cost(&message);
        self.ahead_bytes -= cost(&message);
        bodies.ahead_bytes -= cost(&message);
        Some(message)
    }

    /// Keeps a message that was read back.
    pub(crate) fn keep_ahead(&mut self, bodies: &mut Bodies, seq: Seq, message: Arc<Message>) {
        let Some(place) = bodies.ahead.get_mut(&seq.get()) else { return };
        self.bytes += cost(&message);
        self.ahead_bytes += cost(&message);
        bodies.ahead_bytes += cost(&message);
        *place = Some(message);
    }

    /// Forgets everything that was read back for a queue: its consumers are gone.
    pub(crate) fn forget_ahead(&mut self, bodies: &mut Bodies) {
        self.bytes -= bodies.ahead_bytes;
        self.ahead_bytes -= bodies.ahead_bytes;
        bodies.ahead_bytes = 0;
        bodies.ahead.clear();
    }
}

impl Bodies {
    /// Whether the message is in memory or will be.
    pub(crate) fn is_expected(&self, seq: Seq) -> bool {
        self.has_recent(seq) || self.ahead.contains_key(&seq.get())
    }

    /// The message will be read back.
    pub(crate) fn expect(&mut self, seq: Seq) {
        self.ahead.insert(seq.get(), None);
    }

    /// Messages read back or being read.
    pub(crate) fn ahead(&self) -> usize {
        self.ahead.len()
    }

    /// The message, if it is in memory.
    pub(crate) fn get(&self, seq: Seq) -> Option<&Arc<Message>> {
        let recent = self.place(seq).and_then(|at| self.recent.get(at)).and_then(Option::as_ref);
        recent.or_else(|| self.ahead.get(&seq.get()).and_then(Option::as_ref))
    }

    pub(crate) fn has_recent(&self, seq: Seq) -> bool {
        self.place(seq).is_some_and(|at| self.recent.get(at).is_some_and(Option::is_some))
    }

    fn append(&mut self, seq: Seq, message: Arc<Message>) {
        if self.recent.is_empty() {
            self.recent_first = seq.get();
        }
        debug_assert!(self.recent_first + self.recent.len() as u64 <= seq.get());
        // Sequences in between belong to requeued messages, whose bodies are not here.
        while self.recent_first + (self.recent.len() as u64) < seq.get() {
            self.recent.push_back(None);
        }
        self.recent.push_back(Some(message));
    }

    fn take_recent(&mut self, seq: Seq) -> Option<Arc<Message>> {
        let at = self.place(seq)?;
        let message = self.recent.get_mut(at)?.take()?;
        while let Some(None) = self.recent.front() {
            self.recent.pop_front();
            self.recent_first += 1;
        }
        Some(message)
    }

    fn place(&self, seq: Seq) -> Option<usize> {
        usize::try_from(seq.get().checked_sub(self.recent_first)?).ok()
    }
}

/// Bytes of a message in memory: its own, and about what its parts cost.
fn cost(message: &Message) -> usize {
    message.size_bytes() + MESSAGE_OVERHEAD_BYTES
}

const MESSAGE_OVERHEAD_BYTES: usize = 256;
/// Names of messages gone that the order may hold besides two for each that is there.
const ORDER_SLACK: usize = 1024;
