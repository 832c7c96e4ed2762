//! Placement: which segment gets the next replica.
//!
//! Preferred segments come first, in the caller's order; then a strategy decides. A pick does not
//! walk all segments: it draws at most `DRAWS` of a group (one medium, one host, one zone) until
//! it has `CANDIDATES` that may serve, and chooses among those. Only when no group gave any does it
//! walk the loads, once; then the pool is nearly full and the caller is about to evict anyway.
//!
//! **Choosing among candidates.** Always taking the emptiest would send every put to a node that
//! has just joined, and with it all traffic. So emptiness counts, but with a cap: a candidate has
//! one share, plus up to `SHARES_MAX` - 1 for being less used than the fullest candidate, full
//! at `LEAD_CAP` (in thousandths of the capacity) and in proportion below. The choice is drawn by
//! shares. An empty node therefore gets at most four times the puts of a full one beside it, while
//! differences of a few percent still even out.
//!
//! What must stay true: a pick is open, not tried, not on an avoided node, large enough, and, where
//! the ask says so, has the bytes free. One seed and one history of calls give one history of picks
//! (M4).

mod topology;

use crate::canary::{self, Canary};
use crate::ids::{HostId, NodeId, SegmentId, TenantId, ZoneId};
use crate::plan::Medium;
use crate::rng::Rng;
use std::fmt;
use std::str::FromStr;
use topology::Topology;

/// Random looks into a group before it is given up.
const DRAWS: usize = 16;
/// Candidates that suffice.
const CANDIDATES: usize = 4;
/// Zones that a pick looks into, one by one, for a replica outside the zones in use.
const ZONES: usize = 8;
/// A lead in use, in thousandths of the capacity, above which more emptiness brings no more.
const LEAD_CAP: u64 = 100;
/// Shares of a candidate with the whole lead; one without has one.
const SHARES_MAX: u64 = 4;

/// What placement knows of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentLoad {
    /// Which segment.
    pub segment: SegmentId,
    /// Its owner.
    pub node: NodeId,
    /// The machine of the owner.
    pub host: HostId,
    /// The failure zone of the machine.
    pub zone: ZoneId,
    /// What it is made of.
    pub medium: Medium,
    /// The only tenant it serves; `None`: everybody.
    pub tenant: Option<TenantId>,
    /// Bytes in all.
    pub capacity: u64,
    /// Bytes that are not taken.
    pub free: u64,
    /// Whether it may get new objects.
    pub open: bool,
}

/// What a replica needs.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// Bytes to store.
    pub bytes: u64,
    /// Segments to take first, best first.
    pub preferred: &'a [SegmentId],
    /// The host of the writer.
    pub host: HostId,
    /// The zone of the writer.
    pub zone: ZoneId,
    /// Whose object it is.
    pub tenant: TenantId,
    /// The medium it must be on.
    pub medium: Medium,
    /// Nodes that hold another replica.
    pub avoid_nodes: &'a [NodeId],
    /// Segments that just failed the writer.
    pub avoid: &'a [SegmentId],
    /// Indexes of loads that were picked before and had no run of that length.
    pub tried: &'a [usize],
    /// Whether the bytes must be free now; otherwise the caller makes room.
    pub need_free: bool,
}

impl Ask<'_> {
    /// Whether the load at `index` may serve at all. Every pick of every strategy passes here.
    fn allows(&self, index: usize, load: &SegmentLoad) -> bool {
        load.open
            && load.capacity >= self.bytes
            && (!self.need_free || load.free >= self.bytes)
            && self.on_medium(load)
            && load.tenant.is_none_or(|tenant| tenant == self.tenant)
            && !self.avoid_nodes.contains(&load.node)
            && !self.avoid.contains(&load.segment)
            && !self.tried.contains(&index)
    }

    fn on_medium(&self, load: &SegmentLoad) -> bool {
        let unasked = canary::on(Canary::VramUnasked)
            && (self.medium, load.medium) == (Medium::Dram, Medium::Vram);
        load.medium == self.medium || unasked
    }
}

/// Picks segments for replicas.
pub trait Placement: Send + fmt::Debug {
    /// The index in `loads` of the segment that gets the replica; `None` if none may.
    fn pick(&mut self, loads: &[SegmentLoad], ask: &Ask<'_>) -> Option<usize>;
}

/// The strategies that there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlacementKind {
    /// Any segment, all alike, as Mooncake Store places.
    Random,
    /// Less used ones rather than fuller ones.
    LeastLoaded,
    /// The writer's host, then its zone, then others; less used ones rather than fuller ones.
    LocalFirst,
    /// A zone without a replica of the object, then others; less used ones rather than fuller ones.
    ByZone,
}

impl PlacementKind {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Random, Self::LeastLoaded, Self::LocalFirst, Self::ByZone];

    /// Its name in configurations.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Random => "random",
            Self::LeastLoaded => "least-loaded",
            Self::LocalFirst => "local-first",
            Self::ByZone => "by-zone",
        }
    }

    /// A strategy of this kind, with a random stream of its own.
    pub fn build(self, seed: u64) -> Box<dyn Placement> {
        let rng = Rng::stream(seed, "place");
        Box::new(Strategy { kind: self, rng, topology: Topology::default() })
    }
}

impl fmt::Display for PlacementKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// No strategy has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "there is no placement strategy {0:?}; choose random, least-loaded, local-first or by-zone"
)]
pub struct UnknownPlacement(pub String);

impl FromStr for PlacementKind {
    type Err = UnknownPlacement;

    fn from_str(name: &str) -> Result<Self, UnknownPlacement> {
        let found = Self::ALL.into_iter().find(|kind| kind.name() == name);
        found.ok_or_else(|| UnknownPlacement(name.to_owned()))
    }
}

/// All four strategies: they differ only in the groups that they ask, and in whether use counts.
#[derive(Debug)]
struct Strategy {
    kind: PlacementKind,
    rng: Rng,
    topology: Topology,
}

impl Placement for Strategy {
    fn pick(&mut self, loads: &[SegmentLoad], ask: &Ask<'_>) -> Option<usize> {
        self.topology.learn(loads);
        if let Some(index) = self.preferred(loads, ask) {
            return Some(index);
        }
        let Self { kind, rng, topology } = self;
        // Of its medium: among a thousand segments, those of a rare one would hardly be drawn.
        let all = topology.on_medium(ask.medium);
        let mut draws = Draws { loads, rng, candidates: Vec::new() };
        match kind {
            PlacementKind::Random => {
                // The first that may serve, so that all are alike.
                draws.from(all, 1, |index, load| ask.allows(index, load));
            }
            PlacementKind::LeastLoaded => {
                draws.from(all, CANDIDATES, |index, load| ask.allows(index, load));
            }
            PlacementKind::LocalFirst => {
                let host = topology.on_host(ask.host);
                let zone = topology.in_zone(ask.zone);
                draws.from(host, CANDIDATES, |index, load| {
                    load.host == ask.host && ask.allows(index, load)
                });
                draws.or_from(zone, |index, load| load.zone == ask.zone && ask.allows(index, load));
                draws.or_from(all, |index, load| ask.allows(index, load));
            }
            PlacementKind::ByZone => {
                let used = zones_in_use(topology, ask);
                let fresh = |index: usize, load: &SegmentLoad| {
                    !used.contains(&load.zone) && ask.allows(index, load)
                };
                draws.from(all, CANDIDATES, fresh);
                // A small zone is easily missed by drawing from everybody: ask zones by name.
                let start = ZoneId(draws.rng.next());
                let zones = topology.zones_from(start).filter(|(zone, _)| !used.contains(zone));
                for (_, members) in zones.take(ZONES) {
                    draws.or_from(members, fresh);
                }
                draws.or_from(all, |index, load| ask.allows(index, load));
            }
        }
        draws.choose().or_else(|| self.scan(loads, ask))
    }
}

impl Strategy {
    /// The first preferred segment that may serve. A walk is needed only for one that memory does
    /// not know as it is now: just exchanged in the list, closed, or not mounted at all.
    fn preferred(&self, loads: &[SegmentLoad], ask: &Ask<'_>) -> Option<usize> {
        ask.preferred.iter().find_map(|&segment| {
            let known = self.topology.segment(segment);
            let index = known
                .filter(|&index| loads[index].segment == segment && loads[index].open)
                .or_else(|| loads.iter().position(|load| load.segment == segment && load.open))?;
            ask.allows(index, &loads[index]).then_some(index)
        })
    }

    /// The walk over all loads, for when drawing found nobody: the nearest rank that has a segment
    /// that may serve, from a random start so that the first in the list is not favoured.
    fn scan(&mut self, loads: &[SegmentLoad], ask: &Ask<'_>) -> Option<usize> {
        if loads.is_empty() {
            return None;
        }
        let used = zones_in_use(&self.topology, ask);
        let rank = |load: &SegmentLoad| match self.kind {
            PlacementKind::Random | PlacementKind::LeastLoaded => 0,
            PlacementKind::LocalFirst if load.host == ask.host => 0,
            PlacementKind::LocalFirst => 1 + u8::from(load.zone != ask.zone),
            PlacementKind::ByZone => u8::from(used.contains(&load.zone)),
        };
        let start = self.rng.below(loads.len() as u64) as usize;
        let around = (start..loads.len()).chain(0..start);
        around
            .filter(|&index| ask.allows(index, &loads[index]))
            .min_by_key(|&index| rank(&loads[index]))
    }
}

/// Zones of the nodes that hold a replica; at most as many as there are replicas.
fn zones_in_use(topology: &Topology, ask: &Ask<'_>) -> Vec<ZoneId> {
    ask.avoid_nodes.iter().filter_map(|node| topology.zone_of(*node)).collect()
}

/// Draws candidates and chooses one of them.
struct Draws<'a> {
    loads: &'a [SegmentLoad],
    rng: &'a mut Rng,
    candidates: Vec<usize>,
}

impl Draws<'_> {
    /// Looks at up to [`DRAWS`] of `group` and keeps up to `most` that pass.
    fn from(&mut self, group: &[usize], most: usize, pass: impl Fn(usize, &SegmentLoad) -> bool) {
        let len = group.len();
        // Few enough to look at everybody, each once, as a deck that is shuffled while it is dealt.
        // Windows of neighbours would be cheaper, but then the same ones always compete.
        let few = len <= DRAWS;
        let mut deck: [usize; DRAWS] = std::array::from_fn(|position| position);
        for dealt in 0..DRAWS.min(len) {
            let position = if few {
                deck.swap(dealt, dealt + self.rng.below((len - dealt) as u64) as usize);
                deck[dealt]
            } else {
                self.rng.below(len as u64) as usize
            };
            let index = group[position];
            let passes = self.loads.get(index).is_some_and(|load| pass(index, load));
            if passes && !self.candidates.contains(&index) {
                self.candidates.push(index);
                if self.candidates.len() == most {
                    return;
                }
            }
        }
    }

    /// The same, unless an earlier group gave candidates.
    fn or_from(&mut self, group: &[usize], pass: impl Fn(usize, &SegmentLoad) -> bool) {
        if self.candidates.is_empty() {
            self.from(group, CANDIDATES, pass);
        }
    }

    /// One candidate, drawn by its shares.
    fn choose(&mut self) -> Option<usize> {
        let used = |index: &usize| used_per_mille(&self.loads[*index]);
        let fullest = self.candidates.iter().map(used).max()?;
        // In units of 1/LEAD_CAP of a share, to stay with whole numbers.
        let shares = |index: &usize| {
            let lead = (fullest - used(index)).min(LEAD_CAP);
            LEAD_CAP + (SHARES_MAX - 1) * lead
        };
        let mut ticket = self.rng.below(self.candidates.iter().map(shares).sum());
        let drawn = self.candidates.iter().find(|index| {
            let here = shares(index);
            let won = ticket < here;
            ticket = ticket.saturating_sub(here);
            won
        });
        drawn.copied()
    }
}

/// How much of a segment is taken, in thousandths.
fn used_per_mille(load: &SegmentLoad) -> u64 {
    let taken = load.capacity.saturating_sub(load.free);
    let per_mille = u128::from(taken) * 1000 / u128::from(load.capacity.max(1));
    per_mille as u64
}
