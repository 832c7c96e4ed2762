// pack: the tokens that came to this rank, in the order of its experts, each expert's by ascending slot.
#include "ep.cuh"

namespace ep {

// What a metadata row says of a slot.
struct Row {
    uint4 experts;
    u32 stamp;
};
__device__ __forceinline__ Row row_of(const Step& step, u32 slot) {
    const uint4* at = meta_at(step, step.me, slot);
    return {__ldcg(at), __ldcg(at + 3).y};
}
// False: the row was not written in this phase, or names an expert that does not exist.
__device__ __forceinline__ bool is_good(const Step& step, const Row& row, u32 phase) {
    bool good = row.stamp == phase;
    for (u32 k = 0; k < TOP_K_MAX; k++) {
        good &= half_at(row.experts, k) < int(step.local_experts);
    }
    return good;
}

// How many tokens of the slots before `end` each expert has.
__device__ __forceinline__ void count_experts(const Step& step, u32 end, u32 phase, u32* count) {
    for (u32 expert = threadIdx.x; expert < step.local_experts; expert += blockDim.x) {
        count[expert] = 0;
    }
    __syncthreads();
    for (u32 slot = threadIdx.x; slot < end; slot += blockDim.x) {
        const Row row = row_of(step, slot);
        const bool good = is_good(step, row, phase);
        for (u32 k = 0; k < TOP_K_MAX; k++) {
            const int expert = half_at(row.experts, k);
            if (good && expert >= 0) {
                atomicAdd(&count[expert], 1u);
            }
        }
    }
    __syncthreads();
}

// What all slots together have. True: this thread found an expert for which it is too much.
__device__ __forceinline__ bool tell_counts(const Step& step, const u32* count, unsigned* counts) {
    bool found = false;
    for (u32 expert = threadIdx.x; expert < step.local_experts; expert += blockDim.x) {
        counts[expert] = min(count[expert], step.rows_max);
        if (count[expert] > step.rows_max) {
            found = true;
            atomicMin(ctl(step) + BAD, violation_of(OVERFLOW_, expert, 0, count[expert]));
        }
    }
    return found;
}

// A slot's token goes to its rows of `packed`: `count` says how many each expert has before it, and afterwards counts
// this one, too. False: the slot's row is not good.
__device__ __forceinline__ bool pack_slot(const Step& step, u32 slot, u32 phase, const Row& own, u32* count,
                                          int* places, uint4* packed, int* rows) {
    const bool good = is_good(step, own, phase);
    bool any = false;
    for (u32 k = 0; k < TOP_K_MAX; k++) {
        any |= good && half_at(own.experts, k) >= 0;
    }
    // The token is asked for before it is known where it goes.
    const uint4* source = token_at(step, step.me, slot);
    u32 piece = threadIdx.x, second = piece + blockDim.x;
    uint4 one = {0, 0, 0, 0}, two = {0, 0, 0, 0};
    if (any && piece < step.token_pieces) {
        one = __ldcg(source + piece);
    }
    if (any && second < step.token_pieces) {
        two = __ldcg(source + second);
    }
    const int expert = threadIdx.x < TOP_K_MAX && good ? half_at(own.experts, threadIdx.x) : -1;
    if (threadIdx.x < TOP_K_MAX) {
        const bool here = expert >= 0 && count[expert] < step.rows_max;
        const int row = here ? int(u32(expert) * step.rows_max + count[expert]) : -1;
        places[threadIdx.x] = row;
        rows[u64(slot) * TOP_K_MAX + threadIdx.x] = row;
    }
    if (threadIdx.x == 0 && !good) {
        atomicMin(ctl(step) + BAD, violation_of(STALE_ROW, slot, 0, own.stamp));
    }
    __syncthreads();
    if (expert >= 0) {
        atomicAdd(&count[expert], 1u);
    }
    while (any && piece < step.token_pieces) {
#pragma unroll
        for (u32 k = 0; k < TOP_K_MAX; k++) {
            if (places[k] >= 0) {
                uint4* row = packed + u64(places[k]) * step.token_pieces;
                row[piece] = one;
                if (second < step.token_pieces) {
                    row[second] = two;
                }
            }
        }
        piece += 2 * blockDim.x, second += 2 * blockDim.x;
        if (piece < step.token_pieces) {
            one = __ldcg(source + piece);
        }
        if (second < step.token_pieces) {
            two = __ldcg(source + second);
        }
    }
    // The next slot has other places.
    __syncthreads();
    return good;
}

} // namespace ep

// Blocks that each have some slots that follow each other, and one that counts. `packed` has
// [local_experts, rows_max] tokens, `counts` has a number for each expert, `rows` has 8 for each slot: the row of
// `packed` at each top-k position, or -1.
extern "C" __global__ void ep_pack(const __grid_constant__ ep::Step step, uint4* packed, unsigned* counts,
                                   int* rows) {
    using namespace ep;
    __shared__ u32 count[LOCAL_EXPERTS_MAX];
    __shared__ int places[TOP_K_MAX];
    __shared__ Row own[BATCH];
    const Start start = begin(step, 0);
    if (!start.good) {
        return;
    }
    const u32 slots = step.ranks * step.tokens_max, movers = gridDim.x - 1;
    const u32 phase = start.phase;
    bool found = false;
    if (!start.ordered) {
        found = true;
        if (threadIdx.x == 0) {
            atomicMin(ctl(step) + BAD, out_of_order(start));
        }
    } else if (blockIdx.x == movers) {
        count_experts(step, slots, phase, count);
        found = tell_counts(step, count, counts);
    } else {
        const u32 each = (slots + movers - 1) / movers, first = blockIdx.x * each, end = min(first + each, slots);
        for (u32 batch = first; batch < end; batch += BATCH) {
            if (threadIdx.x < BATCH && batch + threadIdx.x < end) {
                own[threadIdx.x] = row_of(step, batch + threadIdx.x);
            }
            if (batch == first) {
                count_experts(step, first, phase, count);
            } else {
                __syncthreads();
            }
            for (u32 i = 0; i < BATCH && batch + i < end; i++) {
                found |= !pack_slot(step, batch + i, phase, own[i], count, places, packed, rows);
            }
        }
    }
    // Not before: what comes next would take the places of other ranks' blocks, where they share a GPU.
    cudaTriggerProgrammaticLaunchCompletion();
    if (end_of_all(step, found) == End::FOUND_BAD) {
        fail_violation(step, __ldcg(ctl(step) + BAD), start.tag, phase);
    }
}
