//! Properties: what is printed is read back, the program answers like a naive evaluator, three-valued laws
//! hold, no text panics.

use berth_types::{Field, Value, View};
use proptest::prelude::*;

use crate::ast::{Condition, Header, Name, Operand};
use crate::fuzz::fuzz_selector;
use crate::parser::parse;
use crate::program::Program;
use crate::value::{Arithmetic, Comparison, Number};

// ---- A naive evaluator: walks the tree, copies everything, truth as 0, 1, 2 with min and max. ----

const FALSE: u8 = 0;
const UNKNOWN: u8 = 1;
const TRUE: u8 = 2;

#[derive(Clone, Debug)]
enum Datum {
    Null,
    Boolean(bool),
    Number(Number),
    Text(String),
    Untyped(String),
    Binary,
}

#[derive(Clone, Debug)]
struct Fields(Vec<(Name, Datum)>);

impl View for Fields {
    fn visit(&self, f: &mut dyn FnMut(Field<'_>, Value<'_>)) {
        f(Field::ContentType, Value::Text("text/plain"));
        for (name, datum) in &self.0 {
            let field = match name {
                Name::Property(name) => Field::User(name),
                Name::Header(Header::Priority) => Field::Priority,
                Name::Header(Header::CorrelationId) => Field::CorrelationId,
                Name::Header(Header::MessageId) => Field::OwnId,
                Name::Header(Header::Type) => Field::Type,
                Name::Header(Header::Timestamp) => Field::Created,
                Name::Header(Header::Expiration) => Field::Expires,
                Name::Header(Header::DeliveryMode) => Field::Durable,
            };
            match datum {
                Datum::Null => {}
                Datum::Boolean(value) => f(field, Value::Boolean(*value)),
                Datum::Number(Number::Exact(number)) => f(field, Value::Integer(*number)),
                Datum::Number(Number::Approximate(number)) => f(field, Value::Float(*number)),
                Datum::Text(text) => f(field, Value::Text(text)),
                Datum::Untyped(text) => f(field, Value::Untyped(text)),
                Datum::Binary => f(field, Value::Binary(b"x")),
            }
        }
    }
}

impl Fields {
    fn get(&self, name: &Name) -> Datum {
        let present = |(other, datum): &&(Name, Datum)| other == name && !matches!(datum, Datum::Null);
        let datum = self.0.iter().find(present).map_or(Datum::Null, |(_, datum)| datum.clone());
        match (name, datum) {
            (Name::Header(Header::Priority), Datum::Null) => Datum::Number(Number::Exact(4)),
            (Name::Header(Header::Expiration), Datum::Null) => Datum::Number(Number::Exact(0)),
            (Name::Header(Header::DeliveryMode), datum) => {
                let durable = as_boolean(&datum) == Some(true);
                Datum::Text(if durable { "PERSISTENT" } else { "NON_PERSISTENT" }.into())
            }
            (_, datum) => datum,
        }
    }

    fn condition(&self, condition: &Condition) -> u8 {
        match condition {
            Condition::Literal(value) => truth(Some(*value)),
            Condition::Name(name) => truth(as_boolean(&self.get(name))),
            Condition::Not(inner) => TRUE - self.condition(inner),
            Condition::And(left, right) => self.condition(left).min(self.condition(right)),
            Condition::Or(left, right) => self.condition(left).max(self.condition(right)),
            Condition::Compare { comparison: Comparison::Equal, left, right } => self.equal(left, right),
            Condition::Compare { comparison: Comparison::NotEqual, left, right } => {
                TRUE - self.equal(left, right)
            }
            Condition::Compare { comparison, left, right } => self.order(left, right, *comparison),
            Condition::Between { value, low, high, negated } => {
                let low = self.order(low, value, Comparison::LessOrEqual);
                negate_if(*negated, low.min(self.order(high, value, Comparison::GreaterOrEqual)))
            }
            Condition::Like { name, pattern, escape, negated } => {
                let text = as_text(&self.get(name)).map(|text| text.chars().collect::<Vec<_>>());
                let pattern: Vec<_> = pattern.chars().collect();
                negate_if(*negated, truth(text.map(|text| like(&text, &pattern, *escape))))
            }
            Condition::In { name, values, negated } => {
                let text = as_text(&self.get(name));
                negate_if(*negated, truth(text.map(|text| values.iter().any(|value| **value == *text))))
            }
            Condition::IsNull { name, negated } => {
                negate_if(*negated, truth(Some(matches!(self.get(name), Datum::Null))))
            }
        }
    }

    fn order(&self, left: &Operand, right: &Operand, comparison: Comparison) -> u8 {
        match (as_number(&self.operand(left)), as_number(&self.operand(right))) {
            (Some(left), Some(right)) => {
                let (l, r) = (double(left), double(right));
                if let (Number::Exact(l), Number::Exact(r)) = (left, right) {
                    return truth(Some(comparison.holds(l.cmp(&r))));
                }
                let ordering = if l < r { -1 } else { i32::from(l > r) };
                if l.is_nan() || r.is_nan() {
                    UNKNOWN
                } else {
                    truth(Some(comparison.holds(ordering.cmp(&0))))
                }
            }
            _ => UNKNOWN,
        }
    }

    fn equal(&self, left: &Operand, right: &Operand) -> u8 {
        let (l, r) = (self.operand(left), self.operand(right));
        if let (Some(l), Some(r)) = (as_text(&l), as_text(&r)) {
            return truth(Some(l == r));
        }
        if matches!(l, Datum::Boolean(_)) || matches!(r, Datum::Boolean(_)) {
            return truth(as_boolean(&l).zip(as_boolean(&r)).map(|(l, r)| l == r));
        }
        self.order(left, right, Comparison::Equal)
    }

    fn operand(&self, operand: &Operand) -> Datum {
        match operand {
            Operand::Text(text) => Datum::Text(text.to_string()),
            Operand::Boolean(value) => Datum::Boolean(*value),
            Operand::Number(number) => Datum::Number(*number),
            Operand::Name(name) => self.get(name),
            Operand::Signed { minus, operand } => {
                let sign = Number::Exact(if *minus { -1 } else { 1 });
                match (as_number(&self.operand(operand)), minus) {
                    // A zero keeps its sign, which multiplication with a whole -1 keeps too.
                    (Some(Number::Approximate(number)), true) => Datum::Number(Number::Approximate(-number)),
                    (Some(number), _) => calculate(Arithmetic::Multiply, number, sign),
                    (None, _) => Datum::Null,
                }
            }
            Operand::Arithmetic { operator, left, right } => {
                match (as_number(&self.operand(left)), as_number(&self.operand(right))) {
                    (Some(left), Some(right)) => calculate(*operator, left, right),
                    _ => Datum::Null,
                }
            }
        }
    }
}

fn calculate(operator: Arithmetic, left: Number, right: Number) -> Datum {
    if let (Number::Exact(l), Number::Exact(r)) = (left, right) {
        let (l, r) = (i128::from(l), i128::from(r));
        let exact = match operator {
            Arithmetic::Add => l + r,
            Arithmetic::Subtract => l - r,
            Arithmetic::Multiply => l * r,
            Arithmetic::Divide if r == 0 => return Datum::Null,
            Arithmetic::Divide => l / r,
        };
        if let Ok(exact) = i64::try_from(exact) {
            return Datum::Number(Number::Exact(exact));
        }
    }
    let (l, r) = (double(left), double(right));
    let result = match operator {
        Arithmetic::Add => l + r,
        Arithmetic::Subtract => l - r,
        Arithmetic::Multiply => l * r,
        Arithmetic::Divide if r == 0.0 => return Datum::Null,
        Arithmetic::Divide => l / r,
    };
    if result.is_nan() { Datum::Null } else { Datum::Number(Number::Approximate(result)) }
}

fn double(number: Number) -> f64 {
    match number {
        Number::Exact(number) => number as f64,
        Number::Approximate(number) => number,
    }
}

fn truth(value: Option<bool>) -> u8 {
    value.map_or(UNKNOWN, |value| if value { TRUE } else { FALSE })
}

fn negate_if(negated: bool, truth: u8) -> u8 {
    if negated { TRUE - truth } else { truth }
}

fn as_text(datum: &Datum) -> Option<String> {
    match datum {
        Datum::Text(text) | Datum::Untyped(text) => Some(text.clone()),
        _ => None,
    }
}

/// A table instead of a parser: the texts are those of `TEXTS`.
fn as_number(datum: &Datum) -> Option<Number> {
    match datum {
        Datum::Number(number) => Some(*number),
        Datum::Untyped(text) => match text.as_str() {
            "10" => Some(Number::Exact(10)),
            "-3" => Some(Number::Exact(-3)),
            "10.0" => Some(Number::Approximate(10.0)),
            "1e2" => Some(Number::Approximate(100.0)),
            _ => None,
        },
        _ => None,
    }
}

fn as_boolean(datum: &Datum) -> Option<bool> {
    match datum {
        Datum::Boolean(value) => Some(*value),
        Datum::Untyped(text) if text == "true" => Some(true),
        Datum::Untyped(text) if text == "FALSE" => Some(false),
        _ => None,
    }
}

/// By trying everything.
fn like(text: &[char], pattern: &[char], escape: Option<char>) -> bool {
    let Some((first, rest)) = pattern.split_first() else { return text.is_empty() };
    let literal = if Some(*first) == escape { Some((rest[0], &rest[1..])) } else { None };
    match (literal, first) {
        (None, '%') => (0..=text.len()).any(|skipped| like(&text[skipped..], rest, escape)),
        (None, '_') => !text.is_empty() && like(&text[1..], rest, escape),
        (literal, first) => {
            let (c, rest) = literal.unwrap_or((*first, rest));
            text.first() == Some(&c) && like(&text[1..], rest, escape)
        }
    }
}

// ---- A printer, with every parenthesis. ----

fn print(condition: &Condition) -> String {
    let not = |negated: &bool| if *negated { "NOT " } else { "" };
    match condition {
        Condition::Literal(value) => value.to_string(),
        Condition::Name(name) => print_name(name).into(),
        Condition::Not(inner) => format!("NOT ({})", print(inner)),
        Condition::And(left, right) => format!("({}) AND ({})", print(left), print(right)),
        Condition::Or(left, right) => format!("({}) OR ({})", print(left), print(right)),
        Condition::Compare { comparison, left, right } => {
            let symbol = match comparison {
                Comparison::Equal => "=",
                Comparison::NotEqual => "<>",
                Comparison::Less => "<",
                Comparison::LessOrEqual => "<=",
                Comparison::Greater => ">",
                Comparison::GreaterOrEqual => ">=",
            };
            format!("{} {symbol} {}", print_operand(left), print_operand(right))
        }
        Condition::Between { value, low, high, negated } => {
            let (value, low, high) = (print_operand(value), print_operand(low), print_operand(high));
            format!("{value} {}BETWEEN {low} AND {high}", not(negated))
        }
        Condition::Like { name, pattern, escape, negated } => {
            let escape = escape.map(|c| format!(" ESCAPE {}", quoted(c.encode_utf8(&mut [0; 4]))));
            let escape = escape.unwrap_or_default();
            format!("{} {}LIKE {}{escape}", print_name(name), not(negated), quoted(pattern))
        }
        Condition::In { name, values, negated } => {
            let values: Vec<_> = values.iter().map(|value| quoted(value)).collect();
            format!("{} {}IN ({})", print_name(name), not(negated), values.join(", "))
        }
        Condition::IsNull { name, negated } => format!("{} IS {}NULL", print_name(name), not(negated)),
    }
}

fn print_operand(operand: &Operand) -> String {
    match operand {
        Operand::Text(text) => quoted(text),
        Operand::Boolean(value) => value.to_string(),
        Operand::Number(Number::Exact(number)) => number.to_string(),
        Operand::Number(Number::Approximate(number)) => format!("{number:?}"),
        Operand::Name(name) => print_name(name).into(),
        Operand::Signed { minus, operand } => {
            format!("{}({})", if *minus { "-" } else { "+" }, print_operand(operand))
        }
        Operand::Arithmetic { operator, left, right } => {
            let symbol = match operator {
                Arithmetic::Add => "+",
                Arithmetic::Subtract => "-",
                Arithmetic::Multiply => "*",
                Arithmetic::Divide => "/",
            };
            format!("({}) {symbol} ({})", print_operand(left), print_operand(right))
        }
    }
}

fn print_name(name: &Name) -> &str {
    match name {
        Name::Property(name) => name,
        Name::Header(header) => header.name(),
    }
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

// ---- Generators. ----

const TEXTS: [&str; 14] =
    ["", "a", "ab", "aab", "it's", "10", "10.0", "-3", "1e2", " 1", "nan", "true", "FALSE", "PERSISTENT"];

fn names() -> impl Strategy<Value = Name> {
    prop_oneof![
        4 => proptest::sample::select(vec!["a", "b", "$c", "_d1", "JMSXGroupID", "größe"])
            .prop_map(|name| Name::Property(name.into())),
        1 => proptest::sample::select(Header::ALL.to_vec()).prop_map(Name::Header),
    ]
}

fn texts() -> impl Strategy<Value = &'static str> {
    proptest::sample::select(TEXTS.to_vec())
}

fn numbers() -> impl Strategy<Value = Number> {
    prop_oneof![
        4 => (-4_i64..12).prop_map(Number::Exact),
        1 => proptest::sample::select(vec![i64::MIN, i64::MAX, 1 << 53, 4]).prop_map(Number::Exact),
        2 => proptest::sample::select(vec![0.0, -0.0, 0.5, 10.0, -3.0, 100.0, 1e300, 1e-7, 9.3e18])
            .prop_map(Number::Approximate),
    ]
}

fn operands() -> impl Strategy<Value = Operand> {
    let leaf = prop_oneof![numbers().prop_map(Operand::Number), names().prop_map(Operand::Name)];
    leaf.prop_recursive(2, 6, 2, |inner| {
        let operators = vec![Arithmetic::Add, Arithmetic::Subtract, Arithmetic::Multiply, Arithmetic::Divide];
        prop_oneof![
            (any::<bool>(), inner.clone()).prop_map(|(minus, operand)| match operand {
                Operand::Number(_) => operand,
                operand => Operand::Signed { minus, operand: Box::new(operand) },
            }),
            (proptest::sample::select(operators), inner.clone(), inner).prop_map(
                |(operator, left, right)| Operand::Arithmetic {
                    operator,
                    left: Box::new(left),
                    right: Box::new(right)
                }
            ),
        ]
    })
}

fn equal_operands() -> impl Strategy<Value = Operand> {
    prop_oneof![
        2 => operands(),
        2 => names().prop_map(Operand::Name),
        1 => texts().prop_map(|text| Operand::Text(text.into())),
        1 => any::<bool>().prop_map(Operand::Boolean),
    ]
}

/// A pattern in which `!` escapes, also when there is no `!`.
fn patterns() -> impl Strategy<Value = (Box<str>, Option<char>)> {
    let pieces = proptest::sample::select(vec!["%", "_", "a", "b", "ab", "'", "1", "!%", "!_", "!!"]);
    proptest::collection::vec(pieces, 0..6)
        .prop_map(|pieces| (pieces.concat().into(), Some('!')))
        .boxed()
        .prop_union(
            proptest::sample::select(vec!["%", "a%", "%b", "a_", "!%"])
                .prop_map(|pattern| (Box::from(pattern), None))
                .boxed(),
        )
}

fn conditions() -> impl Strategy<Value = Condition> {
    use Comparison::{Equal, Greater, GreaterOrEqual, Less, LessOrEqual, NotEqual};
    let order = proptest::sample::select(vec![Less, LessOrEqual, Greater, GreaterOrEqual]);
    let equal = proptest::sample::select(vec![Equal, NotEqual]);
    let values = proptest::collection::vec(texts().prop_map(Box::from), 1..4);
    let leaf = prop_oneof![
        1 => any::<bool>().prop_map(Condition::Literal),
        2 => names().prop_map(Condition::Name),
        4 => (equal, equal_operands(), equal_operands())
            .prop_map(|(comparison, left, right)| Condition::Compare { comparison, left, right }),
        4 => (order, operands(), operands())
            .prop_map(|(comparison, left, right)| Condition::Compare { comparison, left, right }),
        2 => (operands(), operands(), operands(), any::<bool>())
            .prop_map(|(value, low, high, negated)| Condition::Between { value, low, high, negated }),
        3 => (names(), patterns(), any::<bool>())
            .prop_map(|(name, (pattern, escape), negated)| {
                Condition::Like { name, pattern, escape, negated }
            }),
        2 => (names(), values, any::<bool>())
            .prop_map(|(name, values, negated)| Condition::In { name, values, negated }),
        2 => (names(), any::<bool>()).prop_map(|(name, negated)| Condition::IsNull { name, negated }),
    ];
    leaf.prop_recursive(3, 8, 2, |inner| {
        prop_oneof![
            inner.clone().prop_map(|inner| Condition::Not(Box::new(inner))),
            (inner.clone(), inner.clone()).prop_map(|(l, r)| Condition::And(Box::new(l), Box::new(r))),
            (inner.clone(), inner).prop_map(|(l, r)| Condition::Or(Box::new(l), Box::new(r))),
        ]
    })
}

fn messages() -> impl Strategy<Value = Fields> {
    let datum = prop_oneof![
        1 => Just(Datum::Null),
        1 => Just(Datum::Binary),
        2 => any::<bool>().prop_map(Datum::Boolean),
        4 => numbers().prop_map(Datum::Number),
        1 => Just(Datum::Number(Number::Approximate(f64::NAN))),
        1 => Just(Datum::Number(Number::Approximate(f64::INFINITY))),
        4 => texts().prop_map(|text| Datum::Text(text.into())),
        8 => texts().prop_map(|text| Datum::Untyped(text.into())),
    ];
    proptest::collection::vec((names(), datum), 0..10).prop_map(Fields)
}

fn evaluate(condition: &Condition, message: &Fields) -> u8 {
    truth(Program::new(condition).evaluate(message))
}

const TOKENS: [&str; 31] = [
    "a",
    "b",
    "1",
    "-",
    "+",
    "*",
    "/",
    "(",
    ")",
    "'x'",
    "'",
    ",",
    "=",
    "<>",
    "<",
    ">=",
    "NOT",
    "AND",
    "OR",
    "BETWEEN",
    "LIKE",
    "ESCAPE",
    "IN",
    "IS",
    "NULL",
    "TRUE",
    "0x",
    "9223372036854775808",
    "1e9",
    "JMSType",
    "é",
];

// ---- The properties. ----

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2048))]

    #[test]
    fn what_is_printed_is_read_back(condition in conditions()) {
        let text = print(&condition);
        match parse(&text) {
            Ok(read) => prop_assert_eq!(read, condition, "{}", text),
            Err(error) => {
                prop_assert!(error.problem.starts_with("a selector has at most 64"), "{text}: {error}");
            }
        }
    }

    #[test]
    fn the_program_answers_like_the_naive_evaluator(condition in conditions(), message in messages()) {
        let (actual, expected) = (evaluate(&condition, &message), message.condition(&condition));
        prop_assert_eq!(actual, expected, "{}", print(&condition));
    }

    #[test]
    fn three_valued_laws(a in conditions(), b in conditions(), message in messages()) {
        let and = |l: &Condition, r: &Condition| Condition::And(Box::new(l.clone()), Box::new(r.clone()));
        let or = |l: &Condition, r: &Condition| Condition::Or(Box::new(l.clone()), Box::new(r.clone()));
        let not = |inner: &Condition| Condition::Not(Box::new(inner.clone()));
        let same = |l: &Condition, r: &Condition| evaluate(l, &message) == evaluate(r, &message);
        prop_assert!(same(&and(&a, &b), &and(&b, &a)));
        prop_assert!(same(&or(&a, &b), &or(&b, &a)));
        prop_assert!(same(&not(&and(&a, &b)), &or(&not(&a), &not(&b))));
        prop_assert!(same(&not(&not(&a)), &a));
        prop_assert!(same(&and(&a, &or(&a, &b)), &a));
        let excluded_middle = evaluate(&or(&a, &not(&a)), &message);
        prop_assert_eq!(excluded_middle == UNKNOWN, evaluate(&a, &message) == UNKNOWN);
    }

    #[test]
    fn like_is_linear_and_right(
        text in "[ab]{0,12}", pieces in proptest::collection::vec("[ab%_]{1,3}", 0..5)
    ) {
        let pattern = pieces.concat();
        let expected = like(&text.chars().collect::<Vec<_>>(), &pattern.chars().collect::<Vec<_>>(), None);
        let actual = crate::like::Pattern::new(&pattern, None).unwrap().matches(&text);
        prop_assert_eq!(actual, expected, "{} LIKE {}", text, pattern);
    }

    #[test]
    fn no_tokens_panic(
        pieces in proptest::collection::vec(proptest::sample::select(TOKENS.to_vec()), 0..24)
    ) {
        fuzz_selector(format!("{}\na:1\nb=x", pieces.join(" ")).as_bytes());
    }

    #[test]
    fn no_octets_panic(data in proptest::collection::vec(any::<u8>(), 0..64)) {
        fuzz_selector(&data);
    }
}
