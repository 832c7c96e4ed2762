"""The first face of the store, from before it had this package: other names, defaults, and KeyError.

Programs of that time import `mooncake_vllm_adaptor` or `distributed_object_store`.
"""

from typing import Any

import mooncrate

from ._base import Key, key_list
from ._codes import INVALID_PARAMS, OK, log
from ._settings import DEFAULT_BYTES, DEFAULT_MASTER, Refused, Settings, text, whole
from .store import MooncakeDistributedStore


class PreviewStore(MooncakeDistributedStore):
    """The store as its preview had it."""

    def setup(
        self,
        local_hostname: Any,
        metadata_server: Any = "",
        global_segment_size: int = DEFAULT_BYTES,
        local_buffer_size: int = DEFAULT_BYTES,
        protocol: str = "tcp",
        rdma_devices: str = "",
        master_server_addr: str = DEFAULT_MASTER,
    ) -> int:
        """Sets the store up; all but the two names has defaults."""
        if not metadata_server and not isinstance(local_hostname, str):
            return super().setup(local_hostname)
        return self._setup_by_arguments(
            local_hostname,
            metadata_server,
            global_segment_size,
            local_buffer_size,
            protocol,
            rdma_devices,
            master_server_addr,
        )

    def initAll(  # noqa: N802  (the name is the old one)
        self, protocol: str, device_name: str, mount_segment_size: int = DEFAULT_BYTES
    ) -> int:
        """After `setup`: sees to it that memory is lent. Without one: sets the store up."""
        size = whole("mount_segment_size", mount_segment_size)
        live = self._live
        if live is None:
            return self.init_all(protocol, device_name, size)
        try:
            Settings("-", "-", protocol=text("protocol", protocol)).check()
        except Refused as error:
            log.error("initAll: %s", error)
            return INVALID_PARAMS
        if live.lender is None and size:
            return int(self._mount(live, size)["ret"])
        return OK

    def get(self, key: Key) -> bytes:
        """The value; KeyError if there is none, RuntimeError if it cannot be read."""
        (key,) = key_list([key])
        live = self._connected()
        if live is None:
            raise RuntimeError("the store is not set up; call setup() first")
        try:
            value = live.store.get(key)
        except mooncrate.Error as error:
            raise RuntimeError(f"get of {key!r}: {error}") from error
        if value is None:
            raise KeyError(key)
        return value

    def isExist(self, key: Key) -> int:  # noqa: N802  (the name is the old one)
        """1 if the key has a value, 0 if not, or if that cannot be known now."""
        return self.is_exist(key)
