//! The broker is away: SEND closes, SUBSCRIBE waits.

use berth_engine::port::Refusal;
use berth_gateway::Closed;

use crate::world::in_every_cut;

#[test]
fn a_send_is_an_error_that_closes_and_buffers_nothing() {
    in_every_cut(|world| {
        world.broker.set_ready(false, 0);
        let client = world.connect("1.2");
        world.send(client, "SEND\ndestination:/queue/q\nreceipt:r\n\nx\0");
        let error = world.expect_error(client, "broker not ready");
        assert_eq!(error.header("receipt-id"), Some("r"));
        assert_eq!(world.closed(client), Some(Closed::ByUs("broker not ready")));
        world.broker.set_ready(true, 1);
        world.run();
        assert!(world.broker.ready("q").is_empty());
    });
}

#[test]
fn a_subscribe_is_receipted_at_once_and_comes_alive_later() {
    in_every_cut(|world| {
        world.fill("q", &["a"]);
        world.broker.set_ready(false, 1);
        let client = world.connect("1.2");
        world.send(client, "SUBSCRIBE\nid:mine\ndestination:/queue/q\nack:client\nreceipt:r\n\n\0");
        world.expect_receipt(client, "r");
        world.broker.set_ready(true, 2);
        world.run();
        let frame = world.next(client);
        assert_eq!(
            (frame.text(), frame.header("subscription")),
            ("a", Some("mine")),
            "under the client's own id"
        );
    });
}

#[test]
fn a_gated_subscribe_is_checked_before_it_waits() {
    in_every_cut(|world| {
        world.broker.set_ready(false, 0);
        for (lines, message) in [
            ("destination:/queue/a b\n", "invalid destination"),
            ("destination:/queue/q\nack:x\n", "unknown ack mode"),
            ("destination:/queue/q\nselector:a=1\n", "selector not supported"),
            ("destination:/topic/q\n", "not supported"),
        ] {
            let client = world.connect("1.2");
            world.send(client, &format!("SUBSCRIBE\nid:1\nreceipt:r\n{lines}\n\0"));
            world.expect_error(client, message);
        }
    });
}

#[test]
fn unsubscribe_cancels_a_gated_one() {
    in_every_cut(|world| {
        world.fill("q", &["a"]);
        world.broker.set_ready(false, 1);
        let client = world.connect("1.2");
        world.send(client, "SUBSCRIBE\nid:1\ndestination:/queue/q\n\n\0UNSUBSCRIBE\nid:1\nreceipt:r\n\n\0");
        world.expect_receipt(client, "r");
        world.broker.set_ready(true, 2);
        world.run();
        world.nothing(client);
        assert_eq!((world.broker.ready("q").len(), world.broker.consumers()), (1, 0));
    });
}

#[test]
fn a_later_refusal_is_an_error_that_closes() {
    in_every_cut(|world| {
        world.broker.set_ready(false, 0);
        let client = world.connect("1.2");
        world.send(client, "SUBSCRIBE\nid:1\ndestination:/queue/q\nreceipt:r\n\n\0");
        world.expect_receipt(client, "r");
        world.broker.refuses_attach = Some(Refusal::InvalidDestination);
        world.broker.set_ready(true, 1);
        world.run();
        world.expect_error(client, "invalid destination");
    });
}

#[test]
fn a_live_subscription_gates_again_and_its_tokens_become_late() {
    in_every_cut(|world| {
        let client = world.connect("1.2");
        world.send(client, "SUBSCRIBE\nid:1\ndestination:/queue/q\nack:client-individual\n\n\0");
        world.fill("q", &["a"]);
        let token = world.next(client).need("ack");
        world.broker.set_ready(false, 2);
        world.run();
        // ACK and NACK meanwhile: late, ignored, RECEIPT sent.
        for command in ["ACK", "NACK"] {
            world.send(client, &format!("{command}\nid:{token}\nreceipt:{command}\n\n\0"));
            world.expect_receipt(client, command);
        }
        world.broker.set_ready(true, 2);
        world.run();
        let again = world.next(client);
        assert_eq!((again.text(), again.header("redelivered")), ("a", Some("true")));
        world.send(client, &format!("ACK\nid:{token}\nreceipt:late\n\n\0"));
        world.expect_receipt(client, "late");
        assert!(world.broker.acked.is_empty());
        world.send(client, &format!("ACK\nid:{}\n\n\0", again.need("ack")));
        assert_eq!(world.broker.acked, ["a"]);
    });
}
