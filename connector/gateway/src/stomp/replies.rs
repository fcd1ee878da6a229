//! What the client is still owed, in the order of its frames: receipts, and at most one end.
//!
//! A frame whose effect takes time stands here until it has come; what came behind it waits. So receipts
//! leave in the order in which frames take effect, and an ERROR only after everything before it has been
//! answered.
//!
//! Nothing is added behind an end.

use std::collections::VecDeque;

use berth_engine::Correlation;
use berth_stomp::ErrorFrame;

use crate::Closed;

/// Why the connection ends with an ERROR.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Failure {
    pub(crate) error: ErrorFrame,
    pub(crate) closed: Closed,
}

/// What is to be done next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Turn {
    Receipt(Box<str>),
    /// Send the ERROR, close.
    Fail(Box<Failure>),
    /// Send the receipt of DISCONNECT, if one was asked for, and close.
    Goodbye(Option<Box<str>>),
}

#[derive(Debug)]
enum State {
    Waiting,
    Done,
    Failed(Box<Failure>),
    Goodbye,
}

#[derive(Debug)]
struct Reply {
    receipt: Option<Box<str>>,
    state: State,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Replies {
    /// The number of the front entry.
    first: u64,
    entries: VecDeque<Reply>,
    receipt_bytes: usize,
    has_end: bool,
}

impl Replies {
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Bytes of receipts that wait.
    pub(crate) const fn receipt_bytes(&self) -> usize {
        self.receipt_bytes
    }

    /// Whether the end of the connection stands in the row.
    pub(crate) const fn has_end(&self) -> bool {
        self.has_end
    }

    /// A frame whose effect is under way.
    pub(crate) fn push_waiting(&mut self, receipt: Option<Box<str>>) -> Correlation {
        let number = self.first + self.entries.len() as u64;
        self.push(receipt, State::Waiting);
        Correlation(number)
    }

    /// A frame that has had its effect.
    pub(crate) fn push_done(&mut self, receipt: Box<str>) {
        self.push(Some(receipt), State::Done);
    }

    /// The end, by ERROR.
    pub(crate) fn push_failure(&mut self, failure: Failure) {
        self.push(None, State::Failed(Box::new(failure)));
        self.has_end = true;
    }

    /// The end, because the client goes.
    pub(crate) fn push_goodbye(&mut self, receipt: Option<Box<str>>) {
        self.push(receipt, State::Goodbye);
        self.has_end = true;
    }

    /// The effect has come.
    pub(crate) fn complete(&mut self, number: Correlation) {
        if let Some(reply) = self.waiting(number) {
            reply.state = State::Done;
        }
    }

    /// The effect will not come.
    pub(crate) fn fail(&mut self, number: Correlation, mut failure: Failure) {
        if let Some(reply) = self.waiting(number) {
            failure.error.receipt.clone_from(&reply.receipt);
            reply.state = State::Failed(Box::new(failure));
        }
    }

    /// What the front of the row allows, until it waits. Nothing follows `Fail` and `Goodbye`.
    pub(crate) fn next(&mut self) -> Option<Turn> {
        while !matches!(self.entries.front()?.state, State::Waiting) {
            if let Some(turn) = self.pop() {
                return Some(turn);
            }
        }
        None
    }

    /// Forgets everything: there is nobody to answer.
    pub(crate) fn clear(&mut self) {
        self.first += self.entries.len() as u64;
        self.entries = VecDeque::new();
        self.receipt_bytes = 0;
        self.has_end = true;
    }

    fn push(&mut self, receipt: Option<Box<str>>, state: State) {
        if !self.has_end {
            self.receipt_bytes += receipt.as_ref().map_or(0, |receipt| receipt.len());
            self.entries.push_back(Reply { receipt, state });
        }
    }

    /// Takes the front entry, which waits no more; none: nobody asked for a receipt.
    fn pop(&mut self) -> Option<Turn> {
        let reply = self.entries.pop_front()?;
        self.first += 1;
        self.receipt_bytes -= reply.receipt.as_ref().map_or(0, |receipt| receipt.len());
        match (reply.state, reply.receipt) {
            (State::Failed(failure), _) => {
                self.clear();
                Some(Turn::Fail(failure))
            }
            (State::Goodbye, receipt) => {
                self.clear();
                Some(Turn::Goodbye(receipt))
            }
            (State::Waiting | State::Done, receipt) => receipt.map(Turn::Receipt),
        }
    }

    fn waiting(&mut self, number: Correlation) -> Option<&mut Reply> {
        let at = usize::try_from(number.0.checked_sub(self.first)?).ok()?;
        self.entries.get_mut(at).filter(|reply| matches!(reply.state, State::Waiting))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(text: &'static str) -> Failure {
        Failure { error: ErrorFrame::new(text, ""), closed: Closed::ByUs(text) }
    }

    #[test]
    fn receipts_leave_in_the_order_of_the_frames() {
        let mut replies = Replies::default();
        let a = replies.push_waiting(Some("a".into()));
        let b = replies.push_waiting(None);
        replies.push_done("c".into());
        let d = replies.push_waiting(Some("d".into()));
        replies.complete(d);
        replies.complete(b);
        assert_eq!(replies.next(), None);
        replies.complete(a);
        let turns: Vec<_> = std::iter::from_fn(|| replies.next()).collect();
        assert_eq!(turns, ["a", "c", "d"].map(|r| Turn::Receipt(r.into())));
        assert_eq!((replies.len(), replies.receipt_bytes()), (0, 0));
    }

    #[test]
    fn an_error_waits_for_what_came_before_and_ends_the_row() {
        let mut replies = Replies::default();
        let a = replies.push_waiting(Some("a".into()));
        let b = replies.push_waiting(Some("b".into()));
        let c = replies.push_waiting(Some("c".into()));
        replies.fail(b, failure("queue full"));
        replies.complete(c);
        assert_eq!(replies.next(), None);
        replies.complete(a);
        assert_eq!(replies.next(), Some(Turn::Receipt("a".into())));
        let Some(Turn::Fail(failure)) = replies.next() else { panic!("the failure has its turn") };
        assert_eq!(failure.error.receipt.as_deref(), Some("b"));
        assert_eq!(replies.next(), None);
        replies.push_done("d".into());
        assert_eq!(replies.next(), None, "nothing after an ERROR");
    }
}
