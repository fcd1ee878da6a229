//! STOMP 1.2 as bytes: prepared SEND frames, a frame splitter, the two header values a load program needs.
//!
//! It is not a codec and shares nothing with the product's, so that it does not share its mistakes. It knows
//! only what the benchmarks send: bodies without NUL, so the first NUL ends a frame, and bodies that begin
//! with the message's number as 16 hexadecimal digits, so a delivery tells when it should have been sent.

use memchr::{memchr, memchr_iter, memmem};

/// A SEND frame whose number and receipt are filled in when it is copied out.
pub(crate) struct SendTemplate {
    bytes: Vec<u8>,
    receipt_at: Option<usize>,
    number_at: usize,
}

impl SendTemplate {
    /// `headers` are whole lines, each with its end of line. The body is at least [`NUMBER_BYTES`] long.
    pub(crate) fn new(destination: &str, headers: &str, body_bytes: usize, receipts: bool) -> Self {
        let body_bytes = body_bytes.max(NUMBER_BYTES);
        let mut bytes = format!("SEND\ndestination:{destination}\n{headers}").into_bytes();
        let receipt_at = receipts.then(|| {
            bytes.extend_from_slice(b"receipt:");
            let at = bytes.len();
            bytes.extend_from_slice(&[b'0'; NUMBER_BYTES]);
            bytes.push(b'\n');
            at
        });
        bytes.extend_from_slice(format!("content-length:{body_bytes}\n\n").as_bytes());
        let number_at = bytes.len();
        bytes.extend((0..body_bytes).map(|_| b'x'));
        bytes.push(0);
        Self { bytes, receipt_at, number_at }
    }

    /// Bytes of one frame.
    pub(crate) fn frame_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Appends the frame of message `number`.
    pub(crate) fn append(&self, number: u64, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&self.bytes);
        let digits = hex(number);
        if let Some(at) = self.receipt_at {
            out[start + at..start + at + NUMBER_BYTES].copy_from_slice(&digits);
        }
        out[start + self.number_at..start + self.number_at + NUMBER_BYTES].copy_from_slice(&digits);
    }
}

/// Calls `each` with every whole frame, without its NUL and the EOLs before it. Returns the bytes read, to
/// which EOLs behind the last whole frame belong only when `trim` is set.
pub(crate) fn frames<'a>(bytes: &'a [u8], trim: bool, mut each: impl FnMut(&'a [u8])) -> usize {
    let mut start = 0;
    for end in memchr_iter(0, bytes) {
        each(without_eols(&bytes[start..end]));
        start = end + 1;
    }
    if trim { bytes.len() - without_eols(&bytes[start..]).len() } else { start }
}

/// The value of the first `name:` header; `finder` searches for `"\nname:"`.
pub(crate) fn header<'a>(frame: &'a [u8], finder: &memmem::Finder<'_>) -> Option<&'a [u8]> {
    let from = finder.find(frame)? + finder.needle().len();
    let rest = frame.get(from..)?;
    let value = &rest[..memchr(b'\n', rest)?];
    Some(value.strip_suffix(b"\r").unwrap_or(value))
}

/// The number at the start of a body of `body_bytes`, which ends the frame.
pub(crate) fn body_number(frame: &[u8], body_bytes: usize) -> Option<u64> {
    let start = frame.len().checked_sub(body_bytes.max(NUMBER_BYTES))?;
    parse_hex(frame.get(start..start + NUMBER_BYTES)?)
}

/// A number as [`SendTemplate`] writes it.
pub(crate) fn parse_hex(digits: &[u8]) -> Option<u64> {
    digits.iter().try_fold(0u64, |number, digit| {
        let value = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some(number << 4 | u64::from(value))
    })
}

/// Digits of a message's number; no body is shorter.
pub(crate) const NUMBER_BYTES: usize = 16;

/// A number as 16 digits.
pub(crate) fn hex(number: u64) -> [u8; NUMBER_BYTES] {
    let mut digits = [0; NUMBER_BYTES];
    for (at, digit) in digits.iter_mut().enumerate() {
        let nibble = (number >> (60 - 4 * at)) & 15;
        *digit = b"0123456789abcdef"[nibble as usize];
    }
    digits
}

fn without_eols(bytes: &[u8]) -> &[u8] {
    let eols = bytes.iter().take_while(|byte| matches!(byte, b'\n' | b'\r')).count();
    &bytes[eols..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_carries_its_number_in_body_and_receipt() {
        let template = SendTemplate::new("/queue/a", "persistent:true\n", 20, true);
        let mut out = Vec::new();
        template.append(0x1f, &mut out);
        let expected = b"SEND\ndestination:/queue/a\npersistent:true\nreceipt:000000000000001f\n\
            content-length:20\n\n000000000000001fxxxx\0";
        assert_eq!(out, expected);
        assert_eq!(out.len(), template.frame_bytes());
        let frame = &out[..out.len() - 1];
        assert_eq!(body_number(frame, 20), Some(0x1f));
        assert_eq!(header(frame, &memmem::Finder::new("\nreceipt:")), Some(&b"000000000000001f"[..]));
        assert_eq!(header(frame, &memmem::Finder::new("\nack:")), None);
    }

    #[test]
    fn frames_are_split_wherever_the_bytes_are_cut() {
        let bytes = b"\n\nRECEIPT\nreceipt-id:1\n\n\0\nMESSAGE\nack:t\n\nbody\0\n\nERR";
        for cut in 0..bytes.len() {
            let mut seen = Vec::new();
            let read = frames(&bytes[..cut], true, |frame| seen.push(frame.to_vec()));
            let rest = &bytes[read..];
            let left = frames(rest, true, |frame| seen.push(frame.to_vec()));
            assert_eq!(seen.len(), 2, "cut at {cut}");
            assert!(seen[0].starts_with(b"RECEIPT") && seen[1].ends_with(b"body"));
            assert_eq!(&rest[left..], b"ERR");
        }
    }

    #[test]
    fn an_eol_behind_a_frame_stays_when_it_is_not_trimmed() {
        assert_eq!(frames(b"RECEIPT\n\n\0\n", false, |_| ()), 10);
        assert_eq!(frames(b"RECEIPT\n\n\0\n", true, |_| ()), 11);
    }

    #[test]
    fn a_body_that_is_no_number_has_none() {
        assert_eq!(body_number(b"MESSAGE\n\nxxxxxxxxxxxxxxxxxxxx", 20), None);
        assert_eq!(body_number(b"short", 20), None);
    }
}
