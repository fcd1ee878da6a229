//! B6: how long a durable message takes when the server is half loaded. Open loop.

use std::time::Duration;

use anyhow::{Context, Result};
use hdrhistogram::Histogram;

use super::{Field, Options, rate};
use crate::load::{self, Plan};
use crate::probe::Barrier;
use crate::report::{Report, Row, Spread};
use crate::servers::{Fsync, Kind, Server};

/// All servers get half of what the best peer could take in a short run before.
pub(super) fn at_half_load(options: &Options) -> Result<Report> {
    let field = Field::prepare(options, Fsync::Always, &[])?;
    let servers = field.start()?;
    let goal = match options.rate {
        Some(rate) => rate,
        None => best_saturation(options, &servers)? / 2.0,
    };
    let plan = Plan { rate: Some(goal), ..rate::saturating(options, 4, options.measure) };
    let mut rows = Vec::new();
    for server in &servers {
        let (kind, version) = (server.setup.kind, server.setup.version()?);
        rows.push(Row { kind, version, turns: Vec::new() });
    }
    for number in 0..options.turns {
        for (server, row) in servers.iter().zip(&mut rows) {
            let mut barrier = Barrier::new()?;
            barrier.measure(field.folder.path(), BARRIER_TIME)?;
            let target = server.setup.target(&format!("B6-{number}"), true);
            let outcome = load::run(&target, &plan, &mut |_| ())
                .with_context(|| format!("the load on {}", row.kind.name()))?;
            row.turns.push(vec![
                ("p50 ms", quantile_ms(&outcome.delivery, 0.5)),
                ("p99 ms", quantile_ms(&outcome.delivery, 0.99)),
                ("p99.9 ms", quantile_ms(&outcome.delivery, 0.999)),
                ("receipt p50 ms", quantile_ms(&outcome.confirm, 0.5)),
                ("receipt p99 ms", quantile_ms(&outcome.confirm, 0.99)),
                ("receipt p99.9 ms", quantile_ms(&outcome.confirm, 0.999)),
                ("rate/s", outcome.messages as f64 / outcome.seconds),
                ("barrier p99 ms", barrier.quantile_us(0.99) / 1e3),
                ("barrier p99.9 ms", barrier.quantile_us(0.999) / 1e3),
            ]);
        }
    }
    for server in servers {
        server.stop()?;
    }
    let title = format!("delivery latency at {goal:.0} messages a second, 4 to 4, 1 KiB, fsync always");
    let (limits, notes) = (Vec::new(), Vec::new());
    Ok(Report { id: "B6", title, main: "p99 ms", more_is_better: false, rows, limits, notes })
}

/// The most that a peer (or, without peers, any server) takes.
fn best_saturation(options: &Options, servers: &[Server<'_>]) -> Result<f64> {
    let plan = rate::saturating(options, 4, options.measure.min(SATURATION_TIME));
    let is_peer = |server: &&Server<'_>| matches!(server.setup.kind, Kind::Artemis | Kind::Rabbitmq);
    let any_peer = servers.iter().any(|server| is_peer(&server));
    let mut rates = Vec::new();
    for server in servers.iter().filter(|server| !any_peer || is_peer(server)) {
        let figures = rate::turn(server, "B6-saturation", &plan)?;
        rates.extend(figures.iter().filter(|figure| figure.0 == "rate/s").map(|figure| figure.1));
    }
    Ok(Spread::of(rates).context("no server was measured")?.max)
}

fn quantile_ms(histogram: &Histogram<u64>, quantile: f64) -> f64 {
    histogram.value_at_quantile(quantile) as f64 / 1e6
}

const BARRIER_TIME: Duration = Duration::from_millis(300);
const SATURATION_TIME: Duration = Duration::from_secs(5);
