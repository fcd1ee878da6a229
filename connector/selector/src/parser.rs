//! Tokens to a tree, with the types checked as far as the text shows them.
//!
//! A parenthesis may hold a condition or a value, so one recursive descent reads both and each operator says
//! what it needs. Recursion is bounded by `SELECTOR_DEPTH_MAX`, the tree by `SELECTOR_NODES_MAX`.

use berth_types::limits::{
    SELECTOR_BYTES_MAX, SELECTOR_DEPTH_MAX, SELECTOR_IN_VALUES_MAX, SELECTOR_NODES_MAX,
};

use crate::ast::{Condition, Header, Name, Operand};
use crate::error::{SelectorError, quote};
use crate::lexer::{Keyword, Lexer, Token};
use crate::like::Pattern;
use crate::value::{Arithmetic, Comparison, Number};

type Result<T> = std::result::Result<T, SelectorError>;

/// Reads a whole selector.
pub(crate) fn parse(text: &str) -> Result<Condition> {
    if text.len() > SELECTOR_BYTES_MAX {
        let problem = format!("a selector has at most {SELECTOR_BYTES_MAX} bytes");
        return Err(SelectorError { column: 1, problem });
    }
    let mut parser = Parser { lexer: Lexer::new(text), token: Token::End, at: 0, depth: 0, nodes: 0 };
    parser.advance()?;
    if parser.token == Token::End {
        return Err(SelectorError { column: 1, problem: "the selector is empty".into() });
    }
    let parsed = parser.disjunction()?;
    if parser.token != Token::End {
        return Err(parser.unexpected("AND, OR or the end is expected"));
    }
    parser.condition(parsed)
}

struct Parser<'a> {
    lexer: Lexer<'a>,
    /// The token that is looked at.
    token: Token<'a>,
    /// The byte offset at which it starts.
    at: usize,
    depth: usize,
    nodes: usize,
}

/// A part of the selector and the byte offset at which it starts.
struct Parsed {
    expression: Expression,
    at: usize,
}

enum Expression {
    Condition(Condition),
    Operand(Operand),
}

// The levels of precedence, lowest first.
impl Parser<'_> {
    fn disjunction(&mut self) -> Result<Parsed> {
        let mut left = self.conjunction()?;
        while self.token == Token::Keyword(Keyword::Or) {
            self.operator()?;
            let at = left.at;
            let right = self.conjunction()?;
            let both = (Box::new(self.condition(left)?), Box::new(self.condition(right)?));
            left = Parsed::condition(Condition::Or(both.0, both.1), at);
        }
        Ok(left)
    }

    fn conjunction(&mut self) -> Result<Parsed> {
        let mut left = self.negation()?;
        while self.token == Token::Keyword(Keyword::And) {
            self.operator()?;
            let at = left.at;
            let right = self.negation()?;
            let both = (Box::new(self.condition(left)?), Box::new(self.condition(right)?));
            left = Parsed::condition(Condition::And(both.0, both.1), at);
        }
        Ok(left)
    }

    fn negation(&mut self) -> Result<Parsed> {
        if self.token != Token::Keyword(Keyword::Not) {
            return self.predicate();
        }
        let at = self.at;
        self.operator()?;
        let inner = self.deeper(Self::negation)?;
        Ok(Parsed::condition(Condition::Not(Box::new(self.condition(inner)?)), at))
    }

    fn predicate(&mut self) -> Result<Parsed> {
        let left = self.sum()?;
        if let Token::Symbol(symbol) = self.token {
            return match comparison(symbol) {
                Some(comparison) => self.comparison(left, comparison),
                None => Ok(left),
            };
        }
        if self.token == Token::Keyword(Keyword::Is) {
            return self.is_null(left);
        }
        let negated = self.token == Token::Keyword(Keyword::Not);
        if negated {
            self.advance()?;
        }
        match self.token {
            Token::Keyword(Keyword::Between) => self.between(left, negated),
            Token::Keyword(Keyword::Like) => self.like(left, negated),
            Token::Keyword(Keyword::In) => self.is_in(left, negated),
            _ if negated => Err(self.unexpected("BETWEEN, LIKE or IN is expected")),
            _ => Ok(left),
        }
    }

    fn sum(&mut self) -> Result<Parsed> {
        let mut left = self.product()?;
        while let Token::Symbol(symbol @ ("+" | "-")) = self.token {
            self.operator()?;
            let right = self.product()?;
            let operator = if symbol == "+" { Arithmetic::Add } else { Arithmetic::Subtract };
            left = self.arithmetic(operator, left, right)?;
        }
        Ok(left)
    }

    fn product(&mut self) -> Result<Parsed> {
        let mut left = self.signed()?;
        while let Token::Symbol(symbol @ ("*" | "/")) = self.token {
            self.operator()?;
            let right = self.signed()?;
            let operator = if symbol == "*" { Arithmetic::Multiply } else { Arithmetic::Divide };
            left = self.arithmetic(operator, left, right)?;
        }
        Ok(left)
    }

    fn signed(&mut self) -> Result<Parsed> {
        let Token::Symbol(symbol @ ("+" | "-")) = self.token else { return self.primary() };
        let at = self.at;
        let minus = symbol == "-";
        self.advance()?;
        // Only with its minus is 2^63 a long.
        if minus && self.token == Token::Exact(1 << 63) {
            self.operator()?;
            return Ok(Parsed::operand(Operand::Number(Number::Exact(i64::MIN)), at));
        }
        let inner = self.deeper(Self::signed)?;
        let operand = match self.number(inner)? {
            Operand::Number(number) => Operand::Number(if minus { number.negate() } else { number }),
            operand => {
                self.count()?;
                Operand::Signed { minus, operand: Box::new(operand) }
            }
        };
        Ok(Parsed::operand(operand, at))
    }

    fn primary(&mut self) -> Result<Parsed> {
        let at = self.at;
        if self.token == Token::Symbol("(") {
            self.advance()?;
            let inner = self.deeper(Self::disjunction)?;
            self.expect(")")?;
            return Ok(Parsed { at, ..inner });
        }
        let operand = match std::mem::replace(&mut self.token, Token::End) {
            Token::Name(name) => Operand::Name(self.name(name)?),
            Token::Text(text) => Operand::Text(text),
            Token::Keyword(Keyword::True) => Operand::Boolean(true),
            Token::Keyword(Keyword::False) => Operand::Boolean(false),
            Token::Approximate(number) => Operand::Number(Number::Approximate(number)),
            Token::Exact(number) => match i64::try_from(number) {
                Ok(number) => Operand::Number(Number::Exact(number)),
                Err(_) => return Err(self.error(at, "the number is too large")),
            },
            token => {
                self.token = token;
                return Err(self.unexpected("a value is expected"));
            }
        };
        self.operator()?;
        Ok(Parsed::operand(operand, at))
    }
}

// The operators.
impl Parser<'_> {
    fn comparison(&mut self, left: Parsed, comparison: Comparison) -> Result<Parsed> {
        let at = left.at;
        self.operator()?;
        let right = self.sum()?;
        let (left, right) = if matches!(comparison, Comparison::Equal | Comparison::NotEqual) {
            (self.operand(left)?, self.operand(right)?)
        } else {
            (self.number(left)?, self.number(right)?)
        };
        Ok(Parsed::condition(Condition::Compare { comparison, left, right }, at))
    }

    fn between(&mut self, value: Parsed, negated: bool) -> Result<Parsed> {
        let at = value.at;
        let value = self.number(value)?;
        self.operator()?;
        let low = self.sum()?;
        let low = self.number(low)?;
        if self.token != Token::Keyword(Keyword::And) {
            return Err(self.unexpected("the AND of BETWEEN is expected"));
        }
        self.advance()?;
        let high = self.sum()?;
        let high = self.number(high)?;
        Ok(Parsed::condition(Condition::Between { value, low, high, negated }, at))
    }

    fn like(&mut self, left: Parsed, negated: bool) -> Result<Parsed> {
        let at = left.at;
        let name = self.property(left, "LIKE")?;
        self.operator()?;
        let pattern_at = self.at;
        let pattern = self.text("a pattern in single quotes is expected")?;
        let mut escape = None;
        if self.token == Token::Keyword(Keyword::Escape) {
            self.advance()?;
            let escape_at = self.at;
            let text = self.text("the escape character in single quotes is expected")?;
            let mut chars = text.chars();
            escape = chars.next();
            if escape.is_none() || chars.next().is_some() {
                return Err(self.error(escape_at, "ESCAPE takes exactly one character"));
            }
        }
        Pattern::new(&pattern, escape).map_err(|problem| self.error(pattern_at, problem))?;
        Ok(Parsed::condition(Condition::Like { name, pattern, escape, negated }, at))
    }

    fn is_in(&mut self, left: Parsed, negated: bool) -> Result<Parsed> {
        let at = left.at;
        let name = self.property(left, "IN")?;
        self.operator()?;
        self.expect("(")?;
        let mut values = Vec::new();
        loop {
            if values.len() == SELECTOR_IN_VALUES_MAX {
                let problem = format!("IN takes at most {SELECTOR_IN_VALUES_MAX} values");
                return Err(self.error(self.at, problem));
            }
            values.push(self.text("IN takes texts in single quotes; one is expected")?);
            if self.token != Token::Symbol(",") {
                break;
            }
            self.advance()?;
        }
        self.expect(")")?;
        Ok(Parsed::condition(Condition::In { name, values, negated }, at))
    }

    fn is_null(&mut self, left: Parsed) -> Result<Parsed> {
        let at = left.at;
        let name = self.property(left, "IS NULL")?;
        self.operator()?;
        let negated = self.token == Token::Keyword(Keyword::Not);
        if negated {
            self.advance()?;
        }
        if self.token != Token::Keyword(Keyword::Null) {
            return Err(self.unexpected("NULL is expected"));
        }
        self.advance()?;
        Ok(Parsed::condition(Condition::IsNull { name, negated }, at))
    }

    fn arithmetic(&self, operator: Arithmetic, left: Parsed, right: Parsed) -> Result<Parsed> {
        let at = left.at;
        let (left, right) = (Box::new(self.number(left)?), Box::new(self.number(right)?));
        Ok(Parsed::operand(Operand::Arithmetic { operator, left, right }, at))
    }

    fn name(&self, name: &str) -> Result<Name> {
        if let Some(header) = Header::ALL.into_iter().find(|header| header.name() == name) {
            return Ok(Name::Header(header));
        }
        let foreign = name.starts_with("JMS") && !name.starts_with("JMSX") && !name.starts_with("JMS_");
        if foreign {
            let problem = format!("{} is no header that a selector can use", quote(name));
            return Err(self.error(self.at, problem));
        }
        Ok(Name::Property(name.into()))
    }
}

// What an operator needs, and the tokens.
impl<'a> Parser<'a> {
    fn condition(&self, parsed: Parsed) -> Result<Condition> {
        match parsed.expression {
            Expression::Condition(condition) => Ok(condition),
            Expression::Operand(Operand::Boolean(value)) => Ok(Condition::Literal(value)),
            Expression::Operand(Operand::Name(name)) => Ok(Condition::Name(name)),
            Expression::Operand(_) => {
                Err(self.error(parsed.at, "a condition is expected, and this is a number or a text"))
            }
        }
    }

    fn operand(&self, parsed: Parsed) -> Result<Operand> {
        match parsed.expression {
            Expression::Operand(operand) => Ok(operand),
            Expression::Condition(_) => {
                Err(self.error(parsed.at, "a value is expected, and this is a condition"))
            }
        }
    }

    fn number(&self, parsed: Parsed) -> Result<Operand> {
        let at = parsed.at;
        match self.operand(parsed)? {
            Operand::Text(_) | Operand::Boolean(_) => {
                Err(self.error(at, "a number is expected; text and booleans only go with = and <>"))
            }
            operand => Ok(operand),
        }
    }

    fn property(&self, parsed: Parsed, operator: &str) -> Result<Name> {
        match parsed.expression {
            Expression::Operand(Operand::Name(name)) => Ok(name),
            _ => Err(self.error(parsed.at, format!("{operator} needs the name of a property before it"))),
        }
    }

    fn text(&mut self, expected: &str) -> Result<Box<str>> {
        let Token::Text(text) = &mut self.token else { return Err(self.unexpected(expected)) };
        let text = std::mem::take(text);
        self.advance()?;
        Ok(text)
    }

    fn expect(&mut self, symbol: &'static str) -> Result<()> {
        if self.token != Token::Symbol(symbol) {
            return Err(self.unexpected(&format!("{symbol} is expected")));
        }
        self.advance()
    }

    /// Reads something that stands within something else.
    fn deeper(&mut self, read: fn(&mut Self) -> Result<Parsed>) -> Result<Parsed> {
        if self.depth == SELECTOR_DEPTH_MAX {
            let problem =
                format!("more than {SELECTOR_DEPTH_MAX} parentheses, NOTs or signs within each other");
            return Err(self.error(self.at, problem));
        }
        self.depth += 1;
        let parsed = read(self);
        self.depth -= 1;
        parsed
    }

    /// Goes past a token that becomes a node of its own.
    fn operator(&mut self) -> Result<()> {
        self.count()?;
        self.advance()
    }

    fn count(&mut self) -> Result<()> {
        if self.nodes == SELECTOR_NODES_MAX {
            let problem =
                format!("a selector has at most {SELECTOR_NODES_MAX} operators, names and literals");
            return Err(self.error(self.at, problem));
        }
        self.nodes += 1;
        Ok(())
    }

    fn advance(&mut self) -> Result<()> {
        (self.token, self.at) = self.lexer.next_token()?;
        Ok(())
    }

    /// `expected`, not what is there.
    fn unexpected(&self, expected: &str) -> SelectorError {
        let text = self.lexer.text().get(self.at..self.lexer.offset()).unwrap_or_default();
        let found = if text.is_empty() { "the end".into() } else { quote(text) };
        self.error(self.at, format!("{expected}, not {found}"))
    }

    fn error(&self, at: usize, problem: impl Into<String>) -> SelectorError {
        SelectorError::at(self.lexer.text(), at, problem)
    }
}

impl Parsed {
    const fn condition(condition: Condition, at: usize) -> Self {
        Self { expression: Expression::Condition(condition), at }
    }

    const fn operand(operand: Operand, at: usize) -> Self {
        Self { expression: Expression::Operand(operand), at }
    }
}

fn comparison(symbol: &str) -> Option<Comparison> {
    Some(match symbol {
        "=" => Comparison::Equal,
        "<>" => Comparison::NotEqual,
        "<" => Comparison::Less,
        "<=" => Comparison::LessOrEqual,
        ">" => Comparison::Greater,
        ">=" => Comparison::GreaterOrEqual,
        _ => return None,
    })
}
