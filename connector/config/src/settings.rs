//! What the connector runs on: every default filled in, every value checked.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use crate::keys::{self, Key};
use crate::{
    Admin, Broker, Config, DefaultPattern, Embedded, Error, Fsync, Limits, LogFormat, LogLevel, Logging,
    Size, Stomp,
};

/// A connector's configuration with nothing left open.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Stable name of this node.
    pub node: String,
    /// Folder of the embedded broker's data.
    pub data_dir: PathBuf,
    /// From SIGTERM to the end of the process.
    pub drain_timeout: Duration,
    /// Memory for what clients hold, in bytes; none: as much as the process may have of it.
    pub memory_max: Option<u64>,
    /// When a stored message counts as durable.
    pub fsync: Fsync,
    /// Where the admin port listens; none: it does not.
    pub admin: Option<SocketAddr>,
    /// The STOMP listener; none: it does not run.
    pub stomp: Option<StompSettings>,
    /// What is logged, and how.
    pub logging: LoggingSettings,
}

/// The STOMP listener with nothing left open.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StompSettings {
    /// Where it listens.
    pub listen: SocketAddr,
    /// What a destination without a leading `/` means.
    pub default_pattern: DefaultPattern,
    /// Output buffer of auto subscriptions and default prefetch, in messages.
    pub subscription_buffer: u32,
    /// Connections at one time.
    pub connections_max: usize,
    /// Bytes of one body.
    pub body_bytes_max: usize,
    /// Bytes of one header line.
    pub header_line_bytes_max: usize,
    /// Header lines of one frame.
    pub headers_max: usize,
    /// Heart-beat period that the server offers and asks for; zero turns it off.
    pub heartbeat: Duration,
    /// In which a client must have sent CONNECT.
    pub connect_timeout: Duration,
    /// After which a client whose socket takes no byte is closed; zero never closes it.
    pub write_timeout: Duration,
    /// In which a queue message must be acknowledged.
    pub ack_timeout: Duration,
    /// Subscriptions of one connection.
    pub subscriptions_max: usize,
    /// Whether MESSAGE carries `delivery-count`.
    pub delivery_count_header: bool,
}

/// What is logged, and how.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LoggingSettings {
    /// The least severe events that are logged.
    pub level: LogLevel,
    /// Text or JSON.
    pub format: LogFormat,
}

impl Settings {
    /// Fills in the defaults of a file whose numbers are in their ranges (see [`crate::load`]).
    pub(crate) fn resolve(config: &Config, host_name: &str) -> Result<Self, Error> {
        let logging = config.logging.clone().unwrap_or_default();
        let node = config.node.clone().unwrap_or_else(|| host_name.into());
        if !node.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c)) {
            return Err(invalid(&keys::NODE, "letters, digits, `-`, `.` and `_` are expected"));
        }
        let admin = config.admin.as_ref().map(|admin| {
            let text = admin.address.as_deref().unwrap_or(keys::ADMIN_ADDRESS.default);
            socket_address(text).ok_or_else(|| {
                invalid(&keys::ADMIN_ADDRESS, "an IP address and a port are expected, like 127.0.0.1:9090")
            })
        });
        let embedded = config.broker.as_ref().and_then(|broker| broker.embedded.as_ref());
        Ok(Self {
            node,
            data_dir: config.data_dir.as_deref().unwrap_or(keys::DATA_DIR.default).into(),
            drain_timeout: seconds(config.drain_timeout_seconds, &keys::DRAIN_TIMEOUT),
            memory_max: memory_max(config)?,
            fsync: embedded.and_then(|embedded| embedded.fsync).unwrap_or_default(),
            admin: admin.transpose()?,
            stomp: config.stomp.as_ref().map(StompSettings::resolve).transpose()?,
            logging: LoggingSettings {
                level: logging.level.unwrap_or_default(),
                format: logging.format.unwrap_or_default(),
            },
        })
    }

    /// The same as a file in which every key is set.
    pub fn to_config(&self) -> Config {
        Config {
            node: Some(self.node.clone()),
            data_dir: Some(self.data_dir.to_string_lossy().into_owned()),
            drain_timeout_seconds: Some(in_seconds(self.drain_timeout)),
            limits: Some(Limits {
                max_memory: Some(self.memory_max.map_or_else(|| Size::Text("auto".into()), Size::Bytes)),
            }),
            broker: Some(Broker { embedded: Some(Embedded { fsync: Some(self.fsync) }) }),
            admin: self.admin.map(|address| Admin { address: Some(address.to_string()) }),
            stomp: self.stomp.as_ref().map(StompSettings::to_file),
            logging: Some(Logging { level: Some(self.logging.level), format: Some(self.logging.format) }),
        }
    }
}

impl StompSettings {
    fn resolve(file: &Stomp) -> Result<Self, Error> {
        let text = file.address.as_deref().unwrap_or(keys::STOMP_ADDRESS.default);
        let address = ip_address(text).ok_or_else(|| {
            invalid(&keys::STOMP_ADDRESS, "an IP address is expected, like 127.0.0.1 or [::]")
        })?;
        let port = u16::try_from(number(file.port, &keys::STOMP_PORT)).unwrap_or(u16::MAX);
        Ok(Self {
            listen: SocketAddr::new(address, port),
            default_pattern: file.default_pattern.unwrap_or_default(),
            subscription_buffer: u32::try_from(number(file.subscription_buffer, &keys::SUBSCRIPTION_BUFFER))
                .unwrap_or(u32::MAX),
            connections_max: count(file.max_connections, &keys::MAX_CONNECTIONS),
            body_bytes_max: count(file.max_body_size, &keys::MAX_BODY_SIZE),
            header_line_bytes_max: count(file.max_header_line, &keys::MAX_HEADER_LINE),
            headers_max: count(file.max_headers, &keys::MAX_HEADERS),
            heartbeat: Duration::from_millis(number(file.heartbeat_ms, &keys::HEARTBEAT)),
            connect_timeout: seconds(file.connect_timeout_seconds, &keys::CONNECT_TIMEOUT),
            write_timeout: seconds(file.write_timeout_seconds, &keys::WRITE_TIMEOUT),
            ack_timeout: seconds(file.queue_ack_timeout_seconds, &keys::ACK_TIMEOUT),
            subscriptions_max: count(file.max_subscriptions, &keys::MAX_SUBSCRIPTIONS),
            delivery_count_header: file.delivery_count_header.unwrap_or(false),
        })
    }

    fn to_file(&self) -> Stomp {
        Stomp {
            address: Some(self.listen.ip().to_string()),
            port: Some(self.listen.port().into()),
            default_pattern: Some(self.default_pattern),
            subscription_buffer: Some(self.subscription_buffer.into()),
            max_connections: Some(in_units(self.connections_max)),
            max_body_size: Some(in_units(self.body_bytes_max)),
            max_header_line: Some(in_units(self.header_line_bytes_max)),
            max_headers: Some(in_units(self.headers_max)),
            heartbeat_ms: Some(i64::try_from(self.heartbeat.as_millis()).unwrap_or(i64::MAX)),
            connect_timeout_seconds: Some(in_seconds(self.connect_timeout)),
            write_timeout_seconds: Some(in_seconds(self.write_timeout)),
            queue_ack_timeout_seconds: Some(in_seconds(self.ack_timeout)),
            max_subscriptions: Some(in_units(self.subscriptions_max)),
            delivery_count_header: Some(self.delivery_count_header),
        }
    }
}

fn memory_max(config: &Config) -> Result<Option<u64>, Error> {
    match config.limits.as_ref().and_then(|limits| limits.max_memory.as_ref()) {
        None => Ok(None),
        Some(Size::Bytes(bytes)) => Ok(Some(*bytes)),
        Some(Size::Text(text)) => {
            keys::size(text).ok_or_else(|| invalid(&keys::MAX_MEMORY, "a number of bytes is expected"))
        }
    }
}

fn invalid(key: &Key, problem: &str) -> Error {
    Error::new("", key.path, problem)
}

/// A number of the file or its default. Ranges were checked before and hold no negative number.
fn number(value: Option<i64>, key: &Key) -> u64 {
    u64::try_from(value.unwrap_or_else(|| key.default_number())).unwrap_or(0)
}

fn count(value: Option<i64>, key: &Key) -> usize {
    usize::try_from(number(value, key)).unwrap_or(usize::MAX)
}

fn seconds(value: Option<i64>, key: &Key) -> Duration {
    Duration::from_secs(number(value, key))
}

fn in_seconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_secs()).unwrap_or(i64::MAX)
}

fn in_units(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// An IP address, bare or in brackets; `localhost` is 127.0.0.1. Names are not looked up.
fn ip_address(text: &str) -> Option<IpAddr> {
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    if bare == "localhost" { Some(Ipv4Addr::LOCALHOST.into()) } else { bare.parse().ok() }
}

fn socket_address(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.rsplit_once(':')?;
    Some(SocketAddr::new(ip_address(address)?, port.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        for text in ["127.0.0.1:9090", "[::]:9090", "localhost:9090", "0.0.0.0:0"] {
            assert!(socket_address(text).is_some(), "{text}");
        }
        for text in ["9090", ":9090", "host:9090", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:70000"] {
            assert!(socket_address(text).is_none(), "{text}");
        }
        assert_eq!(ip_address("[::]"), ip_address("::"));
    }
}
