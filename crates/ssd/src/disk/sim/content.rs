//! The bytes of one simulated file: as reads see them, and as a crash may leave them.
//!
//! A write goes to `seen` and leaves behind what was there before. A sync forgets that; a crash picks, for
//! each sector, one of the versions since the last sync. Bytes that reads see although they never reach the
//! disk (a sync that failed, a write that was lost) are **ghosts**: a crash takes them back, whatever was
//! synced since.
//!
//! What must stay true: ghosts do not overlap each other, nor what was written after them; what was synced
//! without an error, and is no ghost, survives every crash.

use super::SECTOR;
use mooncrate_core::rng::Rng;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

/// Versions that stale reads can return.
const PAST_MAX: usize = 4;
/// Bytes of the largest version that is kept for stale reads.
const PAST_BYTES_MAX: usize = 64 << 10;
/// Writes without a sync after which the older half counts as written, as a kernel would in its time.
const UNDO_MAX: usize = 4096;

/// What lay somewhere before it was overwritten or cut off.
#[derive(Clone, Debug)]
struct Before {
    at: u64,
    bytes: Vec<u8>,
    /// For bytes that were cut off: the place of the new length in `lens`.
    cut: Option<usize>,
}

impl Before {
    fn range(&self) -> Range<u64> {
        self.at..self.at + self.bytes.len() as u64
    }
}

/// What a crash took back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Torn {
    pub(super) sectors: u64,
    pub(super) length: bool,
}

/// The bytes of a file.
#[derive(Clone, Debug)]
pub(super) struct Content {
    seen: Vec<u8>,
    /// Since the last sync, oldest first.
    undo: Vec<Before>,
    ghosts: Vec<Before>,
    /// Overwritten and synced, newest last.
    past: VecDeque<Before>,
    /// Lengths since the last sync; the first one is on the disk.
    lens: Vec<u64>,
}

impl Content {
    pub(super) fn new() -> Self {
        Self {
            seen: Vec::new(),
            undo: Vec::new(),
            ghosts: Vec::new(),
            past: VecDeque::new(),
            lens: vec![0],
        }
    }

    pub(super) fn len(&self) -> u64 {
        self.seen.len() as u64
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.seen
    }

    pub(super) fn flip(&mut self, byte: u64, bit: u32) {
        self.seen[byte as usize] ^= 1 << bit;
    }

    /// Cuts, or extends with zeros.
    pub(super) fn set_len(&mut self, len: u64) {
        if len == self.len() {
            return;
        }
        self.lens.push(len);
        if len < self.len() {
            let mut bytes = self.seen.split_off(len as usize);
            self.lay_ghosts(len, &mut bytes);
            let cut = Some(self.lens.len() - 1);
            self.undo.push(Before { at: len, bytes, cut });
        } else {
            self.seen.resize(len as usize, 0);
        }
        self.write_back();
    }

    /// Overwrites; the file grows where it must.
    pub(super) fn write(&mut self, at: u64, bytes: &[u8]) {
        let before = self.overwrite(at, bytes);
        self.undo.push(before);
        self.write_back();
    }

    /// Overwrites for readers only: the disk never hears of it.
    pub(super) fn write_ghost(&mut self, at: u64, bytes: &[u8]) {
        let before = self.overwrite(at, bytes);
        self.ghosts.push(before);
    }

    fn overwrite(&mut self, at: u64, bytes: &[u8]) -> Before {
        let end = at + bytes.len() as u64;
        if end > self.len() {
            self.set_len(end);
        }
        let place = &mut self.seen[at as usize..end as usize];
        let mut before = place.to_vec();
        place.copy_from_slice(bytes);
        self.lay_ghosts(at, &mut before);
        Before { at, bytes: before, cut: None }
    }

    /// Ends the ghosts in a range and puts what they hide into `bytes`, so that taking a write back leads to
    /// what is on the disk and not to a ghost.
    fn lay_ghosts(&mut self, at: u64, bytes: &mut [u8]) {
        if self.ghosts.is_empty() {
            return;
        }
        let range = at..at + bytes.len() as u64;
        for ghost in std::mem::take(&mut self.ghosts) {
            let both = meet(&ghost.range(), &range);
            if both.is_empty() {
                self.ghosts.push(ghost);
                continue;
            }
            let part = |part: Range<u64>| {
                let from = (part.start - ghost.at) as usize;
                ghost.bytes[from..from + (part.end - part.start) as usize].to_vec()
            };
            bytes[(both.start - at) as usize..(both.end - at) as usize]
                .copy_from_slice(&part(both.clone()));
            for rest in [ghost.at..both.start, both.end..ghost.range().end] {
                if !rest.is_empty() {
                    let bytes = part(rest.clone());
                    self.ghosts.push(Before { at: rest.start, bytes, cut: None });
                }
            }
        }
    }

    /// Everything that is no ghost is on the disk.
    pub(super) fn sync(&mut self) {
        let synced = std::mem::take(&mut self.undo);
        self.forget(synced);
        self.lens = vec![self.len()];
    }

    /// Some of it is on the disk; the rest looks as if it were.
    pub(super) fn sync_badly(&mut self, rng: &mut Rng) {
        for before in std::mem::take(&mut self.undo) {
            let mut old = before.bytes.clone();
            self.lay_ghosts(before.at, &mut old);
            if before.cut.is_none() && rng.chance(600) {
                self.ghosts.push(Before { at: before.at, bytes: old, cut: None });
            }
        }
        // The length is in the file system's journal, which goes its own way.
        if rng.chance(500) {
            self.lens = vec![self.len()];
        } else {
            self.lens = vec![self.lens[0], self.len()];
        }
    }

    fn write_back(&mut self) {
        if self.undo.len() > UNDO_MAX {
            let older: Vec<Before> = self.undo.drain(..UNDO_MAX / 2).collect();
            // A cut among them is done as well, so the lengths before it are no longer possible.
            if let Some(cut) = older.iter().filter_map(|before| before.cut).max() {
                self.lens.drain(..cut);
                for before in &mut self.undo {
                    before.cut = before.cut.map(|at| at - cut);
                }
            }
            self.forget(older);
        }
    }

    fn forget(&mut self, synced: Vec<Before>) {
        for before in synced {
            if before.cut.is_none() && before.bytes.len() <= PAST_BYTES_MAX {
                self.past.push_back(before);
            }
        }
        while self.past.len() > PAST_MAX {
            self.past.pop_front();
        }
    }

    /// Puts what was there before over what was read; `false`: nothing else is remembered.
    pub(super) fn read_stale(&self, at: u64, into: &mut [u8]) -> bool {
        let range = at..at + into.len() as u64;
        let mut stale = false;
        // Oldest last: it wins.
        for before in self.undo.iter().rev().chain(self.past.iter().rev()) {
            let both = meet(&before.range(), &range);
            if both.is_empty() {
                continue;
            }
            let from = (both.start - before.at) as usize;
            let old = &before.bytes[from..from + (both.end - both.start) as usize];
            let place = &mut into[(both.start - at) as usize..(both.end - at) as usize];
            stale |= place != old;
            place.copy_from_slice(old);
        }
        stale
    }

    /// The file as the next start finds it.
    pub(super) fn crash(mut self, rng: &mut Rng) -> (Self, Torn) {
        let mut torn = Torn::default();
        let last = self.lens.len() - 1;
        let len_at = match rng.below(3) {
            0 => 0,
            1 => last,
            _ => rng.below(self.lens.len() as u64) as usize,
        };
        torn.length = self.lens[len_at] != self.len();
        let longest = self.lens.iter().copied().max().unwrap_or(0).max(self.len());
        self.seen.resize(longest as usize, 0);
        for ghost in std::mem::take(&mut self.ghosts) {
            self.put_back(&ghost, ghost.range());
            torn.sectors += 1;
        }
        let picks = self.pick_versions(rng);
        for (at, before) in std::mem::take(&mut self.undo).iter().enumerate().rev() {
            if let Some(cut) = before.cut {
                if len_at < cut {
                    self.put_back(before, before.range());
                }
                continue;
            }
            for sector in sectors(&before.range()) {
                if picks.get(&sector).is_some_and(|pick| at >= *pick) {
                    let bytes = sector * SECTOR..(sector + 1) * SECTOR;
                    self.put_back(before, meet(&bytes, &before.range()));
                    torn.sectors += 1;
                }
            }
        }
        self.seen.truncate(self.lens[len_at] as usize);
        self.seen.resize(self.lens[len_at] as usize, 0);
        let found = Self { seen: self.seen, ..Self::new() };
        let len = found.len();
        (Self { lens: vec![len], ..found }, torn)
    }

    /// From which write on each sector is taken back.
    fn pick_versions(&self, rng: &mut Rng) -> BTreeMap<u64, usize> {
        let mut writes: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
        for (at, before) in self.undo.iter().enumerate().filter(|(_, before)| before.cut.is_none())
        {
            for sector in sectors(&before.range()) {
                writes.entry(sector).or_default().push(at);
            }
        }
        // All of it arrived, nothing did, or each sector for itself.
        let keep = match rng.below(4) {
            0 => 1000,
            1 => 0,
            _ => rng.below(1000) as u32,
        };
        let mut picks = BTreeMap::new();
        for (sector, writes) in writes {
            if !rng.chance(keep) {
                picks.insert(sector, writes[rng.below(writes.len() as u64) as usize]);
            }
        }
        picks
    }

    fn put_back(&mut self, before: &Before, range: Range<u64>) {
        let end = range.end.min(self.len());
        if range.start >= end {
            return;
        }
        let from = (range.start - before.at) as usize;
        let len = (end - range.start) as usize;
        self.seen[range.start as usize..end as usize]
            .copy_from_slice(&before.bytes[from..from + len]);
    }
}

fn meet(a: &Range<u64>, b: &Range<u64>) -> Range<u64> {
    a.start.max(b.start)..a.end.min(b.end)
}

fn sectors(range: &Range<u64>) -> Range<u64> {
    range.start / SECTOR..range.end.div_ceil(SECTOR)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crashes(content: &Content) -> Vec<Vec<u8>> {
        (0..200).map(|seed| content.clone().crash(&mut Rng::new(seed)).0.seen).collect()
    }

    #[test]
    fn what_is_synced_survives_and_the_rest_tears_by_sector() {
        let mut content = Content::new();
        content.write(0, &[1; 2048]);
        content.sync();
        content.write(512, &[2; 1024]);
        let found = crashes(&content);
        for bytes in &found {
            assert_eq!(
                (bytes.len(), &bytes[..512], &bytes[1536..]),
                (2048, &[1; 512][..], &[1; 512][..])
            );
            for sector in [&bytes[512..1024], &bytes[1024..1536]] {
                assert!(sector == [1; 512] || sector == [2; 512]);
            }
        }
        // Every combination occurs.
        for (first, second) in [(1, 1), (1, 2), (2, 1), (2, 2)] {
            assert!(found.iter().any(|b| (b[512], b[1024]) == (first, second)), "{first} {second}");
        }
    }

    #[test]
    fn older_versions_of_a_sector_can_come_back() {
        let mut content = Content::new();
        content.write(0, &[1; 512]);
        content.sync();
        content.write(0, &[2; 512]);
        content.write(0, &[3; 512]);
        let found = crashes(&content);
        for version in 1..=3 {
            assert!(found.iter().any(|bytes| *bytes == [version; 512]), "{version}");
        }
    }

    #[test]
    fn a_file_that_was_never_synced_may_be_short_or_hold_zeros() {
        let mut content = Content::new();
        content.write(0, &[1; 1024]);
        let found = crashes(&content);
        assert!(found.iter().any(Vec::is_empty));
        assert!(found.iter().any(|bytes| *bytes == [1; 1024]));
        assert!(found.iter().any(|bytes| bytes.len() == 1024 && bytes.contains(&0)));
    }

    #[test]
    fn a_cut_that_was_not_synced_can_be_undone_whole() {
        let mut content = Content::new();
        content.write(0, &[1; 1000]);
        content.sync();
        content.set_len(100);
        let found = crashes(&content);
        assert!(found.iter().all(|bytes| *bytes == [1; 100] || *bytes == [1; 1000]));
        assert!(found.iter().any(|bytes| bytes.len() == 100));
        assert!(found.iter().any(|bytes| bytes.len() == 1000));
        content.sync();
        assert!(crashes(&content).iter().all(|bytes| bytes.len() == 100));
    }

    /// Proves what S12 is about: after a failed sync reads see the bytes, a later sync says that they are
    /// safe, and the crash shows that they are not.
    #[test]
    fn after_a_failed_sync_bytes_are_ghosts() {
        let mut gone = 0;
        for seed in 0..100 {
            let mut content = Content::new();
            content.write(0, &[1; 1024]);
            content.sync();
            content.write(256, &[2; 512]);
            content.sync_badly(&mut Rng::new(seed));
            assert_eq!(content.seen[256..768], [2; 512]);
            content.sync();
            // What is written over a ghost and synced is there; the rest of the ghost is not.
            content.write(300, &[3; 10]);
            content.sync();
            let (found, _) = content.crash(&mut Rng::new(seed));
            assert_eq!(found.seen[300..310], [3; 10]);
            let rest = [&found.seen[256..300], &found.seen[310..768]].concat();
            gone += u32::from(rest == [1; 502]);
            assert!(rest == [1; 502] || rest == [2; 502]);
        }
        assert!((1..100).contains(&gone), "{gone}");
    }

    #[test]
    fn stale_reads_give_what_was_there() {
        let mut content = Content::new();
        content.write(0, &[1; 100]);
        content.sync();
        content.write(10, &[2; 10]);
        let mut read = content.seen[0..30].to_vec();
        assert!(content.read_stale(0, &mut read));
        // The oldest that is remembered is the hole before the first write.
        assert_eq!(read, [0; 30]);
        assert!(!Content::new().read_stale(0, &mut []));
    }
}
