//! Ranks, and sets of them.

use std::fmt;

/// Most ranks of a group: as many as one machine has GPUs.
pub const RANKS_MAX: usize = 8;

/// One participant of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rank(u8);

impl Rank {
    /// Where the others meet.
    pub const HUB: Self = Self(0);

    /// Its number.
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// Its number, for frames and kernels.
    pub const fn number(self) -> u8 {
        self.0
    }
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}", self.0)
    }
}

/// How many ranks a group has: 1 to [`RANKS_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct World(u8);

impl World {
    /// `None`: no ranks, or more than [`RANKS_MAX`].
    pub const fn new(ranks: usize) -> Option<Self> {
        if ranks == 0 || ranks > RANKS_MAX { None } else { Some(Self(ranks as u8)) }
    }

    /// How many.
    pub const fn len(self) -> usize {
        self.0 as usize
    }

    /// Whether there are none; there always is one.
    pub const fn is_empty(self) -> bool {
        false
    }

    /// The rank of that number, if the group has it.
    pub const fn rank(self, number: usize) -> Option<Rank> {
        if number < self.len() { Some(Rank(number as u8)) } else { None }
    }

    /// All of them, in order.
    pub fn ranks(self) -> impl DoubleEndedIterator<Item = Rank> {
        (0..self.0).map(Rank)
    }

    /// All of them, as a set.
    pub fn all(self) -> Ranks {
        self.ranks().collect()
    }
}

/// A set of ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ranks(u8);

impl Ranks {
    /// Exactly this one.
    pub const fn only(rank: Rank) -> Self {
        Self(1 << rank.0)
    }

    /// The set with these bits, one for each rank.
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits)
    }

    /// One bit for each rank.
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// Whether the rank is in it.
    pub const fn has(self, rank: Rank) -> bool {
        self.0 & (1 << rank.0) != 0
    }

    /// Takes a rank in.
    pub fn insert(&mut self, rank: Rank) {
        self.0 |= 1 << rank.0;
    }

    /// Those that are in `self` and not in `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether nobody is in it.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Its members, in order.
    pub fn iter(self) -> impl Iterator<Item = Rank> {
        (0..RANKS_MAX as u8).map(Rank).filter(move |rank| self.has(*rank))
    }
}

impl FromIterator<Rank> for Ranks {
    fn from_iter<I: IntoIterator<Item = Rank>>(ranks: I) -> Self {
        let mut set = Self::default();
        ranks.into_iter().for_each(|rank| set.insert(rank));
        set
    }
}

impl fmt::Display for Ranks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = self.iter().map(|rank| rank.0.to_string()).collect();
        match names.as_slice() {
            [] => f.write_str("no rank"),
            [one] => write!(f, "rank {one}"),
            many => write!(f, "ranks {}", many.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_world_has_one_to_eight_ranks() {
        assert_eq!(World::new(0), None);
        assert_eq!(World::new(RANKS_MAX + 1), None);
        let world = World::new(RANKS_MAX).unwrap();
        assert_eq!(world.all().bits(), 0xff);
        assert_eq!(world.rank(8), None);
        assert_eq!(world.ranks().count(), 8);
    }

    #[test]
    fn sets_are_named_for_people() {
        let world = World::new(4).unwrap();
        let odd: Ranks = world.ranks().filter(|rank| rank.number() % 2 == 1).collect();
        assert_eq!(odd.to_string(), "ranks 1, 3");
        assert_eq!(world.all().without(odd).to_string(), "ranks 0, 2");
        assert_eq!(Ranks::only(Rank::HUB).to_string(), "rank 0");
        assert_eq!(Ranks::default().to_string(), "no rank");
    }
}
