//! The shard with its log thread on a real folder, whose disk can be made to fail.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use berth_log::{FileId, FileStorage, Storage};
use berth_types::{ChannelName, Destination, Encoding, Envelope, Message, MessageId, Pattern};
use bytes::Bytes;
use tempfile::TempDir;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::*;
use crate::connections::Connections;
use crate::log_thread;
use crate::metrics::Metrics;

/// Files whose reads or syncs fail from some moment on.
struct Faulty {
    files: FileStorage,
    fails: Arc<AtomicBool>,
}

impl Faulty {
    fn try_it(&self) -> io::Result<()> {
        if self.fails.load(Ordering::SeqCst) { Err(io::Error::other("the disk is gone")) } else { Ok(()) }
    }
}

impl Storage for Faulty {
    fn list(&mut self) -> io::Result<Vec<(FileId, u64)>> {
        self.try_it()?;
        self.files.list()
    }

    fn create(&mut self, file: FileId, len: u64) -> io::Result<()> {
        self.files.create(file, len)
    }

    fn write_at(&mut self, file: FileId, offset: u64, parts: &[Bytes]) -> io::Result<()> {
        self.files.write_at(file, offset, parts)
    }

    fn sync(&mut self, file: FileId) -> io::Result<()> {
        self.try_it()?;
        self.files.sync(file)
    }

    fn read_at(&mut self, file: FileId, offset: u64, len: usize) -> io::Result<Bytes> {
        self.files.read_at(file, offset, len)
    }

    fn truncate(&mut self, file: FileId, len: u64) -> io::Result<()> {
        self.files.truncate(file, len)
    }

    fn remove(&mut self, file: FileId) -> io::Result<()> {
        self.files.remove(file)
    }

    fn rename(&mut self, from: FileId, to: FileId) -> io::Result<()> {
        self.files.rename(from, to)
    }
}

struct Rig {
    inbox: Arc<Inbox<Letter>>,
    entry: Arc<Entry>,
    fails: Arc<AtomicBool>,
    state: watch::Receiver<BrokerState>,
    shard: JoinHandle<Result<(), Failed>>,
    disk: std::thread::JoinHandle<()>,
    folder: TempDir,
}

impl Rig {
    fn start(folder: TempDir, fails_at_start: bool) -> Self {
        let fails = Arc::new(AtomicBool::new(fails_at_start));
        let files = FileStorage::open(folder.path()).unwrap();
        let storage = Faulty { files, fails: Arc::clone(&fails) };
        let (inbox, clock) = (Arc::new(Inbox::default()), Clock::start());
        let entry = Connections::default().enter("127.0.0.1:1".parse().unwrap());
        inbox.push([Letter::Opened(Arc::clone(&entry))]);
        let settings = berth_broker::Settings::default();
        let metrics = Arc::new(Metrics::new("0"));
        let (operations, disk) =
            log_thread::spawn(storage, settings, clock, Arc::clone(&inbox), metrics).unwrap();
        let (sender, state) = watch::channel(BrokerState::Recovering);
        let shard = tokio::spawn(Shard::new(Arc::clone(&inbox), operations, clock, sender).run());
        Self { inbox, entry, fails, state, shard, disk, folder }
    }

    fn ask(&self, op: u64, operation: Operation) {
        self.inbox.push([Letter::Operation(self.entry.id, OpId::new(op), operation)]);
    }

    /// The next answer or notice.
    async fn hear(&self) -> (Option<OpId>, Completion) {
        let mut events = VecDeque::new();
        poll_fn(|cx| self.entry.outbox.poll_take(cx, &mut events)).await;
        let first = events.pop_front().unwrap();
        // What came with it is for the next call.
        events.into_iter().for_each(|event| self.entry.outbox.push(event));
        match first {
            Event::Completion(op, completion) => (op, completion),
            other => panic!("{other:?}"),
        }
    }

    async fn hear_ready(&self) {
        loop {
            let (op, completion) = self.hear().await;
            assert_eq!(op, None, "{completion:?}");
            if matches!(completion, Completion::Ready(Readiness::Ready)) {
                return;
            }
        }
    }
}

fn publish() -> Operation {
    let message = Message {
        id: MessageId::new("m"),
        envelope: Envelope::default(),
        encoding: Encoding::Plain,
        head: Bytes::new(),
        body: Bytes::from_static(b"hello"),
    };
    let destination = Destination { pattern: Pattern::Queues, channel: ChannelName::parse("a").unwrap() };
    Operation::Publish { batch: vec![(destination, Arc::new(message))], atomic: false }
}

#[tokio::test]
async fn publishes_are_confirmed_and_survive_an_end_in_order() {
    let rig = Rig::start(TempDir::new().unwrap(), false);
    rig.hear_ready().await;
    rig.ask(1, publish());
    let (op, completion) = rig.hear().await;
    assert_eq!(op, Some(OpId::new(1)));
    assert!(matches!(&completion, Completion::Published(results) if results[0].is_ok()), "{completion:?}");
    rig.inbox.push([Letter::Close]);
    rig.shard.await.unwrap().unwrap();
    assert_eq!(*rig.state.borrow(), BrokerState::Ended("closed"));
    rig.disk.join().unwrap();

    let rig = Rig::start(rig.folder, false);
    rig.hear_ready().await;
    let (answer, view) = oneshot::channel();
    rig.inbox.push([Letter::Look(Look { after: None, queues_max: 9 }, answer)]);
    let view = view.await.unwrap();
    assert_eq!((view.stats.unwrap().live, view.queues[0].ready), (1, 1));
}

#[tokio::test]
async fn nothing_is_confirmed_that_was_not_synced_and_the_shard_ends() {
    let rig = Rig::start(TempDir::new().unwrap(), false);
    rig.hear_ready().await;
    rig.fails.store(true, Ordering::SeqCst);
    rig.ask(1, publish());
    let error = rig.shard.await.unwrap().unwrap_err().to_string();
    assert!(error.contains("the disk is gone"), "{error}");
    assert_eq!(*rig.state.borrow(), BrokerState::Ended("storage failed"));
    let mut events = VecDeque::new();
    poll_fn(|cx| rig.entry.outbox.poll_take(cx, &mut events)).await;
    for event in &events {
        let is_confirm = matches!(event, Event::Completion(_, Completion::Published(results))
            if results.iter().any(Result::is_ok));
        assert!(!is_confirm, "{event:?}");
    }
    let told = Completion::Ready(Readiness::NotReady("storage failed"));
    assert_eq!(format!("{:?}", events.back().unwrap()), format!("{:?}", Event::Completion(None, told)));
}

#[tokio::test]
async fn a_journal_that_cannot_be_read_ends_the_shard() {
    let rig = Rig::start(TempDir::new().unwrap(), true);
    assert!(rig.shard.await.unwrap().is_err());
    assert_eq!(*rig.state.borrow(), BrokerState::Recovering, "it never was ready");
}

#[tokio::test]
async fn before_recovery_everything_is_refused_and_nothing_waits() {
    let (inbox, clock) = (Arc::new(Inbox::default()), Clock::start());
    let entry = Connections::default().enter("127.0.0.1:1".parse().unwrap());
    let (disk, _operations) = mpsc::channel();
    let (sender, _state) = watch::channel(BrokerState::Recovering);
    let shard = tokio::spawn(Shard::new(Arc::clone(&inbox), disk, clock, sender).run());
    inbox.push([
        Letter::Opened(Arc::clone(&entry)),
        Letter::Operation(entry.id, OpId::new(1), publish()),
        Letter::Operation(entry.id, OpId::new(2), Operation::Cancel { op: OpId::new(1) }),
        Letter::Close,
    ]);
    shard.await.unwrap().unwrap();
    let mut events = VecDeque::new();
    poll_fn(|cx| entry.outbox.poll_take(cx, &mut events)).await;
    let heard: Vec<_> = events.iter().map(|event| format!("{event:?}")).collect();
    let expected = [
        Event::Completion(None, Completion::Ready(Readiness::NotReady("recovering"))),
        Event::Completion(Some(OpId::new(1)), Completion::Refused(Refusal::BrokerNotReady)),
    ];
    assert_eq!(heard, expected.map(|event| format!("{event:?}")));
}
