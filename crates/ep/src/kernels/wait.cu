// wait: one warp of a rank looks at the signals of all ranks until they are there, or the time is over.
#include "ep.cuh"

namespace ep {

constexpr u32 NOT_YET = 0, HERE = 1, OTHER = 2, POISONED = 3;
constexpr u32 AGAIN = 0, PASS = 1, FAIL = 2;
__device__ __forceinline__ u32 lowest(u32 lanes) { return u32(__ffs(int(lanes))) - 1; }
// Looks at a signal before the clock and the host's word are looked at, some hundred microseconds.
constexpr u32 LOOKS = 256;

// `barrier::Signal::judge`. Of poison also the phase that its writer has passed.
__device__ __forceinline__ u32 judge(u64 word, u32 tag, u32 phase, u32& passed) {
    const u32 found = u32(word >> 32), at = u32(word);
    if (((found ^ tag) & 0xff0u) != 0) {
        return NOT_YET;
    }
    if ((found | 0xff0u) == POISON) {
        passed = phase - u32(int((phase - at) << 17) >> 17);
        return int(passed - phase) >= 0 ? HERE : POISONED;
    }
    if (int(at - phase) < 0) {
        return NOT_YET;
    }
    return found == tag ? HERE : OTHER;
}

// Whether this rank may fail here. The work before this kernel has ended then, so it does not signal over the poison;
// if it has failed itself, its record stays.
__device__ __forceinline__ bool may_fail(const Step& step) {
    cudaGridDependencySynchronize();
    return __ldcg(ctl(step) + ERROR) == 0;
}

// `barrier::look` and the end of patience, by all lanes together: each has the signal of one rank, `seen` in `word`, of
// a rank that had `passed` so far. `late` and `told`, the host's word of aborts, are of before the signals were
// looked at: who came in time, or before its end, is seen. One lane does what is to be done.
__device__ __forceinline__ u32 decide(const Step& step, u64 word, u32 seen, u32 passed, u32 tag, u32 phase, bool late,
                                      u32 told) {
    const u32 lane = threadIdx.x;
    const u32 poisoned = __ballot_sync(~0u, seen == POISONED), other = __ballot_sync(~0u, seen == OTHER);
    const u32 missing = __ballot_sync(~0u, seen == NOT_YET);
    // The lowest rank counts.
    if (poisoned != 0) {
        if (may_fail(step) && lane == lowest(poisoned)) {
            const u32 low = u32(word), kind = known(low >> 27), origin = low >> 24 & 7, ranks = low >> 16 & 255;
            const u32 at = passed + (low >> 15 & 1);
            fail(step, record_of(kind, origin, ranks, lane + 1, at), u64(tag) << 32 | tag, NO_VIOLATION);
        }
        return FAIL;
    }
    if (other != 0) {
        if (may_fail(step) && lane == lowest(other)) {
            const u64 tags = (word >> 32) << 32 | tag;
            fail(step, record_of(DESYNC, step.me, 1u << lane, 0, phase), tags, NO_VIOLATION);
        }
        return FAIL;
    }
    if (missing == 0) {
        if (lane == 0) {
            ctl(step)[PHASE] = phase;
        }
        return PASS;
    }
    const u32 gone = told & missing;
    if (gone != 0 || late || (told & (LEAVES | OVER)) != 0) {
        const u32 kind = (told & LEAVES) != 0 ? LEFT : gone != 0 ? LOST : TIMEOUT;
        const u32 ranks = kind == LEFT ? 1u << step.me : kind == LOST ? gone : missing;
        if (may_fail(step) && lane == 0) {
            fail(step, record_of(kind, step.me, ranks, 0, phase), u64(tag) << 32 | tag, NO_VIOLATION);
        }
        return FAIL;
    }
    return AGAIN;
}

// All lanes come here, and leave together.
__device__ __forceinline__ u32 await_phase(const Step& step, u32 tag, u32 phase, u64 timeout, u64 first_timeout) {
    const u32 rank = threadIdx.x;
    const u64 patience = phase == 1 ? first_timeout : timeout;
    u64* at = signal_at(step, step.me, phase, rank < step.ranks ? rank : 0);
    u64 began = 0;
    u32 verdict = AGAIN, told = 0;
    bool late = false;
    while (verdict == AGAIN) {
        u64 word = 0;
        u32 seen = rank < step.ranks ? NOT_YET : HERE, passed = 0;
        for (u32 looks = 0; looks < LOOKS && seen == NOT_YET; looks++) {
            word = load_acquire_sys(at);
            seen = judge(word, tag, phase, passed);
        }
        verdict = decide(step, word, seen, passed, tag, phase, late, told);
        if (verdict == AGAIN) {
            // Clock and host are far away: they are asked when somebody is late, and before signals are looked at
            // again. Lanes decide together, so they go by what one of them has read. Patience begins when the work of
            // this rank is done.
            cudaGridDependencySynchronize();
            const u64 now = nanoseconds();
            began = began == 0 ? now : began;
            late = (__ballot_sync(~0u, now - began > patience) & 1) != 0;
            u64 word_of_host = 0;
            if (rank == 0 && step.abort != 0) {
                word_of_host = load_acquire_sys(reinterpret_cast<u64*>(step.abort));
            }
            told = __shfl_sync(~0u, u32(word_of_host), 0);
        }
    }
    // What all lanes have acquired comes before what any of them does next.
    __syncwarp();
    return verdict;
}

} // namespace ep

// With `then`, the rank goes on at once: it signals the next phase with that tag and waits for it, too. That is
// an exchange without results of its own.
extern "C" __global__ void ep_wait(const __grid_constant__ ep::Step step, unsigned long long timeout,
                                   unsigned long long first_timeout, unsigned then) {
    using namespace ep;
    // It runs beside the kernel before it, whose signal it looks for like those of other ranks. That one has begun, so
    // what was there before it has ended, and the phase stays as it is.
    const Start start = begin_early(step, 1);
    const u32 phase = start.phase, parity = (step.tag >> 12 & 15) == DISPATCH ? 1 : 0;
    u32 passed = 0;
    if (judge(load_acquire_sys(signal_at(step, step.me, parity, step.me)), start.tag, phase, passed) != NOT_YET) {
        // That is not yet the signal of a kernel that runs beside this one: such a kernel is out of order, and fails.
        cudaGridDependencySynchronize();
        if (__ldcg(ctl(step) + ERROR) != 0) {
            return;
        }
    }
    if (!start.good || !start.ordered) {
        // What comes next starts when this block has ended, and leaves.
        if (may_fail(step) && threadIdx.x == 0) {
            ctl(step)[BAD] = out_of_order(start);
            fail_violation(step, out_of_order(start), start.tag, phase);
        }
        return;
    }
    const u32 verdict = await_phase(step, start.tag, phase, timeout, first_timeout);
    if (verdict == PASS && then != 0) {
        const u32 next = in_epoch(then, u64(start.tag) >> 4);
        // A lane for each rank. Nothing was stored or read since the last signal, so there is nothing to release.
        if (threadIdx.x < step.ranks) {
            store_relaxed_sys(signal_at(step, threadIdx.x, phase + 1, step.me), u64(next) << 32 | (phase + 1));
        }
        await_phase(step, next, phase + 1, timeout, first_timeout);
    }
    // All that was before has ended, for those who come next.
    cudaGridDependencySynchronize();
    // What comes next may start now, and not before: it would take the places of those who are waited for.
    cudaTriggerProgrammaticLaunchCompletion();
}
