//! The servers that are compared: how each is set up for the same durability, started, spoken to, stopped.
//!
//! All listen on loopback only, on ports that were free, and keep their data under one folder. None of them
//! uses a system service.

mod artemis;
mod berth;
mod null;
mod rabbitmq;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use clap::ValueEnum;

use crate::conn::Conn;
use crate::load::Target;
use crate::process::{Process, Usage};

/// Who can be loaded.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, ValueEnum)]
pub(crate) enum Kind {
    /// This project's connector with its embedded broker.
    Berth,
    /// Apache ActiveMQ Artemis.
    Artemis,
    /// RabbitMQ with its STOMP plug-in.
    Rabbitmq,
    /// A server that only moves bytes: what the generator and the sockets cost.
    Null,
}

impl Kind {
    /// As tables and JSON name it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Berth => "berth",
            Self::Artemis => "artemis",
            Self::Rabbitmq => "rabbitmq",
            Self::Null => "null",
        }
    }
}

/// When a stored message counts as durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fsync {
    /// After a sync.
    Always,
    /// When it is written.
    Never,
}

/// A server's set-up: everything that outlives a restart.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) kind: Kind,
    pub(crate) fsync: Fsync,
    /// Configuration, data and logs.
    pub(crate) folder: PathBuf,
    pub(crate) stomp: SocketAddr,
    /// A second port, for what the server needs one for.
    pub(crate) other: SocketAddr,
    /// The connector's program, when it is not to be built.
    pub(crate) program: Option<PathBuf>,
}

impl Setup {
    /// Writes configuration and creates folders.
    pub(crate) fn prepare(&self) -> Result<()> {
        std::fs::create_dir_all(&self.folder)?;
        match self.kind {
            Kind::Berth => berth::prepare(self),
            Kind::Artemis => artemis::prepare(self),
            Kind::Rabbitmq => rabbitmq::prepare(self),
            Kind::Null => Ok(()),
        }
    }

    /// Starts the server and waits until it can be used.
    pub(crate) fn start(&self) -> Result<Server<'_>> {
        let (mut process, helpers) = match self.kind {
            Kind::Berth => (berth::start(self)?, Vec::new()),
            Kind::Artemis => (artemis::start(self)?, Vec::new()),
            Kind::Rabbitmq => rabbitmq::start(self)?,
            Kind::Null => (null::start(self)?, Vec::new()),
        };
        let ready_after = process.wait_until(READY_LIMIT, || self.is_ready())?;
        Ok(Server { setup: self, process, _helpers: helpers, ready_after })
    }

    /// Which program this is.
    pub(crate) fn version(&self) -> Result<String> {
        match self.kind {
            Kind::Berth => berth::version(self),
            Kind::Artemis => Ok(artemis::VERSION.to_owned()),
            Kind::Rabbitmq => rabbitmq::version(),
            Kind::Null => Ok(env!("CARGO_PKG_VERSION").to_owned()),
        }
    }

    /// The words in which a queue of this server is used. `acks`: consumers acknowledge.
    pub(crate) fn target(&self, queue: &str, acks: bool) -> Target {
        let subscribe_headers = match (self.kind, acks) {
            (Kind::Artemis, true) => "consumer-window-size:131072\n".to_owned(),
            (Kind::Artemis, false) => "consumer-window-size:-1\n".to_owned(),
            (_, true) => format!("prefetch-count:{PREFETCH}\n"),
            (_, false) => String::new(),
        };
        Target {
            address: self.stomp,
            destination: format!("/queue/{queue}"),
            connect: self.connect("0,0"),
            send_headers: "persistent:true\n".to_owned(),
            subscribe_headers,
        }
    }

    /// A CONNECT frame.
    pub(crate) fn connect(&self, heart_beat: &str) -> String {
        let login = match self.kind {
            Kind::Rabbitmq => "login:guest\npasscode:guest\n",
            Kind::Artemis => "login:bench\npasscode:bench\n",
            Kind::Berth | Kind::Null => "",
        };
        format!("CONNECT\naccept-version:1.2\nhost:/\n{login}heart-beat:{heart_beat}\n\n\0")
    }

    fn is_ready(&self) -> bool {
        match self.kind {
            Kind::Berth => berth::is_ready(self),
            _ => Conn::open(self.stomp, &self.connect("0,0"), PROBE_BYTES).is_ok(),
        }
    }

    fn log(&self) -> PathBuf {
        self.folder.join("output.log")
    }
}

/// A server that runs.
pub(crate) struct Server<'a> {
    pub(crate) setup: &'a Setup,
    process: Process,
    /// Ended after the server itself.
    _helpers: Vec<Process>,
    /// From the start of the process until it could be used.
    pub(crate) ready_after: Duration,
}

impl Server<'_> {
    /// CPU time and memory so far.
    pub(crate) fn usage(&self) -> Result<Usage> {
        self.process.usage()
    }

    /// Ends it in order.
    pub(crate) fn stop(self) -> Result<()> {
        self.process.stop(STOP_LIMIT)
    }

    /// Ends it with SIGKILL.
    pub(crate) fn kill(mut self) -> Result<()> {
        self.process.kill()
    }
}

/// Fetches what is not there yet: Artemis from Maven, RabbitMQ from Debian with its service masked.
pub(crate) fn install() -> Result<()> {
    println!("artemis: {}", artemis::install()?.display());
    println!("rabbitmq: {}", rabbitmq::install()?.display());
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).map_err(|error| anyhow::anyhow!("cannot write {}: {error}", path.display()))
}

/// Unacknowledged messages of a consumer.
const PREFETCH: u32 = 100;
const READY_LIMIT: Duration = Duration::from_secs(120);
const STOP_LIMIT: Duration = Duration::from_secs(30);
const PROBE_BYTES: usize = 16 * 1024;
