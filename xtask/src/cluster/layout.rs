//! Where the local cluster keeps things on the machine, and its fixed addresses. One machine has one local
//! cluster, whichever clone started it: its addresses are fixed, so its folders are too, and `down` works
//! from any clone.

use std::path::PathBuf;

/// Everything that lives as long as the cluster: certificates, logs, pid files, nodes, volumes.
pub(crate) const STATE: &str = "/var/lib/berth-cluster";
/// Sockets, network namespaces and containerd's run state: gone after a reboot, like the processes.
pub(crate) const RUN: &str = "/run/berth-cluster";
/// etcd's data: in memory, since a test cluster is not worth an fsync.
pub(crate) const MEMORY: &str = "/dev/shm/berth-cluster";

/// The machine's address on the cluster's bridge: API server and DNS listen here.
pub(crate) const HOST_ADDRESS: &str = "10.99.0.1";
pub(crate) const NODE_NETWORK: &str = "10.99.0.0/24";
pub(crate) const POD_NETWORK: &str = "10.244.0.0/16";
pub(crate) const SERVICE_NETWORK: &str = "10.96.0.0/16";
/// ClusterIP of `kubernetes.default`, always the first of the Service network.
pub(crate) const API_SERVICE: &str = "10.96.0.1";
pub(crate) const DNS_SERVICE: &str = "10.96.0.10";
pub(crate) const API_PORT: u16 = 6443;

/// The nodes' numbers; node 2 is the "second node" that tests cut off.
pub(crate) const NODES: [u8; 2] = [1, 2];

/// One node of the local cluster, by number.
#[derive(Clone, Copy)]
pub(crate) struct Node(pub(crate) u8);

impl Node {
    /// All nodes, in order.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        NODES.into_iter().map(Self)
    }

    /// The node's name in Kubernetes.
    pub(crate) fn name(self) -> String {
        format!("n{}", self.0)
    }

    /// Its address on the bridge.
    pub(crate) fn address(self) -> String {
        format!("10.99.0.1{}", self.0)
    }

    /// The network of its pods.
    pub(crate) fn pods(self) -> String {
        format!("10.244.{}.0/24", self.0)
    }

    /// The end of its cable on the machine's side.
    pub(crate) fn cable(self) -> String {
        format!("berth-n{}", self.0)
    }

    /// The root of its pods in every cgroup hierarchy.
    pub(crate) fn cgroup(self) -> String {
        format!("berth-n{}", self.0)
    }

    /// The file that holds its network namespace open.
    pub(crate) fn netns(self) -> PathBuf {
        run("netns").join(self.name())
    }

    /// A path below the node's folder.
    pub(crate) fn path(self, below: &str) -> PathBuf {
        state("nodes").join(self.name()).join(below)
    }

    /// containerd's socket.
    pub(crate) fn socket(self) -> PathBuf {
        run(&self.name()).join("containerd.sock")
    }
}

/// A path below the state folder.
pub(crate) fn state(below: &str) -> PathBuf {
    PathBuf::from(STATE).join(below)
}

/// A path below the run folder.
pub(crate) fn run(below: &str) -> PathBuf {
    PathBuf::from(RUN).join(below)
}

/// The administrator's kubeconfig, for tests and people.
pub(crate) fn kubeconfig() -> PathBuf {
    state("kubeconfig")
}
