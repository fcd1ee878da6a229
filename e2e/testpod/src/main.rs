//! The test program of the cluster's self-test: one static file that serves HTTP, keeps a counter on a
//! volume, and can ask others.
//!
//! - `testpod serve` (the image's command): counts its starts in `/data/starts`, then answers on port 8080.
//! - `testpod get HOST:PORT PATH`: asks another one and prints the answer's body; for `kubectl exec`.
//! - `testpod resolve NAME`: prints the addresses that the pod's resolver finds, one a line.
//! - `testpod pause`: does nothing for ever: the first process of each pod on the local cluster.
//!
//! It has no dependencies and is built by rustc alone. As process 1 without a handler it ignores SIGTERM,
//! so pods that hold it set a short grace period.

use std::env;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

const STARTS: &str = "/data/starts";
const NOTE: &str = "/data/note";
/// No request of a test is longer.
const REQUEST_BYTES_MAX: u64 = 4096;

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let result = match words.as_slice() {
        ["pause"] => loop {
            thread::park();
        },
        ["serve"] => serve(),
        ["get", address, path] => get(address, path),
        ["resolve", name] => resolve(name),
        _ => Err(io::Error::other("usage: testpod pause | serve | get HOST:PORT PATH | resolve NAME")),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("testpod: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve() -> io::Result<()> {
    // Without a volume there is nothing to count; a read-only root must refuse everything outside it.
    let starts = if fs::exists("/data")? { count_start()? } else { 0 };
    let root = if fs::write("/probe", "").is_ok() { "writable" } else { "read-only" };
    let listener = TcpListener::bind("0.0.0.0:8080")?;
    println!("serving as {} start {starts} root {root}", pod());
    for stream in listener.incoming().flatten() {
        // One thread for each connection: a test holds few, and a kept one must not block the probe.
        thread::spawn(move || {
            if let Err(error) = answer(&stream, starts, root) {
                eprintln!("testpod: {error}");
            }
        });
    }
    Ok(())
}

fn count_start() -> io::Result<u64> {
    let before: u64 = match fs::read_to_string(STARTS) {
        Ok(text) => text.trim().parse().map_err(io::Error::other)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
        Err(error) => return Err(error),
    };
    write_synced(STARTS, &(before + 1).to_string())?;
    Ok(before + 1)
}

fn write_synced(path: &str, text: &str) -> io::Result<()> {
    let mut file = fs::File::create(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

/// `GET /` tells who it is, `GET /note` what was noted, `PUT /note/TEXT` (or GET) notes it, `GET /healthz`
/// answers ok.
fn answer(stream: &TcpStream, starts: u64, root: &str) -> io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    let mut lines = BufReader::new(stream.take(REQUEST_BYTES_MAX)).lines();
    let request = lines.next().transpose()?.unwrap_or_default();
    // To the end of the head: closing with unread bytes would reset the connection and lose the answer.
    while lines.next().transpose()?.is_some_and(|line| !line.is_empty()) {}
    let path = request.split(' ').nth(1).unwrap_or_default();
    let (status, body) = match path {
        "/" => ("200 OK", format!("{} {starts} {root}\n", pod())),
        "/healthz" => ("200 OK", "ok\n".to_owned()),
        "/note" => ("200 OK", fs::read_to_string(NOTE).unwrap_or_default()),
        _ => match path.strip_prefix("/note/") {
            Some(note) => {
                write_synced(NOTE, note)?;
                ("200 OK", format!("{note}\n"))
            }
            None => ("404 Not Found", String::new()),
        },
    };
    let mut stream = stream;
    write!(stream, "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len())
}

fn get(address: &str, path: &str) -> io::Result<()> {
    let mut last = io::Error::other("no address");
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, Duration::from_secs(3)) {
            Ok(mut stream) => {
                stream.set_read_timeout(Some(Duration::from_secs(5)))?;
                write!(stream, "GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n")?;
                let mut reply = String::new();
                stream.read_to_string(&mut reply)?;
                let (head, body) =
                    reply.split_once("\r\n\r\n").ok_or_else(|| io::Error::other("half a reply"))?;
                print!("{body}");
                let fine = head.starts_with("HTTP/1.1 200 ");
                return if fine { Ok(()) } else { Err(io::Error::other(head.to_owned())) };
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn resolve(name: &str) -> io::Result<()> {
    let mut found: Vec<_> = (name, 0).to_socket_addrs()?.map(|address| address.ip()).collect();
    found.sort();
    found.dedup();
    for address in found {
        println!("{address}");
    }
    Ok(())
}

fn pod() -> String {
    env::var("HOSTNAME").unwrap_or_default()
}
