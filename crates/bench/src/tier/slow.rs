//! A disk that takes a few megabytes per second. Gets from memory must not notice; puts must wait for it,
//! and the server must not grow.

use super::{Got, Home, Tier, judge, put, stamp};
use crate::render;
use anyhow::{Context, Result, ensure};
use bytesize::ByteSize;
use hdrhistogram::Histogram;
use mooncrate::Store;
use mooncrate_check::payload;
use mooncrate_core::Keep;
use mooncrate_wire::clock::boottime;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Hot values, which stay in memory.
const HOT: u64 = 256;
const HOT_BYTES: usize = 64 << 10;
/// Numbers of hot values begin here.
const HOT_FROM: u64 = 1 << 30;

/// How slow, and for how long.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Slow {
    /// What the disk may move per second
    #[arg(long, value_name = "SIZE", default_value = "5MB")]
    speed: ByteSize,
    /// Seconds of each phase
    #[arg(long, value_name = "SECONDS", default_value_t = 20)]
    seconds: u64,
    /// Threads that put
    #[arg(long, value_name = "COUNT", default_value_t = 2)]
    writers: u64,
}

/// What one phase saw.
#[derive(Debug)]
struct Phase {
    gets: Histogram<u64>,
    wrong: u64,
    puts: u64,
    refused: u64,
    /// Bytes of the server's memory that are its own, at the end.
    resident: u64,
}

pub(super) fn run(wanted: &Tier, slow: &Slow) -> Result<bool> {
    let throttle = super::throttle::Throttle::new(wanted.disk.0 + wanted.disk.0 / 4 + (64 << 20))?;
    let folder = Some(throttle.folder().to_owned());
    let wanted = &Tier { folder, ..wanted.clone() };
    let home = Home::new(wanted)?;
    let (server, store) = home.serve(wanted)?;
    throttle.add(server.pid())?;
    warm(&store)?;
    let next = AtomicU64::new(0);
    let idle = phase(&store, server.pid(), wanted, slow, 0, &next)?;
    throttle.limit(slow.speed.0)?;
    // Until memory is full and the disk sets the pace, the phase would only show a memory that fills.
    fill(&store, wanted, &next);
    let before = resident(server.pid())?;
    let slowed = phase(&store, server.pid(), wanted, slow, slow.writers, &next)?;
    throttle.limit(0)?;
    let percent = slowed.gets.value_at_quantile(0.99) * 100 / idle.gets.value_at_quantile(0.99);
    tell("idle disk, no puts", &idle)?;
    tell(&format!("disk at {} per second, {} writers", slow.speed, slow.writers), &slowed)?;
    let pace = slowed.puts * wanted.value.0 / slow.seconds / 1000;
    let growth = slowed.resident.saturating_sub(before);
    render::say(&format!(
        "p99 of gets from memory: {percent} % of idle; puts went on at {pace} kB/s; the server grew by {}",
        ByteSize(growth)
    ))?;
    drop(store);
    drop(server);
    drop(home);
    Ok(idle.wrong + slowed.wrong == 0 && growth < 64 << 20)
}

fn warm(store: &Store) -> Result<()> {
    let mut value = vec![0; HOT_BYTES];
    for number in HOT_FROM..HOT_FROM + HOT {
        let (name, hash, id) = stamp(number);
        payload::fill(&mut value, id, hash);
        let mut config = store.put_config();
        config.keep = Keep::Hard;
        store.put_parts(&name, &[&value], &config)?;
    }
    Ok(())
}

/// Refusals in a row which say that the disk sets the pace. One alone may come while memory still fills.
const REFUSED: u32 = 3;

/// Puts until memory is full.
fn fill(store: &Store, wanted: &Tier, next: &AtomicU64) {
    let mut value = vec![0; wanted.value.0 as usize];
    let (mut left, mut refused) = (wanted.memory.0 / wanted.value.0, 0);
    while left > 0 && refused < REFUSED {
        if put(store, next.fetch_add(1, Relaxed), &mut value).is_ok() {
            (left, refused) = (left - 1, 0);
        } else {
            refused += 1;
        }
    }
}

/// Reads hot values one after the other, while so many writers put.
fn phase(
    store: &Store,
    pid: u32,
    wanted: &Tier,
    slow: &Slow,
    writers: u64,
    next: &AtomicU64,
) -> Result<Phase> {
    let (stop, puts, refused) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let mut gets = Histogram::new_with_bounds(1, 60_000_000_000, 3)?;
    let mut wrong = 0;
    std::thread::scope(|scope| {
        for _ in 0..writers {
            scope.spawn(|| {
                let mut value = vec![0; wanted.value.0 as usize];
                while !stop.load(Relaxed) {
                    let put = put(store, next.fetch_add(1, Relaxed), &mut value);
                    if put.is_ok() { &puts } else { &refused }.fetch_add(1, Relaxed);
                }
            });
        }
        let began = boottime();
        let mut number = 0;
        while boottime().since(began) < Duration::from_secs(slow.seconds) {
            let hot = HOT_FROM + number % HOT;
            let name = stamp(hot).0;
            let before = boottime();
            let found = store.get(&name);
            gets.saturating_record(boottime().since(before).as_nanos() as u64);
            let got = found.map(|value| judge(value.as_deref(), hot, HOT_BYTES as u64));
            wrong += u64::from(!matches!(got, Ok(Got::Right)));
            number += 1;
            // A reader that never rests would measure how two threads share a core.
            std::thread::sleep(Duration::from_micros(200));
        }
        stop.store(true, Relaxed);
    });
    let (puts, refused) = (puts.load(Relaxed), refused.load(Relaxed));
    ensure!(!gets.is_empty(), "no get was made");
    Ok(Phase { gets, wrong, puts, refused, resident: resident(pid)? })
}

/// Bytes of a process's memory that are not shared with anybody.
fn resident(pid: u32) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")).context("RssAnon in status")?;
    Ok(kib.trim().parse::<u64>()? * 1024)
}

fn tell(what: &str, phase: &Phase) -> Result<()> {
    let us = |quantile| Duration::from_nanos(phase.gets.value_at_quantile(quantile));
    render::say(&format!(
        "{what}: {} gets from memory, p50 {:.1?}, p99 {:.1?}, {} not right; {} puts, {} refused",
        phase.gets.len(),
        us(0.5),
        us(0.99),
        phase.wrong,
        phase.puts,
        phase.refused
    ))
}
