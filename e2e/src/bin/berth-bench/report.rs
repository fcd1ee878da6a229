//! Figures of a scenario: a table for people, JSON for programs.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Map, Value, json};

use crate::servers::Kind;

/// One figure of a turn: `("rate/s", 1234.0)`.
pub(crate) type Figure = (&'static str, f64);

/// What one server did.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) kind: Kind,
    pub(crate) version: String,
    /// The figures of each turn, every turn the same names.
    pub(crate) turns: Vec<Vec<Figure>>,
}

/// What a scenario gave.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) id: &'static str,
    pub(crate) title: String,
    /// The figure that is compared.
    pub(crate) main: &'static str,
    /// Whether more of it is better.
    pub(crate) more_is_better: bool,
    pub(crate) rows: Vec<Row>,
    /// What the machine does without a broker, by name.
    pub(crate) limits: Vec<(String, f64)>,
    pub(crate) notes: Vec<String>,
}

/// Lowest, median and highest of some turns.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Spread {
    pub(crate) min: f64,
    pub(crate) median: f64,
    pub(crate) max: f64,
}

impl Spread {
    /// None of nothing. The median of an even number is the mean of the two in the middle.
    pub(crate) fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let median = (values[(values.len() - 1) / 2] + values[values.len() / 2]) / 2.0;
        Some(Self { min, median, max })
    }
}

impl Row {
    /// Over the turns.
    pub(crate) fn spread(&self, name: &str) -> Option<Spread> {
        Spread::of(self.values(name))
    }

    fn values(&self, name: &str) -> Vec<f64> {
        let value = |turn: &Vec<Figure>| turn.iter().find(|figure| figure.0 == name).map(|figure| figure.1);
        self.turns.iter().filter_map(value).collect()
    }

    fn names(&self) -> Vec<&'static str> {
        self.turns.first().map(|turn| turn.iter().map(|figure| figure.0).collect()).unwrap_or_default()
    }
}

impl Report {
    /// The peer whose median is best.
    pub(crate) fn best_peer(&self) -> Option<&Row> {
        let peers = self.rows.iter().filter(|row| !matches!(row.kind, Kind::Berth | Kind::Null));
        let median = |row: &&Row| row.spread(self.main).map_or(f64::NAN, |spread| spread.median);
        if self.more_is_better {
            peers.max_by(|a, b| median(a).total_cmp(&median(b)))
        } else {
            peers.min_by(|a, b| median(a).total_cmp(&median(b)))
        }
    }

    /// Ours over another's, turn by turn.
    pub(crate) fn ratio(&self, other: &Row) -> Option<Spread> {
        let ours = self.row(Kind::Berth)?.values(self.main);
        Spread::of(ours.iter().zip(other.values(self.main)).map(|(ours, other)| ours / other).collect())
    }

    /// A table with the servers as rows.
    pub(crate) fn table(&self) -> String {
        let names = self.rows.first().map(Row::names).unwrap_or_default();
        let mut lines = vec![header(&names, self.main)];
        for row in &self.rows {
            let mut line = vec![row.kind.name().to_owned()];
            for name in &names {
                let spread = row.spread(name);
                let shown = |value: fn(&Spread) -> f64| {
                    spread.as_ref().map_or_else(|| "-".to_owned(), |s| short(value(s)))
                };
                if *name == self.main {
                    line.extend([shown(|s| s.min), shown(|s| s.median), shown(|s| s.max)]);
                } else {
                    line.push(shown(|s| s.median));
                }
            }
            lines.push(line);
        }
        let turns = self.rows.iter().map(|row| row.turns.len()).max().unwrap_or(0);
        let mut text = format!("{}  {} ({turns} turns)\n{}", self.id, self.title, aligned(&lines));
        self.write_below(&mut text);
        text
    }

    fn write_below(&self, text: &mut String) {
        let mut line = |words: String| {
            text.push_str("  ");
            text.push_str(&words);
            text.push('\n');
        };
        if let Some((best, ratio)) = self.best_peer().and_then(|best| Some((best, self.ratio(best)?))) {
            let Spread { min, median, max } = ratio;
            let name = best.kind.name();
            line(format!("berth / {name} (best peer): min {min:.2}, median {median:.2}, max {max:.2}"));
        }
        let ours = self.row(Kind::Berth).and_then(|row| row.spread(self.main));
        if let Some((ours, null)) = ours.zip(self.row(Kind::Null).and_then(|row| row.spread(self.main))) {
            line(format!("berth / null: {:.0} % of the sockets alone", 100.0 * ours.median / null.median));
        }
        for (name, limit) in &self.limits {
            let share = ours.map(|ours| format!(", berth {:.0} % of it", 100.0 * ours.median / limit));
            line(format!("limit {name}: {}{}", short(*limit), share.unwrap_or_default()));
        }
        for note in &self.notes {
            line(note.clone());
        }
        let versions: Vec<String> =
            self.rows.iter().map(|row| format!("{} {}", row.kind.name(), row.version)).collect();
        line(format!("versions: {}", versions.join(", ")));
    }

    /// `{ title, main, ours, peers: { name: figures }, limits, ratio_min, ratio_median, ratio_max }`.
    pub(crate) fn json(&self) -> Value {
        let mut peers = Map::new();
        let mut value = json!({
            "title": self.title, "main": self.main, "more_is_better": self.more_is_better,
            "limits": self.limits.iter().cloned().collect::<BTreeMap<_, _>>(), "notes": self.notes,
        });
        for row in &self.rows {
            if row.kind == Kind::Berth {
                value["ours"] = row_json(row);
            } else {
                peers.insert(row.kind.name().to_owned(), row_json(row));
            }
        }
        value["peers"] = Value::Object(peers);
        if let Some((best, ratio)) = self.best_peer().and_then(|best| Some((best, self.ratio(best)?))) {
            value["best_peer"] = json!(best.kind.name());
            value["ratio_min"] = json!(rounded(ratio.min));
            value["ratio_median"] = json!(rounded(ratio.median));
            value["ratio_max"] = json!(rounded(ratio.max));
        }
        value
    }

    fn row(&self, kind: Kind) -> Option<&Row> {
        self.rows.iter().find(|row| row.kind == kind)
    }
}

/// Replaces the scenarios of `reports` in `file`, keeps the others, and notes the machine.
pub(crate) fn merge(file: &Path, reports: &[Report]) -> Result<()> {
    let mut whole: Value = match std::fs::read(file) {
        Ok(bytes) => serde_json::from_slice(&bytes).with_context(|| format!("{}", file.display()))?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => json!({}),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", file.display())),
    };
    whole["machine"] = json!(machine());
    for report in reports {
        whole["scenarios"][report.id] = report.json();
    }
    let text = serde_json::to_string_pretty(&whole)? + "\n";
    std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

/// Processor, cores and kernel of this machine.
pub(crate) fn machine() -> String {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": ").map(|p| p.1));
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("{}, {cores} cores, Linux {}", model.unwrap_or("unknown processor"), kernel.trim())
}

fn row_json(row: &Row) -> Value {
    let mut value = Map::new();
    value.insert("version".into(), json!(row.version));
    for name in row.names() {
        if let Some(Spread { min, median, max }) = row.spread(name) {
            let spread = json!({ "min": rounded(min), "median": rounded(median), "max": rounded(max) });
            value.insert(name.to_owned(), spread);
        }
    }
    Value::Object(value)
}

fn header(names: &[&str], main: &str) -> Vec<String> {
    let mut line = vec![String::new()];
    for name in names {
        if *name == main {
            line.extend([format!("{name} min"), "median".to_owned(), "max".to_owned()]);
        } else {
            line.push((*name).to_owned());
        }
    }
    line
}

fn aligned(lines: &[Vec<String>]) -> String {
    let columns = lines.first().map_or(0, Vec::len);
    let width = |column: usize| lines.iter().filter_map(|line| line.get(column)).map(String::len).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let mut text = String::new();
    for line in lines {
        for (cell, width) in line.iter().zip(&widths) {
            write!(text, "  {cell:>width$}").expect("a string takes all");
        }
        text.push('\n');
    }
    text
}

/// Three digits that matter.
fn short(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

fn rounded(value: f64) -> f64 {
    (value * 1_000.0).round() / 1_000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(kind: Kind, rates: &[f64]) -> Row {
        let turns = rates.iter().map(|rate| vec![("rate/s", *rate), ("cpu us", 2.0)]).collect();
        Row { kind, version: "1".into(), turns }
    }

    fn report() -> Report {
        Report {
            id: "B1",
            title: "a title".into(),
            main: "rate/s",
            more_is_better: true,
            rows: vec![
                row(Kind::Berth, &[100.0, 300.0, 220.0]),
                row(Kind::Artemis, &[10.0, 10.0, 10.0]),
                row(Kind::Rabbitmq, &[20.0, 25.0, 20.0]),
                row(Kind::Null, &[440.0, 440.0, 440.0]),
            ],
            limits: vec![("append and sync".into(), 880.0)],
            notes: Vec::new(),
        }
    }

    #[test]
    fn ratios_pair_the_turns_with_the_best_peer() {
        let report = report();
        let best = report.best_peer().expect("a peer");
        assert_eq!(best.kind, Kind::Rabbitmq);
        assert_eq!(report.ratio(best), Some(Spread { min: 5.0, median: 11.0, max: 12.0 }));
        let json = report.json();
        assert_eq!((&json["ratio_min"], &json["ratio_max"]), (&json!(5.0), &json!(12.0)));
        assert_eq!(json["ours"]["rate/s"]["median"], json!(220.0));
        assert_eq!(json["peers"]["artemis"]["cpu us"]["max"], json!(2.0));
    }

    #[test]
    fn less_is_better_turns_the_choice_of_peer_around() {
        let report = Report { more_is_better: false, ..report() };
        assert_eq!(report.best_peer().map(|row| row.kind), Some(Kind::Artemis));
    }

    #[test]
    fn a_table_names_servers_ratio_and_shares() {
        let table = report().table();
        for expected in ["rate/s min  median   max", "  rabbitmq", "median 11.00", "50 % of", "25 % of it"] {
            assert!(table.contains(expected), "{expected} is not in\n{table}");
        }
    }

    #[test]
    fn merging_keeps_what_another_run_has_measured() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("figures.json");
        merge(&file, &[Report { id: "B2", ..report() }]).expect("written");
        merge(&file, &[report()]).expect("merged");
        let whole: Value = serde_json::from_slice(&std::fs::read(&file).expect("read")).expect("JSON");
        let scenarios = whole["scenarios"].as_object().expect("scenarios");
        assert_eq!(scenarios.keys().collect::<Vec<_>>(), ["B1", "B2"]);
    }
}
