//! B9: what time costs the engine when a million deliveries wait for their acknowledgement. In process: no
//! socket, no broker, only the state machine that every connection has.

use std::sync::Arc;
use std::time::{Duration, Instant as Clock};

use anyhow::{Context, Result, bail};
use berth_engine::port::{Capabilities, Capability, Completion, Operation, Reserved};
use berth_engine::{Engine, Event, Mode, Settings, Source, Subscribe};
use berth_types::{ChannelName, Encoding, Envelope, Instant, Message, MessageId, Seq, SubId, TxnId};
use bytes::Bytes;
use hdrhistogram::Histogram;

use super::Options;
use crate::report::{Figure, Report, Row};
use crate::servers::Kind;

/// 100 subscriptions with 10 000 deliveries each; a tenth of them has a shorter ack timeout.
pub(super) fn with_a_million_pending(options: &Options) -> Result<Report> {
    let turns = (0..options.turns).map(|_| turn()).collect::<Result<Vec<_>>>()?;
    Ok(Report {
        id: "B9",
        title: "a million deliveries pending in one engine, in process".to_owned(),
        main: "idle tick us",
        more_is_better: false,
        rows: vec![Row { kind: Kind::Berth, version: env!("CARGO_PKG_VERSION").to_owned(), turns }],
        limits: Vec::new(),
        notes: vec![format!(
            "idle tick: nothing is due, 99.9 % of {IDLE_TICKS} are faster; due: {DUE} end at one tick, with \
             the events and the operations that follow"
        )],
    })
}

fn turn() -> Result<Vec<Figure>> {
    let capabilities = Capabilities::of(&[Capability::Queues, Capability::Release]);
    let mut engine = Engine::new(Settings { capabilities, is_ready: true });
    let begin = Clock::now();
    for sub in 0..SUBSCRIPTIONS {
        let ack_timeout = if sub < DUE / WINDOW { SHORT } else { LONG };
        fill(&mut engine, sub, ack_timeout)?;
    }
    let filled = begin.elapsed();
    let mut idle = Histogram::<u64>::new_with_bounds(1, 1_000_000_000, 3)?;
    for step in 0..u64::from(IDLE_TICKS) {
        let now = Instant::ZERO + Duration::from_millis(1 + step);
        let begin = Clock::now();
        engine.handle_timeout(now);
        let event = engine.poll_event().is_some() || engine.poll_operation().is_some();
        idle.saturating_record(u64::try_from(begin.elapsed().as_nanos())?);
        if event {
            bail!("something was due after {} ms", 1 + step);
        }
    }
    let (mut ended, mut settled) = (0, 0);
    let begin = Clock::now();
    engine.handle_timeout(Instant::ZERO + SHORT + Duration::from_secs(1));
    while let Some(event) = engine.poll_event() {
        ended += u32::from(matches!(event, Event::Ended { .. }));
    }
    while let Some((_, operation)) = engine.poll_operation() {
        if let Operation::Settle { nack, .. } = operation {
            settled += nack.count();
        }
    }
    let due = begin.elapsed();
    if (ended, settled) != (DUE, u64::from(DUE)) {
        bail!("{ended} deliveries ended and {settled} were given back instead of {DUE}");
    }
    Ok(vec![
        ("idle tick us", idle.value_at_quantile(0.999) as f64 / 1e3),
        ("due ms", due.as_secs_f64() * 1e3),
        ("fill us each", filled.as_secs_f64() * 1e6 / f64::from(SUBSCRIPTIONS * WINDOW)),
    ])
}

/// One subscription, its whole window delivered and written.
fn fill(engine: &mut Engine, number: u32, ack_timeout: Duration) -> Result<()> {
    let source = Source::Queue(ChannelName::parse(&format!("jobs-{number}"))?);
    let ack_timeout = Some(ack_timeout);
    engine
        .subscribe(Instant::ZERO, Subscribe { source, mode: Mode::Individual, window: WINDOW, ack_timeout });
    let (attach, _) = engine.poll_operation().context("an attach is expected")?;
    let opened = Completion::Opened { sub: SubId::new(attach.get()), next_seq: None };
    engine.handle_completion(Instant::ZERO, Some(attach), opened);
    let mut filled = 0;
    while filled < WINDOW {
        let Some((op, operation)) = engine.poll_operation() else { bail!("a reservation is expected") };
        let Operation::Reserve { max, .. } = operation else { bail!("not expected: {operation:?}") };
        let items = (filled..filled + max).map(reserved).collect();
        let txn = TxnId::new(op.get());
        engine.handle_completion(Instant::ZERO, Some(op), Completion::Reserved { txn, items });
        filled += max;
        while let Some(event) = engine.poll_event() {
            if let Event::Deliver { delivery, .. } = event {
                engine.handle_written(Instant::ZERO, delivery);
            }
        }
    }
    Ok(())
}

fn reserved(seq: u32) -> Reserved {
    let message = Message {
        id: MessageId::new("m"),
        envelope: Envelope::default(),
        encoding: Encoding::Plain,
        head: Bytes::new(),
        body: Bytes::from_static(b"a body"),
    };
    Reserved {
        seq: Seq::new(u64::from(seq) + 1),
        message: Arc::new(message),
        receive_count: 0,
        redelivered: false,
        held_until: None,
    }
}

const SUBSCRIPTIONS: u32 = 100;
const WINDOW: u32 = 10_000;
const DUE: u32 = 100_000;
const SHORT: Duration = Duration::from_secs(30);
const LONG: Duration = Duration::from_secs(3_600);
const IDLE_TICKS: u16 = 10_000;
