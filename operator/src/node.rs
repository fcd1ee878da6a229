//! Asking a pod what it holds: `GET /api/node` on its admin port.
//!
//! An answer is trusted only for the pod that gave it; whoever acts on one compares the pod's uid. Every
//! call is bounded, so that a dead pod costs a pass two seconds.

use futures::future::BoxFuture;
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use tokio::net::TcpStream;

/// What a pod says about itself; what it leaves out is nothing, zero or false.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeReport {
    /// The stable name of the node.
    pub node: String,
    /// Whether everything stored has been read back.
    pub recovered: bool,
    /// The broker.
    pub broker: BrokerReport,
    /// Durable subscriptions that live here.
    pub durable_subscriptions: Vec<DurableReport>,
    /// Messages in its volume.
    pub own_messages: u64,
    /// Deliveries that are not settled.
    pub unacked: u64,
    /// The version of the program.
    pub version: String,
    /// Why the dynamic configuration was not taken up, when it was not.
    pub config_error: Option<String>,
}

/// What a pod says about its broker.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BrokerReport {
    /// Whether it takes messages.
    pub ready: bool,
    /// Why it does not.
    pub reason: Option<String>,
}

/// What a pod says about a durable subscription.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DurableReport {
    /// Its name.
    pub name: String,
    /// Messages that it has not read yet.
    pub lag: u64,
    /// Whether its client is there.
    pub connected: bool,
}

/// Asks pods; a test answers by itself.
pub trait NodeApi: Send + Sync {
    /// The report of the pod at this address; `None` when it could not be had.
    fn report<'a>(&'a self, address: IpAddr, token: &'a str) -> BoxFuture<'a, Option<NodeReport>>;
}

/// Asks over HTTP.
#[derive(Clone, Debug)]
pub struct HttpNodeApi {
    port: u16,
    timeout: Duration,
}

impl HttpNodeApi {
    /// Asks the admin port of pods, and waits two seconds at most.
    #[must_use]
    pub const fn new(port: u16) -> Self {
        Self { port, timeout: Duration::from_secs(2) }
    }
}

impl NodeApi for HttpNodeApi {
    fn report<'a>(&'a self, address: IpAddr, token: &'a str) -> BoxFuture<'a, Option<NodeReport>> {
        let socket = SocketAddr::new(address, self.port);
        Box::pin(async move {
            match tokio::time::timeout(self.timeout, ask(socket, token)).await {
                Ok(Ok(report)) => Some(report),
                Ok(Err(error)) => {
                    tracing::debug!(%socket, %error, "Pod did not answer");
                    None
                }
                Err(_) => {
                    tracing::debug!(%socket, "Pod did not answer in time");
                    None
                }
            }
        })
    }
}

/// The largest answer that is read, in bytes.
const ANSWER_BYTES_MAX: usize = 1 << 20;

async fn ask(socket: SocketAddr, token: &str) -> anyhow::Result<NodeReport> {
    let stream = TcpStream::connect(socket).await?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let request = http::Request::get("/api/node")
        .header(http::header::HOST, socket.to_string())
        .header(http::header::AUTHORIZATION, format!("Bearer {token}"))
        .body(Empty::<Bytes>::new())?;
    let exchange = async move {
        let response = sender.send_request(request).await?;
        anyhow::ensure!(response.status().is_success(), "status {}", response.status());
        let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
        let body = body.map_err(|error| anyhow::anyhow!("{error}"))?.to_bytes();
        Ok(serde_json::from_slice(&body)?)
    };
    // The connection is driven beside the exchange and dropped with it: no task is left behind.
    tokio::select! {
        answer = exchange => answer,
        ended = connection => {
            ended?;
            anyhow::bail!("closed before it answered")
        }
    }
}
