// scale: experts for tests. Each element of a packed token, times a number of the expert's own, rounded once.
#include "ep.cuh"

namespace ep {

// `fp8::decode`.
__device__ __forceinline__ float decode_fp8(u32 byte) {
    const u32 exponent = byte >> 3 & 15, fraction = byte & 7, sign = (byte & 0x80) << 24;
    if (exponent == 0) {
        return __uint_as_float(__float_as_uint(__fmul_rn(float(fraction), 0.001953125f)) | sign);
    }
    const u32 nan = exponent == 15 && fraction == 7 ? 0x7fc00000u : 0;
    return __uint_as_float(((exponent + 120) << 23 | fraction << 20 | nan) | sign);
}

// Eight elements of a token, as bf16 would have them.
__device__ __forceinline__ void elements(const Step& step, const uint4* token, u32 piece, float* values) {
    if (step.token_pieces == step.pieces) {
        unpack(__ldcg(token + piece), values);
        return;
    }
    // Eight bytes, and the scale of their 128.
    const u32* words = reinterpret_cast<const u32*>(token);
    const u32 low = __ldcg(words + 2 * piece), high = __ldcg(words + 2 * piece + 1);
    const float scale = __uint_as_float(__ldcg(words + 2 * step.pieces + piece / 16));
#pragma unroll
    for (u32 i = 0; i < 8; i++) {
        const u32 byte = (i < 4 ? low >> 8 * i : high >> 8 * (i - 4)) & 255;
        values[i] = __uint_as_float(rounded(__fmul_rn(decode_fp8(byte), scale)) << 16);
    }
}

} // namespace ep

// `parts` blocks for each local expert. `x` and `counts` are what `ep_pack` wrote, `y` is [local_experts, rows_max,
// hidden] bf16.
extern "C" __global__ void ep_scale(const __grid_constant__ ep::Step step, const uint4* x, uint4* y,
                                    const unsigned* counts) {
    using namespace ep;
    if (!begin(step, 0).good) {
        return;
    }
    cudaTriggerProgrammaticLaunchCompletion();
    const u32 expert = blockIdx.x / step.parts, part = blockIdx.x % step.parts;
    const u32 number = step.me * step.local_experts + expert;
    // Exact: `oracle::scale_of`.
    const float scale = __fadd_rn(0.5f, __fmul_rn(float(number % 4096), 0.0078125f));
    const u32 count = min(__ldcg(counts + expert), step.rows_max);
    for (u32 row = part; row < count; row += step.parts) {
        const u64 at = u64(expert) * step.rows_max + row;
        for (u32 piece = threadIdx.x; piece < step.pieces; piece += blockDim.x) {
            float values[8];
            elements(step, x + at * step.token_pieces, piece, values);
#pragma unroll
            for (u32 i = 0; i < 8; i++) {
                values[i] = __fmul_rn(scale, values[i]);
            }
            y[at * step.pieces + piece] = rounded_piece(values);
        }
    }
}
