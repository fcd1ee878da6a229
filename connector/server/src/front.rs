//! The STOMP listener: a session for each accepted connection, driven until it ends.

use std::sync::Arc;
use std::time::Duration;

use berth_broker::Broker;
use berth_config::{DefaultPattern, StompSettings};
use berth_gateway::{OpenAccess, StompContext, StompSession};
use berth_types::Pattern;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::app::random;
use crate::clock::Clock;
use crate::connection::{Driver, FLUSH, Observed};
use crate::connections::Entry;
use crate::listen::Acceptor;
use crate::memory::Charge;
use crate::metrics::Tally;
use crate::node::Node;
use crate::shard::{BrokerState, Letter};

const PROTOCOL: &str = "stomp";

/// What one connection too many hears; its version is not known yet, so it is a frame of every version.
const TOO_MANY: &[u8] = b"ERROR\nmessage:too many connections\ncontent-type:text/plain\n\n\
    The server has as many connections as stomp.maxConnections allows. Try again later.\n\0";

/// The STOMP listener.
pub(crate) struct StompFront {
    acceptor: Acceptor,
    settings: Arc<berth_gateway::StompSettings>,
    node: Arc<Node>,
    clock: Clock,
}

impl StompFront {
    /// Takes over a listening socket; at most `connections_max` clients at a time.
    pub(crate) fn new(
        listener: TcpListener,
        connections_max: usize,
        settings: &StompSettings,
        node: Arc<Node>,
        clock: Clock,
    ) -> Self {
        let metrics = Arc::clone(&node.metrics);
        let mut gateway_settings = gateway_settings(settings);
        let bytes_max = &mut gateway_settings.connection.limits.body_bytes_max;
        // A body that can never fit is refused by its head, not when it has come.
        let room = usize::try_from(node.memory.tight_bytes()).unwrap_or(usize::MAX);
        if room < *bytes_max {
            tracing::warn!(bytes = room, "Bodies are bounded by limits.maxMemory, not by stomp.maxBodySize");
            *bytes_max = room;
        }
        let acceptor = Acceptor::new(listener, connections_max, TOO_MANY, metrics);
        Self { acceptor, settings: Arc::new(gateway_settings), node, clock }
    }

    /// Accepts until the task is ended; connections live on.
    pub(crate) fn start(self) -> JoinHandle<()> {
        tokio::spawn(async move {
            loop {
                let (stream, remote, permit) = self.acceptor.accept().await;
                let entry = self.node.connections.enter(remote);
                let driven = self.drive(stream, Arc::clone(&entry));
                let node = Arc::clone(&self.node);
                tokio::spawn(async move {
                    driven.await;
                    node.inbox.push([Letter::Gone(entry.id)]);
                    node.connections.leave(&entry);
                    drop(permit);
                });
            }
        })
    }

    fn drive(&self, stream: TcpStream, entry: Arc<Entry>) -> Driver<StompSession, TcpStream> {
        tracing::debug!(connection = %entry.id, remote = %entry.remote, "Connection accepted");
        let node = &self.node;
        node.inbox.push([Letter::Opened(Arc::clone(&entry))]);
        let context = StompContext {
            id: entry.id,
            seed: u128::from(random()) << 64 | u128::from(random()),
            settings: Arc::clone(&self.settings),
            access: Arc::new(OpenAccess),
            engine: berth_engine::Settings {
                capabilities: Broker::capabilities(),
                is_ready: *node.broker.borrow() == BrokerState::Ready,
            },
        };
        let session = StompSession::new(self.clock.now(), context);
        let meter = node.metrics.connection(PROTOCOL);
        let charge = Charge::new(Arc::clone(&node.memory), Arc::clone(&entry));
        Driver::new(session, stream, entry, Arc::clone(&node.inbox), self.clock, meter, charge)
    }
}

impl Observed for StompSession {
    fn tally(&self) -> Tally {
        let counters = self.counters();
        let stats = self.engine_stats();
        Tally {
            acks_ignored: counters.acks_ignored,
            ack_timeouts: counters.ack_timeouts,
            errors: counters.errors,
            dropped: stats.dropped,
        }
    }

    fn inbound_bytes(&self) -> usize {
        Self::inbound_bytes(self)
    }

    fn output_bytes(&self) -> usize {
        Self::output_bytes(self)
    }

    fn client(&self) -> Option<&str> {
        self.client_id()
    }
}

fn gateway_settings(settings: &StompSettings) -> berth_gateway::StompSettings {
    berth_gateway::StompSettings {
        connection: berth_stomp::Settings {
            limits: berth_stomp::Limits {
                header_line_bytes_max: settings.header_line_bytes_max,
                headers_max: settings.headers_max,
                body_bytes_max: settings.body_bytes_max,
            },
            heart_beat_ms: u64::try_from(settings.heartbeat.as_millis()).unwrap_or(u64::MAX),
            connect_timeout: settings.connect_timeout,
            write_timeout: Some(settings.write_timeout).filter(|timeout| *timeout > Duration::ZERO),
            close_grace: FLUSH,
        },
        default_pattern: match settings.default_pattern {
            DefaultPattern::None => None,
            DefaultPattern::Queues => Some(Pattern::Queues),
        },
        subscription_buffer: settings.subscription_buffer,
        subscriptions_max: settings.subscriptions_max,
        ack_timeout: settings.ack_timeout,
        shows_delivery_count: settings.delivery_count_header,
        ..berth_gateway::StompSettings::default()
    }
}
