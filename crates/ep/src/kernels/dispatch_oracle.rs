//! `dispatch` on host memory: what the kernel must do, byte for byte. The CPU backend runs this.

use super::wait_oracle::{begin_once, fail, signal};
use crate::barrier::{Kind, Record, Tag, Violation};
use crate::config::{Shape, TOP_K_MAX};
use crate::heaps::Heaps;
use crate::layout::{EpLayout, row};
use mooncrate_heap::{Rank, Ranks};

/// In the place of an expert: the token goes nowhere for this position, whatever its weight says. Engines pad routes
/// with it.
pub const NOT_ROUTED: i32 = -1;

/// The tokens of a rank in a step. Rows after the last token are not looked at.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    /// How many tokens there are; 0 is as good as any.
    pub tokens: u32,
    /// `[tokens, token_words]`: the bits of bf16, or rows of fp8 as pairs of bytes.
    pub x: &'a [u16],
    /// `[tokens, top_k]`: experts of each token, counted over all ranks, or [`NOT_ROUTED`].
    pub experts: &'a [i32],
    /// `[tokens, top_k]`: their weights.
    pub weights: &'a [f32],
}

impl Batch<'_> {
    /// What is wrong with the routes of the batch; the lowest token and position comes first.
    pub fn violation(&self, shape: &Shape) -> Violation {
        if self.tokens > shape.tokens_max() {
            return Violation::new(Kind::TooManyTokens, 0, 0, self.tokens);
        }
        let all = (0..self.tokens).map(|token| self.violation_of(shape, token));
        all.min().unwrap_or(Violation::NONE)
    }

    fn violation_of(&self, shape: &Shape, token: u32) -> Violation {
        let (experts, weights) = self.route(shape, token);
        for (k, (expert, weight)) in (0..).zip(experts.iter().zip(weights)) {
            if *expert == NOT_ROUTED {
                continue;
            }
            if !(0..shape.experts().cast_signed()).contains(expert) {
                return Violation::new(Kind::BadExpert, token, k, expert.cast_unsigned());
            }
            if experts[..k as usize].contains(expert) {
                return Violation::new(Kind::TwiceExpert, token, k, expert.cast_unsigned());
            }
            if !weight.is_finite() {
                return Violation::new(Kind::BadWeight, token, k, weight.to_bits());
            }
        }
        Violation::NONE
    }

    /// Experts and weights of a token.
    pub(crate) fn route(&self, shape: &Shape, token: u32) -> (&[i32], &[f32]) {
        let k = shape.top_k() as usize;
        let at = token as usize * k;
        (&self.experts[at..at + k], &self.weights[at..at + k])
    }

    /// One token.
    pub(crate) fn token(&self, shape: &Shape, token: u32) -> &[u16] {
        let words = shape.token_words();
        &self.x[token as usize * words..][..words]
    }
}

/// Stores each token once at every rank that has one of its experts, a metadata row for each slot of this rank
/// at all ranks, and signals. Input that is wrong goes nowhere: then all ranks are told that the step failed.
pub fn dispatch_oracle(
    heaps: &impl Heaps,
    layout: &EpLayout,
    me: Rank,
    tag: Tag,
    batch: &Batch<'_>,
) {
    let (shape, source) = (layout.shape(), u32::from(me.number()));
    let Some((tag, phase)) = begin_once(heaps, layout, me, tag) else { return };
    let violation = batch.violation(shape);
    let tokens = if batch.tokens > shape.tokens_max() { 0 } else { batch.tokens };
    heaps.store(source, layout.sent(), &tokens.to_le_bytes());
    let mut bytes = Vec::with_capacity(shape.token_bytes() as usize);
    for token in 0..shape.tokens_max() {
        let routed = token < tokens && batch.violation_of(shape, token) == Violation::NONE;
        let (experts, weights) =
            if routed { batch.route(shape, token) } else { (&[][..], &[][..]) };
        let slot = shape.slot(source, token);
        let mut mask = 0u32;
        for target in 0..shape.ranks() {
            let (row, count) = meta_row(shape, target, experts, weights, phase);
            heaps.store(target, layout.meta(slot), &row);
            if count > 0 {
                mask |= 1 << target;
                bytes.clear();
                bytes.extend(batch.token(shape, token).iter().flat_map(|bits| bits.to_le_bytes()));
                heaps.store(target, layout.recv(slot), &bytes);
            }
        }
        heaps.store(source, layout.sent_mask(token), &mask.to_le_bytes());
    }
    if violation == Violation::NONE {
        signal(heaps, layout, source, tag, phase);
    } else {
        let record = Record::of(violation, me.number(), Ranks::only(me), phase, tag);
        fail(heaps, layout, source, &record);
    }
}

/// The metadata row of a token for one rank, and how many of its experts are there. Positions are those of
/// the token's top-k, so that every rank adds up in the same order.
fn meta_row(
    shape: &Shape,
    target: u32,
    experts: &[i32],
    weights: &[f32],
    stamp: u32,
) -> ([u8; row::BYTES], u32) {
    let mut bytes = [0; row::BYTES];
    bytes[row::EXPERTS..row::WEIGHTS].fill(0xff);
    let (local, mut count) = (shape.local_experts(), 0u32);
    for (k, (expert, weight)) in experts.iter().zip(weights).enumerate() {
        // One that is not routed is beyond all ranks as an unsigned number.
        let expert = expert.cast_unsigned();
        if expert / local == target {
            let at = row::EXPERTS + 2 * k;
            bytes[at..at + 2].copy_from_slice(&((expert % local) as u16).to_le_bytes());
            let at = row::WEIGHTS + 4 * k;
            bytes[at..at + 4].copy_from_slice(&weight.to_le_bytes());
            count += 1;
        }
    }
    bytes[row::COUNT..row::STAMP].copy_from_slice(&count.to_le_bytes());
    bytes[row::STAMP..row::STAMP + 4].copy_from_slice(&stamp.to_le_bytes());
    (bytes, count)
}

/// A metadata row, read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MetaRow {
    pub(crate) experts: [i16; TOP_K_MAX as usize],
    pub(crate) weights: [f32; TOP_K_MAX as usize],
    pub(crate) count: u32,
    pub(crate) stamp: u32,
}

impl MetaRow {
    pub(crate) fn load(heaps: &impl Heaps, layout: &EpLayout, me: u32, slot: u32) -> Self {
        let mut bytes = [0; row::BYTES];
        heaps.load(me, layout.meta(slot), &mut bytes);
        let word = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let half = |at: usize| i16::from_le_bytes([bytes[at], bytes[at + 1]]);
        Self {
            experts: std::array::from_fn(|k| half(row::EXPERTS + 2 * k)),
            weights: std::array::from_fn(|k| f32::from_bits(word(row::WEIGHTS + 4 * k))),
            count: word(row::COUNT),
            stamp: word(row::STAMP),
        }
    }
}
