//! Every metric of the connector, and the small counters that a connection keeps.
//!
//! Names and meanings stand in `docs/operations/metrics.md`; a test holds that page against this registry.
//! Labels are closed sets of constant words, but for the queues, of which at most [`QUEUES_MAX`] are shown.
//! No clock here.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use berth_engine::port::{Completion, Operation, Refusal};
use berth_gateway::Closed;
use berth_types::{Instant, OpId};
use prometheus_client::encoding::{EncodeLabelSet, prometheus_text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

use crate::shard::View;

/// Queues with a depth of their own in the metrics; the rest is in the totals only.
pub(crate) const QUEUES_MAX: usize = 200;

/// How deliveries end, in the words of AMQP.
const OUTCOMES: [&str; 4] = ["accepted", "modified", "released", "rejected"];

/// The registry and the families that others fill.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    connections: Family<Protocol, Gauge>,
    connections_total: Family<Protocol, Counter>,
    connections_closed: Family<Cause, Counter>,
    /// Connections that were turned away.
    pub(crate) connections_refused: Family<Reason, Counter>,
    bytes_in: Family<Protocol, Counter>,
    bytes_out: Family<Protocol, Counter>,
    messages_in: Family<Protocol, Counter>,
    messages_out: Family<Protocol, Counter>,
    settled: Family<Outcome, Counter>,
    redeliveries: Counter,
    refusals: Family<Condition, Counter>,
    ack_timeouts: Counter,
    acks_ignored: Counter,
    error_frames: Family<Protocol, Counter>,
    deliveries_dropped: Counter,
    publish_seconds: Histogram,
    settle_seconds: Histogram,
    /// How long barriers take.
    pub(crate) sync_seconds: Histogram,
    broker_ready: Gauge,
    queue_depth: Family<Queue, Gauge>,
    queue_in_flight: Family<Queue, Gauge>,
    queue_oldest: Family<Queue, Gauge<f64, AtomicU64>>,
    queues: Gauge,
    live: Gauge,
    in_flight: Gauge,
    journal_bytes: Gauge,
    /// Configuration files that were refused when they were read again.
    pub(crate) reload_errors: Counter,
    memory_bytes: Gauge,
    resident_bytes: Gauge,
    open_fds: Gauge,
    threads: Gauge,
    cpu_seconds: Gauge<f64, AtomicU64>,
}

macro_rules! labels {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $kind:ty),* })*) => { $(
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
        pub(crate) struct $name { $(#[doc = "The label."] pub(crate) $field: $kind),* }
    )* };
}

labels! {
    /// By protocol.
    Protocol { protocol: &'static str }
    /// By protocol and cause.
    Cause { protocol: &'static str, cause: &'static str }
    /// By reason.
    Reason { reason: &'static str }
    /// By outcome.
    Outcome { outcome: &'static str }
    /// By protocol and condition.
    Condition { protocol: &'static str, condition: &'static str }
    /// By queue.
    Queue { channel: String }
    /// What runs.
    Build { version: &'static str }
}

impl Metrics {
    /// An empty registry with every metric in it.
    pub(crate) fn new(version: &'static str) -> Self {
        let seconds = || Histogram::new(exponential_buckets(0.000_05, 2.0, 18));
        let mut metrics = Self {
            registry: Registry::with_prefix("berth"),
            connections: Family::default(),
            connections_total: Family::default(),
            connections_closed: Family::default(),
            connections_refused: Family::default(),
            bytes_in: Family::default(),
            bytes_out: Family::default(),
            messages_in: Family::default(),
            messages_out: Family::default(),
            settled: Family::default(),
            redeliveries: Counter::default(),
            refusals: Family::default(),
            ack_timeouts: Counter::default(),
            acks_ignored: Counter::default(),
            error_frames: Family::default(),
            deliveries_dropped: Counter::default(),
            publish_seconds: seconds(),
            settle_seconds: seconds(),
            sync_seconds: seconds(),
            broker_ready: Gauge::default(),
            queue_depth: Family::default(),
            queue_in_flight: Family::default(),
            queue_oldest: Family::default(),
            queues: Gauge::default(),
            live: Gauge::default(),
            in_flight: Gauge::default(),
            journal_bytes: Gauge::default(),
            reload_errors: Counter::default(),
            memory_bytes: Gauge::default(),
            resident_bytes: Gauge::default(),
            open_fds: Gauge::default(),
            threads: Gauge::default(),
            cpu_seconds: Gauge::default(),
        };
        metrics.register(version);
        metrics
    }

    fn register(&mut self, version: &'static str) {
        let r = &mut self.registry;
        r.register("build", "What runs", Info::new(Build { version }));
        r.register("connections", "Live client connections", self.connections.clone());
        r.register("connections", "Client connections accepted", self.connections_total.clone());
        r.register("connections_closed", "Client connections ended", self.connections_closed.clone());
        r.register("connections_refused", "Connections turned away", self.connections_refused.clone());
        r.register("bytes_in", "Bytes read from clients", self.bytes_in.clone());
        r.register("bytes_out", "Bytes written to clients", self.bytes_out.clone());
        r.register("messages_in", "Messages handed to the broker", self.messages_in.clone());
        r.register("messages_out", "Messages taken from the broker for clients", self.messages_out.clone());
        r.register("deliveries_settled", "Deliveries that ended", self.settled.clone());
        r.register("redeliveries", "Deliveries marked redelivered", self.redeliveries.clone());
        r.register("errors", "Operations that the broker refused", self.refusals.clone());
        r.register("ack_timeouts", "Deliveries not acknowledged in time", self.ack_timeouts.clone());
        r.register("acks_ignored", "Acknowledgements that settled nothing", self.acks_ignored.clone());
        r.register("error_frames", "Errors told to clients", self.error_frames.clone());
        r.register("deliveries_dropped", "Auto deliveries lost unwritten", self.deliveries_dropped.clone());
        r.register("publish_seconds", "From a publish to its confirm", self.publish_seconds.clone());
        r.register("settle_seconds", "From a settlement to its answer", self.settle_seconds.clone());
        r.register("store_sync_seconds", "Writes of the journal with their sync", self.sync_seconds.clone());
        r.register("broker_ready", "1 while the broker serves", self.broker_ready.clone());
        r.register("queue_depth", "Messages that wait, by queue", self.queue_depth.clone());
        r.register("queue_in_flight", "Unsettled deliveries, by queue", self.queue_in_flight.clone());
        r.register("queue_oldest_seconds", "Age of the oldest waiting message", self.queue_oldest.clone());
        r.register("queues", "Queues that exist", self.queues.clone());
        r.register("messages_stored", "Messages stored and not settled", self.live.clone());
        r.register("deliveries_pending", "Deliveries that wait for a settlement", self.in_flight.clone());
        r.register("store_bytes", "Bytes of the journal in use", self.journal_bytes.clone());
        r.register("config_reload_errors", "Configuration files refused", self.reload_errors.clone());
        r.register("memory_bytes", "Bytes that clients hold", self.memory_bytes.clone());
        r.register("process_resident_bytes", "Resident memory", self.resident_bytes.clone());
        r.register("process_open_fds", "Open file descriptors", self.open_fds.clone());
        r.register("process_threads", "Threads", self.threads.clone());
        r.register("process_cpu_seconds", "Processor time used", self.cpu_seconds.clone());
    }

    /// A meter for a new connection.
    pub(crate) fn connection(self: &Arc<Self>, protocol: &'static str) -> ConnectionMeter {
        let label = Protocol { protocol };
        self.connections.get_or_create(&label).inc();
        self.connections_total.get_or_create(&label).inc();
        ConnectionMeter {
            metrics: Arc::clone(self),
            protocol,
            bytes_in: self.bytes_in.get_or_create_owned(&label),
            bytes_out: self.bytes_out.get_or_create_owned(&label),
            messages_in: self.messages_in.get_or_create_owned(&label),
            messages_out: self.messages_out.get_or_create_owned(&label),
            settled: OUTCOMES.map(|outcome| self.settled.get_or_create_owned(&Outcome { outcome })),
            told: Tally::default(),
            publishing: VecDeque::new(),
            settling: VecDeque::new(),
        }
    }

    /// The exposition text, with the broker's numbers of this moment.
    pub(crate) fn text(&self, view: &View, memory_bytes: u64, now_ms: u64) -> String {
        self.broker_ready.set(i64::from(view.stats.is_some()));
        let stats = view.stats.unwrap_or_default();
        set(&self.memory_bytes, memory_bytes);
        set(&self.queues, stats.queues);
        set(&self.live, stats.live);
        set(&self.in_flight, stats.in_flight);
        set(&self.journal_bytes, stats.journal_bytes);
        self.queue_depth.clear();
        self.queue_in_flight.clear();
        self.queue_oldest.clear();
        for queue in &view.queues {
            let label = Queue { channel: queue.name.as_str().into() };
            set(&self.queue_depth.get_or_create(&label), queue.ready);
            set(&self.queue_in_flight.get_or_create(&label), queue.in_flight);
            if let Some(oldest) = queue.oldest {
                let age_ms = now_ms.saturating_sub(oldest.as_millis());
                self.queue_oldest.get_or_create(&label).set(age_ms as f64 / 1_000.0);
            }
        }
        let process = crate::process::usage();
        set(&self.resident_bytes, process.resident_bytes);
        set(&self.open_fds, process.open_fds);
        set(&self.threads, process.threads);
        self.cpu_seconds.set(process.cpu.as_secs_f64());
        let mut text = String::new();
        let encoded = prometheus_text::encode(&mut text, &self.registry);
        debug_assert!(encoded.is_ok(), "a String takes every write");
        text
    }
}

fn set(gauge: &Gauge, value: u64) {
    gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
}

/// What a session has done that cannot be seen from outside of it. Counts only rise.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Tally {
    /// Acknowledgements that settled nothing.
    pub(crate) acks_ignored: u64,
    /// Deliveries whose ack timeout ran out.
    pub(crate) ack_timeouts: u64,
    /// Errors told to the client.
    pub(crate) errors: u64,
    /// Deliveries of auto subscriptions that were lost unwritten with the connection.
    pub(crate) dropped: u64,
}

/// Counts what passes through one connection.
#[derive(Debug)]
pub(crate) struct ConnectionMeter {
    metrics: Arc<Metrics>,
    protocol: &'static str,
    bytes_in: Counter,
    bytes_out: Counter,
    messages_in: Counter,
    messages_out: Counter,
    /// In the order of [`OUTCOMES`].
    settled: [Counter; 4],
    told: Tally,
    /// Publishes and confirmed settlements under way, oldest first: their engine bounds them.
    publishing: VecDeque<(OpId, Instant)>,
    settling: VecDeque<(OpId, Instant)>,
}

impl ConnectionMeter {
    /// Bytes came.
    pub(crate) fn read(&self, bytes: usize) {
        self.bytes_in.inc_by(bytes as u64);
    }

    /// Bytes went.
    pub(crate) fn wrote(&self, bytes: usize) {
        self.bytes_out.inc_by(bytes as u64);
    }

    /// An operation goes to the broker.
    pub(crate) fn asked(&mut self, now: Instant, op: OpId, operation: &Operation) {
        match operation {
            Operation::Publish { batch, .. } => {
                self.messages_in.inc_by(batch.len() as u64);
                self.publishing.push_back((op, now));
            }
            Operation::Settle { ack, nack, release, reject, .. } => {
                for (counter, ranges) in self.settled.iter().zip([ack, nack, release, reject]) {
                    counter.inc_by(ranges.count());
                }
                self.settling.push_back((op, now));
            }
            _ => {}
        }
    }

    /// The broker answers.
    pub(crate) fn heard(&mut self, now: Instant, op: Option<OpId>, completion: &Completion) {
        let metrics = &self.metrics;
        match completion {
            Completion::Reserved { items, .. } => {
                self.messages_out.inc_by(items.len() as u64);
                let again = items.iter().filter(|item| item.redelivered).count();
                metrics.redeliveries.inc_by(again as u64);
            }
            Completion::Published(results) => {
                observe(&mut self.publishing, op, now, &metrics.publish_seconds);
                results.iter().filter_map(|result| result.as_ref().err()).for_each(|r| self.refused(r));
            }
            Completion::Settled => observe(&mut self.settling, op, now, &metrics.settle_seconds),
            Completion::Refused(refusal) => {
                forget(&mut self.publishing, op);
                forget(&mut self.settling, op);
                self.refused(refusal);
            }
            Completion::Committed(Err(refusal)) => self.refused(refusal),
            _ => {}
        }
    }

    fn refused(&self, refusal: &Refusal) {
        let label = Condition { protocol: self.protocol, condition: refusal.label() };
        self.metrics.refusals.get_or_create(&label).inc();
    }

    /// Adds what has come since the last call.
    pub(crate) fn tally(&mut self, tally: Tally) {
        if tally == self.told {
            return;
        }
        let (metrics, told) = (&self.metrics, self.told);
        metrics.acks_ignored.inc_by(tally.acks_ignored - told.acks_ignored);
        metrics.ack_timeouts.inc_by(tally.ack_timeouts - told.ack_timeouts);
        metrics.deliveries_dropped.inc_by(tally.dropped - told.dropped);
        if tally.errors > told.errors {
            let label = Protocol { protocol: self.protocol };
            metrics.error_frames.get_or_create(&label).inc_by(tally.errors - told.errors);
        }
        self.told = tally;
    }

    /// The connection has ended.
    pub(crate) fn closed(&self, closed: Closed) {
        let label = Cause { protocol: self.protocol, cause: closed.label() };
        self.metrics.connections_closed.get_or_create(&label).inc();
    }
}

impl Drop for ConnectionMeter {
    fn drop(&mut self) {
        self.metrics.connections.get_or_create(&Protocol { protocol: self.protocol }).dec();
    }
}

fn observe(under_way: &mut VecDeque<(OpId, Instant)>, op: Option<OpId>, now: Instant, into: &Histogram) {
    if let Some(begun) = forget(under_way, op) {
        into.observe(now.saturating_since(begun).as_secs_f64());
    }
}

/// Answers come nearly in the order of the questions, so the search ends at the front.
fn forget(under_way: &mut VecDeque<(OpId, Instant)>, op: Option<OpId>) -> Option<Instant> {
    let index = under_way.iter().position(|(asked, _)| Some(*asked) == op)?;
    let begun = under_way.remove(index).map(|(_, begun)| begun);
    if under_way.is_empty() {
        *under_way = VecDeque::new();
    }
    begun
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_broker::{QueueStats, Stats};
    use berth_types::{ChannelName, Timestamp};

    #[test]
    fn every_metric_is_described_and_nothing_else() {
        let metrics = Arc::new(Metrics::new("0"));
        let page = include_str!("../../../docs/operations/metrics.md");
        let mut meter = metrics.connection("stomp");
        meter.closed(Closed::ByPeer);
        meter.refused(&Refusal::QueueFull);
        meter.tally(Tally { errors: 1, ..Tally::default() });
        metrics.connections_refused.get_or_create(&Reason { reason: "too_many" }).inc();
        let text = metrics.text(&one_queue(), 0, 0);
        let types: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
        assert!(types.len() > 20, "{text}");
        for line in types {
            let name = line.split(' ').next().unwrap();
            assert!(
                ["`", "{"].iter().any(|end| page.contains(&format!("`{name}{end}"))),
                "{name} is not described in docs/operations/metrics.md"
            );
        }
        let described: Vec<_> = page.lines().filter_map(|line| line.strip_prefix("| `berth_")).collect();
        for line in described {
            let name = format!("# TYPE berth_{} ", line.split(['`', '{']).next().unwrap());
            assert!(text.contains(&name), "{name} is described and not exported");
        }
    }

    fn one_queue() -> View {
        let queue = QueueStats {
            name: ChannelName::parse("jobs").unwrap(),
            ready: 1,
            in_flight: 2,
            bytes: 3,
            consumers: 4,
            oldest: Some(Timestamp::from_millis(0)),
        };
        View { stats: Some(Stats::default()), queues: vec![queue] }
    }

    #[test]
    fn a_connection_is_counted_while_it_lives() {
        let metrics = Arc::new(Metrics::new("0"));
        let mut meter = metrics.connection("stomp");
        meter.read(5);
        meter.asked(Instant::ZERO, OpId::new(1), &Operation::Publish { batch: vec![], atomic: false });
        meter.heard(Instant::from_nanos(1), Some(OpId::new(1)), &Completion::Published(vec![]));
        assert!(meter.publishing.is_empty());
        meter.heard(Instant::ZERO, None, &Completion::Refused(Refusal::StorageFull));
        let text = metrics.text(&View::default(), 0, 0);
        for line in [
            "berth_connections{protocol=\"stomp\"} 1",
            "berth_connections_total{protocol=\"stomp\"} 1",
            "berth_bytes_in_total{protocol=\"stomp\"} 5",
            "berth_publish_seconds_count 1",
            "berth_errors_total{protocol=\"stomp\",condition=\"storage_full\"} 1",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
        meter.closed(Closed::ByPeer);
        drop(meter);
        let text = metrics.text(&View::default(), 0, 0);
        assert!(text.contains("berth_connections{protocol=\"stomp\"} 0"), "{text}");
    }
}
