//! The path for every processor: copy a chunk, then sum it where it arrived, while it is in cache.

use crc_fast::{CrcAlgorithm, Digest};
use std::sync::atomic::{Ordering, compiler_fence};

/// Small enough that the chunk is still in the first or second level when it is summed.
const CHUNK_BYTES: usize = 32 << 10;

/// As `Crc::update`.
pub(super) unsafe fn sum(state: u64, source: *const u8, len: usize) -> u64 {
    if len == 0 {
        return state;
    }
    // SAFETY: the caller promises that `len` bytes are readable; nobody writes a borrowed slice.
    let bytes = unsafe { std::slice::from_raw_parts(source, len) };
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc64Nvme, state);
    digest.update(bytes);
    !digest.finalize()
}

/// As `Crc::copy`.
pub(super) unsafe fn copy(mut state: u64, target: *mut u8, source: *const u8, len: usize) -> u64 {
    let mut done = 0;
    while done < len {
        let bytes = CHUNK_BYTES.min(len - done);
        let (to, from) = (target.wrapping_add(done), source.wrapping_add(done));
        // SAFETY: the caller promises both ranges, and `done + bytes <= len`.
        unsafe { opaque_copy(to, from, bytes) };
        // SAFETY: the bytes have just been written there, and the target is the caller's alone.
        state = unsafe { sum(state, to, bytes) };
        done += bytes;
    }
    state
}

/// A copy that the compiler cannot look through: never inlined, and behind a barrier, so that the
/// sum is taken of the target and not, once more, of a source that may have changed.
#[inline(never)]
unsafe fn opaque_copy(target: *mut u8, source: *const u8, len: usize) {
    // SAFETY: the caller promises both ranges and that they do not overlap.
    unsafe { std::ptr::copy_nonoverlapping(source, std::hint::black_box(target), len) };
    compiler_fence(Ordering::SeqCst);
}
