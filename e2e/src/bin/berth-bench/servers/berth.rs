//! This project's connector.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::{Fsync, Setup, write};
use crate::process::Process;

pub(super) fn prepare(setup: &Setup) -> Result<()> {
    let fsync = match setup.fsync {
        Fsync::Always => "always",
        Fsync::Never => "never",
    };
    let data = setup.folder.join("data");
    let config = format!(
        "node: bench\ndataDir: {}\nbroker: {{ embedded: {{ fsync: {fsync} }} }}\n\
         admin: {{ address: \"{}\" }}\n\
         stomp: {{ address: 127.0.0.1, port: {}, maxConnections: 20000 }}\nlogging: {{ level: warn }}\n",
        data.display(),
        setup.other,
        setup.stomp.port(),
    );
    write(&config_file(setup), &config)
}

pub(super) fn start(setup: &Setup) -> Result<Process> {
    let mut command = Command::new(program(setup)?);
    command.arg("--config").arg(config_file(setup));
    Process::start("berth-connector", &mut command, &setup.log())
}

/// `/readyz` of the admin port says so.
pub(super) fn is_ready(setup: &Setup) -> bool {
    let ask = || -> Result<String> {
        let mut stream = TcpStream::connect_timeout(&setup.other, ADMIN_LIMIT)?;
        stream.set_read_timeout(Some(ADMIN_LIMIT))?;
        stream.write_all(b"GET /readyz HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    ask().is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"))
}

pub(super) fn version(setup: &Setup) -> Result<String> {
    let program = program(setup)?;
    let output = Command::new(&program).arg("--version").output()?;
    if !output.status.success() {
        bail!("{} --version has failed", program.display());
    }
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.trim().trim_start_matches("berth-connector ").to_owned())
}

/// The given program, or the release build of this source tree.
fn program(setup: &Setup) -> Result<PathBuf> {
    if let Some(program) = &setup.program {
        return Ok(program.clone());
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("the package has a parent folder")?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let program = target.join("release/berth-connector");
    if !program.exists() {
        bail!(
            "{} is missing: cargo build --release -p berth-connector, or --program FILE",
            program.display()
        );
    }
    Ok(program)
}

fn config_file(setup: &Setup) -> PathBuf {
    setup.folder.join("config.yaml")
}

const ADMIN_LIMIT: Duration = Duration::from_secs(1);
