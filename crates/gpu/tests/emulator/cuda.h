// The words of CUDA C++ that our kernels use, for an ordinary C++ compiler: one thread after the other, or,
// where they wait for each other, one after the other up to each barrier.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <ctime>

#define __device__
#define __global__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)
// Blocks run one after the other.
#define __shared__ static

struct uint4 {
    unsigned x, y, z, w;
};
struct Dimensions {
    unsigned x = 1, y = 1, z = 1;
};
static Dimensions blockIdx, blockDim, gridDim, threadIdx;

// In driver.cpp.
void __syncthreads();

// Whether any thread of the block has said so. The first one begins.
inline int __syncthreads_or(int said) {
    static int any;
    any = (threadIdx.x == 0 ? 0 : any) | said;
    __syncthreads();
    const int heard = any;
    __syncthreads();
    return heard;
}

// Lanes of a warp, for blocks of one warp whose threads wait for each other: all say something, then all hear it.
// The first one begins.
inline void __syncwarp() { __syncthreads(); }
inline unsigned __ballot_sync(unsigned, bool vote) {
    static unsigned votes;
    votes = (threadIdx.x == 0 ? 0 : votes) | unsigned(vote) << threadIdx.x;
    __syncthreads();
    const unsigned all = votes;
    __syncthreads();
    return all;
}
inline unsigned __shfl_sync(unsigned, unsigned value, unsigned lane) {
    static unsigned said;
    said = threadIdx.x == lane ? value : said;
    __syncthreads();
    const unsigned heard = said;
    __syncthreads();
    return heard;
}
inline int __ffs(int bits) { return __builtin_ffs(bits); }

using std::min;

template <class T>
T __ldcg(const T* at) {
    return *at;
}

template <class T>
T atomicAdd(T* at, T more) {
    return __atomic_fetch_add(at, more, __ATOMIC_RELAXED);
}
inline unsigned atomicOr(unsigned* at, unsigned bits) {
    return __atomic_fetch_or(at, bits, __ATOMIC_RELAXED);
}
inline unsigned long long atomicXor(unsigned long long* at, unsigned long long bits) {
    return __atomic_fetch_xor(at, bits, __ATOMIC_RELAXED);
}
inline unsigned long long atomicMin(unsigned long long* at, unsigned long long other) {
    unsigned long long seen = __atomic_load_n(at, __ATOMIC_RELAXED);
    while (other < seen && !__atomic_compare_exchange_n(at, &seen, other, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
    return seen;
}

inline float __uint_as_float(unsigned bits) {
    float value;
    return std::memcpy(&value, &bits, 4), value;
}
inline unsigned __float_as_uint(float value) {
    unsigned bits;
    return std::memcpy(&bits, &value, 4), bits;
}
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fadd_rn(float a, float b) { return a + b; }

// What `nano.cuh` and `ep.cuh` write in PTX.
inline unsigned long long cas_acq_rel_sys(unsigned long long* at, unsigned long long seen,
                                          unsigned long long next) {
    __atomic_compare_exchange_n(at, &seen, next, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    return seen;
}
inline unsigned long long cas_relaxed_sys(unsigned long long* at, unsigned long long seen,
                                          unsigned long long next) {
    return cas_acq_rel_sys(at, seen, next);
}
inline void fence_sys() { __atomic_thread_fence(__ATOMIC_ACQ_REL); }
// What a test lets arrive while a kernel looks at page-locked memory.
struct Arrival {
    unsigned long long *at, value;
};
static Arrival arrives = {nullptr, 0};
// In driver.cpp.
bool is_page_locked(const void* at);
inline unsigned long long load_acquire_sys(unsigned long long* at) {
    if (arrives.at && is_page_locked(at)) {
        __atomic_store_n(arrives.at, arrives.value, __ATOMIC_RELEASE);
        arrives.at = nullptr;
    }
    return __atomic_load_n(at, __ATOMIC_ACQUIRE);
}
inline unsigned add_acq_rel_gpu(unsigned* at, unsigned more) {
    return __atomic_fetch_add(at, more, __ATOMIC_ACQ_REL);
}
inline unsigned long long add_acq_rel_gpu(unsigned long long* at, unsigned long long more) {
    return __atomic_fetch_add(at, more, __ATOMIC_ACQ_REL);
}
inline void store_release_sys(unsigned long long* at, unsigned long long value) {
    __atomic_store_n(at, value, __ATOMIC_RELEASE);
}
inline void store_relaxed_sys(unsigned long long* at, unsigned long long value) {
    __atomic_store_n(at, value, __ATOMIC_RELAXED);
}
// Lanes of a warp, in a block whose warps all call it as often. Products are added up one after the other, in the order
// of `experts_oracle`; a tensor core has an order of its own.
inline void multiply_tile(float* sum, const unsigned* a, unsigned b_low, unsigned b_high) {
    struct Held {
        unsigned a[4], b[2];
    };
    static Held held[32][32];
    Held* warp = held[threadIdx.x / 32];
    const unsigned lane = threadIdx.x % 32;
    warp[lane] = {{a[0], a[1], a[2], a[3]}, {b_low, b_high}};
    __syncthreads();
    const auto number = [](unsigned two, unsigned i) { return __uint_as_float((two >> (16 * i)) << 16); };
    for (unsigned i = 0; i < 4; i++) {
        const unsigned row = lane / 4, token = lane % 4 * 2 + i % 2;
        for (unsigned element = 0; element < 16; element++) {
            const unsigned half = element / 8, quad = element / 2 % 4;
            sum[i] = std::fma(number(warp[row * 4 + quad].a[i / 2 + 2 * half], element % 2),
                              number(warp[token * 4 + quad].b[half], element % 2), sum[i]);
        }
    }
    __syncthreads();
}
inline void store_piece(uint4* at, const uint4& piece) { *at = piece; }
inline unsigned long long nanoseconds() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (unsigned long long)(now.tv_sec) * 1000000000ull + (unsigned long long)(now.tv_nsec);
}

// Which threads of the running block have waited for the work before their kernel.
static bool waited[1024];
inline void cudaGridDependencySynchronize() { waited[threadIdx.x] = true; }
inline void cudaTriggerProgrammaticLaunchCompletion() {}
