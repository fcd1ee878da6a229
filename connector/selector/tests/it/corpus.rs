//! Replays the committed corpus of the fuzz target.

use std::path::Path;

#[test]
fn corpus_of_the_fuzz_target() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/selector");
    let mut inputs = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        berth_selector::fuzz::fuzz_selector(&std::fs::read(entry.unwrap().path()).unwrap());
        inputs += 1;
    }
    assert!(inputs > 0, "the corpus is gone");
}
