"""KV objects in the memory of GPUs: one process for each rank, every rank reads and writes all heaps.

    from mooncrate.nano import NanoKVCache

    # In each process of a torchrun, after torch.distributed.init_process_group():
    with NanoKVCache(heap_bytes=8 << 30) as cache:
        cache.put("prompt/42", kv, preferred_segment=decode_rank)
        ...
        cache.get_into("prompt/42", room)

The fast path is a plan: `open_for_write` reserves room in the owner's heap, a kernel of yours pushes the
pages there and publishes them (`mooncrate.nano_triton` has the device functions), and `commit` tells the
others that the key has its value. With `backend="host"` the heaps are host memory, and everything but the
kernels works the same without a GPU.

What must stay true: a plan has ranks and offsets, never addresses, because each process has mapped the heaps
elsewhere (`heap_bases`). Neither torch nor NumPy is imported before it is needed. A call that reads or writes
a tensor is queued on its stream, and waits for that stream and for nothing else.
"""

import os
import sys
import tempfile
import warnings
from enum import Enum
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from mooncrate._native import NanoRank, ObjMeta, WritePlan
from mooncrate.devices import CUDA, cuda_interface, handle, torch_raw_stream, torch_size, torch_stream
from mooncrate.errors import Busy, Closed, Invalid

if TYPE_CHECKING:
    from os import PathLike

    from mooncrate.stats import NanoStats

__all__ = ["Busy", "Closed", "Invalid", "NanoKVCache", "NotReady", "ObjMeta", "WritePlan"]

# How often `get` looks again when its value was replaced by one of another length meanwhile.
GETS = 8


class NotReady(Enum):
    """A key whose value is being written: it has no place yet. False, as None is."""

    WRITING = "writing"

    def __bool__(self) -> bool:
        return False


class NanoKVCache:
    """A rank of the cache. All ranks make one, with the same arguments; it returns when all have.

    heap_bytes: of this GPU, for values and their headers; the same on every rank.
    master_rank: 0, the only rank that can be it.
    page_bytes: the unit in which values are pushed, a multiple of 16.
    rank, world: who this is, of how many (at most 8). Where torch.distributed is initialised they are its
        own; otherwise given, or from the environment (RANK, WORLD_SIZE).
    path: a Unix socket where the ranks meet, in a folder that only they may write to; rank 0 makes it. With
        torch.distributed rank 0 finds a path and tells the others.
    backend: "cuda", or "host" for heaps in host memory.
    device: the number of the GPU; otherwise torch's current one, or 0.
    slots: the most values that a heap holds.
    checksums: whether every get compares a checksum that commit made.
    timeout, put_timeout, join_timeout: seconds for a call, until an uncommitted plan is given up, and for
        the other ranks to come.
    """

    def __init__(
        self,
        heap_bytes: int,
        master_rank: int = 0,
        page_bytes: int = 256 * 1024,
        *,
        rank: int | None = None,
        world: int | None = None,
        path: "str | PathLike[str] | None" = None,
        backend: Literal["cuda", "host"] = "cuda",
        device: int | None = None,
        slots: int = 16384,
        checksums: bool = False,
        timeout: float = 5.0,
        put_timeout: float = 30.0,
        join_timeout: float = 60.0,
    ) -> None:
        if master_rank != 0:
            raise Invalid(f"master_rank is {master_rank}; the master runs in the process of rank 0")
        rank, world = membership(rank, world)
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        if path is None:
            path, self._folder = meeting_place(rank, world, "mooncrate-nano-")
        if device is None:
            device = current_device() if backend == "cuda" else 0
        try:
            self._rank = NanoRank(
                heap_bytes, path=path, rank=rank, world=world, page_bytes=page_bytes, slots=slots,
                backend=backend, device=device, checksums=checksums, timeout=timeout,
                put_timeout=put_timeout, join_timeout=join_timeout,
            )  # fmt: skip
        except BaseException:
            self._tidy()
            raise
        self._device = self._rank.device
        if self._rank.advice is not None:
            warnings.warn(self._rank.advice, RuntimeWarning, stacklevel=2)
        # Kernels index the bases by these numbers: a rank of torch is the same rank here.
        assert (self._rank.rank, self._rank.world) == (rank, world)

    # Objects

    def put(self, key: str | bytes, tensor: Any, *, preferred_segment: int | None = None) -> None:
        """Stores the bytes of a tensor, an array, or bytes, in the heap of rank `preferred_segment`, or of
        the rank that the key goes to. A value never changes: `remove` it first. A tensor on the GPU is read after
        the work of torch's current stream. Busy, after `timeout`: that work has not ended."""
        self._rank.put(key, self._memory(tensor), preferred_segment=preferred_segment)

    def get(self, key: str | bytes, *, dst: Any = None) -> Any:
        """The value: in `dst`, which has its length, or in a fresh tensor of bytes (of torch where that is
        imported, otherwise an array of NumPy). None: the key has none. Busy: it is being written."""
        if dst is not None:
            return dst if self.get_into(key, dst) else None
        for _ in range(GETS):
            place = self.get_location(key)
            if isinstance(place, NotReady):
                raise Busy(
                    f"the value of {key!r} is being written; try again", advice="retry", retry_after=0.001
                )
            if place is None:
                return None
            room = self._room(place.bytes_total)
            try:
                return room if self.get_into(key, room) else None
            except Invalid as error:
                # Removed and put again with another length since it was looked up.
                if error.kind != "wrong length":
                    raise
        raise Busy(f"{key!r} is replaced again and again; try again", advice="retry", retry_after=0.001)

    def get_into(self, key: str | bytes, dst: Any) -> bool:
        """Copies the value into memory of exactly its length; False: the key has none. Busy: it is being
        written. A tensor on the GPU is written after the work of torch's current stream. Busy, after `timeout`: that
        work has not ended; the tensor is written in its order, or not at all, and stays allocated until then."""
        return self._rank.get_into(key, self._memory(dst, written=True))

    def remove(self, key: str | bytes) -> bool:
        """Removes a value; False: the key has none. Readers that have pinned it read on."""
        return self._rank.remove(key)

    def touch(self, key: str | bytes) -> bool:
        """Counts as a read, for eviction; whether the key has a value."""
        return self._rank.touch(key)

    # Plans

    def open_for_write(
        self, key: str | bytes, bytes_total: int, *, preferred_segment: int | None = None
    ) -> WritePlan:
        """Reserves room for a value, which only this process may write. `commit` within `put_timeout`."""
        return self._rank.open_for_write(key, bytes_total, preferred_segment=preferred_segment)

    def push(self, plan: WritePlan, tensor: Any, start: int = 0) -> None:
        """Writes a part of the value of a plan, from byte `start` on: what a kernel of yours does without
        the processor. A tensor on the GPU is copied in the order of torch's current stream."""
        self._rank.push(plan, self._memory(tensor), start)

    def commit(self, key: str | bytes, *, stream: Any = None) -> None:
        """Gives the value of an open plan to its key. It is published here, unless a kernel has done that
        already, after every `push`, and after the work of `stream`: a handle, or a stream of torch or CuPy; otherwise
        torch's current one. Kernels that push the value on it need not have ended. Without a stream, and where torch
        uses no GPU, it waits for all work of this process on the GPU. Busy, and what is Invalid, leave the plan as it
        is. Again, it does nothing."""
        number = handle(stream)
        here = self._rank.device
        if number is None and here is not None:
            number = torch_stream(here)
        self._rank.commit(key, stream=None if here is None else number)

    def abandon(self, key: str | bytes) -> None:
        """Gives up an open plan. No kernel writes by it any more."""
        self._rank.abandon(key)

    def get_location(self, key: str | bytes) -> ObjMeta | NotReady | None:
        """Where the value is, without waiting and without holding it: pin it before it is read. None: the
        key has none."""
        found = self._rank.get_location(key)
        return NotReady.WRITING if found is False else found

    # The rank

    @property
    def rank(self) -> int:
        """Who this is."""
        return self._rank.rank

    @property
    def world(self) -> int:
        """How many ranks there are."""
        return self._rank.world

    @property
    def device(self) -> int | None:
        """The number of the GPU that has this rank's heap; None: the heap is on the host."""
        return self._rank.device

    @property
    def heap_bases(self) -> tuple[int, ...]:
        """Where this process has mapped the heap of each rank. Kernels take them as an int64 array on the
        GPU: `torch.tensor(cache.heap_bases, device="cuda")`."""
        return self._rank.heap_bases

    def stats(self) -> "NanoStats":
        """What this rank has done since it joined and what its heap holds, in integers."""
        return self._rank.stats()

    def metrics(self) -> str:
        """The same for Prometheus, and how full every heap is: what the engine shows at /metrics."""
        return self._rank.metrics()

    def evict_until_below(self, usage_ratio: float, *, rank: int | None = None) -> None:
        """Evicts, first in first out, until at most this share of every heap is in use, or of the heap of
        `rank`. Busy: what is left is pinned or being written."""
        self._rank.evict_until_below(usage_ratio, rank=rank)

    def barrier(self) -> None:
        """Waits for all ranks."""
        self._rank.barrier()

    def close(self) -> None:
        """Leaves the cache, together with all other ranks; its values are gone. Again, it does nothing."""
        try:
            self._rank.close()
        finally:
            self._tidy()

    def _tidy(self) -> None:
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        # The others may never come to their end: they see that this rank is gone.
        self._rank.close(together=False)
        self._tidy()

    def __repr__(self) -> str:
        if self._rank.closed:
            return "<mooncrate.NanoKVCache, closed>"
        where = "host" if self.device is None else f"cuda:{self.device}"
        return f"<mooncrate.NanoKVCache, rank {self.rank} of {self.world}, {where}>"

    # Memory

    def _memory(self, given: Any, *, written: bool = False) -> Any:
        """What the native half takes: an object with the buffer protocol, or (address, bytes, stream) on the GPU."""
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(given, torch.Tensor):
            return self._torch_memory(torch, given)
        interface = getattr(given, "__cuda_array_interface__", None)
        if interface is not None:
            return self._cuda_memory(given, interface, written)
        if isinstance(given, tuple):
            # The native half takes such tuples from the two above, and from nobody else.
            raise Invalid("a tuple is no value; give bytes, an array or a tensor")
        return given

    def _torch_memory(self, torch: Any, tensor: Any) -> Any:
        size, device = torch_size(torch, tensor), tensor.device
        if device.type == "cpu":
            return tensor.detach().reshape(-1).view(torch.uint8).numpy()
        if device.type != "cuda":
            raise Invalid(f"the tensor is on {device}; give one on a CUDA GPU or on the host")
        self._check_device(device.index)
        return tensor.data_ptr(), size, torch_raw_stream(torch, device.index), tensor

    def _cuda_memory(
        self, given: Any, interface: dict[str, Any], written: bool
    ) -> tuple[int, int, int | None, Any]:
        address, size, stream = cuda_interface(interface, written)
        if hasattr(given, "__dlpack_device__"):
            kind, index = given.__dlpack_device__()
            self._check_device(index if kind == CUDA else None)
        if interface.get("version", 0) < 3:
            # Nobody says which stream it is used on. From version 3 on, none means that nothing is under way.
            self._rank.synchronize()
        return address, size, stream, given

    def _check_device(self, index: int | None) -> None:
        if self._device is not None and index != self._device:
            raise Invalid(f"the tensor is on GPU {index}, the heap of this rank on GPU {self._device}")

    def _room(self, length: int) -> Any:
        torch = sys.modules.get("torch")
        if torch is None:
            import numpy

            return numpy.empty(length, numpy.uint8)
        here = self._rank.device
        where = "cpu" if here is None else f"cuda:{here}"
        return torch.empty(length, dtype=torch.uint8, device=where)


def distributed() -> Any:
    """torch.distributed, if it is initialised."""
    group = sys.modules.get("torch.distributed")
    return group if group is not None and group.is_available() and group.is_initialized() else None


def membership(rank: int | None, world: int | None) -> tuple[int, int]:
    """Who this is, of how many."""
    group = distributed()
    if group is not None:
        own = group.get_rank(), group.get_world_size()
        if (own[0] if rank is None else rank, own[1] if world is None else world) != own:
            words = f"rank {rank} of {world} was given, torch.distributed has rank {own[0]} of {own[1]}"
            raise Invalid(f"{words}; leave both out")
        return own
    return from_environment("rank", rank, "RANK"), from_environment("world", world, "WORLD_SIZE")


def from_environment(name: str, given: int | None, variable: str) -> int:
    """A number that was given, or that a launcher such as torchrun has set."""
    if given is not None:
        return given
    said = os.environ.get(variable, "")
    if not said.isdecimal():
        raise Invalid(f"give {name}, set {variable}, or initialise torch.distributed first")
    return int(said)


def meeting_place(rank: int, world: int, prefix: str) -> "tuple[str, tempfile.TemporaryDirectory[str] | None]":
    """A path where the ranks meet, which rank 0 tells the others by torch.distributed; its folder is rank 0's."""
    group = distributed()
    if group is None and world > 1:
        words = "give path, a Unix socket where the ranks meet, or initialise torch.distributed first"
        raise Invalid(words)
    places: list[str | None] = [None]
    folder = None
    if rank == 0:
        folder = tempfile.TemporaryDirectory(prefix=prefix)
        places = [os.path.join(folder.name, "meet")]
    if group is not None:
        group.broadcast_object_list(places, src=0)
    assert places[0] is not None
    return places[0], folder


def current_device() -> int:
    """The GPU that torch uses, or the first one."""
    torch = sys.modules.get("torch")
    return torch.cuda.current_device() if torch is not None and torch.cuda.is_available() else 0
