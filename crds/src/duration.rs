//! Durations in a spec: `20s`, `5m`, `1h`; a whole number and one unit.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::fmt;

/// A duration as written in a spec, in whole seconds; at most 9999 of its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Duration {
    seconds: u32,
}

impl Duration {
    /// A duration of whole seconds.
    #[must_use]
    pub const fn from_seconds(seconds: u32) -> Self {
        Self { seconds }
    }

    /// The whole seconds.
    #[must_use]
    pub const fn seconds(self) -> u32 {
        self.seconds
    }
}

/// The text is no duration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidDuration(String);

impl fmt::Display for InvalidDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is no duration: write a whole number and a unit, as in 20s, 5m or 1h", self.0)
    }
}

impl std::error::Error for InvalidDuration {}

impl TryFrom<String> for Duration {
    type Error = InvalidDuration;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let unit = match text.chars().last() {
            Some('s') => 1,
            Some('m') => 60,
            Some('h') => 3600,
            _ => return Err(InvalidDuration(text)),
        };
        let digits = text.get(..text.len().saturating_sub(1)).unwrap_or_default();
        let plain = (1..=4).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit());
        match digits.parse::<u32>() {
            Ok(count) if plain => Ok(Self { seconds: count * unit }),
            _ => Err(InvalidDuration(text)),
        }
    }
}

impl From<Duration> for String {
    fn from(duration: Duration) -> Self {
        format!("{duration}")
    }
}

impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.seconds {
            s if s > 0 && s % 3600 == 0 => write!(f, "{}h", s / 3600),
            s if s > 9999 => write!(f, "{}m", s / 60),
            s => write!(f, "{s}s"),
        }
    }
}

impl JsonSchema for Duration {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Duration".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": "^[0-9]{1,4}[smh]$", "maxLength": 5 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Option<u32> {
        Duration::try_from(text.to_owned()).ok().map(Duration::seconds)
    }

    #[test]
    fn units_and_bounds() {
        assert_eq!(parse("20s"), Some(20));
        assert_eq!(parse("5m"), Some(300));
        assert_eq!(parse("2h"), Some(7200));
        assert_eq!(parse("9999h"), Some(9999 * 3600));
        for bad in ["", "s", "20", "1.5s", "-1s", "10000s", "20 s", "5d", "+5s"] {
            assert_eq!(parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn what_is_printed_is_read_back() {
        for seconds in [0, 1, 59, 60, 61, 3600, 7200, 9999, 12_000] {
            let text = String::from(Duration::from_seconds(seconds));
            assert_eq!(parse(&text), Some(seconds), "{text}");
        }
    }
}
