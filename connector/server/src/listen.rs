//! Listening sockets and accepting: limits, socket options, nothing of a protocol.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::connection::LINGER;
use crate::metrics::{Metrics, Reason};

/// Connections that the kernel holds until they are accepted.
const BACKLOG: i32 = 1024;

/// A peer that has vanished is found after about `IDLE + RETRIES * INTERVAL`.
const KEEP_ALIVE_IDLE: Duration = Duration::from_secs(60);
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(15);
const KEEP_ALIVE_RETRIES: u32 = 4;

/// Connections that are being told that there are too many; further ones are closed without a word.
pub(crate) const TOLD_MAX: usize = 16;

/// How long accepting rests when the process has no file descriptor left.
const REST: Duration = Duration::from_millis(100);

/// Opens a listening socket. `[::]` takes IPv4 too.
///
/// # Errors
/// What the system says, among it [`io::ErrorKind::AddrInUse`].
pub(crate) fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    // A restart must not wait for the connections of the last process to time out.
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// Accepts connections up to a limit.
pub(crate) struct Acceptor {
    listener: TcpListener,
    room: Arc<Semaphore>,
    telling: Arc<Semaphore>,
    too_many: &'static [u8],
    metrics: Arc<Metrics>,
}

impl Acceptor {
    /// At most `connections_max` at a time; one more hears `too_many` and is closed.
    pub(crate) fn new(
        listener: TcpListener,
        connections_max: usize,
        too_many: &'static [u8],
        metrics: Arc<Metrics>,
    ) -> Self {
        let room = Arc::new(Semaphore::new(connections_max));
        Self { listener, room, telling: Arc::new(Semaphore::new(TOLD_MAX)), too_many, metrics }
    }

    /// The next connection, ready to be driven. It counts until the permit is dropped.
    pub(crate) async fn accept(&self) -> (TcpStream, SocketAddr, OwnedSemaphorePermit) {
        loop {
            let (stream, remote) = match self.listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    self.rest(&error).await;
                    continue;
                }
            };
            if let Err(error) = prepare(&stream) {
                tracing::debug!(%remote, %error, "Connection lost while it was accepted");
                continue;
            }
            match Arc::clone(&self.room).try_acquire_owned() {
                Ok(permit) => return (stream, remote, permit),
                Err(_) => self.turn_away(stream, remote),
            }
        }
    }

    /// A connection that failed while it waited is nobody's fault; anything else would come again at once.
    async fn rest(&self, error: &io::Error) {
        if matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset) {
            return;
        }
        tracing::warn!(%error, "Cannot accept connections, trying again");
        self.metrics.connections_refused.get_or_create(&Reason { reason: "accept_failed" }).inc();
        tokio::time::sleep(REST).await;
    }

    fn turn_away(&self, mut stream: TcpStream, remote: SocketAddr) {
        tracing::warn!(%remote, "Connection refused, too many connections");
        self.metrics.connections_refused.get_or_create(&Reason { reason: "too_many" }).inc();
        let Ok(permit) = Arc::clone(&self.telling).try_acquire_owned() else { return };
        let text = self.too_many;
        tokio::spawn(async move {
            let telling = async {
                stream.write_all(text).await?;
                stream.shutdown().await?;
                let mut scratch = [0; 1024];
                while stream.read(&mut scratch).await? > 0 {}
                io::Result::Ok(())
            };
            // Whether the client has heard it is up to the client.
            tokio::time::timeout(LINGER, telling).await.ok();
            drop(permit);
        });
    }
}

/// Small frames leave at once; a peer that has vanished is found.
fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let keep_alive = TcpKeepalive::new()
        .with_time(KEEP_ALIVE_IDLE)
        .with_interval(KEEP_ALIVE_INTERVAL)
        .with_retries(KEEP_ALIVE_RETRIES);
    SockRef::from(stream).set_tcp_keepalive(&keep_alive)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_too_many_is_told_and_room_comes_back() {
        let listener = bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        let metrics = Arc::new(Metrics::new("0"));
        let acceptor = Acceptor::new(listener, 1, b"too many", metrics);
        let first = TcpStream::connect(address).await.unwrap();
        let (_stream, _, permit) = acceptor.accept().await;
        let mut second = TcpStream::connect(address).await.unwrap();
        let told = async {
            let mut text = String::new();
            second.read_to_string(&mut text).await.unwrap();
            drop(second);
            text
        };
        let text = tokio::select! {
            text = told => text,
            _ = acceptor.accept() => panic!("accepted beyond the limit"),
        };
        assert_eq!(text, "too many");
        drop((first, permit));
        let third = TcpStream::connect(address);
        let (third, _accepted) = tokio::join!(third, acceptor.accept());
        third.unwrap();
    }

    #[tokio::test]
    async fn a_port_in_use_says_so() {
        let listener = bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let error = bind(listener.local_addr().unwrap()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    }
}
