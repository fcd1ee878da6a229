//! Text to tokens. Knows spelling, not grammar.

use crate::error::{SelectorError, quote};

/// One token.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Token<'a> {
    Name(&'a str),
    Keyword(Keyword),
    Text(Box<str>),
    /// A whole number without its sign; up to 2^63, which only a minus makes a `long`.
    Exact(u64),
    Approximate(f64),
    /// One of `( ) , + - * / = <> < <= > >=`.
    Symbol(&'static str),
    End,
}

/// The words that cannot be names. Any case.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Keyword {
    And,
    Between,
    Escape,
    False,
    In,
    Is,
    Like,
    Not,
    Null,
    Or,
    True,
}

/// Reads the tokens of a text, one after the other.
#[derive(Debug)]
pub(crate) struct Lexer<'a> {
    text: &'a str,
    /// Byte offset of what is read next.
    offset: usize,
}

impl<'a> Lexer<'a> {
    pub(crate) const fn new(text: &'a str) -> Self {
        Self { text, offset: 0 }
    }

    /// The whole text.
    pub(crate) const fn text(&self) -> &'a str {
        self.text
    }

    /// Where the last token ended.
    pub(crate) const fn offset(&self) -> usize {
        self.offset
    }

    /// The next token and the byte offset at which it starts; `End` for ever after the last.
    pub(crate) fn next_token(&mut self) -> Result<(Token<'a>, usize), SelectorError> {
        let rest = self.rest();
        let rest = rest.trim_start_matches([' ', '\t', '\n', '\r', '\x0c']);
        self.offset = self.text.len() - rest.len();
        let start = self.offset;
        let Some(first) = rest.chars().next() else { return Ok((Token::End, start)) };
        let token = if starts_name(first) {
            self.name()
        } else if first.is_ascii_digit() || rest.strip_prefix('.').is_some_and(starts_with_digit) {
            self.number()?
        } else if first == '\'' {
            self.quoted()?
        } else if let Some(symbol) = SYMBOLS.iter().find(|symbol| rest.starts_with(**symbol)) {
            self.offset += symbol.len();
            Token::Symbol(symbol)
        } else {
            let problem = match first {
                '"' => "text stands in single quotes".into(),
                '!' => "write <> for \"not equal\"".into(),
                _ => format!("{} has no meaning here", quote(first.encode_utf8(&mut [0; 4]))),
            };
            return Err(self.error(start, problem));
        };
        Ok((token, start))
    }

    fn name(&mut self) -> Token<'a> {
        let name = self.take_while(continues_name);
        keyword(name).map_or(Token::Name(name), Token::Keyword)
    }

    fn quoted(&mut self) -> Result<Token<'a>, SelectorError> {
        let start = self.offset;
        self.offset += 1;
        let mut text = String::new();
        loop {
            text.push_str(self.take_while(|c| c != '\''));
            if !self.take("'") {
                return Err(self.error(start, "the text that starts here has no closing quote"));
            }
            if !self.take("'") {
                return Ok(Token::Text(text.into()));
            }
            text.push('\'');
        }
    }

    /// Java's literals of `long` and `double`: decimal, `0x`, octal after a leading 0, `L`; fraction,
    /// exponent, `F`, `D`.
    fn number(&mut self) -> Result<Token<'a>, SelectorError> {
        let start = self.offset;
        let token = if self.take("0x") || self.take("0X") {
            let digits = self.take_while(|c| c.is_ascii_hexdigit());
            self.exact(start, digits, 16)?
        } else {
            self.decimal(start)?
        };
        if self.rest().starts_with(continues_name) {
            self.take_while(continues_name);
            return Err(self.error(start, format!("{} is no number", quote(self.since(start)))));
        }
        Ok(token)
    }

    fn decimal(&mut self, start: usize) -> Result<Token<'a>, SelectorError> {
        let digits = self.take_while(|c| c.is_ascii_digit());
        let mut fraction = self.take(".");
        if fraction {
            self.take_while(|c| c.is_ascii_digit());
        }
        let exponent = self.rest().strip_prefix(['e', 'E']).unwrap_or_default();
        if starts_with_digit(exponent.strip_prefix(['+', '-']).unwrap_or(exponent)) {
            self.offset += 2;
            self.take_while(|c| c.is_ascii_digit());
            fraction = true;
        }
        let written = self.since(start);
        if self.take("f") || self.take("F") || self.take("d") || self.take("D") {
            fraction = true;
        }
        if !fraction {
            let radix = if digits.len() > 1 && digits.starts_with('0') { 8 } else { 10 };
            return self.exact(start, digits, radix);
        }
        match written.parse::<f64>() {
            Ok(number) if number.is_finite() => Ok(Token::Approximate(number)),
            _ => Err(self.error(start, format!("{} is too large", quote(written)))),
        }
    }

    fn exact(&mut self, start: usize, digits: &str, radix: u32) -> Result<Token<'a>, SelectorError> {
        let _suffix = self.take("L") || self.take("l");
        let number = u64::from_str_radix(digits, radix).ok().filter(|number| *number <= 1 << 63);
        number.map(Token::Exact).ok_or_else(|| {
            let all_digits = !digits.is_empty() && digits.chars().all(|c| c.is_digit(radix));
            let what = if all_digits { "is too large" } else { "is no number" };
            self.error(start, format!("{} {what}", quote(self.since(start))))
        })
    }

    fn rest(&self) -> &'a str {
        self.text.get(self.offset..).unwrap_or_default()
    }

    fn since(&self, start: usize) -> &'a str {
        self.text.get(start..self.offset).unwrap_or_default()
    }

    fn take(&mut self, prefix: &str) -> bool {
        let there = self.rest().starts_with(prefix);
        if there {
            self.offset += prefix.len();
        }
        there
    }

    fn take_while(&mut self, belongs: impl Fn(char) -> bool) -> &'a str {
        let start = self.offset;
        let rest = self.rest();
        self.offset += rest.find(|c| !belongs(c)).unwrap_or(rest.len());
        self.since(start)
    }

    fn error(&self, offset: usize, problem: impl Into<String>) -> SelectorError {
        SelectorError::at(self.text, offset, problem)
    }
}

/// Longer ones first.
const SYMBOLS: [&str; 13] = ["<>", "<=", ">=", "<", ">", "=", "(", ")", ",", "+", "-", "*", "/"];

fn keyword(name: &str) -> Option<Keyword> {
    const WORDS: [(&str, Keyword); 11] = [
        ("AND", Keyword::And),
        ("BETWEEN", Keyword::Between),
        ("ESCAPE", Keyword::Escape),
        ("FALSE", Keyword::False),
        ("IN", Keyword::In),
        ("IS", Keyword::Is),
        ("LIKE", Keyword::Like),
        ("NOT", Keyword::Not),
        ("NULL", Keyword::Null),
        ("OR", Keyword::Or),
        ("TRUE", Keyword::True),
    ];
    WORDS.iter().find(|(word, _)| word.eq_ignore_ascii_case(name)).map(|(_, keyword)| *keyword)
}

fn starts_name(c: char) -> bool {
    c == '_' || c == '$' || c.is_alphabetic()
}

fn continues_name(c: char) -> bool {
    c == '_' || c == '$' || c.is_alphanumeric()
}

fn starts_with_digit(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn only(text: &str) -> Result<Token<'_>, String> {
        let mut lexer = Lexer::new(text);
        let (token, _) = lexer.next_token().map_err(|error| error.to_string())?;
        assert_eq!(lexer.next_token(), Ok((Token::End, text.len())), "{text}");
        Ok(token)
    }

    #[test]
    fn literals_of_java() {
        for (text, number) in [("57", 57), ("0", 0), ("0x1F", 31), ("0XffL", 255), ("017", 15), ("12l", 12)] {
            assert_eq!(only(text), Ok(Token::Exact(number)), "{text}");
        }
        assert_eq!(only("9223372036854775808"), Ok(Token::Exact(1 << 63)));
        for (text, number) in [
            ("7.", 7.0),
            ("95.7", 95.7),
            (".5", 0.5),
            ("7E3", 7e3),
            ("57.9e-2", 0.579),
            ("2f", 2.0),
            ("1.5D", 1.5),
        ] {
            assert_eq!(only(text), Ok(Token::Approximate(number)), "{text}");
        }
        for text in ["09", "0x", "1_000", "5x", "1e", "0b1", "1.5L", "7.e", "08.5x"] {
            assert_eq!(only(text), Err(format!("column 1: {text} is no number")), "{text}");
        }
        for text in ["9223372036854775809", "0x8000000000000001", "1e999"] {
            assert_eq!(only(text), Err(format!("column 1: {text} is too large")), "{text}");
        }
    }

    #[test]
    fn text_and_names() {
        assert_eq!(only("'it''s'"), Ok(Token::Text("it's".into())));
        assert_eq!(only("''"), Ok(Token::Text("".into())));
        assert_eq!(only("''''"), Ok(Token::Text("'".into())));
        assert_eq!(only("'a"), Err("column 1: the text that starts here has no closing quote".into()));
        assert_eq!(only("$_größe1"), Ok(Token::Name("$_größe1")));
        assert_eq!(only("bEtWeen"), Ok(Token::Keyword(Keyword::Between)));
        assert_eq!(only("NULLS"), Ok(Token::Name("NULLS")));
        assert_eq!(only("\"a\""), Err("column 1: text stands in single quotes".into()));
        assert_eq!(only("#"), Err("column 1: # has no meaning here".into()));
        assert_eq!(only("."), Err("column 1: . has no meaning here".into()));
    }
}
