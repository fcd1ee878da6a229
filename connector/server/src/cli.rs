//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

/// What was asked for.
#[derive(Parser, Debug)]
#[command(
    name = "berth-connector",
    version,
    about = "STOMP clients in front, a durable embedded broker behind",
    long_about = "STOMP clients in front, a durable embedded broker behind.\n\n\
        Without an argument it works at once: STOMP on 127.0.0.1:61613, probes and metrics on \
        127.0.0.1:9090, data in ./berth-data.",
    after_help = EXAMPLES,
    args_conflicts_with_subcommands = true
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) files: Files,
    /// Check the configuration and exit: 0 when it is good, 2 when it is not
    #[arg(long, conflicts_with = "print_config")]
    pub(crate) check: bool,
    /// Print the configuration that would be used, defaults filled in, and exit
    #[arg(long)]
    pub(crate) print_config: bool,
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

/// The configuration's files.
#[derive(Args, Clone, Debug)]
pub(crate) struct Files {
    /// YAML file with the configuration; a listener runs when its section stands in it
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// The part that is read again while the connector runs [default: dynamic.yaml beside the file of
    /// --config]
    #[arg(long, value_name = "FILE")]
    pub(crate) dynamic: Option<PathBuf>,
}

/// What else the program can do.
#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Prepare a running connector for its end (a pod's preStop hook)
    Drain {
        /// Make it unready, and wait 5 seconds so that new clients are sent elsewhere
        #[arg(long, required = true)]
        prepare: bool,
        #[command(flatten)]
        files: Files,
    },
}

const EXAMPLES: &str = "\
Examples:
  berth-connector                                   run with all defaults
  berth-connector --config config.yaml              run what the file says
  berth-connector --config config.yaml --check      is the file good?
  BERTH_STOMP__PORT=61700 berth-connector           override one key

Every key can be overridden: BERTH_ and its path in capitals, __ between levels, _ between words.
stomp.queueAckTimeoutSeconds is BERTH_STOMP__QUEUE_ACK_TIMEOUT_SECONDS.

A configuration file:
  dataDir: /var/lib/berth
  broker: { embedded: { fsync: always } }
  admin: { address: \"0.0.0.0:9090\" }
  stomp: { address: \"0.0.0.0\", port: 61613, queueAckTimeoutSeconds: 30 }
  drainTimeoutSeconds: 20

SIGTERM or Ctrl-C ends in order: clients finish their work for half of drainTimeoutSeconds. A second one
ends at once.
Exit codes: 0 ended in order, 1 failed while running, 2 configuration, port or data folder cannot be used.";

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
        let prepare = ["berth-connector", "drain", "--prepare", "--config", "c.yaml"];
        assert!(Cli::try_parse_from(prepare).is_ok());
        for wrong in [&["drain"][..], &["--check", "--print-config"], &["--confg", "x"], &["run"]] {
            let line = [&["berth-connector"], wrong].concat();
            assert!(Cli::try_parse_from(line).is_err(), "{wrong:?}");
        }
    }
}
