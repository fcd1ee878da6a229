//! `berth-connector drain --prepare`: what a pod's preStop hook executes.
//!
//! It tells the running connector to be unready and gives the cluster time to send new clients elsewhere
//! before SIGTERM comes. A connector that is not there needs no preparation.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

/// How long endpoints may take to be taken out of Services.
pub(crate) const ENDPOINTS_WAIT: Duration = Duration::from_secs(5);

/// How long the admin port may take to answer.
const ANSWER_WAIT: Duration = Duration::from_secs(3);

/// Longest answer that is read.
const ANSWER_BYTES_MAX: u64 = 64 * 1024;

/// Tells the connector whose admin port is `admin` that it will be stopped.
///
/// # Errors
/// The port does not answer, or with a refusal.
pub(crate) fn announce(admin: SocketAddr) -> Result<()> {
    let body = r#"{"reason":"the pod is being stopped"}"#;
    let request = format!(
        "POST /api/drain HTTP/1.1\r\nHost: {admin}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    let address = reachable(admin);
    let answer = ask(address, &request).with_context(|| format!("admin port {address}"))?;
    let status = answer.lines().next().unwrap_or_default();
    if !status.starts_with("HTTP/1.1 200") {
        bail!("admin port {address} answered: {status}");
    }
    Ok(())
}

fn ask(address: SocketAddr, request: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, ANSWER_WAIT)?;
    stream.set_read_timeout(Some(ANSWER_WAIT))?;
    stream.set_write_timeout(Some(ANSWER_WAIT))?;
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.take(ANSWER_BYTES_MAX).read_to_string(&mut answer)?;
    Ok(answer)
}

/// A listener on every address is reached on the loopback one; `[::]` takes IPv4 too.
fn reachable(admin: SocketAddr) -> SocketAddr {
    if admin.ip().is_unspecified() {
        SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), admin.port())
    } else {
        admin
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_address_is_reached_on_loopback() {
        for (admin, reached) in [
            ("[::]:9090", "127.0.0.1:9090"),
            ("0.0.0.0:1", "127.0.0.1:1"),
            ("10.0.0.7:1", "10.0.0.7:1"),
            ("[::1]:1", "[::1]:1"),
        ] {
            assert_eq!(reachable(admin.parse().unwrap()), reached.parse().unwrap());
        }
    }
}
