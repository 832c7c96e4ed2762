"""The life of a store: set up, looked after, closed.

`setup` is all or nothing, and on a live store it replaces what was there. `close` always works. At the
end of the interpreter stores that nobody closed are closed, so that the cluster hears a farewell.
"""

import atexit
import os
import threading
import weakref
from collections.abc import Mapping
from typing import Any

import mooncrate

from . import _client_http
from ._base import StoreBase
from ._codes import INTERNAL_ERROR, INVALID_PARAMS, OK, RPC_FAIL, code_of, log
from ._connection import Connection, NotReached
from ._fork import watch
from ._replicas import tasks
from ._settings import Refused, Settings, from_dict, text, whole

HEALTHY, NOT_SET_UP, MASTER_SILENT = 0, 1, 2

_stores: "weakref.WeakSet[LifeCalls]" = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for store in list(_stores):
        store.close()
    tasks.stop(5.0)


class LifeCalls(StoreBase):
    """setup, close and what is between."""

    def __init__(self) -> None:
        self._setup_lock = threading.Lock()
        watch(self)

    def _after_fork(self) -> None:
        # What was set up is the parent's, whose threads are not here: it is left alone.
        self._setup_lock = threading.Lock()
        self._live = None
        self._said = False

    def setup(self, *args: Any, **more: Any) -> int:
        """Sets the store up: with the arguments of `_setup_by_arguments`, or with one dict."""
        by_dict = len(args) == 1 and not more and isinstance(args[0], Mapping)
        if by_dict or (not args and set(more) == {"config"}):
            config = args[0] if args else more["config"]
            if not isinstance(config, Mapping):
                raise TypeError(f"config is a dict, not {config!r}")
            try:
                settings = from_dict(config)
            except Refused as error:
                log.error("setup: %s", error)
                return INVALID_PARAMS
            return self._set_up(settings)
        return self._setup_by_arguments(*args, **more)

    def _setup_by_arguments(
        self,
        local_hostname: str,
        metadata_server: str,
        global_segment_size: int,
        local_buffer_size: int,
        protocol: str,
        rdma_devices: str,
        master_server_addr: str,
        engine: object = None,
        enable_ssd_offload: bool = False,
        ssd_offload_path: str = "",
        tenant_id: str = "default",
        enable_client_http_server: bool = False,
        client_http_port: int = 9300,
    ) -> int:
        if engine is not None:
            raise TypeError("engine: a transfer engine of another package cannot be used; give None")
        settings = Settings(
            local_hostname=text("local_hostname", local_hostname),
            metadata_server=text("metadata_server", metadata_server),
            global_segment_size=whole("global_segment_size", global_segment_size),
            local_buffer_size=whole("local_buffer_size", local_buffer_size),
            protocol=text("protocol", protocol),
            rdma_devices=text("rdma_devices", rdma_devices),
            master_server_addr=text("master_server_addr", master_server_addr),
            enable_ssd_offload=bool(enable_ssd_offload),
            ssd_offload_path=text("ssd_offload_path", ssd_offload_path),
            tenant_id=text("tenant_id", tenant_id),
            enable_client_http_server=bool(enable_client_http_server),
            client_http_port=whole("client_http_port", client_http_port),
        )
        return self._set_up(settings)

    def _set_up(self, settings: Settings) -> int:
        try:
            settings.check()
        except Refused as error:
            log.error("setup: %s", error)
            return INVALID_PARAMS
        self._note(settings)
        return self._begin(lambda: Connection(settings), settings.local_hostname)

    def _begin(self, connect: Any, name: str) -> int:
        """Replaces whatever there is by a new connection; 0, or why there is none."""
        with self._setup_lock:
            self._end()
            try:
                live = connect()
            except (NotReached, mooncrate.Error, OSError, ValueError) as error:
                log.error("setup: %s", error)
                code = code_of(error) if isinstance(error, mooncrate.Error) else RPC_FAIL
                code = INVALID_PARAMS if isinstance(error, Refused) else code
                # Callers tell the two apart by whether they chose a port themselves.
                chosen = name.rpartition(":")[2].isdigit()
                return INVALID_PARAMS if chosen or code == INVALID_PARAMS else INTERNAL_ERROR
            self._live = live
            self._said = False
            _stores.add(self)
            if live.settings.enable_client_http_server:
                live.window = _client_http.open_for(self, live.store, live.settings.client_http_port)
            return OK

    @staticmethod
    def _note(settings: Settings) -> None:
        """What is accepted and not needed, once per setup."""
        server = settings.metadata_server
        if server and server != "P2PHANDSHAKE":
            log.info("metadata_server %s is not needed and is not asked: the master is enough", server)
        if settings.enable_ssd_offload and not settings.global_segment_size:
            log.warning("enable_ssd_offload needs a global_segment_size: a disk stands behind memory")
        for name in sorted(os.environ):
            if name.startswith(("MC_TCP_", "MC_GID_INDEX", "MC_MS_AUTO_DISC")):
                log.debug("%s is ignored: the transport needs no tuning", name)

    def close(self) -> int:
        """Ends everything. More than once is fine, and so is a store that was never set up."""
        with self._setup_lock:
            self._end()
        return OK

    def _end(self) -> None:
        live, self._live = self._live, None
        _stores.discard(self)
        if live is None:
            return
        if live.window is not None:
            live.window.close()
        try:
            live.close()
        except mooncrate.Error as error:
            log.debug("close: %s", error)

    def get_hostname(self) -> str:
        """The name of this store's segment, as `preferred_segment` takes it."""
        live = self._connected()
        return "" if live is None else live.hostname

    def health_check(self) -> int:
        """0: well; 1: not set up; 2: the master does not answer."""
        live = self._live
        if live is None:
            return NOT_SET_UP
        try:
            live.raw.nodes()
        except mooncrate.Closed:
            return NOT_SET_UP
        except mooncrate.Error as error:
            log.warning("health_check: %s", error)
            return MASTER_SILENT
        return HEALTHY

    def init_all(self, protocol: str, device_name: str, mount_segment_size: int) -> int:
        """The old form of `setup`, with fixed names and the default master."""
        return self._setup_by_arguments(
            "localhost:12345",
            "127.0.0.1:2379",
            mount_segment_size,
            1 << 30,
            protocol,
            device_name,
            "127.0.0.1:50051",
        )
