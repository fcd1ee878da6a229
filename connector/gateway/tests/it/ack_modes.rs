//! The three ack modes of queues.

use berth_engine::port::NackCause;
use berth_gateway::Closed;
use berth_stomp::Command;

use crate::world::{World, in_every_cut};

const SUBSCRIBE: &str = "SUBSCRIBE\nid:1\ndestination:/queue/work\nack:";

/// Subscribes to `/queue/work` in a mode.
fn subscribe(world: &mut World, client: usize, ack: &str) {
    world.send(client, &format!("{SUBSCRIBE}{ack}\n\n\0"));
}

#[test]
fn anything_but_the_three_modes_is_an_error_that_closes() {
    in_every_cut(|world| {
        for bad in ["", "Auto", "CLIENT", "client_individual", "auto ", "manual"] {
            let client = world.connect("1.2");
            world.send(
                client,
                &format!("SUBSCRIBE\nid:1\nreceipt:r\ndestination:/queue/work\nack:{bad}\n\n\0"),
            );
            let error = world.expect_error(client, "unknown ack mode");
            assert_eq!(error.header("receipt-id"), Some("r"), "no RECEIPT but this");
            assert_eq!(world.closed(client), Some(Closed::PeerViolated("unknown ack mode")));
        }
        assert_eq!(world.broker.consumers(), 0, "su_03");
    });
}

#[test]
fn an_absent_ack_header_means_auto() {
    in_every_cut(|world| {
        let client = world.connect("1.2");
        world.send(client, "SUBSCRIBE\nid:1\ndestination:/queue/work\n\n\0");
        world.fill("work", &["a"]);
        assert_eq!(world.next(client).header("ack"), None);
        assert_eq!(world.broker.acked, ["a"]);
    });
}

#[test]
fn auto_acks_at_once_and_keeps_nothing_pending() {
    in_every_cut(|world| {
        let client = world.connect("1.2");
        subscribe(world, client, "auto");
        world.fill("work", &["a", "b", "c"]);
        let frames = world.frames(client);
        assert_eq!(frames.iter().map(|f| f.text()).collect::<Vec<_>>(), ["a", "b", "c"]);
        assert!(frames.iter().all(|frame| frame.header("ack").is_none()), "no token in auto");
        assert_eq!(world.broker.acked, ["a", "b", "c"]);
        assert!(world.broker.reserved().is_empty() && world.session(client).delivery_count() == 0);
        world.cut_off(client);
        assert!(world.broker.ready("work").is_empty(), "nothing comes back");
    });
}

#[test]
fn auto_takes_no_more_than_its_buffer_holds_and_drops_nothing() {
    in_every_cut(|world| {
        world.settings.subscription_buffer = 3;
        let bodies: Vec<String> = (0..10).map(|n| format!("m{n}")).collect();
        world.fill("work", &bodies.iter().map(String::as_str).collect::<Vec<_>>());
        let client = world.connect("1.2");
        world.set_room(client, Some(0));
        subscribe(world, client, "auto");
        assert_eq!(
            world.broker.ready("work").len(),
            7,
            "three are in the buffer, the rest stays in the queue"
        );
        world.set_room(client, None);
        assert_eq!(world.bodies(client), bodies, "all of them, in order, once there is room");
        assert!(world.broker.ready("work").is_empty());
    });
}

#[test]
fn client_individual_settles_one_by_one() {
    in_every_cut(|world| {
        let client = world.connect("1.2");
        subscribe(world, client, "client-individual");
        world.fill("work", &["one", "two", "three"]);
        let tokens: Vec<String> = world.frames(client).iter().map(|frame| frame.need("ack")).collect();
        assert_eq!(tokens.len(), 3);
        // Out of order: each ACK resolves exactly its own delivery.
        for (token, acked) in [(1, "two"), (0, "one"), (2, "three")] {
            world.send(client, &format!("ACK\nid:{}\n\n\0", tokens[token]));
            assert_eq!(world.broker.acked.last().map(String::as_str), Some(acked), "ac_04");
        }
        assert!(world.broker.ready("work").is_empty() && world.broker.reserved().is_empty());
        world.cut_off(client);
        assert!(world.broker.ready("work").is_empty(), "the queue has drained; nothing is redelivered");
    });
}

#[test]
fn a_nack_requeues_exactly_that_one() {
    in_every_cut(|world| {
        let client = world.connect("1.2");
        subscribe(world, client, "client-individual");
        world.fill("work", &["one", "two"]);
        let frames = world.frames(client);
        assert!(frames.iter().all(|frame| frame.header("redelivered").is_none()));
        let token = frames[0].need("ack");
        world.send(client, &format!("NACK\nid:{token}\n\n\0"));
        world.pass(std::time::Duration::from_millis(10));
        let again = world.next(client);
        assert_eq!((again.text(), again.header("redelivered")), ("one", Some("true")), "c_50, ac_14");
        assert_ne!(again.need("ack"), token);
        assert_ne!(again.need("message-id"), frames[0].need("message-id"), "new for every attempt");
        // The old token does not settle the new delivery.
        world.send(client, &format!("ACK\nid:{token}\nreceipt:late\n\n\0"));
        world.expect_receipt(client, "late");
        assert!(world.broker.acked.is_empty());
        assert_eq!(world.broker.reserved().len(), 2);
        let settled = world.broker.settled.last().unwrap();
        assert_eq!((settled.nack.len(), settled.cause), (1, NackCause::Failure));
    });
}

#[test]
fn a_nack_may_discard() {
    in_every_cut(|world| {
        for value in ["false", "False"] {
            let client = world.connect("1.2");
            subscribe(world, client, "client");
            world.fill("work", &["one", "two"]);
            let token = world.frames(client)[1].need("ack");
            world.send(client, &format!("NACK\nid:{token}\nrequeue:{value}\n\n\0"));
            let rejected: usize = world.broker.settled.iter().map(|settled| settled.reject.len()).sum();
            assert_eq!(rejected, 2, "all that it covers");
            world.broker.settled.clear();
            assert!(world.broker.ready("work").is_empty() && world.broker.reserved().is_empty());
            world.cut_off(client);
        }
    });
}

#[test]
fn client_settles_the_named_one_and_all_before_it() {
    in_every_cut(|world| {
        let client = world.connect("1.2");
        subscribe(world, client, "client");
        let bodies: Vec<String> = (1..=10).map(|n| format!("m{n}")).collect();
        world.fill("work", &bodies[..5].iter().map(String::as_str).collect::<Vec<_>>());
        let first = world.frames(client);
        assert_eq!(first.len(), 5);
        world.send(client, &format!("ACK\nid:{}\n\n\0", first[4].need("ack")));
        assert_eq!(world.broker.acked, bodies[..5], "ac_03: m1 to m5");
        world.fill("work", &bodies[5..].iter().map(String::as_str).collect::<Vec<_>>());
        let second = world.frames(client);
        world.send(client, &format!("ACK\nid:{}\n\n\0", second[4].need("ack")));
        assert_eq!(world.broker.acked, bodies, "m6 to m10");
        world.cut_off(client);
        assert!(world.broker.ready("work").is_empty(), "nothing redelivered after the drain");
    });
}

#[test]
fn a_cumulative_ack_becomes_one_range_per_transaction() {
    in_every_cut(|world| {
        world.settings.subscription_buffer = 100;
        let client = world.connect("1.2");
        subscribe(world, client, "client");
        // Each publish that finds the reservation waiting becomes a transaction of its own.
        for bodies in [&["a", "b"][..], &["c"], &["d", "e", "f"]] {
            world.fill("work", bodies);
        }
        let frames = world.frames(client);
        assert_eq!(frames.len(), 6);
        world.send(client, &format!("ACK\nid:{}\n\n\0", frames[4].need("ack")));
        let mut txns: Vec<_> = world.broker.settled.iter().map(|settled| settled.txn).collect();
        let ranges = txns.len();
        txns.dedup();
        assert_eq!(txns.len(), ranges, "never two for one transaction");
        for settled in &world.broker.settled {
            assert!(settled.ack.is_sorted() && !settled.ack.is_empty());
        }
        assert_eq!(world.broker.acked, ["a", "b", "c", "d", "e"], "and not f");
        assert_eq!(world.broker.reserved(), ["f"]);
    });
}

#[test]
fn ac_03_cumulation_stays_within_its_subscription() {
    in_every_cut(|world| {
        let client = world.connect("1.2");
        subscribe(world, client, "client");
        world.send(client, "SUBSCRIBE\nid:2\ndestination:/queue/other\nack:client\n\n\0");
        world.fill("other", &["x"]);
        world.fill("work", &["a"]);
        let frames = world.frames(client);
        assert_eq!(frames.iter().map(|f| f.need("subscription")).collect::<Vec<_>>(), ["2", "1"]);
        world.send(client, &format!("ACK\nid:{}\n\n\0", frames[1].need("ack")));
        assert_eq!(
            (world.broker.acked.clone(), world.broker.reserved()),
            (vec!["a".into()], vec!["x".into()])
        );
    });
}

#[test]
fn ac_13_what_was_nacked_in_the_middle_is_skipped() {
    in_every_cut(|world| {
        let client = world.connect("1.2");
        subscribe(world, client, "client");
        world.fill("work", &["a", "b", "c"]);
        let tokens: Vec<String> = world.frames(client).iter().map(|frame| frame.need("ack")).collect();
        world.send(client, &format!("NACK\nid:{}\n\n\0", tokens[0]));
        world.send(client, &format!("ACK\nid:{}\n\n\0", tokens[2]));
        assert_eq!(world.broker.acked, ["b", "c"], "each settled once");
        let nacked: usize = world.broker.settled.iter().map(|settled| settled.nack.len()).sum();
        assert_eq!(nacked, 1, "ac_09: NACK is cumulative too, here of one");
    });
}

#[test]
fn ac_12_deliveries_outstanding_never_exceed_prefetch() {
    in_every_cut(|world| {
        let client = world.connect("1.2");
        world.send(
            client,
            "SUBSCRIBE\nid:1\ndestination:/queue/work\nack:client-individual\nprefetch-count:2\n\n\0",
        );
        world.fill("work", &["a", "b", "c", "d"]);
        let mut outstanding: Vec<String> = Vec::new();
        let mut seen = 0;
        while seen < 4 {
            outstanding.extend(world.frames(client).iter().map(|frame| frame.need("ack")));
            assert!(!outstanding.is_empty() && outstanding.len() <= 2, "{seen}");
            world.send(client, &format!("ACK\nid:{}\n\n\0", outstanding.remove(0)));
            world.pass(std::time::Duration::from_millis(10));
            seen += 1;
        }
        assert_eq!(world.broker.acked, ["a", "b", "c", "d"]);
    });
}

#[test]
fn ac_05_what_was_not_acked_is_redelivered_when_the_client_goes() {
    in_every_cut(|world| {
        for how in ["cut", "end", "disconnect", "error"] {
            let client = world.connect("1.2");
            subscribe(world, client, "client-individual");
            world.fill("work", &[how, "acked"]);
            let frames = world.frames(client);
            world.send(client, &format!("ACK\nid:{}\n\n\0", frames[1].need("ack")));
            match how {
                "cut" => world.cut_off(client),
                "end" => world.end(client),
                "disconnect" => world.send(client, "DISCONNECT\n\n\0"),
                _ => world.send(client, "GARBAGE\n\n\0"),
            }
            let other = world.connect("1.2");
            world.send(other, &format!("{SUBSCRIBE}auto\n\n\0"));
            let again = world.next(other);
            assert_eq!((again.text(), again.header("redelivered")), (how, Some("true")), "c_14");
            world.cut_off(other);
        }
    });
}

#[test]
fn what_a_client_never_saw_is_not_marked_redelivered() {
    in_every_cut(|world| {
        world.fill("work", &["a", "b"]);
        let client = world.connect("1.2");
        world.set_room(client, Some(0));
        subscribe(world, client, "client-individual");
        assert_eq!(world.broker.reserved(), ["a", "b"]);
        world.cut_off(client);
        assert_eq!(world.broker.ready("work"), ["a", "b"], "released to their old places");
        let other = world.connect("1.2");
        subscribe(world, other, "client-individual");
        assert!(world.frames(other).iter().all(|frame| frame.header("redelivered").is_none()));
    });
}

#[test]
fn c_70_an_ack_within_the_same_instant_finds_its_delivery() {
    in_every_cut(|world| {
        let client = world.connect("1.2");
        subscribe(world, client, "client-individual");
        let producer = world.connect("1.2");
        for n in 0..200 {
            world.send(producer, &format!("SEND\ndestination:/queue/work\n\n{n}\0"));
            let frame = world.next(client);
            world.send(client, &format!("ACK\nid:{}\n\n\0", frame.need("ack")));
            world.pass(std::time::Duration::from_millis(3));
        }
        assert_eq!(world.session(client).counters().acks_ignored, 0);
        assert_eq!(world.broker.acked.len(), 200);
    });
}

#[test]
fn m_03_messages_come_in_queue_order() {
    in_every_cut(|world| {
        let bodies: Vec<String> = (0..300).map(|n| n.to_string()).collect();
        world.fill("work", &bodies.iter().map(String::as_str).collect::<Vec<_>>());
        let client = world.connect("1.2");
        subscribe(world, client, "auto");
        let frames = world.frames(client);
        assert!(frames.iter().all(|frame| frame.command == Command::Message));
        assert_eq!(frames.iter().map(|f| f.text().to_owned()).collect::<Vec<_>>(), bodies);
    });
}
