//! The handshake.

use std::time::Duration;

use berth_stomp::{Settings, Timer, Version, Violation};

use crate::peer::{Peer, Seen, only, talk};

fn answer(connect: &str) -> String {
    let mut peer = Peer::new(Settings::default());
    peer.send(connect.as_bytes());
    peer.take_text()
}

#[test]
fn v_01_stomp_is_connect_by_another_name() {
    let connected = answer("STOMP\naccept-version:1.2\nhost:/\n\n\0");
    assert_eq!(connected, answer("CONNECT\naccept-version:1.2\nhost:/\n\n\0"));
    assert_eq!(connected, "CONNECTED\nversion:1.2\nserver:berth\nsession:s\nheart-beat:10000,10000\n\n\0");
}

#[test]
fn v_02_without_accept_version_it_is_1_0() {
    assert_eq!(answer("CONNECT\n\n\0"), "CONNECTED\nversion:1.0\nserver:berth\nsession:s\n\n\0");
}

#[test]
fn v_03_v_05_the_highest_common_version() {
    for (accept, version) in [("1.0,1.1,1.2", "1.2"), ("1.1", "1.1"), ("1.1,1.0", "1.1"), ("1.2, 9.9", "1.2")]
    {
        let connected = answer(&format!("CONNECT\naccept-version:{accept}\n\n\0"));
        assert!(connected.starts_with(&format!("CONNECTED\nversion:{version}\n")), "{connected}");
    }
}

#[test]
fn v_04_no_common_version() {
    for accept in ["2.0", "0.9", "", "1.10"] {
        let mut peer = Peer::new(Settings::default());
        peer.send(format!("CONNECT\naccept-version:{accept}\n\n\0SEND\n\nx\0").as_bytes());
        assert_eq!(only(peer.seen.clone()), Seen::Violation(Violation::UnsupportedVersion, None));
        let error = peer.take_text();
        assert!(error.starts_with("ERROR\nmessage:unsupported version\nversion:1.0,1.1,1.2\n"), "{error}");
        assert!(error.contains("\ncontent-type:text/plain\n") && error.ends_with('\0'), "{error}");
        assert!(peer.connection.is_closed());
    }
}

#[test]
fn v_07_a_client_without_host_is_let_in() {
    assert!(matches!(only(talk(b"CONNECT\naccept-version:1.2\n\n\0")), Seen::Connect { .. }));
}

#[test]
fn v_10_anything_but_connect_first_is_refused() {
    for frame in ["SEND\nreceipt:r\n\nx\0", "SUBSCRIBE\nreceipt:r\n\n\0", "ACK\nreceipt:r\n\n\0"] {
        let seen = only(talk(frame.as_bytes()));
        assert_eq!(seen, Seen::Violation(Violation::NotConnected, Some("r".into())), "c_04");
    }
    let seen = only(talk(b"SEND\ncontent-length:-1\n\nx\0"));
    assert_eq!(seen, Seen::Violation(Violation::NotConnected, None), "c_03");
    let seen = only(talk(b"NOPE\n\n\0"));
    assert_eq!(seen, Seen::Violation(Violation::UnknownCommand("NOPE".into()), None));
}

#[test]
fn v_11_a_second_connect_is_refused() {
    for second in ["CONNECT\n\n\0", "STOMP\naccept-version:1.2\n\n\0"] {
        let seen = talk(format!("CONNECT\naccept-version:1.2\n\n\0{second}").as_bytes());
        assert_eq!(seen[1], Seen::Violation(Violation::AlreadyConnected, None));
    }
}

#[test]
fn v_13_connect_has_to_come_in_time() {
    for first in ["", "\n", "CONNECT\naccept-version:1.2\n"] {
        let mut peer = Peer::new(Settings::default());
        peer.send(first.as_bytes());
        assert_eq!(peer.pass(Duration::from_millis(9_999)), []);
        let fired = peer.pass(Duration::from_millis(1));
        assert_eq!(fired.iter().map(|(_, timer)| *timer).collect::<Vec<_>>(), [Timer::Handshake], "c_38");
    }
    let mut peer = Peer::connected(Settings::default(), "accept-version:1.2\n");
    assert_eq!(peer.pass(Duration::from_secs(100)), [], "not once it has come");
}

#[test]
fn v_14_a_receipt_on_connect_yields_none() {
    assert!(!answer("CONNECT\naccept-version:1.2\nreceipt:r\n\n\0").contains("RECEIPT"));
    let connected = answer("CONNECT\naccept-version:1.1\n\n\0");
    assert!(connected.contains("version:1.1\n"));
    assert_eq!(Version::default(), Version::V1_0);
}

#[test]
fn h_06_connected_is_never_escaped_and_no_name_breaks_out_of_it() {
    use berth_stomp::{Accept, Connection, Event};
    use berth_types::Instant;
    for (user, line) in [("a:b\\c", "user-name:a:b\\c\n"), ("a\nb:c", "")] {
        let mut connection = Connection::new(Settings::default(), Instant::ZERO);
        let mut input = bytes::BytesMut::from(&b"CONNECT\naccept-version:1.2\n\n\0"[..]);
        let Some(Event::Connect(_)) = connection.poll_event(Instant::ZERO, &mut input) else { panic!() };
        let accept = Accept { session: "s", user_name: Some(user), ..Accept::default() };
        connection.accept(Instant::ZERO, &accept);
        let mut slices = [std::io::IoSlice::new(&[])];
        assert_eq!(connection.poll_transmit(&mut slices), 1);
        let text = String::from_utf8(slices[0].to_vec()).unwrap();
        assert_eq!(text, format!("CONNECTED\nversion:1.2\nsession:s\nheart-beat:10000,10000\n{line}\n\0"));
    }
}
