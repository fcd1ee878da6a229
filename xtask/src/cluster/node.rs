//! A node of the local cluster: containerd, kubelet and kube-proxy in the node's network namespace.
//!
//! They share the machine's mount namespace with everything else, so containers see cgroups and volumes as
//! usual. All their files lie in folders of the node. The settings are for a machine that may not raise
//! limits: no oom_score_adj below ours, no AppArmor, cgroupfs instead of systemd, cgroup version 1 allowed.

use super::layout::{DNS_SERVICE, HOST_ADDRESS, Node, POD_NETWORK, run, state};
use super::process::{Part, Processes};
use super::tools::Tools;
use super::{cgroup, control_plane, mounts, network, pki, shell};
use anyhow::{Context, Result, bail};
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The image of every pod's first process; `images.rs` makes it.
pub(crate) const PAUSE_IMAGE: &str = "k8s.local/pause:1";

/// The parts of a node, in the order in which they start.
const PARTS: [&str; 3] = ["containerd", "kubelet", "proxy"];

/// Starts what does not run. A node whose processes live in a namespace that is gone starts from nothing.
pub(crate) fn ensure(
    processes: &Processes,
    tools: &Tools,
    node: Node,
    images: &[(&str, &Path)],
) -> Result<bool> {
    let lost = PARTS
        .iter()
        .filter_map(|part| processes.running(&part_name(node, part)))
        .any(|process| !network::is_in(node, process.pid));
    if lost {
        println!("node {} lost its network: starting it from nothing", node.name());
        wipe(processes, node)?;
    }
    cgroup::make_node(node)?;
    // One whose socket was removed runs on and cannot be reached.
    if !node.socket().exists() {
        processes.stop(&part_name(node, "containerd"), Duration::from_secs(2))?;
    }
    let containerd = processes.ensure(&containerd(node)?)?;
    wait_for_socket(node)?;
    for (name, image) in images {
        load_once(node, name, image)?;
    }
    let kubelet = processes.ensure(&kubelet(tools, node)?)?;
    let proxy = processes.ensure(&proxy(tools, node)?)?;
    Ok(lost | containerd | kubelet | proxy)
}

/// Whether kubelet and kube-proxy say that they are well. A node stays Ready for a while without them.
pub(crate) fn is_healthy(node: Node) -> bool {
    [10248, 10256].into_iter().all(|port| is_well(&node.address(), port).unwrap_or(false))
}

fn is_well(address: &str, port: u16) -> Result<bool> {
    let target = SocketAddr::new(address.parse()?, port);
    let patience = Duration::from_secs(2);
    let mut stream = TcpStream::connect_timeout(&target, patience)?;
    stream.set_read_timeout(Some(patience))?;
    stream.write_all(b"GET /healthz HTTP/1.0\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer.split(' ').nth(1) == Some("200"))
}

/// Loads an image into the node. The same name is replaced.
pub(crate) fn load(node: Node, image: &Path) -> Result<()> {
    let (socket, image) = (node.socket().display().to_string(), image.display().to_string());
    let args = ["--address", &socket, "--namespace", "k8s.io", "images", "import", &image];
    shell::run("ctr", &args).map(drop).with_context(|| format!("loading {image} into node {}", node.name()))
}

/// Loads an image whose file name stands for its content, unless that was done before and it is still there.
fn load_once(node: Node, name: &str, image: &Path) -> Result<()> {
    let marks = node.path("images");
    let mark = marks.join(crate::image::hex(image.display().to_string().as_bytes()));
    if !mark.exists() || !has_image(node, name) {
        load(node, image)?;
        fs::create_dir_all(&marks)?;
        fs::write(mark, "")?;
    }
    Ok(())
}

fn has_image(node: Node, name: &str) -> bool {
    let (socket, only) = (node.socket().display().to_string(), format!("name=={name}"));
    let args = ["--address", &socket, "--namespace", "k8s.io", "images", "list", "--quiet", &only];
    shell::run("ctr", &args).is_ok_and(|listed| listed.trim() == name)
}

/// Ends everything on the node and removes what it kept. Harmless when there is nothing.
pub(crate) fn wipe(processes: &Processes, node: Node) -> Result<()> {
    for part in ["kubelet", "proxy"] {
        processes.stop(&part_name(node, part), Duration::from_secs(2))?;
    }
    // Containers and shims before containerd, so that it cannot start one more.
    cgroup::kill(&cgroup::of_node(node))?;
    processes.stop(&part_name(node, "containerd"), Duration::from_secs(2))?;
    for part in PARTS {
        cgroup::kill(&cgroup::of_part(&part_name(node, part)))?;
    }
    cgroup::kill(&cgroup::of_node(node))?;
    for folder in [node.path(""), run(&node.name())] {
        mounts::unmount_below(&folder)?;
        if folder.exists() {
            fs::remove_dir_all(&folder).with_context(|| format!("removing {}", folder.display()))?;
        }
    }
    cgroup::remove(&cgroup::of_node(node))
}

fn part_name(node: Node, part: &str) -> String {
    format!("{}-{part}", node.name())
}

fn wait_for_socket(node: Node) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(30);
    while UnixStream::connect(node.socket()).is_err() {
        if Instant::now() > deadline {
            bail!("containerd of node {} does not answer", node.name());
        }
        sleep(Duration::from_millis(50));
    }
    Ok(())
}

fn containerd(node: Node) -> Result<Part> {
    let own = |below: &str| node.path(below).display().to_string();
    let run_folder = run(&node.name()).display().to_string();
    let bridge = format!(
        r#"{{ "cniVersion": "0.4.0", "name": "berth", "plugins": [
  {{ "type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": false, "hairpinMode": true,
    "ipam": {{ "type": "host-local", "dataDir": "{}", "ranges": [[{{ "subnet": "{}" }}]],
              "routes": [{{ "dst": "0.0.0.0/0" }}] }} }},
  {{ "type": "portmap", "capabilities": {{ "portMappings": true }} }} ] }}
"#,
        own("cni/addresses"),
        node.pods(),
    );
    shell::write_file(&node.path("cni/conf/10-berth.conflist"), &bridge)?;
    let plugin = r#"plugins."io.containerd.grpc.v1.cri""#;
    let config = format!(
        r#"version = 2
root = "{root}"
state = "{run_folder}/containerd"
oom_score = 0
disabled_plugins = [
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs",
  "io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing",
]
[grpc]
  address = "{socket}"
[plugins."io.containerd.internal.v1.opt"]
  path = "{opt}"
[{plugin}]
  sandbox_image = "{PAUSE_IMAGE}"
  restrict_oom_score_adj = true
  disable_apparmor = true
  netns_mounts_under_state_dir = true
[{plugin}.cni]
  bin_dir = "/usr/lib/cni"
  conf_dir = "{cni}"
[{plugin}.containerd]
  snapshotter = "overlayfs"
  default_runtime_name = "runc"
[{plugin}.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[{plugin}.containerd.runtimes.runc.options]
  SystemdCgroup = false
  Root = "{run_folder}/runc"
"#,
        root = own("containerd"),
        socket = node.socket().display(),
        opt = own("opt"),
        cni = own("cni/conf"),
    );
    let path = shell::write_file(&node.path("containerd.toml"), &config)?;
    let program = shell::find("containerd").context("containerd is not installed")?;
    fs::create_dir_all(run(&node.name()))?;
    let mut part =
        in_node(node, Part::new(&part_name(node, "containerd"), &program, &["--config".into(), path]));
    part.reads = vec![config, bridge];
    Ok(part)
}

fn kubelet(tools: &Tools, node: Node) -> Result<Part> {
    let own = |below: &str| node.path(below).display().to_string();
    // The machine's resolver is none of the pods' business: outside names must not leak out of the cluster.
    let resolver = shell::write_file(&node.path("resolv.conf"), &format!("nameserver {HOST_ADDRESS}\n"))?;
    let config = format!(
        r#"apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: {address}
healthzBindAddress: {address}
authentication:
  anonymous: {{ enabled: false }}
  webhook: {{ enabled: true }}
  x509: {{ clientCAFile: {ca} }}
authorization: {{ mode: Webhook }}
cgroupDriver: cgroupfs
cgroupRoot: /{cgroup}
failCgroupV1: false
failSwapOn: false
oomScoreAdj: 0
containerRuntimeEndpoint: unix://{socket}
clusterDomain: cluster.local
clusterDNS: [{DNS_SERVICE}]
resolvConf: {resolver}
podLogsDir: {logs}
volumePluginDir: {plugins}
# Nothing can be pulled again here, so that nothing may be collected, however full the machine's disk is.
imageGCHighThresholdPercent: 100
evictionHard: {{ nodefs.available: 1Gi, imagefs.available: 1Gi }}
nodeStatusUpdateFrequency: 4s
nodeLeaseDurationSeconds: 8
maxPods: 60
shutdownGracePeriod: 0s
"#,
        address = node.address(),
        ca = pki::path("ca", "crt").display(),
        cgroup = node.cgroup(),
        socket = node.socket().display(),
        logs = own("pod-logs"),
        plugins = own("volume-plugins"),
    );
    let path = shell::write_file(&node.path("kubelet.yaml"), &config)?;
    let args = [
        format!("--config={path}"),
        format!("--kubeconfig={}", pki::path(&node.name(), "kubeconfig").display()),
        format!("--root-dir={}", own("kubelet")),
        format!("--cert-dir={}", own("kubelet-pki")),
        format!("--hostname-override={}", node.name()),
        format!("--node-ip={}", node.address()),
    ];
    let mut part = in_node(node, Part::new(&part_name(node, "kubelet"), &tools.program("kubelet"), &args));
    part.reads = vec![config];
    Ok(control_plane::frugal(part))
}

fn proxy(tools: &Tools, node: Node) -> Result<Part> {
    let config = format!(
        r#"apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
clusterCIDR: {POD_NETWORK}
hostnameOverride: {name}
bindAddress: {address}
healthzBindAddress: {address}:10256
metricsBindAddress: 127.0.0.1:10249
oomScoreAdj: 0
clientConnection: {{ kubeconfig: {kubeconfig} }}
conntrack: {{ maxPerCore: 0, min: 0, tcpCloseWaitTimeout: 0s, tcpEstablishedTimeout: 0s }}
"#,
        name = node.name(),
        address = node.address(),
        kubeconfig = pki::path("proxy", "kubeconfig").display(),
    );
    let path = shell::write_file(&node.path("proxy.yaml"), &config)?;
    let program = tools.program("kube-proxy");
    let mut part =
        in_node(node, Part::new(&part_name(node, "proxy"), &program, &[format!("--config={path}")]));
    part.reads = vec![config];
    Ok(control_plane::frugal(part))
}

fn in_node(node: Node, mut part: Part) -> Part {
    part.netns = Some(node.netns());
    part
}

/// The node of this name.
pub(crate) fn by_name(name: &str) -> Result<Node> {
    let known: Vec<_> = Node::all().map(Node::name).collect();
    let found = Node::all().find(|node| node.name() == name);
    found.with_context(|| format!("no node is called {name}; there are {}", known.join(" and ")))
}

/// The folder in which the volumes of all nodes lie: any node can serve any volume, so drains can move pods.
pub(crate) fn volumes() -> PathBuf {
    state("volumes")
}
