//! The oracle: which records must be found, which may be, which must not, and whose bytes they are.
//!
//! Actors overlap, so an answer is judged by what held between its beginning and its end: it is wrong if no
//! moment in between explains it. Wrong bytes are never excused: they are compared before anybody asks here.
//! What is excused, and why nobody could do better:
//!
//! * A loss, or bytes that are told as corrupt: harm hit bytes that the actor of the keep wrote meanwhile.
//! * A loss at an opening: a read failed there (what is not told is gone for good), harm lies before the record
//!   in a bucket that is scanned, or the record was being kept when its process was killed.
//! * Anything at the first opening after harm elsewhere (a log, a table): it cannot be told whom it concerns.
//! * A record whose keep failed with the disk: what was written may be found by the next opening, a removal
//!   in between does not know of it, and after a failed sync it may be in the memory of the kernel only (S12).

use super::counts::Counts;
use crate::judge::Failure;
use mooncrate_check::PutId;
use mooncrate_check::payload;
use mooncrate_core::{KeyHash, Seal};
use mooncrate_ssd::disk::sim::{Harm, SimDisk, Span};
use mooncrate_ssd::{Record, RecordId};
use std::collections::{BTreeMap, BTreeSet};
use std::thread::ThreadId;

/// Whose bytes a record holds.
#[derive(Clone, PartialEq, Eq)]
pub struct Facts {
    /// The stamp.
    pub put: PutId,
    /// The other stamp.
    pub key: KeyHash,
    /// Bytes.
    pub len: u64,
    /// What they add up to.
    pub seal: Seal,
    /// The label.
    pub label: Vec<u8>,
}

impl std::fmt::Debug for Facts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { put, len, seal, label, .. } = self;
        write!(f, "put {put}, {len} bytes, {seal:?}, label of {} bytes", label.len())
    }
}

impl Facts {
    /// The bytes of a part.
    pub fn fill(&self, part: &mut [u8], start: u64) {
        payload::fill_range(part, start, self.put, self.key);
    }
}

/// Whether a record was kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kept {
    /// It is being kept.
    Under,
    Yes,
    /// No, and it must never be found.
    No,
    /// No, because the disk failed: not found in this life, perhaps in the next one.
    Failed,
}

#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
struct Entry {
    facts: Facts,
    kept: Kept,
    /// Removals and deletions that are under way, or whose outcome nobody knows.
    going: u32,
    removed: bool,
    evicted: bool,
    /// By this eviction.
    hidden: Option<u64>,
    /// Told as corrupt: not served again in this life.
    bad: bool,
    harmed: bool,
    /// The next opening may not find it, because harm lies before it in its file, or because a kill left
    /// it in the memory of the kernel only.
    shadowed: bool,
    /// When something last happened to it.
    changed: u64,
    /// Its keep.
    keep: u64,
    /// An earlier keep of it failed with the disk, and may have left something.
    failed_once: bool,
    /// The disk failed while it was kept or let go. Until the power fails nobody can tell what is on the disk: the
    /// kernel may show other bytes, and a later sync says that they are safe (S12).
    doubted: bool,
    footprint: Vec<Span>,
}

impl Entry {
    /// It must be found.
    fn sure(&self) -> bool {
        self.may() && self.kept == Kept::Yes && self.going == 0 && !self.harmed
    }

    /// It may be found.
    fn may(&self) -> bool {
        matches!(self.kept, Kept::Yes | Kept::Under)
            && !self.removed
            && !self.evicted
            && self.hidden.is_none()
            && !self.bad
    }
}

/// How things stood when a call began.
#[derive(Clone, Copy, Debug)]
pub struct Began {
    clock: u64,
    sure: bool,
    may: bool,
    known: bool,
}

/// How a directory was opened.
#[derive(Clone, Copy, Debug)]
pub struct Opening {
    /// No fault meanwhile, nor in openings before that failed.
    pub calm: bool,
    /// The kernel may show what is not on the disk: there was no power cut since it was written.
    pub volatile: bool,
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
#[derive(Debug, Default)]
pub struct Oracle {
    entries: BTreeMap<RecordId, Entry>,
    clock: u64,
    /// Evictions that are choosing records: until they answer, nobody knows which.
    choosing: u32,
    /// When one of them last began or ended.
    chose: u64,
    /// Keeps under way, by whom, and what they wrote so far.
    writing: BTreeMap<u64, (ThreadId, Vec<Span>)>,
    harms: Vec<(u64, Harm)>,
    /// Harm hit something that belongs to no record, since the last opening without any.
    adrift: bool,
    /// When the opening that is judged next began.
    opening: u64,
    /// Files are read from head to head after a crash: harm may hide what lies behind it.
    shadows: bool,
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

/// Whether bytes lie behind harm in the same file.
fn behind(spans: &[Span], harm: &Harm) -> bool {
    spans.iter().any(|span| span.file == harm.span.file && span.end > harm.span.start)
}

/// Whether harm since a keep began concerns what was written.
fn harmed(harms: &[(u64, Harm)], since: u64, spans: &[Span]) -> bool {
    let mut later = harms.iter().rev().take_while(|(at, _)| *at > since);
    later.any(|(_, harm)| spans.iter().any(|span| span.meets(&harm.span)))
}

/// Whether harm concerns what a keep that is not over has written so far: its records may be found already.
fn harmed_meanwhile(
    writing: &BTreeMap<u64, (ThreadId, Vec<Span>)>,
    harms: &[(u64, Harm)],
    keep: u64,
) -> bool {
    writing.get(&keep).is_some_and(|(_, spans)| harmed(harms, keep, spans))
}

impl Oracle {
    /// Of a directory that is empty. `shadows`: harm may hide what lies behind it in its file.
    pub fn new(shadows: bool) -> Self {
        Self { shadows, ..Self::default() }
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Takes note of what the disk did since the last call.
    pub fn absorb(&mut self, disk: &SimDisk) {
        for (by, span) in disk.take_written() {
            let mine = self.writing.values_mut().filter(|(writer, _)| *writer == by);
            mine.for_each(|(_, spans)| spans.push(span));
        }
        for harm in disk.take_harm() {
            let now = self.tick();
            let meets = |spans: &[Span]| spans.iter().any(|span| span.meets(&harm.span));
            let mut met = self.writing.values().any(|(_, spans)| meets(spans));
            for entry in self.entries.values_mut() {
                if meets(&entry.footprint) {
                    entry.harmed = true;
                    met = true;
                }
                entry.shadowed |= self.shadows && behind(&entry.footprint, &harm);
            }
            self.adrift |= !met;
            self.harms.push((now, harm));
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
            let entry = Entry {
                failed_once,
                doubted: old.is_some_and(|entry| entry.doubted),
                facts: facts.clone(),
                kept: Kept::Under,
                going: 0,
                removed: false,
                evicted: false,
                hidden: None,
                bad: false,
                harmed: false,
                shadowed: false,
                changed: now,
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
        entry.changed = now;
        entry.kept = match told {
            Told::Kept => Kept::Yes,
            Told::Refused if entry.failed_once => Kept::Failed,
            Told::Refused => Kept::No,
            Told::DiskFailed => Kept::Failed,
            Told::PowerOff => Kept::Under,
        };
        entry.doubted |= told == Told::DiskFailed;
        entry.harmed |= harmed(&self.harms, keep, &spans);
        entry.shadowed = self.shadows && self.harms.iter().any(|(_, harm)| behind(&spans, harm));
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
        Began {
            clock: self.clock,
            sure: entry.is_some_and(Entry::sure) && self.choosing == 0,
            may: entry.is_some_and(Entry::may),
            known: entry.is_some(),
        }
    }

    /// A load has ended.
    pub fn loaded(&mut self, id: RecordId, began: Began, what: Loaded) -> Verdict {
        let now = self.tick();
        let still = self.choosing == 0 && self.chose <= began.clock;
        let Some(entry) = self.entries.get_mut(&id).filter(|_| began.known) else {
            return match what {
                Loaded::Missing => Ok(()),
                other => broken("C1", Some(id), format_args!("{other:?}, but nobody kept it")),
            };
        };
        let quiet = still && entry.changed <= began.clock;
        entry.harmed |= harmed_meanwhile(&self.writing, &self.harms, entry.keep);
        match what {
            Loaded::Right => {
                self.counts.loads += 1;
                if !began.may && !entry.may() && entry.changed <= began.clock {
                    return broken(
                        "S1/G6",
                        Some(id),
                        format_args!("loaded, but it is gone: {entry:?}"),
                    );
                }
            }
            Loaded::Missing => {
                self.counts.missing += 1;
                if began.sure && quiet && entry.sure() {
                    return broken(
                        "S2",
                        Some(id),
                        format_args!("missing, but it was kept: {entry:?}"),
                    );
                }
            }
            Loaded::Corrupt => {
                self.counts.corrupt += 1;
                if !entry.harmed {
                    return broken(
                        "S6/S10",
                        Some(id),
                        format_args!("corrupt without harm: {entry:?}"),
                    );
                }
                entry.bad = true;
                entry.changed = now;
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

    /// A scrub told a record as bad.
    pub fn scrubbed(&mut self, id: RecordId, read_failed: bool) -> Verdict {
        let now = self.tick();
        let Some(entry) = self.entries.get_mut(&id) else {
            return broken("S3", Some(id), "a scrub told it, but nobody kept it");
        };
        entry.harmed |= harmed_meanwhile(&self.writing, &self.harms, entry.keep);
        if !entry.harmed && !read_failed {
            return broken("S10", Some(id), format_args!("told as bad without harm: {entry:?}"));
        }
        entry.bad = true;
        entry.changed = now;
        self.counts.scrubbed += 1;
        Ok(())
    }

    // ---- removing and evicting --------------------------------------------------------------

    /// Records begin to go: a removal, or the second step of an eviction.
    pub fn go_begins(&mut self, ids: &[RecordId]) {
        let now = self.tick();
        for id in ids {
            if let Some(entry) = self.entries.get_mut(id) {
                entry.going += 1;
                entry.changed = now;
            }
        }
    }

    /// They are removed, or nobody knows.
    pub fn removed(&mut self, ids: &[RecordId], done: bool) {
        let now = self.tick();
        for id in ids {
            if let Some(entry) = self.entries.get_mut(id) {
                entry.changed = now;
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

    /// An eviction chooses what goes.
    pub fn unlink_begins(&mut self) {
        self.choosing += 1;
        self.chose = self.tick();
    }

    /// It has chosen: these are hidden until further notice. The answer names the eviction.
    pub fn unlinked(&mut self, ids: &[RecordId]) -> Result<u64, Failure> {
        let now = self.tick();
        self.choosing -= 1;
        self.chose = now;
        for id in ids {
            let Some(entry) = self.entries.get_mut(id) else {
                broken("S3", Some(*id), "evicted, but nobody kept it")?;
                continue;
            };
            if entry.hidden.is_some() {
                broken("S1", Some(*id), "hidden by two evictions")?;
            }
            entry.hidden = Some(now);
            entry.changed = now;
        }
        Ok(now)
    }

    /// The eviction is being taken back: they may be found again.
    pub fn take_back_begins(&mut self, eviction: u64) -> Vec<RecordId> {
        let now = self.tick();
        let mut ids = Vec::new();
        for (id, entry) in &mut self.entries {
            if entry.hidden == Some(eviction) {
                entry.hidden = None;
                entry.going += 1;
                entry.changed = now;
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
                entry.going -= 1;
                entry.changed = now;
            }
        }
    }

    /// They are deleted, or nobody knows.
    pub fn evicted(&mut self, ids: &[RecordId], done: bool) {
        let now = self.tick();
        for id in ids {
            if let Some(entry) = self.entries.get_mut(id) {
                entry.changed = now;
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
    }

    /// The directory was opened again, and these records were found.
    pub fn reopened(&mut self, found: &[Record], how: Opening) -> Verdict {
        let Opening { calm, volatile, doubt } = how;
        let now = self.tick();
        let mut seen = BTreeSet::new();
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
            let gone = entry.removed || entry.evicted || entry.kept == Kept::No;
            if gone && !entry.harmed && !self.adrift {
                return broken("G6", Some(id), format_args!("it came back: {entry:?}"));
            }
            self.counts.half_found += u64::from(entry.kept == Kept::Under);
            // After a failed sync the kernel may show what is not on the disk, and nobody can tell (S12).
            entry.harmed |= entry.kept == Kept::Failed;
            // It was never told as kept, so the next power cut may take it; it may not leave a wrong one.
            entry.shadowed |= volatile && entry.kept == Kept::Under;
            entry.kept = Kept::Yes;
            (entry.removed, entry.evicted) = (false, false);
        }
        let adrift = self.adrift;
        for (id, entry) in &mut self.entries {
            if !seen.contains(id) {
                let excused = entry.removed || entry.evicted || entry.going > 0 || entry.bad;
                let excused = excused || entry.harmed || entry.shadowed || adrift || !calm;
                if entry.kept == Kept::Yes && !excused {
                    return broken("S2", Some(*id), format_args!("lost: {entry:?}"));
                }
                self.counts.half_lost += u64::from(entry.kept == Kept::Under);
                // What is not told is gone for good.
                entry.doubted |= doubt;
                entry.kept = if volatile && entry.doubted { Kept::Failed } else { Kept::No };
            }
            entry.doubted &= volatile;
            (entry.going, entry.hidden, entry.bad, entry.failed_once) = (0, None, false, false);
            entry.changed = now;
        }
        self.writing.clear();
        self.choosing = 0;
        // Logs and tables were read, with what was wrong with them, and written anew.
        let harm = self.harms.last().is_some_and(|(at, _)| *at > self.opening);
        self.adrift &= !calm || harm;
        Ok(())
    }

    /// Harm ruined the directory, which is legal, or nothing did, which is not.
    pub fn ruined(&mut self, why: &str) -> Verdict {
        if !self.adrift && self.harms.is_empty() {
            return broken("S3", None, format_args!("the directory cannot be opened: {why}"));
        }
        self.counts.ruined += 1;
        self.entries.clear();
        self.writing.clear();
        (self.adrift, self.choosing) = (false, 0);
        Ok(())
    }

    /// The last harm that was told, for reports.
    pub fn last_harms(&self) -> Vec<Harm> {
        self.harms.iter().rev().take(8).map(|(_, harm)| *harm).collect()
    }

    /// Records that must be found, and records that may be.
    pub fn bounds(&self) -> (u64, u64) {
        let sure = self.entries.values().filter(|entry| entry.sure()).count();
        let may = self.entries.values().filter(|entry| entry.may()).count();
        (sure as u64, may as u64)
    }
}
