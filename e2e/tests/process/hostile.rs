//! Clients that mean no good cost their own connection and nothing else.

use berth_e2e::process::Server;
use berth_e2e::stomp::Client;
use std::fmt::Write as _;
use std::time::Duration;
use tempfile::tempdir;

const MIB: u64 = 1024 * 1024;

/// What all hostile clients of one test together may cost for good, in a debug build.
const GROWTH_MAX: u64 = 48 * MIB;

/// Writes until the server has had enough; a server that closes is what is wanted.
fn flood(client: &mut Client, chunk: &[u8], bytes: u64) {
    for _ in 0..bytes / chunk.len() as u64 {
        if client.send(chunk).is_err() {
            return;
        }
    }
}

fn error_of(client: &mut Client) -> String {
    let answer = client.rest().map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let answer = answer.unwrap_or_else(|error| panic!("a reset has eaten the answer: {error:#}"));
    let error = answer.split_once("ERROR\n").map(|(_, error)| error.to_owned());
    error.unwrap_or_else(|| panic!("no ERROR in {answer:?}"))
}

#[test]
fn oversized_frames_are_refused_and_cost_no_memory() {
    let folder = tempdir().unwrap();
    let server = Server::start(folder.path(), "").unwrap();
    Client::connect(server.stomp).unwrap();
    let before = server.resident_bytes().unwrap();
    for _ in 0..5 {
        let mut header = Client::connect(server.stomp).unwrap();
        header.send("SEND\ndestination:/queue/a\nbig:").unwrap();
        flood(&mut header, &[b'x'; 16 * 1024], 10 * MIB);

        let mut body = Client::connect(server.stomp).unwrap();
        body.send("SEND\ndestination:/queue/a\ncontent-length:100000000000\n\nabc").unwrap();
        let error = error_of(&mut body);
        assert!(error.contains("message:"), "{error:?}");

        let mut many = Client::connect(server.stomp).unwrap();
        let mut headers = String::from("SEND\ndestination:/queue/a\n");
        for number in 0..1000 {
            writeln!(headers, "h{number}:v").unwrap();
        }
        many.send(&headers).unwrap();
        flood(&mut many, "h:v\n".repeat(1000).as_bytes(), 200_000 * 4);

        let mut command = Client::connect(server.stomp).unwrap();
        flood(&mut command, &[b'A'; 16 * 1024], 10 * MIB);

        let mut early = Client::open(server.stomp).unwrap();
        early.send("CONNECT\naccept-version:1.2\nhost:/\nx:").unwrap();
        flood(&mut early, &[b'x'; 4 * 1024], MIB);
    }
    let grown = server.resident_bytes().unwrap().saturating_sub(before);
    assert!(grown < GROWTH_MAX, "{} MiB more than before", grown / MIB);
    assert!(server.get("/metrics").unwrap().1.contains("cause=\"peer_violated\""));
    Client::connect(server.stomp).unwrap();
}

#[test]
fn bytes_of_another_protocol_are_closed_without_an_answer() {
    let folder = tempdir().unwrap();
    let server = Server::start(folder.path(), "").unwrap();
    let hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 a TLS client hello \0\0\0";
    for bytes in [&hello[..], b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"POST /api HTTP/1.1\r\n\r\n"] {
        let mut client = Client::open(server.stomp).unwrap();
        client.send(bytes).unwrap();
        assert_eq!(client.rest().unwrap(), b"", "{bytes:?}");
        server.line_with("Connection ended").unwrap();
    }
}

#[test]
fn a_body_that_is_promised_and_never_sent_costs_what_has_come() {
    let folder = tempdir().unwrap();
    let server = Server::start(folder.path(), "").unwrap();
    let before = server.resident_bytes().unwrap();
    let mut clients = Vec::new();
    for _ in 0..20 {
        let mut client = Client::connect(server.stomp).unwrap();
        client.send("SEND\ndestination:/queue/a\ncontent-length:100000000\n\nabc").unwrap();
        clients.push(client);
    }
    Client::connect(server.stomp).unwrap();
    let grown = server.resident_bytes().unwrap().saturating_sub(before);
    assert!(grown < GROWTH_MAX, "{} MiB for 20 promises of 100 MB", grown / MIB);
}

#[test]
fn a_client_that_never_reads_is_bounded() {
    let folder = tempdir().unwrap();
    let server = Server::start(folder.path(), "").unwrap();
    let mut producer = Client::connect(server.stomp).unwrap();
    let body = "x".repeat(100_000);
    for number in 0..300 {
        producer.send(format!("SEND\ndestination:/queue/a\nreceipt:{number}\n\n{body}\0")).unwrap();
        producer.expect("RECEIPT").unwrap();
    }
    let before = server.resident_bytes().unwrap();
    let mut lazy = Vec::new();
    for _ in 0..4 {
        let mut client = Client::connect(server.stomp).unwrap();
        client.send("SUBSCRIBE\nid:1\ndestination:/queue/a\nack:client\nprefetch-count:10000\n\n\0").unwrap();
        lazy.push(client);
    }
    std::thread::sleep(Duration::from_millis(500));
    let grown = server.resident_bytes().unwrap().saturating_sub(before);
    // Each may hold 4 MiB of output, one message more, and what the kernel takes.
    assert!(grown < GROWTH_MAX, "{} MiB for four clients that do not read", grown / MIB);
    drop(lazy);
    let mut reader = Client::connect(server.stomp).unwrap();
    reader.send("SUBSCRIBE\nid:1\ndestination:/queue/a\nack:auto\n\n\0").unwrap();
    for _ in 0..300 {
        reader.expect("MESSAGE").unwrap();
    }
}

#[test]
fn one_connection_too_many_hears_why() {
    let folder = tempdir().unwrap();
    let server = Server::start(folder.path(), "stomp: { port: 0, maxConnections: 2 }").unwrap();
    let kept = [Client::connect(server.stomp).unwrap(), Client::connect(server.stomp).unwrap()];
    let mut third = Client::open(server.stomp).unwrap();
    let error = third.expect("ERROR").unwrap();
    assert_eq!(error.header("message"), Some("too many connections"));
    assert_eq!(third.rest().unwrap(), b"");
    drop((kept, third));
    let begun = std::time::Instant::now();
    while Client::connect(server.stomp).is_err() {
        assert!(begun.elapsed() < Duration::from_secs(10), "room must come back");
    }
}

#[test]
fn a_crowd_never_takes_the_files_that_the_journal_needs() {
    let folder = tempdir().unwrap();
    let server = Server::start_with_files(folder.path(), "", 160).unwrap();
    let mut producer = Client::connect(server.stomp).unwrap();
    let mut crowd: Vec<_> = (0..200).map(|_| Client::open(server.stomp).unwrap()).collect();
    server.line_with("Connection refused, too many connections").unwrap();
    let probes = (0..60).map(|_| Client::open(server.admin).unwrap());
    crowd.extend(probes);
    // More than one segment of the journal, so that it would like to open files too.
    let body = "x".repeat(1024 * 1024);
    let mut send = |count: usize| -> Result<(), String> {
        for _ in 0..count {
            producer.send(format!("SEND\ndestination:/queue/a\nreceipt:r\n\n{body}\0")).unwrap();
            let answer = producer.frame().unwrap();
            if answer.command != "RECEIPT" {
                return Err(answer.header("message").unwrap_or_default().to_owned());
            }
        }
        Ok(())
    };
    assert_eq!(send(60), Ok(()));
    drop(crowd);
    let begun = std::time::Instant::now();
    let mut later = loop {
        match Client::connect(server.stomp) {
            Ok(client) => break client,
            Err(error) => assert!(begun.elapsed() < Duration::from_secs(10), "{error:#}"),
        }
    };
    later.send("SEND\ndestination:/queue/b\nreceipt:r\n\nhello\0").unwrap();
    later.expect("RECEIPT").unwrap();
    server.stop().unwrap();
}

#[test]
fn a_client_that_says_nothing_is_closed_in_time() {
    let folder = tempdir().unwrap();
    let server = Server::start(folder.path(), "stomp: { port: 0, connectTimeoutSeconds: 1 }").unwrap();
    let mut silent = Client::open(server.stomp).unwrap();
    let begun = std::time::Instant::now();
    silent.rest().unwrap();
    assert!(begun.elapsed() >= Duration::from_millis(900), "{:?}", begun.elapsed());
    let line = server.line_with("Connection ended").unwrap();
    assert!(line.contains("timed_out"), "{line}");
}

/// The value of the metric of this name, which has no labels.
fn metric(server: &Server, name: &str) -> u64 {
    let text = server.get("/metrics").unwrap().1;
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.unwrap_or_else(|| panic!("no {name} in\n{text}")).parse().unwrap()
}

#[test]
fn many_half_messages_cost_what_max_memory_allows_and_the_largest_comes_through() {
    const BODY: usize = 40 * 1024 * 1024;
    let folder = tempdir().unwrap();
    let server = Server::start_with(folder.path(), "", &[("BERTH_LIMITS__MAX_MEMORY", "64Mi")]).unwrap();
    Client::connect(server.stomp).unwrap();
    let before = server.resident_bytes().unwrap();
    let head = format!("SEND\ndestination:/queue/a\nreceipt:r\ncontent-length:{BODY}\n\n");
    let body = vec![b'x'; BODY];
    let (most, rest) = body.split_at(BODY / 10 * 8);

    let mut first = Client::connect(server.stomp).unwrap();
    first.send(&head).unwrap();
    first.send(most).unwrap();
    let others: Vec<_> = (0..8)
        .map(|_| {
            let mut other = Client::connect(server.stomp).unwrap();
            other.send(&head).unwrap();
            // It is not taken, and in the end the connection goes: what is read then is the reason.
            std::thread::spawn(move || {
                let chunk = vec![b'x'; 64 * 1024];
                flood(&mut other, &chunk, 20 * MIB);
                other.rest().map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
            })
        })
        .collect();
    while metric(&server, "berth_memory_bytes") < 64 * MIB / 10 * 9 {
        std::thread::sleep(Duration::from_millis(20));
    }
    let grown = server.resident_bytes().unwrap().saturating_sub(before);
    assert!(grown < 64 * MIB + GROWTH_MAX, "{} MiB more than before", grown / MIB);

    // While memory is tight, small messages come and go.
    let mut small = Client::connect(server.stomp).unwrap();
    small.send("SEND\ndestination:/queue/b\nreceipt:s\n\nhello\0").unwrap();
    assert_eq!(small.expect("RECEIPT").unwrap().header("receipt-id"), Some("s"));
    small.send("SUBSCRIBE\nid:0\ndestination:/queue/b\n\n\0").unwrap();
    assert_eq!(small.expect("MESSAGE").unwrap().body, b"hello");

    first.send(rest).unwrap();
    first.send("\0").unwrap();
    assert_eq!(first.expect("RECEIPT").unwrap().header("receipt-id"), Some("r"));
    let page = server.get("/metrics").unwrap().1;
    assert!(page.contains("cause=\"by_us\""), "{page}");
    server.kill().unwrap();
    for other in others {
        other.join().unwrap();
    }
}
