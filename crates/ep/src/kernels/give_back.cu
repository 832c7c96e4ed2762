// give_back: what this rank's experts made of a token is added up and goes to the token's rank.
#include "ep.cuh"

namespace ep {

// What is wrong with a slot since `pack` has looked at it: memory that others can write is not believed.
__device__ __forceinline__ u64 judge_slot(const Step& step, const Start& start, u32 slot, const uint4& end,
                                          const int* row) {
    if (!start.ordered) {
        return out_of_order(start);
    }
    if (end.y != start.passed) {
        return violation_of(STALE_ROW, slot, 0, end.y);
    }
    const u32 most = step.local_experts * step.rows_max;
    u64 bad = NO_VIOLATION;
#pragma unroll
    for (u32 k = 0; k < TOP_K_MAX; k++) {
        if (end.x != 0 && row[k] != -1 && u32(row[k]) >= most && bad == NO_VIOLATION) {
            bad = violation_of(BAD_PLACE, slot, k, u32(row[k]));
        }
    }
    return bad;
}

} // namespace ep

// A block, or `parts` of them, for each slot; a thread for each piece, as far as a block has room. `y` is [local_experts, rows_max, hidden], and `rows` is what `pack` wrote.
extern "C" __global__ void __launch_bounds__(1024)
    ep_give_back(const __grid_constant__ ep::Step step, const uint4* y, const int* rows) {
    using namespace ep;
    const Start start = begin_once(step, 0, false);
    cudaTriggerProgrammaticLaunchCompletion();
    const u32 slot = blockIdx.x / step.parts, part = blockIdx.x % step.parts;
    const uint4* meta = meta_at(step, step.me, slot);
    const uint4 low = __ldcg(meta + 1), high = __ldcg(meta + 2), end = __ldcg(meta + 3);
    const u32 bits[TOP_K_MAX] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    // 8 numbers of 4 bytes: two pieces.
    const uint4* places = reinterpret_cast<const uint4*>(rows) + u64(slot) * 2;
    const uint4 one = __ldcg(places), two = __ldcg(places + 1);
    const int row[TOP_K_MAX] = {int(one.x), int(one.y), int(one.z), int(one.w),
                                int(two.x), int(two.y), int(two.z), int(two.w)};
    if (!start.good) {
        return;
    }
    const u64 bad = judge_slot(step, start, slot, end, row);
    if (bad != NO_VIOLATION) {
        if (threadIdx.x == 0) {
            atomicMin(ctl(step) + BAD, bad);
        }
    } else if (end.x != 0) {
        const u32 owner = slot / step.tokens_max, token = slot % step.tokens_max;
        uint4* target = result_at(step, owner, u64(step.me) * step.tokens_max + token);
        const Share own = share(step, step.pieces, part);
        for (u32 piece = own.first + threadIdx.x; piece < own.end; piece += blockDim.x) {
            uint4 held[TOP_K_MAX];
#pragma unroll
            for (u32 k = 0; k < TOP_K_MAX; k++) {
                if (row[k] >= 0) {
                    held[k] = __ldcg(y + u64(row[k]) * step.pieces + piece);
                }
            }
            float sum[8] = {0, 0, 0, 0, 0, 0, 0, 0};
#pragma unroll
            for (u32 k = 0; k < TOP_K_MAX; k++) {
                if (row[k] >= 0) {
                    float values[8];
                    unpack(held[k], values);
#pragma unroll
                    for (u32 i = 0; i < 8; i++) {
                        sum[i] = __fmaf_rn(__uint_as_float(bits[k]), values[i], sum[i]);
                    }
                }
            }
            store_piece(target + piece, rounded_piece(sum));
        }
    }
    if (!last_of_all(step)) {
        return;
    }
    const u64 worst = __ldcg(ctl(step) + BAD);
    if (worst == NO_VIOLATION) {
        signal_all(step, start.tag, start.phase);
    } else {
        fail_violation(step, worst, start.tag, start.phase);
    }
}
