//! The local cluster's certificates and kubeconfig files, made by openssl.
//!
//! One authority signs everything. Keys lie in the state folder, which only root may read, and go with it.
//! The certificates last ten years: a test cluster does not live that long.

use super::layout::{API_PORT, API_SERVICE, HOST_ADDRESS, Node, kubeconfig, state};
use super::shell;
use anyhow::{Context, Result};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// One certificate: the file's name, its subject, what else it must say.
struct Leaf {
    file: String,
    subject: String,
    usage: &'static str,
    names: String,
}

/// Whether everything is there.
pub(crate) fn is_complete() -> bool {
    state("pki/complete").exists()
        && leaves().iter().all(|leaf| path(&leaf.file, "crt").exists() && path(&leaf.file, "key").exists())
        && kubeconfig().exists()
}

/// Makes all keys, certificates and kubeconfig files unless they are complete.
pub(crate) fn ensure() -> Result<()> {
    if is_complete() {
        return Ok(());
    }
    let folder = state("pki");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o700))?;
    authority()?;
    for leaf in leaves() {
        sign(&leaf).with_context(|| format!("making the certificate {}", leaf.file))?;
    }
    let key = path("sa", "key");
    openssl(&["ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", &text(&key)])?;
    openssl(&["ec", "-in", &text(&key), "-pubout", "-out", &text(&path("sa", "pub"))])?;
    for leaf in leaves().iter().filter(|leaf| leaf.usage == "clientAuth") {
        let target = path(&leaf.file, "kubeconfig");
        shell::write_file(&target, &kubeconfig_text(&leaf.file)?)?;
        fs::set_permissions(&target, fs::Permissions::from_mode(0o600))?;
    }
    fs::copy(path("admin", "kubeconfig"), kubeconfig()).context("writing the administrator's kubeconfig")?;
    fs::write(state("pki/complete"), "")?;
    Ok(())
}

/// A file of the authority's folder.
pub(crate) fn path(name: &str, extension: &str) -> PathBuf {
    state("pki").join(format!("{name}.{extension}"))
}

fn leaves() -> Vec<Leaf> {
    let client = |file: &str, subject: &str| Leaf {
        file: file.into(),
        subject: subject.into(),
        usage: "clientAuth",
        names: String::new(),
    };
    let mut leaves = vec![
        Leaf {
            file: "apiserver".into(),
            subject: "/CN=kube-apiserver".into(),
            usage: "serverAuth",
            names: format!(
                "DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,\
                 DNS:kubernetes.default.svc.cluster.local,DNS:localhost,\
                 IP:127.0.0.1,IP:{HOST_ADDRESS},IP:{API_SERVICE}"
            ),
        },
        client("admin", "/O=system:masters/CN=admin"),
        client("apiserver-kubelet", "/O=system:masters/CN=kube-apiserver-kubelet-client"),
        client("controller-manager", "/CN=system:kube-controller-manager"),
        client("scheduler", "/CN=system:kube-scheduler"),
        client("proxy", "/CN=system:kube-proxy"),
    ];
    for node in Node::all() {
        leaves.push(client(&node.name(), &format!("/O=system:nodes/CN=system:node:{}", node.name())));
    }
    leaves
}

fn authority() -> Result<()> {
    let (key, certificate) = (text(&path("ca", "key")), text(&path("ca", "crt")));
    let config = path("ca", "cnf");
    let settings = "[req]\ndistinguished_name=name\nx509_extensions=ca\nprompt=no\n\
                    [name]\nCN=berth-cluster\n\
                    [ca]\nbasicConstraints=critical,CA:TRUE\nkeyUsage=critical,keyCertSign,cRLSign\n\
                    subjectKeyIdentifier=hash\n";
    let config = shell::write_file(&config, settings)?;
    let make = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc"];
    let files = ["-days", "3650", "-config", &config, "-keyout", &key, "-out", &certificate];
    openssl(&[&make[..], &files[..]].concat())
}

fn sign(leaf: &Leaf) -> Result<()> {
    let (key, request) = (text(&path(&leaf.file, "key")), text(&path(&leaf.file, "csr")));
    let make = ["req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc"];
    openssl(&[&make[..], &["-subj", &leaf.subject, "-keyout", &key, "-out", &request]].concat())?;
    let mut extensions = format!(
        "basicConstraints=critical,CA:FALSE\nkeyUsage=critical,digitalSignature\nextendedKeyUsage={}\n",
        leaf.usage
    );
    if !leaf.names.is_empty() {
        extensions += &format!("subjectAltName={}\n", leaf.names);
    }
    let extensions = shell::write_file(&path(&leaf.file, "ext"), &extensions)?;
    let (ca, ca_key) = (text(&path("ca", "crt")), text(&path("ca", "key")));
    let certificate = text(&path(&leaf.file, "crt"));
    let by = ["x509", "-req", "-in", &request, "-CA", &ca, "-CAkey", &ca_key, "-CAcreateserial"];
    openssl(&[&by[..], &["-days", "3650", "-extfile", &extensions, "-out", &certificate]].concat())
}

/// Holds its certificates itself, so that the file can be copied.
fn kubeconfig_text(name: &str) -> Result<String> {
    let encoded = |path: PathBuf| -> Result<String> {
        Ok(base64(&fs::read(&path).with_context(|| format!("reading {}", path.display()))?))
    };
    Ok(format!(
        "apiVersion: v1
kind: Config
current-context: berth
clusters:
- name: berth
  cluster:
    server: https://{HOST_ADDRESS}:{API_PORT}
    certificate-authority-data: {}
users:
- name: {name}
  user:
    client-certificate-data: {}
    client-key-data: {}
contexts:
- name: berth
  context: {{ cluster: berth, user: {name} }}
",
        encoded(path("ca", "crt"))?,
        encoded(path(name, "crt"))?,
        encoded(path(name, "key"))?,
    ))
}

fn openssl(args: &[&str]) -> Result<()> {
    shell::run("openssl", args).map(drop)
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

/// RFC 4648, section 4.
fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let group =
            chunk.iter().fold(0_u32, |group, byte| group << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for place in 0..4 {
            let digit = ALPHABET[(group >> (18 - 6 * place) & 63) as usize];
            text.push(if place > chunk.len() { '=' } else { char::from(digit) });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::base64;

    /// The vectors of RFC 4648, section 10.
    #[test]
    fn base64_of_the_standard() {
        let vectors = ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy"];
        for (length, wanted) in vectors.iter().enumerate() {
            assert_eq!(base64(&b"foobar"[..length]), *wanted);
        }
    }
}
