//! The self-test of `cargo xtask cluster`: what the tests of the product take for granted, proven with a
//! tiny program of our own. It runs on the local cluster and on kind alike, and is skipped on any other.

use anyhow::{Context, Result, bail, ensure};
use berth_e2e::cluster::CutNode;
use berth_e2e::forward::PortForward;
use berth_e2e::kubectl::{Namespace, condition_status, text};
use berth_e2e::suite::{Group, Test, skip};
use serde_json::{Value, json};
use std::time::Duration;

pub(crate) const TESTS: &[Test] = &[
    Test { name: "cluster::pods_have_names_and_nothing_to_write_on", group: Group::Together, run: names },
    Test {
        name: "cluster::services_are_reached_and_hold_on_to_clients",
        group: Group::Together,
        run: services,
    },
    Test {
        name: "cluster::a_deleted_pod_comes_back_with_its_data",
        group: Group::Together,
        run: deleted_pod,
    },
    Test { name: "cluster::volumes_grow_and_go", group: Group::Together, run: volumes },
    Test { name: "cluster::a_budget_blocks_evictions", group: Group::Together, run: evictions },
    Test { name: "cluster::a_drained_node_gives_its_pod_away", group: Group::Alone, run: drain },
    Test { name: "cluster::a_node_is_cut_off_and_healed", group: Group::Alone, run: cut_and_heal },
];

const SOON: Duration = Duration::from_secs(60);
/// For what waits on a node's heartbeat: kind marks a silent node after 40 to 50 s.
const LATER: Duration = Duration::from_secs(150);

fn names(space: &Namespace) -> Result<()> {
    let Some(web) = Web::start(space, Spread::Preferred)? else { return not_ours() };
    let pods = [web.ready("web-0")?, web.ready("web-1")?];
    for pod in &pods {
        let (name, address) = (text(pod, "/metadata/name"), text(pod, "/status/podIP"));
        let full = format!("{name}.web.{}.svc.cluster.local", space.name);
        // The name may take a moment longer than readiness: the DNS learns of the endpoint on its own.
        space.wait("the pod's name", SOON, |space| {
            let found = space.exec("web-0", &["/testpod", "resolve", &full])?;
            Ok((found.trim() == address).then_some(()))
        })?;
        ensure!(space.logs(&name)?.contains(&format!("serving as {name} start 1 root read-only")));
    }
    let short = space.exec("web-1", &["/testpod", "get", "web-0.web:8080", "/"])?;
    ensure!(short == "web-0 1 read-only\n", "web-0 said {short:?} by its short name");
    let outside = space.exec("web-0", &["/testpod", "resolve", "no-such-name.example"]);
    ensure!(outside.is_err(), "a name outside the cluster was resolved");

    let forward = PortForward::start(space, "pod/web-0", 8080)?;
    let answer = forward.get("/")?;
    ensure!(answer.ends_with("web-0 1 read-only\n"), "web-0 said {answer:?} through the forwarded port");
    Ok(())
}

fn services(space: &Namespace) -> Result<()> {
    let Some(web) = Web::start(space, Spread::Required)? else { return not_ours() };
    web.ready("web-0")?;
    web.ready("web-1")?;
    for (name, affinity, kind) in
        [("any", "None", "ClusterIP"), ("sticky", "ClientIP", "ClusterIP"), ("port", "None", "NodePort")]
    {
        let service = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": { "name": name },
            "spec": { "type": kind, "selector": { "app": "web" }, "sessionAffinity": affinity,
                      "ports": [{ "port": 80, "targetPort": 8080 }] },
        });
        space.apply(&service.to_string())?;
    }
    let ask = |address: &str| space.exec("web-0", &["/testpod", "get", address, "/"]);
    // Without affinity both pods answer sooner or later; only then does "always the same one" mean something.
    let mut seen = Vec::new();
    space.wait("both pods behind the Service", SOON, |_| {
        seen.push(ask("any:80")?);
        Ok((seen.iter().any(|pod| pod.starts_with("web-0"))
            && seen.iter().any(|pod| pod.starts_with("web-1")))
        .then_some(()))
    })?;
    let first = space.wait("the sticky Service", SOON, |_| ask("sticky:80").map(Some))?;
    for _ in 0..12 {
        let again = ask("sticky:80")?;
        ensure!(again == first, "the Service with ClientIP affinity went from {first:?} to {again:?}");
    }
    let port = space.get("service", "port")?["spec"]["ports"][0]["nodePort"].to_string();
    let nodes = space.kubectl.json(&["get", "nodes"])?;
    for node in nodes["items"].as_array().into_iter().flatten() {
        let addresses = node["status"]["addresses"].as_array();
        let internal = addresses.into_iter().flatten().find(|address| address["type"] == "InternalIP");
        let address = internal.map(|found| text(found, "/address")).context("a node without an address")?;
        let answer = space.wait("the NodePort", SOON, |_| ask(&format!("{address}:{port}")).map(Some))?;
        ensure!(answer.starts_with("web-"), "{address}:{port} said {answer:?}");
    }
    Ok(())
}

fn deleted_pod(space: &Namespace) -> Result<()> {
    let Some(web) = Web::start(space, Spread::Preferred)? else { return not_ours() };
    let before = web.ready("web-1")?;
    web.note("web-1", "kept")?;
    space.run(&["delete", "pod", "web-1", "--wait=false"])?;
    let after = web.replaced("web-1", &before)?;
    ensure!(web.says("web-1", "/")? == "web-1 2 read-only\n", "the second start was not counted");
    ensure!(web.says("web-1", "/note")? == "kept", "the data is gone");
    // Others find it at its new address.
    let (full, address) =
        (format!("web-1.web.{}.svc.cluster.local", space.name), text(&after, "/status/podIP"));
    space.wait("the pod's new address", SOON, |space| {
        let found = space.exec("web-0", &["/testpod", "resolve", &full])?;
        Ok((found.trim() == address).then_some(()))
    })
}

fn volumes(space: &Namespace) -> Result<()> {
    let Some(web) = Web::start(space, Spread::Preferred)? else { return not_ours() };
    web.ready("web-0")?;
    web.note("web-0", "before")?;
    let claim = space.get("pvc", "data-web-0")?;
    ensure!(text(&claim, "/status/capacity/storage") == "1Gi", "status {}", claim["status"]);
    let request = |size: &str| json!({ "spec": { "resources": { "requests": { "storage": size } } } });
    space.patch("pvc", "data-web-0", &request("2Gi"))?;
    space.wait("the claim to have grown", SOON, |space| {
        let claim = space.get("pvc", "data-web-0")?;
        Ok((text(&claim, "/status/capacity/storage") == "2Gi").then_some(()))
    })?;
    ensure!(space.patch("pvc", "data-web-0", &request("1Gi")).is_err(), "a claim was made smaller");
    ensure!(web.says("web-0", "/note")? == "before", "the data is gone");

    let volume = text(&claim, "/spec/volumeName");
    space.run(&["delete", "statefulset", "web"])?;
    space.run(&["delete", "pvc", "data-web-0", "data-web-1"])?;
    space.wait("the volume to go with its claim", SOON, |space| {
        Ok(space.kubectl.find(&["get", "pv", &volume])?.is_none().then_some(()))
    })
}

fn evictions(space: &Namespace) -> Result<()> {
    let Some(web) = Web::start(space, Spread::Preferred)? else { return not_ours() };
    web.ready("web-0")?;
    let before = web.ready("web-1")?;
    let budget = |unavailable: u8| {
        json!({
            "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": { "name": "web" },
            "spec": { "maxUnavailable": unavailable, "selector": { "matchLabels": { "app": "web" } } },
        })
    };
    space.apply(&budget(0).to_string())?;
    wait_budget(space, 0)?;
    let refused = evict(space, "web-1");
    let words = refused.err().map(|error| format!("{error:#}")).unwrap_or_default();
    ensure!(words.contains("disruption budget"), "the eviction was not refused by the budget: {words:?}");
    ensure!(text(&space.get("pod", "web-1")?, "/metadata/uid") == text(&before, "/metadata/uid"));
    space.apply(&budget(1).to_string())?;
    wait_budget(space, 1)?;
    evict(space, "web-1")?;
    web.replaced("web-1", &before).map(drop)
}

/// Waits until the controller has seen the budget as it is and allows this many disruptions.
fn wait_budget(space: &Namespace, allowed: u64) -> Result<()> {
    space.wait("the budget to be seen", SOON, |space| {
        let budget = space.get("pdb", "web")?;
        let seen = budget["status"]["observedGeneration"] == budget["metadata"]["generation"];
        Ok((seen && budget["status"]["disruptionsAllowed"] == allowed).then_some(()))
    })
}

fn evict(space: &Namespace, pod: &str) -> Result<()> {
    let path = format!("/api/v1/namespaces/{}/pods/{pod}/eviction", space.name);
    let eviction = json!({
        "apiVersion": "policy/v1", "kind": "Eviction",
        "metadata": { "name": pod, "namespace": space.name },
    });
    space.kubectl.feed(&["create", "--raw", &path, "-f", "-"], &eviction.to_string()).map(drop)
}

fn drain(space: &Namespace) -> Result<()> {
    let Some(web) = Web::start(space, Spread::Preferred)? else { return not_ours() };
    web.ready("web-0")?;
    let before = web.ready("web-1")?;
    web.note("web-1", "moves")?;
    let node = text(&before, "/spec/nodeName");
    let cordon = Cordon { space, node: &node };
    let args = ["drain", &node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=120s"];
    space.kubectl.run(&args)?;
    let after = web.replaced("web-1", &before)?;
    let now = text(&after, "/spec/nodeName");
    ensure!(now != node, "the pod is on {node} again, which was drained");
    ensure!(web.says("web-1", "/note")? == "moves", "the data did not move with the pod");
    drop(cordon);
    let cordoned = space.kubectl.json(&["get", "node", &node])?["spec"]["unschedulable"] == true;
    ensure!(!cordoned, "{node} stays cordoned");
    Ok(())
}

/// A node that takes pods again when this is dropped.
struct Cordon<'a> {
    space: &'a Namespace,
    node: &'a str,
}

impl Drop for Cordon<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.space.kubectl.run(&["uncordon", self.node]) {
            eprintln!("{error:#}");
        }
    }
}

fn cut_and_heal(space: &Namespace) -> Result<()> {
    let Some(web) = Web::start(space, Spread::Required)? else { return not_ours() };
    let pods = [web.ready("web-0")?, web.ready("web-1")?];
    let node = space.kubectl.workers()?.get(1).cloned().context("the cluster has no second node")?;
    let victim = pods.iter().find(|pod| text(pod, "/spec/nodeName") == node);
    let victim = victim.with_context(|| format!("no pod is on {node}"))?;
    let (name, uid) = (text(victim, "/metadata/name"), text(victim, "/metadata/uid"));
    web.note(&name, "survives")?;
    let other = if name == "web-0" { "web-1" } else { "web-0" };

    let cut = CutNode::cut(&node)?;
    wait_node(space, &node, |status| status != Some("True"))?;
    // The other side goes on; the lost pod is not replaced, since nobody knows whether it still writes.
    ensure!(web.says(other, "/")?.starts_with(other), "the pod that was not cut off does not answer");
    let lost = text(victim, "/status/podIP");
    let answer = space.exec(other, &["/testpod", "get", &format!("{lost}:8080"), "/"]);
    ensure!(answer.is_err(), "the pod on the node that was cut off still answers");
    ensure!(text(&space.get("pod", &name)?, "/metadata/uid") == uid, "the lost pod was replaced");

    cut.heal()?;
    wait_node(space, &node, |status| status == Some("True"))?;
    // Where the node was away for longer than the pod tolerates, this is a new pod of the same ordinal.
    let after = space.wait_ready(&name, LATER)?;
    ensure!(text(&after, "/spec/nodeName") == node, "the pod is not on {node}");
    let note = space.wait("the pod to answer again", SOON, |_| web.says(&name, "/note").map(Some))?;
    ensure!(note == "survives", "the data is gone");
    Ok(())
}

fn wait_node(space: &Namespace, node: &str, wanted: fn(Option<&str>) -> bool) -> Result<()> {
    space.wait(&format!("the state of node {node} to change"), LATER, |space| {
        let object = space.kubectl.json(&["get", "node", node])?;
        Ok(wanted(condition_status(&object, "Ready")).then_some(()))
    })
}

fn not_ours() -> Result<()> {
    skip("the cluster was not made by cargo xtask cluster")
}

/// Where the two pods may be.
#[derive(Clone, Copy)]
enum Spread {
    /// On different nodes if that can be.
    Preferred,
    /// On different nodes.
    Required,
}

/// A StatefulSet of two with volumes, the one sample of these tests.
struct Web<'a> {
    space: &'a Namespace,
}

impl<'a> Web<'a> {
    /// Starts it; None on a cluster that is not ours and so has no test program.
    fn start(space: &'a Namespace, spread: Spread) -> Result<Option<Self>> {
        let marker = space.kubectl.find(&["--namespace=kube-system", "get", "configmap", "berth-cluster"])?;
        let Some(marker) = marker else { return Ok(None) };
        let service = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": { "name": "web" },
            "spec": { "clusterIP": "None", "selector": { "app": "web" }, "ports": [{ "port": 8080 }] },
        });
        space.apply(&service.to_string())?;
        space.apply(&stateful_set(&text(&marker, "/data/testpod"), spread).to_string())?;
        Ok(Some(Self { space }))
    }

    fn ready(&self, pod: &str) -> Result<Value> {
        self.space.wait_ready(pod, LATER)
    }

    /// Waits until another pod of the same name is ready.
    fn replaced(&self, pod: &str, before: &Value) -> Result<Value> {
        let uid = text(before, "/metadata/uid");
        self.space.wait(&format!("another {pod} to be ready"), LATER, |space| {
            let Some(now) = space.find("pod", pod)? else { bail!("it does not exist") };
            let fine = condition_status(&now, "Ready") == Some("True") && text(&now, "/metadata/uid") != uid;
            if fine { Ok(Some(now)) } else { bail!("status {}", now["status"]) }
        })
    }

    fn says(&self, pod: &str, path: &str) -> Result<String> {
        self.space.exec(pod, &["/testpod", "get", "127.0.0.1:8080", path])
    }

    fn note(&self, pod: &str, note: &str) -> Result<()> {
        self.says(pod, &format!("/note/{note}")).map(drop)
    }
}

fn stateful_set(image: &str, spread: Spread) -> Value {
    let term = json!({
        "topologyKey": "kubernetes.io/hostname", "labelSelector": { "matchLabels": { "app": "web" } },
    });
    let affinity = match spread {
        Spread::Required => json!({ "requiredDuringSchedulingIgnoredDuringExecution": [term] }),
        Spread::Preferred => json!({
            "preferredDuringSchedulingIgnoredDuringExecution": [{ "weight": 100, "podAffinityTerm": term }],
        }),
    };
    let container = json!({
        "name": "web", "image": image, "imagePullPolicy": "Never",
        "ports": [{ "containerPort": 8080 }],
        "readinessProbe": { "httpGet": { "path": "/healthz", "port": 8080 }, "periodSeconds": 1 },
        "resources": { "requests": { "cpu": "10m", "memory": "8Mi" }, "limits": { "memory": "32Mi" } },
        "securityContext": {
            "readOnlyRootFilesystem": true, "allowPrivilegeEscalation": false,
            "capabilities": { "drop": ["ALL"] },
        },
        "volumeMounts": [{ "name": "data", "mountPath": "/data" }],
    });
    json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": { "name": "web" },
        "spec": {
            "replicas": 2, "serviceName": "web", "podManagementPolicy": "Parallel",
            "selector": { "matchLabels": { "app": "web" } },
            "template": {
                "metadata": { "labels": { "app": "web" } },
                "spec": {
                    "automountServiceAccountToken": false, "terminationGracePeriodSeconds": 1,
                    "affinity": { "podAntiAffinity": affinity },
                    "securityContext": {
                        "runAsNonRoot": true, "runAsUser": 65532, "runAsGroup": 65532, "fsGroup": 65532,
                        "seccompProfile": { "type": "RuntimeDefault" },
                    },
                    "containers": [container],
                },
            },
            "volumeClaimTemplates": [{
                "metadata": { "name": "data" },
                "spec": {
                    "accessModes": ["ReadWriteOnce"],
                    "resources": { "requests": { "storage": "1Gi" } },
                },
            }],
        },
    })
}
