//! A cluster seen through kubectl, and a namespace of one's own in it.
//!
//! Every wait has a deadline and says, when it ends, what was wanted and what was seen last. Nothing here
//! knows which cluster it is.

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::env;
use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How often a wait looks.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// The cluster that KUBECONFIG names.
#[derive(Clone, Debug)]
pub struct Kubectl {
    program: PathBuf,
    kubeconfig: PathBuf,
}

impl Kubectl {
    /// Reads KUBECONFIG. kubectl itself comes from the folder `bin` beside that file, where `cargo xtask
    /// cluster` puts the one that fits, else from PATH.
    ///
    /// # Errors
    /// KUBECONFIG is not set or names no file.
    pub fn from_environment() -> Result<Self> {
        let set = env::var_os("KUBECONFIG").filter(|path| !path.is_empty());
        let advice = "cargo xtask cluster up, then export KUBECONFIG=$(cargo xtask cluster kubeconfig)";
        let kubeconfig = PathBuf::from(set.with_context(|| format!("KUBECONFIG is not set: {advice}"))?);
        if !kubeconfig.is_file() {
            bail!("KUBECONFIG names no file ({}): {advice}", kubeconfig.display());
        }
        Ok(Self { program: Self::tool(&kubeconfig, "kubectl"), kubeconfig })
    }

    /// The program `name` (kubectl, helm) that belongs to this cluster: beside the kubeconfig, else by its
    /// bare name.
    fn tool(kubeconfig: &Path, name: &str) -> PathBuf {
        let beside = kubeconfig.parent().map(|folder| folder.join("bin").join(name));
        beside.filter(|path| path.exists()).unwrap_or_else(|| name.into())
    }

    /// helm, ready to get its arguments.
    #[must_use]
    pub fn helm(&self) -> Command {
        let mut command = Command::new(Self::tool(&self.kubeconfig, "helm"));
        command.env("KUBECONFIG", &self.kubeconfig).stdin(Stdio::null());
        command
    }

    /// kubectl, ready to get its arguments; for what lives longer than one answer, like `port-forward`.
    #[must_use]
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("--kubeconfig").arg(&self.kubeconfig).stdin(Stdio::null());
        command
    }

    /// Runs kubectl and returns what it printed.
    ///
    /// # Errors
    /// It ended badly; the error holds the arguments and what it said.
    pub fn run<S: AsRef<OsStr>>(&self, args: &[S]) -> Result<String> {
        self.feed(args, "")
    }

    /// Like [`Self::run`], with `input` on kubectl's standard input.
    ///
    /// # Errors
    /// It ended badly.
    pub fn feed<S: AsRef<OsStr>>(&self, args: &[S], input: &str) -> Result<String> {
        let mut command = self.command();
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let shown: Vec<_> = args.iter().map(|arg| arg.as_ref().to_string_lossy().into_owned()).collect();
        let shown = format!("kubectl {}", shown.join(" "));
        let mut child = command.spawn().with_context(|| format!("starting {shown}"))?;
        if let Some(mut pipe) = child.stdin.take() {
            // kubectl may end without reading it all; its own words are the better error then.
            pipe.write_all(input.as_bytes()).ok();
        }
        let output = child.wait_with_output().with_context(|| format!("waiting for {shown}"))?;
        if !output.status.success() {
            bail!("{shown}: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Runs kubectl and reads the JSON that it prints (`-o json` is added).
    ///
    /// # Errors
    /// It ended badly, or printed no JSON.
    pub fn json(&self, args: &[&str]) -> Result<Value> {
        let printed = self.run(&[args, &["-o", "json"]].concat())?;
        serde_json::from_str(&printed).with_context(|| format!("kubectl {} printed no JSON", args.join(" ")))
    }

    /// Like [`Self::json`]; None when the object does not exist.
    ///
    /// # Errors
    /// Anything but "not found".
    pub fn find(&self, args: &[&str]) -> Result<Option<Value>> {
        match self.json(args) {
            Ok(value) => Ok(Some(value)),
            Err(error) if error.to_string().contains("(NotFound)") => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The names of the nodes that take pods, in order.
    ///
    /// # Errors
    /// The cluster does not answer.
    pub fn workers(&self) -> Result<Vec<String>> {
        let nodes = self.json(&["get", "nodes"])?;
        let is_closed = |node: &Value| {
            let taints = node["spec"]["taints"].as_array();
            taints.is_some_and(|taints| taints.iter().any(|taint| taint["effect"] != "PreferNoSchedule"))
        };
        let open = nodes["items"].as_array().into_iter().flatten().filter(|node| !is_closed(node));
        let mut names: Vec<_> = open.map(|node| text(node, "/metadata/name")).collect();
        names.sort();
        Ok(names)
    }
}

/// A namespace that belongs to one test.
#[derive(Debug)]
pub struct Namespace {
    /// The cluster it is in.
    pub kubectl: Kubectl,
    /// Its name.
    pub name: String,
}

impl Namespace {
    /// Creates it. The name holds the test's name and the process, so that runs do not meet.
    ///
    /// # Errors
    /// The cluster refuses.
    pub fn create(kubectl: &Kubectl, test: &str) -> Result<Self> {
        let words: Vec<_> =
            test.split(|c: char| !c.is_ascii_alphanumeric()).filter(|w| !w.is_empty()).collect();
        let slug: String = words.join("-").to_lowercase().chars().take(40).collect();
        let name = format!("e2e-{}-{}", slug.trim_end_matches('-'), std::process::id());
        let object = json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": { "name": name, "labels": { "berth.dev/e2e": "true" } },
        });
        kubectl.feed(&["create", "-f", "-"], &object.to_string())?;
        Ok(Self { kubectl: kubectl.clone(), name })
    }

    /// Asks for its deletion with all that is in it, without waiting.
    ///
    /// # Errors
    /// The cluster refuses.
    pub fn delete(&self) -> Result<()> {
        self.kubectl.run(&["delete", "namespace", &self.name, "--wait=false", "--ignore-not-found"]).map(drop)
    }

    /// Runs kubectl in this namespace.
    ///
    /// # Errors
    /// It ended badly.
    pub fn run(&self, args: &[&str]) -> Result<String> {
        self.kubectl.run(&[&["--namespace", &self.name], args].concat())
    }

    /// Applies manifests (YAML or JSON) by server-side apply.
    ///
    /// # Errors
    /// The cluster refuses them.
    pub fn apply(&self, manifests: &str) -> Result<()> {
        let args = ["--namespace", &self.name, "apply", "--server-side", "--field-manager=e2e", "-f", "-"];
        self.kubectl.feed(&args, manifests).map(drop)
    }

    /// The object, for example `get("pod", "web-0")`.
    ///
    /// # Errors
    /// It does not exist, or the cluster does not answer.
    pub fn get(&self, kind: &str, name: &str) -> Result<Value> {
        self.kubectl.json(&["--namespace", &self.name, "get", kind, name])
    }

    /// The object, or None.
    ///
    /// # Errors
    /// The cluster does not answer.
    pub fn find(&self, kind: &str, name: &str) -> Result<Option<Value>> {
        self.kubectl.find(&["--namespace", &self.name, "get", kind, name])
    }

    /// The objects of a kind that the label selector takes; an empty selector takes all.
    ///
    /// # Errors
    /// The cluster does not answer.
    pub fn list(&self, kind: &str, selector: &str) -> Result<Vec<Value>> {
        let mut list =
            self.kubectl.json(&["--namespace", &self.name, "get", kind, "--selector", selector])?;
        match list["items"].take() {
            Value::Array(items) => Ok(items),
            _ => Ok(Vec::new()),
        }
    }

    /// Changes an object by a merge patch.
    ///
    /// # Errors
    /// The cluster refuses.
    pub fn patch(&self, kind: &str, name: &str, change: &Value) -> Result<()> {
        self.run(&["patch", kind, name, "--type=merge", "--patch", &change.to_string()]).map(drop)
    }

    /// Runs a command in a pod and returns what it printed.
    ///
    /// # Errors
    /// It ended badly, or the pod cannot be reached.
    pub fn exec(&self, pod: &str, command: &[&str]) -> Result<String> {
        self.run(&[&["exec", pod, "--"], command].concat())
    }

    /// What the pod's containers have printed so far.
    ///
    /// # Errors
    /// The pod does not exist or its node cannot be reached.
    pub fn logs(&self, pod: &str) -> Result<String> {
        self.run(&["logs", pod, "--all-containers"])
    }

    /// Looks until `look` finds something. What it errs with is looked at again too, and is part of the
    /// error when the time is over.
    ///
    /// # Errors
    /// Nothing was found `within` that time.
    pub fn wait<T>(
        &self,
        what: &str,
        within: Duration,
        mut look: impl FnMut(&Self) -> Result<Option<T>>,
    ) -> Result<T> {
        let begun = Instant::now();
        loop {
            let last = match look(self) {
                Ok(Some(found)) => return Ok(found),
                Ok(None) => String::new(),
                Err(error) => format!("; last: {error:#}"),
            };
            if begun.elapsed() > within {
                bail!("waited {} s for {what}{last}", within.as_secs());
            }
            sleep(LOOK_EVERY);
        }
    }

    /// Waits until a condition of the object has this status, and returns the object. A pod that is being
    /// deleted never counts.
    ///
    /// # Errors
    /// It did not come to that in time; the error holds the object's conditions.
    pub fn wait_condition(
        &self,
        kind: &str,
        name: &str,
        condition: &str,
        status: &str,
        within: Duration,
    ) -> Result<Value> {
        self.wait(&format!("{kind} {name} to be {condition}={status}"), within, |space| {
            let Some(object) = space.find(kind, name)? else { bail!("it does not exist") };
            let is_leaving = kind == "pod" && object["metadata"]["deletionTimestamp"].is_string();
            if !is_leaving && condition_status(&object, condition) == Some(status) {
                return Ok(Some(object));
            }
            bail!("conditions {}", object["status"]["conditions"])
        })
    }

    /// Waits until the pod is ready and not being deleted, and returns it.
    ///
    /// # Errors
    /// It did not come to that in time.
    pub fn wait_ready(&self, pod: &str, within: Duration) -> Result<Value> {
        self.wait_condition("pod", pod, "Ready", "True", within)
    }

    /// Everything a person wants to see when a test has failed: objects, events in order, and each pod's
    /// words.
    #[must_use]
    pub fn dump(&self) -> String {
        let mut report = String::new();
        let mut add = |title: &str, result: Result<String>| {
            let body = result.unwrap_or_else(|error| format!("{error:#}"));
            report += &format!("---- {title}\n{}\n", body.trim_end());
        };
        add("nodes", self.kubectl.run(&["get", "nodes", "-o", "wide"]));
        add("objects", self.run(&["get", "all,pvc,endpointslices,pdb,configmaps", "-o", "wide"]));
        add("events", self.run(&["get", "events", "--sort-by=.lastTimestamp"]));
        for pod in self.list("pods", "").unwrap_or_default() {
            let name = text(&pod, "/metadata/name");
            add(&format!("status of {name}"), Ok(pod["status"].to_string()));
            add(&format!("logs of {name}"), self.run(&["logs", &name, "--all-containers", "--tail=200"]));
            let restarts = pod.pointer("/status/containerStatuses/0/restartCount");
            if restarts.and_then(Value::as_u64).unwrap_or(0) > 0 {
                let before = ["logs", &name, "--all-containers", "--previous", "--tail=200"];
                add(&format!("logs of {name} before its restart"), self.run(&before));
            }
        }
        report
    }
}

/// The status of one condition of an object.
#[must_use]
pub fn condition_status<'a>(object: &'a Value, condition: &str) -> Option<&'a str> {
    let conditions = object["status"]["conditions"].as_array()?;
    conditions.iter().find(|found| found["type"] == condition)?["status"].as_str()
}

/// The text at a JSON pointer (RFC 6901); empty when there is none.
#[must_use]
pub fn text(object: &Value, pointer: &str) -> String {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_are_found_by_their_type() {
        let object = json!({ "status": { "conditions": [
            { "type": "Ready", "status": "False" }, { "type": "Progressing", "status": "True" } ] } });
        assert_eq!(condition_status(&object, "Ready"), Some("False"));
        assert_eq!(condition_status(&object, "Degraded"), None);
        assert_eq!(condition_status(&json!({}), "Ready"), None);
    }
}
