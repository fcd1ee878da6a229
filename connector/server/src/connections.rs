//! The live connections of the process: whom to tell that it goes down, and whether anybody still has work to
//! finish.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use berth_types::ConnectionId;
use tokio::sync::Notify;

use crate::mailbox::{Event, Outbox, lock};

/// One live connection.
#[derive(Debug)]
pub(crate) struct Entry {
    /// Its number in this process.
    pub(crate) id: ConnectionId,
    /// The client's address.
    pub(crate) remote: SocketAddr,
    /// What waits for it.
    pub(crate) outbox: Outbox,
    is_settled: AtomicBool,
    unsettled: Arc<Unsettled>,
}

impl Entry {
    /// Says whether the connection still has work to finish; cheap when nothing has changed.
    pub(crate) fn report_settled(&self, is_settled: bool) {
        if self.is_settled.load(Ordering::Relaxed) != is_settled {
            self.is_settled.store(is_settled, Ordering::Relaxed);
            self.unsettled.add(!is_settled);
        }
    }
}

/// How many connections have work to finish, and who waits for there being none.
#[derive(Debug, Default)]
struct Unsettled {
    count: AtomicUsize,
    changed: Notify,
}

impl Unsettled {
    fn add(&self, is_unsettled: bool) {
        if is_unsettled {
            self.count.fetch_add(1, Ordering::AcqRel);
        } else if self.count.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.changed.notify_waiters();
        }
    }
}

/// All live connections.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    live: Mutex<BTreeMap<ConnectionId, Arc<Entry>>>,
    last_id: AtomicU64,
    unsettled: Arc<Unsettled>,
    emptied: Notify,
}

impl Connections {
    /// Registers a connection, settled at first.
    pub(crate) fn enter(&self, remote: SocketAddr) -> Arc<Entry> {
        let id = ConnectionId::new(self.last_id.fetch_add(1, Ordering::Relaxed) + 1);
        let entry = Arc::new(Entry {
            id,
            remote,
            outbox: Outbox::default(),
            is_settled: AtomicBool::new(true),
            unsettled: Arc::clone(&self.unsettled),
        });
        lock(&self.live).insert(id, Arc::clone(&entry));
        entry
    }

    /// Forgets a connection that has ended.
    pub(crate) fn leave(&self, entry: &Entry) {
        entry.report_settled(true);
        let mut live = lock(&self.live);
        live.remove(&entry.id);
        if live.is_empty() {
            self.emptied.notify_waiters();
        }
    }

    /// How many are live.
    pub(crate) fn count(&self) -> usize {
        lock(&self.live).len()
    }

    /// Tells every live connection.
    pub(crate) fn tell(&self, event: fn() -> Event) {
        let entries: Vec<_> = lock(&self.live).values().cloned().collect();
        for entry in entries {
            entry.outbox.push(event());
        }
    }

    /// Waits until no connection has work to finish.
    pub(crate) async fn all_settled(&self) {
        loop {
            let changed = self.unsettled.changed.notified();
            if self.unsettled.count.load(Ordering::Acquire) == 0 {
                return;
            }
            changed.await;
        }
    }

    /// Waits until no connection is left.
    pub(crate) async fn all_gone(&self) {
        loop {
            let emptied = self.emptied.notified();
            if self.count() == 0 {
                return;
            }
            emptied.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn waits_for_those_with_work_and_for_the_last_to_leave() {
        let connections = Connections::default();
        let remote = "127.0.0.1:1".parse().unwrap();
        let (a, b) = (connections.enter(remote), connections.enter(remote));
        assert_ne!(a.id, b.id);
        connections.all_settled().await;
        a.report_settled(false);
        a.report_settled(false);
        let wait = tokio::time::timeout(Duration::from_secs(1), connections.all_settled());
        assert!(wait.await.is_err());
        a.report_settled(true);
        b.report_settled(false);
        connections.leave(&b);
        connections.all_settled().await;
        let wait = tokio::time::timeout(Duration::from_secs(1), connections.all_gone());
        assert!(wait.await.is_err());
        connections.leave(&a);
        connections.all_gone().await;
    }
}
