//! What the process uses, as the kernel says in `/proc`. Elsewhere everything is zero.

use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Resources in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Usage {
    /// Resident memory.
    pub(crate) resident_bytes: u64,
    /// Open file descriptors.
    pub(crate) open_fds: u64,
    /// Threads.
    pub(crate) threads: u64,
    /// Processor time, user and system.
    pub(crate) cpu: Duration,
}

/// What this process uses now.
pub(crate) fn usage() -> Usage {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let open_fds = std::fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count() as u64);
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    Usage {
        resident_bytes: number_after(&status, "VmRSS:") * 1024,
        open_fds,
        threads: number_after(&status, "Threads:"),
        cpu: cpu_time(&stat),
    }
}

fn number_after(text: &str, name: &str) -> u64 {
    text.lines()
        .find_map(|line| line.strip_prefix(name))
        .and_then(|rest| rest.split_whitespace().next())
        .and_then(|number| number.parse().ok())
        .unwrap_or(0)
}

/// Fields 14 and 15 of `/proc/self/stat`, in ticks; Linux shows 100 of them a second on every architecture.
fn cpu_time(stat: &str) -> Duration {
    const TICK: Duration = Duration::from_millis(10);
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks: u64 =
        after_name.split_whitespace().skip(11).take(2).filter_map(|n| n.parse::<u64>().ok()).sum();
    TICK * u32::try_from(ticks).unwrap_or(u32::MAX)
}

/// Files that the process may have open, after asking for as many as it is allowed.
///
/// Shells give 1024 by default and allow far more; each connection is one.
pub(crate) fn raise_open_files_max() -> u64 {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return u64::MAX };
    match setrlimit(Resource::RLIMIT_NOFILE, hard, hard) {
        Ok(()) => hard,
        Err(_) => soft,
    }
}

/// The name of this machine; pods have their own.
pub(crate) fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name: String = name
        .trim()
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || "-.".contains(c) { c } else { '_' })
        .collect();
    if name.is_empty() { String::from("localhost") } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_kernel_says() {
        let usage = usage();
        assert!(usage.resident_bytes > 100_000 && usage.open_fds > 0 && usage.threads > 0, "{usage:?}");
        let stat = "7 (a b) c) S 1 2 3 4 5 6 7 8 9 10 150 50 0 0 20";
        assert_eq!(cpu_time(stat), Duration::from_secs(2));
        assert!(!host_name().is_empty());
    }
}
