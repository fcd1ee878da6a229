//! Names of deliveries on the wire: message ids and ack tokens, both computed from the delivery and a
//! secret of the connection, and turned back without a table.
//!
//! A token is a keyed permutation of the delivery's number, written as a UUID: opaque, different from every
//! message-id, and not to be guessed from tokens of other connections. Whether a delivery so named is
//! pending is the engine's to say.

use std::ops::Range;

use berth_types::DeliveryId;

const HALF: u64 = (1 << 61) - 1;
const ROUNDS: usize = 6;

/// Makes and reads the names of one connection's deliveries.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ids {
    session: u64,
    keys: [u64; ROUNDS],
}

impl Ids {
    /// `seed` is 128 random bits that no other connection has.
    pub(crate) fn new(seed: u128) -> Self {
        let [high, low] = [(seed >> 64) as u64, seed as u64];
        let mut keys = [0; ROUNDS];
        for (round, key) in (1u64..).zip(&mut keys) {
            *key = mix(high ^ mix(low.wrapping_add(round.wrapping_mul(0x9e37_79b9_7f4a_7c15))));
        }
        Self { session: mix(mix(high).wrapping_add(low)), keys }
    }

    /// The name of the session: unique on the server, and tells nothing of the seed.
    pub(crate) fn session(&self) -> String {
        format!("{:016x}", self.session)
    }

    /// The id of the `number`th message that this session publishes.
    pub(crate) fn write_published_id(&self, out: &mut String, number: u64) {
        out.clear();
        push_hex(out, self.session, 16);
        out.push_str("-m");
        push_hex(out, number, hex_digits(number));
    }

    /// The message-id of a delivery to a subscription with this id.
    pub(crate) fn write_message_id(&self, out: &mut String, delivery: DeliveryId, subscription: u32) {
        out.clear();
        push_hex(out, self.session, 16);
        out.push('-');
        push_hex(out, delivery.get(), hex_digits(delivery.get()));
        out.push('-');
        push_hex(out, u64::from(subscription), 8);
    }

    /// The delivery that a message-id of this connection names, and the hash of its subscription's id.
    pub(crate) fn read_message_id(&self, text: &str) -> Option<(DeliveryId, u32)> {
        let (session, rest) = text.split_once('-')?;
        let (delivery, subscription) = rest.split_once('-')?;
        if session.len() != 16 || hex(session.as_bytes())? != self.session || subscription.len() != 8 {
            return None;
        }
        let subscription = u32::try_from(hex(subscription.as_bytes())?).ok()?;
        Some((DeliveryId::new(hex(delivery.as_bytes())?), subscription))
    }

    /// The ack token of a delivery.
    pub(crate) fn write_token(&self, out: &mut String, delivery: DeliveryId) {
        let (mut left, mut right) = (delivery.get() >> 61, delivery.get() & HALF);
        for key in self.keys {
            (left, right) = (right, left ^ (mix(right ^ key) & HALF));
        }
        out.clear();
        // 122 bits, with the version (4) and the variant of a random UUID (RFC 9562, section 5.4) between
        // them.
        push_hex(out, left >> 29, 8);
        out.push('-');
        push_hex(out, (left >> 13) & 0xffff, 4);
        out.push('-');
        push_hex(out, 0x4000 | ((left >> 1) & 0xfff), 4);
        out.push('-');
        push_hex(out, 0x8000 | ((left & 1) << 13) | (right >> 48), 4);
        out.push('-');
        push_hex(out, right & 0xffff_ffff_ffff, 12);
    }

    /// The delivery that a token of this connection names.
    pub(crate) fn read_token(&self, text: &str) -> Option<DeliveryId> {
        let text = text.as_bytes();
        if text.len() != 36 || [8, 13, 18, 23].iter().any(|dash| text.get(*dash) != Some(&b'-')) {
            return None;
        }
        let part = |range: Range<usize>| hex(text.get(range)?);
        let (a1, a2, b, c, d) = (part(0..8)?, part(9..13)?, part(14..18)?, part(19..23)?, part(24..36)?);
        if b >> 12 != 4 || c >> 14 != 2 {
            return None;
        }
        let mut left = (a1 << 29) | (a2 << 13) | ((b & 0xfff) << 1) | ((c >> 13) & 1);
        let mut right = ((c & 0x1fff) << 48) | d;
        for key in self.keys.into_iter().rev() {
            (left, right) = (right ^ (mix(left ^ key) & HALF), left);
        }
        // The upper half holds three bits of the number and zeros: a guess fails here.
        (left < 8).then(|| DeliveryId::new((left << 61) | right))
    }
}

/// The hash of a subscription's id that its message ids carry, so that an ACK of 1.1 can be held against
/// both.
pub(crate) fn hash(subscription: &str) -> u32 {
    // FNV-1a: short keys, no secrets.
    subscription.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

fn push_hex(out: &mut String, value: u64, digits: u32) {
    for place in (0..digits).rev() {
        let digit = (value >> (4 * place)) & 0xf;
        out.push(char::from_digit(digit as u32, 16).unwrap_or('0'));
    }
}

const fn hex_digits(value: u64) -> u32 {
    let bits = u64::BITS - value.leading_zeros();
    if bits == 0 { 1 } else { bits.div_ceil(4) }
}

/// At most 16 lower-case hexadecimal digits, as we write them.
fn hex(text: &[u8]) -> Option<u64> {
    if text.is_empty() || text.len() > 16 {
        return None;
    }
    text.iter().try_fold(0, |value, byte| {
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            _ => return None,
        };
        Some(value << 4 | u64::from(digit))
    })
}

/// The finalizer of splitmix64: every bit of the input moves every bit of the output.
const fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn token(ids: &Ids, delivery: u64) -> String {
        let mut out = String::new();
        ids.write_token(&mut out, DeliveryId::new(delivery));
        out
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]
        #[test]
        fn names_turn_back(seed: u128, delivery: u64, subscription: u32) {
            let ids = Ids::new(seed);
            let text = token(&ids, delivery);
            prop_assert_eq!(text.len(), 36);
            prop_assert_eq!(ids.read_token(&text), Some(DeliveryId::new(delivery)));
            prop_assert_eq!(Ids::new(seed ^ 1).read_token(&text), None, "another connection's");
            let mut message_id = String::new();
            ids.write_message_id(&mut message_id, DeliveryId::new(delivery), subscription);
            prop_assert_eq!(
                ids.read_message_id(&message_id),
                Some((DeliveryId::new(delivery), subscription))
            );
            prop_assert_eq!(Ids::new(seed ^ 1).read_message_id(&message_id), None);
            prop_assert_eq!(ids.read_token(&message_id), None);
            prop_assert_ne!(text, message_id);
        }

        #[test]
        fn any_text_is_read_without_harm(text in "[0-9a-f-]{0,40}") {
            let ids = Ids::new(7);
            prop_assert_eq!(ids.read_token(&text), None);
            prop_assert_eq!(ids.read_message_id(&text), None);
        }
    }

    #[test]
    fn tokens_look_random_and_are_all_different() {
        let ids = Ids::new(1);
        let tokens: std::collections::BTreeSet<String> = (0..10_000).map(|d| token(&ids, d)).collect();
        assert_eq!(tokens.len(), 10_000);
        assert!(tokens.iter().all(|t| t.as_bytes()[14] == b'4' && b"89ab".contains(&t.as_bytes()[19])));
        let first: std::collections::BTreeSet<&str> = tokens.iter().map(|t| &t[..8]).collect();
        assert!(first.len() > 9_900, "neighbours share no prefix");
    }
}
