//! This program's own null server.

use std::process::Command;

use anyhow::Result;

use super::Setup;
use crate::process::Process;

pub(super) fn start(setup: &Setup) -> Result<Process> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["null", "--port", &setup.stomp.port().to_string()]);
    Process::start("null", &mut command, &setup.log())
}
