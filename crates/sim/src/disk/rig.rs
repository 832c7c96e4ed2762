//! The rig: one life after the other on one disk, each ending as the seed says, all judged by one oracle.

use super::actor::Actor;
use super::baton::Baton;
use super::counts::Counts;
use super::harm::Weak;
use super::oracle::{Opening, Oracle};
use super::runner::{Outcome, Tally};
use super::swarm::Swarm;
use crate::judge::Failure;
use crate::swarm::pick;
use crate::trace::Trace;
use crate::world::Watch;
use mooncrate_core::label::Label;
use mooncrate_core::rng::Rng;
use mooncrate_core::{LeaderEpoch, Name, ObjectId, TenantId};
use mooncrate_mem::sums::seal_of;
use mooncrate_rt as rt;
use mooncrate_ssd::disk::Disk;
use mooncrate_ssd::disk::sim::{self, Fault, Rates, SimDisk};
use mooncrate_ssd::points;
use mooncrate_ssd::{Backend, KeepError, NewRecord, Record, RecordId, Recovery, Usage};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Records that later operations choose from.
const RECENT_MAX: usize = 300;
/// Records that are loaded right after a directory was opened.
const CHECKED_MAX: usize = 64;
/// Lines of a report.
const LINES_MAX: usize = 80;

/// Opens a directory with the backend that a seed chose. The rig's own tests have a backend that is surely
/// right, and some that are surely wrong.
pub trait Opens: Sync {
    /// How many backends there are to choose from.
    fn backends(&self) -> usize;

    /// What harm can do.
    fn weak(&self, _swarm: &Swarm) -> Weak {
        Weak::default()
    }

    /// Whether all that the limit allows is taken at once: the disk must have it.
    fn takes_all(&self, _swarm: &Swarm) -> bool {
        false
    }

    /// What a directory that is over its limit may grow by.
    fn over(&self, _swarm: &Swarm) -> u64 {
        0
    }

    /// Opens; `found` is told each record.
    fn open(
        &self,
        swarm: &Swarm,
        disk: Arc<dyn Disk>,
        found: &mut dyn FnMut(Record),
    ) -> Result<(Arc<dyn Backend>, Recovery), String>;
}

/// What the actors of a run share.
pub(super) struct Shared {
    pub(super) swarm: Swarm,
    inner: Mutex<Inner>,
}

pub(super) struct Inner {
    pub(super) oracle: Oracle,
    trace: Trace,
    recent: Vec<RecordId>,
    sequence: u64,
    ops: u64,
    life_left: u64,
    failure: Option<Failure>,
}

impl Inner {
    pub(super) fn remember(&mut self, id: RecordId) {
        if self.recent.len() == RECENT_MAX {
            // The older half goes at once, so that this costs little.
            self.recent.drain(..RECENT_MAX / 2);
        }
        self.recent.push(id);
    }

    /// The last lines about the record that a failure names and about the lives, and the very last ones.
    fn lines(&self) -> Vec<String> {
        let named = self.failure.as_ref().and_then(|failure| failure.text.split(' ').nth(1));
        let words: Vec<String> = ["opened:", "power", "killed", "closed:"]
            .into_iter()
            .chain(named)
            .map(str::to_owned)
            .collect();
        let mut lines = self.trace.last_lines(&words, LINES_MAX);
        lines.extend(self.oracle.last_harms().iter().map(|harm| format!("harm: {harm:?}")));
        lines.push("… and at last, everything:".to_owned());
        lines.extend(self.trace.last_lines(&[], LINES_MAX / 3));
        lines
    }

    pub(super) fn some_id(&self, rng: &mut Rng) -> Option<RecordId> {
        (!self.recent.is_empty()).then(|| *pick(rng, &self.recent))
    }
}

impl Shared {
    /// Never held over a call of a backend: actors would wait for each other without the baton. For the same
    /// reason the work is done outside of the world: the baton stays while the oracle asks the disk.
    pub(super) fn with<T>(&self, work: impl FnOnce(&mut Inner) -> T) -> T {
        let world = rt::world();
        rt::enter(None);
        let done = work(&mut self.inner.lock().expect("a panic inside would be ours"));
        rt::enter(world);
        done
    }

    pub(super) fn next_sequence(&self) -> u64 {
        self.with(|inner| {
            inner.sequence += 1;
            inner.sequence
        })
    }

    /// Counts an operation, or says that the life is over.
    pub(super) fn may_go_on(&self) -> bool {
        self.with(|inner| {
            if inner.failure.is_some() || inner.life_left == 0 || inner.ops >= self.swarm.ops {
                return false;
            }
            inner.life_left -= 1;
            inner.ops += 1;
            true
        })
    }

    pub(super) fn fail(&self, failure: Failure) {
        self.with(|inner| {
            if inner.failure.is_none() {
                inner.failure = Some(Failure { op: inner.ops, ..failure });
            }
        });
    }

    pub(super) fn note(
        &self,
        disk: &SimDisk,
        tag: u64,
        detail: u64,
        text: impl FnOnce() -> String,
    ) {
        let (at, operations) = (disk.busy_nanos(), disk.operations());
        self.with(|inner| {
            inner.trace.mix(tag, operations, detail);
            inner.trace.say(at, text);
        });
    }
}

/// One life of a directory.
#[derive(Debug)]
pub(super) struct Life<'a> {
    pub(super) shared: &'a Shared,
    pub(super) disk: &'a SimDisk,
    pub(super) backend: &'a dyn Backend,
    /// Faults that can fail whatever writes, before it began.
    pub(super) errors_before: u64,
    /// Bytes that files may take.
    pub(super) most: u64,
}

/// How a life ends.
#[derive(Clone, Copy, Debug)]
enum End {
    Cut,
    Kill,
    Close,
}

/// Runs a seed. A panic in the code under test is a failure like any other.
pub fn run(mut swarm: Swarm, opens: &dyn Opens, watch: Watch) -> Outcome {
    if opens.takes_all(&swarm) {
        swarm.capacity = swarm.capacity.max(swarm.limit + swarm.limit / 8);
    }
    // Another actor may have its turn there, too: between two locks nothing else lets it.
    points::set_hook(Box::new(|_| rt::step()));
    let rng = Rng::stream(swarm.seed, "disk rig");
    let disk = Arc::new(SimDisk::new(swarm.seed, swarm.capacity, Rates::default()));
    let inner = Inner {
        oracle: Oracle::new(opens.weak(&swarm)),
        trace: Trace::new(watch.words, watch.aloud),
        recent: Vec::new(),
        sequence: 0,
        ops: 0,
        life_left: 0,
        failure: None,
    };
    let shared = Shared { swarm, inner: Mutex::new(inner) };
    let mut rig = Rig {
        rng,
        disk,
        shared: &shared,
        opens,
        volatile: false,
        most: 0,
        failed: 0,
        errors: 0,
        doubt: false,
        syncs: 0,
        unsynced: false,
        floor: None,
    };
    let lives = || {
        while shared.with(|inner| inner.failure.is_none() && inner.ops < shared.swarm.ops) {
            if let Err(failure) = rig.live() {
                shared.fail(failure);
            }
        }
    };
    if let Err(panic) = catch_unwind(AssertUnwindSafe(lives)) {
        shared.fail(Failure { rule: "panic".into(), text: words(&*panic), key: None, op: 0 });
    }
    let (disk_ops, faults) = (rig.disk.operations(), rig.disk.counts());
    shared.with(|inner| Outcome {
        seed: shared.swarm.seed,
        hash: inner.trace.hash(),
        ops: inner.ops,
        tally: Tally { disk_ops, counts: inner.oracle.counts, faults },
        failure: inner.failure.clone(),
        lines: inner.lines(),
    })
}

struct Rig<'a> {
    rng: Rng,
    disk: Arc<SimDisk>,
    shared: &'a Shared,
    opens: &'a dyn Opens,
    /// What was not synced before the life began may still be seen.
    volatile: bool,
    /// Bytes that files may take in this life.
    most: u64,
    /// Openings in a row that failed.
    failed: u32,
    /// Errors that were injected before the first of them. What a start cannot read it lets go, also if it
    /// fails later.
    errors: u64,
    /// A sync failed in one of them, and the power did not fail since.
    doubt: bool,
    /// Syncs that had failed when the life began, and whether some did in the last one.
    syncs: u64,
    unsynced: bool,
    /// Bytes that are in use or promised while there is no record, as a keep that does not fit tells them.
    floor: Option<u64>,
}

type Verdict = Result<(), Failure>;

impl Rig<'_> {
    fn live(&mut self) -> Verdict {
        let Some(backend) = self.open()? else { return Ok(()) };
        let swarm = &self.shared.swarm;
        let end = match self.rng.below(1000) as u32 {
            draw if draw < swarm.cut => End::Cut,
            draw if draw < swarm.cut + swarm.kill => End::Kill,
            _ => End::Close,
        };
        let left = 1 + self.rng.below(2 * swarm.life_ops);
        self.shared.with(|inner| inner.life_left = left);
        self.disk.set_rates(swarm.rates);
        let before = write_errors(&self.disk.counts());
        self.syncs = sync_errors(&self.disk.counts());
        if !matches!(end, End::Close) && self.rng.chance(800) {
            self.disk.cut_after(self.rng.below(8 * left));
        }
        self.act(&*backend);
        self.disk.set_rates(Rates::default());
        // Where nothing failed, all space comes back.
        let drains = left.is_multiple_of(3) && before == write_errors(&self.disk.counts());
        self.end(end, &*backend, drains)
    }

    /// Opens the directory; `None`: not this time, and the next one is prepared.
    fn open(&mut self) -> Result<Option<Arc<dyn Backend>>, Failure> {
        let swarm = &self.shared.swarm;
        if self.failed == 0 {
            self.errors = mishaps(&self.disk.counts());
            self.doubt = false;
            self.shared.with(|inner| {
                inner.oracle.absorb(&self.disk);
                inner.oracle.opening_begins();
            });
        }
        self.failed += 1;
        // Bad luck ends: a directory that cannot be opened without faults is a failure.
        let faults = swarm.rates_in_open && self.failed < 10;
        self.disk.set_rates(if faults { swarm.rates } else { Rates::default() });
        if self.failed < 20 && self.rng.chance(100) {
            self.disk.cut_after(self.rng.below(60));
        }
        let syncs = sync_errors(&self.disk.counts());
        let mut found = Vec::new();
        let disk: Arc<dyn Disk> = Arc::<SimDisk>::clone(&self.disk);
        let opened = self.opens.open(swarm, disk, &mut |record| found.push(record));
        let calm = self.errors == mishaps(&self.disk.counts());
        self.shared.with(|inner| inner.oracle.absorb(&self.disk));
        // Backends may do without what the last steps of opening are for.
        let opened = opened.and_then(|opened| {
            if self.disk.is_off() {
                Err("it went on without the disk".to_owned())
            } else {
                Ok(opened)
            }
        });
        match opened {
            Ok((backend, recovery)) => {
                self.failed = 0;
                self.disk.no_cut();
                self.note(20, found.len() as u64, || format!("opened: {recovery:?}"));
                self.found(&*backend, &found, recovery, calm)?;
                Ok(Some(backend))
            }
            Err(why) if self.disk.is_off() => {
                self.note(21, 0, || format!("the power failed while opening: {why}"));
                self.shared.with(|inner| inner.oracle.counts.cuts_in_open += 1);
                self.disk = Arc::new(self.disk.crash());
                (self.volatile, self.doubt, self.unsynced) = (false, false, false);
                Ok(None)
            }
            Err(why) if !calm && self.failed < 30 => {
                self.note(22, 0, || format!("a fault while opening: {why}"));
                self.doubt |= syncs != sync_errors(&self.disk.counts());
                self.disk = Arc::new(self.disk.kill());
                Ok(None)
            }
            Err(why) => {
                self.note(23, 0, || format!("not opened: {why}"));
                self.shared.with(|inner| inner.oracle.ruined(&why))?;
                self.disk = Arc::new(self.disk.replaced(self.rng.next(), swarm.capacity));
                (self.volatile, self.doubt, self.unsynced) = (false, false, false);
                Ok(None)
            }
        }
    }

    fn note(&self, tag: u64, detail: u64, text: impl FnOnce() -> String) {
        self.shared.note(&self.disk, tag, detail, text);
    }

    /// What recovery found is what the oracle expects, and every record can be loaded (S3).
    fn found(
        &mut self,
        backend: &dyn Backend,
        found: &[Record],
        recovery: Recovery,
        calm: bool,
    ) -> Verdict {
        let (volatile, doubt) = (self.volatile || self.doubt, self.doubt);
        let unsynced = self.unsynced || doubt;
        let how = Opening { calm, volatile, unsynced, doubt };
        self.shared.with(|inner| inner.oracle.reopened(found, how))?;
        let bytes: u64 = found.iter().map(|record| record.len).sum();
        let usage = backend.usage();
        let count = found.len() as u64;
        let told = (recovery.records, recovery.value_bytes, usage.records, usage.value_bytes);
        if told != (count, bytes, count, bytes) {
            let text = format!("{count} records of {bytes} bytes; told {recovery:?}, {usage:?}");
            return failed("S3", text);
        }
        // A crash may bring files back whose room was in use again: then nothing new is kept until there is
        // room, but what is there is there.
        let (limit, bytes) = (self.shared.swarm.limit, self.disk.file_bytes());
        let over = self.opens.over(&self.shared.swarm);
        self.most = if bytes > limit { bytes + over } else { limit };
        self.at_rest(&usage)?;
        self.disk.set_rates(Rates::default());
        if self.floor.is_none() && found.is_empty() {
            self.floor = self.promised(backend).ok();
        }
        let errors_before = write_errors(&self.disk.counts());
        let life =
            Life { shared: self.shared, disk: &self.disk, backend, errors_before, most: self.most };
        let mut reader = Actor::new(&life, usize::from(u16::MAX), Rng::new(self.rng.next()));
        let mut ids: Vec<RecordId> = found.iter().map(|record| record.id).collect();
        while ids.len() > CHECKED_MAX {
            ids.swap_remove(self.rng.below(ids.len() as u64) as usize);
        }
        ids.chunks(4).try_for_each(|some| reader.load_these(some))
    }

    /// The books are what lies on the disk, and within the limit (S7).
    fn at_rest(&self, usage: &Usage) -> Verdict {
        let on_disk = self.disk.file_bytes();
        if usage.on_disk != on_disk || usage.used > self.most || on_disk > self.most {
            return failed("S7", format!("{on_disk} bytes are on the disk, told {usage:?}"));
        }
        Ok(())
    }

    /// And they count the records that are there.
    fn counted(&self, usage: &Usage) -> Verdict {
        let [sure, may] = self.shared.with(|inner| inner.oracle.bounds());
        let Usage { records, value_bytes, .. } = *usage;
        let within = (sure.0..=may.0).contains(&records) && (sure.1..=may.1).contains(&value_bytes);
        if within {
            return Ok(());
        }
        failed("S7", format!("{sure:?} to {may:?} records and bytes, told {usage:?}"))
    }

    /// What a backend counts as used, promises included: it says so when it refuses what can never fit.
    fn promised(&self, backend: &dyn Backend) -> Result<u64, Failure> {
        let value = vec![0; self.shared.swarm.limit as usize];
        let object = ObjectId { epoch: LeaderEpoch(u64::MAX), sequence: 0 };
        let label = Label::plain(Name::new(TenantId(7), b"too large")).expect("a key").encode();
        let (id, seal) = (RecordId { object, stripe: 0 }, seal_of(&value));
        let kept = backend.keep(&[NewRecord { id, label: &label, seal, value: &value }]);
        match &kept[..] {
            [Err(KeepError::Full { used, .. })] => Ok(*used),
            other => Err(failure("S7", format!("a record as large as the limit: {other:?}"))),
        }
    }

    /// Everything is evicted: then nothing may be used or promised that was not at the very beginning (S7).
    fn drain(&self, backend: &dyn Backend) -> Verdict {
        let oracle =
            |ask: &dyn Fn(&mut Oracle) -> Verdict| self.shared.with(|inner| ask(&mut inner.oracle));
        loop {
            let eviction = self.shared.with(|inner| inner.oracle.unlink_begins());
            let ticket = backend.unlink(u64::MAX);
            let ids = ticket.as_ref().map(|ticket| ticket.records().to_vec()).unwrap_or_default();
            oracle(&|oracle| oracle.unlinked(eviction, &ids))?;
            let Some(ticket) = ticket else { break };
            oracle(&|oracle| {
                oracle.go_begins(&ids);
                Ok(())
            })?;
            if let Err(error) = ticket.finish(Duration::ZERO) {
                return failed("S1", format!("an eviction failed without a fault: {error}"));
            }
            oracle(&|oracle| {
                oracle.evicted(&ids, true);
                Ok(())
            })?;
        }
        let usage = backend.usage();
        self.note(27, usage.on_disk, || format!("drained: {usage:?}"));
        self.at_rest(&usage)?;
        let promised = self.promised(backend)?;
        if usage.records > 0 || usage.value_bytes > 0 || self.floor.is_some_and(|f| f != promised) {
            let floor = self.floor;
            let text =
                format!("without records {promised} bytes are promised, not {floor:?}: {usage:?}");
            return failed("S7", text);
        }
        Ok(())
    }

    /// Actors work until the life is over.
    fn act(&mut self, backend: &dyn Backend) {
        let swarm = &self.shared.swarm;
        let errors_before = write_errors(&self.disk.counts());
        let life =
            Life { shared: self.shared, disk: &self.disk, backend, errors_before, most: self.most };
        let baton = Baton::new(Rng::new(self.rng.next()), swarm.actors, swarm.switch);
        let seeds: Vec<u64> = (0..swarm.actors).map(|_| self.rng.next()).collect();
        std::thread::scope(|scope| {
            for (number, seed) in seeds.into_iter().enumerate() {
                let (life, baton) = (&life, &baton);
                scope.spawn(move || {
                    let work = || {
                        baton.run(number, || Actor::new(life, number, Rng::new(seed)).work());
                    };
                    if let Err(panic) = catch_unwind(AssertUnwindSafe(work)) {
                        let text = words(&*panic);
                        life.shared.fail(Failure { rule: "panic".into(), text, key: None, op: 0 });
                    }
                });
            }
        });
    }

    fn end(&mut self, end: End, backend: &dyn Backend, drains: bool) -> Verdict {
        self.shared.with(|inner| inner.oracle.absorb(&self.disk));
        if self.shared.with(|inner| inner.failure.is_some()) {
            return Ok(());
        }
        let count = |pick: fn(&mut Counts) -> &mut u64| {
            self.shared.with(|inner| *pick(&mut inner.oracle.counts) += 1);
        };
        self.unsynced = self.syncs != sync_errors(&self.disk.counts());
        self.volatile = !matches!(end, End::Cut);
        if !self.disk.is_off() {
            let usage = backend.usage();
            self.at_rest(&usage)?;
            self.counted(&usage)?;
        }
        match end {
            End::Cut => {
                count(|counts| &mut counts.cuts);
                self.note(24, 0, || "the power fails".to_owned());
                self.disk = Arc::new(self.disk.crash());
            }
            End::Kill => {
                count(|counts| &mut counts.kills);
                self.note(25, 0, || "the process is killed".to_owned());
                self.disk = Arc::new(self.disk.kill());
            }
            End::Close => {
                count(|counts| &mut counts.closes);
                let usage = backend.usage();
                self.note(26, usage.records, || format!("closed: {usage:?}"));
                if drains && !self.shared.with(|inner| inner.oracle.any_bad()) {
                    self.drain(backend)?;
                    count(|counts| &mut counts.drains);
                }
                let before = write_errors(&self.disk.counts());
                if self.rng.chance(500)
                    && let Err(error) = backend.settle()
                    && before == write_errors(&self.disk.counts())
                {
                    return failed("S2", format!("settle failed without a fault: {error}"));
                }
                // The next process has handles of its own.
                self.disk = Arc::new(self.disk.kill());
            }
        }
        Ok(())
    }
}

fn sum(counts: &sim::Counts, faults: &[Fault]) -> u64 {
    faults.iter().map(|fault| counts[*fault as usize]).sum()
}

/// Faults so far that can fail whatever writes: what only reads excuses none of it.
pub(super) fn write_errors(counts: &sim::Counts) -> u64 {
    let failed = [Fault::WriteError, Fault::SyncError, Fault::DirSyncError, Fault::NoSpace];
    sum(counts, &failed) + sum(counts, &[Fault::Cut])
}

/// Faults so far that can fail a load.
pub(super) fn read_errors(counts: &sim::Counts) -> u64 {
    sum(counts, &[Fault::ReadError, Fault::Cut])
}

/// Syncs of files that failed so far.
fn sync_errors(counts: &sim::Counts) -> u64 {
    sum(counts, &[Fault::SyncError])
}

/// Faults so far that can make an opening let go of something. A power cut cannot: nothing is written after it.
fn mishaps(counts: &sim::Counts) -> u64 {
    let writes = [Fault::WriteError, Fault::SyncError, Fault::DirSyncError, Fault::NoSpace];
    sum(counts, &writes) + sum(counts, &[Fault::ReadError, Fault::Stale])
}

fn failure(rule: &str, text: String) -> Failure {
    Failure { rule: rule.to_owned(), text, key: None, op: 0 }
}

fn failed(rule: &str, text: String) -> Verdict {
    Err(failure(rule, text))
}

fn words(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
    text.unwrap_or_else(|| "a panic without words".to_owned())
}
