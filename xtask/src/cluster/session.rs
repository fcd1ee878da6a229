//! A cluster that is up, for the commands that put the product into it.

use super::{choose::Cluster, kind, local, shell, tools};
use anyhow::{Context, Result};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

/// A cluster that is up, and the programs that talk to it.
pub(crate) struct Session {
    pub(super) cluster: Cluster,
    pub(super) kubeconfig: PathBuf,
    pub(super) kubectl: PathBuf,
    pub(super) helm: PathBuf,
}

impl Session {
    pub(super) fn new(cluster: Cluster, kubeconfig: PathBuf) -> Result<Self> {
        let (kubectl, helm) = match &cluster {
            Cluster::Local => {
                let built = tools::Tools::ensure()?;
                (built.program("kubectl"), built.program("helm"))
            }
            _ => (tools::installed_or_built("kubectl")?, tools::installed_or_built("helm")?),
        };
        Ok(Self { cluster, kubeconfig, kubectl, helm })
    }

    pub(crate) fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    pub(crate) fn kubectl_path(&self) -> &Path {
        &self.kubectl
    }

    pub(crate) fn helm_path(&self) -> &Path {
        &self.helm
    }

    /// Runs kubectl and returns what it printed.
    pub(crate) fn kubectl(&self, args: &[&str]) -> Result<String> {
        self.output(&self.kubectl, args)
    }

    /// Runs helm and returns what it printed.
    pub(crate) fn helm(&self, args: &[&str]) -> Result<String> {
        self.output(&self.helm, args)
    }

    fn output(&self, program: &Path, args: &[&str]) -> Result<String> {
        shell::output(Command::new(program).args(args).env("KUBECONFIG", &self.kubeconfig))
    }

    /// Loads an image into every node; somebody else's cluster pulls it instead.
    pub(crate) fn load(&self, image: &Path) -> Result<()> {
        match &self.cluster {
            Cluster::Local => local::load(image),
            Cluster::Kind(engine) => kind::load(*engine, image),
            Cluster::Foreign(_) => Ok(()),
        }
    }

    /// Forwards a free port of this machine to `port` of `target` until the value is dropped.
    pub(crate) fn forward(&self, target: &str, port: u16) -> Result<Forward> {
        let mut child = Command::new(&self.kubectl)
            .args(["port-forward", "--namespace=default", target, &format!(":{port}")])
            .env("KUBECONFIG", &self.kubeconfig)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting kubectl port-forward")?;
        let output = BufReader::new(child.stdout.take().context("the output of kubectl is piped")?);
        let mut forward = Forward { child, port: 0, output };
        let mut line = String::new();
        forward.output.read_line(&mut line)?;
        let said = line.split_whitespace().nth(2).and_then(|address| address.rsplit(':').next());
        forward.port = said
            .and_then(|port| port.parse().ok())
            .with_context(|| format!("kubectl port-forward said {line:?} instead of a port"))?;
        Ok(forward)
    }
}

/// A port of this machine that leads into the cluster.
pub(crate) struct Forward {
    child: Child,
    port: u16,
    /// Kept open: kubectl says something for each connection, and ends when nobody can hear it.
    output: BufReader<ChildStdout>,
}

impl Forward {
    pub(crate) fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for Forward {
    fn drop(&mut self) {
        // Both fail only when it has ended by itself, which is what is wanted.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
