//! Hot values are read in turn while cold ones are put.

use super::{Home, Reads, is_right, name, value};
use crate::render;
use anyhow::{Result, ensure};
use mooncrate_wire::clock::boottime;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// The default memory, and the default bytes of a value.
const MEMORY: u64 = 256 << 20;
const VALUE: u64 = 1 << 20;

/// How many of each.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Hot {
    /// Values that are read all the time
    #[arg(long = "hot", value_name = "COUNT", default_value_t = 50)]
    values: u32,
    /// Values that are put meanwhile
    #[arg(long, value_name = "COUNT", default_value_t = 2500)]
    cold: u32,
    /// Milliseconds between two reads of the same value
    #[arg(long, value_name = "MS", default_value_t = 100)]
    every_ms: u32,
}

pub(super) fn run(wanted: &Reads, hot: &Hot) -> Result<bool> {
    let policy = wanted.policy.as_deref().unwrap_or("lru");
    let memory = wanted.memory.map_or(MEMORY, |memory| memory.0);
    let len = wanted.value.map_or(VALUE, |value| value.0) as usize;
    let home = Home::serve(wanted, memory, policy, None)?;
    let (reader, writer) = (home.client()?, home.client()?);
    for number in 0..hot.values {
        writer.put(&name(number), &value(number, len))?;
    }
    let over = AtomicBool::new(false);
    let began = boottime();
    let (reads, missed) = std::thread::scope(|scope| {
        let reading = scope.spawn(|| read(&reader, hot, len, &over));
        let written = (0..hot.cold).try_for_each(|number| {
            let number = hot.values + number;
            writer.put(&name(number), &value(number, len)).map(|_| ())
        });
        over.store(true, Relaxed);
        let read = reading.join().expect("the reader does not panic");
        written?;
        read
    })?;
    let took = boottime().since(began);
    let evicted = writer.stat()?.counters.evicted;
    render::say(&format!(
        "{policy}: {missed} of {reads} hot reads missed; {} cold values were put and {evicted} evicted in {:.1} s; {} reads asked nobody",
        hot.cold,
        took.as_secs_f64(),
        reader.counts().cached,
    ))?;
    Ok(missed * 100 <= reads)
}

/// Reads the hot values in turn until it is over; reads and misses.
fn read(store: &mooncrate::Store, hot: &Hot, len: usize, over: &AtomicBool) -> Result<(u64, u64)> {
    let pause = Duration::from_millis(hot.every_ms.into()) / hot.values.max(1);
    let (mut reads, mut missed) = (0, 0);
    for turn in 0.. {
        if over.load(Relaxed) {
            break;
        }
        let number = turn % hot.values;
        match store.get(&name(number))? {
            Some(found) => ensure!(is_right(number, len, &found), "value {number} is wrong"),
            None => missed += 1,
        }
        reads += 1;
        std::thread::sleep(pause);
    }
    Ok((reads, missed))
}
