//! What only `cargo xtask cluster` can do to the cluster: cut a node off, and heal it.

use anyhow::{Context, Result, bail};
use std::path::Path;
use std::process::{Command, Stdio};

/// A node without a network; it gets it back when this is dropped, also when the test fails.
#[derive(Debug)]
pub struct CutNode {
    name: String,
    healed: bool,
}

impl CutNode {
    /// Takes the node's network away.
    ///
    /// # Errors
    /// The cluster is not one of ours, or has no such node.
    pub fn cut(name: &str) -> Result<Self> {
        xtask(&["cut", name])?;
        Ok(Self { name: name.to_owned(), healed: false })
    }

    /// Gives the network back.
    ///
    /// # Errors
    /// The cluster is gone.
    pub fn heal(mut self) -> Result<()> {
        self.healed = true;
        xtask(&["heal", &self.name])
    }
}

impl Drop for CutNode {
    fn drop(&mut self) {
        if !self.healed
            && let Err(error) = xtask(&["heal", &self.name])
        {
            eprintln!("healing {}: {error:#}", self.name);
        }
    }
}

fn xtask(args: &[&str]) -> Result<()> {
    let root =
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("the package lies in the repository")?;
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(["xtask", "cluster"]).args(args).current_dir(root).stdin(Stdio::null());
    let output = command.output().context("starting cargo xtask")?;
    if !output.status.success() {
        bail!("cargo xtask cluster {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}
