//! The local cluster's network: a bridge on the machine, and a network namespace with one cable for each
//! node.
//!
//! Only the node namespaces forward packets; the machine's own rules and forwarding stay as they are.
//! Nothing sent to an address of the cluster leaves the machine: before anything else comes up, routes of a
//! high metric make the three networks unreachable, so that a missing route never falls through to the
//! default route. A node has no default route at all.

use super::layout::{HOST_ADDRESS, NODE_NETWORK, NODES, Node, POD_NETWORK, SERVICE_NETWORK, run};
use super::shell;
use anyhow::{Context, Result, bail, ensure};
use std::fs;
use std::os::unix::fs::MetadataExt;

const BRIDGE: &str = "berth0";
const NETWORKS: [&str; 3] = [NODE_NETWORK, POD_NETWORK, SERVICE_NETWORK];
/// Higher than any metric that a route of ours or of a network manager has.
const FENCE_METRIC: &str = "100000";

/// Makes whatever is missing; harmless when all is there. Heals nodes that were cut off.
pub(crate) fn up() -> Result<()> {
    for network in NETWORKS {
        ip(&["route", "replace", "unreachable", network, "metric", FENCE_METRIC])?;
    }
    if !has_link(BRIDGE) {
        ip(&["link", "add", BRIDGE, "type", "bridge"])?;
    }
    ip(&["address", "replace", &format!("{HOST_ADDRESS}/24"), "dev", BRIDGE])?;
    ip(&["link", "set", BRIDGE, "up"])?;
    for node in Node::all() {
        connect(node).with_context(|| format!("connecting node {}", node.name()))?;
    }
    route_services(NODES[0])
}

fn connect(node: Node) -> Result<()> {
    let netns = node.netns();
    let path = netns.display().to_string();
    if !is_namespace(node) {
        fs::create_dir_all(run("netns"))?;
        fs::write(&netns, "")?;
        shell::run("unshare", &[&format!("--net={path}"), "true"])?;
        // Its other end is in a namespace that nobody can find any more.
        remove_link(&node.cable())?;
    }
    if !has_link(&node.cable()) {
        ip(&["link", "add", &node.cable(), "type", "veth", "peer", "name", "eth0", "netns", &path])?;
    }
    ip(&["link", "set", &node.cable(), "master", BRIDGE, "up"])?;
    inside(node, &["link", "set", "lo", "up"])?;
    inside(node, &["address", "replace", &format!("{}/24", node.address()), "dev", "eth0"])?;
    inside(node, &["link", "set", "eth0", "up"])?;
    shell::run("nsenter", &[&format!("--net={path}"), "sysctl", "-qw", "net.ipv4.ip_forward=1"])?;
    for other in Node::all().filter(|other| other.0 != node.0) {
        inside(node, &["route", "replace", &other.pods(), "via", &other.address()])?;
    }
    ip(&["route", "replace", &node.pods(), "via", &node.address()])
}

/// Takes the node's cable out: it keeps running, alone.
pub(crate) fn cut(node: Node) -> Result<()> {
    ip(&["link", "set", &node.cable(), "down"])?;
    let other = NODES.into_iter().find(|number| *number != node.0).unwrap_or(node.0);
    route_services(other)
}

/// Puts the cable back in.
pub(crate) fn heal(node: Node) -> Result<()> {
    ip(&["link", "set", &node.cable(), "up"])?;
    route_services(NODES[0])
}

/// Service addresses are reached from the machine through one node.
fn route_services(number: u8) -> Result<()> {
    ip(&["route", "replace", SERVICE_NETWORK, "via", &Node(number).address()])
}

/// Whether the node's processes run in the namespace that is there now.
pub(crate) fn is_in(node: Node, pid: u32) -> bool {
    let of = |path: String| fs::metadata(path).map(|found| (found.dev(), found.ino()));
    let here = of(node.netns().display().to_string());
    matches!((here, of(format!("/proc/{pid}/ns/net"))), (Ok(a), Ok(b)) if a == b)
}

/// Removes cables and bridge. Namespaces go with their mounts; the fence stays until `unfence`.
pub(crate) fn down() -> Result<()> {
    for link in Node::all().map(Node::cable).chain([BRIDGE.to_owned()]) {
        remove_link(&link)?;
    }
    Ok(())
}

fn remove_link(name: &str) -> Result<()> {
    if has_link(name) { ip(&["link", "delete", name]) } else { Ok(()) }
}

/// Removes the unreachable routes: the very last act of going down.
pub(crate) fn unfence() -> Result<()> {
    let routes = ip_output(&["-4", "route", "show", "type", "unreachable"])?;
    for network in NETWORKS.iter().filter(|network| routes.contains(&format!("unreachable {network} "))) {
        ip(&["route", "delete", "unreachable", network, "metric", FENCE_METRIC])?;
    }
    Ok(())
}

/// A machine that already uses one of our networks keeps it; we do not start.
pub(crate) fn refuse_overlap() -> Result<()> {
    for line in ip_output(&["-4", "route", "show"])?.lines() {
        let words: Vec<_> = line.split_whitespace().collect();
        let ours = line.contains(BRIDGE) || words.contains(&FENCE_METRIC);
        let Some(used) = words.first().filter(|word| **word != "default" && !ours) else { continue };
        for network in NETWORKS {
            let clash = overlap(used, network);
            ensure!(!clash, "the machine already has a route to {used}, which the cluster needs ({network})");
        }
    }
    Ok(())
}

fn overlap(a: &str, b: &str) -> bool {
    let (Some((a, a_bits)), Some((b, b_bits))) = (parse(a), parse(b)) else { return false };
    let bits = a_bits.min(b_bits);
    let mask = u32::MAX.checked_shl(32 - bits).unwrap_or(0);
    a & mask == b & mask
}

fn parse(network: &str) -> Option<(u32, u32)> {
    let (address, bits) = network.split_once('/').unwrap_or((network, "32"));
    let address: std::net::Ipv4Addr = address.parse().ok()?;
    Some((address.into(), bits.parse().ok().filter(|bits| *bits <= 32)?))
}

/// A namespace file that nothing is mounted on is an ordinary, empty file.
fn is_namespace(node: Node) -> bool {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let path = node.netns().display().to_string();
    mounts.lines().any(|line| line.split(' ').nth(4) == Some(&path))
}

fn has_link(name: &str) -> bool {
    fs::exists(format!("/sys/class/net/{name}")).unwrap_or(false)
}

fn ip(args: &[&str]) -> Result<()> {
    ip_output(args).map(drop)
}

fn ip_output(args: &[&str]) -> Result<String> {
    let Some(program) = shell::find("ip") else { bail!("ip is not installed (package iproute2)") };
    shell::run(program, args)
}

fn inside(node: Node, args: &[&str]) -> Result<()> {
    let netns = format!("--net={}", node.netns().display());
    let mut all = vec![netns.as_str(), "ip"];
    all.extend_from_slice(args);
    shell::run("nsenter", &all).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_overlap_when_one_holds_the_other() {
        assert!(overlap("10.0.0.0/8", NODE_NETWORK));
        assert!(overlap("10.244.3.7", POD_NETWORK));
        assert!(overlap("0.0.0.0/0", SERVICE_NETWORK));
        assert!(!overlap("192.0.2.0/24", NODE_NETWORK));
        assert!(!overlap("10.97.0.0/16", SERVICE_NETWORK));
        assert!(!overlap("unreachable", POD_NETWORK));
    }
}
