"""`BufferPool`: memory for zero-copy calls, lent and taken back.

A lease has memory of its own, aligned as asked, and registered with the store. The pool counts the bytes
that were asked for, not addresses: address space costs nothing, so alignment wastes none. A piece is a little
larger than its lease, so that it fits the next one, too; what is never touched costs nothing either. What must
stay true: memory is given to the next one only when nobody can reach it any more, neither through its lease
nor through a view.
"""

import operator
import threading
import time
import weakref
from types import TracebackType
from typing import Any

from mooncrate._native import Block, BufferLeaseView

from ._base import StoreBase
from ._connection import Connection
from ._fork import watch

# Pieces are made of whole pages.
PAGE = 4096
# As Mooncake reads them: arguments are numbers of 64 bits, or they have the wrong type.
NUMBERS = 1 << 64


def _number(name: str, value: Any, wrong: type[Exception] = TypeError) -> int:
    try:
        found = operator.index(value)
    except TypeError:
        raise wrong(f"{name} is a number, not {value!r}") from None
    if not 0 <= found < NUMBERS:
        raise wrong(f"{name} is a number of 64 bits, not {found}")
    return found


def _seconds(name: str, value: Any) -> float | None:
    if value is None:
        return None
    try:
        return float(operator.truediv(value, 1))
    except TypeError:
        raise RuntimeError(f"{name} is a number of seconds, not {value!r}") from None


def _truth(name: str, value: Any) -> bool:
    # A text is true or false by its length, and nobody means that.
    if not hasattr(type(value), "__bool__") and value is not None:
        raise RuntimeError(f"{name} is true or false, not {value!r}")
    return bool(value)


class BufferLease:
    """Memory of a pool, until it is released or nobody holds it any more."""

    def __init__(self, pool: "BufferPool", block: Block, size: int) -> None:
        self._window: BufferLeaseView | None = BufferLeaseView(block, size)
        self._ptr = block.ptr
        self._size = size
        # The memory goes back when the window is gone; views of it hold the window.
        weakref.finalize(self._window, pool._take_back, block, pool._charge(size))

    @property
    def ptr(self) -> int:
        if self._window is None:
            raise RuntimeError("buffer lease is closed")
        return self._ptr

    @property
    def size(self) -> int:
        return self._size

    @property
    def buffer(self) -> memoryview:
        """The memory, writable. Every view must be gone before the lease is released."""
        if self._window is None:
            raise BufferError("buffer lease is closed")
        return memoryview(self._window)

    def release(self) -> None:
        """Gives the memory back. More than once is fine."""
        if self._window is None:
            return
        if self._window.exports:
            raise RuntimeError("cannot release buffer while exported views exist")
        self._window = None

    def __enter__(self) -> "BufferLease":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


class BufferPool:
    """A bounded amount of registered memory, lent in pieces."""

    def __init__(
        self,
        store: StoreBase,
        max_bytes: int = 0,
        min_size_class: int = 65536,
        max_size_class: int | None = None,
        alignment: int = 8388608,
        block_on_exhaustion: bool = True,
        default_timeout: float | None = None,
        max_regions: int | None = None,
        prewarm_size: int | None = None,
        prewarm_count: int = 0,
    ) -> None:
        if not isinstance(store, StoreBase):
            raise RuntimeError(f"store is a MooncakeDistributedStore, not {store!r}")
        live = store._live
        if live is None:
            raise RuntimeError("MooncakeDistributedStore is not initialized: set it up first")
        if live.buffer_bytes == 0:
            raise RuntimeError("the store has no local buffer; give it a local_buffer_size")
        self._live: Connection = live
        most = _number("max_bytes", max_bytes) or 2 * live.buffer_bytes
        self._capacity = max(most, live.buffer_bytes)
        self._grain = _number("min_size_class", min_size_class)
        self._alignment = _number("alignment", alignment)
        if self._grain == 0:
            raise RuntimeError("min_size_class must be positive")
        if self._alignment < 8 or self._alignment & (self._alignment - 1):
            raise RuntimeError("alignment is a power of two, at least 8")
        # Of use to nobody: Mooncake looks at it and lends larger pieces all the same.
        if max_size_class is not None:
            _number("max_size_class", max_size_class, RuntimeError)
        self._regions = NUMBERS
        if max_regions is not None:
            self._regions = _number("max_regions", max_regions, RuntimeError)
        self._block = _truth("block_on_exhaustion", block_on_exhaustion)
        self._timeout = _seconds("default_timeout", default_timeout)
        count = _number("prewarm_count", prewarm_count)
        # Of a lock that the finalizer of a window may take while we hold it in the same thread.
        self._changed = threading.Condition(threading.RLock())
        watch(self)
        self._free: dict[int, list[Block]] = {}
        # Bytes and number of leases, and bytes of pieces that wait for the next one.
        self._leased = 0
        self._leases = 0
        self._kept = 0
        self._closed = False
        if prewarm_size and count:
            self.prewarm(prewarm_size, count)

    def _after_fork(self) -> None:
        # Its memory is the child's own copy, but its store is not.
        self._changed = threading.Condition(threading.RLock())
        self._closed = True

    def acquire(
        self, size: int, block: bool | None = None, timeout: float | None = None
    ) -> BufferLease:
        """Memory of so many bytes; waits for it, unless told otherwise."""
        size = _number("size", size)
        wait = self._block if block is None else _truth("block", block)
        seconds = self._timeout if timeout is None else _seconds("timeout", timeout)
        if seconds is not None and seconds < 0:
            raise RuntimeError("timeout must be non-negative")
        charge = self._charge(size)
        if charge > self._capacity:
            raise RuntimeError("requested buffer size exceeds pool capacity")
        end = None if seconds is None else time.monotonic() + seconds
        with self._changed:
            while True:
                if self._closed:
                    raise RuntimeError("buffer pool is closed")
                if self._leases < self._regions and self._leased + charge <= self._capacity:
                    return self._lease(size, charge)
                if not wait:
                    raise RuntimeError("buffer pool is exhausted")
                left = None if end is None else end - time.monotonic()
                if left is not None and left <= 0:
                    raise RuntimeError("timed out waiting for buffer")
                self._changed.wait(left)

    buffer = acquire

    @staticmethod
    def _charge(size: int) -> int:
        """What a lease counts; one of no bytes has an address, and so a byte."""
        return max(size, 1)

    def _piece(self, charge: int) -> int:
        """How large the memory of a lease is: pages, or for large ones the steps of the pool."""
        grain = self._grain if charge > self._grain else min(PAGE, self._grain)
        return -(-charge // grain) * grain

    def _lease(self, size: int, charge: int) -> BufferLease:
        room = self._piece(charge)
        kept = self._free.get(room)
        if kept:
            block = kept.pop()
            self._kept -= room
        else:
            self._make_room(room)
            try:
                block = Block(room, self._alignment)
            except MemoryError as error:
                raise RuntimeError(f"no memory for a buffer: {error}") from error
            self._live.registry.add(block.ptr, block.size)
        self._leased += charge
        self._leases += 1
        return BufferLease(self, block, size)

    def _make_room(self, room: int) -> None:
        """Frees blocks of other classes where all together would be too much."""
        while self._free and self._leased + self._kept + room > self._capacity:
            other = next(iter(self._free))
            blocks = self._free[other]
            if blocks:
                self._live.registry.remove(blocks.pop().ptr)
                self._kept -= other
            if not blocks:
                del self._free[other]

    def _take_back(self, block: Block, charge: int) -> None:
        with self._changed:
            self._leased -= charge
            self._leases -= 1
            if self._closed:
                self._live.registry.remove(block.ptr)
            else:
                self._free.setdefault(block.size, []).append(block)
                self._kept += block.size
            self._changed.notify_all()

    def prewarm(self, size: int, count: int) -> None:
        """Makes memory ready before it is needed, as far as the pool may have it."""
        size, count, leases = _number("size", size), _number("count", count), []
        # Pieces of no bytes count next to nothing, and are memory all the same.
        most = self._capacity // self._piece(self._charge(size)) + 1
        try:
            for _ in range(min(count, most)):
                leases.append(self.acquire(size, block=False))
        except RuntimeError:
            # Full: that is as warm as it gets.
            pass

    def close(self) -> None:
        """Ends the pool. Every lease must be released before."""
        with self._changed:
            if self._leases:
                raise RuntimeError("cannot close buffer pool with active leases")
            self._closed = True
            for blocks in self._free.values():
                for block in blocks:
                    self._live.registry.remove(block.ptr)
            self._free.clear()
            self._kept = 0
            self._changed.notify_all()


RegisteredBufferPool = BufferPool
RegisteredBufferLease = BufferLease
RegisteredBufferLeaseView = BufferLeaseView
