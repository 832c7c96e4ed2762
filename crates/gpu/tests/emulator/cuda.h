// The words of CUDA C++ that our kernels use, for an ordinary C++ compiler: one thread after the other.
#pragma once

#include <algorithm>

#define __device__
#define __global__
#define __forceinline__ inline
#define __grid_constant__

struct uint4 {
    unsigned x, y, z, w;
};
struct Dimensions {
    unsigned x = 1, y = 1, z = 1;
};
static Dimensions blockIdx, blockDim, threadIdx;

using std::min;

template <class T>
T __ldcg(const T* at) {
    return *at;
}

inline unsigned atomicAdd(unsigned* at, unsigned more) {
    const unsigned before = *at;
    *at += more;
    return before;
}
