//! The table of deliveries: constant time to add, find by id and remove, and for each subscription a list
//! in delivery order. Which state a delivery may go to from which is decided in `engine.rs`; here is only
//! where it stands.
//!
//! A [`DeliveryId`] carries the order index in its high bits and the place in the table in its low ones, so
//! that it rises in delivery order and is found without a search. A place that was used again has another
//! id, so an old id finds nothing.

use berth_types::{DeliveryId, Instant, Seq, TxnId};

use crate::command::SubscriptionKey;

const SLOT_BITS: u32 = 22;
const NONE: u32 = u32::MAX;

/// An idle connection keeps no larger table than this: ten thousand of them must fit.
const SLOTS_KEPT_WHEN_IDLE: usize = 16;

/// Most deliveries of one engine at once: what the low bits of an id can name.
pub(crate) const DELIVERIES_MAX: usize = 1 << SLOT_BITS;

/// A place in the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Slot(u32);

/// How far a delivery has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    /// In the output buffer, wholly unwritten.
    Reserved,
    /// The front-end was asked to take it out of the output buffer.
    Withdrawing,
    /// Its first byte is in the socket.
    Started,
    /// Its last byte is in the socket.
    Written,
    /// The client has settled it, perhaps before its last byte was sent; the broker has not answered yet.
    /// Not in its subscription's list.
    Settling { is_written: bool },
    /// No delivery.
    Free,
}

impl State {
    /// Whether the client cannot have seen any of it.
    pub(crate) const fn is_unwritten(self) -> bool {
        matches!(self, Self::Reserved | Self::Withdrawing)
    }
}

/// One attempt to hand a message to a subscription.
#[derive(Clone, Debug)]
pub(crate) struct Delivery {
    pub(crate) id: DeliveryId,
    pub(crate) sub: SubscriptionKey,
    pub(crate) txn: TxnId,
    pub(crate) seq: Seq,
    pub(crate) state: State,
    /// The engine's own time at which it entered `state`, or made its last progress in it.
    pub(crate) since: Instant,
    prev: u32,
    next: u32,
}

/// The deliveries of one subscription, in delivery order: first those that are written, then those that are
/// not.
#[derive(Clone, Copy, Debug)]
pub(crate) struct List {
    head: u32,
    tail: u32,
    unwritten: u32,
    len: u32,
}

impl Default for List {
    fn default() -> Self {
        Self { head: NONE, tail: NONE, unwritten: NONE, len: 0 }
    }
}

impl List {
    /// How many deliveries are in it.
    pub(crate) const fn len(&self) -> u32 {
        self.len
    }

    /// The oldest delivery.
    pub(crate) const fn first(&self) -> Option<Slot> {
        slot(self.head)
    }

    /// The oldest unwritten delivery.
    pub(crate) const fn first_unwritten(&self) -> Option<Slot> {
        slot(self.unwritten)
    }
}

/// All deliveries of one engine.
#[derive(Debug)]
pub(crate) struct Deliveries {
    slots: Vec<Delivery>,
    free: u32,
    order: u64,
    live: usize,
}

impl Default for Deliveries {
    fn default() -> Self {
        Self { slots: Vec::new(), free: NONE, order: 0, live: 0 }
    }
}

impl Deliveries {
    /// How many more deliveries there is room for.
    pub(crate) fn room(&self) -> usize {
        DELIVERIES_MAX - self.live
    }

    /// How many deliveries there are, those that settle included.
    pub(crate) fn len(&self) -> usize {
        self.live
    }

    /// Adds an unwritten delivery at the end of `list`. The caller has seen to it that there is room.
    pub(crate) fn push(
        &mut self,
        list: &mut List,
        sub: SubscriptionKey,
        txn: TxnId,
        seq: Seq,
        since: Instant,
    ) -> DeliveryId {
        let place = if self.free == NONE {
            assert!(self.slots.len() < DELIVERIES_MAX, "reservations never exceed the room");
            self.slots.len() as u32
        } else {
            self.free
        };
        self.order += 1;
        let id = DeliveryId::new(self.order << SLOT_BITS | u64::from(place));
        let delivery =
            Delivery { id, sub, txn, seq, state: State::Reserved, since, prev: list.tail, next: NONE };
        if let Some(reused) = self.slots.get_mut(place as usize) {
            self.free = reused.next;
            *reused = delivery;
        } else {
            self.slots.push(delivery);
        }
        self.live += 1;
        self.append(list, place);
        id
    }

    /// Where the delivery stands, if it is one.
    pub(crate) fn find(&self, id: DeliveryId) -> Option<Slot> {
        let place = (id.get() & (DELIVERIES_MAX as u64 - 1)) as u32;
        let delivery = self.slots.get(place as usize)?;
        (delivery.id == id && delivery.state != State::Free).then_some(Slot(place))
    }

    /// The delivery at a place.
    pub(crate) fn at(&self, slot: Slot) -> &Delivery {
        &self.slots[slot.0 as usize]
    }

    /// The delivery after this one in its list.
    pub(crate) fn after(&self, slot: Slot) -> Option<Slot> {
        self::slot(self.at(slot).next)
    }

    /// Notes how far the socket has come with a delivery, settled or not; the list's boundary follows when
    /// it leaves the unwritten ones.
    pub(crate) fn set_progress(&mut self, list: &mut List, slot: Slot, is_written: bool, since: Instant) {
        let delivery = &mut self.slots[slot.0 as usize];
        let next = delivery.next;
        delivery.since = since;
        if let State::Settling { .. } = delivery.state {
            delivery.state = State::Settling { is_written };
            return;
        }
        delivery.state = if is_written { State::Written } else { State::Started };
        if list.unwritten == slot.0 {
            list.unwritten = next;
        }
    }

    /// Marks an unwritten delivery as asked back from the output buffer.
    pub(crate) fn mark_withdrawing(&mut self, slot: Slot) {
        self.slots[slot.0 as usize].state = State::Withdrawing;
    }

    /// Takes a delivery out of its list; it keeps its place in the table.
    pub(crate) fn unlink(&mut self, list: &mut List, slot: Slot) {
        let (prev, next) = (self.at(slot).prev, self.at(slot).next);
        match self.slots.get_mut(prev as usize) {
            Some(before) => before.next = next,
            None => list.head = next,
        }
        match self.slots.get_mut(next as usize) {
            Some(after) => after.prev = prev,
            None => list.tail = prev,
        }
        if list.unwritten == slot.0 {
            list.unwritten = next;
        }
        list.len -= 1;
    }

    /// Marks an unlinked delivery as settling.
    pub(crate) fn mark_settling(&mut self, slot: Slot) {
        let delivery = &mut self.slots[slot.0 as usize];
        delivery.state = State::Settling { is_written: delivery.state == State::Written };
    }

    /// Puts a settling delivery back into its list, at its place in delivery order.
    pub(crate) fn relink(&mut self, list: &mut List, slot: Slot) {
        let id = self.at(slot).id;
        let mut next = list.head;
        while let Some(delivery) = self.slots.get(next as usize)
            && delivery.id < id
        {
            next = delivery.next;
        }
        let prev = self.slots.get(next as usize).map_or(list.tail, |delivery| delivery.prev);
        let delivery = &mut self.slots[slot.0 as usize];
        let is_written = delivery.state == State::Settling { is_written: true };
        delivery.state = if is_written { State::Written } else { State::Started };
        (delivery.prev, delivery.next) = (prev, next);
        match self.slots.get_mut(prev as usize) {
            Some(before) => before.next = slot.0,
            None => list.head = slot.0,
        }
        match self.slots.get_mut(next as usize) {
            Some(after) => after.prev = slot.0,
            None => list.tail = slot.0,
        }
        list.len += 1;
    }

    /// Gives the place of an unlinked delivery back.
    pub(crate) fn free(&mut self, slot: Slot) {
        let delivery = &mut self.slots[slot.0 as usize];
        assert!(delivery.state != State::Free, "a delivery ends once");
        delivery.state = State::Free;
        delivery.next = self.free;
        self.free = slot.0;
        self.live -= 1;
        if self.live == 0 && self.slots.len() > SLOTS_KEPT_WHEN_IDLE {
            (self.slots, self.free) = (Vec::new(), NONE);
        }
    }

    fn append(&mut self, list: &mut List, place: u32) {
        match self.slots.get_mut(list.tail as usize) {
            Some(before) => before.next = place,
            None => list.head = place,
        }
        list.tail = place;
        if list.unwritten == NONE {
            list.unwritten = place;
        }
        list.len += 1;
    }
}

const fn slot(place: u32) -> Option<Slot> {
    if place == NONE { None } else { Some(Slot(place)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(deliveries: &Deliveries, list: &List) -> Vec<DeliveryId> {
        let mut slot = list.first();
        std::iter::from_fn(|| {
            let here = slot?;
            slot = deliveries.after(here);
            Some(deliveries.at(here).id)
        })
        .collect()
    }

    fn push(deliveries: &mut Deliveries, list: &mut List) -> DeliveryId {
        deliveries.push(list, SubscriptionKey(0), TxnId::new(1), Seq::new(1), Instant::ZERO)
    }

    #[test]
    fn ids_rise_and_old_ids_find_nothing() {
        let (mut deliveries, mut list) = (Deliveries::default(), List::default());
        let (a, b) = (push(&mut deliveries, &mut list), push(&mut deliveries, &mut list));
        let slot = deliveries.find(a).unwrap();
        deliveries.unlink(&mut list, slot);
        deliveries.free(slot);
        let c = push(&mut deliveries, &mut list);
        assert!(a < b && b < c);
        assert_eq!(deliveries.find(c), Some(slot), "the place is used again");
        assert_eq!(deliveries.find(a), None);
        assert_eq!(ids(&deliveries, &list), [b, c]);
    }

    #[test]
    fn a_refused_delivery_returns_to_its_place() {
        let (mut deliveries, mut list) = (Deliveries::default(), List::default());
        let all: Vec<_> = (0..4).map(|_| push(&mut deliveries, &mut list)).collect();
        for id in &all[..3] {
            let slot = deliveries.find(*id).unwrap();
            deliveries.set_progress(&mut list, slot, true, Instant::ZERO);
        }
        for at in [1, 0, 2] {
            let slot = deliveries.find(all[at]).unwrap();
            deliveries.unlink(&mut list, slot);
            deliveries.mark_settling(slot);
        }
        assert_eq!(ids(&deliveries, &list), all[3..]);
        for at in [2, 0, 1] {
            let slot = deliveries.find(all[at]).unwrap();
            deliveries.relink(&mut list, slot);
        }
        assert_eq!(ids(&deliveries, &list), all);
        assert_eq!(list.len(), 4);
        assert_eq!(list.first_unwritten(), deliveries.find(all[3]));
    }

    #[test]
    fn the_boundary_follows_what_is_written_and_what_is_taken_out() {
        let (mut deliveries, mut list) = (Deliveries::default(), List::default());
        let all: Vec<_> = (0..3).map(|_| push(&mut deliveries, &mut list)).collect();
        let slots: Vec<_> = all.iter().map(|id| deliveries.find(*id).unwrap()).collect();
        assert_eq!(list.first_unwritten(), Some(slots[0]));
        deliveries.set_progress(&mut list, slots[0], false, Instant::ZERO);
        assert_eq!(list.first_unwritten(), Some(slots[1]));
        deliveries.unlink(&mut list, slots[1]);
        deliveries.free(slots[1]);
        assert_eq!(list.first_unwritten(), Some(slots[2]));
        deliveries.unlink(&mut list, slots[2]);
        deliveries.free(slots[2]);
        assert_eq!(list.first_unwritten(), None);
        push(&mut deliveries, &mut list);
        assert!(list.first_unwritten().is_some());
    }
}
