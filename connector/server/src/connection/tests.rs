//! The driver with a toy protocol of lines, over an in-memory pipe, on paused time.

use std::future::poll_fn;
use std::sync::Mutex;

use berth_engine::port::{Completion, Operation};
use berth_types::{ChannelName, Now, OpId};
use bytes::{Buf as _, Bytes};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
use tokio::task::JoinHandle;

use super::*;
use crate::connections::Connections;
use crate::mailbox::lock;
use crate::memory::{Budget, FREE_BYTES, PATIENCE};
use crate::metrics::Metrics;

impl Socket for DuplexStream {
    fn poll_readable(&self, _cx: &mut Context<'_>) -> Poll<()> {
        Poll::Ready(())
    }
}

/// `say X` answers X, `ask` asks the broker and answers when it does, `hold` takes no more input until then,
/// `wait` answers after five seconds, `big` answers with a megabyte, `quit` ends.
#[derive(Default)]
struct Toy {
    output: VecDeque<Bytes>,
    operations: VecDeque<(OpId, Operation)>,
    asked: u64,
    open: u64,
    is_holding: bool,
    due: Option<Instant>,
    closed: Option<Closed>,
    heard: Arc<Mutex<Vec<&'static str>>>,
}

impl Toy {
    fn answer(&mut self, text: impl Into<Bytes>) {
        self.output.push_back(text.into());
    }

    fn ask(&mut self) {
        self.asked += 1;
        self.open += 1;
        let channel = ChannelName::parse("a").unwrap();
        self.operations.push_back((OpId::new(self.asked), Operation::Attach { channel }));
    }

    fn hear(&self, word: &'static str) {
        lock(&self.heard).push(word);
    }
}

impl Session for Toy {
    fn handle_input(&mut self, now: Now, input: &mut BytesMut) {
        while let Some(end) = input.iter().position(|byte| *byte == b'\n') {
            let line = input.split_to(end + 1).freeze();
            match &line[..end] {
                b"ask" => self.ask(),
                b"hold" => {
                    self.ask();
                    self.is_holding = true;
                }
                b"wait" => self.due = Some(now.monotonic + Duration::from_secs(5)),
                b"big" => self.answer(vec![b'x'; 1024 * 1024]),
                b"quit" => {
                    self.answer("bye\n");
                    self.closed = Some(Closed::ByUs("quit"));
                }
                _ => self.answer(line.slice(4..)),
            }
        }
    }

    fn handle_input_end(&mut self, _now: Now) {
        self.hear("end");
        self.closed = self.closed.or(Some(Closed::ByPeer));
    }

    fn handle_transport_lost(&mut self, _now: Now) {
        self.hear("lost");
        self.output.clear();
        self.closed = self.closed.or(Some(Closed::Transport));
    }

    fn handle_completion(&mut self, _now: Now, op: Option<OpId>, _completion: Completion) {
        self.open -= 1;
        self.is_holding = false;
        if self.closed.is_none() {
            self.answer(format!("answer {}\n", op.unwrap().get()));
        }
    }

    fn handle_timeout(&mut self, _now: Now) {
        self.due = None;
        self.answer("time\n");
    }

    fn handle_drain(&mut self, _now: Now) {
        self.hear("drain");
    }

    fn handle_shutdown(&mut self, _now: Now) {
        self.answer("shutting down\n");
        self.closed = Some(Closed::ByUs("shutdown"));
    }

    fn handle_memory(&mut self, _now: Now, has_room: bool) {
        self.is_holding = !has_room;
        self.hear(if has_room { "room" } else { "no room" });
    }

    fn handle_overload(&mut self, _now: Now) {
        self.answer("busy\n");
        self.closed = Some(Closed::ByUs("busy"));
    }

    fn poll_operation(&mut self) -> Option<(OpId, Operation)> {
        self.operations.pop_front()
    }

    fn poll_transmit<'a>(&'a mut self, _now: Now, slices: &mut [IoSlice<'a>]) -> usize {
        let filled = slices.len().min(self.output.len());
        for (slice, bytes) in slices.iter_mut().zip(&self.output) {
            *slice = IoSlice::new(bytes);
        }
        filled
    }

    fn handle_transmitted(&mut self, _now: Now, mut bytes: usize) {
        while let Some(first) = self.output.front_mut().filter(|_| bytes > 0) {
            let taken = bytes.min(first.len());
            first.advance(taken);
            bytes -= taken;
            if first.is_empty() {
                self.output.pop_front();
            }
        }
    }

    fn wants_input(&self) -> bool {
        !self.is_holding
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.due
    }

    fn is_settled(&self) -> bool {
        self.open == 0
    }

    fn closed(&self) -> Option<Closed> {
        self.closed
    }
}

impl Observed for Toy {
    fn tally(&self) -> Tally {
        Tally::default()
    }

    fn inbound_bytes(&self) -> usize {
        0
    }

    fn output_bytes(&self) -> usize {
        self.output.iter().map(Bytes::len).sum()
    }

    fn client(&self) -> Option<&str> {
        None
    }
}

struct Rig {
    client: DuplexStream,
    entry: Arc<Entry>,
    inbox: Arc<Inbox<Letter>>,
    heard: Arc<Mutex<Vec<&'static str>>>,
    clock: Clock,
}

impl Rig {
    fn new(pipe_bytes: usize) -> (Self, Driver<Toy, DuplexStream>) {
        Self::within(pipe_bytes, &Connections::default(), &Arc::new(Budget::new(u64::MAX)))
    }

    fn within(
        pipe_bytes: usize,
        connections: &Connections,
        budget: &Arc<Budget>,
    ) -> (Self, Driver<Toy, DuplexStream>) {
        let (client, server) = duplex(pipe_bytes);
        let (inbox, clock) = (Arc::default(), Clock::start());
        let entry = connections.enter("127.0.0.1:1".parse().unwrap());
        let meter = Arc::new(Metrics::new("0")).connection("toy");
        let toy = Toy::default();
        let heard = Arc::clone(&toy.heard);
        let charge = Charge::new(Arc::clone(budget), Arc::clone(&entry));
        let driver = Driver::new(toy, server, Arc::clone(&entry), Arc::clone(&inbox), clock, meter, charge);
        (Self { client, entry, inbox, heard, clock }, driver)
    }

    fn start(pipe_bytes: usize) -> (Self, JoinHandle<Closed>) {
        let (rig, driver) = Self::new(pipe_bytes);
        (rig, tokio::spawn(driver))
    }

    async fn say(&mut self, text: &str) {
        self.client.write_all(text.as_bytes()).await.unwrap();
    }

    async fn expect(&mut self, text: &str) {
        let mut bytes = vec![0; text.len()];
        self.client.read_exact(&mut bytes).await.unwrap();
        assert_eq!(String::from_utf8(bytes).unwrap(), text);
    }

    /// The operations that have come, in order.
    async fn asked(&self) -> Vec<OpId> {
        let mut letters = Vec::new();
        poll_fn(|cx| self.inbox.poll_take(cx, &mut letters)).await;
        letters
            .into_iter()
            .map(|letter| match letter {
                Letter::Operation(from, op, _) if from == self.entry.id => op,
                other => panic!("{other:?}"),
            })
            .collect()
    }

    fn answer(&self, op: u64) {
        self.entry.outbox.push(Event::Completion(Some(OpId::new(op)), Completion::Done));
    }

    fn seconds(&self) -> u64 {
        self.clock.monotonic().as_nanos() / 1_000_000_000
    }
}

async fn once(driver: &mut Driver<Toy, DuplexStream>) -> Poll<Closed> {
    poll_fn(|cx| Poll::Ready(Pin::new(&mut *driver).poll(cx))).await
}

#[tokio::test(start_paused = true)]
async fn lines_may_come_in_any_pieces_and_the_client_may_leave() {
    let (mut rig, driver) = Rig::start(1024);
    rig.say("say a\nsay ").await;
    rig.expect("a\n").await;
    rig.say("b\n").await;
    rig.expect("b\n").await;
    drop(rig.client);
    assert_eq!(driver.await.unwrap(), Closed::ByPeer);
    assert_eq!(*lock(&rig.heard), ["end"]);
    assert_eq!(rig.clock.monotonic(), Instant::ZERO, "nobody waits for a client that has closed");
}

#[tokio::test(start_paused = true)]
async fn one_read_is_one_batch_and_answers_come_back() {
    let (mut rig, _driver) = Rig::start(1024);
    rig.say("ask\nask\nask\n").await;
    assert_eq!(rig.asked().await, [1, 2, 3].map(OpId::new));
    rig.answer(2);
    rig.answer(1);
    rig.expect("answer 2\nanswer 1\n").await;
}

#[tokio::test(start_paused = true)]
async fn a_session_that_wants_no_input_is_not_read() {
    let (mut rig, _driver) = Rig::start(64);
    rig.say("hold\n").await;
    assert_eq!(rig.asked().await.len(), 1);
    let flood = "say x\n".repeat(100);
    let written = tokio::time::timeout(Duration::from_secs(1), rig.client.write_all(flood.as_bytes()));
    assert!(written.await.is_err(), "the pipe holds 64 bytes and nobody reads");
    rig.answer(1);
    rig.expect("answer 1\nx\n").await;
}

#[tokio::test(start_paused = true)]
async fn deadlines_fire() {
    let (mut rig, _driver) = Rig::start(64);
    rig.say("wait\n").await;
    rig.expect("time\n").await;
    assert_eq!(rig.seconds(), 5);
    rig.say("say on\n").await;
    rig.expect("on\n").await;
}

#[tokio::test(start_paused = true)]
async fn the_last_words_arrive_and_a_silent_client_is_left_after_a_while() {
    let (mut rig, driver) = Rig::start(64);
    rig.say("quit\nsay never\n").await;
    rig.expect("bye\nnever\n").await;
    assert_eq!(rig.client.read(&mut [0; 1]).await.unwrap(), 0, "our side is closed");
    rig.say(&"more ".repeat(100)).await;
    assert_eq!(driver.await.unwrap(), Closed::ByUs("quit"));
    assert_eq!(rig.seconds(), LINGER.as_secs());
    assert!(rig.client.write_all(b"x").await.is_err(), "the socket is gone");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_closes_too_is_not_waited_for() {
    let (mut rig, driver) = Rig::start(64);
    rig.say("quit\n").await;
    rig.expect("bye\n").await;
    drop(rig.client);
    assert_eq!(driver.await.unwrap(), Closed::ByUs("quit"));
    assert_eq!(rig.clock.monotonic(), Instant::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_read_its_last_words_is_given_up() {
    let (mut rig, driver) = Rig::start(1024);
    rig.say("big\nquit\n").await;
    assert_eq!(driver.await.unwrap(), Closed::ByUs("quit"));
    assert_eq!(rig.seconds(), FLUSH.as_secs());
    assert_eq!(*lock(&rig.heard), ["lost"]);
}

#[tokio::test(start_paused = true)]
async fn a_lost_connection_waits_for_the_broker_but_holds_no_socket() {
    let (mut rig, driver) = Rig::start(64);
    rig.say("ask\nbig\n").await;
    assert_eq!(rig.asked().await.len(), 1);
    let (client, spare) = (rig.client, duplex(1).0);
    rig.client = spare;
    drop(client);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(!driver.is_finished());
    rig.answer(1);
    assert_eq!(driver.await.unwrap(), Closed::ByPeer);
    assert_eq!(*lock(&rig.heard), ["end", "lost"]);
}

#[tokio::test(start_paused = true)]
async fn drain_and_shutdown_are_passed_on() {
    let (mut rig, driver) = Rig::start(64);
    rig.entry.outbox.push(Event::Drain);
    rig.say("say still here\n").await;
    rig.expect("still here\n").await;
    rig.entry.outbox.push(Event::Shutdown);
    rig.expect("shutting down\n").await;
    drop(rig.client);
    assert_eq!(driver.await.unwrap(), Closed::ByUs("shutdown"));
    assert_eq!(*lock(&rig.heard), ["drain"]);
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_holds_no_buffer() {
    let (mut rig, mut driver) = Rig::new(1024 * 1024);
    assert!(once(&mut driver).await.is_pending());
    assert_eq!(driver.input.capacity(), 0);
    rig.say("say a\nsay").await;
    assert!(once(&mut driver).await.is_pending());
    assert!(driver.input.capacity() > 0, "a part of a line waits in it");
    rig.say(" b\n").await;
    assert!(once(&mut driver).await.is_pending());
    assert_eq!(driver.input.capacity(), 0);
    rig.expect("a\nb\n").await;
}

#[tokio::test(start_paused = true)]
async fn reads_grow_with_the_load_and_shrink_again() {
    let (mut rig, mut driver) = Rig::new(1024 * 1024);
    rig.say(&format!("say {}\n", "x".repeat(500_000))).await;
    assert!(once(&mut driver).await.is_pending());
    assert!(driver.read_bytes > READ_BYTES_MIN, "{}", driver.read_bytes);
    for _ in 0..10 {
        rig.say("say a\n").await;
        assert!(once(&mut driver).await.is_pending());
    }
    assert_eq!(driver.read_bytes, READ_BYTES_MIN);
}

#[tokio::test(start_paused = true)]
async fn a_full_inbox_stops_reading() {
    let (mut rig, mut driver) = Rig::new(1024);
    let filler = || Letter::Gone(rig.entry.id);
    rig.inbox.push((0..crate::mailbox::INBOX_OPERATIONS_MAX).map(|_| filler()));
    rig.client.write_all(b"say a\n").await.unwrap();
    assert!(once(&mut driver).await.is_pending());
    let mut letters = Vec::new();
    poll_fn(|cx| rig.inbox.poll_take(cx, &mut letters)).await;
    assert!(once(&mut driver).await.is_pending());
    rig.expect("a\n").await;
}

const KIB: usize = 1024;

#[tokio::test(start_paused = true)]
async fn a_long_line_is_not_read_while_memory_is_tight_and_short_ones_are() {
    let (connections, budget) = (Connections::default(), Arc::new(Budget::new(1000 * KIB as u64)));
    let (mut long, driver) = Rig::within(64 * KIB, &connections, &budget);
    let (mut short, other) = Rig::within(64 * KIB, &connections, &budget);
    let (_driver, _other) = (tokio::spawn(driver), tokio::spawn(other));
    let line = vec![b'x'; 1200 * KIB];
    let written = tokio::time::timeout(Duration::from_secs(1), long.client.write_all(&line)).await;
    assert!(written.is_err(), "the budget and the pipe hold less");
    assert!(budget.used() >= budget.tight_bytes());
    assert!(budget.used() <= budget.tight_bytes() + (READ_BYTES_MAX + FREE_BYTES) as u64);
    assert_eq!(*lock(&long.heard), ["no room"]);
    short.say("say hello\n").await;
    short.expect("hello\n").await;
}

#[tokio::test(start_paused = true)]
async fn of_two_half_lines_the_shorter_one_makes_room_for_the_longer() {
    let (connections, budget) = (Connections::default(), Arc::new(Budget::new(1000 * KIB as u64)));
    let (mut short, loser) = Rig::within(64 * KIB, &connections, &budget);
    let (mut long, winner) = Rig::within(64 * KIB, &connections, &budget);
    let (loser, _winner) = (tokio::spawn(loser), tokio::spawn(winner));
    let watched = Arc::clone(&budget);
    let clock = short.clock;
    tokio::spawn(async move { watched.watch(clock).await });
    short.say(&"x".repeat(500 * KIB)).await;
    // Together they do not fit; the longer one alone does.
    let line = format!("say {}\n", "y".repeat(700 * KIB));
    let (ended, ()) = tokio::join!(loser, long.say(&line));
    assert_eq!(ended.unwrap(), Closed::ByUs("busy"));
    assert!(short.seconds() >= PATIENCE.as_secs());
    short.expect("busy\n").await;
    long.expect(&line[4..]).await;
    assert_eq!(*lock(&long.heard), ["no room", "room"]);
    drop(long.client);
    while budget.used() > 0 {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}
