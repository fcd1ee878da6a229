//! The stages of `cargo xtask test`, in the order that finds a mistake soonest.

use crate::cluster::{self, Session};
use crate::up;
use anyhow::{Context, Result, bail, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// One stage: its name, the minutes it may take on two cores with warm caches, and what it runs.
struct Stage {
    name: &'static str,
    budget_min: u64,
    run: fn() -> Result<()>,
}

const STAGES: &[Stage] = &[
    Stage { name: "fmt", budget_min: 1, run: || cargo(&["fmt", "--all", "--check"]) },
    Stage { name: "tidy", budget_min: 1, run: tidy },
    Stage { name: "clippy", budget_min: 5, run: clippy },
    Stage { name: "unit", budget_min: 10, run: || cargo(&["test", "--workspace", "--locked"]) },
    Stage { name: "chart", budget_min: 3, run: || crate::chart::check(false) },
    Stage { name: "process", budget_min: 4, run: process },
    Stage { name: "cluster", budget_min: 15, run: || cluster::with_cluster(end_to_end) },
];

/// Runs every stage, or the one named, and prints how long each took.
pub(crate) fn test(only: Option<&str>) -> Result<()> {
    if let Some(name) = only {
        let known: Vec<_> = STAGES.iter().map(|s| s.name).collect();
        ensure!(known.contains(&name), "no stage is called {name}; there are {}", known.join(", "));
    }
    let mut times: Vec<(&Stage, Duration)> = Vec::new();
    for stage in STAGES.iter().filter(|s| only.is_none_or(|name| name == s.name)) {
        println!("== {}", stage.name);
        let begun = Instant::now();
        (stage.run)().with_context(|| format!("stage {} failed", stage.name))?;
        times.push((stage, begun.elapsed()));
    }
    println!("\nstage          seconds");
    for (stage, took) in times {
        let slow = took.as_secs() > stage.budget_min * 90;
        let warning = if slow { "  (over 1.5 times its share)" } else { "" };
        println!("{:<14} {:>7.1}{warning}", stage.name, took.as_secs_f64());
    }
    Ok(())
}

const LINE_COLUMNS_MAX: usize = 110;
const FILE_LINES_MAX: usize = 800;
const DOC_FROM_LINES: usize = 150;

/// Files that are longer than the limit, each with the reason why it is allowed; the list may only shrink.
const LONG_FILES: &[(&str, &str)] = &[];

/// Checks lengths of files and lines and that every file of some size says what it is.
pub(crate) fn tidy() -> Result<()> {
    let mut complaints = Vec::new();
    for path in rust_files()? {
        let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        let name = path.display().to_string();
        let lines = text.lines().count();
        if lines > FILE_LINES_MAX && !LONG_FILES.iter().any(|(long, _)| *long == name) {
            complaints
                .push(format!("{name}: {lines} lines, at most {FILE_LINES_MAX}: split it along an idea"));
        }
        if lines > DOC_FROM_LINES && !text.starts_with("//!") {
            complaints.push(format!("{name}: over {DOC_FROM_LINES} lines and no module doc"));
        }
        for (index, line) in text.lines().enumerate() {
            if line.chars().count() > LINE_COLUMNS_MAX {
                complaints.push(format!("{name}:{}: longer than {LINE_COLUMNS_MAX} columns", index + 1));
            }
        }
    }
    ensure!(complaints.is_empty(), "{}", complaints.join("\n"));
    Ok(())
}

fn rust_files() -> Result<Vec<PathBuf>> {
    let out = Command::new("git").args(["ls-files", "*.rs"]).output().context("running git ls-files")?;
    ensure!(out.status.success(), "git ls-files failed");
    let listed = String::from_utf8(out.stdout).context("file names are UTF-8")?;
    Ok(listed.lines().map(PathBuf::from).filter(|p| p.exists() && !is_generated(p)).collect())
}

fn is_generated(path: &Path) -> bool {
    path.components().any(|part| part.as_os_str() == "generated")
}

/// The connector as a program, with real clients and `kill -9`.
fn process() -> Result<()> {
    cargo(&["test", "-p", "berth-e2e", "--test", "process", "--locked"])
}

fn clippy() -> Result<()> {
    cargo(&["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"])?;
    // `--all-targets` leaves out tests that a plain `cargo test` leaves out.
    let e2e = ["clippy", "-p", "berth-e2e", "--test", "it", "--test", "process", "--locked", "--"];
    cargo(&[&e2e[..], &["-D", "warnings"]].concat())
}

/// The README's first command, the chart's own test, and the end-to-end tests, on one cluster.
fn end_to_end(session: &Session) -> Result<()> {
    up::deploy(session)?;
    up::prove_and_clear(session)?;
    let mut command = Command::new("cargo");
    command.args(["test", "-p", "berth-e2e", "--test", "it", "--locked"]);
    command.env("KUBECONFIG", session.kubeconfig());
    ensure!(command.status().context("running cargo")?.success(), "the end-to-end tests failed");
    Ok(())
}

fn cargo(args: &[&str]) -> Result<()> {
    let status = Command::new("cargo").args(args).status().context("running cargo")?;
    if !status.success() {
        bail!("cargo {} failed", args.join(" "));
    }
    Ok(())
}
