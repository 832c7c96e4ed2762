//! Values that are on a disk are read again and come back into memory.

use super::{Home, Reads, is_right, name, value};
use crate::render;
use crate::servers::wait_until;
use anyhow::{Result, ensure};
use mooncrate::Store;
use mooncrate_wire::clock::boottime;
use std::time::Duration;

/// The default memory, and the default bytes of a value.
const MEMORY: u64 = 128 << 20;
const VALUE: u64 = 1 << 20;
/// How long promotions may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// How many of each.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Disk {
    /// Values that are put
    #[arg(long, value_name = "COUNT", default_value_t = 1000)]
    values: u32,
    /// The first of them, which are read again
    #[arg(long, value_name = "COUNT", default_value_t = 40)]
    hot: u32,
    /// Bytes of the disk
    #[arg(long = "disk", value_name = "SIZE", default_value = "2GiB")]
    bytes: bytesize::ByteSize,
}

pub(super) fn run(wanted: &Reads, disk: &Disk) -> Result<bool> {
    let policy = wanted.policy.as_deref().unwrap_or("lru");
    let memory = wanted.memory.map_or(MEMORY, |memory| memory.0);
    let len = wanted.value.map_or(VALUE, |value| value.0) as usize;
    let home = Home::serve(wanted, memory, policy, Some(disk.bytes.0))?;
    let (reader, writer) = (home.client()?, home.client()?);
    for number in 0..disk.values {
        let value = value(number, len);
        // While the disk takes victims, a put may be told to come again.
        let put = wait_until(PATIENCE, || writer.put(&name(number), &value).is_ok());
        ensure!(put.is_some(), "value {number} cannot be put");
    }
    let promoted = || reader.stat().map_or(0, |stat| stat.counters.promoted);
    let before = promoted();
    for _ in 0..3 {
        pass(&reader, disk.hot, len)?;
    }
    let took = wait_until(PATIENCE, || promoted() - before >= u64::from(disk.hot));
    // The first pass may read old places, and learns of the new ones.
    pass(&reader, disk.hot, len)?;
    let from_disk = reader.counts().disk;
    let median = pass(&reader, disk.hot, len)?;
    let from_disk = reader.counts().disk - from_disk;
    let took = took.map_or("never".to_owned(), |took| format!("within {took:.1?}"));
    let (promoted, hot) = (promoted() - before, disk.hot);
    render::say(&format!(
        "{promoted} of {hot} values promoted after three reads each, all {took}; then {from_disk} of {hot} reads from the disk, median {median:.1?}",
    ))?;
    Ok(promoted >= u64::from(hot) && from_disk == 0)
}

/// Reads all hot values once; the median time of a read.
fn pass(store: &Store, hot: u32, len: usize) -> Result<Duration> {
    let mut times = Vec::new();
    for number in 0..hot {
        let began = boottime();
        let found = store.get(&name(number))?;
        times.push(boottime().since(began));
        ensure!(found.is_some_and(|found| is_right(number, len, &found)), "value {number}");
    }
    times.sort_unstable();
    Ok(times.get(times.len() / 2).copied().unwrap_or_default())
}
