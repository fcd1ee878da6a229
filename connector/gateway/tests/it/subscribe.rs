//! SUBSCRIBE and UNSUBSCRIBE.

use crate::world::in_every_cut;

#[test]
fn su_01_su_02_required_headers() {
    in_every_cut(|world| {
        for (version, lines, missing) in [
            ("1.1", "destination:/queue/q\n", "id"),
            ("1.2", "destination:/queue/q\n", "id"),
            ("1.2", "destination:/queue/q\nid:\n", "id"),
            ("1.2", "id:1\n", "destination"),
            ("1.2", "id:1\ndestination:\n", "destination"),
            ("1.0", "id:1\n", "destination"),
        ] {
            let client = world.connect(version);
            world.send(client, &format!("SUBSCRIBE\n{lines}receipt:r\n\n\0"));
            let error = world.expect_error(client, "missing header");
            assert!(error.text().contains(&format!("\"{missing}\"")), "{error:?}");
            assert_eq!(error.header("receipt-id"), Some("r"), "e_02");
        }
    });
}

#[test]
fn su_01_1_0_needs_no_id_and_then_message_has_none() {
    in_every_cut(|world| {
        let client = world.connect("1.0");
        world.send(client, "SUBSCRIBE\ndestination:/queue/q\nack:client\n\n\0");
        world.fill("q", &["a"]);
        let frame = world.next(client);
        assert_eq!((frame.header("subscription"), frame.header("ack")), (None, None));
        let with_id = world.connect("1.0");
        world.send(with_id, "SUBSCRIBE\nid:7\ndestination:/queue/r\n\n\0");
        world.fill("r", &["b"]);
        assert_eq!(world.next(with_id).header("subscription"), Some("7"));
    });
}

#[test]
fn su_04_a_live_id_again_is_an_error() {
    in_every_cut(|world| {
        for version in ["1.0", "1.1", "1.2"] {
            let client = world.connect(version);
            world.send(client, "SUBSCRIBE\nid:1\ndestination:/queue/q\n\n\0");
            world.send(client, "SUBSCRIBE\nid:1\ndestination:/queue/r\nreceipt:r\n\n\0");
            let error = world.expect_error(client, "subscription id in use");
            assert_eq!(error.header("receipt-id"), Some("r"));
            assert_eq!(world.broker.consumers(), 0, "and both are gone");
        }
    });
}

#[test]
fn su_07_ids_belong_to_their_connection() {
    in_every_cut(|world| {
        let (a, b) = (world.connect("1.2"), world.connect("1.2"));
        for client in [a, b] {
            world.send(client, "SUBSCRIBE\nid:1\ndestination:/queue/q\nreceipt:r\n\n\0");
            world.expect_receipt(client, "r");
        }
        assert_eq!(world.broker.consumers(), 2);
    });
}

#[test]
fn su_08_what_queues_do_not_have_is_refused() {
    in_every_cut(|world| {
        for (line, message) in [
            ("selector:a = 1", "selector not supported"),
            ("selector:", "selector not supported"),
            ("durable:true", "durable needs /store/<ch>"),
            ("durable-subscription-name:x", "durable needs /store/<ch>"),
            ("activemq.subscriptionName:x", "durable needs /store/<ch>"),
        ] {
            let client = world.connect("1.2");
            world.send(client, &format!("SUBSCRIBE\nid:1\ndestination:/queue/q\n{line}\n\n\0"));
            world.expect_error(client, message);
        }
        let client = world.connect("1.2");
        world.send(
            client,
            "SUBSCRIBE\nid:1\ndestination:/queue/q\nstart:nonsense\ngroup:g\n\
             durable:false\nx:y\nreceipt:r\n\n\0",
        );
        world.expect_receipt(client, "r");
    });
}

#[test]
fn prefetch_count_is_a_number_that_is_cut_to_the_bound() {
    in_every_cut(|world| {
        for bad in ["", "-1", "x", "1.5", "1 "] {
            let client = world.connect("1.2");
            world.send(
                client,
                &format!("SUBSCRIBE\nid:1\ndestination:/queue/q\nack:client\nprefetch-count:{bad}\n\n\0"),
            );
            world.expect_error(client, "invalid prefetch-count");
        }
        let bodies = vec!["x"; 250];
        for (ack, prefetch, delivered) in [
            ("client", "prefetch-count:1\n", 1),
            ("client", "", 100),
            ("client", "prefetch-count:0\n", 250),
            ("client-individual", "prefetch-count:99999999999\n", 250),
            ("auto", "prefetch-count:1\n", 250),
            ("auto", "prefetch-count:x\n", 250),
        ] {
            let client = world.connect("1.2");
            world.fill("q", &bodies);
            world.send(client, &format!("SUBSCRIBE\nid:1\ndestination:/queue/q\nack:{ack}\n{prefetch}\n\0"));
            assert_eq!(world.frames(client).len(), delivered, "{ack} {prefetch}");
            world.cut_off(client);
            let rest = world.connect("1.2");
            world.send(rest, "SUBSCRIBE\nid:1\ndestination:/queue/q\n\n\0");
            world.cut_off(rest);
        }
    });
}

#[test]
fn l_07_a_connection_has_so_many_subscriptions() {
    in_every_cut(|world| {
        world.settings.subscriptions_max = 3;
        let client = world.connect("1.2");
        for id in 0..3 {
            world.send(client, &format!("SUBSCRIBE\nid:{id}\ndestination:/queue/q\n\n\0"));
        }
        world.nothing(client);
        world.send(client, "UNSUBSCRIBE\nid:0\n\n\0SUBSCRIBE\nid:0\ndestination:/queue/q\n\n\0");
        world.nothing(client);
        world.send(client, "SUBSCRIBE\nid:3\ndestination:/queue/q\n\n\0");
        let error = world.expect_error(client, "too many subscriptions");
        assert!(error.text().contains("maxSubscriptions"));
    });
}

#[test]
fn un_01_un_02_which_one_ends() {
    in_every_cut(|world| {
        for version in ["1.1", "1.2"] {
            let client = world.connect(version);
            world.send(client, "UNSUBSCRIBE\ndestination:/queue/q\nreceipt:r\n\n\0");
            world.expect_error(client, "missing header");
        }
        for (version, line) in [("1.0", "destination:/queue/q"), ("1.0", "id:9"), ("1.2", "id:9")] {
            let client = world.connect(version);
            world.send(client, &format!("UNSUBSCRIBE\n{line}\nreceipt:r\n\n\0"));
            let error = world.expect_error(client, "unknown subscription");
            assert_eq!(error.header("receipt-id"), Some("r"));
        }
    });
}

#[test]
fn un_05_1_0_ends_the_oldest_on_that_destination() {
    in_every_cut(|world| {
        let client = world.connect("1.0");
        world.send(client, "SUBSCRIBE\ndestination:/queue/q\nack:client\n\n\0");
        world.send(client, "SUBSCRIBE\ndestination:/queue/q\n\n\0");
        world.send(client, "UNSUBSCRIBE\ndestination:/queue/q\nreceipt:r\n\n\0");
        world.expect_receipt(client, "r");
        world.fill("q", &["a"]);
        assert_eq!(world.bodies(client), ["a"]);
        assert_eq!(world.broker.acked, ["a"], "the auto one is left");
        world.send(client, "UNSUBSCRIBE\ndestination:/queue/q\nreceipt:r\n\n\0");
        world.expect_receipt(client, "r");
        world.send(client, "UNSUBSCRIBE\ndestination:/queue/q\n\n\0");
        world.expect_error(client, "unknown subscription");
    });
}

#[test]
fn un_03_nothing_comes_after_its_receipt_and_the_unwritten_goes_back() {
    in_every_cut(|world| {
        world.fill("q", &["a", "b", "c"]);
        let client = world.connect("1.2");
        world.set_room(client, Some(0));
        world.send(client, "SUBSCRIBE\nid:1\ndestination:/queue/q\nack:client-individual\n\n\0");
        assert_eq!(world.broker.reserved().len(), 3);
        world.set_room(client, Some(20));
        world.send(client, "UNSUBSCRIBE\nid:1\nreceipt:u\n\n\0");
        assert_eq!(world.broker.ready("q"), ["b", "c"], "released before the RECEIPT; the first is begun");
        world.set_room(client, None);
        let frames = world.frames(client);
        assert_eq!(frames.iter().map(|f| f.text()).collect::<Vec<_>>(), ["a", ""]);
        assert_eq!(frames[1].header("receipt-id"), Some("u"));
        world.fill("q", &["d"]);
        world.nothing(client);
    });
}

#[test]
fn un_04_c_01_what_was_delivered_can_still_be_acked() {
    in_every_cut(|world| {
        let client = world.connect("1.2");
        world.send(client, "SUBSCRIBE\nid:1\ndestination:/queue/q\nack:client\nprefetch-count:2\n\n\0");
        world.fill("q", &["a", "b"]);
        let tokens: Vec<String> = world.frames(client).iter().map(|frame| frame.need("ack")).collect();
        world.send(client, "UNSUBSCRIBE\nid:1\nreceipt:u\n\n\0");
        world.expect_receipt(client, "u");
        // The id again, in another mode, does not change how the old deliveries settle.
        world.send(client, "SUBSCRIBE\nid:1\ndestination:/queue/q\nack:client-individual\n\n\0");
        world.fill("q", &["new"]);
        let new = world.next(client).need("ack");
        world.send(client, &format!("ACK\nid:{}\nreceipt:a\n\n\0", tokens[1]));
        world.expect_receipt(client, "a");
        assert_eq!(world.broker.acked, ["a", "b"], "cumulatively");
        world.send(client, &format!("ACK\nid:{}\nreceipt:again\n\n\0", tokens[1]));
        world.expect_receipt(client, "again");
        assert_eq!(world.broker.reserved(), ["new"], "old tokens never touch the new one");
        world.send(client, &format!("ACK\nid:{new}\n\n\0"));
        assert_eq!(world.broker.acked, ["a", "b", "new"]);
    });
}

#[test]
fn un_04_in_1_1_too() {
    in_every_cut(|world| {
        let client = world.connect("1.1");
        world.send(client, "SUBSCRIBE\nid:1\ndestination:/queue/q\nack:client-individual\n\n\0");
        world.fill("q", &["a"]);
        let id = world.next(client).need("message-id");
        world.send(client, "UNSUBSCRIBE\nid:1\n\n\0");
        world.send(client, &format!("ACK\nmessage-id:{id}\nsubscription:1\nreceipt:r\n\n\0"));
        world.expect_receipt(client, "r");
        assert_eq!(world.broker.acked, ["a"]);
    });
}

#[test]
fn un_04_what_is_never_acked_is_requeued_by_the_timeout_or_the_end() {
    in_every_cut(|world| {
        let client = world.connect("1.2");
        world.send(client, "SUBSCRIBE\nid:1\ndestination:/queue/q\nack:client-individual\n\n\0");
        world.fill("q", &["a"]);
        world.next(client);
        world.send(client, "UNSUBSCRIBE\nid:1\n\n\0");
        assert_eq!(world.broker.reserved(), ["a"]);
        world.pass(std::time::Duration::from_millis(31_002));
        assert_eq!(world.broker.ready("q"), ["a"]);
        world.nothing(client);
    });
}

#[test]
fn auto_writes_what_its_buffer_holds_before_the_receipt_of_unsubscribe() {
    in_every_cut(|world| {
        world.fill("q", &["a", "b"]);
        let client = world.connect("1.2");
        world.set_room(client, Some(0));
        world.send(client, "SUBSCRIBE\nid:1\ndestination:/queue/q\n\n\0");
        assert_eq!(world.broker.acked, ["a", "b"]);
        world.send(client, "UNSUBSCRIBE\nid:1\nreceipt:u\n\n\0");
        world.set_room(client, None);
        let frames = world.frames(client);
        assert_eq!(frames.iter().map(|f| f.text()).collect::<Vec<_>>(), ["a", "b", ""]);
    });
}

#[test]
fn c_47_subscribing_over_and_over_leaves_nothing_behind() {
    in_every_cut(|world| {
        world.fill("q", &["a"]);
        let client = world.connect("1.2");
        for _ in 0..300 {
            world.send(
                client,
                "SUBSCRIBE\nid:1\ndestination:/queue/q\nack:client\n\n\0UNSUBSCRIBE\nid:1\n\n\0",
            );
        }
        world.pass(std::time::Duration::from_secs(62));
        assert_eq!((world.session(client).subscription_count(), world.broker.consumers()), (0, 0));
        assert_eq!(world.session(client).delivery_count(), 0);
        assert_eq!(world.broker.ready("q"), ["a"]);
    });
}
