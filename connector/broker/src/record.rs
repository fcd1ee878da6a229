//! The facts that the broker writes into the journal, and their bytes.
//!
//! A fact says what was decided, never what was asked, so that replaying facts decides nothing again. Each
//! record of the journal is one fact; a commit is several facts that count as a whole. The record's kind says
//! how its bytes are read. A kind is never read in another way later: a new layout is a new kind, and a kind
//! that is not known is an error.
//!
//! Numbers are little-endian; `v` marks a number of variable length ([`varint`]).
//!
//! ```text
//! 1 opened      a process begins: v count of { channel u32, upto u64 }; everything live up to there counts
//!               as received once more; then every delivery mark starts again
//! 2 catalog     next channel id u32, sequence floor u64
//! 3 channel     id u32, pattern u8, next sequence u64, mark u64, name
//! 4 forgotten   channel u32: it is no more
//! 5 appended    flags u8, channel u32, sequence u64, published u64, then as flagged: received u32 and
//!               failures u32 (1), expires u64 (2), deliver u64 (4), priority u8 (8), group u16 and
//!               text (16); encoding u8, id u16 and text, head u32 and bytes, body
//! 6 settled     channel u32, accepted ranges, rejected ranges: v count of { v gap, v length }
//! 7 requeued    channel u32, first new sequence u64, v count of { v gap, v received, v failures }
//! 8 mark        channel u32, sequence u64: everything up to here may be delivered
//! 9 commit      v count of { kind u8, v length, bytes }: facts of the kinds 5, 6 and 7
//! ```
//!
//! This file neither reads nor writes a journal and knows no state.

use berth_types::{ChannelName, Encoding, Envelope, Message, MessageId, Pattern, Ranges, Seq, Timestamp};
use bytes::{Bytes, BytesMut};

use crate::varint::{self, Reader};

/// The number of a channel in the journal; never used again after the channel is forgotten.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct ChannelId(pub(crate) u32);

/// How often a message was received, and how often its consumer failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) received: u32,
    pub(crate) failures: u32,
}

/// One message of a requeue: its old place and its counts from now on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Requeue {
    pub(crate) seq: Seq,
    pub(crate) counts: Counts,
}

/// A fact as it is read back. Messages are read apart ([`message`]), since the index needs only their header.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Fact {
    Opened { redelivered: Vec<(ChannelId, Seq)> },
    Catalog { next_channel: u32, seq_floor: u64 },
    Channel { id: ChannelId, pattern: Pattern, next_seq: Seq, mark: Seq, name: ChannelName },
    Forgotten { id: ChannelId },
    Appended(Header),
    Settled { channel: ChannelId, accepted: Vec<(Seq, Seq)>, rejected: Vec<(Seq, Seq)> },
    Requeued { channel: ChannelId, first: Seq, items: Vec<Requeue> },
    Mark { channel: ChannelId, upto: Seq },
    Commit(Vec<Self>),
}

/// What the index keeps of an appended message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    pub(crate) channel: ChannelId,
    pub(crate) seq: Seq,
    pub(crate) counts: Counts,
    /// Bytes of head and body.
    pub(crate) size: u32,
    /// Which fact of its commit, from 1; 0 when the record holds nothing else.
    pub(crate) part: u32,
}

/// A record that is none of ours, though its checksum is right: written by a newer version, or a defect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Malformed;

/// Reads one record of the journal.
pub(crate) fn read(kind: u8, payload: &[u8]) -> Result<Fact, Malformed> {
    let mut reader = Reader::new(payload);
    let fact = match kind {
        OPENED => Fact::Opened { redelivered: read_places(&mut reader)? },
        CATALOG => Fact::Catalog { next_channel: reader.u32()?, seq_floor: reader.u64()? },
        CHANNEL => Fact::Channel {
            id: ChannelId(reader.u32()?),
            pattern: pattern(reader.u8()?)?,
            next_seq: Seq::new(reader.u64()?),
            mark: Seq::new(reader.u64()?),
            name: ChannelName::parse(text(reader.rest())?).map_err(|_| Malformed)?,
        },
        FORGOTTEN => Fact::Forgotten { id: ChannelId(reader.u32()?) },
        MARK => Fact::Mark { channel: ChannelId(reader.u32()?), upto: Seq::new(reader.u64()?) },
        COMMIT => {
            let mut parts = Vec::new();
            for number in 1..=reader.varint_u32()? {
                let (kind, bytes) = read_part(&mut reader)?;
                parts.push(read_single(kind, bytes, number)?);
            }
            Fact::Commit(parts)
        }
        _ => return read_single(kind, payload, 0),
    };
    Ok(fact)
}

/// Reads the message of an appended record, or of the `part`-th fact of a commit. Head and body share the
/// record's bytes.
pub(crate) fn message(kind: u8, payload: &Bytes, part: u32) -> Result<(Header, Message), Malformed> {
    let mut reader = Reader::new(payload);
    let (kind, bytes) = match (kind, part) {
        (APPENDED, 0) => (kind, reader.rest()),
        (COMMIT, 1..) if part <= reader.varint_u32()? => {
            for _ in 1..part {
                read_part(&mut reader)?;
            }
            read_part(&mut reader)?
        }
        _ => return Err(Malformed),
    };
    if kind != APPENDED {
        return Err(Malformed);
    }
    let parts = Parts::read(&mut Reader::new(bytes), part)?;
    let message = Message {
        id: MessageId::new(parts.id),
        envelope: parts.envelope()?,
        encoding: parts.encoding,
        head: payload.slice_ref(parts.head),
        body: payload.slice_ref(parts.body),
    };
    Ok((parts.header, message))
}

/// Writes everything of an appended record before its head; head and body follow as they are.
///
/// The caller has checked [`fits`].
pub(crate) fn write_appended(
    out: &mut BytesMut,
    channel: ChannelId,
    seq: Seq,
    counts: Counts,
    message: &Message,
) {
    let envelope = &message.envelope;
    let group = envelope.group.as_deref();
    let mut flags = 0;
    flags |= if counts == Counts::default() { 0 } else { HAS_COUNTS };
    flags |= if envelope.expires_at.is_some() { HAS_EXPIRES } else { 0 };
    flags |= if envelope.deliver_at.is_some() { HAS_DELIVER } else { 0 };
    flags |= if envelope.priority.is_some() { HAS_PRIORITY } else { 0 };
    flags |= if group.is_some() { HAS_GROUP } else { 0 };
    out.extend_from_slice(&[flags]);
    out.extend_from_slice(&channel.0.to_le_bytes());
    out.extend_from_slice(&seq.get().to_le_bytes());
    out.extend_from_slice(&envelope.published_at.as_millis().to_le_bytes());
    if flags & HAS_COUNTS != 0 {
        out.extend_from_slice(&counts.received.to_le_bytes());
        out.extend_from_slice(&counts.failures.to_le_bytes());
    }
    for time in [envelope.expires_at, envelope.deliver_at].into_iter().flatten() {
        out.extend_from_slice(&time.as_millis().to_le_bytes());
    }
    out.extend(envelope.priority);
    if let Some(group) = group {
        out.extend_from_slice(&(group.len() as u16).to_le_bytes());
        out.extend_from_slice(group.as_bytes());
    }
    out.extend_from_slice(&[encoding_byte(message.encoding)]);
    out.extend_from_slice(&(message.id.as_str().len() as u16).to_le_bytes());
    out.extend_from_slice(message.id.as_str().as_bytes());
    out.extend_from_slice(&(message.head.len() as u32).to_le_bytes());
}

/// Whether a message can be written into a record of at most `record_bytes_max` bytes.
pub(crate) fn fits(message: &Message, record_bytes_max: usize) -> bool {
    let group = message.envelope.group.as_deref().map_or(0, str::len);
    let id = message.id.as_str().len();
    let short = usize::from(u16::MAX);
    group <= short
        && id <= short
        && APPENDED_FIXED_BYTES_MAX + group + id + message.size_bytes() <= record_bytes_max
}

/// Bytes of an appended record before its head.
pub(crate) fn appended_prefix_bytes(message: &Message, counts: Counts) -> usize {
    let envelope = &message.envelope;
    let times = usize::from(envelope.expires_at.is_some()) + usize::from(envelope.deliver_at.is_some());
    let counted = usize::from(counts != Counts::default());
    let group = envelope.group.as_deref().map_or(0, |group| 2 + group.len());
    let priority = usize::from(envelope.priority.is_some());
    28 + 8 * (times + counted) + priority + group + message.id.as_str().len()
}

/// A fact as it is written, without a message: borrows what it names.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SmallFact<'a> {
    Opened { redelivered: &'a [(ChannelId, Seq)] },
    Catalog { next_channel: u32, seq_floor: u64 },
    Channel { id: ChannelId, pattern: Pattern, next_seq: Seq, mark: Seq, name: &'a ChannelName },
    Forgotten { id: ChannelId },
    Settled { channel: ChannelId, accepted: &'a Ranges, rejected: &'a Ranges },
    Requeued { channel: ChannelId, first: Seq, items: &'a [Requeue] },
    Mark { channel: ChannelId, upto: Seq },
}

/// Writes a fact without a message and returns its kind.
pub(crate) fn write(out: &mut BytesMut, fact: &SmallFact<'_>) -> u8 {
    match fact {
        SmallFact::Opened { redelivered } => {
            varint::write(out, redelivered.len() as u64);
            redelivered.iter().for_each(|(channel, upto)| write_place(out, *channel, *upto));
            OPENED
        }
        SmallFact::Catalog { next_channel, seq_floor } => {
            out.extend_from_slice(&next_channel.to_le_bytes());
            out.extend_from_slice(&seq_floor.to_le_bytes());
            CATALOG
        }
        SmallFact::Channel { id, pattern, next_seq, mark, name } => {
            out.extend_from_slice(&id.0.to_le_bytes());
            out.extend_from_slice(&[pattern_byte(*pattern)]);
            out.extend_from_slice(&next_seq.get().to_le_bytes());
            out.extend_from_slice(&mark.get().to_le_bytes());
            out.extend_from_slice(name.as_str().as_bytes());
            CHANNEL
        }
        SmallFact::Forgotten { id } => {
            out.extend_from_slice(&id.0.to_le_bytes());
            FORGOTTEN
        }
        SmallFact::Settled { channel, accepted, rejected } => {
            out.extend_from_slice(&channel.0.to_le_bytes());
            write_ranges(out, accepted);
            write_ranges(out, rejected);
            SETTLED
        }
        SmallFact::Requeued { channel, first, items } => {
            write_place(out, *channel, *first);
            write_requeues(out, items);
            REQUEUED
        }
        SmallFact::Mark { channel, upto } => {
            write_place(out, *channel, *upto);
            MARK
        }
    }
}

/// Writes what stands before the bytes of one part of a commit.
pub(crate) fn write_part_header(out: &mut BytesMut, kind: u8, bytes: usize) {
    out.extend_from_slice(&[kind]);
    varint::write(out, bytes as u64);
}

/// An appended record taken apart, nothing copied.
struct Parts<'a> {
    header: Header,
    published_at: u64,
    expires_at: Option<u64>,
    deliver_at: Option<u64>,
    priority: Option<u8>,
    group: Option<&'a [u8]>,
    encoding: Encoding,
    id: &'a str,
    head: &'a [u8],
    body: &'a [u8],
}

impl<'a> Parts<'a> {
    /// Reads the payload of an appended record.
    fn read(reader: &mut Reader<'a>, part: u32) -> Result<Self, Malformed> {
        let flags = reader.u8()?;
        if flags & !HAS_ALL != 0 {
            return Err(Malformed);
        }
        let has = |flag: u8| flags & flag != 0;
        let channel = ChannelId(reader.u32()?);
        let seq = Seq::new(reader.u64()?);
        let published_at = reader.u64()?;
        let counts = match has(HAS_COUNTS) {
            true => Counts { received: reader.u32()?, failures: reader.u32()? },
            false => Counts::default(),
        };
        let expires_at = has(HAS_EXPIRES).then(|| reader.u64()).transpose()?;
        let deliver_at = has(HAS_DELIVER).then(|| reader.u64()).transpose()?;
        let priority = has(HAS_PRIORITY).then(|| reader.u8()).transpose()?;
        let group = match has(HAS_GROUP) {
            true => {
                let length = reader.u16()?;
                Some(reader.bytes(usize::from(length))?)
            }
            false => None,
        };
        let encoding = encoding(reader.u8()?)?;
        let id_length = reader.u16()?;
        let id = text(reader.bytes(usize::from(id_length))?)?;
        let head_length = reader.u32()? as usize;
        let rest = reader.rest();
        let (head, body) = rest.split_at_checked(head_length).ok_or(Malformed)?;
        let size = u32::try_from(rest.len()).map_err(|_| Malformed)?;
        let header = Header { channel, seq, counts, size, part };
        Ok(Self { header, published_at, expires_at, deliver_at, priority, group, encoding, id, head, body })
    }

    fn envelope(&self) -> Result<Envelope, Malformed> {
        Ok(Envelope {
            published_at: Timestamp::from_millis(self.published_at),
            expires_at: self.expires_at.map(Timestamp::from_millis),
            deliver_at: self.deliver_at.map(Timestamp::from_millis),
            priority: self.priority,
            group: self.group.map(text).transpose()?.map(Box::from),
        })
    }
}

/// Reads a fact that may also be part of a commit.
fn read_single(kind: u8, payload: &[u8], part: u32) -> Result<Fact, Malformed> {
    let mut reader = Reader::new(payload);
    Ok(match kind {
        APPENDED => Fact::Appended(Parts::read(&mut reader, part)?.header),
        SETTLED => Fact::Settled {
            channel: ChannelId(reader.u32()?),
            accepted: read_ranges(&mut reader)?,
            rejected: read_ranges(&mut reader)?,
        },
        REQUEUED => Fact::Requeued {
            channel: ChannelId(reader.u32()?),
            first: Seq::new(reader.u64()?),
            items: read_requeues(&mut reader)?,
        },
        _ => return Err(Malformed),
    })
}

fn read_part<'a>(reader: &mut Reader<'a>) -> Result<(u8, &'a [u8]), Malformed> {
    let kind = reader.u8()?;
    let length = usize::try_from(reader.varint()?).map_err(|_| Malformed)?;
    Ok((kind, reader.bytes(length)?))
}

fn read_places(reader: &mut Reader<'_>) -> Result<Vec<(ChannelId, Seq)>, Malformed> {
    let mut places = Vec::new();
    for _ in 0..reader.varint()? {
        places.push((ChannelId(reader.u32()?), Seq::new(reader.u64()?)));
    }
    Ok(places)
}

fn write_place(out: &mut BytesMut, channel: ChannelId, upto: Seq) {
    out.extend_from_slice(&channel.0.to_le_bytes());
    out.extend_from_slice(&upto.get().to_le_bytes());
}

fn write_ranges(out: &mut BytesMut, ranges: &Ranges) {
    varint::write(out, ranges.as_slice().len() as u64);
    let mut after = 0;
    for (first, last) in ranges.as_slice() {
        varint::write(out, first.get() - after);
        varint::write(out, last.get() - first.get());
        after = last.get();
    }
}

fn read_ranges(reader: &mut Reader<'_>) -> Result<Vec<(Seq, Seq)>, Malformed> {
    let count = reader.varint()?;
    let mut ranges = Vec::new();
    let mut after = 0u64;
    for _ in 0..count {
        let first = after.checked_add(reader.varint()?).ok_or(Malformed)?;
        let last = first.checked_add(reader.varint()?).ok_or(Malformed)?;
        ranges.push((Seq::new(first), Seq::new(last)));
        after = last;
    }
    Ok(ranges)
}

fn write_requeues(out: &mut BytesMut, items: &[Requeue]) {
    varint::write(out, items.len() as u64);
    let mut before = 0;
    for item in items {
        varint::write(out, item.seq.get() - before);
        varint::write(out, u64::from(item.counts.received));
        varint::write(out, u64::from(item.counts.failures));
        before = item.seq.get();
    }
}

fn read_requeues(reader: &mut Reader<'_>) -> Result<Vec<Requeue>, Malformed> {
    let count = reader.varint()?;
    let mut items = Vec::new();
    let mut before = 0u64;
    for _ in 0..count {
        let seq = before.checked_add(reader.varint()?).ok_or(Malformed)?;
        let counts = Counts { received: reader.varint_u32()?, failures: reader.varint_u32()? };
        items.push(Requeue { seq: Seq::new(seq), counts });
        before = seq;
    }
    Ok(items)
}

fn text(bytes: &[u8]) -> Result<&str, Malformed> {
    std::str::from_utf8(bytes).map_err(|_| Malformed)
}

const fn pattern_byte(pattern: Pattern) -> u8 {
    match pattern {
        Pattern::Queues => 1,
        Pattern::Events => 2,
        Pattern::EventsStore => 3,
        Pattern::Commands => 4,
        Pattern::Queries => 5,
    }
}

const fn pattern(byte: u8) -> Result<Pattern, Malformed> {
    Ok(match byte {
        1 => Pattern::Queues,
        2 => Pattern::Events,
        3 => Pattern::EventsStore,
        4 => Pattern::Commands,
        5 => Pattern::Queries,
        _ => return Err(Malformed),
    })
}

const fn encoding_byte(encoding: Encoding) -> u8 {
    match encoding {
        Encoding::Amqp => 1,
        Encoding::Stomp => 2,
        Encoding::Anypoint => 3,
        Encoding::KubeMq => 4,
        Encoding::Plain => 5,
    }
}

const fn encoding(byte: u8) -> Result<Encoding, Malformed> {
    Ok(match byte {
        1 => Encoding::Amqp,
        2 => Encoding::Stomp,
        3 => Encoding::Anypoint,
        4 => Encoding::KubeMq,
        5 => Encoding::Plain,
        _ => return Err(Malformed),
    })
}

const OPENED: u8 = 1;
const CATALOG: u8 = 2;
const CHANNEL: u8 = 3;
const FORGOTTEN: u8 = 4;
/// The kind of a record that holds one message.
pub(crate) const APPENDED: u8 = 5;
const SETTLED: u8 = 6;
const REQUEUED: u8 = 7;
const MARK: u8 = 8;
/// The kind of a record that holds several facts.
pub(crate) const COMMIT: u8 = 9;

const HAS_COUNTS: u8 = 1;
const HAS_EXPIRES: u8 = 2;
const HAS_DELIVER: u8 = 4;
const HAS_PRIORITY: u8 = 8;
const HAS_GROUP: u8 = 16;
const HAS_ALL: u8 = 31;

/// Bytes of an appended record besides group text, id, head and body, with every flag set.
const APPENDED_FIXED_BYTES_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_message() -> impl Strategy<Value = Message> {
        let times = (any::<u64>(), any::<Option<u64>>(), any::<Option<u64>>());
        let bytes = || proptest::collection::vec(any::<u8>(), 0..40);
        (times, any::<Option<u8>>(), any::<Option<String>>(), "[a-z0-9-]{0,40}", bytes(), bytes(), 1u8..6)
            .prop_map(|((published, expires, deliver), priority, group, id, head, body, byte)| Message {
                id: MessageId::new(id),
                envelope: Envelope {
                    published_at: Timestamp::from_millis(published),
                    expires_at: expires.map(Timestamp::from_millis),
                    deliver_at: deliver.map(Timestamp::from_millis),
                    priority,
                    group: group.map(Box::from),
                },
                encoding: encoding(byte).unwrap(),
                head: head.into(),
                body: body.into(),
            })
    }

    fn written(channel: ChannelId, seq: Seq, counts: Counts, message: &Message) -> Bytes {
        let mut record = BytesMut::new();
        write_appended(&mut record, channel, seq, counts, message);
        assert_eq!(record.len(), appended_prefix_bytes(message, counts));
        record.extend_from_slice(&message.head);
        record.extend_from_slice(&message.body);
        record.freeze()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn a_message_comes_back_as_it_was(
            original in any_message(), id: u32, seq: u64, received: u32, failures: u32,
        ) {
            let (channel, seq, counts) = (ChannelId(id), Seq::new(seq), Counts { received, failures });
            let record = written(channel, seq, counts, &original);
            let (header, read_back) = message(APPENDED, &record, 0).unwrap();
            prop_assert_eq!(&read_back, &original);
            let size = original.size_bytes() as u32;
            prop_assert_eq!(header, Header { channel, seq, counts, size, part: 0 });
            prop_assert_eq!(read(APPENDED, &record), Ok(Fact::Appended(header)));
            prop_assert!(fits(&original, record.len() + APPENDED_FIXED_BYTES_MAX));
            prop_assert!(!fits(&original, record.len() - 1), "never promises more room than there is");
        }

        #[test]
        fn a_cut_record_is_malformed_and_no_bytes_panic(original in any_message(), kind: u8, bytes: Vec<u8>) {
            let record = written(ChannelId(1), Seq::new(2), Counts::default(), &original);
            for cut in 0..record.len() - original.size_bytes() {
                prop_assert_eq!(read(APPENDED, &record[..cut]), Err(Malformed), "cut at {}", cut);
            }
            let bytes = Bytes::from(bytes);
            for kind in [kind, kind % 10] {
                read(kind, &bytes).ok();
                message(kind, &bytes, u32::from(kind) % 3).ok();
            }
        }

        #[test]
        fn ranges_and_requeues_come_back(seqs in proptest::collection::btree_set(any::<u32>(), 0..50)) {
            let seqs: Vec<Seq> = seqs.into_iter().map(|seq| Seq::new(u64::from(seq))).collect();
            let (accepted, rejected): (Vec<Seq>, Vec<Seq>) = seqs.iter().partition(|seq| seq.get() % 3 != 0);
            let accepted: Ranges = accepted.into_iter().collect();
            let rejected: Ranges = rejected.into_iter().collect();
            let channel = ChannelId(9);
            let mut out = BytesMut::new();
            let settled = SmallFact::Settled { channel, accepted: &accepted, rejected: &rejected };
            let kind = write(&mut out, &settled);
            let (accepted, rejected) = (accepted.as_slice().to_vec(), rejected.as_slice().to_vec());
            prop_assert_eq!(read(kind, &out), Ok(Fact::Settled { channel, accepted, rejected }));
            let count = |seq: Seq| Counts { received: seq.get() as u32, failures: seq.get() as u32 / 2 };
            let items: Vec<Requeue> =
                seqs.iter().map(|seq| Requeue { seq: *seq, counts: count(*seq) }).collect();
            let first = Seq::new(7);
            out.clear();
            let kind = write(&mut out, &SmallFact::Requeued { channel, first, items: &items });
            prop_assert_eq!(read(kind, &out), Ok(Fact::Requeued { channel, first, items }));
        }

        #[test]
        fn the_messages_of_a_commit_come_back(
            originals in proptest::collection::vec(any_message(), 1..5),
        ) {
            let mut record = BytesMut::new();
            varint::write(&mut record, originals.len() as u64 + 1);
            let mut settled = BytesMut::new();
            let ranges: Ranges = [Seq::new(4)].into_iter().collect();
            let (channel, rejected) = (ChannelId(1), Ranges::new());
            let fact = SmallFact::Settled { channel, accepted: &ranges, rejected: &rejected };
            let kind = write(&mut settled, &fact);
            write_part_header(&mut record, kind, settled.len());
            record.extend_from_slice(&settled);
            for (number, original) in originals.iter().enumerate() {
                let one = written(ChannelId(3), Seq::new(number as u64), Counts::default(), original);
                write_part_header(&mut record, APPENDED, one.len());
                record.extend_from_slice(&one);
            }
            let record = record.freeze();
            let Ok(Fact::Commit(parts)) = read(COMMIT, &record) else { panic!("a commit") };
            prop_assert_eq!(parts.len(), originals.len() + 1);
            prop_assert_eq!(message(COMMIT, &record, 1), Err(Malformed), "a settlement is no message");
            prop_assert_eq!(message(COMMIT, &record, originals.len() as u32 + 2), Err(Malformed));
            for (part, original) in (2..).zip(&originals) {
                let (header, read_back) = message(COMMIT, &record, part).unwrap();
                prop_assert_eq!(&read_back, original);
                prop_assert_eq!(&parts[part as usize - 1], &Fact::Appended(header));
            }
        }
    }

    #[test]
    fn every_small_fact_comes_back() {
        let name = ChannelName::parse("jobs.email").unwrap();
        let (id, next_seq, mark) = (ChannelId(7), Seq::new(u64::MAX), Seq::new(5));
        let pattern = Pattern::EventsStore;
        let redelivered = vec![(id, mark), (ChannelId(8), next_seq)];
        let facts = [
            (
                SmallFact::Opened { redelivered: &redelivered },
                Fact::Opened { redelivered: redelivered.clone() },
            ),
            (
                SmallFact::Catalog { next_channel: 3, seq_floor: 8 },
                Fact::Catalog { next_channel: 3, seq_floor: 8 },
            ),
            (
                SmallFact::Channel { id, pattern, next_seq, mark, name: &name },
                Fact::Channel { id, pattern, next_seq, mark, name: name.clone() },
            ),
            (SmallFact::Forgotten { id }, Fact::Forgotten { id }),
            (SmallFact::Mark { channel: id, upto: mark }, Fact::Mark { channel: id, upto: mark }),
        ];
        for (written, fact) in facts {
            let mut out = BytesMut::new();
            let kind = write(&mut out, &written);
            assert_eq!(read(kind, &out), Ok(fact));
        }
        assert_eq!(read(0, &[]), Err(Malformed));
        assert_eq!(read(99, &[]), Err(Malformed), "an unknown kind is never skipped");
    }

    #[test]
    fn the_bytes_of_a_kind_never_change() {
        let envelope =
            Envelope { published_at: Timestamp::from_millis(258), priority: Some(4), ..Envelope::default() };
        let message = Message {
            id: MessageId::new("m1"),
            envelope,
            encoding: Encoding::Stomp,
            head: Bytes::from_static(b"a:b\n"),
            body: Bytes::from_static(b"hi"),
        };
        let record = written(ChannelId(1), Seq::new(3), Counts { received: 2, failures: 1 }, &message);
        let expected = b"\x09\x01\0\0\0\x03\0\0\0\0\0\0\0\x02\x01\0\0\0\0\0\0\x02\0\0\0\x01\0\0\0\
            \x04\x02\x02\0m1\x04\0\0\0a:b\nhi";
        assert_eq!(&record[..], &expected[..]);
        assert_eq!((APPENDED, COMMIT), (5, 9));
    }
}
