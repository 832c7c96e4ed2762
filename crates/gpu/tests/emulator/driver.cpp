// An emulator of the CUDA driver, for tests on machines without a GPU. It is built as `libcuda.so`, and
// the tests of `gpu` and `paged` load it in the place of NVIDIA's.
//
// Kernels are the `.cu` files themselves, compiled for the host: what they compute is what a GPU computes,
// as long as no two threads touch the same bytes. Device memory is a memfd, so that other processes can
// map it. Streams do everything at once, unless they are being recorded.
//
// What it cannot show: anything about time, memory order, alignment, the PTX, or the real driver's
// answers. Only `./dev gpu` on a GPU shows that.
#include "cuda.h"

#include "../../../paged/src/kernels/append.cu"
#include "../../../paged/src/kernels/compact.cu"
#include "../../../paged/src/kernels/copy_blocks.cu"
#include "../../../paged/src/kernels/gather.cu"

#include <cstdio>
#include <cstring>
#include <ctime>
#include <fcntl.h>
#include <functional>
#include <map>
#include <string>
#include <sys/mman.h>
#include <unistd.h>
#include <utility>
#include <vector>

#define DRIVER extern "C" int

enum Answer {
    OK = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    INVALID_CONTEXT = 201,
    INVALID_PTX = 218,
    NOT_FOUND = 500,
    CAPTURE_UNSUPPORTED = 900,
};

// What `gpu/tests/add_number.ptx` does.
static void add_number(u32* at, u32 count, u32 number) {
    const u32 index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index < count) {
        at[index] += number;
    }
}

// ---- kernels: called with the driver's array of pointers to parameters -------------------------------

struct Function {
    std::vector<size_t> sizes;
    std::function<void(void**)> run;
};

template <class... T, size_t... I>
Function function(void (*kernel)(T...), std::index_sequence<I...>) {
    return {{sizeof(T)...}, [=](void** params) { kernel(*static_cast<T*>(params[I])...); }};
}
template <class... T>
Function function(void (*kernel)(T...)) {
    return function(kernel, std::index_sequence_for<T...>());
}

static std::map<std::string, Function>& functions() {
    static std::map<std::string, Function> all = {
        {"add_number", function(add_number)},         {"append_rows", function(append_rows)},
        {"gather_blocks", function(gather_blocks)},   {"scatter_blocks", function(scatter_blocks)},
        {"copy_blocks", function(copy_blocks)},       {"compact_rows", function(compact_rows)},
    };
    return all;
}

// ---- the GPU and its context -------------------------------------------------------------------------

static thread_local void* current = nullptr;
static int contexts = 0;

DRIVER cuInit(unsigned) { return OK; }
DRIVER cuDriverGetVersion(int* version) { return *version = 13000, OK; }
DRIVER cuDeviceGetCount(int* count) { return *count = 1, OK; }
DRIVER cuDeviceGet(int* device, int ordinal) { return *device = ordinal, OK; }
DRIVER cuDeviceGetName(char* name, int bytes, int) {
    return std::snprintf(name, size_t(bytes), "emulator"), OK;
}
DRIVER cuDeviceGetAttribute(int* value, int which, int) {
    // Multiprocessors, and compute capability 9.0.
    return *value = which == 16 ? 132 : which == 75 ? 9 : 0, OK;
}
DRIVER cuDeviceTotalMem_v2(size_t* bytes, int) { return *bytes = size_t(16) << 30, OK; }
DRIVER cuDevicePrimaryCtxRetain(void** context, int) {
    contexts++;
    return *context = &contexts, OK;
}
DRIVER cuDevicePrimaryCtxRelease_v2(int) { return contexts--, OK; }
DRIVER cuCtxSetCurrent(void* context) { return current = context, OK; }
DRIVER cuCtxSynchronize() { return current ? OK : INVALID_CONTEXT; }
DRIVER cuMemGetInfo_v2(size_t* free, size_t* total) {
    return *free = size_t(8) << 30, *total = size_t(16) << 30, OK;
}
DRIVER cuGetErrorName(int answer, const char** name) {
    static const std::map<int, const char*> names = {
        {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},     {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
        {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT"}, {INVALID_PTX, "CUDA_ERROR_INVALID_PTX"},
        {NOT_FOUND, "CUDA_ERROR_NOT_FOUND"},
    };
    const auto found = names.find(answer);
    return *name = found == names.end() ? "CUDA_ERROR_OF_EMULATOR" : found->second, OK;
}
DRIVER cuGetErrorString(int, const char** text) { return *text = "said by the emulator", OK; }

// ---- streams, events, graphs -------------------------------------------------------------------------

using Work = std::vector<std::function<void()>>;

struct Stream {
    bool recording = false;
    Work work;
};

static int queue(Stream* stream, std::function<void()> work) {
    if (!current) {
        return INVALID_CONTEXT;
    }
    if (stream->recording) {
        stream->work.push_back(std::move(work));
    } else {
        work();
    }
    return OK;
}

DRIVER cuStreamCreate(Stream** stream, unsigned) { return *stream = new Stream, OK; }
DRIVER cuStreamDestroy_v2(Stream* stream) {
    delete stream;
    return OK;
}
DRIVER cuStreamSynchronize(Stream* stream) { return stream->recording ? CAPTURE_UNSUPPORTED : OK; }
DRIVER cuStreamIsCapturing(Stream* stream, int* status) { return *status = stream->recording, OK; }
DRIVER cuStreamWaitEvent(Stream*, double*, unsigned) { return OK; }

// An event is the time at which it was passed, in milliseconds.
DRIVER cuEventCreate(double** event, unsigned) { return *event = new double(0), OK; }
DRIVER cuEventDestroy_v2(double* event) {
    delete event;
    return OK;
}
DRIVER cuEventRecord(double* event, Stream* stream) {
    return queue(stream, [=] {
        timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        *event = double(now.tv_sec) * 1e3 + double(now.tv_nsec) / 1e6;
    });
}
DRIVER cuEventSynchronize(double*) { return OK; }
DRIVER cuEventElapsedTime_v2(float* milliseconds, double* from, double* to) {
    return *milliseconds = float(*to - *from), OK;
}

DRIVER cuStreamBeginCapture_v2(Stream* stream, int) { return stream->recording = true, OK; }
DRIVER cuStreamEndCapture(Stream* stream, Work** graph) {
    stream->recording = false;
    *graph = new Work(std::move(stream->work));
    return stream->work.clear(), OK;
}
DRIVER cuGraphGetNodes(Work* graph, void*, size_t* count) { return *count = graph->size(), OK; }
DRIVER cuGraphInstantiateWithFlags(Work** ready, Work* graph, unsigned long long) {
    return *ready = new Work(*graph), OK;
}
DRIVER cuGraphLaunch(Work* graph, Stream* stream) {
    return queue(stream, [=] {
        for (const auto& work : *graph) {
            work();
        }
    });
}
DRIVER cuGraphExecDestroy(Work* graph) {
    delete graph;
    return OK;
}
DRIVER cuGraphDestroy(Work* graph) {
    delete graph;
    return OK;
}

// ---- modules and launches ----------------------------------------------------------------------------

DRIVER cuModuleLoadDataEx(std::string** module, const char* ptx, unsigned, int*, void** values) {
    // The one mistake that a test makes on purpose; the first option is the buffer of the log.
    if (std::strstr(ptx, "mad.oops")) {
        std::strcpy(static_cast<char*>(values[0]), "unknown modifier '.oops'");
        return INVALID_PTX;
    }
    return *module = new std::string(ptx), OK;
}
DRIVER cuModuleUnload(std::string* module) {
    delete module;
    return OK;
}
DRIVER cuModuleGetFunction(Function** found, std::string* module, const char* name) {
    const auto place = functions().find(name);
    const bool declared = module->find(std::string(".entry ") + name + "(") != std::string::npos;
    if (!declared || place == functions().end()) {
        return NOT_FOUND;
    }
    return *found = &place->second, OK;
}
DRIVER cuFuncLoad(Function*) { return OK; }
DRIVER cuFuncGetParamInfo(Function* function, size_t index, size_t* offset, size_t* bytes) {
    if (index >= function->sizes.size()) {
        return INVALID_VALUE;
    }
    return *offset = 0, *bytes = function->sizes[index], OK;
}

struct LaunchConfig {
    unsigned grid[3], block[3], shared_bytes;
    Stream* stream;
    void* attributes;
    unsigned attribute_count;
};

DRIVER cuLaunchKernelEx(const LaunchConfig* config, Function* function, void** params, void**) {
    // Parameters are copied when the launch is queued.
    std::vector<std::vector<char>> values;
    for (size_t i = 0; i < function->sizes.size(); i++) {
        const char* value = static_cast<char*>(params[i]);
        values.emplace_back(value, value + function->sizes[i]);
    }
    const unsigned blocks = config->grid[0], threads = config->block[0];
    return queue(config->stream, [=]() mutable {
        std::vector<void*> pointers;
        for (auto& value : values) {
            pointers.push_back(value.data());
        }
        blockDim.x = threads;
        for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++) {
            for (threadIdx.x = 0; threadIdx.x < threads; threadIdx.x++) {
                function->run(pointers.data());
            }
        }
    });
}

// ---- memory ------------------------------------------------------------------------------------------

using Address = unsigned long long;

// A memfd and its length.
struct Memory {
    int fd;
    size_t bytes;
};
static std::map<Address, Memory> buffers, opened, handles;
static Address next_handle = 1;

static bool make(Memory& memory, size_t bytes) {
    memory = {memfd_create("device memory", 0), bytes};
    return memory.fd >= 0 && ftruncate(memory.fd, off_t(bytes)) == 0;
}
static Address map_anywhere(const Memory& memory) {
    void* at = mmap(nullptr, memory.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory.fd, 0);
    return at == MAP_FAILED ? 0 : reinterpret_cast<Address>(at);
}
static int close_one(std::map<Address, Memory>& all, Address address) {
    const auto found = all.find(address);
    if (found == all.end()) {
        return INVALID_VALUE;
    }
    munmap(reinterpret_cast<void*>(address), found->second.bytes);
    close(found->second.fd);
    all.erase(found);
    return OK;
}

DRIVER cuMemAlloc_v2(Address* address, size_t bytes) {
    Memory memory;
    if (bytes > size_t(16) << 30 || !make(memory, bytes) || !(*address = map_anywhere(memory))) {
        return OUT_OF_MEMORY;
    }
    return buffers[*address] = memory, OK;
}
DRIVER cuMemFree_v2(Address address) { return close_one(buffers, address); }
DRIVER cuMemHostAlloc(void** base, size_t bytes, unsigned) {
    *base = operator new(bytes);
    // The caller may not count on zeros.
    return std::memset(*base, 0x77, bytes), OK;
}
DRIVER cuMemFreeHost(void* base) {
    operator delete(base);
    return OK;
}
static void* pointer(Address address) { return reinterpret_cast<void*>(address); }
DRIVER cuMemcpyHtoDAsync_v2(Address to, const void* from, size_t bytes, Stream* stream) {
    return queue(stream, [=] { std::memcpy(pointer(to), from, bytes); });
}
DRIVER cuMemcpyDtoHAsync_v2(void* to, Address from, size_t bytes, Stream* stream) {
    return queue(stream, [=] { std::memcpy(to, pointer(from), bytes); });
}
DRIVER cuMemcpyDtoDAsync_v2(Address to, Address from, size_t bytes, Stream* stream) {
    return queue(stream, [=] { std::memcpy(pointer(to), pointer(from), bytes); });
}
DRIVER cuMemsetD8Async(Address to, unsigned char byte, size_t bytes, Stream* stream) {
    return queue(stream, [=] { std::memset(pointer(to), byte, bytes); });
}

// ---- memory of other processes -----------------------------------------------------------------------

DRIVER cuMemGetAllocationGranularity(size_t* bytes, const void*, int) { return *bytes = 2 << 20, OK; }
DRIVER cuMemCreate(Address* handle, size_t bytes, const void*, unsigned long long) {
    *handle = next_handle++;
    return make(handles[*handle], bytes) ? OK : OUT_OF_MEMORY;
}
DRIVER cuMemRelease(Address handle) {
    close(handles.at(handle).fd);
    return handles.erase(handle), OK;
}
DRIVER cuMemExportToShareableHandle(int* fd, Address handle, int, unsigned long long) {
    return *fd = dup(handles.at(handle).fd), OK;
}
DRIVER cuMemImportFromShareableHandle(Address* handle, void* fd, int) {
    if (!fd) {
        return INVALID_VALUE;
    }
    const int own = dup(int(reinterpret_cast<Address>(fd)));
    *handle = next_handle++;
    return handles[*handle] = {own, size_t(lseek(own, 0, SEEK_END))}, OK;
}
DRIVER cuMemAddressReserve(Address* address, size_t bytes, size_t, Address, unsigned long long) {
    void* at = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return *address = reinterpret_cast<Address>(at), at == MAP_FAILED ? OUT_OF_MEMORY : OK;
}
DRIVER cuMemAddressFree(Address address, size_t bytes) { return munmap(pointer(address), bytes), OK; }
DRIVER cuMemMap(Address address, size_t bytes, size_t, Address handle, unsigned long long) {
    const Memory& memory = handles.at(handle);
    if (memory.bytes != bytes) {
        return INVALID_VALUE;
    }
    // Without access, until `cuMemSetAccess`.
    mmap(pointer(address), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, memory.fd, 0);
    return OK;
}
DRIVER cuMemSetAccess(Address address, size_t bytes, const void*, size_t) {
    return mprotect(pointer(address), bytes, PROT_READ | PROT_WRITE), OK;
}
DRIVER cuMemUnmap(Address address, size_t bytes) {
    mmap(pointer(address), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    return OK;
}

// A handle names a process, a descriptor in it, and a length.
struct IpcHandle {
    int process, fd;
    size_t bytes;
    char rest[48];
};
DRIVER cuIpcGetMemHandle(IpcHandle* handle, Address address) {
    const Memory& memory = buffers.at(address);
    return *handle = {getpid(), memory.fd, memory.bytes, {}}, OK;
}
DRIVER cuIpcOpenMemHandle_v2(Address* address, IpcHandle handle, unsigned) {
    char path[64];
    std::snprintf(path, sizeof path, "/proc/%d/fd/%d", handle.process, handle.fd);
    const Memory memory = {open(path, O_RDWR), handle.bytes};
    if (memory.fd < 0 || handle.process == getpid() || !(*address = map_anywhere(memory))) {
        return INVALID_VALUE;
    }
    return opened[*address] = memory, OK;
}
DRIVER cuIpcCloseMemHandle(Address address) { return close_one(opened, address); }

// Whatever is left at the end was leaked: the tests give everything back. The library is also loaded and
// unloaded once to see whether it is there.
__attribute__((destructor)) static void account() {
    const size_t left = size_t(contexts) + buffers.size() + opened.size() + handles.size();
    if (left > 0) {
        std::fprintf(stderr, "emulator: %d contexts and %zu pieces of memory were leaked\n", contexts,
                     left - size_t(contexts));
        std::fflush(stderr);
        _exit(70);
    }
}
