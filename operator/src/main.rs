//! The operator's process: reads its arguments, waits to lead, runs the controllers, and ends when it
//! does not lead any more.

use anyhow::{Context as _, Result};
use berth_crds::StompConnector;
use berth_operator::args::Args;
use berth_operator::backoff::Backoffs;
use berth_operator::census::Census;
use berth_operator::cluster::{Cluster, Kind, ObjectId};
use berth_operator::context::{Context, TestExit};
use berth_operator::events::Events;
use berth_operator::health::{self, Health};
use berth_operator::leader::{Candidate, Election};
use berth_operator::metrics::Metrics;
use berth_operator::names::ADMIN_PORT;
use berth_operator::node::HttpNodeApi;
use berth_operator::validate::Image;
use berth_operator::{controller, definitions};
use clap::Parser as _;
use kube::{Client, Config};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    let filter = EnvFilter::try_new(&args.log).unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt().json().with_env_filter(filter).init();
    match run(args).await {
        Ok(code) => code,
        Err(error) => {
            tracing::error!(error = format!("{error:#}"), "Operator ends");
            ExitCode::FAILURE
        }
    }
}

/// The exit code of a process that a test ended, so that it is told from a crash.
const TEST_EXIT_CODE: u8 = 86;

async fn run(args: Args) -> Result<ExitCode> {
    let installed = rustls::crypto::aws_lc_rs::default_provider().install_default();
    anyhow::ensure!(installed.is_ok(), "another TLS provider is installed already");
    let cluster = connect().await?;
    if args.check {
        return check(&args, &cluster).await.map(|()| ExitCode::SUCCESS);
    }
    let context = Arc::new(context(&args, cluster.clone()));
    let listener = tokio::net::TcpListener::bind(args.address)
        .await
        .with_context(|| format!("listening on {}", args.address))?;
    tracing::info!(address = %args.address, image = args.image, "Operator started");
    let metrics = context.clone();
    let router = health::router(context.health.clone(), move || metrics.metrics.text());
    let http = async move { axum::serve(listener, router).await.context("serving the probes") };
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let election = Election {
        namespace: args.namespace.clone(),
        name: args.lease.clone(),
        identity: args.pod.clone(),
        duration: Duration::from_secs(args.lease_seconds),
    };
    let code = tokio::select! {
        served = http => served.map(|()| ExitCode::FAILURE),
        led = lead(&args, context.clone(), Candidate::new(cluster.clone(), election.clone())) => {
            led.map(|()| ExitCode::FAILURE)
        }
        () = context.exit.reached() => return Ok(ExitCode::from(TEST_EXIT_CODE)),
        _ = terminate.recv() => Ok(ExitCode::SUCCESS),
        _ = interrupt.recv() => Ok(ExitCode::SUCCESS),
    }?;
    // The controllers have been dropped by now: nothing writes any more, so the next one may begin at once.
    let release = tokio::time::timeout(Duration::from_secs(3), async move {
        Candidate::new(cluster, election).release().await
    });
    if let Ok(Err(error)) = release.await {
        tracing::warn!(%error, "Lease not released");
    }
    Ok(code)
}

/// Waits to lead, leads, and comes back when this process may not write any more.
async fn lead(args: &Args, context: Arc<Context>, mut candidate: Candidate) -> Result<()> {
    let looking = definitions::watch(&context);
    let leading = async {
        candidate.acquire().await;
        tracing::info!(lease = args.lease, "Leading");
        context.metrics.leader.set(1);
        context.health.leads(Instant::now());
        tokio::select! {
            () = candidate.hold() => {}
            () = control(args, context.clone()) => {}
        }
        context.metrics.leader.set(0);
    };
    tokio::select! {
        () = looking => {}
        () = leading => {}
    }
    anyhow::bail!("this process does not lead any more")
}

/// Runs the controllers: one for all namespaces, or one for each, so that one that may not be read stops
/// no other.
async fn control(args: &Args, context: Arc<Context>) {
    let namespaces: Vec<Option<String>> = match args.namespaces() {
        None => vec![None],
        Some(named) => named.into_iter().map(Some).collect(),
    };
    let controllers = namespaces.into_iter().map(|namespace| {
        controller::run::<StompConnector>(context.clone(), namespace, std::future::pending::<()>())
    });
    futures::future::join_all(controllers).await;
}

/// How long a check waits for an operator that leads.
const CHECK_PATIENCE: Duration = Duration::from_secs(60);

/// What `helm test` runs: says in one line what is missing.
async fn check(args: &Args, cluster: &Cluster) -> Result<()> {
    let document =
        cluster.open_api().await?.context("the CustomResourceDefinitions of berth.dev are not there")?;
    let missing = definitions::missing_fields(&document);
    anyhow::ensure!(missing.is_empty(), "the CustomResourceDefinitions lack {}", missing.join(", "));
    let namespaces = args.namespaces().map_or_else(|| vec![None], |all| all.into_iter().map(Some).collect());
    for namespace in namespaces {
        cluster.has_connectors("stompconnectors", namespace.as_deref()).await?;
    }
    let id = ObjectId::new(Kind::Lease, &args.lease);
    let begun = Instant::now();
    loop {
        let lease = cluster.get(&args.namespace, &id).await?;
        let holder = lease.as_ref().and_then(|lease| lease["spec"]["holderIdentity"].as_str());
        if let Some(holder) = holder.filter(|holder| !holder.is_empty()) {
            println!("{holder} leads; definitions and permissions are there");
            return Ok(());
        }
        anyhow::ensure!(begun.elapsed() < CHECK_PATIENCE, "no operator has taken the lease {}", args.lease);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

async fn connect() -> Result<Cluster> {
    let config = Config::infer().await.context("finding the API server")?;
    let mut once = config.clone();
    once.default_retry = false;
    let client = Client::try_from(config).context("making a client")?;
    let once = Client::try_from(once).context("making a client that never tries again")?;
    Ok(Cluster::new(client, once))
}

fn context(args: &Args, cluster: Cluster) -> Context {
    let heartbeat = Duration::from_secs(args.heartbeat_seconds);
    Context {
        nodes: Arc::new(HttpNodeApi::new(u16::try_from(ADMIN_PORT).expect("the admin port is a port"))),
        events: Events::new(cluster.clone(), args.pod.clone()),
        metrics: Metrics::new(env!("CARGO_PKG_VERSION")),
        health: Arc::new(Health::new(heartbeat, Instant::now())),
        backoffs: Backoffs::default(),
        census: Census::default(),
        release: Image::parse(&args.image),
        heartbeat,
        exit: TestExit::new(args.test_exit_after.clone()),
        cluster,
    }
}
