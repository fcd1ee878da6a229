//! One function for each route of the admin port.

use std::time::Duration;

use axum::Json;
use axum::extract::{ConnectInfo, Query, State};
use axum::http::{StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use berth_broker::QueueStats;
use berth_types::ChannelName;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::Admin;
use super::listener::Peer;
use crate::mailbox::lock;
use crate::metrics::QUEUES_MAX;
use crate::node::VERSION;
use crate::shard::{Letter, Look, View};

/// How long the shard may take to answer before the answer is 503.
const LOOK_TIMEOUT: Duration = Duration::from_secs(5);

/// Queues of one answer, unless fewer are asked for.
const PAGE_MAX: usize = 1000;
const PAGE: usize = 100;

/// Characters of a drain's reason that are kept.
const REASON_CHARS_MAX: usize = 200;

type Answer = Result<Response, (StatusCode, String)>;

/// `GET /livez`: the process answers.
pub(super) async fn live() -> &'static str {
    "alive\n"
}

#[derive(Deserialize)]
pub(super) struct Scope {
    scope: Option<String>,
}

/// `GET /readyz`: 200, or 503 with the reason. `?scope=local` leaves out reasons outside of the process.
pub(super) async fn ready(State(admin): State<Admin>, Query(query): Query<Scope>) -> Response {
    let is_local = match query.scope.as_deref() {
        None => false,
        Some("local") => true,
        Some(_) => return (StatusCode::BAD_REQUEST, "scope: only local is known\n").into_response(),
    };
    match admin.node.not_ready(is_local) {
        None => "ready\n".into_response(),
        Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")).into_response(),
    }
}

/// `GET /metrics`: Prometheus text.
pub(super) async fn metrics(State(admin): State<Admin>) -> Response {
    // While the shard does not answer, what the process knows by itself is worth more than nothing.
    let view = look(&admin, Look { after: None, queues_max: QUEUES_MAX }).await.unwrap_or_default();
    let text = admin.node.metrics.text(&view, admin.node.memory.used(), admin.clock.now().wall.as_millis());
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}

/// `GET /api/node`: who this is and how it is.
pub(super) async fn node(State(admin): State<Admin>) -> Answer {
    let view = look(&admin, Look { after: None, queues_max: 0 }).await?;
    let node = &admin.node;
    let reason = node.broker_reason();
    let config_error = lock(&node.state).config_error.clone();
    let answer = json!({
        "node": node.name,
        "podUid": node.pod_uid,
        "phase": node.phase().label(),
        "recovered": view.stats.is_some(),
        "broker": { "ready": reason.is_none(), "reason": reason },
        "durableSubscriptions": [],
        "ownMessages": view.stats.map_or(0, |stats| stats.live),
        "unacked": view.stats.map_or(0, |stats| stats.in_flight),
        "connections": node.connections.count(),
        "configHash": node.config_hash,
        "configError": config_error,
        "version": VERSION,
    });
    Ok(Json(answer).into_response())
}

#[derive(Deserialize)]
pub(super) struct Page {
    after: Option<String>,
    max: Option<usize>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct QueueAnswer {
    name: String,
    ready: u64,
    in_flight: u64,
    bytes: u64,
    consumers: u64,
    oldest_seconds: Option<f64>,
}

/// `GET /api/queues?after=NAME&max=N`: queues in the order of their names, `next` when there are more.
pub(super) async fn queues(State(admin): State<Admin>, Query(page): Query<Page>) -> Answer {
    let after = match page.after.as_deref().map(ChannelName::parse).transpose() {
        Ok(after) => after,
        Err(why) => return Err((StatusCode::BAD_REQUEST, format!("after: {why}\n"))),
    };
    let queues_max = page.max.unwrap_or(PAGE).clamp(1, PAGE_MAX);
    let view = look(&admin, Look { after, queues_max }).await?;
    let now_ms = admin.clock.now().wall.as_millis();
    let is_full = view.queues.len() == queues_max;
    let next = view.queues.last().filter(|_| is_full).map(|queue| queue.name.as_str().to_owned());
    let queues: Vec<_> = view.queues.iter().map(|queue| queue_answer(queue, now_ms)).collect();
    Ok(Json(json!({ "queues": queues, "next": next })).into_response())
}

fn queue_answer(queue: &QueueStats, now_ms: u64) -> QueueAnswer {
    QueueAnswer {
        name: queue.name.as_str().into(),
        ready: queue.ready,
        in_flight: queue.in_flight,
        bytes: queue.bytes,
        consumers: queue.consumers,
        oldest_seconds: queue.oldest.map(|at| now_ms.saturating_sub(at.as_millis()) as f64 / 1_000.0),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DrainRequest {
    reason: Option<String>,
}

/// `POST /api/drain {"reason": ...}`: unready from now on; clients are served.
pub(super) async fn drain(
    State(admin): State<Admin>,
    ConnectInfo(Peer(peer)): ConnectInfo<Peer>,
    Json(request): Json<DrainRequest>,
) -> Answer {
    allow(peer)?;
    let reason = request.reason.unwrap_or_else(|| String::from("requested"));
    let reason: String = reason.chars().filter(|c| !c.is_control()).take(REASON_CHARS_MAX).collect();
    tracing::info!(reason, %peer, "Drain requested");
    lock(&admin.node.state).drain = Some(reason);
    Ok(Json(json!({ "phase": admin.node.phase().label() })).into_response())
}

/// `DELETE /api/drain`: ready again.
pub(super) async fn cancel_drain(
    State(admin): State<Admin>,
    ConnectInfo(Peer(peer)): ConnectInfo<Peer>,
) -> Answer {
    allow(peer)?;
    if lock(&admin.node.state).drain.take().is_some() {
        tracing::info!(%peer, "Drain cancelled");
    }
    Ok(Json(json!({ "phase": admin.node.phase().label() })).into_response())
}

/// Whatever is not there.
pub(super) async fn unknown(uri: Uri) -> (StatusCode, String) {
    (StatusCode::NOT_FOUND, format!("{} is not known here\n", uri.path()))
}

/// Whether the caller may change something: only one on this machine may.
fn allow(peer: std::net::SocketAddr) -> Result<(), (StatusCode, String)> {
    if peer.ip().to_canonical().is_loopback() {
        return Ok(());
    }
    Err((StatusCode::FORBIDDEN, String::from("changes are allowed from this machine only\n")))
}

async fn look(admin: &Admin, look: Look) -> Result<View, (StatusCode, String)> {
    let (answer, answered) = tokio::sync::oneshot::channel();
    admin.node.inbox.push([Letter::Look(look, answer)]);
    match tokio::time::timeout(LOOK_TIMEOUT, answered).await {
        Ok(Ok(view)) => Ok(view),
        Ok(Err(_)) | Err(_) => {
            Err((StatusCode::SERVICE_UNAVAILABLE, String::from("the broker does not answer\n")))
        }
    }
}
