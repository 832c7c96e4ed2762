// What the kernels of the paged cache share: the stride descriptor, and a copy that follows it.
//
// An item is a block, or one token of a block. It is a set of rows, counted by layer, kind (K or V),
// token and head; a row is contiguous in source and target. The host merges dimensions that are
// contiguous on both sides into longer rows before it launches, so most copies see few, long rows.
//
// Rules: 16 bytes per access; 64-bit offsets; strides are data. Loads of cache memory go to L2
// (`__ldcg`), because another GPU or process may have written it; no pointer is `__restrict__`, so the
// compiler never uses the read-only cache. A bad index is counted and writes nothing; nothing traps.
#pragma once

#include "../../../gpu/src/early.cuh"

using u8 = unsigned char;
using u32 = unsigned int;
using u64 = unsigned long long;
using i64 = long long;

// In bytes, from one to the next; `row` is the length of a row. Mirrors `BlockRows` in rows.rs.
struct Strides {
    u64 block, layer, kind, token, head, row;
    u32 layers, kinds, tokens, heads;
};
static_assert(sizeof(Strides) == 64, "BlockRows is 64 bytes in Rust");

// 16-byte pieces that each thread has in flight. `PIECES` in launch.rs.
constexpr u32 PIECES = 4;

// Which row of an item it is. Divisions are dear, so this is done once for source and target, which
// have the same counts.
struct Row {
    u32 layer, kind, token, head;
};

__device__ __forceinline__ Row row_at(const Strides& strides, u32 index) {
    Row row;
    row.head = index % strides.heads;
    index /= strides.heads;
    row.token = index % strides.tokens;
    index /= strides.tokens;
    row.kind = index % strides.kinds;
    row.layer = index / strides.kinds;
    return row;
}

__device__ __forceinline__ u64 row_offset(const Strides& strides, const Row& row) {
    return row.layer * strides.layer + row.kind * strides.kind + row.token * strides.token +
           row.head * strides.head;
}

// Copies one tile of an item: blockDim.x * PIECES consecutive pieces, in the order of its rows.
__device__ __forceinline__ void copy_tile(u8* target, const Strides& to, const u8* source,
                                          const Strides& from, u32 tile) {
    const u32 row_pieces = u32(from.row / 16);
    const u32 pieces = from.layers * from.kinds * from.tokens * from.heads * row_pieces;
    const u32 first = tile * blockDim.x * PIECES;
    if (first >= pieces) {
        return;
    }
    const u32 end = min(first + blockDim.x * PIECES, pieces);
    const u32 first_row = first / row_pieces;
    uint4 held[PIECES];
    if ((end - 1) / row_pieces == first_row) {
        // The tile lies in one row: the same row for all threads, so one division for all pieces.
        const Row row = row_at(from, first_row);
        source += row_offset(from, row);
        target += row_offset(to, row);
        const u32 before = first_row * row_pieces;
#pragma unroll
        for (u32 i = 0; i < PIECES; i++) {
            const u32 piece = first + i * blockDim.x + threadIdx.x;
            if (piece < end) {
                held[i] = __ldcg(reinterpret_cast<const uint4*>(source + 16 * u64(piece - before)));
            }
        }
#pragma unroll
        for (u32 i = 0; i < PIECES; i++) {
            const u32 piece = first + i * blockDim.x + threadIdx.x;
            if (piece < end) {
                *reinterpret_cast<uint4*>(target + 16 * u64(piece - before)) = held[i];
            }
        }
        return;
    }
    u64 to_offset[PIECES];
#pragma unroll
    for (u32 i = 0; i < PIECES; i++) {
        const u32 piece = first + i * blockDim.x + threadIdx.x;
        if (piece < end) {
            const u32 index = piece / row_pieces;
            const u64 inside = 16 * u64(piece - index * row_pieces);
            const Row row = row_at(from, index);
            to_offset[i] = row_offset(to, row) + inside;
            held[i] = __ldcg(reinterpret_cast<const uint4*>(source + row_offset(from, row) + inside));
        }
    }
#pragma unroll
    for (u32 i = 0; i < PIECES; i++) {
        if (first + i * blockDim.x + threadIdx.x < end) {
            *reinterpret_cast<uint4*>(target + to_offset[i]) = held[i];
        }
    }
}

// One thread of the item counts that it was refused.
__device__ __forceinline__ void refuse(u32* refused, u32 tile) {
    if (tile == 0 && threadIdx.x == 0) {
        atomicAdd(refused, 1u);
    }
}

// Where a token slot lies: slot = block * block_tokens + token.
__device__ __forceinline__ u64 slot_offset(const Strides& strides, u64 slot, u32 block_tokens) {
    const u64 block = slot / block_tokens;
    return block * strides.block + (slot - block * block_tokens) * strides.token;
}
