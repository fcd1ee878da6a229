//! B8: a backlog is stored, then drained; what the server's memory does meanwhile.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};

use super::{Field, Options, mib, start};
use crate::load::{self, Outcome, Plan, Until};
use crate::report::{Report, Row};
use crate::servers::{Fsync, Kind, Server};

/// Producers first, consumers after them, every message settled.
pub(super) fn store_and_drain(options: &Options) -> Result<Report> {
    let field = Field::prepare(options, Fsync::Always, &[Kind::Null])?;
    let mut rows = Vec::new();
    for setup in &field.setups {
        let server = start(setup)?;
        let messages = options.backlog(setup.kind);
        let idle = server.usage()?.rss_bytes;
        let (stored, store_rss) = watched(&server, &store(messages))?;
        let (drained, drain_rss) = watched(&server, &drain(messages))?;
        server.stop()?;
        let turn = vec![
            ("drain/s", drained.messages as f64 / drained.seconds),
            ("store/s", stored.messages as f64 / stored.seconds),
            ("messages", messages as f64),
            ("rss idle MiB", mib(idle)),
            ("rss store MiB", mib(store_rss)),
            ("rss drain MiB", mib(drain_rss)),
        ];
        rows.push(Row { kind: setup.kind, version: setup.version()?, turns: vec![turn] });
    }
    let title = "200 B messages stored by 8, then drained by 8 (client-individual), fsync always".to_owned();
    let (limits, notes) = (Vec::new(), vec!["rss: highest while storing and while draining".to_owned()]);
    Ok(Report { id: "B8", title, main: "drain/s", more_is_better: true, rows, limits, notes })
}

/// Stores `messages` on [`QUEUE`].
pub(super) fn store(messages: u64) -> Plan {
    Plan {
        producers: 8,
        consumers: 0,
        body_bytes: 200,
        in_flight: Some(256),
        backlog: u64::MAX,
        acks: true,
        rate: None,
        lazy_flush: false,
        until: Until::Count(messages),
    }
}

/// Takes `messages` from it.
pub(super) fn drain(messages: u64) -> Plan {
    Plan { producers: 0, consumers: 8, ..store(messages) }
}

/// Runs a plan and returns the highest memory of the server meanwhile.
fn watched(server: &Server<'_>, plan: &Plan) -> Result<(Outcome, u64)> {
    let target = server.setup.target(QUEUE, true);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut highest = 0;
            while !done.load(Ordering::Relaxed) {
                highest = server.usage().map_or(highest, |usage| highest.max(usage.rss_bytes));
                std::thread::sleep(SAMPLE);
            }
            highest
        });
        let outcome = load::run(&target, plan, &mut |_| ());
        done.store(true, Ordering::Relaxed);
        let highest = watcher.join().map_err(|_| anyhow::anyhow!("the watcher has panicked"))?;
        let outcome = outcome.with_context(|| format!("the load on {}", server.setup.kind.name()))?;
        Ok((outcome, highest))
    })
}

/// The queue of the backlog.
pub(super) const QUEUE: &str = "backlog";
const SAMPLE: Duration = Duration::from_millis(250);
