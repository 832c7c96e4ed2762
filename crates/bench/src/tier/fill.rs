//! More than memory holds, before and after a restart.

use super::{Got, Home, Tier, get, put};
use crate::render;
use anyhow::{Result, ensure};
use bytesize::ByteSize;
use mooncrate::Store;
use mooncrate_wire::clock::boottime;
use std::time::Duration;

/// What to put.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Fill {
    /// Bytes to put
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    bytes: ByteSize,
    /// Wait before the kill, in seconds: what is not on the disk by then is lost with the memory
    #[arg(long, value_name = "SECONDS", default_value_t = 5)]
    rest: u64,
}

#[derive(Debug, Default)]
struct Read {
    right: u64,
    wrong: u64,
    missed: u64,
    failed: u64,
    took: Duration,
}

pub(super) fn run(wanted: &Tier, fill: &Fill) -> Result<bool> {
    let home = Home::new(wanted)?;
    let (mut server, store) = home.serve(wanted)?;
    let count = fill.bytes.0.div_ceil(wanted.value.0);
    ensure!(fill.bytes.0 > wanted.memory.0, "put more than the {} of memory", wanted.memory);
    ensure!(
        fill.bytes.0 < wanted.disk.0 / 10 * 9,
        "the disk must hold it: give it more with --disk"
    );
    let began = boottime();
    let mut value = vec![0; wanted.value.0 as usize];
    for number in 0..count {
        put(&store, number, &mut value)?;
    }
    let took = boottime().since(began);
    render::say(&format!(
        "put {count} values of {}, {} in all, into {} of memory and {} of disk ({}, {}): {}",
        wanted.value,
        fill.bytes,
        wanted.memory,
        wanted.disk,
        wanted.backend,
        wanted.offload,
        rate(fill.bytes.0, took)
    ))?;
    let first = read(&store, count, wanted.value.0);
    tell("read", &first, count, wanted.value.0)?;
    let stat = store.stat()?.counters;
    render::say(&format!("the master counts: {stat:?}"))?;
    std::thread::sleep(Duration::from_secs(fill.rest));
    server.kill()?;
    drop(store);
    let began = boottime();
    let (_server, store) = home.serve(wanted)?;
    let ready = boottime().since(began);
    render::say(&format!("killed by SIGKILL; ready again, disk recovered, after {ready:.2?}"))?;
    let again = read(&store, count, wanted.value.0);
    tell("read after the restart", &again, count, wanted.value.0)?;
    render::say(&format!("files on the disk: {}", ByteSize(size(home.disk())?)))?;
    let whole = first.right == count && first.wrong + first.failed == 0;
    // What was only in memory is lost with it; everything else is there.
    let lost_max = if wanted.offload == "eager" { 0 } else { wanted.memory.0 / wanted.value.0 };
    let warm = again.wrong + again.failed == 0 && again.missed <= lost_max;
    Ok(whole && warm)
}

fn read(store: &Store, count: u64, len: u64) -> Read {
    let mut read = Read::default();
    let began = boottime();
    for number in 0..count {
        match get(store, number, len) {
            Ok(Got::Right) => read.right += 1,
            Ok(Got::Wrong) => read.wrong += 1,
            Ok(Got::Miss) => read.missed += 1,
            Err(error) => {
                read.failed += 1;
                if read.failed < 5 {
                    render::note(&format!("get of value {number}: {error}"));
                }
            }
        }
    }
    read.took = boottime().since(began);
    read
}

fn tell(what: &str, read: &Read, count: u64, len: u64) -> Result<()> {
    render::say(&format!(
        "{what}: {} of {count} right, {} wrong, {} missed, {} failed; {}",
        read.right,
        read.wrong,
        read.missed,
        read.failed,
        rate(read.right * len, read.took)
    ))
}

fn rate(bytes: u64, took: Duration) -> String {
    format!("{} MB/s", bytes / 1000 / (took.as_millis() as u64).max(1))
}

/// Bytes of all files below a folder.
fn size(folder: &std::path::Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let meta = entry.metadata()?;
        bytes += if meta.is_dir() { size(&entry.path())? } else { meta.len() };
    }
    Ok(bytes)
}
