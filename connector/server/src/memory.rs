//! One budget of bytes for what all clients hold: unfinished frames, publishes without a confirm, output that
//! is not written. What the broker keeps is not in it.
//!
//! Each connection has [`FREE_BYTES`] that nobody counts; what it holds beyond is charged here, once a turn
//! of its driver. While nine tenths of the budget are taken it is tight, and then:
//!
//! - A connection whose input and unconfirmed publishes are beyond its free bytes is not read. Everybody else
//!   is, so consumers go on: acknowledgements are small.
//! - Whoever is charged and has not moved a byte in either direction for [`PATIENCE`] may be ended, with the
//!   error `server busy`: of those the one that holds the least first, as it has got on the least, and as
//!   many as it takes to be at ease again. So many half frames cannot wait for each other for ever: each
//!   round ends at least one, and the largest comes to its end. A frame that does not fit even alone ends
//!   the same way.
//!
//! When it is no longer tight everybody is read again.
//!
//! The bound: the budget is passed by at most one read of each connection, which is what each may still take
//! when it has just become tight, and one message of output.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use berth_types::{ConnectionId, Instant};
use tokio::sync::Notify;

use crate::clock::Clock;
use crate::connections::Entry;
use crate::mailbox::{Event, lock};

/// What a connection may hold and nobody counts.
pub(crate) const FREE_BYTES: usize = 64 * 1024;

/// How long a connection may hold memory and not get on while memory is tight.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// How often it is looked who has to go, while memory is tight.
const ROUND: Duration = Duration::from_secs(1);

/// The budget of the process.
#[derive(Debug)]
pub(crate) struct Budget {
    tight_bytes: u64,
    used: AtomicU64,
    holders: Mutex<BTreeMap<ConnectionId, Holder>>,
    tightened: Notify,
}

#[derive(Debug)]
struct Holder {
    entry: Arc<Entry>,
    bytes: u64,
    moved: Instant,
    is_leaving: bool,
    waker: Option<Waker>,
}

impl Budget {
    /// A budget of so many bytes.
    pub(crate) fn new(bytes: u64) -> Self {
        Self {
            tight_bytes: bytes / 10 * 9,
            used: AtomicU64::new(0),
            holders: Mutex::default(),
            tightened: Notify::new(),
        }
    }

    /// Bytes beyond which it is tight.
    pub(crate) const fn tight_bytes(&self) -> u64 {
        self.tight_bytes
    }

    /// Bytes that are charged.
    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Ends who has to go, while memory is tight. Never returns.
    pub(crate) async fn watch(&self, clock: Clock) {
        loop {
            let tightened = self.tightened.notified();
            if !self.is_tight() {
                tightened.await;
            }
            tokio::time::sleep(ROUND).await;
            self.relieve(clock.monotonic());
        }
    }

    fn is_tight(&self) -> bool {
        self.used() >= self.tight_bytes
    }

    /// Tells as many as it takes that they have to go.
    fn relieve(&self, now: Instant) {
        let mut holders = lock(&self.holders);
        let leaving: u64 = holders.values().filter(|h| h.is_leaving).map(|h| h.bytes).sum();
        let mut expected = self.used().saturating_sub(leaving);
        let mut stuck: Vec<_> = holders
            .values_mut()
            .filter(|h| !h.is_leaving && now.saturating_since(h.moved) >= PATIENCE)
            .collect();
        stuck.sort_by_key(|holder| holder.bytes);
        for holder in stuck {
            if expected < self.tight_bytes {
                break;
            }
            expected = expected.saturating_sub(holder.bytes);
            holder.is_leaving = true;
            holder.entry.outbox.push(Event::Overload);
        }
    }
}

/// What one connection is charged; given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Charge {
    budget: Arc<Budget>,
    entry: Arc<Entry>,
    bytes: u64,
}

impl Charge {
    /// Nothing yet.
    pub(crate) fn new(budget: Arc<Budget>, entry: Arc<Entry>) -> Self {
        Self { budget, entry, bytes: 0 }
    }

    /// The connection holds `held` bytes, its free ones among them; `has_moved`: some came or went since the
    /// last call.
    pub(crate) fn set(&mut self, clock: Clock, held: usize, has_moved: bool) {
        let bytes = held.saturating_sub(FREE_BYTES) as u64;
        if bytes != self.bytes || (has_moved && bytes > 0) {
            self.update(bytes, has_moved, clock.monotonic());
        }
    }

    fn update(&mut self, bytes: u64, has_moved: bool, now: Instant) {
        let budget = &self.budget;
        let mut holders = lock(&budget.holders);
        if bytes == 0 {
            holders.remove(&self.entry.id);
        } else {
            let holder = holders.entry(self.entry.id).or_insert_with(|| Holder {
                entry: Arc::clone(&self.entry),
                bytes,
                moved: now,
                is_leaving: false,
                waker: None,
            });
            holder.bytes = bytes;
            if has_moved {
                holder.moved = now;
            }
        }
        // Under the lock, so that nobody waits for room that has come in between.
        let before = budget.used();
        let after = before.saturating_sub(self.bytes) + bytes;
        budget.used.store(after, Ordering::Relaxed);
        self.bytes = bytes;
        if before < budget.tight_bytes && after >= budget.tight_bytes {
            budget.tightened.notify_waiters();
        }
        if before >= budget.tight_bytes && after < budget.tight_bytes {
            for holder in holders.values_mut() {
                // It may take its time anew: until now it was not allowed to get on.
                holder.moved = holder.moved.max(now);
                holder.waker.take().into_iter().for_each(Waker::wake);
            }
        }
    }

    /// Ready while there is room for more of this connection's input, of which it holds so many bytes.
    pub(crate) fn poll_room(&self, cx: &Context<'_>, inbound: usize) -> Poll<()> {
        if inbound <= FREE_BYTES || !self.budget.is_tight() {
            return Poll::Ready(());
        }
        let mut holders = lock(&self.budget.holders);
        match holders.get_mut(&self.entry.id) {
            Some(holder) if self.budget.is_tight() => {
                holder.waker = Some(cx.waker().clone());
                Poll::Pending
            }
            _ => Poll::Ready(()),
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.update(0, false, Instant::ZERO);
        }
    }
}

#[cfg(test)]
mod tests;
