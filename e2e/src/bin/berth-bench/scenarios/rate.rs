//! B1 and B2: how many messages a second go through a queue.

use std::time::Duration;

use anyhow::{Context, Result};

use super::{Field, Options, mib};
use crate::load::{self, Edge, Plan, Until};
use crate::probe::{self, Barrier};
use crate::process::Usage;
use crate::report::{Figure, Report, Row};
use crate::servers::{Fsync, Server};

/// B1. The sockets alone (`null`) are its limit.
pub(super) fn one_to_one(options: &Options) -> Result<Report> {
    let plan = Plan {
        producers: 1,
        consumers: 1,
        body_bytes: 256,
        in_flight: None,
        backlog: BACKLOG,
        acks: false,
        rate: None,
        lazy_flush: options.lazy_flush,
        until: Until::Time { warm: options.warm, measure: options.measure },
    };
    let title = "STOMP queue, 1 to 1, 256 B, auto ack, no receipts, fsync never".to_owned();
    in_turns("B1", title, options, Fsync::Never, &plan)
}

/// B2. Its limit is a file that is only appended and synced, all that is in flight at a time.
pub(super) fn eight_to_eight(options: &Options) -> Result<Report> {
    let plan = saturating(options, 8, options.measure);
    let title = "STOMP queue, 8 to 8, 1 KiB, 64 receipts in flight each, client-individual, fsync always";
    let mut report = in_turns("B2", title.to_owned(), options, Fsync::Always, &plan)?;
    for batch in [64, 512] {
        let rate = probe::append_and_sync(&options.folder, 1024, batch, LIMIT_TIME)?;
        report.limits.push((format!("append and sync, {batch} x 1 KiB a barrier"), rate));
    }
    Ok(report)
}

/// The plan of B2 with `each` producers and consumers.
pub(super) fn saturating(options: &Options, each: usize, measure: Duration) -> Plan {
    Plan {
        producers: each,
        consumers: each,
        body_bytes: 1024,
        in_flight: Some(64),
        backlog: BACKLOG,
        acks: true,
        rate: None,
        lazy_flush: options.lazy_flush,
        until: Until::Time { warm: options.warm, measure },
    }
}

/// One turn: the rate and what it cost.
pub(super) fn turn(server: &Server<'_>, queue: &str, plan: &Plan) -> Result<Vec<Figure>> {
    let target = server.setup.target(queue, plan.acks);
    let mut marks: Vec<(Usage, Usage)> = Vec::new();
    let mut failed = None;
    let outcome = load::run(&target, plan, &mut |_: Edge| match server
        .usage()
        .and_then(|server| Ok((server, Usage::of_self()?)))
    {
        Ok(mark) => marks.push(mark),
        Err(error) => failed = Some(error),
    })
    .with_context(|| format!("the load on {}", server.setup.kind.name()))?;
    if let Some(error) = failed {
        return Err(error);
    }
    let [begin, end] = marks[..] else { anyhow::bail!("the measured part has no two edges") };
    let messages = outcome.messages as f64;
    let lost_or_doubled = if outcome.differs { outcome.sent.abs_diff(outcome.delivered).max(1) } else { 0 };
    Ok(vec![
        ("rate/s", messages / outcome.seconds),
        ("cpu us", (end.0.cpu_seconds - begin.0.cpu_seconds) * 1e6 / messages),
        ("cores", (end.0.cpu_seconds - begin.0.cpu_seconds) / outcome.seconds),
        ("rss MiB", mib(end.0.rss_bytes)),
        ("gen cores", (end.1.cpu_seconds - begin.1.cpu_seconds) / outcome.seconds),
        ("differs", lost_or_doubled as f64),
    ])
}

fn in_turns(id: &'static str, title: String, options: &Options, fsync: Fsync, plan: &Plan) -> Result<Report> {
    let field = Field::prepare(options, fsync, &[])?;
    let servers = field.start()?;
    let mut rows = Vec::new();
    for server in &servers {
        let (kind, version) = (server.setup.kind, server.setup.version()?);
        rows.push(Row { kind, version, turns: Vec::new() });
    }
    let mut notes = Vec::new();
    for number in 0..options.turns {
        for (server, row) in servers.iter().zip(&mut rows) {
            let mut barrier = Barrier::new()?;
            barrier.measure(field.folder.path(), BARRIER_TIME)?;
            let mut figures = turn(server, &format!("{id}-{number}"), plan)?;
            barrier.measure(field.folder.path(), BARRIER_TIME)?;
            if fsync == Fsync::Always {
                figures.push(("barrier p50 us", barrier.quantile_us(0.5)));
                figures.push(("p99", barrier.quantile_us(0.99)));
                figures.push(("p99.9", barrier.quantile_us(0.999)));
            }
            if figures.iter().any(|figure| figure.0 == "differs" && figure.1 > 0.0) {
                notes.push(format!("{}: turn {number} lost or doubled messages", row.kind.name()));
            }
            row.turns.push(figures);
        }
    }
    for server in servers {
        server.stop()?;
    }
    Ok(Report { id, title, main: "rate/s", more_is_better: true, rows, limits: Vec::new(), notes })
}

/// Keeps queues short, so that a rate is that of messages passing through, not of messages piling up.
const BACKLOG: u64 = 8_192;
const BARRIER_TIME: Duration = Duration::from_millis(150);
const LIMIT_TIME: Duration = Duration::from_secs(1);
