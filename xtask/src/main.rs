//! The developer's commands: `cargo xtask test` checks everything that continuous integration checks.

mod chart;
mod checks;
mod cluster;
mod hello;
mod image;
mod product;
mod up;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Build, test and run Berth from a clone")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Bring up a cluster with the operator and a sample connector, and send a message through it.
    Up,
    /// Undo `up`: take the cluster down (somebody else's: remove what `up` installed).
    Down,
    /// Start, repair, use and remove a real Kubernetes cluster for tests.
    Cluster {
        #[command(subcommand)]
        action: cluster::Action,
    },
    /// Run everything that continuous integration checks, stage by stage, and print each stage's time.
    Test {
        /// Run only the stage of this name (see the list that a full run prints).
        #[arg(long)]
        stage: Option<String>,
    },
    /// Build the product's image without an engine and print its file, for `cluster load`.
    Image,
    /// Check the chart with helm (part of `test`).
    Chart {
        /// Write what it renders to the golden files.
        #[arg(long)]
        update: bool,
    },
    /// Check file and line lengths and module docs (part of `test`).
    Tidy,
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Up => up::up(),
        Command::Down => up::down(),
        Command::Cluster { action } => cluster::run(action),
        Command::Test { stage } => checks::test(stage.as_deref()),
        Command::Image => {
            println!("{} is in {}", product::IMAGE, product::build()?.display());
            Ok(())
        }
        Command::Chart { update } => chart::check(update),
        Command::Tidy => checks::tidy(),
    }
}
