//! The admin port: probes, metrics and a small JSON API, described in `docs/operations/admin-api.md`.
//!
//! Reading is open to whoever reaches the port. What changes something is allowed to callers on the same
//! machine only, which is how a pod's preStop hook calls it. A change must come with a JSON body or by
//! DELETE, so that no page in a browser can make one (a request of that kind asks first, and no permission is
//! ever given).

mod listener;
mod routes;

pub(crate) use listener::CONNECTIONS_MAX;

use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::routing::get;
use tokio::net::TcpListener;

use crate::clock::Clock;
use crate::node::Node;

/// Longest body of a request.
const BODY_BYTES_MAX: usize = 16 * 1024;

/// What every route is given.
#[derive(Clone)]
pub(crate) struct Admin {
    node: Arc<Node>,
    clock: Clock,
}

impl Admin {
    /// The answers of `node`.
    pub(crate) fn new(node: Arc<Node>, clock: Clock) -> Self {
        Self { node, clock }
    }

    /// Every route.
    pub(crate) fn router(self) -> Router {
        Router::new()
            .route("/livez", get(routes::live))
            .route("/readyz", get(routes::ready))
            .route("/metrics", get(routes::metrics))
            .route("/api/node", get(routes::node))
            .route("/api/queues", get(routes::queues))
            .route("/api/drain", axum::routing::post(routes::drain).delete(routes::cancel_drain))
            .fallback(routes::unknown)
            .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
            .with_state(self)
    }

    /// Serves until the listener fails, which it does not.
    pub(crate) async fn serve(self, listener: TcpListener) -> std::io::Result<()> {
        let service = self.router().into_make_service_with_connect_info::<listener::Peer>();
        axum::serve(listener::AdminListener::new(listener), service).await
    }
}
