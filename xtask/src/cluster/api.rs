//! Talks to the Kubernetes API through `kubectl proxy` on a Unix socket, so that no TLS and no client
//! library is needed here. One request, one connection; enough for a loop that looks twice a second.

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

/// A way to the API server.
pub(crate) struct Api {
    /// The socket of `kubectl proxy`.
    pub(crate) socket: PathBuf,
}

/// How a request ended other than well.
pub(crate) enum Answer {
    /// The object, or the list.
    Object(Value),
    /// The server's status: 404, 409, 422 and so on, and its words.
    Status(u16, String),
}

impl Api {
    /// Reads an object or a list.
    pub(crate) fn get(&self, path: &str) -> Result<Value> {
        self.send("GET", path, None)?.object(path)
    }

    /// Creates an object in the collection.
    pub(crate) fn create(&self, path: &str, object: &Value) -> Result<Answer> {
        self.send("POST", path, Some(("application/json", object)))
    }

    /// Changes an object by a merge patch.
    pub(crate) fn patch(&self, path: &str, change: &Value) -> Result<Answer> {
        self.send("PATCH", path, Some(("application/merge-patch+json", change)))
    }

    /// Deletes an object.
    pub(crate) fn delete(&self, path: &str) -> Result<Answer> {
        self.send("DELETE", path, None)
    }

    fn send(&self, method: &str, path: &str, body: Option<(&str, &Value)>) -> Result<Answer> {
        let mut stream = UnixStream::connect(&self.socket).context("connecting to kubectl proxy")?;
        stream.set_read_timeout(Some(Duration::from_secs(20)))?;
        let (kind, text) = body.map_or((String::new(), String::new()), |(kind, value)| {
            (format!("Content-Type: {kind}\r\n"), value.to_string())
        });
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nAccept: application/json\r\nConnection: close\r\n\
             {kind}Content-Length: {}\r\n\r\n",
            text.len()
        );
        stream.write_all(head.as_bytes())?;
        stream.write_all(text.as_bytes())?;
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).context("reading the answer of kubectl proxy")?;
        let (status, body) = parse(&bytes)?;
        if (200..300).contains(&status) {
            return Ok(Answer::Object(serde_json::from_slice(&body).context("the answer is not JSON")?));
        }
        Ok(Answer::Status(status, String::from_utf8_lossy(&body).into_owned()))
    }
}

impl Answer {
    /// The object; any other answer is an error.
    pub(crate) fn object(self, what: &str) -> Result<Value> {
        match self {
            Self::Object(value) => Ok(value),
            Self::Status(status, words) => bail!("{what}: {status} {}", words.trim()),
        }
    }

    /// Fine when it went well or ended with one of `allowed`.
    pub(crate) fn allow(self, allowed: &[u16], what: &str) -> Result<()> {
        match self {
            Self::Status(status, _) if allowed.contains(&status) => Ok(()),
            other => other.object(what).map(drop),
        }
    }
}

/// RFC 9112: status line, header lines, an empty line, then the body, whole or in chunks.
fn parse(bytes: &[u8]) -> Result<(u16, Vec<u8>)> {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n").context("half an answer")?;
    let (head, body) = (&bytes[..end], &bytes[end + 4..]);
    let head = String::from_utf8_lossy(head).to_lowercase();
    let status =
        head.split(' ').nth(1).and_then(|text| text.parse().ok()).context("an answer without a status")?;
    if head.contains("\r\ntransfer-encoding: chunked") {
        return Ok((status, unchunk(body)?));
    }
    Ok((status, body.to_vec()))
}

/// RFC 9112, section 7.1.
fn unchunk(mut rest: &[u8]) -> Result<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let line = rest.windows(2).position(|window| window == b"\r\n").context("half a chunk")?;
        let size = String::from_utf8_lossy(&rest[..line]);
        let size = usize::from_str_radix(size.split(';').next().unwrap_or_default().trim(), 16)?;
        rest = &rest[line + 2..];
        if size == 0 {
            return Ok(body);
        }
        ensure!(rest.len() >= size + 2, "half a chunk");
        body.extend_from_slice(&rest[..size]);
        rest = &rest[size + 2..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_and_chunked_answers() {
        let whole = b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno";
        assert_eq!(parse(whole).unwrap(), (404, b"no".to_vec()));
        let chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\
                        3\r\nabc\r\nA;x=1\r\n0123456789\r\n0\r\n\r\n";
        assert_eq!(parse(chunked).unwrap(), (200, b"abc0123456789".to_vec()));
        assert!(parse(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nabc").is_err());
        assert!(parse(b"HTTP/1.1 200").is_err());
    }
}
