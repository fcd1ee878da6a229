//! B7: what a connection costs that does nothing but send and get heart-beats.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollTimeout};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use super::{Field, Options, start};
use crate::conn::Conn;
use crate::report::{Report, Row};
use crate::servers::{Fsync, Kind};

/// Opens them all, keeps them for longer than one heart-beat, and divides what the memory has grown by.
pub(super) fn connections(options: &Options) -> Result<Report> {
    raise_file_limit(options.connections)?;
    let field = Field::prepare(options, Fsync::Always, &[Kind::Null])?;
    let mut rows = Vec::new();
    for setup in &field.setups {
        let server = start(setup)?;
        let before = server.usage()?;
        let begin = Instant::now();
        let mut crowd = Crowd::open(&server.setup.connect("10000,10000"), setup.stomp, options.connections)?;
        let opened = begin.elapsed();
        let settled = server.usage()?;
        let beats = crowd.beat(KEEP)?;
        let after = server.usage()?;
        drop(crowd);
        server.stop()?;
        let each = after.rss_bytes.saturating_sub(before.rss_bytes) as f64 / options.connections as f64;
        let turn = vec![
            ("KiB each", each / 1024.0),
            ("connections", options.connections as f64),
            ("opened in s", opened.as_secs_f64()),
            ("idle cores", (after.cpu_seconds - settled.cpu_seconds) / KEEP.as_secs_f64()),
            ("beats", beats as f64),
        ];
        rows.push(Row { kind: setup.kind, version: setup.version()?, turns: vec![turn] });
    }
    let title = "idle connections with heart-beats of 10 s".to_owned();
    let notes = vec!["artemis allocates its heap in advance: its memory says little".to_owned()];
    let limits = Vec::new();
    Ok(Report { id: "B7", title, main: "KiB each", more_is_better: false, rows, limits, notes })
}

struct Crowd {
    epoll: Epoll,
    conns: Vec<Conn>,
}

impl Crowd {
    fn open(connect: &str, address: std::net::SocketAddr, connections: usize) -> Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::empty())?;
        let mut conns = Vec::with_capacity(connections);
        for index in 0..connections {
            let mut conn = Conn::open(address, connect, INPUT_BYTES)?;
            conn.register(&epoll, index as u64)?;
            conns.push(conn);
        }
        Ok(Self { epoll, conns })
    }

    /// Beats every 5 s for `time` and counts what comes back. Fails when the server closes one.
    fn beat(&mut self, time: Duration) -> Result<u64> {
        let start = Instant::now();
        let mut next = start;
        let mut events = vec![EpollEvent::empty(); 256];
        let mut beats = 0;
        while start.elapsed() < time {
            if Instant::now() >= next {
                next += BEAT;
                for conn in &mut self.conns {
                    conn.output.push(b'\n');
                    conn.flush(&self.epoll)?;
                }
            }
            let ready = self.epoll.wait(&mut events, EpollTimeout::from(100u8))?;
            for event in &events[..ready] {
                let conn = &mut self.conns[event.data() as usize];
                if !conn.read()? {
                    bail!("the server has closed an idle connection");
                }
                beats += 1;
                let mut frame = None;
                conn.frames(true, |bytes, _| frame = Some(crate::conn::shown(bytes)));
                if let Some(frame) = frame {
                    bail!("an idle connection got {frame}");
                }
            }
        }
        Ok(beats)
    }
}

/// The servers inherit it.
fn raise_file_limit(connections: usize) -> Result<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if hard < connections as u64 + SPARE_FILES {
        bail!("{connections} connections need a higher limit of open files; the hard limit is {hard}");
    }
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    Ok(())
}

const INPUT_BYTES: usize = 1024;
const BEAT: Duration = Duration::from_secs(5);
const KEEP: Duration = Duration::from_secs(16);
const SPARE_FILES: u64 = 200;
