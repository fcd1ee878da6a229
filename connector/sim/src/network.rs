//! One TCP connection: two directions with a bounded number of bytes on their way, chunks that arrive when
//! they like but in order, cuts, and silence.

use std::collections::VecDeque;

use berth_types::Instant;
use bytes::{Buf, Bytes};

/// One direction.
#[derive(Debug)]
pub(crate) struct Pipe {
    chunks: VecDeque<(Instant, Bytes)>,
    bytes: usize,
    capacity: usize,
    last_arrival: Instant,
    /// The sender has closed its side; arrives after the last chunk.
    fin: Option<Instant>,
    /// What is sent is taken as long as there is room, and arrives never.
    is_black_hole: bool,
}

impl Pipe {
    fn new(capacity: usize) -> Self {
        Self {
            chunks: VecDeque::new(),
            bytes: 0,
            capacity,
            last_arrival: Instant::ZERO,
            fin: None,
            is_black_hole: false,
        }
    }

    /// How many bytes the sender may still send.
    pub(crate) fn room(&self) -> usize {
        self.capacity - self.bytes
    }

    /// Sends bytes that fit; returns when they arrive.
    pub(crate) fn send(&mut self, arrival: Instant, bytes: Bytes) -> Instant {
        assert!(bytes.len() <= self.room() && self.fin.is_none());
        self.last_arrival = self.last_arrival.max(arrival);
        self.bytes += bytes.len();
        self.chunks.push_back((self.last_arrival, bytes));
        self.last_arrival
    }

    /// Closes the sender's side; returns when the other one learns.
    pub(crate) fn close(&mut self, arrival: Instant) -> Instant {
        self.last_arrival = self.last_arrival.max(arrival);
        *self.fin.get_or_insert(self.last_arrival)
    }

    /// Takes at most `max` bytes that have arrived.
    pub(crate) fn receive(&mut self, now: Instant, max: usize) -> Bytes {
        if self.is_black_hole {
            return Bytes::new();
        }
        let Some((arrival, chunk)) = self.chunks.front_mut() else { return Bytes::new() };
        if *arrival > now {
            return Bytes::new();
        }
        let taken = chunk.split_to(max.min(chunk.len()));
        if !chunk.has_remaining() {
            self.chunks.pop_front();
        }
        self.bytes -= taken.len();
        taken
    }

    /// Whether everything has been received and the sender has closed.
    pub(crate) fn is_at_end(&self, now: Instant) -> bool {
        !self.is_black_hole && self.chunks.is_empty() && self.fin.is_some_and(|fin| fin <= now)
    }
}

/// One TCP connection.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) to_server: Pipe,
    pub(crate) to_client: Pipe,
    /// The server's side is gone: what a client sends goes nowhere.
    pub(crate) is_server_gone: bool,
    /// The client's side is gone.
    pub(crate) is_client_gone: bool,
}

impl Link {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            to_server: Pipe::new(capacity),
            to_client: Pipe::new(capacity),
            is_server_gone: false,
            is_client_gone: false,
        }
    }

    /// Nothing arrives on either side any more. A side learns only when it is told.
    pub(crate) fn break_silently(&mut self) {
        self.to_server.is_black_hole = true;
        self.to_client.is_black_hole = true;
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.to_client.is_black_hole
    }
}
