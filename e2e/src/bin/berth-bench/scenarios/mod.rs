//! The scenarios: which load, which figures, in turns over all servers.

mod backlog;
mod idle;
mod latency;
mod rate;
mod restart;
mod ticks;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use tempfile::TempDir;

use crate::cli::{Run, Scenario};
use crate::process::{free_port, loopback};
use crate::report::Report;
use crate::servers::{Fsync, Kind, Server, Setup};

/// What a run is made of, after `--quick` and the defaults.
pub(crate) struct Options {
    pub(crate) servers: Vec<Kind>,
    pub(crate) turns: usize,
    pub(crate) warm: Duration,
    pub(crate) measure: Duration,
    pub(crate) messages: u64,
    pub(crate) connections: usize,
    pub(crate) rate: Option<f64>,
    pub(crate) lazy_flush: bool,
    pub(crate) program: Option<PathBuf>,
    pub(crate) folder: PathBuf,
}

impl Options {
    pub(crate) fn new(run: &Run) -> Self {
        let quick = run.quick;
        let warm = Duration::from_secs_f64(if quick { 0.3 } else { run.warm });
        let measure = Duration::from_secs_f64(if quick { 1.0 } else { run.seconds });
        Self {
            servers: run.servers.clone(),
            turns: if quick { 1 } else { run.turns.max(1) },
            warm,
            measure,
            messages: if quick { run.messages.min(20_000) } else { run.messages },
            connections: if quick { run.connections.min(200) } else { run.connections },
            rate: if quick { run.rate.or(Some(1_000.0)) } else { run.rate },
            lazy_flush: run.lazy_flush,
            program: run.program.clone(),
            folder: run.folder.clone().unwrap_or_else(std::env::temp_dir),
        }
    }

    /// The backlog that a server is given.
    fn backlog(&self, kind: Kind) -> u64 {
        if kind == Kind::Berth { self.messages } else { self.messages.div_ceil(10) }
    }
}

/// Runs one scenario.
pub(crate) fn run(scenario: Scenario, options: &Options) -> Result<Report> {
    match scenario {
        Scenario::B1 => rate::one_to_one(options),
        Scenario::B2 => rate::eight_to_eight(options),
        Scenario::B6 => latency::at_half_load(options),
        Scenario::B7 => idle::connections(options),
        Scenario::B8 => backlog::store_and_drain(options),
        Scenario::B9 => ticks::with_a_million_pending(options),
        Scenario::B10 => restart::with_backlog(options),
    }
}

/// Set-ups of all servers, prepared, in a folder that goes away with this value.
struct Field {
    folder: TempDir,
    setups: Vec<Setup>,
}

impl Field {
    fn prepare(options: &Options, fsync: Fsync, without: &[Kind]) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("berth-bench-").tempdir_in(&options.folder)?;
        let mut setups = Vec::new();
        for kind in options.servers.iter().copied().filter(|kind| !without.contains(kind)) {
            let setup = Setup {
                kind,
                fsync,
                folder: folder.path().join(kind.name()),
                stomp: loopback(free_port()?),
                other: loopback(free_port()?),
                program: options.program.clone(),
            };
            setup.prepare().with_context(|| format!("cannot set {} up", kind.name()))?;
            setups.push(setup);
        }
        Ok(Self { folder, setups })
    }

    fn start(&self) -> Result<Vec<Server<'_>>> {
        self.setups.iter().map(start).collect()
    }
}

fn start(setup: &Setup) -> Result<Server<'_>> {
    setup.start().with_context(|| {
        let log = std::fs::read_to_string(setup.folder.join("output.log")).unwrap_or_default();
        let tail: Vec<&str> = log.lines().rev().take(LOG_LINES).collect();
        let tail: Vec<&str> = tail.into_iter().rev().collect();
        format!("cannot start {}; its output ends in:\n{}", setup.kind.name(), tail.join("\n"))
    })
}

/// Bytes as mebibytes.
fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

const LOG_LINES: usize = 20;
