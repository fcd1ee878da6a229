//! `kill -9` under load, with a real client on both sides.
//!
//! What was confirmed before the kill is delivered before or after it; what was settled with a receipt does
//! not come back; what comes twice says so the second time.

use berth_e2e::process::{PATIENCE, Server};
use berth_e2e::python;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;
use tempfile::tempdir;

/// A client that runs in a process of its own, with the lines that it prints.
struct Load {
    child: Child,
    lines: Receiver<String>,
}

impl Load {
    fn start(server: &Server, args: &[&str]) -> Self {
        let python = python::interpreter().unwrap();
        let (host, port) = (server.stomp.ip().to_string(), server.stomp.port().to_string());
        let mut child = Command::new(python)
            .arg(python::script("load.py"))
            .args([args[0], &host, &port])
            .args(&args[1..])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (sender, lines) = mpsc::channel();
        let out = BufReader::new(child.stdout.take().unwrap());
        thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self { child, lines }
    }

    /// Reads until `count` lines start with `word`.
    fn wait_for(&self, word: &str, count: usize, seen: &mut Vec<String>) {
        let mut left = count;
        while left > 0 {
            let line = self.lines.recv_timeout(PATIENCE).expect("the client goes on");
            left -= usize::from(line.starts_with(word));
            seen.push(line);
        }
    }

    /// Waits for its end and reads the rest.
    fn finish(mut self, seen: &mut Vec<String>) {
        berth_e2e::process::wait(&mut self.child, PATIENCE * 4).unwrap();
        seen.extend(self.lines.iter());
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// What the clients have seen, over all lives of the server.
#[derive(Default)]
struct Ledger {
    confirmed: BTreeSet<String>,
    settled: BTreeSet<String>,
    received: BTreeMap<String, u32>,
}

impl Ledger {
    /// Reads the lines of one life. Checks that nothing that was settled in an earlier one comes back, and
    /// that what comes again says so.
    fn read(&mut self, lines: &[String]) {
        let settled_before = self.settled.clone();
        for line in lines {
            let words: Vec<_> = line.split(' ').collect();
            match words[..] {
                ["confirmed", id] => {
                    self.confirmed.insert(id.into());
                }
                ["settled", id] => {
                    self.settled.insert(id.into());
                }
                ["received", id, redelivered] => {
                    assert!(!settled_before.contains(id), "{id} was settled with a receipt and came back");
                    let times = self.received.entry(id.into()).or_default();
                    *times += 1;
                    assert!(*times == 1 || redelivered == "true", "{id} came again without saying so");
                }
                _ => panic!("the client says {line:?}"),
            }
        }
    }

    fn check_nothing_is_lost(&self) {
        let lost: Vec<_> = self.confirmed.iter().filter(|id| !self.received.contains_key(*id)).collect();
        assert!(lost.is_empty(), "{} confirmed messages were lost: {lost:?}", lost.len());
    }
}

fn one_life(folder: &Path, fsync: &str, life: usize, ledger: &mut Ledger) {
    let server = Server::start(folder, &format!("broker: {{ embedded: {{ fsync: {fsync} }} }}")).unwrap();
    let (prefix_a, prefix_b) = (format!("{life}a"), format!("{life}b"));
    let producers = [
        Load::start(&server, &["produce", "jobs", &prefix_a, "100000"]),
        Load::start(&server, &["produce", "jobs", &prefix_b, "100000"]),
    ];
    let consumer = Load::start(&server, &["consume", "jobs", "0"]);
    let mut lines = Vec::new();
    // The kill comes in the middle of everything, at another place in every life.
    consumer.wait_for("settled", 100 + 37 * life, &mut lines);
    server.kill().unwrap();
    for client in producers {
        client.finish(&mut lines);
    }
    consumer.finish(&mut lines);
    ledger.read(&lines);
}

fn consume_the_rest(server: &Server, ledger: &mut Ledger) {
    let mut lines = Vec::new();
    Load::start(server, &["consume", "jobs", "2"]).finish(&mut lines);
    ledger.read(&lines);
    ledger.check_nothing_is_lost();
}

#[test]
fn the_other_modes_keep_their_word_when_only_the_process_ends() {
    let folder = tempdir().unwrap();
    let mut ledger = Ledger::default();
    for (life, fsync) in ["interval", "never"].into_iter().enumerate() {
        one_life(folder.path(), fsync, life, &mut ledger);
    }
    consume_the_rest(&Server::start(folder.path(), "").unwrap(), &mut ledger);
}

fn ledger_of(lives: &[&[&str]]) -> Ledger {
    let mut ledger = Ledger::default();
    for life in lives {
        ledger.read(&life.iter().map(|line| String::from(*line)).collect::<Vec<_>>());
    }
    ledger
}

#[test]
#[should_panic(expected = "were lost")]
fn the_ledger_finds_a_lost_message() {
    ledger_of(&[&["confirmed a", "confirmed b", "received a false"]]).check_nothing_is_lost();
}

#[test]
#[should_panic(expected = "came back")]
fn the_ledger_finds_a_settled_message_that_comes_back() {
    ledger_of(&[&["received a false", "settled a"], &["received a true"]]);
}

#[test]
#[should_panic(expected = "without saying so")]
fn the_ledger_finds_a_duplicate_that_is_not_marked() {
    ledger_of(&[&["received a false"], &["received a false"]]);
}

#[test]
fn nothing_confirmed_is_lost_and_nothing_settled_comes_back() {
    let folder = tempdir().unwrap();
    let mut ledger = Ledger::default();
    for life in 0..4 {
        one_life(folder.path(), "always", life, &mut ledger);
    }
    let server = Server::start(folder.path(), "").unwrap();
    consume_the_rest(&server, &mut ledger);
    let settled = ledger.settled.len();
    println!("{} confirmed, {} received, {settled} settled", ledger.confirmed.len(), ledger.received.len());
    assert!(ledger.confirmed.len() > 400 && settled > 400, "the load was too small to mean anything");
    assert!(server.stop().unwrap() < Duration::from_secs(20));
    let server = Server::start(folder.path(), "").unwrap();
    let node = server.get("/api/node").unwrap().1;
    assert!(node.contains(r#""ownMessages":0"#), "everything was settled: {node}");
}
