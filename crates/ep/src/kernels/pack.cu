// pack: the tokens that came to this rank, in the order of its experts, each expert's by ascending slot.
#include "ep.cuh"

namespace ep {

// The experts of a slot; false: the row was not written in this phase.
__device__ __forceinline__ bool experts_of(const Step& step, u32 slot, u32 phase, uint4& experts, u32& stamp) {
    const uint4* row = meta_at(step, step.me, slot);
    experts = __ldcg(row);
    stamp = __ldcg(row + 3).y;
    bool good = stamp == phase;
    for (u32 k = 0; k < TOP_K_MAX; k++) {
        good &= half_at(experts, k) < int(step.local_experts);
    }
    return good;
}

// The last block: how many tokens each expert has.
__device__ __forceinline__ void count_experts(const Step& step, u32 phase, u32* count, unsigned* counts) {
    for (u32 expert = threadIdx.x; expert < step.local_experts; expert += blockDim.x) {
        count[expert] = 0;
    }
    __syncthreads();
    const u32 slots = step.ranks * step.tokens_max;
    for (u32 slot = threadIdx.x; slot < slots; slot += blockDim.x) {
        uint4 experts;
        u32 stamp;
        if (!experts_of(step, slot, phase, experts, stamp)) {
            continue;
        }
        for (u32 k = 0; k < TOP_K_MAX; k++) {
            const int expert = half_at(experts, k);
            if (expert >= 0) {
                atomicAdd(&count[expert], 1u);
            }
        }
    }
    __syncthreads();
    for (u32 expert = threadIdx.x; expert < step.local_experts; expert += blockDim.x) {
        counts[expert] = min(count[expert], step.rows_max);
        if (count[expert] > step.rows_max) {
            atomicMin(ctl(step) + BAD, violation_of(OVERFLOW_, expert, 0, count[expert]));
        }
    }
}

// How many of the slots before this one each of its experts has.
__device__ __forceinline__ void count_before(const Step& step, u32 slot, u32 phase, const uint4& own, u32* before) {
    for (u32 other = threadIdx.x; other < slot; other += blockDim.x) {
        uint4 experts;
        u32 stamp;
        if (!experts_of(step, other, phase, experts, stamp)) {
            continue;
        }
        for (u32 k = 0; k < TOP_K_MAX; k++) {
            const int mine = half_at(own, k);
            for (u32 i = 0; mine >= 0 && i < TOP_K_MAX; i++) {
                if (half_at(experts, i) == mine) {
                    atomicAdd(&before[k], 1u);
                }
            }
        }
    }
}

} // namespace ep

// A block for each slot, and one that counts. `packed` has [local_experts, rows_max] tokens, `counts` has a
// number for each expert, `rows` has 8 for each slot: the row of `packed` at each top-k position, or -1.
extern "C" __global__ void ep_pack(const __grid_constant__ ep::Step step, uint4* packed, unsigned* counts,
                                   int* rows) {
    using namespace ep;
    __shared__ u32 count[LOCAL_EXPERTS_MAX];
    __shared__ int places[TOP_K_MAX];
    const Start start = begin(step, 0);
    cudaTriggerProgrammaticLaunchCompletion();
    if (!start.good) {
        return;
    }
    const u32 slot = blockIdx.x, phase = start.phase;
    if (!start.ordered) {
        if (threadIdx.x == 0) {
            atomicMin(ctl(step) + BAD, out_of_order(start));
        }
    } else if (slot == step.ranks * step.tokens_max) {
        count_experts(step, phase, count, counts);
    } else {
        uint4 own;
        u32 stamp;
        const bool good = experts_of(step, slot, phase, own, stamp);
        bool any = false;
        for (u32 k = 0; k < TOP_K_MAX; k++) {
            any |= good && half_at(own, k) >= 0;
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
        if (threadIdx.x < TOP_K_MAX) {
            count[threadIdx.x] = 0;
        }
        __syncthreads();
        if (any) {
            count_before(step, slot, phase, own, count);
        }
        __syncthreads();
        if (threadIdx.x < TOP_K_MAX) {
            const int expert = half_at(own, threadIdx.x);
            const bool here = good && expert >= 0 && count[threadIdx.x] < step.rows_max;
            const int row = here ? int(u32(expert) * step.rows_max + count[threadIdx.x]) : -1;
            places[threadIdx.x] = row;
            rows[u64(slot) * TOP_K_MAX + threadIdx.x] = row;
        }
        if (threadIdx.x == 0 && !good) {
            atomicMin(ctl(step) + BAD, violation_of(STALE_ROW, slot, 0, stamp));
        }
        __syncthreads();
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
    }
    if (!last_of_all(step)) {
        return;
    }
    const u64 bad = __ldcg(ctl(step) + BAD);
    if (bad != NO_VIOLATION) {
        fail_violation(step, bad, start.tag, phase);
    }
}
