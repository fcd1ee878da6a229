//! The `destination` header: which texts name which channel.

use berth_types::{ChannelName, Destination, Pattern};

use super::complaint::Complaint;

/// Reads a destination. A `/` inside the channel's name becomes `.`, whatever the protocol.
///
/// `default_pattern` is what a name without a leading slash means; none refuses it.
pub(crate) fn parse(text: &str, default_pattern: Option<Pattern>) -> Result<Destination, Complaint> {
    let (pattern, name) = match text.strip_prefix('/') {
        None => (default_pattern.ok_or(Complaint::NoDefaultPattern)?, text),
        Some(rest) => {
            let (word, name) = rest.split_once('/').ok_or(Complaint::UnknownDestination)?;
            (pattern_of(word)?, name)
        }
    };
    let channel = ChannelName::parse(name).map_err(Complaint::InvalidChannel)?;
    match pattern {
        Pattern::Queues => Ok(Destination { pattern, channel }),
        Pattern::Events => Err(Complaint::PatternNotSupported("Events (/topic/<channel>)")),
        Pattern::EventsStore => Err(Complaint::PatternNotSupported("Stored events (/store/<channel>)")),
        Pattern::Commands => Err(Complaint::PatternNotSupported("Commands (/command/<channel>)")),
        Pattern::Queries => Err(Complaint::PatternNotSupported("Queries (/query/<channel>)")),
    }
}

fn pattern_of(word: &str) -> Result<Pattern, Complaint> {
    Ok(match word {
        "queue" | "queues" => Pattern::Queues,
        "topic" | "events" => Pattern::Events,
        "store" | "events-store" => Pattern::EventsStore,
        "command" | "commands" => Pattern::Commands,
        "query" | "queries" => Pattern::Queries,
        "temp-queue" => return Err(Complaint::PatternNotSupported("Temporary queues (/temp-queue/<name>)")),
        "responses" => return Err(Complaint::PatternNotSupported("Responses (/responses/<id>)")),
        _ => return Err(Complaint::UnknownDestination),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_in_every_spelling() {
        for (text, channel) in [
            ("/queue/jobs", "jobs"),
            ("/queues/jobs", "jobs"),
            ("/queue/jobs/email", "jobs.email"),
            ("/queue/jobs.email", "jobs.email"),
            ("/queue/a/b.c/d", "a.b.c.d"),
        ] {
            let destination = parse(text, None).unwrap();
            assert_eq!((destination.pattern, destination.channel.as_str()), (Pattern::Queues, channel));
        }
        assert_eq!(parse("jobs/email", Some(Pattern::Queues)).unwrap().channel.as_str(), "jobs.email");
    }

    #[test]
    fn what_is_no_destination() {
        for text in [
            "/",
            "/queue",
            "/queue/",
            "/queue//a",
            "/queue/a/",
            "/badprefix//",
            "/badprefix/x",
            "/Queue/a",
            "/queue/a b",
            "/queue/a:b",
            "/queue/a*",
            "/queue/a>",
            "",
            " /queue/a",
            "//queue/a",
            "/exchange/x",
        ] {
            assert!(
                matches!(parse(text, None), Err(ref c) if c.message() == "invalid destination"),
                "{text:?}"
            );
            let with_default = parse(text, Some(Pattern::Queues));
            assert!(matches!(with_default, Err(ref c) if c.message() == "invalid destination"), "{text:?}");
        }
        assert!(matches!(parse("jobs", None), Err(ref c) if c.message() == "invalid destination"));
    }

    #[test]
    fn what_is_not_supported_says_so() {
        for text in [
            "/topic/a",
            "/events/a",
            "/store/a",
            "/events-store/a",
            "/command/a",
            "/commands/a",
            "/query/a",
            "/queries/a",
            "/temp-queue/a",
            "/responses/1",
        ] {
            assert!(matches!(parse(text, None), Err(Complaint::PatternNotSupported(_))), "{text:?}");
        }
        assert!(matches!(parse("a", Some(Pattern::Events)), Err(Complaint::PatternNotSupported(_))));
    }
}
