//! One YAML text as a tree.

use std::borrow::Cow;

use serde_json::{Map, Value};
use serde_saphyr::{MessageFormatter, UserMessageFormatter};
use sha2::{Digest, Sha256};

use crate::Error;

/// Longest text that is read as a configuration. A ConfigMap holds at most 1 MiB.
pub const DOCUMENT_BYTES_MAX: usize = 1024 * 1024;

/// A file's text with the name that errors call it by.
#[derive(Clone, Copy, Debug)]
pub struct Document<'a> {
    /// The name in errors: a path, or just `config.yaml`.
    pub name: &'a str,
    /// YAML.
    pub text: &'a str,
}

impl Document<'_> {
    /// The top-level mapping. An empty document is an empty mapping.
    pub(crate) fn parse(&self) -> Result<Map<String, Value>, Error> {
        if self.text.len() > DOCUMENT_BYTES_MAX {
            return Err(Error::new(self.name, "", format!("longer than {DOCUMENT_BYTES_MAX} bytes")));
        }
        match parse_yaml(self.text).map_err(|problem| Error::new(self.name, "", problem))? {
            Value::Object(map) => Ok(map),
            Value::Null => Ok(Map::new()),
            _ => Err(Error::new(
                self.name,
                "",
                "a mapping of sections is expected, like `stomp: { port: 61613 }`",
            )),
        }
    }
}

/// Any YAML value of one document.
pub(crate) fn parse_yaml(text: &str) -> Result<Value, String> {
    if text.trim().is_empty() {
        return Ok(Value::Null);
    }
    let options = serde_saphyr::options! { with_snippet: false };
    serde_saphyr::from_str_with_options(text, options)
        .map_err(|error| format!("no valid YAML: {}", error.render_with_formatter(&Plain)))
}

/// What is wrong, in words for the person who wrote the file, not for one who programs against the library.
struct Plain;

impl MessageFormatter for Plain {
    fn format_message<'a>(&self, error: &'a serde_saphyr::Error) -> Cow<'a, str> {
        match error {
            serde_saphyr::Error::Budget { .. } => Cow::Borrowed("it has too many values"),
            serde_saphyr::Error::MultipleDocuments { .. } => Cow::Borrowed("it must be one document"),
            error => UserMessageFormatter.format_message(error),
        }
    }
}

/// The name of a configuration's content: 16 hex digits of its SHA-256, as `/api/node` shows it.
pub fn hash(content: &[u8]) -> String {
    Sha256::digest(content).iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Map<String, Value>, Error> {
        Document { name: "config.yaml", text }.parse()
    }

    #[test]
    fn nothing_is_an_empty_mapping() {
        for text in ["", "\n", "# only a comment\n", "{}", "---\n"] {
            assert_eq!(parse(text), Ok(Map::new()), "{text:?}");
        }
    }

    #[test]
    fn what_is_no_mapping_is_refused_in_one_line() {
        for text in ["- a\n- b\n", "text", "5", "a: [", "a: 1\na: 2\n", "\u{0}", "a: 1\n---\nb: 2\n"] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.starts_with("config.yaml: "), "{error}");
            assert!(!error.contains('\n'), "{error}");
        }
        assert!(parse(&"#".repeat(DOCUMENT_BYTES_MAX + 1)).is_err());
    }

    #[test]
    fn complaints_are_for_the_author_of_the_file() {
        let many = format!("a: [{}]", "1,".repeat(300_000));
        for (text, problem) in [
            (
                "a: 1\na: 2\n",
                "no valid YAML: duplicate mapping key `a` is not allowed here at line 2, column 1",
            ),
            ("a: 1\n---\nb: 2\n", "no valid YAML: it must be one document at line 3, column 1"),
            (&many, "no valid YAML: it has too many values"),
        ] {
            let error = parse(text).unwrap_err().problem;
            assert!(error.starts_with(problem), "{error}");
        }
    }

    #[test]
    fn the_hash_is_the_start_of_sha256() {
        assert_eq!(hash(b""), "e3b0c44298fc1c14");
    }
}
