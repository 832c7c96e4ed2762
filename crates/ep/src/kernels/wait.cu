// wait: one block of a rank looks at the signals of all ranks until they are there, or the time is over.
#include "ep.cuh"

namespace ep {

constexpr u32 NOT_YET = 0, HERE = 1, OTHER = 2, POISONED = 3;
constexpr u32 AGAIN = 0, PASS = 1, FAIL = 2;
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

struct Seen {
    u64 word[RANKS_MAX];
    u32 seen[RANKS_MAX], passed[RANKS_MAX];
    u32 verdict;
};

// What one thread makes of all signals: `barrier::look`, and the end of patience. `late` and `told`, the host's word
// of aborts, are of before the signals were looked at: who came in time, or before its end, is seen.
__device__ __forceinline__ u32 decide(const Step& step, const Seen& all, u32 tag, u32 phase, bool late, u32 told) {
    u32 missing = 0, other = RANKS_MAX;
    for (u32 rank = 0; rank < step.ranks; rank++) {
        const u32 seen = all.seen[rank];
        if (seen == POISONED) {
            const u32 word = u32(all.word[rank]);
            const u32 kind = word >> 27, origin = word >> 24 & 7, ranks = word >> 16 & 255;
            const u32 at = all.passed[rank] + (word >> 15 & 1);
            fail(step, record_of(kind, origin, ranks, rank + 1, at), u64(tag) << 32 | tag, NO_VIOLATION);
            return FAIL;
        }
        if (seen == NOT_YET) {
            missing |= 1u << rank;
        }
        if (seen == OTHER && other == RANKS_MAX) {
            other = rank;
        }
    }
    if (other != RANKS_MAX) {
        const u64 tags = (all.word[other] >> 32) << 32 | tag;
        fail(step, record_of(DESYNC, step.me, 1u << other, 0, phase), tags, NO_VIOLATION);
        return FAIL;
    }
    if (missing == 0) {
        ctl(step)[PHASE] = phase;
        return PASS;
    }
    const u32 gone = told & missing;
    if (gone != 0 || late || (told & LEAVES) != 0) {
        const u32 kind = (told & LEAVES) != 0 ? LEFT : gone != 0 ? LOST : TIMEOUT;
        const u32 ranks = kind == LEFT ? 1u << step.me : kind == LOST ? gone : missing;
        fail(step, record_of(kind, step.me, ranks, 0, phase), u64(tag) << 32 | tag, NO_VIOLATION);
        return FAIL;
    }
    return AGAIN;
}

__device__ __forceinline__ u32 await_phase(const Step& step, Seen& all, u32 tag, u32 phase, u64 timeout,
                                           u64 first_timeout) {
    const u32 rank = threadIdx.x;
    const u64 patience = phase == 1 ? first_timeout : timeout;
    const u64 began = nanoseconds();
    u32 verdict = AGAIN, told = 0;
    bool late = false;
    while (verdict == AGAIN) {
        if (rank < step.ranks) {
            u64* at = signal_at(step, step.me, phase, rank);
            u64 word = 0;
            u32 seen = NOT_YET, passed = 0;
            for (u32 looks = 0; looks < LOOKS && seen == NOT_YET; looks++) {
                word = load_acquire_sys(at);
                seen = judge(word, tag, phase, passed);
            }
            all.word[rank] = word, all.seen[rank] = seen, all.passed[rank] = passed;
        }
        __syncthreads();
        if (rank == 0) {
            all.verdict = decide(step, all, tag, phase, late, told);
            // Before the signals are looked at again.
            late = nanoseconds() - began > patience;
            if (all.verdict == AGAIN && step.abort != 0) {
                told = u32(load_acquire_sys(reinterpret_cast<u64*>(step.abort)));
            }
        }
        __syncthreads();
        verdict = all.verdict;
    }
    __syncthreads();
    return verdict;
}

} // namespace ep

// With `then`, the rank goes on at once: it signals the next phase with that tag and waits for it, too. That is
// an exchange without results of its own.
extern "C" __global__ void ep_wait(const __grid_constant__ ep::Step step, unsigned long long timeout,
                                   unsigned long long first_timeout, unsigned then) {
    using namespace ep;
    __shared__ Seen all;
    const Start start = begin(step, 1);
    if (!start.good) {
        return;
    }
    const u32 phase = start.phase;
    if (!start.ordered) {
        // What comes next starts when this block has ended, and leaves.
        if (threadIdx.x == 0) {
            ctl(step)[BAD] = out_of_order(start);
            fail_violation(step, out_of_order(start), start.tag, phase);
        }
        return;
    }
    const u32 verdict = await_phase(step, all, start.tag, phase, timeout, first_timeout);
    if (verdict == PASS && then != 0) {
        const u32 next = in_epoch(then, u64(start.tag) >> 4);
        if (threadIdx.x == 0) {
            signal_all(step, next, phase + 1);
        }
        __syncthreads();
        await_phase(step, all, next, phase + 1, timeout, first_timeout);
    }
    // What comes next may start now, and not before: it would take the places of those who are waited for.
    cudaTriggerProgrammaticLaunchCompletion();
}
