//! The `destination` header: which texts name which channel.

use berth_types::{ChannelName, Destination, Pattern};

/// Why a text is refused as a destination.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum BadDestination {
    /// No form of ours, or no channel name; with a sentence for the client.
    Invalid(String),
    /// A form that will mean something, for which there is nothing behind it yet.
    NotSupported(&'static str),
}

/// Reads a destination. A `/` inside the channel's name becomes `.`, whatever the protocol.
///
/// `default_pattern` is what a name without a leading slash means; none refuses it.
pub(crate) fn parse(text: &str, default_pattern: Option<Pattern>) -> Result<Destination, BadDestination> {
    let (pattern, name) = match text.strip_prefix('/') {
        None => (default_pattern.ok_or_else(no_default)?, text),
        Some(rest) => {
            let (word, name) = rest.split_once('/').ok_or_else(unknown_form)?;
            (pattern_of(word)?, name)
        }
    };
    let channel = ChannelName::parse(name)
        .map_err(|reason| BadDestination::Invalid(format!("This is no channel name: {reason}.")))?;
    match pattern {
        Pattern::Queues => Ok(Destination { pattern, channel }),
        Pattern::Events => Err(BadDestination::NotSupported("Events (/topic/<channel>)")),
        Pattern::EventsStore => Err(BadDestination::NotSupported("Stored events (/store/<channel>)")),
        Pattern::Commands => Err(BadDestination::NotSupported("Commands (/command/<channel>)")),
        Pattern::Queries => Err(BadDestination::NotSupported("Queries (/query/<channel>)")),
    }
}

fn pattern_of(word: &str) -> Result<Pattern, BadDestination> {
    Ok(match word {
        "queue" | "queues" => Pattern::Queues,
        "topic" | "events" => Pattern::Events,
        "store" | "events-store" => Pattern::EventsStore,
        "command" | "commands" => Pattern::Commands,
        "query" | "queries" => Pattern::Queries,
        "temp-queue" => return Err(BadDestination::NotSupported("Temporary queues (/temp-queue/<name>)")),
        "responses" => return Err(BadDestination::NotSupported("Responses (/responses/<id>)")),
        _ => return Err(unknown_form()),
    })
}

fn no_default() -> BadDestination {
    BadDestination::Invalid("A destination must begin with a slash, as in /queue/<channel>.".to_owned())
}

fn unknown_form() -> BadDestination {
    BadDestination::Invalid("A destination is /queue/<channel>.".to_owned())
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
            assert!(matches!(parse(text, None), Err(BadDestination::Invalid(_))), "{text:?}");
            let with_default = parse(text, Some(Pattern::Queues));
            assert!(matches!(with_default, Err(BadDestination::Invalid(_))), "{text:?}");
        }
        assert!(matches!(parse("jobs", None), Err(BadDestination::Invalid(_))));
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
            assert!(matches!(parse(text, None), Err(BadDestination::NotSupported(_))), "{text:?}");
        }
        assert!(matches!(parse("a", Some(Pattern::Events)), Err(BadDestination::NotSupported(_))));
    }
}
