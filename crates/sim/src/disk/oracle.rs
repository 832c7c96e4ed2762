//! The oracle: which records must be found, which may be, which must not, and whose bytes they are.
//!
//! Actors overlap, so an answer is judged by what held between its beginning and its end: it is wrong if no
//! moment in between explains it. Wrong bytes are never excused: they are compared before anybody asks here.
//! What is excused, and why nobody could do better:
//!
//! * A loss, or bytes that are told as corrupt: harm hit bytes of records that the actor of the keep wrote
//!   meanwhile. A read that returned what was there before excuses what overlaps it, and no more.
//! * A loss at an opening: the disk failed there, on the bytes of the record or on what decides about them (what
//!   is not told is gone for good), or harm lies before the record in a bucket that is scanned. Not a power cut.
//! * A record that comes back: harm hit both copies of a block of the log of removals; or a removal is bytes
//!   over the record, and harm hit those, or an earlier opening read free space in its place, or found one there
//!   that had come back, and nobody knew that there is something to remove.
//! * A directory that cannot be opened: harm hit a file that says what it is.
//! * A record whose keep failed with the disk: what was written may be found by the next opening, a removal
//!   in between does not know of it, and after a failed sync it may be in the memory of the kernel only (S12).

use super::counts::Counts;
use super::entry::{Entry, Facts, Kept};
use super::harm::{self, Role, Weak, behind, failed_for, is_stale, meets};
use crate::judge::Failure;
use mooncrate_ssd::ALIGN;
use mooncrate_ssd::disk::sim::{Failed, Harm, SimDisk, Span};
use mooncrate_ssd::{Record, RecordId};
use std::collections::{BTreeMap, BTreeSet};
use std::thread::ThreadId;

/// How things stood when a call began.
#[derive(Clone, Copy, Debug)]
pub struct Began {
    clock: u64,
    sure: bool,
    known: bool,
}

/// How a directory was opened.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct Opening {
    /// The disk did not fail meanwhile, nor in openings before that failed. The power may have.
    pub calm: bool,
    /// The kernel may show what is not on the disk: there was no power cut since it was written.
    pub volatile: bool,
    /// And a sync failed in the life before.
    pub unsynced: bool,
    /// A sync of an opening that failed, failed: what it let go may come back with a power cut (S12).
    pub doubt: bool,
}

/// What became of a keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// It is durable.
    Kept,
    /// It must never be found.
    Refused,
    /// It must not be found in this life.
    DiskFailed,
    /// Nobody knows.
    PowerOff,
}

/// What a load came to, without its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loaded {
    /// Bytes that are right.
    Right,
    /// Nothing.
    Missing,
    /// Something else.
    Corrupt,
    /// The disk failed, which was injected, or was not.
    Failed {
        /// It was.
        injected: bool,
    },
}

/// See the file's head.
#[derive(Debug)]
pub struct Oracle {
    weak: Weak,
    entries: BTreeMap<RecordId, Entry>,
    clock: u64,
    /// Evictions that are choosing records: until they answer, nobody knows which.
    choosing: BTreeSet<u64>,
    /// Records that were missing while evictions chose: one of these must have hidden them.
    misses: Vec<(RecordId, BTreeSet<u64>)>,
    /// Keeps under way, by whom, and what they wrote so far.
    writing: BTreeMap<u64, (ThreadId, Vec<Span>)>,
    harms: Vec<(u64, Harm)>,
    /// Operations that failed since the opening that is judged next began; a stale read is one of them.
    failures: Vec<harm::Failed>,
    /// Blocks of logs that harm hit, and when both of a pair were, last.
    log_blocks: BTreeSet<(u64, u64)>,
    log_lost: u64,
    /// When harm last hit a file that says what the directory is.
    identity_hit: u64,
    /// When the opening that is judged next began.
    opening: u64,
    /// What was judged.
    pub counts: Counts,
}

type Verdict = Result<(), Failure>;
fn broken(rule: &str, id: Option<RecordId>, text: impl std::fmt::Display) -> Verdict {
    let text = match id {
        Some(id) => format!("record {}/{} {text}", id.object, id.stripe),
        None => text.to_string(),
    };
    Err(Failure { rule: rule.to_owned(), text, key: None, op: 0 })
}

impl Oracle {
    /// Of a directory that is empty.
    pub fn new(weak: Weak) -> Self {
        Self {
            weak,
            entries: BTreeMap::new(),
            clock: 0,
            choosing: BTreeSet::new(),
            misses: Vec::new(),
            writing: BTreeMap::new(),
            harms: Vec::new(),
            failures: Vec::new(),
            log_blocks: BTreeSet::new(),
            log_lost: 0,
            identity_hit: 0,
            opening: 0,
            counts: Counts::default(),
        }
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    fn role(&self, disk: &SimDisk, file: u64) -> Role {
        // A file that nobody can meet any more is none of ours.
        disk.path_of(file).map_or(Role::Records, |path| (self.weak.role)(&path))
    }

    /// Takes note of what the disk did since the last call.
    pub fn absorb(&mut self, disk: &SimDisk) {
        for (by, span) in disk.take_written() {
            if self.role(disk, span.file) == Role::Records {
                let mine = self.writing.values_mut().filter(|(writer, _)| *writer == by);
                mine.for_each(|(_, spans)| spans.push(span));
            }
        }
        for Failed { fault, at } in disk.take_failures() {
            let role = at.as_ref().map_or(Role::Records, |(_, path)| (self.weak.role)(path));
            self.failures.push((fault, role, at.map(|(span, _)| span)));
        }
        for harm in disk.take_harm() {
            let now = self.tick();
            let role = self.role(disk, harm.span.file);
            if is_stale(&harm) {
                self.failures.push((harm.fault, role, Some(harm.span)));
            }
            match role {
                Role::Records => self.hit_records(now, harm),
                Role::Table => {}
                Role::Log => self.hit_log(now, &harm),
                Role::Identity => self.identity_hit = now,
            }
            self.harms.push((now, harm));
        }
    }

    fn hit_records(&mut self, now: u64, harm: Harm) {
        let shadows = self.weak.shadows && !is_stale(&harm);
        for entry in self.entries.values_mut() {
            if meets(&entry.footprint, &harm.span) {
                entry.note(now, &harm);
            }
            entry.shadowed |= shadows && behind(&entry.footprint, &harm.span);
        }
    }

    fn hit_log(&mut self, now: u64, harm: &Harm) {
        let (block, Span { file, start, end }) = (ALIGN as u64, harm.span);
        let hit = start / block..end.div_ceil(block);
        if hit
            .clone()
            .any(|at| hit.contains(&(at ^ 1)) || self.log_blocks.contains(&(file, at ^ 1)))
        {
            self.log_lost = now;
        }
        if !is_stale(harm) {
            self.log_blocks.extend(hit.map(|at| (file, at)));
        }
    }

    // ---- keeping ----------------------------------------------------------------------------

    /// A keep of these records begins; the answer names it.
    pub fn keep_begins(&mut self, records: &[(RecordId, Facts)]) -> u64 {
        let now = self.tick();
        self.writing.insert(now, (std::thread::current().id(), Vec::new()));
        for (id, facts) in records {
            let old = self.entries.get(id);
            let failed_once =
                old.is_some_and(|entry| entry.failed_once || entry.kept == Kept::Failed);
            let mut overlooked = old.map(|entry| entry.overlooked.clone()).unwrap_or_default();
            // Its next removal is of another place.
            let may_be_back =
                |old: &&Entry| self.weak.overwrites && old.was_let_go_before(old.harmed);
            if let Some(old) = old.filter(may_be_back) {
                overlooked.extend_from_slice(&old.footprint);
            }
            let entry = Entry {
                failed_once,
                doubted: old.is_some_and(|entry| entry.doubted),
                overlooked,
                facts: facts.clone(),
                kept: Kept::Under,
                going: 0,
                removed: false,
                evicted: false,
                hidden: None,
                bad: false,
                harmed: 0,
                covered: false,
                stale: 0,
                shadowed: false,
                unsure: false,
                changed: now,
                until: now,
                going_since: None,
                keep: now,
                footprint: Vec::new(),
            };
            self.entries.insert(*id, entry);
        }
        now
    }

    /// What became of one of them.
    pub fn kept(&mut self, keep: u64, id: RecordId, told: Told) {
        let now = self.tick();
        let spans = self.writing.get(&keep).map(|(_, spans)| spans.clone()).unwrap_or_default();
        let entry = self.entries.get_mut(&id).expect("its keep began");
        entry.touch(now);
        if told != Told::Kept {
            // What was written is taken back.
            entry.going_since.get_or_insert(keep);
        }
        entry.kept = match told {
            Told::Kept => Kept::Yes,
            Told::Refused if entry.failed_once => Kept::Failed,
            Told::Refused => Kept::No,
            Told::DiskFailed => Kept::Failed,
            Told::PowerOff => Kept::Under,
        };
        entry.doubted |= told == Told::DiskFailed;
        entry.hit(&self.harms, keep, &spans);
        let mut lasting = self.harms.iter().filter(|(_, harm)| !is_stale(harm));
        entry.shadowed = self.weak.shadows && lasting.any(|(_, harm)| behind(&spans, &harm.span));
        entry.footprint = spans;
        if told == Told::Kept {
            self.counts.kept += 1;
        } else {
            self.counts.refused += 1;
        }
    }

    /// All its records were told.
    pub fn keep_ends(&mut self, keep: u64) {
        self.writing.remove(&keep);
    }

    /// A record that must be there.
    pub fn is_sure(&self, id: RecordId) -> bool {
        self.entries.get(&id).is_some_and(Entry::sure)
    }

    /// Whether an evicted or refused record may be kept once more.
    pub fn may_keep_again(&self, id: RecordId) -> bool {
        self.entries.get(&id).is_some_and(|entry| {
            let gone = entry.evicted || matches!(entry.kept, Kept::No | Kept::Failed);
            gone && !entry.removed && entry.going == 0 && entry.kept != Kept::Under
        })
    }

    /// Whether a record that was to be kept once more may be told as existing: an earlier keep failed with the
    /// disk, and the backend may still be busy with what that left.
    pub fn may_exist(&self, id: RecordId) -> bool {
        self.entries.get(&id).is_some_and(|entry| entry.failed_once)
    }

    /// Whether a removal can be judged: the record is not being kept at the same time.
    pub fn may_remove(&self, id: RecordId) -> bool {
        self.entries.get(&id).is_some_and(|entry| entry.kept != Kept::Under)
    }

    /// What is known about a record.
    pub fn facts(&self, id: RecordId) -> Option<&Facts> {
        self.entries.get(&id).map(|entry| &entry.facts)
    }

    // ---- loading ----------------------------------------------------------------------------

    /// A call that concerns this record begins.
    pub fn begins(&self, id: RecordId) -> Began {
        let entry = self.entries.get(&id);
        let sure = entry.is_some_and(Entry::sure);
        Began { clock: self.clock, sure, known: entry.is_some() }
    }

    /// A call begins that may tell any record.
    pub fn now(&self) -> u64 {
        self.clock
    }

    /// A load has ended.
    pub fn loaded(&mut self, id: RecordId, began: Began, what: Loaded) -> Verdict {
        let now = self.tick();
        let Some(entry) = self.entries.get_mut(&id).filter(|_| began.known) else {
            return match what {
                Loaded::Missing => Ok(()),
                other => broken("C1", Some(id), format_args!("{other:?}, but nobody kept it")),
            };
        };
        if let Some((_, spans)) = self.writing.get(&entry.keep) {
            // Its keep is not over, but it may be loaded already.
            entry.hit(&self.harms, entry.keep, spans);
        }
        match what {
            Loaded::Right => {
                self.counts.loads += 1;
                if !entry.may() && entry.until <= began.clock {
                    let text = format_args!("loaded, but it is gone: {entry:?}");
                    return broken("S1/G6", Some(id), text);
                }
            }
            Loaded::Missing => {
                self.counts.missing += 1;
                if began.sure && entry.sure() && entry.changed <= began.clock {
                    if self.choosing.is_empty() {
                        let text = format_args!("missing, but it was kept: {entry:?}");
                        return broken("S2", Some(id), text);
                    }
                    self.misses.push((id, self.choosing.clone()));
                }
            }
            Loaded::Corrupt => {
                self.counts.corrupt += 1;
                if !entry.is_weak() && entry.stale <= began.clock {
                    let text = format_args!("corrupt without harm: {entry:?}");
                    return broken("S6/S10", Some(id), text);
                }
                entry.touch(now);
                entry.bad = true;
            }
            Loaded::Failed { injected } => {
                self.counts.failed += 1;
                if !injected {
                    return broken("S6", Some(id), "the disk failed, but no fault was injected");
                }
            }
        }
        Ok(())
    }

    /// A scrub that began at `began` told a record as bad. A disk that fails excuses nothing: a record that cannot
    /// be read is not bad.
    pub fn scrubbed(&mut self, id: RecordId, began: u64) -> Verdict {
        let now = self.tick();
        let Some(entry) = self.entries.get_mut(&id) else {
            return broken("S3", Some(id), "a scrub told it, but nobody kept it");
        };
        if let Some((_, spans)) = self.writing.get(&entry.keep) {
            entry.hit(&self.harms, entry.keep, spans);
        }
        if !entry.is_weak() && entry.stale <= began {
            return broken("S10", Some(id), format_args!("told as bad without harm: {entry:?}"));
        }
        entry.touch(now);
        entry.bad = true;
        self.counts.scrubbed += 1;
        Ok(())
    }

    // ---- removing and evicting --------------------------------------------------------------

    /// Records begin to go: a removal, or the second step of an eviction.
    pub fn go_begins(&mut self, ids: &[RecordId]) {
        let now = self.tick();
        for id in ids {
            if let Some(entry) = self.entries.get_mut(id) {
                entry.touch(now);
                entry.going += 1;
                entry.going_since.get_or_insert(now);
            }
        }
    }

    /// They are removed, or nobody knows.
    pub fn removed(&mut self, ids: &[RecordId], done: bool) {
        let now = self.tick();
        for id in ids {
            if let Some(entry) = self.entries.get_mut(id) {
                entry.touch(now);
                if done {
                    entry.going -= 1;
                    // What a failed keep left is unknown to this life, and so is its removal.
                    entry.removed |= entry.kept != Kept::Failed;
                    self.counts.removed += 1;
                } else {
                    entry.doubted = true;
                }
            }
        }
    }

    /// An eviction chooses what goes. The answer names it.
    pub fn unlink_begins(&mut self) -> u64 {
        let eviction = self.tick();
        self.choosing.insert(eviction);
        eviction
    }

    /// It has chosen: these are hidden until further notice.
    pub fn unlinked(&mut self, eviction: u64, ids: &[RecordId]) -> Verdict {
        let now = self.tick();
        self.choosing.remove(&eviction);
        for (id, others) in &mut self.misses {
            if others.remove(&eviction) && others.is_empty() && !ids.contains(id) {
                let entry = self.entries.get(id);
                let text = format_args!("missing, and no eviction hid it: {entry:?}");
                return broken("S2", Some(*id), text);
            }
        }
        self.misses.retain(|(id, others)| !others.is_empty() && !ids.contains(id));
        for id in ids {
            let Some(entry) = self.entries.get_mut(id) else {
                return broken("S3", Some(*id), "evicted, but nobody kept it");
            };
            if entry.hidden.is_some() {
                return broken("S1", Some(*id), "hidden by two evictions");
            }
            entry.touch(now);
            entry.hidden = Some(eviction);
        }
        Ok(())
    }

    /// The eviction is being taken back: they may be found again.
    pub fn take_back_begins(&mut self, eviction: u64) -> Vec<RecordId> {
        let now = self.tick();
        let mut ids = Vec::new();
        for (id, entry) in &mut self.entries {
            if entry.hidden == Some(eviction) {
                entry.touch(now);
                entry.hidden = None;
                entry.going += 1;
                ids.push(*id);
            }
        }
        ids
    }

    /// It was taken back: they must be found again.
    pub fn taken_back(&mut self, ids: &[RecordId]) {
        let now = self.tick();
        self.counts.taken_back += 1;
        for id in ids {
            if let Some(entry) = self.entries.get_mut(id) {
                entry.touch(now);
                entry.going -= 1;
            }
        }
    }

    /// They are deleted, or nobody knows.
    pub fn evicted(&mut self, ids: &[RecordId], done: bool) {
        let now = self.tick();
        for id in ids {
            if let Some(entry) = self.entries.get_mut(id) {
                entry.touch(now);
                if done {
                    entry.going -= 1;
                    entry.evicted = true;
                    entry.hidden = None;
                    self.counts.evicted += 1;
                } else {
                    entry.doubted = true;
                }
            }
        }
    }

    // ---- lives ------------------------------------------------------------------------------

    /// A directory is being opened, for the first time since the last life or once more.
    pub fn opening_begins(&mut self) {
        self.opening = self.tick();
        self.failures.clear();
    }

    /// The directory was opened again, and these records were found.
    pub fn reopened(&mut self, found: &[Record], how: Opening) -> Verdict {
        let Opening { calm, volatile, unsynced, .. } = how;
        let (overwrites, log_lost) = (self.weak.overwrites, self.log_lost > 0);
        self.tick();
        let mut seen = BTreeSet::new();
        // Where records lie that harm or a failed sync brought back: others may have got that space.
        let mut back: Vec<Span> = Vec::new();
        for record in found {
            self.counts.recovered += 1;
            let id = record.id;
            if !seen.insert(id) {
                return broken("S3", Some(id), "found twice");
            }
            let Some(entry) = self.entries.get_mut(&id) else {
                return broken("S3", Some(id), "found, but nobody kept it");
            };
            let facts = &entry.facts;
            if (record.len, record.seal, &*record.label) != (facts.len, facts.seal, &facts.label) {
                return broken(
                    "S3",
                    Some(id),
                    format_args!("found as {record:?}, kept as {facts:?}"),
                );
            }
            let gone = entry.is_gone();
            let hit = overwrites && entry.was_let_go_before(entry.harmed.max(entry.stale));
            let overlooked = !entry.overlooked.is_empty();
            if gone && !hit && !overlooked && !log_lost {
                return broken("G6", Some(id), format_args!("it came back: {entry:?}"));
            }
            if overwrites && (gone || entry.kept == Kept::Failed) {
                back.extend_from_slice(&entry.footprint);
            }
            // What did not know of it may have written over its end.
            entry.unsure |= overlooked;
            back.append(&mut entry.overlooked);
            self.counts.half_found += u64::from(entry.kept == Kept::Under);
            // After a failed sync the kernel may show what is not on the disk, and nobody can tell (S12): the next
            // power cut may take it. It may not leave a wrong one.
            // Its metadata may outlive it, so it may also be found to be bad later.
            let under = entry.kept == Kept::Under && unsynced && volatile;
            entry.unsure |= under || entry.kept == Kept::Failed;
            // A stale read showed it, and zeros lie over it.
            entry.unsure |= overwrites && entry.stale > 0 && (gone || entry.going > 0);
            entry.kept = Kept::Yes;
            (entry.removed, entry.evicted, entry.going_since) = (false, false, None);
        }
        self.not_seen(&seen, &back, how)?;
        self.writing.clear();
        self.choosing.clear();
        self.misses.clear();
        // Logs and identities were read, with what was wrong with them, and written anew.
        if calm && self.log_lost <= self.opening {
            self.log_lost = 0;
        }
        if calm && self.identity_hit <= self.opening {
            self.identity_hit = 0;
        }
        Ok(())
    }

    /// Everything that an opening did not tell is gone, if it may be. `back`: where records lie that came back.
    fn not_seen(&mut self, seen: &BTreeSet<RecordId>, back: &[Span], how: Opening) -> Verdict {
        let Opening { calm, volatile, doubt, .. } = how;
        let (now, overwrites) = (self.clock, self.weak.overwrites);
        // Nothing was hidden: what is not told is not there.
        let all_seen = calm && !volatile && self.failures.is_empty();
        for (id, entry) in &mut self.entries {
            if !seen.contains(id) {
                if all_seen {
                    entry.overlooked.clear();
                }
                let excused = entry.removed || entry.evicted || entry.going > 0 || entry.bad;
                let excused = excused || entry.is_weak() || entry.shadowed;
                let excused =
                    excused || failed_for(&self.failures, self.weak.shadows, &entry.footprint);
                let is_back = |span: &Span| back.iter().any(|other| other.meets(span));
                let lost_to_one = entry.footprint.iter().any(is_back);
                let excused = excused || lost_to_one;
                if entry.kept == Kept::Yes && !excused {
                    return broken("S2", Some(*id), format_args!("lost: {entry:?}"));
                }
                self.counts.half_lost += u64::from(entry.kept == Kept::Under);
                let lay_there = entry.kept != Kept::No && !entry.removed && !entry.evicted;
                // What covers it may be in the memory of the kernel alone, and go with a power cut; or it is the head
                // of a record that came back, and is gone when that is.
                let covered = volatile && entry.covered || lost_to_one;
                if overwrites && lay_there && (covered || entry.stale > self.opening) {
                    entry.overlooked.extend_from_slice(&entry.footprint);
                }
                // What is not told is gone for good.
                entry.going_since.get_or_insert(self.opening);
                entry.unsure = false;
                entry.doubted |= doubt;
                entry.kept = if volatile && entry.doubted { Kept::Failed } else { Kept::No };
            }
            entry.doubted &= volatile;
            (entry.going, entry.hidden, entry.bad, entry.failed_once) = (0, None, false, false);
            (entry.changed, entry.stale) = (now, 0);
        }
        Ok(())
    }

    /// Harm ruined the directory, which is legal, or nothing did, which is not.
    pub fn ruined(&mut self, why: &str) -> Verdict {
        if self.identity_hit == 0 {
            return broken("S3", None, format_args!("the directory cannot be opened: {why}"));
        }
        self.counts.ruined += 1;
        self.entries.clear();
        self.writing.clear();
        self.choosing.clear();
        self.misses.clear();
        (self.log_lost, self.identity_hit) = (0, 0);
        Ok(())
    }

    /// The last harm that was told, for reports.
    pub fn last_harms(&self) -> Vec<Harm> {
        self.harms.iter().rev().take(8).map(|(_, harm)| *harm).collect()
    }

    /// Records that must be found and their bytes, and those that may be.
    pub fn bounds(&self) -> [(u64, u64); 2] {
        let sum = |counts: fn(&Entry) -> bool| {
            let some = self.entries.values().filter(|entry| counts(entry));
            some.fold((0, 0), |(count, bytes), entry| (count + 1, bytes + entry.facts.len))
        };
        [sum(Entry::sure), sum(Entry::may)]
    }

    /// Whether a record was told as bad in this life, or may have been found bad while it was hidden, which nobody
    /// is told: it holds its space until it is removed.
    pub fn any_bad(&self) -> bool {
        let holds = |entry: &Entry| entry.kept == Kept::Yes && !entry.removed && !entry.evicted;
        let bad = |entry: &Entry| entry.bad || entry.is_weak() || entry.stale > 0;
        self.entries.values().any(|entry| holds(entry) && bad(entry))
    }
}
