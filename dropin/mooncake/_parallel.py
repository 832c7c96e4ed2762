"""Parallel layouts: what callers say of them, the keys of shards, manifests, and which shards hold
a range.

Nothing here touches the store or torch. What must stay true: a layout that `layout_of` returns is
sound, and the key of a shard says everything that tells it from other shards.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from mooncrate.tensors import (
    BY_CODE,
    DP,
    EP,
    KINDS,
    MAX_AXES,
    MAX_DIMS,
    PP,
    TP,
    UNUSED,
    Axis,
    DType,
    padded,
    unpadded,
)

from ._torch import Key, suffixed


@dataclass(slots=True)
class ParallelAxis:
    """One way in which a tensor is spread over ranks: "tp", "dp", "ep" or "pp"."""

    kind: str = ""
    rank: int = 0
    size: int = 1
    split_dim: int | None = None
    expert_id: int | None = None
    stage_id: int | None = None


@dataclass(slots=True)
class TensorParallelism:
    """All the ways in which a tensor is spread."""

    axes: list[ParallelAxis] = field(default_factory=list)


@dataclass(slots=True)
class ReadTarget:
    """What a read brings: "as_stored", the "shard" of a layout, or the "full" tensor."""

    mode: str = "as_stored"
    parallelism: TensorParallelism | None = None


@dataclass(frozen=True, slots=True)
class Layout:
    """Sound axes, in the order dp, tp, ep, pp."""

    axes: tuple[Axis, ...]

    @property
    def tp(self) -> Axis | None:
        return next((axis for axis in self.axes if axis.kind == TP), None)

    @property
    def is_tp_alone(self) -> bool:
        return len(self.axes) == 1 and self.tp is not None

    def with_tp(self, tp: Axis) -> "Layout":
        """The same layout with another shard of its tensor axis."""
        return Layout(tuple(tp if axis.kind == TP else axis for axis in self.axes))

    def key(self, key: Key) -> Key:
        """Where the shard is stored."""
        if self.is_tp_alone:
            return suffixed(key, f"_tp_{self.axes[0].rank}")
        return suffixed(key, "".join(map(label, self.axes)))


def label(axis: Axis) -> str:
    tail = {DP: "", TP: f"_sd{axis.split_dim}", EP: f"_eid{axis.extra}", PP: f"_sid{axis.extra}"}
    return f"__{KINDS[axis.kind]}_{axis.rank}of{axis.count}{tail[axis.kind]}"


def layout_of(parallelism: Any) -> Layout | None:
    """The layout that a caller means; None if it contradicts itself."""
    axes = getattr(parallelism, "axes", None)
    if not isinstance(axes, (list, tuple)) or not 1 <= len(axes) <= MAX_AXES:
        return None
    read = [sound for axis in axes if (sound := axis_of(axis)) is not None]
    if len({axis.kind for axis in read}) != len(axes):
        return None
    return Layout(tuple(sorted(read, key=lambda axis: axis.kind)))


def axis_of(given: Any) -> Axis | None:
    name = getattr(given, "kind", None)
    if not isinstance(name, str) or name.lower() not in KINDS:
        return None
    kind = KINDS.index(name.lower())
    ranks, dim = ranks_of(given), getattr(given, "split_dim", None)
    extra = {EP: getattr(given, "expert_id", None), PP: getattr(given, "stage_id", None)}.get(
        kind, 0
    )
    if ranks is None or extra is None or not is_number(extra):
        return None
    if (dim is None) == (kind == TP) or not is_number(dim or 0):
        return None
    return Axis(kind, *ranks, UNUSED if dim is None else dim, extra)


def ranks_of(given: Any) -> tuple[int, int] | None:
    """Rank and size of what a caller gives, if they fit each other."""
    rank, size = getattr(given, "rank", None), getattr(given, "size", None)
    if rank is None or size is None or not is_number(rank) or not is_number(size):
        return None
    return (rank, size) if rank < size else None


def is_number(value: Any) -> bool:
    """Whether this is a number that a head can hold, and not below zero."""
    return isinstance(value, int) and 0 <= value < 2**31


@dataclass(frozen=True, slots=True)
class Writer:
    """The part of a tensor that one of several writers stores."""

    axis: Axis

    def key(self, key: Key) -> Key:
        """Where the part is stored."""
        axis = self.axis
        return suffixed(key, f"__writer_{axis.rank}of{axis.count}_sd{axis.split_dim}")

    def with_tp(self, tp: Axis) -> "Writer":
        """The part of another writer."""
        return Writer(tp)


def writer_of(partition: Any) -> Writer | None:
    """The part that a caller means by any object with a rank, a size and a split dimension."""
    ranks, dim = ranks_of(partition), getattr(partition, "split_dim", None)
    if ranks is None or dim is None or not is_number(dim):
        return None
    return Writer(Axis(TP, *ranks, dim))


def parallelism_manifest_key(key: Key) -> Key:
    return suffixed(key, "__parallelism_manifest")


def writer_manifest_key(key: Key) -> Key:
    return suffixed(key, "__writer_manifest")


# magic, version, size, dtype, dimensions, split dimension, shards, 0, padding, shape of the whole.
MANIFEST = struct.Struct("<IHHiiiii4x8q")
MANIFEST_MAGIC, MANIFEST_VERSION = 0x574D414E, 1
assert MANIFEST.size == 96


@dataclass(frozen=True, slots=True)
class Manifest:
    """Into how many shards a tensor was cut, and how."""

    dtype: DType
    whole: tuple[int, ...]
    split_dim: int
    count: int

    def to_bytes(self) -> bytes:
        """The manifest as it is stored."""
        front = (MANIFEST_MAGIC, MANIFEST_VERSION, MANIFEST.size, self.dtype.code, len(self.whole))
        return MANIFEST.pack(*front, self.split_dim, self.count, 0, *padded(self.whole))

    def axis(self, rank: int) -> Axis:
        """The tensor axis of one of its shards."""
        return Axis(TP, rank, self.count, self.split_dim)


def manifest_of(value: bytes) -> Manifest | None:
    """The manifest in a stored value; None if it is none."""
    if len(value) != MANIFEST.size:
        return None
    magic, version, size, code, ndim, split_dim, count, _, *whole = MANIFEST.unpack(value)
    if (magic, version, size) != (MANIFEST_MAGIC, MANIFEST_VERSION, MANIFEST.size):
        return None
    sound = code in BY_CODE and 1 <= ndim <= MAX_DIMS and 0 <= split_dim < ndim and count >= 1
    if not sound or any(length < 0 for length in whole[:ndim]) or whole[split_dim] % count != 0:
        return None
    try:
        return Manifest(BY_CODE[code], unpadded(tuple(whole), ndim), split_dim, count)
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a range that one shard holds, along the dimension in which the shards were cut."""

    rank: int
    source: int
    target: int
    length: int


def pieces(length: int, count: int, start: int, end: int) -> Iterator[Piece]:
    """Which of `count` equal shards of a length hold what lies from `start` to `end`."""
    each = length // count
    for rank in range(start // each, -(-end // each)) if each else ():
        first, last = max(start, rank * each), min(end, (rank + 1) * each)
        yield Piece(rank, first - rank * each, first - start, last - first)
