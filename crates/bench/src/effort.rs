//! How long to try, and on how much data.

use crate::args::Arguments;
use crate::cores::Allowed;
use crate::render::{bytes, count};
use anyhow::Result;
use std::time::Duration;

/// How much is measured.
#[derive(Clone, Debug)]
pub(crate) struct Effort {
    /// Rounds of each floor and each subject.
    pub(crate) rounds: usize,
    /// Time inside calls per round.
    pub(crate) lap: Duration,
    /// Calls of a round, if its time is over sooner.
    pub(crate) calls_min: u64,
    /// Sizes of values.
    pub(crate) value_bytes: &'static [u64],
    /// Bytes that values rotate over, so that no cache holds them.
    pub(crate) working_set: u64,
    /// Values that they rotate over at most; small ones would take too long to fill.
    pub(crate) values_max: u64,
    /// Objects in the indexes that are compared; the first is the floor of the others.
    pub(crate) index_objects: &'static [u64],
    /// Where things may run.
    pub(crate) cores: Allowed,
}

const SIZES: &[u64] = &[4 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20];

impl Effort {
    pub(crate) fn of(arguments: &Arguments) -> Result<Self> {
        let effort = if arguments.smoke {
            Self::smoke()
        } else if arguments.quick {
            Self::quick()
        } else {
            Self::full()
        };
        let cores = if arguments.any_core { Allowed::default() } else { Allowed::read()? };
        Ok(Self { cores, ..effort })
    }

    fn full() -> Self {
        Self {
            // Many short rounds: a neighbour spoils some of them, and the median leaves those out.
            rounds: 25,
            lap: Duration::from_millis(50),
            calls_min: 8,
            value_bytes: SIZES,
            // Larger than the last-level caches of the machines that we have seen.
            working_set: 512 << 20,
            values_max: 1 << 16,
            index_objects: &[10_000, 1_000_000, 10_000_000],
            cores: Allowed::default(),
        }
    }

    fn quick() -> Self {
        Self {
            rounds: 5,
            lap: Duration::from_millis(12),
            calls_min: 4,
            value_bytes: SIZES,
            working_set: 64 << 20,
            values_max: 1 << 12,
            index_objects: &[10_000, 1_000_000],
            cores: Allowed::default(),
        }
    }

    /// Just enough to walk through every line.
    pub(crate) fn smoke() -> Self {
        Self {
            rounds: 2,
            lap: Duration::from_millis(2),
            calls_min: 2,
            value_bytes: &[4 << 10, 1 << 20],
            working_set: 4 << 20,
            values_max: 64,
            index_objects: &[500, 2000],
            cores: Allowed::default(),
        }
    }

    /// Distinct values of one size.
    pub(crate) fn values(&self, value_bytes: u64) -> usize {
        // Two at least: a single one would be hot.
        (self.working_set / value_bytes).clamp(2, self.values_max.max(2)) as usize
    }

    /// Bytes that hold the values of every size.
    pub(crate) fn pool_bytes(&self) -> usize {
        let most = self.value_bytes.iter().map(|size| *size as usize * self.values(*size)).max();
        most.unwrap_or(0)
    }

    /// For the head of a report.
    pub(crate) fn describe(&self) -> String {
        format!(
            "{} rounds of {} ms per figure, floor and subject in turn; values rotate over {} (at \
             most {} values)",
            self.rounds,
            self.lap.as_millis(),
            bytes(self.working_set),
            count(self.values_max),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pools_hold_the_values_of_every_size() {
        for effort in [Effort::full(), Effort::quick(), Effort::smoke()] {
            for &size in effort.value_bytes {
                assert!(effort.values(size) >= 2);
                assert!(effort.values(size) * size as usize <= effort.pool_bytes());
            }
        }
        assert_eq!(Effort::full().values(1 << 20), 512);
    }
}
