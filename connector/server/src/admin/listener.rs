//! Accepts connections to the admin port: a bounded number at a time, each for a bounded time.
//!
//! Probes and scrapes are short, and nobody may keep them out or use up the process's files. So a newcomer
//! never waits for a seat: when all [`CONNECTIONS_MAX`] are taken, the oldest connection that has no request
//! under way is closed, and when each has one, the oldest of all. A request is under way from the end of its
//! head to the first bytes of its answer.
//!
//! A connection without a request under way is closed after [`HEAD`], and any after [`LIFE`]: it sees the end
//! of its input, and what is still written to it fails [`GRACE`] later.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep, timeout};

use crate::mailbox::lock;

/// Connections at a time.
pub(crate) const CONNECTIONS_MAX: usize = 32;

/// How long the head of a request may take, from the opening or from the last answer.
pub(crate) const HEAD: Duration = Duration::from_secs(5);

/// How long a connection may bring new requests.
pub(crate) const LIFE: Duration = Duration::from_secs(30);

/// How long a last answer may take after that.
const GRACE: Duration = Duration::from_secs(10);

/// How long a connection that is closed for a newcomer may take to go before the next one is closed too.
const LEAVE: Duration = Duration::from_millis(100);

/// A listener with room for a bounded number of connections.
pub(crate) struct AdminListener {
    listener: TcpListener,
    seats: Arc<Seats>,
}

impl AdminListener {
    /// Takes over a listening socket.
    pub(crate) fn new(listener: TcpListener) -> Self {
        Self { listener, seats: Arc::default() }
    }
}

impl Listener for AdminListener {
    type Io = Bounded<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, SocketAddr) {
        // Errors that come again at once are waited out there.
        let (stream, remote) = Listener::accept(&mut self.listener).await;
        let seat = self.seats.take().await;
        (Bounded::new(stream, seat), remote)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// The seats of the connections, the oldest first.
struct Seats {
    free: Arc<Semaphore>,
    taken: Mutex<VecDeque<Arc<Seat>>>,
}

impl Default for Seats {
    fn default() -> Self {
        Self { free: Arc::new(Semaphore::new(CONNECTIONS_MAX)), taken: Mutex::default() }
    }
}

impl Seats {
    /// A seat for a newcomer, if need be another's.
    async fn take(self: &Arc<Self>) -> Taken {
        let mut permit = Arc::clone(&self.free).try_acquire_owned().ok();
        while permit.is_none() {
            self.close_one();
            let freed = timeout(LEAVE, Arc::clone(&self.free).acquire_owned()).await;
            permit = freed.ok().and_then(Result::ok);
        }
        let seat = Arc::new(Seat::default());
        lock(&self.taken).push_back(Arc::clone(&seat));
        Taken { seat, seats: Arc::clone(self), _permit: permit }
    }

    fn close_one(&self) {
        let taken = lock(&self.taken);
        let mut open = taken.iter().filter(|seat| !seat.is_closed.load(Ordering::Acquire));
        let oldest = open.clone().next();
        if let Some(seat) = open.find(|seat| !seat.is_asked.load(Ordering::Acquire)).or(oldest) {
            seat.close();
        }
    }
}

/// What is known of one connection.
#[derive(Default)]
struct Seat {
    /// Whether a request is under way.
    is_asked: AtomicBool,
    /// Whether a newcomer needs the seat.
    is_closed: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl Seat {
    fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        if let Some(waker) = lock(&self.waker).take() {
            waker.wake();
        }
    }

    fn poll_closed(&self, cx: &Context<'_>) -> bool {
        let mut waker = lock(&self.waker);
        if !waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            *waker = Some(cx.waker().clone());
        }
        self.is_closed.load(Ordering::Acquire)
    }
}

/// A seat until it is dropped.
struct Taken {
    seat: Arc<Seat>,
    seats: Arc<Seats>,
    _permit: Option<OwnedSemaphorePermit>,
}

impl Drop for Taken {
    fn drop(&mut self) {
        lock(&self.seats.taken).retain(|seat| !Arc::ptr_eq(seat, &self.seat));
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
    seat: Taken,
    line: Line,
    life: Instant,
    until: Pin<Box<Sleep>>,
    is_over: bool,
}

/// How far the head of a request has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Line {
    /// Empty lines before the head.
    None,
    /// Within a line.
    Within,
    /// At the start of a line.
    Start,
}

impl<I> Bounded<I> {
    fn new(stream: I, seat: Taken) -> Self {
        let until = Box::pin(sleep(HEAD));
        let life = until.deadline() + (LIFE - HEAD);
        Self { stream, seat, line: Line::None, life, until, is_over: false }
    }

    /// Whether nothing can be read or written any more: the last answer's time is over too, or the seat is
    /// another's.
    fn is_late(&mut self, cx: &mut Context<'_>) -> bool {
        if self.seat.seat.poll_closed(cx) {
            self.is_over = true;
            return true;
        }
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

    /// Looks for the end of a head, which is an empty line.
    fn follow(&mut self, bytes: &[u8]) {
        let is_asked = &self.seat.seat.is_asked;
        if is_asked.load(Ordering::Relaxed) {
            return;
        }
        for byte in bytes {
            self.line = match (self.line, byte) {
                (line, b'\r') => line,
                (Line::None, b'\n') => Line::None,
                (Line::Within, b'\n') => Line::Start,
                (Line::Start, b'\n') => {
                    is_asked.store(true, Ordering::Release);
                    self.until.as_mut().reset(self.life);
                    return;
                }
                _ => Line::Within,
            };
        }
    }

    /// The answer has begun: the next head may come.
    fn answered(&mut self) {
        if self.seat.seat.is_asked.swap(false, Ordering::AcqRel) && !self.is_over {
            self.line = Line::None;
            self.until.as_mut().reset(self.life.min(sleep(HEAD).deadline()));
        }
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
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buffer);
        self.follow(&buffer.filled()[before..]);
        polled
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Bounded<I> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.is_late(cx) {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        let polled = Pin::new(&mut self.stream).poll_write(cx, bytes);
        if polled.is_ready() {
            self.answered();
        }
        polled
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
    use axum::Router;
    use axum::routing::get;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    fn now() -> Instant {
        sleep(Duration::ZERO).deadline()
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_that_stays_sees_the_end_and_one_that_does_not_read_is_given_up() {
        let (mut caller, server) = duplex(8);
        let mut server = Bounded::new(server, Arc::<Seats>::default().take().await);
        caller.write_all(b"one\r\n\r\n").await.unwrap();
        let (begun, mut head) = (now(), [0; 7]);
        server.read_exact(&mut head).await.unwrap();
        assert_eq!(server.read(&mut head).await.unwrap(), 0, "after its life it sees the end");
        assert_eq!((now() - begun).as_secs(), LIFE.as_secs());
        server.write_all(b"last").await.unwrap();
        let error = server.write_all(&[0; 100]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_has_its_own_time_and_so_has_the_next() {
        let (mut caller, server) = duplex(64);
        let mut server = Bounded::new(server, Arc::<Seats>::default().take().await);
        let (begun, mut bytes) = (now(), [0; 64]);
        caller.write_all(b"\r\n\r\nGET / HTTP/1.1\n\n").await.unwrap();
        assert!(server.read(&mut bytes).await.unwrap() > 0);
        sleep(HEAD * 2).await;
        server.write_all(b"answer").await.unwrap();
        caller.write_all(b"\r\n\r\nGET / HTTP/1.1\r\nHost").await.unwrap();
        assert!(server.read(&mut bytes).await.unwrap() > 0);
        assert_eq!(server.read(&mut bytes).await.unwrap(), 0, "half a head is given up");
        assert_eq!((now() - begun).as_secs(), 3 * HEAD.as_secs());
    }

    #[tokio::test(start_paused = true)]
    async fn a_newcomer_takes_the_oldest_seat_without_a_request() {
        let seats = Arc::<Seats>::default();
        let mut taken = Vec::new();
        for _ in 0..CONNECTIONS_MAX {
            taken.push(seats.take().await);
        }
        taken[0].seat.is_asked.store(true, Ordering::Release);
        let closed = |taken: &[Taken]| taken.iter().position(|t| t.seat.is_closed.load(Ordering::Acquire));
        // The closed one stays a little, so the newcomer still waits.
        assert!(timeout(LEAVE / 2, seats.take()).await.is_err());
        assert_eq!(closed(&taken), Some(1));
        drop(taken.remove(1));
        taken.push(seats.take().await);
        assert_eq!((closed(&taken), lock(&seats.taken).len()), (None, CONNECTIONS_MAX));
        taken.iter().for_each(|taken| taken.seat.is_asked.store(true, Ordering::Release));
        assert!(timeout(LEAVE / 2, seats.take()).await.is_err());
        assert_eq!(closed(&taken), Some(0));
    }

    /// Without seats that change hands this takes 50 seconds: ten times the bound, [`HEAD`] each.
    #[tokio::test]
    async fn half_requests_do_not_keep_a_probe_out() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().route("/livez", get(async || "alive"));
        let server = tokio::spawn(axum::serve(AdminListener::new(listener), router).into_future());
        let mut idle = Vec::new();
        for _ in 0..10 * CONNECTIONS_MAX {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(b"GET /livez HTTP/1.1\r\nHost:").await.unwrap();
            idle.push(stream);
        }
        let mut answer = String::new();
        let probe = async {
            let mut stream = TcpStream::connect(address).await?;
            stream.write_all(b"GET /livez HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await?;
            stream.read_to_string(&mut answer).await
        };
        timeout(LIFE, probe).await.expect("the probe is answered").unwrap();
        assert!(answer.ends_with("alive"), "{answer}");
        server.abort();
    }
}
