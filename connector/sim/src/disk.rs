//! The disk with its thread: operations one after the other, each done when its time is over, and what a
//! kill or a power cut makes of the one that was running.

use std::collections::VecDeque;

use berth_log::sim::{SimStorage, by_seed, keep_all};
use berth_log::{Action, Outcome, Storage, StorageOp, Stored, execute};
use berth_types::Instant;

use crate::random::Random;

/// A simulated disk and its queue.
#[derive(Debug, Default)]
pub(crate) struct Disk {
    pub(crate) storage: SimStorage,
    /// Operations, when each was handed over.
    queue: VecDeque<(Instant, StorageOp)>,
    /// When the operation at the front is done.
    pub(crate) busy_until: Option<Instant>,
    /// Everything appended before this instant has been written.
    pub(crate) written_before: Instant,
    /// Everything appended before this instant has been synced.
    pub(crate) synced_before: Instant,
    /// The disk has a bound at the moment.
    pub(crate) is_bounded: bool,
    /// A call is to fail that has not come yet.
    pub(crate) is_error_planned: bool,
    /// A mistake put in on purpose: barriers are answered and not done.
    skips_syncs: bool,
}

impl Disk {
    pub(crate) fn new(skips_syncs: bool) -> Self {
        Self { skips_syncs, ..Self::default() }
    }

    /// Bounds the disk to this size, or lets it be as large as it likes.
    pub(crate) fn bound(&mut self, bytes: Option<u64>) {
        self.is_bounded = bytes.is_some();
        self.storage.set_capacity(bytes);
    }

    pub(crate) fn submit(&mut self, now: Instant, op: StorageOp) {
        self.queue.push_back((now, op));
    }

    /// Whether an operation waits that has not begun.
    pub(crate) fn is_waiting(&self) -> bool {
        self.busy_until.is_none() && !self.queue.is_empty()
    }

    /// Does the operation at the front; what it was, and what became of it.
    pub(crate) fn finish(&mut self) -> Option<(String, Stored)> {
        self.busy_until = None;
        let (since, mut op) = self.queue.pop_front()?;
        if let (true, Action::Write { sync, .. }) = (self.skips_syncs, &mut op.action) {
            sync.clear();
        }
        let text = brief(&op.action);
        let (has_writes, has_syncs) = match &op.action {
            Action::Write { writes, sync } => (!writes.is_empty(), !sync.is_empty()),
            _ => (false, false),
        };
        let stored = execute(&mut self.storage, op);
        if matches!(stored.outcome, Outcome::Done) {
            if has_writes {
                self.written_before = since;
            }
            if has_syncs {
                self.synced_before = self.written_before;
            }
        }
        Some((text, stored))
    }

    /// The process is gone: what had not begun is never done, what was running is done in part.
    pub(crate) fn kill(&mut self, random: &mut Random) {
        if self.busy_until.take().is_some()
            && let Some((_, op)) = self.queue.pop_front()
            && let Action::Write { writes, .. } = op.action
        {
            let done = random.below(writes.len() as u64 + 1) as usize;
            for write in writes.into_iter().take(done) {
                // A disk with planned errors may refuse: then it is not done.
                let _refused = self.storage.write_at(write.file, write.offset, &write.parts);
            }
        }
        self.queue.clear();
        self.is_error_planned = false;
        self.storage.crash(&mut keep_all);
    }

    /// The power fails as well: each unsynced sector is old, new, something between, or garbage.
    pub(crate) fn cut_power(&mut self, random: &mut Random) {
        self.kill_without_crash(random);
        let (seed, garbage) = (random.draw(), random.chance(500));
        self.is_error_planned = false;
        self.storage.crash(&mut by_seed(seed, garbage));
    }

    /// The power fails during recovery. Recovery writes again what it has found, into the same sectors; the
    /// journal relies on it that a disk writes a sector whole or not at all, so none is garbage.
    pub(crate) fn cut_power_in_recovery(&mut self, random: &mut Random) {
        let seed = random.draw();
        self.is_error_planned = false;
        self.storage.crash(&mut by_seed(seed, false));
    }

    /// A call soon fails.
    pub(crate) fn plan_error(&mut self, calls_from_now: u64) -> u64 {
        let call = self.storage.calls() + calls_from_now;
        self.is_error_planned = true;
        self.storage.fail_at(call);
        call
    }

    fn kill_without_crash(&mut self, random: &mut Random) {
        if self.busy_until.take().is_some()
            && let Some((_, op)) = self.queue.pop_front()
            && random.chance(500)
            && let Action::Write { writes, .. } = op.action
        {
            for write in writes {
                let _refused = self.storage.write_at(write.file, write.offset, &write.parts);
            }
        }
        self.queue.clear();
    }
}

fn brief(action: &Action) -> String {
    match action {
        Action::Write { writes, sync } => {
            let bytes: usize = writes.iter().flat_map(|write| &write.parts).map(bytes::Bytes::len).sum();
            format!("writes {bytes}{}", if sync.is_empty() { "" } else { ", syncs" })
        }
        other => format!("{other:?}"),
    }
}
