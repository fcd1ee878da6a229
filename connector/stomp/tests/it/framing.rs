//! Frames, ends of lines, bodies.

use berth_stomp::{Command, Foreign, Malformed, Version, Violation};

use crate::peer::{Seen, malformed, only, say, talk};

const CONNECT: &[u8] = b"CONNECT\naccept-version:1.2\n\n\0";

fn after_connect(bytes: &[u8]) -> Vec<Seen> {
    say("1.2", bytes)
}

#[test]
fn f_01_the_smallest_frames() {
    assert!(matches!(only(talk(b"CONNECT\n\n\0")), Seen::Connect { version: Version::V1_0, .. }));
    assert_eq!(only(after_connect(b"DISCONNECT\n\n\0")).command(), Command::Disconnect);
}

#[test]
fn f_02_any_number_of_line_ends_between_frames() {
    for count in [0, 1, 2, 1000] {
        let gap = "\n".repeat(count);
        let seen = after_connect(format!("{gap}ACK\nid:1\n\n\0{gap}ACK\nid:2\n\n\0{gap}").as_bytes());
        assert_eq!(seen.len(), 2, "{count}");
        assert_eq!(seen[1].header("id"), Some("2"));
    }
}

#[test]
fn f_03_line_ends_before_connect_are_skipped() {
    assert!(matches!(only(talk(b"\n\r\n\nCONNECT\n\n\0")), Seen::Connect { .. }));
}

#[test]
fn f_04_cr_lf_ends_a_line_everywhere_in_1_2() {
    let seen = after_connect(
        b"\r\nSEND\r\ndestination:/queue/a\nx:y\r\n\r\nbody\r\n\0\r\n\n\r\nACK\r\nid:1\n\r\n\0",
    );
    assert_eq!(seen[0].header("destination"), Some("/queue/a"));
    assert_eq!(seen[0].header("x"), Some("y"));
    assert_eq!(seen[0].body(), b"body\r\n");
    assert_eq!(seen[1].header("id"), Some("1"));
}

#[test]
fn f_05_connect_may_use_cr_lf() {
    let seen = only(talk(b"CONNECT\r\naccept-version:1.2\r\nlogin:guest\r\n\r\n\0"));
    let connect = Seen::Connect { version: Version::V1_2, login: Some("guest".into()), passcode: None };
    assert_eq!(seen, connect);
}

#[test]
fn a_cr_before_lf_is_stripped_in_every_version() {
    for version in ["1.0", "1.1", "1.2"] {
        let seen = only(say(version, b"SEND\r\ndestination:/queue/a\r\nfoo:bar\r\n\r\n\0"));
        assert_eq!(seen.header("foo"), Some("bar"), "{version}");
    }
}

#[test]
fn f_07_a_bare_cr_is_malformed_in_1_2_and_data_before() {
    let frame = b"SEND\ndestination:/queue/a\nfoo:b\rar\n\n\0";
    assert_eq!(only(say("1.2", frame)), malformed(Malformed::BareCarriageReturn));
    assert_eq!(only(say("1.1", frame)).header("foo"), Some("b\rar"));
    assert_eq!(only(say("1.0", frame)).header("foo"), Some("b\rar"));
}

#[test]
fn f_08_commands_and_header_names_are_case_sensitive() {
    for command in ["send", "Subscribe", "SENDX", "ACKNOWLEDGE", "ACK "] {
        let seen = only(after_connect(format!("{command}\nreceipt:r\n\n\0").as_bytes()));
        let unknown = Violation::UnknownCommand(command.into());
        assert_eq!(seen, Seen::Violation(unknown, Some("r".into())), "f_09: no match by prefix either");
    }
    let seen = only(after_connect(b"SEND\nDestination:/queue/a\n\n\0"));
    assert_eq!(seen.header("destination"), None);
}

#[test]
fn v_12_server_commands_from_a_client_are_unknown() {
    for command in ["CONNECTED", "MESSAGE", "RECEIPT", "ERROR"] {
        let seen = only(after_connect(format!("{command}\n\n\0").as_bytes()));
        assert_eq!(seen, Seen::Violation(Violation::UnknownCommand(command.into()), None));
    }
}

#[test]
fn f_10_a_header_needs_a_name_and_a_colon() {
    assert_eq!(only(after_connect(b"SEND\nnonsense\n\n\0")), malformed(Malformed::NoColon));
    assert_eq!(only(after_connect(b"SEND\n:value\n\n\0")), malformed(Malformed::EmptyName));
    let seen = only(after_connect(b"SEND\nreceipt:r1\nnonsense\n\n\0"));
    assert_eq!(seen, Seen::Violation(Violation::Malformed(Malformed::NoColon), Some("r1".into())));
}

#[test]
fn f_11_an_empty_value_is_kept() {
    for version in ["1.0", "1.1", "1.2"] {
        assert_eq!(only(say(version, b"SEND\nfoo:\n\n\0")).header("foo"), Some(""));
    }
}

#[test]
fn f_12_only_the_first_colon_separates() {
    let connect = only(talk(b"CONNECT\naccept-version:1.2\npasscode::=123\n\n\0"));
    assert!(matches!(connect, Seen::Connect { passcode: Some(p), .. } if p == ":=123"));
    for version in ["1.0", "1.1", "1.2"] {
        assert_eq!(only(say(version, b"SEND\nurl:http://x:1\n\n\0")).header("url"), Some("http://x:1"));
    }
}

#[test]
fn f_13_content_length_counts_body_octets_only() {
    let seen = after_connect(b"SEND\ncontent-length:5\n\nab\0cd\0ACK\nid:1\n\n\0");
    assert_eq!((seen[0].body(), seen[1].header("id")), (&b"ab\0cd"[..], Some("1")), "c_60");
    for body in ["hello", "h\u{e9}llo"] {
        // One too many swallows the NUL; one too few leaves an octet before it (c_03, c_68, c_69).
        for length in [body.len() + 1, body.len() - 1] {
            let frame = format!("SEND\ncontent-length:{length}\n\n{body}\0ACK\nid:1\n\n\0");
            assert_eq!(only(after_connect(frame.as_bytes())), malformed(Malformed::BodyNotTerminated));
        }
    }
}

#[test]
fn f_14_without_content_length_the_body_ends_at_the_first_nul() {
    let seen = after_connect(b"SEND\n\nhello\0ACK\nid:1\n\n\0");
    assert_eq!((seen[0].body(), seen.len()), (&b"hello"[..], 2));
}

#[test]
fn f_15_an_empty_body() {
    assert_eq!(only(after_connect(b"SEND\ncontent-length:0\n\n\0")).body(), b"");
}

#[test]
fn f_16_content_length_is_a_decimal_number() {
    for bad in ["-1", "+1", "0x1", "", " ", "1e3", "1 ", "\u{661}"] {
        let seen = only(after_connect(format!("SEND\ncontent-length:{bad}\n\nx\0").as_bytes()));
        assert_eq!(seen, Seen::Violation(Violation::InvalidContentLength, None), "{bad:?}");
    }
    let seen = only(after_connect(b"SEND\ncontent-length:99999999999999999999999\n\nx\0"));
    assert!(matches!(seen, Seen::Violation(Violation::BodyTooLarge { .. }, None)));
    assert_eq!(only(say("1.0", b"SEND\ncontent-length: 1 \n\nx\0")).body(), b"x", "1.0 clients pad");
}

#[test]
fn f_17_content_length_means_nothing_where_no_body_can_be() {
    let seen = after_connect(b"ACK\nid:1\ncontent-length:500\n\n\0ACK\nid:2\n\n\0");
    assert_eq!(seen.len(), 2, "c_15: the next frame is not swallowed");
}

#[test]
fn f_18_only_send_has_a_body() {
    for version in ["1.0", "1.1", "1.2"] {
        let seen = only(say(version, b"BEGIN\ntransaction:x\n\n\n\r\n\0"));
        assert_eq!(seen.command(), Command::Begin, "ends of lines are forgiven");
    }
    let frame = b"BEGIN\ntransaction:x\n\nbody\0";
    for version in ["1.1", "1.2"] {
        assert_eq!(only(say(version, frame)), malformed(Malformed::UnexpectedBody));
    }
    assert_eq!(only(say("1.0", frame)).command(), Command::Begin);
}

#[test]
fn f_19_every_cut_gives_the_same_frames() {
    let seen = say(
        "1.2",
        "SEND\r\ndestination:/queue/\u{1f600}\r\nk\\cey:v\\\\al\\r\\n\r\ncontent-length:6\r\n\r\n\
         \u{1f600}\n\0\0\r\n\n\
         SEND\ndestination:/queue/b\n\nlast octet is a line feed\n\0ACK\nid:1\n\n\0"
            .as_bytes(),
    );
    assert_eq!(seen[0].header("k:ey"), Some("v\\al\r\n"));
    assert_eq!(seen[0].body(), "\u{1f600}\n\0".as_bytes());
    assert_eq!(seen[1].body(), b"last octet is a line feed\n", "c_51");
    assert_eq!(seen.len(), 3);
}

#[test]
fn f_20_stray_nuls_between_frames_are_noise() {
    let seen = after_connect(b"ACK\nid:1\n\n\0\0\0\n\0ACK\nid:2\n\n\0");
    assert_eq!(seen.len(), 2);
    assert_eq!(only(after_connect(&[0; 1025])), malformed(Malformed::Noise));
    assert!(after_connect(&[0; 1024]).is_empty());
}

#[test]
fn f_22_other_protocols_are_told_nothing() {
    let hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\0\0\n\n";
    assert_eq!(only(talk(hello)), Seen::Foreign(Foreign::Tls));
    for request in [
        "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        "POST /some/path/that/is/longer/than/any/command HTTP/1.1\r\n\r\n",
        "CONNECT example.com:443 HTTP/1.1\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ] {
        assert_eq!(only(talk(request.as_bytes())), Seen::Foreign(Foreign::Http), "{request}");
    }
    let late = after_connect(b"GET / HTTP/1.1\r\n\r\n");
    assert!(matches!(only(late), Seen::Violation(Violation::UnknownCommand(_), None)), "not after login");
}

#[test]
fn f_23_frames_behind_connect_are_read_under_its_version() {
    let bytes = |version: &str| format!("CONNECT\naccept-version:{version}\n\n\0SEND\nk:a\\nb\n\n\0");
    for (version, value) in [("1.0", "a\\nb"), ("1.1", "a\nb"), ("1.2", "a\nb")] {
        let seen = talk(bytes(version).as_bytes());
        assert_eq!(seen[1].header("k"), Some(value), "{version}");
    }
}

#[test]
fn a_nul_in_the_head_is_refused_at_once() {
    assert_eq!(only(after_connect(b"SEND\ndestination:/queue/a\0")), malformed(Malformed::NulInHead));
    assert_eq!(only(after_connect(b"DISCONNECT\0")), malformed(Malformed::NulInHead));
    assert_eq!(only(talk(b"HELLO\0")), malformed(Malformed::NulInHead));
}

#[test]
fn nothing_is_read_after_disconnect_and_after_a_mistake() {
    let seen = after_connect(b"DISCONNECT\n\n\0SEND\n\nx\0");
    assert_eq!(only(seen).command(), Command::Disconnect, "di_03");
    let seen = after_connect(b"NOPE\n\n\0SEND\n\nx\0");
    assert_eq!(seen.len(), 1);
}

#[test]
fn h_15_bodies_are_opaque() {
    let body: Vec<u8> = (0..=255).chain("\u{1f600}:\n\\".bytes()).collect();
    let head = format!("SEND\ncontent-length:{}\n\n", body.len());
    let seen = talk(&[CONNECT, head.as_bytes(), &body, b"\0"].concat());
    assert_eq!(seen[1].body(), &body[..], "c_35, c_74");
}
