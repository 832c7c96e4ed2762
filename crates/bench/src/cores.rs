//! Who runs where. A round trip whose two ends wake each other across cores and one within a core
//! cost very differently, and the scheduler's choice sticks: a floor and its subject could differ by
//! their luck alone. So the bench chooses, for plain programs and for servers alike.
//!
//! Across cores the waking costs most, which hides what a server adds to it; within one core nothing
//! is hidden. Neither is the truth, so control calls are shown with both, and where one must do it is
//! the one that hides less.

use anyhow::{Context, Result};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The cores that the bench may use; none: the scheduler is free.
#[derive(Clone, Debug, Default)]
pub(crate) struct Allowed(Vec<usize>);

impl Allowed {
    /// All cores that this process has now.
    pub(crate) fn read() -> Result<Self> {
        let set = sched_getaffinity(None).context("cannot see which cores there are")?;
        Ok(Self((0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect()))
    }

    /// The bench on the first half, its peers on the other.
    pub(crate) fn apart(&self) -> Placement {
        if self.0.len() < 2 {
            return self.anywhere();
        }
        let (ours, peers) = self.0.split_at(self.0.len() / 2);
        Placement { name: "apart", sets: Some((set(ours), set(peers))) }
    }

    /// The bench and its peers on the same core.
    pub(crate) fn together(&self) -> Placement {
        match self.0.first() {
            Some(core) => {
                Placement { name: "one core", sets: Some((set(&[*core]), set(&[*core]))) }
            }
            None => self.anywhere(),
        }
    }

    /// Each placement that differs from the others.
    pub(crate) fn placements(&self) -> Vec<Placement> {
        match self.0.len() {
            0 => vec![self.anywhere()],
            1 => vec![self.together()],
            _ => vec![self.together(), self.apart()],
        }
    }

    #[expect(clippy::unused_self, reason = "one of the choices that it offers")]
    fn anywhere(&self) -> Placement {
        Placement { name: "any core", sets: None }
    }
}

fn set(cores: &[usize]) -> CpuSet {
    let mut set = CpuSet::new();
    for core in cores {
        set.set(*core);
    }
    set
}

/// Where the bench and its peers run.
#[derive(Clone, Debug)]
pub(crate) struct Placement {
    /// For the tables.
    pub(crate) name: &'static str,
    /// Ours, and the peers'.
    sets: Option<(CpuSet, CpuSet)>,
}

impl Placement {
    /// Moves this thread, and those that it will start, to where the bench runs.
    pub(crate) fn enter(&self) -> Result<()> {
        self.sets.map_or(Ok(()), |(ours, _)| pin(&ours))
    }

    /// Does something that starts a process, which then runs where the peers do.
    pub(crate) fn for_peer<T>(&self, start: impl FnOnce() -> T) -> Result<T> {
        let Some((ours, peers)) = self.sets else { return Ok(start()) };
        pin(&peers)?;
        let started = start();
        pin(&ours)?;
        Ok(started)
    }
}

fn pin(set: &CpuSet) -> Result<()> {
    sched_setaffinity(None, set).context("cannot choose cores")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_share_no_core_and_leave_none_out() {
        let allowed = Allowed(vec![0, 3, 5, 9, 11]);
        let (ours, peers) = allowed.apart().sets.unwrap();
        assert_eq!((ours.count(), peers.count()), (2, 3));
        for core in [0, 3, 5, 9, 11] {
            assert!(ours.is_set(core) != peers.is_set(core), "{core}");
        }
        let (ours, peers) = allowed.together().sets.unwrap();
        assert!(ours == peers && ours.count() == 1 && ours.is_set(0));
    }

    #[test]
    fn placements_differ_where_they_can() {
        let names = |cores: &[usize]| -> Vec<&str> {
            Allowed(cores.to_vec()).placements().iter().map(|p| p.name).collect()
        };
        assert_eq!(names(&[]), ["any core"]);
        assert_eq!(names(&[4]), ["one core"]);
        assert_eq!(names(&[4, 5]), ["one core", "apart"]);
    }

    #[test]
    fn a_peer_starts_on_its_cores_and_we_come_back() {
        let before = sched_getaffinity(None).unwrap();
        let allowed = Allowed::read().unwrap();
        let apart = allowed.apart();
        apart.enter().unwrap();
        let there = apart.for_peer(|| sched_getaffinity(None).unwrap()).unwrap();
        let here = sched_getaffinity(None).unwrap();
        if let Some((ours, peers)) = apart.sets {
            assert!(here == ours && there == peers);
        }
        pin(&before).unwrap();
    }
}
