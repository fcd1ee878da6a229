//! Header encoding, per version.

use berth_stomp::{Malformed, Version, Violation, encode_line};
use bytes::BytesMut;
use proptest::prelude::*;

use crate::peer::{Seen, malformed, only, say, talk};

#[test]
fn h_01_h_02_escapes_of_each_version() {
    let frame = b"SEND\na:\\n\\c\\\\\n\n\0";
    for version in ["1.1", "1.2"] {
        assert_eq!(only(say(version, frame)).header("a"), Some("\n:\\"));
    }
    let with_cr = b"SEND\na:x\\ry\n\n\0";
    assert_eq!(only(say("1.1", with_cr)), malformed(Malformed::UndefinedEscape));
    assert_eq!(only(say("1.2", with_cr)).header("a"), Some("x\ry"));
    for escape in ["\\t", "\\N", "\\0", "\\ ", "\\C"] {
        for version in ["1.1", "1.2"] {
            let seen = only(say(version, format!("SEND\nk:is{escape}tab\n\n\0").as_bytes()));
            assert_eq!(seen, malformed(Malformed::UndefinedEscape), "c_49c {escape:?}");
        }
    }
}

#[test]
fn h_03_a_backslash_at_the_end_escapes_nothing() {
    for frame in ["SEND\nk:v\\\n\n\0", "SEND\nk\\:v\n\n\0"] {
        assert_eq!(only(say("1.2", frame.as_bytes())), malformed(Malformed::UndefinedEscape), "{frame:?}");
    }
}

#[test]
fn h_04_decoding_is_one_pass() {
    assert_eq!(only(say("1.2", b"SEND\nk:a\\\\nb\n\n\0")).header("k"), Some("a\\nb"));
}

#[test]
fn h_05_names_are_decoded_too() {
    let seen = only(say("1.2", b"SEND\na\\cb:1\na\\cb:2\n\n\0"));
    assert_eq!(seen.header("a:b"), Some("1"));
    // An escape never spells a name of the protocol's own.
    let seen = only(say("1.2", b"SEND\ndestination\\c:/queue/a\n\n\0"));
    assert_eq!(seen.header("destination"), None);
}

#[test]
fn h_06_connect_is_never_decoded() {
    for (raw, login) in [("a\\cb", "a\\cb"), ("a\\tb", "a\\tb"), ("\"a':\\1`", "\"a':\\1`"), ("b\\", "b\\")] {
        let connect = format!("CONNECT\naccept-version:1.2\npasscode:{raw}\n\n\0");
        let seen = only(talk(connect.as_bytes()));
        assert!(matches!(seen, Seen::Connect { passcode: Some(p), .. } if p == login), "c_73 {raw}");
    }
}

#[test]
fn h_07_1_0_knows_no_escapes() {
    assert_eq!(only(say("1.0", b"SEND\nfoo:a\\nb\\t\\\n\n\0")).header("foo"), Some("a\\nb\\t\\"));
}

#[test]
fn h_11_nothing_is_trimmed_from_1_1_on() {
    for version in ["1.1", "1.2"] {
        assert_eq!(only(say(version, b"SEND\nfoo: bar \n\n\0")).header("foo"), Some(" bar "));
    }
}

#[test]
fn h_12_1_0_trims_what_old_clients_pad() {
    let seen = only(say("1.0", b"SEND\nfoo: bar \n\n\0"));
    assert_eq!(seen.header("foo"), Some("bar "), "of a user header only what leads");
    let seen = only(talk(b"CONNECT\nlogin: guest \n\n\0"));
    assert!(matches!(seen, Seen::Connect { login: Some(l), .. } if l == "guest"));
}

#[test]
fn h_13_the_first_of_repeated_headers_counts() {
    let seen = only(say("1.2", b"SEND\nfoo:1\nfoo:2\ncontent-length:3\ncontent-length:1\n\nabc\0"));
    assert_eq!((seen.header("foo"), seen.body()), (Some("1"), &b"abc"[..]));
    let seen = only(say("1.2", b"NOPE\nreceipt:a\nreceipt:b\n\n\0"));
    assert!(matches!(seen, Seen::Violation(Violation::UnknownCommand(_), Some(r)) if r == "a"));
}

#[test]
fn h_14_headers_are_utf_8() {
    for bad in [&b"\xff"[..], b"\xc0\xaf", b"\xed\xa0\x80", b"\xe2\x82"] {
        for version in ["1.0", "1.1", "1.2"] {
            let frame = [b"SEND\nk:", bad, b"\n\n\0"].concat();
            assert_eq!(only(say(version, &frame)), malformed(Malformed::NotUtf8), "{bad:?}");
        }
    }
    assert_eq!(only(say("1.0", "SEND\nk:\u{e9}\n\n\0".as_bytes())).header("k"), Some("\u{e9}"));
}

#[test]
fn a_receipt_is_decoded_even_of_a_frame_that_is_refused() {
    let seen = only(say("1.2", b"SEND\nreceipt:a\\cb\ncontent-length:x\n\n\0"));
    assert_eq!(seen, Seen::Violation(Violation::InvalidContentLength, Some("a:b".into())));
}

/// The lines of a stored head, read back as a 1.2 client reads them.
fn lines(head: &[u8]) -> Vec<(String, String)> {
    let frame = [b"SEND\n", head, b"\n\0"].concat();
    let Seen::Frame { headers, .. } = only(say("1.2", &frame)) else { panic!("a frame") };
    headers
}

#[test]
fn a_stored_head_means_the_same_whatever_version_it_came_by() {
    // Raw colons, raw CR (1.1), backslashes that are data (1.0): all end up as escapes of 1.2.
    for (version, frame, value) in [
        ("1.0", &b"SEND\nk:a\\nb:c\n\n\0"[..], "a\\nb:c"),
        ("1.1", b"SEND\nk:a\rb:c\\\\\n\n\0", "a\rb:c\\"),
        ("1.2", b"SEND\nk:a\\rb:c\\\\\n\n\0", "a\rb:c\\"),
    ] {
        let mut head = BytesMut::new();
        stored(version, frame, &mut head);
        assert_eq!(lines(&head), [("k".to_owned(), value.to_owned())], "{version}");
    }
}

fn stored(version: &str, frame: &[u8], head: &mut BytesMut) {
    let mut decoder = berth_stomp::Decoder::new(berth_stomp::Role::Server, berth_stomp::Limits::default());
    let version = Version::negotiate(Some(version)).unwrap();
    let frame = decoder.decode(&mut BytesMut::from(frame), berth_stomp::Mode::Agreed(version)).unwrap();
    frame.unwrap().headers().for_each(|header| header.write_stored(head));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn headers_come_back(
        headers in proptest::collection::vec(("[a:\\\\\n\r]{1,5}", "[a:\\\\\n\r ]{0,6}"), 0..5),
    ) {
        let mut head = BytesMut::new();
        for (name, value) in &headers {
            encode_line(&mut head, name, value);
        }
        prop_assert_eq!(lines(&head), headers);
    }
}
