"""`BufferPool`: memory for zero-copy calls, lent and taken back.

A lease has memory of its own size class, aligned as asked, and registered with the store. The pool counts
bytes, not addresses: address space costs nothing, so alignment wastes none. What must stay true: memory is
given to the next one only when nobody can reach it any more, neither through its lease nor through a view.
"""

import threading
import time
import weakref
from types import TracebackType

from mooncrate._native import Block, BufferLeaseView

from ._base import StoreBase
from ._connection import Connection
from ._fork import watch


def _seconds(name: str, value: float | None) -> float | None:
    if value is not None and value < 0:
        raise RuntimeError(f"{name} is negative")
    return value


class BufferLease:
    """Memory of a pool, until it is released or nobody holds it any more."""

    def __init__(self, pool: "BufferPool", block: Block, size: int) -> None:
        self._window: BufferLeaseView | None = BufferLeaseView(block, size)
        self._ptr = block.ptr
        self._size = size
        # The memory goes back when the window is gone; views of it hold the window.
        weakref.finalize(self._window, pool._take_back, block)

    def _open(self) -> BufferLeaseView:
        if self._window is None:
            raise RuntimeError("buffer lease is closed")
        return self._window

    @property
    def ptr(self) -> int:
        self._open()
        return self._ptr

    @property
    def size(self) -> int:
        return self._size

    @property
    def buffer(self) -> memoryview:
        """The memory, writable. Every view must be gone before the lease is released."""
        return memoryview(self._open())

    def release(self) -> None:
        """Gives the memory back. More than once is fine."""
        if self._window is None:
            return
        if self._window.exports:
            raise RuntimeError("cannot release buffer while exported views exist")
        self._window = None

    def __enter__(self) -> "BufferLease":
        self._open()
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
            raise TypeError(f"store is a MooncakeDistributedStore, not {store!r}")
        live = store._live
        if live is None:
            raise RuntimeError("the store of a buffer pool must be set up first")
        if live.buffer_bytes == 0:
            raise RuntimeError("the store has no local buffer; give it a local_buffer_size")
        if alignment < 8 or alignment & (alignment - 1):
            raise RuntimeError("alignment is a power of two, at least 8")
        self._live: Connection = live
        self._capacity = max(max_bytes or 2 * live.buffer_bytes, live.buffer_bytes)
        self._grain = max(1, min_size_class)
        self._largest = min(max_size_class or self._capacity, self._capacity)
        self._alignment = alignment
        self._block = block_on_exhaustion
        self._timeout = _seconds("default_timeout", default_timeout)
        # Of a lock that the finalizer of a window may take while we hold it in the same thread.
        self._changed = threading.Condition(threading.RLock())
        watch(self)
        self._free: dict[int, list[Block]] = {}
        self._leased = 0
        self._kept = 0
        self._closed = False
        if prewarm_size and prewarm_count:
            self.prewarm(prewarm_size, prewarm_count)

    def after_fork(self) -> None:
        # Its memory is the child's own copy, but its store is not.
        self._changed = threading.Condition(threading.RLock())
        self._closed = True

    def acquire(
        self, size: int, block: bool | None = None, timeout: float | None = None
    ) -> BufferLease:
        """Memory of at least 1 byte; waits for it, unless told otherwise."""
        wait = self._block if block is None else block
        seconds = self._timeout if timeout is None else _seconds("timeout", timeout)
        if size <= 0:
            raise RuntimeError("requested buffer size must be at least 1")
        room = self._class_of(size)
        end = None if seconds is None else time.monotonic() + seconds
        with self._changed:
            while True:
                if self._closed:
                    raise RuntimeError("buffer pool is closed")
                if self._leased + room <= self._capacity:
                    return self._lease(size, room)
                if not wait:
                    raise RuntimeError("buffer pool is exhausted")
                left = None if end is None else end - time.monotonic()
                if left is not None and left <= 0:
                    raise RuntimeError("timed out waiting for buffer")
                self._changed.wait(left)

    buffer = acquire

    def _class_of(self, size: int) -> int:
        room = min(-(-size // self._grain) * self._grain, self._largest)
        if room < size:
            raise RuntimeError("requested buffer size exceeds pool capacity")
        return room

    def _lease(self, size: int, room: int) -> BufferLease:
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
        self._leased += room
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

    def _take_back(self, block: Block) -> None:
        with self._changed:
            self._leased -= block.size
            if self._closed:
                self._live.registry.remove(block.ptr)
            else:
                self._free.setdefault(block.size, []).append(block)
                self._kept += block.size
            self._changed.notify_all()

    def prewarm(self, size: int, count: int) -> None:
        """Makes memory ready before it is needed, as far as the pool may have it."""
        leases = []
        try:
            for _ in range(count):
                leases.append(self.acquire(size, block=False))
        except RuntimeError:
            # Full: that is as warm as it gets.
            pass

    def close(self) -> None:
        """Ends the pool. Every lease must be released before."""
        with self._changed:
            if self._leased:
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
