//! Writes a container image without a container engine: an OCI layout in one tar file.
//!
//! The image has one layer that holds a few static binaries, and nothing else. `ctr images import`, `kind
//! load`, `skopeo` and newer `docker load` read it. The same input gives the same bytes: times are zero,
//! the order is fixed. It is not a builder: there is no base image, no shell and no command to run. The
//! repository's Dockerfile describes the same image for people who have an engine.
//!
//! Source: OCI Image Format Specification 1.0, "Image Layout", "Image Manifest", "Image Configuration".

use anyhow::{Context, Result};
use flate2::{Compression, GzBuilder};
use serde_json::json;
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

/// What an image holds and how it starts.
pub(crate) struct Image {
    /// Full reference, for example `berth.local/berth:dev`; the name it has in the cluster after the import.
    pub(crate) name: String,
    /// The command, the binary by absolute path first.
    pub(crate) entrypoint: Vec<String>,
    /// `uid:gid`, numeric, since the image has no /etc/passwd.
    pub(crate) user: String,
    /// The binaries; each is executable by everyone and writable by nobody.
    pub(crate) binaries: Vec<Binary>,
}

/// One file of the image.
pub(crate) struct Binary {
    /// Where it lies on this machine.
    pub(crate) source: PathBuf,
    /// Its absolute path in the image; its folders are made.
    pub(crate) target: String,
}

/// The root of this clone.
pub(crate) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}

/// Writes the image to the file `to`, which appears whole or not at all.
pub(crate) fn write(image: &Image, to: &Path) -> Result<()> {
    let layer = layer(&image.binaries)?;
    let packed = gzip(&layer)?;
    let config = serde_json::to_vec(&json!({
        "architecture": architecture(),
        "os": "linux",
        "config": { "User": image.user, "Entrypoint": image.entrypoint, "WorkingDir": "/" },
        "rootfs": { "type": "layers", "diff_ids": [digest(&layer)] },
        "history": [{ "created_by": "cargo xtask" }],
    }))?;
    let manifest = serde_json::to_vec(&json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": descriptor("application/vnd.oci.image.config.v1+json", &config),
        "layers": [descriptor("application/vnd.oci.image.layer.v1.tar+gzip", &packed)],
    }))?;
    let mut entry = descriptor("application/vnd.oci.image.manifest.v1+json", &manifest);
    entry["platform"] = json!({ "architecture": architecture(), "os": "linux" });
    entry["annotations"] = json!({
        "io.containerd.image.name": image.name,
        "org.opencontainers.image.ref.name": image.name.rsplit(':').next().unwrap_or_default(),
    });
    let index = serde_json::to_vec(&json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [entry],
    }))?;

    let partial = to.with_extension("partial");
    let file = File::create(&partial).with_context(|| format!("writing {}", partial.display()))?;
    let mut tar = tar::Builder::new(file);
    add(&mut tar, "oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#, 0o644)?;
    add(&mut tar, "index.json", &index, 0o644)?;
    for blob in [&manifest, &config, &packed] {
        add(&mut tar, &format!("blobs/sha256/{}", hex(blob)), blob, 0o644)?;
    }
    tar.into_inner()?.sync_all()?;
    fs::rename(&partial, to).with_context(|| format!("writing {}", to.display()))?;
    Ok(())
}

fn layer(binaries: &[Binary]) -> Result<Vec<u8>> {
    let mut tar = tar::Builder::new(Vec::new());
    let mut sorted: Vec<_> = binaries.iter().collect();
    sorted.sort_by(|a, b| a.target.cmp(&b.target));
    let mut folders: Vec<PathBuf> = Vec::new();
    for binary in sorted {
        let inside = binary.target.trim_start_matches('/');
        let mut above: Vec<_> = Path::new(inside).ancestors().skip(1).map(Path::to_path_buf).collect();
        above.reverse();
        for folder in above.into_iter().filter(|f| !f.as_os_str().is_empty()) {
            if !folders.contains(&folder) {
                add_folder(&mut tar, &folder)?;
                folders.push(folder);
            }
        }
        let bytes =
            fs::read(&binary.source).with_context(|| format!("reading {}", binary.source.display()))?;
        add(&mut tar, inside, &bytes, 0o555)?;
    }
    Ok(tar.into_inner()?)
}

fn add<W: Write>(tar: &mut tar::Builder<W>, path: &str, bytes: &[u8], mode: u32) -> Result<()> {
    let mut header = header(mode, bytes.len() as u64, tar::EntryType::Regular);
    tar.append_data(&mut header, path, bytes).with_context(|| format!("adding {path} to the image"))
}

fn add_folder<W: Write>(tar: &mut tar::Builder<W>, path: &Path) -> Result<()> {
    let mut header = header(0o755, 0, tar::EntryType::Directory);
    tar.append_data(&mut header, path, &[][..]).with_context(|| format!("adding {}", path.display()))
}

fn header(mode: u32, size: u64, kind: tar::EntryType) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size);
    header.set_mtime(0);
    header.set_uid(0);
    header.set_gid(0);
    header
}

/// The gzip header carries neither a time nor a name, so that equal layers have equal digests.
fn gzip(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut encoder = GzBuilder::new().mtime(0).write(Vec::new(), Compression::new(6));
    encoder.write_all(bytes)?;
    Ok(encoder.finish()?)
}

fn descriptor(media_type: &str, bytes: &[u8]) -> serde_json::Value {
    json!({ "mediaType": media_type, "digest": digest(bytes), "size": bytes.len() })
}

fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", hex(bytes))
}

/// SHA-256 of `bytes` in hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The architecture's name in OCI and Go.
pub(crate) fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::io::Read;

    fn unpack(bytes: &[u8]) -> BTreeMap<String, (Vec<u8>, u32)> {
        let mut found = BTreeMap::new();
        for entry in tar::Archive::new(bytes).entries().unwrap() {
            let mut entry = entry.unwrap();
            let path = entry.path().unwrap().display().to_string();
            let mode = entry.header().mode().unwrap();
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            found.insert(path, (content, mode));
        }
        found
    }

    fn sample(folder: &Path) -> Image {
        fs::create_dir_all(folder).unwrap();
        let source = folder.join("program");
        fs::write(&source, b"not really a program").unwrap();
        Image {
            name: "berth.local/sample:1".into(),
            entrypoint: vec!["/bin/program".into()],
            user: "65532:65532".into(),
            binaries: vec![Binary { source, target: "/bin/program".into() }],
        }
    }

    #[test]
    fn every_descriptor_matches_its_blob() {
        let folder = std::env::temp_dir().join(format!("xtask-image-{}", std::process::id()));
        let image = sample(&folder);
        let (first, second) = (folder.join("a.tar"), folder.join("b.tar"));
        write(&image, &first).unwrap();
        write(&image, &second).unwrap();
        let bytes = fs::read(&first).unwrap();
        assert_eq!(bytes, fs::read(&second).unwrap(), "the same input gives the same bytes");

        let files = unpack(&bytes);
        let blob = |descriptor: &serde_json::Value| {
            let name = descriptor["digest"].as_str().unwrap().replace(':', "/");
            let bytes = files[&format!("blobs/{name}")].0.clone();
            assert_eq!(descriptor["size"], bytes.len());
            assert_eq!(descriptor["digest"], digest(&bytes));
            bytes
        };
        let index: serde_json::Value = serde_json::from_slice(&files["index.json"].0).unwrap();
        let entry = &index["manifests"][0];
        assert_eq!(entry["annotations"]["io.containerd.image.name"], "berth.local/sample:1");
        let manifest: serde_json::Value = serde_json::from_slice(&blob(entry)).unwrap();
        let config: serde_json::Value = serde_json::from_slice(&blob(&manifest["config"])).unwrap();
        assert_eq!(config["config"]["User"], "65532:65532");
        assert_eq!(config["config"]["Entrypoint"][0], "/bin/program");

        let mut layer = Vec::new();
        flate2::read::GzDecoder::new(&blob(&manifest["layers"][0])[..]).read_to_end(&mut layer).unwrap();
        assert_eq!(config["rootfs"]["diff_ids"][0], digest(&layer));
        let inside = unpack(&layer);
        assert_eq!(inside["bin/program"], (b"not really a program".to_vec(), 0o555));
        assert_eq!(inside["bin"].1, 0o755);
        fs::remove_dir_all(&folder).unwrap();
    }
}
