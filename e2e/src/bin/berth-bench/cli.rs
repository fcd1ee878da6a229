//! The command line, and what `--help` teaches.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::servers::Kind;

/// Loads STOMP brokers and compares them.
#[derive(Parser)]
#[command(name = "berth-bench", version, after_help = EXAMPLES)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Run scenarios against servers that are started here, in turns, and print one table for each.
    Run(Run),
    /// Load a server that runs already.
    Load(Load),
    /// Serve STOMP without doing anything: what the generator and the sockets cost.
    Null {
        /// TCP port on 127.0.0.1; 0 takes a free one.
        #[arg(long, default_value_t = 0)]
        port: u16,
    },
    /// Fetch the peers: Artemis with Maven into ~/.cache/berth/peers, RabbitMQ with apt-get, its service
    /// masked.
    Install,
}

/// What is measured. Rates count messages that were published, delivered and, where there are acks, settled.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
#[value(rename_all = "UPPER")]
pub(crate) enum Scenario {
    /// STOMP queue, 1 to 1, 256 B, auto ack, no receipts, fsync never: rate.
    B1,
    /// STOMP queue, 8 producers with receipts (64 in flight each), 8 consumers client-individual, 1 KiB,
    /// fsync always: rate.
    B2,
    /// Latency in open loop at half of the best peer's saturation (or --rate): 4 to 4, 1 KiB, receipts, fsync
    /// always.
    B6,
    /// Idle connections with heart-beats: memory of each.
    B7,
    /// Backlog: 200 B messages stored, then drained: rates of both, memory during both.
    B8,
    /// A million deliveries pending with ack timeouts, in process: a tick with nothing due, and one with
    /// 100 000 due.
    B9,
    /// Start with a backlog: after a clean stop and after kill -9.
    B10,
}

#[derive(Args)]
pub(crate) struct Run {
    /// Scenarios; all of them when none is named.
    #[arg(value_enum, ignore_case = true)]
    pub(crate) scenarios: Vec<Scenario>,
    /// Servers, in the order of their turns.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "berth,artemis,rabbitmq,null")]
    pub(crate) servers: Vec<Kind>,
    /// Turns of each server: A B A B ...
    #[arg(long, default_value_t = 3)]
    pub(crate) turns: usize,
    /// Measured seconds of a turn (B1, B2, B6).
    #[arg(long, default_value_t = 10.0)]
    pub(crate) seconds: f64,
    /// Seconds before them that do not count.
    #[arg(long, default_value_t = 3.0)]
    pub(crate) warm: f64,
    /// Messages of the backlog (B8, B10); the peers get a tenth.
    #[arg(long, default_value_t = 10_000_000)]
    pub(crate) messages: u64,
    /// Idle connections (B7).
    #[arg(long, default_value_t = 10_000)]
    pub(crate) connections: usize,
    /// Messages a second of the open loop (B6), instead of half of the best peer's saturation.
    #[arg(long)]
    pub(crate) rate: Option<f64>,
    /// Clients send only when their read buffer is empty. A server that ends frames with a further EOL hangs.
    #[arg(long)]
    pub(crate) lazy_flush: bool,
    /// A few seconds, for a smoke test: one turn of one second, small backlogs.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Merge the figures into this JSON file, scenario by scenario.
    #[arg(long)]
    pub(crate) json: Option<PathBuf>,
    /// The connector's program, instead of target/release/berth-connector.
    #[arg(long)]
    pub(crate) program: Option<PathBuf>,
    /// Where servers keep their data; must be on a real disk. A folder below it is made and removed.
    #[arg(long)]
    pub(crate) folder: Option<PathBuf>,
}

/// One load, described by hand.
#[derive(Args)]
pub(crate) struct Load {
    /// The server's STOMP address.
    pub(crate) address: SocketAddr,
    /// The destination, as the server writes it.
    #[arg(long, default_value = "/queue/bench")]
    pub(crate) destination: String,
    #[arg(long, default_value_t = 1)]
    pub(crate) producers: usize,
    #[arg(long, default_value_t = 1)]
    pub(crate) consumers: usize,
    /// Bytes of a body, at least 16.
    #[arg(long, default_value_t = 256)]
    pub(crate) body: usize,
    /// Ask for receipts and keep so many unanswered on each producer.
    #[arg(long)]
    pub(crate) in_flight: Option<u64>,
    /// Consumers acknowledge each message (client-individual); else auto.
    #[arg(long)]
    pub(crate) acks: bool,
    /// Open loop at so many messages a second.
    #[arg(long)]
    pub(crate) rate: Option<f64>,
    /// End after so many messages instead of a time. Without consumers (producers) it only stores (drains).
    #[arg(long)]
    pub(crate) count: Option<u64>,
    #[arg(long, default_value_t = 10.0)]
    pub(crate) seconds: f64,
    #[arg(long, default_value_t = 1.0)]
    pub(crate) warm: f64,
    /// Clients send only when their read buffer is empty.
    #[arg(long)]
    pub(crate) lazy_flush: bool,
    /// Header lines of CONNECT, SEND and SUBSCRIBE, without their ends of line, as `login:guest`.
    #[arg(long)]
    pub(crate) connect_header: Vec<String>,
    #[arg(long)]
    pub(crate) send_header: Vec<String>,
    #[arg(long)]
    pub(crate) subscribe_header: Vec<String>,
}

const EXAMPLES: &str = "\
How to read a table: every server gets the same bytes in turn, so compare rows of one table only. `min`,
`median` and `max` are over the turns. `cpu us` is the server's CPU time for each message, all its processes
together. `gen cores` is what this program itself used: near 1, or on a machine without a free core, the rate
is this program's and not the server's. `null` only moves the bytes. The ratio compares turn by turn with the
best peer (by median) of the run.

Examples:
  berth-bench install
  berth-bench run B1 B2 --turns 3 --seconds 10 --json docs/performance.json
  berth-bench run B2 --servers berth,null --quick
  berth-bench run B8 --servers berth --messages 10000000
  berth-bench load 127.0.0.1:61613 --producers 8 --in-flight 64 --consumers 8 --acks --body 1024";
