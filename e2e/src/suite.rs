//! Runs tests against one cluster: most of them at the same time, each in its own namespace; those that
//! touch what all share, one by one at the end.
//!
//! Not libtest, because that has neither groups nor an order. The command line is like libtest's: `cargo
//! test -p berth-e2e --test it -- [PART OF A NAME]... [--list] [--keep] [--test-threads N]`. `--keep`
//! leaves the namespaces of failed tests.

use crate::kubectl::{Kubectl, Namespace};
use anyhow::{Context, Result, anyhow};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

/// As many tests at the same time as a machine of two cores bears.
const THREADS: usize = 4;

/// One test.
#[derive(Clone, Copy, Debug)]
pub struct Test {
    /// Its name: `module::what_holds`.
    pub name: &'static str,
    /// When it runs.
    pub group: Group,
    /// The test. It fails by an error or a panic, and it is skipped by [`skip`].
    pub run: fn(&Namespace) -> Result<()>,
}

/// When a test runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// At the same time as others: it touches nothing outside its namespace.
    Together,
    /// After all of those, one by one: it touches nodes, custom resource definitions, the operator or leases.
    Alone,
}

/// Ends a test that cannot run on this cluster.
///
/// # Errors
/// Always: that is how it gets out of the test.
pub fn skip(reason: &str) -> Result<()> {
    Err(anyhow!(Skipped(reason.to_owned())))
}

/// The main function of a test binary.
#[must_use]
pub fn main(tests: &[Test]) -> ExitCode {
    match Options::parse(std::env::args().skip(1)).and_then(|options| run(tests, &options)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(tests: &[Test], options: &Options) -> Result<bool> {
    let chosen: Vec<Test> = tests.iter().filter(|test| options.takes(test.name)).copied().collect();
    if options.list {
        for test in &chosen {
            println!("{}: test", test.name);
        }
        return Ok(true);
    }
    let kubectl = Kubectl::from_environment()?;
    kubectl.run(&["get", "--raw=/readyz", "--request-timeout=10s"]).context("the cluster does not answer")?;
    let (together, alone): (Vec<_>, Vec<_>) = chosen.iter().partition(|test| test.group == Group::Together);
    let begun = Instant::now();
    let mut outcomes = all(&kubectl, together, options.threads, options.keep);
    outcomes.extend(all(&kubectl, alone, 1, options.keep));
    let count = |wanted: Outcome| outcomes.iter().filter(|outcome| **outcome == wanted).count();
    println!(
        "\n{} passed, {} skipped, {} failed; {:.1} s",
        count(Outcome::Passed),
        count(Outcome::Skipped),
        count(Outcome::Failed),
        begun.elapsed().as_secs_f64()
    );
    Ok(count(Outcome::Failed) == 0)
}

fn all(kubectl: &Kubectl, mut tests: Vec<Test>, threads: usize, keep: bool) -> Vec<Outcome> {
    tests.reverse();
    let (waiting, done) = (Mutex::new(tests), Mutex::new(Vec::new()));
    let next = || waiting.lock().ok().and_then(|mut tests| tests.pop());
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(test) = next() {
                    let outcome = one(kubectl, &test, keep);
                    if let Ok(mut done) = done.lock() {
                        done.push(outcome);
                    }
                }
            });
        }
    });
    done.into_inner().unwrap_or_default()
}

fn one(kubectl: &Kubectl, test: &Test, keep: bool) -> Outcome {
    let begun = Instant::now();
    let space = match Namespace::create(kubectl, test.name) {
        Ok(space) => space,
        Err(error) => {
            println!("FAILED  {}: no namespace: {error:#}", test.name);
            return Outcome::Failed;
        }
    };
    let result = catch_unwind(AssertUnwindSafe(|| (test.run)(&space))).unwrap_or_else(|panic| {
        let words = panic.downcast_ref::<String>().map(String::as_str);
        let words = words.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(anyhow!("panicked: {}", words.unwrap_or("without words")))
    });
    let outcome = report(test.name, &space, result, begun.elapsed());
    if !(keep && outcome == Outcome::Failed)
        && let Err(error) = space.delete()
    {
        println!("namespace {} stays: {error:#}", space.name);
    }
    outcome
}

fn report(name: &str, space: &Namespace, result: Result<()>, took: Duration) -> Outcome {
    let seconds = took.as_secs_f64();
    match result {
        Ok(()) => {
            println!("ok      {name} ({seconds:.1} s)");
            Outcome::Passed
        }
        Err(error) if error.is::<Skipped>() => {
            println!("skipped {name}: {error}");
            Outcome::Skipped
        }
        Err(error) => {
            // One print, so that what other threads say does not get in between.
            println!("FAILED  {name} ({seconds:.1} s): {error:#}\n{}---- end of {name}", space.dump());
            Outcome::Failed
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Passed,
    Skipped,
    Failed,
}

#[derive(Debug)]
struct Skipped(String);

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Skipped {}

#[derive(Debug)]
struct Options {
    filters: Vec<String>,
    list: bool,
    keep: bool,
    threads: usize,
}

impl Options {
    fn parse(mut args: impl Iterator<Item = String>) -> Result<Self> {
        let mut options = Self { filters: Vec::new(), list: false, keep: false, threads: THREADS };
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--list" => options.list = true,
                "--keep" => options.keep = true,
                "--nocapture" => {}
                "--test-threads" => {
                    let number = args.next().context("--test-threads wants a number")?;
                    options.threads =
                        number.parse::<usize>().context("--test-threads wants a number")?.max(1);
                }
                other if other.starts_with('-') => return Err(anyhow!("unknown option {other}")),
                _ => options.filters.push(arg),
            }
        }
        Ok(options)
    }

    fn takes(&self, name: &str) -> bool {
        self.filters.is_empty() || self.filters.iter().any(|filter| name.contains(filter.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(args: &[&str]) -> Result<Options> {
        Options::parse(args.iter().map(|arg| (*arg).to_owned()))
    }

    #[test]
    fn filters_choose_by_part_of_a_name() {
        let chosen = options(&["drain", "--keep", "--test-threads", "2"]).unwrap();
        assert!(chosen.takes("cluster::a_drained_node") && !chosen.takes("cluster::a_volume_grows"));
        assert!(chosen.keep && chosen.threads == 2);
        assert!(options(&[]).unwrap().takes("anything"));
        assert!(options(&["--shuffle"]).is_err());
    }

    #[test]
    fn a_skip_is_told_apart_from_a_failure() {
        assert!(skip("no engine").unwrap_err().is::<Skipped>());
        assert!(!anyhow!("broken").is::<Skipped>());
    }
}
