//! From SIGTERM to the end: what a drain does, and in which time.
//!
//! 1. No new connections, no new deliveries. Acks and sends are served until no connection has work to
//!    finish, or half of `drainTimeoutSeconds` is over.
//! 2. Every connection nacks what is unsettled, once, tells its client and ends.
//! 3. The broker writes what it has and marks the journal as closed.
//!
//! All of it within `drainTimeoutSeconds`; the last [`RESERVE`] of it (or a quarter, if that is less) belongs
//! to step 3. A second signal ends the process at once: the journal is then recovered as after a crash.

use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Instant, sleep_until};

use crate::connections::Connections;
use crate::mailbox::Event;

/// Time that the journal gets at the end.
const RESERVE: Duration = Duration::from_secs(2);

/// SIGTERM and SIGINT.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// From now on these signals no longer end the process by themselves.
    ///
    /// # Errors
    /// The system refuses.
    pub(crate) fn catch() -> std::io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// The next one.
    pub(crate) async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

/// When each step must be over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Schedule {
    /// Clients may finish until then.
    pub(crate) served_until: Instant,
    /// Connections must be gone by then.
    pub(crate) gone_until: Instant,
    /// The process must have ended by then.
    pub(crate) ended_until: Instant,
}

impl Schedule {
    /// The schedule of a drain that begins at `begun`.
    pub(crate) fn new(begun: Instant, drain_timeout: Duration) -> Self {
        let ended_until = begun + drain_timeout;
        Self {
            served_until: begun + drain_timeout / 2,
            gone_until: ended_until - RESERVE.min(drain_timeout / 4),
            ended_until,
        }
    }
}

/// Steps 1 and 2; nothing may accept connections any more.
pub(crate) async fn end_connections(connections: &Connections, schedule: Schedule) {
    connections.tell(|| Event::Drain);
    let in_time = tokio::select! {
        () = connections.all_settled() => true,
        () = sleep_until(schedule.served_until) => false,
    };
    tracing::info!(connections = connections.count(), all_settled = in_time, "Closing connections");
    connections.tell(|| Event::Shutdown);
    tokio::select! {
        () = connections.all_gone() => {}
        () = sleep_until(schedule.gone_until) => {
            tracing::warn!(connections = connections.count(), "Connections left behind, their time is over");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;

    #[tokio::test(start_paused = true)]
    async fn half_of_the_time_is_for_clients_and_the_end_is_for_the_journal() {
        let begun = Clock::start().runtime_instant(berth_types::Instant::ZERO);
        let seconds = |schedule: Schedule| {
            [schedule.served_until, schedule.gone_until, schedule.ended_until]
                .map(|at| (at - begun).as_secs_f32())
        };
        assert_eq!(seconds(Schedule::new(begun, Duration::from_secs(20))), [10.0, 18.0, 20.0]);
        assert_eq!(seconds(Schedule::new(begun, Duration::from_secs(1))), [0.5, 0.75, 1.0]);
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_with_work_means_no_waiting_and_somebody_means_half_the_time() {
        let clock = Clock::start();
        let begun = clock.runtime_instant(berth_types::Instant::ZERO);
        let schedule = Schedule::new(begun, Duration::from_secs(20));
        let connections = Connections::default();
        end_connections(&connections, schedule).await;
        assert_eq!(clock.monotonic().as_nanos(), 0);
        let entry = connections.enter("127.0.0.1:1".parse().unwrap());
        entry.report_settled(false);
        end_connections(&connections, schedule).await;
        assert_eq!(clock.monotonic().as_nanos() / 1_000_000_000, 18);
        connections.leave(&entry);
    }
}
