//! Frames to bytes: escaping per receiver, stored heads, and whole frames for clients.

use berth_types::Timestamp;
use bytes::{BufMut, BytesMut};

use crate::frame::unescape;
use crate::{Command, ErrorFrame, Header, Version};

/// Appends one frame as a client or a server of `version` writes it, `content-length` included when there
/// is a body. For tests, load generators and simulated clients; the server's own frames take a shorter way.
pub fn encode_frame(
    out: &mut BytesMut,
    version: Version,
    command: Command,
    headers: &[(&str, &str)],
    body: &[u8],
) {
    push_command(out, command);
    for (name, value) in headers {
        if command.is_handshake() {
            push_raw(out, name, value);
        } else {
            push_header(out, name, value, version);
        }
    }
    if !body.is_empty() {
        push_number(out, "content-length", body.len() as u64);
    }
    out.put_u8(b'\n');
    out.extend_from_slice(body);
    out.put_u8(0);
}

/// Appends one line to a stored head: escaped as STOMP 1.2 says, ended by a line feed.
pub fn encode_line(out: &mut BytesMut, name: &str, value: &str) {
    push_header(out, name, value, Version::V1_2);
}

impl Header<'_> {
    /// Appends the header to a stored head: escaped as STOMP 1.2 says, ended by a line feed.
    pub fn write_stored(&self, out: &mut BytesMut) {
        if self.is_plain() {
            push_raw(out, self.raw_name(), self.raw_value());
        } else {
            encode_line(out, &self.name(), &self.value());
        }
    }
}

pub(crate) fn push_command(out: &mut BytesMut, command: Command) {
    out.extend_from_slice(command.as_str().as_bytes());
    out.put_u8(b'\n');
}

/// A header whose text needs no escape, or must not have one.
pub(crate) fn push_raw(out: &mut BytesMut, name: &str, value: &str) {
    out.extend_from_slice(name.as_bytes());
    out.put_u8(b':');
    out.extend_from_slice(value.as_bytes());
    out.put_u8(b'\n');
}

pub(crate) fn push_header(out: &mut BytesMut, name: &str, value: &str, version: Version) {
    push_escaped(out, name, version);
    out.put_u8(b':');
    push_escaped(out, value, version);
    out.put_u8(b'\n');
}

pub(crate) fn push_number(out: &mut BytesMut, name: &str, value: u64) {
    out.extend_from_slice(name.as_bytes());
    out.put_u8(b':');
    push_decimal(out, value);
    out.put_u8(b'\n');
}

pub(crate) fn push_timestamp(out: &mut BytesMut, at: Timestamp) {
    push_number(out, "timestamp", at.as_millis());
}

fn push_decimal(out: &mut BytesMut, mut value: u64) {
    let mut digits = [0u8; 20];
    let mut used = 0;
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + u8::try_from(value % 10).unwrap_or(0);
        value /= 10;
        used += 1;
        if value == 0 {
            break;
        }
    }
    out.extend_from_slice(digits.get(digits.len() - used..).unwrap_or_default());
}

/// The server's CONNECTED, RECEIPT and ERROR need nothing but their headers and a short body.
pub(crate) fn push_error(out: &mut BytesMut, error: &ErrorFrame, version: Option<Version>) {
    // Before a version is agreed the frame holds nothing that any version would escape.
    let version = version.unwrap_or(Version::V1_0);
    push_command(out, Command::Error);
    push_header(out, "message", error.message, version);
    if let Some(receipt) = &error.receipt {
        push_header(out, "receipt-id", receipt, version);
    }
    for (name, value) in &error.headers {
        push_header(out, name, value, version);
    }
    push_raw(out, "content-type", "text/plain");
    push_number(out, "content-length", error.detail.len() as u64);
    out.put_u8(b'\n');
    out.extend_from_slice(error.detail.as_bytes());
    out.put_u8(0);
}

/// Appends text for a receiver of `version`. A line feed never reaches a receiver raw: that would be a
/// header of the sender's making. 1.0 has no escape for it, so it becomes a blank; 1.1 has none for CR,
/// where it is data.
fn push_escaped(out: &mut BytesMut, text: &str, version: Version) {
    let bytes = text.as_bytes();
    match version {
        Version::V1_0 if memchr::memchr(b'\n', bytes).is_none() => out.extend_from_slice(bytes),
        Version::V1_0 => out.extend(bytes.iter().map(|b| if *b == b'\n' { b' ' } else { *b })),
        Version::V1_1 | Version::V1_2 => {
            let is_clean = memchr::memchr3(b':', b'\n', b'\\', bytes).is_none()
                && (version == Version::V1_1 || memchr::memchr(b'\r', bytes).is_none());
            if is_clean {
                out.extend_from_slice(bytes);
                return;
            }
            for byte in bytes {
                match byte {
                    b':' => out.extend_from_slice(b"\\c"),
                    b'\n' => out.extend_from_slice(b"\\n"),
                    b'\\' => out.extend_from_slice(b"\\\\"),
                    b'\r' if version == Version::V1_2 => out.extend_from_slice(b"\\r"),
                    other => out.put_u8(*other),
                }
            }
        }
    }
}

/// Appends a stored head (lines escaped as 1.2, each ended by LF) for a receiver of `version`. What holds
/// no escape is copied as it stands, in every version. Returns how many lines could not be written and were
/// left out: a name with a colon or a line feed has no form in 1.0.
pub(crate) fn push_stored(out: &mut BytesMut, head: &[u8], version: Version) -> u32 {
    if version == Version::V1_2 || memchr::memchr(b'\\', head).is_none() {
        out.extend_from_slice(head);
        return 0;
    }
    let mut left_out = 0;
    for line in head.split_inclusive(|b| *b == b'\n') {
        let text = std::str::from_utf8(line.strip_suffix(b"\n").unwrap_or(line)).unwrap_or_default();
        if memchr::memchr(b'\\', line).is_none() {
            out.extend_from_slice(line);
            continue;
        }
        let Some((name, value)) = text.split_once(':') else { continue };
        let (name, value) = (unescape(name), unescape(value));
        if version == Version::V1_0 && name.contains([':', '\n']) {
            left_out += 1;
            continue;
        }
        push_header(out, &name, &value, version);
    }
    left_out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pushed(text: &str, version: Version) -> String {
        let mut out = BytesMut::new();
        push_escaped(&mut out, text, version);
        String::from_utf8(out.to_vec()).unwrap()
    }

    #[test]
    fn h_08_escapes_per_receiver() {
        assert_eq!(pushed("a:b\nc\\d\re", Version::V1_2), "a\\cb\\nc\\\\d\\re");
        assert_eq!(pushed("a:b\nc\\d\re", Version::V1_1), "a\\cb\\nc\\\\d\re");
        assert_eq!(pushed("a:b\nc\\d\re", Version::V1_0), "a:b c\\d\re");
    }

    #[test]
    fn h_09_a_name_with_a_colon_never_becomes_another_header_in_1_0() {
        let mut out = BytesMut::new();
        let left_out = push_stored(&mut out, b"ack\\cx:1\nplain:2\nv:a\\nb\\cc\n", Version::V1_0);
        assert_eq!((&out[..], left_out), (&b"plain:2\nv:a b:c\n"[..], 1));
    }

    #[test]
    fn numbers() {
        let mut out = BytesMut::new();
        for n in [0, 9, 10, 1234, u64::MAX] {
            push_decimal(&mut out, n);
            out.put_u8(b' ');
        }
        assert_eq!(&out[..], b"0 9 10 1234 18446744073709551615 ");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]
        #[test]
        fn escaped_text_comes_back_and_holds_no_line_end(text in "[a:\n\r\\\\é]{0,12}") {
            let escaped = pushed(&text, Version::V1_2);
            prop_assert!(!escaped.contains(['\n', '\r', ':']));
            prop_assert_eq!(unescape(&escaped), text.as_str());
            let escaped = pushed(&text, Version::V1_1);
            prop_assert!(!escaped.contains(['\n', ':']));
            prop_assert_eq!(unescape(&escaped), text.as_str());
            prop_assert!(!pushed(&text, Version::V1_0).contains('\n'));
        }
    }
}
