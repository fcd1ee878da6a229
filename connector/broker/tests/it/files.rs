//! The broker on real files: what one process leaves, the next one finds.

use std::path::Path;

use berth_broker::{Broker, Recovered, Settings};
use berth_engine::port::{Completion, Operation};
use berth_log::{FileStorage, execute};
use berth_types::{Now, OpId};

use crate::bench::*;

struct Process {
    storage: FileStorage,
    broker: Broker,
    recovered: Recovered,
    next_op: u64,
}

impl Process {
    fn start(dir: &Path) -> Self {
        let settings = Settings { index_bytes: 1000 * 28, cache_bytes: 10_000, ..small() };
        let mut storage = FileStorage::open(dir).unwrap();
        let (broker, recovered) = Broker::open(&mut storage, settings, Now::default()).unwrap();
        Self { storage, broker, recovered, next_op: 0 }
    }

    fn ask(&mut self, operation: Operation) -> Completion {
        self.next_op += 1;
        self.broker.submit(Now::default(), A, OpId::new(self.next_op), operation);
        loop {
            if let Some((_, Some(_), completion)) = self.broker.poll() {
                return completion;
            }
            let op = self.broker.poll_storage(Now::default()).expect("an answer needs the disk");
            let stored = execute(&mut self.storage, op);
            self.broker.handle_stored(Now::default(), stored);
        }
    }

    fn reserve(&mut self) -> (Vec<u64>, Operation) {
        let Completion::Opened { sub, .. } = self.ask(Operation::Attach { channel: name("q") }) else {
            panic!("opened")
        };
        let Completion::Reserved { txn, items } = self.ask(reserve(sub, 100)) else { panic!("reserved") };
        let bodies = items.iter().map(|item| body(&item.message)).collect();
        (bodies, ack(items.iter().map(|item| item.seq)).of(txn))
    }

    fn close(mut self) {
        self.broker.close(Now::default());
        while let Some(op) = self.broker.poll_storage(Now::default()) {
            let stored = execute(&mut self.storage, op);
            self.broker.handle_stored(Now::default(), stored);
        }
        assert!(self.broker.is_closed());
    }
}

#[test]
fn processes_hand_over_through_their_files() {
    let dir = tempfile::tempdir().unwrap();
    let mut first = Process::start(dir.path());
    for start in (0..6000).step_by(100) {
        let batch = (start..start + 100).map(|body| (to("q"), message(body, 60))).collect();
        let results = published(first.ask(Operation::Publish { batch, atomic: false }));
        assert!(results.iter().all(Result::is_ok));
    }
    let (bodies, settle) = first.reserve();
    assert_eq!(bodies, (0..bodies.len() as u64).collect::<Vec<_>>());
    assert!(matches!(first.ask(settle), Completion::Settled));
    let settled = bodies.len() as u64;
    // It ends without a word.
    drop(first);
    let second = Process::start(dir.path());
    assert_eq!(second.recovered.messages, 6000 - settled);
    assert!(second.recovered.redelivered > 0 && second.recovered.redelivered <= 1024);
    second.close();
    let mut third = Process::start(dir.path());
    assert!(third.recovered.log.clean);
    let (bodies, _) = third.reserve();
    assert_eq!(bodies[0], settled);
}
