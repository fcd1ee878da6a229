//! When the engine must be woken: one ordered set, and a clock that can rest.
//!
//! There is one entry per subscription, not per delivery: deadlines of one subscription are sorted already,
//! because its timeout is constant and its deliveries are written in order. An entry may be too early (its
//! delivery was settled meanwhile); it is then moved when it comes due. So a tick costs what is due, and a
//! settlement costs nothing here.

use std::collections::BTreeSet;
use std::time::Duration;

use berth_types::Instant;

use crate::command::SubscriptionKey;

/// How fine the sweeper's ticks are: a deadline is acted on at the first tick at or after it.
pub(crate) const SWEEP: Duration = Duration::from_secs(1);

/// What comes due.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Deadline {
    /// The oldest delivery of a subscription has waited for its settlement, or for the socket, too long.
    Delivery(SubscriptionKey),
    /// A subscription that the broker did not take, though it is ready, is tried again.
    Again(SubscriptionKey),
    /// Settlements that the broker refused are tried again.
    Retry,
}

/// The ordered set, in the engine's own time: real time less the time for which deadlines rested.
#[derive(Debug, Default)]
pub(crate) struct Deadlines {
    set: BTreeSet<(Instant, Deadline)>,
    rested: Duration,
    resting_since: Option<Instant>,
    not_before: Instant,
    /// Entries looked at since the engine was made: the cost of all ticks.
    pub(crate) visited: u64,
}

impl Deadlines {
    /// The engine's own time.
    pub(crate) fn local(&self, now: Instant) -> Instant {
        self.resting_since.unwrap_or(now) - self.rested
    }

    /// Stops the engine's own time.
    pub(crate) fn rest(&mut self, now: Instant) {
        self.resting_since.get_or_insert(now);
    }

    /// Lets the engine's own time run on. The next sweep is a whole tick away, so that what had arrived
    /// while the socket was not read is processed first.
    pub(crate) fn resume(&mut self, now: Instant) {
        if let Some(since) = self.resting_since.take() {
            self.rested += now.saturating_since(since);
            self.not_before = self.local(now) + SWEEP;
        }
    }

    /// Arms `deadline` for the first tick at or after `at` (own time), and returns that tick.
    pub(crate) fn arm(&mut self, at: Instant, deadline: Deadline) -> Instant {
        let tick = SWEEP.as_nanos() as u64;
        let at = Instant::from_nanos(at.as_nanos().div_ceil(tick).saturating_mul(tick));
        self.set.insert((at, deadline));
        at
    }

    /// Removes an entry that `arm` returned.
    pub(crate) fn disarm(&mut self, at: Instant, deadline: Deadline) {
        self.set.remove(&(at, deadline));
    }

    /// Takes the next entry that is due.
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<Deadline> {
        let local = self.local(now);
        if self.resting_since.is_some() || local < self.not_before {
            return None;
        }
        let first = *self.set.first()?;
        if first.0 > local {
            return None;
        }
        self.visited += 1;
        self.set.remove(&first);
        Some(first.1)
    }

    /// When `pop_due` has something, in real time.
    pub(crate) fn next(&self) -> Option<Instant> {
        if self.resting_since.is_some() {
            return None;
        }
        self.set.first().map(|(at, _)| (*at).max(self.not_before) + self.rested)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn a_deadline_is_acted_on_at_the_next_whole_tick() {
        let mut deadlines = Deadlines::default();
        deadlines.arm(at(30_001), Deadline::Retry);
        assert_eq!(deadlines.next(), Some(at(31_000)));
        assert_eq!(deadlines.pop_due(at(30_999)), None);
        assert_eq!(deadlines.pop_due(at(31_000)), Some(Deadline::Retry));
        assert_eq!(deadlines.next(), None);
    }

    #[test]
    fn time_at_rest_does_not_count_and_the_first_sweep_after_it_waits() {
        let mut deadlines = Deadlines::default();
        deadlines.arm(at(10_000), Deadline::Retry);
        deadlines.rest(at(9_500));
        assert_eq!(deadlines.next(), None);
        assert_eq!(deadlines.pop_due(at(60_000)), None);
        deadlines.rest(at(60_000));
        deadlines.resume(at(109_500));
        assert_eq!(deadlines.next(), Some(at(110_500)), "own time 10.5 s: a whole tick after the rest");
        assert_eq!(deadlines.pop_due(at(110_499)), None);
        assert_eq!(deadlines.pop_due(at(110_500)), Some(Deadline::Retry));
    }
}
