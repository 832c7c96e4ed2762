// experts: the two products of every expert with the tokens that it has, and the gate between them.
//
// Tensor cores multiply 16 rows of weights with eight tokens at a time. Weights go from memory straight into
// registers, once for up to 32 tokens: which element of a sum a register holds is free as long as weights and tokens
// agree, so a thread takes 16 bytes that lie together. Eight warps share a product with the hidden size, four the other
// one: each has every eighth or fourth chunk, and their parts are added up in their order. So the order of all sums is
// fixed, and does not depend on how many tokens there are.
#include "ep.cuh"

namespace ep {

constexpr u32 WARPS = 8, LANES = 32;
// Warps that share a product: the longer it is, the more of them, so that no block ends long after the others.
constexpr u32 UP_SHARE = 8, DOWN_SHARE = 4;
// Rows of weights and tokens of one instruction; each warp has two tiles of rows and up to four of tokens.
constexpr u32 TILE = 16, TOKENS = 8, TILES = 4;
// Threads that have a row of weights in common, each with a piece of it: together they have a chunk.
constexpr u32 QUAD = 4;
// Chunks that a warp asks for at once: what is under way hides how far memory is.
constexpr u32 AHEAD = 4;
static_assert(TILES <= UP_SHARE && TILES <= DOWN_SHARE, "each warp of a group adds up one tile of tokens, or none");

#ifdef __CUDACC__
// sum += a · b: 16 rows of weights, eight tokens, 16 elements.
__device__ __forceinline__ void multiply_tile(float* sum, const u32* a, u32 b_low, u32 b_high) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b_low), "r"(b_high));
}
#else
using ::multiply_tile;
#endif

// Where this thread is: its lane has rows `row` and `row + 8` of a tile, token `row` of a tile of tokens, and piece
// `quad` of a chunk. Its warp is number `part` of those that share a product.
template <u32 SHARE>
struct Place {
    u32 group, part, lane, row, quad;

    __device__ __forceinline__ Place()
        : group(threadIdx.x / LANES / SHARE), part(threadIdx.x / LANES % SHARE), lane(threadIdx.x % LANES),
          row(lane / QUAD), quad(lane % QUAD) {}
};

// Parts of sums: of each warp, two tiles of rows, the tiles of tokens, and what a lane has of each.
struct Parts {
    float of[WARPS][2][TILES][4][LANES];
};

// This warp's parts of the products of two tiles of rows with up to 32 rows of `x`. `rows` are the rows of weights of
// this thread: two of each tile. All threads of a block go through the loops as often.
template <u32 SHARE>
__device__ __forceinline__ void multiply(Parts& parts, const Place<SHARE>& at, const uint4* const* rows,
                                         const uint4* x, u32 tokens, u32 pieces) {
    float sum[2][TILES][4] = {};
    const u32 chunks = (pieces + QUAD - 1) / QUAD, tiles = (tokens + TOKENS - 1) / TOKENS;
    for (u32 first = 0; first < chunks; first += SHARE * AHEAD) {
        uint4 held[AHEAD][4];
        u32 piece[AHEAD];
#pragma unroll
        for (u32 i = 0; i < AHEAD; i++) {
            piece[i] = (first + i * SHARE + at.part) * QUAD + at.quad;
#pragma unroll
            for (u32 row = 0; row < 4; row++) {
                held[i][row] = piece[i] < pieces ? __ldcg(rows[row] + piece[i]) : uint4{0, 0, 0, 0};
            }
        }
#pragma unroll
        for (u32 i = 0; i < AHEAD; i++) {
#pragma unroll
            for (u32 tile = 0; tile < TILES; tile++) {
                if (tile >= tiles) {
                    continue;
                }
                const u32 token = tile * TOKENS + at.row;
                const bool there = token < tokens && piece[i] < pieces;
                const uint4 own = there ? __ldcg(x + u64(token) * pieces + piece[i]) : uint4{0, 0, 0, 0};
#pragma unroll
                for (u32 which = 0; which < 2; which++) {
                    const uint4 &low = held[i][2 * which], &high = held[i][2 * which + 1];
                    const u32 one[4] = {low.x, high.x, low.y, high.y}, two[4] = {low.z, high.z, low.w, high.w};
                    multiply_tile(sum[which][tile], one, own.x, own.y);
                    multiply_tile(sum[which][tile], two, own.z, own.w);
                }
            }
        }
    }
#pragma unroll
    for (u32 which = 0; which < 2; which++) {
#pragma unroll
        for (u32 tile = 0; tile < TILES; tile++) {
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                parts.of[threadIdx.x / LANES][which][tile][i][at.lane] = sum[which][tile][i];
            }
        }
    }
}

// The sum number `i` of this thread, of the tile of tokens that its warp adds up.
template <u32 SHARE>
__device__ __forceinline__ float add_up(const Parts& parts, const Place<SHARE>& at, u32 which, u32 i) {
    float sum = 0;
#pragma unroll
    for (u32 part = 0; part < SHARE; part++) {
        sum = __fadd_rn(sum, parts.of[at.group * SHARE + part][which][at.part][i][at.lane]);
    }
    return sum;
}
// Which row of a tile and which token that sum is of.
template <u32 SHARE>
__device__ __forceinline__ u32 row_of(const Place<SHARE>& at, u32 i) {
    return at.row + i / 2 * 8;
}
// That of a warp without a tile is after the last.
template <u32 SHARE>
__device__ __forceinline__ u32 token_of(const Place<SHARE>& at, u32 i) {
    return at.part * TOKENS + at.quad * 2 + i % 2;
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

// A block for 16 columns of an expert: `act[row][i]` is silu(gate i · x) · (up i · x). `w13` is
// [local_experts, 2, inter, hidden], `act` [local_experts, rows_max, inter], both bf16.
extern "C" __global__ void __launch_bounds__(256, 2)
    ep_up(const __grid_constant__ ep::Step step, const uint4* x, const unsigned* counts, const uint4* w13,
          unsigned short* act, unsigned inter) {
    using namespace ep;
    __shared__ Parts parts;
    if (!begin(step, 0).good) {
        return;
    }
    cudaTriggerProgrammaticLaunchCompletion();
    constexpr u32 COLUMNS = WARPS / UP_SHARE * TILE;
    const Place<UP_SHARE> at;
    const u32 blocks = (inter + COLUMNS - 1) / COLUMNS, expert = blockIdx.x / blocks;
    const u32 first = blockIdx.x % blocks * COLUMNS + at.group * TILE;
    const u32 count = min(__ldcg(counts + expert), step.rows_max);
    // Rows after the last are multiplied for nothing: a thread without a row takes the last one.
    const uint4* gate = w13 + u64(expert) * 2 * inter * step.pieces;
    const uint4* low = gate + u64(min(first + at.row, inter - 1)) * step.pieces;
    const uint4* high = gate + u64(min(first + at.row + 8, inter - 1)) * step.pieces;
    const u64 up = u64(inter) * step.pieces;
    const uint4* const rows[4] = {low, high, low + up, high + up};
    for (u32 row = 0; row < count; row += TILES * TOKENS) {
        const u32 tokens = min(TILES * TOKENS, count - row);
        const u64 from = u64(expert) * step.rows_max + row;
        multiply(parts, at, rows, x + from * step.pieces, tokens, step.pieces);
        __syncthreads();
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            const u32 column = first + row_of(at, i), token = token_of(at, i);
            if (token < tokens && column < inter) {
                const float value = gated(add_up(parts, at, 0, i), add_up(parts, at, 1, i));
                act[(from + token) * inter + column] = u16(rounded(value));
            }
        }
        __syncthreads();
    }
}

// A block for 64 columns of an expert: `y[row][h]` is w2 h · act. `w2` is [local_experts, hidden, inter], `y`
// [local_experts, rows_max, hidden], both bf16.
extern "C" __global__ void __launch_bounds__(256, 2)
    ep_down(const __grid_constant__ ep::Step step, const uint4* act, const unsigned* counts, const uint4* w2,
            unsigned short* y, unsigned inter) {
    using namespace ep;
    __shared__ Parts parts;
    if (!begin(step, 0).good) {
        return;
    }
    cudaTriggerProgrammaticLaunchCompletion();
    constexpr u32 COLUMNS = WARPS / DOWN_SHARE * 2 * TILE;
    const Place<DOWN_SHARE> at;
    const u32 hidden = step.pieces * 8, pieces = inter / 8;
    const u32 blocks = (hidden + COLUMNS - 1) / COLUMNS, expert = blockIdx.x / blocks;
    const u32 first = blockIdx.x % blocks * COLUMNS + at.group * 2 * TILE;
    const u32 count = min(__ldcg(counts + expert), step.rows_max);
    const uint4* rows[4];
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        rows[i] = w2 + (u64(expert) * hidden + min(first + at.row + 8 * i, hidden - 1)) * pieces;
    }
    for (u32 row = 0; row < count; row += TILES * TOKENS) {
        const u32 tokens = min(TILES * TOKENS, count - row);
        const u64 from = u64(expert) * step.rows_max + row;
        multiply(parts, at, rows, act + from * pieces, tokens, pieces);
        __syncthreads();
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            const u32 column = first + i / 4 * TILE + row_of(at, i % 4), token = token_of(at, i % 4);
            if (token < tokens && column < hidden) {
                y[(from + token) * hidden + column] = u16(rounded(add_up(parts, at, i / 4, i % 4)));
            }
        }
        __syncthreads();
    }
}
