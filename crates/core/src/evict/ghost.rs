//! Which keys were evicted a short while ago: S3-FIFO's ghost queue, without the queue.
//!
//! ```text
//!   key ──► print (32 bits) ──► bucket of 8 ways, 64 bytes: one cache line
//!                               way = { print:32 | number of the eviction:32 }
//! ```
//!
//! Evictions are numbered. A key is remembered while fewer than `window` evictions were noted after its
//! own, which is exactly how long a FIFO of `window` keys would keep it. Nothing is ever taken out when it
//! gets too old: its way counts as free from then on. So no operation looks at more than one bucket, and
//! there are no rings, chains or tombstones to keep in order.
//!
//! Two deviations from an exact FIFO, both rare and harmless, because a wrong answer only puts a slot into
//! the other queue: a ninth recent key of one bucket displaces the oldest of them early (about 2 keys of
//! 100 when the table is as full as it gets), and two keys with the same print are one.

/// Ways of a bucket.
const WAYS: usize = 8;
/// Keys per bucket that the table is made for: eight ways hold five on average with few overflows.
const LOAD: usize = 5;
/// The smallest window that a table is made for: 16 KiB.
const WINDOW_MIN: usize = 1024;
/// A way that was never used, or whose key came back. No print is 0.
const FREE: u64 = 0;

/// The keys of recent evictions.
pub(super) struct Ghost {
    /// Buckets of [`WAYS`] ways, each `print << 32 | number`. Plain words: a zeroed table costs the
    /// allocator no writing, however large it is.
    ways: Vec<u64>,
    /// Number of the next eviction. It wraps; only differences count.
    next: u32,
    /// The largest window that the table was made for.
    room: usize,
}

/// 32 well-mixed bits of a key: what is remembered of it.
pub(super) const fn print(key: u64) -> u32 {
    let print = ((key ^ (key >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32;
    if print == 0 { 1 } else { print }
}

impl Ghost {
    /// Remembers nothing and holds no memory.
    pub(super) const fn new() -> Self {
        Self { ways: Vec::new(), next: 0, room: 0 }
    }

    /// An eviction. It is remembered until `window` more were noted.
    pub(super) fn note(&mut self, print: u32, window: usize) {
        if window > self.room {
            self.grow(window);
        }
        let now = self.next;
        self.next = now.wrapping_add(1);
        let (mut target, mut oldest) = (0, 0);
        let bucket = self.bucket(print);
        for (at, way) in bucket.iter().enumerate() {
            let age = if *way == FREE { u32::MAX } else { now.wrapping_sub(*way as u32) };
            if (way >> 32) as u32 == print {
                target = at;
                break;
            }
            if age >= oldest {
                (target, oldest) = (at, age);
            }
        }
        bucket[target] = u64::from(print) << 32 | u64::from(now);
    }

    /// Whether it was among the last `window` evictions. It is forgotten with that.
    pub(super) fn take(&mut self, print: u32, window: usize) -> bool {
        if self.ways.is_empty() {
            return false;
        }
        let (next, window) = (self.next, window.min(u32::MAX as usize) as u32);
        let bucket = self.bucket(print);
        let is_it = |way: &&mut u64| {
            (**way >> 32) as u32 == print && next.wrapping_sub(**way as u32) <= window
        };
        let Some(way) = bucket.iter_mut().find(is_it) else { return false };
        *way = FREE;
        true
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.ways.capacity() * size_of::<u64>()
    }

    fn bucket(&mut self, print: u32) -> &mut [u64] {
        let buckets = (self.ways.len() / WAYS) as u64;
        let at = ((u64::from(print) * buckets) >> 32) as usize * WAYS;
        &mut self.ways[at..at + WAYS]
    }

    /// A larger table, which starts empty: moving what the old one holds would stop the caller for the
    /// whole of it. A cache reaches its size before its first eviction, so hardly anything is forgotten.
    fn grow(&mut self, window: usize) {
        self.room = (window + window / 4).max(WINDOW_MIN);
        self.ways = vec![FREE; self.room.div_ceil(LOAD) * WAYS];
    }
}

impl std::fmt::Debug for Ghost {
    /// In short: the keys may be millions.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ghost").field("room", &self.room).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_remembered_for_a_window_of_evictions_and_taken_once() {
        let mut ghost = Ghost::new();
        assert!(!ghost.take(print(1), 10), "nothing was evicted yet");
        for key in 0..10 {
            ghost.note(print(key), 10);
        }
        assert!(ghost.take(print(0), 10) && !ghost.take(print(0), 10));
        ghost.note(print(10), 10);
        ghost.note(print(11), 10);
        assert!(ghost.take(print(2), 10), "nine came after it");
        assert!(!ghost.take(print(1), 10), "ten came after it");
        assert!(!ghost.take(print(99), 10), "it was never evicted");
    }

    /// The numbers wrap after four thousand million evictions; ages must not.
    #[test]
    fn ages_survive_the_wrap_of_the_numbers() {
        let mut ghost = Ghost::new();
        ghost.grow(100);
        ghost.next = u32::MAX - 2;
        for key in 0..6 {
            ghost.note(print(key), 5);
        }
        assert!(!ghost.take(print(0), 5), "six were noted, five are remembered");
        assert!((1..6).all(|key| ghost.take(print(key), 5)));
    }

    /// A full table forgets few keys before their time, and none lives too long.
    #[test]
    fn a_full_window_is_remembered_almost_whole() {
        let (mut ghost, window) = (Ghost::new(), 50_000);
        for key in 0..200_000 {
            ghost.note(print(key), window);
        }
        let known = |ghost: &mut Ghost, keys: std::ops::Range<u64>| {
            keys.filter(|key| ghost.take(print(*key), window)).count()
        };
        assert_eq!(known(&mut ghost, 0..150_000), 0, "older than the window");
        let kept = known(&mut ghost, 150_000..200_000);
        assert!(kept >= window * 97 / 100, "{kept} of {window}");
        assert!(ghost.heap_bytes() <= 17 * window, "{} bytes", ghost.heap_bytes());
    }

    #[test]
    fn growth_forgets_and_goes_on() {
        let mut ghost = Ghost::new();
        ghost.note(print(7), 10);
        ghost.note(print(8), 10 * WINDOW_MIN);
        assert!(!ghost.take(print(7), 10 * WINDOW_MIN));
        assert!(ghost.take(print(8), 10 * WINDOW_MIN));
    }
}
