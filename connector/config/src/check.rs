//! Holds a tree against the table of keys, so that every complaint names its key and says what to change.

use serde_json::{Map, Value};

use crate::keys::{KEYS, Key, Kind, NOT_SERVED, size};
use crate::{Document, Error};

/// Which keys a document may hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Scope {
    /// All of them.
    Start,
    /// Only those that change without a restart.
    Dynamic,
}

/// The document's tree with null sections made empty and null values removed, every key known and in its
/// range.
pub(crate) fn checked(document: Document<'_>, scope: Scope) -> Result<Map<String, Value>, Error> {
    let mut tree = document.parse()?;
    check_section(document.name, "", &mut tree, scope)?;
    Ok(tree)
}

fn check_section(
    origin: &str,
    section: &str,
    tree: &mut Map<String, Value>,
    scope: Scope,
) -> Result<(), Error> {
    for (name, value) in tree.iter_mut() {
        let path = if section.is_empty() { name.clone() } else { format!("{section}.{name}") };
        if NOT_SERVED.contains(&path.as_str()) {
            return Err(Error::new(origin, &path, "not supported by this version; remove it"));
        }
        if let Some(key) = KEYS.iter().find(|key| key.path == path) {
            if scope == Scope::Dynamic && !key.dynamic {
                let problem = "is read at start only; move it to config.yaml and restart";
                return Err(Error::new(origin, &path, problem));
            }
            check_value(origin, key, value)?;
        } else if is_section(&path) {
            if value.is_null() {
                *value = Value::Object(Map::new());
            }
            let Value::Object(inner) = value else {
                let problem = format!("a section is expected, found {}", found(value));
                return Err(Error::new(origin, &path, problem));
            };
            check_section(origin, &path, inner, scope)?;
        } else {
            return Err(unknown(origin, section, &path, name));
        }
    }
    tree.retain(|_, value| !value.is_null());
    Ok(())
}

/// Whether a value is what its key takes; null leaves the default.
pub(crate) fn check_value(origin: &str, key: &Key, value: &Value) -> Result<(), Error> {
    let problem = match (key.kind, value) {
        (_, Value::Null) | (Kind::Switch, Value::Bool(_)) => return Ok(()),
        (Kind::Text(max), Value::String(text)) if text.len() <= max && !text.is_empty() => return Ok(()),
        (Kind::Text(max), Value::String(_)) => format!("1 to {max} bytes are expected"),
        (Kind::Text(_), Value::Number(_) | Value::Bool(_)) => {
            format!("text is expected, found {}; put it in quotes", found(value))
        }
        (Kind::Text(_), _) => format!("text is expected, found {}", found(value)),
        (Kind::Integer { min, max, .. }, value) => match value.as_i64() {
            Some(number) if (min..=max).contains(&number) => return Ok(()),
            Some(number) => format!("{number} is out of range; choose {min} to {max}"),
            None => format!("a whole number from {min} to {max} is expected, found {}", found(value)),
        },
        (Kind::Size(min), value) => {
            let text = value.as_str().map_or_else(|| value.to_string(), String::from);
            match size(&text) {
                Some(bytes) if bytes.is_none_or(|bytes| bytes >= min) => return Ok(()),
                Some(_) => format!("{text} is too little; choose at least {min} bytes"),
                None => {
                    format!("auto or a number of bytes is expected, like 512Mi, found {}", found(value))
                }
            }
        }
        (Kind::Switch, _) => format!("true or false is expected, found {}", found(value)),
        (Kind::Choice(words, later), value) => match value.as_str() {
            Some(word) if words.contains(&word) => return Ok(()),
            Some(word) if later.contains(&word) => {
                format!("{word} is not supported by this version; choose one of {}", words.join(", "))
            }
            _ => format!("one of {} is expected, found {}", words.join(", "), found(value)),
        },
    };
    Err(Error::new(origin, key.path, problem))
}

fn is_section(path: &str) -> bool {
    KEYS.iter().any(|key| key.path.strip_prefix(path).is_some_and(|rest| rest.starts_with('.')))
}

fn found(value: &Value) -> String {
    match value {
        Value::Null => String::from("nothing"),
        Value::Bool(value) => value.to_string(),
        Value::Number(number) => format!("the number {number}"),
        Value::String(text) => format!("the text {:?}", shortened(text)),
        Value::Array(_) => String::from("a list"),
        Value::Object(_) => String::from("a section"),
    }
}

const SHOWN_CHARS_MAX: usize = 80;

fn shortened(text: &str) -> String {
    text.chars().take(SHOWN_CHARS_MAX).collect()
}

fn unknown(origin: &str, section: &str, path: &str, name: &str) -> Error {
    let siblings = names_in(section);
    let close = siblings.iter().find(|sibling| distance(sibling, name) <= 2);
    let hint = match close {
        Some(close) => format!("did you mean {close}?"),
        None => format!("known here: {}", siblings.join(", ")),
    };
    Error::new(origin, &shortened(path), format!("unknown key; {hint}"))
}

/// The names that may stand in a section.
fn names_in(section: &str) -> Vec<&'static str> {
    let mut names = Vec::new();
    for key in KEYS {
        let rest = if section.is_empty() {
            Some(key.path)
        } else {
            key.path.strip_prefix(section).and_then(|rest| rest.strip_prefix('.'))
        };
        let name = rest.and_then(|rest| rest.split('.').next());
        if let Some(name) = name.filter(|name| !names.contains(name)) {
            names.push(name);
        }
    }
    names
}

/// How many letters must be added, removed or changed to make `b` of `a`; letter case does not count.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().take(SHOWN_CHARS_MAX).map(|c| c.to_ascii_lowercase()).collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().map(|c| c.to_ascii_lowercase()).enumerate() {
        let mut next = vec![i + 1];
        for (j, (to, above)) in b.iter().zip(row.windows(2)).enumerate() {
            let change = above[0] + usize::from(from != *to);
            next.push(change.min(above[1] + 1).min(next[j] + 1));
        }
        row = next;
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        checked(Document { name: "c", text }, Scope::Start).unwrap_err().to_string()
    }

    #[test]
    fn complaints_name_the_key_and_say_what_to_change() {
        for (text, message) in [
            ("stomp: { prot: 1 }", "c: stomp.prot: unknown key; did you mean port?"),
            ("Stomp: {}", "c: Stomp: unknown key; did you mean stomp?"),
            ("admin: { colour: red }", "c: admin.colour: unknown key; known here: address"),
            ("stomp: { port: 70000 }", "c: stomp.port: 70000 is out of range; choose 0 to 65535"),
            (
                "stomp: { port: '61613' }",
                "c: stomp.port: a whole number from 0 to 65535 is expected, found the text \"61613\"",
            ),
            ("amqp: {}", "c: amqp: not supported by this version; remove it"),
            (
                "broker: { kubemq: { address: x } }",
                "c: broker.kubemq: not supported by this version; remove it",
            ),
            (
                "limits: { maxMemory: 512M }",
                "c: limits.maxMemory: auto or a number of bytes is expected, like 512Mi, found the text \
                 \"512M\"",
            ),
            (
                "limits: { maxMemory: 1Mi }",
                "c: limits.maxMemory: 1Mi is too little; choose at least 16777216 bytes",
            ),
            ("stomp: 5", "c: stomp: a section is expected, found the number 5"),
            ("node: 7", "c: node: text is expected, found the number 7; put it in quotes"),
            ("node: ''", "c: node: 1 to 253 bytes are expected"),
            (
                "stomp: { deliveryCountHeader: yes please }",
                "c: stomp.deliveryCountHeader: true or false is expected, found the text \"yes please\"",
            ),
            (
                "stomp: { defaultPattern: events }",
                "c: stomp.defaultPattern: events is not supported by this version; choose one of none, \
                 queues",
            ),
            (
                "broker: { embedded: { fsync: often } }",
                "c: broker.embedded.fsync: one of always, interval, never is expected, found the text \
                 \"often\"",
            ),
        ] {
            assert_eq!(error(text), message);
        }
    }

    #[test]
    fn the_ends_of_a_range_belong_to_it() {
        for key in KEYS {
            let Kind::Integer { min, max, .. } = key.kind else { continue };
            for (number, is_good) in [(min - 1, false), (min, true), (max, true), (max + 1, false)] {
                let checked = check_value("c", key, &Value::from(number));
                assert_eq!(checked.is_ok(), is_good, "{} {number}", key.path);
            }
        }
    }

    #[test]
    fn an_empty_section_stands_and_an_empty_value_does_not() {
        let tree = checked(Document { name: "c", text: "stomp:\nnode:\n" }, Scope::Start).unwrap();
        assert_eq!(Value::Object(tree), serde_json::json!({ "stomp": {} }));
    }

    #[test]
    fn what_is_read_at_start_only_is_refused_in_the_dynamic_file() {
        let dynamic = |text| checked(Document { name: "d", text }, Scope::Dynamic);
        assert!(dynamic("logging: { level: debug }").is_ok());
        assert_eq!(
            dynamic("stomp: { port: 1 }").unwrap_err().to_string(),
            "d: stomp.port: is read at start only; move it to config.yaml and restart"
        );
    }

    #[test]
    fn distances() {
        assert_eq!((distance("port", "prot"), distance("port", "PORT"), distance("", "ab")), (2, 0, 2));
    }
}
