//! Python with the clients of `e2e/clients/python/requirements.txt`, in an environment of its own.
//!
//! It lies in `.cache/python-<hash of the requirements>` of the repository, is made once with what the
//! machine's `python3` and its package index give, and is used again by later runs.

use anyhow::{Context, Result, ensure};
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The interpreter of the environment; makes the environment when it is not there.
pub fn interpreter() -> Result<PathBuf> {
    let root = repository();
    let requirements = root.join("e2e/clients/python/requirements.txt");
    let text = fs::read_to_string(&requirements).context("reading the pinned packages")?;
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    let cache = root.join(".cache");
    let home = cache.join(format!("python-{:016x}", hasher.finish()));
    let python = home.join("bin/python");
    fs::create_dir_all(&cache)?;
    // Tests run side by side, in threads and in processes: one makes it, the others wait.
    let lock = File::create(cache.join("python.lock"))?;
    lock.lock()?;
    if !home.join("complete").exists() {
        run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&home))
            .context("python3 with its venv module is needed")?;
        run(Command::new(&python).args(["-m", "pip", "install", "-q", "-r"]).arg(&requirements))?;
        fs::write(home.join("complete"), "")?;
    }
    Ok(python)
}

/// A script of `e2e/clients/python`.
pub fn script(name: &str) -> PathBuf {
    repository().join("e2e/clients/python").join(name)
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_path_buf).unwrap_or_default()
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("running {command:?}"))?;
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "{command:?} failed: {words}");
    Ok(())
}
