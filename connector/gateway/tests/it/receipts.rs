//! RECEIPTs: when they leave, in which order, and when they do not; DISCONNECT.

use berth_gateway::Closed;
use berth_stomp::Command;

use crate::world::{World, in_every_cut};

fn receipts(world: &mut World, client: usize) -> Vec<String> {
    let frames = world.frames(client);
    assert!(frames.iter().all(|frame| frame.command == Command::Receipt), "{frames:#?}");
    frames.iter().map(|frame| frame.need("receipt-id")).collect()
}

#[test]
fn a_receipt_means_accepted_not_consumed() {
    in_every_cut(|world| {
        let client = world.connect("1.2");
        world.broker.holds_confirms = true;
        world.send(client, "SEND\ndestination:/queue/demo\nreceipt:r-1\n\nhello\0");
        world.nothing(client);
        world.broker.release_confirms();
        world.run();
        assert_eq!(world.raw(client), "RECEIPT\nreceipt-id:r-1\n\n\0", "se_03, r_04");
        assert_eq!(world.broker.ready("demo"), ["hello"], "nobody has consumed it");
    });
}

#[test]
fn every_processed_frame_is_receipted() {
    in_every_cut(|world| {
        for version in ["1.0", "1.1", "1.2"] {
            let client = world.connect(version);
            world.send(
                client,
                "SUBSCRIBE\nid:1\ndestination:/queue/q\nack:client-individual\nreceipt:sub\n\n\0",
            );
            world.expect_receipt(client, "sub");
            world.send(client, "SEND\ndestination:/queue/q\nreceipt:send1\n\na\0");
            world.send(client, "SEND\ndestination:/queue/q\nreceipt:send2\n\nb\0");
            let mut frames = world.frames(client);
            frames.retain(|frame| frame.command == Command::Message);
            for (frame, command) in frames.iter().zip(["ACK", "NACK"]) {
                let id = frame.need("message-id");
                let lines = match version {
                    "1.2" => format!("id:{id}"),
                    "1.1" => format!("message-id:{id}\nsubscription:1"),
                    _ => format!("message-id:{id}"),
                };
                world.send(client, &format!("{command}\n{lines}\nreceipt:{command}\n\n\0"));
                assert_eq!(world.frames(client)[0].header("receipt-id"), Some(command));
            }
            world.send(client, "UNSUBSCRIBE\nid:1\nreceipt:unsub\n\n\0");
            world.expect_receipt(client, "unsub");
            world.send(client, "DISCONNECT\nreceipt:bye\n\n\0");
            world.expect_receipt(client, "bye");
            assert_eq!(world.closed(client), Some(Closed::ByPeer), "c_57");
            let rest = world.connect("1.2");
            world.send(rest, "SUBSCRIBE\nid:1\ndestination:/queue/q\n\n\0");
            world.cut_off(rest);
        }
    });
}

#[test]
fn r_01_receipts_come_back_as_they_were_sent() {
    in_every_cut(|world| {
        let long = "x".repeat(8000);
        for receipt in ["a\\cb", "\\\\\\n", "", "\u{e9}\u{1f600}", "a b ", long.as_str()] {
            for version in ["1.1", "1.2"] {
                let client = world.connect(version);
                world.send(client, &format!("SEND\ndestination:/queue/q\nreceipt:{receipt}\n\nx\0"));
                assert_eq!(world.raw(client), format!("RECEIPT\nreceipt-id:{receipt}\n\n\0"), "r_05, r_07");
                world.cut_off(client);
            }
        }
    });
}

#[test]
fn r_02_receipts_leave_in_the_order_of_the_frames() {
    in_every_cut(|world| {
        let client = world.connect("1.2");
        let sends: String =
            (0..1000).map(|n| format!("SEND\ndestination:/queue/q{}\nreceipt:{n}\n\nx\0", n % 7)).collect();
        world.send(client, &sends);
        assert_eq!(receipts(world, client), (0..1000).map(|n| n.to_string()).collect::<Vec<_>>());
    });
}

#[test]
fn r_02_a_quick_frame_waits_for_a_slow_one_before_it() {
    in_every_cut(|world| {
        let client = world.connect("1.2");
        world.broker.holds_confirms = true;
        world
            .send(client, "SEND\ndestination:/queue/q\nreceipt:slow\n\nx\0ACK\nid:none\nreceipt:quick\n\n\0");
        world.nothing(client);
        world.broker.release_confirms();
        world.run();
        assert_eq!(receipts(world, client), ["slow", "quick"]);
    });
}

#[test]
fn r_03_the_same_receipt_many_times() {
    in_every_cut(|world| {
        let client = world.connect("1.2");
        world.send(client, &"SEND\ndestination:/queue/q\nreceipt:r\n\nx\0".repeat(3));
        assert_eq!(receipts(world, client), ["r", "r", "r"]);
    });
}

#[test]
fn r_06_an_error_path_never_sends_a_receipt() {
    in_every_cut(|world| {
        let client = world.connect("1.2");
        world.send(client, "SEND\ndestination:/badprefix//\nreceipt:r-2\n\nhello\0");
        let error = world.expect_error(client, "invalid destination");
        assert_eq!(error.header("receipt-id"), Some("r-2"));
        assert_eq!(error.count("receipt-id"), 1);
    });
}

#[test]
fn su_06_c_43_the_receipt_of_subscribe_precedes_its_first_message() {
    in_every_cut(|world| {
        world.fill("full", &["a", "b", "c"]);
        let client = world.connect("1.2");
        world.broker.holds_confirms = true;
        world.send(
            client,
            "SEND\ndestination:/queue/other\nreceipt:before\n\nx\0\
             SUBSCRIBE\nid:1\ndestination:/queue/full\nreceipt:sub\n\n\0\
             SEND\ndestination:/queue/other\nreceipt:after\n\nx\0",
        );
        world.nothing(client);
        world.broker.release_one_confirm();
        world.run();
        world.broker.release_confirms();
        world.run();
        let frames = world.frames(client);
        let names: Vec<_> =
            frames.iter().map(|f| f.header("receipt-id").unwrap_or_else(|| f.text()).to_owned()).collect();
        let at = |name: &str| names.iter().position(|n| n == name).unwrap();
        assert_eq!(names.len(), 6);
        assert!(at("before") < at("sub") && at("sub") < at("a") && at("sub") < at("after"), "{names:?}");
    });
}

#[test]
fn an_ack_with_receipt_is_answered_when_it_is_durable() {
    in_every_cut(|world| {
        let client = world.connect("1.2");
        world.send(client, "SUBSCRIBE\nid:1\ndestination:/queue/q\nack:client\n\n\0");
        world.fill("q", &["a", "b"]);
        let token = world.frames(client)[1].need("ack");
        world.broker.holds_confirms = true;
        world.send(client, &format!("ACK\nid:{token}\nreceipt:r\n\n\0"));
        world.nothing(client);
        world.broker.release_confirms();
        world.run();
        world.expect_receipt(client, "r");
    });
}

#[test]
fn di_01_a_disconnect_receipt_is_flushed_before_the_close() {
    in_every_cut(|world| {
        let client = world.connect("1.2");
        world.broker.holds_confirms = true;
        world.send(client, "SEND\ndestination:/queue/q\nreceipt:send\n\nx\0DISCONNECT\nreceipt:bye\n\n\0");
        world.nothing(client);
        assert_eq!(world.closed(client), None, "everything before it is finished first");
        world.broker.release_confirms();
        world.run();
        assert_eq!(world.raw(client), "RECEIPT\nreceipt-id:send\n\n\0RECEIPT\nreceipt-id:bye\n\n\0", "di_04");
        assert_eq!(world.closed(client), Some(Closed::ByPeer));
    });
}

#[test]
fn di_02_without_a_receipt_nothing_is_said() {
    in_every_cut(|world| {
        let client = world.connect("1.2");
        world.send(client, "DISCONNECT\n\n\0SEND\ndestination:/queue/q\nreceipt:r\n\nx\0");
        world.nothing(client);
        assert_eq!(world.closed(client), Some(Closed::ByPeer));
        assert!(world.broker.ready("q").is_empty(), "di_03: frames after DISCONNECT are ignored");
    });
}

#[test]
fn di_05_c_67c_what_came_before_the_end_is_processed() {
    in_every_cut(|world| {
        let client = world.connect("1.2");
        world.send(client, "SUBSCRIBE\nid:1\ndestination:/queue/q\nack:client-individual\n\n\0");
        world.fill("q", &["a"]);
        let token = world.next(client).need("ack");
        world.send(client, &format!("ACK\nid:{token}\n\n\0SEND\ndestination:/queue/out\nreceipt:r\n\nx\0"));
        world.end(client);
        assert_eq!(
            (world.broker.acked.clone(), world.broker.ready("out")),
            (vec!["a".into()], vec!["x".into()])
        );
        world.expect_receipt(client, "r");
        assert_eq!(world.closed(client), Some(Closed::ByPeer));
        assert_eq!(world.broker.consumers(), 0);
    });
}

#[test]
fn auto_deliveries_in_the_buffer_are_written_before_the_goodbye() {
    in_every_cut(|world| {
        world.fill("q", &["a", "b"]);
        let client = world.connect("1.2");
        world.set_room(client, Some(0));
        world.send(
            client,
            "SUBSCRIBE\nid:1\ndestination:/queue/q\nack:auto\n\n\0DISCONNECT\nreceipt:bye\n\n\0",
        );
        world.set_room(client, None);
        let frames = world.frames(client);
        let texts: Vec<_> =
            frames.iter().map(|f| f.header("receipt-id").unwrap_or_else(|| f.text())).collect();
        // What was taken out of the queue for this client reaches it; the rest is still there.
        assert_eq!(texts.last(), Some(&"bye"));
        let seen: Vec<String> = texts[..texts.len() - 1].iter().map(|t| (*t).to_owned()).collect();
        assert_eq!([seen, world.broker.ready("q")].concat(), ["a", "b"]);
        assert_eq!(world.broker.acked.len() + world.broker.ready("q").len(), 2);
    });
}

#[test]
fn c_16_nothing_stands_between_frames() {
    in_every_cut(|world| {
        let client = world.connect("1.2");
        world.send(client, &"SEND\ndestination:/queue/q\nreceipt:r\n\nx\0".repeat(2));
        assert_eq!(world.raw(client), "RECEIPT\nreceipt-id:r\n\n\0".repeat(2), "f_21");
    });
}
