import builtins
from asyncio import AbstractEventLoop, CancelledError
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextvars import Context
from os import PathLike
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeAlias, TypeVar, final

from typing_extensions import Buffer, disjoint_base

from mooncrate._native_ep import EpRank, EpView
from mooncrate._native_nano import NanoRank, ObjMeta, WritePlan
from mooncrate._native_paged import BlockTables, Geometry, PagedCache, PagedView
from mooncrate.errors import Error
from mooncrate.stats import Stats

__all__ = [
    "Answer",
    "Block",
    "BlockTables",
    "BufferHandle",
    "BufferLeaseView",
    "Calls",
    "EpRank",
    "EpView",
    "Geometry",
    "GetSession",
    "Lender",
    "Listing",
    "NanoRank",
    "ObjMeta",
    "PagedCache",
    "PagedView",
    "PutSession",
    "Ranges",
    "Raw",
    "Sessions",
    "Store",
    "View",
    "WritePlan",
    "dlpack_memory",
    "dlpack_tensor",
    "memory_access",
    "memory_device",
    "memory_is_usable",
    "__version__",
    "_cli",
]

__version__: str

_Result = TypeVar("_Result", covariant=True)

# Arrays of torch, CuPy, JAX and others: on a GPU, or on the host.
class _DLPack(Protocol):
    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...
    def __dlpack_device__(self) -> Any: ...

class _CudaArray(Protocol):
    @property
    def __cuda_array_interface__(self) -> Any: ...

_Memory: TypeAlias = Buffer | _DLPack | _CudaArray

# Internal: the command, without care for Python's signal handlers; `mooncrate._cli` has it.
def _cli(arguments: Sequence[str], /) -> int: ...

@disjoint_base
class Store:
    """A store of KV cache: in this process, or, with `master`, of a cluster.

    master: `host:port` or `unix:/path` of the master; several, with commas, where they elect a leader.
    segment_size: bytes that this store may hold, or lends to the cluster; 268435456 or "256MiB". A store
        in this process has 256 MiB unless told otherwise, one of a cluster lends nothing.
    ssd: a directory on a disk for what memory cannot hold and what outlives the process, as
        "/mnt/cache=100GiB", or a list of them; a later store over the same directory finds it again.
    replicas: copies of each value, on distinct nodes, unless a put says otherwise.
    tenant: whose keys these are. Where a cluster asks for credentials, it must be their tenant.
    token_file, tls_cert, tls_key, tls_ca: credentials of this client.
    timeout: seconds within which every call ends.
    shared_memory: whether values on this machine are read from the memory of their owner.
    host, zone: labels of this machine; equal hosts share memory.
    listen: where lent memory is served; "127.0.0.1:0" unless told otherwise.
    memory_overcommit: whether segment_size may be more than the memory of the machine, or than its cgroup
        allows. Otherwise that is `TooLarge`; the kernel would kill the process when values have filled it.
    """

    def __new__(
        cls,
        *,
        master: str | None = None,
        segment_size: int | str | None = None,
        ssd: str | Sequence[str] | None = None,
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
        memory_overcommit: bool = False,
        _holds: bool = False,
    ) -> Self: ...
    def put(
        self,
        key: str | bytes,
        value: _Memory,
        *,
        replicas: int | None = None,
        soft_pin: float | None = None,
        hard_pin: bool = False,
        group: str | None = None,
        expire: float | None = None,
        upsert: bool = False,
        medium: str | None = None,
        stream: object | None = None,
    ) -> bool:
        """Stores a value; False if the key has one already, which stays, unless `upsert`.

        soft_pin: seconds in which it is evicted only when nothing else is left. hard_pin: it is never
        evicted. group: what it is evicted together with. expire: seconds after its first get when it goes.
        medium: "vram" or "dram"; unless told otherwise memory of hosts. stream: of a value on a GPU, the
        stream whose work comes first; torch's current one unless told otherwise.
        """

    def put_parts(
        self,
        key: str | bytes,
        parts: Sequence[_Memory],
        *,
        replicas: int | None = None,
        soft_pin: float | None = None,
        hard_pin: bool = False,
        group: str | None = None,
        expire: float | None = None,
        upsert: bool = False,
        medium: str | None = None,
        stream: object | None = None,
    ) -> bool:
        """`put` of a value that lies in parts, one after the other."""

    def get(self, key: str | bytes) -> bytes | None:
        """The value, verified; None if there is none."""

    def get_into(
        self, key: str | bytes, target: _Memory, *, stream: object | None = None
    ) -> int | None:
        """Copies the value to the front of a writable buffer, or of an array on a GPU; its length, or None if
        there is none. On a GPU the bytes are there for all that is queued on `stream` after this call; it
        is torch's current one unless told otherwise."""

    def get_into_batch(
        self,
        items: Mapping[str | bytes, _Memory] | Iterable[tuple[str | bytes, _Memory]],
        *,
        stream: object | None = None,
    ) -> builtins.list[int | None | Error]:
        """Copies many values at once: for each what `get_into` gives, or its error as an object."""

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

    def put_session(
        self,
        key: str | bytes,
        size: int,
        *,
        replicas: int | None = None,
        soft_pin: float | None = None,
        hard_pin: bool = False,
        group: str | None = None,
        expire: float | None = None,
        medium: str | None = None,
    ) -> PutSession:
        """Reserves room for a value that is written in parts and appears at the end, within 30 s. A key
        that has a value, or a put under way, is an error."""

    def get_session(self, key: str | bytes, *, lease: float = 10.0) -> GetSession | None:
        """Looks a value up once and leases it for some seconds, 10 at most, to read parts of it; None if
        there is none."""

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
        items: Mapping[str | bytes, _Memory] | Iterable[tuple[str | bytes, _Memory]],
        *,
        replicas: int | None = None,
        soft_pin: float | None = None,
        hard_pin: bool = False,
        group: str | None = None,
        expire: float | None = None,
        upsert: bool = False,
        medium: str | None = None,
        stream: object | None = None,
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
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __dlpack__(
        self,
        *,
        stream: object | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object:
        """The bytes as a read-only tensor of another library, pinned until it is gone; with `copy=True` a
        copy that may be written. BufferError for consumers that cannot be told that it is read-only."""

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

@final
class Answer(Coroutine[Any, Any, _Result], Generic[_Result]):
    """Internal: the answer to a call, which comes later. A future for what knows futures by what they can
    do, a coroutine for what insists on one, and unknown to Python's garbage collector."""

    _asyncio_future_blocking: bool
    @property
    def _cancel_message(self) -> Any: ...
    def _make_cancelled_error(self) -> CancelledError: ...
    def get_loop(self) -> AbstractEventLoop: ...
    def done(self) -> bool: ...
    def cancelled(self) -> bool: ...
    def result(self) -> _Result: ...
    def exception(self) -> BaseException | None: ...
    def cancel(self, msg: Any | None = None) -> bool: ...
    def add_done_callback(
        self, callback: Callable[[Self], object], /, *, context: Context | None = None
    ) -> None: ...
    def remove_done_callback(self, callback: Callable[[Self], object], /) -> int: ...
    def __await__(self) -> Any: ...
    def __next__(self) -> Self: ...
    def send(self, value: Any, /) -> Self: ...
    def throw(
        self,
        kind: type[BaseException] | BaseException,
        value: BaseException | object = None,
        trace: TracebackType | None = None,
        /,
    ) -> Any: ...
    def close(self) -> None: ...

@final
class Calls:
    """Internal: the calls that one loop makes of one store, each with an answer that comes later."""

    def __new__(cls, store: Store, on: AbstractEventLoop, threads: int, /) -> Self: ...
    @property
    def loop(self) -> AbstractEventLoop: ...
    def _send(self) -> None: ...
    def _answer(self) -> None: ...
    def fileno(self) -> int: ...
    def over(self) -> Answer[None]: ...
    def stop(self) -> None: ...
    def put_parts(
        self,
        key: str | bytes,
        parts: Sequence[_Memory],
        *,
        replicas: int | None = None,
        soft_pin: float | None = None,
        hard_pin: bool = False,
        group: str | None = None,
        expire: float | None = None,
        upsert: bool = False,
        medium: str | None = None,
        stream: object | None = None,
    ) -> Answer[bool]: ...
    def put_batch(
        self,
        items: Mapping[str | bytes, _Memory] | Iterable[tuple[str | bytes, _Memory]],
        *,
        replicas: int | None = None,
        soft_pin: float | None = None,
        hard_pin: bool = False,
        group: str | None = None,
        expire: float | None = None,
        upsert: bool = False,
        medium: str | None = None,
        stream: object | None = None,
    ) -> Answer[list[bool | Error]]: ...
    def get(self, key: str | bytes) -> Answer[bytes | None]: ...
    def get_into(
        self, key: str | bytes, target: _Memory, *, stream: object | None = None
    ) -> Answer[int | None]: ...
    def get_into_batch(
        self,
        items: Mapping[str | bytes, _Memory] | Iterable[tuple[str | bytes, _Memory]],
        *,
        stream: object | None = None,
    ) -> Answer[list[int | None | Error]]: ...
    def get_range(self, key: str | bytes, start: int, length: int) -> Answer[bytes | None]: ...
    def view(self, key: str | bytes) -> Answer[View | None]: ...
    def size(self, key: str | bytes) -> Answer[int | None]: ...
    def exists(self, key: str | bytes) -> Answer[bool]: ...
    def remove(self, key: str | bytes, *, force: bool = False) -> Answer[bool]: ...
    def remove_prefix(self, prefix: str | bytes, *, force: bool = False) -> Answer[int]: ...
    def remove_regex(self, regex: str, *, force: bool = False) -> Answer[int]: ...
    def page(
        self, prefix: str | bytes | None, cursor: int
    ) -> Answer[tuple[list[bytes], int | None]]: ...
    def stats(self) -> Answer[Stats]: ...
    def get_batch(self, keys: Iterable[str | bytes]) -> Answer[list[bytes | None | Error]]: ...
    def exists_batch(self, keys: Iterable[str | bytes]) -> Answer[list[bool | Error]]: ...
    def remove_batch(
        self, keys: Iterable[str | bytes], *, force: bool = False
    ) -> Answer[list[bool | Error]]: ...

# The raw door: internal, for packages with a calling convention of their own; may change with any
# version. Addresses are of memory that stays, and that nobody else touches, until the call returns. Memory
# that the caller does not call `known` is looked at first: an error of the kind "unusable memory" is the
# answer where it cannot be read, or written.
def memory_is_usable(address: int, size: int, *, write: bool = False) -> bool:
    """Whether all bytes at an address can be read, or written."""

def memory_access(address: int, size: int) -> tuple[bool, bool] | None:
    """Whether all bytes at an address may be read, and whether they may be written, by the table of
    mappings: of each file the last page is touched, and nothing else. None if there is no such table."""

def memory_device(address: int, size: int) -> int | None:
    """The GPU whose memory all bytes at an address are; None if they are not, or if nothing in this process
    uses a GPU, which is found out without loading anything."""

def dlpack_tensor(capsule: object) -> tuple[tuple[int, int, int], list[int]]:
    """What the elements of a DLPack capsule are (code, bits, lanes), and how many along each dimension."""

def dlpack_memory(capsule: object) -> tuple[int, int, bool, bool]:
    """Of the memory of a DLPack capsule: its address, its bytes, whether it lies in one run in C order, and
    whether it may only be read. The capsule keeps it, and is not consumed."""

_Keys = Iterable[str | bytes]
_Numbers = builtins.list[builtins.list[int]]
_Rows = Sequence[Iterable[int]]

@disjoint_base
class Ranges:
    """Memory that a caller by address has looked at, and keeps mapped."""

    def __new__(cls) -> Self: ...
    def insert(self, address: int, size: int, *, read: bool, write: bool) -> bool: ...
    def remove(self, address: int) -> bool: ...
    def size_at(self, address: int) -> int: ...
    def left(self, address: int) -> int: ...
    def knows(self, pieces: Iterable[tuple[int, int]], *, write: bool) -> bool: ...

@final
class Raw:
    """The raw door of a store."""

    def __new__(cls, store: Store) -> Self: ...
    @property
    def store(self) -> Store: ...
    def put(
        self,
        keys: _Keys,
        values: builtins.list[builtins.list[Buffer]],
        wishes: Mapping[str, Any],
    ) -> builtins.list[bool | Error]: ...
    def put_at(
        self,
        keys: _Keys,
        addresses: _Numbers,
        sizes: _Numbers,
        wishes: Mapping[str, Any],
        *,
        known: builtins.list[bool] | None = None,
    ) -> builtins.list[bool | Error]: ...
    def put_flat(
        self,
        keys: _Keys,
        addresses: Iterable[int],
        sizes: Iterable[int],
        wishes: Mapping[str, Any],
        ranges: Ranges,
    ) -> dict[int, Error] | None: ...
    def get_flat(
        self,
        keys: _Keys,
        addresses: Iterable[int],
        sizes: Iterable[int],
        ranges: Ranges,
        codes: tuple[int, int],
    ) -> tuple[builtins.list[int], dict[int, Error] | None]: ...
    def put_one(
        self, key: str | bytes, address: int, size: int, preferred: Iterable[int], ranges: Ranges
    ) -> Error | None: ...
    def put_value(self, key: str | bytes, value: Any, preferred: Iterable[int]) -> Error | None: ...
    def get_one(
        self, key: str | bytes, address: int, size: int, ranges: Ranges, codes: tuple[int, int]
    ) -> int | Error: ...
    def exist(self, keys: _Keys) -> tuple[builtins.list[int], dict[int, Error] | None]: ...
    def get(self, keys: _Keys) -> builtins.list[BufferHandle | None | Error]: ...
    def get_at(
        self,
        keys: _Keys,
        addresses: _Numbers,
        sizes: _Numbers,
        *,
        exact: bool = False,
        known: builtins.list[bool] | None = None,
    ) -> builtins.list[int | None | Error]: ...
    def get_nested(
        self,
        buffers: Iterable[int],
        keys: Iterable[_Keys],
        targets: Iterable[_Rows],
        starts: Iterable[_Rows],
        sizes: Iterable[_Rows],
        ranges: Ranges,
        codes: tuple[int, int],
    ) -> tuple[
        builtins.list[builtins.list[builtins.list[int]]],
        builtins.list[tuple[int, int, builtins.list[int], Error]],
    ]: ...
    def look(self, keys: _Keys, *, hold: bool) -> builtins.list[int | bool | None | Error]: ...
    def other_group(self, keys: _Keys, groups: builtins.list[str]) -> builtins.list[bool]: ...
    def places(
        self, keys: _Keys, *, hold: bool
    ) -> builtins.list[builtins.list[tuple[int, int, int, int, str]] | None | Error]: ...
    def nodes(
        self,
    ) -> builtins.list[tuple[str, str, builtins.list[int], builtins.list[int]]]: ...
    def disk_root(self) -> str: ...
    def size(self, key: str | bytes) -> int | None: ...
    def copy(self, key: str | bytes, to: int, *, from_: int | None = None) -> None: ...
    def drop_copy(self, key: str | bytes, segment: int) -> None: ...

_Codes = tuple[builtins.list[int], dict[int, Error] | None]

@final
class Sessions:
    """The sessions of a store, by the keys of their values."""

    def __new__(cls, store: Store) -> Self: ...
    def start_gets(self, keys: _Keys, codes: tuple[int, int]) -> _Codes: ...
    def read(
        self,
        keys: _Keys,
        addresses: _Rows,
        sizes: _Rows,
        starts: _Rows,
        ranges: Ranges,
        senseless: int,
    ) -> _Codes: ...
    def end_gets(self, keys: _Keys) -> None: ...
    def start_puts(
        self, keys: _Keys, sizes: Iterable[int], wishes: Mapping[str, Any], senseless: int
    ) -> _Codes: ...
    def write(
        self,
        keys: _Keys,
        addresses: _Rows,
        sizes: _Rows,
        starts: _Rows,
        ranges: Ranges,
        senseless: int,
    ) -> _Codes: ...
    def end_puts(self, keys: _Keys, senseless: int) -> _Codes: ...
    def revoke_puts(self, keys: _Keys, senseless: int) -> _Codes: ...
    def close(self) -> None: ...

@final
class PutSession:
    """A value that is being written. `with` ends it, or after an exception gives it up."""

    def write(self, start: int, part: Buffer) -> None:
        """Writes a part to its place in the value. Parts come in any order, from any thread, each byte
        once."""

    def end(self) -> None:
        """Makes the value visible, after the writes that are on their way. A gap is an error that leaves
        the session open."""

    def revoke(self) -> bool:
        """Gives up: nothing of the value is left. Whether it was open."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        _error: BaseException | None = None,
        _trace: TracebackType | None = None,
        /,
    ) -> None: ...

@final
class GetSession:
    """A value that is held by a lease while parts of it are read."""

    @property
    def nbytes(self) -> int: ...
    @property
    def lease_left(self) -> float:
        """Seconds that are left of the lease; reading in its second half renews it."""

    def read_into(self, start: int, target: Buffer) -> int:
        """Copies the part of the value that starts at `start` into all of a writable buffer, verified."""

    def close(self) -> None:
        """Lets go of the value. More than once is fine."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...

@final
class Lender:
    """A node in this process that serves memory lent by a store."""

    def __new__(
        cls,
        store: Store,
        *,
        master: str,
        name: str,
        listen: str,
        segment_size: int,
        ssd: str | Sequence[str] | None = None,
        host: str | None = None,
        token_file: str | PathLike[str] | None = None,
        tls_cert: str | PathLike[str] | None = None,
        tls_key: str | PathLike[str] | None = None,
        tls_ca: str | PathLike[str] | None = None,
        insecure_listen: bool = False,
        memory_overcommit: bool = False,
    ) -> Self: ...
    @property
    def endpoint(self) -> str: ...
    @property
    def name(self) -> str: ...
    def mount(self, index: int, bytes: int) -> int: ...
    def unmount(self, index: int) -> None: ...
    def close(self) -> None: ...

@final
class BufferHandle:
    """A copy of a value that belongs to the caller alone."""

    def ptr(self) -> int: ...
    def size(self) -> int: ...
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class Block:
    """Zeroed memory at an address that is a multiple of the alignment."""

    def __new__(cls, size: int, alignment: int = 4096, *, shared: bool = False) -> Self: ...
    @property
    def ptr(self) -> int: ...
    @property
    def size(self) -> int: ...

@disjoint_base
class BufferLeaseView:
    """The first bytes of a block, as a writable buffer that knows who looks at it."""

    def __new__(cls, block: Block, size: int) -> Self: ...
    @property
    def exports(self) -> int: ...
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
