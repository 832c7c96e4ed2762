// copy_blocks: whole blocks, all layers, within one arena.
#include "copy.cuh"

struct BlockPair {
    u32 source, target;
};

// Item i: block pairs[i].source to block pairs[i].target. No target is a source of the same launch.
extern "C" __global__ void copy_blocks(u8* arena, const __grid_constant__ Strides strides,
                                       u32 block_count, const BlockPair* pairs, u32 tiles,
                                       u32* refused) {
    const u32 item = blockIdx.x / tiles;
    const u32 tile = blockIdx.x % tiles;
    wait_for_earlier_work();
    const u32 source = pairs[item].source;
    const u32 target = pairs[item].target;
    if (source >= block_count || target >= block_count) {
        refuse(refused, tile);
        return;
    }
    copy_tile(arena + target * strides.block, strides, arena + source * strides.block, strides, tile);
}
