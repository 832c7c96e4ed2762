// gather and scatter: the blocks of a sequence, by block table, to and from a contiguous buffer.
#include "copy.cuh"

// Item i: block table[i] of the arena to place i of the buffer.
extern "C" __global__ void gather_blocks(u8* target, const __grid_constant__ Strides to,
                                         const u8* arena, const __grid_constant__ Strides from,
                                         u32 block_count, const u32* table, u32 tiles, u32* refused) {
    const u32 item = blockIdx.x / tiles;
    const u32 tile = blockIdx.x % tiles;
    wait_for_earlier_work();
    const u32 block = table[item];
    if (block >= block_count) {
        refuse(refused, tile);
        return;
    }
    copy_tile(target + item * to.block, to, arena + block * from.block, from, tile);
}

// Item i: place i of the buffer to block table[i] of the arena.
extern "C" __global__ void scatter_blocks(u8* arena, const __grid_constant__ Strides to,
                                          const u8* source, const __grid_constant__ Strides from,
                                          u32 block_count, const u32* table, u32 tiles,
                                          u32* refused) {
    const u32 item = blockIdx.x / tiles;
    const u32 tile = blockIdx.x % tiles;
    wait_for_earlier_work();
    const u32 block = table[item];
    if (block >= block_count) {
        refuse(refused, tile);
        return;
    }
    copy_tile(arena + block * to.block, to, source + item * from.block, from, tile);
}
