//! Segment files that are allocated and not in use yet. Some are the reserve: when the disk gives no more,
//! they let settlements be written and survivors be moved, so that space comes back.
//!
//! A file is called after the segment that it will be. Segments are begun in ascending order of their
//! numbers, so a file that was passed over (a large record needed a larger one) is renamed before it is
//! used.

use crate::error::Refused;
use crate::format::PAGE_BYTES;
use crate::log::Purpose;
use crate::position::SegmentId;
use crate::settings::Settings;
use berth_types::Instant;
use std::time::Duration;

/// A full disk is tried again after this time.
const RETRY: Duration = Duration::from_secs(1);
/// Files that are made ready for publishes beyond the reserve.
pub(crate) const AHEAD: usize = 2;
/// Who may use the reserve how far, in sixteenths of a segment that are left. To move the survivors of a
/// segment takes a segment, and something for records that grow or do not fit at the end of a file.
const SHORT: u64 = 30;
const KEPT_BY_REQUEUES: u64 = 22;
const KEPT_BY_UPKEEP: u64 = 20;

/// An allocated file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Spare {
    pub(crate) id: SegmentId,
    pub(crate) capacity: u32,
}

/// A file that should be made.
pub(crate) type Wanted = Spare;

#[derive(Debug)]
pub(crate) struct Space {
    segment_bytes: u32,
    reserve: usize,
    /// In ascending order of their numbers.
    spares: Vec<Spare>,
    next_id: u64,
    /// A record waits for a file of this size, larger than usual.
    large: Option<u32>,
    /// A file of the usual size could not be made; when that is tried again.
    full: Option<Instant>,
    /// A file of that size could not be made; when that may be tried again.
    large_full: Option<(u32, Instant)>,
}

impl Space {
    pub(crate) fn new(settings: &Settings, mut spares: Vec<Spare>, next_id: u64) -> Self {
        spares.sort_unstable_by_key(|spare| spare.id);
        Self {
            segment_bytes: settings.segment_bytes,
            reserve: settings.reserve_segments as usize,
            spares,
            next_id,
            large: None,
            full: None,
            large_full: None,
        }
    }

    /// A file with room for `need` bytes, for the segment after `current`.
    ///
    /// # Errors
    /// [`Refused::Full`], [`Refused::Busy`].
    pub(crate) fn take(&mut self, current: SegmentId, need: u32, purpose: Purpose) -> Result<Spare, Refused> {
        let kept = if purpose == Purpose::Publish { self.reserve } else { 0 };
        let left = self.spare_bytes().saturating_sub(need.into());
        let is_kept = purpose != Purpose::Publish && left < self.kept_bytes(purpose);
        if self.spares.len() <= kept || is_kept {
            return Err(if self.full.is_some() { Refused::Full } else { Refused::Busy });
        }
        let fits = |spare: &Spare| spare.id > current && spare.capacity >= need;
        if let Some(index) = self.spares.iter().position(fits) {
            self.large = self.large.filter(|large| need < *large);
            return Ok(self.spares.remove(index));
        }
        if need <= self.segment_bytes {
            return Err(if self.full.is_some() { Refused::Full } else { Refused::Busy });
        }
        let need = need.next_multiple_of(PAGE_BYTES);
        if self.large_full.is_some_and(|(size, _)| need >= size) {
            return Err(Refused::Full);
        }
        self.large = Some(self.large.map_or(need, |large| large.max(need)));
        Err(Refused::Busy)
    }

    /// May a record be put where a file is begun already? `left` bytes of that are left then; none: it is no
    /// record, but a mark.
    ///
    /// # Errors
    /// [`Refused::Full`]
    pub(crate) fn check(&self, left: Option<u32>, purpose: Purpose) -> Result<(), Refused> {
        let Some(left) = left.filter(|_| self.is_full()) else { return Ok(()) };
        let left = u64::from(left) + self.spare_bytes();
        let is_kept = match purpose {
            Purpose::Publish => self.spares.len() < self.reserve,
            purpose => left < self.kept_bytes(purpose),
        };
        if is_kept { Err(Refused::Full) } else { Ok(()) }
    }

    /// Bytes that an append leaves to more urgent ones when the disk is full.
    pub(crate) fn kept_bytes(&self, purpose: Purpose) -> u64 {
        let sixteenths = match purpose {
            Purpose::Publish => 16 * self.reserve as u64,
            Purpose::Requeue => KEPT_BY_REQUEUES,
            Purpose::Upkeep | Purpose::Lazy => KEPT_BY_UPKEEP,
            Purpose::Relocate => 0,
        };
        u64::from(self.segment_bytes / 16) * sixteenths
    }

    /// Room below which survivors should move.
    pub(crate) fn short_bytes(&self) -> u64 {
        u64::from(self.segment_bytes / 16) * SHORT
    }

    /// Bytes of the files at hand.
    pub(crate) fn spare_bytes(&self) -> u64 {
        let usual = |spare: &Spare| u64::from(spare.capacity.min(self.segment_bytes));
        self.spares.iter().map(usual).sum()
    }

    /// May publishes take a file?
    pub(crate) fn has_room(&self) -> bool {
        self.spares.len() > self.reserve
    }

    /// No further file could be made.
    pub(crate) fn is_full(&self) -> bool {
        self.full.is_some()
    }

    /// A file without which a publish has to wait.
    pub(crate) fn poll_urgent(&mut self, now: Instant) -> Option<Wanted> {
        if self.large_full.is_some_and(|(_, retry)| retry <= now) {
            self.large_full = None;
        }
        if self.full.is_none_or(|retry| retry <= now) && !self.has_room() {
            return Some(self.want(self.segment_bytes));
        }
        let large = self.large?;
        Some(self.want(large))
    }

    /// A file that will be needed.
    pub(crate) fn poll_ahead(&mut self, now: Instant) -> Option<Wanted> {
        let is_due = self.full.is_none_or(|retry| retry <= now);
        let is_short = self.spares.len() < self.reserve + AHEAD;
        (is_due && is_short).then(|| self.want(self.segment_bytes))
    }

    /// A file that was passed over, and the number that it gets.
    pub(crate) fn poll_rename(&mut self, current: SegmentId) -> Option<(Spare, SegmentId)> {
        let index = self.spares.iter().position(|spare| spare.id < current)?;
        let spare = self.spares.remove(index);
        Some((spare, self.next_id()))
    }

    /// The number that a segment of `capacity` bytes that was given back gets; none when its file is not
    /// needed.
    pub(crate) fn recycle(&mut self, capacity: u32) -> Option<SegmentId> {
        let is_useful = capacity == self.segment_bytes && self.spares.len() <= self.reserve + AHEAD;
        is_useful.then(|| self.next_id())
    }

    pub(crate) fn next_id(&mut self) -> SegmentId {
        self.next_id += 1;
        SegmentId(self.next_id - 1)
    }

    /// `spare` is allocated and has its name.
    pub(crate) fn add(&mut self, spare: Spare) {
        let index = self.spares.partition_point(|other| other.id < spare.id);
        self.spares.insert(index, spare);
        if self.spares.len() >= self.reserve + AHEAD {
            self.full = None;
        }
    }

    pub(crate) fn handle_made(&mut self, spare: Spare) {
        self.add(spare);
        if spare.capacity > self.segment_bytes {
            self.large = None;
        } else {
            self.full = None;
        }
    }

    pub(crate) fn handle_not_made(&mut self, wanted: Wanted, now: Instant) {
        if wanted.capacity > self.segment_bytes {
            self.large = None;
            self.large_full = Some((wanted.capacity, now + RETRY));
        } else {
            self.full = Some(now + RETRY);
        }
    }

    /// A file was removed: a full disk may have room again.
    pub(crate) fn handle_removed(&mut self, now: Instant) {
        self.full = self.full.map(|retry| retry.min(now));
        self.large_full = self.large_full.map(|(size, retry)| (size, retry.min(now)));
    }

    /// When a full disk is to be tried again.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let usual = self.full.filter(|_| self.spares.len() < self.reserve + AHEAD);
        let large = self.large_full.map(|(_, retry)| retry);
        [usual, large].into_iter().flatten().min()
    }

    fn want(&mut self, bytes: u32) -> Wanted {
        Wanted { id: self.next_id(), capacity: bytes.next_multiple_of(PAGE_BYTES) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USUAL: u32 = 64 * 1024;

    fn space(spares: u64) -> Space {
        let settings = Settings { segment_bytes: USUAL, ..Settings::default() };
        let spares = (2..2 + spares).map(|id| Spare { id: SegmentId(id), capacity: USUAL }).collect();
        Space::new(&settings, spares, 100)
    }

    fn take(space: &mut Space, need: u32, purpose: Purpose) -> Result<u64, Refused> {
        space.take(SegmentId(1), need, purpose).map(|spare| spare.id.0)
    }

    #[test]
    fn publishes_leave_the_reserve_alone_and_upkeep_its_last_file() {
        let mut space = space(3);
        assert_eq!(take(&mut space, 100, Purpose::Publish), Ok(2));
        assert_eq!(take(&mut space, 100, Purpose::Publish), Err(Refused::Busy));
        let wanted = space.poll_urgent(Instant::ZERO).unwrap();
        space.handle_not_made(wanted, Instant::ZERO);
        assert!(space.is_full());
        assert_eq!(take(&mut space, 100, Purpose::Publish), Err(Refused::Full));
        assert_eq!(take(&mut space, 100, Purpose::Upkeep), Ok(3));
        assert_eq!(take(&mut space, 100, Purpose::Lazy), Err(Refused::Full));
        assert_eq!(take(&mut space, 100, Purpose::Relocate), Ok(4));
        assert_eq!(take(&mut space, 100, Purpose::Relocate), Err(Refused::Full));
    }

    #[test]
    fn a_file_of_the_reserve_that_is_begun_is_used_in_the_order_of_what_frees_space() {
        let mut space = space(2);
        let check = |space: &Space, left, purpose| space.check(Some(left), purpose);
        assert_eq!(check(&space, 0, Purpose::Publish), Ok(()), "the disk may have more");
        let wanted = space.poll_urgent(Instant::ZERO).unwrap();
        space.handle_not_made(wanted, Instant::ZERO);
        assert_eq!(check(&space, 0, Purpose::Publish), Ok(()), "the reserve is whole");
        assert_eq!(take(&mut space, 100, Purpose::Requeue), Ok(2));
        assert_eq!(check(&space, USUAL - 100, Purpose::Publish), Err(Refused::Full));
        assert_eq!(check(&space, USUAL / 8 * 3, Purpose::Requeue), Ok(()));
        assert_eq!(check(&space, USUAL / 8 * 3 - 1, Purpose::Requeue), Err(Refused::Full));
        assert_eq!(check(&space, USUAL / 4, Purpose::Upkeep), Ok(()));
        assert_eq!(check(&space, USUAL / 4 - 1, Purpose::Lazy), Err(Refused::Full));
        assert_eq!(check(&space, 0, Purpose::Relocate), Ok(()));
        assert_eq!(space.check(None, Purpose::Upkeep), Ok(()), "a mark");
    }

    #[test]
    fn a_full_disk_is_tried_again() {
        let mut space = space(2);
        let wanted = space.poll_urgent(Instant::ZERO).unwrap();
        space.handle_not_made(wanted, Instant::ZERO);
        assert_eq!(space.poll_urgent(Instant::ZERO), None);
        let retry = space.poll_timeout().unwrap();
        let wanted = space.poll_urgent(retry).unwrap();
        space.handle_made(wanted);
        assert!(!space.is_full());
        assert_eq!(take(&mut space, 100, Purpose::Publish), Ok(2));
    }

    #[test]
    fn a_large_record_gets_a_file_of_its_size() {
        let mut space = space(4);
        assert_eq!(take(&mut space, USUAL + 1, Purpose::Publish), Err(Refused::Busy));
        let wanted = space.poll_urgent(Instant::ZERO).unwrap();
        assert_eq!(wanted.capacity, USUAL + 4096);
        space.handle_made(wanted);
        let taken = space.take(SegmentId(1), USUAL + 1, Purpose::Publish).unwrap();
        assert_eq!(taken, wanted);
        assert_eq!(space.poll_urgent(Instant::ZERO), None);
        // The files it passed over are renamed.
        let (spare, id) = space.poll_rename(taken.id).unwrap();
        assert!(spare.id < taken.id && id > taken.id);
    }

    #[test]
    fn a_large_file_that_cannot_be_made_refuses_only_large_records() {
        let mut space = space(4);
        assert_eq!(take(&mut space, USUAL + 1, Purpose::Publish), Err(Refused::Busy));
        let wanted = space.poll_urgent(Instant::ZERO).unwrap();
        space.handle_not_made(wanted, Instant::ZERO);
        assert_eq!(take(&mut space, USUAL + 1, Purpose::Publish), Err(Refused::Full));
        assert_eq!(take(&mut space, USUAL, Purpose::Publish), Ok(2));
        assert_eq!(space.poll_urgent(Instant::ZERO + RETRY), None);
        assert_eq!(take(&mut space, USUAL + 4096, Purpose::Publish), Err(Refused::Busy));
    }
}
