//! The handshake: versions, heart-beats, what CONNECT says about the client.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use berth_types::limits::STOMP_HEART_BEAT_MS_MIN;

use crate::{Frame, Violation};

/// A version of the protocol.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Version {
    /// 1.0: no escapes.
    #[default]
    V1_0,
    /// 1.1: escapes, heart-beats, NACK.
    V1_1,
    /// 1.2: CR LF, `ack` header on MESSAGE.
    V1_2,
}

impl Version {
    /// As on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::V1_0 => "1.0",
            Self::V1_1 => "1.1",
            Self::V1_2 => "1.2",
        }
    }

    /// The highest version in an `accept-version` list that we speak; without the header it is 1.0.
    /// Order does not matter, blanks around the commas are forgiven (STOMP 1.2, "Protocol Negotiation").
    pub fn negotiate(accept: Option<&str>) -> Option<Self> {
        let Some(accept) = accept else { return Some(Self::V1_0) };
        accept
            .split(',')
            .filter_map(|word| match word.trim() {
                "1.0" => Some(Self::V1_0),
                "1.1" => Some(Self::V1_1),
                "1.2" => Some(Self::V1_2),
                _ => None,
            })
            .max()
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A `heart-beat` header: what its sender can do and what it wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HeartBeat {
    /// The sender guarantees something at least every so many milliseconds; 0: cannot.
    pub sends_ms: u64,
    /// The sender wants something at least every so many milliseconds; 0: does not.
    pub wants_ms: u64,
}

impl HeartBeat {
    /// Reads the two numbers of the header. Numbers too large for 64 bits are as good as never.
    pub fn parse(text: &str) -> Result<Self, Violation> {
        let (sends, wants) = text.split_once(',').ok_or(Violation::InvalidHeartBeat)?;
        Ok(Self { sends_ms: millis(sends)?, wants_ms: millis(wants)? })
    }

    /// What the server offers when its setting is `heart_beat_ms`; 0 switches beats off.
    pub fn offer(heart_beat_ms: u64) -> Self {
        let ms = if heart_beat_ms == 0 { 0 } else { heart_beat_ms.max(STOMP_HEART_BEAT_MS_MIN) };
        Self { sends_ms: ms, wants_ms: ms }
    }

    /// The agreed period from the sender of `self` to the sender of `other`: none when either does not care
    /// (STOMP 1.2, "Heart-beating").
    pub fn period_to(self, other: Self) -> Option<Duration> {
        if self.sends_ms == 0 || other.wants_ms == 0 {
            return None;
        }
        Some(Duration::from_millis(self.sends_ms.max(other.wants_ms).max(STOMP_HEART_BEAT_MS_MIN)))
    }
}

fn millis(text: &str) -> Result<u64, Violation> {
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return Err(Violation::InvalidHeartBeat);
    }
    Ok(text.parse().unwrap_or(u64::MAX))
}

/// A CONNECT frame whose version has been settled.
#[derive(Clone, Debug)]
pub struct Connect {
    pub(crate) frame: Frame,
}

impl Connect {
    /// The version of this connection.
    pub const fn version(&self) -> Version {
        self.frame.version
    }

    /// Who wants to come in.
    pub fn login(&self) -> Option<Cow<'_, str>> {
        self.frame.header("login")
    }

    /// The proof. Never logged: not part of any `Debug` output that a server prints at a level of its own.
    pub fn passcode(&self) -> Option<Cow<'_, str>> {
        self.frame.header("passcode")
    }

    /// The virtual host that the client asks for.
    pub fn host(&self) -> Option<Cow<'_, str>> {
        self.frame.header("host")
    }

    /// The client's stable name, for durable subscriptions.
    pub fn client_id(&self) -> Option<Cow<'_, str>> {
        self.frame.header("client-id")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn v_03_highest_common_version() {
        for (accept, version) in [
            (None, Some(Version::V1_0)),
            (Some("1.0"), Some(Version::V1_0)),
            (Some("1.0,1.1,1.2"), Some(Version::V1_2)),
            (Some("1.1"), Some(Version::V1_1)),
            (Some("1.1,1.0"), Some(Version::V1_1)),
            (Some("1.2,9.9"), Some(Version::V1_2)),
            (Some("1.0, 1.1"), Some(Version::V1_1)),
            (Some("1.10"), None),
            (Some(""), None),
            (Some("2.0"), None),
            (Some("0.9"), None),
        ] {
            assert_eq!(Version::negotiate(accept), version, "{accept:?}");
        }
    }

    #[test]
    fn hb_01_only_two_decimal_numbers() {
        for bad in ["a,b", "-1,0", "1", "1,2,3", "", ",", "1,", "+1,0", "0x1,0", "1.5,0", " 1,0"] {
            assert_eq!(HeartBeat::parse(bad), Err(Violation::InvalidHeartBeat), "{bad:?}");
        }
        assert_eq!(HeartBeat::parse("0,0"), Ok(HeartBeat::default()));
        assert_eq!(HeartBeat::parse("1,2"), Ok(HeartBeat { sends_ms: 1, wants_ms: 2 }));
        let huge = HeartBeat::parse("99999999999999999999999,2").unwrap();
        assert_eq!(huge.sends_ms, u64::MAX);
    }

    #[test]
    fn hb_03_effective_periods() {
        let ms = |ms| Some(Duration::from_millis(ms));
        for (client, server, inward, outward) in [
            ((0, 0), (10_000, 10_000), None, None),
            ((5_000, 5_000), (0, 0), None, None),
            ((5_000, 0), (10_000, 20_000), ms(20_000), None),
            ((0, 5_000), (10_000, 20_000), None, ms(10_000)),
            ((10_000, 10_000), (5_000, 20_000), ms(20_000), ms(10_000)),
            ((1_000, 1_000), (10_000, 10_000), ms(10_000), ms(10_000)),
            ((1, 1), (500, 500), ms(500), ms(500)),
        ] {
            let client = HeartBeat { sends_ms: client.0, wants_ms: client.1 };
            let server = HeartBeat { sends_ms: server.0, wants_ms: server.1 };
            assert_eq!((client.period_to(server), server.period_to(client)), (inward, outward));
        }
        assert_eq!(HeartBeat::offer(1), HeartBeat { sends_ms: 500, wants_ms: 500 });
        assert_eq!(HeartBeat::offer(0), HeartBeat::default());
    }
}
