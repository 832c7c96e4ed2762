//! Tables as values: for people, for programs and for the docs, from the same rows.

use crate::machine::Machine;
use crate::measure::{Series, Spread};
use crate::neighbours;
use anyhow::Result;
use serde_json::{Value, json};

/// Whether a row reached what it should.
#[derive(Clone, Debug)]
pub(crate) struct Verdict {
    goal: String,
    met: bool,
}

impl Verdict {
    /// `value` should be at least `limit`; `goal` says so in words.
    pub(crate) fn at_least(value: f64, limit: f64, goal: impl Into<String>) -> Self {
        Self { goal: goal.into(), met: value >= limit }
    }

    /// `value` should be at most `limit`.
    pub(crate) fn at_most(value: f64, limit: f64, goal: impl Into<String>) -> Self {
        Self { goal: goal.into(), met: value <= limit }
    }

    fn json(verdict: Option<&Self>) -> Value {
        verdict.map_or(Value::Null, |v| json!({ "goal": v.goal, "met": v.met }))
    }
}

/// One row: cells for people, values for programs, and its verdict.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) cells: Vec<String>,
    pub(crate) values: Value,
    pub(crate) verdict: Option<Verdict>,
}

/// One table.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    /// For programs.
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    /// What the floor is, what was counted and what was not.
    pub(crate) notes: Vec<String>,
    /// The columns before GOAL and MET.
    pub(crate) columns: Vec<String>,
    pub(crate) rows: Vec<Row>,
}

impl Table {
    /// All columns, the verdict's included.
    pub(crate) fn header(&self) -> Vec<String> {
        let verdict = ["GOAL", "MET"].map(str::to_owned);
        self.columns.iter().cloned().chain(verdict).collect()
    }

    /// All cells of all rows, the verdict's included.
    pub(crate) fn cells(&self) -> impl Iterator<Item = Vec<String>> + '_ {
        self.rows.iter().map(|row| {
            assert_eq!(row.cells.len(), self.columns.len(), "{}: {row:?}", self.name);
            let verdict = match &row.verdict {
                Some(verdict) => {
                    [verdict.goal.clone(), if verdict.met { "yes" } else { "NO" }.to_owned()]
                }
                None => ["", ""].map(str::to_owned),
            };
            row.cells.iter().cloned().chain(verdict).collect()
        })
    }

    fn json(&self) -> Value {
        let rows: Vec<Value> = self
            .rows
            .iter()
            .map(|row| {
                let mut values = row.values.clone();
                values["verdict"] = Verdict::json(row.verdict.as_ref());
                values
            })
            .collect();
        json!({ "name": self.name, "title": self.title, "notes": self.notes, "rows": rows })
    }

    fn markdown(&self, machine: &Machine) -> String {
        let mut text = format!("## {}\n\n{}\n\n", self.title, machine.line());
        for note in &self.notes {
            text.extend(["- ", note, "\n"]);
        }
        let header = self.header();
        text.extend(["\n| ", &header.join(" | "), " |\n|"]);
        // Words stand left, figures right; the first column is always words.
        for column in 0..header.len() {
            text.push_str(if column == 0 { " --- |" } else { " ---: |" });
        }
        text.push('\n');
        for cells in self.cells() {
            text.extend(["| ", &cells.join(" | "), " |\n"]);
        }
        text.push('\n');
        text
    }
}

/// All tables of a run, and where they come from.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) machine: Machine,
    pub(crate) effort: String,
    /// Per cent of the machine that other programs used meanwhile.
    pub(crate) others: Option<f64>,
    pub(crate) tables: Vec<Table>,
}

impl Report {
    /// One sentence on the goals, misses first, and one on the neighbours.
    pub(crate) fn summary(&self) -> String {
        format!("{} {}", self.goals(), neighbours::describe(self.others))
    }

    fn goals(&self) -> String {
        let verdicts =
            || self.tables.iter().flat_map(|t| &t.rows).filter_map(|r| r.verdict.as_ref());
        let (all, met) = (verdicts().count(), verdicts().filter(|v| v.met).count());
        match (all, all - met) {
            (0, _) => "No row of this run has a goal.".to_owned(),
            (_, 0) => format!("All {all} goals of this run were met."),
            (_, missed) => format!("{missed} of {all} goals of this run were NOT met."),
        }
    }

    /// For programs.
    pub(crate) fn json_text(&self) -> Result<String> {
        let document = json!({
            "machine": self.machine.json(),
            "effort": self.effort,
            "others_percent": self.others,
            "tables": self.tables.iter().map(Table::json).collect::<Vec<_>>(),
        });
        Ok(serde_json::to_string_pretty(&document)? + "\n")
    }

    /// For the docs.
    pub(crate) fn markdown(&self) -> String {
        let mut text =
            format!("# Figures beside their floors\n\n{}. {}\n\n", self.effort, self.summary());
        for table in &self.tables {
            text.push_str(&table.markdown(&self.machine));
        }
        // One empty line at the end is enough.
        text.truncate(text.trim_end().len());
        text + "\n"
    }
}

/// A time for people.
pub(crate) fn time(nanos: f64) -> String {
    match nanos {
        n if n < 999.5 => format!("{n:.0} ns"),
        n if n < 99_950.0 => format!("{:.1} µs", n / 1e3),
        n if n < 999_500.0 => format!("{:.0} µs", n / 1e3),
        n => format!("{:.2} ms", n / 1e6),
    }
}

/// `median (min..max)` with as many digits as mean something.
pub(crate) fn spread(spread: Spread, unit: &str) -> String {
    let digits = match spread.median.abs() {
        m if m < 10.0 => 2,
        m if m < 100.0 => 1,
        _ => 0,
    };
    let Spread { median, min, max } = spread;
    format!("{median:.digits$}{unit} ({min:.digits$}..{max:.digits$})")
}

/// Subject, floor and the time of the one as a multiple of the other's, for programs.
pub(crate) fn duel_json(subject: &Series, floor: &Series) -> Value {
    json!({
        "subject": subject.json(),
        "floor": floor.json(),
        "times_floor": subject.over(floor).json(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let row = |value: f64| Row {
            cells: vec!["a".into(), value.to_string()],
            values: json!({ "value": value }),
            verdict: Some(Verdict::at_least(value, 0.9, ">= 90%")),
        };
        let table = Table {
            name: "t",
            title: "A table",
            notes: vec!["a note".into()],
            columns: vec!["WHAT".into(), "VALUE".into()],
            rows: vec![row(0.95), row(0.5)],
        };
        Report {
            machine: Machine::read(),
            effort: "a little".into(),
            others: Some(1.0),
            tables: vec![table],
        }
    }

    #[test]
    fn losing_rows_are_shown_like_the_others() {
        let report = report();
        let text = report.markdown();
        assert!(
            text.contains("| a | 0.95 | >= 90% | yes |\n| a | 0.5 | >= 90% | NO |\n"),
            "{text}"
        );
        assert!(text.contains("1 of 2 goals of this run were NOT met."), "{text}");
        assert!(text.contains(&report.machine.commit), "{text}");
        let json: Value = serde_json::from_str(&report.json_text().unwrap()).unwrap();
        assert_eq!(json["tables"][0]["rows"][1]["verdict"]["met"], json!(false));
        assert_eq!(json["machine"]["command"], json!(report.machine.command));
    }

    #[test]
    fn figures_have_the_digits_that_mean_something() {
        assert_eq!(time(87.4), "87 ns");
        assert_eq!(time(1234.0), "1.2 µs");
        assert_eq!(time(123_456.0), "123 µs");
        assert_eq!(time(12_345_678.0), "12.35 ms");
        let s = Spread { median: 12.34, min: 11.0, max: 13.0 };
        assert_eq!(spread(s, ""), "12.3 (11.0..13.0)");
        assert_eq!(spread(s.map(|v| v / 10.0), "×"), "1.23× (1.10..1.30)");
    }

    #[test]
    fn verdicts_judge_in_the_right_direction() {
        assert!(Verdict::at_most(1.3, 1.3, "").met && !Verdict::at_most(1.31, 1.3, "").met);
        assert!(Verdict::at_least(0.9, 0.9, "").met && !Verdict::at_least(0.89, 0.9, "").met);
    }
}
