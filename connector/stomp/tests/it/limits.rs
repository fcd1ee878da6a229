//! Bounds, at N-1, N and N+1, and what hostile input costs.

use std::time::Duration;

use berth_stomp::{Limits, Settings, Violation};

use crate::peer::{Peer, Seen, only, talk, talk_with};

const CONNECT: &str = "CONNECT\naccept-version:1.2\n\n\0";

fn settings(limits: Limits) -> Settings {
    Settings { limits, ..Settings::default() }
}

fn last(limits: Limits, frame: &str) -> Seen {
    let seen = talk_with(settings(limits), format!("{CONNECT}{frame}").as_bytes());
    assert_eq!(seen.len(), 2, "{seen:?}");
    seen.into_iter().next_back().unwrap()
}

#[test]
fn l_05_header_lines_at_the_bound() {
    let limits = Limits { header_line_bytes_max: 40, ..Limits::default() };
    for (len, fits) in [(39, true), (40, true), (41, false)] {
        for end in ["\n", "\r\n"] {
            let line = format!("k:{}", "v".repeat(len - 2));
            let seen = last(limits, &format!("SEND{end}{line}{end}{end}\0"));
            let refused = Seen::Violation(Violation::HeaderLineTooLong(40), None);
            assert_eq!(seen == refused, !fits, "{len} {end:?} {seen:?}");
        }
    }
}

#[test]
fn l_05_header_count_at_the_bound() {
    let limits = Limits { headers_max: 10, ..Limits::default() };
    for (count, fits) in [(9, true), (10, true), (11, false)] {
        let different: String = (0..count).map(|n| format!("k{n}:v\n")).collect();
        for lines in [different, "k:v\n".repeat(count)] {
            let seen = last(limits, &format!("SEND\n{lines}\n\0"));
            let refused = Seen::Violation(Violation::TooManyHeaders(10), None);
            assert_eq!(seen == refused, !fits, "repeated ones count too");
        }
    }
}

#[test]
fn l_01_a_declared_body_is_judged_before_it_arrives() {
    let limits = Limits { body_bytes_max: 10, ..Limits::default() };
    for (len, fits) in [(9, true), (10, true), (11, false), (100_000_000_000, false)] {
        let body = if fits { "x".repeat(len) + "\0" } else { String::new() };
        let seen = last(limits, &format!("SEND\nreceipt:r\ncontent-length:{len}\n\n{body}"));
        let too_large = Violation::BodyTooLarge { declared: Some(len as u64), limit: 10 };
        assert_eq!(seen == Seen::Violation(too_large, Some("r".into())), !fits, "{len}");
    }
}

#[test]
fn l_02_an_undeclared_body_is_cut_at_the_bound() {
    let limits = Limits { body_bytes_max: 10, ..Limits::default() };
    for (len, fits) in [(9, true), (10, true), (11, false)] {
        let seen = last(limits, &format!("SEND\n\n{}\0", "x".repeat(len)));
        let too_large = Violation::BodyTooLarge { declared: None, limit: 10 };
        assert_eq!(seen == Seen::Violation(too_large, None), !fits, "{len}");
    }
}

#[test]
fn c_65b_the_error_names_limit_size_and_setting() {
    let mut peer =
        Peer::connected(settings(Limits { body_bytes_max: 10, ..Limits::default() }), "accept-version:1.2\n");
    peer.send(b"SEND\ncontent-length:136642\n\n");
    let error = peer.take_text();
    assert!(error.starts_with("ERROR\nmessage:message too large\n"), "{error}");
    for word in ["136642", "10 octets", "maxBodySize"] {
        assert!(error.contains(word), "{word}: {error}");
    }
}

#[test]
fn command_line_at_the_bound() {
    for (len, fits) in [(31, true), (32, true), (33, false)] {
        for end in ["\n", "\r\n"] {
            let frame = format!("{}{end}{end}\0", "X".repeat(len));
            let seen = last(Limits::default(), &frame);
            let is_read = matches!(seen, Seen::Violation(Violation::UnknownCommand(_), None));
            assert_eq!(is_read, fits, "{len} {end:?} {seen:?}");
        }
    }
}

#[test]
fn a_frame_before_login_has_at_most_16_kib() {
    // CONNECT LF, lines of "k:" and LF, LF, NUL.
    let frame = |octets: usize| {
        let mut text = String::from("CONNECT\n");
        while text.len() + 2 + 1000 < octets {
            text.push_str(&format!("k:{}\n", "v".repeat(900)));
        }
        let rest = octets - text.len() - 3 - 2;
        text + "k:" + &"v".repeat(rest) + "\n\n\0"
    };
    for (octets, fits) in [(16_383, true), (16_384, true), (16_385, false)] {
        let bytes = frame(octets);
        assert_eq!(bytes.len(), octets);
        let seen = only(talk(bytes.as_bytes()));
        assert_eq!(matches!(seen, Seen::Connect { .. }), fits, "{octets} {seen:?}");
    }
    let stray = format!("CONNECT\n\n{}\0", "x".repeat(20_000));
    let refused = Seen::Violation(Violation::FrameTooLargeBeforeLogin(16_384), None);
    assert_eq!(only(talk(stray.as_bytes())), refused, "c_07: of body");
    assert_eq!(only(talk("\n".repeat(20_000).as_bytes())), refused, "of nothing at all");
}

#[test]
fn c_66_a_header_of_10_mb_is_cut_after_one_line() {
    let mut peer = Peer::connected(Settings::default(), "accept-version:1.2\n");
    peer.send(b"SEND\nk:");
    let mut fed = 0;
    while peer.seen.is_empty() {
        peer.send(&[b'v'; 1460]);
        fed += 1460;
    }
    assert!(fed < 10_000, "{fed}");
    assert_eq!(only(peer.seen), Seen::Violation(Violation::HeaderLineTooLong(8192), None));
}

#[test]
fn c_06_200_000_headers_are_cut_at_the_bound() {
    for line in [&b"k:v\n"[..], b"a:1\nb:2\n"] {
        let mut peer = Peer::connected(Settings::default(), "accept-version:1.2\n");
        peer.send(b"SEND\n");
        let mut fed = 0;
        while peer.seen.is_empty() {
            peer.send(line);
            fed += 1;
        }
        assert!(fed <= 101, "c_39: checked while reading");
        assert_eq!(only(peer.seen), Seen::Violation(Violation::TooManyHeaders(100), None));
    }
}

#[test]
fn a_large_body_is_searched_once_however_it_arrives() {
    // 64 MB without content-length in segments of 1460 octets. Searching from the start each time would
    // look at
    // 1.4 TB and never end; once takes well under a second.
    let mut peer = Peer::connected(Settings::default(), "accept-version:1.2\n");
    peer.send(b"SEND\n\n");
    let segment = [b'x'; 1460];
    let segments = 64_000_000 / segment.len();
    for _ in 0..segments {
        peer.send(&segment);
    }
    peer.send(b"\0");
    assert_eq!(only(peer.seen).body().len(), segments * segment.len());
}

#[test]
fn v_13_dripping_does_not_extend_the_connect_timeout() {
    let mut peer = Peer::new(Settings::default());
    let mut fired = Vec::new();
    for octet in b"\n\nCONNECT\nlogin:aaaaaaa" {
        peer.send(&[*octet]);
        fired.extend(peer.pass(Duration::from_secs(1)));
    }
    assert_eq!(fired.len(), 1);
    assert_eq!(fired[0].0.saturating_since(berth_types::Instant::from_nanos(1)), Duration::from_secs(10));
}
