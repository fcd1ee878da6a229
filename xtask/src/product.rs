//! Builds the product as it ships: two static binaries in an image without anything else.

use crate::cluster;
use crate::image::{self, Binary, Image};
use anyhow::{Context, Result, bail};
use std::path::PathBuf;
use std::process::Command;

/// The image's name inside our own clusters, where it is loaded instead of pulled.
pub(crate) const IMAGE: &str = "berth.local/berth:dev";

const TARGET: &str = "x86_64-unknown-linux-gnu";
const BINARIES: [&str; 2] = ["berth-connector", "berth-operator"];

/// Builds both binaries and writes the image; returns its file. Quick when nothing has changed.
pub(crate) fn build() -> Result<PathBuf> {
    // Dependencies are compiled once for all clones: they lie in the user's cache, not in this clone.
    let target = cluster::cache()?.join("product");
    println!("building {} (release, static)", BINARIES.join(" and "));
    let mut command = Command::new("cargo");
    command.args(["build", "--release", "--locked", "--target", TARGET]);
    BINARIES.iter().for_each(|name| {
        command.args(["-p", name]);
    });
    command.env("CARGO_TARGET_DIR", &target).env("RUSTFLAGS", "-C target-feature=+crt-static");
    if !command.status().context("running cargo")?.success() {
        bail!("the binaries could not be built");
    }
    let file = target.join("berth-image.tar");
    let binaries = BINARIES.map(|name| Binary {
        source: target.join(TARGET).join("release").join(name),
        target: format!("/{name}"),
    });
    let image = Image {
        name: IMAGE.into(),
        entrypoint: vec!["/berth-connector".into()],
        user: "65532:65532".into(),
        binaries: binaries.into(),
    };
    image::write(&image, &file)?;
    Ok(file)
}
