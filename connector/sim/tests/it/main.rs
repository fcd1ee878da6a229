//! Some histories in every test run; the nightly run takes other seeds, and many more.

#![allow(clippy::unwrap_used, reason = "all of this crate is tests")]

use std::time::Duration;

use berth_sim::{Faults, Mistake, Options, Plan, Random, run};

/// Histories of every test run.
const SEEDS: std::ops::RangeInclusive<u64> = 1..=40;

#[test]
fn every_promise_is_kept() {
    let mut starts = 0;
    let mut ended = 0;
    for seed in SEEDS {
        let report = run(&Options::new(seed)).unwrap_or_else(|failed| panic!("\n{failed}"));
        starts += report.starts;
        ended += report.ended;
    }
    println!("{starts} starts, {ended} messages ended");
    assert!(starts > 50, "the process was started only {starts} times: crashes have gone missing");
    assert!(ended > 3000, "only {ended} messages went all the way");
}

#[test]
fn one_seed_is_one_history() {
    for seed in [3, 5, 13, 21] {
        let (first, second) = (run(&Options::new(seed)).unwrap(), run(&Options::new(seed)).unwrap());
        assert_eq!(first, second, "seed {seed}: randomness has leaked in");
    }
    assert_ne!(run(&Options::new(1)).unwrap().hash, run(&Options::new(2)).unwrap().hash);
}

/// A plan in which these faults happen and no others.
fn plan(seed: u64, faults: Faults) -> Plan {
    let drawn = Plan::draw(&mut Random::new(seed));
    Plan {
        faults,
        duration: Duration::from_secs(20),
        messages: 100,
        producers: 2,
        consumers: 3,
        fsync: berth_log::Fsync::Always,
        ..drawn
    }
}

/// In which words a mistake is noticed, the first three times.
fn caught(mistake: Mistake, faults: Faults) -> Vec<String> {
    let histories = (1..=60).map(|seed| Options {
        mistake: Some(mistake),
        plan: Some(plan(seed, faults)),
        ..Options::new(seed)
    });
    histories.filter_map(|options| run(&options).err().map(|failed| failed.text)).take(3).collect()
}

/// A checker that cannot fail proves nothing: each mistake is noticed, in the words of the promise that it
/// breaks.
#[test]
fn mistakes_are_noticed() {
    let calm = Faults::default();
    let rough = Faults { lazy_consumers: true, cuts: true, slow_readers: true, ..calm };
    let cases = [
        (Mistake::SkipSync, Faults { power_cuts: true, ..calm }, "is damaged"),
        (Mistake::DropAcks, calm, "not marked redelivered"),
        (Mistake::LoseSettlements, calm, "left unresolved"),
        (Mistake::ForgetNacks, rough, "whose client has not said so"),
        (Mistake::Misroute, calm, "never been ended by a client"),
        (Mistake::HideRedelivery, rough, "not marked redelivered"),
        (Mistake::WidenWindow, rough, "exceeds the window"),
    ];
    for (mistake, faults, words) in cases {
        let texts = caught(mistake, faults);
        assert_eq!(texts.len(), 3, "{mistake:?} is hardly noticed: {texts:?}");
        assert!(texts.iter().any(|text| text.contains(words)), "{mistake:?}: {texts:?}");
    }
    let texts = (1..=10).filter_map(|seed| {
        run(&Options { plan: Some(plan(seed, rough)), ..Options::new(seed) }).err().map(|failed| failed.text)
    });
    assert_eq!(texts.collect::<Vec<_>>(), Vec::<String>::new(), "without a mistake nothing is to be noticed");
}

#[test]
fn a_history_can_be_stopped_where_it_failed() {
    let faults = Faults { lazy_consumers: true, cuts: true, ..Faults::default() };
    let options =
        Options { mistake: Some(Mistake::ForgetNacks), plan: Some(plan(1, faults)), ..Options::new(1) };
    let failed = run(&options).unwrap_err();
    let again = run(&Options { until: Some(failed.at), ..options.clone() }).unwrap_err();
    assert_eq!(again.text, failed.text);
    let before = berth_types::Instant::from_nanos(failed.at.as_nanos() - 1);
    assert!(run(&Options { until: Some(before), ..options }).is_ok());
    assert!(failed.to_string().contains(&format!("--seed 1 --until {}", failed.at)));
    assert!(failed.trace.iter().any(|line| line.contains("FAILED")));
}
