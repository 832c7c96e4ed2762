// compare: counts the pieces of an output that are not what they must be, for tests and figures.
#include "ep.cuh"

// Adds to `differ`, one number for all launches. Any number of blocks.
extern "C" __global__ void ep_compare(const __grid_constant__ ep::Step step, const uint4* out,
                                      const uint4* expected, unsigned long long* differ, unsigned pieces) {
    using namespace ep;
    // An output of a rank that has failed is compared like any other.
    begin(step, 0);
    cudaTriggerProgrammaticLaunchCompletion();
    for (u32 piece = blockIdx.x * blockDim.x + threadIdx.x; piece < pieces; piece += gridDim.x * blockDim.x) {
        const uint4 found = __ldcg(out + piece), right = __ldcg(expected + piece);
        if (found.x != right.x || found.y != right.y || found.z != right.z || found.w != right.w) {
            atomicAdd(differ, 1ull);
        }
    }
}
