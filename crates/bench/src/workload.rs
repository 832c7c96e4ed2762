//! Keys, values and the order in which they are visited: the same for a subject and its floor.

use mooncrate_core::rng::Rng;

/// Bytes of every key of the bench.
pub(crate) const KEY_BYTES: usize = 32;

/// A key of the bench.
pub(crate) type BenchKey = [u8; KEY_BYTES];

/// The key with this number. It looks random, as the hash of a prefix does.
pub(crate) fn key(number: u64) -> BenchKey {
    let mut rng = Rng::new(number);
    let mut key = [0; KEY_BYTES];
    for part in key.chunks_exact_mut(8) {
        part.copy_from_slice(&rng.next().to_le_bytes());
    }
    key
}

/// Visits `count` places again and again, all of them before any twice, without a pattern that
/// hardware would prefetch.
#[derive(Clone, Debug)]
pub(crate) struct Rotation {
    count: usize,
    step: usize,
    at: usize,
}

impl Rotation {
    pub(crate) fn new(count: usize) -> Self {
        // Coprime to the count, so that it visits all of them.
        let mut steps = 97..=97 + count;
        let step =
            steps.find(|step| gcd(*step, count) == 1).expect("one of them is a multiple + 1");
        Self { count, step, at: 0 }
    }

    pub(crate) fn next(&mut self) -> usize {
        self.at = (self.at + self.step) % self.count;
        self.at
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// A value whose ends tell which one it is.
#[derive(Debug)]
pub(crate) struct Value {
    bytes: Vec<u8>,
}

impl Value {
    pub(crate) fn new(len: usize) -> Self {
        let mut value = Self { bytes: noise(len) };
        value.stamp(0);
        value
    }

    /// Makes it the value with this number. Touches two cache lines.
    pub(crate) fn stamp(&mut self, number: usize) -> &[u8] {
        let mark = mark(number);
        let len = self.bytes.len();
        self.bytes[..8].copy_from_slice(&mark);
        self.bytes[len - 8..].copy_from_slice(&mark);
        &self.bytes
    }
}

/// Whether these bytes begin and end as the value with this number.
pub(crate) fn is_value(bytes: &[u8], number: usize) -> bool {
    let mark = mark(number);
    bytes.starts_with(&mark) && bytes.ends_with(&mark)
}

fn mark(number: usize) -> [u8; 8] {
    (number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()
}

/// Bytes of which every page was written, so that none is the kernel's page of zeroes.
pub(crate) fn noise(len: usize) -> Vec<u8> {
    let mut rng = Rng::new(len as u64);
    let mut bytes = vec![0; len];
    for part in bytes.chunks_mut(8) {
        let word = rng.next().to_le_bytes();
        part.copy_from_slice(&word[..part.len()]);
    }
    bytes
}

/// The places of a plain program: as many values of one size as the subject has.
#[derive(Debug)]
pub(crate) struct Pool {
    bytes: Vec<u8>,
}

impl Pool {
    pub(crate) fn new(len: usize) -> Self {
        Self { bytes: noise(len) }
    }

    pub(crate) fn place(&self, size: usize, at: usize) -> &[u8] {
        &self.bytes[size * at..][..size]
    }

    pub(crate) fn place_mut(&mut self, size: usize, at: usize) -> &mut [u8] {
        &mut self.bytes[size * at..][..size]
    }

    /// Values of this size that it has room for.
    pub(crate) fn places(&self, size: usize) -> usize {
        self.bytes.len() / size
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_rotation_visits_every_place_before_any_twice() {
        for count in [1, 2, 3, 16, 97, 194, 512, 1000] {
            let mut rotation = Rotation::new(count);
            for _ in 0..2 {
                let seen: BTreeSet<usize> = (0..count).map(|_| rotation.next()).collect();
                assert_eq!(seen.len(), count);
            }
        }
    }

    #[test]
    fn keys_and_values_are_told_apart() {
        let keys: BTreeSet<BenchKey> = (0..1000).map(key).collect();
        assert_eq!(keys.len(), 1000);
        let mut value = Value::new(64);
        assert!(is_value(value.stamp(3), 3) && !is_value(value.stamp(3), 4));
        let mut torn = value.stamp(3).to_vec();
        torn[63] ^= 1;
        assert!(!is_value(&torn, 3));
    }

    #[test]
    fn places_do_not_overlap() {
        let mut pool = Pool::new(64);
        assert_eq!(pool.places(16), 4);
        pool.place_mut(16, 2).fill(7);
        assert!(pool.place(16, 1).iter().chain(pool.place(16, 3)).any(|b| *b != 7));
        assert_eq!(pool.place(16, 2), [7; 16]);
    }
}
