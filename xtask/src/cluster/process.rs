//! The long-lived processes of a cluster, each by a recorded pid.
//!
//! A record holds the pid, the time at which that process started (so that a pid that was given to somebody
//! else is never taken for ours) and a fingerprint of its command and files (so that a changed part is
//! started anew and an unchanged one is left alone). The process writes its own record before it becomes
//! the program: there is no moment at which it runs and is unknown. Each lies in a cgroup of its own, which
//! also knows what it started.

use super::{cgroup, shell};
use crate::image::hex;
use anyhow::{Context, Result, bail};
use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// A folder of records and logs: one for the local cluster, one for kind.
pub(crate) struct Processes {
    folder: PathBuf,
    confined: bool,
}

/// One long-lived process.
pub(crate) struct Part {
    /// Its name in records and logs.
    pub(crate) name: String,
    /// The network namespace it runs in; the machine's own when there is none.
    pub(crate) netns: Option<PathBuf>,
    /// Program and arguments.
    pub(crate) command: Vec<String>,
    /// Environment beyond the inherited one.
    pub(crate) environment: Vec<(&'static str, String)>,
    /// Contents that the process reads at start; another content means another start.
    pub(crate) reads: Vec<String>,
}

/// The shell that becomes the part: it records itself, enters its cgroup and then executes the program.
/// Field 22 of /proc/PID/stat is the start time; what follows the last ")" begins at field 3.
const LAUNCH: &str = r#"
record=$1; mark=$2; group=$3; shift 3
read -r line < /proc/$$/stat; rest=${line##*) }
started() { shift 19; echo "$1"; }
if [ -n "$group" ]; then echo $$ > "$group/cgroup.procs" || exit 1; fi
echo "$$ $(started $rest) $mark" > "$record.new" && mv "$record.new" "$record" || exit 1
exec "$@"
"#;

impl Processes {
    /// Records in `folder`. `confined`: each part gets a cgroup (needs root).
    pub(crate) fn new(folder: PathBuf, confined: bool) -> Self {
        Self { folder, confined }
    }

    /// Starts the part unless exactly it runs already; says whether it had to.
    pub(crate) fn ensure(&self, part: &Part) -> Result<bool> {
        let mark = part.fingerprint();
        if self.running(&part.name).is_some_and(|process| process.mark == mark && !process.frozen) {
            return Ok(false);
        }
        // A frozen process hears nothing: no point in asking it.
        let frozen = self.running(&part.name).is_some_and(|process| process.frozen);
        self.stop(&part.name, if frozen { Duration::ZERO } else { Duration::from_secs(5) })?;
        fs::create_dir_all(self.folder.join("logs"))?;
        let group = if self.confined { cgroup::make(&part.name)? } else { String::new() };
        let log = self.log(&part.name);
        let output = OpenOptions::new().create(true).append(true).open(&log)?;
        let mut command = Command::new("setsid");
        command.args(["sh", "-c", LAUNCH, "sh"]).arg(self.record(&part.name)).arg(&mark).arg(&group);
        if let Some(netns) = &part.netns {
            command.arg("nsenter").arg(format!("--net={}", netns.display()));
        }
        command.args(&part.command).envs(part.environment.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output).current_dir("/");
        command.spawn().with_context(|| format!("starting {}", part.name))?;
        let deadline = Instant::now() + Duration::from_secs(5);
        while self.running(&part.name).is_none_or(|process| process.mark != mark) {
            if Instant::now() > deadline {
                bail!("{} did not start: see {}", part.name, log.display());
            }
            sleep(Duration::from_millis(10));
        }
        Ok(true)
    }

    /// Ends the part: asks, waits up to `patience`, then kills. Harmless when it does not run.
    pub(crate) fn stop(&self, name: &str, patience: Duration) -> Result<()> {
        if let Some(process) = self.running(name) {
            if !patience.is_zero() {
                signal(process.pid, "TERM");
                self.gone(name, process.pid, patience);
            }
            if self.running(name).is_some() {
                signal(process.pid, "KILL");
                if !self.gone(name, process.pid, Duration::from_secs(10)) {
                    bail!("{name} (pid {}) does not end", process.pid);
                }
            }
        }
        let record = self.record(name);
        if record.exists() {
            fs::remove_file(&record).with_context(|| format!("removing {}", record.display()))?;
        }
        Ok(())
    }

    fn gone(&self, name: &str, pid: u32, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        while self.running(name).is_some_and(|process| process.pid == pid) {
            if Instant::now() > deadline {
                return false;
            }
            sleep(Duration::from_millis(20));
        }
        true
    }

    /// The part's process, unless it has ended (also when nobody has asked for its end yet: state Z).
    pub(crate) fn running(&self, name: &str) -> Option<Running> {
        let record = fs::read_to_string(self.record(name)).ok()?;
        let mut fields = record.split_whitespace();
        let pid = fields.next()?.parse().ok()?;
        let started = fields.next()?;
        let mark = fields.next()?.to_owned();
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let rest: Vec<_> = stat.rsplit_once(") ")?.1.split_whitespace().collect();
        let state = *rest.first()?;
        let alive = !matches!(state, "Z" | "X") && *rest.get(19)? == started;
        alive.then_some(Running { pid, mark, frozen: state == "T" })
    }

    /// The names of all recorded parts.
    pub(crate) fn recorded(&self) -> Vec<String> {
        let Ok(entries) = fs::read_dir(&self.folder) else { return Vec::new() };
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let mut names: Vec<_> = names.filter_map(|n| n.strip_suffix(".pid").map(str::to_owned)).collect();
        names.sort();
        names
    }

    /// Where the part's output goes.
    pub(crate) fn log(&self, name: &str) -> PathBuf {
        self.folder.join("logs").join(format!("{name}.log"))
    }

    fn record(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.pid"))
    }
}

/// A running part.
pub(crate) struct Running {
    /// Its process id.
    pub(crate) pid: u32,
    mark: String,
    /// Stopped by a signal, so that it answers nothing.
    frozen: bool,
}

impl Part {
    /// A part without environment or files of its own, in the machine's network namespace.
    pub(crate) fn new(name: &str, program: &Path, args: &[String]) -> Self {
        let mut command = vec![program.display().to_string()];
        command.extend_from_slice(args);
        Self { name: name.into(), netns: None, command, environment: Vec::new(), reads: Vec::new() }
    }

    fn fingerprint(&self) -> String {
        let text = format!("{:?} {:?} {:?} {:?}", self.netns, self.command, self.environment, self.reads);
        hex(text.as_bytes()).chars().take(16).collect()
    }
}

/// Sends a signal by number or name; a process that is already gone is fine.
pub(crate) fn signal(pid: u32, name: &str) {
    shell::succeeds("sh", &["-c", &format!("kill -{name} {pid}")]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("xtask-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    fn sleeper(seconds: &str) -> Part {
        Part::new("sleeper", Path::new("sleep"), &[seconds.into()])
    }

    #[test]
    fn an_unchanged_part_is_left_alone_and_a_changed_one_is_replaced() {
        let folder = scratch("replace");
        let processes = Processes::new(folder.clone(), false);
        assert!(processes.ensure(&sleeper("600")).unwrap());
        let first = processes.running("sleeper").unwrap().pid;
        assert!(!processes.ensure(&sleeper("600")).unwrap());
        assert_eq!(processes.running("sleeper").unwrap().pid, first);
        assert!(processes.ensure(&sleeper("601")).unwrap());
        assert_ne!(processes.running("sleeper").unwrap().pid, first);
        assert_eq!(processes.recorded(), ["sleeper"]);
        processes.stop("sleeper", Duration::from_secs(5)).unwrap();
        assert!(processes.running("sleeper").is_none());
        assert!(processes.recorded().is_empty());
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_pid_that_belongs_to_somebody_else_is_never_ours() {
        let folder = scratch("reused");
        let processes = Processes::new(folder.clone(), false);
        let own = std::process::id();
        fs::write(folder.join("other.pid"), format!("{own} 1 mark\n")).unwrap();
        assert!(processes.running("other").is_none(), "the start time differs");
        processes.stop("other", Duration::ZERO).unwrap();
        fs::remove_dir_all(&folder).unwrap();
    }
}
