//! Storing messages, one by one or as a whole, and a client's transaction.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_engine::port::{Action, Capability, Completion, Refusal, Stored};
use berth_log::{Appended, Log, Lsn, Purpose, Refused};
use berth_types::{ChannelName, ConnectionId, Destination, Message, OpId, Pattern, Seq};

use crate::broker::Broker;
use crate::index::Entry;
use crate::job::{Job, Publish, Ran};
use crate::journal::{Durable, Part};
use crate::record::{self, ChannelId, Counts, Requeue, SmallFact};
use crate::settle::{Claim, Wish, refusal};

/// A step of a commit that was found possible.
enum Step {
    Append { channel: ChannelId, seq: Seq, message: Arc<Message> },
    Settle { claim: Claim, wish: Box<Wish>, first: Seq, items: Vec<Requeue> },
}

impl Broker {
    /// Carries out `Publish`: every message by itself, or all or none.
    pub(crate) fn run_publish(&mut self, mut publish: Publish) -> Ran {
        if publish.atomic && publish.batch.len() > 1 {
            return self.run_atomic_publish(publish);
        }
        // Messages of one batch mostly go to one queue.
        let mut last: Option<(ChannelName, ChannelId)> = None;
        while let Some((destination, message)) = publish.batch.get(publish.results.len()) {
            let result = match check(destination, message) {
                Err(refusal) => Err(refusal),
                Ok(()) => {
                    let channel = match &last {
                        Some((name, channel)) if *name == destination.channel => *channel,
                        _ => self.queues.find_or_make(&destination.channel),
                    };
                    last = Some((destination.channel.clone(), channel));
                    match self.append(channel, message) {
                        Ok((seq, lsn)) => {
                            publish.last = Some(lsn);
                            Ok(Stored { seq })
                        }
                        Err(Refused::Busy) => return Ran::Stalled(Job::Publish(publish)),
                        Err(refused) => Err(refusal(refused)),
                    }
                }
            };
            publish.results.push(result);
        }
        let Publish { connection, op, results, last, .. } = publish;
        self.complete_when_durable(last, connection, op, Completion::Published(results));
        Ran::Done
    }

    /// Carries out `Commit`.
    pub(crate) fn run_commit(&mut self, connection: ConnectionId, op: OpId, actions: Vec<Action>) -> Ran {
        let result = match self.plan(connection, &actions) {
            Err(refusal) => Err(refusal),
            Ok(steps) => match self.carry_out(steps) {
                Err(Refused::Busy) => return Ran::Stalled(Job::Commit { connection, op, actions }),
                Err(refused) => Err(refusal(refused)),
                Ok(lsn) => {
                    self.complete_when_durable(lsn, connection, op, Completion::Committed(Ok(())));
                    return Ran::Done;
                }
            },
        };
        self.complete(connection, op, Completion::Committed(result));
        Ran::Done
    }

    fn run_atomic_publish(&mut self, mut publish: Publish) -> Ran {
        let seqs = match self.plan_publish(&publish.batch) {
            Err(refusal) => Err(refusal),
            Ok(steps) => {
                let seqs: Vec<Seq> = steps.iter().filter_map(Step::seq).collect();
                match self.carry_out(steps) {
                    Err(Refused::Busy) => return Ran::Stalled(Job::Publish(publish)),
                    Err(refused) => Err(refusal(refused)),
                    Ok(lsn) => {
                        publish.last = lsn;
                        Ok(seqs)
                    }
                }
            }
        };
        let Publish { connection, op, batch, last, .. } = publish;
        let results = match seqs {
            Ok(seqs) => seqs.into_iter().map(|seq| Ok(Stored { seq })).collect(),
            Err(refusal) => batch.iter().map(|_| Err(refusal.clone())).collect(),
        };
        self.complete_when_durable(last, connection, op, Completion::Published(results));
        Ran::Done
    }

    /// Appends one message to a queue.
    fn append(&mut self, channel: ChannelId, message: &Arc<Message>) -> Result<(Seq, Lsn), Refused> {
        self.state_channel(channel)?;
        let seq = self.queues.known(channel).index.next();
        let counts = Counts::default();
        let appended = self.journal.append_message(Purpose::Publish, channel, seq, counts, message)?;
        self.stored(channel, Arc::clone(message), appended, 0);
        self.mark_with_publish(channel, seq);
        Ok((seq, appended.lsn))
    }

    /// A message is in the journal: takes it into the queue's index. It is handed out once it is durable.
    fn stored(&mut self, channel: ChannelId, message: Arc<Message>, appended: Appended, part: u32) {
        let size = message.size_bytes() as u32;
        let entry = Entry::new(appended.position, part, size, Counts::default());
        let queue = self.queues.known(channel);
        let (seq, listed) = queue.index.push(entry);
        queue.bytes += u64::from(size);
        queue.idle_until = None;
        self.pager.added(channel, listed);
        self.live.add(&entry);
        self.stats.published += 1;
        self.stats.published_bytes += u64::from(size);
        self.cache.keep(channel, &mut queue.bodies, seq, message);
        self.journal.when_ready(appended.lsn, channel, seq.get() + 1);
        self.shrink_cache();
    }

    /// The delivery mark shares the barrier of the publish when somebody is there to take the message.
    fn mark_with_publish(&mut self, channel: ChannelId, last: Seq) {
        if let Some(mark) = self.queues.known(channel).mark_with_publish(last) {
            self.append_mark(channel, mark);
        }
    }

    /// Checks a client's transaction and claims what it settles. Refused: nothing has changed.
    fn plan(&mut self, connection: ConnectionId, actions: &[Action]) -> Result<Vec<Step>, Refusal> {
        let mut steps = Vec::with_capacity(actions.len());
        let mut next = BTreeMap::new();
        for action in actions {
            match self.plan_action(connection, action, &mut next) {
                Ok(step) => steps.push(step),
                Err(refusal) => {
                    self.give_up(steps);
                    return Err(refusal);
                }
            }
        }
        Ok(steps)
    }

    fn plan_publish(&mut self, batch: &[(Destination, Arc<Message>)]) -> Result<Vec<Step>, Refusal> {
        let mut next = BTreeMap::new();
        let step = |(destination, message): &(Destination, Arc<Message>)| {
            self.plan_append(destination, message, &mut next)
        };
        batch.iter().map(step).collect()
    }

    fn plan_action(
        &mut self,
        connection: ConnectionId,
        action: &Action,
        next: &mut BTreeMap<ChannelId, Seq>,
    ) -> Result<Step, Refusal> {
        match action {
            Action::Publish(destination, message) => self.plan_append(destination, message, next),
            Action::Settle { txn, ack, nack, reject } => {
                let wish =
                    Wish { ack: ack.clone(), nack: nack.clone(), reject: reject.clone(), ..Wish::default() };
                let Some(claim) = self.claim(connection, *txn, &wish) else {
                    self.stats.unknown_settlements += 1;
                    return Err(Refusal::Unknown);
                };
                let items = self.requeues(&claim, wish.cause);
                let next = next.entry(claim.channel);
                let next = next.or_insert_with(|| self.queues.known(claim.channel).index.next());
                let first = *next;
                *next = Seq::new(first.get() + items.len() as u64);
                Ok(Step::Settle { claim, wish: Box::new(wish), first, items })
            }
        }
    }

    fn plan_append(
        &mut self,
        destination: &Destination,
        message: &Arc<Message>,
        next: &mut BTreeMap<ChannelId, Seq>,
    ) -> Result<Step, Refusal> {
        check(destination, message)?;
        let channel = self.queues.find_or_make(&destination.channel);
        let next = next.entry(channel).or_insert_with(|| self.queues.known(channel).index.next());
        let seq = *next;
        *next = seq.next();
        Ok(Step::Append { channel, seq, message: Arc::clone(message) })
    }

    fn give_up(&mut self, steps: Vec<Step>) {
        for step in steps {
            if let Step::Settle { claim, .. } = step {
                self.unclaim(claim);
            }
        }
    }

    /// Writes the steps as one record and applies them. Refused: nothing has changed.
    fn carry_out(&mut self, steps: Vec<Step>) -> Result<Option<Lsn>, Refused> {
        let appended = match self.append_steps(&steps) {
            Ok(Some(appended)) => appended,
            Ok(None) => return Ok(None),
            Err(refused) => {
                self.give_up(steps);
                return Err(refused);
            }
        };
        let mut part = 0;
        let mut ends = BTreeMap::new();
        for step in steps {
            match step {
                Step::Append { channel, seq, message } => {
                    part += 1;
                    debug_assert_eq!(self.queues.known(channel).index.next(), seq);
                    self.stored(channel, message, appended, part);
                    ends.insert(channel, seq);
                }
                Step::Settle { claim, wish, items, .. } => {
                    part += u32::from(wish.settles()) + u32::from(!items.is_empty());
                    self.apply(claim, &wish, Some(appended));
                }
            }
        }
        ends.into_iter().for_each(|(channel, last)| self.mark_with_publish(channel, last));
        Ok(Some(appended.lsn))
    }

    fn append_steps(&mut self, steps: &[Step]) -> Result<Option<Appended>, Refused> {
        let mut parts = Vec::with_capacity(steps.len());
        let mut purpose = Purpose::Upkeep;
        for step in steps {
            match step {
                Step::Append { channel, seq, message } => {
                    purpose = Purpose::Publish;
                    self.state_channel(*channel)?;
                    parts.push(Part::Appended { channel: *channel, seq: *seq, message });
                }
                Step::Settle { claim, wish, first, items } => {
                    let channel = claim.channel;
                    if wish.settles() {
                        let (accepted, rejected) = (&wish.ack, &wish.reject);
                        parts.push(Part::Small(SmallFact::Settled { channel, accepted, rejected }));
                    }
                    if !items.is_empty() {
                        if purpose == Purpose::Upkeep {
                            purpose = Purpose::Requeue;
                        }
                        parts.push(Part::Small(SmallFact::Requeued { channel, first: *first, items }));
                    }
                }
            }
        }
        if parts.is_empty() {
            return Ok(None);
        }
        let appended = match purpose {
            Purpose::Publish => self.journal.append_commit(purpose, &parts),
            _ => self.append_upkeep(purpose, |journal, purpose| journal.append_commit(purpose, &parts)),
        };
        appended.map(Some)
    }

    fn complete_when_durable(
        &mut self,
        lsn: Option<Lsn>,
        connection: ConnectionId,
        op: OpId,
        completion: Completion,
    ) {
        match lsn {
            Some(lsn) => self.journal.when_durable(lsn, Durable::Completed { connection, op, completion }),
            None => self.complete(connection, op, completion),
        }
    }
}

impl Step {
    const fn seq(&self) -> Option<Seq> {
        match self {
            Self::Append { seq, .. } => Some(*seq),
            Self::Settle { .. } => None,
        }
    }
}

/// Whether a message can be stored at all.
fn check(destination: &Destination, message: &Message) -> Result<(), Refusal> {
    let missing = match destination.pattern {
        Pattern::Queues if record::fits(message, Log::RECORD_BYTES_MAX as usize) => return Ok(()),
        Pattern::Queues => return Err(Refusal::MessageTooLarge),
        Pattern::Events => Capability::Events,
        Pattern::EventsStore => Capability::EventsStore,
        Pattern::Commands | Pattern::Queries => Capability::Requests,
    };
    Err(Refusal::Unsupported(missing))
}
