//! Parts of a block, and the runs of bytes that they are made of.
//!
//! A [`Part`] selects layers, halves and token slots of one block; all heads belong to it.
//! [`ArenaShape::runs`] says where its bytes lie: up to four nested steps over runs of equal length, merged
//! as far as the strides allow. A whole block of the block-first layout is one run, a block of the NHD
//! layout one run per layer. A copy on a device can take the same steps as a strided copy.
//!
//! What must stay true: the runs of a part do not overlap, and in one [`Order`] the bytes of a part mean the
//! same at the same place, whatever block they come from.

use crate::geometry::Half;
use crate::ids::BlockId;
use crate::layout::{ArenaShape, Axis, CoordinateError};
use mooncrate_core::Extent;
use std::ops::Range;

/// In which order the bytes of a part stand in a caller's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// `[layer, half, token, head, dim]` in every layout. What was read in this order can be written into an
    /// arena of another layout.
    Tokens,
    /// As the layout stores it: the longest runs, so the fastest copy. Only for arenas of the same layout.
    Stored,
}

/// Some layers, halves and token slots of one block.
///
/// ```
/// use mooncrate_paged::{BlockId, Half, Part};
///
/// let whole = Part::block(BlockId(7));
/// let one_token_of_v = whole.clone().layer(3).half(Half::Value).tokens(5..6);
/// assert_ne!(whole, one_token_of_v);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    block: BlockId,
    /// `None`: all of them. The same for the next two.
    layer: Option<u32>,
    half: Option<Half>,
    tokens: Option<Range<u32>>,
}

impl Part {
    /// A whole block.
    pub const fn block(block: BlockId) -> Self {
        Self { block, layer: None, half: None, tokens: None }
    }

    /// Of it, one layer.
    #[must_use]
    pub fn layer(mut self, layer: u32) -> Self {
        self.layer = Some(layer);
        self
    }

    /// Of it, K or V.
    #[must_use]
    pub fn half(mut self, half: Half) -> Self {
        self.half = Some(half);
        self
    }

    /// Of it, these token slots.
    #[must_use]
    pub fn tokens(mut self, tokens: Range<u32>) -> Self {
        self.tokens = Some(tokens);
        self
    }

    /// Which block.
    pub const fn id(&self) -> BlockId {
        self.block
    }
}

/// One block copied over another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockCopy {
    /// Read from.
    pub source: BlockId,
    /// Overwritten.
    pub target: BlockId,
}

/// Neighbouring blocks of an arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRun {
    /// The first one.
    pub first: BlockId,
    /// How many; at least one.
    pub count: u32,
}

/// So many steps of so many bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Step {
    /// How often.
    pub count: u64,
    /// Bytes from one to the next.
    pub stride: u64,
}

/// Axes besides the block: the most steps that a part can have.
const STEPS_MAX: usize = 4;

/// Where the bytes of a part lie. Iterating gives the runs in order; nothing is allocated.
#[derive(Clone, Debug)]
pub struct Runs {
    first: u64,
    run_bytes: u64,
    steps: [Step; STEPS_MAX],
    used: usize,
    /// How far the iteration is, on each step.
    at: [u64; STEPS_MAX],
    left: u64,
}

impl ArenaShape {
    /// The runs of a part, in an order.
    pub fn runs(&self, part: &Part, order: Order) -> Result<Runs, CoordinateError> {
        self.check(Axis::Block, u64::from(part.block.0))?;
        let (layer, layers) = self.chosen(Axis::Layer, part.layer)?;
        let (half, halves) = self.chosen(Axis::Half, part.half.map(Half::index))?;
        let slots = self.count(Axis::Token);
        let tokens = part.tokens.clone().unwrap_or(0..slots);
        if tokens.end > slots || tokens.start > tokens.end {
            let value = u64::from(tokens.end.max(tokens.start));
            return Err(CoordinateError { axis: Axis::Token, value, limit: u64::from(slots) });
        }
        let strides = self.strides();
        let first = u64::from(part.block.0) * strides.block
            + u64::from(layer) * strides.layer
            + u64::from(half) * strides.half
            + u64::from(tokens.start) * strides.token;
        let steps = [
            Step { count: u64::from(layers), stride: strides.layer },
            Step { count: u64::from(halves), stride: strides.half },
            Step { count: u64::from(tokens.end - tokens.start), stride: strides.token },
            Step { count: u64::from(self.count(Axis::Head)), stride: strides.head },
        ];
        Ok(Runs::new(first, self.geometry().row_bytes(), steps, order))
    }

    /// The first coordinate on an axis and how many there are, for one that was chosen or all.
    fn chosen(&self, axis: Axis, one: Option<u32>) -> Result<(u32, u32), CoordinateError> {
        let Some(one) = one else { return Ok((0, self.count(axis))) };
        self.check(axis, u64::from(one))?;
        Ok((one, 1))
    }
}

impl Runs {
    fn new(first: u64, row_bytes: u64, mut steps: [Step; STEPS_MAX], order: Order) -> Self {
        if order == Order::Stored {
            // Steps that are taken once may stand anywhere: they are dropped below.
            steps.sort_unstable_by_key(|step| std::cmp::Reverse(step.stride));
        }
        let mut run_bytes = row_bytes;
        let mut merged = [Step::default(); STEPS_MAX];
        let mut used = 0;
        for step in steps.into_iter().rev().filter(|step| step.count != 1) {
            if used == 0 && step.stride == run_bytes {
                run_bytes *= step.count;
                continue;
            }
            if used > 0 {
                let inner = &mut merged[used - 1];
                if step.stride == inner.count * inner.stride {
                    inner.count *= step.count;
                    continue;
                }
            }
            merged[used] = step;
            used += 1;
        }
        merged[..used].reverse();
        let runs: u64 = merged[..used].iter().map(|step| step.count).product();
        let left = if run_bytes == 0 { 0 } else { runs };
        Self { first, run_bytes, steps: merged, used, at: [0; STEPS_MAX], left }
    }

    /// The first byte.
    pub const fn first(&self) -> u64 {
        self.first
    }

    /// Bytes of each run.
    pub const fn run_bytes(&self) -> u64 {
        self.run_bytes
    }

    /// The steps from run to run, the slowest first. None: the part is one run.
    pub fn steps(&self) -> &[Step] {
        &self.steps[..self.used]
    }

    /// Bytes that are left to iterate: of a fresh value, those of the whole part.
    pub const fn bytes(&self) -> u64 {
        self.run_bytes * self.left
    }
}

impl Iterator for Runs {
    type Item = Extent;

    fn next(&mut self) -> Option<Extent> {
        self.left = self.left.checked_sub(1)?;
        let steps = &self.steps[..self.used];
        let offset: u64 = steps.iter().zip(&self.at).map(|(step, at)| step.stride * at).sum();
        // Like an odometer: the fastest step turns, and where it is full the next slower one.
        for (step, at) in steps.iter().zip(&mut self.at).rev() {
            *at += 1;
            if *at < step.count {
                break;
            }
            *at = 0;
        }
        Extent::new(self.first + offset, self.run_bytes)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left as usize, Some(self.left as usize))
    }
}

impl ExactSizeIterator for Runs {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::geometry::{AttentionSpec, Geometry};
    use crate::layout::tests::{coordinates, small_shapes};
    use crate::layout::{Coordinate, Layout};
    use proptest::prelude::*;

    fn shape(layout: Layout) -> ArenaShape {
        let spec = AttentionSpec {
            layers: 4,
            kv_heads: 8,
            head_dim: 64,
            block_tokens: 16,
            dtype: DType::Bf16,
        };
        ArenaShape::new(Geometry::attention(spec).unwrap(), layout, 10).unwrap()
    }

    #[test]
    fn runs_are_as_long_as_the_layout_allows() {
        let whole = Part::block(BlockId(3));
        let count = |layout, order| shape(layout).runs(&whole, order).unwrap().len();
        assert_eq!(count(Layout::BlockFirst, Order::Tokens), 1);
        assert_eq!(count(Layout::Nhd, Order::Tokens), 4, "one per layer");
        assert_eq!(count(Layout::Hnd, Order::Stored), 4, "one per layer, heads before tokens");
        assert_eq!(count(Layout::Hnd, Order::Tokens), 4 * 2 * 16 * 8, "a row each");
        assert_eq!(count(Layout::LayerBlockHead, Order::Stored), 4 * 2);
        assert_eq!(count(Layout::HeadMajor, Order::Stored), 4 * 2 * 8);
        let token = whole.clone().layer(1).half(Half::Value).tokens(2..3);
        assert_eq!(shape(Layout::Nhd).runs(&token, Order::Tokens).unwrap().len(), 1);
        assert_eq!(shape(Layout::Hnd).runs(&token, Order::Tokens).unwrap().len(), 8);
    }

    #[test]
    fn parts_outside_are_refused() {
        let shape = shape(Layout::Nhd);
        let whole = Part::block(BlockId(3));
        let axis = |part: &Part| shape.runs(part, Order::Tokens).unwrap_err().axis;
        assert_eq!(axis(&Part::block(BlockId(10))), Axis::Block);
        assert_eq!(axis(&whole.clone().layer(4)), Axis::Layer);
        assert_eq!(axis(&whole.clone().tokens(0..17)), Axis::Token);
        #[expect(clippy::reversed_empty_ranges, reason = "this is what must be refused")]
        let backwards = whole.clone().tokens(9..3);
        assert_eq!(axis(&backwards), Axis::Token);
        let none = shape.runs(&whole.tokens(5..5), Order::Tokens).unwrap();
        assert_eq!((none.bytes(), none.count()), (0, 0));
    }

    /// The bytes of a part in an order, one offset for each byte, by sorting coordinates: no strides.
    fn expected(shape: &ArenaShape, part: &Part) -> Vec<u64> {
        let inside = |at: &Coordinate| {
            at.block == part.block
                && part.layer.is_none_or(|layer| at.layer == layer)
                && part.half.is_none_or(|half| at.half == half)
                && part.tokens.as_ref().is_none_or(|tokens| tokens.contains(&at.token))
        };
        let mut all: Vec<_> = coordinates(shape).into_iter().filter(inside).collect();
        all.sort_by_key(|at| (at.layer, at.half, at.token, at.head));
        let row = shape.geometry().row_bytes();
        let bytes = |at| {
            let first = shape.offset(at).unwrap();
            first..first + row
        };
        all.into_iter().flat_map(bytes).collect()
    }

    proptest! {
        /// The runs give exactly the bytes of the part, in the order of tokens; in the order of the layout
        /// they give the same bytes, ascending.
        #[test]
        fn runs_are_the_bytes_of_the_part(
            shape in small_shapes(),
            picks in (any::<u32>(), any::<u32>(), any::<u32>(), any::<u32>()),
            all in any::<[bool; 3]>(),
        ) {
            let mut part = Part::block(BlockId(picks.0 % shape.blocks()));
            if !all[0] {
                part = part.layer(picks.1 % shape.count(Axis::Layer));
            }
            if !all[1] {
                part = part.half(Half::Key);
            }
            if !all[2] {
                let slots = shape.count(Axis::Token);
                let start = picks.2 % (slots + 1);
                part = part.tokens(start..start + picks.3 % (slots - start + 1));
            }
            let flat = |order| {
                let runs = shape.runs(&part, order).unwrap();
                let total = runs.bytes();
                let bytes: Vec<u64> = runs.flat_map(|run| run.offset()..run.end()).collect();
                assert_eq!(bytes.len() as u64, total);
                bytes
            };
            let mut wanted = expected(&shape, &part);
            prop_assert_eq!(flat(Order::Tokens), wanted.clone());
            wanted.sort_unstable();
            prop_assert_eq!(flat(Order::Stored), wanted);
        }
    }
}
