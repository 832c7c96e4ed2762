//! Which bytes of a value were written, and what they add up to: the book of a put session.
//!
//! ```text
//!   value    [ slice 0                | slice 1                | slice 2 ]
//!   runs       ├──done──┤ ├─on its way─┤──────────┤ ├──done──┤
//! ```
//!
//! What must stay true: every byte is claimed once, before it moves. Runs that are done never cross the
//! border of a slice; neighbours inside of one become one, so a value that comes in order has one run
//! per slice.

use crate::error::SessionError;
use mooncrate_core::Seal;
use mooncrate_core::limits::SLICE_BYTES;
use mooncrate_core::plan::Striping;
use mooncrate_mem::crc::{combine, crc};
use std::collections::BTreeMap;

/// Runs that one session may have: more than any order of layers makes.
const RUNS_MAX: usize = 1 << 16;

/// The book of one value.
#[derive(Debug)]
pub(crate) struct Runs {
    len: u64,
    /// By their first bytes.
    runs: BTreeMap<u64, Run>,
}

#[derive(Clone, Copy, Debug)]
struct Run {
    end: u64,
    /// The checksum; `None`: the bytes are on their way.
    sum: Option<u64>,
}

impl Runs {
    pub(crate) fn new(len: u64) -> Self {
        Self { len, runs: BTreeMap::new() }
    }

    /// Claims bytes that are about to be written.
    pub(crate) fn claim(&mut self, start: u64, bytes: u64) -> Result<(), SessionError> {
        let end = match start.checked_add(bytes) {
            Some(end) if end <= self.len => end,
            _ => return Err(SessionError::OutOfRange { start, bytes, len: self.len }),
        };
        if bytes == 0 {
            return Ok(());
        }
        // The last run that begins before our end is the only one that can reach into us.
        if let Some((&first, run)) = self.runs.range(..end).next_back()
            && run.end > start
        {
            let (start, end) = (start.max(first), end.min(run.end));
            return Err(SessionError::Overlap { start, end });
        }
        if self.runs.len() >= RUNS_MAX {
            return Err(SessionError::Scattered { runs: RUNS_MAX });
        }
        self.runs.insert(start, Run { end, sum: None });
        Ok(())
    }

    /// Claims parts, by start and bytes: all of them or none.
    pub(crate) fn claim_all(
        &mut self,
        parts: impl Iterator<Item = (u64, u64)>,
    ) -> Result<(), SessionError> {
        let mut claimed = Vec::new();
        for (start, bytes) in parts {
            if let Err(error) = self.claim(start, bytes) {
                for start in claimed {
                    self.runs.remove(&start);
                }
                return Err(error);
            }
            if bytes > 0 {
                claimed.push(start);
            }
        }
        Ok(())
    }

    /// The bytes that were claimed at `start` are in place; `sums` are those of their slices.
    pub(crate) fn done(&mut self, start: u64, sums: &[(u64, u64)]) {
        if sums.is_empty() {
            // Nothing was claimed; another run may begin here.
            return;
        }
        self.runs.remove(&start);
        let mut at = start;
        for &(bytes, sum) in sums {
            self.insert(at, at + bytes, sum);
            at += bytes;
        }
    }

    /// Adds a run that lies in one slice, and joins it with its neighbours there.
    fn insert(&mut self, mut start: u64, mut end: u64, mut sum: u64) {
        if !start.is_multiple_of(SLICE_BYTES)
            && let Some((&before, &Run { end: border, sum: Some(first) })) =
                self.runs.range(..start).next_back()
            && border == start
        {
            sum = combine(first, sum, end - start);
            start = before;
        }
        if !end.is_multiple_of(SLICE_BYTES)
            && let Some(&Run { end: after, sum: Some(second) }) = self.runs.get(&end)
        {
            sum = combine(sum, second, after - end);
            self.runs.remove(&end);
            end = after;
        }
        self.runs.insert(start, Run { end, sum: Some(sum) });
    }

    /// The seals of all stripes, once every byte is in place; otherwise where the first gap is.
    pub(crate) fn seals(&self, striping: Striping) -> Result<Vec<Seal>, SessionError> {
        let mut at = 0;
        let mut sums = Vec::with_capacity(self.runs.len());
        for (&start, run) in &self.runs {
            match run.sum {
                Some(sum) if start == at => sums.push(sum),
                Some(_) => return Err(SessionError::Gap { start: at, end: start }),
                None => return Err(SessionError::Gap { start: at, end: run.end }),
            }
            at = run.end;
        }
        if at < self.len {
            return Err(SessionError::Gap { start: at, end: self.len });
        }
        // Stripes are cut where slices are.
        let mut sums = sums.into_iter();
        let stripes = 0..striping.stripes() as u8;
        Ok(stripes
            .map(|stripe| {
                let len = striping.stripe_len(stripe);
                let slices = len.div_ceil(SLICE_BYTES) as usize;
                Seal::over(len, sums.by_ref().take(slices))
            })
            .collect())
    }
}

/// Lengths and checksums of a part that starts at `start`, cut where the slices are.
pub(crate) fn sums(start: u64, part: &[u8]) -> Vec<(u64, u64)> {
    let first = (SLICE_BYTES - start % SLICE_BYTES).min(part.len() as u64);
    let (head, rest) = part.split_at(first as usize);
    let slices = std::iter::once(head).chain(rest.chunks(SLICE_BYTES as usize));
    slices.filter(|s| !s.is_empty()).map(|s| (s.len() as u64, crc(s))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use mooncrate_core::rng::Rng;
    use mooncrate_mem::sums::seal_of;

    fn write(runs: &mut Runs, value: &[u8], start: usize, end: usize) -> Result<(), SessionError> {
        runs.claim(start as u64, (end - start) as u64)?;
        runs.done(start as u64, &sums(start as u64, &value[start..end]));
        Ok(())
    }

    /// Any cut, in any order, has the seal of the whole.
    #[test]
    fn parts_in_any_order_have_the_seal_of_the_whole() {
        let mut rng = Rng::new(5);
        for len in [0, 1, 5000, 1 << 20, (1 << 20) + 1, 3_500_000] {
            let value: Vec<u8> = (0..len).map(|_| rng.next() as u8).collect();
            for pieces in [1, 2, 7, 40] {
                let mut cuts: Vec<usize> =
                    (0..pieces).map(|_| rng.below(len as u64 + 1) as usize).collect();
                cuts.extend([0, len]);
                cuts.sort_unstable();
                let mut parts: Vec<(usize, usize)> =
                    cuts.windows(2).map(|pair| (pair[0], pair[1])).collect();
                for at in (1..parts.len()).rev() {
                    parts.swap(at, rng.below(at as u64 + 1) as usize);
                }
                let mut runs = Runs::new(len as u64);
                for (start, end) in parts {
                    write(&mut runs, &value, start, end).unwrap();
                }
                let whole = Striping::whole(len as u64);
                assert_eq!(runs.seals(whole), Ok(vec![seal_of(&value)]));
                assert!(runs.runs.len() <= (len >> 20) + 1, "neighbours are joined");
                if let Some(striping) = Striping::checked(len as u64, 1 << 20) {
                    let each: Vec<Seal> = value.chunks(1 << 20).map(seal_of).collect();
                    assert_eq!(runs.seals(striping), Ok(each));
                }
            }
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let value = vec![7; 100];
        let mut runs = Runs::new(100);
        let whole = Striping::whole(100);
        write(&mut runs, &value, 20, 40).unwrap();
        for (from, to, start, end) in
            [(0, 21, 20, 21), (39, 50, 39, 40), (0, 100, 20, 40), (25, 30, 25, 30)]
        {
            let overlap = Err(SessionError::Overlap { start, end });
            assert_eq!(write(&mut runs, &value, from, to), overlap, "{from}..{to}");
        }
        let outside = SessionError::OutOfRange { start: 90, bytes: 11, len: 100 };
        assert_eq!(runs.claim(90, 11), Err(outside));
        assert!(runs.claim(u64::MAX, 2).is_err());
        assert_eq!(runs.seals(whole), Err(SessionError::Gap { start: 0, end: 20 }));
        write(&mut runs, &value, 0, 20).unwrap();
        assert_eq!(runs.seals(whole), Err(SessionError::Gap { start: 40, end: 100 }));
        runs.claim(40, 60).unwrap();
        assert_eq!(runs.seals(whole), Err(SessionError::Gap { start: 40, end: 100 }), "on its way");
        runs.done(40, &sums(40, &value[40..]));
        assert_eq!(runs.seals(whole), Ok(vec![seal_of(&value)]));
    }

    #[test]
    fn parts_are_claimed_together_or_not_at_all() {
        let mut runs = Runs::new(200);
        let claimed = runs.claim_all([(0, 100), (0, 0), (150, 100)].into_iter());
        assert!(matches!(claimed, Err(SessionError::OutOfRange { start: 150, .. })));
        let claimed = runs.claim_all([(0, 100), (50, 10)].into_iter());
        assert!(matches!(claimed, Err(SessionError::Overlap { start: 50, end: 60 })));
        assert!(runs.runs.is_empty());
        runs.claim_all([(100, 100), (0, 100)].into_iter()).unwrap();
        assert!(runs.claim(0, 1).is_err());
    }
}
