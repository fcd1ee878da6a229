//! The programs of the cluster: packages of Debian, and tools built from their published Go modules.
//!
//! `e2e/tools/NAME` pins one module each, because their dependencies disagree. What is built lies in the
//! user's cache under a name that holds a hash of everything it depends on, so it is built once for all
//! clones. A folder gets that name only when it is complete; Go's own cache lets an interrupted build go on
//! where it stood.

use super::shell;
use crate::image::{hex, repository};
use anyhow::{Context, Result, bail, ensure};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// One Go module of `e2e/tools` and the programs that it gives.
struct GoTool {
    name: &'static str,
    /// Packages of the programs; each program is called like the last part of its package.
    packages: &'static [&'static str],
    /// The module whose version is the tool's, as go.mod names it.
    module: &'static str,
    /// Variables of the linker that get the version, and what else they get.
    flags: fn(&str) -> String,
}

const KUBERNETES: GoTool = GoTool {
    name: "kubernetes",
    packages: &[
        "k8s.io/kubernetes/cmd/kube-apiserver",
        "k8s.io/kubernetes/cmd/kube-controller-manager",
        "k8s.io/kubernetes/cmd/kube-proxy",
        "k8s.io/kubernetes/cmd/kube-scheduler",
        "k8s.io/kubernetes/cmd/kubectl",
        "k8s.io/kubernetes/cmd/kubelet",
    ],
    module: "k8s.io/kubernetes",
    flags: kubernetes_flags,
};
const COREDNS: GoTool = GoTool {
    name: "coredns",
    packages: &["github.com/coredns/coredns"],
    module: "github.com/coredns/coredns",
    flags: |_| String::new(),
};
const HELM: GoTool = GoTool {
    name: "helm",
    packages: &["helm.sh/helm/v3/cmd/helm"],
    module: "helm.sh/helm/v3",
    flags: |version| format!("-X helm.sh/helm/v3/internal/version.version={version}"),
};
const KIND: GoTool = GoTool {
    name: "kind",
    packages: &["sigs.k8s.io/kind"],
    module: "sigs.k8s.io/kind",
    flags: |_| String::new(),
};

/// Without these, kubelet and kubectl report no usable version and refuse to work together.
fn kubernetes_flags(version: &str) -> String {
    let mut parts = version.trim_start_matches('v').split('.');
    let (major, minor) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let mut flags = String::new();
    for package in ["k8s.io/client-go/pkg/version", "k8s.io/component-base/version"] {
        let values = [
            ("gitVersion", version),
            ("gitMajor", major),
            ("gitMinor", minor),
            ("gitCommit", "unknown"),
            ("gitTreeState", "archive"),
            ("buildDate", "1970-01-01T00:00:00Z"),
        ];
        for (name, value) in values {
            flags += &format!(" -X {package}.{name}={value}");
        }
    }
    flags
}

/// The built programs of the local cluster.
pub(crate) struct Tools {
    kubernetes: PathBuf,
    coredns: PathBuf,
    helm: PathBuf,
}

impl Tools {
    /// Builds what is missing, with visible progress.
    pub(crate) fn ensure() -> Result<Self> {
        Ok(Self { kubernetes: build(&KUBERNETES)?, coredns: build(&COREDNS)?, helm: build(&HELM)? })
    }

    /// The path of one program.
    pub(crate) fn program(&self, name: &str) -> PathBuf {
        match name {
            "coredns" => self.coredns.join(name),
            "helm" => self.helm.join(name),
            _ => self.kubernetes.join(name),
        }
    }
}

/// kind, kubectl or helm for a cluster with a container engine: the installed one, else built.
pub(crate) fn installed_or_built(name: &str) -> Result<PathBuf> {
    if let Some(found) = shell::find(name) {
        return Ok(found);
    }
    let tool = match name {
        "kind" => KIND,
        "helm" => HELM,
        _ => KUBERNETES,
    };
    Ok(build(&tool)?.join(name))
}

/// Where built things of all clones lie.
pub(crate) fn cache() -> Result<PathBuf> {
    let chosen = std::env::var_os("XDG_CACHE_HOME").filter(|path| !path.is_empty()).map(PathBuf::from);
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    Ok(chosen.or_else(home).context("neither XDG_CACHE_HOME nor HOME is set")?.join("berth"))
}

/// The folder `NAME-KEY` of the cache; `make` fills it unless it is complete already.
pub(crate) fn cached(name: &str, key: &str, make: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
    let short: String = hex(key.as_bytes()).chars().take(16).collect();
    let folder = cache()?.join(format!("{name}-{short}"));
    if folder.is_dir() {
        return Ok(folder);
    }
    remove_abandoned(&cache()?, name)?;
    // The process id: what an interrupted build may still be writing must never become part of this one.
    let partial = cache()?.join(format!("{name}-{short}.{}.partial", std::process::id()));
    fs::create_dir_all(&partial).with_context(|| format!("making {}", partial.display()))?;
    make(&partial)?;
    match fs::rename(&partial, &folder) {
        // Somebody else has completed the same thing meanwhile.
        Err(_) if folder.is_dir() => fs::remove_dir_all(&partial)?,
        result => result.with_context(|| format!("completing {}", folder.display()))?,
    }
    Ok(folder)
}

/// Removes the unfinished folders of processes that are gone.
fn remove_abandoned(cache: &Path, name: &str) -> Result<()> {
    for entry in fs::read_dir(cache).into_iter().flatten().flatten() {
        let found = entry.file_name().to_string_lossy().into_owned();
        let rest = found.strip_suffix(".partial").filter(|rest| rest.starts_with(&format!("{name}-")));
        let owner = rest.and_then(|rest| rest.rsplit('.').next());
        if owner.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            fs::remove_dir_all(entry.path()).with_context(|| format!("removing {found}"))?;
        }
    }
    Ok(())
}

fn build(tool: &GoTool) -> Result<PathBuf> {
    let source = repository().join("e2e/tools").join(tool.name);
    let read = |name: &str| {
        let path = source.join(name);
        fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))
    };
    let (module, sums) = (read("go.mod")?, read("go.sum")?);
    let version = module
        .lines()
        .find_map(|line| {
            line.trim().trim_start_matches("require ").strip_prefix(tool.module)?.strip_prefix(" v")
        })
        .and_then(|rest| rest.split_whitespace().next())
        .with_context(|| format!("{} does not pin {}", source.display(), tool.module))?;
    let linker = format!("-s -w{}", prefixed((tool.flags)(&format!("v{version}"))));
    let key = [module.as_str(), &sums, &linker, &tool.packages.join(" ")].join("\n");
    cached(tool.name, &key, |folder| {
        ensure!(
            shell::find("go").is_some(),
            "Go is not installed: install Go 1.26 or newer, {} is built with it",
            tool.name
        );
        println!("building {} v{version} (once; cached in {})", tool.name, cache()?.display());
        let mut command = Command::new("go");
        command.args(["build", "-v", "-trimpath", "-ldflags", &linker, "-o"]).arg(folder.join(""));
        command.args(tool.packages).current_dir(&source);
        command.env("CGO_ENABLED", "0").env("GOWORK", "off").env("GOFLAGS", "-mod=readonly -buildvcs=false");
        watch(&mut command, tool.name)
    })
}

fn prefixed(flags: String) -> String {
    if flags.is_empty() || flags.starts_with(' ') { flags } else { format!(" {flags}") }
}

/// Runs `go build -v` and prints how far it is every 15 seconds; on failure, what it said.
fn watch(command: &mut Command, name: &str) -> Result<()> {
    let mut child = command.stderr(Stdio::piped()).stdin(Stdio::null()).spawn().context("starting go")?;
    let output = child.stderr.take().context("the output of go is piped")?;
    let (begun, mut reported) = (Instant::now(), Instant::now());
    let (mut modules, mut packages, mut said) = (0_u32, 0_u32, Vec::new());
    for line in BufReader::new(output).lines() {
        let line = line?;
        if line.starts_with("go: downloading ") {
            modules += 1;
        } else if !line.contains(' ') && line.contains('/') || !line.contains([' ', ':', '#']) {
            packages += 1;
        } else {
            said.push(line);
        }
        if reported.elapsed() > Duration::from_secs(15) {
            reported = Instant::now();
            let seconds = begun.elapsed().as_secs();
            println!("  {name}: {modules} modules fetched, {packages} packages compiled, {seconds} s");
        }
    }
    let status = child.wait()?;
    if !status.success() {
        let tail = said.split_off(said.len().saturating_sub(12)).join("\n");
        bail!("{name} could not be built:\n{tail}");
    }
    println!("  {name}: done after {} s", begun.elapsed().as_secs());
    Ok(())
}

/// A file that shows that a package is there, and the package of Debian that holds it.
const PACKAGES: &[(&str, &str)] = &[
    ("etcd", "etcd-server"),
    ("containerd", "containerd"),
    ("ctr", "containerd"),
    ("runc", "runc"),
    ("/usr/lib/cni/bridge", "containernetworking-plugins"),
    ("nft", "nftables"),
    ("iptables", "iptables"),
    ("conntrack", "conntrack"),
    ("ip", "iproute2"),
    ("nsenter", "util-linux"),
    ("sysctl", "procps"),
    ("openssl", "openssl"),
];

/// Installs the packages of Debian that are missing; says in one line what to install where it may not.
pub(crate) fn ensure_packages() -> Result<()> {
    let is_missing = |proof: &str| match proof.strip_prefix('/') {
        Some(_) => !Path::new(proof).exists(),
        None => shell::find(proof).is_none(),
    };
    let mut missing: Vec<_> = PACKAGES.iter().filter(|(p, _)| is_missing(p)).map(|(_, name)| *name).collect();
    missing.dedup();
    if missing.is_empty() {
        return Ok(());
    }
    let list = missing.join(" ");
    let advice = format!("install these packages first: apt-get install --no-install-recommends {list}");
    ensure!(shell::find("apt-get").is_some(), "{advice} (or what your system calls them)");
    println!("installing {list}");
    install(&missing).with_context(|| advice.clone())?;
    let still: Vec<_> = PACKAGES.iter().filter(|(p, _)| is_missing(p)).map(|(p, _)| *p).collect();
    ensure!(still.is_empty(), "{advice}: {} missing although apt-get succeeded", still.join(" "));
    Ok(())
}

fn install(packages: &[&str]) -> Result<()> {
    // Only the programs are wanted: Debian would start etcd and containerd as services of the machine.
    let policy = Path::new("/usr/sbin/policy-rc.d");
    let ours = !policy.exists();
    if ours {
        fs::write(policy, "#!/bin/sh\nexit 101\n")?;
        shell::run("chmod", &["755", "/usr/sbin/policy-rc.d"])?;
    }
    let mut result = apt(&[&["install", "-y", "--no-install-recommends"], packages].concat());
    if result.is_err() {
        // The usual reason: the package lists were never fetched or are old.
        result = apt(&["update"])
            .and_then(|()| apt(&[&["install", "-y", "--no-install-recommends"], packages].concat()));
    }
    if ours {
        fs::remove_file(policy)?;
    }
    result
}

fn apt(args: &[&str]) -> Result<()> {
    let mut command = Command::new("apt-get");
    command.args(["-q", "-o", "Dpkg::Use-Pty=0", "-o", "Acquire::Retries=2"]).args(args);
    // What it says is the progress that people see, and the reason when it fails.
    let status = command.env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null()).status()?;
    ensure!(status.success(), "apt-get {} failed", args.first().unwrap_or(&""));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tool_is_pinned_by_its_module() {
        for tool in [KUBERNETES, COREDNS, HELM, KIND] {
            let folder = repository().join("e2e/tools").join(tool.name);
            let module = fs::read_to_string(folder.join("go.mod")).unwrap();
            assert!(folder.join("go.sum").exists());
            for package in tool.packages {
                assert!(module.contains(package), "{package} is not a tool of {}", folder.display());
            }
        }
    }

    #[test]
    fn kubernetes_learns_its_version_in_both_places() {
        let flags = kubernetes_flags("v1.36.3");
        assert_eq!(flags.matches(".gitVersion=v1.36.3").count(), 2);
        assert_eq!(flags.matches(".gitMinor=36").count(), 2);
    }
}
