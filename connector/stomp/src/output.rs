//! Frames that wait for the socket, in order, some of them named so that they can be withdrawn and
//! accounted for.
//!
//! Heads and short bodies lie one behind the other in one buffer, so that many small frames leave in one
//! slice; a long body stays where it is and gets a slice of its own. A frame is withdrawn only as long as
//! the socket has taken no octet of it. Tags rise from frame to frame, which makes finding one a binary
//! search.
//!
//! Invariant: `buffer` holds exactly the octets that the frames in `frames` count as inline, in their order.

use std::collections::VecDeque;
use std::io::IoSlice;

use berth_types::DeliveryId;
use bytes::{Buf, Bytes, BytesMut};

/// Bodies up to this many octets are copied behind their head: cheaper than a slice of their own in the
/// system call.
pub(crate) const BODY_INLINE_BYTES_MAX: usize = 512;

/// An empty buffer larger than this is given back.
const BUFFER_KEPT_BYTES: usize = 16 * 1024;

/// What the socket has taken of a named frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Written {
    /// Some octets, but not all.
    Partly(DeliveryId),
    /// The last octet.
    Wholly(DeliveryId),
}

#[derive(Debug)]
struct Queued {
    tag: Option<DeliveryId>,
    /// Octets in the buffer before the body.
    head: usize,
    body: Bytes,
    /// Octets in the buffer after the body.
    tail: usize,
    is_begun: bool,
    is_withdrawn: bool,
}

impl Queued {
    fn len(&self) -> usize {
        self.head + self.body.len() + self.tail
    }
}

#[derive(Debug, Default)]
pub(crate) struct Output {
    buffer: BytesMut,
    frames: VecDeque<Queued>,
    /// Tag and position (counted from the first frame ever) of named frames, both rising.
    tags: VecDeque<(DeliveryId, u64)>,
    /// Frames that have left the front.
    popped: u64,
    /// Octets that wait, withdrawn ones not counted.
    waiting: usize,
    /// Octets of withdrawn frames that still lie in the buffer.
    dead: usize,
    written: VecDeque<Written>,
}

impl Output {
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// Octets that wait for the socket.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Whether the socket has taken a part of the front frame.
    #[cfg(test)]
    pub(crate) fn is_inside_frame(&self) -> bool {
        self.frames.front().is_some_and(|frame| frame.is_begun)
    }

    /// Appends a frame: `head` writes everything before the body. A body that is not empty is followed by
    /// `tail`, an empty one too.
    pub(crate) fn push(
        &mut self,
        tag: Option<DeliveryId>,
        body: Bytes,
        tail: &[u8],
        head: impl FnOnce(&mut BytesMut),
    ) {
        let before = self.buffer.len();
        head(&mut self.buffer);
        let (head, body) = if body.len() <= BODY_INLINE_BYTES_MAX {
            self.buffer.extend_from_slice(&body);
            (self.buffer.len() - before, Bytes::new())
        } else {
            (self.buffer.len() - before, body)
        };
        self.buffer.extend_from_slice(tail);
        let frame = Queued { tag, head, body, tail: tail.len(), is_begun: false, is_withdrawn: false };
        self.waiting += frame.len();
        if let Some(tag) = tag {
            debug_assert!(self.tags.back().is_none_or(|(last, _)| *last < tag), "tags rise");
            self.tags.push_back((tag, self.popped + self.frames.len() as u64));
        }
        self.frames.push_back(frame);
    }

    /// Takes a frame back; false when the socket has taken a part of it, or when it is not here.
    pub(crate) fn withdraw(&mut self, tag: DeliveryId) -> bool {
        let Ok(at) = self.tags.binary_search_by_key(&tag, |(tag, _)| *tag) else { return false };
        let Some((_, position)) = self.tags.get(at) else { return false };
        let Ok(index) = usize::try_from(position - self.popped) else { return false };
        let Some(frame) = self.frames.get_mut(index) else { return false };
        if frame.is_begun || frame.is_withdrawn {
            return false;
        }
        self.waiting -= frame.len();
        frame.is_withdrawn = true;
        frame.body = Bytes::new();
        self.dead += frame.head + frame.tail;
        self.drop_withdrawn_front();
        if self.dead > self.waiting + BUFFER_KEPT_BYTES {
            self.compact();
        }
        true
    }

    /// Fills `slices` with what waits; the number of slices used.
    pub(crate) fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let mut free = slices.iter_mut();
        let mut used = 0;
        let mut put = |bytes: &'a [u8]| {
            if bytes.is_empty() {
                return true;
            }
            let Some(slot) = free.next() else { return false };
            *slot = IoSlice::new(bytes);
            used += 1;
            true
        };
        let (mut run, mut at) = (0, 0);
        let part = |from: usize, to: usize| self.buffer.get(from..to).unwrap_or_default();
        for frame in &self.frames {
            if frame.is_withdrawn {
                if !put(part(run, at)) {
                    return used;
                }
                at += frame.head + frame.tail;
                run = at;
                continue;
            }
            at += frame.head;
            if !frame.body.is_empty() {
                if !put(part(run, at)) || !put(&frame.body) {
                    return used;
                }
                run = at;
            }
            at += frame.tail;
        }
        put(part(run, at));
        used
    }

    /// The socket took so many octets from the front.
    pub(crate) fn take(&mut self, mut octets: usize) {
        debug_assert!(octets <= self.waiting, "the socket takes what was offered");
        while octets > 0 {
            let Some(frame) = self.frames.front_mut() else { return };
            frame.is_begun = true;
            let head = octets.min(frame.head);
            frame.head -= head;
            octets -= head;
            let body = octets.min(frame.body.len());
            frame.body.advance(body);
            octets -= body;
            let tail = octets.min(frame.tail);
            frame.tail -= tail;
            octets -= tail;
            self.buffer.advance(head + tail);
            self.waiting -= head + body + tail;
            if frame.len() > 0 {
                if let Some(tag) = frame.tag {
                    self.written.push_back(Written::Partly(tag));
                }
                break;
            }
            if let Some(tag) = frame.tag {
                self.written.push_back(Written::Wholly(tag));
            }
            self.pop_front();
            self.drop_withdrawn_front();
        }
        self.shrink();
    }

    pub(crate) fn poll_written(&mut self) -> Option<Written> {
        self.written.pop_front()
    }

    /// Forgets everything that waits.
    pub(crate) fn clear(&mut self) {
        *self = Self { written: std::mem::take(&mut self.written), ..Self::default() };
    }

    fn drop_withdrawn_front(&mut self) {
        while let Some(frame) = self.frames.front() {
            if !frame.is_withdrawn {
                break;
            }
            let inline = frame.head + frame.tail;
            self.buffer.advance(inline);
            self.dead -= inline;
            self.pop_front();
        }
        self.shrink();
    }

    fn pop_front(&mut self) {
        if let Some(frame) = self.frames.pop_front()
            && frame.tag.is_some()
        {
            self.tags.pop_front();
        }
        self.popped += 1;
    }

    fn shrink(&mut self) {
        if self.frames.is_empty() {
            self.tags.clear();
            if self.buffer.capacity() > BUFFER_KEPT_BYTES {
                self.buffer = BytesMut::new();
            }
        }
    }

    /// Copies what still counts into a new buffer, so that withdrawing over and over while the peer does
    /// not read keeps no memory.
    fn compact(&mut self) {
        let old = std::mem::take(&mut self.buffer);
        let mut at = 0;
        self.buffer.reserve(old.len() - self.dead);
        for frame in &self.frames {
            let inline = frame.head + frame.tail;
            if !frame.is_withdrawn {
                self.buffer.extend_from_slice(old.get(at..at + inline).unwrap_or_default());
            }
            at += inline;
        }
        self.frames.retain(|frame| !frame.is_withdrawn);
        self.dead = 0;
        self.tags = (self.popped..)
            .zip(&self.frames)
            .filter_map(|(position, frame)| frame.tag.map(|tag| (tag, position)))
            .collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn push(output: &mut Output, tag: Option<u64>, head: &str, body: &'static [u8]) {
        output.push(tag.map(DeliveryId::new), Bytes::from_static(body), b"\0", |out| {
            out.extend_from_slice(head.as_bytes());
        });
    }

    fn offered(output: &Output, max: usize) -> Vec<u8> {
        let mut slices = vec![IoSlice::new(&[]); max];
        let used = output.slices(&mut slices);
        slices[..used].iter().flat_map(|slice| slice.to_vec()).collect()
    }

    #[test]
    fn a_long_body_is_not_copied() {
        static BODY: [u8; 4000] = [b'x'; 4000];
        let mut output = Output::default();
        push(&mut output, Some(1), "a", &BODY);
        push(&mut output, Some(2), "b", b"y");
        let mut slices = [IoSlice::new(&[]); 8];
        assert_eq!(output.slices(&mut slices), 3);
        assert_eq!(slices[1].as_ptr(), BODY.as_ptr());
        assert_eq!(&slices[2][..], b"\0by\0");
    }

    #[test]
    fn says_when_a_frame_was_begun_and_when_it_is_done() {
        let mut output = Output::default();
        push(&mut output, Some(1), "abc", b"");
        push(&mut output, Some(2), "d", b"");
        output.take(1);
        assert_eq!(output.poll_written(), Some(Written::Partly(DeliveryId::new(1))));
        assert!(output.is_inside_frame());
        assert!(!output.withdraw(DeliveryId::new(1)), "begun");
        assert!(output.withdraw(DeliveryId::new(2)));
        assert!(!output.withdraw(DeliveryId::new(2)), "only once");
        assert_eq!(offered(&output, 4), b"bc\0");
        output.take(3);
        assert_eq!(output.poll_written(), Some(Written::Wholly(DeliveryId::new(1))));
        assert_eq!(output.poll_written(), None);
        assert!(output.is_empty() && output.frames.is_empty());
    }

    #[test]
    fn withdrawing_over_and_over_keeps_no_memory() {
        let mut output = Output::default();
        push(&mut output, None, "stuck", b"");
        output.take(1);
        for tag in 0..10_000 {
            push(&mut output, Some(tag), "0123456789012345678901234567890123456789", b"");
            assert!(output.withdraw(DeliveryId::new(tag)));
        }
        assert!(output.buffer.len() < 2 * BUFFER_KEPT_BYTES && output.frames.len() < 1000);
        assert_eq!(offered(&output, 4), b"tuck\0");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        /// Whatever is pushed, withdrawn and taken in whatever pieces: the octets that leave are the live
        /// frames, whole and in order.
        #[test]
        fn equals_a_list_of_frames(steps in proptest::collection::vec((0u8..3, 0usize..700), 1..60)) {
            static BODY: [u8; 700] = [b'z'; 700];
            let mut output = Output::default();
            let mut model: Vec<(u64, Vec<u8>)> = Vec::new();
            let (mut next, mut taken_of_front) = (0u64, 0usize);
            for (kind, size) in steps {
                match kind {
                    0 => {
                        next += 1;
                        let head = format!("<{next}>");
                        push(&mut output, Some(next), &head, &BODY[..size]);
                        model.push((next, [head.as_bytes(), &BODY[..size], b"\0"].concat()));
                    }
                    1 => {
                        let tag = size as u64 % (next + 1);
                        let at = model.iter().position(|(t, _)| *t == tag);
                        let can = at.is_some_and(|at| at > 0 || taken_of_front == 0);
                        prop_assert_eq!(output.withdraw(DeliveryId::new(tag)), can);
                        if can {
                            model.remove(at.unwrap());
                        }
                    }
                    _ => {
                        let mut slices = vec![IoSlice::new(&[]); 3];
                        let used = output.slices(&mut slices);
                        let bytes: Vec<u8> = slices[..used].iter().flat_map(|s| s.to_vec()).collect();
                        let take = size.min(bytes.len());
                        let all = model.iter().flat_map(|(_, b)| b.clone());
                        let all: Vec<u8> = all.skip(taken_of_front).collect();
                        prop_assert_eq!(&bytes[..], &all[..bytes.len()]);
                        output.take(take);
                        taken_of_front += take;
                        while model.first().is_some_and(|(_, b)| b.len() <= taken_of_front) {
                            taken_of_front -= model.remove(0).1.len();
                        }
                    }
                }
                let waiting: usize = model.iter().map(|(_, b)| b.len()).sum();
                prop_assert_eq!(output.waiting(), waiting - taken_of_front);
            }
        }
    }
}
