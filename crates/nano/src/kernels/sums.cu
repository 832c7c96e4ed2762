// sums: the CRC-64/NVME of each page of a value.
//
// A CRC is linear. A page is a polynomial whose coefficients are its bits; its sum is that polynomial
// times x^64, modulo ours, but for constants that depend on the length alone. Each thread takes every
// THREADS-th piece of 16 bytes, so that neighbours load side by side, and folds: what it has so far, moved
// by x^(128 * THREADS), plus the next piece. At the end it moves its rest to its place, and all rests of a
// page are added. Threads and blocks are counted from the end of the page, so the distance to the end is
// the same for all pages, whatever their length, and comes from a table.
//
// Bits are reflected: bit 63 of a number stands for x^0.
#include "nano.cuh"

constexpr u64 POLY = 0x9a6c9329ac4bc9b5ull;
// `THREADS` and `DEPTH` in sums.rs: pieces of a block, side by side and one after the other.
constexpr u32 THREADS = 256, DEPTH = 16;

// Made by sums.rs. `fold[k][v]`: the polynomial with value v in half byte k of a piece, times
// x^(128 * THREADS). Sixteen entries of 8 bytes are as wide as shared memory: no two collide.
struct Tables {
    u64 fold[32][16];
    // What moves the rest of a thread to the end of its block: undoes one fold, adds the x^64.
    u64 thread[THREADS];
    // x^(8 * n): what moves a sum over n more bytes.
    u64 byte[16];
    // What moves the rest of a block over the blocks after it.
    u64 block[];
};

__device__ __forceinline__ u64 times_x(u64 value) { return value >> 1 ^ (POLY & (0 - (value & 1))); }

// The product of two polynomials, modulo ours.
__device__ __forceinline__ u64 multiply(u64 a, u64 b) {
    u64 product = 0;
    for (u32 bit = 0; bit < 64; bit++) {
        product ^= b & (0 - (a >> (63 - bit) & 1));
        b = times_x(b);
    }
    return product;
}

__device__ __forceinline__ u64 fold_word(const u64 (*tables)[16], u64 word) {
    u64 sum = 0;
#pragma unroll
    for (u32 k = 0; k < 16; k++) {
        sum ^= tables[k][word >> (4 * k) & 15];
    }
    return sum;
}

// The pieces of this thread, folded: those whose number from the end of the page is `threadIdx.x` more
// than a multiple of THREADS, in the block number `block`, also from the end.
__device__ __forceinline__ u64 fold_pieces(const u64 (*fold)[16], const u8* page, u64 pieces, u32 block) {
    const u64 nearest = u64(block) * THREADS * DEPTH + threadIdx.x;
    u64 first = 0, second = 0;
#pragma unroll 1
    for (u32 step = 0; step < DEPTH; step += IN_FLIGHT) {
        // Pieces before the first one of the page are zeros, which change nothing.
        uint4 held[IN_FLIGHT];
#pragma unroll
        for (u32 i = 0; i < IN_FLIGHT; i++) {
            const u64 from_end = nearest + (DEPTH - 1 - step - i) * THREADS;
            held[i] = {0, 0, 0, 0};
            if (from_end < pieces) {
                held[i] = __ldcg(reinterpret_cast<const uint4*>(page + 16 * (pieces - 1 - from_end)));
            }
        }
#pragma unroll
        for (u32 i = 0; i < IN_FLIGHT; i++) {
            const u64 moved = fold_word(fold, first) ^ fold_word(fold + 16, second);
            first = held[i].x | u64(held[i].y) << 32;
            second = (held[i].z | u64(held[i].w) << 32) ^ moved;
        }
    }
    return fold_word(fold, first) ^ fold_word(fold + 16, second);
}

// The single bytes after the last full piece.
__device__ __forceinline__ u64 sum_bytes(const u8* bytes, u32 count) {
    u64 sum = 0;
    for (u32 i = 0; i < count; i++) {
        sum ^= __ldcg(bytes + i);
        for (u32 bit = 0; bit < 8; bit++) {
            sum = times_x(sum);
        }
    }
    return sum;
}

// Adds the sums of all pages to `sums`, which is zero before. `page_const` and `last_const` are the shares
// of a sum that depend on the length of a page alone.
extern "C" __global__ void page_sums(const u8* value, u64 bytes, u32 page_bytes, u32 page_blocks,
                                     const Tables* tables, u64 page_const, u64 last_const, u64* sums) {
    __shared__ u64 fold[32][16];
    __shared__ u64 rests[THREADS];
    const u32 index = blockIdx.x / page_blocks, block = blockIdx.x % page_blocks;
    const u64 offset = u64(index) * page_bytes;
    const u64 left = bytes - offset;
    const u32 len = u32(min(left, u64(page_bytes)));
    const u32 pieces = len / 16, single = len % 16;
    if (block > 0 && block * THREADS * DEPTH >= pieces) {
        return;
    }
    for (u32 at = threadIdx.x; at < 32 * 16; at += THREADS) {
        fold[at / 16][at % 16] = tables->fold[at / 16][at % 16];
    }
    __syncthreads();
    const u8* page = value + offset;
    rests[threadIdx.x] = multiply(fold_pieces(fold, page, pieces, block), tables->thread[threadIdx.x]);
    __syncthreads();
    if (threadIdx.x < 16) {
        u64 sum = 0;
        for (u32 at = threadIdx.x; at < THREADS; at += 16) {
            sum ^= rests[at];
        }
        fold[0][threadIdx.x] = sum;
    }
    __syncthreads();
    if (threadIdx.x != 0) {
        return;
    }
    u64 sum = 0;
    for (u32 at = 0; at < 16; at++) {
        sum ^= fold[0][at];
    }
    if (block > 0) {
        sum = multiply(sum, tables->block[block]);
    }
    if (single > 0) {
        sum = multiply(sum, tables->byte[single]);
    }
    if (block == 0) {
        sum ^= sum_bytes(page + 16 * pieces, single) ^ (left <= page_bytes ? last_const : page_const);
    }
    atomicXor(&sums[index], sum);
}
