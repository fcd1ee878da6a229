//! How connections, the log thread and the admin port reach the shard ([`Inbox`]), and how it answers
//! ([`Outbox`]).
//!
//! One inbox per shard, one outbox per connection; each is a list under a lock with the waker of its one
//! reader, so a batch costs one lock and at most one wake, and nothing is allocated per message: the reader
//! swaps the list for its own empty one.
//!
//! Bounds: the shard never waits for an outbox. What an outbox can hold is what its connection has asked for
//! and not taken: its engine bounds operations, reservations and credit. The inbox holds at most
//! [`INBOX_OPERATIONS_MAX`] operations before connections wait ([`Inbox::poll_space`]), plus what one turn of
//! each connection adds. Letters of the log thread and of the admin port never wait.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use berth_engine::port::Completion;
use berth_types::OpId;

/// Operations in the inbox beyond which connections stop reading their sockets until the shard has taken
/// them.
pub(crate) const INBOX_OPERATIONS_MAX: usize = 16 * 1024;

/// Everything that waits for the shard, in order of arrival.
#[derive(Debug)]
pub(crate) struct Inbox<L> {
    state: Mutex<InboxState<L>>,
}

#[derive(Debug)]
struct InboxState<L> {
    letters: Vec<L>,
    reader: Option<Waker>,
    writers: Vec<Waker>,
}

impl<L> Default for Inbox<L> {
    fn default() -> Self {
        let state = InboxState { letters: Vec::new(), reader: None, writers: Vec::new() };
        Self { state: Mutex::new(state) }
    }
}

impl<L> Inbox<L> {
    /// Adds letters and wakes the shard.
    pub(crate) fn push(&self, letters: impl IntoIterator<Item = L>) {
        let mut state = lock(&self.state);
        state.letters.extend(letters);
        let reader = if state.letters.is_empty() { None } else { state.reader.take() };
        drop(state);
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    /// Ready while there is room for more operations.
    pub(crate) fn poll_space(&self, cx: &Context<'_>) -> Poll<()> {
        let mut state = lock(&self.state);
        if state.letters.len() < INBOX_OPERATIONS_MAX {
            return Poll::Ready(());
        }
        if !state.writers.iter().any(|waker| waker.will_wake(cx.waker())) {
            state.writers.push(cx.waker().clone());
        }
        Poll::Pending
    }

    /// Swaps the letters into `taken`, which must be empty; pending when there are none.
    pub(crate) fn poll_take(&self, cx: &Context<'_>, taken: &mut Vec<L>) -> Poll<()> {
        debug_assert!(taken.is_empty(), "letters of the last turn must have been read");
        let mut state = lock(&self.state);
        if state.letters.is_empty() {
            state.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        std::mem::swap(&mut state.letters, taken);
        let writers = std::mem::take(&mut state.writers);
        drop(state);
        writers.into_iter().for_each(Waker::wake);
        Poll::Ready(())
    }
}

/// What a connection hears.
#[derive(Debug)]
pub(crate) enum Event {
    /// An answer of the broker, or without an id a notice.
    Completion(Option<OpId>, Completion),
    /// The process needs the memory that this connection holds: end.
    Overload,
    /// The process is going down: take no new deliveries.
    Drain,
    /// The drain's time is over: say goodbye.
    Shutdown,
}

/// What waits for one connection.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    state: Mutex<OutboxState>,
}

#[derive(Debug, Default)]
struct OutboxState {
    events: VecDeque<Event>,
    reader: Option<Waker>,
}

impl Outbox {
    /// Adds an event and wakes the connection.
    pub(crate) fn push(&self, event: Event) {
        let mut state = lock(&self.state);
        state.events.push_back(event);
        let reader = state.reader.take();
        drop(state);
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    /// Swaps what waits into `taken`, which must be empty; pending when there is nothing. An idle connection
    /// keeps no memory here.
    pub(crate) fn poll_take(&self, cx: &Context<'_>, taken: &mut VecDeque<Event>) -> Poll<()> {
        debug_assert!(taken.is_empty(), "events of the last turn must have been read");
        let mut state = lock(&self.state);
        if state.events.is_empty() {
            state.events = VecDeque::new();
            if !state.reader.as_ref().is_some_and(|reader| reader.will_wake(cx.waker())) {
                state.reader = Some(cx.waker().clone());
            }
            return Poll::Pending;
        }
        std::mem::swap(&mut state.events, taken);
        Poll::Ready(())
    }
}

/// Locks; a panic elsewhere while the lock was held left nothing half done here.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_inbox_makes_connections_wait_until_it_is_taken() {
        let inbox = Inbox::default();
        let cx = Context::from_waker(Waker::noop());
        inbox.push(0..INBOX_OPERATIONS_MAX - 1);
        assert!(inbox.poll_space(&cx).is_ready());
        inbox.push([0]);
        assert!(inbox.poll_space(&cx).is_pending());
        let mut taken = Vec::new();
        assert!(inbox.poll_take(&cx, &mut taken).is_ready());
        assert_eq!(taken.len(), INBOX_OPERATIONS_MAX);
        assert!(inbox.poll_space(&cx).is_ready());
        taken.clear();
        assert!(inbox.poll_take(&cx, &mut taken).is_pending());
    }

    #[test]
    fn an_outbox_keeps_order_and_gives_its_memory_back() {
        let outbox = Outbox::default();
        let cx = Context::from_waker(Waker::noop());
        for number in 0..100 {
            outbox.push(Event::Completion(Some(OpId::new(number)), Completion::Done));
        }
        let mut taken = VecDeque::new();
        assert!(outbox.poll_take(&cx, &mut taken).is_ready());
        let ids: Vec<_> = taken
            .drain(..)
            .map(|event| match event {
                Event::Completion(Some(op), _) => op.get(),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(ids, (0..100).collect::<Vec<_>>());
        assert!(outbox.poll_take(&cx, &mut taken).is_pending());
        assert_eq!(lock(&outbox.state).events.capacity(), 0);
    }
}
