//! RabbitMQ from Debian's package, run by hand beside whatever the system has.
//!
//! Queues are durable and messages persistent. It confirms (a receipt) when the message is on disk; without
//! receipts it writes in the background, so fsync always and never are the same set-up here.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::{Setup, write};
use crate::process::{Process, free_port};

pub(super) fn prepare(setup: &Setup) -> Result<()> {
    server()?;
    let config = format!(
        "listeners.tcp.1 = 127.0.0.1:{}\nstomp.listeners.tcp.1 = {}\nlog.console = false\n\
         disk_free_limit.absolute = 1GB\nvm_memory_high_watermark.relative = 0.4\n",
        free_port()?,
        setup.stomp
    );
    write(&setup.folder.join("rabbitmq.conf"), &config)?;
    write(&setup.folder.join("enabled_plugins"), "[rabbitmq_stomp].\n")?;
    write(&setup.folder.join("env.conf"), "")
}

/// The server, and the name server that Erlang needs, both with recorded pids.
pub(super) fn start(setup: &Setup) -> Result<(Process, Vec<Process>)> {
    let folder = &setup.folder;
    let epmd_port = setup.other.port().to_string();
    let mut epmd = Command::new("epmd");
    epmd.args(["-address", "127.0.0.1", "-port", &epmd_port]);
    let mut epmd = Process::start("epmd", &mut epmd, &folder.join("epmd.log"))?;
    epmd.wait_until(EPMD_LIMIT, || std::net::TcpStream::connect(setup.other).is_ok())?;
    let mut command = Command::new(server()?);
    command
        .env("HOME", folder)
        .env("ERL_EPMD_ADDRESS", "127.0.0.1")
        .env("ERL_EPMD_PORT", &epmd_port)
        .env("RABBITMQ_NODENAME", format!("bench{}@localhost", setup.stomp.port()))
        .env("RABBITMQ_CONFIG_FILE", folder.join("rabbitmq.conf"))
        .env("RABBITMQ_CONF_ENV_FILE", folder.join("env.conf"))
        .env("RABBITMQ_ENABLED_PLUGINS_FILE", folder.join("enabled_plugins"))
        .env("RABBITMQ_MNESIA_BASE", folder.join("mnesia"))
        .env("RABBITMQ_LOG_BASE", folder.join("log"))
        .env("RABBITMQ_PID_FILE", folder.join("pid"))
        .env("RABBITMQ_DIST_PORT", free_port()?.to_string())
        .env("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", ERLANG);
    Ok((Process::start("rabbitmq", &mut command, &setup.log())?, vec![epmd]))
}

pub(super) fn version() -> Result<String> {
    let format = "-f=${Version}";
    let output = Command::new("dpkg-query").args(["-W", format, "rabbitmq-server"]).output()?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Installs the package when it is not there, as root. The service is masked first, so it never starts.
pub(super) fn install() -> Result<PathBuf> {
    if let Ok(server) = server() {
        return Ok(server);
    }
    run(&["systemctl", "mask", "rabbitmq-server.service"])?;
    run(&["apt-get", "install", "-y", "--no-install-recommends", "rabbitmq-server"])?;
    server()
}

/// The script behind `/usr/sbin/rabbitmq-server`, which would change the user and the folder.
fn server() -> Result<PathBuf> {
    let path = Path::new("/usr/lib/rabbitmq/bin/rabbitmq-server");
    if !path.exists() {
        bail!("RabbitMQ is not installed; as root: berth-bench install");
    }
    Ok(path.to_owned())
}

fn run(words: &[&str]) -> Result<()> {
    let (program, arguments) = words.split_first().context("a program")?;
    let status = Command::new(program).args(arguments).status()?;
    if !status.success() {
        bail!("{} has failed with {status}", words.join(" "));
    }
    Ok(())
}

const EPMD_LIMIT: std::time::Duration = std::time::Duration::from_secs(10);
/// Loopback only, and no name server beside the one that was started here.
const ERLANG: &str = "-start_epmd false -kernel inet_dist_use_interface {127,0,0,1}";
