//! The two small images that every cluster gets: `pause`, the first process of each pod, and the test
//! program.
//!
//! Both hold the one static binary of `e2e/testpod`. rustc alone builds it, in a second; it has no
//! dependencies.

use super::node::PAUSE_IMAGE;
use super::shell;
use super::tools::cached;
use crate::image::{self, Binary, Image, repository};
use anyhow::{Context, Result};
use std::fs;
use std::path::PathBuf;

/// The test program's image, as pods name it.
pub(crate) const TESTPOD_IMAGE: &str = "berth.local/testpod:1";

/// The files to load into every node.
pub(crate) struct Images {
    /// pause: only for the local cluster, kind has its own.
    pub(crate) pause: PathBuf,
    /// The test program.
    pub(crate) testpod: PathBuf,
}

/// Builds both images unless the cache has them.
pub(crate) fn ensure() -> Result<Images> {
    let source = repository().join("e2e/testpod/src/main.rs");
    let text = fs::read_to_string(&source).with_context(|| format!("reading {}", source.display()))?;
    let flags = ["-Ctarget-feature=+crt-static", "-Copt-level=s", "-Cpanic=abort", "-Cstrip=symbols"];
    let key = [&text, &flags.join(" "), include_str!("../image.rs"), include_str!("images.rs")].join("\n");
    let folder = cached("testpod", &key, |folder| {
        let binary = folder.join("testpod");
        let (source, target) = (source.display().to_string(), binary.display().to_string());
        let args = ["--edition=2024", "--crate-name=testpod", &source, "-o", &target];
        shell::run("rustc", &[&args[..], &flags[..]].concat()).context("building the test program")?;
        for (name, file, command) in
            [(PAUSE_IMAGE, "pause.tar", "pause"), (TESTPOD_IMAGE, "testpod.tar", "serve")]
        {
            let image = Image {
                name: name.into(),
                entrypoint: vec!["/testpod".into(), command.into()],
                user: crate::product::USER.into(),
                binaries: vec![Binary { source: binary.clone(), target: "/testpod".into() }],
            };
            image::write(&image, &folder.join(file))?;
        }
        Ok(())
    })?;
    Ok(Images { pause: folder.join("pause.tar"), testpod: folder.join("testpod.tar") })
}
