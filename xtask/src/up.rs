//! `cargo xtask up`: from a clone to a message that was sent and acknowledged in a cluster; `down` undoes it.

use crate::cluster::{self, Session};
use crate::hello;
use crate::image;
use crate::product;
use anyhow::{Context, Result, bail};
use std::env;
use std::path::Path;
use std::time::{Duration, Instant};

const RELEASE: &str = "berth";
const NAMESPACE: &str = "berth-system";
const SAMPLE: &str = "docs/examples/orders.yaml";
const SAMPLE_NAME: &str = "orders";
const STOMP_PORT: u16 = 61613;
const READY_IN: Duration = Duration::from_secs(180);

/// Cluster, image, chart, a sample connector, a message through it, and what to do next.
pub(crate) fn up() -> Result<()> {
    let begun = Instant::now();
    step(1, "a cluster");
    let session = cluster::ready()?;
    deploy(&session)?;
    let (kubectl, helm) = (session.kubectl_path().display(), session.helm_path().display());
    println!("\nBerth is up after {} s. What to do next:\n", begun.elapsed().as_secs());
    println!("  export KUBECONFIG={}", session.kubeconfig().display());
    println!("  {kubectl} get stompconnectors");
    println!("  {kubectl} describe stompconnector {SAMPLE_NAME}");
    println!("  {kubectl} port-forward service/{SAMPLE_NAME} {STOMP_PORT}");
    println!("      then connect any STOMP client to localhost:{STOMP_PORT} and use /queue/jobs");
    println!("  {helm} --namespace {NAMESPACE} list");
    println!("  cargo xtask down");
    Ok(())
}

/// Everything after the cluster: image, operator, sample connector, and a message through it.
pub(crate) fn deploy(session: &Session) -> Result<()> {
    step(2, "the image");
    let image = product_image(session)?;
    step(3, "the operator");
    install(session, &image)?;
    step(4, "a connector");
    session.kubectl(&["apply", "--namespace=default", "--server-side", "-f", &repository_file(SAMPLE)])?;
    await_ready(session)?;
    step(5, "a message");
    let forwarded = session.forward(&format!("service/{SAMPLE_NAME}"), STOMP_PORT)?;
    let body = hello::send_and_acknowledge(forwarded.port())?;
    println!("   sent, received and acknowledged: {body:?}");
    Ok(())
}

/// Runs the chart's own test, then takes the sample and its volume away again.
pub(crate) fn prove_and_clear(session: &Session) -> Result<()> {
    session.helm(&["test", RELEASE, "--namespace", NAMESPACE, "--timeout", "120s"])?;
    let sample = format!("stompconnector/{SAMPLE_NAME}");
    session.kubectl(&["delete", "--namespace=default", "--wait", &sample])?;
    let label = format!("app.kubernetes.io/instance={SAMPLE_NAME}");
    session.kubectl(&[
        "wait",
        "--namespace=default",
        "--for=delete",
        "pod",
        "-l",
        &label,
        "--timeout=60s",
    ])?;
    session.kubectl(&["delete", "--namespace=default", "--wait", "pvc", "-l", &label])?;
    Ok(())
}

/// Takes our own cluster down with everything in it; from somebody else's, removes what `up` installed.
pub(crate) fn down() -> Result<()> {
    if cluster::down_if_ours()? {
        return Ok(());
    }
    let session = cluster::ready()?;
    session.kubectl(&[
        "delete",
        "--namespace=default",
        "--ignore-not-found",
        "-f",
        &repository_file(SAMPLE),
    ])?;
    session.helm(&["uninstall", RELEASE, "--namespace", NAMESPACE, "--ignore-not-found", "--wait"])?;
    println!("removed the sample and the operator; the CRDs and the volume of {SAMPLE_NAME} are kept");
    Ok(())
}

/// The image's name in the cluster; built and loaded unless somebody else's cluster pulls it.
fn product_image(session: &Session) -> Result<String> {
    if let Some(image) = env::var("BERTH_E2E_IMAGE").ok().filter(|name| !name.is_empty()) {
        return Ok(image);
    }
    let file = product::build()?;
    session.load(&file)?;
    Ok(product::IMAGE.to_owned())
}

fn install(session: &Session, image: &str) -> Result<()> {
    let Some((repository, tag)) = image.rsplit_once(':') else {
        bail!("the image {image} has no tag");
    };
    session.helm(&[
        "upgrade",
        "--install",
        RELEASE,
        &repository_file("charts/berth"),
        "--namespace",
        NAMESPACE,
        "--create-namespace",
        "--set",
        &format!("image.repository={repository}"),
        "--set",
        &format!("image.tag={tag}"),
        "--wait",
        "--timeout",
        "180s",
    ])?;
    // A new image under the same name: the pods of an earlier one are replaced.
    session.kubectl(&["-n", NAMESPACE, "rollout", "restart", "deployment"])?;
    session.kubectl(&["-n", NAMESPACE, "rollout", "status", "deployment", "--timeout=180s"])?;
    Ok(())
}

fn await_ready(session: &Session) -> Result<()> {
    let timeout = format!("--timeout={}s", READY_IN.as_secs());
    let connector = format!("stompconnector/{SAMPLE_NAME}");
    let wait = ["wait", "--namespace=default", "--for=condition=Ready", &timeout, &connector];
    session.kubectl(&wait).map(drop).with_context(|| {
        let told = session.kubectl(&["describe", "--namespace=default", &connector]).unwrap_or_default();
        format!("{SAMPLE_NAME} is not ready:\n{told}")
    })
}

fn repository_file(path: &str) -> String {
    image::repository().join(Path::new(path)).display().to_string()
}

fn step(number: u32, what: &str) {
    println!("== {number}/5 {what}");
}
