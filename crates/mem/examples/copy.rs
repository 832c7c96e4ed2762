//! How near the fused copy and checksum comes to a plain copy: GB/s and their ratio, medians, for
//! buffers that stay in cache ("hot") and for buffers out of a large pool ("cold").
//!
//! Then what a hot get costs on top: with a pin in the owner's process, and without one through a
//! second mapping, as another process of the machine would.
//!
//! Run with `cargo run --release -p mooncrate-mem --example copy`.
#![expect(clippy::print_stdout, reason = "an example prints what it measured")]
#![expect(clippy::cast_precision_loss, reason = "three digits are enough")]

use mooncrate_core::seal::extent_bytes;
use mooncrate_core::{
    Extent, Generation, Incarnation, LeaderEpoch, Locator, Now, ObjectId, PutToken, SegmentId, Slot,
};
use mooncrate_mem::clock::boottime;
use mooncrate_mem::{BeginWrite, LabelHash, Mapping, Segment, SegmentSpec, crc};
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
    println!(
        "{:>9} {:>5} {:>10} {:>10} {:>7} {:>11}",
        "bytes", "", "copy GB/s", "fused", "ratio", "ns fused"
    );
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
    for len in [64, 4096, 65_536] {
        match hot_gets(len) {
            Ok((pinned, mapped)) => {
                println!("hot get of {len} bytes: pinned {pinned:.0} ns, mapped {mapped:.0} ns");
            }
            Err(error) => println!("no gets were measured: {error}"),
        }
    }
}

/// Nanoseconds of a get of `len` bytes that are in cache: pinned, and through a mapping.
fn hot_gets(len: u64) -> Result<(f64, f64), Box<dyn std::error::Error>> {
    let (segment, incarnation) = (SegmentId(1), Incarnation(1));
    let (bytes, slots) = (1 << 21, 1);
    let spec = SegmentSpec { segment, incarnation, bytes, slots, shared: true, huge: false };
    let owner = Segment::create(spec)?;
    owner.set_serve_until(Now(u64::MAX));
    let (headers, payload) = owner.fds().expect("it is shared");
    let mapping = Mapping::new(headers, payload, None, spec.identity())?;
    let extent = Extent::new(0, extent_bytes(len)).expect("it is short");
    let locator = Locator {
        segment,
        incarnation,
        slot: Slot(0),
        generation: Generation(0),
        extent,
        stripe: 0,
        grant: None,
    };
    let token = PutToken(1);
    let (object, epoch, label) =
        (ObjectId::default(), LeaderEpoch(1), b"\0\0\0\0\0label".as_slice());
    let hash = LabelHash::of(label);
    let put = BeginWrite { locator, token, object, epoch, len, label, hash };
    let mut guard = owner.begin(boottime(), &put)?;
    guard.write(0, &vec![7; len as usize])?;
    let seal = guard.seal();
    guard.publish(boottime(), token, seal)?;
    let mut copy = vec![0; len as usize];
    let (mut pinned, mut mapped) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        pinned.push(per_call(|| {
            let pin = owner.pin(boottime(), &locator).expect("it is ready");
            pin.read_into(seal, &mut copy).expect("it is sound");
        }));
        mapped.push(per_call(|| {
            mapping.read_into(&locator, seal, &mut copy, boottime).expect("it is ready and sound");
        }));
    }
    Ok((median(pinned), median(mapped)))
}

fn per_call(mut call: impl FnMut()) -> f64 {
    const CALLS: u32 = 2000;
    let begin = boottime();
    for _ in 0..CALLS {
        call();
    }
    boottime().since(begin).as_nanos() as f64 / f64::from(CALLS)
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
fn measure(
    source: &[u8],
    target: &mut [u8],
    len: usize,
    pool: usize,
    round: usize,
    copy: Copy,
) -> f64 {
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
