//! Numbers for Prometheus. A role writes families onto a [`Page`] when somebody asks; in between it
//! only counts, so that a request pays for two additions and nothing else.

use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use mooncrate_core::tally::SpreadNow;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use std::collections::BTreeSet;
use std::fmt;

/// The format that Prometheus reads here.
const FORMAT: HeaderValue =
    HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
/// The one before it.
const OLDER_FORMAT: HeaderValue =
    HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
const NANOS: f64 = 1e9;

/// One value of a family.
#[derive(Clone, Debug)]
pub enum Shown {
    /// Grows only; its name gets the ending `_total`.
    Count(u64),
    /// Goes up and down.
    Level(f64),
    /// How long things took, in seconds.
    Spread(SpreadNow),
}

impl Shown {
    /// A level that is a whole number.
    #[expect(clippy::cast_precision_loss, reason = "beyond 2^53 a gauge may be rounded")]
    pub fn level(value: u64) -> Self {
        Self::Level(value as f64)
    }

    const fn kind(&self) -> MetricType {
        match self {
            Self::Count(_) => MetricType::Counter,
            Self::Level(_) => MetricType::Gauge,
            Self::Spread(_) => MetricType::Histogram,
        }
    }
}

/// What a role writes its families onto.
#[derive(Debug)]
pub struct Page<'a>(pub DescriptorEncoder<'a>);

impl Page<'_> {
    /// A family of one value.
    pub fn one(&mut self, name: &str, help: &str, value: &Shown) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, value.kind())?;
        show(&mut family, value)
    }

    /// A family with a value per set of labels; nothing if there are none.
    pub fn many<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        rows: &[(L, Shown)],
    ) -> fmt::Result {
        let Some((_, first)) = rows.first() else { return Ok(()) };
        let mut family = self.0.encode_descriptor(name, help, None, first.kind())?;
        for (labels, value) in rows {
            show(&mut family.encode_family(labels)?, value)?;
        }
        Ok(())
    }
}

#[expect(clippy::cast_precision_loss, reason = "a sum of seconds and a bound of a bucket")]
fn show(
    encoder: &mut prometheus_client::encoding::MetricEncoder<'_>,
    value: &Shown,
) -> fmt::Result {
    match value {
        Shown::Count(count) => encoder.encode_counter::<NoLabelSet, _, u64>(count, None),
        Shown::Level(level) => encoder.encode_gauge(level),
        Shown::Spread(spread) => {
            let seconds = |ns: u64| ns as f64 / NANOS;
            let buckets: Vec<(f64, u64)> = spread
                .buckets
                .iter()
                .map(|(bound, count)| (bound.map_or(f64::INFINITY, seconds), *count))
                .collect();
            let sum = seconds(spread.sum_ns);
            encoder.encode_histogram::<NoLabelSet>(sum, spread.count, &buckets, None)
        }
    }
}

/// Everything that is registered, as Prometheus reads it.
pub fn metrics(registry: &Registry) -> Response {
    ([(header::CONTENT_TYPE, FORMAT)], metrics_text(registry)).into_response()
}

/// The same in the older text format, which some dashboards ask for, behind what a role has written in it
/// by itself. There the name of a counter's family ends as its samples do.
pub fn metrics_older(mut page: String, registry: &Registry) -> Response {
    page.push_str(&older(&metrics_text(registry)));
    ([(header::CONTENT_TYPE, OLDER_FORMAT)], page).into_response()
}

fn older(text: &str) -> String {
    let mut page = String::with_capacity(text.len());
    let counters: BTreeSet<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter"))
        .collect();
    for line in text.lines().filter(|line| *line != "# EOF" && !line.starts_with("# UNIT ")) {
        let family = ["# HELP ", "# TYPE "].iter().find_map(|head| {
            let (name, rest) = line.strip_prefix(head)?.split_once(' ')?;
            counters.contains(name).then(|| format!("{head}{name}_total {rest}"))
        });
        page.push_str(family.as_deref().unwrap_or(line));
        page.push('\n');
    }
    page
}

/// The text of [`metrics`], for programs that answer Prometheus by themselves.
pub fn metrics_text(registry: &Registry) -> String {
    let mut text = String::new();
    let written = prometheus_client::encoding::text::encode(&mut text, registry);
    written.expect("a String takes everything, and our families are well formed");
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use mooncrate_core::tally::Spread;
    use prometheus_client::collector::Collector;
    use std::time::Duration;

    #[derive(Debug)]
    struct Sample(Spread);

    impl Collector for Sample {
        fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
            let mut page = Page(encoder);
            page.one("a_things", "Things.", &Shown::Count(7))?;
            let labels = |name: &str| [("node", name.to_owned())];
            let rows = [(labels("x\"y"), Shown::level(3)), (labels("z"), Shown::Level(0.5))];
            page.many("a_level", "Levels.", &rows)?;
            page.many::<[(&str, &str); 1]>("a_nothing", "Nothing.", &[])?;
            page.one("a_seconds", "Times.", &Shown::Spread(self.0.now()))
        }
    }

    #[test]
    fn families_are_written_as_prometheus_reads_them() {
        let sample = Sample(Spread::default());
        sample.0.note(Duration::from_micros(1));
        sample.0.note(Duration::from_micros(2));
        sample.0.note(Duration::from_mins(1));
        let mut registry = Registry::default();
        registry.register_collector(Box::new(sample));
        let text = metrics_text(&registry);
        for line in [
            "# HELP a_things Things.",
            "# TYPE a_things counter",
            "a_things_total 7",
            "a_level{node=\"x\\\"y\"} 3.0",
            "a_level{node=\"z\"} 0.5",
            "a_seconds_bucket{le=\"0.000001024\"} 1",
            "a_seconds_bucket{le=\"0.000002048\"} 2",
            "a_seconds_bucket{le=\"+Inf\"} 3",
            "a_seconds_count 3",
            "a_seconds_sum 60.000003",
        ] {
            assert!(text.lines().any(|have| have == line), "{line} in\n{text}");
        }
        assert!(!text.contains("a_nothing") && text.ends_with("# EOF\n"), "{text}");
    }

    #[test]
    fn in_the_older_format_counters_are_named_as_their_samples() {
        let newer = "# HELP a_things Things.\n# TYPE a_things counter\na_things_total 7\n\
                     # HELP a_level Now.\n# TYPE a_level gauge\na_level 3\n# EOF\n";
        let expected = "# HELP a_things_total Things.\n# TYPE a_things_total counter\n\
                        a_things_total 7\n# HELP a_level Now.\n# TYPE a_level gauge\na_level 3\n";
        assert_eq!(older(newer), expected);
    }
}
