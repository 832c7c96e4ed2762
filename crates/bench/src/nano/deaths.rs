//! Ranks that die in the middle: what they held comes back.

use super::rank::{Check, PUT_TIMEOUT, Stage, until};
use anyhow::{Context, Result, ensure};
use mooncrate_check::payload::PutId;
use mooncrate_core::Generation;
use mooncrate_nano::{Source, Step, Touch};
use rustix::process::{Signal, getpid, kill_process};
use std::time::Duration;

pub(super) const WRITER: Check = ("what a dead writer had begun is reclaimed", writer);
pub(super) const READER: Check = ("the pins of a dead reader are taken back", reader);

/// Who dies: not rank 0, whose end is everybody's.
const VICTIM: usize = 1;

/// Whether somebody dies in that part, and it is this rank; any rank is asked about with `usize::MAX`.
pub(super) fn dies(part: &str, rank: usize) -> bool {
    part.ends_with("-dies") && (rank == VICTIM || rank == usize::MAX)
}

fn die() -> ! {
    let _ = kill_process(getpid(), Signal::KILL);
    loop {
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// The victim has plans in the heap of rank 0 when it dies; rank 0 gets all of its bytes back, and the keys.
fn writer(stage: &Stage) -> Result<()> {
    let key = |number: usize| format!("dead-writer/{number}");
    let len: u64 = 4 << 20;
    let nano = stage.nano();
    if stage.me() == VICTIM {
        for number in 0..7 {
            let plan = nano.open_for_write(key(number).as_bytes(), len, Some(0))?;
            nano.push(&plan, 0, Source::Host(&[1; 4096]), None)?;
        }
        stage.together("begun")?;
        die();
    }
    stage.together("begun")?;
    if stage.me() != 0 {
        return Ok(());
    }
    // Nearly the whole heap is in the hands of the dead.
    let id = PutId::new(1, 1, 1);
    let within = 20 * PUT_TIMEOUT;
    until("the keys and bytes of the dead writer are free", within, || {
        let again = (0..7).map(|number| stage.put(&key(number), len as usize, id, Some(0)));
        // Each key is put once; those that were come back as existing.
        let answers: Vec<_> = again.collect();
        Ok(answers.iter().all(|answer| {
            answer.as_ref().err().is_none_or(|error| error.to_string().contains("already has"))
        }))
    })?;
    for number in 0..7 {
        ensure!(stage.get(&key(number), len as usize, id)?, "put by the living");
    }
    ensure!(nano.stats().stuck_put_reclaimed >= 7, "the watchdog ended them");
    Ok(())
}

/// The victim dies with a pin on a value of rank 0, which is removed meanwhile: it is freed.
fn reader(stage: &Stage) -> Result<()> {
    let (nano, key) = (stage.nano(), b"dead-reader".as_slice());
    if stage.me() == 0 {
        stage.put("dead-reader", 1 << 20, PutId::new(1, 1, 1), Some(0))?;
    }
    stage.together("put")?;
    let place = nano.get_location(key)?.context("it was put")?;
    let touch = |touch| -> Result<_> {
        let step = Step { slot: place.slot, generation: Generation(place.epoch), touch };
        Ok(nano.reach().step(place.owner, &[step])?.remove(0)?)
    };
    if stage.me() == VICTIM {
        touch(Touch::Pin(nano.rank()))?;
        stage.together("pinned")?;
        die();
    }
    stage.together("pinned")?;
    if stage.me() == 0 {
        ensure!(nano.remove(key)?, "it was there");
        until("the value is freed", Duration::from_secs(20), || {
            let words = nano.reach().words(place.owner, &[place.slot])?;
            Ok(words[0].generation().0 > place.epoch)
        })?;
    }
    Ok(())
}
