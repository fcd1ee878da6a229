//! Runs histories of the simulator: one seed, or many, and prints what went wrong with how to see it again.

use std::process::ExitCode;

use berth_sim::{Options, run};
use berth_types::Instant;
use clap::Parser;

/// Simulates the whole connector under a seed.
#[derive(Parser)]
struct Args {
    /// The seed; with --seeds, the first of them.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Run so many seeds one after the other.
    #[arg(long)]
    seeds: Option<u64>,
    /// Print the whole trace while it happens.
    #[arg(long)]
    trace: bool,
    /// Stop at this virtual time, for instance 41.207s.
    #[arg(long, value_parser = parse_until)]
    until: Option<Instant>,
}

fn parse_until(text: &str) -> Result<Instant, String> {
    let seconds: f64 = text.trim_end_matches('s').parse().map_err(|_| format!("{text} is no time"))?;
    // A printed time is rounded down: go on to the end of its millisecond.
    Ok(Instant::from_nanos((seconds * 1e9).round() as u64 + 999_999))
}

fn main() -> ExitCode {
    let args = Args::parse();
    let options = |seed| Options { until: args.until, echoes: args.trace, ..Options::new(seed) };
    let count = args.seeds.unwrap_or(1);
    let (mut failures, mut steps, mut ended) = (0, 0, 0);
    for seed in args.seed..args.seed.saturating_add(count) {
        match run(&options(seed)) {
            Ok(report) => {
                if args.seeds.is_none() {
                    println!("{report:?}");
                }
                steps += report.steps;
                ended += report.ended;
            }
            Err(failed) => {
                failures += 1;
                eprintln!("{failed}\n");
            }
        }
    }
    println!("{count} seeds, {steps} steps, {ended} messages ended, {failures} failures");
    if failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
