//! `experts` on host memory: the same products. Which sums are made is the same as in the kernel, too; but a tensor core
//! adds up the 16 products of one instruction in a way of its own, so a GPU's bits differ within the rounding of bf16.

use crate::bf16;
use crate::config::Shape;

/// Warps that share a product, of the first and of the second kind; each adds up every so many chunks of it.
const UP_SHARE: usize = 8;
const DOWN_SHARE: usize = 4;
/// Elements of a chunk: a piece of eight for each of four threads.
const CHUNK: usize = 32;

/// The weights of a rank's experts, bf16.
#[derive(Clone, Copy, Debug)]
pub struct Weights<'a> {
    /// Elements between the two products of an expert, a multiple of 8.
    pub inter: u32,
    /// `[local_experts, 2, inter, hidden]`: the gate, then what it is multiplied with.
    pub w13: &'a [u16],
    /// `[local_experts, hidden, inter]`.
    pub w2: &'a [u16],
}

/// What the experts make of packed tokens: `y = w2 · (silu(gate · x) × (up · x))`, each product added up in f32
/// and rounded once. `act` is `[local_experts, rows_max, inter]`; `x` and `y` are as in [`super::Packed`]. Rows
/// without a token stay as they are.
pub fn experts_oracle(
    shape: &Shape,
    weights: &Weights<'_>,
    x: &[u16],
    counts: &[u32],
    act: &mut [u16],
    y: &mut [u16],
) {
    let (hidden, inter) = (shape.hidden() as usize, weights.inter as usize);
    for (expert, count) in counts.iter().enumerate() {
        for row in 0..*count as usize {
            let at = expert * shape.rows_max() as usize + row;
            let (x, y) = (&x[at * hidden..][..hidden], &mut y[at * hidden..][..hidden]);
            expert_oracle(weights, expert, x, &mut act[at * inter..][..inter], y);
        }
    }
}

/// The same for one token and one local expert.
pub fn expert_oracle(
    weights: &Weights<'_>,
    expert: usize,
    x: &[u16],
    act: &mut [u16],
    y: &mut [u16],
) {
    let (hidden, inter) = (x.len(), weights.inter as usize);
    for (column, value) in act.iter_mut().enumerate() {
        let weight = |of: usize| {
            let from = ((expert * 2 + of) * inter + column) * hidden;
            &weights.w13[from..from + hidden]
        };
        *value =
            bf16::from_f32(gated(dot::<UP_SHARE>(weight(0), x), dot::<UP_SHARE>(weight(1), x)));
    }
    for (column, value) in y.iter_mut().enumerate() {
        let from = (expert * hidden + column) * inter;
        *value = bf16::from_f32(dot::<DOWN_SHARE>(&weights.w2[from..from + inter], act));
    }
}

/// A product in the order of the kernel: two instructions for each chunk, of 16 elements each; two neighbours of
/// each piece of it, then two more.
fn dot<const SHARE: usize>(weights: &[u16], x: &[u16]) -> f32 {
    let mut parts = [0f32; SHARE];
    for (chunk, (weights, x)) in weights.chunks(CHUNK).zip(x.chunks(CHUNK)).enumerate() {
        let part = &mut parts[chunk % SHARE];
        for pair in (0..8).step_by(2) {
            for (weights, x) in weights.chunks_exact(8).zip(x.chunks_exact(8)) {
                for i in [pair, pair + 1] {
                    *part = bf16::to_f32(weights[i]).mul_add(bf16::to_f32(x[i]), *part);
                }
            }
        }
    }
    parts.iter().fold(0.0, |sum, part| sum + part)
}

fn gated(gate: f32, up: f32) -> f32 {
    gate / (1.0 + exp(-gate)) * up
}

/// e^x from multiplications and additions alone, because the libraries of CUDA and Rust differ in the last bit:
/// 2^n times the first eight terms of the series of the rest, which is below 0.35. Cut off at -87 and 88.
fn exp(x: f32) -> f32 {
    let x = x.clamp(-87.0, 88.0);
    let n = (x * std::f32::consts::LOG2_E).round_ties_even();
    // ln 2 in two parts, of which the first has few bits: n times it is exact.
    let r = n.mul_add(2.121_944_4e-4, n.mul_add(-0.693_359_4, x));
    let mut y = 1.984_127e-4_f32;
    for term in [1.388_888_9e-3, 8.333_333e-3, 4.166_666_8e-2, 1.666_666_7e-1, 0.5, 1.0, 1.0] {
        y = y.mul_add(r, term);
    }
    #[expect(clippy::cast_sign_loss, reason = "from 1 to 254")]
    let power = (n as i32 + 127) as u32;
    y * f32::from_bits(power << 23)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::EpConfig;
    use mooncrate_core::rng::Rng;

    #[test]
    fn the_exponential_is_right_to_the_last_bits() {
        let mut rng = Rng::new(1);
        for _ in 0..100_000 {
            #[expect(clippy::cast_precision_loss, reason = "a number of 16 bits")]
            let x = (rng.below(1 << 16) as f32 / 65_536.0 - 0.5) * 174.0;
            let right = f64::from(x).exp();
            let error = ((f64::from(exp(x)) - right) / right).abs();
            assert!(error < 2.0 * f64::from(f32::EPSILON), "{x}: {error}");
        }
        assert_eq!(exp(0.0).to_bits(), 1f32.to_bits());
        assert!(exp(-1000.0) > 0.0 && exp(1000.0).is_finite());
    }

    /// Against f64: only the roundings to bf16 and those of the sums remain.
    #[test]
    fn experts_are_right_within_bf16() {
        are_right_within_bf16(2, 48, 40, 0.3);
    }

    /// The same at the shape of DeepSeek-V3, where sums have thousands of terms.
    #[test]
    fn large_experts_are_right_within_bf16() {
        are_right_within_bf16(1, 7168, 2048, 0.02);
    }

    /// So many experts of a rank, with weights up to `scale`.
    fn are_right_within_bf16(local: usize, hidden: usize, inter: usize, scale: f32) {
        let config = EpConfig {
            world: 2,
            hidden,
            experts: 2 * local,
            top_k: local,
            tokens_max: 3,
            ..EpConfig::default()
        };
        let shape = config.shape().unwrap();
        let rows = shape.rows_max() as usize;
        let mut rng = Rng::new(5);
        #[expect(clippy::cast_precision_loss, reason = "a number of 16 bits")]
        let mut draw = |count: usize, scale: f32| -> Vec<u16> {
            let one = |rng: &mut Rng| (rng.below(1 << 16) as f32 / 32_768.0 - 1.0) * scale;
            (0..count).map(|_| bf16::from_f32(one(&mut rng))).collect()
        };
        let matrices = local * inter * hidden;
        let (w13, w2) = (draw(2 * matrices, scale), draw(matrices, scale));
        let x = draw(local * rows * hidden, 1.0);
        let weights = Weights { inter: inter as u32, w13: &w13, w2: &w2 };
        let (mut act, mut y) = (vec![7; local * rows * inter], vec![7; local * rows * hidden]);
        experts_oracle(&shape, &weights, &x, &[2, 3][..local], &mut act, &mut y);
        let f = |bits: &u16| f64::from(bf16::to_f32(*bits));
        let dot = |w: &[u16], x: &[f64]| w.iter().zip(x).map(|(w, x)| f(w) * x).sum::<f64>();
        for (expert, row) in [(0, 0), (0, 1), (1, 0), (1, 2)].into_iter().take(2 * local) {
            let at = expert * rows + row;
            let token: Vec<f64> = x[at * hidden..][..hidden].iter().map(f).collect();
            let between: Vec<f64> = (0..inter)
                .map(|i| {
                    let gate = dot(&w13[(expert * 2 * inter + i) * hidden..][..hidden], &token);
                    let up = dot(&w13[((expert * 2 + 1) * inter + i) * hidden..][..hidden], &token);
                    gate / (1.0 + (-gate).exp()) * up
                })
                .collect();
            let size = between.iter().map(|v| v * v).sum::<f64>().sqrt();
            for h in 0..hidden {
                let right = dot(&w2[(expert * hidden + h) * inter..][..inter], &between);
                let error = (f(&y[at * hidden + h]) - right).abs();
                let most = 0.01 * (right.abs() + f64::from(scale) * size);
                assert!(error < most, "{right}: {error}");
            }
        }
        assert!(y[2 * hidden..3 * hidden].iter().all(|bits| *bits == 7), "a row without a token");
    }
}
