//! The ack timeout: requeue, no disconnect, late ACKs ignored.

use std::time::Duration;

use berth_engine::port::NackCause;

use crate::world::{in_every_cut, secs};

const SUBSCRIBE: &str = "SUBSCRIBE\nid:1\ndestination:/queue/rq\nack:client-individual\n\n\0";

#[test]
fn thirty_seconds_without_ack_requeue_for_another_consumer() {
    in_every_cut(|world| {
        let first = world.connect("1.2");
        world.send(first, SUBSCRIBE);
        world.fill("rq", &["job-1"]);
        let token = world.next(first).need("ack");
        let second = world.connect("1.2");
        world.send(second, SUBSCRIBE);
        world.pass(Duration::from_millis(29_999));
        world.nothing(second);
        // The sweeper ticks every second: requeued after 30 to 31 s. The first consumer's own window is
        // served before the second's only if it reserved before; here the second waits longer, so take
        // whoever gets it.
        world.pass(Duration::from_millis(1_002));
        let again = [world.frames(first), world.frames(second)].concat();
        assert_eq!(again.len(), 1);
        assert_eq!((again[0].text(), again[0].header("redelivered")), ("job-1", Some("true")));
        assert_eq!(world.closed(first), None, "the sweeper does not disconnect");
        let settled = world.broker.settled.last().unwrap();
        assert_eq!((settled.nack.len(), settled.cause), (1, NackCause::Failure));
        assert_eq!(world.session(first).counters().ack_timeouts, 1);
        // A late ACK after expiry is silently ignored; it does not settle the other's copy.
        world.send(first, &format!("ACK\nid:{token}\nreceipt:late\n\n\0"));
        world.expect_receipt(first, "late");
        assert!(world.broker.acked.is_empty());
        assert_eq!(world.broker.reserved(), ["job-1"]);
        assert_eq!(world.session(first).counters().acks_ignored, 1);
    });
}

#[test]
fn an_ack_just_in_time_counts() {
    in_every_cut(|world| {
        let client = world.connect("1.2");
        world.send(client, SUBSCRIBE);
        world.fill("rq", &["a"]);
        let token = world.next(client).need("ack");
        world.pass(Duration::from_millis(29_999));
        world.send(client, &format!("ACK\nid:{token}\n\n\0"));
        assert_eq!(world.broker.acked, ["a"]);
        world.pass(secs(100));
        assert!(world.broker.ready("rq").is_empty());
        world.nothing(client);
    });
}

#[test]
fn the_setting_rules() {
    in_every_cut(|world| {
        world.settings.ack_timeout = secs(1);
        let client = world.connect("1.2");
        world.send(client, SUBSCRIBE);
        world.fill("rq", &["a"]);
        world.next(client);
        world.pass(Duration::from_millis(2_010));
        assert_eq!(world.next(client).header("redelivered"), Some("true"));
    });
}

#[test]
fn a_cumulative_ack_settles_only_what_has_not_timed_out() {
    in_every_cut(|world| {
        let client = world.connect("1.2");
        world.send(client, "SUBSCRIBE\nid:1\ndestination:/queue/rq\nack:client\nprefetch-count:2\n\n\0");
        world.fill("rq", &["old"]);
        world.next(client);
        world.pass(secs(20));
        world.fill("rq", &["new"]);
        let token = world.next(client).need("ack");
        world.pass(Duration::from_millis(11_001));
        assert_eq!(world.session(client).counters().ack_timeouts, 1);
        world.send(client, &format!("ACK\nid:{token}\n\n\0"));
        assert_eq!(world.broker.acked, ["new"], "the old one belongs to the queue again");
    });
}

#[test]
fn a_delivery_that_waits_in_the_output_has_no_time_running() {
    in_every_cut(|world| {
        let client = world.connect("1.2");
        world.set_room(client, Some(0));
        world.send(client, SUBSCRIBE);
        world.fill("rq", &["a"]);
        world.pass(secs(20));
        world.set_room(client, None);
        world.next(client);
        world.pass(secs(29));
        assert_eq!(world.session(client).counters().ack_timeouts, 0, "it runs from the last octet");
        world.pass(Duration::from_millis(2_002));
        assert_eq!(world.session(client).counters().ack_timeouts, 1);
    });
}

#[test]
fn a_delivery_that_waits_too_long_unwritten_is_taken_back_unseen() {
    in_every_cut(|world| {
        let client = world.connect("1.2");
        world.set_room(client, Some(0));
        world.send(client, SUBSCRIBE);
        world.fill("rq", &["a", "b"]);
        world.pass(Duration::from_millis(31_002));
        assert_eq!(world.broker.ready("rq"), ["a", "b"], "released, and not reserved again");
        let released: usize = world.broker.settled.iter().map(|settled| settled.release.len()).sum();
        assert_eq!((released, world.broker.settled.iter().any(|s| !s.nack.is_empty())), (2, false));
        world.pass(secs(300));
        assert_eq!(world.broker.ready("rq"), ["a", "b"]);
        // A socket that takes octets again is served again, with first deliveries.
        world.send(client, "ACK\nid:none\nreceipt:r\n\n\0");
        world.set_room(client, None);
        let frames = world.frames(client);
        assert_eq!(frames.iter().map(|f| f.text()).collect::<Vec<_>>(), ["", "a", "b"]);
        assert!(frames.iter().all(|frame| frame.header("redelivered").is_none()));
    });
}

#[test]
fn a_delivery_that_was_begun_is_nacked_when_its_peer_stalls() {
    in_every_cut(|world| {
        let client = world.connect("1.2");
        world.send(client, SUBSCRIBE);
        world.set_room(client, Some(5));
        world.fill("rq", &["a"]);
        world.pass(Duration::from_millis(31_002));
        assert_eq!(world.broker.ready("rq"), ["a"]);
        assert_eq!(world.broker.settled.last().unwrap().nack.len(), 1);
        assert_eq!(world.closed(client), None);
    });
}

#[test]
fn heart_beats_do_not_extend_it() {
    in_every_cut(|world| {
        let client = world.accept();
        world.send(client, "CONNECT\naccept-version:1.2\nheart-beat:1000,1000\n\n\0");
        world.send(client, SUBSCRIBE);
        world.fill("rq", &["a"]);
        for _ in 0..32 {
            world.send(client, "\n");
            world.pass(secs(1));
        }
        assert_eq!(world.session(client).counters().ack_timeouts, 1);
    });
}

#[test]
fn many_deadlines_at_once() {
    in_every_cut(|world| {
        let client = world.connect("1.2");
        world.send(
            client,
            "SUBSCRIBE\nid:1\ndestination:/queue/rq\nack:client-individual\nprefetch-count:0\n\n\0",
        );
        let bodies: Vec<String> = (0..1000).map(|n| n.to_string()).collect();
        world.fill("rq", &bodies.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(world.frames(client).len(), 1000);
        world.pass(Duration::from_millis(31_100));
        let again = world.bodies(client);
        assert_eq!(again, bodies, "in the order in which they were delivered");
        assert_eq!(world.session(client).counters().ack_timeouts, 1000);
    });
}
