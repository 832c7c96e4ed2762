//! Checks that try things: a ring, a file in memory, the clock, the checksum.

use super::checks::finding;
use super::machine::Machine;
use super::{Finding, Grade};
use mooncrate_mem::crc;
use mooncrate_wire::clock::boottime;
use rustix::fs::{MemfdFlags, memfd_create};
use std::hint::black_box;
use std::io;
use std::time::Duration;

/// Entries of the ring that is tried.
const RING: u32 = 8;
/// Bytes summed at a time: they stay in the second cache, so the sum is measured, not the memory.
const SUMMED: usize = 256 << 10;
/// How long to sum.
const SUM_TIME: Duration = Duration::from_millis(50);
/// Readings of the clock.
const READINGS: u32 = 10_000;
/// A clock that takes longer than this asks the kernel each time.
const CLOCK_NS_MAX: u128 = 200;

pub(super) fn all(machine: &Machine) -> Vec<Finding> {
    let ring = io_uring::IoUring::new(RING).map(drop);
    let memory = memfd_create("mooncrate-doctor", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING);
    vec![
        rings(machine, ring),
        memory_files(memory.map(drop).map_err(io::Error::from)),
        checksum(crc::kernel_name(), &machine.processor_flags(), gigabytes_per_second()),
        clock(machine.text(CLOCK), nanos_per_reading()),
    ]
}

const CLOCK: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";

fn rings(machine: &Machine, tried: io::Result<()>) -> Finding {
    let why = "Disks are read and written through rings; without them by slower single calls.";
    let Err(error) = tried else {
        return Finding { why, ..finding("io_uring", Grade::Ok, "a ring can be made") };
    };
    let fix = match (machine.number("/proc/sys/kernel/io_uring_disabled"), error.kind()) {
        (Some(1 | 2), _) => "sudo sysctl -w kernel.io_uring_disabled=0".to_owned(),
        (_, io::ErrorKind::Unsupported) => "use a kernel of 5.10 or later".to_owned(),
        (_, io::ErrorKind::PermissionDenied) => {
            "allow io_uring_setup in the container's seccomp profile".to_owned()
        }
        _ => "raise the limit of locked memory (ulimit -l), or look at the error".to_owned(),
    };
    Finding { why, fix: Some(fix), ..finding("io_uring", Grade::Missing, error.to_string()) }
}

fn memory_files(tried: io::Result<()>) -> Finding {
    let why = "A segment is a file in memory, so that processes of one host can map it.";
    let (grade, found, fix) = match tried {
        Ok(()) => (Grade::Ok, "can be made and sealed".to_owned(), None),
        Err(error) => {
            let fix = "allow memfd_create in the container's seccomp profile".to_owned();
            (Grade::Missing, error.to_string(), Some(fix))
        }
    };
    Finding { why, fix, required: true, ..finding("memfd", grade, found) }
}

fn checksum(kernel: &str, flags: &[String], speed: f64) -> Finding {
    let has = |flag: &&str| flags.iter().any(|have| have == *flag);
    let found: Vec<&str> =
        ["avx512f", "vpclmulqdq", "avx2", "pclmulqdq", "sse4_2"].into_iter().filter(has).collect();
    let shown = if found.is_empty() { "none of interest".to_owned() } else { found.join(" ") };
    let grade = if kernel == "portable" { Grade::Better } else { Grade::Ok };
    Finding {
        why: "Every byte of every put and get is summed once.",
        fix: (grade != Grade::Ok).then(|| {
            "use a processor, or a virtual machine, with avx512f and vpclmulqdq".to_owned()
        }),
        ..finding("checksum", grade, format!("{kernel} kernel, {speed:.1} GB/s (flags: {shown})"))
    }
}

fn clock(source: Option<String>, nanos: u128) -> Finding {
    let grade = if nanos <= CLOCK_NS_MAX { Grade::Ok } else { Grade::Better };
    let source = source.unwrap_or_else(|| "source not known".to_owned());
    Finding {
        why: "Leases and deadlines read the clock several times in each call.",
        fix: (grade != Grade::Ok).then(|| format!("echo tsc | sudo tee {CLOCK}")),
        ..finding("clock", grade, format!("{source}, {nanos} ns a reading"))
    }
}

#[expect(clippy::cast_precision_loss, reason = "a speed for people")]
fn gigabytes_per_second() -> f64 {
    let bytes = vec![0xa5_u8; SUMMED];
    let began = boottime();
    let mut summed = 0_u64;
    loop {
        black_box(crc::crc(black_box(&bytes)));
        summed += bytes.len() as u64;
        let took = boottime().since(began);
        if took >= SUM_TIME {
            return summed as f64 / took.as_secs_f64() / 1e9;
        }
    }
}

fn nanos_per_reading() -> u128 {
    let began = boottime();
    for _ in 0..READINGS {
        black_box(boottime());
    }
    boottime().since(began).as_nanos() / u128::from(READINGS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nowhere() -> Machine {
        let root = "/no/such/root".into();
        Machine { root, programs: std::ffi::OsString::new(), libraries: std::ffi::OsString::new() }
    }

    #[test]
    fn a_ring_that_cannot_be_made_names_the_way_out() {
        assert_eq!(rings(&nowhere(), Ok(())).grade, Grade::Ok);
        for (code, says) in [(38, "kernel of 5.10"), (1, "seccomp"), (12, "locked memory")] {
            let one = rings(&nowhere(), Err(io::Error::from_raw_os_error(code)));
            assert_eq!((one.grade, one.required), (Grade::Missing, false));
            assert!(one.fix.as_ref().unwrap().contains(says), "{code}: {one:?}");
        }
    }

    #[test]
    fn nothing_runs_without_files_in_memory() {
        let one = memory_files(Err(io::Error::from_raw_os_error(1)));
        assert!(one.required && one.grade == Grade::Missing && one.fix.is_some(), "{one:?}");
    }

    #[test]
    fn the_slow_kernel_and_the_slow_clock_could_be_better() {
        let flags = vec!["avx2".to_owned(), "sse4_2".to_owned()];
        let one = checksum("portable", &flags, 1.25);
        assert_eq!(one.found, "portable kernel, 1.2 GB/s (flags: avx2 sse4_2)");
        assert!(one.grade == Grade::Better && one.fix.is_some());
        assert_eq!(checksum("avx512", &[], 30.0).grade, Grade::Ok);
        assert_eq!(clock(None, 20).grade, Grade::Ok);
        let slow = clock(Some("hpet".into()), 900);
        assert!(slow.grade == Grade::Better && slow.found.contains("hpet, 900 ns"));
    }

    #[test]
    fn what_is_measured_is_more_than_nothing() {
        assert!(gigabytes_per_second() > 0.01);
        assert!(nanos_per_reading() < 1_000_000);
    }
}
