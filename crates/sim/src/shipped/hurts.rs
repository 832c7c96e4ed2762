//! Which faults a seed draws: how often, of which kinds, for whom, and for how long.
//!
//! Some bugs show only after many faults of one kind, and others end that run before: a master that is killed drops the
//! leases whose end is looked for. So some seeds have only one kind of fault, or only faults of one role.

use super::FAULTS;
use crate::swarm::{between, pick};
use crate::{MS, Nanos};
use mooncrate_core::rng::Rng;

/// What can befall a process, in the order of [`FAULTS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hurt {
    Kill,
    Stop,
    Cut,
    WallClock,
    /// Its machine loses its power: its peers get no word of it.
    Vanish,
    /// A node ends in order.
    Leave,
    /// A connection of it ends.
    Reset,
    /// A bit flips on its way to it.
    Garble,
    /// A bit of a value in the memory of a node.
    Flip,
}

impl Hurt {
    const ALL: [Self; FAULTS.len()] = [
        Self::Kill,
        Self::Stop,
        Self::Cut,
        Self::WallClock,
        Self::Vanish,
        Self::Leave,
        Self::Reset,
        Self::Garble,
        Self::Flip,
    ];
}

/// Whom faults befall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whom {
    All,
    Masters,
    Nodes,
    Clients,
}

/// The faults of a run.
#[derive(Clone, Debug)]
pub struct Hurts {
    /// Between two faults, on average; 0: none.
    pub(super) every: Nanos,
    /// The kinds, each as likely as the others.
    pub(super) kinds: Vec<Hurt>,
    pub(super) whom: Whom,
    /// A fault begins only when the one before is over.
    pub(super) one_by_one: bool,
    /// How long a process stays stopped, cut off or dead, at most; as a multiple of the serving lease. 0: always for
    /// less than a quarter of it.
    pub(super) leases_max: u64,
    /// Faults of a node during which all masters die, in parts per thousand: the node comes back to a leader that knows
    /// only what was written down.
    pub(super) outages: u32,
}

impl Hurts {
    /// From a stream of its own: the other choices of a seed stay the same.
    pub(super) fn draw(seed: u64, flips: bool) -> Self {
        let rng = &mut Rng::stream(seed, "hurts");
        let mut every = *pick(rng, &[0, 100 * MS, 300 * MS, 500 * MS, 3_000 * MS]);
        let mut kinds = Hurt::ALL.to_vec();
        kinds.retain(|kind| !matches!(kind, Hurt::Flip | Hurt::Garble));
        if rng.chance(600) {
            let many = between(rng, 1, 3);
            let lasting = [Hurt::Kill, Hurt::Stop, Hurt::Cut, Hurt::Cut, Hurt::WallClock];
            kinds = (0..many).map(|_| *pick(rng, &lasting)).collect();
        }
        // From a stream of its own.
        if Rng::stream(seed, "garbles").chance(100) {
            kinds = vec![Hurt::Garble];
            every = 20 * MS;
        }
        let whom = [Whom::All, Whom::All, Whom::Masters, Whom::Nodes, Whom::Clients];
        let mut whom = *pick(rng, &whom);
        let leases_max = *pick(rng, &[2, 6, 6, 30]);
        if flips {
            // Most of what happens then: memory of nodes.
            kinds.extend([Hurt::Flip; 4]);
            (every, whom) = (every.clamp(50 * MS, 300 * MS), Whom::Nodes);
        }
        Self { every, kinds, whom, leases_max, one_by_one: false, outages: 0 }
    }

    /// Whether bits flip on their way, and nothing else befalls anybody.
    pub(super) fn is_garbled(&self) -> bool {
        self.kinds == [Hurt::Garble]
    }

    /// Nodes that stand still for less than their lease.
    pub(super) fn short_stops() -> Self {
        Self {
            every: 200 * MS,
            kinds: vec![Hurt::Stop],
            whom: Whom::Nodes,
            one_by_one: false,
            leases_max: 0,
            outages: 0,
        }
    }

    /// Nodes that are away, and outages.
    pub(super) fn of_absences(rng: &mut Rng, masters: usize) -> Self {
        // Masters that elect a leader first wait for the end of a term.
        let often = *pick(rng, &[200 * MS, 400 * MS]) * if masters > 1 { 4 } else { 1 };
        Self {
            every: often,
            kinds: vec![
                *pick(rng, &[Hurt::Kill, Hurt::Vanish]),
                *pick(rng, &[Hurt::Kill, Hurt::Stop]),
            ],
            whom: Whom::Nodes,
            one_by_one: false,
            leases_max: *pick(rng, &[2, 4, 8]),
            outages: *pick(rng, &[300, 800]),
        }
    }

    /// No fault that may take a value away: clients may fail, and masters one after the other, but not their links to
    /// nodes.
    pub(super) fn calm_down(&mut self) {
        match self.whom {
            Whom::Clients => self.kinds.retain(|kind| *kind != Hurt::WallClock),
            Whom::Masters => self.kinds.retain(|kind| matches!(kind, Hurt::Kill | Hurt::Stop)),
            Whom::All | Whom::Nodes => self.kinds.clear(),
        }
        self.one_by_one = self.whom == Whom::Masters;
        if self.kinds.is_empty() {
            self.every = 0;
        }
    }
}
