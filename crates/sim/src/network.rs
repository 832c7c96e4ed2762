//! The network: delays, losses, repetitions and partitions, all drawn from one stream.
//!
//! Control calls may be lost, repeated and reordered; orders and notices may be lost and reordered,
//! and are repeated by the master only (an eviction's answer counts once). A data call is a
//! connection: its messages keep their order, and a loss ends it. Processes of one host talk over a
//! socket that loses nothing.

use crate::message::Actor;
use crate::{MS, Nanos, US};
use mooncrate_core::rng::Rng;

/// How bad the network is, in events per million messages.
#[derive(Clone, Copy, Debug, Default)]
pub struct Quality {
    /// Lost.
    pub loss_ppm: u64,
    /// Delivered twice.
    pub twice_ppm: u64,
    /// Delayed by milliseconds.
    pub late_ppm: u64,
    /// Delayed by up to a quarter of a second.
    pub very_late_ppm: u64,
}

/// What becomes of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// Nothing arrives.
    Lost,
    /// It arrives after this long, and perhaps once more.
    After(Nanos, Option<Nanos>),
}

/// A pair of actors that cannot talk in one direction.
#[derive(Clone, Copy, Debug)]
struct Cut {
    from: Actor,
    to: Actor,
    until: Nanos,
}

/// The network of one run.
#[derive(Debug)]
pub struct Network {
    rng: Rng,
    quality: Quality,
    cuts: Vec<Cut>,
}

impl Network {
    /// A network of this quality.
    pub fn new(rng: Rng, quality: Quality) -> Self {
        Self { rng, quality, cuts: Vec::new() }
    }

    /// No message from one to the other until then.
    pub fn cut(&mut self, from: Actor, to: Actor, until: Nanos) {
        self.cuts.push(Cut { from, to, until });
    }

    /// Everything works from now on.
    pub fn heal(&mut self) {
        self.quality = Quality::default();
        self.cuts.clear();
    }

    /// What becomes of a message between two hosts.
    pub fn route(&mut self, now: Nanos, from: Actor, to: Actor) -> Route {
        if !self.cuts.is_empty() {
            self.cuts.retain(|cut| cut.until > now);
            if self.cuts.iter().any(|cut| cut.from == from && cut.to == to) {
                return Route::Lost;
            }
        }
        let fate = self.rng.below(1_000_000);
        let Quality { loss_ppm, twice_ppm, .. } = self.quality;
        if fate < loss_ppm {
            return Route::Lost;
        }
        let again = (fate < loss_ppm + twice_ppm).then(|| self.delay() + self.rng.below(20 * MS));
        Route::After(self.delay(), again)
    }

    /// How long a message between two processes of one host takes.
    pub fn local(&mut self) -> Nanos {
        2 * US + self.rng.below(18 * US)
    }

    /// How long it takes until a peer notices that a connection is over.
    pub fn hang_up(&mut self) -> Nanos {
        MS + self.rng.below(60 * MS)
    }

    fn delay(&mut self) -> Nanos {
        let base = 20 * US + self.rng.below(150 * US);
        let fate = self.rng.below(1_000_000);
        let Quality { late_ppm, very_late_ppm, .. } = self.quality;
        if fate < very_late_ppm {
            base + self.rng.below(250 * MS)
        } else if fate < very_late_ppm + late_ppm {
            base + self.rng.below(8 * MS)
        } else {
            base
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Actor = Actor::Master(0);
    const B: Actor = Actor::Node(1);

    #[test]
    fn a_cut_has_one_direction_and_an_end() {
        let mut network = Network::new(Rng::new(1), Quality::default());
        network.cut(A, B, 100);
        assert_eq!(network.route(50, A, B), Route::Lost);
        assert!(matches!(network.route(50, B, A), Route::After(..)));
        assert!(matches!(network.route(100, A, B), Route::After(..)));
    }

    #[test]
    fn a_bad_network_loses_and_repeats_and_a_healed_one_does_not() {
        let quality = Quality { loss_ppm: 200_000, twice_ppm: 200_000, ..Quality::default() };
        let mut network = Network::new(Rng::new(2), quality);
        let count = |network: &mut Network, wanted: fn(Route) -> bool| {
            (0..1000).filter(|_| wanted(network.route(0, A, B))).count()
        };
        assert!((100..300).contains(&count(&mut network, |route| route == Route::Lost)));
        let twice = |route| matches!(route, Route::After(_, Some(_)));
        assert!((100..300).contains(&count(&mut network, twice)));
        network.heal();
        let once = |route| matches!(route, Route::After(_, None));
        assert_eq!(count(&mut network, once), 1000);
    }
}
