"""Memory that callers name by address: which of it is registered, and what cannot be an address.

What cannot be an address is refused here: null, in the first page, negative, or past the end of memory.
Registered memory is looked at once, when it is registered, and must stay mapped until it is unregistered, also
where it is a file, which must not become shorter. Memory of a GPU may be registered and need not be: the driver
knows it.
Other memory is looked at by each call that uses it, right before the use. No look helps against a thread
that unmaps memory while a call uses it.
"""

import bisect
from collections.abc import Iterable
from operator import index
from typing import Any

from mooncrate._native import memory_access, memory_device

from ._codes import log
from ._fork import Lock

# No process has memory in its first page, nor above what 57 bits name.
ADDRESS_MIN = 4096
ADDRESS_MAX = (1 << 57) - 1


def pointer(value: Any) -> int:
    """An address as an int; a wrong type is the caller's mistake."""
    return index(value)


def length(value: Any) -> int:
    """A number of bytes as an int."""
    return index(value)


def is_memory(address: int, size: int) -> bool:
    """Whether there could be memory of this size at this address."""
    return ADDRESS_MIN <= address <= ADDRESS_MAX and 0 <= size <= ADDRESS_MAX - address


class Registry:
    """Ranges of memory that do not overlap."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._starts: list[int] = []
        self._sizes: dict[int, int] = {}
        # Starts of ranges that are known to be readable, and writable.
        self._readable: set[int] = set()
        self._writable: set[int] = set()

    def add(self, address: int, size: int) -> bool:
        """Takes a range in; False if it overlaps with another one, or is not readable memory."""
        if size == 0 or not is_memory(address, size):
            return False
        if memory_device(address, size) is not None:
            # Memory of a GPU: each call asks the driver, which costs less than a look at host memory.
            readable = writable = False
        else:
            found = memory_access(address, size)
            if found is not None and not found[0]:
                log.error(
                    "the %d bytes at %#x are not registered: they are not readable memory of this process, "
                    "and not all of them are allocated on a GPU",
                    size,
                    address,
                )
                return False
            # Where the kernel shows no table of mappings, each call looks for itself.
            readable, writable = found or (False, False)
        with self._lock:
            place = bisect.bisect_right(self._starts, address)
            if place > 0:
                before = self._starts[place - 1]
                if before + self._sizes[before] > address:
                    return False
            if place < len(self._starts) and self._starts[place] < address + size:
                return False
            self._starts.insert(place, address)
            self._sizes[address] = size
            if readable:
                self._readable.add(address)
            if writable:
                self._writable.add(address)
            return True

    def remove(self, address: int) -> bool:
        """Forgets the range that begins there; False if none does."""
        with self._lock:
            if self._sizes.pop(address, None) is None:
                return False
            self._starts.remove(address)
            self._readable.discard(address)
            self._writable.discard(address)
            return True

    def size_at(self, address: int) -> int:
        """Bytes of the range that begins there; 0 if none does."""
        with self._lock:
            return self._sizes.get(address, 0)

    def left(self, address: int) -> int:
        """Bytes that can be written from an address to the end of its range; 0 if it is in none."""
        with self._lock:
            return self._left(address, self._writable)

    def knows(self, pieces: Iterable[tuple[int, int]], *, write: bool) -> bool:
        """Whether each address and size lies in a range that can be read, or written."""
        with self._lock:
            usable = self._writable if write else self._readable
            return all(self._left(address, usable) >= size for address, size in pieces)

    def _left(self, address: int, usable: set[int]) -> int:
        place = bisect.bisect_right(self._starts, address)
        if place == 0:
            return 0
        start = self._starts[place - 1]
        return max(0, start + self._sizes[start] - address) if start in usable else 0
