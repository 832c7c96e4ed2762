// What the kernels of the exchange share: the heaps of all ranks, signals, poison, and rounding.
//
// Rules: 16 bytes per access; 64-bit offsets; memory that another rank may have written is read from L2
// (`__ldcg`), and no pointer is `__restrict__`, so the compiler never uses the read-only cache. Signals are
// 64-bit words with one writer, stored after a fence at system scope (but for one that follows no data) and read by
// acquire loads. Only `ep_wait`
// looks at a word more than once, and it is one block of 32 threads per rank: a block that spins holds its
// place on the GPU, and the blocks that it waits for need one. Nothing traps. Nobody is counted by a host.
//
// Every thread of every kernel calls `begin` before it touches memory. Kernels may be launched while the one
// before them still runs; in `begin` they wait until it has ended. All kernels of a rank do, so everything
// before has ended, too. `ep_wait` looks at signals first, and waits in the same way before it ends or fails.
#pragma once

namespace ep {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

constexpr u32 RANKS_MAX = 8, TOP_K_MAX = 8, LOCAL_EXPERTS_MAX = 1024;

// Slots that a block looks at together: one latency for all of them.
constexpr u32 BATCH = 16;

// Mirrors `RawStep` in launch.rs: where everything lies, and what this launch is about.
struct Step {
    u64 bases[RANKS_MAX];
    // Offsets of the parts of a heap: `EpLayout`.
    u64 sig, sent, meta, recv, ret;
    // Host memory: where the error of this rank is told, and which ranks the host knows to be gone.
    u64 report, abort;
    // The tag is that of epoch 0; 0 where a kernel belongs to no phase.
    u32 ranks, me, tokens_max, top_k, pieces, local_experts, rows_max, tag;
    // Blocks that share one row.
    u32 parts;
    // 16-byte pieces of a token; `pieces` are those of a result. They differ where tokens are fp8.
    u32 token_pieces;
};
static_assert(sizeof(Step) == 160, "Step is 160 bytes in Rust as well");

// Words of `ctl`: `layout::ctl`.
constexpr u32 PHASE = 1, EPOCH = 2, ARRIVED = 3, BAD = 4, ERROR = 5;
// `layout::row`, in pieces of 16 bytes: experts, weights twice, then count and stamp.
constexpr u32 ROW_PIECES = 4;
constexpr u32 SENT_HEAD = 16;
constexpr u64 NO_VIOLATION = ~0ull;
constexpr u32 POISON = 0xffffffffu;
// `barrier::Kind`.
constexpr u32 TIMEOUT = 1, LOST = 2, DESYNC = 3, STALE_ROW = 4, TOO_MANY_TOKENS = 5, BAD_EXPERT = 6,
              TWICE_EXPERT = 7, BAD_WEIGHT = 8, OVERFLOW_ = 9, LEFT = 10, OUT_OF_ORDER = 11, BAD_PLACE = 12;
// A kind that a word says; one that this version does not know is a failure all the same.
__device__ __forceinline__ u32 known(u32 kind) { return kind >= TIMEOUT && kind <= BAD_PLACE ? kind : LEFT; }
// `barrier::Op`.
constexpr u32 DISPATCH = 1, RETURN = 2;
// `dispatch_oracle::NOT_ROUTED`. As an unsigned number it belongs to no rank.
constexpr int NOT_ROUTED = -1;
// In the host's word of aborts, after a bit for each rank: this rank gives its communicator up; the caller was
// interrupted, so the time of waits is over.
constexpr u32 LEAVES = 1u << 8, OVER = 1u << 9;

__device__ __forceinline__ u8* place(const Step& step, u32 rank, u64 offset) {
    u8* at = reinterpret_cast<u8*>(step.bases[rank] + offset);
#ifdef __CUDACC__
    // An address that was a number is taken for shared memory otherwise, at every access.
    __builtin_assume(__isGlobal(at));
#endif
    return at;
}
__device__ __forceinline__ u64* ctl(const Step& step) {
    return reinterpret_cast<u64*>(place(step, step.me, 0));
}
__device__ __forceinline__ u64* signal_at(const Step& step, u32 rank, u32 phase, u32 source) {
    return reinterpret_cast<u64*>(place(step, rank, step.sig + 8 * ((phase & 1) * RANKS_MAX + source)));
}
__device__ __forceinline__ uint4* token_at(const Step& step, u32 rank, u64 slot) {
    return reinterpret_cast<uint4*>(place(step, rank, step.recv + slot * step.token_pieces * 16));
}
__device__ __forceinline__ uint4* result_at(const Step& step, u32 rank, u64 row) {
    return reinterpret_cast<uint4*>(place(step, rank, step.ret + row * step.pieces * 16));
}
__device__ __forceinline__ uint4* meta_at(const Step& step, u32 rank, u32 slot) {
    return reinterpret_cast<uint4*>(place(step, rank, step.meta + u64(slot) * 64));
}

// ---- memory order: PTX, because CUDA C++ has no name for it; the emulator brings its own --------------

#ifdef __CUDACC__
__device__ __forceinline__ void fence_sys() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }
__device__ __forceinline__ u64 load_acquire_sys(u64* at) {
    u64 found;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];"
                 : "=l"(found)
                 : "l"(__cvta_generic_to_global(at))
                 : "memory");
    return found;
}
// After `fence_sys` they are a release at system scope together, and the fence is paid once.
__device__ __forceinline__ void store_relaxed_sys(u64* at, u64 value) {
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;"
                 :
                 : "l"(__cvta_generic_to_global(at)), "l"(value)
                 : "memory");
}
__device__ __forceinline__ u64 add_acq_rel_gpu(u64* at, u64 more) {
    u64 found;
    asm volatile("atom.acq_rel.gpu.global.add.u64 %0, [%1], %2;"
                 : "=l"(found)
                 : "l"(__cvta_generic_to_global(at)), "l"(more)
                 : "memory");
    return found;
}
// Where an address comes from a table, the compiler does not know that it is global memory.
__device__ __forceinline__ void store_piece(uint4* at, const uint4& piece) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};"
                 :
                 : "l"(__cvta_generic_to_global(at)), "r"(piece.x), "r"(piece.y), "r"(piece.z), "r"(piece.w)
                 : "memory");
}
__device__ __forceinline__ u64 nanoseconds() {
    u64 now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}
#else
using ::add_acq_rel_gpu;
using ::fence_sys;
using ::load_acquire_sys;
using ::nanoseconds;
using ::store_piece;
using ::store_relaxed_sys;
#endif

// ---- life of a launch ---------------------------------------------------------------------------------

// What a kernel knows when it begins.
struct Start {
    // False: this rank has failed, and the kernel leaves.
    bool good;
    // False: the operation does not belong to such a phase (`barrier::Tag::fits`), and the step fails.
    bool ordered;
    // The phase that was passed, the one that the kernel is about, and its tag in this epoch.
    u32 passed, phase, tag;
};

// `barrier::Tag::in_epoch`.
__device__ __forceinline__ u32 in_epoch(u32 tag, u64 epoch) { return tag | (u32(epoch) & 255) << 4; }

// What a kernel needs from memory in any case it asks for before it looks at the answer: one latency for all of it
// instead of several.
__device__ __forceinline__ Start begin_early(const Step& step, u32 ahead) {
    const u64* own = ctl(step);
    const u64 error = __ldcg(own + ERROR), passed = __ldcg(own + PHASE), epoch = __ldcg(own + EPOCH);
    const u32 phase = u32(passed) + ahead;
    const bool ordered = ((step.tag >> 12 & 15) == DISPATCH) == ((phase & 1) == 1);
    return {error == 0, ordered, u32(passed), phase, in_epoch(step.tag, epoch)};
}

// Waits for the work before this kernel. No kernel of a rank fails while another one runs, so all threads get the
// same answer.
__device__ __forceinline__ Start begin(const Step& step, u32 ahead) {
    cudaGridDependencySynchronize();
    return begin_early(step, ahead);
}

// The same for a kernel that signals, in odd phases or in even ones: work that this rank has signalled already is out of
// order, too (`begin_once` of the oracles). The word has the parity of the kernel, so it is asked for with the phase.
// With `again` that is allowed.
__device__ __forceinline__ Start begin_once(const Step& step, u32 parity, bool again) {
    Start start = begin(step, 1);
    const u64 own = __ldcg(signal_at(step, step.me, parity, step.me));
    const bool now = ((u32(own >> 32) ^ start.tag) & 0xff0u) == 0;
    start.ordered = start.ordered && (again || !now || int(u32(own) - start.phase) < 0);
    return start;
}

// `barrier::Record`, its first two words.
__device__ __forceinline__ u64 record_of(u32 kind, u32 origin, u32 ranks, u32 told, u32 phase) {
    return u64(kind) | u64(origin) << 8 | u64(ranks) << 16 | u64(told) << 24 | u64(phase) << 32;
}
// `barrier::Signal::poison`.
__device__ __forceinline__ u64 poison_of(u64 record, u32 passed, u64 epoch) {
    const u32 next = u32(record >> 32) == passed ? 0 : 1u << 15;
    const u32 kind = u32(record) & 255, origin = u32(record >> 8) & 7, ranks = u32(record >> 16) & 255;
    return u64(in_epoch(POISON & ~0xff0u, epoch)) << 32 | (kind << 27 | origin << 24 | ranks << 16 | next | (passed & 0x7fff));
}

// Poisons this rank's words at one rank.
__device__ __forceinline__ void poison_at(const Step& step, u32 rank, u64 poison) {
    store_relaxed_sys(signal_at(step, rank, 0, step.me), poison);
    store_relaxed_sys(signal_at(step, rank, 1, step.me), poison);
}

// Keeps the record, tells the host, and poisons this rank's words at all ranks. One thread does it.
__device__ __forceinline__ void fail(const Step& step, u64 record, u64 tags, u64 violation) {
    u64* own = ctl(step);
    const u64 poison = poison_of(record, u32(__ldcg(own + PHASE)), __ldcg(own + EPOCH));
    own[ERROR + 2] = violation;
    own[ERROR + 1] = tags;
    own[ERROR] = record;
    u64* report = reinterpret_cast<u64*>(step.report);
    if (report != nullptr) {
        report[2] = violation;
        report[1] = tags;
    }
    fence_sys();
    if (report != nullptr) {
        store_relaxed_sys(report, record);
    }
    for (u32 rank = 0; rank < step.ranks; rank++) {
        poison_at(step, rank, poison);
    }
}

__device__ __forceinline__ void fail_violation(const Step& step, u64 violation, u32 tag, u32 phase) {
    const u32 kind = u32(violation >> 32) & 255;
    const u32 guilty = kind == STALE_ROW ? u32(violation >> 48) / step.tokens_max : step.me;
    const u64 tags = u64(tag) << 32 | tag;
    fail(step, record_of(kind, step.me, 1u << guilty, 0, phase), tags, violation);
}

// Tells all ranks that this one has done its part of a phase. One thread does it.
__device__ __forceinline__ void signal_all(const Step& step, u32 tag, u32 phase) {
    fence_sys();
    for (u32 rank = 0; rank < step.ranks; rank++) {
        store_relaxed_sys(signal_at(step, rank, phase, step.me), u64(tag) << 32 | phase);
    }
}

// What a thread knows at the end of its kernel: it is the one that ends it for the whole rank, or not; and whether a
// thread of any block has found something wrong, and said so in `BAD`.
enum class End { NOT_MINE, GOOD, FOUND_BAD };

// It ends with one thread of the block that comes last: then everything that all blocks have stored is ordered before
// what it does after `fence_sys`. Each block's own accesses are ordered by the barrier, the blocks among each other by
// the acquire and release of the counter. Blocks that found something are counted in its upper half, so that nobody
// looks at `BAD` for nothing.
__device__ __forceinline__ End end_of_all(const Step& step, bool found) {
    u64* arrived = ctl(step) + ARRIVED;
    const u64 more = __syncthreads_or(found) != 0 ? 1ull << 32 | 1 : 1;
    if (threadIdx.x != 0) {
        return End::NOT_MINE;
    }
    const u64 all = add_acq_rel_gpu(arrived, more) + more;
    if (u32(all) != gridDim.x) {
        return End::NOT_MINE;
    }
    // For the next launch, which begins after this one.
    *arrived = 0;
    return all >> 32 == 0 ? End::GOOD : End::FOUND_BAD;
}

// ---- numbers ------------------------------------------------------------------------------------------

__device__ __forceinline__ u64 violation_of(u32 kind, u32 at, u32 position, u32 value) {
    return u64(at & 0xffff) << 48 | u64(position) << 40 | u64(kind) << 32 | value;
}

// What is wrong with work that is done where something else comes next.
__device__ __forceinline__ u64 out_of_order(const Start& start) {
    return violation_of(OUT_OF_ORDER, 0, 0, start.tag);
}

__device__ __forceinline__ float low_half(u32 two) { return __uint_as_float(two << 16); }
__device__ __forceinline__ float high_half(u32 two) { return __uint_as_float(two & 0xffff0000u); }
// `bf16::from_f32`: to nearest, then to even; a NaN stays one.
__device__ __forceinline__ u32 rounded(float value) {
    const u32 bits = __float_as_uint(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return bits >> 16 | 0x40;
    }
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
__device__ __forceinline__ u32 both(const float* two) { return rounded(two[0]) | rounded(two[1]) << 16; }
__device__ __forceinline__ uint4 rounded_piece(const float* sum) {
    uint4 piece;
    piece.x = both(sum), piece.y = both(sum + 2), piece.z = both(sum + 4), piece.w = both(sum + 6);
    return piece;
}
__device__ __forceinline__ void unpack(const uint4& piece, float* out) {
    out[0] = low_half(piece.x), out[1] = high_half(piece.x);
    out[2] = low_half(piece.y), out[3] = high_half(piece.y);
    out[4] = low_half(piece.z), out[5] = high_half(piece.z);
    out[6] = low_half(piece.w), out[7] = high_half(piece.w);
}

// The pieces of a row that this block moves.
struct Share {
    u32 first, end;
};
__device__ __forceinline__ Share share(const Step& step, u32 pieces, u32 part) {
    const u32 each = (pieces + step.parts - 1) / step.parts;
    const u32 first = part * each;
    return {first, min(first + each, pieces)};
}

// A half of 16 bits out of a piece.
__device__ __forceinline__ int half_at(const uint4& piece, u32 k) {
    const u32 word = k < 2 ? piece.x : k < 4 ? piece.y : k < 6 ? piece.z : piece.w;
    return int(short(word >> (16 * (k & 1))));
}

} // namespace ep
