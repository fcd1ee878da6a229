//! What the server writes: escaping per receiver, errors, closing, slow sockets.

use std::time::Duration;

use berth_stomp::{ErrorFrame, MessageFrame, Settings, Timer, Written};
use berth_types::{DeliveryId, Timestamp};
use bytes::Bytes;

use crate::peer::Peer;

/// A plain MESSAGE with this body.
pub(crate) fn message(body: &'static [u8]) -> MessageFrame<'static> {
    static SHORT: Bytes = Bytes::from_static(b"x");
    static EMPTY: Bytes = Bytes::new();
    static WITH_NUL: Bytes = Bytes::from_static(b"a\0b");
    MessageFrame {
        destination: "/queue/a",
        message_id: "m1",
        subscription: Some("1"),
        ack: None,
        redelivered: false,
        delivery_count: None,
        timestamp: Timestamp::from_millis(5),
        head: b"",
        body: match body {
            b"x" => &SHORT,
            b"" => &EMPTY,
            _ => &WITH_NUL,
        },
    }
}

fn peer(version: &str) -> Peer {
    Peer::connected(Settings::default(), &format!("accept-version:{version}\n"))
}

fn written(version: &str, message: &MessageFrame<'_>) -> String {
    let mut peer = peer(version);
    peer.connection.send_message(peer.now, DeliveryId::new(1), message);
    peer.take_text()
}

#[test]
fn m_01_the_servers_headers_come_first() {
    let frame = MessageFrame {
        ack: Some("t"),
        redelivered: true,
        delivery_count: Some(3),
        head: b"redelivered:false\nk:v\n",
        ..message(b"x")
    };
    assert_eq!(
        written("1.2", &frame),
        "MESSAGE\ndestination:/queue/a\nmessage-id:m1\nsubscription:1\nack:t\nredelivered:true\n\
         delivery-count:3\ntimestamp:5\ncontent-length:1\nredelivered:false\nk:v\n\nx\0"
    );
}

#[test]
fn b_01_b_02_content_length_is_always_there() {
    assert!(written("1.0", &message(b"")).contains("\ncontent-length:0\n\n\0"));
    assert!(written("1.1", &message(b"a\0b")).ends_with("\ncontent-length:3\n\na\0b\0"));
}

#[test]
fn h_08_a_value_is_escaped_for_its_receiver() {
    // As stored: escaped as 1.2 says.
    let frame =
        MessageFrame { subscription: Some("a:b\\"), head: b"k:\\c\\n\\r\\\\\nplain:v\n", ..message(b"x") };
    for (version, subscription, line) in [
        ("1.2", "a\\cb\\\\", "k:\\c\\n\\r\\\\"),
        ("1.1", "a\\cb\\\\", "k:\\c\\n\r\\\\"),
        ("1.0", "a:b\\", "k:: \r\\"),
    ] {
        let text = written(version, &frame);
        assert!(text.contains(&format!("\nsubscription:{subscription}\n")), "c_58 {version} {text:?}");
        assert!(text.contains(&format!("\n{line}\nplain:v\n\nx\0")), "{version} {text:?}");
    }
}

#[test]
fn r_01_r_04_a_receipt_is_encoded_again() {
    for (version, id) in [("1.2", "a\\cb"), ("1.1", "a\\cb"), ("1.0", "a:b")] {
        let mut peer = peer(version);
        peer.connection.send_receipt(peer.now, "a:b");
        assert_eq!(peer.take_text(), format!("RECEIPT\nreceipt-id:{id}\n\n\0"));
    }
}

#[test]
fn e_01_an_error_has_a_short_text_and_a_body() {
    let mut peer = peer("1.2");
    let mut error = ErrorFrame::new("queue full", "The queue has a bound.");
    error.receipt = Some("r:1".into());
    peer.connection.fail(peer.now, &error);
    assert_eq!(
        peer.take_text(),
        "ERROR\nmessage:queue full\nreceipt-id:r\\c1\ncontent-type:text/plain\ncontent-length:22\n\n\
         The queue has a bound.\0"
    );
    assert!(peer.connection.is_closed());
}

#[test]
fn e_05_nothing_follows_an_error() {
    let mut peer = peer("1.2");
    peer.connection.send_receipt(peer.now, "before");
    peer.connection.fail(peer.now, &ErrorFrame::new("x", ""));
    peer.connection.send_receipt(peer.now, "after");
    peer.connection.send_message(peer.now, DeliveryId::new(1), &message(b"x"));
    peer.connection.fail(peer.now, &ErrorFrame::new("y", ""));
    let text = peer.take_text();
    assert!(text.starts_with("RECEIPT\nreceipt-id:before\n\n\0ERROR\nmessage:x\n"), "{text}");
    assert_eq!(text.matches('\0').count(), 2, "{text}");
}

#[test]
fn a_peer_that_does_not_take_its_last_frame_is_given_up() {
    let mut peer = peer("1.2");
    peer.connection.fail(peer.now, &ErrorFrame::new("x", ""));
    assert_eq!(peer.pass(Duration::from_secs(4)), []);
    assert!(!peer.connection.is_closed());
    peer.pass(Duration::from_secs(1));
    assert!(peer.connection.is_closed() && peer.offered().is_empty());
}

#[test]
fn a_socket_that_takes_nothing_is_given_up_only_when_a_timeout_is_set() {
    for (timeout, fires) in [(None, 0), (Some(Duration::from_secs(7)), 1)] {
        let settings = Settings { write_timeout: timeout, ..Settings::default() };
        let mut peer = Peer::connected(settings, "accept-version:1.2\n");
        assert_eq!(peer.pass(Duration::from_secs(100)), [], "nothing waits");
        peer.connection.send_message(peer.now, DeliveryId::new(1), &message(b"x"));
        peer.pass(Duration::from_secs(6));
        peer.connection.handle_transmitted(peer.now, 1);
        assert_eq!(peer.pass(Duration::from_millis(6_999)), [], "one octet starts the time anew");
        let fired = peer.pass(Duration::from_millis(1));
        assert_eq!(fired.iter().filter(|(_, timer)| *timer == Timer::WriteStall).count(), fires);
    }
}

#[test]
fn m_04_frames_are_written_whole_and_accounted_for() {
    let mut peer = peer("1.2");
    for n in 1..=3 {
        peer.connection.send_message(peer.now, DeliveryId::new(n), &message(b"x"));
    }
    let whole = peer.offered();
    let one = whole.len() / 3;
    peer.connection.handle_transmitted(peer.now, one + 1);
    let told: Vec<_> = std::iter::from_fn(|| peer.connection.poll_written()).collect();
    assert_eq!(told, [Written::Wholly(DeliveryId::new(1)), Written::Partly(DeliveryId::new(2))]);
    assert!(!peer.connection.withdraw(DeliveryId::new(2)));
    assert!(peer.connection.withdraw(DeliveryId::new(3)));
    assert_eq!(peer.take_output(), whole[one + 1..2 * one]);
}
