//! Random stories: whatever clients, sockets, time and the broker do, in whatever order, nothing is lost or
//! settled twice, receipts come in order, and nothing follows an ERROR.

use std::collections::BTreeMap;

use berth_stomp::Command;
use proptest::prelude::*;

use crate::world::{Cut, World, secs};

const CLIENTS: usize = 3;

#[derive(Clone, Debug)]
enum Step {
    Connect(usize, &'static str),
    Subscribe(usize, u8, &'static str, u8),
    Unsubscribe(usize, u8),
    Publish(usize, u8),
    /// ACK or NACK of the n-th of the deliveries that the client has seen, settled or not.
    Settle(usize, &'static str, usize),
    Garbage(usize),
    Disconnect(usize),
    CutOff(usize),
    End(usize),
    Room(usize, Option<usize>),
    Pass(u64),
    HoldConfirms(bool),
    Ready(bool),
}

fn step() -> impl Strategy<Value = Step> {
    let client = 0..CLIENTS;
    prop_oneof![
        3 => (client.clone(), 0usize..3).prop_map(|(c, v)| Step::Connect(c, ["1.0", "1.1", "1.2"][v])),
        4 => (client.clone(), 0u8..3, 0usize..3, 0u8..4)
            .prop_map(|(c, id, mode, prefetch)| {
                Step::Subscribe(c, id, ["auto", "client", "client-individual"][mode], prefetch)
            }),
        2 => (client.clone(), 0u8..3).prop_map(|(c, id)| Step::Unsubscribe(c, id)),
        8 => (client.clone(), 0u8..2).prop_map(|(c, q)| Step::Publish(c, q)),
        8 => (client.clone(), 0usize..2, 0usize..20)
            .prop_map(|(c, command, n)| Step::Settle(c, ["ACK", "NACK"][command], n)),
        1 => client.clone().prop_map(Step::Garbage),
        1 => client.clone().prop_map(Step::Disconnect),
        1 => client.clone().prop_map(Step::CutOff),
        1 => client.clone().prop_map(Step::End),
        2 => (client, proptest::option::of(0usize..400)).prop_map(|(c, r)| Step::Room(c, r)),
        2 => (1u64..40_000).prop_map(Step::Pass),
        1 => any::<bool>().prop_map(Step::HoldConfirms),
        1 => any::<bool>().prop_map(Step::Ready),
    ]
}

/// One client over all its connections.
#[derive(Default)]
struct Client {
    connection: Option<(usize, &'static str)>,
    seen: Vec<String>,
    receipts_asked: u64,
    receipt_seen: u64,
    has_failed: bool,
}

struct Story {
    world: World,
    clients: Vec<Client>,
    published: u64,
    connections: usize,
}

impl Story {
    fn new(world: World) -> Self {
        let clients = (0..CLIENTS).map(|_| Client::default()).collect();
        Self { world, clients, published: 0, connections: 0 }
    }

    fn tell(&mut self, step: Step) {
        match step {
            Step::Connect(c, version) if self.clients[c].connection.is_none() => {
                let connection = self.world.connect(version);
                self.connections = connection + 1;
                self.clients[c] = Client { connection: Some((connection, version)), ..Client::default() };
            }
            Step::Subscribe(c, id, ack, prefetch) => self.say(c, |receipt| {
                format!(
                    "SUBSCRIBE\nid:{id}\ndestination:/queue/q{}\nack:{ack}\n\
                     prefetch-count:{prefetch}\n{receipt}\n\0",
                    id % 2
                )
            }),
            Step::Unsubscribe(c, id) => self.say(c, |receipt| format!("UNSUBSCRIBE\nid:{id}\n{receipt}\n\0")),
            Step::Publish(c, queue) => {
                let body = self.published;
                self.published += 1;
                self.say(c, |receipt| format!("SEND\ndestination:/queue/q{queue}\n{receipt}\n{body}\0"));
            }
            Step::Settle(c, command, n) => {
                let Some(names) = self.clients[c].seen.get(n).cloned() else { return };
                self.say(c, |receipt| format!("{command}\n{names}{receipt}\n\0"));
            }
            Step::Garbage(c) => self.say(c, |receipt| format!("GARBAGE\n{receipt}\n\0")),
            Step::Disconnect(c) => self.say(c, |receipt| format!("DISCONNECT\n{receipt}\n\0")),
            Step::CutOff(c) => self.with(c, World::cut_off),
            Step::End(c) => self.with(c, World::end),
            Step::Room(c, room) => self.with(c, |world, connection| world.set_room(connection, room)),
            Step::Pass(ms) => self.world.pass(std::time::Duration::from_millis(ms)),
            Step::HoldConfirms(_) | Step::Ready(_) if self.world.embedded.is_some() => {}
            Step::HoldConfirms(true) => self.world.broker.holds_confirms = true,
            Step::HoldConfirms(false) => {
                self.world.broker.release_confirms();
                self.world.run();
            }
            Step::Ready(is_ready) if is_ready != self.world.broker.is_ready() => {
                self.world.broker.set_ready(is_ready, self.connections);
                self.world.run();
            }
            Step::Connect(..) | Step::Ready(_) => {}
        }
        (0..CLIENTS).for_each(|c| self.look(c));
    }

    fn with(&mut self, c: usize, act: impl FnOnce(&mut World, usize)) {
        if let Some((connection, _)) = self.clients[c].connection {
            act(&mut self.world, connection);
        }
    }

    /// Sends a frame; every other one asks for a receipt, and receipts are numbered.
    fn say(&mut self, c: usize, frame: impl FnOnce(&str) -> String) {
        let Some((connection, _)) = self.clients[c].connection else { return };
        self.clients[c].receipts_asked += 1;
        let number = self.clients[c].receipts_asked;
        let receipt = if number.is_multiple_of(2) { format!("receipt:{number}\n") } else { String::new() };
        self.world.send(connection, &frame(&receipt));
    }

    /// Looks at what has reached a client.
    fn look(&mut self, c: usize) {
        let client = &mut self.clients[c];
        let Some((connection, version)) = client.connection else { return };
        for frame in self.world.frames(connection) {
            assert!(!client.has_failed, "nothing follows an ERROR: {frame:?}");
            match frame.command {
                Command::Message => client.seen.push(match version {
                    "1.0" => format!("message-id:{}\n", frame.need("message-id")),
                    "1.1" => {
                        let (id, sub) = (frame.need("message-id"), frame.need("subscription"));
                        format!("message-id:{id}\nsubscription:{sub}\n")
                    }
                    _ => format!("id:{}\n", frame.header("ack").unwrap_or("auto")),
                }),
                Command::Receipt => {
                    let number: u64 = frame.need("receipt-id").parse().unwrap();
                    assert!(number > client.receipt_seen, "receipts come in the order of the frames");
                    client.receipt_seen = number;
                }
                Command::Error => client.has_failed = true,
                other => panic!("{other:?}"),
            }
        }
        if self.world.closed(connection).is_some() {
            client.connection = None;
        }
    }

    /// Brings everything to rest and takes stock.
    fn finish(mut self) {
        self.world.broker.release_confirms();
        if !self.world.broker.is_ready() {
            self.world.broker.set_ready(true, self.connections);
        }
        self.world.run();
        for connection in 0..self.connections {
            self.world.set_room(connection, None);
            self.world.cut_off(connection);
        }
        self.world.pass(secs(120));
        assert!(self.world.broker.reserved().is_empty(), "every delivery is resolved");
        assert_eq!(self.world.broker.consumers(), 0);
        let mut ends: BTreeMap<String, u32> = BTreeMap::new();
        let waiting = [self.world.broker.ready("q0"), self.world.broker.ready("q1")].concat();
        for body in waiting.into_iter().chain(self.world.broker.acked.iter().cloned()) {
            *ends.entry(body).or_default() += 1;
        }
        assert!(ends.values().all(|count| *count == 1), "each message once: {ends:?}");
        assert_eq!(ends.len() as u64, self.world.broker.stored, "and none is lost");
        self.check_sessions();
    }

    /// The same with the embedded broker, which is asked by consuming what is left.
    fn finish_embedded(mut self) {
        for connection in 0..self.connections {
            self.world.set_room(connection, None);
            self.world.cut_off(connection);
        }
        self.world.pass(secs(120));
        self.check_sessions();
        let before = self.world.embedded.as_ref().unwrap().stats();
        assert_eq!(before.in_flight, 0, "every delivery is resolved");
        assert_eq!(before.published, before.accepted + before.rejected + before.live, "none is lost");
        let rest = self.world.connect("1.2");
        for queue in ["q0", "q1"] {
            self.world.send(rest, &format!("SUBSCRIBE\nid:{queue}\ndestination:/queue/{queue}\n\n\0"));
        }
        self.world.pass(secs(1));
        let mut left = self.world.bodies(rest);
        assert_eq!(left.len() as u64, before.live);
        left.sort();
        left.dedup();
        assert_eq!(left.len() as u64, before.live, "each once");
    }

    fn check_sessions(&mut self) {
        for connection in 0..self.connections {
            use berth_gateway::Session;
            let session = self.world.session(connection);
            assert!(session.is_settled() && session.closed().is_some());
            assert_eq!((session.delivery_count(), session.poll_timeout()), (0, None), "timers too are gone");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, max_shrink_iters: 4000, ..ProptestConfig::default() })]
    #[test]
    fn nothing_is_lost_or_settled_twice(
        cut in prop_oneof![Just(Cut::Whole), Just(Cut::Random)],
        steps in proptest::collection::vec(step(), 1..80),
    ) {
        let mut story = Story::new(World::new(cut));
        steps.into_iter().for_each(|step| story.tell(step));
        story.finish();
    }

    #[test]
    fn nor_with_the_embedded_broker(steps in proptest::collection::vec(step(), 1..60)) {
        let mut story = Story::new(World::with_embedded(Cut::Random));
        steps.into_iter().for_each(|step| story.tell(step));
        story.finish_embedded();
    }
}
