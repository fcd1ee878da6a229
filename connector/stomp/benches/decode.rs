//! How long one frame takes to decode: `cargo bench -p berth-stomp`. The goal for a SEND with 6 headers and
//! a body of 100 octets is 200 ns on one core.

#![allow(clippy::disallowed_methods, clippy::disallowed_types)] // A benchmark reads the clock.

use std::time::Instant;

use berth_stomp::{Decoder, Limits, Mode, Role, Version};
use bytes::BytesMut;

fn main() {
    let six = "SEND\ndestination:/queue/jobs/email\ncontent-type:application/json\npersistent:true\n\
               correlation-id:7c9e6679-7425-40de\nx-tenant:acme\ncontent-length:100\n\n";
    let body = "x".repeat(100);
    run("6 headers, 100 octets", &format!("{six}{body}\0"));
    run("6 headers, escaped", &format!("{}{body}\0", six.replace("acme", "a\\cm\\\\e")));
    let many: String = (0..30).map(|n| format!("header-{n}:value of {n}\n")).collect();
    run("30 headers", &format!("SEND\ndestination:/queue/a\n{many}\n{body}\0"));
    run("ACK", "ACK\nid:2f1b0d64-9d3c-4d7e-8a52-0d6f4c1b9e77\n\n\0");
    let large = "x".repeat(1 << 20);
    run("1 MiB counted", &format!("SEND\ndestination:/queue/a\ncontent-length:{}\n\n{large}\0", 1 << 20));
    run("1 MiB until NUL", &format!("SEND\ndestination:/queue/a\n\n{large}\0"));
}

/// The best of ten rounds: what the machine can do when nothing else runs.
fn run(name: &str, frame: &str) {
    let per_buffer = (64 * 1024 / frame.len()).max(1);
    let buffers = (20_000 / per_buffer).clamp(8, 2_000);
    let bytes = frame.repeat(per_buffer);
    let mut best = f64::MAX;
    for _ in 0..10 {
        let mut inputs: Vec<BytesMut> = (0..buffers).map(|_| BytesMut::from(bytes.as_bytes())).collect();
        let mut decoder = Decoder::new(Role::Server, Limits::default());
        let (begun, mut frames) = (Instant::now(), 0u32);
        for input in &mut inputs {
            while let Some(frame) = decoder.decode(input, Mode::Agreed(Version::V1_2)).expect("valid") {
                frames += 1;
                std::hint::black_box(&frame);
                decoder.recycle(frame);
            }
        }
        best = best.min(begun.elapsed().as_secs_f64() * 1e9 / f64::from(frames));
    }
    println!("{name:<24} {best:>10.0} ns");
}
