//! A server that only moves bytes: it answers STOMP just enough for the load generator, keeps nothing on
//! disk and checks nothing. It shows what the generator and the sockets alone cost, and so is the limit of
//! scenario B1.
//!
//! SEND goes to the destination's subscribers in turn, RECEIPT follows at once, ACK is ignored. Messages
//! without a subscriber are dropped. When a subscriber does not read, producers are not read either.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Write};
use std::net::TcpListener;

use anyhow::Result;
use memchr::memmem;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use crate::conn::Conn;
use crate::wire;

/// Listens on 127.0.0.1; port 0 takes a free one. Prints the address.
pub(crate) fn listen(port: u16) -> Result<TcpListener> {
    let listener = TcpListener::bind(("127.0.0.1", port))?;
    let mut stdout = std::io::stdout();
    writeln!(stdout, "listening on {}", listener.local_addr()?)?;
    stdout.flush()?;
    Ok(listener)
}

/// Serves until the process is ended.
pub(crate) fn serve(listener: &TcpListener) -> Result<()> {
    listener.set_nonblocking(true)?;
    let epoll = Epoll::new(EpollCreateFlags::empty())?;
    epoll.add(listener, EpollEvent::new(EpollFlags::EPOLLIN, LISTENER))?;
    let mut server = Server { epoll, conns: Vec::new(), router: Router::default(), paused: Vec::new() };
    let mut events = vec![EpollEvent::empty(); 64];
    loop {
        let ready = server.epoll.wait(&mut events, EpollTimeout::NONE)?;
        for event in &events[..ready] {
            if event.data() == LISTENER {
                server.accept(listener)?;
            } else {
                server.dispatch(event.data() as usize, event.events())?;
            }
        }
    }
}

struct Server {
    epoll: Epoll,
    /// By token; none where a connection has ended, or is being read.
    conns: Vec<Option<Conn>>,
    router: Router,
    /// Connections that are not read because a subscriber is behind.
    paused: Vec<usize>,
}

impl Server {
    fn accept(&mut self, listener: &TcpListener) -> Result<()> {
        loop {
            match listener.accept() {
                Ok((stream, _)) => {
                    stream.set_nodelay(true)?;
                    let mut conn = Conn::accepted(stream, INPUT_BYTES);
                    conn.register(&self.epoll, self.conns.len() as u64)?;
                    self.conns.push(Some(conn));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn dispatch(&mut self, index: usize, flags: EpollFlags) -> Result<()> {
        let Some(mut conn) = self.conns.get_mut(index).and_then(Option::take) else { return Ok(()) };
        let mut open = true;
        if flags.contains(EpollFlags::EPOLLOUT) {
            open = conn.flush(&self.epoll).is_ok();
        }
        if open && flags.intersects(EpollFlags::EPOLLIN | EpollFlags::EPOLLHUP | EpollFlags::EPOLLERR) {
            open = conn.read()?;
            let (router, conns) = (&mut self.router, &mut self.conns);
            conn.frames(true, |frame, output| router.frame(index, frame, output, conns));
            open = open && conn.flush(&self.epoll).is_ok();
        }
        if open {
            self.conns[index] = Some(conn);
        } else {
            self.router.forget(index);
        }
        self.flush_receivers(index)
    }

    /// Sends what the frames of `from` have produced for others; pauses it when one of them is behind.
    fn flush_receivers(&mut self, from: usize) -> Result<()> {
        let mut behind = false;
        for index in self.router.take_touched() {
            if let Some(conn) = self.conns.get_mut(index).and_then(Option::as_mut) {
                if conn.flush(&self.epoll).is_err() {
                    self.conns[index] = None;
                    self.router.forget(index);
                } else {
                    behind |= conn.unsent_bytes() > UNSENT_BYTES_MAX;
                }
            }
        }
        if behind {
            if let Some(conn) = &mut self.conns[from] {
                conn.set_reading(&self.epoll, false)?;
                self.paused.push(from);
            }
        } else if self.conns.iter().flatten().all(|conn| conn.unsent_bytes() < UNSENT_BYTES_MAX / 2) {
            for index in std::mem::take(&mut self.paused) {
                if let Some(conn) = &mut self.conns[index] {
                    conn.set_reading(&self.epoll, true)?;
                }
            }
        }
        Ok(())
    }
}

#[derive(Default)]
struct Router {
    queues: BTreeMap<Vec<u8>, Queue>,
    /// Connections whose output has grown.
    touched: Vec<usize>,
    last_id: u64,
}

#[derive(Default)]
struct Queue {
    subscribers: Vec<Subscriber>,
    next: usize,
}

struct Subscriber {
    conn: usize,
    /// MESSAGE up to the value of message-id.
    head: Vec<u8>,
}

impl Router {
    fn frame(&mut self, from: usize, frame: &[u8], output: &mut Vec<u8>, conns: &mut [Option<Conn>]) {
        match frame.first() {
            Some(b'C') => output.extend_from_slice(b"CONNECTED\nversion:1.2\nheart-beat:0,0\n\n\0"),
            Some(b'S') if frame.starts_with(b"SEND") => self.send(from, frame, output, conns),
            Some(b'S') => self.subscribe(from, frame),
            _ => {}
        }
        if let Some(receipt) = wire::header(frame, &memmem::Finder::new("\nreceipt:")) {
            output.extend_from_slice(b"RECEIPT\nreceipt-id:");
            output.extend_from_slice(receipt);
            output.extend_from_slice(b"\n\n\0");
        }
    }

    fn subscribe(&mut self, from: usize, frame: &[u8]) {
        let Some(destination) = wire::header(frame, &memmem::Finder::new("\ndestination:")) else { return };
        let id = wire::header(frame, &memmem::Finder::new("\nid:")).unwrap_or(b"0");
        let head = [b"MESSAGE\nsubscription:", id, b"\ndestination:", destination, b"\nmessage-id:"].concat();
        let queue = self.queues.entry(destination.to_vec()).or_default();
        queue.subscribers.push(Subscriber { conn: from, head });
    }

    fn send(&mut self, from: usize, frame: &[u8], output: &mut Vec<u8>, conns: &mut [Option<Conn>]) {
        let Some(destination) = wire::header(frame, &memmem::Finder::new("\ndestination:")) else { return };
        let Some(body) = memmem::find(frame, b"\n\n").map(|at| &frame[at + 2..]) else { return };
        let Some(queue) = self.queues.get_mut(destination) else { return };
        if queue.subscribers.is_empty() {
            return;
        }
        queue.next = (queue.next + 1) % queue.subscribers.len();
        let subscriber = &queue.subscribers[queue.next];
        let out = if subscriber.conn == from {
            output
        } else {
            let Some(conn) = conns.get_mut(subscriber.conn).and_then(Option::as_mut) else { return };
            if !self.touched.contains(&subscriber.conn) {
                self.touched.push(subscriber.conn);
            }
            &mut conn.output
        };
        self.last_id += 1;
        let id = wire::hex(self.last_id);
        out.extend_from_slice(&subscriber.head);
        out.extend_from_slice(&id);
        out.extend_from_slice(b"\nack:");
        out.extend_from_slice(&id);
        out.extend_from_slice(b"\n\n");
        out.extend_from_slice(body);
        out.push(0);
    }

    fn take_touched(&mut self) -> Vec<usize> {
        std::mem::take(&mut self.touched)
    }

    fn forget(&mut self, conn: usize) {
        for queue in self.queues.values_mut() {
            queue.subscribers.retain(|subscriber| subscriber.conn != conn);
        }
    }
}

const LISTENER: u64 = u64::MAX;
const INPUT_BYTES: usize = 256 * 1024;
const UNSENT_BYTES_MAX: usize = 4 << 20;
