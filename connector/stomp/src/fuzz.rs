//! What the fuzz targets run: arbitrary octets through the decoder and through a whole connection. Not an
//! interface; public so that the targets stay three lines long and change with the code.

use std::io::IoSlice;
use std::time::Duration;

use berth_types::{DeliveryId, Instant, Timestamp};
use bytes::{Bytes, BytesMut};

use crate::{
    Accept, Connection, Decoder, ErrorFrame, Event, Frame, Limits, MessageFrame, Mode, Role, Settings,
    Version,
};

const LIMITS: Limits = Limits { header_line_bytes_max: 64, headers_max: 8, body_bytes_max: 256 };

/// Decodes `data` (its first octet says how) whole and in pieces, and holds the outcomes against each other
/// and against the limits.
///
/// # Panics
/// When an outcome depends on the segmentation, or a limit does not hold.
pub fn decode(data: &[u8]) {
    let Some((how, data)) = data.split_first() else { return };
    let role = if how & 1 == 0 { Role::Server } else { Role::Client };
    let version = match how >> 1 & 3 {
        0 => None,
        1 => Some(Version::V1_0),
        2 => Some(Version::V1_1),
        _ => Some(Version::V1_2),
    };
    let whole = outcome(role, version, data, data.len());
    for piece in [1, 2, 7, 64] {
        assert_eq!(outcome(role, version, data, piece), whole, "pieces of {piece}");
    }
}

/// Every frame and the error at the end, printed. A first frame without a version settles 1.2 for the rest.
fn outcome(role: Role, version: Option<Version>, data: &[u8], piece: usize) -> Vec<String> {
    let mut decoder = Decoder::new(role, LIMITS);
    let mut mode = version.map_or(Mode::Handshake, Mode::Agreed);
    let (mut input, mut seen) = (BytesMut::new(), Vec::new());
    for piece in data.chunks(piece.max(1)) {
        input.extend_from_slice(piece);
        loop {
            match decoder.decode(&mut input, mode) {
                Ok(None) => break,
                Ok(Some(frame)) => {
                    check(&frame);
                    seen.push(print(&frame));
                    decoder.recycle(frame);
                    mode = Mode::Agreed(version.unwrap_or(Version::V1_2));
                }
                Err(error) => {
                    seen.push(format!("{error:?}"));
                    return seen;
                }
            }
        }
    }
    seen
}

fn check(frame: &Frame) {
    assert!(frame.headers().count() <= LIMITS.headers_max && frame.body().len() <= LIMITS.body_bytes_max);
    for header in frame.headers() {
        assert!(header.raw_name().len() + 1 + header.raw_value().len() <= LIMITS.header_line_bytes_max);
        if frame.command().is_handshake() {
            continue; // Never escaped, never stored.
        }
        let mut stored = BytesMut::new();
        header.write_stored(&mut stored);
        let text = stored.strip_suffix(b"\n").unwrap_or_default();
        assert!(!text.contains(&b'\n') && !text.contains(&b'\r'), "one line, whatever is in it");
    }
}

fn print(frame: &Frame) -> String {
    let headers: Vec<_> = frame.headers().map(|header| (header.name(), header.value())).collect();
    format!(
        "{:?} {headers:?} {:?} {:?}",
        frame.command(),
        frame.body(),
        frame.request().map_err(|e| e.violation)
    )
}

/// Reads `data` as a list of things that happen to a connection: octets arrive, time passes, answers are
/// given, the socket takes octets. What it writes must always be frames and beats, in order, and nothing
/// after an ERROR.
///
/// # Panics
/// When the output is none that a client can read.
pub fn connection(data: &[u8]) {
    let settings =
        Settings { limits: LIMITS, write_timeout: Some(Duration::from_secs(9)), ..Settings::default() };
    let mut play = Play {
        connection: Connection::new(settings, Instant::ZERO),
        now: Instant::ZERO,
        input: BytesMut::new(),
        taken: BytesMut::new(),
        tag: 0,
    };
    let mut rest = data;
    while let [op, arg, more @ ..] = rest {
        let len = if op & 7 < 2 { usize::from(*arg).min(more.len()) } else { 0 };
        let (octets, later) = more.split_at(len);
        play.step(op & 7, *arg, octets);
        rest = later;
    }
    play.take(usize::MAX);
    play.read_output();
}

struct Play {
    connection: Connection,
    now: Instant,
    input: BytesMut,
    taken: BytesMut,
    tag: u64,
}

impl Play {
    fn step(&mut self, op: u8, arg: u8, octets: &[u8]) {
        match op {
            0 | 1 => self.receive(octets),
            2 => {
                self.now = self.now + Duration::from_millis(u64::from(arg) * 50);
                while self.connection.poll_timeout().is_some_and(|at| at <= self.now) {
                    if self.connection.handle_timeout(self.now).is_some() {
                        self.connection.fail(self.now, &self.connection.silence().to_frame());
                    }
                }
            }
            3 => self.take(usize::from(arg)),
            // Nobody is owed a receipt before a version is agreed.
            4 if self.connection.version().is_none() => {}
            4 => self.connection.send_receipt(self.now, &"r:\n\\".repeat(usize::from(arg % 8))),
            5 => self.message(arg),
            6 => {
                self.connection.withdraw(DeliveryId::new(self.tag.saturating_sub(u64::from(arg % 8))));
            }
            _ if arg == 0 => self.connection.fail(self.now, &ErrorFrame::new("by the test", "detail")),
            _ => self.connection.set_reading(self.now, arg.is_multiple_of(2)),
        }
        self.connection.poll_written();
        if self.connection.is_closing() {
            assert!(self.connection.is_input_ended(), "a closing connection reads nothing");
        }
    }

    fn receive(&mut self, octets: &[u8]) {
        self.input.extend_from_slice(octets);
        self.connection.handle_received(self.now);
        while let Some(event) = self.connection.poll_event(self.now, &mut self.input) {
            match event {
                Event::Connect(_) => {
                    let accept = Accept { session: "s", server: "", user_name: Some("u") };
                    self.connection.accept(self.now, &accept);
                }
                Event::Frame(frame) => {
                    check(&frame);
                    if let Err(error) = frame.request() {
                        self.connection.fail(self.now, &error.to_frame());
                    } else if let Some(receipt) = frame.receipt() {
                        self.connection.send_receipt(self.now, &receipt);
                    }
                    self.connection.recycle(frame);
                }
                Event::Violation(error) => self.connection.fail(self.now, &error.to_frame()),
                Event::Foreign(_) => self.connection.close(self.now),
            }
        }
    }

    fn message(&mut self, arg: u8) {
        if self.connection.version().is_none() {
            return;
        }
        self.tag += 1;
        let body = Bytes::from(vec![arg; usize::from(arg) * 4]);
        let frame = MessageFrame {
            destination: "/queue/a:b\\",
            message_id: "m",
            subscription: Some("s\n"),
            ack: None,
            redelivered: arg.is_multiple_of(2),
            delivery_count: None,
            timestamp: Timestamp::from_millis(1),
            head: b"k\\c:v\\n\\r\\\\\nplain:1\n",
            body: &body,
        };
        self.connection.send_message(self.now, DeliveryId::new(self.tag), &frame);
    }

    fn take(&mut self, mut octets: usize) {
        loop {
            let mut slices = [IoSlice::new(&[]); 3];
            let used = self.connection.poll_transmit(&mut slices);
            let before = self.taken.len();
            for slice in slices.iter().take(used) {
                let room = octets - (self.taken.len() - before);
                self.taken.extend(slice.iter().take(room));
            }
            let taken = self.taken.len() - before;
            if taken == 0 {
                return;
            }
            octets -= taken;
            self.connection.handle_transmitted(self.now, taken);
        }
    }

    fn read_output(&mut self) {
        let mut decoder = Decoder::new(Role::Client, Limits::default());
        let version = self.connection.version().unwrap_or_default();
        let mut has_ended = false;
        while let Some(frame) =
            decoder.decode(&mut self.taken, Mode::Agreed(version)).expect("the server writes frames")
        {
            assert!(!has_ended, "nothing follows an ERROR");
            has_ended = frame.command() == crate::Command::Error;
        }
        assert!(!decoder.is_inside_frame() || self.connection.is_closing(), "frames are whole");
    }
}
