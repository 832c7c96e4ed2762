// combine: what came back for a token of this rank is added up, in the order of ranks.
#include "ep.cuh"

// A block, or `parts` of them, for each of `tokens_max` tokens. Rows after the last token stay as they are.
extern "C" __global__ void ep_combine(const __grid_constant__ ep::Step step, uint4* out) {
    using namespace ep;
    const Start start = begin(step, 0);
    cudaTriggerProgrammaticLaunchCompletion();
    const u32 token = blockIdx.x / step.parts, part = blockIdx.x % step.parts;
    const u8* sent = place(step, step.me, step.sent);
    const u32 tokens = __ldcg(reinterpret_cast<const u32*>(sent));
    // What the heap says is not believed: there is no memory of a rank that does not exist.
    const u32 mask = __ldcg(reinterpret_cast<const u32*>(sent + SENT_HEAD) + token) & ((1u << step.ranks) - 1);
    if (!start.good) {
        return;
    }
    if (!start.ordered) {
        // Other blocks see the failure or the order; both end here.
        if (blockIdx.x == 0 && threadIdx.x == 0) {
            ctl(step)[BAD] = out_of_order(start);
            fail_violation(step, out_of_order(start), start.tag, start.phase);
        }
        return;
    }
    if (token >= tokens) {
        return;
    }
    const Share own = share(step, step.pieces, part);
    for (u32 piece = own.first + threadIdx.x; piece < own.end; piece += blockDim.x) {
        uint4 held[RANKS_MAX];
#pragma unroll
        for (u32 rank = 0; rank < RANKS_MAX; rank++) {
            if (mask >> rank & 1) {
                const u64 row = u64(rank) * step.tokens_max + token;
                held[rank] = __ldcg(result_at(step, step.me, row) + piece);
            }
        }
        float sum[8] = {0, 0, 0, 0, 0, 0, 0, 0};
#pragma unroll
        for (u32 rank = 0; rank < RANKS_MAX; rank++) {
            if (mask >> rank & 1) {
                float values[8];
                unpack(held[rank], values);
#pragma unroll
                for (u32 i = 0; i < 8; i++) {
                    sum[i] = __fadd_rn(sum[i], values[i]);
                }
            }
        }
        out[u64(token) * step.pieces + piece] = rounded_piece(sum);
    }
}
