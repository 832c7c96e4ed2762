//! Seeded random streams: xoshiro256++ with splitmix64 seeding. A seed means the same for ever.

/// A stream of numbers that one seed fixes.
#[derive(Clone, Debug)]
pub struct Rng([u64; 4]);

impl Rng {
    /// The stream of `seed`.
    pub fn new(seed: u64) -> Self {
        let mut seeds = SplitMix64::new(seed);
        Self(std::array::from_fn(|_| seeds.next()))
    }

    /// A stream of its own for `label`, so that a new consumer shifts no other.
    #[must_use]
    pub fn stream(seed: u64, label: &str) -> Self {
        Self::new(seed ^ xxhash_rust::xxh3::xxh3_64(label.as_bytes()))
    }

    /// The next number.
    #[expect(clippy::should_implement_trait, reason = "the stream never ends")]
    pub fn next(&mut self) -> u64 {
        let s = &mut self.0;
        let result = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// A number below `bound`, which must not be zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        scaled(self.next(), bound)
    }

    /// True in `per_mille` of 1000 cases.
    pub fn chance(&mut self, per_mille: u32) -> bool {
        self.below(1000) < u64::from(per_mille)
    }
}

/// The simpler stream (`SplitMix64`): it seeds [`Rng`], and the generated loads of replays are made of it.
#[derive(Clone, Debug)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// The stream of `seed`.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `bound`, which must not be zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        scaled(self.next(), bound)
    }
}

/// A hash in which each bit depends on all bits of the number: the last steps of `SplitMix64`. No two numbers have
/// the same.
pub const fn mix(mut number: u64) -> u64 {
    number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// A random number of 64 bits, scaled down to one below `bound`.
fn scaled(random: u64, bound: u64) -> u64 {
    assert!(bound > 0, "no number is below zero");
    // Multiply-shift; the bias is below 2^-32 for every bound we use.
    ((u128::from(random) * u128::from(bound)) >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_means_the_same_for_ever() {
        let mut rng = Rng::new(42);
        let first: Vec<u64> = (0..3).map(|_| rng.next()).collect();
        assert_eq!(
            first,
            [15_021_278_609_987_233_951, 5_881_210_131_331_364_753, 18_149_643_915_985_481_100]
        );
        // The first numbers of the published algorithm.
        let mut simple = SplitMix64::new(0);
        assert_eq!(
            [simple.next(), simple.next(), simple.next()],
            [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4, 0x06c4_5d18_8009_454f]
        );
    }
}
