//! How fast a directory is known again: many small records, closed and opened.

use super::Tier;
use crate::render;
use anyhow::{Context, Result, ensure};
use mooncrate_core::label::Label;
use mooncrate_core::{LeaderEpoch, Name, ObjectId, TenantId};
use mooncrate_mem::sums::seal_of;
use mooncrate_ssd::disk::Uring;
use mooncrate_ssd::{Config, Kind, NewRecord, RecordId, open};
use mooncrate_wire::clock::boottime;
use std::sync::Arc;

/// Records that are kept together.
const BATCH: u64 = 4096;

/// How many.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Recover {
    /// Records in the directory
    #[arg(long, default_value_t = 1_000_000)]
    records: u64,
    /// Times that it is opened
    #[arg(long, default_value_t = 3)]
    rounds: u32,
}

pub(super) fn run(wanted: &Tier, recover: &Recover) -> Result<bool> {
    let parent = wanted.folder.clone().unwrap_or_else(std::env::temp_dir);
    let folder = tempfile::tempdir_in(parent).context("a folder for the records")?;
    let kind = match wanted.backend.as_str() {
        "bucket" => Kind::Bucket,
        "offset" => Kind::Offset,
        _ => Kind::PerKey,
    };
    let mut config = Config::new(kind, recover.records * 8192 + (1 << 30));
    // Values of a few kilobytes fill a bucket with many more records than large ones do.
    config.bucket_records_max = 65_536;
    let disk = || Uring::open(folder.path()).map(Arc::new);
    let (backend, _) = open(disk()?, &config, &mut |_| {}, &mut |_| {})?;
    let began = boottime();
    for first in (0..recover.records).step_by(BATCH as usize) {
        keep(&*backend, first..(first + BATCH).min(recover.records))?;
    }
    let took = boottime().since(began);
    render::say(&format!(
        "{} records kept in {took:.1?} ({}), {} bytes of files",
        recover.records,
        wanted.backend,
        backend.usage().used
    ))?;
    drop(backend);
    let mut all = true;
    for _ in 0..recover.rounds {
        let mut found = 0;
        let began = boottime();
        let (backend, recovery) = open(disk()?, &config, &mut |_| found += 1, &mut |_| {})?;
        let took = boottime().since(began);
        let rate = u128::from(found) * 1000 / took.as_millis().max(1);
        render::say(&format!(
            "opened: {found} records in {took:.2?}, {rate} a second; {} dropped",
            recovery.dropped
        ))?;
        all &= found == recover.records;
        drop(backend);
    }
    ensure!(all, "records are missing");
    Ok(all)
}

fn keep(backend: &dyn mooncrate_ssd::Backend, numbers: std::ops::Range<u64>) -> Result<()> {
    let values: Vec<(Vec<u8>, Vec<u8>)> = numbers
        .clone()
        .map(|number| {
            let key = format!("prefix/{number:016x}");
            let label = Label::plain(Name::new(TenantId::DEFAULT, key.as_bytes()))?;
            Ok((label.encode(), number.to_le_bytes().repeat(64)))
        })
        .collect::<Result<_>>()?;
    let records: Vec<NewRecord<'_>> = numbers
        .zip(&values)
        .map(|(sequence, (label, value))| {
            let object = ObjectId { epoch: LeaderEpoch(1), sequence };
            NewRecord { id: RecordId { object, stripe: 0 }, label, seal: seal_of(value), value }
        })
        .collect();
    for kept in backend.keep(&records) {
        kept?;
    }
    Ok(())
}
