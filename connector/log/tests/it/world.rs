//! A log on a simulated disk next to a list of what was appended to it, and the promises that hold between
//! the two.

use berth_log::sim::{SimStorage, Survivor, Unsynced};
use berth_log::{
    Appended, Event, Fsync, Log, Lsn, Position, Purpose, Record, Refused, SegmentId, Settings, execute,
};
use berth_types::Instant;
use bytes::Bytes;
use proptest::prelude::ProptestConfig;
use std::time::Duration;

/// The smallest segments that there are, so that short histories use several.
pub(crate) fn settings(fsync: Fsync) -> Settings {
    Settings { fsync, segment_bytes: 64 * 1024, secret: 77, ..Settings::default() }
}

/// So many cases of a property, or as many as PROPTEST_CASES says.
pub(crate) fn cases(usual: u32) -> ProptestConfig {
    let wanted = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok());
    ProptestConfig { cases: wanted.unwrap_or(usual), ..ProptestConfig::default() }
}

/// The payload of record `lsn`, in the life of the log that has this number.
pub(crate) fn payload_in(life: usize, lsn: u64, len: usize) -> Vec<u8> {
    (0..len).map(|at| (lsn as usize * 31 + at * 7 + life * 101) as u8).collect()
}

pub(crate) fn payload(lsn: u64, len: usize) -> Vec<u8> {
    payload_in(0, lsn, len)
}

/// What recovery gives.
#[derive(Debug, PartialEq, Eq, Clone)]
pub(crate) struct Recovered {
    pub(crate) records: Vec<(Lsn, Record)>,
    pub(crate) last: Lsn,
}

pub(crate) fn recover(disk: &mut SimStorage, fsync: Fsync) -> Result<(Log, Recovered), berth_log::Error> {
    let mut records = Vec::new();
    let (log, report) = Log::open(disk, settings(fsync), Lsn(0), &mut |lsn, record| {
        records.push((lsn, record));
        Ok(())
    })?;
    assert_eq!(report.records, records.len() as u64);
    Ok((log, Recovered { records, last: report.last_lsn }))
}

/// One thing that is done to a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Append a record with a payload of so many bytes.
    Append(usize),
    /// The same, and nobody waits for it.
    Lazy(usize),
    /// Give the disk everything it is asked for.
    Drain,
    /// Give the disk one operation.
    One,
    /// Let 10 ms pass.
    Wait,
    /// Drop every segment but the last *n*.
    KeepSegments(usize),
    /// Close the log.
    Close,
    /// Ask for a sync.
    Sync,
}

pub(crate) struct World {
    pub(crate) disk: SimStorage,
    pub(crate) log: Log,
    pub(crate) now: Instant,
    fsync: Fsync,
    /// How often the log was opened again: what was cut and what is appended in its place differ.
    life: usize,
    /// What was appended, by number; the first has number 1.
    pub(crate) model: Vec<(Position, Vec<u8>)>,
    /// The largest number that the log ever called durable, and confirmed.
    pub(crate) durable: Lsn,
    pub(crate) confirmed: Lsn,
    /// The first record that must be kept: set when a truncation is asked for.
    pub(crate) first_kept: Lsn,
}

impl World {
    pub(crate) fn new(fsync: Fsync) -> Self {
        Self::on(SimStorage::new(), fsync).expect("a new log")
    }

    pub(crate) fn on(mut disk: SimStorage, fsync: Fsync) -> Result<Self, berth_log::Error> {
        let (log, recovered) = recover(&mut disk, fsync)?;
        assert_eq!(recovered.records, []);
        let (durable, confirmed, first_kept) = (Lsn(0), Lsn(0), Lsn(1));
        let (now, life, model) = (Instant::ZERO, 0, Vec::new());
        Ok(Self { disk, log, now, fsync, life, model, durable, confirmed, first_kept })
    }

    /// The same disk and promises, with a log that has to be opened yet.
    pub(crate) fn fork(&self) -> Self {
        let log = recover(&mut SimStorage::new(), self.fsync).expect("a new log").0;
        Self { disk: self.disk.clone(), log, model: self.model.clone(), ..*self }
    }

    pub(crate) fn append(&mut self, purpose: Purpose, len: usize) -> Result<Appended, Refused> {
        let lsn = self.log.appended().0 + 1;
        let bytes = payload_in(self.life, lsn, len);
        let middle = len / 2;
        let parts = [Bytes::copy_from_slice(&bytes[..middle]), Bytes::copy_from_slice(&bytes[middle..])];
        let appended = self.log.append(purpose, lsn as u8, &parts)?;
        assert_eq!(appended.lsn.0, lsn);
        assert_eq!(self.model.len() as u64 + 1, lsn);
        self.model.push((appended.position, bytes));
        Ok(appended)
    }

    /// Gives the disk one operation; false when there is none.
    pub(crate) fn one(&mut self) -> bool {
        let Some(op) = self.log.poll_storage(self.now) else { return false };
        let stored = execute(&mut self.disk, op);
        if self.disk.is_down() {
            return false;
        }
        self.log.handle_stored(self.now, stored);
        self.durable = self.durable.max(self.log.durable());
        self.confirmed = self.confirmed.max(self.log.confirmed());
        true
    }

    pub(crate) fn drain(&mut self) {
        while !self.disk.is_down() && self.one() {}
    }

    pub(crate) fn step(&mut self, step: &Step) {
        match step {
            Step::Append(len) | Step::Lazy(len) => {
                let purpose = if matches!(step, Step::Lazy(_)) { Purpose::Lazy } else { Purpose::Publish };
                while self.append(purpose, *len) == Err(Refused::Busy) && self.one() {}
            }
            Step::Drain => self.drain(),
            Step::One => {
                self.one();
            }
            Step::Wait => self.now = self.now + Duration::from_millis(10),
            Step::KeepSegments(n) => self.keep_segments(*n),
            Step::Close => self.log.close(),
            Step::Sync => self.log.request_sync(),
        }
    }

    fn keep_segments(&mut self, n: usize) {
        let segments: Vec<_> = self.log.segments().collect();
        if let Some(first) = segments.len().checked_sub(n.max(1)) {
            self.log.truncate_head(segments[first].id);
            self.first_kept = segments[first].first_lsn.max(self.first_kept);
        }
    }

    /// The power fails, `pick` says what survives, and the log is opened again. Checks every promise.
    pub(crate) fn crash(&mut self, pick: &mut dyn FnMut(Unsynced) -> Survivor) -> Recovered {
        self.disk.crash(pick);
        self.reopen(self.durable)
    }

    /// The process ends, the system lives on, and the log is opened again.
    pub(crate) fn kill(&mut self) -> Recovered {
        self.disk.end_process();
        self.reopen(self.confirmed)
    }

    fn reopen(&mut self, promised: Lsn) -> Recovered {
        let (log, recovered) = recover(&mut self.disk, self.fsync).expect("recovery");
        self.check(&recovered, promised);
        self.log = log;
        self.life += 1;
        self.model.truncate(recovered.last.0 as usize);
        self.durable = recovered.last;
        self.confirmed = recovered.last;
        let first = self.log.segments().next().expect("a segment");
        assert!(first.first_lsn <= self.first_kept, "a segment went that was not to go");
        self.first_kept = first.first_lsn;
        recovered
    }

    /// Everything promised is there, in order, once, unchanged, and nothing else.
    pub(crate) fn check(&self, recovered: &Recovered, promised: Lsn) {
        assert!(recovered.last >= promised, "{:?} was promised, {:?} is there", promised, recovered.last);
        let first = recovered.records.first().map_or(recovered.last.0 + 1, |(lsn, _)| lsn.0);
        assert!(
            first <= self.first_kept.0 || recovered.records.is_empty(),
            "the log begins with {first}, not {:?}",
            self.first_kept
        );
        if recovered.records.is_empty() {
            assert!(promised < self.first_kept, "records up to {promised:?} were promised, none is there");
        }
        for (index, (lsn, record)) in recovered.records.iter().enumerate() {
            assert_eq!(lsn.0, first + index as u64);
            let (position, bytes) = &self.model[lsn.0 as usize - 1];
            assert_eq!(record.position, *position);
            assert_eq!(record.kind, lsn.0 as u8);
            assert_eq!(record.payload, bytes);
        }
        assert_eq!(recovered.last.0, first + recovered.records.len() as u64 - 1);
    }

    pub(crate) fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.log.poll_event()).collect()
    }

    /// Reads through the log, as its owner would.
    pub(crate) fn read(&mut self, position: Position) -> Result<Record, berth_log::Error> {
        match self.log.read(position, 1) {
            berth_log::Read::Ready(record) => Ok(record),
            berth_log::Read::Pending => {
                self.drain();
                let found = self.events().into_iter().find_map(|event| match event {
                    Event::Read { token: 1, result } => Some(result),
                    _ => None,
                });
                found.expect("an answer to a read")
            }
        }
    }

    pub(crate) fn last_segment(&self) -> SegmentId {
        self.log.segments().last().expect("a segment").id
    }
}
