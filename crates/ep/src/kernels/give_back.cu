// give_back: what this rank's experts made of a token is added up and goes to the token's rank.
#include "ep.cuh"

namespace ep {

// What is known of a slot before its results are added up.
struct Slot {
    u64 bad;
    // How many experts of this rank its token has.
    u32 count;
    // The top-k positions that have a result, and where it is and what it counts.
    u32 mask;
    int row[TOP_K_MAX];
    float weight[TOP_K_MAX];
};

// Memory that others can write is not believed: the slot may have changed since `pack` has looked at it.
__device__ __forceinline__ void look_at(const Step& step, const Start& start, u32 slot, const int* rows, Slot& known) {
    const uint4* meta = meta_at(step, step.me, slot);
    const uint4* places = reinterpret_cast<const uint4*>(rows) + u64(slot) * 2;
    const uint4 one = __ldcg(places), two = __ldcg(places + 1);
    const uint4 low = __ldcg(meta + 1), high = __ldcg(meta + 2), end = __ldcg(meta + 3);
    const u32 row[TOP_K_MAX] = {one.x, one.y, one.z, one.w, two.x, two.y, two.z, two.w};
    const u32 bits[TOP_K_MAX] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    const u32 most = step.local_experts * step.rows_max;
    u64 bad = !start.ordered          ? out_of_order(start)
              : end.y != start.passed ? violation_of(STALE_ROW, slot, 0, end.y)
                                      : NO_VIOLATION;
    u32 mask = 0;
#pragma unroll
    for (u32 k = 0; k < TOP_K_MAX; k++) {
        if (end.x != 0 && row[k] != ~0u && row[k] >= most && bad == NO_VIOLATION) {
            bad = violation_of(BAD_PLACE, slot, k, row[k]);
        }
        mask |= u32(int(row[k]) >= 0) << k;
        known.row[k] = int(row[k]), known.weight[k] = __uint_as_float(bits[k]);
    }
    known.bad = bad, known.count = end.x, known.mask = mask;
}

// Two pieces of a result: a thread asks for both at once.
struct Pair {
    uint4 one, two;
};
__device__ __forceinline__ Pair pair_at(const uint4* row, u32 one, u32 two, bool both) {
    return {__ldcg(row + one), both ? __ldcg(row + two) : uint4{0, 0, 0, 0}};
}
__device__ __forceinline__ void add_piece(float* sum, const uint4& piece, float weight) {
    float values[8];
    unpack(piece, values);
#pragma unroll
    for (u32 i = 0; i < 8; i++) {
        sum[i] = __fmaf_rn(weight, values[i], sum[i]);
    }
}

// This block's part of a slot's results is added up by top-k position, and goes to the token's rank. A token has one
// or two experts on a rank, rarely more: so two results are asked for at once, and no register waits for eight.
__device__ __forceinline__ void return_slot(const Step& step, u32 slot, u32 part, const Slot& known, const uint4* y) {
    const u32 owner = slot / step.tokens_max, token = slot % step.tokens_max;
    uint4* target = result_at(step, owner, u64(step.me) * step.tokens_max + token);
    const Share own = share(step, step.pieces, part);
    for (u32 one = own.first + threadIdx.x; one < own.end; one += 2 * blockDim.x) {
        const u32 two = one + blockDim.x;
        const bool both = two < own.end;
        float sum[2][8] = {};
        for (u32 left = known.mask; left != 0; left &= left - 1) {
            const u32 k = u32(__ffs(int(left))) - 1;
            const Pair first = pair_at(y + u64(known.row[k]) * step.pieces, one, two, both);
            left &= left - 1;
            if (left == 0) {
                add_piece(sum[0], first.one, known.weight[k]);
                add_piece(sum[1], first.two, known.weight[k]);
                break;
            }
            const u32 next = u32(__ffs(int(left))) - 1;
            const Pair second = pair_at(y + u64(known.row[next]) * step.pieces, one, two, both);
            add_piece(sum[0], first.one, known.weight[k]);
            add_piece(sum[1], first.two, known.weight[k]);
            add_piece(sum[0], second.one, known.weight[next]);
            add_piece(sum[1], second.two, known.weight[next]);
        }
        store_piece(target + one, rounded_piece(sum[0]));
        if (both) {
            store_piece(target + two, rounded_piece(sum[1]));
        }
    }
}

} // namespace ep

// Blocks that go over the slots, or over `parts` of each. `y` is [local_experts, rows_max, hidden], and `rows` is what
// `pack` wrote.
extern "C" __global__ void __launch_bounds__(512, 2)
    ep_give_back(const __grid_constant__ ep::Step step, const uint4* y, const int* rows) {
    using namespace ep;
    __shared__ Slot known[BATCH];
    const Start start = begin_once(step, 0, false);
    if (!start.good) {
        return;
    }
    const u32 all = step.ranks * step.tokens_max * step.parts;
    bool found = false;
    for (u32 batch = blockIdx.x; batch < all; batch += BATCH * gridDim.x) {
        const u32 own = batch + threadIdx.x * gridDim.x;
        if (threadIdx.x < BATCH && own < all) {
            look_at(step, start, own / step.parts, rows, known[threadIdx.x]);
        }
        __syncthreads();
        for (u32 i = 0, at = batch; i < BATCH && at < all; i++, at += gridDim.x) {
            if (known[i].bad != NO_VIOLATION) {
                found = true;
                if (threadIdx.x == 0) {
                    atomicMin(ctl(step) + BAD, known[i].bad);
                }
            } else if (known[i].count != 0) {
                return_slot(step, at / step.parts, at % step.parts, known[i], y);
            }
        }
        // The next batch takes their place.
        __syncthreads();
    }
    // Not before: what comes next would take the places of other ranks' blocks, where they share a GPU.
    cudaTriggerProgrammaticLaunchCompletion();
    const End end = end_of_all(step, found);
    if (end == End::GOOD) {
        signal_all(step, start.tag, start.phase);
    } else if (end == End::FOUND_BAD) {
        fail_violation(step, __ldcg(ctl(step) + BAD), start.tag, start.phase);
    }
}
