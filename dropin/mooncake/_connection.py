"""A store that is set up: the client, the lent memory, and what belongs to both.

One object per `setup`, thrown away by `close`. It is made whole or not at all: whatever fails leaves
nothing behind. Calls that are under way when it is closed end with an error, never with a crash.
"""

import os
import random
import socket
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any

import mooncrate
from mooncrate._native import Lender, Raw, Sessions

from ._codes import log
from ._disk import SHARERS_MAX, disk, is_named
from ._fork import Lock
from ._hosts import client_ports, is_loopback, says_yes
from ._http import Server
from ._memory import Registry
from ._settings import Refused, Settings

# How long a call may take, unless MC_RPC_TIMEOUT_MS says less.
CALL_SECONDS = 15.0
# Calls that move so much have more time.
LARGE_BYTES = 256 << 20
LARGE_SECONDS = 120.0
# Names of segments are looked up again after this long.
NAMES_SECONDS = 1.0
# Keys of own puts that are remembered, for `batch_replica_clear`.
WRITTEN_MAX = 1 << 18
# Segments of one store.
SEGMENTS_MAX = 64


class NotReached(Exception):
    """The store could not be set up; the text says why."""


def _milliseconds(name: str, default: float) -> float:
    """Seconds from a variable in milliseconds, if that is less."""
    text = os.environ.get(name, "")
    try:
        given = float(text) / 1000
    except ValueError:
        return default
    return min(default, given) if given > 0 else default


def _ports() -> Iterable[int]:
    """Ports to try, in no particular order; `Refused` where the environment names none."""
    tries = os.environ.get("MC_STORE_CLIENT_SETUP_RETRIES", "20")
    if not tries.isdecimal():
        raise Refused(f"MC_STORE_CLIENT_SETUP_RETRIES is a number, not {tries!r}")
    try:
        ports = client_ports()
    except ValueError as error:
        raise Refused(str(error)) from None
    return random.sample(ports, min(max(int(tries), 1), len(ports)))


class Connection:
    """What a store has between `setup` and `close`."""

    def __init__(self, settings: Settings, *, dummy: bool = False, segment: str = "") -> None:
        self.settings = settings
        self.dummy = dummy
        # The segment that a dummy store writes to first.
        self.home = segment
        self.buffer_bytes = settings.local_buffer_size
        self.registry = Registry()
        # Where ranges begin that a dummy store registered inside of others.
        self.inside: set[int] = set()
        self.lock = Lock()
        self.written: OrderedDict[bytes, None] = OrderedDict()
        # Segments that were mounted later, by their names, and how many there ever were.
        self.segments: dict[str, int] = {}
        self._mounts = 0
        self.lender: Lender | None = None
        # Why the last port that was tried could not be listened on.
        self._not_bound = ""
        # The HTTP of this store, where it was asked for.
        self.window: Server | None = None
        self._names: dict[str, list[int]] = {}
        self._names_until = 0.0
        self._home_ids: list[int] | None = None
        timeout = _milliseconds("MC_RPC_TIMEOUT_MS", CALL_SECONDS)
        connect = _milliseconds("MC_RPC_CONNECT_TIMEOUT_MS", min(timeout, 5.0))
        self._probe(connect)
        token = os.environ.get("MOONCRATE_TOKEN_FILE")
        self.credentials: dict[str, Any] = {"token_file": token} if token else {}
        self.store = self._client(timeout)
        self.raw = Raw(self.store)
        self.sessions = Sessions(self.store)
        self._patient: Raw | None = None
        try:
            self.hostname = "" if dummy else self._take_name()
        except BaseException:
            self.close()
            raise

    def _client(self, timeout: float) -> mooncrate.Store:
        tenant = self.settings.tenant_id
        more: dict[str, Any] = {"tenant": tenant} if tenant not in ("", "default") else {}
        master = self.settings.master_server_addr
        return mooncrate.Store(
            master=master, timeout=timeout, _holds=True, **more, **self.credentials
        )

    def door(self, count: int) -> Raw:
        """The raw door for a call that moves so many bytes: much of them may take longer."""
        if count < LARGE_BYTES:
            return self.raw
        with self.lock:
            if self._patient is None:
                self._patient = Raw(self._client(LARGE_SECONDS))
            return self._patient

    def _probe(self, seconds: float) -> None:
        """Whether a master is there at all: one that is not should be known within seconds."""
        reasons = []
        for address in self.settings.master_server_addr.split(","):
            host, _, port = address.strip().rpartition(":")
            if not host or not port.isdigit():
                # What else an address may be, the store knows.
                return
            try:
                with socket.create_connection((host.strip("[]"), int(port)), timeout=seconds):
                    return
            except OSError as error:
                reasons.append(f"{address.strip()}: {error}")
        raise NotReached(f"no master answers ({'; '.join(reasons)}); start it with mooncake_master")

    # ---- the name, and the memory lent under it ------------------------------------------------

    def _take_name(self) -> str:
        host, _, port = self.settings.local_hostname.rpartition(":")
        if host and port.isdigit():
            name = self.settings.local_hostname
            if self.settings.global_segment_size and not self._lend(name, host, int(port)):
                self._lend(name, host, 0)
            return name
        host = self.settings.local_hostname
        for number in _ports():
            name = f"{host}:{number}"
            if not self.settings.global_segment_size or self._lend(name, host, number):
                return name
        raise NotReached(
            f"no free port was found; see MC_STORE_CLIENT_MIN_PORT and _MAX_PORT ({self._not_bound})"
        )

    def _lend(self, name: str, host: str, port: int) -> bool:
        """Lends the memory of this store; False: the port is taken."""
        insecure = says_yes("MOONCRATE_INSECURE_LISTEN")
        listen, size = host.strip("[]"), self.settings.global_segment_size
        if not self.credentials and not insecure and not is_loopback(listen):
            # Served on 127.0.0.1 only, it would be found under a name at which nobody answers.
            raise Refused(
                f"local_hostname {host!r} is not this machine alone: others could connect there, and this "
                "cluster asks nobody for credentials. Set MOONCRATE_TOKEN_FILE, or accept the risk with "
                "MOONCRATE_INSECURE_LISTEN=1, or set the store up as 'localhost'"
            )
        on_disk = self.settings.enable_ssd_offload or is_named()
        path, root = self.settings.ssd_offload_path, self.raw.disk_root()
        for sharer in range(1, SHARERS_MAX + 1):
            ssd = disk(on_disk, path, root=root, sharer=sharer)
            try:
                self.lender = Lender(
                    self.store,
                    master=self.settings.master_server_addr,
                    name=self._free_name(name, port),
                    listen=f"[{listen}]:{port}" if ":" in listen else f"{listen}:{port}",
                    segment_size=size,
                    ssd=ssd,
                    insecure_listen=insecure,
                    memory_overcommit=says_yes("MOONCRATE_MEMORY_OVERCOMMIT"),
                    **self.credentials,
                )
                return True
            except mooncrate.TooLarge:
                log.error(
                    "%d bytes are not lent; MOONCRATE_MEMORY_OVERCOMMIT=1 says that they are meant", size
                )
                raise
            except mooncrate.Error as error:
                if error.kind == "io" and port:
                    self._not_bound = str(error)
                    return False
                if error.kind == "no disk" and root and not on_disk:
                    # Nobody here asked for it: the directory of the master is not this machine's.
                    log.warning("without the disk that the master names: %s", error)
                    root = ""
                elif error.kind != "disk in use" or sharer == SHARERS_MAX:
                    raise
        raise AssertionError("the last sharer has returned or raised")

    def _free_name(self, name: str, port: int) -> str:
        """The name of the node: another one than that of a store that lives under this name.

        A name may own several segments. A node of the same name and address as ours is one that died,
        because we are about to listen there.
        """
        taken = {node: endpoint for node, endpoint, *_ in self.raw.nodes()}
        if name not in taken or taken[name].rpartition(":")[2] == str(port):
            return name
        count = 2
        while f"{name}#{count}" in taken:
            count += 1
        return f"{name}#{count}"

    def mount(self, size: int) -> str:
        """Lends one more segment; its id as a text."""
        with self.lock:
            if self.lender is None:
                host, _, port = self.hostname.rpartition(":")
                self.settings.global_segment_size = size
                if not self._lend(self.hostname, host or "localhost", int(port or 0)):
                    self._lend(self.hostname, host or "localhost", 0)
                name = "" if self.lender is None else self.lender.name
                found = [ids for node, _, ids, _ in self.raw.nodes() if node == name]
                segment, index = found[0][0], 0
            else:
                taken = {0, *self.segments.values()}
                index = next((n for n in range(SEGMENTS_MAX) if n not in taken), SEGMENTS_MAX)
                if index == SEGMENTS_MAX:
                    raise ValueError(f"a store has at most {SEGMENTS_MAX} segments")
                segment = self.lender.mount(index, size)
            # No name comes twice: whoever knows one that is gone must not unmount what came after it.
            self._mounts += 1
            name = f"{segment}-{self._mounts}"
            self.segments[name] = index
            return name

    def unmount(self, name: str) -> bool:
        """Takes a segment back; whether it is one that was mounted so.

        If that fails, its name stays known, and the same call can be made again: the memory serves
        nobody any more, but the master has not heard of it.
        """
        with self.lock:
            index = self.segments.get(name)
            if index is None or self.lender is None:
                return False
            self.lender.unmount(index)
            del self.segments[name]
            return True

    # ---- segments by name ----------------------------------------------------------------------

    def segment_names(self) -> dict[int, str]:
        """What each segment, on disks too, is called: as whoever lends it was set up."""
        found: dict[int, str] = {}
        for node, endpoint, memory, disks in self.raw.nodes():
            name = node.partition("#")[0]
            # A node that was started by its own name is known by its address.
            host, _, port = name.rpartition(":")
            shown = name if host and port.isdigit() else endpoint
            found.update((segment, shown) for segment in (*memory, *disks))
        return found

    def segment_ids(self, names: Sequence[str]) -> list[int]:
        """The segments of memory of these names; unknown names are left out."""
        now = time.monotonic()
        if now >= self._names_until or any(name not in self._names for name in names):
            # A name may own several nodes.
            found: dict[str, list[int]] = {}
            for node, _, memory, _ in self.raw.nodes():
                found.setdefault(node.partition("#")[0], []).extend(memory)
            self._names, self._names_until = found, now + NAMES_SECONDS
            self._home_ids = None
        return [segment for name in names for segment in self._names.get(name, ())]

    def home_ids(self) -> list[int]:
        """Where a put without wishes would like to be."""
        found = self._home_ids
        if found is None or time.monotonic() >= self._names_until:
            found = self._home_ids = self.segment_ids([self.home]) if self.home else []
        return found

    # ---- keys that this store wrote ------------------------------------------------------------

    def wrote(self, keys: Iterable[str | bytes]) -> None:
        # No lock: each step is one of the interpreter's, and threads that put would wait for each other here.
        written = self.written
        for key in keys:
            written[raw_key(key)] = None
        while len(written) > WRITTEN_MAX:
            try:
                written.popitem(last=False)
            except KeyError:
                return

    def close(self) -> None:
        """Ends everything; never waits for a master that is gone for longer than a second or two."""
        try:
            self.sessions.close()
        except mooncrate.Error as error:
            log.debug("put sessions were lost at close: %s", error)
        finally:
            if self.lender is not None:
                self.lender.close()
            self.store.close()
            if self._patient is not None:
                self._patient.store.close()


def raw_key(key: str | bytes) -> bytes:
    """A key as the bytes that it is."""
    if isinstance(key, str):
        return key.encode()
    if isinstance(key, bytes):
        return key
    raise TypeError(f"a key is str or bytes, not {type(key).__name__}")
