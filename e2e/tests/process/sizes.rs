//! Limits of one frame, at the limit and one beyond it, and the largest message that the defaults allow.

use berth_e2e::process::Server;
use berth_e2e::stomp::Client;
use tempfile::tempdir;

const LIMITS: &str = "stomp: { port: 0, maxBodySize: 1000, maxHeaders: 10, maxHeaderLine: 128 }";

fn send(server: &Server, headers: &str, body: &[u8]) -> Result<(), String> {
    let mut client = Client::connect(server.stomp).unwrap();
    client.send(format!("SEND\ndestination:/queue/a\nreceipt:r\n{headers}\n")).unwrap();
    client.send(body).unwrap();
    client.send(b"\0").unwrap();
    let frame = client.frame().unwrap();
    match frame.command.as_str() {
        "RECEIPT" => Ok(()),
        _ => Err(frame.header("message").unwrap_or_default().to_owned()),
    }
}

#[test]
fn the_limit_itself_is_allowed_and_one_more_is_not() {
    let folder = tempdir().unwrap();
    let server = Server::start(folder.path(), LIMITS).unwrap();
    for (length, is_allowed) in [(999, true), (1000, true), (1001, false)] {
        let body = vec![b'x'; length];
        assert_eq!(send(&server, "", &body).is_ok(), is_allowed, "a body of {length}, ended by NUL");
        let stated = format!("content-length:{length}\n");
        assert_eq!(send(&server, &stated, &body).is_ok(), is_allowed, "a body of {length}, stated");
    }
    for (more, is_allowed) in [(7, true), (8, true), (9, false)] {
        let headers: String = (0..more).map(|number| format!("h{number}:v\n")).collect();
        assert_eq!(send(&server, &headers, b"").is_ok(), is_allowed, "{} header lines", more + 2);
    }
    for (length, is_allowed) in [(127, true), (128, true), (129, false)] {
        let header = format!("h:{}\n", "v".repeat(length - 2));
        assert_eq!(send(&server, &header, b"").is_ok(), is_allowed, "a header line of {length}");
    }
    assert_eq!(send(&server, "", &[b'x'; 1001]), Err("message too large".into()));
}

#[test]
fn the_largest_message_of_the_defaults_comes_back_whole() {
    const LARGEST: usize = 104_857_600;
    let folder = tempdir().unwrap();
    let server = Server::start(folder.path(), "").unwrap();
    let body: Vec<u8> = (0..LARGEST).map(|at| (at % 251) as u8).collect();
    let stated = format!("content-length:{LARGEST}\n");
    assert_eq!(send(&server, &stated, &body), Ok(()));
    server.kill().unwrap();
    let server = Server::start(folder.path(), "").unwrap();
    let mut client = Client::connect(server.stomp).unwrap();
    client.send("SUBSCRIBE\nid:1\ndestination:/queue/a\nack:client\n\n\0").unwrap();
    let frame = client.expect("MESSAGE").unwrap();
    assert!(frame.body == body, "{} bytes came back and differ", frame.body.len());
    let token = frame.header("ack").unwrap();
    client.send(format!("ACK\nid:{token}\nreceipt:r\n\n\0")).unwrap();
    client.expect("RECEIPT").unwrap();
}
