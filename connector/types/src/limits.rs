//! Every bound of the product that is no setting, with its reason and its unit in the name.

/// Longest channel name: AMQP and KubeMQ channel names have the same bound, so a name fits every back end.
pub const CHANNEL_NAME_BYTES_MAX: usize = 255;

/// Unwritten output that a connection may hold besides one message. Beyond it nothing is reserved for the
/// connection and its socket is not read, so that a peer that does not read costs itself and nobody else.
pub const OUTPUT_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Bytes of messages that one reservation may carry (one message always fits): what a connection can be
/// handed at once.
pub const RESERVE_BYTES_MAX: u32 = 1024 * 1024;

/// Publishes of one connection that wait for their confirm. Beyond it its socket is not read.
pub const UNCONFIRMED_PUBLISHES_MAX: usize = 4096;

/// Bytes of one connection's publishes that wait for their confirm. Beyond it its socket is not read.
pub const UNCONFIRMED_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Entries in one block of a queue's index: the unit that is kept in memory or on disk.
pub const INDEX_BLOCK_ENTRIES: usize = 1024;

/// Stride of a queue's delivery high-water mark: it is written ahead once per so many deliveries.
pub const DELIVERY_MARK_STRIDE: u64 = 1024;

/// Bytes of a STOMP frame before login: enough for any CONNECT, too little to hurt.
pub const STOMP_FRAME_BYTES_BEFORE_LOGIN_MAX: usize = 16 * 1024;

/// Longest STOMP command line that is read before the frame is refused; the longest command has 11 octets.
pub const STOMP_COMMAND_BYTES_MAX: usize = 32;

/// NULs that may stand between two STOMP frames: some clients end a frame twice, none sends this many.
pub const STOMP_NULS_BETWEEN_FRAMES_MAX: usize = 1024;

/// Body octets that are skipped on a STOMP frame that has none: ends of lines, or anything in 1.0.
pub const STOMP_STRAY_BODY_BYTES_MAX: usize = 16 * 1024;

/// Shortest period of STOMP heart-beats in either direction, in milliseconds: a peer that asks for 1 ms
/// would cost a thousand wake-ups a second.
pub const STOMP_HEART_BEAT_MS_MIN: u64 = 500;

/// Most deliveries that a STOMP subscription may have outstanding; `prefetch-count` 0 and anything larger
/// mean this.
pub const STOMP_PREFETCH_MAX: u32 = 10_000;

/// Longest text of a message selector.
pub const SELECTOR_BYTES_MAX: usize = 4096;

/// Operators, names and literals of a message selector, the values of an IN list aside: what one evaluation
/// costs, and how deep it can recurse.
pub const SELECTOR_NODES_MAX: usize = 64;

/// Parentheses, NOTs and signs of a message selector that stand within each other: how deep its parser can
/// recurse.
pub const SELECTOR_DEPTH_MAX: usize = 32;

/// Values of one IN list of a message selector.
pub const SELECTOR_IN_VALUES_MAX: usize = 256;

/// Characters of a LIKE pattern between two `%` when a `_` is among them: one machine word holds the state
/// of the search, so that it takes one step per character of the text.
pub const SELECTOR_LIKE_SEGMENT_CHARS_MAX: usize = 64;

/// Longest text that a selector takes for a number: every double in plain notation fits.
pub const SELECTOR_NUMBER_BYTES_MAX: usize = 400;
