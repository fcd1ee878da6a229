//! The first message of a new connector: one STOMP session on a socket, in the words of the standard.
//!
//! It shares no code with the product, so that it shows what any client would see.

use anyhow::{Context, Result, ensure};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

/// Sends one message with a receipt, receives it with `ack:client-individual`, acknowledges it with a
/// receipt, and says goodbye. Returns the body that came back.
pub(crate) fn send_and_acknowledge(port: u16) -> Result<String> {
    let stream = TcpStream::connect(("127.0.0.1", port)).context("connecting to the connector")?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    let mut writer = stream.try_clone()?;
    let mut reader = BufReader::new(stream);
    let mut say = |text: &str| writer.write_all(text.as_bytes()).context("writing to the connector");

    say("CONNECT\naccept-version:1.2\nhost:berth\n\n\0")?;
    Frame::read(&mut reader)?.expect("CONNECTED")?;
    say("SEND\ndestination:/queue/hello\nreceipt:sent\ncontent-type:text/plain\n\nHello, Berth!\0")?;
    Frame::read(&mut reader)?.expect("RECEIPT")?;
    say("SUBSCRIBE\nid:1\ndestination:/queue/hello\nack:client-individual\n\n\0")?;
    let message = Frame::read(&mut reader)?;
    message.expect("MESSAGE")?;
    let token = message.header("ack").context("the MESSAGE has no ack header")?;
    say(&format!("ACK\nid:{token}\nreceipt:acked\n\n\0"))?;
    Frame::read(&mut reader)?.expect("RECEIPT")?;
    say("DISCONNECT\nreceipt:bye\n\n\0")?;
    Frame::read(&mut reader)?.expect("RECEIPT")?;
    Ok(message.body)
}

/// A frame whose header values need no unescaping here.
struct Frame {
    command: String,
    headers: Vec<(String, String)>,
    body: String,
}

impl Frame {
    fn read(reader: &mut impl BufRead) -> Result<Self> {
        let mut bytes = Vec::new();
        reader.read_until(0, &mut bytes).context("reading from the connector")?;
        ensure!(bytes.pop() == Some(0), "the connector closed the connection");
        let text = String::from_utf8(bytes).context("a frame that is no text")?;
        let text = text.trim_start_matches(['\n', '\r']);
        let (head, body) = text.split_once("\n\n").context("a frame without an empty line")?;
        let mut lines = head.lines();
        let command = lines.next().unwrap_or_default().to_owned();
        let headers = lines.filter_map(|line| line.split_once(':'));
        let headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        Ok(Self { command, headers, body: body.to_owned() })
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(have, _)| have == name).map(|(_, value)| value.as_str())
    }

    fn expect(&self, command: &str) -> Result<()> {
        let told = self.header("message").unwrap_or_default();
        ensure!(self.command == command, "expected {command}, got {} {told} {}", self.command, self.body);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_frames_and_the_line_ends_between_them() {
        let mut input = &b"\n\nMESSAGE\nack:a1\nfoo:b:c\n\nbody\n\nmore\0\nRECEIPT\nreceipt-id:x\n\n\0"[..];
        let message = Frame::read(&mut input).unwrap();
        assert_eq!((message.header("ack"), message.header("foo")), (Some("a1"), Some("b:c")));
        assert_eq!(message.body, "body\n\nmore");
        assert!(Frame::read(&mut input).unwrap().expect("RECEIPT").is_ok());
        assert!(Frame::read(&mut input).is_err());
    }
}
