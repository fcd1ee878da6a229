//! The thread of the disk: recovers the journal, then carries out storage operations one after the other.
//!
//! Writes and syncs block, so they have a thread of their own. Batching is natural: while one barrier runs,
//! the shard goes on; what it appends meanwhile is the next operation.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::thread::JoinHandle;
use std::time::Duration;

use berth_broker::{Broker, Settings};
use berth_log::{Action, Storage, StorageOp, execute};

use crate::clock::Clock;
use crate::mailbox::Inbox;
use crate::metrics::Metrics;
use crate::shard::Letter;

/// Starts the thread. It ends when the sender is dropped.
///
/// # Errors
/// The system gives no thread.
pub(crate) fn spawn<S: Storage + Send + 'static>(
    storage: S,
    settings: Settings,
    clock: Clock,
    inbox: Arc<Inbox<Letter>>,
    metrics: Arc<Metrics>,
) -> std::io::Result<(mpsc::Sender<StorageOp>, JoinHandle<()>)> {
    let (sender, operations) = mpsc::channel();
    let thread = std::thread::Builder::new()
        .name("berth-log".into())
        .spawn(move || serve(storage, settings, clock, &inbox, &metrics, &operations))?;
    Ok((sender, thread))
}

fn serve<S: Storage>(
    mut storage: S,
    settings: Settings,
    clock: Clock,
    inbox: &Inbox<Letter>,
    metrics: &Metrics,
    operations: &Receiver<StorageOp>,
) {
    match Broker::open(&mut storage, settings, clock.now()) {
        Ok((broker, recovered)) => inbox.push([Letter::Recovered(Box::new(broker), recovered)]),
        Err(error) => return inbox.push([Letter::NotRecovered(error)]),
    }
    while let Ok(operation) = operations.recv() {
        let is_barrier = matches!(&operation.action, Action::Write { sync, .. } if !sync.is_empty());
        let begun = clock.monotonic();
        let stored = execute(&mut storage, operation);
        if is_barrier {
            let took: Duration = clock.monotonic().saturating_since(begun);
            metrics.sync_seconds.observe(took.as_secs_f64());
        }
        inbox.push([Letter::Stored(stored)]);
    }
}
