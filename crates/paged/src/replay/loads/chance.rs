//! Random choices of a generated load, in the distributions that request loads have.
//!
//! What must stay true: the choices are the same on every machine. Addition, multiplication, division and the square
//! root are, as IEEE 754 defines their results to the last bit. The logarithm, the exponential function and the cosine
//! of the standard library are not: it calls the C library of the platform. So they are computed here from the
//! operations that are exact, by series that end below the precision of a double.

use super::Text;
use mooncrate_core::rng::SplitMix64;
use std::f64::consts::{LN_2, SQRT_2, TAU};

/// The choices that a seed fixes.
#[derive(Debug)]
pub(super) struct Chance(SplitMix64);

impl Chance {
    pub(super) const fn new(seed: u64) -> Self {
        Self(SplitMix64::new(seed))
    }

    /// A number below `bound`; all are equally likely.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0.below(bound)
    }

    /// A number from 0 to 1, without 1; all are equally likely.
    #[expect(clippy::cast_precision_loss, reason = "53 bits fit into a double")]
    pub(super) fn unit(&mut self) -> f64 {
        (self.0.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// The time to the next event, if events do not depend on each other.
    pub(super) fn exponential(&mut self, mean: f64) -> f64 {
        -mean * ln(1.0 - self.unit())
    }

    /// A quantity that is often small and now and then very large, such as a length or the time that a person thinks.
    /// Half of the values are below `median`; `sigma` is the standard deviation of the logarithm.
    pub(super) fn log_normal(&mut self, median: f64, sigma: f64) -> f64 {
        // Box and Muller: two uniform numbers make a normal one.
        let radius = (-2.0 * ln(1.0 - self.unit())).sqrt();
        median * exp(sigma * radius * cos_of_turns(self.unit()))
    }

    /// A text that occurs once.
    pub(super) fn new_text(&mut self) -> Text {
        Text(self.0.next())
    }
}

/// Zipf's law: of so many things the one with rank n, from 0, is chosen with a weight of 1 / (n + 1)^s.
#[derive(Debug)]
pub(super) struct Zipf {
    /// The weights up to each rank, added up.
    sums: Vec<f64>,
    total: f64,
}

impl Zipf {
    pub(super) fn new(things: u32, s: f64) -> Self {
        let mut total = 0.0;
        let sums = (1..=things).map(|rank| {
            total += 1.0 / exp(s * ln(f64::from(rank)));
            total
        });
        Self { sums: sums.collect(), total }
    }

    /// A rank, from 0.
    pub(super) fn draw(&self, chance: &mut Chance) -> u64 {
        let point = chance.unit() * self.total;
        self.sums.partition_point(|sum| *sum < point) as u64
    }
}

/// The integer part of a number that is not negative.
#[expect(clippy::cast_sign_loss, reason = "times and lengths are not negative")]
pub(super) const fn whole(number: f64) -> u64 {
    number as u64
}

/// The natural logarithm of a positive number.
fn ln(number: f64) -> f64 {
    debug_assert!(number.is_normal() && number > 0.0, "{number}");
    // The number is fraction * 2^exponent, and the fraction is near 1, where the series is short.
    let bits = number.to_bits();
    let mut exponent = (bits >> 52) as i32 - 1023;
    let mut fraction = f64::from_bits(bits & ((1 << 52) - 1) | 1023 << 52);
    if fraction > SQRT_2 {
        fraction /= 2.0;
        exponent += 1;
    }
    // ln f = 2 (r + r³/3 + r⁵/5 + …) for r = (f - 1) / (f + 1); here |r| < 0.172.
    let ratio = (fraction - 1.0) / (fraction + 1.0);
    let terms =
        (0..12).rev().fold(0.0, |sum, term| sum * ratio * ratio + 1.0 / f64::from(2 * term + 1));
    2.0 * ratio * terms + f64::from(exponent) * LN_2
}

/// e to the power of a number whose result is a normal double.
fn exp(number: f64) -> f64 {
    debug_assert!(number.abs() < 700.0, "{number}");
    // e^number is 2^power * e^rest, and the rest is near 0, where the series is short.
    let power = (number / LN_2).round();
    let rest = number - power * LN_2;
    // e^r = 1 + r (1 + r/2 (1 + r/3 (…))); here |r| < 0.347.
    let series = (1..18).rev().fold(1.0, |sum, term| 1.0 + sum * rest / f64::from(term));
    series * f64::from_bits(whole(power + 1023.0) << 52)
}

/// The cosine of an angle of so many full turns, from 0 to 1.
fn cos_of_turns(turns: f64) -> f64 {
    // Half a turn less changes the sign, and the series is shorter: cos a = 1 - a²/2! + a⁴/4! - …, |a| ≤ π.
    let angle = (turns - 0.5) * TAU;
    -(1..16)
        .rev()
        .fold(1.0, |sum, term| 1.0 - sum * angle * angle / f64::from((2 * term - 1) * (2 * term)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_functions_are_those_of_the_standard_library() {
        let is_near = |ours: f64, theirs: f64, what: f64| {
            assert!((ours - theirs).abs() <= 4e-15 * theirs.abs().max(1.0), "{ours} at {what}");
        };
        let mut chance = Chance::new(1);
        for _ in 0..10_000 {
            let unit = chance.unit();
            is_near(ln(1.0 - unit), (1.0 - unit).ln(), unit);
            is_near(ln(1.0 + 3000.0 * unit), (1.0 + 3000.0 * unit).ln(), unit);
            is_near(exp(20.0 * unit - 10.0), (20.0 * unit - 10.0).exp(), unit);
            is_near(cos_of_turns(unit), (unit * TAU).cos(), unit);
        }
        is_near(ln(f64::EPSILON / 2.0), (f64::EPSILON / 2.0).ln(), 0.0);
        assert_eq!((ln(1.0), exp(0.0)), (0.0, 1.0));
    }

    #[test]
    fn choices_are_distributed_as_they_are_named() {
        let (mut chance, zipf) = (Chance::new(2), Zipf::new(3, 1.0));
        let draws = 60_000;
        let mut ranks = [0_u32; 3];
        let (mut waited, mut below_median) = (0.0, 0);
        for _ in 0..draws {
            ranks[zipf.draw(&mut chance) as usize] += 1;
            waited += chance.exponential(300.0) / f64::from(draws);
            below_median += u32::from(chance.log_normal(5000.0, 0.7) < 5000.0);
        }
        // Weights of 1, 1/2 and 1/3 are 6, 3 and 2 of 11.
        for (found, weight) in ranks.into_iter().zip([6, 3, 2]) {
            assert!(found.abs_diff(draws * weight / 11) < draws / 100, "{ranks:?}");
        }
        assert!((waited - 300.0).abs() < 5.0, "{waited}");
        assert!(below_median.abs_diff(draws / 2) < draws / 100, "{below_median}");
    }
}
