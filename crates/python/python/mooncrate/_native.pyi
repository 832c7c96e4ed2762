import builtins
from collections.abc import Iterable, Iterator, Mapping, Sequence
from os import PathLike
from types import TracebackType
from typing import Self, final

from typing_extensions import Buffer, disjoint_base

from mooncrate.errors import Error
from mooncrate.stats import Stats

__all__ = ["Listing", "Store", "View", "__version__", "_cli"]

__version__: str

# Internal: the command, without care for Python's signal handlers; `mooncrate._cli` has it.
def _cli(arguments: Sequence[str], /) -> int: ...

@disjoint_base
class Store:
    """A store of KV cache: in this process, or, with `master`, of a cluster.

    master: `host:port` or `unix:/path` of the master; several, with commas, where they elect a leader.
    segment_size: bytes that this store may hold, or lends to the cluster; 268435456 or "256MiB". A store
        in this process has 256 MiB unless told otherwise, one of a cluster lends nothing.
    replicas: copies of each value, on distinct nodes, unless a put says otherwise.
    tenant: whose keys these are. Where a cluster asks for credentials, it must be their tenant.
    token_file, tls_cert, tls_key, tls_ca: credentials of this client.
    timeout: seconds within which every call ends.
    shared_memory: whether values on this machine are read from the memory of their owner.
    host, zone: labels of this machine; equal hosts share memory.
    listen: where lent memory is served; "127.0.0.1:0" unless told otherwise.
    """

    def __new__(
        cls,
        *,
        master: str | None = None,
        segment_size: int | str | None = None,
        replicas: int = 1,
        tenant: str = "",
        token_file: str | PathLike[str] | None = None,
        tls_cert: str | PathLike[str] | None = None,
        tls_key: str | PathLike[str] | None = None,
        tls_ca: str | PathLike[str] | None = None,
        timeout: float = 5.0,
        shared_memory: bool = True,
        host: str | None = None,
        zone: str = "",
        listen: str | None = None,
    ) -> Self: ...
    def put(
        self,
        key: str | bytes,
        value: Buffer,
        *,
        replicas: int | None = None,
        soft_pin: float | None = None,
        hard_pin: bool = False,
        group: str | None = None,
        expire: float | None = None,
        upsert: bool = False,
    ) -> bool:
        """Stores a value; False if the key has one already, which stays, unless `upsert`.

        soft_pin: seconds in which it is evicted only when nothing else is left. hard_pin: it is never
        evicted. group: what it is evicted together with. expire: seconds after its first get when it goes.
        """

    def get(self, key: str | bytes) -> bytes | None:
        """The value, verified; None if there is none."""

    def get_into(self, key: str | bytes, target: Buffer) -> int | None:
        """Copies the value to the front of a writable buffer; its length, or None if there is none."""

    def get_range(self, key: str | bytes, start: int, length: int) -> bytes | None:
        """A part of the value, verified; None if there is no value."""

    def view(self, key: str | bytes) -> View | None:
        """The value in place, pinned; a copy where its owner is on another machine."""

    def size(self, key: str | bytes) -> int | None:
        """Bytes of the value; None if there is none."""

    def exists(self, key: str | bytes) -> bool:
        """Whether the key has a value. Asking protects nothing from eviction."""

    def __contains__(self, key: str | bytes, /) -> bool: ...
    def remove(self, key: str | bytes, *, force: bool = False) -> bool:
        """Removes the value; whether there was one. Views keep their bytes."""

    def remove_prefix(self, prefix: str | bytes, *, force: bool = False) -> int:
        """Removes the values of all keys with this prefix; how many. Leased ones stay unless `force`."""

    def remove_regex(self, regex: str, *, force: bool = False) -> int:
        """Removes the values of all keys in which the expression finds a match; how many."""

    def list(self, prefix: str | bytes | None = None) -> Listing:
        """The keys with this prefix, in no particular order."""

    def stats(self) -> Stats:
        """The cluster, and this client, in numbers."""

    def close(self) -> None:
        """Closes the store; its views live on. More than once is fine."""

    @property
    def closed(self) -> bool: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...
    def put_batch(
        self,
        items: Mapping[str | bytes, Buffer] | Iterable[tuple[str | bytes, Buffer]],
        *,
        replicas: int | None = None,
        soft_pin: float | None = None,
        hard_pin: bool = False,
        group: str | None = None,
        expire: float | None = None,
        upsert: bool = False,
    ) -> builtins.list[bool | Error]:
        """Stores many values at once: for each what `put` gives, or its error as an object."""

    def get_batch(self, keys: Iterable[str | bytes]) -> builtins.list[bytes | None | Error]:
        """Many values at once: for each what `get` gives, or its error as an object."""

    def exists_batch(self, keys: Iterable[str | bytes]) -> builtins.list[bool | Error]:
        """For each key what `exists` gives, or its error as an object."""

    def remove_batch(
        self, keys: Iterable[str | bytes], *, force: bool = False
    ) -> builtins.list[bool | Error]:
        """For each key what `remove` gives, or its error as an object."""
    # The raw door: internal, may change with any version. Addresses are of memory that stays, and that
    # nobody else touches, until the call returns.
    def _put_at(
        self,
        keys: Iterable[str | bytes],
        addresses: builtins.list[builtins.list[int]],
        sizes: builtins.list[builtins.list[int]],
        *,
        replicas: int | None = None,
        soft_pin: float | None = None,
        hard_pin: bool = False,
        group: str | None = None,
        expire: float | None = None,
        upsert: bool = False,
    ) -> builtins.list[bool | Error]: ...
    def _get_at(
        self,
        keys: Iterable[str | bytes],
        addresses: builtins.list[builtins.list[int]],
        sizes: builtins.list[builtins.list[int]],
        *,
        exact: bool = False,
    ) -> builtins.list[int | None | Error]: ...
    def _get_ranges_at(
        self,
        keys: Iterable[str | bytes],
        starts: builtins.list[builtins.list[int]],
        addresses: builtins.list[builtins.list[int]],
        sizes: builtins.list[builtins.list[int]],
    ) -> builtins.list[builtins.list[int | Error] | None | Error]: ...

@final
class View:
    """The bytes of a value, read-only, pinned until this is released and all that shows them is gone."""

    def release(self) -> None:
        """Gives nothing out any more; the pin ends with the last array that shows the bytes."""

    @property
    def nbytes(self) -> int: ...
    @property
    def in_place(self) -> bool:
        """Whether the bytes are where their owner keeps them; otherwise they are a copy."""

    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...

@final
class Listing(Iterator[bytes]):
    """Keys, a page at a time."""

    def __iter__(self) -> Self: ...
    def __next__(self) -> bytes: ...
