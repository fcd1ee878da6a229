//! The connector as a process on this machine: starting it, asking it, ending it.
//!
//! Everything is blocking and bounded by [`PATIENCE`]; a [`Server`] that is dropped is killed. Ports are
//! chosen by the system and read from what the connector prints.

use anyhow::{Context, Result, bail, ensure};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

/// How long anything that should come may take on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The program: `BERTH_E2E_CONNECTOR`, else built from this repository.
pub fn program() -> &'static Path {
    static PROGRAM: OnceLock<Result<PathBuf>> = OnceLock::new();
    let built = PROGRAM.get_or_init(|| match std::env::var_os("BERTH_E2E_CONNECTOR") {
        Some(path) => Ok(path.into()),
        None => build(),
    });
    built.as_ref().expect("the connector must build")
}

fn build() -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let args = ["build", "--package", "berth-connector", "--locked", "--message-format", "json"];
    let output = Command::new(cargo).args(args).stderr(Stdio::inherit()).output()?;
    ensure!(output.status.success(), "building the connector failed");
    for line in output.stdout.split(|byte| *byte == b'\n') {
        let Ok(message) = serde_json::from_slice::<serde_json::Value>(line) else { continue };
        let is_ours = message["target"]["name"] == "berth-connector";
        if let Some(path) = message["executable"].as_str().filter(|_| is_ours) {
            return Ok(path.into());
        }
    }
    bail!("cargo did not say where the connector lies")
}

/// What a run of the program that ends by itself has said.
#[derive(Debug)]
pub struct Run {
    /// Its exit code.
    pub code: i32,
    /// Its standard output.
    pub out: String,
    /// Its standard error.
    pub err: String,
}

/// Runs the program until it ends by itself.
pub fn run(args: &[&str], variables: &[(&str, &str)], folder: &Path) -> Result<Run> {
    let mut child = command(args, variables, folder).spawn()?;
    let status = wait(&mut child, PATIENCE)?;
    let (mut out, mut err) = (String::new(), String::new());
    child.stdout.take().context("piped")?.read_to_string(&mut out)?;
    child.stderr.take().context("piped")?.read_to_string(&mut err)?;
    Ok(Run { code: status.code().context("ended by a signal")?, out, err })
}

/// A command in `folder` without the variables that configure connectors and tests; its output is piped.
pub fn clean(mut command: Command, folder: &Path) -> Command {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("BERTH_") {
            command.env_remove(name);
        }
    }
    command.current_dir(folder);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn command(args: &[&str], variables: &[(&str, &str)], folder: &Path) -> Command {
    let mut command = clean(Command::new(program()), folder);
    command.args(args).envs(variables.iter().copied());
    command
}

/// Waits for a process to end; kills it when its time is over.
pub fn wait(child: &mut Child, patience: Duration) -> Result<ExitStatus> {
    let begun = Instant::now();
    while begun.elapsed() < patience {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        thread::sleep(Duration::from_millis(5));
    }
    child.kill()?;
    child.wait()?;
    bail!("did not end within {patience:?}")
}

/// A running connector.
#[derive(Debug)]
pub struct Server {
    child: Child,
    lines: Receiver<String>,
    /// Where STOMP clients connect.
    pub stomp: SocketAddr,
    /// Where probes and metrics are.
    pub admin: SocketAddr,
    /// From the start of the process to its word that it is ready.
    pub ready_after: Duration,
}

impl Server {
    /// Starts a connector whose data lies in `folder`; `more` is YAML that is added to its configuration.
    pub fn start(folder: &Path, more: &str) -> Result<Self> {
        Self::start_with(folder, more, &[])
    }

    /// Like [`Server::start`], with environment variables.
    pub fn start_with(folder: &Path, more: &str, variables: &[(&str, &str)]) -> Result<Self> {
        Self::start_command(folder, more, command(&["--config", "config.yaml"], variables, folder))
    }

    /// Like [`Server::start`], in a process that may have only so many files open.
    pub fn start_with_files(folder: &Path, more: &str, files: u32) -> Result<Self> {
        let mut shell = Command::new("sh");
        let script = format!("ulimit -n {files}; exec \"$0\" --config config.yaml");
        shell.arg("-c").arg(script).arg(program());
        Self::start_command(folder, more, clean(shell, folder))
    }

    fn start_command(folder: &Path, more: &str, mut command: Command) -> Result<Self> {
        let config = folder.join("config.yaml");
        let stomp = if more.contains("stomp:") { "" } else { "stomp: { port: 0 }\n" };
        let text = format!("dataDir: data\nadmin: {{ address: '127.0.0.1:0' }}\n{stomp}{more}\n");
        fs::write(&config, text)?;
        let program_is_built = program();
        ensure!(program_is_built.exists(), "{} is not there", program_is_built.display());
        let begun = Instant::now();
        let mut child = command.spawn()?;
        let lines = follow(&mut child)?;
        let mut server = Self { child, lines, stomp: NOWHERE, admin: NOWHERE, ready_after: Duration::ZERO };
        loop {
            let line = server.next_line()?;
            if let Some(address) = line.strip_prefix("out: STOMP on ") {
                server.stomp = address.parse()?;
            } else if let Some(address) = line.strip_prefix("out: Admin on ") {
                server.admin = address.parse()?;
            } else if line == "out: Ready" {
                server.ready_after = begun.elapsed();
                return Ok(server);
            }
        }
    }

    /// The next line that it writes, `out: ` or `err: ` before it.
    pub fn next_line(&self) -> Result<String> {
        let line = self.lines.recv_timeout(PATIENCE).context("the connector says nothing more")?;
        println!("{line}");
        Ok(line)
    }

    /// The next line that holds `words`.
    pub fn line_with(&self, words: &str) -> Result<String> {
        loop {
            let line = self.next_line().with_context(|| format!("waiting for {words:?}"))?;
            if line.contains(words) {
                return Ok(line);
            }
        }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Resident memory in bytes.
    pub fn resident_bytes(&self) -> Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("VmRSS")?;
        let kib: u64 = line.trim().trim_end_matches("kB").trim().parse()?;
        Ok(kib * 1024)
    }

    /// Sends a signal by name, as `TERM`.
    pub fn signal(&self, name: &str) -> Result<()> {
        let pid = self.pid().to_string();
        let status = Command::new("kill").args(["-s", name, &pid]).status()?;
        ensure!(status.success(), "kill -s {name} {pid}");
        Ok(())
    }

    /// Waits for its end.
    pub fn wait(&mut self, patience: Duration) -> Result<ExitStatus> {
        wait(&mut self.child, patience)
    }

    /// Ends it as a power cut of the process: SIGKILL.
    pub fn kill(mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Ends it in order and says how long that took.
    pub fn stop(mut self) -> Result<Duration> {
        let begun = Instant::now();
        self.signal("TERM")?;
        let status = self.wait(PATIENCE)?;
        ensure!(status.code() == Some(0), "ended with {status}");
        Ok(begun.elapsed())
    }

    /// Asks its admin port.
    pub fn get(&self, path: &str) -> Result<(u16, String)> {
        http(self.admin, "GET", path, "")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

const NOWHERE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED), 0);

fn follow(child: &mut Child) -> Result<Receiver<String>> {
    let (sender, lines) = mpsc::channel();
    let out: Box<dyn Read + Send> = Box::new(child.stdout.take().context("piped")?);
    let err: Box<dyn Read + Send> = Box::new(child.stderr.take().context("piped")?);
    for (name, stream) in [("out", out), ("err", err)] {
        let sender = sender.clone();
        thread::spawn(move || {
            for line in BufReader::new(stream).lines().map_while(Result::ok) {
                if sender.send(format!("{name}: {line}")).is_err() {
                    return;
                }
            }
        });
    }
    Ok(lines)
}

/// One request over HTTP/1.1: status and body.
pub fn http(to: SocketAddr, method: &str, path: &str, json: &str) -> Result<(u16, String)> {
    let mut stream = TcpStream::connect_timeout(&to, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let kind = if json.is_empty() { "" } else { "Content-Type: application/json\r\n" };
    let length = json.len();
    let head = format!("{method} {path} HTTP/1.1\r\nHost: {to}\r\n{kind}Content-Length: {length}\r\n");
    write!(stream, "{head}Connection: close\r\n\r\n{json}")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("an HTTP answer")?;
    let status = head.split(' ').nth(1).context("a status")?.parse()?;
    Ok((status, body.into()))
}
