//! The conformance page names only code and tests that exist.

use std::fmt::Write as _;
use std::path::Path;

/// All Rust sources below a folder, one after the other, each after its path.
fn read_sources(folder: &Path, out: &mut String) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && path.file_name().is_some_and(|name| name != "target") {
            read_sources(&path, out);
        } else if path.extension().is_some_and(|ext| ext == "rs") {
            write!(out, "{}\n{}\n", path.display(), std::fs::read_to_string(&path).unwrap()).unwrap();
        }
    }
}

#[test]
fn every_anchor_of_the_page_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = std::fs::read_to_string(root.join("docs/conformance/stomp.md")).unwrap();
    let mut sources = String::new();
    for folder in ["stomp", "gateway"] {
        read_sources(&root.join("connector").join(folder), &mut sources);
    }
    let is_name = |text: &str| {
        text.contains('_') && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
    };
    let (mut tests, mut files) = (0, 0);
    for anchor in page.split('`').skip(1).step_by(2) {
        if is_name(anchor) {
            assert!(sources.contains(&format!("fn {anchor}")), "no test is called {anchor}...");
            tests += 1;
        } else if anchor.strip_suffix(".rs").is_some_and(|stem| !stem.contains('/')) {
            assert!(sources.contains(&format!("/{anchor}\n")), "no file is called {anchor}");
            files += 1;
        }
    }
    assert!(tests > 100 && files > 50, "{tests} tests, {files} files");
}
