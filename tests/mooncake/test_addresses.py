"""Addresses that are not memory which the call may use: an answer, never a crash.

The published package answers -800 for a transfer that failed. Each case runs in a process of its own,
because a mistake here ends the process.
"""

import pytest
from conftest import python

# What every case begins with: a store, memory that is there, and memory of each bad kind.
HEAD = """
import ctypes, mmap, os, sys, tempfile
from mooncake.store import MooncakeDistributedStore

PAGE = mmap.PAGESIZE
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
NONE, READ, BOTH = 0, 1, 3
PRIVATE, SHARED, FIXED, ANONYMOUS = 2, 1, 0x10, 0x20

def fresh(pages):
    "Memory of its own, filled, between two pages that nobody may touch and no later mapping fits into."
    at = libc.mmap(None, (pages + 2) * PAGE, NONE, PRIVATE | ANONYMOUS, -1, 0)
    assert at not in (None, ctypes.c_void_p(-1).value)
    return guarded(BOTH, pages, at + PAGE)

def guarded(access, pages=2, at=None):
    at = fresh(pages) if at is None else at
    assert libc.mprotect(at, pages * PAGE, BOTH) == 0
    ctypes.memset(at, ord("x"), pages * PAGE)
    assert libc.mprotect(at, pages * PAGE, access) == 0
    return at

def unmapped(pages=2):
    at = fresh(pages)
    assert libc.munmap(at, pages * PAGE) == 0
    return at

def half(pages=2):
    "The first page is memory, the others are not."
    at = fresh(pages)
    assert libc.munmap(at + PAGE, (pages - 1) * PAGE) == 0
    return at

def truncated():
    "A mapping of a file that has become shorter: touching its second page is a SIGBUS."
    file = tempfile.TemporaryFile()
    file.write(bytes(2 * PAGE)); file.flush()
    at = libc.mmap(fresh(2), 2 * PAGE, BOTH, SHARED | FIXED, file.fileno(), 0)
    os.ftruncate(file.fileno(), PAGE)
    return at

store = MooncakeDistributedStore()
assert store.setup("localhost", "P2PHANDSHAKE", 64 << 20, 16 << 20, "tcp", "", sys.argv[1]) == 0
good = fresh(4)
"""
TAIL = """
store.close()
print("ended well")
"""


def case(master, code):
    """Runs a case in a process of its own; it must end well."""
    body = "\n".join(line[4:] for line in code.splitlines())
    assert python(HEAD + body + TAIL, master.address).endswith("ended well\n")


def test_a_put_from_what_is_not_memory_fails_alone(master):
    case(master, """
    bad = {"unmapped": unmapped(), "half": half(), "none": guarded(NONE), "cut": truncated()}
    for name, at in bad.items():
        assert store.put_from("put/" + name, at, 2 * PAGE) == -800, name
        assert store.upsert_from("put/" + name, at, 2 * PAGE) == -800, name
        assert store.put_from_with_metadata("put/" + name, at, good, 2 * PAGE, 10) == -800, name
        assert store.is_exist("put/" + name) == 0, name
        keys = ["batch/" + name + str(n) for n in range(3)]
        assert store.batch_put_from(keys, [good, at, good], [PAGE, 2 * PAGE, PAGE]) == [0, -800, 0]
        assert store.batch_is_exist(keys) == [1, 0, 1], name
        keys = ["parts/" + name + str(n) for n in range(2)]
        parts = [[good, good + PAGE], [good, at]]
        sizes = [[PAGE, PAGE], [PAGE, 2 * PAGE]]
        assert store.batch_put_from_multi_buffers(keys, parts, sizes) == [0, -800], name
        assert store.batch_is_exist(keys) == [1, 0], name
    assert store.put_from("put/front", bad["half"], PAGE) == 0
    assert store.get("put/front") == b"x" * PAGE
    """)


def test_a_get_into_what_cannot_be_written_fails_alone(master):
    case(master, """
    assert store.put("get", b"v" * (2 * PAGE)) == 0
    bad = {
        "unmapped": unmapped(), "half": half(), "none": guarded(NONE), "read": guarded(READ),
        "cut": truncated(),
    }
    for name, at in bad.items():
        assert store.get_into("get", at, 2 * PAGE) == -800, name
        got = store.batch_get_into(["get"] * 3, [good, at, good + 2 * PAGE], [2 * PAGE] * 3)
        assert got == [2 * PAGE, -800, 2 * PAGE], name
        parts = [[good, good + PAGE], [good, at + PAGE]]
        got = store.batch_get_into_multi_buffers(["get"] * 2, parts, [[PAGE, PAGE]] * 2)
        assert got == [2 * PAGE, -800], name
        assert store.get_into("get/missing", at, 2 * PAGE) == -704, name
    assert ctypes.string_at(good, 4 * PAGE) == b"v" * (4 * PAGE)
    assert ctypes.string_at(bad["read"], PAGE) == b"x" * PAGE
    """)


def test_room_beyond_the_value_is_not_asked_for(master):
    """The size of a get is an upper bound: what the value does not reach need not be there."""
    case(master, """
    assert store.put("short", b"v" * 100) == 0
    at = half()
    for room in (2 * PAGE, 1 << 40):
        assert store.get_into("short", at, room) == 100, room
    assert ctypes.string_at(at, 101) == b"v" * 100 + b"x"
    assert store.put("long", b"v" * (PAGE + 1)) == 0
    for room in (2 * PAGE, 1 << 40):
        assert store.get_into("long", at, room) == -800, room
    # Room that is there and was never touched is not touched for the sake of looking.
    vast = libc.mmap(None, 1 << 40, BOTH, PRIVATE | ANONYMOUS | 0x4000, -1, 0)
    assert store.get_into("short", vast, 1 << 40) == 100
    assert ctypes.string_at(vast, 100) == b"v" * 100
    """)


def test_registered_memory_was_looked_at(master):
    case(master, """
    assert store.put("value", b"v" * (2 * PAGE)) == 0
    for at in (unmapped(), half(), guarded(NONE), truncated()):
        assert store.register_buffer(at, 2 * PAGE) == -600
        assert store.unregister_buffer(at) == -600
    # What is left of a file is memory; and what was never touched is not touched for the sake of looking.
    rest = truncated()
    assert store.register_buffer(rest, PAGE) == 0
    assert store.put_from("rest", rest, PAGE) == 0 and store.get("rest") == bytes(PAGE)
    assert store.put_from("behind", rest + PAGE - 1, 2) == -800
    vast = libc.mmap(None, 1 << 36, BOTH, PRIVATE | ANONYMOUS | 0x4000, -1, 0)
    shared = tempfile.TemporaryFile(dir="/dev/shm")
    os.ftruncate(shared.fileno(), 64 << 20)
    file = libc.mmap(None, 64 << 20, BOTH, SHARED, shared.fileno(), 0)
    assert store.register_buffer(vast, 1 << 36) == 0 and store.register_buffer(file, 64 << 20) == 0
    assert os.fstat(shared.fileno()).st_blocks * 512 <= 4 * PAGE, "one page, and what the file system needs"
    assert store.register_buffer(good, 4 * PAGE) == 0
    assert store.get_into("value", good, 2 * PAGE) == 2 * PAGE
    assert store.put_from("from", good, 4 * PAGE) == 0
    # A range that ends behind the registered one is not registered.
    part = half()
    assert store.register_buffer(part, PAGE) == 0
    assert store.put_from("past", part, PAGE + 1) == -800
    assert store.get_into("value", part, 2 * PAGE) == -800
    assert store.get_into("value", part + PAGE, 2 * PAGE) == -800
    # What can only be read can be stored from, and not be read into.
    only = guarded(READ)
    assert store.register_buffer(only, PAGE) == 0
    assert store.put_from("only", only, PAGE) == 0
    assert store.put("small", b"v") == 0
    assert store.get_into("small", only, PAGE) == -800
    assert store.get_into_ranges([only], [["small"]], [[[0]]], [[[0]]], [[[1]]]) == [[[-600]]]
    """)


def test_sessions_look_at_their_memory(master):
    case(master, """
    bad = half()
    assert store.batch_put_session_start(["session"], [2 * PAGE]) == [0]
    write = store.batch_put_from_multi_buffer_ranges
    assert write(["session"], [[bad]], [[2 * PAGE]], [[0]]) == [-800]
    assert write(["session"], [[good]], [[2 * PAGE]], [[0]]) == [2 * PAGE]
    assert store.batch_put_session_end(["session"]) == [0]
    assert store.batch_get_session_start(["session"]) == [0]
    read = store.batch_get_into_multi_buffer_ranges
    assert read(["session"], [[bad]], [[2 * PAGE]], [[0]]) == [-800]
    assert read(["session"], [[guarded(READ)]], [[PAGE]], [[0]]) == [-800]
    assert read(["session"], [[good]], [[2 * PAGE]], [[0]]) == [2 * PAGE]
    assert store.batch_get_session_end(["session"]) == 0
    """)


def test_a_tensor_at_a_bad_address_is_none(master):
    case(master, """
    for at in (unmapped(4), guarded(NONE)):
        assert store.put_tensor_from("tensor", at, 4 * PAGE) < 0
        assert store.upsert_tensor_from("tensor", at, 4 * PAGE) < 0
    assert store.is_exist("tensor") == 0
    """)


def test_memory_of_a_gpu_is_taken(master):
    """Up to the end of its allocation; on the emulator `tests/python/test_device_store.py` shows more."""
    try:
        found = python("import ctypes; d = ctypes.CDLL('libcuda.so.1'); print(d.cuInit(0))")
    except AssertionError:
        found = ""
    if found.strip() != "0":
        pytest.skip("there is no CUDA driver, or no GPU, on this machine")
    case(master, """
    import logging
    said = []
    handler = logging.Handler(); handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("mooncake.store").addHandler(handler)
    cuda = ctypes.CDLL("libcuda.so.1")
    device, context, at = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    assert cuda.cuInit(0) == 0 and cuda.cuDeviceGet(ctypes.byref(device), 0) == 0
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
    assert cuda.cuCtxSetCurrent(context) == 0
    assert cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(1 << 20)) == 0
    assert store.put("value", b"v" * 4096) == 0
    assert store.register_buffer(at.value, 1 << 40) == -600
    assert store.register_buffer(at.value, 1 << 20) == 0
    assert store.get_into("value", at.value, 1 << 20) == 4096
    assert store.put_from("gpu", at.value, 4096) == 0 and store.get("gpu") == b"v" * 4096
    assert store.put_from("long", at.value, 1 << 40) < 0
    assert len([words for words in said if "GPU" in words]) == 2, said
    # Pinned memory of the host is memory like any other.
    host = ctypes.c_void_p()
    assert cuda.cuMemHostAlloc(ctypes.byref(host), ctypes.c_size_t(1 << 20), 0) == 0
    ctypes.memset(host.value, 0x41, 1 << 20)
    assert store.put_from("pinned", host.value, 1 << 20) == 0
    assert store.get("pinned") == b"A" * (1 << 20)
    assert store.get_into("value", host.value, 1 << 20) == 4096
    assert store.register_buffer(host.value, 1 << 20) == 0
    assert store.get_into("value", host.value, 1 << 20) == 4096
    assert ctypes.string_at(host.value, 4097) == b"v" * 4096 + b"A"
    """)
