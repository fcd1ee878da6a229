//! Runs a [`Program`] over a message.
//!
//! First the message is visited once and [`Registers`] take what the program needs; then the nodes are
//! evaluated. Recursion follows the nodes: at most `SELECTOR_NODES_MAX` operators and their negations deep.

use berth_types::limits::SELECTOR_NODES_MAX;
use berth_types::{Field, Value, View};

use crate::ast::Header;
use crate::program::{Node, Program, Test};
use crate::value::{Comparison, Number, Truth, boolean_from_text};

impl Program {
    /// True, false, or unknown.
    pub(crate) fn evaluate(&self, message: &dyn View) -> Truth {
        if self.slots.len() <= FEW_SLOTS {
            self.run::<FEW_SLOTS>(message)
        } else {
            self.run::<SELECTOR_NODES_MAX>(message)
        }
    }

    fn run<const SLOTS: usize>(&self, message: &dyn View) -> Truth {
        let mut registers = Registers::<SLOTS>::new();
        message.visit(&mut |field, value| {
            if let Some((slot, header)) = self.slot_of(field) {
                registers.take(self, slot, header, value);
            }
        });
        for header in [Header::Priority, Header::Expiration, Header::DeliveryMode] {
            if let Some(slot) = self.slot_of_header(header) {
                registers.take(self, slot, None, default_of(header));
            }
        }
        registers.truth(self, self.root)
    }

    fn slot_of(&self, field: Field<'_>) -> Option<(u8, Option<Header>)> {
        if let Field::User(name) = field {
            let slot = self.properties.binary_search_by(|property| (**property).cmp(name)).ok()?;
            return u8::try_from(slot).ok().map(|slot| (slot, None));
        }
        let header = header_of(field)?;
        self.slot_of_header(header).map(|slot| (slot, Some(header)))
    }

    fn slot_of_header(&self, header: Header) -> Option<u8> {
        self.headers.get(header as usize).copied().flatten()
    }
}

/// Nearly every selector has no more properties.
const FEW_SLOTS: usize = 8;

/// What a program keeps of one message.
struct Registers<const SLOTS: usize> {
    slots: [Slot; SLOTS],
    /// Which tests have an answer, and which have the answer "yes".
    answered: u64,
    yes: u64,
    /// The texts of properties that are compared with each other.
    texts: String,
}

#[derive(Clone, Copy)]
enum Slot {
    /// No such property.
    Null,
    Boolean(bool),
    Number(Number),
    Text(Span),
    Untyped {
        text: Span,
        number: Option<Number>,
        boolean: Option<bool>,
    },
    /// Of a type that compares with nothing.
    Opaque,
}

/// A piece of `Registers::texts`.
#[derive(Clone, Copy)]
struct Span {
    start: u32,
    end: u32,
}

impl<const SLOTS: usize> Registers<SLOTS> {
    const fn new() -> Self {
        Self { slots: [Slot::Null; SLOTS], answered: 0, yes: 0, texts: String::new() }
    }

    /// Takes a field. When a message repeats one, the first counts.
    fn take(&mut self, program: &Program, slot: u8, header: Option<Header>, value: Value<'_>) {
        let index = usize::from(slot);
        let Some(plan) = program.slots.get(index) else { return };
        if !matches!(self.slots.get(index), Some(Slot::Null)) {
            return;
        }
        let value = if header == Some(Header::DeliveryMode) { delivery_mode(value) } else { value };
        if let Value::Text(text) | Value::Untyped(text) = value {
            self.answer(program, &plan.tests, text);
        }
        let taken = match value {
            Value::Boolean(value) => Slot::Boolean(value),
            Value::Integer(number) => Slot::Number(Number::Exact(number)),
            Value::Float(number) => Slot::Number(Number::Approximate(number)),
            Value::Text(text) => Slot::Text(self.keep(plan.text, text)),
            Value::Untyped(text) => Slot::Untyped {
                number: Some(text).filter(|_| plan.typed).and_then(Number::from_text),
                boolean: Some(text).filter(|_| plan.typed).and_then(boolean_from_text),
                text: self.keep(plan.text, text),
            },
            Value::Binary(_) => Slot::Opaque,
        };
        if let Some(slot) = self.slots.get_mut(index) {
            *slot = taken;
        }
    }

    fn answer(&mut self, program: &Program, tests: &[u8], text: &str) {
        for number in tests {
            let Some(test) = program.tests.get(usize::from(*number)) else { continue };
            let yes = match test {
                Test::Equal(other) => **other == *text,
                Test::Like(pattern) => pattern.matches(text),
                Test::In(values) => values.binary_search_by(|value| (**value).cmp(text)).is_ok(),
            };
            self.answered |= 1 << number;
            self.yes |= u64::from(yes) << number;
        }
    }

    fn keep(&mut self, wanted: bool, text: &str) -> Span {
        // Far beyond the longest head a text counts as empty rather than wrap.
        let end = |texts: &str| u32::try_from(texts.len()).unwrap_or(u32::MAX);
        let start = end(&self.texts);
        if wanted {
            self.texts.push_str(text);
        }
        Span { start, end: end(&self.texts) }
    }

    fn truth(&self, program: &Program, node: u16) -> Truth {
        match *program.nodes.get(usize::from(node))? {
            Node::Literal(truth) => truth,
            Node::Boolean { slot } => self.boolean(slot),
            Node::Not(inner) => self.truth(program, inner).map(|truth| !truth),
            Node::And(left, right) => match self.truth(program, left) {
                Some(false) => Some(false),
                Some(true) => self.truth(program, right),
                None => self.truth(program, right).filter(|right| !right),
            },
            Node::Or(left, right) => match self.truth(program, left) {
                Some(true) => Some(true),
                Some(false) => self.truth(program, right),
                None => self.truth(program, right).filter(|right| *right),
            },
            Node::IsNull { slot } => Some(matches!(self.slot(slot), Slot::Null)),
            Node::Test(number) => (self.answered >> number & 1 == 1).then_some(self.yes >> number & 1 == 1),
            Node::Is { slot, value } => self.boolean(slot).map(|boolean| boolean == value),
            Node::Same { left, right } => self.same(self.slot(left), self.slot(right)),
            Node::Compare(comparison, left, right) => {
                Number::compare(comparison, self.number(program, left)?, self.number(program, right)?)
            }
            Node::Number(_) | Node::Property { .. } | Node::Negative(_) | Node::Calculate(..) => None,
        }
    }

    fn number(&self, program: &Program, node: u16) -> Option<Number> {
        match *program.nodes.get(usize::from(node))? {
            Node::Number(number) => Some(number),
            Node::Property { slot } => match self.slot(slot) {
                Slot::Number(number) => Some(number),
                Slot::Untyped { number, .. } => number,
                _ => None,
            },
            Node::Negative(inner) => self.number(program, inner).map(Number::negate),
            Node::Calculate(operator, left, right) => {
                Number::calculate(operator, self.number(program, left)?, self.number(program, right)?)
            }
            _ => None,
        }
    }

    fn boolean(&self, slot: u8) -> Truth {
        match self.slot(slot) {
            Slot::Boolean(value) => Some(value),
            Slot::Untyped { boolean, .. } => boolean,
            _ => None,
        }
    }

    /// Untyped text takes the type of the other side; two texts are compared as texts.
    fn same(&self, left: Slot, right: Slot) -> Truth {
        match (left, right) {
            (Slot::Boolean(left), Slot::Boolean(right)) => Some(left == right),
            (Slot::Number(left), Slot::Number(right)) => Number::compare(Comparison::Equal, left, right),
            (Slot::Boolean(value), Slot::Untyped { boolean, .. })
            | (Slot::Untyped { boolean, .. }, Slot::Boolean(value)) => {
                boolean.map(|boolean| boolean == value)
            }
            (Slot::Number(value), Slot::Untyped { number, .. })
            | (Slot::Untyped { number, .. }, Slot::Number(value)) => {
                Number::compare(Comparison::Equal, number?, value)
            }
            (
                Slot::Text(left) | Slot::Untyped { text: left, .. },
                Slot::Text(right) | Slot::Untyped { text: right, .. },
            ) => Some(self.text(left) == self.text(right)),
            _ => None,
        }
    }

    fn slot(&self, slot: u8) -> Slot {
        self.slots.get(usize::from(slot)).copied().unwrap_or(Slot::Null)
    }

    fn text(&self, span: Span) -> &str {
        self.texts.get(span.start as usize..span.end as usize).unwrap_or_default()
    }
}

const fn header_of(field: Field<'_>) -> Option<Header> {
    Some(match field {
        Field::OwnId => Header::MessageId,
        Field::CorrelationId => Header::CorrelationId,
        Field::Type => Header::Type,
        Field::Created => Header::Timestamp,
        Field::Expires => Header::Expiration,
        Field::Priority => Header::Priority,
        Field::Durable => Header::DeliveryMode,
        Field::ContentType | Field::ReplyTo | Field::Delay | Field::User(_) => return None,
    })
}

/// What holds when the sender says nothing: these headers are never null.
const fn default_of(header: Header) -> Value<'static> {
    match header {
        Header::Priority => Value::Integer(4),
        Header::DeliveryMode => delivery_mode(Value::Boolean(false)),
        _ => Value::Integer(0),
    }
}

const fn delivery_mode(durable: Value<'_>) -> Value<'_> {
    let durable = match durable {
        Value::Boolean(durable) => durable,
        Value::Untyped(text) => text.eq_ignore_ascii_case("true"),
        _ => false,
    };
    Value::Text(if durable { "PERSISTENT" } else { "NON_PERSISTENT" })
}
