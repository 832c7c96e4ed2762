// append: writes the K and V rows of new tokens of one layer into their slots.
#include "copy.cuh"

// `arena` is the address of the layer. `to` and `from` describe one token of one kind; `kind_bytes` is
// the step from K to V in the arena. An item is a token of one kind. Slot -1 (any negative one) skips
// the token; a slot beyond `slot_count` is refused, once for K and once for V.
extern "C" __global__ void append_rows(u8* arena, const __grid_constant__ Strides to, u64 kind_bytes,
                                       u64 slot_count, u32 block_tokens, u32 kinds, const u8* keys,
                                       const u8* values, const __grid_constant__ Strides from,
                                       const i64* slots, u32 tiles, u32* refused) {
    const u32 item = blockIdx.x / tiles;
    const u32 tile = blockIdx.x % tiles;
    const u32 token = item / kinds;
    const u32 kind = item % kinds;
    wait_for_earlier_work();
    const i64 slot = slots[token];
    if (slot < 0) {
        return;
    }
    if (u64(slot) >= slot_count) {
        refuse(refused, tile);
        return;
    }
    const u8* rows = kind == 0 ? keys : values;
    copy_tile(arena + kind * kind_bytes + slot_offset(to, u64(slot), block_tokens), to,
              rows + token * from.token, from, tile);
}
