//! A simulated disk that forgets: for crash tests of the log, of the broker and of the whole connector.
//!
//! Every file has a durable image and, for each sector written since the last sync, every version it had. A
//! power cut lets each such sector have any one of them, or garbage, as the caller picks:
//! [`SimStorage::crash`]. Names are durable at once, as [`Storage`] promises. The end of a process alone
//! loses nothing: see [`keep_all`].
//!
//! Faults are planned, not drawn: the disk has no randomness of its own. Calls that change something are
//! counted from 1; a plan names calls by that number.
//!
//! ```
//! use berth_log::sim::{SimStorage, lose_all};
//! use berth_log::{Log, Lsn, Settings};
//!
//! let mut disk = SimStorage::new();
//! disk.crash_at(5);
//! assert!(Log::open(&mut disk, Settings::default(), Lsn(0), &mut |_, _| Ok(())).is_err());
//! disk.crash(&mut lose_all);
//! assert!(Log::open(&mut disk, Settings::default(), Lsn(0), &mut |_, _| Ok(())).is_ok());
//! ```

use crate::storage::{FileId, Storage};
use bytes::{Bytes, BytesMut};
use std::collections::{BTreeMap, BTreeSet};
use std::io;

const SECTOR: usize = 512;

/// What a sector is after a power cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Survivor {
    /// Version 0 is what the last sync left; version *n* is what the *n*th write since then made of it.
    Version(usize),
    /// Neither old nor new: bytes made of this number.
    Garbage(u64),
}

/// Which sector is asked about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unsynced {
    /// Its file.
    pub file: FileId,
    /// Its number in the file.
    pub sector: u64,
    /// It was written so many times since the last sync.
    pub versions: usize,
    /// How many sectors were asked about before, in this power cut.
    pub index: usize,
}

/// Nothing unsynced survives.
pub fn lose_all(_: Unsynced) -> Survivor {
    Survivor::Version(0)
}

/// Everything written survives.
pub fn keep_all(unsynced: Unsynced) -> Survivor {
    Survivor::Version(unsynced.versions)
}

/// Sector *n* of those unsynced survives as written when bit *n* of `mask` is set; the mask repeats.
pub fn by_mask(mask: u64) -> impl FnMut(Unsynced) -> Survivor {
    move |unsynced| {
        let is_kept = mask >> (unsynced.index % 64) & 1 == 1;
        Survivor::Version(if is_kept { unsynced.versions } else { 0 })
    }
}

/// Any version, or with `garbage` one time in eight garbage, as `seed` decides.
pub fn by_seed(seed: u64, garbage: bool) -> impl FnMut(Unsynced) -> Survivor {
    move |unsynced| {
        let draw = mix(seed ^ mix(unsynced.index as u64));
        if garbage && draw >> 60 < 2 {
            return Survivor::Garbage(draw);
        }
        Survivor::Version((draw % (unsynced.versions as u64 + 1)) as usize)
    }
}

/// Spreads a number over 64 bits (SplitMix64).
fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

type Sector = [u8; SECTOR];

#[derive(Clone, Debug, Default)]
struct SimFile {
    len: u64,
    /// Sectors that are not zeros.
    durable: BTreeMap<u64, Sector>,
    /// What was written since the last sync, oldest version first.
    unsynced: BTreeMap<u64, Vec<Sector>>,
    /// What a failed sync left: it is read until the power fails, and no later sync makes it durable.
    stranded: BTreeMap<u64, Sector>,
}

impl SimFile {
    fn sector(&self, number: u64) -> Sector {
        let newest = self.unsynced.get(&number).and_then(|versions| versions.last());
        let stranded = || self.stranded.get(&number);
        newest.or_else(stranded).or_else(|| self.durable.get(&number)).copied().unwrap_or([0; SECTOR])
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) {
        let mut at = 0;
        while at < bytes.len() {
            let place = offset + at as u64;
            let (number, from) = (place / SECTOR as u64, (place % SECTOR as u64) as usize);
            let len = (SECTOR - from).min(bytes.len() - at);
            let mut sector = self.sector(number);
            sector[from..from + len].copy_from_slice(&bytes[at..at + len]);
            self.unsynced.entry(number).or_default().push(sector);
            at += len;
        }
        self.len = self.len.max(offset + bytes.len() as u64);
    }

    fn sync(&mut self) {
        for (number, versions) in std::mem::take(&mut self.unsynced) {
            if let Some(newest) = versions.last() {
                self.durable.insert(number, *newest);
                self.stranded.remove(&number);
            }
        }
    }

    /// What Linux does when it cannot write pages back: it reports that once and calls them clean.
    fn fail_sync(&mut self) {
        for (number, mut versions) in std::mem::take(&mut self.unsynced) {
            self.stranded.extend(versions.pop().map(|newest| (number, newest)));
        }
    }
}

/// The disk. `Clone` takes a copy of it, to try several power cuts from one state.
#[derive(Clone, Debug, Default)]
pub struct SimStorage {
    files: BTreeMap<FileId, SimFile>,
    calls: u64,
    crash_at: Option<u64>,
    is_down: bool,
    failing: BTreeSet<u64>,
    fail_reads: BTreeSet<FileId>,
    capacity_bytes: Option<u64>,
}

impl SimStorage {
    /// An empty disk without faults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Calls that changed something, so far.
    pub fn calls(&self) -> u64 {
        self.calls
    }

    /// The power fails in call number `call`: a write is done but not synced, everything else is not done.
    /// It and every call after it fail, until [`SimStorage::crash`].
    pub fn crash_at(&mut self, call: u64) {
        self.crash_at = Some(call);
    }

    /// Has the planned power cut come?
    pub fn is_down(&self) -> bool {
        self.is_down
    }

    /// Call number `call` fails and does nothing. After a failed sync what was written can be read, is lost
    /// with the power, and is made durable by no later sync, unless it is written again.
    pub fn fail_at(&mut self, call: u64) {
        self.failing.insert(call);
    }

    /// Reads of `file` fail from now on.
    pub fn fail_reads_of(&mut self, file: FileId) {
        self.fail_reads.insert(file);
    }

    /// The disk holds so many bytes: beyond it files cannot be created, nor side files grow. None: no
    /// bound.
    pub fn set_capacity(&mut self, bytes: Option<u64>) {
        self.capacity_bytes = bytes;
    }

    /// Bytes of all files.
    pub fn used_bytes(&self) -> u64 {
        self.files.values().map(|file| file.len).sum()
    }

    /// Sectors written and not synced.
    pub fn unsynced_sectors(&self) -> usize {
        self.files.values().map(|file| file.unsynced.len()).sum()
    }

    /// The power is cut, if it was not already, and comes back: `pick` says what each unsynced sector is
    /// now. The plan of a power cut and of failing calls is forgotten, the capacity stays.
    pub fn crash(&mut self, pick: &mut dyn FnMut(Unsynced) -> Survivor) {
        let mut index = 0;
        for (id, file) in &mut self.files {
            file.stranded.clear();
            for (sector, versions) in std::mem::take(&mut file.unsynced) {
                let unsynced = Unsynced { file: *id, sector, versions: versions.len(), index };
                index += 1;
                match pick(unsynced) {
                    Survivor::Version(0) => {}
                    Survivor::Version(n) => {
                        file.durable.insert(sector, versions[n - 1]);
                    }
                    Survivor::Garbage(seed) => {
                        file.durable.insert(sector, garbage(seed));
                    }
                }
            }
        }
        self.end_process();
    }

    /// The process ends and the system lives on: everything written can be read, and what was not synced is
    /// still not durable. The plan of a power cut and of failing calls is forgotten, the capacity stays.
    pub fn end_process(&mut self) {
        self.crash_at = None;
        self.is_down = false;
        self.failing.clear();
        self.fail_reads.clear();
    }

    /// Damages the durable byte at `offset` of `file`: it is combined with `flip` by exclusive or.
    pub fn damage(&mut self, file: FileId, offset: u64, flip: u8) {
        let file = self.files.get_mut(&file).expect("a file to damage");
        let number = offset / SECTOR as u64;
        let at = (offset % SECTOR as u64) as usize;
        file.durable.entry(number).or_insert([0; SECTOR])[at] ^= flip;
        for version in file.unsynced.entry(number).or_default() {
            version[at] ^= flip;
        }
    }

    /// Takes `file` away behind everybody's back.
    pub fn steal(&mut self, file: FileId) {
        self.files.remove(&file);
    }

    /// Counts a changing call. `Ok(true)`: do it, then fail, because the power fails in it.
    fn call(&mut self) -> io::Result<bool> {
        if self.is_down {
            return Err(io::Error::other("the power is off"));
        }
        self.calls += 1;
        if self.failing.contains(&self.calls) {
            return Err(io::Error::other("the disk failed"));
        }
        self.is_down = self.crash_at == Some(self.calls);
        Ok(self.is_down)
    }

    /// Like [`Self::call`], for what is not done at all when the power fails in it.
    fn whole_call(&mut self) -> io::Result<()> {
        if self.call()? { Err(io::Error::other("the power is off")) } else { Ok(()) }
    }

    fn file(&mut self, file: FileId) -> io::Result<&mut SimFile> {
        self.files.get_mut(&file).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn has_room_for(&self, more: u64) -> io::Result<()> {
        let is_full = self.capacity_bytes.is_some_and(|capacity| self.used_bytes() + more > capacity);
        if is_full { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }
}

fn garbage(seed: u64) -> Sector {
    let mut sector = [0; SECTOR];
    for (index, chunk) in sector.chunks_mut(8).enumerate() {
        chunk.copy_from_slice(&mix(seed ^ index as u64).to_le_bytes());
    }
    sector
}

impl Storage for SimStorage {
    fn list(&mut self) -> io::Result<Vec<(FileId, u64)>> {
        if self.is_down {
            return Err(io::Error::other("the power is off"));
        }
        Ok(self.files.iter().map(|(id, file)| (*id, file.len)).collect())
    }

    fn create(&mut self, file: FileId, len: u64) -> io::Result<()> {
        self.whole_call()?;
        let replaced = self.files.get(&file).map_or(0, |old| old.len);
        self.has_room_for(len.saturating_sub(replaced))?;
        self.files.insert(file, SimFile { len, ..SimFile::default() });
        Ok(())
    }

    fn write_at(&mut self, file: FileId, offset: u64, parts: &[Bytes]) -> io::Result<()> {
        let is_last = self.call()?;
        let len: u64 = parts.iter().map(|part| part.len() as u64).sum();
        let old_len = self.file(file)?.len;
        self.has_room_for((offset + len).saturating_sub(old_len))?;
        let target = self.file(file)?;
        // One run of bytes: a sector that two parts share is written once.
        let mut joined = BytesMut::new();
        for part in parts {
            joined.extend_from_slice(part);
        }
        target.write(offset, &joined);
        if is_last { Err(io::Error::other("the power is off")) } else { Ok(()) }
    }

    fn sync(&mut self, file: FileId) -> io::Result<()> {
        let result = self.whole_call();
        let is_down = self.is_down;
        let file = self.file(file)?;
        match result {
            Ok(()) => file.sync(),
            Err(_) if !is_down => file.fail_sync(),
            Err(_) => {}
        }
        result
    }

    fn read_at(&mut self, file: FileId, offset: u64, len: usize) -> io::Result<Bytes> {
        if self.is_down || self.fail_reads.contains(&file) {
            return Err(io::Error::other("the disk failed"));
        }
        let file = self.file(file)?;
        if offset + len as u64 > file.len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut out = BytesMut::with_capacity(len + 2 * SECTOR);
        let first = offset / SECTOR as u64;
        let last = (offset + len as u64).div_ceil(SECTOR as u64);
        for number in first..last {
            out.extend_from_slice(&file.sector(number));
        }
        let from = (offset % SECTOR as u64) as usize;
        Ok(out.freeze().slice(from..from + len))
    }

    fn truncate(&mut self, file: FileId, len: u64) -> io::Result<()> {
        self.whole_call()?;
        let file = self.file(file)?;
        let old_len = std::mem::replace(&mut file.len, len);
        if len < old_len {
            // What lay behind reads as zeros if the file grows again.
            let whole = len.div_ceil(SECTOR as u64);
            file.durable.retain(|number, _| *number < whole);
            file.unsynced.retain(|number, _| *number < whole);
            file.stranded.retain(|number, _| *number < whole);
            let rest = (len % SECTOR as u64) as usize;
            if rest > 0 {
                let mut sector = file.sector(len / SECTOR as u64);
                sector[rest..].fill(0);
                file.unsynced.entry(len / SECTOR as u64).or_default().push(sector);
            }
        }
        Ok(())
    }

    fn remove(&mut self, file: FileId) -> io::Result<()> {
        self.whole_call()?;
        self.files.remove(&file).map(|_| ()).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn rename(&mut self, from: FileId, to: FileId) -> io::Result<()> {
        self.whole_call()?;
        let file = self.files.remove(&from).ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        self.files.insert(to, file);
        Ok(())
    }
}
