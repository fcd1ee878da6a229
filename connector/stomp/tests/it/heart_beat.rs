//! Heart-beats in both directions, in virtual time.

use std::time::Duration;

use berth_stomp::{Settings, Timer, Violation};
use berth_types::{DeliveryId, Instant};

use crate::peer::{Peer, Seen, only};
use crate::server_frames::message;

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn peer(beat: &str, server_ms: u64) -> Peer {
    let settings = Settings { heart_beat_ms: server_ms, ..Settings::default() };
    Peer::connected(settings, &format!("accept-version:1.2\nheart-beat:{beat}\n"))
}

/// Runs for `time`, the socket taking everything at once; when octets left, and how the connection was ended.
fn watch(peer: &mut Peer, time: Duration) -> (Vec<Duration>, Option<Timer>) {
    let (begun, mut beats) = (peer.now, Vec::new());
    let end = begun + time;
    while let Some(at) = peer.connection.poll_timeout().filter(|at| *at <= end) {
        peer.now = at;
        if let Some(timer) = peer.connection.handle_timeout(at) {
            return (beats, Some(timer));
        }
        if !peer.take_output().is_empty() {
            beats.push(at.saturating_since(begun));
        }
    }
    peer.now = end;
    (beats, None)
}

#[test]
fn hb_01_a_malformed_header_is_refused() {
    for bad in ["a,b", "-1,0", "1", "1,2,3", ""] {
        let mut peer = Peer::new(Settings::default());
        peer.send(format!("CONNECT\naccept-version:1.2\nheart-beat:{bad}\n\n\0").as_bytes());
        assert_eq!(only(peer.seen), Seen::Violation(Violation::InvalidHeartBeat, None), "{bad:?}");
    }
}

#[test]
fn hb_02_the_server_answers_from_its_own_point_of_view() {
    let mut peer = Peer::new(Settings { heart_beat_ms: 7_000, ..Settings::default() });
    peer.send(b"CONNECT\naccept-version:1.1\nheart-beat:1000,2000\n\n\0");
    assert!(peer.take_text().contains("\nheart-beat:7000,7000\n"), "c_58b");
}

#[test]
fn hb_03_no_beats_unless_both_want_them() {
    for (client, server) in [("0,0", 10_000), ("5000,5000", 0)] {
        let mut peer = peer(client, server);
        assert_eq!(watch(&mut peer, ms(1_000_000)), (vec![], None), "{client} {server}");
    }
    let mut peer = Peer::connected(Settings::default(), "accept-version:1.2\n");
    assert_eq!(watch(&mut peer, ms(1_000_000)), (vec![], None), "an absent header is 0,0");
}

#[test]
fn hb_04_no_gap_is_longer_than_agreed() {
    let mut peer = peer("0,5000", 5_000);
    let (beats, end) = watch(&mut peer, ms(60_000));
    assert_eq!(end, None, "who promises nothing is never silent");
    let mut last = Duration::ZERO;
    for beat in &beats {
        assert!(*beat - last <= ms(5_000) && *beat - last >= ms(2_500), "{beats:?}");
        last = *beat;
    }
    assert!(beats.len() >= 12, "c_53");
}

#[test]
fn hb_04_a_message_postpones_the_beat_by_one_period_and_no_more() {
    let mut peer = peer("0,5000", 5_000);
    assert_eq!(watch(&mut peer, ms(3_900)).0, []);
    peer.connection.send_message(peer.now, DeliveryId::new(1), &message(b"x"));
    assert!(!peer.take_output().is_empty());
    let (beats, _) = watch(&mut peer, ms(6_000));
    assert!(beats[0] > ms(3_500) && beats[0] <= ms(5_000), "c_37 {beats:?}");
}

#[test]
fn hb_05_a_beat_is_one_line_feed() {
    let mut peer = peer("0,5000", 5_000);
    peer.pass(ms(5_000));
    assert_eq!(peer.take_output(), b"\n");
}

#[test]
fn hb_06_no_beat_inside_a_frame() {
    let mut peer = peer("0,5000", 5_000);
    peer.connection.send_message(peer.now, DeliveryId::new(1), &message(b"x"));
    let whole = peer.offered();
    peer.connection.handle_transmitted(peer.now, 10);
    peer.pass(ms(60_000));
    assert_eq!(peer.take_output(), whole[10..], "the rest of the frame and nothing else");
}

#[test]
fn hb_07_a_silent_peer_is_closed_at_twice_the_period() {
    let mut peer = peer("5000,0", 10_000);
    assert_eq!(peer.pass(ms(19_999)), []);
    assert_eq!(peer.pass(ms(1)).len(), 1);
    let error = peer.connection.silence().to_frame();
    assert_eq!(error.message, "heart-beat timeout");
    assert!(error.detail.contains("20000 ms") && error.detail.contains("10000 ms"), "c_65: the values");
}

#[test]
fn hb_08_any_octet_counts_also_inside_a_frame() {
    let mut peer = peer("5000,0", 5_000);
    peer.send(b"SEND\ndestination:/queue/a\ncontent-length:100\n\n");
    for _ in 0..99 {
        assert_eq!(peer.pass(ms(9_999)), []);
        peer.send(b"x");
    }
    assert_eq!(peer.pass(ms(9_999)), [], "c_52");
}

#[test]
fn hb_09_the_watch_rests_while_the_server_does_not_read() {
    let mut peer = peer("5000,0", 5_000);
    peer.connection.set_reading(peer.now, false);
    assert_eq!(peer.pass(ms(1_000_000)), []);
    peer.connection.set_reading(peer.now, true);
    assert_eq!(peer.pass(ms(9_999)), []);
    assert_eq!(peer.pass(ms(1)).len(), 1);
}

#[test]
fn hb_11_periods_have_a_floor() {
    let mut peer = peer("1,1", 1);
    let (beats, end) = watch(&mut peer, ms(900));
    assert_eq!((beats.len(), end), (2, None), "at most two a second and a half");
    let mut peer = Peer::new(Settings { heart_beat_ms: 1, ..Settings::default() });
    peer.send(b"CONNECT\naccept-version:1.2\nheart-beat:1,1\n\n\0");
    assert!(peer.take_text().contains("heart-beat:500,500"));
}

#[test]
fn hb_12_a_1_0_client_may_ask_for_beats() {
    let mut peer = Peer::new(Settings::default());
    peer.send(b"CONNECT\nheart-beat:0,10000\n\n\0");
    assert!(peer.take_text().contains("\nheart-beat:10000,10000\n"));
    peer.pass(ms(10_000));
    assert_eq!(peer.take_output(), b"\n");
}

#[test]
fn hb_13_no_timer_outlives_the_close() {
    let mut peer = peer("500,500", 500);
    peer.send(b"NOPE\n\n\0");
    assert!(!peer.take_output().is_empty());
    assert!(peer.connection.is_closed());
    peer.connection.abandon();
    assert_eq!(peer.connection.poll_timeout(), None, "c_45");
    assert_eq!(peer.pass(ms(100_000)), []);
    assert_eq!(peer.offered(), b"");
}

#[test]
fn hb_14_absurd_periods_do_not_overflow() {
    for beat in ["2147483648,2147483648", "9223372036854775807,18446744073709551615"] {
        let mut peer = peer(beat, 10_000);
        assert_eq!(watch(&mut peer, ms(100_000_000)), (vec![], None), "{beat}");
        assert!(peer.connection.poll_timeout() > Some(Instant::from_nanos(1)));
    }
}
