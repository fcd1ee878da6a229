//! Runs the programs that the cluster is made with, and says what they said when they fail.

use anyhow::{Context, Result, bail};
use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Runs `program` and returns what it printed; an error holds the command and the end of its error output.
pub(crate) fn run<S: AsRef<OsStr>>(program: impl AsRef<OsStr>, args: &[S]) -> Result<String> {
    let mut command = Command::new(program);
    command.args(args);
    output(&mut command)
}

/// Like `run` for a command that is already put together.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let shown = show(command);
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("starting {shown}"))?;
    checked(&shown, &output)
}

/// Like `output`, with `input` on its standard input.
pub(crate) fn feed(command: &mut Command, input: &[u8]) -> Result<String> {
    let shown = show(command);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("starting {shown}"))?;
    let written = child.stdin.take().map_or(Ok(()), |mut pipe| pipe.write_all(input));
    let output = child.wait_with_output().with_context(|| format!("waiting for {shown}"))?;
    let printed = checked(&shown, &output)?;
    written.with_context(|| format!("writing to {shown}"))?;
    Ok(printed)
}

/// Whether the command ends well; what it prints is dropped.
pub(crate) fn succeeds<S: AsRef<OsStr>>(program: impl AsRef<OsStr>, args: &[S]) -> bool {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

fn checked(shown: &str, output: &Output) -> Result<String> {
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let tail: Vec<_> = said.trim().lines().rev().take(8).collect();
        let tail: Vec<_> = tail.into_iter().rev().collect();
        bail!("{shown}: {}\n{}", output.status, tail.join("\n"));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn show(command: &Command) -> String {
    let mut shown = command.get_program().to_string_lossy().into_owned();
    for arg in command.get_args() {
        shown.push(' ');
        shown.push_str(&arg.to_string_lossy());
    }
    if shown.len() > 300 {
        shown = shown.chars().take(300).collect::<String>() + " ...";
    }
    shown
}

/// The program's path when it is in PATH or in one of the folders that an ordinary user's PATH lacks.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(usual).map(|folder| folder.join(program)).find(|p| p.is_file())
}

/// Writes the file unless it already says that; returns its path as text for a command line.
pub(crate) fn write_file(path: &Path, text: &str) -> Result<String> {
    if fs::read_to_string(path).is_ok_and(|old| old == text) {
        return Ok(path.display().to_string());
    }
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    }
    // Whole or not at all: an interrupted `up` must not leave half a file that the next one takes for good.
    let partial = path.with_extension("partial");
    fs::write(&partial, text).with_context(|| format!("writing {}", partial.display()))?;
    fs::rename(&partial, path).with_context(|| format!("writing {}", path.display()))?;
    Ok(path.display().to_string())
}
