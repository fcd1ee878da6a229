use super::*;
use crate::connections::Connections;

fn charge(budget: &Arc<Budget>, connections: &Connections) -> Charge {
    Charge::new(Arc::clone(budget), connections.enter("127.0.0.1:1".parse().unwrap()))
}

fn seconds(seconds: u64) -> Instant {
    Instant::from_nanos(seconds * 1_000_000_000)
}

fn is_told(charge: &Charge) -> bool {
    let cx = Context::from_waker(Waker::noop());
    charge.entry.outbox.poll_take(&cx, &mut std::collections::VecDeque::new()).is_ready()
}

#[test]
fn the_least_of_those_that_do_not_get_on_go_and_only_as_many_as_it_takes() {
    let (budget, connections) = (Arc::new(Budget::new(100)), Connections::default());
    let mut all: Vec<_> = [40, 12, 15, 20, 5].map(|bytes| (bytes, charge(&budget, &connections))).into();
    for (bytes, charge) in &mut all {
        charge.update(*bytes, true, seconds(1));
    }
    all[4].1.update(5, true, seconds(5));
    budget.relieve(seconds(10));
    assert!(!all.iter().any(|(_, charge)| is_told(charge)), "nine seconds are not ten");
    budget.relieve(seconds(11));
    assert_eq!(
        all.iter().map(|(_, charge)| is_told(charge)).collect::<Vec<_>>(),
        [false, true, false, false, false]
    );
    budget.relieve(seconds(12));
    assert!(!all.iter().any(|(_, charge)| is_told(charge)), "one that is leaving is waited for");
    assert_eq!(budget.used(), 92);
    all.clear();
    assert_eq!(budget.used(), 0);
}

#[test]
fn who_holds_little_has_room_and_who_holds_much_is_woken() {
    let (budget, connections) = (Arc::new(Budget::new(100)), Connections::default());
    let (mut a, mut b) = (charge(&budget, &connections), charge(&budget, &connections));
    let cx = Context::from_waker(Waker::noop());
    a.update(50, true, seconds(1));
    assert!(a.poll_room(&cx, FREE_BYTES + 50).is_ready());
    b.update(40, true, seconds(1));
    assert!(a.poll_room(&cx, FREE_BYTES + 50).is_pending());
    assert!(b.poll_room(&cx, FREE_BYTES).is_ready());
    assert!(lock(&budget.holders)[&a.entry.id].waker.is_some());
    drop(b);
    assert!(lock(&budget.holders)[&a.entry.id].waker.is_none());
    assert!(a.poll_room(&cx, FREE_BYTES + 50).is_ready());
}
