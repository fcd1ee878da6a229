//! LIKE: `%` stands for any characters, `_` for one. Linear: one step per character of the text and pattern,
//! whatever they are.
//!
//! A pattern is cut at its `%` into segments. The first is the start of the text and the last its end; the
//! ones between are found from left to right, each at its first place, and nothing is ever tried again. A
//! segment of letters is found by the standard library's linear search, one with `_` by a search whose state
//! is one machine word (Baeza-Yates and Gonnet, "A new approach to text searching").

use berth_types::limits::SELECTOR_LIKE_SEGMENT_CHARS_MAX;

/// A pattern, ready to be compared.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Pattern {
    first: Segment,
    /// None: no `%`, the first segment is the whole text.
    rest: Option<Rest>,
}

#[derive(Clone, PartialEq, Debug)]
struct Rest {
    between: Box<[Segment]>,
    last: Segment,
}

/// What stands between two `%`.
#[derive(Clone, PartialEq, Debug)]
enum Segment {
    Letters(Box<str>),
    /// None is `_`.
    Mixed {
        chars: Box<[Option<char>]>,
        /// In which places a character stands, as bits; ordered by character.
        places: Box<[(char, u64)]>,
        /// In which places a `_` stands.
        any: u64,
    },
}

impl Pattern {
    /// Reads a pattern.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn new(pattern: &str, escape: Option<char>) -> Result<Self, &'static str> {
        let mut segments = vec![Vec::new()];
        let mut chars = pattern.chars();
        while let Some(c) = chars.next() {
            let element = if Some(c) == escape {
                match chars.next() {
                    Some(c @ ('%' | '_')) => Some(c),
                    Some(c) if Some(c) == escape => Some(c),
                    _ => return Err("the escape character must stand before %, _ or itself"),
                }
            } else if c == '%' {
                segments.push(Vec::new());
                continue;
            } else {
                (c != '_').then_some(c)
            };
            if let Some(segment) = segments.last_mut() {
                segment.push(element);
            }
        }
        let mut segments = segments.into_iter().map(Segment::new).collect::<Result<Vec<_>, _>>()?.into_iter();
        let first = segments.next().expect("a pattern has a segment more than it has %");
        let rest = segments.next_back().map(|last| {
            let between = segments.filter(|segment| !segment.is_empty()).collect();
            Rest { between, last }
        });
        Ok(Self { first, rest })
    }

    /// Whether the whole text is like the pattern.
    pub(crate) fn matches(&self, text: &str) -> bool {
        let Some(mut left) = self.first.strip_start(text) else { return false };
        let Some(rest) = &self.rest else { return left.is_empty() };
        for segment in &rest.between {
            match segment.find_end(left).and_then(|end| left.get(end..)) {
                Some(behind) => left = behind,
                None => return false,
            }
        }
        rest.last.ends(left)
    }
}

impl Segment {
    fn new(elements: Vec<Option<char>>) -> Result<Self, &'static str> {
        if let Some(letters) = elements.iter().copied().collect::<Option<String>>() {
            return Ok(Self::Letters(letters.into()));
        }
        if elements.len() > SELECTOR_LIKE_SEGMENT_CHARS_MAX {
            return Err("the pattern has more than 64 characters between two %, with _ among them");
        }
        let mut places: Vec<(char, u64)> = Vec::new();
        let mut any = 0;
        for (place, element) in elements.iter().enumerate() {
            let bit = 1_u64 << place;
            match element {
                None => any |= bit,
                Some(c) => match places.iter_mut().find(|(known, _)| known == c) {
                    Some((_, bits)) => *bits |= bit,
                    None => places.push((*c, bit)),
                },
            }
        }
        places.sort_unstable();
        Ok(Self::Mixed { chars: elements.into(), places: places.into(), any })
    }

    fn is_empty(&self) -> bool {
        matches!(self, Self::Letters(letters) if letters.is_empty())
    }

    /// The text behind the segment, when it starts with it.
    fn strip_start<'a>(&self, text: &'a str) -> Option<&'a str> {
        match self {
            Self::Letters(letters) => text.strip_prefix(&**letters),
            Self::Mixed { chars, .. } => {
                let mut rest = text.chars();
                let fits = chars.iter().all(|element| fits(*element, rest.next()));
                fits.then_some(rest.as_str())
            }
        }
    }

    fn ends(&self, text: &str) -> bool {
        match self {
            Self::Letters(letters) => text.ends_with(&**letters),
            Self::Mixed { chars, .. } => {
                let mut rest = text.chars().rev();
                chars.iter().rev().all(|element| fits(*element, rest.next()))
            }
        }
    }

    /// Where the first occurrence ends, in bytes.
    fn find_end(&self, text: &str) -> Option<usize> {
        match self {
            Self::Letters(letters) => text.find(&**letters).map(|start| start + letters.len()),
            Self::Mixed { chars, places, any } => {
                let done = 1_u64 << (chars.len() - 1);
                let mut state = 0_u64;
                text.char_indices().find_map(|(at, c)| {
                    let bits = places.binary_search_by_key(&c, |(c, _)| *c).ok().and_then(|i| places.get(i));
                    state = (state << 1 | 1) & (any | bits.map_or(0, |(_, bits)| *bits));
                    (state & done != 0).then(|| at + c.len_utf8())
                })
            }
        }
    }
}

fn fits(element: Option<char>, c: Option<char>) -> bool {
    c.is_some() && (element.is_none() || element == c)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn like(text: &str, pattern: &str) -> bool {
        Pattern::new(pattern, Some('\\')).unwrap().matches(text)
    }

    #[test]
    fn table() {
        for (text, pattern) in [
            ("", ""),
            ("", "%"),
            ("", "%%"),
            ("123", "12%3"),
            ("12993", "12%3"),
            ("lose", "l_se"),
            ("_foo", "\\_%"),
            ("50%", "50\\%"),
            ("a\\b", "a\\\\b"),
            ("xabcd", "%ab_d"),
            ("aabab_", "%ab\\_"),
            ("aab", "%a_%"),
            ("größe", "gr__e"),
            ("aXbXc", "a%b%c"),
            ("ab\nc", "a%c"),
        ] {
            assert!(like(text, pattern), "{text} LIKE {pattern}");
        }
        for (text, pattern) in [
            ("a", ""),
            ("", "_"),
            ("1234", "12%3"),
            ("loose", "l_se"),
            ("bar", "\\_%"),
            ("aba", "ab%ba"),
            ("ABC", "abc"),
            ("ab", "a%_b"),
            ("abc", "%b_c%"),
        ] {
            assert!(!like(text, pattern), "{text} NOT LIKE {pattern}");
        }
    }

    #[test]
    fn patterns_that_are_none() {
        assert!(Pattern::new("a\\", Some('\\')).is_err());
        assert!(Pattern::new("a\\b", Some('\\')).is_err());
        let longest = "_".repeat(SELECTOR_LIKE_SEGMENT_CHARS_MAX);
        assert!(Pattern::new(&format!("%{longest}%"), None).unwrap().matches(&longest));
        assert!(Pattern::new(&format!("%{longest}_%"), None).is_err());
        assert!(Pattern::new(&"a".repeat(1000), None).is_ok());
    }
}
