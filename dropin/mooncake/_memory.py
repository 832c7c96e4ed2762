"""Memory that callers name by address: which of it is registered, and what cannot be an address.

What cannot be an address is refused here: null, in the first page, negative, or past the end of memory.
Registered memory is looked at once, when it is registered, and must stay mapped until it is unregistered, also
where it is a file, which must not become shorter. Memory of a GPU may be registered and need not be: the driver
knows it.
Other memory is looked at by each call that uses it, right before the use. No look helps against a thread
that unmaps memory while a call uses it.
"""

from operator import index
from typing import Any

from mooncrate._native import Ranges, memory_access, memory_device

from ._codes import log

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


class Registry(Ranges):
    """Ranges of memory that do not overlap."""

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
        return self.insert(address, size, read=readable, write=writable)
