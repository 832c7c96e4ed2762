"""Memory that can be shared with other processes, and where it lies.

Regions are page-aligned, zeroed, and cost nothing until they are touched. They are known to the whole
process, because callers allocate before and after they set a store up.
"""

import ctypes
import os

from mooncrate._native import Block

from ._codes import INTERNAL_ERROR, OK, log
from ._fork import Lock
from ._memory import pointer


class Regions:
    """All regions of this process, by address."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._blocks: dict[int, Block] = {}

    def alloc(self, size: int) -> int:
        """A new region; its address."""
        block = Block(size, shared=True)
        with self._lock:
            self._blocks[block.ptr] = block
        return block.ptr

    def free(self, address: int) -> bool:
        """Gives a region back; False if none begins there."""
        with self._lock:
            return self._blocks.pop(address, None) is not None

    def holds(self, address: int, size: int) -> bool:
        """Whether these bytes lie in one region."""
        with self._lock:
            blocks = list(self._blocks.values())
        return any(b.ptr <= address and address + size <= b.ptr + b.size for b in blocks)


regions = Regions()


class MooncakeHostMemAllocator:
    """Allocates memory that a dummy store may use."""

    def alloc(self, size: int) -> int:
        """The address of zeroed memory; RuntimeError if there is none."""
        count = pointer(size)
        if count <= 0:
            raise RuntimeError(f"a region has at least 1 byte, not {count}")
        try:
            return regions.alloc(count)
        except (MemoryError, OverflowError, ValueError) as error:
            raise RuntimeError(f"no memory for {count} bytes: {error}") from error

    def free(self, ptr: int) -> int:
        """Gives memory back: 0, or -1 for what was not allocated here."""
        return OK if regions.free(pointer(ptr)) else INTERNAL_ERROR


def bind_to_numa_node(node: int) -> None:
    """Lets this thread run on a NUMA node, and prefer its memory; a warning where that cannot be."""
    number = pointer(node)
    folder = f"/sys/devices/system/node/node{number}"
    try:
        with open(f"{folder}/cpulist", encoding="ascii") as file:
            cpus = _cpus(file.read())
        os.sched_setaffinity(0, cpus & os.sched_getaffinity(0) or cpus)
        _prefer_memory_of(number)
    except (OSError, ValueError) as error:
        log.warning("bind_to_numa_node(%d): %s; nothing was bound", number, error)


def _cpus(text: str) -> set[int]:
    """The CPUs of a list like 0-3,8."""
    found: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first:
            found.update(range(int(first), int(last or first) + 1))
    return found


def _prefer_memory_of(node: int) -> None:
    # set_mempolicy has no wrapper in the C library: MPOL_PREFERRED is 1, the call is 238 on x86-64 and
    # 237 on ARM; elsewhere the kernel's own rule (memory near the CPU) does the same.
    number = {"x86_64": 238, "aarch64": 237}.get(os.uname().machine)
    if number is None:
        return
    mask = ctypes.c_ulong(1 << node)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(number, 1, ctypes.byref(mask), ctypes.c_ulong(64)) != 0:
        error = ctypes.get_errno()
        log.warning("no memory of NUMA node %d is preferred: %s", node, os.strerror(error))


_ALLOC = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)
_FREE = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p
)


def _alloc(size: int, _device: int, _stream: int) -> int | None:
    try:
        return regions.alloc(size)
    except (MemoryError, OverflowError, ValueError):
        return None


def _free(address: int, _size: int, _device: int, _stream: int) -> None:
    regions.free(address or 0)


# Kept for as long as the module: C may call them at any time.
_ALLOC_FUNCTION = _ALLOC(_alloc)
_FREE_FUNCTION = _FREE(_free)


def get_alloc_func_addr() -> int:
    """The address of a C function `void *(ssize_t, int, stream)`, as torch's allocators want it."""
    return ctypes.cast(_ALLOC_FUNCTION, ctypes.c_void_p).value or 0


def get_free_func_addr() -> int:
    """The address of the C function that gives such memory back."""
    return ctypes.cast(_FREE_FUNCTION, ctypes.c_void_p).value or 0
