//! A strict reader of the metrics page: what Prometheus would trip over, it panics about.

use std::collections::{BTreeMap, BTreeSet};

/// What is said about a family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Family {
    pub(crate) kind: String,
    /// Labels of its samples, the bounds of buckets aside.
    pub(crate) labels: BTreeSet<String>,
    pub(crate) help: String,
}

/// A page that was read.
#[derive(Debug, Default)]
pub(crate) struct Scrape {
    pub(crate) families: BTreeMap<String, Family>,
    /// Values by name and labels, as written.
    samples: BTreeMap<String, f64>,
}

impl Scrape {
    #[track_caller]
    pub(crate) fn read(page: &str) -> Self {
        let body = page.strip_suffix("# EOF\n").expect("the page ends in words");
        let mut scrape = Self::default();
        let mut current = String::new();
        for line in body.lines() {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                let (name, help) = rest.split_once(' ').unwrap();
                name.clone_into(&mut current);
                let family = Family { kind: String::new(), labels: [].into(), help: help.into() };
                assert!(scrape.families.insert(current.clone(), family).is_none(), "twice: {line}");
            } else if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').unwrap();
                assert_eq!(name, current, "the type follows the help");
                kind.clone_into(&mut scrape.families.get_mut(name).unwrap().kind);
            } else {
                scrape.sample(&current, line);
            }
        }
        for (name, family) in &scrape.families {
            assert!(["counter", "gauge", "histogram"].contains(&family.kind.as_str()), "{name}");
            assert!(family.help.ends_with('.'), "help is a sentence: {name}");
            if family.kind == "histogram" {
                scrape.check_buckets(name);
            }
        }
        scrape
    }

    fn sample(&mut self, family: &str, line: &str) {
        let (name, value) = line.rsplit_once(' ').unwrap();
        let (bare, labels) = name.split_once('{').unwrap_or((name, "}"));
        let labels = labels.strip_suffix('}').expect("labels are closed");
        let about = self.families.get_mut(family).expect("samples follow their family");
        let endings: &[&str] = match about.kind.as_str() {
            "counter" => &["_total"],
            "histogram" => &["_bucket", "_sum", "_count"],
            _ => &[""],
        };
        let ending = bare.strip_prefix(family).expect("samples are named after their family");
        assert!(endings.contains(&ending), "{line}");
        for label in labels.split("\",").filter(|label| !label.is_empty()) {
            let (name, _) = label.split_once("=\"").expect("a label has a value");
            if name != "le" {
                about.labels.insert(name.to_owned());
            }
        }
        let value: f64 = value.parse().expect("a value is a number");
        assert!(value.is_finite() && value >= 0.0, "{line}");
        assert!(self.samples.insert(name.to_owned(), value).is_none(), "twice: {line}");
    }

    /// Buckets only grow, and the last one holds everything.
    fn check_buckets(&self, family: &str) {
        let (bucket, count) = (format!("{family}_bucket"), format!("{family}_count"));
        for (name, total) in self.samples.iter().filter(|(name, _)| name.starts_with(&count)) {
            let labels = name.strip_prefix(&count).unwrap();
            let own = labels.trim_start_matches('{').trim_end_matches('}');
            let mut bounds: Vec<(f64, f64)> = self
                .samples
                .iter()
                .filter(|(name, _)| name.starts_with(&bucket) && name.contains(own))
                .map(|(name, count)| {
                    let bound = name.split_once("le=\"").unwrap().1.split_once('"').unwrap().0;
                    (bound.replace("+Inf", "inf").parse().unwrap(), *count)
                })
                .collect();
            bounds.sort_by(|a, b| a.0.total_cmp(&b.0));
            assert!(bounds.is_sorted_by(|a, b| a.1 <= b.1), "{name}: {bounds:?}");
            let (last, all) = bounds.last().unwrap();
            assert!(last.is_infinite() && all == total, "{name}: {bounds:?}");
        }
    }

    #[track_caller]
    pub(crate) fn value(&self, sample: &str) -> f64 {
        *self.samples.get(sample).unwrap_or_else(|| panic!("no sample {sample}"))
    }
}

/// The tables of the page: name, type, labels, meaning.
pub(crate) fn documented() -> BTreeMap<String, Family> {
    let page = include_str!("../../../../docs/metrics.md");
    let rows = page.lines().filter(|line| line.starts_with("| `mooncrate_"));
    rows.map(|row| {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [name, kind, labels, help] = cells[..] else { panic!("four columns: {row}") };
        let labels = labels.split_whitespace().map(str::to_owned).collect();
        let family = Family { kind: kind.to_owned(), labels, help: help.to_owned() };
        (name.trim_matches('`').to_owned(), family)
    })
    .collect()
}
