//! Builds the product as it ships: two static binaries in an image without anything else.

use crate::cluster;
use crate::image::{self, Binary, Image, repository};
use anyhow::{Context, Result, ensure};
use std::path::PathBuf;
use std::process::Command;

/// The image's name inside our own clusters, where it is loaded instead of pulled.
pub(crate) const IMAGE: &str = "berth.local/berth:dev";
/// User and group of every process of ours, as in the chart and the pods that the operator makes.
pub(crate) const USER: &str = "65532:65532";

/// Builds both binaries and writes the image; returns its file. The Dockerfile describes the same image.
pub(crate) fn build() -> Result<PathBuf> {
    let triple = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let flags = format!("CARGO_TARGET_{}_RUSTFLAGS", triple.to_uppercase().replace('-', "_"));
    // Dependencies are compiled once for all clones: they lie in the user's cache, not in this clone.
    let target = cluster::cache()?.join("product");
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "--release", "--locked", "--target", &triple]);
    cargo.args(["-p", "berth-connector", "-p", "berth-operator"]);
    // For the target alone, so that build scripts and procedural macros are built as usual.
    cargo.env(flags, "-C target-feature=+crt-static").env("CARGO_TARGET_DIR", &target);
    cargo.current_dir(repository());
    ensure!(cargo.status().context("running cargo")?.success(), "the programs could not be built");
    let folder = target.join(triple).join("release");
    let binary = |name: &str| Binary { source: folder.join(name), target: format!("/{name}") };
    let image = Image {
        name: IMAGE.into(),
        entrypoint: vec!["/berth-connector".into()],
        user: USER.into(),
        binaries: vec![binary("berth-connector"), binary("berth-operator")],
    };
    let file = repository().join("target/berth-image.tar");
    image::write(&image, &file)?;
    Ok(file)
}
