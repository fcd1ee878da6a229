//! Accepts connections to the admin port: a bounded number at a time, each for a bounded time.
//!
//! Probes and scrapes are short. A caller that stays longer sees the end of its connection after [`LIFE`]: a
//! request that was read by then is still answered. So nobody can keep probes out, or use up the process's
//! files.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Sleep, sleep};

/// Connections at a time; further ones wait in the kernel.
pub(crate) const CONNECTIONS_MAX: usize = 32;

/// How long a connection may bring new requests.
pub(crate) const LIFE: Duration = Duration::from_secs(30);

/// How long a last answer may take after that.
const GRACE: Duration = Duration::from_secs(10);

/// A listener with room for a bounded number of connections.
pub(crate) struct AdminListener {
    listener: TcpListener,
    room: Arc<Semaphore>,
}

impl AdminListener {
    /// Takes over a listening socket.
    pub(crate) fn new(listener: TcpListener) -> Self {
        Self { listener, room: Arc::new(Semaphore::new(CONNECTIONS_MAX)) }
    }
}

impl Listener for AdminListener {
    type Io = Bounded<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, SocketAddr) {
        let permit = Arc::clone(&self.room).acquire_owned().await;
        // Errors that come again at once are waited out there.
        let (stream, remote) = Listener::accept(&mut self.listener).await;
        (Bounded::new(stream, permit.ok()), remote)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// The caller's address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer(pub(crate) SocketAddr);

impl Connected<IncomingStream<'_, AdminListener>> for Peer {
    fn connect_info(stream: IncomingStream<'_, AdminListener>) -> Self {
        Self(*stream.remote_addr())
    }
}

/// A stream that ends after its time: reads see the end, writes fail some time later.
pub(crate) struct Bounded<I> {
    stream: I,
    until: Pin<Box<Sleep>>,
    is_over: bool,
    _permit: Option<OwnedSemaphorePermit>,
}

impl<I> Bounded<I> {
    fn new(stream: I, permit: Option<OwnedSemaphorePermit>) -> Self {
        Self { stream, until: Box::pin(sleep(LIFE)), is_over: false, _permit: permit }
    }

    /// Whether the last answer's time is over too.
    fn is_late(&mut self, cx: &mut Context<'_>) -> bool {
        if self.until.as_mut().poll(cx).is_pending() {
            return false;
        }
        if self.is_over {
            return true;
        }
        self.is_over = true;
        let grace = self.until.deadline() + GRACE;
        self.until.as_mut().reset(grace);
        self.until.as_mut().poll(cx).is_ready()
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for Bounded<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.is_late(cx) || self.is_over {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Bounded<I> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.is_late(cx) {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    #[tokio::test(start_paused = true)]
    async fn a_caller_that_stays_sees_the_end_and_one_that_does_not_read_is_given_up() {
        let (mut caller, server) = duplex(8);
        let mut server = Bounded::new(server, None);
        caller.write_all(b"one").await.unwrap();
        let mut three = [0; 3];
        server.read_exact(&mut three).await.unwrap();
        assert_eq!(server.read(&mut three).await.unwrap(), 0, "after its life it sees the end");
        server.write_all(b"last").await.unwrap();
        let error = server.write_all(&[0; 100]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
