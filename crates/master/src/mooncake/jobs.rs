//! Drain jobs: several drains of nodes under one id, and what became of them.
//!
//! A job only watches. The drains are the catalog's, are carried by their nodes and outlive a master;
//! the job that began them does not.
//!
//! What must stay true: the number of jobs is bounded; a job that ended stays as it ended, also when
//! its nodes are gone since; the lock of the jobs is taken before that of the catalog, never inside it.

use crate::service::Master;
use mooncrate_core::NodeId;
use mooncrate_core::copy::DrainStat;
use mooncrate_lock::Mutex;
use mooncrate_wire::clock::wall_seconds;
use mooncrate_wire::message::{Drain, DrainWish};
use std::collections::BTreeMap;

/// Jobs that are remembered; beyond, the oldest that has ended is forgotten.
const JOBS_MAX: usize = 1024;

/// How far a job is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Running,
    Succeeded,
    Failed,
    Canceled,
}

impl State {
    /// Code and name of it.
    pub(super) const fn shown(self) -> (u8, &'static str) {
        match self {
            Self::Running => (2, "RUNNING"),
            Self::Succeeded => (3, "SUCCEEDED"),
            Self::Failed => (4, "FAILED"),
            Self::Canceled => (5, "CANCELED"),
        }
    }
}

/// One node of a job.
#[derive(Clone, Debug)]
struct Part {
    name: String,
    node: NodeId,
    stat: DrainStat,
}

/// A job.
#[derive(Clone, Debug)]
pub(super) struct Job {
    parts: Vec<Part>,
    pub(super) state: State,
    pub(super) created_ms: u64,
    pub(super) updated_ms: u64,
    pub(super) message: String,
}

impl Job {
    /// The names that are drained, each once; nodes of one name stand together.
    pub(super) fn segments(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.parts.iter().map(|part| part.name.as_str()).collect();
        names.dedup();
        names
    }

    /// All nodes together.
    pub(super) fn stat(&self) -> DrainStat {
        self.parts.iter().fold(DrainStat::default(), |sum, Part { stat, .. }| DrainStat {
            draining: sum.draining + stat.draining,
            start_bytes: sum.start_bytes + stat.start_bytes,
            start_replicas: sum.start_replicas + stat.start_replicas,
            left_bytes: sum.left_bytes + stat.left_bytes,
            left_replicas: sum.left_replicas + stat.left_replicas,
            moved: sum.moved + stat.moved,
            dropped: sum.dropped + stat.dropped,
            stuck: sum.stuck + stat.stuck,
        })
    }

    /// Looks at the drains again.
    fn look(&mut self, master: &Master) {
        let before = self.stat();
        for part in &mut self.parts {
            // One that is empty may leave: that is what it was drained for.
            if part.stat.drained() {
                continue;
            }
            let look = Drain { node: part.node, segment: None, wish: DrainWish::Look };
            match master.drain_node(&look) {
                None => {
                    self.message = format!("{} left before it was empty", part.name);
                    self.state = State::Failed;
                }
                Some(stat) if stat.draining == 0 => {
                    self.message = format!("the drain of {} was ended by somebody else", part.name);
                    self.state = State::Canceled;
                }
                Some(stat) => part.stat = stat,
            }
        }
        if self.state == State::Running && self.parts.iter().all(|part| part.stat.drained()) {
            self.state = State::Succeeded;
        }
        if self.stat() != before || self.state != State::Running {
            self.updated_ms = now_ms();
        }
    }
}

/// Why there is no job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NoJob {
    /// This node is being drained by another one.
    Taken(String),
    /// This node is not mounted.
    Gone(String),
    TooMany,
}

/// All jobs of a leader, by number.
#[derive(Debug, Default)]
pub(crate) struct Jobs(Mutex<Book>);

#[derive(Debug, Default)]
struct Book {
    last: u64,
    jobs: BTreeMap<u64, Job>,
}

impl Book {
    fn running(&mut self) -> impl Iterator<Item = &mut Job> {
        self.jobs.values_mut().filter(|job| job.state == State::Running)
    }

    /// Makes room for one more.
    fn forget(&mut self) -> Result<(), NoJob> {
        if self.jobs.len() < JOBS_MAX {
            return Ok(());
        }
        let over = self.jobs.iter().find(|(_, job)| job.state != State::Running);
        let number = *over.ok_or(NoJob::TooMany)?.0;
        self.jobs.remove(&number);
        Ok(())
    }
}

impl Jobs {
    /// Looks at the jobs that are not over; called with every tick.
    pub(crate) fn watch(&self, master: &Master) {
        self.0.lock().running().for_each(|job| job.look(master));
    }

    /// Begins to drain these nodes; the number of the job.
    pub(super) fn begin(
        &self,
        master: &Master,
        nodes: Vec<(String, NodeId)>,
    ) -> Result<u64, NoJob> {
        let mut book = self.0.lock();
        let taken = |name: &str| {
            book.jobs
                .values()
                .any(|job| job.state == State::Running && job.segments().contains(&name))
        };
        if let Some((name, _)) = nodes.iter().find(|(name, _)| taken(name)) {
            return Err(NoJob::Taken(name.clone()));
        }
        book.forget()?;
        let mut parts = Vec::with_capacity(nodes.len());
        for (name, node) in nodes {
            let ask = Drain { node, segment: None, wish: DrainWish::Move };
            let Some(stat) = master.drain_node(&ask) else {
                undo(master, &parts);
                return Err(NoJob::Gone(name));
            };
            parts.push(Part { name, node, stat });
        }
        book.last += 1;
        let number = book.last;
        let (created_ms, updated_ms) = (now_ms(), now_ms());
        let state = State::Running;
        let job = Job { parts, state, created_ms, updated_ms, message: String::new() };
        book.jobs.insert(number, job);
        Ok(number)
    }

    /// A job as it is now.
    pub(super) fn get(&self, master: &Master, number: u64) -> Option<Job> {
        let mut book = self.0.lock();
        let job = book.jobs.get_mut(&number)?;
        if job.state == State::Running {
            job.look(master);
        }
        Some(job.clone())
    }

    /// Ends a job: its nodes take values again. `None`: there is none; `Err`: it was over before.
    pub(super) fn cancel(&self, master: &Master, number: u64) -> Option<Result<Job, State>> {
        let mut book = self.0.lock();
        let job = book.jobs.get_mut(&number)?;
        job.look_once(master);
        if job.state != State::Running {
            return Some(Err(job.state));
        }
        undo(master, &job.parts);
        job.state = State::Canceled;
        job.updated_ms = now_ms();
        Some(Ok(job.clone()))
    }
}

impl Job {
    fn look_once(&mut self, master: &Master) {
        if self.state == State::Running {
            self.look(master);
        }
    }
}

fn undo(master: &Master, parts: &[Part]) {
    for part in parts {
        let ask = Drain { node: part.node, segment: None, wish: DrainWish::Undo };
        // A node that is gone takes its drain along.
        let _ = master.drain_node(&ask);
    }
}

fn now_ms() -> u64 {
    u64::from(wall_seconds()) * 1000
}
