//! What a get would cost under a keyed hash: the copy of a value out of its extent with the checksum of today (CRC-64, on
//! the way), and the same copy with keyed BLAKE3 over each piece while it is in cache. One thread, by its own time on a
//! processor, best of nine.
//!
//! ```console
//! $ cargo run --release -p mooncrate-mem --example keyed_seal
//! ```
#![expect(clippy::print_stdout, reason = "a program that prints its figures")]
#![expect(clippy::cast_precision_loss, reason = "figures of a few digits")]

use mooncrate_mem::sums::{read_value, seal_of};
use rustix::time::{ClockId, clock_gettime};
use std::hint::black_box;
use std::time::Duration;

/// Bytes that are copied and hashed at a time: they stay in the cache of a core.
const PIECE: usize = 128 << 10;
const ROUNDS: usize = 9;

/// What this thread has had of a processor: others on the machine do not count.
fn busy() -> Duration {
    let spent = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(spent.tv_sec.cast_unsigned(), u32::try_from(spent.tv_nsec).unwrap_or(0))
}

/// GB/s of `work` over `bytes`, best of some rounds of about 64 MiB each.
fn speed(bytes: usize, mut work: impl FnMut()) -> f64 {
    let times = ((64 << 20) / bytes).max(1);
    let once = |work: &mut dyn FnMut()| {
        let began = busy();
        (0..times).for_each(|_| work());
        (bytes * times) as f64 / busy().saturating_sub(began).as_nanos() as f64
    };
    (0..ROUNDS).map(|_| once(&mut work)).fold(0.0, f64::max)
}

fn main() {
    let key = [7; 32];
    println!("| value | copy | copy, CRC-64 | copy, keyed BLAKE3 | ratio |");
    println!("|--:|--:|--:|--:|--:|");
    for bytes in [4 << 10, 64 << 10, 1 << 20, 16 << 20] {
        let source: Vec<u8> = (0..bytes).map(|at| (at * 31 % 251) as u8).collect();
        let mut target = vec![0; bytes];
        let plain = speed(bytes, || black_box(&mut target).copy_from_slice(black_box(&source)));
        let seal = seal_of(&source);
        let crc = speed(bytes, || {
            // SAFETY: the source is that long, and apart from the target.
            assert_eq!(unsafe { read_value(black_box(&mut target), source.as_ptr()) }, seal);
        });
        let keyed = speed(bytes, || {
            let mut hash = blake3::Hasher::new_keyed(&key);
            for (to, from) in target.chunks_mut(PIECE).zip(source.chunks(PIECE)) {
                to.copy_from_slice(from);
                hash.update(to);
            }
            black_box(hash.finalize());
        });
        let ratio = keyed / crc;
        println!("| {} KiB | {plain:.1} | {crc:.1} | {keyed:.1} GB/s | {ratio:.2} |", bytes >> 10);
    }
}
