//! Which block of the prefix cache is evicted next. The policies are those of `mooncrate_core::evict`; this
//! names them, and adds two that need a rank from the caller, and one that needs to know what follows what.

use mooncrate_core::evict::{EvictPolicy, PolicyKind, Ranked};
use std::fmt;
use std::str::FromStr;

/// The eviction policies of a paged cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// The block that was cached first.
    Fifo,
    /// The block that was not used for the longest time.
    Lru,
    /// The block with the lowest priority, as its caller gave it; the least recently used of those.
    Priority,
    /// The block with the lowest importance, a score that its caller gave; the least recently used of those
    /// within half a power of two.
    Importance,
    /// The block with the lowest expected hits for the time that it stays, learned from all requests so far; only
    /// blocks that no other cached block follows, as long as there are enough of them.
    Density,
}

impl Policy {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Fifo, Self::Lru, Self::Priority, Self::Importance, Self::Density];

    /// Its name in configurations.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fifo => PolicyKind::Fifo.name(),
            Self::Lru => PolicyKind::Lru.name(),
            Self::Priority => "priority",
            Self::Importance => "importance",
            Self::Density => PolicyKind::Density.name(),
        }
    }

    /// Whether it goes by the rank that a block was last used with.
    pub const fn is_ranked(self) -> bool {
        matches!(self, Self::Priority | Self::Importance)
    }

    /// A policy of this kind without candidates. The rank of a block is its priority, or
    /// [`rank_of`](mooncrate_core::evict::rank_of) its importance. `None` for density, which blocks alone do not make.
    pub(crate) fn build(self) -> Option<Box<dyn EvictPolicy>> {
        let kind = match self {
            Self::Fifo => PolicyKind::Fifo,
            Self::Lru => PolicyKind::Lru,
            Self::Priority | Self::Importance => return Some(Box::new(Ranked::new())),
            Self::Density => return None,
        };
        Some(kind.build())
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// No policy has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no eviction policy {0:?}; choose density, lru, fifo, priority or importance")]
pub struct UnknownPolicy(pub String);

impl FromStr for Policy {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Self, UnknownPolicy> {
        let found = Self::ALL.into_iter().find(|policy| policy.name() == name);
        found.ok_or_else(|| UnknownPolicy(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mooncrate_core::Slot;

    #[test]
    fn names_are_read_as_they_are_written() {
        for policy in Policy::ALL {
            assert_eq!(policy.to_string().parse(), Ok(policy));
        }
        let wrong = "random".parse::<Policy>().unwrap_err();
        for policy in Policy::ALL {
            assert!(wrong.to_string().contains(policy.name()), "{wrong}");
        }
    }

    /// Of two blocks the one with the lower rank goes, if and only if the policy looks at ranks.
    #[test]
    fn ranked_policies_look_at_ranks_and_the_others_do_not() {
        for policy in Policy::ALL {
            let Some(mut order) = policy.build() else { continue };
            order.insert_as(Slot(0), 9);
            order.insert_as(Slot(1), 2);
            let first = order.victim();
            assert_eq!(first == Some(Slot(1)), policy.is_ranked(), "{policy}");
        }
    }
}
