//! The dense reference: every token visits each of its experts, without ranks, slots or signals, in the order
//! in which the exchange adds up. What the exchange computes must be equal to it, bit for bit (E7).

use crate::config::{Payload, Shape};
use crate::kernels::Batch;
use crate::{bf16, fp8};

/// What expert number `expert` of all makes of a token, as it was sent, into `y`.
pub type Expert<'a> = dyn Fn(u32, &[u16], &mut [u16]) + 'a;

/// The result of each rank's tokens. The inner sums are those of one rank's experts over top-k positions,
/// rounded once; the outer one adds them up in the order of ranks and rounds once.
pub fn dense(shape: &Shape, batches: &[Batch<'_>], expert: &Expert<'_>) -> Vec<Vec<u16>> {
    batches.iter().map(|batch| dense_of(shape, batch, expert)).collect()
}

/// The same for the tokens of one rank: they do not depend on the others.
pub fn dense_of(shape: &Shape, batch: &Batch<'_>, expert: &Expert<'_>) -> Vec<u16> {
    let (hidden, local) = (shape.hidden() as usize, shape.local_experts());
    let mut out = vec![0; batch.tokens as usize * hidden];
    let mut y = vec![0; hidden];
    for (token, target) in (0..batch.tokens).zip(out.chunks_exact_mut(hidden)) {
        let (experts, weights) = batch.route(shape, token);
        let x = batch.token(shape, token);
        let mut total = vec![0f32; hidden];
        for rank in 0..shape.ranks() {
            let mut sum = vec![0f32; hidden];
            let mut hit = false;
            for (chosen, weight) in experts.iter().zip(weights) {
                let chosen = chosen.cast_unsigned();
                if chosen / local != rank {
                    continue;
                }
                hit = true;
                expert(chosen, x, &mut y);
                for (sum, bits) in sum.iter_mut().zip(&y) {
                    *sum = weight.mul_add(bf16::to_f32(*bits), *sum);
                }
            }
            if hit {
                for (total, sum) in total.iter_mut().zip(&sum) {
                    *total += bf16::to_f32(bf16::from_f32(*sum));
                }
            }
        }
        for (place, total) in target.iter_mut().zip(&total) {
            *place = bf16::from_f32(*total);
        }
    }
    out
}

/// The expert of tests for a shape: [`scale_expert`] on the elements that a token stands for.
pub fn test_expert(shape: &Shape) -> impl Fn(u32, &[u16], &mut [u16]) + use<> {
    let (payload, hidden) = (shape.payload(), shape.hidden() as usize);
    move |expert, x, y| match payload {
        Payload::Bf16 => scale_expert(expert, x, y),
        Payload::Fp8 => {
            let mut elements = vec![0; hidden];
            fp8::dequantize(x, &mut elements);
            scale_expert(expert, &elements, y);
        }
    }
}

/// An expert for tests of the exchange: each element times a number of the expert's own, in f32, rounded once.
/// A product of matrices would not be the same bit for bit on two machines.
pub fn scale_expert(expert: u32, x: &[u16], y: &mut [u16]) {
    let scale = scale_of(expert);
    for (y, x) in y.iter_mut().zip(x) {
        *y = bf16::from_f32(scale * bf16::to_f32(*x));
    }
}

/// The number of [`scale_expert`]: exact in f32, and different for neighbours.
#[expect(clippy::cast_precision_loss, reason = "a number below 2^24 is exact")]
pub fn scale_of(expert: u32) -> f32 {
    0.5 + (expert % 4096) as f32 / 128.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::EpConfig;

    #[test]
    fn a_token_of_ones_gives_the_weighted_sum_of_scales() {
        let config = EpConfig { world: 2, hidden: 8, experts: 4, top_k: 3, ..EpConfig::default() };
        let shape = config.shape().unwrap();
        let one = bf16::from_f32(1.0);
        let batch =
            Batch { tokens: 1, x: &[one; 8], experts: &[3, 0, 2], weights: &[0.5, 0.25, 2.0] };
        let out = dense(&shape, &[batch], &scale_expert);
        // Rank 0: 0.25 × 0.5. Rank 1: 0.5 × 0.5234375 + 2 × 0.515625 = 1.29296875, rounded to 1.296875.
        let expected = bf16::from_f32(0.125 + 1.296_875);
        assert_eq!(out, [vec![expected; 8]]);
    }
}
