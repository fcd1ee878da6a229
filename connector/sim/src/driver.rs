//! Moves bytes, operations and completions, as the server's tasks do: after every input everything that a
//! state machine has to say is taken to the end.

use std::io::IoSlice;

use berth_engine::port::{Completion, Operation};
use berth_gateway::Session;
use berth_types::{ChannelName, ConnectionId, Ranges};
use bytes::Bytes;

use crate::Mistake;
use crate::client::{Standing, Wish};
use crate::network::Link;
use crate::node::{Conn, Stopping};
use crate::world::{Event, World};

impl World {
    /// How long something takes on the network.
    fn flight(&mut self) -> std::time::Duration {
        if self.plan.faults.slow_network && !self.is_quiet {
            self.random.micros(20, 200_000)
        } else {
            self.random.micros(20, 2000)
        }
    }

    fn chunk(&mut self) -> usize {
        let is_tiny = self.plan.faults.tiny_chunks && !self.is_quiet;
        let max = if is_tiny { 40 } else { 16_384 };
        self.random.between(1, max) as usize
    }

    /// Everything that a connection can do now.
    pub(crate) fn pump(&mut self, id: ConnectionId) {
        let Some(mut conn) = self.node.as_mut().and_then(|node| node.conns.remove(&id)) else { return };
        loop {
            let has_read = self.read_socket(id, &mut conn);
            self.take_operations(id, &mut conn);
            let has_written = self.write_socket(id, &mut conn);
            if !has_read && !has_written {
                break;
            }
        }
        self.take_operations(id, &mut conn);
        self.shut(&mut conn);
        let is_over = conn.is_over();
        let Some(node) = &mut self.node else { return };
        if !is_over {
            node.conns.insert(id, conn);
            return;
        }
        let closed = conn.session.closed().map_or("", |closed| closed.label());
        self.note(format_args!("{id} is over: {closed}"));
        self.checkers.disconnected(id);
        let now = self.clock();
        if let Some(node) = &mut self.node {
            node.broker.disconnect(now, id);
        }
        self.run_broker();
    }

    pub(crate) fn pump_all(&mut self) {
        let ids: Vec<_> = self.node.iter().flat_map(|node| node.conns.keys().copied()).collect();
        ids.into_iter().for_each(|id| self.pump(id));
    }

    pub(crate) fn pump_link(&mut self, link: usize) {
        let found = self.node.as_ref().and_then(|node| node.conns.iter().find(|(_, conn)| conn.link == link));
        if let Some(id) = found.map(|(id, _)| *id) {
            self.pump(id);
        }
    }

    fn read_socket(&mut self, id: ConnectionId, conn: &mut Conn) -> bool {
        if conn.is_shut || conn.saw_end {
            return false;
        }
        let now = self.clock();
        let chunk = self.chunk();
        let pipe = &mut self.links[conn.link].to_server;
        if conn.session.wants_input() {
            let bytes = pipe.receive(self.now, chunk);
            if !bytes.is_empty() {
                self.note(format_args!("{id} reads {}", bytes.len()));
                conn.input.extend_from_slice(&bytes);
                conn.session.handle_input(now, &mut conn.input);
                self.flush_client_of(conn.link);
                return true;
            }
        }
        if self.links[conn.link].to_server.is_at_end(self.now) {
            conn.saw_end = true;
            self.note(format_args!("{id} reads the end"));
            conn.session.handle_input_end(now);
            return true;
        }
        false
    }

    fn write_socket(&mut self, id: ConnectionId, conn: &mut Conn) -> bool {
        let now = self.clock();
        if conn.is_shut {
            return false;
        }
        let room = self.links[conn.link].to_client.room().min(self.chunk());
        let mut slices = [IoSlice::new(&[]); 8];
        let filled = conn.session.poll_transmit(now, &mut slices);
        let mut bytes = Vec::new();
        for slice in &slices[..filled] {
            let left = room - bytes.len();
            bytes.extend_from_slice(&slice[..left.min(slice.len())]);
        }
        if bytes.is_empty() {
            return false;
        }
        conn.tap.has_ended = conn.session.closed().is_some();
        conn.tap.feed(self.now, id, &bytes, &self.plan, &mut self.checkers);
        self.note(format_args!("{id} writes {}", bytes.len()));
        conn.session.handle_transmitted(now, bytes.len());
        let arrival = self.now + self.flight();
        let link = &mut self.links[conn.link];
        let arrival = link.to_client.send(arrival, Bytes::from(bytes));
        self.at_instant(arrival, Event::ToClient(conn.link));
        true
    }

    /// Closes the server's side once everything has been said.
    fn shut(&mut self, conn: &mut Conn) {
        let now = self.clock();
        let mut slices = [IoSlice::new(&[])];
        if conn.is_shut || conn.session.closed().is_none() || conn.session.poll_transmit(now, &mut slices) > 0
        {
            return;
        }
        conn.is_shut = true;
        let arrival = self.now + self.flight();
        let link = &mut self.links[conn.link];
        link.is_server_gone = true;
        let arrival = link.to_client.close(arrival);
        self.at_instant(arrival, Event::ToClient(conn.link));
    }

    fn take_operations(&mut self, id: ConnectionId, conn: &mut Conn) {
        while let Some((op, mut operation)) = conn.session.poll_operation() {
            if let Some(mistake) = self.mistake {
                self.make_mistake(mistake, &mut operation);
                let is_settlement = matches!(operation, Operation::Settle { .. });
                if mistake == Mistake::LoseSettlements && is_settlement && self.random.chance(50) {
                    conn.back.push_back((self.now, Some(op), Completion::Settled));
                    self.at(std::time::Duration::ZERO, Event::Hop(id));
                    continue;
                }
            }
            let wait = self.random.micros(1, 200);
            let at = conn.there.back().map_or(self.now, |(at, ..)| *at).max(self.now + wait);
            conn.there.push_back((at, op, operation));
            self.at_instant(at, Event::Hop(id));
        }
    }

    /// Falsifies what a session asks of the broker.
    fn make_mistake(&mut self, mistake: Mistake, operation: &mut Operation) {
        match (mistake, operation) {
            (Mistake::DropAcks, Operation::Settle { ack, release, .. }) if self.random.chance(20) => {
                std::mem::swap(ack, release);
            }
            (Mistake::ForgetNacks, Operation::Settle { ack, nack, .. }) if ack.is_empty() => {
                *ack = std::mem::replace(nack, Ranges::new());
            }
            (Mistake::Misroute, Operation::Publish { batch, .. }) if self.random.chance(100) => {
                if let (Some((destination, _)), Ok(nowhere)) =
                    (batch.first_mut(), ChannelName::parse("nowhere"))
                {
                    destination.channel = nowhere;
                }
            }
            (Mistake::WidenWindow, Operation::Reserve { max, .. }) => *max += 5,
            _ => {}
        }
    }

    /// Something between a session and the broker has arrived.
    pub(crate) fn hop(&mut self, id: ConnectionId) {
        let now = self.clock();
        let Some(node) = &mut self.node else { return };
        let Some(conn) = node.conns.get_mut(&id) else { return };
        while conn.there.front().is_some_and(|(at, ..)| *at <= self.now) {
            if let Some((_, op, operation)) = conn.there.pop_front() {
                self.trace.line(self.now, format_args!("{id} {op} {}", brief(&operation)));
                self.checkers.submitted(id, op, &operation);
                node.broker.submit(now, id, op, operation);
            }
        }
        while conn.back.front().is_some_and(|(at, ..)| *at <= self.now) {
            if let Some((_, op, completion)) = conn.back.pop_front() {
                conn.session.handle_completion(now, op, completion);
            }
        }
        self.run_broker();
        self.pump(id);
    }

    /// Everything the broker has to say, to the end.
    pub(crate) fn run_broker(&mut self) {
        let now = self.clock();
        let mut hops = Vec::new();
        let Some(node) = &mut self.node else { return };
        while let Some((id, op, mut completion)) = node.broker.poll() {
            self.checkers.completed(self.now, id, op, &completion);
            if matches!(completion, Completion::Ready(_)) {
                self.checkers.broker_failed();
            }
            let text = crate::trace::brief_completion(&completion);
            let op_text = op.map_or_else(String::new, |op| op.to_string());
            self.trace.line(self.now, format_args!("{id} {op_text} gets {text}"));
            let Some(conn) = node.conns.get_mut(&id) else { continue };
            if let (Some(Mistake::HideRedelivery), Completion::Reserved { items, .. }) =
                (self.mistake, &mut completion)
            {
                items.iter_mut().for_each(|item| item.redelivered = false);
            }
            let wait = self.random.micros(1, 200);
            let at = conn.back.back().map_or(self.now, |(at, ..)| *at).max(self.now + wait);
            conn.back.push_back((at, op, completion));
            hops.push((at, id));
        }
        while let Some(op) = self.node.as_mut().and_then(|node| node.broker.poll_storage(now)) {
            self.disk.submit(self.now, op);
        }
        hops.into_iter().for_each(|(at, id)| self.at_instant(at, Event::Hop(id)));
        if self.disk.is_waiting() {
            let latency = if self.plan.faults.slow_disk && !self.is_quiet && self.random.chance(100) {
                self.random.micros(100, 1_500_000)
            } else {
                self.random.micros(50, 2000)
            };
            self.disk.busy_until = Some(self.now + latency);
            self.at(latency, Event::Disk);
        }
    }

    /// The disk has finished an operation.
    pub(crate) fn disk_done(&mut self) {
        if self.disk.busy_until != Some(self.now) {
            // Of a process that has died meanwhile.
            return;
        }
        let Some((text, stored)) = self.disk.finish() else { return };
        self.note(format_args!("disk {text}"));
        let now = self.clock();
        if let Some(node) = &mut self.node {
            node.broker.handle_stored(now, stored);
        }
        self.run_broker();
    }

    pub(crate) fn handle_node_timeout(&mut self) {
        let now = self.clock();
        let Some(node) = &mut self.node else { return };
        node.broker.handle_timeout(now);
        let due: Vec<_> = node
            .conns
            .iter()
            .filter(|(_, conn)| conn.session.poll_timeout().is_some_and(|at| at <= self.now))
            .map(|(id, _)| *id)
            .collect();
        for id in &due {
            if let Some(conn) = node.conns.get_mut(id) {
                conn.session.handle_timeout(now);
            }
        }
        self.run_broker();
        due.into_iter().for_each(|id| self.pump(id));
    }

    /// The server learns that a connection is broken.
    pub(crate) fn tell_server(&mut self, link: usize) {
        let now = self.clock();
        self.links[link].is_server_gone = true;
        let Some(node) = &mut self.node else { return };
        let found = node.conns.iter_mut().find(|(_, conn)| conn.link == link);
        let Some((id, conn)) = found else { return };
        let id = *id;
        conn.session.handle_transport_lost(now);
        self.note(format_args!("{id} is lost"));
        self.pump(id);
    }

    /// A client learns that its connection is broken.
    pub(crate) fn tell_client(&mut self, link: usize) {
        if let Some(index) = self.clients.iter().position(|client| client.link == Some(link)) {
            self.client_ends(index);
        }
    }

    pub(crate) fn client_ends(&mut self, index: usize) {
        let Some(link) = self.clients[index].link else { return };
        self.note(format_args!("client {index} has lost link {link}"));
        self.clients[index].end();
        self.drop_link(link);
        let wait = self.random.millis(1, 1000);
        self.at(wait, Event::Client(index));
    }

    /// A client goes without a word: its side is closed, the server reads what is on its way and then the
    /// end.
    pub(crate) fn drop_link(&mut self, link: usize) {
        let arrival = self.now + self.flight();
        let gone = &mut self.links[link];
        if !std::mem::replace(&mut gone.is_client_gone, true) && !gone.is_broken() {
            // Writing to a closed peer fails: the server learns soon after.
            let arrival = gone.to_server.close(arrival);
            self.at_instant(arrival, Event::ToServer(link));
            let later = arrival + self.random.millis(1, 50);
            self.at_instant(later, Event::ServerTold(link));
        }
    }

    pub(crate) fn client_reads(&mut self, link: usize) {
        let Some(index) = self.clients.iter().position(|client| client.link == Some(link)) else { return };
        if self.clients[index].sleeps_until > self.now {
            return;
        }
        loop {
            let chunk = self.chunk();
            let bytes = self.links[link].to_client.receive(self.now, chunk);
            if bytes.is_empty() {
                break;
            }
            self.with_client(index, |client, around| client.read(around, &bytes));
        }
        if self.links[link].to_client.is_at_end(self.now) {
            self.client_ends(index);
        }
        self.pump_link(link);
        self.flush_client(index);
    }

    /// A client's moment: it connects, reads what it has slept through, acts, and says when it wants to act
    /// again.
    pub(crate) fn client_acts(&mut self, index: usize) {
        if self.clients[index].is_done() || self.clients[index].wakes_at > self.now {
            return;
        }
        if self.clients[index].standing == Standing::Off {
            self.connect(index);
        } else if let Some(link) = self.clients[index].link {
            self.client_reads(link);
            let wish = self.with_client(index, |client, around| client.act(around));
            if wish == Wish::Drop && self.clients[index].link.is_some() {
                self.client_ends(index);
            }
        }
        self.flush_client(index);
        if self.clients[index].standing == Standing::Off {
            return;
        }
        let pause = self.with_client(index, |client, around| client.pause(around));
        self.clients[index].wakes_at = self.now + pause;
        self.at(pause, Event::Client(index));
    }

    fn connect(&mut self, index: usize) {
        let is_open = self.node.as_ref().is_some_and(|node| node.stopping == Stopping::No);
        if !is_open {
            let wait = self.random.millis(50, 1000);
            self.at(wait, Event::Client(index));
            return;
        }
        let (link, id) = (self.links.len(), self.next_conn);
        self.next_conn = id.next();
        self.links.push(Link::new(self.plan.socket_bytes));
        let seed = u128::from(self.random.draw()) << 64 | u128::from(self.random.draw());
        let conn = Conn::new(self.clock(), id, link, seed, &self.plan);
        if let Some(node) = &mut self.node {
            node.conns.insert(id, conn);
        }
        self.note(format_args!("client {index} connects as {id} over link {link}"));
        self.with_client(index, |client, around| client.begin(around, link, id));
    }

    fn flush_client_of(&mut self, link: usize) {
        if let Some(index) = self.clients.iter().position(|client| client.link == Some(link)) {
            self.flush_client(index);
        }
    }

    /// Sends what a client has to say, as far as there is room.
    fn flush_client(&mut self, index: usize) {
        let Some(link) = self.clients[index].link else { return };
        while !self.clients[index].output.is_empty() {
            let chunk = self.chunk();
            let room = self.links[link].to_server.room().min(chunk).min(self.clients[index].output.len());
            if room == 0 || self.links[link].is_client_gone {
                break;
            }
            let bytes = self.clients[index].output.split_to(room).freeze();
            let arrival = self.now + self.flight();
            let arrival = self.links[link].to_server.send(arrival, bytes);
            self.at_instant(arrival, Event::ToServer(link));
        }
    }
}

fn brief(operation: &Operation) -> String {
    match operation {
        Operation::Publish { batch, .. } => format!("publishes {}", batch.len()),
        Operation::Settle { txn, ack, nack, release, reject, confirm, .. } => {
            let [ack, nack, release, reject] = [ack, nack, release, reject].map(Ranges::as_slice);
            format!("settles {txn} ack {ack:?} nack {nack:?} release {release:?} reject {reject:?} {confirm}")
        }
        other => format!("{other:?}"),
    }
}
