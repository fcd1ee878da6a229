//! The chart, checked with a real helm: `helm lint`, what it renders against golden files, its README.
//!
//! `cargo xtask chart --update` writes the golden files anew.

use crate::cluster::helm;
use crate::image::repository;
use anyhow::{Context, Result, bail, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The version of Kubernetes that the chart is rendered for.
const KUBERNETES: &str = "1.36.3";

/// Checks the chart, or writes its golden files.
pub(crate) fn check(update: bool) -> Result<()> {
    let helm = helm()?;
    let chart = repository().join("charts/berth");
    for values in values_files(&chart)? {
        let name = values.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        let name = name.trim_end_matches("-values").to_owned();
        let values = values.display().to_string();
        let folder = chart.display().to_string();
        run(&helm, &["lint", "--strict", &folder, "--values", &values])?;
        let rendered = run(
            &helm,
            &[
                "template",
                "berth",
                &folder,
                "--namespace=berth-system",
                "--kube-version",
                KUBERNETES,
                "--values",
                &values,
            ],
        )?;
        compare(&chart.join("golden").join(format!("{name}.yaml")), &without_definitions(&rendered), update)?;
        check_definitions(&chart, &rendered, name != "namespaced")?;
    }
    refuses(&helm, &chart, "replicas=many")?;
    refuses(&helm, &chart, "watchNamespace=typo")?;
    readme_names_every_value(&chart)
}

fn values_files(chart: &Path) -> Result<Vec<PathBuf>> {
    let folder = chart.join("ci");
    let entries = fs::read_dir(&folder).with_context(|| format!("reading {}", folder.display()))?;
    let mut files = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    files.sort();
    ensure!(!files.is_empty(), "no values in {}", folder.display());
    Ok(files)
}

fn run(helm: &Path, args: &[&str]) -> Result<String> {
    let output = Command::new(helm).args(args).output().context("running helm")?;
    let words = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        bail!("helm {}:\n{words}{}", args.join(" "), String::from_utf8_lossy(&output.stderr));
    }
    Ok(words)
}

/// The schema of the values refuses what is misspelt or of another type.
fn refuses(helm: &Path, chart: &Path, setting: &str) -> Result<()> {
    let args =
        ["template", "berth", &chart.display().to_string(), "--kube-version", KUBERNETES, "--set", setting];
    ensure!(run(helm, &args).is_err(), "the schema of the values lets {setting} pass");
    Ok(())
}

/// Documents of the definitions are the files of the crds crate; only the others are in the golden files.
fn without_definitions(rendered: &str) -> String {
    let kept =
        rendered.split("---\n").filter(|document| !document.contains("kind: CustomResourceDefinition\n"));
    kept.collect::<Vec<_>>().join("---\n")
}

/// Definitions are emitted word for word, but for the annotation that keeps them.
fn check_definitions(chart: &Path, rendered: &str, expected: bool) -> Result<()> {
    let folder = chart.join("files/crds");
    for entry in fs::read_dir(&folder)? {
        let path = entry?.path();
        let text = fs::read_to_string(&path)?;
        let keep = "  annotations:\n    helm.sh/resource-policy: keep\n";
        let is_there = rendered.replace(keep, "").contains(text.trim_end());
        ensure!(is_there == expected, "{} is rendered: {is_there}, expected: {expected}", path.display());
    }
    Ok(())
}

fn compare(path: &Path, actual: &str, update: bool) -> Result<()> {
    if update {
        fs::create_dir_all(path.parent().unwrap_or(path))?;
        return fs::write(path, actual).with_context(|| format!("writing {}", path.display()));
    }
    let expected = fs::read_to_string(path).unwrap_or_default();
    let line = expected.lines().zip(actual.lines()).position(|(expected, actual)| expected != actual);
    ensure!(
        expected == actual,
        "{} is stale, first in line {:?}: look at the change and run cargo xtask chart --update",
        path.display(),
        line.map(|line| line + 1)
    );
    Ok(())
}

/// Every leaf of values.yaml, or one of its parents, stands in the README's table.
fn readme_names_every_value(chart: &Path) -> Result<()> {
    let values = fs::read_to_string(chart.join("values.yaml"))?;
    let readme = fs::read_to_string(chart.join("README.md"))?;
    let mut parents: Vec<(usize, String)> = Vec::new();
    for line in values.lines() {
        let text = line.trim_start();
        let Some((key, rest)) = text.split_once(':').filter(|_| !text.starts_with('#')) else { continue };
        let depth = line.len() - text.len();
        parents.retain(|(parent, _)| *parent < depth);
        let path: Vec<&str> = parents.iter().map(|(_, name)| name.as_str()).chain([key]).collect();
        let path = path.join(".");
        parents.push((depth, key.to_owned()));
        let is_leaf = !rest.trim().is_empty();
        let is_listed = |path: &str| readme.contains(&format!("| `{path}` |"));
        let by_parent = path.split_once('.').is_some_and(|(first, _)| is_listed(first));
        ensure!(!is_leaf || is_listed(&path) || by_parent, "charts/berth/README.md does not name {path}");
    }
    Ok(())
}
