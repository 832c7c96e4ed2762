//! Batches that are drawn from a seed, for tests and figures: the same on every rank and backend.

use crate::config::{Payload, Shape};
use crate::fp8;
use crate::kernels::{Batch, NOT_ROUTED, Weights};
use mooncrate_core::rng::Rng;

/// How tokens choose their experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Routing {
    /// Any number of tokens, any experts.
    Random,
    /// As many tokens as fit, any experts.
    Full,
    /// Low experts are chosen far more often.
    Skewed,
    /// Only some ranks have tokens.
    SomeEmpty,
    /// No rank has a token.
    Empty,
    /// One expert is chosen by every token of every rank.
    OneExpert,
    /// All experts of all tokens belong to one rank, as far as it has enough.
    OneRank,
    /// As many tokens as fit; half of all positions are not routed.
    Padded,
}

impl Routing {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Random,
        Self::Full,
        Self::Skewed,
        Self::SomeEmpty,
        Self::Empty,
        Self::OneExpert,
        Self::OneRank,
        Self::Padded,
    ];
}

/// A batch with its own memory.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Drawn {
    /// How many tokens.
    pub tokens: u32,
    /// As in [`Batch`].
    pub x: Vec<u16>,
    /// As in [`Batch`].
    pub experts: Vec<i32>,
    /// As in [`Batch`].
    pub weights: Vec<f32>,
}

impl Drawn {
    /// What rank `rank` sends in step `step` of a run with that seed.
    pub fn new(shape: &Shape, routing: Routing, seed: u64, rank: u32, step: u64) -> Self {
        // What all ranks agree on in a step, and what each draws for itself.
        let mut common = Rng::stream(seed ^ step, "step");
        let mut rng = Rng::stream(seed ^ step.rotate_left(32), &format!("rank {rank}"));
        let favourite = common.below(shape.experts().into()) as u32;
        let cap = u64::from(shape.tokens_max());
        let tokens = match routing {
            Routing::SomeEmpty if rng.chance(500) => 0,
            Routing::Random | Routing::Skewed | Routing::SomeEmpty => rng.below(cap + 1),
            Routing::Empty => 0,
            Routing::Full | Routing::OneExpert | Routing::OneRank | Routing::Padded => cap,
        } as u32;
        let mut drawn = Self { tokens, ..Self::default() };
        for _ in 0..tokens {
            let chosen = choose(shape, routing, favourite, &mut rng);
            for expert in chosen {
                let routed = routing != Routing::Padded || rng.chance(500);
                drawn.experts.push(if routed { expert.cast_signed() } else { NOT_ROUTED });
                // What stands beside a position that is not routed is not looked at.
                drawn.weights.push(if routed { weight(&mut rng) } else { f32::NAN });
            }
            let elements: Vec<u16> = (0..shape.hidden()).map(|_| element(&mut rng)).collect();
            match shape.payload() {
                Payload::Bf16 => drawn.x.extend(elements),
                Payload::Fp8 => drawn.x.extend(fp8::quantize(&elements)),
            }
        }
        drawn
    }

    /// The same, borrowed.
    pub fn batch(&self) -> Batch<'_> {
        let Self { tokens, x, experts, weights } = self;
        Batch { tokens: *tokens, x, experts, weights }
    }

    /// With room for as many tokens as the shape allows: what a kernel gets, whose memory is always the same.
    #[must_use]
    pub fn padded(mut self, shape: &Shape) -> Self {
        let (tokens, k) = (shape.tokens_max() as usize, shape.top_k() as usize);
        // What stands after the last token is nonsense on purpose.
        self.x.resize(tokens * shape.token_words(), 0xffff);
        self.experts.resize(tokens * k, i32::MIN);
        self.weights.resize(tokens * k, f32::NAN);
        self
    }
}

/// Weights of a rank's experts with their own memory.
#[derive(Clone, Debug)]
pub struct DrawnWeights {
    /// As in [`Weights`].
    pub inter: u32,
    /// As in [`Weights`].
    pub w13: Vec<u16>,
    /// As in [`Weights`].
    pub w2: Vec<u16>,
}

impl DrawnWeights {
    /// The weights of rank `rank`: small, so that products of many elements stay small.
    pub fn new(shape: &Shape, inter: u32, seed: u64, rank: u32) -> Self {
        let mut rng = Rng::stream(seed, &format!("weights {rank}"));
        let count = shape.local_experts() as usize * inter as usize * shape.hidden() as usize;
        // Exponents of 2^-8 to 2^-5.
        let mut draw = |count: usize| -> Vec<u16> {
            let one = |bits: u64| {
                (bits & 0x8000 | (119 + (bits >> 20 & 3)) << 7 | bits >> 32 & 0x7f) as u16
            };
            (0..count).map(|_| one(rng.next())).collect()
        };
        Self { inter, w13: draw(2 * count), w2: draw(count) }
    }

    /// The same, borrowed.
    pub fn weights(&self) -> Weights<'_> {
        Weights { inter: self.inter, w13: &self.w13, w2: &self.w2 }
    }
}

/// Different experts for one token.
fn choose(shape: &Shape, routing: Routing, favourite: u32, rng: &mut Rng) -> Vec<u32> {
    let (all, local) = (shape.experts(), shape.local_experts());
    let mut chosen = Vec::with_capacity(shape.top_k() as usize);
    if routing == Routing::OneExpert {
        chosen.push(favourite);
    }
    while chosen.len() < shape.top_k() as usize {
        let expert = match routing {
            Routing::OneRank if chosen.len() < local as usize => {
                favourite / local * local + rng.below(local.into()) as u32
            }
            // The least of three draws.
            Routing::Skewed => {
                (0..3).map(|_| rng.below(all.into()) as u32).min().unwrap_or_default()
            }
            _ => rng.below(all.into()) as u32,
        };
        if !chosen.contains(&expert) {
            chosen.push(expert);
        }
    }
    // The favourite is not always the first one.
    let places = chosen.len() as u64;
    chosen.rotate_left(rng.below(places) as usize);
    chosen
}

/// Between -2 and 2, but for small numbers.
#[expect(clippy::cast_precision_loss, reason = "24 bits fit in an f32")]
fn weight(rng: &mut Rng) -> f32 {
    (rng.below(1 << 24) as f32 / (1 << 22) as f32) - 2.0
}

/// A finite bf16 of any sign, between 2^-8 and 2^7.
fn element(rng: &mut Rng) -> u16 {
    let bits = rng.next();
    let (sign, exponent, mantissa) = (bits & 1, 119 + (bits >> 1) % 15, bits >> 32 & 0x7f);
    (sign << 15 | exponent << 7 | mantissa) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::barrier::Violation;
    use crate::{EpConfig, bf16};

    #[test]
    fn every_routing_gives_good_batches() {
        let config = EpConfig { tokens_max: 6, hidden: 16, experts: 16, ..EpConfig::default() };
        let shape = config.shape().unwrap();
        for routing in Routing::ALL {
            for step in 0..20 {
                let drawn = Drawn::new(&shape, routing, 5, 3, step);
                assert_eq!(drawn.batch().violation(&shape), Violation::NONE, "{routing:?}");
                assert!(drawn.x.iter().all(|bits| bf16::to_f32(*bits).is_finite()));
                let again = Drawn::new(&shape, routing, 5, 3, step);
                assert_eq!((&drawn.x, &drawn.experts), (&again.x, &again.experts));
                assert_eq!(drawn.clone().padded(&shape).batch().violation(&shape), Violation::NONE);
            }
        }
        let full = Drawn::new(&shape, Routing::OneExpert, 5, 3, 0);
        let other = Drawn::new(&shape, Routing::OneExpert, 5, 4, 0);
        let common = |token: &[i32]| -> Vec<i32> {
            token.iter().copied().filter(|e| other.experts[..8].contains(e)).collect()
        };
        assert!(!common(&full.experts[..8]).is_empty(), "all ranks have the same favourite");
    }
}
