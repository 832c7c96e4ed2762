//! What `top` shows: the last look at the cluster, and rates from the one before. Text only; who
//! shows it where is not known here.

use crate::cmd::look::Look;
use crate::render::{bytes, counted, table};
use mooncrate::{ClusterStat, SegmentRow};
use mooncrate_core::catalog::Counters;
use mooncrate_core::shown::shown;
use serde_json::{Value, json};

/// Cells of the bar of the whole cluster, and of one segment.
const WIDE: usize = 30;
const NARROW: usize = 12;
/// Lines above and below the rows of segments.
const AROUND: usize = 9;

/// What happened per second between two looks.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Rates {
    puts: f64,
    lookups: f64,
    /// Of the lookups; `None` when there were none.
    hit_percent: Option<f64>,
    evicted: f64,
    evicted_bytes: f64,
    busy: f64,
    removed: f64,
}

/// What is on the screen.
#[derive(Clone, Debug)]
pub(crate) struct View {
    master: String,
    last: Option<Look>,
    rates: Option<Rates>,
    /// Why there is no newer look.
    trouble: Option<String>,
}

impl View {
    /// Nothing seen yet.
    pub(super) fn new(master: String) -> Self {
        Self { master, last: None, rates: None, trouble: None }
    }

    /// A new look.
    pub(super) fn see(&mut self, look: Look) {
        self.rates = self.last.as_ref().and_then(|before| rates(before, &look));
        self.last = Some(look);
        self.trouble = None;
    }

    /// The master did not answer.
    pub(super) fn lost(&mut self, why: String) {
        self.trouble = Some(why);
        self.rates = None;
    }

    /// For programs.
    pub(crate) fn json(&self) -> Value {
        let stat = self.last.as_ref().map(|look| mooncrate_master::admin::stat_json(&look.stat));
        let rates = self.rates.map(|rates| {
            json!({
                "puts_per_second": rates.puts,
                "lookups_per_second": rates.lookups,
                "hit_percent": rates.hit_percent,
                "evicted_per_second": rates.evicted,
                "evicted_bytes_per_second": rates.evicted_bytes,
                "busy_per_second": rates.busy,
                "removed_per_second": rates.removed,
            })
        });
        json!({ "master": self.master, "stat": stat, "rates": rates })
    }

    /// For people: at most `height` lines of at most `width` characters.
    pub(crate) fn lines(&self, width: usize, height: usize) -> Vec<String> {
        let mut lines = vec![self.headline()];
        if let Some(look) = &self.last {
            lines.push(self.trouble.clone().unwrap_or_default());
            lines.extend(self.summary(&look.stat));
            lines.push(String::new());
            lines.extend(segments(look, height.saturating_sub(AROUND)));
        }
        for line in &mut lines {
            *line = line.chars().take(width).collect();
        }
        lines.truncate(height);
        lines
    }

    fn headline(&self) -> String {
        let Some(look) = &self.last else { return format!("mooncrate  {}", self.master) };
        let state = match (&self.trouble, look.stat.rebuilding) {
            (Some(_), _) => "NO ANSWER, what follows is old",
            (None, true) => "the index is being rebuilt",
            (None, false) => "q quits",
        };
        let nodes = counted(u64::from(look.stat.nodes), "node");
        format!("mooncrate  {}  epoch {}  {nodes}  ({state})", self.master, look.stat.epoch.0)
    }

    fn summary(&self, stat: &ClusterStat) -> Vec<String> {
        let (used, capacity) = (stat.used_bytes, stat.capacity_bytes);
        let rate = |of: fn(&Rates) -> f64| {
            self.rates.as_ref().map_or_else(|| "-".to_owned(), |rates| per_second(of(rates)))
        };
        let hits = match self.rates.map(|rates| rates.hit_percent) {
            Some(Some(percent)) => format!("{percent:.1} % found"),
            Some(None) | None => "- found".to_owned(),
        };
        let evicted_bytes = self.rates.map_or(0.0, |rates| rates.evicted_bytes);
        vec![
            format!(
                "used      {}  {} of {}, {} waiting to be freed",
                bar(used, capacity, WIDE),
                bytes(used),
                bytes(capacity),
                bytes(stat.quarantined_bytes),
            ),
            format!(
                "holds     {}, {}, index {}",
                counted(stat.objects, "value"),
                counted(stat.open_puts, "open put"),
                bytes(stat.index_bytes),
            ),
            format!(
                "a second  {} lookups ({hits}), {} puts, {} removed, {} busy",
                rate(|r| r.lookups),
                rate(|r| r.puts),
                rate(|r| r.removed),
                rate(|r| r.busy),
            ),
            format!(
                "evicted   {} a second, {}/s; found bad {} in memory, {} on disks",
                rate(|r| r.evicted),
                whole_bytes(evicted_bytes),
                stat.counters.bad_replicas,
                stat.counters.disk_lost,
            ),
        ]
    }
}

/// `None` where the two looks cannot be compared: another leader has counters of its own.
fn rates(before: &Look, after: &Look) -> Option<Rates> {
    let seconds = after.at.since(before.at).as_secs_f64();
    let (b, a) = (&before.stat.counters, &after.stat.counters);
    if before.stat.epoch != after.stat.epoch || seconds <= 0.0 || a.puts < b.puts {
        return None;
    }
    #[expect(clippy::cast_precision_loss, reason = "what happens in seconds fits")]
    let since = |of: fn(&Counters) -> u64| of(a).saturating_sub(of(b)) as f64;
    let (hits, misses) = (since(|c| c.hits), since(|c| c.misses));
    let lookups = hits + misses;
    Some(Rates {
        puts: since(|c| c.puts) / seconds,
        lookups: lookups / seconds,
        hit_percent: (lookups > 0.0).then(|| 100.0 * hits / lookups),
        evicted: since(|c| c.evicted) / seconds,
        evicted_bytes: since(|c| c.evicted_bytes) / seconds,
        busy: since(|c| c.busy) / seconds,
        removed: since(|c| c.removed) / seconds,
    })
}

/// The table of segments: by node, cut to `rows`.
fn segments(look: &Look, rows: usize) -> Vec<String> {
    let mut sorted: Vec<(String, &SegmentRow)> =
        look.stat.segments.iter().map(|row| (look.node(row), row)).collect();
    if sorted.is_empty() {
        return vec!["no segments are mounted".to_owned()];
    }
    sorted.sort_by(|a, b| (&a.0, a.1.offer.segment).cmp(&(&b.0, b.1.offer.segment)));
    let hidden = sorted.len().saturating_sub(rows.max(1));
    sorted.truncate(sorted.len() - hidden);
    let cells = sorted.into_iter().map(|(name, row)| {
        vec![
            shown(&name).to_string(),
            format!("{:?}", row.offer.medium).to_ascii_lowercase(),
            if row.open { "open" } else { "closed" }.to_owned(),
            row.objects.to_string(),
            bar(row.used_bytes, row.offer.bytes, NARROW),
            bytes(row.used_bytes),
            bytes(row.offer.bytes),
            bytes(row.largest_free_run),
            row.offer.segment.to_string(),
        ]
    });
    let header =
        ["NODE", "MEDIUM", "STATE", "REPLICAS", "FULL", "USED", "CAPACITY", "FREE RUN", "SEGMENT"];
    let table = table(&header, &[3, 5, 6, 7], cells.collect());
    let mut lines: Vec<String> = table.trim_fmt().lines().map(str::to_owned).collect();
    if hidden > 0 {
        lines.push(format!("and {}", counted(hidden as u64, "more segment")));
    }
    lines
}

/// How full, as a picture and in percent.
fn bar(part: u64, whole: u64, cells: usize) -> String {
    let (part, whole) = (u128::from(part.min(whole)), u128::from(whole.max(1)));
    // Rounded down, so that only what is full looks full; something shows as soon as there is some.
    let full = (part * cells as u128 / whole) as usize;
    let full = if part > 0 { full.max(1) } else { full };
    let percent = part * 100 / whole;
    format!("[{}{}] {percent:>3} %", "#".repeat(full), ".".repeat(cells - full))
}

fn per_second(rate: f64) -> String {
    if rate > 0.0 && rate < 10.0 { format!("{rate:.1}") } else { format!("{rate:.0}") }
}

#[expect(clippy::cast_sign_loss, reason = "a rate is not negative")]
fn whole_bytes(rate: f64) -> String {
    bytes(rate as u64)
}

#[cfg(test)]
#[path = "view_tests.rs"]
mod tests;
