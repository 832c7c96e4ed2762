// dispatch: tokens of this rank go to every rank that has one of their experts; the last block signals.
#include "ep.cuh"

namespace ep {

// What a block knows of a token's route: for each position the expert, its rank and its number there, and its weight.
// A division takes long, so each is made once.
struct Route {
    int expert[TOP_K_MAX];
    u32 rank[TOP_K_MAX], local[TOP_K_MAX];
    float weight[TOP_K_MAX];
};

// Ids of 64 bits that no 32 hold are no experts either: the nearest one of 32 bits is named.
__device__ __forceinline__ int narrowed(long long id) {
    return id > 0x7fffffffll ? 0x7fffffff : id < -0x80000000ll ? -0x7fffffff - 1 : int(id);
}

// What is wrong with one position of a route. The lowest position of the lowest token counts, as in the oracle.
__device__ __forceinline__ u64 judge_position(const Step& step, const int* chosen, float weight, u32 token, u32 k) {
    const u32 expert = u32(chosen[k]), bits = __float_as_uint(weight);
    if (chosen[k] == NOT_ROUTED) {
        return NO_VIOLATION;
    }
    if (expert >= step.local_experts * step.ranks) {
        return violation_of(BAD_EXPERT, token, k, expert);
    }
    for (u32 before = 0; before < k; before++) {
        if (chosen[before] == chosen[k]) {
            return violation_of(TWICE_EXPERT, token, k, expert);
        }
    }
    return (bits & 0x7f800000u) == 0x7f800000u ? violation_of(BAD_WEIGHT, token, k, bits) : NO_VIOLATION;
}

// The 16 bytes number `part` of the metadata row for rank `target`.
__device__ __forceinline__ uint4 meta_piece(const Step& step, const Route& route, u32 mask, u32 target, u32 part,
                                            u32 stamp) {
    const bool routed = mask >> target & 1;
    u32 words[4] = {0, 0, 0, 0};
    u32 count = 0;
    for (u32 k = 0; k < TOP_K_MAX; k++) {
        const bool here = routed && k < step.top_k && route.rank[k] == target;
        count += here;
        if (part == 0) {
            const u32 half = here ? route.local[k] : 0xffff;
            words[k / 2] |= half << (16 * (k & 1));
        } else if (here && part == 1 + k / 4) {
            words[k % 4] = __float_as_uint(route.weight[k]);
        }
    }
    if (part == 3) {
        words[0] = count, words[1] = stamp;
    }
    return {words[0], words[1], words[2], words[3]};
}

} // namespace ep

// A block, or `parts` of them, for each of `tokens_max` tokens. `tokens` says how many there are. With `wide` the experts
// are numbers of 64 bits. With `again` a phase may be signalled twice: that is for figures of this kernel alone.
extern "C" __global__ void ep_dispatch(const __grid_constant__ ep::Step step, const uint4* x,
                                       const int* experts, const float* weights, const unsigned* tokens,
                                       unsigned wide, unsigned again) {
    using namespace ep;
    __shared__ Route route;
    __shared__ u64 shared_bad;
    __shared__ u32 shared_mask;
    const Start start = begin_once(step, 1, again != 0);
    cudaTriggerProgrammaticLaunchCompletion();
    const u32 token = blockIdx.x / step.parts, part = blockIdx.x % step.parts;
    const u32 phase = start.phase, slot = step.me * step.tokens_max + token;
    const u32 given = __ldcg(tokens);
    const u32 k = threadIdx.x;
    int expert = NOT_ROUTED;
    float weight = 0;
    if (k < step.top_k) {
        const u64 at = u64(token) * step.top_k + k;
        expert = wide != 0 ? narrowed(__ldcg(reinterpret_cast<const long long*>(experts) + at)) : __ldcg(experts + at);
        weight = __ldcg(weights + at);
    }
    // Rows after the last token are memory of the caller as well, so the first pieces may be asked for.
    const uint4* source = x + u64(token) * step.token_pieces;
    const Share own = share(step, step.token_pieces, part);
    u32 piece = own.first + threadIdx.x, second = piece + blockDim.x;
    uint4 one = {0, 0, 0, 0}, two = {0, 0, 0, 0};
    if (piece < own.end) {
        one = __ldcg(source + piece);
    }
    if (second < own.end) {
        two = __ldcg(source + second);
    }
    if (!start.good) {
        return;
    }
    const u32 live = !start.ordered || given > step.tokens_max ? 0 : given;
    const u32 rank = u32(expert) / step.local_experts;
    if (threadIdx.x < TOP_K_MAX) {
        route.expert[k] = expert, route.weight[k] = weight;
        route.rank[k] = rank, route.local[k] = u32(expert) - rank * step.local_experts;
    }
    if (threadIdx.x == 0) {
        shared_mask = 0;
        shared_bad = !start.ordered            ? out_of_order(start)
                     : given > step.tokens_max ? violation_of(TOO_MANY_TOKENS, 0, 0, given)
                                               : NO_VIOLATION;
    }
    __syncthreads();
    if (token < live && k < step.top_k) {
        const u64 bad = judge_position(step, route.expert, weight, token, k);
        if (bad != NO_VIOLATION) {
            atomicMin(&shared_bad, bad);
        } else if (expert != NOT_ROUTED) {
            atomicOr(&shared_mask, 1u << rank);
        }
    }
    __syncthreads();
    const u32 mask = shared_bad == NO_VIOLATION ? shared_mask : 0;
    if (threadIdx.x == 0) {
        if (shared_bad != NO_VIOLATION) {
            atomicMin(ctl(step) + BAD, shared_bad);
        }
        if (part == 0 && start.ordered) {
            u8* sent = place(step, step.me, step.sent);
            reinterpret_cast<u32*>(sent + SENT_HEAD)[token] = mask;
            if (token == 0) {
                *reinterpret_cast<u32*>(sent) = live;
            }
        }
    }
    while (mask != 0 && piece < own.end) {
#pragma unroll
        for (u32 target = 0; target < RANKS_MAX; target++) {
            if (mask >> target & 1) {
                uint4* row = token_at(step, target, slot);
                store_piece(row + piece, one);
                if (second < own.end) {
                    store_piece(row + second, two);
                }
            }
        }
        piece += 2 * blockDim.x, second += 2 * blockDim.x;
        if (piece < own.end) {
            one = __ldcg(source + piece);
        }
        if (second < own.end) {
            two = __ldcg(source + second);
        }
    }
    // After the rows, which take longer to arrive.
    if (part == 0 && start.ordered && threadIdx.x < step.ranks * ROW_PIECES) {
        const u32 target = threadIdx.x / ROW_PIECES, at = threadIdx.x % ROW_PIECES;
        store_piece(meta_at(step, target, slot) + at,
                    meta_piece(step, route, mask, target, at, phase));
    }
    const End end = end_of_all(step, shared_bad != NO_VIOLATION);
    if (end == End::GOOD) {
        signal_all(step, start.tag, phase);
    } else if (end == End::FOUND_BAD) {
        fail_violation(step, __ldcg(ctl(step) + BAD), start.tag, phase);
    }
}
