//! Apache ActiveMQ Artemis, an instance of its own for each run.
//!
//! Durable messages are written to its journal and, with fsync always, synced many at a time
//! (`journal-datasync`); with fsync never the journal is written without a sync. Its heap is allocated in
//! advance, so its memory says little.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::{Fsync, Setup, write};
use crate::process::Process;

/// The newest version whose binary archive Maven serves.
pub(super) const VERSION: &str = "2.40.0";

pub(super) fn prepare(setup: &Setup) -> Result<()> {
    let instance = instance(setup);
    let status = Command::new(install()?.join("bin/artemis"))
        .args(["create", "--silent", "--user", "bench", "--password", "bench", "--allow-anonymous"])
        .args(["--no-web", "--no-autotune", "--nio", "--host", "127.0.0.1"])
        .arg(&instance)
        .output()?;
    if !status.status.success() {
        bail!("artemis create has failed: {}", String::from_utf8_lossy(&status.stdout));
    }
    let file = instance.join("etc/broker.xml");
    let text = std::fs::read_to_string(&file)?;
    write(&file, &broker_xml(&text, setup)?)
}

pub(super) fn start(setup: &Setup) -> Result<Process> {
    // The script ends in `exec java`, so its pid is the server's.
    let mut command = Command::new(instance(setup).join("bin/artemis"));
    command.arg("run");
    Process::start("artemis", &mut command, &setup.log())
}

/// Where Artemis lies; fetched with Maven when it is not there yet.
pub(super) fn install() -> Result<PathBuf> {
    let cache = cache()?;
    let home = cache.join(format!("apache-artemis-{VERSION}"));
    if home.join("bin/artemis").exists() {
        return Ok(home);
    }
    std::fs::create_dir_all(&cache)?;
    let artifact = format!("-Dartifact=org.apache.activemq:apache-artemis:{VERSION}:zip:bin");
    run(Command::new("mvn")
        .args(["-q", "-B", "dependency:copy", &artifact])
        .arg(format!("-DoutputDirectory={}", cache.display()))
        .current_dir(&cache))?;
    let archive = format!("apache-artemis-{VERSION}-bin.zip");
    run(Command::new("unzip").args(["-q", "-o", &archive]).current_dir(&cache))?;
    Ok(home)
}

/// `BERTH_PEERS`, or `~/.cache/berth/peers`.
fn cache() -> Result<PathBuf> {
    if let Some(folder) = std::env::var_os("BERTH_PEERS") {
        return Ok(folder.into());
    }
    let home = std::env::var_os("HOME").context("HOME is not set; set BERTH_PEERS")?;
    Ok(Path::new(&home).join(".cache/berth/peers"))
}

fn instance(setup: &Setup) -> PathBuf {
    setup.folder.join("instance")
}

/// One acceptor instead of five, the durability asked for, and no stop on a disk that is nearly full.
fn broker_xml(text: &str, setup: &Setup) -> Result<String> {
    let acceptor = format!(
        "<acceptors><acceptor name=\"stomp\">tcp://{}?tcpSendBufferSize=1048576;\
         tcpReceiveBufferSize=1048576;protocols=STOMP;useEpoll=true;\
         anycastPrefix=/queue/;multicastPrefix=/topic/</acceptor></acceptors>",
        setup.stomp
    );
    let text = replaced(text, "<acceptors>", "</acceptors>", &acceptor)?;
    let sync = setup.fsync == Fsync::Always;
    let journal = format!(
        "<journal-datasync>{sync}</journal-datasync>\
         <journal-sync-transactional>{sync}</journal-sync-transactional>\
         <journal-sync-non-transactional>{sync}</journal-sync-non-transactional>"
    );
    let text = replaced(&text, "<journal-datasync>", "</journal-datasync>", &journal)?;
    let disk = "<max-disk-usage>99</max-disk-usage>";
    replaced(&text, "<max-disk-usage>", "</max-disk-usage>", disk)
}

fn replaced(text: &str, open: &str, close: &str, with: &str) -> Result<String> {
    let found = text.split_once(open).and_then(|(before, rest)| Some((before, rest.split_once(close)?.1)));
    let (before, after) = found.with_context(|| format!("broker.xml has no {open}"))?;
    Ok(format!("{before}{with}{after}"))
}

fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot run {:?}", command.get_program()))?;
    if !status.success() {
        bail!("{command:?} has failed with {status}");
    }
    Ok(())
}
