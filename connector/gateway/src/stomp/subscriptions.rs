//! The subscriptions of one connection by the client's names and by the engine's.

use std::collections::BTreeMap;

use berth_engine::{Correlation, SubscriptionKey};
use berth_stomp::AckMode;

/// One subscription as the client sees it.
#[derive(Debug)]
pub(crate) struct Subscription {
    /// The client's name for it; 1.0 may leave it out.
    pub(crate) id: Option<Box<str>>,
    /// In the client's own form: so it stands on every MESSAGE.
    pub(crate) destination: Box<str>,
    pub(crate) ack: AckMode,
    /// Of the id; a part of message ids.
    pub(crate) hash: u32,
    /// The SUBSCRIBE that is not answered yet.
    pub(crate) opening: Option<Correlation>,
    /// The UNSUBSCRIBE that is not answered yet.
    pub(crate) leaving: Option<Correlation>,
}

/// See the module's documentation. Live ones are bounded by the setting `maxSubscriptions`, those that are
/// leaving by the number of answers that a connection may be owed.
#[derive(Debug, Default)]
pub(crate) struct Subscriptions {
    by_key: BTreeMap<SubscriptionKey, Subscription>,
    /// Live ones only: an id can be used again as soon as its subscription is leaving.
    by_id: BTreeMap<Box<str>, SubscriptionKey>,
    leaving: usize,
}

impl Subscriptions {
    pub(crate) fn len(&self) -> usize {
        self.by_key.len()
    }

    /// Those that are not leaving.
    pub(crate) fn live(&self) -> usize {
        self.by_key.len() - self.leaving
    }

    pub(crate) fn has_id(&self, id: &str) -> bool {
        self.by_id.contains_key(id)
    }

    pub(crate) fn insert(&mut self, key: SubscriptionKey, subscription: Subscription) {
        if let Some(id) = &subscription.id {
            self.by_id.insert(id.clone(), key);
        }
        self.by_key.insert(key, subscription);
    }

    pub(crate) fn get(&self, key: SubscriptionKey) -> Option<&Subscription> {
        self.by_key.get(&key)
    }

    pub(crate) fn get_mut(&mut self, key: SubscriptionKey) -> Option<&mut Subscription> {
        self.by_key.get_mut(&key)
    }

    /// The live one with this id.
    pub(crate) fn find(&self, id: &str) -> Option<SubscriptionKey> {
        self.by_id.get(id).copied()
    }

    /// The oldest live one without an id on this destination (1.0).
    pub(crate) fn find_by_destination(&self, destination: &str) -> Option<SubscriptionKey> {
        let is_it = |sub: &Subscription| {
            sub.id.is_none() && sub.leaving.is_none() && *sub.destination == *destination
        };
        self.by_key.iter().find(|(_, sub)| is_it(sub)).map(|(key, _)| *key)
    }

    /// Marks a subscription as leaving: `answer` is owed for it, and its id is free again.
    pub(crate) fn leave(&mut self, key: SubscriptionKey, answer: Correlation) {
        self.release_id(key);
        if let Some(subscription) = self.by_key.get_mut(&key) {
            self.leaving += usize::from(subscription.leaving.replace(answer).is_none());
        }
    }

    fn release_id(&mut self, key: SubscriptionKey) {
        if let Some(id) = self.by_key.get(&key).and_then(|sub| sub.id.as_ref())
            && self.by_id.get(id) == Some(&key)
        {
            self.by_id.remove(id);
        }
    }

    /// Forgets a subscription that has left.
    pub(crate) fn remove(&mut self, key: SubscriptionKey) -> Option<Subscription> {
        self.release_id(key);
        let subscription = self.by_key.remove(&key)?;
        self.leaving -= usize::from(subscription.leaving.is_some());
        Some(subscription)
    }
}
