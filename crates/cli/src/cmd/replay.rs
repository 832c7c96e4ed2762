//! `replay`: what each eviction policy finds of a request trace or a generated load, by size of the cache, beside
//! the best that is possible. Needs no cluster.

mod store;

use crate::args::{Loads, Replay};
use crate::failure::Failure;
use crate::render::{Output, bytes, counted, table};
use mooncrate_core::evict::PolicyKind;
use mooncrate_paged::replay::{
    Broken, Outcome, Plot, Series, Trace, TraceError, capacities, optimal, replay, replay_pool,
};
use mooncrate_paged::{BLOCKS_MAX, Policy};
use mooncrate_wire::clock::boottime;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::time::Duration;

/// The name of the bound among the policies.
const OPTIMAL: &str = "optimal";

/// What one policy found, at each size.
#[derive(Debug)]
struct Line {
    /// The policy, or what it was replayed through.
    name: &'static str,
    /// The policy; `None` for the bound.
    policy: Option<Policy>,
    outcomes: Vec<Outcome>,
    /// Bytes that were written to a disk, at each size; empty without one.
    written: Vec<u64>,
    /// Time of all sizes together.
    took: Duration,
}

/// All that was found out about one trace.
#[derive(Debug)]
pub(crate) struct Report {
    /// The name of the trace's file, or of the load.
    name: String,
    /// The seed of a generated load.
    seed: Option<u64>,
    trace: Trace,
    bytes_per_token: u64,
    capacities: Vec<u32>,
    /// The policies, and the bound as the last one.
    lines: Vec<Line>,
}

impl Line {
    /// The name for people, with the policy where the name does not say it.
    fn label(&self) -> String {
        match self.policy {
            Some(policy) if policy.name() != self.name => format!("{} ({policy})", self.name),
            _ => self.name.to_owned(),
        }
    }
}

pub(crate) fn run(args: &Replay, out: Output) -> Result<(), Failure> {
    // Before anything is read or replayed, which may take minutes.
    let through = Through::checked(args)?;
    if let Some(file) = &args.trace {
        let broken = if args.skip_broken { Broken::Skip } else { Broken::Refuse };
        let trace = read(file, args.block_tokens, broken)?;
        let name = file.file_name().unwrap_or(file.as_os_str());
        let name = name.to_string_lossy().into_owned();
        Report::new(args, &through, (name, None), trace)?.show(args, (out, true))?;
    }
    if let Some(Loads(loads)) = &args.load {
        if let (Some(file), true) = (&args.svg, loads.len() > 1) {
            let message = format!("{} shows one load, not {}", file.display(), loads.len());
            return Err(Failure::usage(message).hint("draw each with --load NAME --svg FILE"));
        }
        for (at, load) in loads.iter().enumerate() {
            let trace = load.trace(args.seed, args.block_tokens);
            let name = (load.to_string(), Some(args.seed));
            Report::new(args, &through, name, trace)?.show(args, (out, at == 0))?;
        }
    }
    Ok(())
}

/// Through what else a trace is replayed.
struct Through {
    /// The policy of the block manager.
    manager: Option<Policy>,
    /// The policy of the store, by both of its names.
    store: Option<(Policy, PolicyKind)>,
}

impl Through {
    /// What the arguments ask for, if it can be done.
    fn checked(args: &Replay) -> Result<Self, Failure> {
        let first = args.policy.first().copied().unwrap_or(Policy::Density);
        let too_large = args.capacity.iter().find(|capacity| **capacity > BLOCKS_MAX);
        if let (Some(capacity), true) = (too_large, args.block_manager) {
            let message =
                format!("a block manager has {BLOCKS_MAX} blocks at most, not {capacity}");
            return Err(Failure::usage(message).hint("choose a smaller --capacity"));
        }
        let store = args.store.then(|| Ok((first, store::policy_of(first)?))).transpose()?;
        Ok(Self { manager: args.block_manager.then_some(first), store })
    }
}

fn read(path: &Path, block_tokens: u32, broken: Broken) -> Result<Trace, Failure> {
    let shown = path.display();
    let file = File::open(path).map_err(|error| {
        Failure::failed(format!("cannot open the trace {shown}: {error}"))
            .hint("give a file of JSON lines, such as Mooncake's conversation_trace.jsonl")
    })?;
    Trace::read(BufReader::new(file), block_tokens, broken).map_err(|error| {
        let failure = Failure::failed(format!("{shown}: {error}"));
        match error {
            TraceError::Broken { .. } if broken == Broken::Refuse => failure.hint(
                "--skip-broken leaves such lines out; --block-tokens COUNT must be that of the trace",
            ),
            TraceError::Empty { .. } => {
                failure.hint("every line needs timestamp, input_length, output_length and hash_ids")
            }
            _ => failure,
        }
    })
}

/// The sizes to try, ascending.
fn chosen(given: &[u32], trace: &Trace) -> Vec<u32> {
    if given.is_empty() {
        return capacities(trace);
    }
    let mut sizes = given.to_vec();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
impl Report {
    /// Replays the trace through all policies that were asked for.
    fn new(
        args: &Replay,
        through: &Through,
        (name, seed): (String, Option<u64>),
        trace: Trace,
    ) -> Result<Self, Failure> {
        let capacities = chosen(&args.capacity, &trace);
        let bytes_per_token = args.bytes_per_token;
        let mut report = Self { name, seed, trace, bytes_per_token, capacities, lines: Vec::new() };
        let policies = if args.policy.is_empty() { &Policy::ALL[..] } else { &args.policy };
        for (at, policy) in policies.iter().enumerate() {
            if !policies[..at].contains(policy) {
                let name = (policy.name(), Some(*policy));
                report.add(name, |trace, capacity| replay(trace, *policy, capacity));
            }
        }
        if let Some(policy) = through.manager {
            let name = ("manager", Some(policy));
            report.add(name, |trace, capacity| replay_pool(trace, policy, capacity));
        }
        if let Some(policy) = through.store {
            report.add_store(policy, (args.clients, args.disk))?;
        }
        report.add((OPTIMAL, None), optimal);
        Ok(report)
    }

    /// Draws it where that is asked for, and shows it.
    fn show(&self, args: &Replay, (out, first): (Output, bool)) -> Result<(), Failure> {
        if let Some(file) = &args.svg {
            std::fs::write(file, self.plot().svg()).map_err(|error| {
                Failure::failed(format!("cannot write the plot to {}: {error}", file.display()))
                    .hint("--svg FILE names a file in a folder that exists and may be written")
            })?;
        }
        out.replay(self, first)
    }

    /// The name, and the seed if there is one.
    fn title(&self) -> String {
        match self.seed {
            Some(seed) => format!("{}, seed {seed}", self.name),
            None => self.name.clone(),
        }
    }

    fn add(
        &mut self,
        (name, policy): (&'static str, Option<Policy>),
        find: impl Fn(&Trace, u32) -> Outcome,
    ) {
        let before = boottime();
        let outcomes = self.capacities.iter().map(|size| find(&self.trace, *size)).collect();
        let took = boottime().since(before);
        self.lines.push(Line { name, policy, outcomes, written: Vec::new(), took });
    }

    fn add_store(
        &mut self,
        (policy, kind): (Policy, PolicyKind),
        way: (u32, Option<u64>),
    ) -> Result<(), Failure> {
        let before = boottime();
        let replays =
            self.capacities.iter().map(|size| store::replay_store(&self.trace, kind, *size, way));
        let (outcomes, mut written): (_, Vec<u64>) = replays.collect::<Result<_, _>>()?;
        if way.1.is_none() {
            written.clear();
        }
        let (policy, took) = (Some(policy), boottime().since(before));
        self.lines.push(Line { name: "store", policy, outcomes, written, took });
        Ok(())
    }

    /// Requests per second of a line.
    fn rate(&self, line: &Line) -> f64 {
        let requests = (self.trace.len() * line.outcomes.len()) as f64;
        requests / line.took.as_secs_f64().max(1e-9)
    }

    /// Bytes of a cache of so many blocks.
    fn cache_bytes(&self, capacity: u32) -> u64 {
        let tokens = u64::from(capacity) * u64::from(self.trace.block_tokens());
        tokens.saturating_mul(self.bytes_per_token)
    }

    /// For programs.
    pub(crate) fn json(&self) -> Value {
        let rows = self.lines.iter().flat_map(|line| {
            let rate = self.rate(line);
            let sizes = self.capacities.iter().zip(&line.outcomes).enumerate();
            sizes.map(move |(at, (capacity, outcome))| {
                json!({
                    "policy": line.name,
                    "evict_policy": line.policy.map(Policy::name),
                    "capacity_blocks": capacity,
                    "capacity_bytes": self.cache_bytes(*capacity),
                    "hits": outcome.hits,
                    "hit_rate": outcome.hit_rate(),
                    "saved_tokens": outcome.saved_tokens,
                    "saved_bytes": outcome.saved_bytes(self.bytes_per_token),
                    "disk_written_bytes": line.written.get(at),
                    "requests_per_second": rate,
                })
            })
        });
        json!({
            "trace": self.name,
            "seed": self.seed,
            "requests": self.trace.len(),
            "skipped_lines": self.trace.skipped(),
            "blocks": self.trace.blocks().len(),
            "distinct_blocks": self.trace.distinct(),
            "block_tokens": self.trace.block_tokens(),
            "input_tokens": self.trace.input_tokens(),
            "output_tokens": self.trace.output_tokens(),
            "bytes_per_token": self.bytes_per_token,
            "rows": rows.collect::<Vec<_>>(),
        })
    }

    /// For people.
    pub(crate) fn screen(&self) -> String {
        let trace = &self.trace;
        let load = self.seed.map(|_| format!("{}: ", self.title())).unwrap_or_default();
        let mut screen = format!(
            "{load}{}, {} of {} tokens, {} distinct; {:.1} million tokens in; {} of KV cache per token",
            counted(trace.len() as u64, "request"),
            counted(trace.blocks().len() as u64, "block"),
            trace.block_tokens(),
            trace.distinct(),
            trace.input_tokens() as f64 / 1e6,
            bytes(self.bytes_per_token),
        );
        if trace.skipped() > 0 {
            let lines = counted(trace.skipped(), "line");
            let _ = write!(screen, "\n{lines} left out: no requests");
        }
        let rates = self.pivot(|outcome| format!("{:.2}", 100.0 * outcome.hit_rate()));
        let tokens = self.pivot(|outcome| format!("{:.2}", outcome.saved_tokens as f64 / 1e6));
        let saved = self.pivot(|outcome| bytes(outcome.saved_bytes(self.bytes_per_token)));
        for (title, table) in [
            ("Blocks found, % of those asked for", rates),
            ("Tokens not computed again, millions", tokens),
            ("KV cache not computed again", saved),
        ] {
            let _ = write!(screen, "\n\n{title}\n\n{table}");
        }
        for line in self.lines.iter().filter(|line| !line.written.is_empty()) {
            let _ = write!(
                screen,
                "\n\nWritten to the disk by the {}\n\n{}",
                line.label(),
                self.disk(line)
            );
        }
        let rates = self.lines.iter();
        let rates = rates.map(|line| format!("{} {:.0}", line.label(), self.rate(line)));
        let rates = rates.collect::<Vec<_>>().join(", ");
        let _ = write!(screen, "\n\nRequests replayed per second: {rates}");
        screen
    }

    /// What was written to a disk, in all and for each block that was found.
    fn disk(&self, line: &Line) -> String {
        let rows = self.capacities.iter().zip(line.outcomes.iter().zip(&line.written));
        let rows = rows.map(|(capacity, (outcome, written))| {
            let each = *written as f64 / outcome.hits.max(1) as f64;
            vec![capacity.to_string(), bytes(*written), format!("{each:.0} B")]
        });
        table(&["BLOCKS", "WRITTEN", "PER BLOCK FOUND"], &[0, 1, 2], rows.collect()).trim_fmt()
    }

    /// Sizes down, policies across.
    fn pivot(&self, cell: impl Fn(&Outcome) -> String) -> String {
        let names: Vec<String> =
            self.lines.iter().map(|line| line.label().to_uppercase()).collect();
        let mut header = vec!["BLOCKS", "MEMORY"];
        header.extend(names.iter().map(String::as_str));
        let right: Vec<usize> = (0..header.len()).collect();
        let rows = self.capacities.iter().enumerate().map(|(at, capacity)| {
            let mut row = vec![capacity.to_string(), bytes(self.cache_bytes(*capacity))];
            row.extend(self.lines.iter().map(|line| cell(&line.outcomes[at])));
            row
        });
        table(&header, &right, rows.collect()).trim_fmt()
    }

    fn plot(&self) -> Plot {
        let (trace, per_token) = (&self.trace, bytes(self.bytes_per_token));
        // The bound first: it is above the others in the picture, too.
        let (bound, policies) = self.lines.split_last().expect("the bound is always there");
        let lines = std::iter::once(bound).chain(policies);
        let series = lines.map(|line| Series {
            name: line.label(),
            rates: line.outcomes.iter().map(Outcome::hit_rate).collect(),
            is_bound: line.name == OPTIMAL,
        });
        Plot {
            title: "Prefix cache: hit rate by size and eviction policy".to_owned(),
            subtitle: format!(
                "{}: {} requests, {} blocks, {} distinct",
                self.title(),
                trace.len(),
                trace.blocks().len(),
                trace.distinct(),
            ),
            x_label: format!(
                "capacity in blocks of {} tokens, and in bytes at {per_token} per token (log scale)",
                trace.block_tokens(),
            ),
            sizes: self.capacities.iter().map(|size| bytes(self.cache_bytes(*size))).collect(),
            capacities: self.capacities.clone(),
            series: series.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_screen_shows_every_policy_beside_the_bound() {
        let line = |tokens: u32, ids: &str| {
            format!(
                "{{\"timestamp\": 0, \"input_length\": {tokens}, \"output_length\": 1, \"hash_ids\": [{ids}]}}\n"
            )
        };
        let text = line(1500, "1, 2, 3") + &line(700, "4, 5") + "oops\n" + &line(1024, "1, 2");
        let trace = Trace::read(text.as_bytes(), 512, Broken::Skip).unwrap();
        let mut report = Report {
            name: "some.jsonl".into(),
            seed: None,
            capacities: chosen(&[8, 2, 8], &trace),
            trace,
            bytes_per_token: 1 << 10,
            lines: Vec::new(),
        };
        for policy in Policy::ALL {
            let name = (policy.name(), Some(policy));
            report.add(name, |trace, capacity| replay(trace, policy, capacity));
        }
        report.add((OPTIMAL, None), optimal);
        for line in &mut report.lines {
            line.took = Duration::from_millis(1);
        }
        insta::assert_snapshot!("replay", report.screen());
        let svg = report.plot().svg();
        assert!(svg.contains("some.jsonl: 3 requests") && svg.contains(">4.0 MiB</text>"), "{svg}");
    }
}
