// What the kernels of the cache share: addresses in the heaps of other ranks, the control word of a
// header, a copy of any length, and the counter by which the last block of a launch is found.
//
// Rules: 16 bytes per access, single bytes only after the last full piece; 64-bit offsets; memory that
// another GPU may have written is read from L2 (`__ldcg`), and no pointer is `__restrict__`, so the
// compiler never uses the read-only cache. Nothing waits for another block and nothing traps. A control
// word changes by 64-bit compare-and-swap at system scope only: there is no store to one in any kernel.
#pragma once

#include "../../../gpu/src/early.cuh"

using u8 = unsigned char;
using u32 = unsigned int;
using u64 = unsigned long long;

// Where this process has mapped the heap of each rank. Mirrors `heap::Bases`.
struct Bases {
    u64 at[8];
};
static_assert(sizeof(Bases) == 64, "Bases is 64 bytes in Rust as well");

__device__ __forceinline__ u8* place(const Bases& bases, u32 rank, u64 offset) {
    u8* at = reinterpret_cast<u8*>(bases.at[rank] + offset);
#ifdef __CUDACC__
    // An address that was a number is taken for shared memory otherwise, at every access.
    __builtin_assume(__isGlobal(at));
#endif
    return at;
}

// ---- memory order: PTX, because CUDA C++ has no name for it; the emulator brings its own --------------

#ifdef __CUDACC__
// For steps that stand alone: what was written before is visible to whoever sees the new word, and what
// others wrote before the word that was found is visible here.
__device__ __forceinline__ u64 cas_acq_rel_sys(u64* at, u64 seen, u64 next) {
    u64 found;
    asm volatile("atom.acq_rel.sys.global.cas.b64 %0, [%1], %2, %3;"
                 : "=l"(found)
                 : "l"(__cvta_generic_to_global(at)), "l"(seen), "l"(next)
                 : "memory");
    return found;
}
// After `fence_sys`: together they are a release at system scope, and the fence is paid once.
__device__ __forceinline__ u64 cas_relaxed_sys(u64* at, u64 seen, u64 next) {
    u64 found;
    asm volatile("atom.relaxed.sys.global.cas.b64 %0, [%1], %2, %3;"
                 : "=l"(found)
                 : "l"(__cvta_generic_to_global(at)), "l"(seen), "l"(next)
                 : "memory");
    return found;
}
__device__ __forceinline__ void fence_sys() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }
__device__ __forceinline__ u64 load_acquire_sys(u64* at) {
    u64 found;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];"
                 : "=l"(found)
                 : "l"(__cvta_generic_to_global(at))
                 : "memory");
    return found;
}
__device__ __forceinline__ void store_release_sys(u64* at, u64 value) {
    asm volatile("st.release.sys.global.u64 [%0], %1;"
                 :
                 : "l"(__cvta_generic_to_global(at)), "l"(value)
                 : "memory");
}
__device__ __forceinline__ u32 add_acq_rel_gpu(u32* at, u32 more) {
    u32 found;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;"
                 : "=r"(found)
                 : "l"(__cvta_generic_to_global(at)), "r"(more)
                 : "memory");
    return found;
}
#endif

// ---- the control word: generation << 32 | state << 28 | pins; mirrors `core::word::Word` ---------------

constexpr u64 HEADER = 128, WORD = 56;
constexpr u32 DEAD = 0, RESERVED = 1, WRITING = 2, READY = 3, RETIRING = 4, FAILED = 5;
constexpr u64 PIN_MASK = (1ull << 28) - 1;
constexpr u32 RANK_BITS = 3;

// Mirrors `RawStep` in words.rs.
constexpr u32 RESERVE = 0, BEGIN = 1, PUBLISH = 2, UNLINK = 3, RECLAIM = 4, ABORT = 5, FENCE = 6, PIN = 7,
              UNPIN = 8, OPEN = 9;

// What became of a step. Mirrors `Outcome` in outcome.rs: a word, and a code.
constexpr u32 MISSING = 0, DONE = 1, REFUSED = 2, BUSY = 3;
struct Outcome {
    u64 word;
    u32 code, zero;
};
static_assert(sizeof(Outcome) == 16, "Outcome is 16 bytes in Rust as well");

// A lost compare-and-swap means that somebody else got on. This many in a row are answered with BUSY, so
// that no thread stays here for ever.
constexpr u32 ATTEMPTS = 4096;

__device__ __forceinline__ u64 make_word(u32 generation, u32 state, u64 pins) {
    return u64(generation) << 32 | u64(state) << 28 | pins;
}
__device__ __forceinline__ u64* word_at(const Bases& bases, u32 rank, u32 slot) {
    return reinterpret_cast<u64*>(place(bases, rank, slot * HEADER + WORD));
}
// A code outside of the table reads as failed, which allows nothing but fencing.
__device__ __forceinline__ u32 state_of(u64 word) {
    const u32 state = u32(word >> 28) & 15;
    return state > FAILED ? FAILED : state;
}
__device__ __forceinline__ u64 pins_of(u64 word, u32 rank) {
    return word >> (rank * RANK_BITS) & ((1u << RANK_BITS) - 1);
}

// The state after an event, or 15 where the event is refused: `ReplicaState::after`.
__device__ __forceinline__ u32 state_after(u32 state, u32 event) {
    switch (event) {
    case RESERVE:
        return state == DEAD ? RESERVED : 15;
    case BEGIN:
        return state == RESERVED ? WRITING : 15;
    case PUBLISH:
        return state == WRITING ? READY : 15;
    case UNLINK:
        return state == READY ? RETIRING : 15;
    case RECLAIM:
        return state == READY || state == RETIRING ? DEAD : 15;
    case ABORT:
        return state == RESERVED || state == WRITING ? FAILED : 15;
    case FENCE:
        return state == FAILED ? DEAD : 15;
    }
    return 15;
}

// The word after an event: `Word::after`, `Word::pinned_by`, and one pin less. False: refused.
__device__ __forceinline__ bool word_after(u64 word, u32 generation, u32 event, u32 rank, u64& next) {
    if (u32(word >> 32) != generation) {
        return false;
    }
    if (event == PIN) {
        next = word + (1ull << (rank * RANK_BITS));
        return state_of(word) == READY && pins_of(word, rank) < (1u << RANK_BITS) - 1;
    }
    if (event == UNPIN) {
        next = word - (1ull << (rank * RANK_BITS));
        return pins_of(word, rank) > 0;
    }
    const u64 pins = word & PIN_MASK;
    const u32 state = state_after(state_of(word), event);
    if (state == 15 || (event == RECLAIM && pins > 0)) {
        return false;
    }
    // Freeing bumps the generation in the same step. At the maximum the slot stays, dead and used up.
    const bool bumps = (event == ABORT || event == RECLAIM) && generation != 0xffffffffu;
    next = make_word(bumps ? generation + 1 : generation, state, pins);
    return true;
}

// One step. `seen` is what the word is thought to be: a wrong guess costs one attempt, and is only right
// where the event is allowed on it.
template <class Cas>
__device__ __forceinline__ Outcome step_word(u64* at, u64 seen, u32 generation, u32 event, u32 rank,
                                             Cas cas) {
#pragma unroll 1
    for (u32 attempt = 0; attempt < ATTEMPTS; attempt++) {
        u64 next;
        if (!word_after(seen, generation, event, rank, next)) {
            return {seen, REFUSED, 0};
        }
        const u64 found = cas(at, seen, next);
        if (found == seen) {
            return {next, DONE, 0};
        }
        seen = found;
    }
    return {seen, BUSY, 0};
}

// ---- data ---------------------------------------------------------------------------------------------

// 16-byte pieces that each thread has in flight.
constexpr u32 IN_FLIGHT = 4;

// This block's part of a copy: the pieces from `blockIdx.x * block_pieces` on, as many or up to the end,
// and, after the last full piece, the single bytes that are left.
__device__ __forceinline__ void copy_part(u8* target, const u8* source, u64 bytes, u32 block_pieces) {
    const u64 pieces = bytes / 16;
    const u64 first = u64(blockIdx.x) * block_pieces;
    const u64 end = min(first + block_pieces, pieces);
    for (u64 at = first + threadIdx.x; at < end; at += IN_FLIGHT * blockDim.x) {
        uint4 held[IN_FLIGHT];
#pragma unroll
        for (u32 i = 0; i < IN_FLIGHT; i++) {
            const u64 piece = at + i * blockDim.x;
            if (piece < end) {
                held[i] = __ldcg(reinterpret_cast<const uint4*>(source + 16 * piece));
            }
        }
#pragma unroll
        for (u32 i = 0; i < IN_FLIGHT; i++) {
            const u64 piece = at + i * blockDim.x;
            if (piece < end) {
                *reinterpret_cast<uint4*>(target + 16 * piece) = held[i];
            }
        }
    }
    const u64 left = 16 * pieces + threadIdx.x;
    if (blockIdx.x == gridDim.x - 1 && left < bytes) {
        target[left] = __ldcg(source + left);
    }
}

// What a launch counts its blocks with, and where its last one leaves the outcome: here, and in memory of the
// host if `told` names some. Mirrors `Counter` in outcome.rs. Launches that share one follow each other.
struct Counter {
    u32 arrived, zero;
    Outcome* told;
    Outcome outcome;
};
static_assert(sizeof(Counter) == 32, "Counter is 32 bytes in Rust as well");

// Whether this is one thread of the block that came last: then everything that all blocks have loaded and
// stored is ordered before what it does after `fence_sys`. Each block's own accesses are ordered by the
// barrier, the blocks among each other by the acquire and release of the counter.
__device__ __forceinline__ bool last_of_all(Counter* counter) {
    __syncthreads();
    if (threadIdx.x != 0 || add_acq_rel_gpu(&counter->arrived, 1) != gridDim.x - 1) {
        return false;
    }
    // For the next launch, which begins after this one.
    counter->arrived = 0;
    return true;
}

// By the last block, after all else: whoever sees the outcome in `told` may use whatever the launch was given for
// something new, although the launch has not quite ended.
__device__ __forceinline__ void leave(Counter* counter, const Outcome& outcome) {
    counter->outcome = outcome;
    Outcome* told = counter->told;
    if (told != nullptr) {
        told->word = outcome.word;
        store_release_sys(reinterpret_cast<u64*>(&told->code), outcome.code);
    }
}
