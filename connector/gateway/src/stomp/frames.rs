//! The frames of a client that is let in, one by one.

use std::borrow::Cow;

use berth_engine::{Mode, Settlement, Source, Subscribe};
use berth_stomp::{AckMode, AckTarget, Frame, ProtocolError, Request, Unsubscribe};
use berth_types::limits::STOMP_PREFETCH_MAX;
use berth_types::{DeliveryId, Destination, MessageId, Now, Outcome};

use super::complaint::Complaint;
use super::subscriptions::Subscription;
use super::{StompSession, destination, ids, publish};
use crate::access::Right;

impl StompSession {
    /// Does what a frame asks for. Its answer, if it wants one, takes its place in the row.
    pub(super) fn handle_frame(&mut self, now: Now, mut frame: Frame) {
        match self.carry_out(now, &mut frame) {
            Ok(Done::Now) => {
                if let Some(receipt) = frame.receipt() {
                    self.answer(now, &receipt);
                }
            }
            Ok(Done::Later) => {}
            Ok(Done::Parked) => {
                self.parked = Some(frame);
                return;
            }
            Err(Refused::Protocol(error)) => self.violate(now, &error),
            Err(Refused::Request(complaint)) => {
                let receipt = owned(frame.receipt());
                self.complain(now, &complaint, receipt);
            }
        }
        self.wire.recycle(frame);
    }

    fn carry_out(&mut self, now: Now, frame: &mut Frame) -> Result<Done, Refused> {
        if frame.transaction().is_some() {
            return Err(Complaint::TransactionsNotSupported.into());
        }
        match frame.request()? {
            Request::Send { destination } => {
                let destination = self.destination(&destination)?;
                self.check(Right::Write, &destination)?;
                self.send(now, frame, destination);
                Ok(Done::Later)
            }
            Request::Subscribe { destination, id, ack } => {
                self.subscribe(now, frame, &destination, id.as_deref(), ack)
            }
            Request::Unsubscribe(which) => self.unsubscribe(now, frame, &which),
            Request::Ack(target) => Ok(self.settle(now, frame, &target, Outcome::Accepted)),
            Request::Nack { target, requeue } => {
                let outcome = if requeue { Outcome::Modified } else { Outcome::Rejected };
                Ok(self.settle(now, frame, &target, outcome))
            }
            Request::Begin(_) | Request::Commit(_) | Request::Abort(_) => {
                Err(Complaint::TransactionsNotSupported.into())
            }
            Request::Disconnect => {
                self.say_goodbye(now, owned(frame.receipt()));
                Ok(Done::Later)
            }
        }
    }

    fn answer(&mut self, now: Now, receipt: &str) {
        if self.replies.is_empty() {
            self.send_receipt(now, receipt);
        } else {
            self.replies.push_done(receipt.into());
        }
    }

    /// Reads a destination; the last one is kept, because clients send many messages to one place.
    fn destination(&mut self, text: &str) -> Result<Destination, Refused> {
        if let Some((last, destination)) = &self.last_destination
            && **last == *text
        {
            return Ok(destination.clone());
        }
        let destination = destination::parse(text, self.context.settings.default_pattern)?;
        self.last_destination = Some((text.into(), destination.clone()));
        Ok(destination)
    }

    fn check(&self, right: Right, destination: &Destination) -> Result<(), Refused> {
        if self.context.access.is_allowed(self.principal.as_ref(), right, destination) {
            return Ok(());
        }
        Err(Complaint::NotAuthorized(right, destination.clone()).into())
    }

    fn send(&mut self, now: Now, frame: &mut Frame, destination: Destination) {
        let correlation = self.replies.push_waiting(owned(frame.receipt()));
        let (ids, number) = (self.ids, &mut self.messages_published);
        let text = &mut self.message_id;
        let message = publish::message(now, frame, || {
            *number += 1;
            ids.write_published_id(text, *number);
            MessageId::new(text.as_str())
        });
        self.counters.messages_in += 1;
        self.engine.publish(now.monotonic, correlation, destination, message);
    }

    fn subscribe(
        &mut self,
        now: Now,
        frame: &Frame,
        text: &str,
        id: Option<&str>,
        ack: AckMode,
    ) -> Result<Done, Refused> {
        let destination = destination::parse(text, self.context.settings.default_pattern)?;
        if id.is_some_and(|id| self.subs.has_id(id)) {
            return Err(Complaint::SubscriptionIdInUse.into());
        }
        if self.subs.live() >= self.context.settings.subscriptions_max {
            let max = self.context.settings.subscriptions_max;
            return Err(Complaint::TooManySubscriptions(max).into());
        }
        refuse_what_queues_lack(frame)?;
        let window = self.window(frame, ack)?;
        self.check(Right::Read, &destination)?;
        let receipt = owned(frame.receipt());
        if receipt.is_some() && !self.replies.is_empty() {
            // Its RECEIPT has to leave before its first MESSAGE, and after those of the frames before it.
            return Ok(Done::Parked);
        }
        let command = Subscribe {
            source: Source::Queue(destination.channel),
            mode: match ack {
                AckMode::Auto => Mode::Auto,
                AckMode::Client => Mode::Cumulative,
                AckMode::ClientIndividual => Mode::Individual,
            },
            window,
            ack_timeout: Some(self.context.settings.ack_timeout),
        };
        let key = self.engine.subscribe(now.monotonic, command);
        let subscription = Subscription {
            id: id.map(Into::into),
            destination: text.into(),
            ack,
            hash: ids::hash(id.unwrap_or_default()),
            opening: Some(self.replies.push_waiting(receipt)),
            leaving: None,
        };
        self.subs.insert(key, subscription);
        Ok(Done::Later)
    }

    /// How many deliveries the subscription may have outstanding.
    fn window(&self, frame: &Frame, ack: AckMode) -> Result<u32, Refused> {
        let buffer = self.context.settings.subscription_buffer.clamp(1, STOMP_PREFETCH_MAX);
        if ack == AckMode::Auto {
            return Ok(buffer);
        }
        let Some(text) = frame.header("prefetch-count") else { return Ok(buffer) };
        if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
            return Err(Complaint::InvalidPrefetchCount.into());
        }
        let wanted = text.parse::<u32>().unwrap_or(u32::MAX);
        Ok(if wanted == 0 { STOMP_PREFETCH_MAX } else { wanted.min(STOMP_PREFETCH_MAX) })
    }

    fn unsubscribe(&mut self, now: Now, frame: &Frame, which: &Unsubscribe<'_>) -> Result<Done, Refused> {
        let key = match which {
            Unsubscribe::Id(id) => self.subs.find(id),
            Unsubscribe::Destination(destination) => self.subs.find_by_destination(destination),
        };
        let Some(key) = key else {
            return Err(Complaint::UnknownSubscription.into());
        };
        let answer = self.replies.push_waiting(owned(frame.receipt()));
        self.subs.leave(key, answer);
        self.engine.unsubscribe(now.monotonic, key);
        Ok(Done::Later)
    }

    /// ACK and NACK. What names nothing that is pending changes nothing, is counted, and is answered all
    /// the same.
    fn settle(&mut self, now: Now, frame: &Frame, target: &AckTarget<'_>, outcome: Outcome) -> Done {
        let receipt = owned(frame.receipt());
        let delivery = self.resolve(target).filter(|delivery| self.engine.is_pending(*delivery));
        let Some(delivery) = delivery else {
            self.counters.acks_ignored += 1;
            return Done::Now;
        };
        let Some(receipt) = receipt else {
            if self.engine.settle(now.monotonic, delivery, outcome, None) == Settlement::Ignored {
                self.counters.acks_ignored += 1;
            }
            return Done::Now;
        };
        let correlation = self.replies.push_waiting(Some(receipt));
        if self.engine.settle(now.monotonic, delivery, outcome, Some(correlation)) == Settlement::Ignored {
            self.counters.acks_ignored += 1;
            self.replies.complete(correlation);
        }
        Done::Later
    }

    /// The delivery that an ACK or NACK names, as its version says it.
    fn resolve(&self, target: &AckTarget<'_>) -> Option<DeliveryId> {
        match target {
            // Many clients send the message-id here.
            AckTarget::Token(text) => {
                self.ids.read_token(text).or_else(|| self.ids.read_message_id(text).map(|(id, _)| id))
            }
            AckTarget::Pair { message_id, subscription } => {
                let (delivery, hash) = self.ids.read_message_id(message_id)?;
                (hash == ids::hash(subscription)).then_some(delivery)
            }
            AckTarget::MessageId(message_id) => self.ids.read_message_id(message_id).map(|(id, _)| id),
        }
    }
}

/// How far a frame has come.
enum Done {
    /// It has had its effect: its receipt may take its place in the row.
    Now,
    /// It stands in the row itself.
    Later,
    /// It must wait until the row is empty, and is looked at again then.
    Parked,
}

/// Why a frame is not carried out.
enum Refused {
    Protocol(ProtocolError),
    Request(Complaint),
}

impl From<Complaint> for Refused {
    fn from(complaint: Complaint) -> Self {
        Self::Request(complaint)
    }
}

impl From<ProtocolError> for Refused {
    fn from(error: ProtocolError) -> Self {
        Self::Protocol(error)
    }
}

/// Headers that would change what a subscription gets, and that queues do not have: better refused than
/// ignored.
fn refuse_what_queues_lack(frame: &Frame) -> Result<(), Complaint> {
    if frame.header("selector").is_some() {
        return Err(Complaint::SelectorNotSupported);
    }
    let is_durable = matches!(frame.header("durable").as_deref(), Some("true" | "True"));
    let has_name = ["durable-subscription-name", "activemq.subscriptionName"];
    if is_durable || has_name.iter().any(|name| frame.header(name).is_some()) {
        return Err(Complaint::DurableNeedsStore);
    }
    Ok(())
}

fn owned(receipt: Option<Cow<'_, str>>) -> Option<Box<str>> {
    receipt.map(|receipt| match receipt {
        Cow::Borrowed(text) => text.into(),
        Cow::Owned(text) => text.into_boxed_str(),
    })
}
