//! Logging: one line per event on standard error, text or JSON, its level changeable while the process runs.
//!
//! Repeats are limited per cause, so that a flood of bad clients cannot fill a disk: of each place in the
//! code that logs (and each value of the field `cause` there) at most [`EVENTS_MAX`] events of level info or
//! above pass in [`WINDOW`]; how many were left out is logged when the window is over.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Context as _;
use berth_config::{LogFormat, LogLevel, LoggingSettings};
use berth_types::Instant;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::{Context, Filter, SubscriberExt as _};
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Layer as _, Registry};

use crate::clock::Clock;
use crate::mailbox::lock;

/// Events of one cause in one window.
pub(crate) const EVENTS_MAX: u32 = 20;

/// How long a cause is counted before it starts afresh.
pub(crate) const WINDOW: Duration = Duration::from_secs(5);

/// Causes that are counted at a time; more share the last count.
const CAUSES_MAX: usize = 1024;

/// Changes the level and reports what was left out.
#[derive(Clone)]
pub(crate) struct Telemetry {
    level: reload::Handle<Targets, Registry>,
    throttle: Throttle,
}

impl fmt::Debug for Telemetry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Telemetry")
    }
}

impl Telemetry {
    /// Installs the process-wide subscriber.
    ///
    /// # Errors
    /// There is one already.
    pub(crate) fn start(settings: LoggingSettings, clock: Clock) -> anyhow::Result<Self> {
        let throttle = Throttle { clock, counts: Arc::default() };
        let (level, handle) = reload::Layer::new(targets(settings.level));
        let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(false);
        let lines = match settings.format {
            LogFormat::Text => lines.with_target(false).boxed(),
            LogFormat::Json => lines.json().flatten_event(true).with_current_span(false).boxed(),
        };
        tracing_subscriber::registry()
            .with(level)
            .with(lines.with_filter(throttle.clone()))
            .try_init()
            .context("logging is set up already")?;
        Ok(Self { level: handle, throttle })
    }

    /// Changes the least severe level that is logged.
    pub(crate) fn set_level(&self, level: LogLevel) {
        // The subscriber lives as long as the process, so its handle is always good.
        self.level.reload(targets(level)).ok();
    }

    /// Logs how many events were left out since the last call.
    pub(crate) fn report_left_out(&self) {
        for (cause, count) in self.throttle.take_left_out() {
            tracing::warn!(count, of = cause, "Repeated events were left out");
        }
    }
}

/// Our own crates at `level`; the libraries below at warnings at most.
fn targets(level: LogLevel) -> Targets {
    let level = match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    Targets::new().with_default(level.min(LevelFilter::WARN)).with_target("berth", level)
}

#[derive(Clone, Debug)]
struct Throttle {
    clock: Clock,
    counts: Arc<Mutex<BTreeMap<Cause, Count>>>,
}

/// Where an event is logged, and the value of its field `cause`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Cause {
    file: &'static str,
    line: u32,
    cause: String,
    message: String,
}

#[derive(Clone, Copy, Debug)]
struct Count {
    since: Instant,
    passed: u32,
    left_out: u64,
}

impl Throttle {
    fn passes(&self, cause: Cause) -> bool {
        let now = self.clock.monotonic();
        let mut counts = lock(&self.counts);
        let cause = if counts.len() < CAUSES_MAX || counts.contains_key(&cause) {
            cause
        } else {
            Cause { file: "", line: 0, cause: String::new(), message: String::from("(others)") }
        };
        let count = counts.entry(cause).or_insert(Count { since: now, passed: 0, left_out: 0 });
        if now.saturating_since(count.since) >= WINDOW {
            count.since = now;
            count.passed = 0;
        }
        if count.passed < EVENTS_MAX {
            count.passed += 1;
            true
        } else {
            count.left_out += 1;
            false
        }
    }

    fn take_left_out(&self) -> Vec<(String, u64)> {
        let now = self.clock.monotonic();
        let mut left_out = Vec::new();
        lock(&self.counts).retain(|cause, count| {
            let missing = std::mem::take(&mut count.left_out);
            if missing > 0 {
                left_out.push((cause.message.clone(), missing));
            }
            now.saturating_since(count.since) < WINDOW
        });
        left_out
    }
}

impl<S> Filter<S> for Throttle {
    fn enabled(&self, _meta: &Metadata<'_>, _cx: &Context<'_, S>) -> bool {
        true
    }

    fn event_enabled(&self, event: &Event<'_>, _cx: &Context<'_, S>) -> bool {
        let metadata = event.metadata();
        if *metadata.level() > Level::INFO {
            return true;
        }
        let mut words = Words::default();
        event.record(&mut words);
        self.passes(Cause {
            file: metadata.file().unwrap_or_default(),
            line: metadata.line().unwrap_or_default(),
            cause: words.cause,
            message: words.message,
        })
    }
}

#[derive(Default)]
struct Words {
    cause: String,
    message: String,
}

impl Visit for Words {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "cause" {
            self.cause = value.into();
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            "message" => self.message = format!("{value:?}"),
            "cause" => self.cause = format!("{value:?}"),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cause(word: &str) -> Cause {
        Cause { file: "a.rs", line: 1, cause: word.into(), message: "Connection ended".into() }
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_of_one_cause_leaves_the_others_alone() {
        let throttle = Throttle { clock: Clock::start(), counts: Arc::default() };
        let passed = (0..100).filter(|_| throttle.passes(cause("a"))).count();
        assert_eq!(passed, EVENTS_MAX as usize);
        assert!(throttle.passes(cause("b")));
        assert_eq!(throttle.take_left_out(), [(String::from("Connection ended"), 80)]);
        assert_eq!(throttle.take_left_out(), []);
        tokio::time::advance(WINDOW).await;
        assert!(throttle.passes(cause("a")));
        throttle.take_left_out();
        tokio::time::advance(WINDOW).await;
        throttle.take_left_out();
        assert!(lock(&throttle.counts).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn many_causes_cost_no_memory() {
        let throttle = Throttle { clock: Clock::start(), counts: Arc::default() };
        for number in 0..2 * CAUSES_MAX {
            throttle.passes(cause(&number.to_string()));
        }
        assert!(lock(&throttle.counts).len() <= CAUSES_MAX + 1);
    }
}
