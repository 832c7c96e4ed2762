//! The parent: starts children, hears what they did, opens what they left, and judges.

use super::child::Task;
use super::{config, open_disk, record_and_value};
use crate::disk::harm::Weak;
use crate::disk::oracle::{Loaded, Opening, Oracle, Told};
use crate::judge::Failure;
use mooncrate_core::rng::Rng;
use mooncrate_ssd::{Backend, Kind, Load, LoadError, Record, open, points};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Children that may miss the point of the first round.
const FIRST_TRIES: u32 = 12;

/// One child starts at a time.
static STARTING: Mutex<()> = Mutex::new(());

/// What to run.
#[derive(Clone, Debug)]
pub struct Job {
    /// The program that is started as a child, with the arguments of [`Task`].
    pub program: PathBuf,
    /// Where directories are made; they are removed at the end.
    pub directory: PathBuf,
    /// What is kept, and where children end, follows from it.
    pub seed: u64,
    /// Rounds for each point and each disk.
    pub rounds: u64,
    /// Only points that begin so.
    pub only: Option<String>,
    /// Points that are worked on at the same time.
    pub threads: usize,
    /// Threads beside that take the cores away, so that children are stopped between any two steps.
    pub busy: usize,
}

/// What it came to.
#[derive(Clone, Debug, Default)]
pub struct Sum {
    /// Children that were started, and those that came to their point.
    pub children: u64,
    /// Killed at their point.
    pub killed: u64,
    /// Records that were told as kept.
    pub kept: u64,
    /// Records that were found and verified.
    pub verified: u64,
    /// Removals and evictions that were answered.
    pub gone: u64,
    /// Kills for each point, each disk and each backend that passes it.
    pub points: BTreeMap<String, u64>,
}

impl Sum {
    fn add(&mut self, other: &Self) {
        self.children += other.children;
        self.killed += other.killed;
        self.kept += other.kept;
        self.verified += other.verified;
        self.gone += other.gone;
        for (point, kills) in &other.points {
            *self.points.entry(point.clone()).or_default() += kills;
        }
    }

    /// The table at the end.
    pub fn table(&self) -> String {
        let mut text = String::new();
        let mut row = |name: &str, value: u64| {
            writeln!(text, "  {name:<46} {value:>10}").expect("a String takes everything");
        };
        row("children", self.children);
        row("killed at their point", self.killed);
        row("records told as kept", self.kept);
        row("records found and verified", self.verified);
        row("removed and evicted", self.gone);
        for (point, kills) in &self.points {
            row(&format!("kills at {point}"), *kills);
        }
        text
    }

    /// Points at which nobody was killed.
    pub fn missing(&self, job: &Job) -> Vec<String> {
        let all = series(job).into_iter().map(|which| which.name());
        all.filter(|name| !self.points.contains_key(name)).collect()
    }
}

/// One directory, over several rounds.
struct Series<'a> {
    job: &'a Job,
    task: Task,
    oracle: Oracle,
}

/// Runs all points on both disks, several at a time; tells `progress` of each that is done.
pub fn run(job: &Job, progress: impl Fn(&str, &Sum) + Sync) -> Result<Sum, Failure> {
    let all = series(job);
    let (next, sum) = (AtomicUsize::new(0), Mutex::new((Sum::default(), None)));
    let work = || {
        while let Some(one) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
            let mut mine = Sum::default();
            let done = one_series(job, one, &mut mine);
            if mine.killed > 0 {
                mine.points.insert(one.name(), mine.killed);
            }
            let mut sum = sum.lock().expect("nobody panics while adding");
            sum.0.add(&mine);
            if let Err(failure) = done {
                sum.1.get_or_insert(failure);
                next.store(all.len(), Ordering::Relaxed);
            } else {
                progress(&one.name(), &sum.0);
            }
        }
    };
    let left = AtomicUsize::new(job.threads);
    std::thread::scope(|scope| {
        for _ in 0..job.threads {
            scope.spawn(|| {
                let _done = Countdown(&left);
                work();
            });
        }
        for _ in 0..job.busy {
            scope.spawn(|| while left.load(Ordering::Relaxed) > 0 {});
        }
    });
    match sum.into_inner().expect("all threads have ended") {
        (sum, None) => Ok(sum),
        (_, Some(failure)) => Err(failure),
    }
}

/// One less, also after a panic.
struct Countdown<'a>(&'a AtomicUsize);

impl Drop for Countdown<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A point, a disk and a backend.
struct Which {
    point: usize,
    disk: &'static str,
    kind: usize,
}

impl Which {
    fn name(&self) -> String {
        let Self { point, disk, kind } = self;
        format!("{}, {disk}, {}", points::POINTS[*point], Kind::ALL[*kind].name())
    }
}

fn series(job: &Job) -> Vec<Which> {
    let wanted = |name: &str| job.only.as_ref().is_none_or(|only| name.starts_with(only.as_str()));
    let mut all = Vec::new();
    for (point, name) in points::POINTS.iter().enumerate().filter(|(_, name)| wanted(name)) {
        for disk in ["posix", "uring"] {
            all.extend(kinds(name).iter().map(|kind| Which { point, disk, kind: *kind }));
        }
    }
    all
}

fn one_series(job: &Job, which: &Which, sum: &mut Sum) -> Verdict {
    let Which { point, disk, kind } = *which;
    let name = points::POINTS[point];
    let seed = job.seed ^ (point as u64) << 32 ^ (kind as u64) << 8 ^ disk.len() as u64;
    let directory = job.directory.join(format!("{name}-{disk}-{kind}"));
    let task = Task { directory, disk: disk.into(), kind, point, hits: 0, seed, from: 1 };
    let mut series = Series { job, task, oracle: Oracle::new(Weak::default()) };
    series.rounds(sum).map_err(|failure| {
        let text = format!(
            "{} ({})\nREPRO: ./dev sim disk-crash --seed {} --rounds {} --point {name} --busy {}",
            failure.text,
            which.name(),
            job.seed,
            job.rounds,
            job.busy
        );
        Failure { text, ..failure }
    })?;
    fs::remove_dir_all(&series.task.directory).map_err(|error| io_failure(&error))
}

/// Backends that pass a point.
fn kinds(point: &str) -> &'static [usize] {
    match point.split_once('.') {
        Some(("per_key", _)) => &[1],
        Some(("offset", _)) => &[2],
        Some(("format", _) | ("removed", "hidden") | ("evict", "unlinked" | "drained")) => {
            &[0, 1, 2]
        }
        Some(("evict", "orphan_marked")) => &[0, 1],
        _ => &[0],
    }
}

type Verdict = Result<(), Failure>;

impl Series<'_> {
    fn rounds(&mut self, sum: &mut Sum) -> Verdict {
        let mut rng = Rng::new(self.task.seed);
        for round in 0..self.job.rounds {
            // The first time as soon as possible, and again if nobody came: some points are rare.
            self.task.hits = if round == 0 { 0 } else { rng.below(6) };
            for _ in 0..if round == 0 { FIRST_TRIES } else { 1 } {
                if self.round(sum)? {
                    break;
                }
            }
        }
        Ok(())
    }

    /// One child, and what it leaves. Gives whether it was killed at its point.
    fn round(&mut self, sum: &mut Sum) -> Result<bool, Failure> {
        let killed = self.child(sum)?;
        sum.children += 1;
        sum.killed += u64::from(killed);
        self.judge(sum)?;
        Ok(killed)
    }

    /// Runs a child and hears it out. Gives whether it was killed at its point.
    fn child(&mut self, sum: &mut Sum) -> Result<bool, Failure> {
        let Task { directory, disk, kind, point, hits, seed, from } = &self.task;
        let mut command = Command::new(&self.job.program);
        command
            .arg("disk-crash-child")
            .args([directory.as_os_str(), disk.as_ref()])
            .args([*kind as u64, *point as u64, *hits, *seed, *from].map(|n| n.to_string()))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        // A child that another thread is starting has the lock of our directory until it runs its program.
        let starting = STARTING.lock().expect("nobody panics while starting");
        let child = command.spawn();
        drop(starting);
        let child = child.and_then(Child::wait_with_output).map_err(|error| io_failure(&error))?;
        let mut keeps: BTreeMap<u64, u64> = BTreeMap::new();
        let told = String::from_utf8_lossy(&child.stdout);
        // The last line may be cut: then it was not told.
        for line in told.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
            self.hear(line.trim_end(), &mut keeps, sum)?;
        }
        match child.status.signal() {
            Some(9) => Ok(true),
            None if child.status.success() => Ok(false),
            _ => {
                let words = String::from_utf8_lossy(&child.stderr).into_owned();
                failed("S3", format!("a child ended with {}: {words}", child.status))
            }
        }
    }

    fn hear(&mut self, line: &str, keeps: &mut BTreeMap<u64, u64>, sum: &mut Sum) -> Verdict {
        let mut words = line.split(' ');
        let what = words.next().unwrap_or("");
        let numbers: Vec<u64> = words.filter_map(|word| word.parse().ok()).collect();
        let seed = self.task.seed;
        let ids: Vec<_> = numbers.iter().map(|number| record_and_value(seed, *number).0).collect();
        match what {
            "keeps" => {
                for number in numbers {
                    self.task.from = self.task.from.max(number / 2 + 1);
                    let (id, facts, _) = record_and_value(seed, number);
                    keeps.insert(number, self.oracle.keep_begins(&[(id, facts)]));
                }
            }
            "kept" | "refused" => {
                let told = if what == "kept" { Told::Kept } else { Told::Refused };
                for (number, id) in numbers.iter().zip(ids) {
                    sum.kept += u64::from(told == Told::Kept);
                    self.oracle.kept(keeps[number], id, told);
                }
            }
            "removes" => self.oracle.go_begins(&ids),
            "evicts" => {
                self.oracle.go_begins(&ids);
            }
            "removed" => {
                sum.gone += ids.len() as u64;
                self.oracle.removed(&ids, true);
            }
            "evicted" => {
                sum.gone += ids.len() as u64;
                self.oracle.evicted(&ids, true);
            }
            _ => return failed("C1", format!("a child says: {line}")),
        }
        Ok(())
    }

    /// Opens what is left: the oracle's records and no others, each verified, the books as the files.
    fn judge(&mut self, sum: &mut Sum) -> Verdict {
        let Task { directory, disk, kind, seed, .. } = &self.task.clone();
        if !directory.exists() {
            return Ok(());
        }
        let disk = open_disk(disk, directory).map_err(|error| io_failure(&error))?;
        let config = config(Kind::ALL[*kind], *seed);
        let mut found: Vec<Record> = Vec::new();
        let opened = open(disk, &config, &mut |record| found.push(record), &mut |_| {});
        let (backend, recovery) = match opened {
            Ok(opened) => opened,
            Err(error) => return failed("S3", format!("not opened after a kill: {error}")),
        };
        self.oracle.reopened(
            &found,
            Opening { calm: true, volatile: true, unsynced: false, doubt: false },
        )?;
        for record in &found {
            self.verify(&*backend, record)?;
            sum.verified += 1;
        }
        let (usage, on_disk) =
            (backend.usage(), file_bytes(directory).map_err(|e| io_failure(&e))?);
        if usage.records != found.len() as u64 || recovery.records != usage.records {
            return failed("S3", format!("{} found, told {recovery:?} {usage:?}", found.len()));
        }
        if usage.on_disk != on_disk || on_disk > usage.limit {
            return failed("S7", format!("{on_disk} bytes of files, told {usage:?}"));
        }
        Ok(())
    }

    fn verify(&mut self, backend: &dyn Backend, record: &Record) -> Verdict {
        let (id, facts, value) = record_and_value(self.task.seed, record.id.object.sequence);
        let began = self.oracle.begins(id);
        let mut into = vec![0; value.len()];
        let mut loads = [Load {
            id,
            label: &facts.label,
            len: facts.len,
            seal: facts.seal,
            start: 0,
            want: facts.len,
            into: &mut into,
            sums: None,
            result: Err(LoadError::Missing),
        }];
        backend.load(&mut loads);
        let [Load { result, .. }] = loads;
        let what = match result {
            Ok(()) if into != value => return failed("C1", format!("WRONG BYTES in {id:?}")),
            Ok(()) => Loaded::Right,
            Err(LoadError::Missing) => Loaded::Missing,
            Err(LoadError::Corrupt) => Loaded::Corrupt,
            Err(_) => Loaded::Failed { injected: false },
        };
        self.oracle.loaded(id, began, what)
    }
}

/// Bytes of all files of a directory but the lock.
fn file_bytes(directory: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            bytes += file_bytes(&entry.path())?;
        } else if entry.file_name() != "lock" {
            bytes += entry.metadata()?.len();
        }
    }
    Ok(bytes)
}

fn failed<T>(rule: &str, text: String) -> Result<T, Failure> {
    Err(Failure { rule: rule.to_owned(), text, key: None, op: 0 })
}

fn io_failure(error: &io::Error) -> Failure {
    Failure { rule: "the machine".to_owned(), text: error.to_string(), key: None, op: 0 }
}
