"""Memory that callers name by address: which of it is registered, and what cannot be an address.

Addresses are plain ints and cannot be proved good. What can be known to be bad is refused here: null,
in the first page, negative, or past the end of memory.
"""

import bisect
from operator import index

from ._fork import Lock

# No process has memory in its first page, nor above what 57 bits name.
ADDRESS_MIN = 4096
ADDRESS_MAX = (1 << 57) - 1


def pointer(value: object) -> int:
    """An address as an int; a wrong type is the caller's mistake."""
    return index(value)  # type: ignore[call-overload]


def length(value: object) -> int:
    """A number of bytes as an int."""
    return index(value)  # type: ignore[call-overload]


def is_memory(address: int, size: int) -> bool:
    """Whether there could be memory of this size at this address."""
    return ADDRESS_MIN <= address <= ADDRESS_MAX and 0 <= size <= ADDRESS_MAX - address


class Registry:
    """Ranges of memory that do not overlap."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._starts: list[int] = []
        self._sizes: dict[int, int] = {}

    def add(self, address: int, size: int) -> bool:
        """Takes a range in; False if it overlaps with another one, or cannot be memory."""
        if size == 0 or not is_memory(address, size):
            return False
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
            return True

    def remove(self, address: int) -> bool:
        """Forgets the range that begins there; False if none does."""
        with self._lock:
            if self._sizes.pop(address, None) is None:
                return False
            self._starts.remove(address)
            return True

    def left(self, address: int) -> int:
        """Bytes from an address to the end of its range; 0 if it is in none."""
        with self._lock:
            place = bisect.bisect_right(self._starts, address)
            if place == 0:
                return 0
            start = self._starts[place - 1]
            return max(0, start + self._sizes[start] - address)
