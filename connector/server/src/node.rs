//! What this node is and in which phase: the state behind the probes and `/api/node`.

use std::sync::{Arc, Mutex};

use tokio::sync::watch;

use crate::connections::Connections;
use crate::mailbox::{Inbox, lock};
use crate::memory::Budget;
use crate::metrics::Metrics;
use crate::shard::{BrokerState, Letter};

/// The version of this program.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// One node, shared by everything that answers for it.
#[derive(Debug)]
pub(crate) struct Node {
    /// Its stable name.
    pub(crate) name: String,
    /// The pod's uid, when Kubernetes runs it (variable `POD_UID`).
    pub(crate) pod_uid: Option<String>,
    /// The name of `config.yaml`'s content; none without a file.
    pub(crate) config_hash: Option<String>,
    /// Its clients.
    pub(crate) connections: Connections,
    /// The way to the shard.
    pub(crate) inbox: Arc<Inbox<Letter>>,
    /// Memory for what its clients hold.
    pub(crate) memory: Arc<Budget>,
    /// Its metrics.
    pub(crate) metrics: Arc<Metrics>,
    /// The broker's state, as the shard last said.
    pub(crate) broker: watch::Receiver<BrokerState>,
    /// What else there is to know.
    pub(crate) state: Mutex<NodeState>,
}

/// The part that changes.
#[derive(Debug, Default)]
pub(crate) struct NodeState {
    /// Somebody asked for a drain, for this reason.
    pub(crate) drain: Option<String>,
    /// SIGTERM has come.
    pub(crate) is_stopping: bool,
    /// The last `dynamic.yaml` was refused, for this reason.
    pub(crate) config_error: Option<String>,
}

/// In which phase a node is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// Its journal is being read.
    Recovering,
    /// It serves.
    Serving,
    /// It serves, and asks for no new clients.
    Draining,
    /// It is going down.
    Stopping,
}

impl Phase {
    /// The word in `/api/node`.
    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::Recovering => "recovering",
            Self::Serving => "serving",
            Self::Draining => "draining",
            Self::Stopping => "stopping",
        }
    }
}

impl Node {
    /// The phase.
    pub(crate) fn phase(&self) -> Phase {
        let state = lock(&self.state);
        if state.is_stopping {
            Phase::Stopping
        } else if *self.broker.borrow() == BrokerState::Recovering {
            Phase::Recovering
        } else if state.drain.is_some() {
            Phase::Draining
        } else {
            Phase::Serving
        }
    }

    /// Why the node should get no new clients; none: it should.
    ///
    /// `is_local` leaves out reasons that lie outside of the process: with the embedded broker there are
    /// none, so both answers are the same.
    pub(crate) fn not_ready(&self, _is_local: bool) -> Option<String> {
        match self.phase() {
            Phase::Recovering => Some(String::from("recovering")),
            Phase::Stopping => Some(String::from("stopping")),
            Phase::Draining => {
                let reason = lock(&self.state).drain.clone().unwrap_or_default();
                Some(format!("draining: {reason}"))
            }
            Phase::Serving => self.broker_reason().map(|reason| format!("broker: {reason}")),
        }
    }

    /// Why the broker does not serve; none: it does.
    pub(crate) fn broker_reason(&self) -> Option<&'static str> {
        match *self.broker.borrow() {
            BrokerState::Ready => None,
            BrokerState::Recovering => Some("recovering"),
            BrokerState::Ended(reason) => Some(reason),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_not_to_be_ready_is_named() {
        let (broker, receiver) = watch::channel(BrokerState::Recovering);
        let node = Node {
            name: String::from("a-0"),
            pod_uid: None,
            config_hash: None,
            connections: Connections::default(),
            inbox: Arc::default(),
            memory: Arc::new(Budget::new(0)),
            metrics: Arc::new(Metrics::new("0")),
            broker: receiver,
            state: Mutex::default(),
        };
        let reason = || node.not_ready(true);
        assert_eq!((node.phase().label(), reason()), ("recovering", Some("recovering".into())));
        broker.send_replace(BrokerState::Ready);
        assert_eq!((node.phase().label(), reason()), ("serving", None));
        lock(&node.state).drain = Some("scale-down".into());
        assert_eq!((node.phase().label(), reason()), ("draining", Some("draining: scale-down".into())));
        lock(&node.state).drain = None;
        broker.send_replace(BrokerState::Ended("storage failed"));
        assert_eq!((node.phase().label(), reason()), ("serving", Some("broker: storage failed".into())));
        lock(&node.state).is_stopping = true;
        assert_eq!((node.phase().label(), reason()), ("stopping", Some("stopping".into())));
    }
}
