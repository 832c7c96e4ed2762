// host: a copy between device memory and pinned host memory by the multiprocessors, for small values.
#include "nano.cuh"

extern "C" __global__ void copy_bytes(u8* target, const u8* source, u64 bytes, u32 block_pieces) {
    wait_for_earlier_work();
    copy_part(target, source, bytes, block_pieces);
}
