//! What one seed chooses: the backend and how small it is, what goes wrong, and what is done.

use crate::swarm::{between, pick};
use mooncrate_core::limits::SLICE_BYTES;
use mooncrate_core::rng::Rng;
use mooncrate_ssd::disk::sim::{BLOCK, Rates};

/// The choices of one seed.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct Swarm {
    /// The seed itself.
    pub seed: u64,
    /// Operations of all lives.
    pub ops: u64,
    /// Which backend, by its place in the list of them.
    pub backend: usize,
    /// Bytes that the backend may use.
    pub limit: u64,
    /// Bytes that the disk has.
    pub capacity: u64,
    /// Bytes and records of a bucket.
    pub bucket_bytes: u64,
    /// Records of a bucket.
    pub bucket_records: u32,
    /// Buckets that are written at a time.
    pub open_buckets: usize,
    /// Files that are held open.
    pub handles: usize,
    /// The bucket that was read least recently goes first, not the oldest.
    pub lru: bool,
    /// Values are verified when a directory is opened, not only heads.
    pub verify_values: bool,
    /// Threads that work at the same time.
    pub actors: usize,
    /// Steps at which another one goes on, in parts per thousand.
    pub switch: u32,
    /// What goes wrong, and whether also while a directory is opened.
    pub rates: Rates,
    /// Faults go on while a directory is opened.
    pub rates_in_open: bool,
    /// Largest usual value.
    pub value_max: u64,
    /// Values around the size of a slice occur.
    pub slices: bool,
    /// What actors do.
    pub load: Load,
    /// Operations of a life, about.
    pub life_ops: u64,
    /// How lives end, in parts per thousand: the rest is closed in peace.
    pub cut: u32,
    /// Killed, with what the kernel has not written yet still there.
    pub kill: u32,
}

/// What actors do, in shares.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Keep new records.
    pub keep: u64,
    /// Load records or parts of them.
    pub load: u64,
    /// Remove.
    pub remove: u64,
    /// Evict.
    pub evict: u64,
    /// Read everything and compare.
    pub scrub: u64,
    /// Of the evictions, in parts per thousand: taken back, because the master was not told.
    pub take_back: u32,
    /// Of the evictions, in parts per thousand: do not wait for readers.
    pub hasty: u32,
}

impl Swarm {
    /// The choices of a seed, for so many operations or about 2000.
    pub fn draw(seed: u64, ops: Option<u64>, backends: usize) -> Self {
        let rng = &mut Rng::stream(seed, "disk swarm");
        let own_ops = between(rng, 1_000, 3_000);
        let slices = rng.chance(60);
        let value_max = *pick(rng, &[300, 3_000, 9_000, 9_000, 40_000]);
        let bucket_bytes = *pick(rng, &[16 << 10, 64 << 10, 256 << 10, 1 << 20]);
        let roomy = if slices { 8 * SLICE_BYTES } else { 0 };
        let limit = (512 << 10) + rng.below(1 << 20) / BLOCK * BLOCK + 4 * bucket_bytes + roomy;
        // Mostly larger than the limit, with what files take beside their bytes; sometimes the disk is
        // full before the limit is reached.
        let full = rng.chance(150);
        let capacity = if full { limit * between(rng, 500, 1000) / 1000 } else { limit * 2 };
        Self {
            seed,
            ops: ops.unwrap_or(own_ops),
            backend: rng.below(backends as u64) as usize,
            limit,
            capacity,
            bucket_bytes,
            bucket_records: *pick(rng, &[2, 5, 20, 100]),
            open_buckets: between(rng, 1, 3) as usize,
            handles: *pick(rng, &[1, 2, 8, 64]),
            lru: rng.chance(500),
            verify_values: rng.chance(300),
            actors: *pick(rng, &[1, 2, 3, 4]),
            switch: *pick(rng, &[20, 100, 300, 700]),
            rates: draw_rates(rng),
            rates_in_open: rng.chance(200),
            value_max,
            slices,
            load: draw_load(rng),
            life_ops: *pick(rng, &[10, 40, 150, 600]),
            cut: between(rng, 200, 900) as u32,
            kill: 100,
        }
    }

    /// Bytes of a new value: the borders of lines, blocks and slices more often than the rest.
    pub fn value_len(&self, rng: &mut Rng) -> u64 {
        let (beside, blocks) = (rng.below(3), 1 + rng.below(3));
        let near = |border: u64| border + beside - 1;
        match rng.below(100) {
            0..4 => 0,
            4..8 => rng.below(64),
            8..18 => near(BLOCK * blocks),
            18..22 => near(self.bucket_bytes.min(64 << 10)),
            22..24 if self.slices => near(SLICE_BYTES * blocks.min(2)),
            _ => rng.below(self.value_max),
        }
    }
}

/// Half of the seeds are without harm: there, nothing excuses a loss.
fn draw_rates(rng: &mut Rng) -> Rates {
    let (errors, harm) = (rng.chance(500), rng.chance(400));
    let mut some = |on: bool, most: u64| {
        let (chosen, rate) = (rng.chance(500), rng.below(most) as u32);
        if on && chosen { rate } else { 0 }
    };
    Rates {
        read_error: some(errors, 20_000),
        write_error: some(errors, 20_000),
        sync_error: some(errors, 40_000),
        short: some(true, 100_000),
        flip: some(harm, 3_000),
        lost: some(harm, 6_000),
        misdirected: some(harm, 6_000),
        stale: some(harm, 6_000),
        slow: some(true, 10_000),
    }
}

fn draw_load(rng: &mut Rng) -> Load {
    Load {
        keep: between(rng, 20, 60),
        load: between(rng, 20, 100),
        remove: *pick(rng, &[0, 5, 20, 40]),
        evict: *pick(rng, &[0, 3, 8, 15]),
        scrub: *pick(rng, &[0, 1, 5]),
        take_back: *pick(rng, &[0, 200, 500]),
        hasty: *pick(rng, &[0, 200, 600]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_differ_repeat_and_are_often_without_harm() {
        let text = |seed| format!("{:?}", Swarm::draw(seed, None, 3));
        assert_eq!(text(7), text(7));
        assert_ne!(text(7), text(8));
        let harmless = |seed: &u64| {
            let rates = Swarm::draw(*seed, None, 3).rates;
            rates.flip + rates.lost + rates.misdirected + rates.stale == 0
        };
        let count = (0..200).filter(harmless).count();
        assert!((80..180).contains(&count), "{count} of 200");
    }
}
