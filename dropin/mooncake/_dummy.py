"""Dummy stores: thin clients of a `mooncake_client` process on the same machine.

The process tells where the master is, and lends the memory; the store then asks the master itself and
shares that memory. So a dummy store has the same calls and results as any other. What stays of upstream
is the rule about pointers: they lie in memory of `MooncakeHostMemAllocator`.
"""

import json
import socket

from ._allocator import regions
from ._codes import INTERNAL_ERROR, OK, log
from ._connection import Connection, NotReached
from ._life import LifeCalls
from ._memory import is_memory
from ._settings import Settings, text, whole
from ._zero_copy import ZeroCopyCalls

ASK = b'{"mooncrate_client":1}\n'
ANSWER_BYTES_MAX = 65_536
ASK_SECONDS = 5.0


def ask_client(address: str) -> dict[str, str]:
    """What the `mooncake_client` at an address says of itself."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise NotReached(f"server_address {address!r} is not host:port")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=ASK_SECONDS) as link:
            link.sendall(ASK)
            with link.makefile("rb") as lines:
                said = json.loads(lines.readline(ANSWER_BYTES_MAX))
        if said.get("mooncrate_client") != 1:
            raise ValueError("it speaks another language")
        return {name: str(said.get(name, "")) for name in ("master", "segment", "tenant")}
    except (OSError, ValueError, AttributeError) as error:
        raise NotReached(f"no mooncake_client answers at {address}: {error}") from error


class DummyCalls(LifeCalls, ZeroCopyCalls):
    """setup_dummy, and the rules of memory for dummy stores."""

    def setup_dummy(self, mem_pool_size: int, local_buffer_size: int, server_address: str) -> int:
        """Sets the store up as a client of a `mooncake_client`; -1 if none answers."""
        whole("mem_pool_size", mem_pool_size)
        buffer = whole("local_buffer_size", local_buffer_size)
        address = text("server_address", server_address)
        try:
            said = ask_client(address)
        except NotReached as error:
            log.error("setup_dummy: %s", error)
            return INTERNAL_ERROR
        settings = Settings(
            local_hostname=address,
            metadata_server="P2PHANDSHAKE",
            global_segment_size=0,
            local_buffer_size=buffer,
            master_server_addr=said["master"],
            tenant_id=said["tenant"] or "default",
        )
        code = self._begin(lambda: Connection(settings, dummy=True, segment=said["segment"]), "")
        return OK if code == OK else INTERNAL_ERROR

    def alloc_from_mem_pool(self, size: int) -> int:
        """The address of memory for zero-copy calls of a dummy store; 0 elsewhere."""
        count = whole("size", size)
        live = self._connected()
        if live is None or not live.dummy or count == 0:
            return 0
        try:
            return regions.alloc(count)
        except (MemoryError, OverflowError, ValueError) as error:
            log.error("alloc_from_mem_pool: %s", error)
            return 0

    def _register_region(self, live: Connection, address: int, size: int) -> int:
        if size <= 0 or not regions.holds(address, size):
            return INTERNAL_ERROR
        # Again is fine, and so is a part: engines register each of their pools inside one region.
        if not live.registry.add(address, size) and live.registry.size_at(address) != size:
            live.inside.add(address)
        return OK

    def unregister_buffer(self, buffer_ptr: int) -> int:
        """Forgets a range that begins there."""
        live = self._live
        if live is not None and buffer_ptr in live.inside:
            live.inside.discard(buffer_ptr)
            return OK
        return super().unregister_buffer(buffer_ptr)

    def _usable(self, live: Connection, address: int, size: int) -> bool:
        if not is_memory(address, size):
            return False
        return not live.dummy or regions.holds(address, size)
