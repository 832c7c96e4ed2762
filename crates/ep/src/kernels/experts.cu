// experts: the two products of every expert with the tokens that it has, and the gate between them.
//
// A warp has two rows of weights and up to eight tokens at a time: each thread multiplies every 32nd piece, and
// the parts of the 32 threads are added up in their order. So the order of all sums is fixed, and does not depend
// on how many tokens there are. Weights are read once for every eight tokens.
#include "ep.cuh"

namespace ep {

constexpr u32 WARPS = 8, LANES = 32, TOKENS = 8;

// Parts of sums: of each warp, of two rows of weights and eight tokens, one for each thread. One column more, so
// that threads that add up neighbouring rows do not meet in one bank.
struct Parts {
    float of[WARPS][2 * TOKENS][LANES + 1];
};

__device__ __forceinline__ float dot_piece(const float* weights, const uint4& x, float sum) {
    float values[8];
    unpack(x, values);
#pragma unroll
    for (u32 i = 0; i < 8; i++) {
        sum = __fmaf_rn(weights[i], values[i], sum);
    }
    return sum;
}

// This thread's parts of the products of two rows of weights with `tokens` rows of `x`.
__device__ __forceinline__ void multiply(Parts& parts, const uint4* one, const uint4* two, const uint4* x, u32 tokens,
                                         u32 pieces) {
    const u32 warp = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    float sum[2][TOKENS];
#pragma unroll
    for (u32 token = 0; token < TOKENS; token++) {
        sum[0][token] = 0, sum[1][token] = 0;
    }
    for (u32 piece = lane; piece < pieces; piece += LANES) {
        float first[8], second[8];
        unpack(__ldcg(one + piece), first);
        unpack(__ldcg(two + piece), second);
#pragma unroll
        for (u32 token = 0; token < TOKENS; token++) {
            if (token < tokens) {
                const uint4 values = x[u64(token) * pieces + piece];
                sum[0][token] = dot_piece(first, values, sum[0][token]);
                sum[1][token] = dot_piece(second, values, sum[1][token]);
            }
        }
    }
#pragma unroll
    for (u32 token = 0; token < TOKENS; token++) {
        parts.of[warp][token][lane] = sum[0][token];
        parts.of[warp][TOKENS + token][lane] = sum[1][token];
    }
}

__device__ __forceinline__ float add_up(const float* parts) {
    float sum = 0;
    for (u32 lane = 0; lane < LANES; lane++) {
        sum = __fadd_rn(sum, parts[lane]);
    }
    return sum;
}

// `experts_oracle::exp`: the same operations in the same order, so the same bits.
__device__ __forceinline__ float exp_of(float x) {
    x = x < -87.0f ? -87.0f : x > 88.0f ? 88.0f : x;
    const float n = rintf(__fmul_rn(x, 1.44269504f));
    float r = __fmaf_rn(n, -0.693359375f, x);
    r = __fmaf_rn(n, 2.12194440e-4f, r);
    float y = 1.984126984e-4f;
    y = __fmaf_rn(y, r, 1.388888889e-3f);
    y = __fmaf_rn(y, r, 8.333333333e-3f);
    y = __fmaf_rn(y, r, 4.166666667e-2f);
    y = __fmaf_rn(y, r, 1.666666667e-1f);
    y = __fmaf_rn(y, r, 0.5f);
    y = __fmaf_rn(y, r, 1.0f);
    y = __fmaf_rn(y, r, 1.0f);
    return __fmul_rn(y, __uint_as_float(u32(int(n) + 127) << 23));
}
__device__ __forceinline__ float gated(float gate, float up) {
    return __fmul_rn(__fdiv_rn(gate, __fadd_rn(1.0f, exp_of(-gate))), up);
}

} // namespace ep

// A block for eight columns of an expert: `act[row][i]` is silu(gate i · x) · (up i · x). `w13` is
// [local_experts, 2, inter, hidden], `act` [local_experts, rows_max, inter], both bf16.
extern "C" __global__ void ep_up(const __grid_constant__ ep::Step step, const uint4* x, const unsigned* counts,
                                 const uint4* w13, unsigned short* act, unsigned inter) {
    using namespace ep;
    __shared__ Parts parts;
    if (!begin(step, 0).good) {
        return;
    }
    cudaTriggerProgrammaticLaunchCompletion();
    const u32 blocks = (inter + WARPS - 1) / WARPS;
    const u32 expert = blockIdx.x / blocks, first = blockIdx.x % blocks * WARPS;
    const u32 count = min(__ldcg(counts + expert), step.rows_max);
    const u32 column = first + threadIdx.x / LANES;
    const uint4* gate = w13 + (u64(expert) * 2 * inter + column) * step.pieces;
    for (u32 row = 0; row < count; row += TOKENS) {
        const u32 tokens = min(TOKENS, count - row);
        const u64 at = u64(expert) * step.rows_max + row;
        if (column < inter) {
            multiply(parts, gate, gate + u64(inter) * step.pieces, x + at * step.pieces, tokens, step.pieces);
        }
        __syncthreads();
        const u32 warp = threadIdx.x / TOKENS, token = threadIdx.x % TOKENS;
        if (warp < WARPS && token < tokens && first + warp < inter) {
            const float value = gated(add_up(parts.of[warp][token]), add_up(parts.of[warp][TOKENS + token]));
            act[(at + token) * inter + first + warp] = u16(rounded(value));
        }
        __syncthreads();
    }
}

// A block for 16 columns of an expert: `y[row][h]` is w2 h · act. `w2` is [local_experts, hidden, inter], `y`
// [local_experts, rows_max, hidden], both bf16.
extern "C" __global__ void ep_down(const __grid_constant__ ep::Step step, const uint4* act, const unsigned* counts,
                                   const uint4* w2, unsigned short* y, unsigned inter) {
    using namespace ep;
    __shared__ Parts parts;
    if (!begin(step, 0).good) {
        return;
    }
    cudaTriggerProgrammaticLaunchCompletion();
    const u32 hidden = step.pieces * 8, pieces = inter / 8;
    const u32 blocks = (hidden + 2 * WARPS - 1) / (2 * WARPS);
    const u32 expert = blockIdx.x / blocks, first = blockIdx.x % blocks * 2 * WARPS;
    const u32 count = min(__ldcg(counts + expert), step.rows_max);
    // Two neighbours; there are always an even number of columns.
    const u32 column = first + threadIdx.x / LANES * 2;
    const uint4* weights = w2 + (u64(expert) * hidden + column) * pieces;
    for (u32 row = 0; row < count; row += TOKENS) {
        const u32 tokens = min(TOKENS, count - row);
        const u64 at = u64(expert) * step.rows_max + row;
        if (column < hidden) {
            multiply(parts, weights, weights + pieces, act + at * pieces, tokens, pieces);
        }
        __syncthreads();
        const u32 warp = threadIdx.x / (2 * TOKENS), one = threadIdx.x % (2 * TOKENS);
        const u32 token = one % TOKENS, target = first + warp * 2 + one / TOKENS;
        if (warp < WARPS && token < tokens && target < hidden) {
            y[(at + token) * hidden + target] = u16(rounded(add_up(parts.of[warp][one])));
        }
        __syncthreads();
    }
}
