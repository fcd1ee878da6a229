//! Loads STOMP brokers with raw bytes and compares them: this project's connector, Artemis, RabbitMQ, and a
//! null server that shows what the load itself costs. `berth-bench --help` explains the rest.

mod cli;
mod conn;
mod load;
mod null;
mod probe;
mod process;
mod report;
mod scenarios;
mod servers;
mod wire;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::{Parser, ValueEnum};

use crate::cli::{Cli, Command, Load, Run, Scenario};
use crate::load::{Plan, Target, Until};
use crate::scenarios::Options;

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Run(run) => compare(&run),
        Command::Load(load) => load_one(&load),
        Command::Null { port } => null::listen(port).and_then(|listener| null::serve(&listener)),
        Command::Install => servers::install(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn compare(run: &Run) -> Result<()> {
    let options = Options::new(run);
    let all = Scenario::value_variants();
    let scenarios = if run.scenarios.is_empty() { all } else { &run.scenarios };
    println!("{}", report::machine());
    for scenario in scenarios {
        let report = scenarios::run(*scenario, &options)?;
        println!("\n{}", report.table());
        if let Some(file) = &run.json {
            report::merge(file, &[report])?;
        }
    }
    Ok(())
}

fn load_one(load: &Load) -> Result<()> {
    if load.producers == 0 && load.count.is_none() {
        bail!("a load without producers needs --count");
    }
    let lines = |headers: &[String]| headers.iter().map(|header| format!("{header}\n")).collect::<String>();
    let target = Target {
        address: load.address,
        destination: load.destination.clone(),
        connect: format!(
            "CONNECT\naccept-version:1.2\nhost:/\nheart-beat:0,0\n{}\n\0",
            lines(&load.connect_header)
        ),
        send_headers: lines(&load.send_header),
        subscribe_headers: lines(&load.subscribe_header),
    };
    let time = |seconds| Duration::from_secs_f64(seconds);
    let until = match load.count {
        Some(count) => Until::Count(count),
        None => Until::Time { warm: time(load.warm), measure: time(load.seconds) },
    };
    let plan = Plan {
        producers: load.producers,
        consumers: load.consumers,
        body_bytes: load.body,
        in_flight: load.in_flight,
        backlog: 8_192,
        acks: load.acks,
        rate: load.rate,
        lazy_flush: load.lazy_flush,
        until,
    };
    let outcome = load::run(&target, &plan, &mut |_| ())?;
    let own = process::Usage::of_self()?.cpu_seconds;
    println!("{:.0} messages/s over {:.2} s", outcome.messages as f64 / outcome.seconds, outcome.seconds);
    println!("sent {}, delivered {}, generator CPU {own:.2} s", outcome.sent, outcome.delivered);
    for (name, times) in [("delivery", &outcome.delivery), ("receipt", &outcome.confirm)] {
        if !times.is_empty() {
            let ms = |quantile| times.value_at_quantile(quantile) as f64 / 1e6;
            let (p50, p99, p999) = (ms(0.5), ms(0.99), ms(0.999));
            println!("{name} latency ms: p50 {p50:.3}, p99 {p99:.3}, p99.9 {p999:.3}");
        }
    }
    if outcome.differs {
        bail!("the messages delivered are not those sent");
    }
    Ok(())
}
