//! Pauses between attempts, for each connector by itself.
//!
//! A success forgets the failures; a failing connector never slows down another one.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The first pause.
const FIRST: Duration = Duration::from_secs(1);
/// The longest pause.
const LONGEST: Duration = Duration::from_secs(300);
/// How long a refused volume expansion is not asked for again.
const EXPANSION_PAUSE: Duration = Duration::from_secs(600);

/// Failures in a row of every connector that has any, and refusals that are not worth repeating soon.
#[derive(Debug, Default)]
pub struct Backoffs {
    failures: Mutex<BTreeMap<String, u32>>,
    refusals: Mutex<BTreeMap<String, (i64, Instant)>>,
}

impl Backoffs {
    /// Counts a failure and returns the pause before the next attempt.
    pub fn failed(&self, key: &str) -> Duration {
        let mut failures = lock(&self.failures);
        let count = failures.entry(key.to_owned()).or_insert(0);
        *count = count.saturating_add(1);
        pause(*count, jitter(key, *count))
    }

    /// Forgets the failures.
    pub fn succeeded(&self, key: &str) {
        lock(&self.failures).remove(key);
    }

    /// Remembers that the API server refused an expansion for this generation of the specification.
    pub fn expansion_refused(&self, uid: &str, generation: i64, now: Instant) {
        lock(&self.refusals).insert(uid.to_owned(), (generation, now));
    }

    /// Whether asking again is too early: the specification is the same and the pause is not over.
    pub fn expansion_rests(&self, uid: &str, generation: i64, now: Instant) -> bool {
        lock(&self.refusals).get(uid).is_some_and(|(refused, at)| {
            *refused == generation && now.saturating_duration_since(*at) < EXPANSION_PAUSE
        })
    }

    /// Forgets connectors that are gone.
    pub fn retain(&self, known: impl Fn(&str) -> bool) {
        lock(&self.failures).retain(|key, _| known(key));
        let mut refusals = lock(&self.refusals);
        // Bounded by age, since uids are not keys of the store.
        refusals.retain(|_, (_, at)| at.elapsed() < EXPANSION_PAUSE * 2);
    }
}

/// Doubling from one second to five minutes; `jitter` in 0..=255 takes away up to a quarter.
#[must_use]
pub fn pause(failures: u32, jitter: u8) -> Duration {
    let doubled = FIRST.saturating_mul(1_u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX));
    let capped = if failures > 20 { LONGEST } else { doubled.min(LONGEST) };
    capped - capped.mul_f64(f64::from(jitter) / 255.0 / 4.0)
}

/// A number that differs between connectors and attempts; not random, and need not be.
fn jitter(key: &str, count: u32) -> u8 {
    let seed = u64::from(count).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let hash = key.bytes().fold(seed, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    hash.to_be_bytes()[1]
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // A map of numbers is whole whatever happened to the thread that held it.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_five_minutes() {
        let seconds: Vec<u64> = (1..=12).map(|n| pause(n, 0).as_secs()).collect();
        assert_eq!(seconds, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]);
        assert_eq!(pause(u32::MAX, 0), LONGEST);
        assert!(pause(5, 255) >= Duration::from_secs(11));
        assert!(pause(5, 255) <= Duration::from_secs(12));
    }

    #[test]
    fn connectors_fail_by_themselves() {
        let backoffs = Backoffs::default();
        for _ in 0..6 {
            backoffs.failed("ns/a");
        }
        assert!(backoffs.failed("ns/b") <= Duration::from_secs(1));
        assert!(backoffs.failed("ns/a") > Duration::from_secs(30));
        backoffs.succeeded("ns/a");
        assert!(backoffs.failed("ns/a") <= Duration::from_secs(1));
        backoffs.retain(|key| key == "ns/a");
        assert!(backoffs.failed("ns/b") <= Duration::from_secs(1));
    }

    #[test]
    fn a_refused_expansion_rests_until_the_specification_changes() {
        let backoffs = Backoffs::default();
        let now = Instant::now();
        backoffs.expansion_refused("uid", 3, now);
        assert!(backoffs.expansion_rests("uid", 3, now));
        assert!(!backoffs.expansion_rests("uid", 4, now));
        assert!(!backoffs.expansion_rests("uid", 3, now + EXPANSION_PAUSE));
        assert!(!backoffs.expansion_rests("other", 3, now));
    }
}
