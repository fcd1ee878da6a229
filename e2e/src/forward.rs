//! A port of a pod or Service on this machine, through `kubectl port-forward`: works on any cluster.

use crate::kubectl::Namespace;
use anyhow::{Context, Result, ensure};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::{Child, ChildStdout, Stdio};
use std::time::Duration;

/// A forwarded port; it ends when this is dropped.
#[derive(Debug)]
pub struct PortForward {
    child: Child,
    port: u16,
    /// Kept open: kubectl says something for each connection, and ends when nobody can hear it.
    _output: BufReader<ChildStdout>,
}

impl PortForward {
    /// Forwards a port of `target`, for example `pod/web-0` or `service/web`.
    ///
    /// # Errors
    /// The target does not exist or cannot be reached.
    pub fn start(space: &Namespace, target: &str, port: u16) -> Result<Self> {
        let mut command = space.kubectl.command();
        command.args(["--namespace", &space.name, "port-forward", target, &format!(":{port}")]);
        let mut child = command.stdout(Stdio::piped()).spawn().context("starting port-forward")?;
        let mut output = BufReader::new(child.stdout.take().context("its output is piped")?);
        let mut line = String::new();
        output.read_line(&mut line)?;
        // "Forwarding from 127.0.0.1:40123 -> 8080"
        let local = line.split(" -> ").next().and_then(|left| left.rsplit(':').next()?.parse().ok());
        let forward = Self { child, port: local.unwrap_or(0), _output: output };
        ensure!(forward.port != 0, "port-forward said {line:?}");
        Ok(forward)
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        SocketAddr::new(Ipv4Addr::LOCALHOST.into(), self.port)
    }

    /// Asks for a path over HTTP and returns the whole answer, head included.
    ///
    /// # Errors
    /// No answer came in 10 s.
    pub fn get(&self, path: &str) -> Result<String> {
        let mut stream = TcpStream::connect(self.address())?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }
}

impl Drop for PortForward {
    fn drop(&mut self) {
        // It may have ended by itself; then there is nothing to do.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
