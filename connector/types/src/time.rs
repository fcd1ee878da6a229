//! Two clocks, two types: [`Instant`] decides, [`Timestamp`] is stored. Only the server reads a real clock.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

/// Monotonic time in nanoseconds since an origin that the process chooses. Deadlines are made of it.
///
/// Unlike the standard library's type it can start at zero, be printed and be driven by a simulator.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Instant(u64);

impl Instant {
    /// The origin.
    pub const ZERO: Self = Self(0);
    /// Later than every deadline that is ever armed.
    pub const MAX: Self = Self(u64::MAX);

    /// The instant `nanos` nanoseconds after the origin.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The time from `earlier` to `self`; zero when `earlier` is later.
    pub const fn saturating_since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    /// Saturates at [`Instant::MAX`], so that a peer's absurd period never wraps into an immediate time-out.
    fn add(self, rhs: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(rhs.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub<Duration> for Instant {
    type Output = Self;

    /// Saturates at the origin.
    fn sub(self, rhs: Duration) -> Self {
        Self(self.0.saturating_sub(u64::try_from(rhs.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl fmt::Display for Instant {
    /// Seconds with milliseconds, as simulator traces show it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03}s", self.0 / 1_000_000_000, self.0 / 1_000_000 % 1_000)
    }
}

/// Wall-clock time in milliseconds since the Unix epoch. It may step; it is stored in records and headers
/// only.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The time `millis` milliseconds after the Unix epoch.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis)
    }

    /// Milliseconds since the Unix epoch.
    pub const fn as_millis(self) -> u64 {
        self.0
    }
}

impl Add<Duration> for Timestamp {
    type Output = Self;

    /// Saturates.
    fn add(self, rhs: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(rhs.as_millis()).unwrap_or(u64::MAX)))
    }
}

/// Both clocks, read together once per event.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Now {
    /// Decides deadlines.
    pub monotonic: Instant,
    /// Is written into records and headers.
    pub wall: Timestamp,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absurd_periods_saturate() {
        assert_eq!(Instant::from_nanos(5) + Duration::MAX, Instant::MAX);
        assert_eq!(Instant::from_nanos(5) - Duration::from_secs(1), Instant::ZERO);
        assert_eq!(Instant::ZERO.saturating_since(Instant::from_nanos(7)), Duration::ZERO);
    }

    #[test]
    fn prints_as_seconds() {
        assert_eq!(Instant::from_nanos(41_207_999_999).to_string(), "41.207s");
    }
}
