// words: a batch of steps on the control words of one rank's heap, one thread for each.
#include "nano.cuh"

// Mirrors `RawStep` in words.rs.
struct Step {
    u32 slot, generation, event, rank;
};
static_assert(sizeof(Step) == 16, "RawStep is 16 bytes in Rust as well");

// Everything but the 8 bytes of the word. Nobody reads the header now: its slot is reserved, and a reader
// looks at it only after it has seen the word ready.
__device__ __forceinline__ void write_header(u8* header, const u8* fields) {
#pragma unroll
    for (u32 piece = 0; piece < HEADER / 16; piece++) {
        if (piece != WORD / 16) {
            reinterpret_cast<uint4*>(header)[piece] = reinterpret_cast<const uint4*>(fields)[piece];
        }
    }
    constexpr u32 beside = (WORD - 8) / 8;
    reinterpret_cast<u64*>(header)[beside] = reinterpret_cast<const u64*>(fields)[beside];
}

// One step; `fields` is the header of a step that opens its slot.
__device__ __forceinline__ Outcome do_step(const Bases& bases, u32 owner, u32 slots, const Step& step,
                                           const u8* fields) {
    if (step.slot >= slots || step.rank > 7) {
        return {0, MISSING, 0};
    }
    u64* at = word_at(bases, owner, step.slot);
    const u32 event = step.event == OPEN ? RESERVE : step.event;
    const Outcome outcome =
        step_word(at, load_acquire_sys(at), step.generation, event, step.rank, cas_acq_rel_sys);
    if (step.event != OPEN || outcome.code != DONE) {
        return outcome;
    }
    write_header(place(bases, owner, step.slot * HEADER), fields);
    // Releases the fields, and is refused if the slot was aborted meanwhile.
    return step_word(at, outcome.word, step.generation, BEGIN, 0, cas_acq_rel_sys);
}

// Steps in device memory.
extern "C" __global__ void word_steps(const __grid_constant__ Bases bases, u32 owner, u32 slots,
                                      const Step* steps, const u8* fields, u32 count, Outcome* outcomes) {
    wait_for_earlier_work();
    const u32 index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index < count) {
        outcomes[index] = do_step(bases, owner, slots, steps[index], fields + index * HEADER);
    }
}

// A few steps that travel with the launch. Mirrors `Few` in words.rs.
struct alignas(16) Few {
    Step steps[8];
    u8 fields[8][HEADER];
};
static_assert(sizeof(Few) == 1152, "Few is 1152 bytes in Rust as well");

extern "C" __global__ void few_steps(const __grid_constant__ Bases bases, u32 owner, u32 slots,
                                     const __grid_constant__ Few few, u32 count, Outcome* outcomes) {
    wait_for_earlier_work();
    const u32 index = threadIdx.x;
    if (index < count) {
        outcomes[index] = do_step(bases, owner, slots, few.steps[index], few.fields[index]);
    }
}

// Takes back all pins of a rank that is gone, in `count` slots from `first` on. Adds up how many pins
// that were, and how many words stayed as they are because others kept changing them.
extern "C" __global__ void reap_pins(const __grid_constant__ Bases bases, u32 owner, u32 first, u32 count,
                                     u32 rank, u64* reaped) {
    const u32 index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= count) {
        return;
    }
    u64* at = word_at(bases, owner, first + index);
    u64 seen = load_acquire_sys(at);
#pragma unroll 1
    for (u32 attempt = 0; attempt < ATTEMPTS; attempt++) {
        const u64 pins = pins_of(seen, rank);
        if (pins == 0) {
            return;
        }
        const u64 found = cas_acq_rel_sys(at, seen, seen - (pins << (rank * RANK_BITS)));
        if (found == seen) {
            atomicAdd(&reaped[0], pins);
            return;
        }
        seen = found;
    }
    atomicAdd(&reaped[1], 1ull);
}
