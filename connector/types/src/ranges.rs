//! Sets of sequence numbers as ascending, disjoint, inclusive ranges: what one settlement names.

use crate::Seq;

/// A set of [`Seq`] kept as ascending, disjoint and non-adjacent inclusive ranges.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Ranges(Vec<(Seq, Seq)>);

impl Ranges {
    /// The empty set; allocates nothing.
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Adds one sequence. Ascending insertion is constant time; any other place costs a search and a shift.
    pub fn insert(&mut self, seq: Seq) {
        if let Some((_, last)) = self.0.last_mut() {
            if last.next() == seq {
                *last = seq;
                return;
            }
            if *last < seq {
                self.0.push((seq, seq));
                return;
            }
        } else {
            self.0.push((seq, seq));
            return;
        }
        self.insert_inside(seq);
    }

    /// Whether the set names `seq`.
    pub fn contains(&self, seq: Seq) -> bool {
        let after = self.0.partition_point(|(first, _)| *first <= seq);
        after > 0 && self.0.get(after - 1).is_some_and(|(_, last)| seq <= *last)
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many sequences the set names.
    pub fn count(&self) -> u64 {
        self.0.iter().map(|(first, last)| last.get() - first.get() + 1).sum()
    }

    /// The ranges, ascending, both ends included.
    pub fn as_slice(&self) -> &[(Seq, Seq)] {
        &self.0
    }

    /// Every sequence, ascending.
    pub fn iter(&self) -> impl Iterator<Item = Seq> + '_ {
        self.0.iter().flat_map(|(first, last)| (first.get()..=last.get()).map(Seq::new))
    }

    fn insert_inside(&mut self, seq: Seq) {
        let at = self.0.partition_point(|(first, _)| *first <= seq);
        if at > 0 && seq <= self.0[at - 1].1 {
            return;
        }
        let joins_before = at > 0 && self.0[at - 1].1.next() == seq;
        let joins_after = self.0.get(at).is_some_and(|(first, _)| seq.next() == *first);
        match (joins_before, joins_after) {
            (true, true) => {
                self.0[at - 1].1 = self.0[at].1;
                self.0.remove(at);
            }
            (true, false) => self.0[at - 1].1 = seq,
            (false, true) => self.0[at].0 = seq,
            (false, false) => self.0.insert(at, (seq, seq)),
        }
    }
}

impl FromIterator<Seq> for Ranges {
    fn from_iter<I: IntoIterator<Item = Seq>>(seqs: I) -> Self {
        let mut ranges = Self::new();
        seqs.into_iter().for_each(|seq| ranges.insert(seq));
        ranges
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn equals_a_set_whatever_the_order(seqs in proptest::collection::vec(1u64..40, 0..60)) {
            let set: BTreeSet<u64> = seqs.iter().copied().collect();
            let ranges: Ranges = seqs.into_iter().map(Seq::new).collect();
            prop_assert!(ranges.iter().map(Seq::get).eq(set.iter().copied()));
            prop_assert_eq!(ranges.count(), set.len() as u64);
            for pair in ranges.as_slice().windows(2) {
                prop_assert!(pair[0].1.next() < pair[1].0, "disjoint and not adjacent");
            }
            for seq in 0..41 {
                prop_assert_eq!(ranges.contains(Seq::new(seq)), set.contains(&seq));
            }
        }
    }
}
