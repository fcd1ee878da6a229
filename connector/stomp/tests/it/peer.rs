//! A scripted peer: raw bytes in, what the connection makes of them out, in virtual time.

use std::io::IoSlice;
use std::time::Duration;

use berth_stomp::{
    Accept, Command, Connection, Event, Foreign, Malformed, Settings, Timer, Version, Violation,
};
use berth_types::Instant;
use bytes::{Bytes, BytesMut};

/// What a connection saw.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Seen {
    Connect { version: Version, login: Option<String>, passcode: Option<String> },
    Frame { command: Command, headers: Vec<(String, String)>, body: Bytes },
    Violation(Violation, Option<String>),
    Foreign(Foreign),
}

impl Seen {
    /// The value of the first header of this name.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let Self::Frame { headers, .. } = self else { panic!("no frame: {self:?}") };
        headers.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn body(&self) -> &[u8] {
        let Self::Frame { body, .. } = self else { panic!("no frame: {self:?}") };
        body
    }

    pub(crate) fn command(&self) -> Command {
        let Self::Frame { command, .. } = self else { panic!("no frame: {self:?}") };
        *command
    }
}

/// A malformed frame without a receipt.
pub(crate) fn malformed(why: Malformed) -> Seen {
    Seen::Violation(Violation::Malformed(why), None)
}

/// A connection in virtual time.
pub(crate) struct Peer {
    pub(crate) connection: Connection,
    pub(crate) now: Instant,
    pub(crate) seen: Vec<Seen>,
    input: BytesMut,
}

impl Peer {
    pub(crate) fn new(settings: Settings) -> Self {
        let now = Instant::from_nanos(1);
        let connection = Connection::new(settings, now);
        Self { connection, now, seen: Vec::new(), input: BytesMut::new() }
    }

    /// A peer that has connected with these header lines, its CONNECTED taken away.
    pub(crate) fn connected(settings: Settings, lines: &str) -> Self {
        let mut peer = Self::new(settings);
        peer.send(format!("CONNECT\n{lines}\n\0").as_bytes());
        assert!(matches!(peer.seen[..], [Seen::Connect { .. }]), "{:?}", peer.seen);
        peer.seen.clear();
        peer.take_output();
        peer
    }

    /// Octets arrive; a CONNECT is let in.
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.input.extend_from_slice(bytes);
        self.connection.handle_received(self.now);
        while let Some(event) = self.connection.poll_event(self.now, &mut self.input) {
            let seen = match event {
                Event::Connect(connect) => {
                    let accept = Accept { session: "s", server: "berth", ..Accept::default() };
                    self.connection.accept(self.now, &accept);
                    Seen::Connect {
                        version: connect.version(),
                        login: connect.login().map(Into::into),
                        passcode: connect.passcode().map(Into::into),
                    }
                }
                Event::Frame(frame) => {
                    let headers = frame.headers().map(|h| (h.name().into(), h.value().into())).collect();
                    let seen = Seen::Frame { command: frame.command(), headers, body: frame.body().clone() };
                    self.connection.recycle(frame);
                    seen
                }
                Event::Violation(error) => {
                    self.connection.fail(self.now, &error.to_frame());
                    Seen::Violation(error.violation, error.receipt.map(Into::into))
                }
                Event::Foreign(foreign) => {
                    self.connection.close(self.now);
                    Seen::Foreign(foreign)
                }
            };
            self.seen.push(seen);
        }
    }

    /// Everything that waits for the socket, which takes it.
    pub(crate) fn take_output(&mut self) -> Vec<u8> {
        let mut taken = Vec::new();
        loop {
            let octets = self.offered();
            if octets.is_empty() {
                return taken;
            }
            self.connection.handle_transmitted(self.now, octets.len());
            taken.extend(octets);
        }
    }

    pub(crate) fn offered(&self) -> Vec<u8> {
        let mut slices = [IoSlice::new(&[]); 16];
        let used = self.connection.poll_transmit(&mut slices);
        slices[..used].iter().flat_map(|slice| slice.to_vec()).collect()
    }

    pub(crate) fn take_text(&mut self) -> String {
        String::from_utf8(self.take_output()).unwrap()
    }

    /// Lets time pass, timer by timer; the timers that the caller must act on, with when they fired.
    pub(crate) fn pass(&mut self, time: Duration) -> Vec<(Instant, Timer)> {
        let end = self.now + time;
        let mut fired = Vec::new();
        while let Some(at) = self.connection.poll_timeout().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            if let Some(timer) = self.connection.handle_timeout(self.now) {
                fired.push((self.now, timer));
            }
        }
        self.now = end;
        fired
    }
}

/// What a connection sees of `bytes`: the same whole, octet by octet, split in two at every place, and cut
/// at random.
pub(crate) fn talk(bytes: &[u8]) -> Vec<Seen> {
    talk_with(Settings::default(), bytes)
}

pub(crate) fn talk_with(settings: Settings, bytes: &[u8]) -> Vec<Seen> {
    let run = |cuts: &mut dyn FnMut(usize) -> usize| {
        let mut peer = Peer::new(settings);
        let mut rest = bytes;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(cuts(rest.len()).clamp(1, rest.len()));
            peer.send(now);
            rest = later;
        }
        peer.seen
    };
    let whole = run(&mut |len| len);
    assert_eq!(run(&mut |_| 1), whole, "octet by octet: {:?}", String::from_utf8_lossy(bytes));
    if bytes.len() < 400 {
        for at in 1..bytes.len() {
            let mut first = Some(at);
            let got = run(&mut |len| first.take().unwrap_or(len));
            assert_eq!(got, whole, "split at {at}: {:?}", String::from_utf8_lossy(bytes));
        }
    }
    let mut random = Draw(bytes.len() as u64);
    for _ in 0..8 {
        assert_eq!(run(&mut |len| random.below(len.min(40)) + 1), whole, "cut at random");
    }
    whole
}

/// What a connected client of `version` is seen to say.
pub(crate) fn say(version: &str, bytes: &[u8]) -> Vec<Seen> {
    let mut seen = talk(&[format!("CONNECT\naccept-version:{version}\n\n\0").as_bytes(), bytes].concat());
    assert!(matches!(seen.remove(0), Seen::Connect { version: v, .. } if v.as_str() == version));
    seen
}

/// The one thing seen.
pub(crate) fn only(mut seen: Vec<Seen>) -> Seen {
    assert_eq!(seen.len(), 1, "{seen:?}");
    seen.remove(0)
}

/// A small deterministic generator for random cuts (splitmix64).
struct Draw(u64);

impl Draw {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((x ^ (x >> 31)) % bound.max(1) as u64).unwrap()
    }
}
