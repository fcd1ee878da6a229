//! ERROR, closing, login, shutdown.

use berth_gateway::{Closed, Session};
use berth_stomp::Command;

use crate::world::{in_every_cut, secs};

#[test]
fn uk_01_an_unknown_command_closes() {
    in_every_cut(|world| {
        let client = world.connect("1.2");
        world.send(client, "FROBNICATE\nreceipt:r\n\n\0SEND\ndestination:/queue/q\n\nx\0");
        let error = world.expect_error(client, "unknown command");
        assert_eq!(error.header("receipt-id"), Some("r"));
        assert!(world.broker.ready("q").is_empty());
        assert_eq!(world.closed(client), Some(Closed::PeerViolated("unknown command")));
    });
}

#[test]
fn an_error_leaves_after_the_receipts_of_earlier_frames() {
    in_every_cut(|world| {
        let client = world.connect("1.2");
        world.broker.holds_confirms = true;
        world.send(client, "SEND\ndestination:/queue/q\nreceipt:1\n\nx\0SEND\nbroken\n\nx\0");
        world.nothing(client);
        assert_eq!(world.closed(client), None);
        world.broker.release_confirms();
        world.run();
        let frames = world.frames(client);
        assert_eq!(frames.iter().map(|f| f.command).collect::<Vec<_>>(), [Command::Receipt, Command::Error]);
        assert_eq!(frames[1].header("message"), Some("malformed frame"));
    });
}

#[test]
fn a_subscribe_before_an_error_is_still_receipted() {
    in_every_cut(|world| {
        let client = world.connect("1.2");
        world.send(client, "SUBSCRIBE\nid:1\ndestination:/queue/q\nreceipt:s\n\n\0NOPE\n\n\0");
        let frames = world.frames(client);
        assert_eq!(frames.iter().map(|f| f.command).collect::<Vec<_>>(), [Command::Receipt, Command::Error]);
    });
}

#[test]
fn v_09_a_wrong_login_is_told_so_and_nothing_more() {
    in_every_cut(|world| {
        world.require_login("guest", ":=1\\n23");
        for (login, passcode) in [("guest", "wrong"), ("nobody", ":=1\\n23"), ("", "")] {
            let client = world.accept();
            world.send(
                client,
                &format!(
                    "CONNECT\naccept-version:1.2\nlogin:{login}\npasscode:{passcode}\nreceipt:r\n\n\0\
                     SEND\ndestination:/queue/q\n\nx\0"
                ),
            );
            let error = world.expect_error(client, "authentication failed");
            assert_eq!(error.header("receipt-id"), None);
            assert_eq!(error.text(), "The login was not accepted.", "c_31: the same for every cause");
        }
        let client = world.accept();
        world.send(client, "CONNECT\naccept-version:1.2\n\n\0");
        world.expect_error(client, "authentication failed");
        let client = world.accept();
        world.send(client, "CONNECT\naccept-version:1.2\nlogin:guest\npasscode::=1\\n23\n\n\0");
        assert_eq!(world.next(client).header("user-name"), Some("guest"));
        assert!(!format!("{:?}", world.session(client)).contains("1\\n23"), "c_49f");
        assert!(world.broker.ready("q").is_empty());
    });
}

#[test]
fn c_10_what_is_not_allowed_is_refused_and_nothing_is_made() {
    in_every_cut(|world| {
        world.require_login("u", "p");
        for frame in [
            "SUBSCRIBE\nid:1\ndestination:/queue/secret\nreceipt:r\n\n\0",
            "SEND\ndestination:/queue/secret\nreceipt:r\n\nx\0",
            "SEND\ndestination:/queue/readonly\nreceipt:r\n\nx\0",
        ] {
            let client = world.accept();
            world.send(client, "CONNECT\naccept-version:1.2\nlogin:u\npasscode:p\n\n\0");
            world.next(client);
            world.send(client, frame);
            let error = world.expect_error(client, "not authorized");
            assert_eq!(error.header("receipt-id"), Some("r"));
        }
        assert_eq!(world.broker.consumers(), 0);
        assert!(world.broker.ready("secret").is_empty());
    });
}

#[test]
fn f_22_other_protocols_get_no_answer() {
    in_every_cut(|world| {
        for bytes in [&b"\x16\x03\x01\x00\xa5\x01\x00"[..], b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"] {
            let client = world.accept();
            world.send_bytes(client, bytes);
            assert_eq!(world.raw(client), "");
            assert!(matches!(world.closed(client), Some(Closed::PeerViolated(_))));
        }
    });
}

#[test]
fn v_13_silence_before_connect_is_closed_without_a_word() {
    in_every_cut(|world| {
        let client = world.accept();
        world.pass(secs(11));
        assert_eq!(world.raw(client), "");
        assert_eq!(world.closed(client), Some(Closed::TimedOut("handshake")));
    });
}

#[test]
fn hb_10_a_silent_client_is_told_and_its_deliveries_are_requeued() {
    in_every_cut(|world| {
        let client = world.accept();
        world.send(client, "CONNECT\naccept-version:1.2\nheart-beat:5000,0\n\n\0");
        world.next(client);
        world.send(client, "SUBSCRIBE\nid:1\ndestination:/queue/q\nack:client\n\n\0");
        world.fill("q", &["a"]);
        world.next(client);
        world.pass(secs(20));
        let error = world.expect_error(client, "heart-beat timeout");
        assert!(error.text().contains("20000 ms"), "{error:?}");
        assert_eq!(world.closed(client), Some(Closed::TimedOut("read_idle")));
        assert_eq!(world.broker.ready("q"), ["a"]);
    });
}

#[test]
fn a_drain_serves_acks_and_sends_but_delivers_nothing() {
    in_every_cut(|world| {
        let client = world.connect("1.2");
        world.send(client, "SUBSCRIBE\nid:1\ndestination:/queue/q\nack:client-individual\n\n\0");
        world.fill("q", &["a"]);
        let token = world.next(client).need("ack");
        assert!(!world.session(client).is_settled());
        let now = world.now();
        world.session(client).handle_drain(now);
        world.run();
        world.fill("q", &["b"]);
        world.nothing(client);
        world.send(client, "SEND\ndestination:/queue/other\nreceipt:s\n\nx\0");
        world.expect_receipt(client, "s");
        world.send(client, &format!("ACK\nid:{token}\nreceipt:a\n\n\0"));
        world.expect_receipt(client, "a");
        assert!(world.session(client).is_settled());
        assert_eq!(world.broker.ready("q"), ["b"]);
    });
}

#[test]
fn a_shutdown_requeues_once_and_says_why() {
    in_every_cut(|world| {
        let client = world.connect("1.2");
        world.send(client, "SUBSCRIBE\nid:1\ndestination:/queue/q\nack:client-individual\n\n\0");
        world.fill("q", &["a"]);
        world.next(client);
        world.broker.holds_confirms = true;
        world.send(client, "SEND\ndestination:/queue/other\nreceipt:s\n\nx\0");
        let now = world.now();
        world.session(client).handle_shutdown(now);
        world.run();
        world.nothing(client);
        world.broker.release_confirms();
        world.run();
        let frames = world.frames(client);
        assert_eq!(frames[0].header("receipt-id"), Some("s"), "confirms are waited for");
        assert_eq!(frames[1].header("message"), Some("server shutting down"));
        assert_eq!(world.closed(client), Some(Closed::ByUs("server shutting down")));
        assert_eq!(world.broker.ready("q"), ["a"]);
        let nacks: Vec<_> = world.broker.settled.iter().filter(|s| !s.nack.is_empty()).collect();
        assert_eq!(nacks.len(), 1);
        assert_eq!(nacks[0].cause, berth_engine::port::NackCause::Server, "no failure of the client's");
        assert!(world.session(client).is_settled());
    });
}

#[test]
fn a_refused_settlement_is_storage_full_and_closes() {
    in_every_cut(|world| {
        for receipt in ["", "receipt:r\n"] {
            let client = world.connect("1.2");
            world.send(client, "SUBSCRIBE\nid:1\ndestination:/queue/q\nack:client-individual\n\n\0");
            world.fill("q", &["a"]);
            let token = world.next(client).need("ack");
            world.broker.refuses_settle = Some(berth_engine::port::Refusal::StorageFull);
            world.send(client, &format!("ACK\nid:{token}\n{receipt}\n\0"));
            let error = world.expect_error(client, "storage full");
            assert_eq!(error.header("receipt-id").is_some(), !receipt.is_empty());
            world.broker.refuses_settle = None;
            world.pass(secs(3));
            assert_eq!(world.broker.ready("q").pop().as_deref(), Some("a"), "still there");
            let rest = world.connect("1.2");
            world.send(rest, "SUBSCRIBE\nid:1\ndestination:/queue/q\n\n\0");
            world.cut_off(rest);
        }
    });
}

#[test]
fn v_15_two_thousand_connections_come_and_go() {
    let mut world = crate::world::World::new(crate::world::Cut::Whole);
    for _ in 0..2_000 {
        let client = world.connect("1.2");
        world.send(client, "SUBSCRIBE\nid:1\ndestination:/queue/q\n\n\0");
        world.cut_off(client);
        assert!(world.session(client).is_settled());
        assert_eq!(world.session(client).poll_timeout(), None);
        world.forget_all();
    }
    assert_eq!(world.broker.consumers(), 0);
}

#[test]
fn h_10_c_76_what_the_client_sent_never_stands_in_the_message_header() {
    in_every_cut(|world| {
        for frame in [
            "SEND\ndestination:/bad/evil\\nheader\\c1\nreceipt:r\n\n\0",
            "evil\\nheader:1\n\n\0",
            "SUBSCRIBE\nid:1\ndestination:/queue/q\nack:evil\n\n\0",
        ] {
            let client = world.connect("1.2");
            world.send(client, frame);
            let error = world.next(client);
            assert_eq!(error.command, Command::Error);
            assert!(!error.need("message").contains("evil"), "{error:?}");
            assert_eq!(error.need("content-type"), "text/plain");
            assert_eq!(error.need("content-length"), error.body.len().to_string());
        }
    });
}
