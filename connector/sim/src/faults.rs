//! What goes wrong, when, and how the process ends: killed, without power, or in order.

use std::time::Duration;

use berth_gateway::Session;

use crate::node::Stopping;
use crate::world::{Event, World};

impl World {
    pub(crate) fn schedule_fault(&mut self) {
        let wait = self.random.millis(200, 4000);
        self.at(wait, Event::Fault);
    }

    /// One fault of those that the plan allows.
    pub(crate) fn fault(&mut self) {
        if self.is_quiet {
            return;
        }
        self.schedule_fault();
        let faults = self.plan.faults;
        let client = self.random.below(self.clients.len() as u64) as usize;
        let link = self.clients[client].link;
        match self.random.below(10) {
            0 if faults.kills => self.crash(false),
            1 if faults.power_cuts => self.crash(true),
            2 if faults.drains => self.stop_in_order(),
            3 if faults.disk_full => {
                let room = self.disk.storage.used_bytes() + self.random.below(64 * 1024);
                self.note(format_args!("disk is full at {room}"));
                self.disk.bound(Some(room));
                let wait = self.random.millis(500, 6000);
                self.at(wait, Event::DiskFreed);
            }
            4 if faults.disk_errors => {
                let call = self.disk.plan_error(self.random.between(1, 5));
                self.note(format_args!("disk call {call} will fail"));
            }
            5 if faults.clock_steps => {
                let forward = self.random.chance(500);
                let step = self.random.below(4_000_000);
                self.wall_ms = if forward { self.wall_ms + step } else { self.wall_ms - step };
                let wall = self.wall_ms;
                self.note(format_args!("wall clock is off by {wall} ms"));
            }
            6 if faults.slow_readers => {
                let nap = self.random.millis(100, 3 * self.plan.ack_timeout.as_millis() as u64);
                self.note(format_args!("client {client} does not read for {nap:?}"));
                self.clients[client].sleeps_until = self.now + nap;
                self.at(nap, Event::Client(client));
            }
            7 | 8 if faults.cuts => {
                if let Some(link) = link {
                    self.note(format_args!("link {link} is cut"));
                    self.links[link].break_silently();
                    let (a, b) = (self.random.millis(0, 500), self.random.millis(0, 500));
                    self.at(a, Event::ServerTold(link));
                    self.at(b, Event::ClientTold(link));
                }
            }
            9 if faults.half_open => {
                if let Some(link) = link {
                    self.note(format_args!("link {link} is dead and the server is not told"));
                    self.links[link].break_silently();
                    let wait = self.random.millis(0, 8000);
                    self.at(wait, Event::ClientTold(link));
                }
            }
            _ => {}
        }
    }

    /// The process dies; with `power`, so does what was not synced.
    pub(crate) fn crash(&mut self, power: bool) {
        if self.node.take().is_none() {
            return;
        }
        let word = if power { "power cut" } else { "killed" };
        self.note(format_args!("{word}"));
        let durable_before = if power { self.disk.synced_before } else { self.disk.written_before };
        self.checkers.crashed(durable_before);
        if power {
            self.disk.cut_power(&mut self.random);
        } else {
            self.disk.kill(&mut self.random);
        }
        self.reset_links();
        self.is_recovery_doomed =
            self.plan.faults.recovery_kills && self.random.chance(300) && !self.is_quiet;
        let wait = self.random.millis(1, 1500);
        self.at(wait, Event::Start);
    }

    /// Every connection of a dead process is reset; what the clients' systems had received they still read.
    fn reset_links(&mut self) {
        for link in 0..self.links.len() {
            if !self.links[link].is_server_gone {
                self.links[link].is_server_gone = true;
                let wait = self.random.millis(1, 300);
                self.at(wait, Event::ClientTold(link));
            }
        }
    }

    fn stop_in_order(&mut self) {
        let now = self.clock();
        let Some(node) = &mut self.node else { return };
        if node.stopping == Stopping::No {
            node.stopping = Stopping::Draining;
            node.conns.values_mut().for_each(|conn| conn.session.handle_drain(now));
            self.note(format_args!("drain"));
            self.pump_all();
            self.at(Duration::from_secs(2), Event::Stop);
        }
    }

    /// The next stage of an orderly stop.
    pub(crate) fn stop_further(&mut self) {
        let now = self.clock();
        let Some(node) = &mut self.node else { return };
        match node.stopping {
            Stopping::No => {}
            Stopping::Draining => {
                node.stopping = Stopping::ShuttingDown;
                node.conns.values_mut().for_each(|conn| conn.session.handle_shutdown(now));
                self.note(format_args!("shut down"));
                self.pump_all();
                self.at(Duration::from_secs(2), Event::Stop);
            }
            Stopping::ShuttingDown => {
                // Whoever does not read its goodbye is left alone with it.
                node.conns.values_mut().for_each(|conn| conn.session.handle_transport_lost(now));
                self.pump_all();
                if let Some(node) = &mut self.node {
                    node.stopping = Stopping::Closing;
                }
                self.at(Duration::from_millis(20), Event::Stop);
            }
            Stopping::Closing => self.close(),
        }
    }

    fn close(&mut self) {
        let now = self.clock();
        let Some(node) = &mut self.node else { return };
        if node.conns.is_empty() {
            node.broker.close(now);
        }
        if node.conns.is_empty() && node.broker.is_closed() {
            self.node = None;
            self.note(format_args!("stopped"));
            self.checkers.stopped();
            self.disk.kill(&mut self.random);
            self.reset_links();
            self.at(Duration::from_millis(100), Event::Start);
            return;
        }
        self.run_broker();
        self.at(Duration::from_millis(20), Event::Stop);
    }
}
