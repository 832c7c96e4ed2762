//! Gets of all ranks against evictions of all ranks: a value, or a miss; never torn, never foreign.

use super::rank::{Check, SLOTS, Stage, until};
use crate::render::say;
use anyhow::{Context, Result, bail, ensure};
use mooncrate_check::payload::PutId;
use mooncrate_core::rng::Rng;
use mooncrate_core::{Advice, Slot};
use std::time::Duration;

pub(super) const LIST: &[Check] =
    &[("gets against evictions give the value or a miss", race), ("no pin is left", no_pins)];

/// Keys of each rank: together far more bytes than the heaps have.
const KEYS: u64 = 48;

/// The length of a value is part of its key, so that a reader knows it.
fn length(rank: usize, number: u64) -> usize {
    let kinds = [64 << 10, (256 << 10) - 5, 700 << 10, 1 << 20, (2 << 20) + 33];
    kinds[(rank + number as usize) % kinds.len()]
}

fn race(stage: &Stage) -> Result<()> {
    let mut rng = Rng::new(stage.args.seed ^ (stage.me() as u64) << 32);
    let (mut hits, mut misses, mut puts) = (0u64, 0u64, 0u64);
    for _ in 0..stage.args.reads {
        let number = rng.below(KEYS);
        if rng.chance(300) {
            puts += u64::from(put(stage, number)?);
        }
        let from = rng.below(stage.world() as u64) as usize;
        let number = rng.below(KEYS);
        let hit = read(stage, from, number)?;
        hits += u64::from(hit);
        misses += u64::from(!hit);
    }
    let stats = stage.nano().stats();
    ensure!(
        hits > 0 && misses > 0 && puts > 0,
        "{hits} hits, {misses} misses, {puts} puts: no race"
    );
    say(&format!(
        "rank {}: {hits} values, {misses} misses, {puts} puts, {} lives ended here, {} victims in use",
        stage.me(),
        stats.freed_count,
        stats.evict_in_use_retry
    ))?;
    stage.together("race")
}

fn name(rank: usize, number: u64) -> String {
    format!("race/{rank}/{number}")
}

/// The same key always has the same stamp: which put it was is told by the key.
fn id(rank: usize, number: u64) -> PutId {
    PutId::new(1, rank as u16 + 1, number as u32 + 1)
}

fn put(stage: &Stage, number: u64) -> Result<bool> {
    let me = stage.me();
    let owner = Some((me + number as usize) % stage.world());
    match stage.put(&name(me, number), length(me, number), id(me, number), owner) {
        Ok(()) => Ok(true),
        Err(error) if error.to_string().contains("already has a value") => Ok(false),
        // Full, and everything in use: it may be so for a moment.
        Err(error) if matches!(error.advice(), Advice::Retry { .. }) => Ok(false),
        Err(error) => Err(error).context("a put"),
    }
}

fn read(stage: &Stage, from: usize, number: u64) -> Result<bool> {
    match stage.get(&name(from, number), length(from, number), id(from, number)) {
        Err(error) if error.to_string().contains("being written") => Ok(false),
        read => read,
    }
}

/// After all have ended: pins are counted right, and nobody's is left.
fn no_pins(stage: &Stage) -> Result<()> {
    let me = stage.nano().rank();
    let slots: Vec<Slot> = (0..SLOTS).map(Slot).collect();
    for (slot, word) in slots.iter().zip(stage.nano().reach().words(me, &slots)?) {
        if word.pins() != 0 {
            bail!("slot {slot} has pins: {word:?}");
        }
    }
    for number in 0..KEYS {
        stage.nano().remove(name(stage.me(), number).as_bytes())?;
    }
    stage.together("remove")?;
    until("all lives have ended", Duration::from_secs(10), || Ok(stage.nano().stats().waiting == 0))
}
