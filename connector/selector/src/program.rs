//! A selector as it is run: names resolved to slots, texts to tests.
//!
//! A message lends its values only while it is visited. So what needs a property's text against constants (a
//! *test*: `= 'text'`, LIKE, IN) is answered during the visit and kept as one bit, and of every other
//! property its number or boolean is kept in a *slot*. After the visit the *nodes* are evaluated, with
//! short circuits, over bits and slots.

use crate::ast::{Condition, Header, Name, Operand};
use crate::like::Pattern;
use crate::value::{Arithmetic, Comparison, Number, Truth};

/// A compiled selector. Immutable.
#[derive(Debug)]
pub(crate) struct Program {
    /// The properties, ordered; each has the slot of its index. The slots of headers follow.
    pub(crate) properties: Box<[Box<str>]>,
    /// The slot of each header, in the order of [`Header::ALL`].
    pub(crate) headers: [Option<u8>; Header::ALL.len()],
    /// One for each slot.
    pub(crate) slots: Box<[SlotPlan]>,
    /// At most `SELECTOR_NODES_MAX`, so that a word has a bit for each.
    pub(crate) tests: Box<[Test]>,
    /// Operands stand before what uses them.
    pub(crate) nodes: Box<[Node]>,
    pub(crate) root: u16,
}

/// What is to be kept of a property.
#[derive(Clone, Default, Debug)]
pub(crate) struct SlotPlan {
    /// The tests to answer.
    pub(crate) tests: Box<[u8]>,
    /// Keep the number or boolean that untyped text stands for.
    pub(crate) typed: bool,
    /// Keep the text.
    pub(crate) text: bool,
}

/// A question about a text.
#[derive(Debug)]
pub(crate) enum Test {
    Equal(Box<str>),
    Like(Pattern),
    /// Ordered.
    In(Box<[Box<str>]>),
}

/// One step. `u16` are nodes, `slot` is a slot.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Node {
    // Conditions.
    Literal(Truth),
    Boolean {
        slot: u8,
    },
    Not(u16),
    And(u16, u16),
    Or(u16, u16),
    IsNull {
        slot: u8,
    },
    /// The answer to a test.
    Test(u8),
    /// A property equals a boolean.
    Is {
        slot: u8,
        value: bool,
    },
    /// Two properties are equal, of whatever type.
    Same {
        left: u8,
        right: u8,
    },
    Compare(Comparison, u16, u16),
    // Numbers.
    Number(Number),
    Property {
        slot: u8,
    },
    Negative(u16),
    Calculate(Arithmetic, u16, u16),
}

impl Program {
    /// Compiles a selector that is within the bounds.
    pub(crate) fn new(condition: &Condition) -> Self {
        let mut names = Vec::new();
        names_of_condition(condition, &mut names);
        names.sort_unstable();
        names.dedup();
        let plans = vec![Plan::default(); names.len()];
        let mut compiler = Compiler { names, plans, tests: Vec::new(), nodes: Vec::new() };
        let root = compiler.condition(condition);
        let mut headers = [None; Header::ALL.len()];
        let mut properties = Vec::new();
        for (slot, name) in compiler.names.iter().enumerate() {
            match name {
                Name::Property(name) => properties.push(name.clone()),
                Name::Header(header) => {
                    if let Some(place) = headers.get_mut(*header as usize) {
                        *place = Some(index(slot));
                    }
                }
            }
        }
        let slots = compiler.plans.into_iter().map(|plan| SlotPlan {
            tests: plan.tests.into(),
            typed: plan.typed,
            text: plan.text,
        });
        Self {
            properties: properties.into(),
            headers,
            slots: slots.collect(),
            tests: compiler.tests.into(),
            nodes: compiler.nodes.into(),
            root,
        }
    }
}

struct Compiler<'a> {
    names: Vec<&'a Name>,
    plans: Vec<Plan>,
    tests: Vec<Test>,
    nodes: Vec<Node>,
}

#[derive(Clone, Default)]
struct Plan {
    tests: Vec<u8>,
    typed: bool,
    text: bool,
}

impl Compiler<'_> {
    fn condition(&mut self, condition: &Condition) -> u16 {
        let (node, negated) = match condition {
            Condition::Literal(value) => (Node::Literal(Some(*value)), false),
            Condition::Name(name) => (Node::Boolean { slot: self.typed(name) }, false),
            Condition::Not(inner) => (Node::Not(self.condition(inner)), false),
            Condition::And(left, right) => (Node::And(self.condition(left), self.condition(right)), false),
            Condition::Or(left, right) => (Node::Or(self.condition(left), self.condition(right)), false),
            Condition::Compare {
                comparison: c @ (Comparison::Equal | Comparison::NotEqual),
                left,
                right,
            } => (self.equal(left, right), *c == Comparison::NotEqual),
            Condition::Compare { comparison, left, right } => {
                (Node::Compare(*comparison, self.number(left), self.number(right)), false)
            }
            Condition::Between { value, low, high, negated } => {
                let value = self.number(value);
                let (low, high) = (self.number(low), self.number(high));
                let low = self.push(Node::Compare(Comparison::GreaterOrEqual, value, low));
                let high = self.push(Node::Compare(Comparison::LessOrEqual, value, high));
                (Node::And(low, high), *negated)
            }
            Condition::Like { name, pattern, escape, negated } => {
                let pattern = Pattern::new(pattern, *escape).expect("the parser has read the pattern");
                (self.test(name, Test::Like(pattern)), *negated)
            }
            Condition::In { name, values, negated } => {
                let mut values = values.clone();
                values.sort_unstable();
                (self.test(name, Test::In(values.into())), *negated)
            }
            Condition::IsNull { name, negated } => (Node::IsNull { slot: self.slot(name) }, *negated),
        };
        let node = self.push(node);
        if negated { self.push(Node::Not(node)) } else { node }
    }

    /// Equality takes every type; types that cannot be equal are unknown.
    fn equal(&mut self, left: &Operand, right: &Operand) -> Node {
        match (left, right) {
            (Operand::Name(left), Operand::Name(right)) => {
                let (left, right) = (self.typed(left), self.typed(right));
                for slot in [left, right] {
                    self.plan(slot).text = true;
                }
                Node::Same { left, right }
            }
            (Operand::Name(name), Operand::Text(text)) | (Operand::Text(text), Operand::Name(name)) => {
                self.test(name, Test::Equal(text.clone()))
            }
            (Operand::Name(name), Operand::Boolean(value))
            | (Operand::Boolean(value), Operand::Name(name)) => {
                Node::Is { slot: self.typed(name), value: *value }
            }
            (Operand::Text(left), Operand::Text(right)) => Node::Literal(Some(left == right)),
            (Operand::Boolean(left), Operand::Boolean(right)) => Node::Literal(Some(left == right)),
            (Operand::Text(_) | Operand::Boolean(_), _) | (_, Operand::Text(_) | Operand::Boolean(_)) => {
                Node::Literal(None)
            }
            _ => Node::Compare(Comparison::Equal, self.number(left), self.number(right)),
        }
    }

    fn number(&mut self, operand: &Operand) -> u16 {
        let node = match operand {
            Operand::Number(number) => Node::Number(*number),
            Operand::Name(name) => Node::Property { slot: self.typed(name) },
            Operand::Signed { minus: false, operand } => return self.number(operand),
            Operand::Signed { minus: true, operand } => Node::Negative(self.number(operand)),
            Operand::Arithmetic { operator, left, right } => {
                Node::Calculate(*operator, self.number(left), self.number(right))
            }
            // The parser lets no text and no boolean through to here.
            Operand::Text(_) | Operand::Boolean(_) => Node::Literal(None),
        };
        self.push(node)
    }

    fn test(&mut self, name: &Name, test: Test) -> Node {
        let number = index(self.tests.len());
        self.tests.push(test);
        let slot = self.slot(name);
        self.plan(slot).tests.push(number);
        Node::Test(number)
    }

    fn typed(&mut self, name: &Name) -> u8 {
        let slot = self.slot(name);
        self.plan(slot).typed = true;
        slot
    }

    fn slot(&self, name: &Name) -> u8 {
        index(self.names.binary_search(&name).expect("every name of the selector was collected"))
    }

    fn plan(&mut self, slot: u8) -> &mut Plan {
        self.plans.get_mut(usize::from(slot)).expect("every name has a plan")
    }

    fn push(&mut self, node: Node) -> u16 {
        self.nodes.push(node);
        u16::try_from(self.nodes.len() - 1).expect("at most 4 steps for each of at most 64 nodes")
    }
}

fn index(number: usize) -> u8 {
    u8::try_from(number).expect("at most 64 names and tests")
}

fn names_of_condition<'a>(condition: &'a Condition, names: &mut Vec<&'a Name>) {
    match condition {
        Condition::Literal(_) => {}
        Condition::Not(inner) => names_of_condition(inner, names),
        Condition::And(left, right) | Condition::Or(left, right) => {
            names_of_condition(left, names);
            names_of_condition(right, names);
        }
        Condition::Compare { left, right, .. } => {
            names_of_operand(left, names);
            names_of_operand(right, names);
        }
        Condition::Between { value, low, high, .. } => {
            names_of_operand(value, names);
            names_of_operand(low, names);
            names_of_operand(high, names);
        }
        Condition::Name(name)
        | Condition::Like { name, .. }
        | Condition::In { name, .. }
        | Condition::IsNull { name, .. } => names.push(name),
    }
}

fn names_of_operand<'a>(operand: &'a Operand, names: &mut Vec<&'a Name>) {
    match operand {
        Operand::Name(name) => names.push(name),
        Operand::Signed { operand, .. } => names_of_operand(operand, names),
        Operand::Arithmetic { left, right, .. } => {
            names_of_operand(left, names);
            names_of_operand(right, names);
        }
        Operand::Text(_) | Operand::Boolean(_) | Operand::Number(_) => {}
    }
}
