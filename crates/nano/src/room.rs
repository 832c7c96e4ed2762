//! How full the heaps are, as their master knows, and making room in them.

use crate::cache::{Nano, segment_of};
use crate::error::NanoError;
use mooncrate_core::SegmentId;
use mooncrate_core::catalog::InUse;
use mooncrate_heap::Rank;
use mooncrate_lock::interrupt;
use mooncrate_mem::clock::boottime;
use mooncrate_wire::message::Evict;

/// What is in the heap of one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes of values and open plans.
    pub bytes_used: u64,
    /// Bytes that values may use.
    pub bytes_total: u64,
    /// Values and open plans.
    pub ready_count: u64,
}

impl Nano {
    /// What is in each heap, by rank. A rank that is gone has nothing.
    pub fn usage(&self) -> Result<Vec<Usage>, NanoError> {
        let rows = self.shared().master.stat(self.shared().deadline())?.segments;
        let of = |rank: Rank| {
            let row = rows.iter().find(|row| row.offer.segment == self.segment(rank));
            row.map_or_else(Usage::default, |row| Usage {
                bytes_used: row.used_bytes,
                bytes_total: row.offer.bytes,
                ready_count: row.objects,
            })
        };
        Ok(self.reach().heap().world().ranks().map(of).collect())
    }

    /// Evicts, first in first out, until at most this share of the heap of `rank` is in use, or of all heaps.
    /// What is pinned or being written stays: with too much of it, the call fails when its time is over.
    pub fn evict_until_below(&self, ratio: f64, rank: Option<usize>) -> Result<(), NanoError> {
        if !(0.0..=1.0).contains(&ratio) {
            return Err(NanoError::BadRatio { ratio });
        }
        let world = self.reach().heap().world();
        let ranks = match rank {
            None => world.ranks().collect(),
            Some(wanted) => {
                let rank = world.rank(wanted);
                vec![rank.ok_or(NanoError::BadRank { wanted, world: world.len() })?]
            }
        };
        let until = self.shared().deadline();
        for rank in ranks {
            let used_max = share(self.shared().layout.payload().len(), ratio);
            let ask = Evict { segment: self.segment(rank), used_max };
            loop {
                // A rank that is gone uses nothing.
                let within = self.shared().deadline();
                let left = self.shared().master.evict(&ask, within)?.unwrap_or_default();
                let InUse { used_bytes, ending_bytes } = left;
                if used_bytes + ending_bytes <= used_max {
                    break;
                }
                if until.passed(boottime()) || interrupt::sleep(self.shared().config.tick) {
                    return Err(NanoError::InUse { rank, used_bytes, ending_bytes, used_max });
                }
            }
        }
        Ok(())
    }

    fn segment(&self, rank: Rank) -> SegmentId {
        segment_of(self.reach().medium(), rank)
    }
}

/// That part of a heap.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a ratio from 0 to 1 of a heap: a byte more or less does not matter"
)]
fn share(bytes: u64, ratio: f64) -> u64 {
    (bytes as f64 * ratio) as u64
}
