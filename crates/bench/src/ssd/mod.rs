//! Disks and backends beside `fio`: the same file system, size of operation, depth and direct I/O, in turn.
//!
//! What must stay true: a floor is what `fio` says of its own transfers; ours pay for more (each batch of
//! writes is synced, records are verified). Without `fio` the figures stand alone, and say so.

mod disks;
mod fio;
mod kept;
mod watch;

use crate::effort::Effort;
use crate::measure::Spread;
use crate::render::{bytes, note};
use crate::report::{Row, Table, Verdict, spread};
use anyhow::{Context, Result};
use disks::Bare;
use fio::{Engine, Files, Fio, Task, Way};
use kept::Kept;
use mooncrate_ssd::disk::{Disk, Posix, Uring};
use mooncrate_ssd::{GROUP_BYTES, KEEPERS, Kind};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use watch::Watch;

/// Goal for values of at least a MiB.
const OF_FLOOR: f64 = 0.9;
const LARGE_BYTES: u64 = 1 << 20;
const SIZES: [u64; 3] = [256 << 10, 1 << 20, 4 << 20];
/// Operations at once, and values in a batch.
const DEPTH: u64 = 32;
/// A node keeps groups of [`GROUP_BYTES`] with so many threads.
const HANDS: u64 = KEEPERS as u64;
/// More rounds than this tell nothing new about a disk.
const ROUNDS_MAX: usize = 9;
/// Ways to run `fio`.
const FLOORS: [Floor; 8] = [
    Floor::new(Engine::Psync, 1, Files::One),
    Floor::new(Engine::Psync, HANDS, Files::One),
    Floor::new(Engine::Psync, HANDS, Files::Each),
    Floor::new(Engine::Registered, 1, Files::One),
    Floor::new(Engine::Uring, 1, Files::One),
    Floor::new(Engine::Uring, HANDS, Files::One),
    Floor::new(Engine::Uring, 1, Files::Each),
    Floor::new(Engine::Uring, HANDS, Files::Each),
];

/// One of them.
struct Floor {
    engine: Engine,
    /// Operations that each job has under way.
    depth: u64,
    jobs: u64,
    files: Files,
}

impl Floor {
    const fn new(engine: Engine, jobs: u64, files: Files) -> Self {
        let depth = match engine {
            Engine::Psync => 1,
            Engine::Uring | Engine::Registered => DEPTH / jobs,
        };
        Self { engine, depth, jobs, files }
    }

    /// Whether somebody is compared with it who does this with so many threads. A ring keeps as many operations under
    /// way in one job as in several.
    fn is_for(&self, engine: Engine, hands: u64, files: Files) -> bool {
        let as_many = self.jobs == hands || engine == Engine::Uring && self.jobs < hands;
        (self.engine, self.files) == (engine, files) && as_many
    }
}

/// Who is measured.
struct Contender {
    name: String,
    /// Which of [`FLOORS`] are its own: the fastest of them counts.
    floors: Vec<usize>,
    runner: Runner,
    watch: Watch,
}

enum Runner {
    Bare(Bare),
    Kept(Kept),
}

impl Contender {
    fn lap(&mut self, load: Load) -> Result<()> {
        match &mut self.runner {
            Runner::Bare(bare) => bare.lap(load.batches, &mut self.watch),
            Runner::Kept(kept) => {
                kept.lap(load.groups, &mut self.watch)?;
                kept.check()
            }
        }
    }

    /// Values of its batches.
    fn batch(&self, load: Load) -> u64 {
        match &self.runner {
            Runner::Bare(_) => load.batch,
            Runner::Kept(_) => load.group,
        }
    }
}

/// What is done in one comparison.
#[derive(Clone, Copy)]
struct Load {
    way: Way,
    size: u64,
    /// Values of a batch.
    batch: u64,
    batches: u64,
    /// The same for those who do as a node does.
    group: u64,
    groups: u64,
    rounds: usize,
}

impl Load {
    fn new(effort: &Effort, way: Way, size: u64) -> Self {
        let batch = 1 << (effort.working_set / 4 / size).clamp(1, DEPTH).ilog2();
        let group = (GROUP_BYTES / size).clamp(1, DEPTH).min(batch);
        // The same bytes for all, and a whole number of groups for each hand.
        let unit = batch * HANDS;
        let values = (effort.working_set / size).max(1).next_multiple_of(unit);
        let (batches, groups) = (values / batch, values / group);
        let rounds = effort.rounds.min(ROUNDS_MAX);
        Self { way, size, batch, batches, group, groups, rounds }
    }

    /// Bytes of a lap.
    fn bytes(self) -> u64 {
        self.size * self.batch * self.batches
    }
}

/// Measures in a folder of its own below `directory`.
pub(crate) fn run(effort: &Effort, directory: &Path) -> Result<Vec<Table>> {
    let folder = tempfile::Builder::new()
        .prefix("mooncrate-bench-")
        .tempdir_in(directory)
        .with_context(|| format!("no folder for files in {}", directory.display()))?;
    let direct = Posix::open(&folder.path().join("probe"))?.is_direct();
    let fio = Fio::find(folder.path());
    let (mut disks, mut backends) = (Vec::new(), Vec::new());
    for way in [Way::Write, Way::Read] {
        for size in SIZES {
            note(&format!("ssd: {} of {}", way.name(), bytes(size)));
            let load = Load::new(effort, way, size);
            let own = folder.path().join(format!("{}-{size}", way.name()));
            for (contender, row) in compare(fio.as_ref(), load, contenders(&own, load)?)? {
                match contender.runner {
                    Runner::Bare(_) => disks.push(row),
                    Runner::Kept(_) => backends.push(row),
                }
            }
            std::fs::remove_dir_all(&own)?;
            fio.as_ref().map_or(Ok(()), Fio::clear)?;
        }
    }
    let columns = [
        "WHAT",
        "CALL",
        "SIZE",
        "BATCH",
        "P50",
        "P99",
        "GB/s (MIN..MAX)",
        "FIO GB/s (MIN..MAX)",
        "OF FIO (MIN..MAX)",
        "CPU s/GB",
        "FIO CPU s/GB",
    ];
    let table = |name, title, ours: &str, rows| Table {
        name,
        title,
        notes: notes(fio.as_ref(), direct, ours),
        columns: columns.map(str::to_owned).to_vec(),
        rows,
    };
    Ok(vec![
        table("ssd", "Disks beside fio, one thread", "a batch of writes ends with a sync", disks),
        table(
            "ssd_backends",
            "Records kept and loaded by four threads, as a node does it, beside fio",
            "a batch that is kept is verified, synced and indexed, on a disk that is full: older ones are evicted \
             meanwhile, and before the first round all of it was written twice; what is loaded is verified; who is \
             done takes the next batch, where jobs of fio have a share each",
            backends,
        ),
    ])
}

/// Everybody who can do this, each with a disk of its own.
fn contenders(folder: &Path, load: Load) -> Result<Vec<Contender>> {
    let shape = (load.size, load.batch as usize, load.bytes());
    let mut all = Vec::new();
    let mut add = |name: String, engine: Engine, hands: u64, files: Files, runner| {
        let floors = FLOORS.iter().enumerate();
        let floors = floors.filter(|(_, floor)| floor.is_for(engine, hands, files));
        let floors = floors.map(|(at, _)| at).collect();
        all.push(Contender { name, floors, runner, watch: Watch::new() });
    };
    for (name, engine) in [("posix", Engine::Psync), ("uring", Engine::Uring)] {
        let disk = |what: &str| -> Result<Arc<dyn Disk>> {
            let path = folder.join(format!("{what}-{name}"));
            Ok(if name == "posix" {
                Arc::new(Posix::open(&path)?)
            } else {
                Arc::new(Uring::open(&path)?)
            })
        };
        let bare = |registered, what| Bare::new(disk(what)?, registered, load.way, shape);
        add(name.to_owned(), engine, 1, Files::One, Runner::Bare(bare(false, "bare")?));
        if name == "uring" {
            let runner = Runner::Bare(bare(true, "registered")?);
            add("uring, registered".to_owned(), Engine::Registered, 1, Files::One, runner);
        }
        for kind in Kind::ALL {
            let groups = (load.size, load.group as usize, load.bytes());
            let kept = Kept::new(&disk(kind.name())?, kind, load.way, groups)
                .with_context(|| format!("{} on {name}", kind.name()))?;
            let files = if kind == Kind::PerKey { Files::Each } else { Files::One };
            add(format!("{}, {name}", kind.name()), engine, HANDS, files, Runner::Kept(kept));
        }
    }
    Ok(all)
}

fn notes(fio: Option<&Fio>, direct: bool, pays: &str) -> Vec<String> {
    let floor = match fio {
        Some(fio) => format!(
            "Floor: {} with direct I/O, the same size of operation and the same bytes, over files that are there: \
             one file, and for per_key a file for each value; psync for posix, with as many threads; io_uring with \
             {DEPTH} at once for uring, in one job and, beside backends, in {HANDS} with a share each, the faster of \
             both; with registered memory where ours is.",
            fio.version()
        ),
        None => "Floor: none. fio is not installed (apt-get install fio).".to_owned(),
    };
    let ours =
        if direct { "with direct I/O" } else { "through the page cache: NOT as fio does it" };
    let pays = format!("Ours: {ours}; {pays}; fio neither syncs nor verifies.");
    vec![floor, pays, "P50 and P99 are of whole batches.".to_owned()]
}

/// Lets floors and contenders run in turn.
fn compare(
    fio: Option<&Fio>,
    load: Load,
    mut contenders: Vec<Contender>,
) -> Result<Vec<(Contender, Row)>> {
    let mut floors = FLOORS.map(|_| Watch::new());
    if let Some(fio) = fio {
        for files in [Files::One, Files::Each] {
            fio.prepare(files, load.size, load.bytes())?;
        }
    }
    // The first round warms up.
    for round in 0..=load.rounds {
        for (Floor { engine, depth, jobs, files }, floor) in FLOORS.into_iter().zip(&mut floors) {
            let Some(fio) = fio else { continue };
            let (way, block, bytes) = (load.way, load.size, load.bytes());
            let took = fio.run(Task { way, files, engine, block, depth, jobs, bytes });
            if engine == Engine::Registered && took.is_err() {
                // A user may not be allowed to have so much memory pinned.
                continue;
            }
            let took = took?;
            if round > 0 {
                floor.add(bytes, took.seconds, took.cpu_seconds);
            }
        }
        for contender in &mut contenders {
            contender.lap(load)?;
            contender.watch.end(load.bytes(), round > 0);
        }
    }
    let rows = contenders.into_iter().map(|contender| {
        let own = contender.floors.iter().map(|floor| &floors[*floor]);
        let own = own.filter(|floor| !floor.is_empty());
        let by_rate = |a: &&Watch, b: &&Watch| a.rate().median.total_cmp(&b.rate().median);
        let row = row(&contender, load, own.max_by(by_rate));
        (contender, row)
    });
    Ok(rows.collect())
}

fn row(contender: &Contender, load: Load, floor: Option<&Watch>) -> Row {
    let watch = &contender.watch;
    let mut cells = vec![contender.name.clone(), load.way.name().to_owned(), bytes(load.size)];
    cells.push(contender.batch(load).to_string());
    cells.extend(watch.batch_cells());
    cells.push(spread(watch.rate(), ""));
    let of_floor = floor.map(|floor| watch.of(floor));
    cells.push(floor.map_or_else(|| "no fio".to_owned(), |floor| spread(floor.rate(), "")));
    cells.push(
        of_floor.map_or_else(|| "no fio".to_owned(), |of| spread(of.map(|part| part * 100.0), "%")),
    );
    let cost = |watch: &Watch| format!("{:.2}", watch.cost().median);
    cells.push(cost(watch));
    cells.push(floor.map_or_else(|| "no fio".to_owned(), cost));
    let verdict = of_floor
        .filter(|_| load.size >= LARGE_BYTES)
        .map(|of| Verdict::at_least(of.median, OF_FLOOR, ">= 90% of fio"));
    let values = json!({
        "what": contender.name,
        "call": load.way.name(),
        "value_bytes": load.size,
        "batch": contender.batch(load),
        "subject": watch.json(),
        "floor": floor.map_or(Value::Null, Watch::json),
        "of_floor": of_floor.map_or(Value::Null, Spread::json),
    });
    Row { cells, values, verdict }
}
