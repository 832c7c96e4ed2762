//! How near the fused copy and checksum comes to a plain copy: GB/s and their ratio, medians, for
//! buffers that stay in cache ("hot") and for buffers out of a large pool ("cold").
//!
//! Run with `cargo run --release -p mooncrate-mem --example copy`.
#![expect(clippy::print_stdout, reason = "an example prints what it measured")]

use mooncrate_mem::clock::boottime;
use mooncrate_mem::crc;
use std::hint::black_box;

/// Larger than the private caches; sources and targets are taken from it in turn.
const POOL_BYTES: usize = 512 << 20;
/// Bytes copied per measurement, so that the clock's cost vanishes.
const BATCH_BYTES: usize = 16 << 20;
const ROUNDS: usize = 15;

fn main() {
    // Extents start at a multiple of 64, so the buffers here do too.
    let source: Vec<u8> = (0..POOL_BYTES + 64).map(|i| (i ^ (i >> 9)) as u8).collect();
    let source = &source[source.as_ptr().align_offset(64)..][..POOL_BYTES];
    let mut target = vec![1_u8; POOL_BYTES + 64];
    let skip = target.as_ptr().align_offset(64);
    let target = &mut target[skip..][..POOL_BYTES];
    println!("kernel: {}", crc::kernel_name());
    println!("{:>9} {:>5} {:>10} {:>10} {:>7} {:>11}", "bytes", "", "copy GB/s", "fused", "ratio", "ns fused");
    for shift in [12, 14, 16, 18, 20, 22, 24] {
        let len = 1 << shift;
        for (name, pool) in [("hot", len), ("cold", POOL_BYTES)] {
            let mut plain = Vec::new();
            let mut fused = Vec::new();
            // In turn, so that a noisy neighbour hits both.
            for round in 0..ROUNDS {
                plain.push(measure(source, target, len, pool, round, copy_plain));
                fused.push(measure(source, target, len, pool, round, copy_fused));
            }
            let (plain, fused) = (median(plain), median(fused));
            let rate = |ns: f64| len as f64 / ns;
            println!(
                "{len:>9} {name:>5} {:>10.1} {:>10.1} {:>6.0}% {fused:>11.0}",
                rate(plain),
                rate(fused),
                100.0 * plain / fused,
            );
        }
    }
}

type Copy = fn(&[u8], &mut [u8]);

fn copy_plain(source: &[u8], target: &mut [u8]) {
    target.copy_from_slice(source);
}

fn copy_fused(source: &[u8], target: &mut [u8]) {
    // SAFETY: two slices of one length, one of them exclusive.
    black_box(unsafe { crc::copy_crc(target.as_mut_ptr(), source.as_ptr(), source.len()) });
}

/// Nanoseconds per copy of `len` bytes.
fn measure(source: &[u8], target: &mut [u8], len: usize, pool: usize, round: usize, copy: Copy) -> f64 {
    let count = (BATCH_BYTES / len).max(1);
    let begin = boottime();
    for i in 0..count {
        // A step that is coprime to the pool visits all of it, without a pattern to prefetch.
        let at = (i + round * count).wrapping_mul(97) % (pool / len) * len;
        copy(black_box(&source[at..at + len]), black_box(&mut target[at..at + len]));
    }
    boottime().since(begin).as_nanos() as f64 / count as f64
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
