//! What the probes say, and the port that says it.

use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What the process knows about its own health.
#[derive(Debug)]
pub struct Health {
    interval: Duration,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    leads: bool,
    connectors: usize,
    last_pass: Instant,
    definitions_seen: bool,
}

impl Health {
    /// `interval` is the time between two heartbeats.
    #[must_use]
    pub fn new(interval: Duration, now: Instant) -> Self {
        let state = State { leads: false, connectors: 0, last_pass: now, definitions_seen: false };
        Self { interval, state: Mutex::new(state) }
    }

    /// This process leads from now on.
    pub fn leads(&self, now: Instant) {
        self.change(|state| {
            state.leads = true;
            state.last_pass = now;
        });
    }

    /// How many connectors there are.
    pub fn knows(&self, connectors: usize, now: Instant) {
        self.change(|state| {
            if state.connectors == 0 {
                state.last_pass = now;
            }
            state.connectors = connectors;
        });
    }

    /// A pass has ended, however: the API server answered.
    pub fn passed(&self, now: Instant) {
        self.change(|state| state.last_pass = now);
    }

    /// The definitions of the custom resources have been seen.
    pub fn definitions_seen(&self) {
        self.change(|state| state.definitions_seen = true);
    }

    /// Dead: this process leads, there is something to do, and nothing has come to its end for three
    /// intervals.
    #[must_use]
    pub fn is_alive(&self, now: Instant) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let silent = now.saturating_duration_since(state.last_pass);
        !(state.leads && state.connectors > 0 && silent > self.interval * 3)
    }

    /// Ready, leader or not: the definitions are there and this port is served.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).definitions_seen
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// `/livez`, `/readyz` and `/metrics`.
pub fn router(health: Arc<Health>, metrics: impl Fn() -> String + Clone + Send + Sync + 'static) -> Router {
    let ready = health.clone();
    Router::new()
        .route("/livez", get(move || async move { answer(health.is_alive(Instant::now()), STANDS_STILL) }))
        .route(
            "/readyz",
            get(move || async move {
                answer(ready.is_ready(), "the CustomResourceDefinitions of berth.dev are not there")
            }),
        )
        .route("/metrics", get(move || async move { ([(header::CONTENT_TYPE, OPEN_METRICS)], metrics()) }))
}

const STANDS_STILL: &str = "no pass has ended for too long";
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

fn answer(is_well: bool, otherwise: &'static str) -> impl IntoResponse {
    if is_well { (StatusCode::OK, "ok") } else { (StatusCode::SERVICE_UNAVAILABLE, otherwise) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_leader_with_work_that_stands_still_is_dead() {
        let start = Instant::now();
        let interval = Duration::from_secs(10);
        let later = start + Duration::from_secs(31);
        let health = Health::new(interval, start);
        assert!(health.is_alive(later), "does not lead");
        health.leads(start);
        assert!(health.is_alive(later), "nothing to do");
        health.knows(1, start);
        assert!(!health.is_alive(later));
        assert!(health.is_alive(start + Duration::from_secs(30)));
        health.passed(later);
        assert!(health.is_alive(later));
    }

    #[test]
    fn the_first_connector_after_a_long_quiet_time_is_no_death() {
        let start = Instant::now();
        let health = Health::new(Duration::from_secs(10), start);
        health.leads(start);
        let later = start + Duration::from_secs(1000);
        health.knows(1, later);
        assert!(health.is_alive(later));
    }

    #[test]
    fn ready_when_the_definitions_are_there() {
        let health = Health::new(Duration::from_secs(10), Instant::now());
        assert!(!health.is_ready());
        health.definitions_seen();
        assert!(health.is_ready());
    }
}
