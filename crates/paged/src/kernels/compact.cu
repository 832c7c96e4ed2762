// compact: single token rows, all layers, from old blocks of a sequence to new ones.
#include "copy.cuh"

struct RowMove {
    i64 source, target;
};

// Item i: the token in slot moves[i].source to slot moves[i].target. `strides` describes one token.
// The blocks that are read and the blocks that are written are different ones, so the order of the
// items does not matter.
extern "C" __global__ void compact_rows(u8* arena, const __grid_constant__ Strides strides,
                                        u64 slot_count, u32 block_tokens, const RowMove* moves,
                                        u32 tiles, u32* refused) {
    const u32 item = blockIdx.x / tiles;
    const u32 tile = blockIdx.x % tiles;
    wait_for_earlier_work();
    const i64 source = moves[item].source;
    const i64 target = moves[item].target;
    // A negative slot is a large one without its sign.
    if (u64(source) >= slot_count || u64(target) >= slot_count) {
        refuse(refused, tile);
        return;
    }
    copy_tile(arena + slot_offset(strides, u64(target), block_tokens), strides,
              arena + slot_offset(strides, u64(source), block_tokens), strides, tile);
}
