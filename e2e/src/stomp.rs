//! A STOMP client that can say anything: for tests that must see, and break, the wire.
//!
//! Blocking, bounded by [`crate::process::PATIENCE`], knows frames and nothing else.

use crate::process::PATIENCE;
use anyhow::{Context, Result, bail};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};

/// One connection.
#[derive(Debug)]
pub struct Client {
    stream: TcpStream,
    read: Vec<u8>,
}

/// A frame as it came.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Frame {
    /// Its command.
    pub command: String,
    /// Its headers, in order, not unescaped.
    pub headers: Vec<(String, String)>,
    /// Its body.
    pub body: Vec<u8>,
}

impl Frame {
    /// The first header of that name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

impl Client {
    /// Opens a connection and says nothing.
    pub fn open(to: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect_timeout(&to, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, read: Vec::new() })
    }

    /// Opens a connection and speaks STOMP 1.2 on it.
    pub fn connect(to: SocketAddr) -> Result<Self> {
        let mut client = Self::open(to)?;
        client.send("CONNECT\naccept-version:1.2\nhost:/\n\n\0")?;
        client.expect("CONNECTED")?;
        Ok(client)
    }

    /// Writes bytes as they are.
    pub fn send(&mut self, text: impl AsRef<[u8]>) -> Result<()> {
        self.stream.write_all(text.as_ref()).context("writing")
    }

    /// The next frame, which must be this one.
    pub fn expect(&mut self, command: &str) -> Result<Frame> {
        let frame = self.frame()?;
        if frame.command != command {
            bail!("expected {command}, got {frame:?}: {}", String::from_utf8_lossy(&frame.body));
        }
        Ok(frame)
    }

    /// The next frame.
    pub fn frame(&mut self) -> Result<Frame> {
        loop {
            while self.read.first() == Some(&b'\n') {
                self.read.remove(0);
            }
            if let Some((frame, length)) = parse(&self.read)? {
                self.read.drain(..length);
                return Ok(frame);
            }
            if self.fill()? == 0 {
                bail!("closed by the server, {} bytes of a frame have come", self.read.len());
            }
        }
    }

    /// Everything until the server closes.
    pub fn rest(&mut self) -> Result<Vec<u8>> {
        while self.fill()? > 0 {}
        Ok(std::mem::take(&mut self.read))
    }

    /// Closes the writing half.
    pub fn finish(&self) -> Result<()> {
        self.stream.shutdown(Shutdown::Write).context("closing")
    }

    fn fill(&mut self) -> Result<usize> {
        let mut chunk = [0; 16 * 1024];
        let bytes = self.stream.read(&mut chunk).context("reading")?;
        self.read.extend_from_slice(&chunk[..bytes]);
        Ok(bytes)
    }
}

fn parse(bytes: &[u8]) -> Result<Option<(Frame, usize)>> {
    let Some(end) = bytes.windows(2).position(|pair| pair == b"\n\n") else { return Ok(None) };
    let head = std::str::from_utf8(&bytes[..end]).context("headers are UTF-8")?;
    let mut lines = head.lines();
    let command = lines.next().unwrap_or_default().to_owned();
    let pairs = lines.filter_map(|line| line.split_once(':'));
    let headers: Vec<_> = pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    let body = &bytes[end + 2..];
    let stated = headers.iter().find(|(name, _)| name == "content-length").map(|(_, value)| value);
    let length = match stated {
        Some(value) => value.parse::<usize>()?,
        None => match body.iter().position(|byte| *byte == 0) {
            Some(length) => length,
            None => return Ok(None),
        },
    };
    if body.len() <= length {
        return Ok(None);
    }
    let frame = Frame { command, headers, body: body[..length].to_vec() };
    Ok(Some((frame, end + 2 + length + 1)))
}
