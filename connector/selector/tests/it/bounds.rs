//! At each bound, and one beyond.

use berth_selector::SqlSelector;
use berth_types::limits::{
    SELECTOR_BYTES_MAX, SELECTOR_DEPTH_MAX, SELECTOR_IN_VALUES_MAX, SELECTOR_NODES_MAX,
};
use berth_types::{Field, Value, View};

use crate::message::Message;

fn problem(text: &str) -> String {
    SqlSelector::parse(text).expect_err(text).problem
}

fn answer(text: &str, message: &str) -> Option<bool> {
    SqlSelector::parse(text).unwrap_or_else(|error| panic!("{error}")).evaluate(&Message::new(message))
}

#[test]
fn bytes_of_the_text() {
    let longest = format!("a = '{}'", "x".repeat(SELECTOR_BYTES_MAX - 6));
    assert_eq!(answer(&longest, "a:y"), Some(false));
    assert_eq!(problem(&format!("{longest} ")), "a selector has at most 4096 bytes");
}

#[test]
fn nodes() {
    // Each comparison is three nodes, each OR one.
    let most = vec!["a = 1"; SELECTOR_NODES_MAX / 4].join(" OR ");
    assert_eq!(answer(&most, "a=2"), Some(false));
    let more = format!("{most} OR b OR c");
    let error = SqlSelector::parse(&more).unwrap_err();
    assert_eq!(error.problem, "a selector has at most 64 operators, names and literals");
    assert_eq!(error.column, more.len() - 5);
}

#[test]
fn as_many_properties_as_nodes_allow() {
    let names: Vec<_> = (0..32).map(|i| format!("p{i}")).collect();
    let all = names.join(" AND ");
    let message: Vec<_> = names.iter().map(|name| format!("{name}=true")).collect();
    assert_eq!(answer(&all, &message.join(", ")), Some(true));
    assert_eq!(answer(&all, &message[1..].join(", ")), None);
}

#[test]
fn depth() {
    let beyond = "more than 32 parentheses, NOTs or signs within each other";
    assert_eq!(SELECTOR_DEPTH_MAX, 32);
    for (open, close, levels) in [("(", ")", 32), ("NOT ", "", 32), ("(NOT ", ")", 16)] {
        let nested = |levels| format!("{}a{}", open.repeat(levels), close.repeat(levels));
        assert_eq!(answer(&nested(levels), "a=true"), Some(true), "{open}");
        assert_eq!(problem(&nested(levels + 1)), beyond, "{open}");
    }
    assert_eq!(problem(&"(".repeat(SELECTOR_BYTES_MAX)), beyond);
    assert_eq!(problem(&format!("{}1 > a", "-".repeat(1000))), beyond);
}

#[test]
fn values_of_in() {
    let values = |n| format!("a IN ({})", vec!["'x'"; n].join(","));
    assert_eq!(answer(&values(SELECTOR_IN_VALUES_MAX), "a:x"), Some(true));
    assert_eq!(problem(&values(SELECTOR_IN_VALUES_MAX + 1)), "IN takes at most 256 values");
}

/// A backtracking matcher would not come back from the first ones.
#[test]
fn like_does_not_explode() {
    struct Big(String);
    impl View for Big {
        fn visit(&self, f: &mut dyn FnMut(Field<'_>, Value<'_>)) {
            f(Field::User("a"), Value::Text(&self.0));
        }
    }
    let big = Big("a".repeat(1 << 18));
    let mixed = format!("%_{}b", "a".repeat(60));
    let letters = format!("%{}b", "a".repeat(4000));
    let patterns = ["%aa_a".repeat(800), "%a".repeat(2000), "%_a%".repeat(1000), mixed, letters];
    for pattern in patterns {
        let selector = SqlSelector::parse(&format!("a LIKE '{pattern}%b'")).unwrap();
        assert_eq!(selector.evaluate(&big), Some(false), "{pattern}");
    }
}
