// leave: a rank gives its communicator up, and tells the others.
#include "ep.cuh"

// One thread. Before the kernels of this rank have `ended`, only its words at the others are written: a kernel that
// runs may still signal over them, and must not find this rank failed half-way. Afterwards it fails like any other.
extern "C" __global__ void ep_leave(const __grid_constant__ ep::Step step, unsigned ended) {
    using namespace ep;
    const Start start = begin(step, 1);
    cudaTriggerProgrammaticLaunchCompletion();
    if (!start.good || threadIdx.x != 0) {
        return;
    }
    const u64 record = record_of(LEFT, step.me, 1u << step.me, 0, start.phase);
    if (ended == 0) {
        const u64 poison = poison_of(record, start.passed, start.tag >> 4);
        for (u32 rank = 0; rank < step.ranks; rank++) {
            if (rank != step.me) {
                poison_at(step, rank, poison);
            }
        }
        return;
    }
    const u32 op = (start.phase & 1) == 1 ? DISPATCH : RETURN;
    const u32 tag = (start.tag & ~0xf000u) | op << 12;
    fail(step, record, u64(tag) << 32 | tag, NO_VIOLATION);
}
