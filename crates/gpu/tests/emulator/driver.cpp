// An emulator of the CUDA driver, for tests on machines without a GPU. It is built as `libcuda.so`, and
// the tests of `gpu`, `paged`, `nano` and `ep` load it in the place of NVIDIA's.
//
// Kernels are the `.cu` files themselves, compiled for the host: what they compute is what a GPU computes,
// as long as no two threads touch the same bytes. Device memory is a memfd, so that other processes can
// map it. Streams do everything at once, unless they are being recorded, or wait for a stream that a test holds.
//
// A recording forbids other calls as NVIDIA's driver does: by the mode in which it was begun, and by that of the
// thread which calls. A call that is forbidden ends the recording, whoever makes it.
//
// What it cannot show: anything about time, memory order, alignment, the PTX, or the real driver's
// answers. Only `./dev gpu` on a GPU shows that.
#include "cuda.h"

#include "../../../ep/src/kernels/combine.cu"
#include "../../../ep/src/kernels/compare.cu"
#include "../../../ep/src/kernels/dispatch.cu"
#include "../../../ep/src/kernels/experts.cu"
#include "../../../ep/src/kernels/give_back.cu"
#include "../../../ep/src/kernels/leave.cu"
#include "../../../ep/src/kernels/pack.cu"
#include "../../../ep/src/kernels/scale.cu"
#include "../../../ep/src/kernels/wait.cu"
#include "../../../nano/src/kernels/host.cu"
#include "../../../nano/src/kernels/push.cu"
#include "../../../nano/src/kernels/read.cu"
#include "../../../nano/src/kernels/stamp.cu"
#include "../../../nano/src/kernels/sums.cu"
#include "../../../nano/src/kernels/words.cu"
#include "../../../paged/src/kernels/append.cu"
#include "../../../paged/src/kernels/compact.cu"
#include "../../../paged/src/kernels/copy_blocks.cu"
#include "../../../paged/src/kernels/gather.cu"

#include <atomic>
#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <deque>
#include <fcntl.h>
#include <functional>
#include <iterator>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <sys/mman.h>
#include <ucontext.h>
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
    NOT_READY = 600,
    ALREADY_REGISTERED = 712,
    NOT_REGISTERED = 713,
    LAUNCH_FAILED = 719,
    CAPTURE_UNSUPPORTED = 900,
    CAPTURE_INVALIDATED = 901,
    CAPTURE_IMPLICIT = 906,
    CAPTURED_EVENT = 907,
};

// What `gpu/tests/add_number.ptx` does.
static void add_number(u32* at, u32 count, u32 number) {
    const u32 index = blockIdx.x * blockDim.x + threadIdx.x;
    cudaGridDependencySynchronize();
    if (index < count) {
        at[index] += number;
    }
}

// ---- kernels: called with the driver's array of pointers to parameters -------------------------------

struct Function {
    std::vector<size_t> sizes;
    std::function<void(void**)> run;
    // Whether its threads wait for each other.
    bool waits;
};

template <class... T, size_t... I>
Function function(void (*kernel)(T...), bool waits, std::index_sequence<I...>) {
    return {{sizeof(T)...}, [=](void** params) { kernel(*static_cast<T*>(params[I])...); }, waits};
}
template <class... T>
Function function(void (*kernel)(T...)) {
    return function(kernel, false, std::index_sequence_for<T...>());
}
template <class... T>
Function waiting(void (*kernel)(T...)) {
    return function(kernel, true, std::index_sequence_for<T...>());
}

static std::map<std::string, Function>& functions() {
    static std::map<std::string, Function> all = {
        {"add_number", function(add_number)},         {"append_rows", function(append_rows)},
        {"gather_blocks", function(gather_blocks)},   {"scatter_blocks", function(scatter_blocks)},
        {"copy_blocks", function(copy_blocks)},       {"compact_rows", function(compact_rows)},
        {"word_steps", function(word_steps)},         {"few_steps", function(few_steps)},
        {"reap_pins", function(reap_pins)},
        {"push_pages", waiting(push_pages)},          {"read_value", waiting(read_value)},
        {"fill_lines", function(fill_lines)},         {"verify_lines", function(verify_lines)},
        {"page_sums", waiting(page_sums)},            {"copy_bytes", function(copy_bytes)},
        {"ep_dispatch", waiting(ep_dispatch)},        {"ep_wait", waiting(ep_wait)},
        {"ep_pack", waiting(ep_pack)},                {"ep_give_back", waiting(ep_give_back)},
        {"ep_combine", function(ep_combine)},         {"ep_scale", function(ep_scale)},
        {"ep_compare", function(ep_compare)},         {"ep_leave", function(ep_leave)},
        {"ep_up", waiting(ep_up)},                    {"ep_down", waiting(ep_down)},
    };
    return all;
}

// ---- the GPU and its context -------------------------------------------------------------------------

static thread_local void* current = nullptr;
static int contexts = 0;

DRIVER cuInit(unsigned) { return OK; }
DRIVER cuDriverGetVersion(int* version) { return *version = 13000, OK; }
// A test may ask for more GPUs, for ones that do not reach each other ("none") or without atomics ("no atomics"), and
// for no MPS ("none"). They are one in everything else.
static const char* asked(const char* name) {
    const char* value = std::getenv(name);
    return value ? value : "";
}
DRIVER cuDeviceGetCount(int* count) {
    const int more = std::atoi(asked("EMULATOR_GPUS"));
    return *count = more > 0 ? more : 1, OK;
}
DRIVER cuDeviceGetP2PAttribute(int* value, int which, int, int) {
    const std::string peers = asked("EMULATOR_PEERS");
    // Attribute 2 is access, 3 native atomics.
    return *value = peers != "none" && !(which == 3 && peers == "no atomics"), OK;
}
DRIVER cuDeviceGet(int* device, int ordinal) { return *device = ordinal, OK; }
DRIVER cuDeviceGetName(char* name, int bytes, int) {
    return std::snprintf(name, size_t(bytes), "emulator"), OK;
}
DRIVER cuDeviceGetAttribute(int* value, int which, int) {
    // Multiprocessors, compute capability 9.0, and whether there is MPS.
    const bool mps = which == 133 && asked("EMULATOR_MPS") != std::string("none");
    return *value = which == 16 ? 132 : which == 75 ? 9 : mps, OK;
}
DRIVER cuDeviceGetUuid_v2(char* uuid, int device) {
    return std::memset(uuid, 0xe0 + device, 16), OK;
}
DRIVER cuDeviceTotalMem_v2(size_t* bytes, int) { return *bytes = size_t(16) << 30, OK; }
DRIVER cuDevicePrimaryCtxRetain(void** context, int) {
    contexts++;
    return *context = &contexts, OK;
}
DRIVER cuDevicePrimaryCtxRelease_v2(int) { return contexts--, OK; }
DRIVER cuDevicePrimaryCtxGetState(int, unsigned* flags, int* active) {
    return *flags = 0, *active = contexts > 0, OK;
}
DRIVER cuCtxSetCurrent(void* context) { return current = context, OK; }
DRIVER cuCtxGetCurrent(void** context) { return *context = current, OK; }
DRIVER cuMemGetInfo_v2(size_t* free, size_t* total) {
    return *free = size_t(8) << 30, *total = size_t(16) << 30, OK;
}
DRIVER cuGetErrorName(int answer, const char** name) {
    static const std::map<int, const char*> names = {
        {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},     {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
        {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT"}, {INVALID_PTX, "CUDA_ERROR_INVALID_PTX"},
        {NOT_FOUND, "CUDA_ERROR_NOT_FOUND"},
        {CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"},
        {CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"},
        {CAPTURE_IMPLICIT, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT"},
        {CAPTURED_EVENT, "CUDA_ERROR_CAPTURED_EVENT"},
    };
    const auto found = names.find(answer);
    return *name = found == names.end() ? "CUDA_ERROR_OF_EMULATOR" : found->second, OK;
}
DRIVER cuGetErrorString(int, const char** text) { return *text = "said by the emulator", OK; }

// ---- streams, events, graphs -------------------------------------------------------------------------

using Work = std::vector<std::function<void()>>;

struct Stream;

// Passed up to the record of this number, with the time of it in milliseconds. Kernels run with the lock of streams, and
// an event can be asked for meanwhile.
struct Event {
    std::atomic<unsigned long long> recorded{0}, passed{0};
    double time = 0;
    // The stream whose recording it is part of.
    std::atomic<Stream*> part{nullptr};
};

// What a stream does next: work, or nothing before an event was passed.
struct Queued {
    std::function<void()> work;
    const Event* after;
    unsigned long long number;
};

// A stream does everything at once, unless it is recorded, held by a test, or waits for an event that
// another stream has not passed.
// A stream that waits for an event of a recording joins it, until the recording ends. What the streams of
// a recording queue is kept, and done, in the order of the calls.
struct Stream {
    bool recording = false, held = false;
    // Whether it waits for the default stream, and that for it.
    bool blocking = false;
    // Whether it has waited for an event: once that is passed, it runs ahead of all others.
    bool waited = false;
    // Which recording it is, or was.
    unsigned long long number = 0;
    // How it was begun and by which thread, and whether a forbidden call has ended it.
    int mode = 0;
    const void* thread = nullptr;
    bool broken = false;
    Work work;
    std::deque<Queued> pending;
    Stream* joined = nullptr;
    std::vector<Stream*> others;

    Stream* origin() { return joined ? joined : this; }
};

static std::recursive_mutex streams_lock;
static std::set<Stream*> streams;

// The mode of a thread, and of a recording.
constexpr int GLOBAL = 0, RELAXED = 2;
static thread_local int thread_mode = GLOBAL;

// Whether a call that is unsafe beside a recording is forbidden here; then the recordings that forbid it have ended.
static bool forbidden() {
    if (thread_mode == RELAXED) {
        return false;
    }
    const std::lock_guard<std::recursive_mutex> hold(streams_lock);
    bool found = false;
    for (Stream* stream : streams) {
        const bool own = stream->thread == &thread_mode && stream->mode != RELAXED;
        const bool of_all = thread_mode == GLOBAL && stream->mode == GLOBAL;
        if (stream->recording && (own || of_all)) {
            found = stream->broken = true;
        }
    }
    return found;
}
#define UNSAFE \
    if (forbidden()) { \
        return CAPTURE_UNSUPPORTED; \
    }
DRIVER cuThreadExchangeStreamCaptureMode(int* mode) { return std::swap(*mode, thread_mode), OK; }

// The default streams: of all threads, and of each thread.
static Stream* real(Stream* stream) {
    const auto handle = reinterpret_cast<unsigned long long>(stream);
    if (handle > 2) {
        return stream;
    }
    static Stream shared;
    // Not given back with its thread: others may still look at it.
    thread_local Stream* own = new Stream;
    Stream* found = handle == 2 ? own : &shared;
    const std::lock_guard<std::recursive_mutex> hold(streams_lock);
    return streams.insert(found), found;
}

// Whether the next step of a stream can be done now.
static bool can_go(Stream* stream) {
    if (stream->held || stream->pending.empty()) {
        return false;
    }
    const Queued& step = stream->pending.front();
    const bool waits = step.after && step.after->passed < step.number;
    stream->waited |= waits;
    return !waits;
}

// Does what can be done in all streams, in the order that is worst for who relies on more than events: a stream that
// has waited for one overtakes whatever stands behind that event in its own stream. The caller holds the lock.
static void go_ahead() {
    for (;;) {
        Stream* next = nullptr;
        for (Stream* stream : streams) {
            if (can_go(stream) && (!next || (stream->waited && !next->waited))) {
                next = stream;
            }
        }
        if (!next) {
            return;
        }
        const Queued step = next->pending.front();
        next->pending.pop_front();
        if (step.work) {
            step.work();
        }
        next->waited &= !next->pending.empty();
    }
}

static int queue(Stream* stream, std::function<void()> work) {
    if (!current) {
        return INVALID_CONTEXT;
    }
    stream = real(stream);
    const std::lock_guard<std::recursive_mutex> hold(streams_lock);
    if (stream->origin()->broken) {
        return CAPTURE_INVALIDATED;
    }
    if (stream->origin()->recording) {
        stream->origin()->work.push_back(std::move(work));
    } else {
        stream->pending.push_back({std::move(work), nullptr, 0});
        go_ahead();
    }
    return OK;
}

// Waits until nothing is left to do, in one stream or in all.
static void until_idle(Stream* one) {
    for (;;) {
        {
            const std::lock_guard<std::recursive_mutex> hold(streams_lock);
            bool idle = true;
            for (Stream* stream : streams) {
                idle &= (one && one != stream) || stream->pending.empty();
            }
            if (idle) {
                return;
            }
        }
        usleep(200);
    }
}

DRIVER cuStreamCreate(Stream** stream, unsigned flags) {
    UNSAFE
    const std::lock_guard<std::recursive_mutex> hold(streams_lock);
    streams.insert(*stream = new Stream);
    return (*stream)->blocking = !(flags & 1), OK;
}
DRIVER cuStreamDestroy_v2(Stream* stream) {
    UNSAFE
    until_idle(stream);
    const std::lock_guard<std::recursive_mutex> hold(streams_lock);
    streams.erase(stream);
    delete stream;
    return OK;
}
DRIVER cuStreamSynchronize(Stream* stream) {
    UNSAFE
    if (real(stream)->origin()->recording) {
        return real(stream)->origin()->broken = true, CAPTURE_UNSUPPORTED;
    }
    return until_idle(real(stream)), OK;
}
DRIVER cuCtxSynchronize() {
    if (!current) {
        return INVALID_CONTEXT;
    }
    {
        // A context with a recording can be waited for by nobody, in no mode.
        const std::lock_guard<std::recursive_mutex> hold(streams_lock);
        bool found = false;
        for (Stream* stream : streams) {
            found |= stream->recording;
            stream->broken |= stream->recording;
        }
        if (found) {
            return CAPTURE_UNSUPPORTED;
        }
    }
    return until_idle(nullptr), OK;
}
// As the driver's: for the default stream of all threads there is no answer while a stream is recorded that waits for it.
static int status_of(Stream* stream, int* status) {
    const Stream* origin = real(stream)->origin();
    const std::lock_guard<std::recursive_mutex> hold(streams_lock);
    for (const Stream* other : streams) {
        if (reinterpret_cast<unsigned long long>(stream) < 2 && other->recording && other->blocking) {
            return CAPTURE_IMPLICIT;
        }
    }
    return *status = origin->broken ? 2 : origin->recording, OK;
}
DRIVER cuStreamIsCapturing(Stream* stream, int* status) { return status_of(stream, status); }
DRIVER cuStreamWaitEvent(Stream* stream, Event* event, unsigned) {
    const std::lock_guard<std::recursive_mutex> hold(streams_lock);
    stream = real(stream);
    if (Stream* part = event->part; part && part->recording) {
        if (stream != part && !stream->joined) {
            stream->joined = part;
            part->others.push_back(stream);
        }
    } else if (!stream->origin()->recording) {
        stream->pending.push_back({nullptr, event, event->recorded});
        go_ahead();
    }
    return OK;
}

// A test stands for a rank that signals late: the next time that a kernel looks at page-locked memory, `value` is
// stored at `at` first.
DRIVER emulatorArrive(unsigned long long* at, unsigned long long value) {
    const std::lock_guard<std::recursive_mutex> hold(streams_lock);
    return arrives = {at, value}, OK;
}
// A test stands for a kernel that takes long: nothing of a held stream is done before it is let go.
DRIVER emulatorHold(Stream* stream, int held) {
    const std::lock_guard<std::recursive_mutex> hold(streams_lock);
    real(stream)->held = held;
    return go_ahead(), OK;
}
// Work of a test in a stream: fills memory.
DRIVER emulatorFill(Stream* stream, unsigned char* at, unsigned char byte, size_t bytes) {
    current = current ? current : &contexts;
    return queue(stream, [=] { std::memset(at, byte, bytes); });
}

// Events are never deleted: a stream may still wait for one whose owner is gone.
DRIVER cuEventCreate(Event** event, unsigned) { return *event = new Event, OK; }
DRIVER cuEventDestroy_v2(Event*) { return OK; }
DRIVER cuEventRecord(Event* event, Stream* stream) {
    const std::lock_guard<std::recursive_mutex> hold(streams_lock);
    // As in the driver, an event of a recording has no time and is not part of the graph.
    Stream* origin = real(stream)->origin();
    event->part = origin->recording ? origin : nullptr;
    if (event->part) {
        return OK;
    }
    const unsigned long long number = ++event->recorded;
    return queue(stream, [=] {
        timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        event->time = double(now.tv_sec) * 1e3 + double(now.tv_nsec) / 1e6;
        event->passed = std::max(event->passed.load(), number);
    });
}
DRIVER cuEventQuery(Event* event) {
    UNSAFE
    if (event->part) {
        const std::lock_guard<std::recursive_mutex> hold(streams_lock);
        if (Stream* part = event->part; part && part->recording) {
            return part->broken = true, CAPTURED_EVENT;
        }
    }
    return event->passed < event->recorded ? NOT_READY : OK;
}
DRIVER cuEventSynchronize(Event* event) {
    int answer;
    while ((answer = cuEventQuery(event)) == NOT_READY) {
        usleep(200);
    }
    return answer;
}
DRIVER cuEventElapsedTime_v2(float* milliseconds, Event* from, Event* to) {
    return *milliseconds = float(to->time - from->time), OK;
}

DRIVER cuStreamBeginCapture_v2(Stream* stream, int mode) {
    static unsigned long long recordings = 0;
    const std::lock_guard<std::recursive_mutex> hold(streams_lock);
    real(stream)->number = ++recordings;
    real(stream)->mode = mode, real(stream)->thread = &thread_mode, real(stream)->broken = false;
    return real(stream)->recording = true, OK;
}
DRIVER cuStreamGetCaptureInfo_v3(Stream* stream, int* status, unsigned long long* number, void*, void*, void*, void*) {
    return *number = real(stream)->origin()->number, status_of(stream, status);
}
DRIVER cuStreamEndCapture(Stream* stream, Work** graph) {
    stream = real(stream);
    stream->recording = false;
    for (Stream* other : stream->others) {
        other->joined = nullptr;
    }
    stream->others.clear();
    if (std::exchange(stream->broken, false)) {
        return stream->work.clear(), *graph = nullptr, CAPTURE_INVALIDATED;
    }
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
    UNSAFE
    // The one mistake that a test makes on purpose; the first option is the buffer of the log.
    if (std::strstr(ptx, "mad.oops")) {
        std::strcpy(static_cast<char*>(values[0]), "unknown modifier '.oops'");
        return INVALID_PTX;
    }
    return *module = new std::string(ptx), OK;
}
DRIVER cuModuleUnload(std::string* module) {
    UNSAFE
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
DRIVER cuFuncLoad(Function*) {
    UNSAFE
    return OK;
}
DRIVER cuFuncGetParamInfo(Function* function, size_t index, size_t* offset, size_t* bytes) {
    if (index >= function->sizes.size()) {
        return INVALID_VALUE;
    }
    return *offset = 0, *bytes = function->sizes[index], OK;
}

// The threads of a block that wait for each other: each has a stack of its own, and a barrier goes on with
// the next one. One that has ended is not waited for, as on a GPU. They are made once and serve all blocks:
// to begin one takes a system call, to switch takes none.
static struct {
    jmp_buf launcher, threads[1024];
    std::vector<char> stacks[1024];
    bool ended[1024];
    Function* function;
    void** params;
} together;
constexpr size_t STACK = 64 << 10;

void __syncthreads() {
    if (_setjmp(together.threads[threadIdx.x]) == 0) {
        _longjmp(together.launcher, 1);
    }
}
static void thread_of_blocks() {
    for (;;) {
        together.function->run(together.params);
        together.ended[threadIdx.x] = true;
        __syncthreads();
    }
}
static void go_on() {
    if (_setjmp(together.launcher) != 0) {
        return;
    }
    std::vector<char>& stack = together.stacks[threadIdx.x];
    if (!stack.empty()) {
        _longjmp(together.threads[threadIdx.x], 1);
    }
    stack.resize(STACK);
    ucontext_t thread;
    getcontext(&thread);
    thread.uc_stack.ss_sp = stack.data();
    thread.uc_stack.ss_size = STACK;
    makecontext(&thread, thread_of_blocks, 0);
    setcontext(&thread);
}
static void run_together(Function* function, void** params) {
    together.function = function, together.params = params;
    std::fill_n(together.ended, blockDim.x, false);
    for (bool more = true; more;) {
        more = false;
        for (threadIdx.x = 0; threadIdx.x < blockDim.x; threadIdx.x++) {
            if (!together.ended[threadIdx.x]) {
                go_on();
                more |= !together.ended[threadIdx.x];
            }
        }
    }
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
    // The only attribute that is ever set is the early start.
    const bool early = config->attribute_count > 0;
    return queue(config->stream, [=]() mutable {
        std::vector<void*> pointers;
        for (auto& value : values) {
            pointers.push_back(value.data());
        }
        blockDim.x = threads, gridDim.x = blocks;
        for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++) {
            std::fill_n(waited, threads, false);
            if (function->waits) {
                run_together(function, pointers.data());
            } else {
                for (threadIdx.x = 0; threadIdx.x < threads; threadIdx.x++) {
                    function->run(pointers.data());
                }
            }
            if (early && !std::all_of(waited, waited + threads, [](bool one) { return one; })) {
                std::fputs("a kernel that starts early ended without a wait\n", stderr);
                std::abort();
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
// Mapped pieces of shared memory, by address.
static std::map<Address, size_t> mapped;
// Tests run in several threads.
static std::recursive_mutex memory_lock;

static bool make(Memory& memory, size_t bytes) {
    memory = {memfd_create("device memory", 0), bytes};
    return memory.fd >= 0 && ftruncate(memory.fd, off_t(bytes)) == 0;
}
static Address map_anywhere(const Memory& memory) {
    void* at = mmap(nullptr, memory.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory.fd, 0);
    return at == MAP_FAILED ? 0 : reinterpret_cast<Address>(at);
}
static int close_one(std::map<Address, Memory>& all, Address address) {
    const std::lock_guard<std::recursive_mutex> hold(memory_lock);
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
    UNSAFE
    Memory memory;
    if (bytes > size_t(16) << 30 || !make(memory, bytes) || !(*address = map_anywhere(memory))) {
        return OUT_OF_MEMORY;
    }
    const std::lock_guard<std::recursive_mutex> hold(memory_lock);
    return buffers[*address] = memory, OK;
}
// As the driver's: it waits for all work first.
DRIVER cuMemFree_v2(Address address) {
    UNSAFE
    until_idle(nullptr);
    return close_one(buffers, address);
}
static void* pointer(Address address) { return reinterpret_cast<void*>(address); }

// Page-locked host memory by its first byte: length, and whether it was allocated here. Tests run in several
// threads, and more than one of them may lock memory.
struct Locked {
    size_t bytes;
    bool own;
};
static std::map<Address, Locked> locked;
static std::mutex locked_lock;

// Whether any of these bytes is page-locked. The caller holds the lock.
static bool is_locked(Address first, size_t bytes) {
    const auto after = locked.lower_bound(first + bytes);
    if (after == locked.begin()) {
        return false;
    }
    const auto before = std::prev(after);
    return before->first + before->second.bytes > first;
}
bool is_page_locked(const void* at) {
    const std::lock_guard<std::mutex> hold(locked_lock);
    return is_locked(reinterpret_cast<Address>(at), 1);
}
static int unlock(void* base, bool own) {
    const std::lock_guard<std::mutex> hold(locked_lock);
    const auto found = locked.find(reinterpret_cast<Address>(base));
    if (found == locked.end() || found->second.own != own) {
        return own ? INVALID_VALUE : NOT_REGISTERED;
    }
    return locked.erase(found), OK;
}

DRIVER cuMemHostAlloc(void** base, size_t bytes, unsigned) {
    UNSAFE
    const std::lock_guard<std::mutex> hold(locked_lock);
    *base = operator new(bytes);
    locked[reinterpret_cast<Address>(*base)] = {bytes, true};
    // The caller may not count on zeros.
    return std::memset(*base, 0x77, bytes), OK;
}
DRIVER cuMemFreeHost(void* base) {
    UNSAFE
    const int answer = unlock(base, true);
    if (answer == OK) {
        operator delete(base);
    }
    return answer;
}
DRIVER cuMemHostRegister_v2(void* base, size_t bytes, unsigned) {
    UNSAFE
    const std::lock_guard<std::mutex> hold(locked_lock);
    const Address first = reinterpret_cast<Address>(base);
    if (!current || !bytes) {
        return current ? INVALID_VALUE : INVALID_CONTEXT;
    }
    if (is_locked(first, bytes)) {
        return ALREADY_REGISTERED;
    }
    return locked[first] = {bytes, false}, OK;
}
DRIVER cuMemHostUnregister(void* base) {
    UNSAFE
    return unlock(base, false);
}
DRIVER cuPointerGetAttribute(unsigned* value, int which, Address address) {
    const std::lock_guard<std::mutex> hold(locked_lock);
    // Attribute 2 is the kind of memory, and 1 is the host's. Of device memory all attributes are asked for.
    if (which != 2 || !is_locked(address, 1)) {
        return INVALID_VALUE;
    }
    return *value = 1, OK;
}
// The piece of device memory that has this address: its start and its length, or zeros.
static std::pair<Address, size_t> device_piece(Address address) {
    const std::lock_guard<std::recursive_mutex> hold(memory_lock);
    for (const auto* all : {&buffers, &opened}) {
        const auto after = all->upper_bound(address);
        if (after != all->begin()) {
            const auto& [start, memory] = *std::prev(after);
            if (address < start + memory.bytes) {
                return {start, memory.bytes};
            }
        }
    }
    const auto after = mapped.upper_bound(address);
    if (after != mapped.begin()) {
        const auto& [start, bytes] = *std::prev(after);
        if (address < start + bytes) {
            return {start, bytes};
        }
    }
    return {0, 0};
}
// Memory that it does not know has zeros everywhere, as NVIDIA's driver says it.
DRIVER cuPointerGetAttributes(unsigned count, const int* which, void** values, Address address) {
    if (!current) {
        return INVALID_CONTEXT;
    }
    const auto [start, bytes] = device_piece(address);
    bool host;
    {
        const std::lock_guard<std::recursive_mutex> hold(memory_lock);
        const std::lock_guard<std::mutex> also(locked_lock);
        host = !bytes && is_locked(address, 1);
    }
    for (unsigned i = 0; i < count; i++) {
        switch (which[i]) {
        case 2: *static_cast<unsigned*>(values[i]) = bytes ? 2 : host ? 1 : 0; break;
        case 8: *static_cast<unsigned*>(values[i]) = 0; break;
        case 9: *static_cast<int*>(values[i]) = bytes || host ? 0 : -2; break;
        case 11: *static_cast<Address*>(values[i]) = start; break;
        case 12: *static_cast<size_t*>(values[i]) = bytes; break;
        default: return INVALID_VALUE;
        }
    }
    return OK;
}
// A GPU that fails on demand: as soon as this file exists, no copy between host and device succeeds.
static bool fails() {
    static const char* const file = std::getenv("EMULATOR_FAILS_IF");
    return file && access(file, F_OK) == 0;
}
DRIVER cuMemcpyHtoDAsync_v2(Address to, const void* from, size_t bytes, Stream* stream) {
    return fails() ? LAUNCH_FAILED : queue(stream, [=] { std::memcpy(pointer(to), from, bytes); });
}
DRIVER cuMemcpyDtoHAsync_v2(void* to, Address from, size_t bytes, Stream* stream) {
    return fails() ? LAUNCH_FAILED : queue(stream, [=] { std::memcpy(to, pointer(from), bytes); });
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
    UNSAFE
    *handle = next_handle++;
    return make(handles[*handle], bytes) ? OK : OUT_OF_MEMORY;
}
DRIVER cuMemRelease(Address handle) {
    UNSAFE
    close(handles.at(handle).fd);
    return handles.erase(handle), OK;
}
DRIVER cuMemExportToShareableHandle(int* fd, Address handle, int, unsigned long long) {
    UNSAFE
    return *fd = dup(handles.at(handle).fd), OK;
}
DRIVER cuMemImportFromShareableHandle(Address* handle, void* fd, int) {
    UNSAFE
    if (!fd) {
        return INVALID_VALUE;
    }
    const int own = dup(int(reinterpret_cast<Address>(fd)));
    *handle = next_handle++;
    return handles[*handle] = {own, size_t(lseek(own, 0, SEEK_END))}, OK;
}
DRIVER cuMemAddressReserve(Address* address, size_t bytes, size_t, Address, unsigned long long) {
    UNSAFE
    void* at = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return *address = reinterpret_cast<Address>(at), at == MAP_FAILED ? OUT_OF_MEMORY : OK;
}
DRIVER cuMemAddressFree(Address address, size_t bytes) {
    UNSAFE
    return munmap(pointer(address), bytes), OK;
}
DRIVER cuMemMap(Address address, size_t bytes, size_t, Address handle, unsigned long long) {
    UNSAFE
    const Memory& memory = handles.at(handle);
    if (memory.bytes != bytes) {
        return INVALID_VALUE;
    }
    // Without access, until `cuMemSetAccess`.
    mmap(pointer(address), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, memory.fd, 0);
    const std::lock_guard<std::recursive_mutex> hold(memory_lock);
    return mapped[address] = bytes, OK;
}
DRIVER cuMemSetAccess(Address address, size_t bytes, const void*, size_t) {
    UNSAFE
    return mprotect(pointer(address), bytes, PROT_READ | PROT_WRITE), OK;
}
DRIVER cuMemUnmap(Address address, size_t bytes) {
    UNSAFE
    mmap(pointer(address), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    const std::lock_guard<std::recursive_mutex> hold(memory_lock);
    return mapped.erase(mapped.lower_bound(address), mapped.lower_bound(address + bytes)), OK;
}

// A handle names a process, a descriptor in it, and a length.
struct IpcHandle {
    int process, fd;
    size_t bytes;
    char rest[48];
};
DRIVER cuIpcGetMemHandle(IpcHandle* handle, Address address) {
    UNSAFE
    const Memory& memory = buffers.at(address);
    return *handle = {getpid(), memory.fd, memory.bytes, {}}, OK;
}
DRIVER cuIpcOpenMemHandle_v2(Address* address, IpcHandle handle, unsigned) {
    UNSAFE
    char path[64];
    std::snprintf(path, sizeof path, "/proc/%d/fd/%d", handle.process, handle.fd);
    const Memory memory = {open(path, O_RDWR), handle.bytes};
    if (memory.fd < 0 || handle.process == getpid() || !(*address = map_anywhere(memory))) {
        return INVALID_VALUE;
    }
    return opened[*address] = memory, OK;
}
DRIVER cuIpcCloseMemHandle(Address address) {
    UNSAFE
    return close_one(opened, address);
}

// Whatever is left at the end was leaked: the tests give everything back. The library is also loaded and
// unloaded once to see whether it is there.
__attribute__((destructor)) static void account() {
    const size_t left =
        size_t(contexts) + buffers.size() + opened.size() + handles.size() + locked.size();
    if (left > 0) {
        std::fprintf(stderr, "emulator: %d contexts and %zu pieces of memory were leaked\n", contexts,
                     left - size_t(contexts));
        std::fflush(stderr);
        _exit(70);
    }
}
