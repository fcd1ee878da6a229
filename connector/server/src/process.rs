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

/// Memory that this process may have in bytes: the least limit of its control groups (version 1 or 2), else
/// what the machine has.
pub(crate) fn memory_max() -> u64 {
    let machine = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let machine = Some(number_after(&machine, "MemTotal:") * 1024).filter(|bytes| *bytes > 0);
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limits = limit_files(&groups)
        .into_iter()
        .filter_map(|file| std::fs::read_to_string(file).ok()?.trim().parse::<u64>().ok());
    limits.chain(machine).min().unwrap_or(u64::MAX)
}

/// Where limits may stand: each group of `/proc/self/cgroup` and those around it. In a container the path may
/// be the host's, and what is mounted its own group alone: that is the last of the row.
fn limit_files(groups: &str) -> Vec<String> {
    let mut files = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let (root, name) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            list if list.split(',').any(|c| c == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => continue,
        };
        let mut path = path.trim_end_matches('/');
        loop {
            files.push(format!("{root}{path}/{name}"));
            let Some((parent, _)) = path.rsplit_once('/') else { break };
            path = parent;
        }
    }
    files
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
    fn limits_of_both_kinds_of_groups_are_looked_for() {
        let files = limit_files("5:cpu:/x\n4:hugetlb,memory:/a/b\n0::/\nnonsense\n");
        assert_eq!(
            files,
            [
                "/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes",
                "/sys/fs/cgroup/memory/a/memory.limit_in_bytes",
                "/sys/fs/cgroup/memory/memory.limit_in_bytes",
                "/sys/fs/cgroup/memory.max",
            ]
        );
    }

    #[test]
    fn reads_what_the_kernel_says() {
        let usage = usage();
        assert!(usage.resident_bytes > 100_000 && usage.open_fds > 0 && usage.threads > 0, "{usage:?}");
        let stat = "7 (a b) c) S 1 2 3 4 5 6 7 8 9 10 150 50 0 0 20";
        assert_eq!(cpu_time(stat), Duration::from_secs(2));
        assert!(memory_max() > usage.resident_bytes);
        assert!(!host_name().is_empty());
    }
}
