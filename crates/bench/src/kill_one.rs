//! `kill-one`: three nodes, two replicas, eight verified readers and writers; then kill -9 one owner.
//!
//! ```text
//!   standing  keys that are put once and never removed: two thirds have two copies, one third has one
//!   load      four readers and four writers on keys of their own, all the time
//!   kill      the first get of a two-copy key whose first copy died; then every standing key is read
//! ```
//!
//! What must stay true: no answer is wrong; every two-copy key and every single copy elsewhere is read;
//! only single copies of the dead node are not.

mod rounds;

use crate::render;
use crate::servers::{Cluster, program_beside, wait_until};
use crate::verify::bounds::{Bounds, Peers};
use crate::verify::judge::{Author, Judge};
use crate::verify::tally::Tally;
use crate::verify::worker::{Role, Shared, Worker};
use anyhow::{Context, Result, ensure};
use mooncrate::{ClientConfig, ConnectOptions, Store, Stored};
use mooncrate_core::{NodeId, SegmentId};
use mooncrate_wire::clock::boottime;
use mooncrate_wire::{
    Hello, LinkKind, LinkPool, MasterApi, MasterLink, PoolConfig, Role as LinkRole,
};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const NODES: [&str; 3] = ["a", "b", "c"];
const CALL_TIME: Duration = Duration::from_secs(2);
/// Bytes of a standing value.
const VALUE_BYTES: usize = 16 << 10;
/// Keys that the load works on.
const LOAD_KEYS: u64 = 300;
/// Longest wait for the master to give the dead node up: registration, guard, and a slow machine.
const MISS_MAX: Duration = Duration::from_mins(1);

/// What to do.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct KillOne {
    /// The `mooncrate` to run [default: the one beside this program]
    #[arg(long, value_name = "FILE")]
    pub(crate) mooncrate: Option<PathBuf>,
    /// Keys that must survive, or not
    #[arg(long, default_value_t = 900)]
    pub(crate) keys: u64,
    /// Load before and after the kill, in seconds each
    #[arg(long, value_name = "SECONDS", default_value_t = 3)]
    pub(crate) load: u64,
    /// Which node dies: 0, 1 or 2
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..3))]
    pub(crate) victim: u8,
    /// Read nodes through their memory, instead of over TCP
    #[arg(long)]
    pub(crate) shared_memory: bool,
    /// Kill one owner so many times, and measure until its keys are free, in place of all the above
    #[arg(long, default_value_t = 0)]
    pub(crate) rounds: u32,
}

/// Where the copies of a standing key are.
#[derive(Debug)]
struct Placed {
    number: u64,
    segments: Vec<SegmentId>,
}

/// What the reads after the kill found.
#[derive(Debug, Default)]
struct Found {
    two_copies: u64,
    single_elsewhere: u64,
    /// Single copies of the dead node: read from memory that outlived it, missed, or refused.
    single_dead: u64,
    single_dead_read: u64,
    /// What must have been read and was not.
    lost: Vec<String>,
    slowest: Duration,
}

/// Runs it; whether all is as it must be.
pub(crate) fn run(wanted: &KillOne) -> Result<bool> {
    let program = wanted.mooncrate.clone().map_or_else(program_beside, Ok)?;
    if wanted.rounds > 0 {
        return rounds::run(&program, wanted.rounds);
    }
    let mut cluster = Cluster::start(&program, &NODES, "256MiB")?;
    let standing = shared(&cluster, wanted, 1, wanted.keys)?;
    let load = shared(&cluster, wanted, 2, LOAD_KEYS)?;
    fill(&standing)?;
    let placed = locate(&cluster, &standing)?;
    let (index, stop) = (usize::from(wanted.victim), &AtomicBool::new(false));
    let dead = SegmentId::of(NodeId::named(cluster.nodes[index].0), 0);
    let pause = Duration::from_secs(wanted.load);
    let report = std::thread::scope(|scope| {
        scope.spawn(|| clock(&load, stop));
        scope.spawn(|| clock(&standing, stop));
        for thread in 0..8 {
            let load = &load;
            let role = if thread < 4 { Role::Reader } else { Role::Writer };
            scope.spawn(move || Worker::new(load, thread, Peers::new(None, 2)).work(role));
        }
        // Warm: every locator is remembered, every connection made.
        let before = read_all(&standing, &placed, None);
        std::thread::sleep(pause);
        let report = kill(&mut cluster, index, &standing, &placed, dead);
        std::thread::sleep(pause);
        load.stop.store(true, Ordering::Relaxed);
        stop.store(true, Ordering::Relaxed);
        report.map(|report| (before, report))
    });
    let (before, (first, after, missed)) = report?;
    ensure!(before.lost.is_empty(), "before the kill already: {:?}", before.lost);
    let evicted = load.store.stat()?.counters.evicted;
    ensure!(evicted == 0, "{evicted} objects were evicted, so a miss proves nothing");
    tell(&cluster, index, wanted, &[&standing, &load], first, &after, missed)
}

/// Kills the owner and reads everything: the time to the first read from another copy, what was found,
/// and when the master said of the lost keys that they are gone.
fn kill(
    cluster: &mut Cluster,
    index: usize,
    standing: &Shared,
    placed: &[Placed],
    dead: SegmentId,
) -> Result<(Duration, Found, Option<Duration>)> {
    let first = |one: &&Placed| one.segments.len() > 1 && one.segments[0] == dead;
    let probe = placed.iter().find(first).context("no key has its first copy on the victim")?;
    let began = boottime();
    cluster.nodes[index].1.kill()?;
    let killed = boottime();
    while !get(standing, probe.number)? {
        ensure!(boottime().since(killed) < CALL_TIME, "no other copy was read in {CALL_TIME:?}");
    }
    let first = boottime().since(began);
    let found = read_all(standing, placed, Some(dead));
    let lost = placed.iter().find(|one| one.segments.len() == 1 && one.segments[0] == dead);
    let missed = lost.and_then(|lost| {
        wait_until(MISS_MAX, || {
            matches!(standing.store.get(&standing.judge.name(lost.number)), Ok(None))
        })
    });
    Ok((first, found, missed))
}

/// Reads every standing key once and sorts what came back.
fn read_all(standing: &Shared, placed: &[Placed], dead: Option<SegmentId>) -> Found {
    let mut found = Found::default();
    for Placed { number, segments } in placed {
        let began = boottime();
        let got = get(standing, *number);
        let alone_with_dead = dead.is_some_and(|dead| segments.iter().all(|one| *one == dead));
        if alone_with_dead {
            found.single_dead += 1;
            found.single_dead_read += u64::from(matches!(got, Ok(true)));
            continue;
        }
        found.slowest = found.slowest.max(boottime().since(began));
        match got {
            Ok(true) if segments.len() > 1 => found.two_copies += 1,
            Ok(true) => found.single_elsewhere += 1,
            Ok(false) => found.lost.push(format!("key {number} on {segments:?} was missed")),
            Err(error) => found.lost.push(format!("key {number} on {segments:?}: {error}")),
        }
    }
    found
}

/// A judged get of an own key: whether there was a value.
fn get(shared: &Shared, number: u64) -> Result<bool, mooncrate::Error> {
    let name = shared.judge.name(number);
    let began = shared.judge.begin_get(&name);
    let call = shared.tally.begin();
    let found = shared.store.get(&name);
    shared.tally.end(call, "get");
    shared.judge.end_get(began, &found);
    shared.tally.answer(&found);
    Ok(found?.is_some())
}

fn shared(cluster: &Cluster, wanted: &KillOne, client: u16, keys: u64) -> Result<Shared> {
    let store = Store::connect(ConnectOptions {
        master: cluster.master.clone().into(),
        shared_memory: wanted.shared_memory,
        client: ClientConfig { call_time: CALL_TIME, replicas: 2, ..ClientConfig::default() },
        ..ConnectOptions::default()
    })?;
    let bounds = Bounds::create(None, client, keys)?;
    Ok(Shared {
        store,
        judge: Judge::new(Author { run: 1, client }, bounds),
        tally: Tally::new(CALL_TIME),
        stop: AtomicBool::new(false),
        replicas: 2,
        pace: Duration::ZERO,
    })
}

fn fill(standing: &Shared) -> Result<()> {
    for number in 0..standing.judge.keys() {
        let stamped = standing.judge.begin_put(number, VALUE_BYTES);
        let mut config = standing.store.put_config();
        config.replicas = standing.copies(number);
        let stored = standing.store.put_parts(&stamped.name, &[&stamped.value], &config);
        standing.judge.end_put(&stamped, &stored);
        standing.tally.answer(&stored);
        ensure!(stored? == Stored::New, "key {number} was there already");
    }
    Ok(())
}

/// Asks the master where every standing key is.
fn locate(cluster: &Cluster, standing: &Shared) -> Result<Vec<Placed>> {
    let hello = Hello::new(LinkRole::Client, LinkKind::Control, "kill-one");
    let pool = LinkPool::new(cluster.master.clone(), hello, PoolConfig::default());
    let master = MasterLink::new(pool);
    let mut placed = Vec::new();
    for number in 0..standing.judge.keys() {
        let name = standing.judge.name(number);
        let mut found = master.locate(0, &[&name], boottime().deadline_in(CALL_TIME))?;
        let located = found.pop().context("one result per key")??;
        let segments = located.replicas.iter().map(|locator| locator.segment).collect();
        placed.push(Placed { number, segments });
    }
    Ok(placed)
}

fn clock(shared: &Shared, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        shared.tally.push();
    }
}

fn tell(
    cluster: &Cluster,
    index: usize,
    wanted: &KillOne,
    clients: &[&Shared],
    first: Duration,
    after: &Found,
    missed: Option<Duration>,
) -> Result<bool> {
    let victim = cluster.nodes[index].0;
    let path = if wanted.shared_memory { "shared memory" } else { "TCP" };
    let sum = |count: fn(&Shared) -> u64| clients.iter().map(|one| count(one)).sum::<u64>();
    let (wrong, hangs) = (sum(|one| one.judge.wrong()), sum(|one| one.tally.hangs()));
    let operations = sum(|one| one.tally.json()["operations"].as_u64().unwrap_or(0));
    let read = after.two_copies + after.single_elsewhere;
    let lost = after.single_dead - after.single_dead_read;
    render::say(&format!(
        "3 nodes, 2 replicas, {path}; kill -9 of node {victim} under 8 verified readers and writers"
    ))?;
    // Memory that is mapped outlives its owner, and may be read until its leave to serve is over.
    let from = if wanted.shared_memory { "any replica" } else { "the other replica" };
    render::say(&format!("first read from {from}: {first:?} after the kill began"))?;
    render::say(&format!(
        "read after the kill: {} of {} keys with two copies, {} of {} single copies elsewhere; \
         slowest {:?}",
        after.two_copies,
        standing_two(wanted.keys),
        after.single_elsewhere,
        wanted.keys - standing_two(wanted.keys) - after.single_dead,
        after.slowest,
    ))?;
    render::say(&format!(
        "not read: {lost} of {} single copies of the dead node; {} other keys",
        after.single_dead,
        after.lost.len()
    ))?;
    render::say(&match missed {
        Some(time) => {
            format!("the master answers for them with a plain miss after {time:.1?} more")
        }
        None => format!("the master did not give the dead node up in {MISS_MAX:?}"),
    })?;
    render::say(&format!(
        "{operations} verified operations: {wrong} wrong or torn, {hangs} hangs"
    ))?;
    let told = clients.iter().flat_map(|one| one.judge.told().into_iter().chain(one.tally.late()));
    for what in told.chain(after.lost.iter().cloned()) {
        render::say(&format!("FAILED: {what}"))?;
    }
    let whole = read + after.single_dead == wanted.keys && after.single_dead > 0;
    Ok(wrong == 0 && hangs == 0 && after.lost.is_empty() && missed.is_some() && whole)
}

/// Of so many keys, how many have two copies.
fn standing_two(keys: u64) -> u64 {
    keys - keys.div_ceil(3)
}
