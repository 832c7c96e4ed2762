//! Stripes: the parts of a large value that travel at the same time.

use mooncrate_core::TenantId;
use mooncrate_core::key::Key;
use mooncrate_core::plan::{Locator, PutConfig, WritePlan};
use mooncrate_transfer::Write;
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
    let threads = items.len().min(most.max(1));
    let mut all: Vec<(usize, R)> = std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(worker)).collect();
        let mut all = worker();
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
