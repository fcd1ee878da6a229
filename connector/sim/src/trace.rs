//! What happened: a hash over all of it, and its last lines.

use std::collections::VecDeque;
use std::fmt::{self, Write as _};

use berth_engine::port::Completion;
use berth_types::Instant;

use crate::checkers::Key;

/// Lines that are kept for the report of a failure.
const LINES_KEPT: usize = 400;

/// The trace of one history.
#[derive(Debug)]
pub(crate) struct Trace {
    lines: VecDeque<String>,
    hash: u64,
    pub(crate) count: u64,
    echo: bool,
}

impl Trace {
    pub(crate) fn new(echo: bool) -> Self {
        Self { lines: VecDeque::new(), hash: 0xcbf2_9ce4_8422_2325, count: 0, echo }
    }

    /// Adds a line.
    pub(crate) fn line(&mut self, now: Instant, text: fmt::Arguments<'_>) {
        let mut line = if self.lines.len() == LINES_KEPT {
            self.lines.pop_front().unwrap_or_default()
        } else {
            String::new()
        };
        line.clear();
        let _infallible = write!(line, "{now} {text}");
        for byte in line.bytes().chain([b'\n']) {
            // FNV-1a.
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        if self.echo {
            println!("{line}");
        }
        self.lines.push_back(line);
        self.count += 1;
    }

    pub(crate) const fn hash(&self) -> u64 {
        self.hash
    }

    /// The last lines, and of those before them the ones that hold `word`.
    pub(crate) fn shortened(&self, word: &str) -> Vec<String> {
        let tail = self.lines.len().saturating_sub(25);
        let is_told = |(index, line): &(usize, &String)| *index >= tail || line.contains(word);
        self.lines.iter().enumerate().filter(is_told).map(|(_, line)| line.clone()).collect()
    }
}

/// A completion in a few words.
pub(crate) fn brief_completion(completion: &Completion) -> String {
    match completion {
        Completion::Reserved { txn, items } => {
            let mut text = txn.to_string();
            for item in items {
                let key = Key::read(&item.message.body).map_or_else(|| "?".into(), |key| key.to_string());
                let mark = if item.redelivered { "*" } else { "" };
                let _infallible = write!(text, " {}={key}{mark}{}", item.seq, item.receive_count);
            }
            text
        }
        Completion::Published(results) => {
            let refused = results.iter().filter_map(|result| result.as_ref().err()).next();
            format!("Published {} {refused:?}", results.len())
        }
        other => format!("{other:?}"),
    }
}
