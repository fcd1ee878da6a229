//! The only file of the connector that reads a clock.
//!
//! Everything else is given a [`Now`], read once per event. The monotonic half is tokio's clock, so that
//! tests can pause it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use berth_types::{Instant, Now, Timestamp};

/// Reads the time. Copies share their origin.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    origin: tokio::time::Instant,
}

/// Nothing sleeps longer than this; whoever wakes early looks again.
const SLEEP_MAX: Duration = Duration::from_secs(24 * 3600);

impl Clock {
    /// A clock whose origin is now.
    #[expect(clippy::disallowed_methods, reason = "this is the file that reads the clock")]
    pub(crate) fn start() -> Self {
        Self { origin: tokio::time::Instant::now() }
    }

    /// Both clocks.
    #[expect(clippy::disallowed_methods, reason = "this is the file that reads the clock")]
    pub(crate) fn now(&self) -> Now {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let millis = u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX);
        Now { monotonic: self.monotonic(), wall: Timestamp::from_millis(millis) }
    }

    /// The monotonic clock alone.
    pub(crate) fn monotonic(&self) -> Instant {
        Instant::from_nanos(u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// The runtime's instant for one of ours, at most a day ahead.
    pub(crate) fn runtime_instant(&self, at: Instant) -> tokio::time::Instant {
        let ahead = at.saturating_since(self.monotonic()).min(SLEEP_MAX);
        let now = self.origin + self.origin.elapsed();
        now + ahead
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn follows_the_runtime() {
        let clock = Clock::start();
        assert_eq!(clock.monotonic(), Instant::ZERO);
        tokio::time::advance(Duration::from_secs(3)).await;
        assert_eq!(clock.now().monotonic, Instant::from_nanos(3_000_000_000));
        tokio::time::sleep_until(clock.runtime_instant(Instant::from_nanos(4_000_000_000))).await;
        assert_eq!(clock.monotonic().as_nanos() / 1_000_000_000, 4);
        assert!(clock.runtime_instant(Instant::MAX) - clock.runtime_instant(Instant::ZERO) <= SLEEP_MAX);
    }
}
