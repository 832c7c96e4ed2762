//! What one actor does: draws an operation, tells the oracle, does it, and lets the oracle judge.

use super::entry::Facts;
use super::oracle::{Began, Loaded, Oracle, Told};
use super::rig::{Life, Shared, read_errors, write_errors};
use crate::judge::Failure;
use crate::swarm::pick;
use mooncrate_check::{PutId, payload};
use mooncrate_core::label::Label;
use mooncrate_core::rng::Rng;
use mooncrate_core::{KeyHash, LeaderEpoch, Name, ObjectId, Seal, TenantId};
use mooncrate_mem::sums::seal_of;
use mooncrate_rt as rt;
use mooncrate_ssd::disk::sim::is_power_off;
use mooncrate_ssd::{ALIGN, KeepError, Load, LoadError, NewRecord, RecordId};
use std::time::Duration;

/// Records of one call.
const BATCH_MAX: u64 = 4;
/// Longer than any run.
const PATIENT: Duration = Duration::from_hours(1000);

/// One actor of one life.
#[derive(Debug)]
pub(super) struct Actor<'a> {
    life: &'a Life<'a>,
    rng: Rng,
    number: u16,
    cursor: u64,
    /// Evictions under way: more would only nest.
    evicting: bool,
}

type Verdict = Result<(), Failure>;

impl<'a> Actor<'a> {
    pub(super) fn new(life: &'a Life<'a>, number: usize, rng: Rng) -> Self {
        Self { life, rng, number: number as u16, cursor: 0, evicting: false }
    }

    /// Works until the life ends.
    pub(super) fn work(&mut self) {
        while self.life.shared.may_go_on() && !self.life.disk.is_off() {
            rt::step();
            if let Err(failure) = self.one() {
                self.life.shared.fail(failure);
            }
        }
    }

    fn one(&mut self) -> Verdict {
        let load = self.life.shared.swarm.load;
        let shares = [load.keep, load.load, load.remove, load.evict, load.scrub];
        let mut draw = self.rng.below(shares.iter().sum());
        let what = shares.iter().position(|share| {
            let here = draw < *share;
            draw = draw.saturating_sub(*share);
            here
        });
        match what {
            Some(0) => self.keep()?,
            Some(1) => self.load()?,
            Some(2) => self.remove()?,
            Some(3) if !self.evicting => self.evict()?,
            _ => self.scrub()?,
        }
        self.look_at_limits()
    }

    fn oracle<T>(&self, ask: impl FnOnce(&mut Oracle) -> T) -> T {
        self.life.shared.with(|inner| {
            inner.oracle.absorb(self.life.disk);
            ask(&mut inner.oracle)
        })
    }

    fn note(&self, tag: u64, detail: u64, text: impl FnOnce() -> String) {
        self.life
            .shared
            .note(self.life.disk, tag, detail, || format!("a{} {}", self.number, text()));
    }

    /// Faults that can fail a load.
    fn read_errors(&self) -> u64 {
        read_errors(&self.life.disk.counts())
    }

    /// Whether a fault that can fail whatever writes was injected in this life. Some fail what comes later, too.
    fn excused(&self) -> bool {
        self.life.disk.is_off() || write_errors(&self.life.disk.counts()) > self.life.errors_before
    }

    // ---- keep -------------------------------------------------------------------------------

    fn keep(&mut self) -> Verdict {
        let count = 1 + self.rng.below(BATCH_MAX);
        let mut records: Vec<(RecordId, Facts)> = Vec::new();
        for _ in 0..count {
            let again = self.rng.chance(60).then(|| self.known()).flatten();
            let again = again.filter(|id| self.oracle(|oracle| oracle.may_keep_again(*id)));
            let new = match again.and_then(|id| Some((id, self.oracle(|o| o.facts(id).cloned())?)))
            {
                Some(again) => again,
                None => self.invent(),
            };
            if records.iter().all(|(id, _)| *id != new.0) {
                records.push(new);
            }
        }
        let mut values = Vec::new();
        for (_, facts) in &mut records {
            let mut value =
                Memory::new(facts.len as usize, if self.rng.chance(500) { 0 } else { 16 });
            facts.fill(value.bytes_mut(), 0);
            facts.seal = seal_of(value.bytes());
            values.push(value);
        }
        // Bytes that changed on their way are not kept.
        let bad = self.rng.chance(20).then(|| self.rng.below(records.len() as u64) as usize);
        let asked: Vec<NewRecord<'_>> = records
            .iter()
            .zip(&values)
            .enumerate()
            .map(|(at, ((id, facts), value))| {
                let seal = if bad == Some(at) { Seal(!facts.seal.0) } else { facts.seal };
                NewRecord { id: *id, label: &facts.label, seal, value: value.bytes() }
            })
            .collect();
        let keep = self.oracle(|oracle| oracle.keep_begins(&records));
        self.note(1, keep, || format!("keeps {}", list(records.iter().map(|(id, _)| *id))));
        let results = self.life.backend.keep(&asked);
        let off = self.life.disk.is_off();
        if results.len() != asked.len() {
            return failed("G11", format!("{} results for {}", results.len(), asked.len()));
        }
        for (at, ((id, _), result)) in records.iter().zip(results).enumerate() {
            self.note(2, u64::from(result.is_ok()), || format!("keep of {} {result:?}", name(*id)));
            let told = match &result {
                Ok(()) if bad == Some(at) => {
                    return failed("G15", format!("{} was kept with a wrong seal", name(*id)));
                }
                Ok(()) => Told::Kept,
                Err(KeepError::Disk(error)) if off && is_power_off(error) => Told::PowerOff,
                // What was written before the disk was full could not be taken back any more.
                Err(KeepError::Full { .. }) if off => Told::PowerOff,
                Err(KeepError::Corrupt) if bad != Some(at) => {
                    return failed("G15", format!("{} was refused as corrupt", name(*id)));
                }
                // What it kept before was gone for good, or this is an excuse to drop it.
                Err(KeepError::Exists) if !self.oracle(|oracle| oracle.may_exist(*id)) => {
                    return failed("S2", format!("{} exists, but it was not kept", name(*id)));
                }
                Err(KeepError::Disk(error)) if !self.excused() => {
                    return failed("S2", format!("{}: {error}, but no fault", name(*id)));
                }
                Err(KeepError::Disk(_)) => Told::DiskFailed,
                Err(_) => Told::Refused,
            };
            self.oracle(|oracle| oracle.kept(keep, *id, told));
        }
        self.oracle(|oracle| oracle.keep_ends(keep));
        Ok(())
    }

    fn invent(&mut self) -> (RecordId, Facts) {
        let swarm = &self.life.shared.swarm;
        let sequence = self.life.shared.next_sequence();
        let len = swarm.value_len(&mut self.rng);
        let stripe = if self.rng.chance(100) { self.rng.below(32) as u8 } else { 0 };
        let epoch = LeaderEpoch(1 + sequence / 1000);
        let id = RecordId { object: ObjectId { epoch, sequence }, stripe };
        let key_len = match self.rng.below(50) {
            0 => 8192,
            1..5 => 1 + self.rng.below(4200),
            _ => 8 + self.rng.below(40),
        };
        let mut key = sequence.to_le_bytes().to_vec();
        key.resize(key_len as usize, b'k');
        let label = Label::plain(Name::new(TenantId(7), &key)).expect("1 to 8192 bytes").encode();
        let put = PutId::new(swarm.seed as u16, self.number, sequence as u32);
        let facts = Facts { put, key: KeyHash(self.rng.next()), len, seal: Seal(0), label };
        self.life.shared.with(|inner| inner.remember(id));
        (id, facts)
    }

    // ---- load -------------------------------------------------------------------------------

    fn known(&mut self) -> Option<RecordId> {
        let rng = &mut self.rng;
        self.life.shared.with(|inner| inner.some_id(rng))
    }

    fn load(&mut self) -> Verdict {
        let count = 1 + self.rng.below(BATCH_MAX);
        let mut wanted = Vec::new();
        for _ in 0..count {
            let Some(mut id) = self.known() else { return Ok(()) };
            // A second look for one that is there: most that were ever kept are gone.
            if !self.oracle(|oracle| oracle.is_sure(id)) && self.rng.chance(700) {
                id = self.known().unwrap_or(id);
            }
            wanted.push(id);
        }
        self.load_these(&wanted)
    }

    /// Loads these, whole or in part, and compares every byte.
    pub(super) fn load_these(&mut self, wanted: &[RecordId]) -> Verdict {
        let mut asked = Vec::new();
        for id in wanted {
            let Some(facts) = self.oracle(|oracle| oracle.facts(*id).cloned()) else { continue };
            let part = self.rng.chance(300) && facts.len > 0;
            let start = if part { self.rng.below(facts.len) } else { 0 };
            let want = if part { self.rng.below(facts.len - start + 1) } else { facts.len };
            let into = self.memory(want as usize);
            let began = self.oracle(|oracle| oracle.begins(*id));
            let sums = self.rng.chance(300).then(Vec::new);
            asked.push(Asked { id: *id, facts, start, want, into, began, sums });
        }
        self.note(3, asked.len() as u64, || format!("loads {}", list(wanted.iter().copied())));
        let errors = self.read_errors();
        let mut loads: Vec<Load<'_>> = asked
            .iter_mut()
            .map(|asked| Load {
                id: asked.id,
                label: &asked.facts.label,
                len: asked.facts.len,
                seal: asked.facts.seal,
                start: asked.start,
                want: asked.want,
                into: asked.into.bytes_mut(),
                sums: asked.sums.as_mut(),
                result: Err(LoadError::Missing),
            })
            .collect();
        self.life.backend.load(&mut loads);
        let results: Vec<Result<(), LoadError>> =
            loads.into_iter().map(|load| load.result).collect();
        let injected = self.life.disk.is_off() || self.read_errors() > errors;
        for (asked, result) in asked.iter().zip(results) {
            let id = asked.id;
            self.note(4, u64::from(result.is_ok()), || format!("load of {} {result:?}", name(id)));
            let what = match result {
                Ok(()) => {
                    asked.compare()?;
                    let part = u64::from(asked.want < asked.facts.len);
                    self.oracle(|oracle| oracle.counts.parts += part);
                    Loaded::Right
                }
                Err(LoadError::Missing) => Loaded::Missing,
                Err(LoadError::Corrupt) => Loaded::Corrupt,
                Err(LoadError::Disk(_)) => Loaded::Failed { injected },
                Err(error) => return failed("C1", format!("{} inside of it: {error}", name(id))),
            };
            self.oracle(|oracle| oracle.loaded(id, asked.began, what))?;
        }
        Ok(())
    }

    /// Memory for a load: with room for whole blocks or without, aligned or not.
    fn memory(&mut self, want: usize) -> Memory {
        let room = if self.rng.chance(500) { want.next_multiple_of(ALIGN) } else { want };
        let shift = if self.rng.chance(500) { 0 } else { 16 };
        Memory::new(room, shift)
    }

    // ---- remove, evict, scrub ---------------------------------------------------------------

    fn remove(&mut self) -> Verdict {
        let count = 1 + self.rng.below(BATCH_MAX);
        let mut ids: Vec<RecordId> = (0..count).filter_map(|_| self.known()).collect();
        ids.sort_unstable();
        ids.dedup();
        ids.retain(|id| self.oracle(|oracle| oracle.may_remove(*id)));
        if self.rng.chance(100) {
            let unknown = ObjectId { epoch: LeaderEpoch(u64::MAX), sequence: self.rng.next() };
            ids.push(RecordId { object: unknown, stripe: 0 });
        }
        self.oracle(|oracle| oracle.go_begins(&ids));
        self.note(5, ids.len() as u64, || format!("removes {}", list(ids.iter().copied())));
        let result = self.life.backend.remove(&ids);
        self.note(6, u64::from(result.is_ok()), || format!("remove {result:?}"));
        if let Err(error) = &result
            && !self.excused()
        {
            return failed("G6", format!("a removal failed without a fault: {error}"));
        }
        let done = result.is_ok();
        self.oracle(|oracle| oracle.removed(&ids, done));
        Ok(())
    }

    fn evict(&mut self) -> Verdict {
        let most = *pick(&mut self.rng, &[1, 20_000, 300_000]);
        let bytes = 1 + self.rng.below(most);
        let eviction = self.oracle(Oracle::unlink_begins);
        self.note(7, bytes, || format!("evicts {bytes} bytes"));
        let ticket = self.life.backend.unlink(bytes);
        let ids = ticket.as_ref().map(|ticket| ticket.records().to_vec()).unwrap_or_default();
        self.oracle(|oracle| oracle.unlinked(eviction, &ids))?;
        let Some(ticket) = ticket else { return Ok(()) };
        self.note(8, ids.len() as u64, || format!("hides {}", list(ids.iter().copied())));
        // Meanwhile the master is asked, and life goes on.
        self.evicting = true;
        for _ in 0..self.rng.below(3) {
            self.one()?;
        }
        self.evicting = false;
        let (take_back, hasty) = {
            let load = self.life.shared.swarm.load;
            (self.rng.chance(load.take_back), self.rng.chance(load.hasty))
        };
        if take_back {
            let back = self.oracle(|oracle| oracle.take_back_begins(eviction));
            self.note(9, back.len() as u64, || {
                format!("takes back {}", list(back.iter().copied()))
            });
            drop(ticket);
            self.oracle(|oracle| oracle.taken_back(&back));
            // A reader whom the master told about them comes at once.
            return self.load_these(&back[..back.len().min(4)]);
        }
        self.oracle(|oracle| oracle.go_begins(&ids));
        let result = ticket.finish(if hasty { Duration::ZERO } else { PATIENT });
        self.note(10, u64::from(result.is_ok()), || format!("deleted {result:?}"));
        if let Err(error) = &result
            && !self.excused()
        {
            return failed("S1", format!("an eviction failed without a fault: {error}"));
        }
        let done = result.is_ok();
        self.oracle(|oracle| oracle.evicted(&ids, done));
        Ok(())
    }

    fn scrub(&mut self) -> Verdict {
        let began = self.oracle(|oracle| oracle.now());
        self.note(11, self.cursor, || "scrubs".to_owned());
        let (bad, next) = self.life.backend.scrub(self.cursor, self.rng.below(100_000));
        self.cursor = next;
        for id in bad {
            self.note(12, 0, || format!("scrub: {} is bad", name(id)));
            self.oracle(|oracle| oracle.scrubbed(id, began))?;
        }
        Ok(())
    }

    fn look_at_limits(&self) -> Verdict {
        let (usage, on_disk) = (self.life.backend.usage(), self.life.disk.file_bytes());
        let limit = self.life.most;
        if usage.used > limit || on_disk > limit {
            return failed("S7", format!("{on_disk} bytes on the disk, limit {limit}, {usage:?}"));
        }
        Ok(())
    }
}

/// Bytes at an address that is aligned, or off by some: how a disk cuts its transfers depends on that, so
/// it must not depend on what the allocator gives.
struct Memory {
    all: Vec<u8>,
    at: usize,
    len: usize,
}

impl Memory {
    fn new(len: usize, shift: usize) -> Self {
        let all = vec![0xa5; len + 2 * ALIGN];
        let at = all.as_ptr().align_offset(ALIGN) + shift;
        Self { all, at, len }
    }

    fn bytes(&self) -> &[u8] {
        &self.all[self.at..][..self.len]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.all[self.at..][..self.len]
    }
}

/// A load that is under way.
struct Asked {
    id: RecordId,
    facts: Facts,
    start: u64,
    want: u64,
    into: Memory,
    began: Began,
    sums: Option<Vec<u64>>,
}

impl Asked {
    /// Compares every byte that it gave.
    fn compare(&self) -> Verdict {
        let Self { id, facts, start, .. } = self;
        let got = &self.into.bytes()[..self.want as usize];
        let mut expected = vec![0; got.len()];
        facts.fill(&mut expected, *start);
        if got != expected {
            let at = got.iter().zip(&expected).position(|(a, b)| a != b).unwrap_or(0);
            let blame = (*start == 0).then(|| payload::examine_as(got, facts.put, facts.key));
            let (len, name) = (got.len(), name(*id));
            return failed("C1", format!("WRONG BYTES in {name} at {at} of {len}: {blame:?}"));
        }
        match &self.sums {
            Some(sums) if Seal::over(facts.len, sums.iter().copied()) != facts.seal => {
                failed("R11", format!("{}: its sums are not those of its seal", name(*id)))
            }
            _ => Ok(()),
        }
    }
}

fn failed(rule: &str, text: String) -> Verdict {
    Err(Failure { rule: rule.to_owned(), text, key: None, op: 0 })
}

fn name(id: RecordId) -> String {
    format!("{}/{}", id.object, id.stripe)
}

fn list(ids: impl Iterator<Item = RecordId>) -> String {
    ids.map(name).collect::<Vec<_>>().join(" ")
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("seed", &self.swarm.seed).finish_non_exhaustive()
    }
}
