//! Wires everything: configuration, listeners, the shard with its log thread, the admin port, the end.

use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use anyhow::{Context as _, anyhow};
use berth_config::{Fsync, Loaded, LogFormat, Settings};
use berth_log::FileStorage;
use clap::Parser as _;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout_at;

use crate::admin::{Admin, CONNECTIONS_MAX};
use crate::cli::{Cli, Command, Files};
use crate::clock::Clock;
use crate::connections::Connections;
use crate::failure::{Failure, in_one_line};
use crate::front::StompFront;
use crate::listen::TOLD_MAX;
use crate::mailbox::{Inbox, lock};
use crate::memory::Budget;
use crate::metrics::Metrics;
use crate::node::{Node, NodeState, VERSION};
use crate::reload::Reload;
use crate::shard::{BrokerState, Failed, Letter, Shard};
use crate::shutdown::{Schedule, Signals, end_connections};
use crate::sources::Sources;
use crate::telemetry::Telemetry;
use crate::{listen, log_thread, prepare};

/// The whole program but for its exit code.
///
/// # Errors
/// What the person who started it should read, in one line.
pub fn main() -> Result<(), Failure> {
    let cli = Cli::parse();
    match cli.command {
        Some(Command::Drain { files, .. }) => prepare_drain(&files),
        None => serve_or_show(&cli),
    }
}

fn prepare_drain(files: &Files) -> Result<(), Failure> {
    let (_, _, loaded) = load(files)?;
    let Some(admin) = loaded.settings.admin else {
        return Err(anyhow!("the configuration has no section admin, so nobody can be told").into());
    };
    prepare::announce(admin)?;
    runtime()?.block_on(async { tokio::time::sleep(prepare::ENDPOINTS_WAIT).await });
    Ok(())
}

fn serve_or_show(cli: &Cli) -> Result<(), Failure> {
    let (sources, dynamic, loaded) = load(&cli.files)?;
    if cli.print_config {
        print!("{}", loaded.to_yaml()?);
        return Ok(());
    }
    if cli.check {
        loaded.warnings.iter().for_each(|warning| eprintln!("warning: {warning}"));
        println!("The configuration is good.");
        return Ok(());
    }
    let runtime = runtime()?;
    let result = runtime.block_on(serve(sources, dynamic, loaded));
    // Whatever still runs (a client that does not read, a probe) must not hold up the end.
    runtime.shutdown_background();
    result
}

fn load(files: &Files) -> Result<(Sources, Option<String>, Loaded), Failure> {
    let sources = Sources::read(files.config.as_deref(), files.dynamic.as_deref())?;
    let dynamic = sources.read_dynamic()?;
    let loaded = sources.load(dynamic.as_deref())?;
    Ok((sources, dynamic, loaded))
}

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().context("no threads for the runtime")
}

/// Serves until a signal comes or the disk fails.
async fn serve(sources: Sources, dynamic: Option<String>, loaded: Loaded) -> Result<(), Failure> {
    let clock = Clock::start();
    let settings = &loaded.settings;
    let mut signals = Signals::catch().context("catching signals")?;
    let telemetry = Telemetry::start(settings.logging, clock)?;
    loaded.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));

    let admin = settings.admin.map(|address| bind("admin.address", address)).transpose()?;
    let stomp = settings.stomp.as_ref().map(|stomp| bind("stomp.port", stomp.listen)).transpose()?;
    let storage = FileStorage::open(&settings.data_dir)
        .map_err(|error| Failure::data_dir(&settings.data_dir, &error))?;

    let metrics = Arc::new(Metrics::new(VERSION));
    let inbox = Arc::new(Inbox::default());
    let (state, broker) = watch::channel(BrokerState::Recovering);
    let broker_settings = broker_settings(settings);
    let (disk, _thread) =
        log_thread::spawn(storage, broker_settings, clock, Arc::clone(&inbox), Arc::clone(&metrics))
            .context("starting the thread of the disk")?;
    let mut shard = tokio::spawn(Shard::new(Arc::clone(&inbox), disk, clock, state).run());
    let node = Arc::new(Node {
        name: settings.node.clone(),
        pod_uid: std::env::var("POD_UID").ok().filter(|uid| !uid.is_empty()),
        config_hash: sources.config_hash(),
        connections: Connections::default(),
        inbox,
        memory: Arc::new(Budget::new(settings.memory_max.unwrap_or_else(memory_allowed))),
        metrics,
        broker,
        state: Mutex::new(NodeState::default()),
    });
    announce(settings, &[("STOMP", stomp.as_ref()), ("Admin", admin.as_ref())])?;
    if let Some(listener) = admin {
        tokio::spawn(Admin::new(Arc::clone(&node), clock).serve(listener));
    }
    let memory = Arc::clone(&node.memory);
    tokio::spawn(async move { memory.watch(clock).await });
    let mut listeners = Vec::new();
    if let (Some(listener), Some(stomp)) = (stomp, &settings.stomp) {
        let connections_max = connections_allowed(stomp.connections_max);
        listeners.push(StompFront::new(listener, connections_max, stomp, Arc::clone(&node), clock).start());
    }
    let format = settings.logging.format;
    tokio::spawn(Reload::new(sources, dynamic, Arc::clone(&node), telemetry).run());
    let _ready = tokio::spawn(say_when_ready(Arc::clone(&node), format));

    let signal = tokio::select! {
        signal = signals.next() => signal,
        ended = &mut shard => return Err(failed(ended)),
    };
    let schedule = Schedule::new(clock.runtime_instant(clock.monotonic()), settings.drain_timeout);
    tokio::select! {
        result = stop(&node, signal, schedule, listeners, shard) => result,
        _ = signals.next() => Err(Failure::Interrupted),
    }
}

/// Ends in order. The admin port goes on answering until the process is gone.
async fn stop(
    node: &Node,
    signal: &str,
    schedule: Schedule,
    listeners: Vec<JoinHandle<()>>,
    mut shard: JoinHandle<Result<(), Failed>>,
) -> Result<(), Failure> {
    lock(&node.state).is_stopping = true;
    for listener in listeners {
        listener.abort();
        // It ends as cancelled, which is what was asked.
        listener.await.ok();
    }
    tracing::info!(signal, "Stopping");
    tokio::select! {
        () = end_connections(&node.connections, schedule) => {}
        ended = &mut shard => return Err(failed(ended)),
    }
    node.inbox.push([Letter::Close]);
    match timeout_at(schedule.ended_until, shard).await {
        Ok(Ok(Ok(()))) => {
            tracing::info!("Stopped");
            Ok(())
        }
        Ok(ended) => Err(failed(ended)),
        Err(_) => Err(anyhow!("the journal could not be closed within drainTimeoutSeconds").into()),
    }
}

/// The shard has ended though nobody asked.
fn failed(ended: Result<Result<(), Failed>, tokio::task::JoinError>) -> Failure {
    let error = match ended {
        Ok(Ok(())) => anyhow!("the broker has ended"),
        Ok(Err(error)) => anyhow::Error::from(error),
        Err(error) => anyhow::Error::from(error).context("the broker has failed"),
    };
    tracing::error!(error = in_one_line(&error), "Ending, the next start recovers");
    error.into()
}

fn bind(key: &'static str, address: SocketAddr) -> Result<TcpListener, Failure> {
    listen::bind(address).map_err(|source| Failure::listen(key, address, source))
}

fn broker_settings(settings: &Settings) -> berth_broker::Settings {
    let fsync = match settings.fsync {
        Fsync::Always => berth_log::Fsync::Always,
        Fsync::Interval => berth_log::Fsync::Interval,
        Fsync::Never => berth_log::Fsync::Never,
    };
    let log = berth_log::Settings { fsync, secret: random(), ..berth_log::Settings::default() };
    berth_broker::Settings { log, ..berth_broker::Settings::default() }
}

/// Files besides connections: the journal, the admin port, clients that are told that there are too many,
/// and what the runtime and the listeners need.
const OTHER_FILES: usize = 64 + CONNECTIONS_MAX + TOLD_MAX + 32;

/// How many connections there may be so that the journal never lacks a file: to it that is a failed disk.
fn connections_allowed(wanted: usize) -> usize {
    let files = usize::try_from(crate::process::raise_open_files_max()).unwrap_or(usize::MAX);
    let room = files.saturating_sub(OTHER_FILES).max(1);
    if room < wanted {
        tracing::warn!(
            files,
            connections = room,
            "The system allows fewer open files than stomp.maxConnections needs, raise its limit"
        );
    }
    wanted.min(room)
}

/// Three quarters of what the process may have: the rest is for the broker.
fn memory_allowed() -> u64 {
    crate::process::memory_max() / 4 * 3
}

/// A number that nobody outside can guess: the standard library seeds its hash keys from the system.
pub(crate) fn random() -> u64 {
    use std::hash::{BuildHasher as _, RandomState};
    RandomState::new().hash_one(0_u64)
}

/// One line per listener: for a person on standard output, for programs in the log.
fn announce(settings: &Settings, listeners: &[(&str, Option<&TcpListener>)]) -> Result<(), Failure> {
    for (name, listener) in listeners {
        let Some(listener) = listener else { continue };
        let address = listener.local_addr().context("reading a listener's address")?;
        say(settings.logging.format, &format!("{name} on {address}"));
    }
    Ok(())
}

async fn say_when_ready(node: Arc<Node>, format: LogFormat) {
    let mut broker = node.broker.clone();
    if broker.wait_for(|state| *state == BrokerState::Ready).await.is_ok() {
        say(format, "Ready");
    }
}

/// Standard output may be closed; that stops nothing.
fn say(format: LogFormat, line: &str) {
    match format {
        LogFormat::Json => tracing::info!("{line}"),
        LogFormat::Text => {
            writeln!(std::io::stdout(), "{line}").ok();
        }
    }
}
