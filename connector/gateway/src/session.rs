//! One client connection as a state machine: protocol, gateway and engine together, without a socket.
//!
//! The driver (the server's connection task, or the simulator) owns the socket and the clock. **After every
//! `handle_*` it drains `poll_*` to the end before the next `handle_*`.** One loop:
//!
//! 1. `poll_operation` until it is `None`, each submitted to the broker;
//! 2. `poll_transmit`, write what the socket takes, `handle_transmitted` with the number of bytes it took;
//! 3. `closed`: end when the output is written;
//! 4. wait for input (only while `wants_input`), for a completion, or until `poll_timeout`.

use std::io::IoSlice;

use berth_engine::port::{Completion, Operation};
use berth_types::{Instant, Now, OpId};
use bytes::BytesMut;

/// A client connection without its socket.
pub trait Session {
    /// Bytes arrived: takes all that can be taken from `input` and leaves the start of an unfinished frame.
    fn handle_input(&mut self, now: Now, input: &mut BytesMut);
    /// The peer has closed its side; what had arrived has been given to `handle_input` before.
    fn handle_input_end(&mut self, now: Now);
    /// The socket has failed or was reset: nothing more can be written.
    fn handle_transport_lost(&mut self, now: Now);
    /// An operation has completed, or (without an id) a notice came.
    fn handle_completion(&mut self, now: Now, op: Option<OpId>, completion: Completion);
    /// `poll_timeout` has passed.
    fn handle_timeout(&mut self, now: Now);
    /// The process is going down: take no new deliveries, go on serving acks and sends.
    fn handle_drain(&mut self, now: Now);
    /// The drain's time is over: nack what is unsettled, say goodbye in the protocol's words, close.
    fn handle_shutdown(&mut self, now: Now);
    /// Whether the process has memory for more of this client's input. While it has not, `wants_input` is
    /// false, and the client's clocks rest: the cause is ours.
    fn handle_memory(&mut self, now: Now, has_room: bool);
    /// The process needs the memory that this client holds: say so, close. Input is not looked at any more.
    fn handle_overload(&mut self, now: Now);
    /// The next operation for the broker.
    fn poll_operation(&mut self) -> Option<(OpId, Operation)>;
    /// Fills `slices` from the front with the output that waits, and says how many are filled; 0: nothing
    /// waits.
    fn poll_transmit<'a>(&'a mut self, now: Now, slices: &mut [IoSlice<'a>]) -> usize;
    /// The socket took `bytes` of the output offered last.
    fn handle_transmitted(&mut self, now: Now, bytes: usize);
    /// Whether the driver should read the socket: false while a bound is reached.
    fn wants_input(&self) -> bool;
    /// When `handle_timeout` is due.
    fn poll_timeout(&self) -> Option<Instant>;
    /// Whether nothing is unsettled and nothing waits for a confirm, so that a drain need not wait for this
    /// one.
    fn is_settled(&self) -> bool;
    /// Set once no more output will come: write what waits, then end the connection.
    /// Operations may still be under way; their completions are given to `handle_completion` until
    /// `poll_operation` and `is_settled` say that nothing is left.
    fn closed(&self) -> Option<Closed>;
}

/// How a connection ended: one log line, one metric label.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Closed {
    /// The client said goodbye or closed its side.
    ByPeer,
    /// A timer ran out: which one.
    TimedOut(&'static str),
    /// The client broke a rule: the short text of the error it was sent.
    PeerViolated(&'static str),
    /// The server ended it: why.
    ByUs(&'static str),
    /// The socket failed.
    Transport,
}

impl Closed {
    /// A stable word for metric labels and logs.
    pub const fn label(&self) -> &'static str {
        match self {
            Self::ByPeer => "by_peer",
            Self::TimedOut(_) => "timed_out",
            Self::PeerViolated(_) => "peer_violated",
            Self::ByUs(_) => "by_us",
            Self::Transport => "transport",
        }
    }
}
