//! The README and the quick start do what they say, word for word.

use berth_e2e::process::Server;
use berth_e2e::python;
use std::process::Command;
use tempfile::tempdir;

/// The text between the first pair of fences of this kind after `mark`.
fn block<'a>(page: &'a str, mark: &str, kind: &str) -> &'a str {
    let after = page.split_once(mark).unwrap().1;
    let inside = after.split_once(&format!("```{kind}\n")).unwrap().1;
    inside.split_once("```").unwrap().0
}

#[test]
fn the_quick_start_prints_what_it_says() {
    session_prints_what_the_page_says(include_str!("../../../docs/guide/quick-start.md"));
}

#[test]
fn the_readme_prints_what_it_says() {
    session_prints_what_the_page_says(include_str!("../../../README.md"));
}

fn session_prints_what_the_page_says(page: &str) {
    let requirements = include_str!("../../clients/python/requirements.txt");
    assert!(page.contains("pip install stomp.py==9.0.0") && requirements.contains("stomp.py==9.0.0"));
    let folder = tempdir().unwrap();
    let server = Server::start(folder.path(), "").unwrap();
    // The default port may be taken on this machine.
    let program = block(page, "With Python", "python").replace("61613", &server.stomp.port().to_string());
    // From a file, as the page says: the prompt would end the class at its first empty line.
    let file = folder.path().join("hello.py");
    std::fs::write(&file, program).unwrap();
    let python = Command::new(python::interpreter().unwrap()).arg(&file).output().unwrap();
    let said = String::from_utf8(python.stdout).unwrap();
    assert_eq!(said, block(page, "prints", "text"), "{}", String::from_utf8_lossy(&python.stderr));
}
