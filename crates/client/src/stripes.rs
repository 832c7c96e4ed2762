//! Stripes: the parts of a large value that travel at the same time.

use mooncrate_core::key::Key;
use mooncrate_core::plan::{Locator, PutConfig, WritePlan};
use mooncrate_core::{SegmentId, TenantId};
use mooncrate_lock::interrupt::Team;
use mooncrate_rt as rt;
use mooncrate_transfer::Write;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Parts shorter than this are not worth a thread each.
pub(crate) const PARALLEL_BYTES_MIN: u64 = 1 << 20;

/// One stripe of a value on its way out: its pieces, and the label that its owner keeps.
pub(crate) struct Part<'a> {
    pieces: Vec<&'a [u8]>,
    label: Vec<u8>,
}

impl<'a> Part<'a> {
    pub(crate) fn new(
        tenant: TenantId,
        key: &[u8],
        value: &[&'a [u8]],
        plan: &WritePlan,
        config: &PutConfig,
        stripe: u8,
    ) -> Self {
        let key = Key::new(key).expect("the master planned it, so it is a key");
        let (start, len) = (plan.striping.start(stripe), plan.striping.stripe_len(stripe));
        let label = config.label(tenant, key, plan.striping, stripe).encode();
        Self { pieces: cut(value, start, len), label }
    }

    pub(crate) fn write(&'a self, plan: &WritePlan, locator: Locator) -> Write<'a> {
        Write {
            locator,
            token: plan.token,
            object: plan.object,
            epoch: plan.epoch,
            label: &self.label,
            value: &self.pieces,
        }
    }
}

/// Writes to one segment that travel over one link.
pub(crate) struct Lane<'a> {
    /// Which job each of them is.
    pub(crate) jobs: Vec<usize>,
    pub(crate) writes: Vec<Write<'a>>,
}

impl Lane<'_> {
    /// Whose segment it is; a lane has a write at least.
    pub(crate) fn owner(&self) -> &Locator {
        &self.writes[0].locator
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.writes.iter().map(Write::len).sum()
    }
}

/// Deals writes, with their numbers, to lanes: those of one segment share one, unless they are large enough
/// for several of the `most` that there may be. Every segment has one of its own, so that an owner that
/// stands still holds nobody else up.
pub(crate) fn lanes<'a>(writes: Vec<(usize, Write<'a>)>, most: usize) -> Vec<Lane<'a>> {
    let mut segments: BTreeMap<SegmentId, Vec<(usize, Write<'a>)>> = BTreeMap::new();
    for (job, write) in writes {
        segments.entry(write.locator.segment).or_default().push((job, write));
    }
    let each = (most / segments.len().max(1)).max(1);
    let mut lanes = Vec::with_capacity(segments.len());
    for writes in segments.into_values() {
        let bytes: u64 = writes.iter().map(|(_, write)| write.len()).sum();
        let worth = usize::try_from(bytes / PARALLEL_BYTES_MIN).unwrap_or(usize::MAX).max(1);
        let count = each.min(worth).min(writes.len());
        let first = lanes.len();
        lanes.extend((0..count).map(|_| Lane { jobs: Vec::new(), writes: Vec::new() }));
        for (at, (job, write)) in writes.into_iter().enumerate() {
            let lane: &mut Lane<'a> = &mut lanes[first + at % count];
            lane.jobs.push(job);
            lane.writes.push(write);
        }
    }
    lanes
}

/// The `len` bytes from `start` on of a value that lies in pieces.
fn cut<'a>(value: &[&'a [u8]], mut start: u64, mut len: u64) -> Vec<&'a [u8]> {
    let mut pieces = Vec::with_capacity(value.len());
    for piece in value {
        let skip = start.min(piece.len() as u64);
        let rest = &piece[skip as usize..];
        let take = len.min(rest.len() as u64);
        if take > 0 {
            pieces.push(&rest[..take as usize]);
        }
        (start, len) = (start - skip, len - take);
    }
    pieces
}

/// Works on all items, at most `most` at a time, each on a thread of its own; results in their order.
pub(crate) fn in_parallel<T: Sync, R: Send>(
    items: &[T],
    most: usize,
    work: impl Fn(&T) -> R + Sync,
) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let worker = || {
        let mut done = Vec::new();
        loop {
            // Relaxed: only the number matters; the results are handed over by the join.
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(at) else { return done };
            done.push((at, work(item)));
        }
    };
    let threads = items.len().min(most.max(1)).min(rt::helpers().saturating_add(1));
    let team = Team::new();
    let mut all: Vec<(usize, R)> = std::thread::scope(|scope| {
        let other = |_| {
            let helper = team.helper();
            scope.spawn(move || helper.work(worker))
        };
        let others: Vec<_> = (1..threads).map(other).collect();
        let mut all = worker();
        team.wait();
        for other in others {
            all.extend(other.join().expect("the work does not panic"));
        }
        all
    });
    all.sort_by_key(|(at, _)| *at);
    all.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn pieces_are_cut_where_the_stripes_are() {
        let value: [&[u8]; 4] = [b"abc", b"", b"defgh", b"i"];
        for start in 0..=9 {
            for len in 0..=9 - start {
                let whole = value.concat();
                let want = &whole[start..start + len];
                assert_eq!(cut(&value, start as u64, len as u64).concat(), want);
            }
        }
    }

    /// The caller has done its own share, and those of the others would take an hour.
    #[test]
    fn other_threads_end_with_a_caller_that_is_interrupted() {
        use mooncrate_lock::interrupt;
        let items = [Duration::ZERO, Duration::from_hours(1), Duration::from_hours(1)];
        let (slept, over) =
            interrupt::under(|_| true, || in_parallel(&items, 3, |time| interrupt::sleep(*time)));
        assert!(over);
        assert_eq!(slept[1..], [true, true]);
    }

    #[test]
    fn results_stand_in_the_order_of_the_items() {
        let items: Vec<usize> = (0..100).collect();
        for most in [0, 1, 3, 200] {
            assert_eq!(
                in_parallel(&items, most, |n| n * n),
                (0..100).map(|n| n * n).collect::<Vec<_>>()
            );
        }
        assert!(in_parallel(&[] as &[u8], 4, |_| ()).is_empty());
    }
}
