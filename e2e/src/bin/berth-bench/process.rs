//! Servers as child processes: started, watched through /proc, stopped by the pid that was recorded.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// A running server. Dropping it kills it.
pub(crate) struct Process {
    child: Child,
    name: &'static str,
}

impl Process {
    /// Starts `command` with its output in `log`.
    pub(crate) fn start(name: &'static str, command: &mut Command, log: &Path) -> Result<Self> {
        let out = fs::File::create(log).with_context(|| format!("cannot create {}", log.display()))?;
        let child = command
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out)
            .spawn()
            .with_context(|| format!("cannot start {name}: {:?}", command.get_program()))?;
        Ok(Self { child, name })
    }

    /// Calls `ready` every few milliseconds until it is true; fails when the process has ended or time is up.
    pub(crate) fn wait_until(&mut self, limit: Duration, ready: impl Fn() -> bool) -> Result<Duration> {
        let start = Instant::now();
        while !ready() {
            if let Some(status) = self.child.try_wait()? {
                bail!("{} has ended with {status} before it was ready", self.name);
            }
            if start.elapsed() > limit {
                bail!("{} was not ready after {} s", self.name, limit.as_secs());
            }
            std::thread::sleep(READY_POLL);
        }
        Ok(start.elapsed())
    }

    /// CPU time and memory of the process and its descendants.
    pub(crate) fn usage(&self) -> Result<Usage> {
        Usage::of_tree(self.child.id())
    }

    /// SIGTERM, then SIGKILL when it has not ended in `limit`.
    pub(crate) fn stop(mut self, limit: Duration) -> Result<()> {
        self.signal(Signal::SIGTERM)?;
        let start = Instant::now();
        while self.child.try_wait()?.is_none() && start.elapsed() < limit {
            std::thread::sleep(READY_POLL);
        }
        self.kill()
    }

    /// SIGKILL for the whole tree, as in a crash; some servers run below a shell.
    pub(crate) fn kill(&mut self) -> Result<()> {
        if self.child.try_wait()?.is_some() {
            return Ok(());
        }
        // Looked up while the parents live: later the rest belongs to init.
        let tree = Tree::of(self.child.id())?;
        self.child.kill()?;
        self.child.wait()?;
        for pid in tree.0.iter().map(|(pid, _)| *pid).filter(|pid| *pid != self.child.id()) {
            // It may have ended with its parent.
            kill(Pid::from_raw(i32::try_from(pid)?), Signal::SIGKILL).ok();
        }
        Ok(())
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let pid = i32::try_from(self.child.id()).context("a pid fits")?;
        kill(Pid::from_raw(pid), signal).with_context(|| format!("cannot signal {}", self.name))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Err(error) = self.kill() {
            eprintln!("cannot end {}: {error:#}", self.name);
        }
    }
}

/// What a process tree has used.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Usage {
    /// User and system time since the start, descendants included.
    pub(crate) cpu_seconds: f64,
    /// Resident bytes now.
    pub(crate) rss_bytes: u64,
}

impl Usage {
    /// Of this process.
    pub(crate) fn of_self() -> Result<Self> {
        Self::of_tree(std::process::id())
    }

    fn of_tree(root: u32) -> Result<Self> {
        let mut tree = Tree::of(root)?;
        if root == std::process::id() {
            // The servers are this program's children; they are not its own use.
            tree.0.retain(|(pid, _)| *pid == root);
        }
        let mut total = Self::default();
        for (_, stat) in tree.0 {
            total.cpu_seconds += stat.ticks as f64 / TICKS_PER_SECOND;
            total.rss_bytes += stat.rss_pages * PAGE_BYTES;
        }
        Ok(total)
    }
}

/// A process and its descendants, by pid.
struct Tree(Vec<(u32, Stat)>);

impl Tree {
    fn of(root: u32) -> Result<Self> {
        let mut all = Vec::new();
        for entry in fs::read_dir("/proc")? {
            let name = entry?.file_name();
            let Some(pid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
            // A process may end while we look at it.
            if let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) {
                all.extend(Stat::parse(&stat).map(|stat| (pid, stat)));
            }
        }
        let Some(root) = all.iter().position(|(pid, _)| *pid == root) else {
            bail!("process {root} is gone");
        };
        let mut tree = vec![all.swap_remove(root)];
        let mut at = 0;
        while let Some((parent, _)) = tree.get(at) {
            let parent = *parent;
            tree.extend(all.extract_if(.., |(_, stat)| stat.parent == parent));
            at += 1;
        }
        Ok(Self(tree))
    }
}

struct Stat {
    parent: u32,
    ticks: u64,
    rss_pages: u64,
}

impl Stat {
    /// See proc(5), "/proc/[pid]/stat". The name in parentheses may hold anything.
    fn parse(stat: &str) -> Option<Self> {
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
        Some(Self {
            parent: u32::try_from(number(4)?).ok()?,
            ticks: number(14)? + number(15)?,
            rss_pages: number(24)?,
        })
    }
}

/// A port that was free a moment ago.
pub(crate) fn free_port() -> Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

/// An address of this machine alone.
pub(crate) fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

const READY_POLL: Duration = Duration::from_millis(5);
/// Linux reports times in these on every architecture (USER_HZ).
const TICKS_PER_SECOND: f64 = 100.0;
const PAGE_BYTES: u64 = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stat_line_is_read_whatever_the_name_holds() {
        let line = "42 (a) b (c) S 7 42 42 0 -1 4194560 1 2 3 4 150 50 9 9 20 0 5 0 100 1000 77 18446744";
        let stat = Stat::parse(line).expect("a stat line");
        assert_eq!((stat.parent, stat.ticks, stat.rss_pages), (7, 200, 77));
    }

    #[test]
    fn usage_and_the_end_reach_descendants() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut shell = Command::new("sh");
        shell.args(["-c", "sleep 60 & wait"]);
        let mut process = Process::start("sh", &mut shell, &folder.path().join("log")).expect("sh");
        let pid = process.child.id();
        let forked = || Tree::of(pid).is_ok_and(|tree| tree.0.len() == 2);
        process.wait_until(LIMIT, forked).expect("a child");
        let child = Tree::of(pid).expect("a tree").0[1].0;
        assert!(process.usage().expect("usage").rss_bytes > 0);
        process.kill().expect("killed");
        assert!(process.usage().is_err());
        let ended = Instant::now();
        while Tree::of(child).is_ok_and(|tree| tree.0[0].1.rss_pages > 0) {
            assert!(ended.elapsed() < LIMIT, "the descendant lives");
            std::thread::yield_now();
        }
    }

    #[test]
    fn the_servers_are_no_part_of_our_own_use() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut sleep = Command::new("sleep");
        let process = Process::start("sleep", sleep.arg("60"), &folder.path().join("log")).expect("sleep");
        let whole = Tree::of(std::process::id()).expect("a tree");
        assert!(whole.0.iter().any(|(pid, _)| *pid == process.child.id()));
        let with = whole.0.iter().map(|(_, stat)| stat.rss_pages * PAGE_BYTES).sum::<u64>();
        assert!(Usage::of_self().expect("usage").rss_bytes < with);
    }

    const LIMIT: Duration = Duration::from_secs(10);
}
