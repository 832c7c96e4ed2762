//! Density: the value of a cached block, learned from the load: expected hits divided by the time for which the
//! block occupies its room until then.
//!
//! ```text
//!   touch ──► Usage of the block: uses, place in its request, last use (32 bits)
//!     └─ key in the sample? ──► Ghosts: last use of the key, resident or not
//!                                 └─► per class and age: keys that reached this age, keys used at this age
//!                                       └─► per class and age: density ──► worth(Usage)
//! ```
//!
//! The class of a block is its number of uses (eight steps) and its place in the request (nine places: near the
//! head, near the end). Ages are counted in requests, in bins of a quarter of a power of two. For each class the
//! counts give the chance that a block which reached an age is used at that age. The density at an age is the best
//! ratio, over all horizons, of expected hits to expected time. The block with the lowest density is evicted first;
//! of two with the same density, the older one.
//!
//! What is counted must not depend on what is evicted, or the policy would only see what it keeps. So keys are
//! sampled by their hash, and a sampled key is followed whether it is resident or not.
//!
//! A class with few counts takes the mean of all classes, and an age with few counts takes the chance of the age
//! before it, halved. So without any counts the order is that of LRU. Everything is deterministic: the caller gives
//! the number of the request as the clock, and random choices come from a seed.
//!
//! [`Learned`] is what threads share: it is read without a lock. Only a use of a sampled key changes something.

mod ghosts;
mod leaves;
mod policy;

#[cfg(test)]
mod tests;

pub use leaves::Leaves;

use ghosts::{Ghost, Ghosts};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Bits of the request number in a [`Usage`]. A block that was not used for one million of them looks new again, so
/// large caches count several requests as one: [`requests_per_step`].
const AGE_BITS: u32 = 21;
/// Half of the range of ages. A caller whose clock runs on sets last uses that are about to become older to a later
/// time ([`Usage::used_at`]): otherwise the age of an old block would be that of a new one after some time.
pub const AGE_END: u32 = 1 << (AGE_BITS - 1);
/// Blocks of a cache that counts each request.
const BLOCKS_PER_STEP: u64 = 1 << 17;
const AGE_MASK: u32 = (1 << AGE_BITS) - 1;
/// More uses are not counted: the last of the [`USES`] steps begins at 64.
const USES_MAX: u32 = 127;
/// Steps of the number of uses: 0, 1, 2 to 3, 4 to 7 and so on.
const USES: usize = 8;
/// Places in a request: three by distance from its head, three by distance from its end.
const PLACES: usize = 9;
const CLASSES: usize = USES * PLACES;
/// Bins of age: four per power of two. The last one has no upper bound.
const BINS: usize = 72;
/// Sampled uses between two computations of the densities: at the start, and later.
const DUE: (u32, u32) = (200, 2000);
/// Ghosts whose age is counted at each sampled use.
const SWEEP: usize = 2;
/// Part of the counts that stays at each computation, so that the counts follow the load.
const KEEP: f32 = 0.98;
/// A count below this becomes 0: arithmetic with numbers next to zero is slow on many processors.
const FORGOTTEN: f32 = 1e-6;
/// The weight, in counts, of the chance of the age before.
const TRUST_AGE: f32 = 20.0;
/// The chance of an age without counts, as a part of that of the age before. It has to fall: otherwise an age that
/// was never seen would be worth more than one that was.
const FALL: f32 = 0.5;
/// The chance of a use in the first bin before anything was counted.
const PRIOR: f32 = 1.0 / 16.0;
/// The weight, in counts, of the mean of all classes in the chances of one class.
const TRUST_MEAN: f32 = 8.0;
/// The weight, in uses, of the mean in the factor by which a class differs from it.
const TRUST_CLASS: f32 = 2.0;
/// How much the counts of an age weigh in that factor for the next age.
const BACK: f32 = 0.95;

/// A row for each class.
type Table = Box<[[f32; BINS]]>;

/// What is known of a resident block: last use:21 | uses:7 | place:4.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage(u32);

/// How many requests the clock of a cache of so many blocks counts as one: a power of two.
pub const fn requests_per_step(blocks: u64) -> u64 {
    blocks.div_ceil(BLOCKS_PER_STEP).next_power_of_two()
}

impl Usage {
    /// As a number, for tables of them.
    pub const fn to_bits(self) -> u32 {
        self.0
    }

    /// What [`Usage::to_bits`] said.
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    const fn new(now: u32, uses: u32, place: u32) -> Self {
        Self((now & AGE_MASK) << 11 | uses << 4 | place)
    }

    const fn last(self) -> u32 {
        self.0 >> 11
    }

    const fn uses(self) -> u32 {
        (self.0 >> 4) & USES_MAX
    }

    const fn place(self) -> u32 {
        self.0 & 15
    }

    /// The same with another last use.
    #[must_use]
    pub const fn used_at(self, now: u32) -> Self {
        Self::new(now, self.uses(), self.place())
    }

    /// After another use.
    fn next(earlier: Option<Self>, of: &Use) -> Self {
        let uses = earlier.map_or(0, |usage| (usage.uses() + 1).min(USES_MAX));
        Self::new(of.now, uses, place(of.depth, of.blocks))
    }

    const fn class(self) -> usize {
        (u32::BITS - self.uses().leading_zeros()) as usize * PLACES + self.place() as usize
    }

    /// Of a block that no request has used yet: it is as young as one that was used now.
    pub const fn unused(now: u32) -> Self {
        Self::new(now, 0, 0)
    }

    /// Steps of the clock since the last use; 0 if that is later than `now`, as it may be if threads read the clock one
    /// after the other.
    pub const fn age(self, now: u32) -> u32 {
        let steps = now.wrapping_sub(self.last()) & AGE_MASK;
        if steps > AGE_MASK / 2 { 0 } else { steps }
    }
}

/// The place of the block at `depth` of a request of `blocks` blocks. The last block has a place of its own: it is
/// often a partial one, or a question that nobody asks again.
const fn place(depth: usize, blocks: usize) -> u32 {
    let from_head = match depth {
        0..8 => 0,
        8..24 => 1,
        _ => 2,
    };
    let from_end = match blocks.saturating_sub(depth + 1) {
        0 => 0,
        1..4 => 1,
        _ => 2,
    };
    from_end * 3 + from_head
}

/// The bin of an age: the highest bit of age + 4 and the two bits below it.
const fn bin(age: u32) -> usize {
    let from = age + 4;
    let power = from.ilog2();
    let bin = ((power - 2) << 2 | ((from >> (power - 2)) & 3)) as usize;
    if bin < BINS { bin } else { BINS - 1 }
}

/// The first age of a bin.
const fn start(bin: usize) -> u32 {
    ((4 + (bin & 3)) << (bin >> 2)) as u32 - 4
}

/// A use of a block by a request.
#[derive(Clone, Copy, Debug)]
pub struct Use {
    /// The key of the block, or a hash of it.
    pub key: u64,
    /// Blocks of the request before this one.
    pub depth: usize,
    /// Blocks of the request.
    pub blocks: usize,
    /// The number of the request.
    pub now: u32,
}

/// What was learned: the densities by class and bin, and which keys are sampled.
#[derive(Debug)]
pub struct Learned {
    densities: Box<[[AtomicU32; BINS]]>,
    /// The highest hash in the sample.
    highest: AtomicU64,
}

impl Learned {
    /// A request uses a block, as [`Density::touch`]; `None` if its key is in the sample, and that has to be told.
    #[inline]
    pub fn touch(&self, of: &Use, before: Option<Usage>) -> Option<Usage> {
        (!self.follows(mix(of.key))).then(|| Usage::next(before, of))
    }

    /// The worth of a block; the one with the lowest worth is evicted first. The upper half is the density, the
    /// lower half puts the older of two equal ones first.
    #[inline]
    pub fn worth(&self, usage: Usage, now: u32) -> u64 {
        let age = usage.age(now);
        // The bits of floats that are not negative are in the order of the floats. Relaxed: a value of a moment ago is
        // as good.
        let density = self.densities[usage.class()][bin(age)].load(Ordering::Relaxed);
        u64::from(density) << 32 | u64::from(AGE_MASK - age)
    }

    fn follows(&self, hash: u64) -> bool {
        hash <= self.highest.load(Ordering::Relaxed)
    }
}

/// What was learned, and from what.
#[derive(Debug)]
pub struct Density {
    /// By class and bin: keys that were used at this age, and keys that reached it.
    used: Table,
    reached: Table,
    /// What follows from these counts.
    learned: Arc<Learned>,
    /// By bin: the chance of a use in all classes together, when the densities were last computed.
    mean: [f32; BINS],
    /// The class whose densities are computed next; [`CLASSES`]: none.
    next: usize,
    ghosts: Ghosts,
    /// Sampled uses so far, and the number at which the next computation begins.
    events: u32,
    due: u32,
}

impl Density {
    /// For a cache of so many blocks. Nothing is known yet.
    pub fn new(blocks: u64) -> Self {
        let table = || vec![[0.0; BINS]; CLASSES].into_boxed_slice();
        let row = || [const { AtomicU32::new(0) }; BINS];
        let densities = (0..CLASSES).map(|_| row()).collect();
        let learned = Learned { densities, highest: AtomicU64::new(ghosts::highest(blocks)) };
        let mut new = Self {
            used: table(),
            reached: table(),
            learned: Arc::new(learned),
            mean: [0.0; BINS],
            next: CLASSES,
            ghosts: Ghosts::new(),
            events: 0,
            due: DUE.0,
        };
        new.begin();
        while new.next < CLASSES {
            new.compute();
        }
        new
    }

    /// A use of which only the time is known: the block has the place that it had.
    pub fn touch_again(&mut self, key: u64, now: u32, before: Usage) -> Usage {
        let hash = mix(key);
        let uses = (before.uses() + 1).min(USES_MAX);
        let usage = Usage::new(now, uses, before.place());
        if self.learned.follows(hash) {
            self.learn(hash, self.ghosts.find(hash), usage);
        }
        usage
    }

    /// A request uses a block. `before`: its usage, if it is resident. Returns its usage from now on. A block that comes
    /// back keeps its uses if its key is in the sample, as all keys of a small cache are.
    #[inline]
    pub fn touch(&mut self, of: Use, before: Option<Usage>) -> Usage {
        let hash = mix(of.key);
        if !self.learned.follows(hash) {
            return Usage::next(before, &of);
        }
        let known = self.ghosts.find(hash);
        let earlier = before.or_else(|| Some(self.ghosts[known?].usage()));
        let usage = Usage::next(earlier, &of);
        self.learn(hash, known, usage);
        usage
    }

    /// The capacity has changed to so many blocks, so another share of the keys is sampled. A smaller one empties the
    /// table: a ghost outside of the sample would only be counted as never used again. So it becomes smaller only when
    /// it halves at least.
    pub fn set_blocks(&mut self, blocks: u64) {
        let highest = ghosts::highest(blocks);
        let before = self.learned.highest.load(Ordering::Relaxed);
        if highest < before {
            if highest > before / 2 {
                return;
            }
            self.ghosts = Ghosts::new();
        }
        self.learned.highest.store(highest, Ordering::Relaxed);
    }

    /// What was learned so far and will be, for those who only ask.
    pub const fn learned(&self) -> &Arc<Learned> {
        &self.learned
    }

    /// Bytes of memory, whatever the number of blocks.
    pub fn heap_bytes(&self) -> usize {
        2 * size_of_val(&*self.used)
            + size_of_val(&*self.learned.densities)
            + self.ghosts.heap_bytes()
    }

    /// A sampled key was used: counts the age at which it was, and remembers it as it is now.
    fn learn(&mut self, hash: u64, known: Option<usize>, usage: Usage) {
        let now = usage.last();
        let way = known.unwrap_or_else(|| self.ghosts.room(hash, now));
        self.count(way, now);
        if known.is_some() {
            let ghost = self.ghosts[way].usage();
            let (class, bin) = (ghost.class(), bin(ghost.age(now)));
            self.reached[class][bin] += 1.0;
            self.used[class][bin] += 1.0;
        }
        self.ghosts[way] = Ghost::new(hash, usage);
        // The others have grown older meanwhile. Two at a time, so that each call has little to do.
        let first = self.events as usize % (Ghosts::COUNT / SWEEP) * SWEEP;
        for way in first..first + SWEEP {
            self.count(way, now);
        }
        self.events = self.events.wrapping_add(1);
        if self.next < CLASSES {
            self.compute();
        } else if self.events.wrapping_sub(self.due) < u32::MAX / 2 {
            self.due = self.events.wrapping_add((self.events / 4).clamp(DUE.0, DUE.1));
            self.begin();
        }
    }

    /// Counts the bins that a ghost has passed since it was last counted.
    fn count(&mut self, way: usize, now: u32) {
        let ghost = &mut self.ghosts[way];
        if ghost.is_none() {
            return;
        }
        let age = ghost.usage().age(now);
        // It would look new some time after. From half of the range on, because a while passes until it is met again.
        if (AGE_END / 2..=AGE_END).contains(&age) {
            ghost.set_last(now.wrapping_sub(AGE_END / 2));
        }
        let (from, to) = (ghost.counted(), bin(age));
        if from < to {
            for reached in &mut self.reached[ghost.usage().class()][from..to] {
                *reached += 1.0;
            }
            ghost.set_counted(to);
        }
    }

    /// Begins a computation with the chances of all classes together.
    fn begin(&mut self) {
        let (used, reached) = (by_bin(&self.used), by_bin(&self.reached));
        let mut before = PRIOR;
        for ((mean, used), reached) in self.mean.iter_mut().zip(used).zip(reached) {
            let chance = (used + TRUST_AGE * before * FALL) / (reached + TRUST_AGE);
            *mean = chance.max(FORGOTTEN * FORGOTTEN);
            before = *mean;
        }
        self.next = 0;
    }

    /// The densities of the next class. Its counts decay.
    fn compute(&mut self) {
        let class = self.next;
        self.next += 1;
        for (place, density) in
            self.learned.densities[class].iter().zip(densities(&self.chances(class)))
        {
            place.store(density.to_bits(), Ordering::Relaxed);
        }
        for table in [&mut self.used, &mut self.reached] {
            for count in &mut table[class] {
                *count = if *count < FORGOTTEN { 0.0 } else { *count * KEEP };
            }
        }
    }

    /// By bin: the chance that a block of this class which reached the bin is used in it.
    fn chances(&self, class: usize) -> [f32; BINS] {
        let (used, reached) = (&self.used[class], &self.reached[class]);
        let expected: [f32; BINS] = std::array::from_fn(|bin| reached[bin] * self.mean[bin]);
        let whole = (sum(used) + TRUST_CLASS) / (sum(&expected) + TRUST_CLASS);
        let (mut seen, mut meant) = (0.0, 0.0);
        std::array::from_fn(|bin| {
            // How many times as often as the mean, at this age and at those before it.
            seen = seen * BACK + used[bin];
            meant = meant * BACK + expected[bin];
            let factor = (seen + TRUST_CLASS * whole) / (meant + TRUST_CLASS);
            let guess = (factor * self.mean[bin]).min(0.9);
            ((used[bin] + TRUST_MEAN * guess) / (reached[bin] + TRUST_MEAN)).min(1.0)
        })
    }
}

/// The sum of a row, in eight parts side by side: the processor adds eight numbers at a time.
fn sum(row: &[f32; BINS]) -> f32 {
    const PARTS: usize = 8;
    const { assert!(BINS.is_multiple_of(PARTS)) };
    let mut parts = [0.0; PARTS];
    for numbers in row.as_chunks::<PARTS>().0 {
        parts.iter_mut().zip(numbers).for_each(|(part, number)| *part += number);
    }
    parts.iter().sum()
}

/// The sum of all classes, by bin.
fn by_bin(table: &Table) -> [f32; BINS] {
    let mut sums = [0.0; BINS];
    for row in table {
        sums.iter_mut().zip(row).for_each(|(sum, number)| *sum += number);
    }
    sums
}

/// The density at the begin of each bin, from the chances of a use: the best ratio of expected hits to expected
/// time over all bins in which an eviction could come. From the oldest bin to the youngest: a bin takes in those
/// behind it as long as they raise its ratio.
#[expect(clippy::cast_precision_loss, reason = "bins are a quarter of a power of two wide")]
fn densities(chances: &[f32; BINS]) -> [f32; BINS] {
    let mut density = [0.0; BINS];
    // Hits, time, and the part that is still there at the end.
    let (mut spans, mut len) = ([(0.0_f32, 0.0_f32, 0.0_f32); BINS], 0);
    for bin in (0..BINS).rev() {
        let (chance, width) = (chances[bin], (start(bin + 1) - start(bin)) as f32);
        let (mut hits, mut time, mut left) = (chance, (1.0 - chance / 2.0) * width, 1.0 - chance);
        while len > 0 && spans[len - 1].0 * time >= hits * spans[len - 1].1 {
            len -= 1;
            let behind = spans[len];
            hits += left * behind.0;
            time += left * behind.1;
            left *= behind.2;
        }
        spans[len] = (hits, time, left);
        len += 1;
        density[bin] = hits / time;
    }
    density
}

/// A hash of a key in which each bit depends on all bits of the key: the last steps of `SplitMix64`.
const fn mix(mut key: u64) -> u64 {
    key = (key ^ (key >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    key = (key ^ (key >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    key ^ (key >> 31)
}
