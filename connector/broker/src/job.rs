//! Operations that append to the journal. The journal may be behind; then they wait in order.
//!
//! Publishes wait among themselves, and so do settlements: a settlement never waits behind a publish, since
//! it is what lets space come back. An operation of a connection is carried out even if the connection has
//! gone.

use std::sync::Arc;

use berth_engine::port::{Action, Completion, NackCause, Refusal, Stored};
use berth_log::{Lsn, Purpose, Refused};
use berth_types::{ConnectionId, Destination, Message, OpId, Seq, TxnId};

use crate::broker::Broker;
use crate::record::{ChannelId, SmallFact};
use crate::settle::Wish;

/// An operation that appends.
#[derive(Debug)]
pub(crate) enum Job {
    Publish(Publish),
    Commit {
        connection: ConnectionId,
        op: OpId,
        actions: Vec<Action>,
    },
    Settle {
        connection: ConnectionId,
        op: OpId,
        txn: TxnId,
        wish: Wish,
        confirm: bool,
    },
    Abandon {
        txn: TxnId,
        cause: NackCause,
    },
    /// The first fact of a process; nothing may come before it.
    Open {
        redelivered: Vec<(ChannelId, Seq)>,
    },
}

/// A publish on its way.
#[derive(Debug)]
pub(crate) struct Publish {
    pub(crate) connection: ConnectionId,
    pub(crate) op: OpId,
    pub(crate) batch: Vec<(Destination, Arc<Message>)>,
    pub(crate) atomic: bool,
    pub(crate) results: Vec<Result<Stored, Refusal>>,
    /// The last record of it.
    pub(crate) last: Option<Lsn>,
}

/// What became of a job.
#[derive(Debug)]
pub(crate) enum Ran {
    Done,
    /// The journal is behind: again after the next storage operation.
    Stalled(Job),
}

impl Job {
    /// Whether it stores messages.
    const fn is_publish(&self) -> bool {
        matches!(self, Self::Publish(_) | Self::Commit { .. })
    }
}

impl Broker {
    /// Carries out a job now, or after those that wait.
    pub(crate) fn start(&mut self, job: Job) {
        let is_publish = job.is_publish();
        let waiting = if is_publish { &mut self.publishes } else { &mut self.upkeep };
        if !waiting.is_empty() || self.is_opening() {
            let waiting = if is_publish { &mut self.publishes } else { &mut self.upkeep };
            waiting.push_back(job);
            return;
        }
        if let Ran::Stalled(job) = self.run(job) {
            let waiting = if is_publish { &mut self.publishes } else { &mut self.upkeep };
            waiting.push_front(job);
        }
    }

    /// Carries out what waits, as far as the journal takes it.
    pub(crate) fn run_waiting(&mut self) {
        while let Some(job) = self.upkeep.pop_front() {
            if let Ran::Stalled(job) = self.run(job) {
                self.upkeep.push_front(job);
                break;
            }
        }
        if self.is_opening() {
            return;
        }
        while let Some(job) = self.publishes.pop_front() {
            if let Ran::Stalled(job) = self.run(job) {
                self.publishes.push_front(job);
                break;
            }
        }
    }

    /// Whether the first fact of this process is not written yet.
    pub(crate) fn is_opening(&self) -> bool {
        matches!(self.upkeep.front(), Some(Job::Open { .. }))
    }

    /// Refuses everything that waits: the journal has failed.
    pub(crate) fn refuse_waiting(&mut self) {
        let waiting = std::mem::take(&mut self.upkeep).into_iter().chain(std::mem::take(&mut self.publishes));
        for job in waiting {
            let refused = Refusal::BrokerNotReady;
            match job {
                Job::Publish(publish) => {
                    let Publish { connection, op, batch, .. } = publish;
                    let results = batch.iter().map(|_| Err(refused.clone())).collect();
                    self.complete(connection, op, Completion::Published(results));
                }
                Job::Commit { connection, op, .. } => {
                    self.complete(connection, op, Completion::Committed(Err(refused)));
                }
                Job::Settle { connection, op, .. } => {
                    self.complete(connection, op, Completion::Refused(refused));
                }
                Job::Abandon { .. } | Job::Open { .. } => {}
            }
        }
    }

    fn run(&mut self, job: Job) -> Ran {
        match job {
            Job::Publish(publish) => self.run_publish(publish),
            Job::Commit { connection, op, actions } => self.run_commit(connection, op, actions),
            Job::Settle { connection, op, txn, wish, confirm } => {
                self.run_settle(connection, op, txn, wish, confirm)
            }
            Job::Abandon { txn, cause } => self.run_abandon(txn, cause),
            Job::Open { redelivered } => {
                let fact = SmallFact::Opened { redelivered: &redelivered };
                // It may use all the room there is: before it nothing can free any.
                let appended = match self.journal.append_fact(Purpose::Upkeep, &fact) {
                    Err(Refused::Full) => self.journal.append_fact(Purpose::Relocate, &fact),
                    appended => appended,
                };
                match appended {
                    Ok(_) => Ran::Done,
                    Err(Refused::Full) if self.is_ending() => Ran::Done,
                    Err(_) => Ran::Stalled(Job::Open { redelivered }),
                }
            }
        }
    }
}
