//! Real clients, and the ends of connections that clients are known to try.

use berth_e2e::process::Server;
use berth_e2e::python;
use berth_e2e::stomp::Client;
use std::fmt::Write as _;
use std::process::Command;
use tempfile::tempdir;

#[test]
fn stomp_py_speaks_every_version() {
    let folder = tempdir().unwrap();
    let server = Server::start(folder.path(), "").unwrap();
    let (host, port) = (server.stomp.ip().to_string(), server.stomp.port().to_string());
    let mut command = Command::new(python::interpreter().unwrap());
    let output = command.arg(python::script("interop.py")).args([host, port]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(said, "1.0\n1.1\n1.2\n", "{}", String::from_utf8_lossy(&output.stderr));
    let node = server.get("/api/node").unwrap().1;
    assert!(node.contains(r#""ownMessages":0"#), "{node}");
}

#[test]
fn frames_before_the_end_are_processed_and_the_receipt_of_disconnect_arrives() {
    let folder = tempdir().unwrap();
    let server = Server::start(folder.path(), "").unwrap();
    let mut frames = String::new();
    for number in 0..500 {
        write!(frames, "SEND\ndestination:/queue/a\n\n{number}\0").unwrap();
    }
    let mut hasty = Client::connect(server.stomp).unwrap();
    hasty.send(&frames).unwrap();
    hasty.finish().unwrap();
    assert_eq!(hasty.rest().unwrap(), b"", "closed in order by the server too");

    let mut polite = Client::connect(server.stomp).unwrap();
    polite.send(&frames).unwrap();
    polite.send("DISCONNECT\nreceipt:bye\n\n\0").unwrap();
    polite.send("SEND\ndestination:/queue/a\n\nafter the end\0".repeat(1000)).unwrap();
    assert_eq!(polite.expect("RECEIPT").unwrap().header("receipt-id"), Some("bye"));
    assert_eq!(polite.rest().unwrap(), b"");

    let mut reader = Client::connect(server.stomp).unwrap();
    reader.send("SUBSCRIBE\nid:1\ndestination:/queue/a\nack:auto\n\n\0").unwrap();
    for number in (0..500).chain(0..500) {
        assert_eq!(reader.expect("MESSAGE").unwrap().body, number.to_string().as_bytes());
    }
    assert!(server.get("/api/queues").unwrap().1.contains(r#""ready":0"#), "nothing came after the end");
}

/// The value of a metric without labels, or with these.
fn metric(server: &Server, name: &str) -> f64 {
    let text = server.get("/metrics").unwrap().1;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("{name} is not in\n{text}")).parse().unwrap()
}

#[test]
fn clients_that_come_and_go_leave_nothing_behind() {
    let folder = tempdir().unwrap();
    let server = Server::start(folder.path(), "").unwrap();
    let round = || {
        for number in 0..300 {
            let mut client = Client::connect(server.stomp).unwrap();
            let queue = number % 7;
            let subscribe =
                format!("SUBSCRIBE\nid:1\ndestination:/queue/q{queue}\nack:client\nreceipt:s\n\n\0");
            client.send(subscribe).unwrap();
            client.expect("RECEIPT").unwrap();
            client.send(format!("SEND\ndestination:/queue/q{queue}\n\nhello\0")).unwrap();
            let message = client.expect("MESSAGE").unwrap();
            match number % 3 {
                // Acknowledged in order.
                0 => client.send("DISCONNECT\n\n\0").unwrap(),
                // Cut off while it holds a message; the next one gets it.
                1 => {}
                _ => {
                    let token = message.header("ack").unwrap();
                    client.send(format!("ACK\nid:{token}\nreceipt:a\n\n\0")).unwrap();
                    while client.frame().unwrap().command == "MESSAGE" {}
                }
            }
        }
        let begun = std::time::Instant::now();
        while metric(&server, "berth_connections{protocol=\"stomp\"}") > 0.0 {
            assert!(begun.elapsed() < berth_e2e::process::PATIENCE, "connections stay");
        }
        // The scrape itself is one of the files.
        (metric(&server, "berth_process_open_fds"), server.resident_bytes().unwrap())
    };
    let (files_before, bytes_before) = round();
    let (files_after, bytes_after) = round();
    assert!(files_after <= files_before + 1.0, "{files_before} files before, {files_after} after");
    let grown = bytes_after.saturating_sub(bytes_before) / 1024;
    assert!(grown < 4 * 1024, "{grown} KiB more after 300 clients");
    assert_eq!(metric(&server, "berth_deliveries_pending"), 0.0);
}

#[test]
fn an_unacknowledged_message_goes_to_the_next_worker_when_its_client_is_cut_off() {
    let folder = tempdir().unwrap();
    let server = Server::start(folder.path(), "").unwrap();
    let mut first = Client::connect(server.stomp).unwrap();
    first.send("SEND\ndestination:/queue/a\nreceipt:r\n\nhello\0").unwrap();
    first.expect("RECEIPT").unwrap();
    first.send("SUBSCRIBE\nid:1\ndestination:/queue/a\nack:client\n\n\0").unwrap();
    let message = first.expect("MESSAGE").unwrap();
    assert_eq!(message.header("redelivered"), None);
    let mut second = Client::connect(server.stomp).unwrap();
    second.send("SUBSCRIBE\nid:1\ndestination:/queue/a\nack:client\n\n\0").unwrap();
    drop(first);
    let again = second.expect("MESSAGE").unwrap();
    assert_eq!((again.body.as_slice(), again.header("redelivered")), (&b"hello"[..], Some("true")));
    assert_ne!(again.header("message-id"), message.header("message-id"), "each attempt has its own");
}
