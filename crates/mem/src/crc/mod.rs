//! CRC-64/NVME, computed while bytes move: the hot loop of every put and get.
//!
//! [`copy_crc`] reads each source byte **once**, into a register; the same register is stored and
//! summed. So even if the source is rewritten during the copy (an unpinned reader, R3), the checksum
//! is that of the bytes in the target, and a torn copy cannot pass. The portable path gets the same
//! by summing the target. The loads are opaque to the compiler: it may neither repeat nor drop them.
//!
//! The kernel is chosen once per process by what the processor can do.

#[cfg(target_arch = "x86_64")]
mod avx512;
mod combine;
#[cfg(target_arch = "x86_64")]
mod constants;
mod portable;

pub use combine::{combine, multiply};

use mooncrate_rt::World;
use std::sync::OnceLock;

/// Parts in which a value is copied in a world.
const COPY_STEPS: usize = 4;

/// A running CRC: the register before the final inversion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crc(u64);

impl Default for Crc {
    fn default() -> Self {
        Self::new()
    }
}

impl Crc {
    /// The CRC of nothing yet.
    pub const fn new() -> Self {
        Self(!0)
    }

    /// The checksum of all bytes so far.
    pub const fn value(self) -> u64 {
        !self.0
    }

    /// The CRC with these bytes added.
    #[must_use]
    pub fn update(self, bytes: &[u8]) -> Self {
        // SAFETY: a slice is readable for its length.
        Self(unsafe { (kernel().sum)(self.0, bytes.as_ptr(), bytes.len()) })
    }

    /// The CRC with `len` more bytes added, which are copied from `source` to `target` on the way.
    ///
    /// # Safety
    /// `source` is readable and `target` writable for `len` bytes, and the two do not overlap. Another
    /// process may write to `source` meanwhile; then which bytes arrive is unspecified, but the CRC
    /// is that of the bytes which did.
    #[must_use]
    pub unsafe fn copy(self, target: *mut u8, source: *const u8, len: usize) -> Self {
        match mooncrate_rt::world() {
            // SAFETY: the caller's promise is the kernel's.
            None => Self(unsafe { (kernel().copy)(self.0, target, source, len) }),
            // SAFETY: the caller's promise is the same.
            Some(world) => unsafe { self.copy_in_steps(world, target, source, len) },
        }
    }

    /// In a world others run between the parts of a copy, as they do on other cores.
    ///
    /// # Safety
    /// As [`Crc::copy`].
    #[cold]
    unsafe fn copy_in_steps(
        self,
        world: &dyn World,
        target: *mut u8,
        source: *const u8,
        len: usize,
    ) -> Self {
        let (mut sum, mut at) = (self.0, 0);
        let step = (len / COPY_STEPS).next_multiple_of(64).max(64);
        world.step();
        while at < len {
            let count = step.min(len - at);
            let (to, from) = (target.wrapping_add(at), source.wrapping_add(at));
            // SAFETY: the part lies inside of what the caller promised.
            sum = unsafe { (kernel().copy)(sum, to, from, count) };
            at += count;
            world.step();
        }
        Self(sum)
    }
}

/// The checksum of some bytes.
pub fn crc(bytes: &[u8]) -> u64 {
    Crc::new().update(bytes).value()
}

/// Copies `len` bytes and returns their checksum.
///
/// # Safety
/// As [`Crc::copy`].
pub unsafe fn copy_crc(target: *mut u8, source: *const u8, len: usize) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { Crc::new().copy(target, source, len) }.value()
}

/// Which kernel this process uses, for `doctor` and for reports of measurements.
pub fn kernel_name() -> &'static str {
    kernel().name
}

struct Kernel {
    name: &'static str,
    sum: unsafe fn(u64, *const u8, usize) -> u64,
    copy: unsafe fn(u64, *mut u8, *const u8, usize) -> u64,
}

const PORTABLE: Kernel = Kernel { name: "portable", sum: portable::sum, copy: portable::copy };

fn kernel() -> &'static Kernel {
    static CHOSEN: OnceLock<Kernel> = OnceLock::new();
    CHOSEN.get_or_init(choose)
}

#[cfg(target_arch = "x86_64")]
fn choose() -> Kernel {
    if avx512::available() {
        Kernel { name: "avx512", sum: avx512::sum, copy: avx512::copy }
    } else {
        PORTABLE
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn choose() -> Kernel {
    PORTABLE
}

#[cfg(test)]
mod tests {
    use super::*;
    use mooncrate_core::rng::Rng;
    use proptest::prelude::*;

    fn kernels() -> Vec<Kernel> {
        #[cfg_attr(not(target_arch = "x86_64"), expect(unused_mut, reason = "one kernel only"))]
        let mut kernels = vec![PORTABLE];
        #[cfg(target_arch = "x86_64")]
        if avx512::available() {
            kernels.push(Kernel { name: "avx512", sum: avx512::sum, copy: avx512::copy });
        } else {
            println!("skipped: the avx512 kernel, which this processor cannot run");
        }
        kernels
    }

    fn noise(seed: u64, len: usize) -> Vec<u8> {
        let mut rng = Rng::new(seed);
        let mut bytes = Vec::with_capacity(len + 8);
        while bytes.len() < len {
            bytes.extend_from_slice(&rng.next().to_le_bytes());
        }
        bytes.truncate(len);
        bytes
    }

    /// Copies `len` bytes between odd alignments and checks sum, bytes, and that nothing beside the
    /// target was touched.
    fn check_copy(kernel: &Kernel, bytes: &[u8], from: usize, to: usize, cut: usize) {
        let mut source = vec![0; from];
        source.extend_from_slice(bytes);
        let mut target = vec![0xa5_u8; to + bytes.len() + 64];
        let want = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, bytes);
        let src = source[from..].as_ptr();
        let dst = target[to..].as_mut_ptr();
        // SAFETY: both vectors hold `cut` bytes behind these pointers.
        let head = unsafe { (kernel.copy)(!0, dst, src, cut) };
        let (dst, src) = (dst.wrapping_add(cut), src.wrapping_add(cut));
        // SAFETY: and the rest of `bytes` behind these.
        let all = unsafe { (kernel.copy)(head, dst, src, bytes.len() - cut) };
        assert_eq!(!all, want, "{} copy of {} cut at {cut}", kernel.name, bytes.len());
        assert_eq!(&target[to..to + bytes.len()], bytes, "{}", kernel.name);
        assert!(target[..to].iter().chain(&target[to + bytes.len()..]).all(|b| *b == 0xa5));
        // SAFETY: a slice is readable for its length.
        let sum = unsafe { (kernel.sum)(!0, bytes.as_ptr(), bytes.len()) };
        assert_eq!(!sum, want, "{} sum of {}", kernel.name, bytes.len());
    }

    /// The catalogue's check value: the format may never change.
    #[test]
    fn the_polynomial_is_nvme() {
        for kernel in kernels() {
            // SAFETY: nine bytes are readable.
            let sum = unsafe { (kernel.sum)(!0, b"123456789".as_ptr(), 9) };
            assert_eq!(!sum, 0xae8b_1486_0a79_9888, "{}", kernel.name);
        }
        assert_eq!(crc(b""), 0);
    }

    #[test]
    fn every_short_length_agrees() {
        let bytes = noise(1, 2400);
        for kernel in kernels() {
            for len in 0..bytes.len() {
                check_copy(&kernel, &bytes[..len], len % 3, len % 67, len / 3);
            }
        }
    }

    #[test]
    fn long_copies_agree() {
        let bytes = noise(2, (9 << 20) + 77);
        for kernel in kernels() {
            check_copy(&kernel, &bytes, 5, 0, 0);
            check_copy(&kernel, &bytes, 0, 3, 1 << 20);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        #[test]
        fn any_length_alignment_and_cut_agree(
            len in 0_usize..70_000, from in 0_usize..70, to in 0_usize..70, cut in 0.0..=1.0_f64,
            seed: u64,
        ) {
            let bytes = noise(seed, len);
            #[expect(clippy::cast_precision_loss, clippy::cast_sign_loss, reason = "any cut will do")]
            let cut = (len as f64 * cut) as usize;
            for kernel in kernels() {
                check_copy(&kernel, &bytes, from, to, cut);
            }
        }
    }
}
