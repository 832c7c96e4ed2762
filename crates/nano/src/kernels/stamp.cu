// stamp: fills memory with lines that say whose they are, and counts those that say something else.
#include "nano.cuh"

constexpr u32 LINE = 64;

// Piece `piece` of line `index` of the value `id`: one of both numbers, and one that no other piece has.
struct Stamp {
    u64 name, mixed;
};
__device__ __forceinline__ Stamp stamp(u64 id, u64 index, u32 piece) {
    u64 mixed = (id ^ (index * 4 + piece) * 0x9e3779b97f4a7c15ull) * 0xbf58476d1ce4e5b9ull;
    mixed ^= mixed >> 31;
    return {piece % 2 == 0 ? id : index, mixed};
}
__device__ __forceinline__ u8 byte_of(const Stamp& stamp, u32 at) {
    return u8((at < 8 ? stamp.name : stamp.mixed) >> (8 * (at % 8)));
}

// One thread for each line; the last line may be short.
extern "C" __global__ void fill_lines(u8* target, u64 bytes, u64 id) {
    const u64 index = u64(blockIdx.x) * blockDim.x + threadIdx.x;
    for (u32 piece = 0; piece < LINE / 16; piece++) {
        const u64 at = index * LINE + piece * 16;
        const Stamp wanted = stamp(id, index, piece);
        if (at + 16 <= bytes) {
            *reinterpret_cast<uint4*>(target + at) = {u32(wanted.name), u32(wanted.name >> 32),
                                                      u32(wanted.mixed), u32(wanted.mixed >> 32)};
            continue;
        }
        for (u32 i = 0; at + i < bytes; i++) {
            target[at + i] = byte_of(wanted, i);
        }
    }
}

// Adds the number of wrong lines to `wrong`.
extern "C" __global__ void verify_lines(const u8* source, u64 bytes, u64 id, u64* wrong) {
    const u64 index = u64(blockIdx.x) * blockDim.x + threadIdx.x;
    bool differs = false;
    for (u32 piece = 0; piece < LINE / 16; piece++) {
        const u64 at = index * LINE + piece * 16;
        const Stamp wanted = stamp(id, index, piece);
        if (at + 16 <= bytes) {
            const uint4 seen = __ldcg(reinterpret_cast<const uint4*>(source + at));
            differs |= (seen.x | u64(seen.y) << 32) != wanted.name;
            differs |= (seen.z | u64(seen.w) << 32) != wanted.mixed;
            continue;
        }
        for (u32 i = 0; at + i < bytes; i++) {
            differs |= __ldcg(source + at + i) != byte_of(wanted, i);
        }
    }
    if (differs) {
        atomicAdd(wrong, 1ull);
    }
}
