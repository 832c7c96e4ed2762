//! The crash test on real disks: a child process works on a directory and kills itself at a named point, the
//! parent opens what is left and judges it by the oracle.
//!
//! The child tells on a pipe what it is about to do and what became of it; the pipe outlives the child, so
//! the parent knows what had been answered. Who and what is kept follows from the seed and a number, so
//! the pipe carries numbers only.
//!
//! A killed process loses nothing of what the kernel has: power cuts are the simulated disk's work. What is
//! shown here is that the real disks and the real points behave as the simulated ones.

pub mod child;
mod parent;

pub use parent::{Job, Sum, run};

use super::entry::Facts;
use mooncrate_check::PutId;
use mooncrate_core::label::Label;
use mooncrate_core::rng::Rng;
use mooncrate_core::{KeyHash, LeaderEpoch, Name, ObjectId, Seal, TenantId};
use mooncrate_mem::sums::seal_of;
use mooncrate_ssd::disk::{Disk, Posix, Uring};
use mooncrate_ssd::{Config, Evict, Kind, RecordId};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Bytes that the files of a directory may take.
const LIMIT: u64 = 2 << 20;

/// The record of a number.
fn record(seed: u64, number: u64) -> (RecordId, Facts) {
    let mut rng = Rng::new(seed ^ number.rotate_right(20));
    let id = RecordId { object: ObjectId { epoch: LeaderEpoch(1), sequence: number }, stripe: 0 };
    let len = match rng.below(10) {
        0 => 0,
        1 => 4095 + rng.below(3),
        2 => rng.below(200_000),
        _ => rng.below(12_000),
    };
    let key = format!("key-{number}-{}", "x".repeat(rng.below(60) as usize));
    let name = Name::new(TenantId(3), key.as_bytes());
    let label = Label::plain(name).expect("1 to 8192 bytes").encode();
    let put = PutId::new(7, 7, number as u32);
    (id, Facts { put, key: KeyHash(rng.next()), len, seal: Seal(0), label })
}

/// The record with its value.
fn record_and_value(seed: u64, number: u64) -> (RecordId, Facts, Vec<u8>) {
    let (id, mut facts) = record(seed, number);
    let mut value = vec![0; facts.len as usize];
    facts.fill(&mut value, 0);
    facts.seal = seal_of(&value);
    (id, facts, value)
}

fn config(kind: Kind, seed: u64) -> Config {
    Config {
        bucket_bytes_max: 128 << 10,
        bucket_records_max: 12,
        handles_max: 4,
        evict: if seed.is_multiple_of(2) { Evict::Fifo } else { Evict::Lru },
        verify_values: seed.is_multiple_of(3),
        token: Some(seed),
        ..Config::new(kind, LIMIT)
    }
}

/// Opens a disk. A child that another thread of the parent just started may hold the lock of the directory
/// for a moment: it inherits it, and lets it go as soon as it runs its program.
fn open_disk(name: &str, directory: &Path) -> io::Result<Arc<dyn Disk>> {
    let open = || -> io::Result<Arc<dyn Disk>> {
        Ok(match name {
            "uring" => Arc::new(Uring::open(directory)?),
            _ => Arc::new(Posix::open(directory)?),
        })
    };
    for _ in 0..100 {
        if let Ok(disk) = open() {
            return Ok(disk);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    open()
}
