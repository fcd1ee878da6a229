//! The cluster's DNS: CoreDNS as a process of the control plane, behind the Service `kube-dns`.

use super::layout::{DNS_SERVICE, HOST_ADDRESS, kubeconfig, state};
use super::process::{Part, Processes};
use super::tools::Tools;
use super::{control_plane, shell};
use anyhow::{Context, Result, ensure};
use std::net::{Ipv4Addr, UdpSocket};
use std::time::Duration;

/// The part's name.
pub(crate) const PART: &str = "dns";

/// Starts CoreDNS unless it runs.
pub(crate) fn ensure(processes: &Processes, tools: &Tools) -> Result<bool> {
    // A pod that was replaced gets its name back within seconds: hence the short time to live. Names
    // outside the cluster are refused at once instead of being asked for elsewhere.
    let config = format!(
        "cluster.local:53 {{
    bind {HOST_ADDRESS}
    kubernetes cluster.local 10.in-addr.arpa {{
        kubeconfig {} berth
        pods insecure
        ttl 1
    }}
    errors
}}
.:53 {{
    bind {HOST_ADDRESS}
    template ANY ANY {{
        rcode NXDOMAIN
    }}
}}
",
        kubeconfig().display(),
    );
    let path = shell::write_file(&state("Corefile"), &config)?;
    let args = ["-conf".to_owned(), path];
    let mut part = control_plane::frugal(Part::new(PART, &tools.program("coredns"), &args));
    part.reads.push(config);
    processes.ensure(&part)
}

/// The Service that pods ask. It has no selector: its only endpoint is the machine.
pub(crate) fn manifest() -> String {
    format!(
        "apiVersion: v1
kind: Service
metadata: {{ name: kube-dns, namespace: kube-system, labels: {{ k8s-app: kube-dns }} }}
spec:
  clusterIP: {DNS_SERVICE}
  ports:
  - {{ name: dns, port: 53, protocol: UDP }}
  - {{ name: dns-tcp, port: 53, protocol: TCP }}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: kube-dns-machine
  namespace: kube-system
  labels: {{ kubernetes.io/service-name: kube-dns }}
addressType: IPv4
ports:
- {{ name: dns, port: 53, protocol: UDP }}
- {{ name: dns-tcp, port: 53, protocol: TCP }}
endpoints:
- addresses: [{HOST_ADDRESS}]
  conditions: {{ ready: true }}
"
    )
}

/// Asks the Service for a name's address. Through the ClusterIP: an answer proves DNS, kube-proxy and the
/// routes.
pub(crate) fn resolve(name: &str) -> Result<Ipv4Addr> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.set_read_timeout(Some(Duration::from_secs(1)))?;
    socket.send_to(&query(name), (DNS_SERVICE, 53)).context("asking the cluster's DNS")?;
    let mut answer = [0_u8; 512];
    let size = socket.recv(&mut answer).context("the cluster's DNS does not answer")?;
    let answer = answer.get(..size).unwrap_or_default();
    // RFC 1035, 4.1.1: the low four bits of byte 3 are the response code, bytes 6 and 7 count the answers.
    ensure!(size > 16 && answer[3] & 15 == 0 && answer[7] > 0, "the cluster's DNS does not know {name}");
    // One A record: its address is the last thing in the message unless there are additional records.
    let tail: [u8; 4] = answer[size - 4..].try_into()?;
    Ok(tail.into())
}

/// RFC 1035, 4.1: a header that asks for recursion, and one question for an A record.
fn query(name: &str) -> Vec<u8> {
    let mut message = vec![0xbe, 0x47, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.').filter(|label| !label.is_empty()) {
        message.push(u8::try_from(label.len()).unwrap_or(63));
        message.extend_from_slice(label.as_bytes());
    }
    message.extend_from_slice(&[0, 0, 1, 0, 1]);
    message
}

#[cfg(test)]
mod tests {
    use super::query;

    #[test]
    fn a_question_is_labels_with_their_lengths() {
        assert_eq!(&query("a.bc.")[12..], [1, b'a', 2, b'b', b'c', 0, 0, 1, 0, 1]);
    }
}
