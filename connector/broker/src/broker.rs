//! The broker's five verbs.

use berth_engine::port::{Capabilities, Capability, Completion, Operation};
use berth_log::{Error, Storage, StorageOp, Stored};
use berth_types::{ChannelName, ConnectionId, Instant, Now, OpId};

use crate::{QueueStats, Settings, Stats};

/// What was found at start: one line of the log for the operator.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Recovered {
    /// What the journal found.
    pub log: berth_log::Report,
    /// Queues that exist.
    pub queues: u64,
    /// Messages that are live.
    pub messages: u64,
    /// Messages marked redelivered because the last process did not stop in order.
    pub redelivered: u64,
}

/// The embedded broker. See the crate's documentation for how to drive it.
#[derive(Debug)]
pub struct Broker {}

impl Broker {
    /// Replays the journal in `storage`, or makes a new one. Blocking.
    ///
    /// # Errors
    /// What [`berth_log::Log::open`] refuses, and [`Error::Corrupt`] for facts that contradict each other.
    pub fn open<S: Storage>(
        _storage: &mut S,
        _settings: Settings,
        _now: Now,
    ) -> Result<(Self, Recovered), Error> {
        unimplemented!()
    }

    /// What it can do.
    pub fn capabilities() -> Capabilities {
        Capabilities::of(&[
            Capability::Queues,
            Capability::AtomicCommit,
            Capability::Release,
            Capability::ConfirmedSettlement,
        ])
    }

    /// Takes an operation of a connection. `op` is new for that connection, except for `Cancel`, whose own id
    /// is ignored.
    pub fn submit(&mut self, _now: Now, _from: ConnectionId, _op: OpId, _operation: Operation) {
        unimplemented!()
    }

    /// The connection is gone without a word: what it waits for is dropped and completes no more, what it had
    /// reserved
    /// is nacked as a failure. What it had published before stays published.
    pub fn disconnect(&mut self, _now: Now, _from: ConnectionId) {
        unimplemented!()
    }

    /// The next completion or notice (without an id), until there is none. A notice for everybody (`Ready`)
    /// comes once
    /// for each connection that is known.
    pub fn poll(&mut self) -> Option<(ConnectionId, Option<OpId>, Completion)> {
        unimplemented!()
    }

    /// The next thing to do on the disk. In this order, but reads may overtake.
    pub fn poll_storage(&mut self, _now: Now) -> Option<StorageOp> {
        unimplemented!()
    }

    /// Takes the result of a storage operation.
    pub fn handle_stored(&mut self, _now: Now, _stored: Stored) {
        unimplemented!()
    }

    /// When [`Broker::handle_timeout`] is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        unimplemented!()
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, _now: Now) {
        unimplemented!()
    }

    /// Ends in order: refuses new operations, takes back what is in flight (counted as received, not as a
    /// failure), and
    /// closes the journal. Done when [`Broker::is_closed`].
    pub fn close(&mut self, _now: Now) {
        unimplemented!()
    }

    /// After [`Broker::close`]: everything is on the disk.
    pub fn is_closed(&self) -> bool {
        unimplemented!()
    }

    /// Why the broker refuses everything, once the disk has failed. The process must end with an error and
    /// recover.
    pub fn failure(&self) -> Option<&Error> {
        unimplemented!()
    }

    /// Counters and gauges.
    pub fn stats(&self) -> Stats {
        unimplemented!()
    }

    /// At most `max` queues in the order of their names, after `after`.
    pub fn queues(&self, _after: Option<&ChannelName>, _max: usize) -> Vec<QueueStats> {
        unimplemented!()
    }
}
