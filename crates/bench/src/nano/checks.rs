//! Checks without races: what each call promises.

use super::rank::{Check, HEAP_BYTES, PUT_TIMEOUT, Stage, refused, until};
use anyhow::{Context, Result, ensure};
use mooncrate_check::payload::PutId;
use mooncrate_core::time::Deadline;
use mooncrate_core::word::RANK_PINS_MAX;
use mooncrate_core::{Generation, Slot};
use mooncrate_nano::{Marks, Place, Source, Step, Stepped, Target, Touch, When, route};
use std::time::Duration;

pub(super) const LIST: &[Check] = &[
    ("values of 0 bytes to 8 MB, from every rank to every rank", sizes),
    ("a key without an owner goes where the hash says", routes),
    ("a value is immutable, and removed before it is replaced", immutable),
    ("a value that is being written is not ready", not_ready),
    ("a plan that is given up is dead, and its key is free", dead_plan),
    ("a place of an earlier life is refused", stale_place),
    ("a pinned value outlives its removal, and is freed after the last pin", pinned),
    ("heaps are emptied to a share, oldest first, and what is pinned stays", evict_below),
    ("bad input is refused in words", bad_input),
];

pub(super) const SEALED: &[Check] = &[
    ("values of 0 bytes to 8 MB, from every rank to every rank", sizes),
    ("a damaged byte is found, not handed out", damaged),
];

const SIZES: [usize; 9] =
    [0, 1, 4_097, 64 << 10, 256 << 10, (256 << 10) + 1, 1 << 20, (3 << 20) + 17, 8 << 20];

fn put_id(rank: usize, number: usize) -> PutId {
    PutId::new(1, rank as u16 + 1, number as u32 + 1)
}

fn sizes(stage: &Stage) -> Result<()> {
    for (number, len) in SIZES.into_iter().enumerate() {
        let key = |from: usize, to: usize| format!("sizes/{len}/{from}/{to}");
        let next = (stage.me() + 1) % stage.world();
        for to in [stage.me(), next] {
            stage.put(&key(stage.me(), to), len, put_id(stage.me(), number), Some(to))?;
        }
        stage.together("put")?;
        for from in 0..stage.world() {
            for to in [from, (from + 1) % stage.world()] {
                let found = stage.get(&key(from, to), len, put_id(from, number))?;
                ensure!(found, "{} is missing", key(from, to));
                let place = stage.nano().get_location(key(from, to).as_bytes())?;
                ensure!(place.is_some_and(|place| place.owner.index() == to), "another owner");
            }
        }
        stage.together("get")?;
        for to in [stage.me(), next] {
            ensure!(stage.nano().remove(key(stage.me(), to).as_bytes())?, "it was there");
        }
        stage.together("remove")?;
        let found = stage.get(&key(next, next), len, put_id(next, number))?;
        ensure!(!found, "a removed value came back");
    }
    Ok(())
}

fn routes(stage: &Stage) -> Result<()> {
    for number in 0..32 {
        let key = format!("routes/{}/{number}", stage.me());
        stage.put(&key, 100, put_id(stage.me(), number), None)?;
        let place = stage.nano().get_location(key.as_bytes())?.context("it was put")?;
        ensure!(place.owner == route(key.as_bytes(), stage.nano().world()), "another owner");
        stage.nano().remove(key.as_bytes())?;
    }
    Ok(())
}

fn immutable(stage: &Stage) -> Result<()> {
    let key = format!("immutable/{}", stage.me());
    let owner = Some((stage.me() + 1) % stage.world());
    stage.put(&key, 5_000, put_id(stage.me(), 1), owner)?;
    refused(stage.put(&key, 5_000, put_id(stage.me(), 2), owner), "already has a value")?;
    ensure!(stage.get(&key, 5_000, put_id(stage.me(), 1))?, "the first value stays");
    ensure!(stage.nano().remove(key.as_bytes())?, "it was there");
    ensure!(!stage.nano().remove(key.as_bytes())?, "it was there twice");
    stage.put(&key, 7_000, put_id(stage.me(), 2), owner)?;
    ensure!(stage.get(&key, 7_000, put_id(stage.me(), 2))?, "the second value");
    stage.nano().remove(key.as_bytes())?;
    Ok(())
}

fn not_ready(stage: &Stage) -> Result<()> {
    let key = |rank: usize| format!("not-ready/{rank}");
    let (me, next) = (stage.me(), (stage.me() + 1) % stage.world());
    let mine = key(me);
    let value = [7; 1000];
    let plan = stage.nano().open_for_write(mine.as_bytes(), 1000, Some(next))?;
    let again = stage.nano().open_for_write(mine.as_bytes(), 1000, Some(next));
    refused(again, "another put of this key")?;
    stage.together("open")?;
    refused(stage.nano().get_location(key(next).as_bytes()), "being written")?;
    let mut target = [0; 1000];
    let got = stage.nano().get_into(key(next).as_bytes(), Target::Host(&mut target), None);
    refused(got, "being written")?;
    stage.together("look")?;
    stage.nano().push(&plan, 0, Source::Host(&value[..500]), None)?;
    stage.nano().push(&plan, 500, Source::Host(&value[500..]), None)?;
    refused(stage.nano().push(&plan, 500, Source::Host(&[0; 501]), None), "1000 bytes")?;
    stage.nano().publish(&plan, None)?;
    stage.nano().publish(&plan, None).context("again")?;
    stage.nano().commit(mine.as_bytes(), None)?;
    stage.nano().commit(mine.as_bytes(), None).context("again")?;
    refused(stage.nano().push(&plan, 0, Source::Host(&value), None), "no plan")?;
    stage.together("commit")?;
    let found = stage.nano().get_into(key(next).as_bytes(), Target::Host(&mut target), None)?;
    ensure!(found && target == value, "the committed value");
    stage.together("read")?;
    stage.nano().remove(mine.as_bytes())?;
    Ok(())
}

fn dead_plan(stage: &Stage) -> Result<()> {
    let key = format!("dead-plan/{}", stage.me());
    let owner = Some((stage.me() + 1) % stage.world());
    // Given up by its writer.
    stage.nano().open_for_write(key.as_bytes(), 1 << 20, owner)?;
    stage.nano().abandon(key.as_bytes())?;
    refused(stage.nano().abandon(key.as_bytes()), "no plan")?;
    // Given up by the master: a late writer cannot publish.
    let plan = stage.nano().open_for_write(key.as_bytes(), 1 << 20, owner)?;
    std::thread::sleep(3 * PUT_TIMEOUT);
    stage.nano().push(&plan, 0, Source::Host(&[9; 4096]), None)?;
    refused(stage.nano().commit(key.as_bytes(), None), "the plan is dead")?;
    stage.put(&key, 1 << 20, put_id(stage.me(), 3), owner)?;
    ensure!(stage.get(&key, 1 << 20, put_id(stage.me(), 3))?, "the key is free again");
    stage.nano().remove(key.as_bytes())?;
    Ok(())
}

fn touch(stage: &Stage, place: &Place, touch: Touch) -> Result<Stepped> {
    let step = Step { slot: place.slot, generation: Generation(place.epoch), touch };
    Ok(stage.nano().reach().step(place.owner, &[step])?.remove(0))
}

fn stale_place(stage: &Stage) -> Result<()> {
    let key = format!("stale/{}", stage.me());
    let owner = Some((stage.me() + 1) % stage.world());
    stage.put(&key, 3_000, put_id(stage.me(), 1), owner)?;
    let place = stage.nano().get_location(key.as_bytes())?.context("it was put")?;
    stage.nano().remove(key.as_bytes())?;
    stage.put(&key, 3_000, put_id(stage.me(), 2), owner)?;
    ensure!(touch(stage, &place, Touch::Pin(stage.nano().rank()))?.is_err(), "an old place");
    stage.nano().remove(key.as_bytes())?;
    let nowhere = Place { slot: Slot(1 << 30), ..place };
    let pin = touch(stage, &nowhere, Touch::Pin(stage.nano().rank()));
    ensure!(pin.is_err(), "a header that does not exist");
    Ok(())
}

fn pinned(stage: &Stage) -> Result<()> {
    let (key, me) = (format!("pinned/{}", stage.me()), stage.nano().rank());
    let owner = Some((stage.me() + 1) % stage.world());
    let id = put_id(stage.me(), 1);
    stage.put(&key, 100_000, id, owner)?;
    let place = stage.nano().get_location(key.as_bytes())?.context("it was put")?;
    for _ in 0..RANK_PINS_MAX {
        touch(stage, &place, Touch::Pin(me))?.context("there is room for a pin")?;
    }
    let mut target = vec![0; 100_000];
    let more = stage.nano().get_into(key.as_bytes(), Target::Host(&mut target), None);
    refused(more, "7 pins on this object")?;
    for _ in 1..RANK_PINS_MAX {
        touch(stage, &place, Touch::Unpin(me))?.context("a pin of ours")?;
    }
    ensure!(stage.get(&key, target.len(), id)?, "it can be read while it is pinned");
    let nano = stage.nano();
    let sums = || nano.reach().sums(place.owner, place.payload_offset, target.len() as u64);
    let before = sums()?;
    nano.remove(key.as_bytes())?;
    ensure!(touch(stage, &place, Touch::Pin(me))?.is_err(), "no new pin on what was removed");
    std::thread::sleep(Duration::from_millis(50));
    ensure!(sums()? == before, "a pinned value changed");
    touch(stage, &place, Touch::Unpin(me))?.context("the last pin")?;
    until("the slot is freed", Duration::from_secs(10), || {
        let words = stage.nano().reach().words(place.owner, &[place.slot])?;
        Ok(words[0].generation().0 > place.epoch)
    })
}

fn evict_below(stage: &Stage) -> Result<()> {
    const VALUES: usize = 8;
    let (nano, me, len) = (stage.nano(), stage.me(), 1 << 20);
    let key = |number: usize| format!("below/{me}/{number}");
    nano.evict_until_below(0.0, Some(me))?;
    for number in 0..VALUES {
        stage.put(&key(number), len, put_id(me, number), Some(me))?;
    }
    let all = nano.usage()?[me];
    ensure!(all.ready_count == VALUES as u64, "{all:?}");
    ensure!(all.bytes_used >= (VALUES * len) as u64 && all.bytes_total > all.bytes_used, "{all:?}");
    stage.together("fill")?;
    // The last rank empties all heaps at once.
    let half = f64::from(u32::try_from(all.bytes_used)?)
        / 2.0
        / f64::from(u32::try_from(all.bytes_total)?);
    if me + 1 == stage.world() {
        nano.evict_until_below(half, None)?;
    }
    stage.together("evict")?;
    let left = nano.usage()?[me];
    ensure!(left.bytes_used * 2 <= all.bytes_used, "{left:?}");
    ensure!(!stage.get(&key(0), len, put_id(me, 0))?, "the oldest stayed");
    ensure!(stage.get(&key(VALUES - 1), len, put_id(me, VALUES - 1))?, "the newest went");
    let place = nano.get_location(key(VALUES - 1).as_bytes())?.context("it was read just now")?;
    touch(stage, &place, Touch::Pin(nano.rank()))?.context("it can be pinned")?;
    refused(nano.evict_until_below(0.0, Some(me)), "pinned or being written")?;
    touch(stage, &place, Touch::Unpin(nano.rank()))?.context("the pin was held")?;
    Ok(nano.evict_until_below(0.0, Some(me))?)
}

fn bad_input(stage: &Stage) -> Result<()> {
    let nano = stage.nano();
    let key = format!("bad/{}", stage.me());
    let world = stage.world();
    refused(nano.open_for_write(key.as_bytes(), 10, Some(world)), "is no rank of a world")?;
    refused(nano.open_for_write(key.as_bytes(), HEAP_BYTES, None), "largest segment has")?;
    refused(nano.open_for_write(b"", 10, None), "key")?;
    refused(nano.evict_until_below(1.5, None), "give one from 0.0")?;
    refused(nano.evict_until_below(0.5, Some(world)), "is no rank of a world")?;
    refused(nano.commit(key.as_bytes(), None), "open_for_write")?;
    stage.put(&key, 10, put_id(stage.me(), 1), None)?;
    let short = nano.get_into(key.as_bytes(), Target::Host(&mut [0; 9]), None);
    refused(short, "the value has 10 bytes, the memory given 9")?;
    ensure!(nano.remove(key.as_bytes())?, "nothing was lost");
    Ok(())
}

fn damaged(stage: &Stage) -> Result<()> {
    let key = format!("damaged/{}", stage.me());
    let owner = (stage.me() + 1) % stage.world();
    for len in [1_000usize, (2 << 20) + 5] {
        let id = put_id(stage.me(), len);
        stage.put(&key, len, id, Some(owner))?;
        ensure!(stage.get(&key, len, id)?, "it is good at first");
        let place = stage.nano().get_location(key.as_bytes())?.context("it was put")?;
        let (reach, at) = (stage.nano().reach(), place.payload_offset + len as u64 - 1);
        let mut target = vec![0; len];
        stage.nano().get_into(key.as_bytes(), Target::Host(&mut target), None)?;
        let other = [target[len - 1] ^ 1];
        let when = When { stream: None, until: Deadline::NEVER };
        reach.write(place.owner, at, Source::Host(&other), when, &Marks::default())?;
        let got = stage.nano().get_into(key.as_bytes(), Target::Host(&mut target), None);
        refused(got, "is damaged")?;
        stage.nano().remove(key.as_bytes())?;
    }
    Ok(())
}
