//! What a message costs in the sessions of its producer and its consumer, without socket and broker:
//! `cargo bench -p berth-gateway`. From the octets of SEND to those of MESSAGE, and with acks back again.

#![allow(clippy::disallowed_methods, clippy::disallowed_types)] // A benchmark reads the clock.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::Arc;
use std::time::Instant as Clock;

use berth_engine::port::{Capabilities, Capability, Completion, Operation, Reserved, Stored};
use berth_gateway::{OpenAccess, Session, StompContext, StompSession, StompSettings};
use berth_types::{ConnectionId, Instant, Message, Now, OpId, Seq, SubId, Timestamp, TxnId};
use bytes::BytesMut;

const MESSAGES: usize = 200_000;
const PER_READ: usize = 64;

fn main() {
    for (name, ack, receipt) in [
        ("auto, 256 B, no receipts", "auto", ""),
        ("client-individual, 1 KiB, receipts", "client-individual", "receipt:r-123\n"),
        ("client, 1 KiB, receipts", "client", "receipt:r-123\n"),
    ] {
        let body = "x".repeat(if ack == "auto" { 256 } else { 1024 });
        let best = (0..5).map(|_| run(ack, receipt, &body)).fold(f64::MAX, f64::min);
        println!("{name:<36} {best:>8.0} ns per message");
    }
}

/// A queue that is always ready: two connections, 0 publishes and 1 consumes.
#[derive(Default)]
struct Queue {
    messages: VecDeque<Arc<Message>>,
    waiting: Option<(OpId, u32)>,
    answers: VecDeque<(usize, OpId, Completion)>,
    next_txn: u64,
}

impl Queue {
    fn submit(&mut self, client: usize, op: OpId, operation: Operation) {
        let answer = match operation {
            Operation::Attach { .. } => Completion::Opened { sub: SubId::new(1), next_seq: None },
            Operation::Publish { batch, .. } => {
                let stored = batch.iter().map(|_| Ok(Stored { seq: Seq::new(1) })).collect();
                self.messages.extend(batch.into_iter().map(|(_, message)| message));
                Completion::Published(stored)
            }
            Operation::Reserve { max, .. } => {
                self.waiting = Some((op, max));
                return;
            }
            _ => Completion::Settled,
        };
        self.answers.push_back((client, op, answer));
    }

    fn serve(&mut self) {
        if self.messages.is_empty() {
            return;
        }
        let Some((op, max)) = self.waiting.take() else { return };
        self.next_txn += 1;
        let count = self.messages.len().min(max as usize);
        let items = (1..).zip(self.messages.drain(..count)).map(|(seq, message)| Reserved {
            seq: Seq::new(seq),
            message,
            receive_count: 0,
            redelivered: false,
            held_until: None,
        });
        let reserved = Completion::Reserved { txn: TxnId::new(self.next_txn), items: items.collect() };
        self.answers.push_back((1, op, reserved));
    }
}

fn run(ack: &str, receipt: &str, body: &str) -> f64 {
    let settings = Arc::new(StompSettings { subscription_buffer: 1000, ..StompSettings::default() });
    let mut now = Now { monotonic: Instant::from_nanos(1), wall: Timestamp::from_millis(1_700_000_000_000) };
    let mut sessions: Vec<StompSession> = (0..2u64)
        .map(|client| {
            let engine = berth_engine::Settings {
                capabilities: Capabilities::of(&[Capability::Queues, Capability::Release]),
                is_ready: true,
            };
            let access = Arc::new(OpenAccess);
            let id = ConnectionId::new(client);
            let context =
                StompContext { id, seed: u128::from(client), settings: settings.clone(), access, engine };
            StompSession::new(now, context)
        })
        .collect();
    let connect = "CONNECT\naccept-version:1.2\nhost:/\n\n\0";
    sessions[0].handle_input(now, &mut BytesMut::from(connect));
    let subscribe = format!("{connect}SUBSCRIBE\nid:1\ndestination:/queue/q\nack:{ack}\n\n\0");
    sessions[1].handle_input(now, &mut BytesMut::from(subscribe.as_str()));
    let send = format!(
        "SEND\ndestination:/queue/q\ncontent-type:text/plain\n{receipt}content-length:{}\n\n{body}\0",
        body.len()
    );
    let read = send.repeat(PER_READ);
    let mut queue = Queue::default();
    let mut acks = BytesMut::new();
    let mut delivered = 0usize;
    let begun = Clock::now();
    let mut sent = 0;
    while delivered < MESSAGES {
        if sent < MESSAGES {
            sessions[0].handle_input(now, &mut BytesMut::from(read.as_str()));
            sent += PER_READ;
        }
        now.monotonic = now.monotonic + std::time::Duration::from_millis(3);
        sessions[1].handle_timeout(now);
        loop {
            for (client, session) in sessions.iter_mut().enumerate() {
                while let Some((op, operation)) = session.poll_operation() {
                    queue.submit(client, op, operation);
                }
            }
            queue.serve();
            let Some((client, op, completion)) = queue.answers.pop_front() else { break };
            if let Completion::Reserved { items, .. } = &completion {
                delivered += items.len();
            }
            sessions[client].handle_completion(now, Some(op), completion);
        }
        for (client, session) in sessions.iter_mut().enumerate() {
            write(now, session, (client == 1 && ack != "auto").then_some(&mut acks));
        }
        if !acks.is_empty() {
            sessions[1].handle_input(now, &mut acks);
        }
    }
    begun.elapsed().as_secs_f64() * 1e9 / delivered as f64
}

/// Takes all output; answers each MESSAGE with an ACK when asked to.
fn write(now: Now, session: &mut StompSession, mut acks: Option<&mut BytesMut>) {
    loop {
        let mut slices = [IoSlice::new(&[]); 64];
        let used = session.poll_transmit(now, &mut slices);
        if used == 0 {
            return;
        }
        let mut bytes = 0;
        for slice in &slices[..used] {
            bytes += slice.len();
            if let Some(acks) = acks.as_deref_mut() {
                acknowledge(slice, acks);
            }
        }
        session.handle_transmitted(now, bytes);
    }
}

fn acknowledge(octets: &[u8], acks: &mut BytesMut) {
    let mut rest = octets;
    while let Some(at) = rest.windows(5).position(|w| w == b"\nack:") {
        acks.extend_from_slice(b"ACK\nid:");
        acks.extend_from_slice(&rest[at + 5..at + 41]);
        acks.extend_from_slice(b"\n\n\0");
        rest = &rest[at + 41..];
    }
}
