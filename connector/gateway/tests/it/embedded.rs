//! Sessions against the embedded broker on a simulated disk: the same stories end to end, crashes included.

use berth_engine::port::{Completion, Operation};
use berth_log::sim::{SimStorage, lose_all};
use berth_types::{ConnectionId, Instant, Now, OpId};

use crate::broker::Client;
use crate::world::{Cut, World, secs};

/// The broker and its disk. Every storage operation is carried out at once.
pub(crate) struct Embedded {
    broker: berth_broker::Broker,
    disk: SimStorage,
}

impl Embedded {
    pub(crate) fn new(now: Now) -> Self {
        Self::open(SimStorage::new(), now)
    }

    fn open(mut disk: SimStorage, now: Now) -> Self {
        let (broker, _) =
            berth_broker::Broker::open(&mut disk, berth_broker::Settings::default(), now).unwrap();
        Self { broker, disk }
    }

    pub(crate) fn submit(&mut self, now: Now, client: Client, op: OpId, operation: Operation) {
        self.broker.submit(now, ConnectionId::new(client as u64), op, operation);
    }

    pub(crate) fn poll(&mut self, now: Now) -> Option<(Client, Option<OpId>, Completion)> {
        while let Some(op) = self.broker.poll_storage(now) {
            let stored = berth_log::execute(&mut self.disk, op);
            self.broker.handle_stored(now, stored);
        }
        let (connection, op, completion) = self.broker.poll()?;
        Some((usize::try_from(connection.get()).unwrap(), op, completion))
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.broker.poll_timeout()
    }

    pub(crate) fn handle_timeout(&mut self, now: Now) {
        self.broker.handle_timeout(now);
    }

    pub(crate) fn stats(&self) -> berth_broker::Stats {
        self.broker.stats()
    }
}

/// The machine loses power: clients are cut off, what was not synced is gone, the broker starts again.
fn crash(world: &mut World) {
    let mut embedded = world.embedded.take().unwrap();
    embedded.disk.crash(&mut lose_all);
    world.forget_all();
    world.embedded = Some(Embedded::open(embedded.disk, world.now()));
}

#[test]
fn the_ack_modes_end_to_end() {
    for ack in ["auto", "client", "client-individual"] {
        let mut world = World::with_embedded(Cut::Random);
        world.fill("work", &["m1", "m2", "m3", "m4", "m5"]);
        let client = world.connect("1.2");
        world.send(client, &format!("SUBSCRIBE\nid:1\ndestination:/queue/work\nack:{ack}\n\n\0"));
        let frames = world.frames(client);
        assert_eq!(frames.iter().map(|f| f.text()).collect::<Vec<_>>(), ["m1", "m2", "m3", "m4", "m5"]);
        let named: &[usize] = match ack {
            "auto" => &[],
            "client" => &[4],
            _ => &[0, 1, 2, 3, 4],
        };
        for at in named {
            let token = frames[*at].need("ack");
            world.send(client, &format!("ACK\nid:{token}\nreceipt:{at}\n\n\0"));
            world.expect_receipt(client, &at.to_string());
        }
        world.send(client, "DISCONNECT\nreceipt:bye\n\n\0");
        world.expect_receipt(client, "bye");
        let stats = world.embedded.as_ref().unwrap().stats();
        assert_eq!((stats.accepted, stats.live, stats.in_flight), (5, 0, 0), "{ack}");
    }
}

#[test]
fn the_ack_timeout_end_to_end() {
    let mut world = World::with_embedded(Cut::Whole);
    let first = world.connect("1.2");
    world
        .send(first, "SUBSCRIBE\nid:1\ndestination:/queue/rq\nack:client-individual\nprefetch-count:1\n\n\0");
    world.fill("rq", &["job-1"]);
    world.next(first);
    world.send(first, "UNSUBSCRIBE\nid:1\nreceipt:u\n\n\0");
    world.expect_receipt(first, "u");
    let second = world.connect("1.2");
    world.send(second, "SUBSCRIBE\nid:1\ndestination:/queue/rq\nack:client-individual\n\n\0");
    world.pass(secs(29));
    world.nothing(second);
    world.pass(secs(3));
    let again = world.next(second);
    assert_eq!((again.text(), again.header("redelivered")), ("job-1", Some("true")));
    assert_eq!(world.closed(first), None);
}

#[test]
fn what_was_receipted_outlives_a_power_cut() {
    let mut world = World::with_embedded(Cut::Whole);
    world.fill("q", &["acked", "delivered", "waiting"]);
    let client = world.connect("1.2");
    world
        .send(client, "SUBSCRIBE\nid:1\ndestination:/queue/q\nack:client-individual\nprefetch-count:2\n\n\0");
    let frames = world.frames(client);
    world.send(client, &format!("ACK\nid:{}\nreceipt:r\n\n\0", frames[0].need("ack")));
    assert!(world.frames(client).iter().any(|frame| frame.header("receipt-id") == Some("r")));
    crash(&mut world);
    let client = world.connect("1.2");
    world.send(client, "SUBSCRIBE\nid:1\ndestination:/queue/q\n\n\0");
    let frames = world.frames(client);
    let seen: Vec<_> = frames.iter().map(|f| (f.text(), f.header("redelivered"))).collect();
    assert_eq!(seen[0], ("delivered", Some("true")), "the settled one does not come back");
    assert_eq!((seen.len(), seen[1].0), (2, "waiting"));
}
