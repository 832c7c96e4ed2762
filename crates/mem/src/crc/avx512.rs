//! The kernel for processors with AVX-512 and VPCLMULQDQ: 64 bytes per step, eight independent
//! remainders, so that the multiplier (latency 8, one per cycle) never waits.
//!
//! ```text
//! 512 bytes at a time:   r[i] = r[i] * x^4096 + bytes[i]      i = 0..8, the bytes stored on the way
//! then                   r    = sum of r[i] * x^(512*(7-i))   64 bytes
//!                        r    = four blocks of 16 into one
//!                        crc  = r * x^64 mod P                Barrett
//! ```
//!
//! A rest of less than 64 bytes is summed as a message of its own, with zeros in front of it, which
//! change nothing, and the state so far laid over its first bytes.

use super::constants::{LAST, POLY, QUOTIENT, fold};
use std::arch::asm;
use std::arch::x86_64::{
    __m128i, __m512i, _MM_HINT_ET0, _MM_HINT_T0, _mm_clmulepi64_si128, _mm_cvtsi128_si64,
    _mm_extract_epi64, _mm_prefetch, _mm_set_epi64x, _mm_xor_si128, _mm512_clmulepi64_epi128,
    _mm512_extracti32x4_epi32, _mm512_mask_storeu_epi8, _mm512_maskz_loadu_epi8, _mm512_set_epi64,
    _mm512_storeu_si512, _mm512_ternarylogic_epi64, _mm512_xor_si512, _mm512_zextsi128_si512,
};

/// Bytes of a register.
const STEP: usize = 64;
/// Remainders kept apart in the main loop.
const WIDE: usize = 8;
/// How far ahead of the loop lines are fetched. Measured: with it the kernel overtakes `memcpy` when
/// the bytes are not in cache (1 MiB: 97 % to 110 %), without loss when they are.
const AHEAD: usize = 4096;
/// `a ^ b ^ c` as a truth table.
const XOR3: i32 = 0x96;

/// Whether this processor can run the kernel.
pub(super) fn available() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("vpclmulqdq")
        && is_x86_feature_detected!("pclmulqdq")
        && is_x86_feature_detected!("sse4.1")
}

/// As `Crc::update`. Only after [`available`] said yes.
pub(super) unsafe fn sum(state: u64, source: *const u8, len: usize) -> u64 {
    // SAFETY: the features are there, the caller promises the source, and nothing is stored.
    unsafe { run::<false>(state, std::ptr::null_mut(), source, len) }
}

/// As `Crc::copy`. Only after [`available`] said yes.
pub(super) unsafe fn copy(state: u64, target: *mut u8, source: *const u8, len: usize) -> u64 {
    // SAFETY: the features are there, and the caller promises both ranges.
    unsafe { run::<true>(state, target, source, len) }
}

#[target_feature(enable = "avx512f,avx512bw,vpclmulqdq,pclmulqdq,sse4.1")]
unsafe fn run<const COPY: bool>(
    mut state: u64,
    target: *mut u8,
    source: *const u8,
    len: usize,
) -> u64 {
    let whole = len - len % STEP;
    if whole > 0 {
        // SAFETY: `whole <= len` bytes are the caller's promise.
        state = unsafe { run_whole::<COPY>(state, target, source, whole) };
    }
    let rest = len - whole;
    if rest > 0 {
        let (target, source) = (target.wrapping_add(whole), source.wrapping_add(whole));
        // SAFETY: the last `rest < STEP` bytes of what the caller promised.
        state = unsafe { run_rest::<COPY>(state, target, source, rest) };
    }
    state
}

/// A multiple of 64 bytes, at least one.
#[target_feature(enable = "avx512f,avx512bw,vpclmulqdq,pclmulqdq,sse4.1")]
unsafe fn run_whole<const COPY: bool>(
    state: u64,
    target: *mut u8,
    source: *const u8,
    len: usize,
) -> u64 {
    // SAFETY: `at + STEP <= len` wherever `take` is called below, and the caller promises `len`.
    let take = |at: usize| unsafe { take::<COPY>(target, source, at) };
    let first = _mm512_zextsi128_si512(_mm_set_epi64x(0, state.cast_signed()));
    let mut at = STEP;
    let mut sum = _mm512_xor_si512(take(0), first);
    if len >= 2 * WIDE * STEP {
        let mut sums = [sum; WIDE];
        for (i, sum) in sums.iter_mut().enumerate().skip(1) {
            *sum = take(i * STEP);
        }
        at = WIDE * STEP;
        let far = spread(const { fold(8 * (WIDE * STEP) as u32) });
        while at + WIDE * STEP <= len {
            if at + WIDE * STEP + AHEAD <= len {
                // Never beyond the end: for short copies that would fetch somebody else's lines.
                prefetch::<COPY>(target.wrapping_add(at + AHEAD), source.wrapping_add(at + AHEAD));
            }
            for (i, sum) in sums.iter_mut().enumerate() {
                *sum = fold_onto(*sum, far, take(at + i * STEP));
            }
            at += WIDE * STEP;
        }
        sum = join(&sums);
    }
    let near = spread(const { fold(8 * STEP as u32) });
    while at < len {
        sum = fold_onto(sum, near, take(at));
        at += STEP;
    }
    finish(sum)
}

/// Fewer than 64 bytes, at least one.
#[target_feature(enable = "avx512f,avx512bw,vpclmulqdq,pclmulqdq,sse4.1")]
unsafe fn run_rest<const COPY: bool>(
    state: u64,
    target: *mut u8,
    source: *const u8,
    len: usize,
) -> u64 {
    let front = STEP - len;
    let mask = !0_u64 << front;
    // The lanes in front are masked off: neither read nor written, whatever lies there.
    let (target, source) = (target.wrapping_sub(front), source.wrapping_sub(front));
    // SAFETY: only the lanes of the `len` bytes that the caller promises are read.
    let bytes = unsafe { load_masked(source, mask) };
    if COPY {
        // SAFETY: only the lanes of the `len` bytes that the caller promises are written.
        unsafe { _mm512_mask_storeu_epi8(target.cast(), mask, bytes) };
    }
    let mut laid = [0_u8; STEP + 8];
    laid[front..front + 8].copy_from_slice(&state.to_le_bytes());
    let mut over = [0_u8; 8];
    over.copy_from_slice(&laid[STEP..]);
    // SAFETY: `laid` has more than 64 bytes.
    let laid = unsafe { _mm512_maskz_loadu_epi8(!0, laid.as_ptr().cast()) };
    // What of the state reaches beyond a message of less than 8 bytes is already remainder.
    finish(_mm512_xor_si512(bytes, laid)) ^ u64::from_le_bytes(over)
}

/// Loads 64 bytes, once, and stores them.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn take<const COPY: bool>(target: *mut u8, source: *const u8, at: usize) -> __m512i {
    // SAFETY: the caller promises 64 readable bytes at `at`.
    let bytes = unsafe { load(source.wrapping_add(at)) };
    let target = target.wrapping_add(at);
    if COPY {
        // SAFETY: the caller promises 64 writable bytes at `at`.
        unsafe { _mm512_storeu_si512(target.cast(), bytes) };
    }
    bytes
}

/// Asks for the lines of one round, those of the target for writing.
#[inline]
#[target_feature(enable = "sse")]
fn prefetch<const COPY: bool>(target: *const u8, source: *const u8) {
    for i in 0..WIDE {
        _mm_prefetch::<_MM_HINT_T0>(source.wrapping_add(i * STEP).cast());
        if COPY {
            _mm_prefetch::<_MM_HINT_ET0>(target.wrapping_add(i * STEP).cast());
        }
    }
}

/// One load in machine code: the compiler may neither repeat it nor assume what it saw, so what is
/// stored and what is summed are the same even if another process writes there.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn load(source: *const u8) -> __m512i {
    let bytes;
    // SAFETY: reads 64 bytes, which the caller promises.
    unsafe {
        asm!("vmovdqu64 {bytes}, [{source}]", bytes = out(zmm_reg) bytes, source = in(reg) source,
            options(readonly, nostack, preserves_flags));
    }
    bytes
}

/// As [`load`], for the bytes of the mask; the others are zero and not read.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn load_masked(source: *const u8, mask: u64) -> __m512i {
    let bytes;
    // SAFETY: reads the bytes of the mask, which the caller promises; masked lanes never fault.
    unsafe {
        asm!("vmovdqu8 {bytes}{{{mask}}}{{z}}, [{source}]", bytes = out(zmm_reg) bytes,
            mask = in(kreg) mask, source = in(reg) source,
            options(readonly, nostack, preserves_flags));
    }
    bytes
}

/// The same two factors for each of the four blocks.
#[inline]
#[target_feature(enable = "avx512f")]
fn spread([high, low]: [u64; 2]) -> __m512i {
    let (high, low) = (high.cast_signed(), low.cast_signed());
    _mm512_set_epi64(low, high, low, high, low, high, low, high)
}

/// `sum * factors + bytes`, for four blocks at a time.
#[inline]
#[target_feature(enable = "avx512f,vpclmulqdq")]
fn fold_onto(sum: __m512i, factors: __m512i, bytes: __m512i) -> __m512i {
    let high = _mm512_clmulepi64_epi128::<0x00>(sum, factors);
    let low = _mm512_clmulepi64_epi128::<0x11>(sum, factors);
    _mm512_ternarylogic_epi64::<XOR3>(high, low, bytes)
}

/// Eight remainders that stand 64 bytes apart into the last one.
#[inline]
#[target_feature(enable = "avx512f,vpclmulqdq")]
fn join(sums: &[__m512i; WIDE]) -> __m512i {
    const FACTORS: [[u64; 2]; WIDE - 1] = {
        let mut factors = [[0; 2]; WIDE - 1];
        let mut i = 0;
        while i < WIDE - 1 {
            factors[i] = fold(8 * (STEP * (WIDE - 1 - i)) as u32);
            i += 1;
        }
        factors
    };
    let mut sum = sums[WIDE - 1];
    for (part, factors) in sums.iter().zip(FACTORS) {
        sum = fold_onto(*part, spread(factors), sum);
    }
    sum
}

/// Four blocks of 16 bytes into the 64-bit register.
#[inline]
#[target_feature(enable = "avx512f,vpclmulqdq,pclmulqdq,sse4.1")]
fn finish(sum: __m512i) -> u64 {
    const A: [u64; 2] = fold(384);
    const B: [u64; 2] = fold(256);
    const C: [u64; 2] = fold(128);
    let factors = _mm512_set_epi64(
        0,
        0,
        C[1].cast_signed(),
        C[0].cast_signed(),
        B[1].cast_signed(),
        B[0].cast_signed(),
        A[1].cast_signed(),
        A[0].cast_signed(),
    );
    let high = _mm512_clmulepi64_epi128::<0x00>(sum, factors);
    let low = _mm512_clmulepi64_epi128::<0x11>(sum, factors);
    let folded = _mm512_xor_si512(high, low);
    let ab = _mm_xor_si128(
        _mm512_extracti32x4_epi32::<0>(folded),
        _mm512_extracti32x4_epi32::<1>(folded),
    );
    let cd =
        _mm_xor_si128(_mm512_extracti32x4_epi32::<2>(folded), _mm512_extracti32x4_epi32::<3>(sum));
    reduce(_mm_xor_si128(ab, cd))
}

/// `block * x^64` modulo the polynomial.
#[inline]
#[target_feature(enable = "pclmulqdq,sse4.1")]
fn reduce(block: __m128i) -> u64 {
    let last = _mm_set_epi64x(0, LAST.cast_signed());
    let barrett = _mm_set_epi64x(POLY.cast_signed(), QUOTIENT.cast_signed());
    let shifted = _mm_set_epi64x(0, _mm_extract_epi64::<1>(block));
    let all = _mm_xor_si128(_mm_clmulepi64_si128::<0x00>(block, last), shifted);
    let high = _mm_cvtsi128_si64(all).cast_unsigned();
    let low = _mm_extract_epi64::<1>(all).cast_unsigned();
    let product = _mm_clmulepi64_si128::<0x00>(all, barrett);
    let quotient = high ^ (_mm_cvtsi128_si64(product).cast_unsigned() << 1);
    let quotient = _mm_set_epi64x(0, quotient.cast_signed());
    let product = _mm_clmulepi64_si128::<0x10>(quotient, barrett);
    let product_low = _mm_cvtsi128_si64(product).cast_unsigned();
    let product_high = _mm_extract_epi64::<1>(product).cast_unsigned();
    low ^ ((product_high << 1) | (product_low >> 63))
}
