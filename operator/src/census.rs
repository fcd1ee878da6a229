//! What there is, counted over all controllers, and what has been said about what cannot be read.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Connectors by scope (a kind in a namespace or in all of them), and those that cannot be read.
#[derive(Debug, Default)]
pub struct Census {
    counts: Mutex<BTreeMap<String, Count>>,
    told: Mutex<BTreeMap<String, String>>,
}

/// How many there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Connectors.
    pub connectors: usize,
    /// Those of them that cannot be read.
    pub malformed: usize,
}

impl Census {
    /// Notes what a scope has now and returns the sum over all scopes.
    pub fn update(&self, scope: &str, count: Count) -> Count {
        let mut counts = lock(&self.counts);
        counts.insert(scope.to_owned(), count);
        counts.values().fold(Count::default(), |sum, count| Count {
            connectors: sum.connectors + count.connectors,
            malformed: sum.malformed + count.malformed,
        })
    }

    /// Whether this version of this object is new: what is wrong with it is said once.
    pub fn is_news(&self, uid: &str, version: &str) -> bool {
        let mut told = lock(&self.told);
        // Objects that are gone are few and stay; a flood of them is forgotten as a whole.
        if told.len() >= TOLD_MAX {
            told.clear();
        }
        told.insert(uid.to_owned(), version.to_owned()).as_deref() != Some(version)
    }
}

/// Objects that are remembered as spoken about.
const TOLD_MAX: usize = 1000;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Counts and names are whole whatever happened to the thread that held them.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_are_added_up() {
        let census = Census::default();
        let count = |connectors, malformed| Count { connectors, malformed };
        assert_eq!(census.update("a", count(2, 1)), count(2, 1));
        assert_eq!(census.update("b", count(3, 0)), count(5, 1));
        assert_eq!(census.update("a", count(0, 0)), count(3, 0));
    }

    #[test]
    fn a_version_is_news_once() {
        let census = Census::default();
        assert!(census.is_news("x", "1"));
        assert!(!census.is_news("x", "1"));
        assert!(census.is_news("x", "2"));
        assert!(census.is_news("y", "2"));
    }
}
