//! A message in the notation of the guide: `name='text', name=1, name=true, name:untyped`.

use berth_types::{Field, Value, View};

#[derive(Debug)]
pub(crate) struct Message(Vec<(String, Datum)>);

#[derive(Debug)]
enum Datum {
    Boolean(bool),
    Integer(i64),
    Float(f64),
    Text(String),
    Untyped(String),
}

impl Message {
    pub(crate) fn new(notation: &str) -> Self {
        let pieces = notation.split(", ").map(str::trim).filter(|piece| !piece.is_empty());
        Self(pieces.map(field).collect())
    }
}

fn field(piece: &str) -> (String, Datum) {
    let at = piece.find(['=', ':']).unwrap_or_else(|| panic!("no value in {piece}"));
    let (name, text) = (piece[..at].to_owned(), &piece[at + 1..]);
    if piece.as_bytes()[at] == b':' {
        return (name, Datum::Untyped(text.into()));
    }
    let datum = match text.strip_prefix('\'').and_then(|text| text.strip_suffix('\'')) {
        Some(text) => Datum::Text(text.into()),
        None if text == "true" || text == "false" => Datum::Boolean(text == "true"),
        None => {
            text.parse().map(Datum::Integer).unwrap_or_else(|_| Datum::Float(text.parse().expect("a number")))
        }
    };
    (name, datum)
}

impl View for Message {
    fn visit(&self, f: &mut dyn FnMut(Field<'_>, Value<'_>)) {
        for (name, datum) in &self.0 {
            let field = match name.as_str() {
                "JMSPriority" => Field::Priority,
                "JMSCorrelationID" => Field::CorrelationId,
                "JMSMessageID" => Field::OwnId,
                "JMSType" => Field::Type,
                "JMSTimestamp" => Field::Created,
                "JMSExpiration" => Field::Expires,
                "JMSDeliveryMode" => Field::Durable,
                name => Field::User(name),
            };
            let value = match datum {
                Datum::Boolean(value) => Value::Boolean(*value),
                Datum::Integer(number) => Value::Integer(*number),
                Datum::Float(number) => Value::Float(*number),
                Datum::Text(text) => Value::Text(text),
                Datum::Untyped(text) => Value::Untyped(text),
            };
            f(field, value);
        }
    }
}
