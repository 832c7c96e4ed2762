// early: kernels that are launched while the one before them in the stream still runs (programmatic
// dependent launch), so that its end and their start overlap.
#pragma once

// Every thread of such a kernel calls this before it touches memory, and before it returns: it waits until the
// kernel before has ended and all its writes can be seen. That one waited in the same way, so all work before
// it has ended, too. Only then may the next kernel start early: whoever starts after ours can count on
// everything that came before ours.
__device__ __forceinline__ void wait_for_earlier_work() {
    cudaGridDependencySynchronize();
    cudaTriggerProgrammaticLaunchCompletion();
}
