//! Message selectors: conditions over a message's properties, in the syntax that Jakarta Messaging took from
//! SQL-92 (Jakarta Messaging 3.1, "Message selector syntax").
//!
//! [`SqlSelector::parse`] turns text into a program or says what is wrong and where. The program reads a
//! message through [`View`], whatever its encoding, and answers true, false or unknown; only true selects.
//! The language for users is described in `docs/guide/selectors.md`. The crate does not read heads of
//! messages and knows no protocol; it combines a selector with nothing else, so no precedence can get lost.
//!
//! ```
//! use berth_engine::port::Selector;
//! use berth_selector::SqlSelector;
//! use berth_types::{Field, Value, View};
//!
//! struct Order;
//! impl View for Order {
//!     fn visit(&self, f: &mut dyn FnMut(Field<'_>, Value<'_>)) {
//!         f(Field::User("region"), Value::Text("EMEA"));
//!         f(Field::User("price"), Value::Untyped("11"));
//!     }
//! }
//!
//! let selector = SqlSelector::parse("region IN ('EMEA', 'APAC') AND price > 10").unwrap();
//! assert!(selector.matches(&Order));
//! let error = SqlSelector::parse("price => 10").unwrap_err();
//! assert_eq!(error.to_string(), "column 8: a value is expected, not >");
//! ```
//!
//! Invariants: no input panics or recurses beyond the bounds in `berth_types::limits`; an evaluation visits
//! the message once and costs one step per node and, for LIKE, one per character; it allocates only where
//! two properties are compared with each other.

#![deny(clippy::indexing_slicing)]

mod ast;
mod error;
mod eval;
#[doc(hidden)]
pub mod fuzz;
mod lexer;
mod like;
mod parser;
mod program;
#[cfg(test)]
mod properties;
mod value;

use std::sync::Arc;

use berth_engine::port::Selector;
use berth_types::View;

pub use error::SelectorError;

use program::Program;

/// A selector, ready to be asked.
#[derive(Clone, Debug)]
pub struct SqlSelector {
    text: Box<str>,
    program: Arc<Program>,
}

impl SqlSelector {
    /// Reads a selector. A blank text is an error too: whether it means "no selector" is for the protocol to
    /// say.
    ///
    /// # Errors
    /// What is wrong with the text, and at which column: the syntax, a value whose type can never fit, a name
    /// that no selector can use, or a bound of `berth_types::limits`.
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        let condition = parser::parse(text)?;
        Ok(Self { text: text.into(), program: Arc::new(Program::new(&condition)) })
    }

    /// The answer for a message: none is "unknown", and does not select.
    pub fn evaluate(&self, message: &dyn View) -> Option<bool> {
        self.program.evaluate(message)
    }
}

impl Selector for SqlSelector {
    fn matches(&self, message: &dyn View) -> bool {
        self.evaluate(message) == Some(true)
    }

    fn text(&self) -> &str {
        &self.text
    }
}
