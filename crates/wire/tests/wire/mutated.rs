//! The fuzz targets on a stable compiler: good inputs, damaged for a few seconds. The checksums are
//! made right again after most changes, or every change would stop at them.

use crate::samples::Samples;
use mooncrate_core::rng::Rng;
use mooncrate_wire::frame::{RequestId, Stamp, VERSION_HELLO, VERSION_MIN, encode_frame};
use mooncrate_wire::{Kind, clock::boottime, fuzzing};
use std::time::Duration;

const SPAN: Duration = Duration::from_secs(2);

/// Runs `target` on mutations of `seeds` until the time is over; says how to repeat a failure.
fn mutate(name: &str, seeds: &[Vec<u8>], mend: impl Fn(&mut [u8]), target: fn(&[u8])) {
    let first = boottime().0;
    let until = boottime().deadline_in(SPAN);
    let mut runs = 0_u64;
    while !until.passed(boottime()) {
        for _ in 0..64 {
            let seed = first + runs;
            let mut rng = Rng::new(seed);
            let mut input = seeds[rng.below(seeds.len() as u64) as usize].clone();
            damage(&mut input, seeds, &mut rng);
            if rng.chance(900) {
                mend(&mut input);
            }
            let outcome = std::panic::catch_unwind(|| target(&input));
            assert!(outcome.is_ok(), "{name} fails for seed {seed}: {input:02x?}");
            runs += 1;
        }
    }
    assert!(runs > 1000, "{name} ran only {runs} times, from seed {first}");
}

fn damage(input: &mut Vec<u8>, seeds: &[Vec<u8>], rng: &mut Rng) {
    for _ in 0..rng.below(4) {
        let at = rng.below(input.len() as u64 + 1) as usize;
        match rng.below(6) {
            0 => input.truncate(at),
            1 => input.insert(at, rng.next() as u8),
            2 if at < input.len() => input[at] ^= 1 << rng.below(8),
            3 if at < input.len() => input[at] = [0, 1, 0x7f, 0x80, 0xff][rng.below(5) as usize],
            4 if at + 4 <= input.len() => {
                let number = [0, 1, 4096, 4097, 1 << 23, u32::MAX][rng.below(6) as usize];
                input[at..at + 4].copy_from_slice(&u32::to_le_bytes(number));
            }
            _ => {
                let other = &seeds[rng.below(seeds.len() as u64) as usize];
                input.truncate(at);
                input.extend_from_slice(&other[rng.below(other.len() as u64 + 1) as usize..]);
            }
        }
    }
}

/// Kind, way and body of every message, a few times over.
fn message_seeds() -> Vec<Vec<u8>> {
    let mut samples = Samples::new(boottime().0);
    let mut seeds = Vec::new();
    for _ in 0..8 {
        for &kind in Kind::ALL {
            let mut seed = |way: u8, encode: &dyn Fn(&mut Vec<u8>)| {
                let mut bytes = vec![kind as u8, way];
                encode(&mut bytes);
                seeds.push(bytes);
            };
            if let Some(message) = samples.request(kind) {
                seed(0, &|out| message.encode(out));
            }
            if let Some(message) = samples.reply(kind) {
                seed(1, &|out| message.encode(out));
            }
            if let Some(message) = samples.data_request(kind) {
                seed(2, &|out| message.encode(out));
            }
            if let Some(message) = samples.data_reply(kind) {
                seed(3, &|out| message.encode(out));
            }
        }
    }
    seeds
}

#[test]
fn messages() {
    mutate("message", &message_seeds(), |_| (), fuzzing::message);
}

#[test]
fn frames() {
    let mut samples = Samples::new(boottime().0);
    let seeds: Vec<_> = message_seeds()
        .iter()
        .map(|seed| {
            let mut out = Vec::new();
            let kind = Kind::from_code(seed[0]).unwrap();
            let stamp = Stamp {
                version: if kind == Kind::Hello { VERSION_HELLO } else { VERSION_MIN },
                kind,
                reply: seed[1] % 2 == 1,
                request: RequestId(samples.u64()),
                deadline_ms: 5,
            };
            encode_frame(&mut out, stamp, |out| out.extend_from_slice(&seed[2..])).unwrap();
            out
        })
        .collect();
    mutate("frame", &seeds, mend_frame, fuzzing::frame);
}

/// Makes the checksums of the first frame right, if it is all there.
fn mend_frame(bytes: &mut [u8]) {
    if bytes.len() < 32 {
        return;
    }
    let length = u32::from_le_bytes(bytes[16..20].try_into().unwrap()) as usize;
    if let Some(body) = bytes.get(32..32 + length) {
        let crc = crc32c::crc32c(body).to_le_bytes();
        bytes[24..28].copy_from_slice(&crc);
    }
    let crc = crc32c::crc32c(&bytes[..28]).to_le_bytes();
    bytes[28..32].copy_from_slice(&crc);
}

#[test]
fn hellos() {
    let mut samples = Samples::new(boottime().0);
    let mut seeds = Vec::new();
    for _ in 0..32 {
        let (mut hello, mut ack) = (Vec::new(), Vec::new());
        samples.hello().encode(&mut hello);
        samples.hello_ack().encode(&mut ack);
        seeds.extend([hello, ack]);
    }
    mutate("hello", &seeds, |_| (), fuzzing::hello);
}
