//! `clear`: removes every key, then says what is left: not one byte may be.
//!
//! A byte that is neither used nor quarantined is free, and a range leaves quarantine only when its
//! owner has freed the slot, which takes a slot without pins. So nothing used and nothing quarantined
//! also means that no pin is left on any segment.

use crate::render;
use anyhow::{Context, Result};
use mooncrate::{ClusterStat, ConnectOptions, Masters, Store};
use mooncrate_wire::clock::boottime;
use serde_json::json;
use std::time::Duration;

/// Keys per call.
const PAGE: u32 = 1000;
const PAUSE: Duration = Duration::from_millis(50);

/// What to do.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Clear {
    /// The masters of the cluster
    #[arg(long, value_name = "HOST:PORT,…", default_value = "127.0.0.1:7411")]
    pub(crate) master: Masters,
    /// How long the cluster may take to become empty
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    pub(crate) seconds: u64,
}

/// Empties the cluster; whether nothing is left.
pub(crate) fn run(wanted: &Clear) -> Result<bool> {
    let options = ConnectOptions { master: wanted.master.clone(), ..ConnectOptions::default() };
    let store = Store::connect(options).context("the cluster cannot be reached")?;
    let began = boottime();
    let end = began.deadline_in(Duration::from_secs(wanted.seconds));
    let mut last = String::new();
    let stat = loop {
        // What is in the middle of something is asked again in the next round.
        if let Err(error) = remove_all(&store) {
            last = format!("{error:#}");
        }
        match store.stat() {
            Ok(stat) if is_empty(&stat) || end.passed(boottime()) => break stat,
            Err(error) if end.passed(boottime()) => return Err(error.into()),
            _ => std::thread::sleep(PAUSE),
        }
    };
    let line = json!({
        "took_ms": boottime().since(began).as_millis() as u64,
        "objects": stat.objects,
        "open_puts": stat.open_puts,
        "used_bytes": stat.used_bytes,
        "quarantined_bytes": stat.quarantined_bytes,
        "capacity_bytes": stat.capacity_bytes,
        "nodes": stat.nodes,
        "last_error": last,
    });
    render::say(&line.to_string())?;
    Ok(is_empty(&stat))
}

fn remove_all(store: &Store) -> Result<()> {
    let mut cursor = 0;
    loop {
        let page = store.list(b"", cursor, PAGE)?;
        let keys: Vec<&[u8]> = page.entries.iter().map(|entry| entry.key.as_bytes()).collect();
        if !keys.is_empty() {
            store.remove_batch(&keys, true)?;
        }
        match page.next {
            Some(next) => cursor = next,
            None => return Ok(()),
        }
    }
}

fn is_empty(stat: &ClusterStat) -> bool {
    let left = stat.used_bytes + stat.quarantined_bytes + stat.objects + stat.open_puts;
    left == 0 && !stat.rebuilding
}
