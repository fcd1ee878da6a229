//! `berth-sim`: the whole connector under one seed. Scripted clients, a network, the real STOMP code,
//! gateway, engine, broker and journal, and a disk that forgets, moved by one virtual clock; the promises
//! of `docs/delivery.md` are checked at every step.
//!
//! ```text
//! berth_sim::run(&Options::new(8123))           a report, or the promise that was broken and a short trace
//! cargo run -p berth-sim -- --seed 8123         the same on the terminal; --trace prints every step
//! cargo run -p berth-sim -- --seeds 1000        seeds 1 to 1000; each failure with the line that replays it
//! ```
//!
//! One seed is one history, on every machine: no clock, no thread, no random order of maps. What may go
//! wrong in a history is drawn from its seed too (see [`Faults`]); after a time of faults comes quiet time,
//! in which everything that was confirmed must reach a client.
//!
//! [`Mistake`] puts an error into the connector on purpose, to prove that the checkers see it.

mod checkers;
mod client;
mod disk;
mod driver;
mod faults;
mod network;
mod node;
mod plan;
mod random;
mod trace;
mod world;

use std::fmt;

use berth_types::Instant;

pub use plan::{Faults, Plan};
pub use random::Random;

/// What to simulate.
#[derive(Clone, Debug)]
pub struct Options {
    /// Decides everything.
    pub seed: u64,
    /// Stop here, though the history goes on.
    pub until: Option<Instant>,
    /// Print the trace while it happens.
    pub echoes: bool,
    /// Instead of the plan that the seed makes.
    pub plan: Option<Plan>,
    /// An error to put into the connector.
    pub mistake: Option<Mistake>,
}

impl Options {
    /// The whole history of a seed.
    pub const fn new(seed: u64) -> Self {
        Self { seed, until: None, echoes: false, plan: None, mistake: None }
    }
}

/// An error put into the connector on purpose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mistake {
    /// Barriers are answered without a sync.
    SkipSync,
    /// Now and then an accept reaches the broker as a release.
    DropAcks,
    /// Now and then a settlement never reaches the broker, and the session is told that it stands.
    LoseSettlements,
    /// A negative settlement reaches the broker as an accept.
    ForgetNacks,
    /// Now and then a message is stored where nobody looks for it.
    Misroute,
    /// The mark of a redelivered message is lost on its way to the session.
    HideRedelivery,
    /// The broker is asked for more than the window allows.
    WidenWindow,
}

/// A history in which every promise was kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    /// Over the whole trace: equal for equal seeds.
    pub hash: u64,
    /// Lines of the trace.
    pub steps: u64,
    /// Messages that clients sent.
    pub sent: usize,
    /// Those of them that were confirmed.
    pub confirmed: usize,
    /// Messages that a client accepted or discarded.
    pub ended: usize,
    /// How often the process was started.
    pub starts: u64,
    /// When it was over.
    pub at: Instant,
}

/// A history in which a promise was broken.
#[derive(Clone, Debug)]
pub struct Failed {
    /// Of which seed.
    pub seed: u64,
    /// When.
    pub at: Instant,
    /// Which promise, in words.
    pub text: String,
    /// The last lines of the trace, and of those before them the ones about the same thing.
    pub trace: Vec<String>,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.trace {
            writeln!(f, "{line}")?;
        }
        writeln!(f, "{}", self.text)?;
        write!(f, "cargo run -p berth-sim -- --seed {} --until {}", self.seed, self.at)
    }
}

impl std::error::Error for Failed {}

/// Simulates one history.
///
/// # Errors
/// The first promise that was broken.
pub fn run(options: &Options) -> Result<Report, Box<Failed>> {
    world::World::new(options).run()
}
