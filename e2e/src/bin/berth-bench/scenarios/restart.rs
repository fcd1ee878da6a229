//! B10: how soon a server with a backlog can be used again, after a clean stop and after `kill -9`.

use std::time::Instant;

use anyhow::Result;

use super::{Field, Options, backlog, start};
use crate::load::{self, Plan};
use crate::report::{Figure, Report, Row};
use crate::servers::{Fsync, Kind, Server, Setup};

/// Ready is `/readyz` of the connector, CONNECTED of a peer; the first message shows that the queue is there.
pub(super) fn with_backlog(options: &Options) -> Result<Report> {
    let field = Field::prepare(options, Fsync::Always, &[Kind::Null])?;
    let mut rows = Vec::new();
    for setup in &field.setups {
        let messages = options.backlog(setup.kind);
        let server = start(setup)?;
        load::run(&setup.target(backlog::QUEUE, true), &backlog::store(messages), &mut |_| ())?;
        server.stop()?;
        let (server, clean, clean_first) = again(setup)?;
        server.kill()?;
        let (server, crashed, crashed_first) = again(setup)?;
        server.stop()?;
        let turn: Vec<Figure> = vec![
            ("crash ready s", crashed),
            ("crash first s", crashed_first),
            ("clean ready s", clean),
            ("clean first s", clean_first),
            ("messages", messages as f64),
        ];
        rows.push(Row { kind: setup.kind, version: setup.version()?, turns: vec![turn] });
    }
    let title = "start with a backlog of 200 B messages, after kill -9 and after a clean stop".to_owned();
    let notes = vec!["first: until a consumer has received its first message".to_owned()];
    let limits = Vec::new();
    Ok(Report { id: "B10", title, main: "crash ready s", more_is_better: false, rows, limits, notes })
}

/// Starts once more: seconds until it was ready and until it had delivered a message.
fn again(setup: &Setup) -> Result<(Server<'_>, f64, f64)> {
    let server = start(setup)?;
    let ready = server.ready_after;
    let begin = Instant::now();
    let plan = Plan { consumers: 1, ..backlog::drain(1) };
    load::run(&setup.target(backlog::QUEUE, true), &plan, &mut |_| ())?;
    Ok((server, ready.as_secs_f64(), (ready + begin.elapsed()).as_secs_f64()))
}
