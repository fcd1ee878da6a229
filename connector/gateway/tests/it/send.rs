//! SEND: which headers and bodies arrive, and how.

use berth_engine::port::Refusal;
use berth_gateway::Closed;

use crate::world::in_every_cut;

#[test]
fn se_04_the_destination_is_the_subscribers_own_form() {
    in_every_cut(|world| {
        for form in ["/queue/jobs/email", "/queues/jobs.email"] {
            let client = world.connect("1.2");
            world.send(client, &format!("SUBSCRIBE\nid:1\ndestination:{form}\n\n\0"));
            world.send(client, "SEND\ndestination:/queue/jobs.email\n\nx\0");
            assert_eq!(world.next(client).header("destination"), Some(form), "c_49b");
            world.cut_off(client);
        }
    });
}

#[test]
fn h_16_user_headers_travel_in_order_and_unchanged() {
    in_every_cut(|world| {
        let client = world.connect("1.2");
        world.send(client, "SUBSCRIBE\nid:1\ndestination:/queue/q\n\n\0");
        world.send(
            client,
            "SEND\ndestination:/queue/q\nzeta:1\nalpha:a\\cb\\n\\\\\ncontent-type:text/plain\n\
             persistent:true\n\
             priority:7\ncorrelation-id:c-1\nreply-to:/queue/answers\ntype:order\nexpires:1800000000000\n\
             traceparent:00-abc\nalpha:again\nempty:\n\nx\0",
        );
        let frame = world.next(client);
        let names: Vec<&str> = frame.headers.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names[..5], ["destination", "message-id", "subscription", "timestamp", "content-length"]);
        assert_eq!(
            names[5..],
            [
                "zeta",
                "alpha",
                "content-type",
                "persistent",
                "priority",
                "correlation-id",
                "reply-to",
                "type",
                "expires",
                "traceparent",
                "alpha",
                "empty"
            ]
        );
        assert_eq!(frame.header("alpha"), Some("a:b\n\\"));
        assert_eq!(frame.header("empty"), Some(""));
    });
}

#[test]
fn h_17_h_18_nobody_forges_the_servers_headers() {
    in_every_cut(|world| {
        let client = world.connect("1.2");
        world.send(client, "SUBSCRIBE\nid:1\ndestination:/queue/q\nack:client\n\n\0");
        world.send(
            client,
            "SEND\ndestination:/queue/q\nmessage-id:forged\nack:forged\nsubscription:forged\n\
             redelivered:true\n\
             delivery-count:9\ntimestamp:1\ncontent-length:1\nreceipt:r\nuser:kept\n\nx\0",
        );
        let frames = world.frames(client);
        let frame = frames.iter().find(|frame| frame.text() == "x").unwrap();
        for name in ["destination", "message-id", "ack", "subscription", "timestamp", "content-length"] {
            assert_eq!(frame.count(name), 1, "{name}");
            assert_ne!(frame.header(name), Some("forged"), "{name}");
        }
        for name in ["redelivered", "delivery-count", "receipt", "transaction", "receipt-id"] {
            assert_eq!(frame.count(name), 0, "{name}");
        }
        assert_eq!(frame.header("user"), Some("kept"));
    });
}

#[test]
fn h_08_every_version_to_every_version() {
    in_every_cut(|world| {
        // A name and a value of colon, LF, CR and backslash, as each sender can say them.
        for (from, line, name, value) in [
            ("1.0", "k:a:b\\n\\", "k", "a:b\\n\\"),
            ("1.1", "k\\c2:a\\cb\\n\\\\\rz", "k:2", "a:b\n\\\rz"),
            ("1.2", "k\\c2:a\\cb\\n\\\\\\rz", "k:2", "a:b\n\\\rz"),
        ] {
            for to in ["1.0", "1.1", "1.2"] {
                let producer = world.connect(from);
                let consumer = world.connect(to);
                world.send(consumer, "SUBSCRIBE\nid:1\ndestination:/queue/q\n\n\0");
                world.send(producer, &format!("SEND\ndestination:/queue/q\n{line}\nsafe:1\n\nx\0"));
                let frame = world.next(consumer);
                // A raw LF never reaches a 1.0 client, and a name with a colon has no form there.
                let expected = match to {
                    "1.0" if name.contains(':') => None,
                    "1.0" => Some(value.replace('\n', " ")),
                    _ => Some(value.to_owned()),
                };
                assert_eq!(frame.header(name), expected.as_deref(), "{from} to {to}");
                assert_eq!(frame.header("safe"), Some("1"));
                let left_out = u64::from(expected.is_none());
                assert_eq!(world.session(consumer).counters().headers_left_out, left_out, "h_09");
                world.cut_off(consumer);
            }
        }
    });
}

#[test]
fn h_15_b_01_bodies_arrive_byte_for_byte() {
    in_every_cut(|world| {
        let client = world.connect("1.2");
        world.send(client, "SUBSCRIBE\nid:1\ndestination:/queue/q\n\n\0");
        let all: Vec<u8> = (0..=255).collect();
        let long = all.repeat(40);
        for body in [&b""[..], b"\0", b"a\0b\0", "\u{1f600}\r\n:\\n".as_bytes(), &all, &long] {
            let head = format!("SEND\ndestination:/queue/q\ncontent-length:{}\n\n", body.len());
            world.send_bytes(client, &[head.as_bytes(), body, b"\0"].concat());
            let frame = world.next(client);
            assert_eq!(frame.body, body, "c_35");
            assert_eq!(frame.need("content-length"), body.len().to_string(), "b_02");
            assert_eq!(frame.header("content-type"), None, "b_03: none is invented");
        }
    });
}

#[test]
fn c_36_headers_without_a_body_count_in_the_message() {
    in_every_cut(|world| {
        let client = world.connect("1.2");
        let header = "v".repeat(8000);
        world.broker.holds_confirms = true;
        world.send(client, &format!("SEND\ndestination:/queue/q\nk:{header}\n\n\0"));
        world.broker.release_confirms();
        world.run();
        world.send(client, "SUBSCRIBE\nid:1\ndestination:/queue/q\n\n\0");
        assert_eq!(world.next(client).need("k").len(), 8000);
    });
}

#[test]
fn se_01_a_destination_is_needed() {
    in_every_cut(|world| {
        for version in ["1.0", "1.1", "1.2"] {
            for lines in ["", "destination:\n", "Destination:/queue/q\n"] {
                let client = world.connect(version);
                world.send(client, &format!("SEND\n{lines}receipt:r\n\nx\0"));
                let error = world.expect_error(client, "missing header");
                assert_eq!(error.header("receipt-id"), Some("r"));
                assert!(error.text().contains("destination"));
            }
        }
    });
}

#[test]
fn destinations_that_are_none() {
    in_every_cut(|world| {
        for bad in
            ["/badprefix//", "/queue/", "/queue", "/queue/a//b", "/queue/a*", "/", "/queue/a b", "/Queue/a"]
        {
            let client = world.connect("1.2");
            world.send(client, &format!("SEND\ndestination:{bad}\n\nx\0"));
            world.expect_error(client, "invalid destination");
            assert_eq!(world.closed(client), Some(Closed::PeerViolated("invalid destination")));
        }
        // h_11: a leading blank is a part of the name from 1.1 on, and 1.0 clients pad.
        let client = world.connect("1.1");
        world.send(client, "SEND\ndestination: /queue/a\n\nx\0");
        world.expect_error(client, "invalid destination");
        let client = world.connect("1.0");
        world.send(client, "SEND\ndestination: /queue/a\nreceipt: r \n\nx\0");
        world.expect_receipt(client, "r");
    });
}

#[test]
fn destinations_that_are_not_supported_yet_say_what_is() {
    in_every_cut(|world| {
        for other in [
            "/topic/a",
            "/events/a",
            "/store/a",
            "/events-store/a",
            "/command/a",
            "/commands/a",
            "/query/a",
            "/queries/a",
            "/temp-queue/a",
            "/responses/a",
            "bare",
            "bare/name",
        ] {
            for command in ["SEND", "SUBSCRIBE\nid:1"] {
                let client = world.connect("1.2");
                world.send(client, &format!("{command}\ndestination:{other}\nreceipt:r\n\n\0"));
                let error = world.expect_error(client, "not supported");
                assert!(error.text().contains("/queue/<channel>"), "{error:?}");
                assert_eq!(error.header("receipt-id"), Some("r"));
            }
        }
    });
}

#[test]
fn a_bare_name_means_what_the_setting_says() {
    in_every_cut(|world| {
        world.settings.default_pattern = Some(berth_types::Pattern::Queues);
        let client = world.connect("1.2");
        world.send(client, "SEND\ndestination:jobs/email\nreceipt:r\n\nx\0");
        world.expect_receipt(client, "r");
        assert_eq!(world.broker.ready("jobs.email"), ["x"]);
        world.settings.default_pattern = None;
        let client = world.connect("1.2");
        world.send(client, "SEND\ndestination:jobs\n\nx\0");
        world.expect_error(client, "invalid destination");
    });
}

#[test]
fn transactions_are_not_supported_yet() {
    in_every_cut(|world| {
        for frame in [
            "BEGIN\ntransaction:t\nreceipt:r\n\n\0",
            "COMMIT\ntransaction:t\nreceipt:r\n\n\0",
            "ABORT\ntransaction:t\nreceipt:r\n\n\0",
            "SEND\ndestination:/queue/q\ntransaction:t\nreceipt:r\n\nx\0",
            "ACK\nid:x\ntransaction:t\nreceipt:r\n\n\0",
            "NACK\nid:x\ntransaction:t\nreceipt:r\n\n\0",
        ] {
            let client = world.connect("1.2");
            world.send(client, frame);
            let error = world.expect_error(client, "not supported");
            assert!(error.text().starts_with("Transactions"), "{error:?}");
            assert_eq!(error.header("receipt-id"), Some("r"));
        }
        for frame in ["BEGIN\n\n\0", "COMMIT\ntransaction:\n\n\0", "ABORT\n\n\0"] {
            let client = world.connect("1.2");
            world.send(client, frame);
            world.expect_error(client, "missing header");
        }
        assert!(world.broker.ready("q").is_empty());
    });
}

#[test]
fn tx_10_other_frames_ignore_a_transaction_header() {
    in_every_cut(|world| {
        let client = world.connect("1.2");
        world.send(client, "SUBSCRIBE\nid:1\ndestination:/queue/q\ntransaction:t\nreceipt:a\n\n\0");
        world.expect_receipt(client, "a");
        world.send(client, "UNSUBSCRIBE\nid:1\ntransaction:t\nreceipt:b\n\n\0");
        world.expect_receipt(client, "b");
    });
}

#[test]
fn se_02_what_the_broker_refuses_is_an_error_in_its_turn() {
    in_every_cut(|world| {
        for (refusal, message) in [
            (Refusal::QueueFull, "queue full"),
            (Refusal::StorageFull, "storage full"),
            (Refusal::MessageTooLarge, "message too large"),
            (Refusal::InvalidDestination, "invalid destination"),
        ] {
            world.broker.refuses_publish.insert("bad".into(), refusal);
            let client = world.connect("1.2");
            world.send(
                client,
                "SEND\ndestination:/queue/good\nreceipt:1\n\nx\0\
                 SEND\ndestination:/queue/bad\nreceipt:2\n\nx\0\
                 SEND\ndestination:/queue/good\nreceipt:3\n\nx\0",
            );
            let frames = world.frames(client);
            assert_eq!(frames.len(), 2, "{frames:#?}");
            assert_eq!(frames[0].header("receipt-id"), Some("1"), "earlier frames are receipted first");
            assert_eq!(
                (frames[1].header("message"), frames[1].header("receipt-id")),
                (Some(message), Some("2"))
            );
            assert_eq!(world.closed(client), Some(Closed::ByUs(message)));
        }
    });
}
