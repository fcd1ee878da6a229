//! SEND to a stored message: which headers travel, which the server owns, what the broker acts on.

use std::sync::Arc;
use std::time::Duration;

use berth_stomp::{Frame, Header};
use berth_types::{Encoding, Envelope, Message, MessageId, Now, Timestamp};
use bytes::{Bytes, BytesMut};

/// A body up to this size is stored in the allocation of its head. A longer one stays a part of the read
/// buffer and keeps all of that alive as long as the message lives, which for small bodies would cost a
/// multiple of their size.
const BODY_COPIED_BYTES_MAX: usize = 4096;

/// Builds the message of a SEND. `generated_id` is taken when the sender names none.
pub(crate) fn message(now: Now, frame: &mut Frame, generated_id: impl FnOnce() -> MessageId) -> Arc<Message> {
    let body = frame.take_body();
    let copies_body = body.len() <= BODY_COPIED_BYTES_MAX;
    let room = frame.head_bytes() + if copies_body { body.len() } else { 0 };
    let mut head = BytesMut::with_capacity(room);
    let mut envelope = Envelope { published_at: now.wall, ..Envelope::default() };
    let mut own_id = None;
    for header in frame.headers() {
        if is_owned_by_server(header.raw_name()) {
            continue;
        }
        read_envelope(now, &header, &mut envelope, &mut own_id);
        header.write_stored(&mut head);
    }
    let (head, body) = if copies_body { join(head, &body) } else { (head.freeze(), body) };
    let id = own_id.unwrap_or_else(generated_id);
    Arc::new(Message { id, envelope, encoding: Encoding::Stomp, head, body })
}

/// Headers of a SEND that do not travel: those that steer the frame itself, and those by which the server
/// speaks on MESSAGE, which a sender must not be able to forge.
fn is_owned_by_server(name: &str) -> bool {
    matches!(
        name,
        "destination"
            | "receipt"
            | "transaction"
            | "content-length"
            | "message-id"
            | "ack"
            | "subscription"
            | "redelivered"
            | "delivery-count"
            | "timestamp"
    )
}

/// Takes out what the broker acts on. The first of a repeated header counts; text that is no number means
/// nothing.
fn read_envelope(now: Now, header: &Header<'_>, envelope: &mut Envelope, own_id: &mut Option<MessageId>) {
    match header.raw_name() {
        "expires" if envelope.expires_at.is_none() => {
            envelope.expires_at = number(header).filter(|ms| *ms > 0).map(Timestamp::from_millis);
        }
        "delay" | "AMQ_SCHEDULED_DELAY" if envelope.deliver_at.is_none() => {
            let delay = number(header).filter(|ms| *ms > 0).map(Duration::from_millis);
            envelope.deliver_at = delay.map(|delay| now.wall + delay);
        }
        "priority" if envelope.priority.is_none() => {
            envelope.priority = number(header).and_then(|n| u8::try_from(n).ok()).filter(|n| *n <= 9);
        }
        "amqp-message-id" if own_id.is_none() => {
            let value = header.value();
            *own_id = Some(value).filter(|id| !id.is_empty()).map(|id| MessageId::new(id.as_ref()));
        }
        _ => {}
    }
}

fn number(header: &Header<'_>) -> Option<u64> {
    header.raw_value().trim().parse().ok()
}

fn join(mut head: BytesMut, body: &[u8]) -> (Bytes, Bytes) {
    let at = head.len();
    head.extend_from_slice(body);
    let mut head = head.freeze();
    let body = head.split_off(at);
    (head, body)
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_stomp::{Decoder, Limits, Mode, Role, Version};
    use berth_types::Instant;

    const NOW: Now = Now { monotonic: Instant::ZERO, wall: Timestamp::from_millis(1_000_000) };

    fn sent(lines: &str, body: &[u8]) -> Arc<Message> {
        let head = format!("SEND\ndestination:/queue/q\n{lines}content-length:{}\n\n", body.len());
        let mut input = BytesMut::from(&[head.as_bytes(), body, b"\0"].concat()[..]);
        let mut decoder = Decoder::new(Role::Server, Limits::default());
        let mut frame = decoder.decode(&mut input, Mode::Agreed(Version::V1_2)).unwrap().unwrap();
        message(NOW, &mut frame, || MessageId::new("generated"))
    }

    #[test]
    fn the_broker_acts_on_numbers_and_on_nothing_else() {
        let message = sent("expires:1800000000000\npriority:7\ndelay:250\namqp-message-id:own\n", b"x");
        assert_eq!(message.envelope.expires_at, Some(Timestamp::from_millis(1_800_000_000_000)));
        assert_eq!(message.envelope.deliver_at, Some(Timestamp::from_millis(1_000_250)));
        assert_eq!((message.envelope.priority, message.id.as_str()), (Some(7), "own"));
        assert_eq!(message.envelope.published_at, NOW.wall);
        for lines in [
            "",
            "expires:0\npriority:10\ndelay:0\namqp-message-id:\n",
            "expires:soon\npriority:high\ndelay:-5\n",
            "expires:99999999999999999999\npriority:256\nAMQ_SCHEDULED_DELAY:1e3\n",
        ] {
            let message = sent(lines, b"x");
            let envelope = Envelope { published_at: NOW.wall, ..Envelope::default() };
            assert_eq!((&message.envelope, message.id.as_str()), (&envelope, "generated"), "{lines:?}");
            assert_eq!(message.head, lines.as_bytes(), "but it travels");
        }
    }

    #[test]
    fn the_first_of_repeated_headers_counts() {
        let message = sent("priority:1\npriority:2\nAMQ_SCHEDULED_DELAY:5\ndelay:9\n", b"");
        assert_eq!(message.envelope.priority, Some(1));
        assert_eq!(message.envelope.deliver_at, Some(Timestamp::from_millis(1_000_005)));
    }

    #[test]
    fn a_short_body_shares_its_heads_memory_and_a_long_one_is_not_copied() {
        let short = sent("k:v\n", &[b'x'; BODY_COPIED_BYTES_MAX]);
        assert_eq!(short.head.as_ptr_range().end, short.body.as_ptr());

        let head = format!("SEND\ncontent-length:{}\n\n", BODY_COPIED_BYTES_MAX + 1);
        let body = [b'x'; BODY_COPIED_BYTES_MAX + 1];
        let mut input = BytesMut::from(&[head.as_bytes(), &body, b"\0"].concat()[..]);
        let body_in_buffer = input.as_ptr().wrapping_add(head.len());
        let mut decoder = Decoder::new(Role::Server, Limits::default());
        let mut frame = decoder.decode(&mut input, Mode::Agreed(Version::V1_2)).unwrap().unwrap();
        let long = message(NOW, &mut frame, || MessageId::new("generated"));
        assert_eq!(long.body.as_ptr(), body_in_buffer);
    }
}
