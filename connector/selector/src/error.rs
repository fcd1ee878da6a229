//! What is wrong with the text of a selector, in words for the person who wrote it.

use std::fmt;

/// Why a text is no selector.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SelectorError {
    /// Where, in characters from 1; one past the end when the text ends too early.
    pub column: usize,
    /// What, in one line. Quotes at most 32 characters of the text, control characters escaped.
    pub problem: String,
}

impl SelectorError {
    /// A problem at a byte offset of `text`.
    pub(crate) fn at(text: &str, offset: usize, problem: impl Into<String>) -> Self {
        let column = text.char_indices().take_while(|(at, _)| *at < offset).count() + 1;
        Self { column, problem: problem.into() }
    }
}

impl fmt::Display for SelectorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "column {}: {}", self.column, self.problem)
    }
}

impl std::error::Error for SelectorError {}

/// A piece of the user's text, cut and printable.
pub(crate) fn quote(piece: &str) -> String {
    let mut quoted: String = piece.chars().take(QUOTED_CHARS_MAX).flat_map(char::escape_debug).collect();
    if piece.chars().nth(QUOTED_CHARS_MAX).is_some() {
        quoted.push_str("...");
    }
    quoted
}

const QUOTED_CHARS_MAX: usize = 32;
