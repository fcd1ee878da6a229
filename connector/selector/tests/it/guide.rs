//! Every row of the tables of `docs/guide/selectors.md` holds.

use std::path::Path;

use berth_selector::SqlSelector;

use crate::message::Message;

#[test]
fn the_examples_of_the_guide_hold() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/selectors.md");
    let guide = std::fs::read_to_string(path).unwrap();
    let (mut answers, mut errors) = (0, 0);
    for line in guide.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<_> =
            line.trim_matches('|').split(" | ").map(|cell| cell.trim().trim_matches('`')).collect();
        match cells[..] {
            [selector, message, answer] => {
                let parsed =
                    SqlSelector::parse(selector).unwrap_or_else(|error| panic!("{selector}: {error}"));
                let expected = match answer {
                    "true" => Some(true),
                    "false" => Some(false),
                    "unknown" => None,
                    _ => panic!("no answer in {line}"),
                };
                assert_eq!(parsed.evaluate(&Message::new(message)), expected, "{line}");
                answers += 1;
            }
            [selector, problem] => {
                let error = SqlSelector::parse(selector).unwrap_err();
                assert_eq!(error.to_string(), problem, "{line}");
                errors += 1;
            }
            _ => panic!("no example: {line}"),
        }
    }
    assert!(answers >= 20 && errors >= 5, "{answers} answers, {errors} errors");
}
