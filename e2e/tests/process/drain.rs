//! SIGTERM: what clients may still do, what they are told, and how long it takes.

use berth_e2e::process::{PATIENCE, Server};
use berth_e2e::stomp::{Client, Frame};
use std::net::TcpStream;
use std::time::{Duration, Instant};
use tempfile::tempdir;

fn send(client: &mut Client, body: &str) {
    client.send(format!("SEND\ndestination:/queue/jobs\nreceipt:{body}\n\n{body}\0")).unwrap();
    assert_eq!(client.expect("RECEIPT").unwrap().header("receipt-id"), Some(body));
}

fn subscribe(client: &mut Client, queue: &str) {
    client.send(format!("SUBSCRIBE\nid:1\ndestination:/queue/{queue}\nack:client-individual\n\n\0")).unwrap();
}

fn message(client: &mut Client) -> (String, Frame) {
    let frame = client.expect("MESSAGE").unwrap();
    (String::from_utf8(frame.body.clone()).unwrap(), frame)
}

fn ack(client: &mut Client, frame: &Frame) {
    let token = frame.header("ack").unwrap();
    client.send(format!("ACK\nid:{token}\nreceipt:acked\n\n\0")).unwrap();
    client.expect("RECEIPT").unwrap();
}

/// The server's last words; nothing follows them.
fn goodbye(client: &mut Client) {
    let error = client.expect("ERROR").unwrap();
    assert_eq!(error.header("message"), Some("server shutting down"), "{error:?}");
    let rest = client.rest().unwrap();
    assert!(rest.iter().all(|byte| *byte == b'\n'), "{rest:?}");
}

#[test]
fn idle_clients_are_told_and_nobody_waits() {
    let folder = tempdir().unwrap();
    let server = Server::start(folder.path(), "drainTimeoutSeconds: 20").unwrap();
    let mut silent = Client::open(server.stomp).unwrap();
    let mut idle = Client::connect(server.stomp).unwrap();
    let mut waiting = Client::connect(server.stomp).unwrap();
    subscribe(&mut waiting, "empty");
    waiting.send("SUBSCRIBE\nid:2\ndestination:/queue/other\nreceipt:r\n\n\0").unwrap();
    waiting.expect("RECEIPT").unwrap();
    let stopped = std::thread::spawn(move || server.stop());
    goodbye(&mut idle);
    goodbye(&mut waiting);
    silent.rest().unwrap();
    drop((silent, idle, waiting));
    let took = stopped.join().unwrap().unwrap();
    assert!(took < Duration::from_secs(8), "nothing was unsettled, it took {took:?}");
}

#[test]
fn acks_and_sends_are_served_for_half_of_the_time_and_the_rest_is_nacked_once() {
    let folder = tempdir().unwrap();
    let mut server = Server::start(folder.path(), "drainTimeoutSeconds: 8").unwrap();
    let mut producer = Client::connect(server.stomp).unwrap();
    let mut worker = Client::connect(server.stomp).unwrap();
    send(&mut producer, "one");
    send(&mut producer, "two");
    subscribe(&mut worker, "jobs");
    let (first, one) = message(&mut worker);
    let (second, _two) = message(&mut worker);
    assert_eq!((first.as_str(), second.as_str()), ("one", "two"));
    let begun = Instant::now();
    server.signal("TERM").unwrap();
    server.line_with("Stopping").unwrap();
    assert!(TcpStream::connect(server.stomp).is_err(), "no new connections");
    assert_eq!(server.get("/readyz").unwrap(), (503, "stopping\n".into()));
    assert_eq!(server.get("/livez").unwrap().0, 200);
    send(&mut producer, "three");
    ack(&mut worker, &one);
    goodbye(&mut worker);
    let told = begun.elapsed();
    assert!(told >= Duration::from_secs(4), "half of the time is for clients, it was {told:?}");
    goodbye(&mut producer);
    drop((worker, producer));
    assert_eq!(server.wait(PATIENCE).unwrap().code(), Some(0));
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());

    let server = Server::start(folder.path(), "").unwrap();
    let mut worker = Client::connect(server.stomp).unwrap();
    subscribe(&mut worker, "jobs");
    let (first, three) = message(&mut worker);
    let (second, two) = message(&mut worker);
    assert_eq!((first.as_str(), second.as_str()), ("three", "two"), "a nacked message goes to the tail");
    assert_eq!((three.header("redelivered"), two.header("redelivered")), (None, Some("true")));
    let queue = server.get("/api/queues").unwrap().1;
    assert!(queue.contains(r#""ready":0"#) && queue.contains(r#""inFlight":2"#), "{queue}");
}

#[test]
fn a_worker_that_finishes_ends_the_wait() {
    let folder = tempdir().unwrap();
    let mut server = Server::start(folder.path(), "drainTimeoutSeconds: 60").unwrap();
    let mut client = Client::connect(server.stomp).unwrap();
    send(&mut client, "one");
    subscribe(&mut client, "jobs");
    let (_, one) = message(&mut client);
    let begun = Instant::now();
    server.signal("INT").unwrap();
    server.line_with("Stopping").unwrap();
    send(&mut client, "two");
    ack(&mut client, &one);
    goodbye(&mut client);
    drop(client);
    assert_eq!(server.wait(PATIENCE).unwrap().code(), Some(0));
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
}

#[test]
fn a_second_signal_ends_at_once() {
    let folder = tempdir().unwrap();
    let mut server = Server::start(folder.path(), "drainTimeoutSeconds: 600").unwrap();
    let mut client = Client::connect(server.stomp).unwrap();
    send(&mut client, "one");
    subscribe(&mut client, "jobs");
    message(&mut client);
    server.signal("TERM").unwrap();
    server.line_with("Stopping").unwrap();
    server.signal("TERM").unwrap();
    assert_eq!(server.wait(PATIENCE).unwrap().code(), Some(1));
    server.line_with("berth-connector: ended at once by a second signal").unwrap();
}
