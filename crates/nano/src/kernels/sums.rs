//! `sums`: the checksum of each page of a value, as `mem` computes it.

use super::value::{aligned, holds, on_gpu_of};
use super::{KernelError, Kernels};
use crate::layout::{PAGE_MAX, Pages};
use mooncrate_gpu::{DeviceBuffer, Gpu, Launch, Span, Stream};
use mooncrate_mem::crc::multiply;

/// Compiled from `sums.cu` by `./dev kernels`.
pub(super) const PTX: &str = include_str!("sums.ptx");
/// Pieces of 16 bytes that a block takes side by side, and one after the other: as in `sums.cu`.
const THREADS: u32 = 256;
const DEPTH: u32 = 16;
/// Bits of a piece.
const PIECE_BITS: i64 = 128;
/// How far a fold moves what a thread has so far.
const FOLD_BITS: i64 = PIECE_BITS * THREADS as i64;
/// Bytes of a block, and blocks of the longest page.
const BLOCK_BYTES: u32 = THREADS * DEPTH * 16;
const BLOCKS_MAX: u32 = PAGE_MAX.div_ceil(BLOCK_BYTES);
/// `x^0`, `x^1`, and what times `x` is `x^0`. Bit 63 stands for `x^0`.
const ONE: u64 = 1 << 63;
const X: u64 = 1 << 62;
const INVERSE: u64 = (ONE ^ multiply(1, X)) << 1 | 1;

/// `x^bits`, modulo the polynomial.
fn power(bits: i64) -> u64 {
    let (mut square, mut left) = (if bits < 0 { INVERSE } else { X }, bits.unsigned_abs());
    let mut product = ONE;
    while left > 0 {
        if left & 1 == 1 {
            product = multiply(product, square);
        }
        square = multiply(square, square);
        left >>= 1;
    }
    product
}

/// The share of a sum that depends on the length alone: the register begins and ends inverted.
fn inverted(bytes: u32) -> u64 {
    !multiply(!0, power(8 * i64::from(bytes)))
}

/// `Tables` in `sums.cu`.
fn tables() -> Vec<u64> {
    let halves = [power(64 + FOLD_BITS), power(FOLD_BITS)];
    let fold = halves.into_iter().flat_map(|moved| {
        (0..64)
            .step_by(4)
            .flat_map(move |bit| (0..16).map(move |value: u64| multiply(value << bit, moved)))
    });
    let thread = (0..THREADS).map(|thread| power(PIECE_BITS * i64::from(thread) + 64 - FOLD_BITS));
    let byte = (0..16).map(|bytes| power(8 * bytes));
    let block = (0..BLOCKS_MAX).map(|block| power(8 * i64::from(block) * i64::from(BLOCK_BYTES)));
    fold.chain(thread).chain(byte).chain(block).collect()
}

/// The tables in device memory.
pub(super) fn upload(gpu: &Gpu) -> Result<DeviceBuffer, KernelError> {
    let bytes: Vec<u8> = tables().into_iter().flat_map(u64::to_le_bytes).collect();
    let memory = DeviceBuffer::new(gpu, bytes.len() as u64)?;
    memory.span().write(&bytes, &Stream::new(gpu)?)?;
    Ok(memory)
}

impl Kernels {
    /// Queues the sums of all pages of a value of as many bytes as `value` has: 8 bytes for each page,
    /// little-endian, from the start of `sums` on.
    pub fn sums(
        &self,
        stream: &Stream,
        value: Span<'_>,
        page_bytes: u32,
        sums: Span<'_>,
    ) -> Result<(), KernelError> {
        on_gpu_of(stream, &[value, sums])?;
        let pages = Pages::new(value.len(), page_bytes)
            .ok_or_else(|| KernelError::Shape(format!("pages of {page_bytes} bytes")))?;
        let needed = 8 * u64::from(pages.count());
        holds("the room for sums", sums, needed)?;
        aligned("the address of the value", value.address())?;
        aligned("the address of the sums", sums.address())?;
        if pages.count() == 0 {
            return Ok(());
        }
        let blocks = page_bytes.div_ceil(BLOCK_BYTES);
        let grid = pages.count().checked_mul(blocks).filter(|grid| i32::try_from(*grid).is_ok());
        let grid = grid.ok_or_else(|| {
            KernelError::Shape(format!("{} pages are too many for one launch", pages.count()))
        })?;
        // The blocks of a page add to its sum.
        sums.part(0..needed)?.fill(0, stream)?;
        let (source, bytes, target) = (value.address(), value.len(), sums.address());
        let tables = self.tables.span().address();
        let (page_const, last_const) = (inverted(page_bytes), inverted(pages.last_bytes()));
        let params = [
            (&source).into(),
            (&bytes).into(),
            (&page_bytes).into(),
            (&blocks).into(),
            (&tables).into(),
            (&page_const).into(),
            (&last_const).into(),
            (&target).into(),
        ];
        // SAFETY: the parameters are those of `page_sums`. It reads the bytes of the value and the tables,
        // which have a block for each one of the longest page, and adds to one number per page, for which
        // there is room. All of it is device memory, whose owners wait for the device before they free.
        Ok(unsafe { self.sums.launch(stream, Launch::linear(grid, THREADS), &params) }?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mooncrate_mem::crc::crc;

    #[test]
    fn powers_go_both_ways() {
        assert_eq!(multiply(power(77), power(-77)), ONE);
        assert_eq!(power(0), ONE);
        assert_eq!(multiply(power(1000), power(-999)), X);
    }

    #[test]
    fn zeros_have_the_inverted_sum() {
        for len in [0, 1, 16, 1000] {
            assert_eq!(inverted(len), crc(&vec![0; len as usize]), "{len}");
        }
    }

    /// The kernel's way through one block, with the tables alone.
    #[test]
    fn tables_fold_to_the_sum() {
        let tables = tables();
        let fold = |first: u64, second: u64| {
            (0..16).fold(0, |sum, k| {
                let half =
                    |word: u64, table: usize| tables[table * 16 + (word >> (4 * k) & 15) as usize];
                sum ^ half(first, k) ^ half(second, 16 + k)
            })
        };
        let bytes: Vec<u8> = (0..1000u32 * 16).map(|n| ((n * n) >> 3) as u8).collect();
        let pieces: Vec<[u64; 2]> = bytes
            .chunks_exact(16)
            .map(|piece| [0, 8].map(|at| u64::from_le_bytes(piece[at..at + 8].try_into().unwrap())))
            .collect();
        let mut sum = inverted(bytes.len() as u32);
        for thread in 0..THREADS as usize {
            let (mut first, mut second) = (0, 0);
            for step in (0..DEPTH as usize).rev() {
                let from_end = step * THREADS as usize + thread;
                let piece = pieces.len().checked_sub(from_end + 1).map_or([0; 2], |at| pieces[at]);
                (first, second) = (piece[0], piece[1] ^ fold(first, second));
            }
            sum ^= multiply(fold(first, second), tables[512 + thread]);
        }
        assert_eq!(sum, crc(&bytes));
    }
}
