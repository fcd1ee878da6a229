//! How fast the broker is by itself, and what a large backlog costs.
//!
//! `rounds memory 2000000` publishes, reserves and settles in batches of 64 on a disk that is memory. `rounds
//! backlog DIR 10000000` stores so many messages of 200 bytes in DIR, ends without a word, recovers and
//! drains them. Prints rates, the largest resident size and the time to recover. Everything runs in one
//! thread, and nothing is synced.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, clippy::unwrap_used, reason = "a measurement")]

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant as Clock;

use berth_broker::{Broker, Settings};
use berth_engine::port::{Completion, NackCause, Operation};
use berth_log::{FileId, FileStorage, Fsync, Storage, execute};
use berth_types::{
    ChannelName, ConnectionId, Destination, Encoding, Envelope, Instant, Message, MessageId, Now, OpId,
    Pattern, Ranges, SubId, Timestamp,
};
use bytes::{Bytes, BytesMut};

const BATCH: usize = 64;
const CLIENT: ConnectionId = ConnectionId::new(1);

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["memory", count] => rounds(count.parse().unwrap()),
        ["backlog", dir, count] => backlog(Path::new(dir), count.parse().unwrap()),
        ["recover", dir] => recover(Path::new(dir)),
        _ => eprintln!("rounds memory COUNT | rounds backlog DIR COUNT | rounds recover DIR"),
    }
}

fn rounds(count: usize) {
    let mut driver = Driver::open(Memory::default());
    let sub = driver.attach();
    let start = Clock::now();
    let mut done = 0;
    while done < count {
        driver.publish(done);
        done += driver.reserve_and_settle(sub);
    }
    rate("publish, reserve and settle, one batch after the other", count, start);
    println!("{:?}", driver.broker.stats());
}

fn recover(dir: &Path) {
    let start = Clock::now();
    let driver = Driver::open(FileStorage::open(dir).unwrap());
    println!("recovered {} messages in {:?}", driver.broker.stats().live, start.elapsed());
    println!("largest resident size {} MiB", peak_mib());
}

fn backlog(dir: &Path, count: usize) {
    let mut driver = Driver::open(FileStorage::open(dir).unwrap());
    store(&mut driver, count);
    drop(driver);
    let start = Clock::now();
    let mut driver = Driver::open(FileStorage::open(dir).unwrap());
    println!("recovered {} messages in {:?}", driver.broker.stats().live, start.elapsed());
    drain(&mut driver, count);
    store(&mut driver, count);
    drain(&mut driver, count);
}

fn store(driver: &mut Driver<FileStorage>, count: usize) {
    let start = Clock::now();
    for number in (0..count).step_by(BATCH) {
        driver.publish(number);
    }
    rate("stored", count, start);
    tell(driver);
}

fn drain(driver: &mut Driver<FileStorage>, count: usize) {
    let sub = driver.attach();
    let start = Clock::now();
    let mut done = 0;
    while done < count {
        done += driver.reserve_and_settle(sub);
    }
    rate("drained", count, start);
    tell(driver);
    assert!(matches!(driver.ask(Operation::Unsubscribe { sub, forget: false }), Completion::Done));
}

fn tell(driver: &Driver<FileStorage>) {
    println!("{:?}", driver.broker.stats());
    println!("largest resident size {} MiB", peak_mib());
}

struct Driver<S> {
    storage: S,
    broker: Broker,
    clock: Clock,
    next_op: u64,
    destination: Destination,
}

impl<S: Storage> Driver<S> {
    fn open(mut storage: S) -> Self {
        let log = berth_log::Settings { fsync: Fsync::Never, ..berth_log::Settings::default() };
        let settings = Settings { log, ..Settings::default() };
        let (broker, recovered) = Broker::open(&mut storage, settings, Now::default()).unwrap();
        println!("{recovered:?}");
        let channel = ChannelName::parse("jobs").unwrap();
        let destination = Destination { pattern: Pattern::Queues, channel };
        Self { storage, broker, clock: Clock::now(), next_op: 0, destination }
    }

    fn now(&self) -> Now {
        let nanos = self.clock.elapsed().as_nanos() as u64;
        Now { monotonic: Instant::from_nanos(nanos), wall: Timestamp::from_millis(nanos / 1_000_000) }
    }

    fn ask(&mut self, operation: Operation) -> Completion {
        self.next_op += 1;
        let op = OpId::new(self.next_op);
        self.broker.submit(self.now(), CLIENT, op, operation);
        loop {
            while let Some((_, of, completion)) = self.broker.poll() {
                if of == Some(op) {
                    return completion;
                }
            }
            let now = self.now();
            let work = self.broker.poll_storage(now).expect("an answer needs the disk");
            let stored = execute(&mut self.storage, work);
            self.broker.handle_stored(now, stored);
        }
    }

    fn attach(&mut self) -> SubId {
        match self.ask(Operation::Attach { channel: self.destination.channel.clone() }) {
            Completion::Opened { sub, .. } => sub,
            other => panic!("{other:?}"),
        }
    }

    fn publish(&mut self, from: usize) {
        let message = |number| {
            Arc::new(Message {
                id: MessageId::new(format!("producer-1-{number:012}")),
                envelope: Envelope::default(),
                encoding: Encoding::Plain,
                head: Bytes::new(),
                body: Bytes::from_static(&[7; 200]),
            })
        };
        let batch = (from..from + BATCH).map(|number| (self.destination.clone(), message(number)));
        let operation = Operation::Publish { batch: batch.collect(), atomic: false };
        assert!(matches!(self.ask(operation), Completion::Published(_)));
    }

    fn reserve_and_settle(&mut self, sub: SubId) -> usize {
        let operation = Operation::Reserve { sub, max: BATCH as u32, max_bytes: 1 << 20, hold: None };
        let Completion::Reserved { txn, items } = self.ask(operation) else { panic!("reserved") };
        let ack = items.iter().map(|item| item.seq).collect();
        let (nack, release, reject) = (Ranges::new(), Ranges::new(), Ranges::new());
        let cause = NackCause::Failure;
        let operation = Operation::Settle { txn, ack, nack, release, reject, cause, confirm: false };
        assert!(matches!(self.ask(operation), Completion::Settled));
        items.len()
    }
}

fn rate(what: &str, count: usize, start: Clock) {
    let time = start.elapsed();
    println!("{what}: {count} in {time:?}, {:.0}/s", count as f64 / time.as_secs_f64());
}

fn peak_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}

/// A disk that is memory.
#[derive(Default)]
struct Memory(BTreeMap<FileId, Vec<u8>>);

impl Memory {
    fn file(&mut self, file: FileId) -> io::Result<&mut Vec<u8>> {
        self.0.get_mut(&file).ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl Storage for Memory {
    fn list(&mut self) -> io::Result<Vec<(FileId, u64)>> {
        Ok(self.0.iter().map(|(file, bytes)| (*file, bytes.len() as u64)).collect())
    }

    fn create(&mut self, file: FileId, len: u64) -> io::Result<()> {
        self.0.insert(file, vec![0; len as usize]);
        Ok(())
    }

    fn write_at(&mut self, file: FileId, offset: u64, parts: &[Bytes]) -> io::Result<()> {
        let bytes = self.file(file)?;
        let mut at = offset as usize;
        for part in parts {
            bytes.resize(bytes.len().max(at + part.len()), 0);
            bytes[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        Ok(())
    }

    fn sync(&mut self, _file: FileId) -> io::Result<()> {
        Ok(())
    }

    fn read_at(&mut self, file: FileId, offset: u64, len: usize) -> io::Result<Bytes> {
        let bytes = self.file(file)?;
        let at = offset as usize;
        let found = bytes.get(at..at + len).ok_or(io::ErrorKind::UnexpectedEof)?;
        Ok(BytesMut::from(found).freeze())
    }

    fn truncate(&mut self, file: FileId, len: u64) -> io::Result<()> {
        self.file(file)?.resize(len as usize, 0);
        Ok(())
    }

    fn remove(&mut self, file: FileId) -> io::Result<()> {
        self.0.remove(&file).map(|_| ()).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn rename(&mut self, from: FileId, to: FileId) -> io::Result<()> {
        let bytes = self.0.remove(&from).ok_or(io::ErrorKind::NotFound)?;
        self.0.insert(to, bytes);
        Ok(())
    }
}
