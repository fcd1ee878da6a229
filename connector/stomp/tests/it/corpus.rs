//! Replays the committed corpora of the fuzz targets.

use std::path::Path;

fn replay(target: &str, run: impl Fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(target);
    let mut files = 0;
    for entry in std::fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        println!("{}", path.display());
        run(&std::fs::read(&path).unwrap());
        files += 1;
    }
    assert!(files >= 10, "the corpus of {target} is there");
}

#[test]
fn stomp_decode() {
    replay("stomp_decode", berth_stomp::fuzz::decode);
}

#[test]
fn stomp_connection() {
    replay("stomp_connection", berth_stomp::fuzz::connection);
}
