//! What the fuzz target runs: a line of arbitrary text as a selector, and a message made of the other lines.
//! Not an interface.

use berth_types::{Field, Value, View};

use crate::SqlSelector;

/// Parses the first line and evaluates it over the others. Panics when a promise is broken.
pub fn fuzz_selector(data: &[u8]) {
    let data = String::from_utf8_lossy(data);
    let (text, message) = data.split_once('\n').unwrap_or((&data, ""));
    match SqlSelector::parse(text) {
        Err(error) => {
            assert!((1..=text.chars().count() + 1).contains(&error.column), "{error}");
            assert!(error.problem.len() < 1024 && !error.problem.contains(char::is_control), "{error}");
        }
        Ok(selector) => {
            let answer = selector.evaluate(&Lines(message));
            // The bounds may refuse the longer text; if they do not, negation keeps "unknown".
            if let Ok(negated) = SqlSelector::parse(&format!("NOT ({text})")) {
                assert_eq!(negated.evaluate(&Lines(message)), answer.map(|answer| !answer), "{text}");
            }
        }
    }
}

/// `name=value` is text, `name:value` untyped text, `name#value` a number, `name?value` a boolean.
struct Lines<'a>(&'a str);

impl View for Lines<'_> {
    fn visit(&self, f: &mut dyn FnMut(Field<'_>, Value<'_>)) {
        for line in self.0.lines() {
            let Some(at) = line.find(['=', ':', '#', '?']) else { continue };
            let (Some(name), Some(text)) = (line.get(..at), line.get(at + 1..)) else { continue };
            let value = match line.as_bytes().get(at) {
                Some(b'=') => Value::Text(text),
                Some(b':') => Value::Untyped(text),
                Some(b'#') => text
                    .parse()
                    .map(Value::Integer)
                    .or_else(|_| text.parse().map(Value::Float))
                    .unwrap_or(Value::Binary(text.as_bytes())),
                _ => Value::Boolean(text == "1"),
            };
            f(field(name), value);
        }
    }
}

fn field(name: &str) -> Field<'_> {
    match name {
        "JMSPriority" => Field::Priority,
        "JMSCorrelationID" => Field::CorrelationId,
        "JMSMessageID" => Field::OwnId,
        "JMSType" => Field::Type,
        "JMSTimestamp" => Field::Created,
        "JMSExpiration" => Field::Expires,
        "JMSDeliveryMode" => Field::Durable,
        _ => Field::User(name),
    }
}
