//! The numbers of a rank for Prometheus. The rank counts while it works; what lies in the heaps, its master says when
//! somebody asks.
//!
//! What must stay true: no key is ever a label; `docs/metrics.md` lists every family.

use mooncrate_admin::{Collector, DescriptorEncoder, Page, Registry, Shown};
use mooncrate_nano::{Nano, Stats, Timings, Usage};
use std::fmt;

/// What a rank knew when somebody asked.
#[derive(Debug)]
struct Look {
    stats: Stats,
    timings: Timings,
    /// By rank; nothing while the master does not answer.
    usage: Vec<Usage>,
}

impl Collector for Look {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut page = Page(encoder);
        for (name, help, of) in LEVELS {
            let ranks = self.usage.iter().enumerate();
            let rows = ranks.map(|(rank, usage)| ([("rank", rank.to_string())], of(usage)));
            page.many(&format!("mooncrate_nano_{name}"), help, &rows.collect::<Vec<_>>())?;
        }
        for (name, help, value) in counts(&self.stats) {
            page.one(&format!("mooncrate_nano_{name}"), help, &Shown::Count(value))?;
        }
        let waiting = Shown::level(self.stats.waiting);
        page.one(
            "mooncrate_nano_waiting",
            "Lives that wait for a reader or a producer.",
            &waiting,
        )?;
        let Timings { plan, push, commit, get } = &self.timings;
        for (name, help, spread) in [
            ("plan_seconds", "Plans made.", plan),
            ("push_seconds", "Parts of values pushed by calls.", push),
            ("commit_seconds", "Plans committed.", commit),
            ("get_seconds", "Values copied out.", get),
        ] {
            let spread = Shown::Spread(spread.clone());
            page.one(&format!("mooncrate_nano_{name}"), help, &spread)?;
        }
        Ok(())
    }
}

type Level = (&'static str, &'static str, fn(&Usage) -> Shown);

const LEVELS: [Level; 3] = [
    ("heap_used_bytes", "Bytes of values and open plans in the heap of a rank.", |of| {
        Shown::level(of.bytes_used)
    }),
    ("heap_bytes", "Bytes that values may use in the heap of a rank.", |of| {
        Shown::level(of.bytes_total)
    }),
    ("heap_values", "Values and open plans in the heap of a rank.", |of| {
        Shown::level(of.ready_count)
    }),
];

fn counts(stats: &Stats) -> [(&'static str, &'static str, u64); 7] {
    [
        ("refused_plans", "Plans that were refused, for want of room as a rule.", stats.oom_count),
        ("pushed_bytes", "Bytes pushed into heaps by calls of this rank.", stats.bytes_tx),
        ("read_bytes", "Bytes that this rank copied out of heaps.", stats.bytes_rx),
        ("freed_lives", "Lives that ended in the heap of this rank.", stats.freed_count),
        ("evicted_values", "Values evicted from the heap of this rank.", stats.evict_count),
        ("evict_in_use", "Victims that were pinned, and stayed.", stats.evict_in_use_retry),
        ("stuck_puts", "Puts that the watchdog ended in this heap.", stats.stuck_put_reclaimed),
    ]
}

/// The numbers of a rank as a page that Prometheus reads, in the format of [the servers' pages](crate).
pub fn metrics_text(nano: &Nano) -> String {
    let (stats, timings) = (nano.stats(), nano.timings());
    let usage = nano.usage().unwrap_or_default();
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Look { stats, timings, usage }));
    mooncrate_admin::metrics_text(&registry)
}
