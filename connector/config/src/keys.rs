//! The one table of keys: path, kind, range, default, meaning. Checks, environment names and the reference
//! page come from it.

use std::fmt::Write as _;

/// One key of the configuration.
#[derive(Debug)]
pub struct Key {
    /// Its path, levels joined by `.`.
    pub path: &'static str,
    /// What it takes.
    pub kind: Kind,
    /// The default in the words of the reference page; for numbers and switches see [`Kind`].
    pub default: &'static str,
    /// Whether `dynamic.yaml` may hold it, so that it changes without a restart.
    pub dynamic: bool,
    /// What it means, for the reference page.
    pub about: &'static str,
}

/// What a key takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Text that [`crate::Settings`] looks into; at most this many bytes.
    Text(usize),
    /// A whole number.
    Integer {
        /// The least.
        min: i64,
        /// The most.
        max: i64,
        /// When nothing is said.
        default: i64,
    },
    /// `true` or `false`; `false` when nothing is said.
    Switch,
    /// Bytes, at least so many: a whole number, or one with `Ki`, `Mi` or `Gi` behind it; or `auto`, which is
    /// the default.
    Size(u64),
    /// One of these words; and words that a later version will take.
    Choice(&'static [&'static str], &'static [&'static str]),
}

impl Key {
    /// The environment variable that overrides this key: `stomp.maxBodySize` is `BERTH_STOMP__MAX_BODY_SIZE`.
    pub fn variable(&self) -> String {
        let mut name = String::from("BERTH_");
        for c in self.path.chars() {
            match c {
                '.' => name.push_str("__"),
                c if c.is_ascii_uppercase() => {
                    name.push('_');
                    name.push(c);
                }
                c => name.push(c.to_ascii_uppercase()),
            }
        }
        name
    }

    /// The number that holds when nothing is said.
    pub(crate) const fn default_number(&self) -> i64 {
        match self.kind {
            Kind::Integer { default, .. } => default,
            Kind::Text(_) | Kind::Switch | Kind::Size(_) | Kind::Choice(..) => 0,
        }
    }
}

/// What a key of [`Kind::Size`] says: `Some(None)` is `auto`, none is no size.
pub(crate) fn size(text: &str) -> Option<Option<u64>> {
    if text == "auto" {
        return Some(None);
    }
    let units = [("Ki", 10), ("Mi", 20), ("Gi", 30)];
    let unit = units.iter().find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, *shift)));
    let (digits, shift) = unit.unwrap_or((text, 0));
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let number: u64 = digits.parse().ok().filter(|_| is_number)?;
    number.checked_mul(1 << shift).map(Some)
}

const fn number(path: &'static str, range: (i64, i64), default: i64, about: &'static str) -> Key {
    let kind = Kind::Integer { min: range.0, max: range.1, default };
    Key { path, kind, default: "", dynamic: false, about }
}

const fn text(path: &'static str, bytes_max: usize, default: &'static str, about: &'static str) -> Key {
    Key { path, kind: Kind::Text(bytes_max), default, dynamic: false, about }
}

const fn choice(
    path: &'static str,
    words: &'static [&'static str],
    later: &'static [&'static str],
    default: &'static str,
    about: &'static str,
) -> Key {
    Key { path, kind: Kind::Choice(words, later), default, dynamic: false, about }
}

pub(crate) const NODE: Key = text("node", 253, "the host name", "Stable name of this node.");
pub(crate) const DATA_DIR: Key = text(
    "dataDir",
    4096,
    "./berth-data",
    "Folder of the embedded broker's data. It is made when it is missing; one process at a time may use it.",
);
pub(crate) const DRAIN_TIMEOUT: Key = number(
    "drainTimeoutSeconds",
    (1, 3_600),
    20,
    "Seconds from SIGTERM to the end of the process. Clients may finish their work in the first half.",
);
pub(crate) const MAX_MEMORY: Key = Key {
    path: "limits.maxMemory",
    kind: Kind::Size(16 * 1024 * 1024),
    default: "auto",
    dynamic: false,
    about: "Memory for what all clients together hold: unfinished frames, publishes without a confirm, \
            output that is not written. `auto` is 75 % of the memory limit of the process (cgroup), or of \
            the machine.",
};
pub(crate) const FSYNC: Key = choice(
    "broker.embedded.fsync",
    &["always", "interval", "never"],
    &[],
    "always",
    "When a stored message counts as durable: `always`, when it is synced to disk (many messages share one \
     sync); \
     `interval`, when it is written, with the sync at most 10 ms later; `never`, when it is written.",
);
pub(crate) const ADMIN_ADDRESS: Key = text(
    "admin.address",
    64,
    "127.0.0.1:9090",
    "IP address and port of probes, metrics and API. Port 0 takes any free port.",
);
pub(crate) const STOMP_ADDRESS: Key = text(
    "stomp.address",
    64,
    "127.0.0.1",
    "IP address to listen on; `[::]` is every address of the machine.",
);
pub(crate) const STOMP_PORT: Key =
    number("stomp.port", (0, 65_535), 61_613, "TCP port. 0 takes any free port.");
pub(crate) const DEFAULT_PATTERN: Key = choice(
    "stomp.defaultPattern",
    &["none", "queues"],
    &["events", "store"],
    "none",
    "What a destination without a leading `/` means: `queues` takes it as `/queue/<name>`, `none` refuses \
     it.",
);
pub(crate) const SUBSCRIPTION_BUFFER: Key = number(
    "stomp.subscriptionBuffer",
    (1, 10_000),
    100,
    "Messages in the output buffer of a subscription in mode auto, and unacknowledged messages of one in a \
     client \
     mode that names no `prefetch-count`.",
);
pub(crate) const MAX_CONNECTIONS: Key =
    number("stomp.maxConnections", (1, 1_000_000), 1_000, "Connections at one time.");
pub(crate) const MAX_BODY_SIZE: Key =
    number("stomp.maxBodySize", (1, 120_000_000), 104_857_600, "Bytes of one message's body.");
pub(crate) const MAX_HEADER_LINE: Key =
    number("stomp.maxHeaderLine", (128, 1_048_576), 8_192, "Bytes of one header line.");
pub(crate) const MAX_HEADERS: Key =
    number("stomp.maxHeaders", (10, 10_000), 100, "Header lines of one frame, repeated ones included.");
pub(crate) const HEARTBEAT: Key = number(
    "stomp.heartbeatMs",
    (0, 3_600_000),
    10_000,
    "Heart-beat period in milliseconds that the server offers and asks for; 0 turns it off.",
);
pub(crate) const CONNECT_TIMEOUT: Key = number(
    "stomp.connectTimeoutSeconds",
    (1, 3_600),
    10,
    "Seconds in which a client must have sent CONNECT.",
);
pub(crate) const WRITE_TIMEOUT: Key = number(
    "stomp.writeTimeoutSeconds",
    (0, 86_400),
    0,
    "Seconds after which a client whose socket takes no byte is closed; 0 never closes it.",
);
pub(crate) const ACK_TIMEOUT: Key = number(
    "stomp.queueAckTimeoutSeconds",
    (1, 604_800),
    30,
    "Seconds in which a queue message must be acknowledged; then it goes back to its queue.",
);
pub(crate) const MAX_SUBSCRIPTIONS: Key =
    number("stomp.maxSubscriptions", (1, 65_536), 256, "Subscriptions of one connection.");
pub(crate) const DELIVERY_COUNT_HEADER: Key = Key {
    path: "stomp.deliveryCountHeader",
    kind: Kind::Switch,
    default: "false",
    dynamic: false,
    about: "Whether MESSAGE frames carry the header `delivery-count`.",
};
pub(crate) const LOG_LEVEL: Key = Key {
    dynamic: true,
    ..choice(
        "logging.level",
        &["error", "warn", "info", "debug", "trace"],
        &[],
        "info",
        "The least severe events that are logged.",
    )
};
pub(crate) const LOG_FORMAT: Key = choice(
    "logging.format",
    &["text", "json"],
    &[],
    "text",
    "One line of text or one JSON object per event.",
);

/// Every key that this version serves, in the order of the reference page.
pub const KEYS: &[&Key] = &[
    &NODE,
    &DATA_DIR,
    &DRAIN_TIMEOUT,
    &MAX_MEMORY,
    &FSYNC,
    &ADMIN_ADDRESS,
    &STOMP_ADDRESS,
    &STOMP_PORT,
    &DEFAULT_PATTERN,
    &SUBSCRIPTION_BUFFER,
    &MAX_CONNECTIONS,
    &MAX_BODY_SIZE,
    &MAX_HEADER_LINE,
    &MAX_HEADERS,
    &HEARTBEAT,
    &CONNECT_TIMEOUT,
    &WRITE_TIMEOUT,
    &ACK_TIMEOUT,
    &MAX_SUBSCRIPTIONS,
    &DELIVERY_COUNT_HEADER,
    &LOG_LEVEL,
    &LOG_FORMAT,
];

/// Keys and sections that are planned and that this version does not serve: refused by name, never ignored.
pub const NOT_SERVED: &[&str] = &[
    "amqp",
    "anypoint",
    "tls",
    "auth",
    "peer",
    "cluster",
    "channels",
    "telemetry",
    "metrics",
    "broker.berth",
    "broker.kubemq",
    "broker.jetstream",
    "broker.embedded.policies",
    "broker.embedded.exchanges",
    "broker.embedded.serve",
    "admin.tokenFile",
    "admin.tls",
    "stomp.tlsPort",
    "stomp.webSocketPort",
    "stomp.rpcTimeoutSeconds",
    "stomp.rpcMaxPending",
];

/// The table of keys as Markdown, for `docs/configuration.md`.
pub fn reference() -> String {
    let mut page = String::from("| key | takes | default | meaning |\n|---|---|---|---|\n");
    for key in KEYS {
        let takes = match key.kind {
            Kind::Text(_) => String::from("text"),
            Kind::Integer { min, max, .. } => format!("{min} to {max}"),
            Kind::Switch => String::from("true or false"),
            Kind::Size(min) => format!("auto, or bytes from {min}, also as Ki, Mi, Gi"),
            Kind::Choice(words, _) => words.join(", "),
        };
        let default = match key.kind {
            Kind::Integer { default, .. } => default.to_string(),
            Kind::Text(_) | Kind::Switch | Kind::Size(_) | Kind::Choice(..) => key.default.into(),
        };
        let dynamic =
            if key.dynamic { " Changes without a restart when it stands in `dynamic.yaml`." } else { "" };
        let (path, about) = (key.path, key.about);
        let written = writeln!(page, "| `{path}` | {takes} | {default} | {about}{dynamic} |");
        debug_assert!(written.is_ok(), "a String takes every write");
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_named_after_paths() {
        assert_eq!(ACK_TIMEOUT.variable(), "BERTH_STOMP__QUEUE_ACK_TIMEOUT_SECONDS");
        assert_eq!(DATA_DIR.variable(), "BERTH_DATA_DIR");
        assert_eq!(FSYNC.variable(), "BERTH_BROKER__EMBEDDED__FSYNC");
    }

    #[test]
    fn sizes() {
        for (text, bytes) in [("auto", None), ("0", Some(0)), ("70000", Some(70_000)), ("2Ki", Some(2048))] {
            assert_eq!(size(text), Some(bytes), "{text}");
        }
        assert_eq!(size("3Gi"), Some(Some(3 << 30)));
        for text in ["", "Mi", "1.5Gi", "+1", "-1", "1M", "1 Mi", "1MiB", "99999999999Gi", "Auto"] {
            assert_eq!(size(text), None, "{text}");
        }
    }

    #[test]
    fn defaults_lie_in_their_ranges() {
        for key in KEYS {
            match key.kind {
                Kind::Integer { min, max, default } => {
                    assert!((min..=max).contains(&default), "{}", key.path);
                }
                Kind::Choice(words, later) => {
                    assert!(words.contains(&key.default), "{}", key.path);
                    assert!(!words.iter().any(|word| later.contains(word)), "{}", key.path);
                }
                Kind::Size(_) => assert_eq!(size(key.default), Some(None), "{}", key.path),
                Kind::Text(_) | Kind::Switch => assert!(!key.default.is_empty(), "{}", key.path),
            }
        }
    }

    #[test]
    fn the_reference_page_is_fresh() {
        let page = include_str!("../../../docs/configuration.md");
        let between = page.split("<!-- keys -->\n").nth(1).expect("the page has the marker twice");
        assert_eq!(between.trim(), reference().trim(), "run `cargo run -p berth-config --example reference`");
    }
}
