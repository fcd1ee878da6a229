//! Scripted STOMP clients, sessions and a broker in virtual time: raw bytes in, raw bytes out.

use std::io::IoSlice;
use std::sync::Arc;
use std::time::Duration;

use berth_engine::port::Completion;
use berth_gateway::{
    Access, Closed, Credentials, Login, OpenAccess, Principal, Right, Session, StompContext, StompSession,
    StompSettings,
};
use berth_stomp::{Command, Decoder, Limits, Mode, Role, Version};
use berth_types::{ConnectionId, Destination, Instant, Now, OpId, Timestamp};
use bytes::{Bytes, BytesMut};

use crate::broker::{Broker, Client};
use crate::embedded::Embedded;

/// How the octets of a client arrive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Cut {
    Whole,
    Octets,
    Random,
}

/// Runs a story with the clients' octets arriving whole, one by one, and in pieces.
pub(crate) fn in_every_cut(story: impl Fn(&mut World)) {
    for cut in [Cut::Whole, Cut::Octets, Cut::Random] {
        let mut world = World::new(cut);
        story(&mut world);
    }
}

/// A frame as the client received it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Received {
    pub(crate) command: Command,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Bytes,
}

impl Received {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut values = self.headers.iter().filter(|(n, _)| n == name).map(|(_, value)| value.as_str());
        values.next()
    }

    pub(crate) fn count(&self, name: &str) -> usize {
        self.headers.iter().filter(|(n, _)| n == name).count()
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    /// The value of a header that must be there.
    pub(crate) fn need(&self, name: &str) -> String {
        self.header(name).unwrap_or_else(|| panic!("no {name}: {self:?}")).to_owned()
    }
}

struct Peer {
    session: StompSession,
    input: BytesMut,
    /// What has reached the client and was not looked at.
    received: BytesMut,
    decoder: Decoder,
    version: Version,
    /// Octets that the client's socket still takes; none: no end to it.
    room: Option<usize>,
    /// Octets have arrived that the session has not been given.
    has_news: bool,
    is_gone: bool,
}

pub(crate) struct World {
    pub(crate) broker: Broker,
    /// The embedded broker instead of the one in memory.
    pub(crate) embedded: Option<Embedded>,
    pub(crate) settings: StompSettings,
    access: Arc<dyn Access>,
    peers: Vec<Peer>,
    now: Instant,
    cut: Cut,
    random: u64,
}

impl World {
    pub(crate) fn new(cut: Cut) -> Self {
        Self {
            broker: Broker::default(),
            embedded: None,
            settings: StompSettings::default(),
            access: Arc::new(OpenAccess),
            peers: Vec::new(),
            now: Instant::from_nanos(1),
            cut,
            random: 7,
        }
    }

    /// A world whose broker is the embedded one, on a simulated disk.
    pub(crate) fn with_embedded(cut: Cut) -> Self {
        let mut world = Self::new(cut);
        world.embedded = Some(Embedded::new(world.now()));
        world
    }

    pub(crate) fn now(&self) -> Now {
        Now {
            monotonic: self.now,
            wall: Timestamp::from_millis(1_700_000_000_000 + self.now.as_nanos() / 1_000_000),
        }
    }

    /// Only this login gets in, and it may not touch queues named `secret`.
    pub(crate) fn require_login(&mut self, login: &'static str, passcode: &'static str) {
        self.access = Arc::new(OneUser { login, passcode });
    }

    /// A client whose socket was just accepted.
    pub(crate) fn accept(&mut self) -> Client {
        let client = self.peers.len();
        let context = StompContext {
            id: ConnectionId::new(client as u64),
            seed: 0x0123_4567_89ab_cdef << 64 | client as u128,
            settings: Arc::new(self.settings.clone()),
            access: self.access.clone(),
            engine: berth_engine::Settings {
                capabilities: Broker::capabilities(),
                is_ready: self.broker.is_ready(),
            },
        };
        self.peers.push(Peer {
            session: StompSession::new(self.now(), context),
            input: BytesMut::new(),
            received: BytesMut::new(),
            decoder: Decoder::new(Role::Client, Limits::default()),
            version: Version::V1_0,
            room: None,
            has_news: false,
            is_gone: false,
        });
        client
    }

    /// A client that has connected.
    pub(crate) fn connect(&mut self, version: &str) -> Client {
        let client = self.accept();
        self.send(client, &format!("CONNECT\naccept-version:{version}\nhost:/\n\n\0"));
        let connected = self.next(client);
        assert_eq!((connected.command, connected.header("version")), (Command::Connected, Some(version)));
        client
    }

    pub(crate) fn send(&mut self, client: Client, text: &str) {
        self.send_bytes(client, text.as_bytes());
    }

    /// Octets of a client arrive, cut as this world cuts, and everything runs until it is quiet.
    pub(crate) fn send_bytes(&mut self, client: Client, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let len = match self.cut {
                Cut::Whole => bytes.len(),
                Cut::Octets => 1,
                Cut::Random => 1 + self.draw(60),
            };
            let (now, later) = bytes.split_at(len.min(bytes.len()));
            self.peers[client].input.extend_from_slice(now);
            self.peers[client].has_news = true;
            self.run();
            bytes = later;
        }
    }

    /// The client closes its side.
    pub(crate) fn end(&mut self, client: Client) {
        let now = self.now();
        let peer = &mut self.peers[client];
        peer.session.handle_input(now, &mut peer.input);
        peer.session.handle_input_end(now);
        self.run();
    }

    /// The connection is cut.
    pub(crate) fn cut_off(&mut self, client: Client) {
        let now = self.now();
        self.peers[client].is_gone = true;
        self.peers[client].session.handle_transport_lost(now);
        self.run();
    }

    /// From now on the client's socket takes so many octets and no more; none: all.
    pub(crate) fn set_room(&mut self, client: Client, room: Option<usize>) {
        self.peers[client].room = room;
        self.run();
    }

    pub(crate) fn session(&mut self, client: Client) -> &mut StompSession {
        &mut self.peers[client].session
    }

    pub(crate) fn closed(&self, client: Client) -> Option<Closed> {
        self.peers[client].session.closed()
    }

    /// Moves everything until nothing moves: operations, completions, output, held input.
    pub(crate) fn run(&mut self) {
        loop {
            let mut moved = false;
            for client in 0..self.peers.len() {
                moved |= self.run_peer(client);
            }
            let now = self.now();
            while let Some((client, op, completion)) = self.poll_broker() {
                self.peers[client].session.handle_completion(now, op, completion);
                self.drain_operations(client);
                moved = true;
            }
            if !moved {
                return;
            }
        }
    }

    fn drain_operations(&mut self, client: Client) -> bool {
        let mut moved = false;
        while let Some((op, operation)) = self.peers[client].session.poll_operation() {
            let now = self.now();
            match &mut self.embedded {
                Some(embedded) => embedded.submit(now, client, op, operation),
                None => self.broker.submit(client, op, operation),
            }
            moved = true;
        }
        moved
    }

    fn poll_broker(&mut self) -> Option<(Client, Option<OpId>, Completion)> {
        let now = self.now();
        match &mut self.embedded {
            Some(embedded) => embedded.poll(now),
            None => self.broker.poll(),
        }
    }

    fn run_peer(&mut self, client: Client) -> bool {
        let mut moved = self.drain_operations(client);
        let now = self.now();
        let peer = &mut self.peers[client];
        if !peer.is_gone {
            let mut slices = [IoSlice::new(&[]); 7];
            let used = peer.session.poll_transmit(now, &mut slices);
            let mut taken = BytesMut::new();
            for slice in &slices[..used] {
                let room = peer.room.map_or(slice.len(), |room| slice.len().min(room - taken.len()));
                taken.extend_from_slice(&slice[..room]);
            }
            if !taken.is_empty() {
                peer.room = peer.room.map(|room| room - taken.len());
                peer.session.handle_transmitted(now, taken.len());
                peer.received.unsplit(taken);
                moved = true;
            }
        }
        if peer.has_news && peer.session.wants_input() {
            peer.has_news = false;
            peer.session.handle_input(now, &mut peer.input);
            moved = true;
        }
        self.drain_operations(client) || moved
    }

    /// Time passes, timer by timer.
    pub(crate) fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            let next =
                (0..self.peers.len()).filter_map(|c| Some((self.peers[c].session.poll_timeout()?, c))).min();
            let broker = self.embedded.as_ref().and_then(Embedded::poll_timeout);
            if let Some(at) = broker.filter(|at| *at <= end && next.is_none_or(|(next, _)| *at <= next)) {
                self.now = self.now.max(at);
                let now = self.now();
                self.embedded.as_mut().unwrap().handle_timeout(now);
                self.run();
                continue;
            }
            let Some((at, client)) = next.filter(|(at, _)| *at <= end) else { break };
            self.now = self.now.max(at);
            let now = self.now();
            self.peers[client].session.handle_timeout(now);
            self.run();
        }
        self.now = end;
    }

    /// Every frame that has reached the client and was not looked at. Beats are skipped.
    pub(crate) fn frames(&mut self, client: Client) -> Vec<Received> {
        let peer = &mut self.peers[client];
        let mut frames = Vec::new();
        loop {
            let mode = Mode::Agreed(peer.version);
            let Some(frame) = peer.decoder.decode(&mut peer.received, mode).expect("the server sends frames")
            else {
                return frames;
            };
            let received = Received {
                command: frame.command(),
                headers: frame.headers().map(|h| (h.name().into(), h.value().into())).collect(),
                body: frame.body().clone(),
            };
            if received.command == Command::Connected {
                peer.version = Version::negotiate(received.header("version")).unwrap();
            }
            frames.push(received);
        }
    }

    /// The one frame that has reached the client.
    pub(crate) fn next(&mut self, client: Client) -> Received {
        let frames = self.frames(client);
        let [frame] = &frames[..] else { panic!("one frame expected, got {frames:#?}") };
        frame.clone()
    }

    /// Nothing has reached the client.
    pub(crate) fn nothing(&mut self, client: Client) {
        let frames = self.frames(client);
        assert!(frames.is_empty(), "{frames:#?}");
    }

    /// The octets that have reached the client.
    pub(crate) fn raw(&mut self, client: Client) -> String {
        String::from_utf8(self.peers[client].received.split().to_vec()).unwrap()
    }

    /// The one frame is an ERROR with this text, and the connection is closed.
    pub(crate) fn expect_error(&mut self, client: Client, message: &str) -> Received {
        let error = self.next(client);
        assert_eq!((error.command, error.header("message")), (Command::Error, Some(message)), "{error:?}");
        assert!(self.closed(client).is_some());
        self.run();
        self.nothing(client);
        error
    }

    /// The one frame is this receipt.
    pub(crate) fn expect_receipt(&mut self, client: Client, receipt: &str) {
        let frame = self.next(client);
        assert_eq!(
            (frame.command, frame.header("receipt-id")),
            (Command::Receipt, Some(receipt)),
            "{frame:?}"
        );
    }

    /// Puts messages with these bodies into a queue, through a client of its own.
    pub(crate) fn fill(&mut self, queue: &str, bodies: &[&str]) {
        let producer = self.connect("1.2");
        for body in bodies {
            self.send(producer, &format!("SEND\ndestination:/queue/{queue}\n\n{body}\0"));
        }
        self.send(producer, "DISCONNECT\nreceipt:filled\n\n\0");
        self.expect_receipt(producer, "filled");
    }

    /// Bodies of the MESSAGEs that have reached the client, and nothing but MESSAGEs.
    pub(crate) fn bodies(&mut self, client: Client) -> Vec<String> {
        let frames = self.frames(client);
        assert!(frames.iter().all(|frame| frame.command == Command::Message), "{frames:#?}");
        frames.iter().map(|frame| frame.text().to_owned()).collect()
    }

    /// Forgets every client, so that a test of many keeps none.
    pub(crate) fn forget_all(&mut self) {
        self.peers.clear();
    }

    fn draw(&mut self, bound: u64) -> usize {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        usize::try_from((self.random >> 33) % bound).unwrap()
    }
}

struct OneUser {
    login: &'static str,
    passcode: &'static str,
}

impl Access for OneUser {
    fn login(&self, credentials: &Credentials<'_>) -> Login {
        if credentials.login == Some(self.login) && credentials.secret == Some(self.passcode) {
            return Login::Accepted(Some(Principal::new(self.login)));
        }
        Login::Refused
    }

    fn is_allowed(&self, principal: Option<&Principal>, right: Right, destination: &Destination) -> bool {
        assert_eq!(principal.map(Principal::as_str), Some(self.login));
        let is_secret = destination.channel.as_str() == "secret";
        !is_secret && (right == Right::Read || destination.channel.as_str() != "readonly")
    }
}

/// Seconds.
pub(crate) const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}
