//! One client connection: a non-blocking socket, an input buffer, an output buffer, its place in an epoll.
//!
//! It knows frames only as far as [`crate::wire`] does. Handshakes block, everything after them does not.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};

use crate::wire;

/// A connection. `output` is filled by its user and sent by [`Conn::flush`].
pub(crate) struct Conn {
    stream: TcpStream,
    input: Vec<u8>,
    filled: usize,
    pub(crate) output: Vec<u8>,
    written: usize,
    wants_write: bool,
    reading: bool,
    token: u64,
}

impl Conn {
    /// Opens a socket and blocks until the peer has answered `connect` with CONNECTED.
    pub(crate) fn open(address: SocketAddr, connect: &str, input_bytes: usize) -> Result<Self> {
        let stream = TcpStream::connect_timeout(&address, HANDSHAKE_TIMEOUT)
            .with_context(|| format!("cannot connect to {address}"))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(HANDSHAKE_TIMEOUT))?;
        let mut conn = Self::accepted(stream, input_bytes);
        conn.ask(connect, b"CONNECTED")?;
        Ok(conn)
    }

    /// Wraps a socket that is connected already.
    pub(crate) fn accepted(stream: TcpStream, input_bytes: usize) -> Self {
        let input = vec![0; input_bytes];
        Self {
            stream,
            input,
            filled: 0,
            output: Vec::new(),
            written: 0,
            wants_write: false,
            reading: true,
            token: 0,
        }
    }

    /// Sends `request` and blocks until a frame arrives that starts with `answer`; what follows it stays in
    /// the input buffer.
    pub(crate) fn ask(&mut self, request: &str, answer: &[u8]) -> Result<()> {
        self.stream.write_all(request.as_bytes())?;
        loop {
            if let Some(end) = memchr::memchr(0, &self.input[..self.filled]) {
                let frame = &self.input[..end];
                let start = frame.iter().take_while(|byte| matches!(byte, b'\n' | b'\r')).count();
                if !frame[start..].starts_with(answer) {
                    bail!("expected {}, got: {}", shown(answer), shown(&frame[start..]));
                }
                self.consume(end + 1);
                return Ok(());
            }
            let read = self.stream.read(&mut self.input[self.filled..]).context("no answer")?;
            if read == 0 {
                bail!("closed while {} was awaited", shown(answer));
            }
            self.filled += read;
        }
    }

    /// Makes the socket non-blocking and lets `epoll` report it under `token`.
    pub(crate) fn register(&mut self, epoll: &Epoll, token: u64) -> Result<()> {
        self.stream.set_nonblocking(true)?;
        self.token = token;
        epoll.add(&self.stream, EpollEvent::new(EpollFlags::EPOLLIN, token))?;
        Ok(())
    }

    /// Reads once. False when the peer has closed; an empty read is no error.
    pub(crate) fn read(&mut self) -> Result<bool> {
        if self.filled == self.input.len() {
            bail!("a frame is larger than {} bytes", self.input.len());
        }
        match self.stream.read(&mut self.input[self.filled..]) {
            Ok(0) => Ok(false),
            Ok(read) => {
                self.filled += read;
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(true),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Hands every whole frame to `each`, which may append to the output; see [`wire::frames`] for `trim`.
    pub(crate) fn frames(&mut self, trim: bool, mut each: impl FnMut(&[u8], &mut Vec<u8>)) {
        let output = &mut self.output;
        let used = wire::frames(&self.input[..self.filled], trim, |frame| each(frame, output));
        self.consume(used);
    }

    /// Whether the input buffer holds no byte that waits to be read as part of a frame.
    pub(crate) fn input_is_empty(&self) -> bool {
        self.filled == 0
    }

    /// Bytes of the output that the socket has not taken yet.
    pub(crate) fn unsent_bytes(&self) -> usize {
        self.output.len() - self.written
    }

    /// Sends what the socket takes and asks `epoll` for the moment when it takes more. True when all is sent.
    pub(crate) fn flush(&mut self, epoll: &Epoll) -> Result<bool> {
        while self.written < self.output.len() {
            match self.stream.write(&self.output[self.written..]) {
                Ok(written) => self.written += written,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error).context("cannot send"),
            }
        }
        let done = self.written == self.output.len();
        if done {
            self.output.clear();
            self.written = 0;
        } else if self.written > COMPACT_BYTES {
            self.output.drain(..self.written);
            self.written = 0;
        }
        self.interest(epoll, self.reading, !done)?;
        Ok(done)
    }

    /// Stops or resumes reports of input; output is not touched.
    pub(crate) fn set_reading(&mut self, epoll: &Epoll, reading: bool) -> Result<()> {
        self.interest(epoll, reading, self.wants_write)
    }

    fn interest(&mut self, epoll: &Epoll, read: bool, write: bool) -> Result<()> {
        if (read, write) == (self.reading, self.wants_write) {
            return Ok(());
        }
        (self.reading, self.wants_write) = (read, write);
        let mut flags = EpollFlags::empty();
        flags.set(EpollFlags::EPOLLIN, read);
        flags.set(EpollFlags::EPOLLOUT, write);
        epoll.modify(&self.stream, &mut EpollEvent::new(flags, self.token))?;
        Ok(())
    }

    fn consume(&mut self, bytes: usize) {
        self.input.copy_within(bytes..self.filled, 0);
        self.filled -= bytes;
    }
}

/// The first line and the headers of a frame, fit for an error message.
pub(crate) fn shown(frame: &[u8]) -> String {
    String::from_utf8_lossy(&frame[..frame.len().min(SHOWN_BYTES)]).replace('\n', " | ")
}

const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(20);
/// Sent bytes are moved out of the way when there are more of them than this.
const COMPACT_BYTES: usize = 1 << 20;
const SHOWN_BYTES: usize = 300;
