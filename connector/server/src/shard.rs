//! The task that owns the broker: letters in, completions out, storage operations to the log thread.
//!
//! One shard: a commit and a dead-letter move cross channels, so channels are not spread over several. It
//! works in turns: up to [`TURN_LETTERS`] letters, then what they gave rise to, so that the log thread starts
//! early and a long inbox does not delay the first answers. It never waits for a connection.
//!
//! Until the journal is recovered every operation is refused as `BrokerNotReady`; connections hear `Ready`
//! when they are opened and whenever it changes. Once the disk has failed, [`Shard::run`] ends with the error
//! and the process must end: what is true is on the disk, and only recovery reads it.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::mpsc;
use std::task::Poll;

use berth_broker::{Broker, QueueStats, Recovered, Stats};
use berth_engine::port::{Completion, Operation, Readiness, Refusal};
use berth_log::{StorageOp, Stored};
use berth_types::{ChannelName, ConnectionId, Now, OpId};
use tokio::sync::oneshot;
use tokio::time::Sleep;

use crate::clock::Clock;
use crate::connections::Entry;
use crate::mailbox::{Event, Inbox};

/// What the shard is told.
#[derive(Debug)]
pub(crate) enum Letter {
    /// A connection has come.
    Opened(Arc<Entry>),
    /// A connection asks for something.
    Operation(ConnectionId, OpId, Operation),
    /// A connection is gone and waits for nothing.
    Gone(ConnectionId),
    /// The log thread has recovered the journal.
    Recovered(Box<Broker>, Recovered),
    /// The log thread could not.
    NotRecovered(berth_log::Error),
    /// The log thread has carried out an operation.
    Stored(Stored),
    /// The admin port wants numbers.
    Look(Look, oneshot::Sender<View>),
    /// End in order.
    Close,
}

/// Which queues the admin port wants to see besides the totals.
#[derive(Debug)]
pub(crate) struct Look {
    /// Only names after this one.
    pub(crate) after: Option<ChannelName>,
    /// At most so many.
    pub(crate) queues_max: usize,
}

/// The broker's numbers at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct View {
    /// Totals; none while recovering.
    pub(crate) stats: Option<Stats>,
    /// In the order of their names.
    pub(crate) queues: Vec<QueueStats>,
}

/// The state that others may see without asking.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum BrokerState {
    /// The journal is being read.
    Recovering,
    /// It serves.
    Ready,
    /// It has closed, or its disk has failed.
    Ended(&'static str),
}

/// The journal cannot be used: why, in the words of the first thing that failed.
#[derive(Debug, thiserror::Error)]
#[error("the journal cannot be used: {0}")]
pub(crate) struct Failed(String);

/// Owns the broker.
pub(crate) struct Shard {
    inbox: Arc<Inbox<Letter>>,
    disk: mpsc::Sender<StorageOp>,
    clock: Clock,
    state: tokio::sync::watch::Sender<BrokerState>,
    broker: Option<Box<Broker>>,
    connections: BTreeMap<ConnectionId, Arc<Entry>>,
    is_closing: bool,
}

/// Letters that are read before their consequences are passed on.
const TURN_LETTERS: usize = 256;

/// Times that the shard finds letters without having waited before it lets other tasks run: the connection
/// that it woke last can only run on the same worker.
const TURNS_WITHOUT_WAITING_MAX: u32 = 4;

impl Shard {
    /// A shard that waits for its journal.
    pub(crate) fn new(
        inbox: Arc<Inbox<Letter>>,
        disk: mpsc::Sender<StorageOp>,
        clock: Clock,
        state: tokio::sync::watch::Sender<BrokerState>,
    ) -> Self {
        Self { inbox, disk, clock, state, broker: None, connections: BTreeMap::new(), is_closing: false }
    }

    /// Serves until it is told to close and everything is on the disk.
    ///
    /// # Errors
    /// The journal could not be recovered, or the disk has failed since.
    pub(crate) async fn run(mut self) -> Result<(), Failed> {
        let mut letters = Vec::new();
        let mut sleep = Box::pin(tokio::time::sleep(std::time::Duration::ZERO));
        let mut turns = 0;
        loop {
            if turns == TURNS_WITHOUT_WAITING_MAX {
                turns = 0;
                tokio::task::yield_now().await;
            }
            let has_waited = self.wait(&mut letters, sleep.as_mut()).await;
            turns = if has_waited { 0 } else { turns + 1 };
            let mut waiting = letters.drain(..).peekable();
            loop {
                let now = self.clock.now();
                for letter in waiting.by_ref().take(TURN_LETTERS) {
                    self.take(now, letter)?;
                }
                self.pass_on(now);
                if waiting.peek().is_none() {
                    break;
                }
            }
            drop(waiting);
            let Some(broker) = &self.broker else {
                if self.is_closing {
                    return Ok(());
                }
                continue;
            };
            if let Some(error) = broker.failure() {
                return Err(self.failed(error));
            }
            if self.is_closing && broker.is_closed() {
                self.state.send_replace(BrokerState::Ended("closed"));
                return Ok(());
            }
        }
    }

    /// Waits for letters or for the broker's next deadline. False: something was there already.
    async fn wait(&self, letters: &mut Vec<Letter>, mut sleep: Pin<&mut Sleep>) -> bool {
        let due = self.broker.as_ref().and_then(|broker| broker.poll_timeout());
        if let Some(due) = due {
            sleep.as_mut().reset(self.clock.runtime_instant(due));
        }
        let mut polls = 0;
        poll_fn(|cx| {
            polls += 1;
            if self.inbox.poll_take(cx, letters).is_ready() {
                return Poll::Ready(());
            }
            match due {
                Some(_) => sleep.as_mut().poll(cx),
                None => Poll::Pending,
            }
        })
        .await;
        polls > 1
    }

    fn take(&mut self, now: Now, letter: Letter) -> Result<(), Failed> {
        match letter {
            Letter::Opened(entry) => {
                let readiness = match self.broker {
                    Some(_) => Readiness::Ready,
                    None => Readiness::NotReady("recovering"),
                };
                entry.outbox.push(Event::Completion(None, Completion::Ready(readiness)));
                self.connections.insert(entry.id, entry);
            }
            Letter::Operation(from, op, operation) => match &mut self.broker {
                Some(broker) => broker.submit(now, from, op, operation),
                None => self.refuse(from, op, &operation),
            },
            Letter::Gone(from) => {
                self.connections.remove(&from);
                if let Some(broker) = &mut self.broker {
                    broker.disconnect(now, from);
                }
            }
            Letter::Recovered(broker, found) => {
                report(&found);
                self.broker = Some(broker);
                self.state.send_replace(BrokerState::Ready);
                for entry in self.connections.values() {
                    entry.outbox.push(Event::Completion(None, Completion::Ready(Readiness::Ready)));
                }
                if self.is_closing {
                    self.close(now);
                }
            }
            Letter::NotRecovered(error) => return Err(Failed(error.to_string())),
            Letter::Stored(stored) => {
                if let Some(broker) = &mut self.broker {
                    broker.handle_stored(now, stored);
                }
            }
            // Whoever asked may have gone meanwhile.
            Letter::Look(look, answer) => drop(answer.send(self.view(&look))),
            Letter::Close => {
                self.is_closing = true;
                self.close(now);
            }
        }
        Ok(())
    }

    fn close(&mut self, now: Now) {
        if let Some(broker) = &mut self.broker {
            broker.close(now);
        }
    }

    /// Before recovery: nothing is carried out, nothing waits, so a cancel finds nothing.
    fn refuse(&self, from: ConnectionId, op: OpId, operation: &Operation) {
        if matches!(operation, Operation::Cancel { .. }) {
            return;
        }
        if let Some(entry) = self.connections.get(&from) {
            let refused = Completion::Refused(Refusal::BrokerNotReady);
            entry.outbox.push(Event::Completion(Some(op), refused));
        }
    }

    /// Hands on what the broker has decided, and what is due.
    fn pass_on(&mut self, now: Now) {
        let Some(broker) = &mut self.broker else { return };
        if broker.poll_timeout().is_some_and(|due| due <= now.monotonic) {
            broker.handle_timeout(now);
        }
        loop {
            let mut moved = false;
            while let Some(op) = broker.poll_storage(now) {
                moved = true;
                // The log thread ends only after this sender is dropped.
                self.disk.send(op).ok();
            }
            while let Some((to, op, completion)) = broker.poll() {
                moved = true;
                if let Some(entry) = self.connections.get(&to) {
                    entry.outbox.push(Event::Completion(op, completion));
                }
            }
            if !moved {
                return;
            }
        }
    }

    fn view(&self, look: &Look) -> View {
        match &self.broker {
            None => View::default(),
            Some(broker) => View {
                stats: Some(broker.stats()),
                queues: broker.queues(look.after.as_ref(), look.queues_max),
            },
        }
    }

    /// The disk has failed: connections hear it, the process must end.
    fn failed(&self, error: &berth_log::Error) -> Failed {
        self.state.send_replace(BrokerState::Ended("storage failed"));
        for entry in self.connections.values() {
            let notice = Completion::Ready(Readiness::NotReady("storage failed"));
            entry.outbox.push(Event::Completion(None, notice));
        }
        Failed(error.to_string())
    }
}

/// What a person should know about a start.
fn report(found: &Recovered) {
    let Recovered { queues, messages, redelivered, log } = found;
    let (records, clean) = (log.records, log.clean);
    tracing::info!(queues, messages, redelivered, records, clean, "Journal recovered");
    if let Some((segment, offset)) = log.cut {
        let file = berth_log::FileId::Segment(segment);
        tracing::warn!(%file, offset, "Torn tail of the journal cut, nothing in it was confirmed");
    }
}

#[cfg(test)]
mod tests;
