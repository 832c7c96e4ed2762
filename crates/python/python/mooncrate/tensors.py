"""How a tensor lies in the store: a head of 304 bytes, then its elements in C order.

The form is Mooncake's, byte for byte, so that the packages `mooncrate` and `mooncake` read each
other's tensors. Nothing here needs torch or numpy: dtypes are known by their names.

What must stay true: `parse` believes nothing. A head that it returns describes data of exactly the
length that follows it, so no reader reaches beyond the value, whatever the bytes are.
"""

import struct
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["BY_CODE", "BY_NAME", "DTYPES", "SIZE", "Axis", "DType", "Head", "head", "parse"]

MAGIC = 0x4D4F4F4E
VERSION = 1
SIZE = 304
MAX_DIMS = 8
MAX_AXES = 4
FULL, SHARD = 0, 1
# Kinds of axes: data, tensor, expert and pipeline parallelism.
DP, TP, EP, PP = range(4)
KINDS = ("dp", "tp", "ep", "pp")
UNUSED = -1

# magic, version, size of the head, dtype, dimensions, kind, 0, offset and bytes of the data, global
# shape, local shape, axes, 0.
FRONT = struct.Struct("<IHHiiIIQQ8q8qII")
# kind, place among the axes, rank, count, split dimension, expert or stage, local length.
AXIS = struct.Struct("<6iq")
assert FRONT.size + MAX_AXES * AXIS.size == SIZE


@dataclass(frozen=True, slots=True)
class DType:
    """A type of elements: its code in the head, torch's name, and numpy's where it has one."""

    code: int
    name: str
    size: int
    numpy: str | None


DTYPES = tuple(
    DType(code, name, size, numpy)
    for code, (name, size, numpy) in enumerate(
        (
            ("float32", 4, "float32"),
            ("float64", 8, "float64"),
            ("int8", 1, "int8"),
            ("uint8", 1, "uint8"),
            ("int16", 2, "int16"),
            ("uint16", 2, "uint16"),
            ("int32", 4, "int32"),
            ("uint32", 4, "uint32"),
            ("int64", 8, "int64"),
            ("uint64", 8, "uint64"),
            ("bool", 1, "bool"),
            ("float16", 2, "float16"),
            ("bfloat16", 2, None),
            ("float8_e4m3fn", 1, None),
            ("float8_e5m2", 1, None),
        )
    )
)
BY_CODE = {dtype.code: dtype for dtype in DTYPES}
BY_NAME = {dtype.name: dtype for dtype in DTYPES}


@dataclass(frozen=True, slots=True)
class Axis:
    """One way to spread a tensor over ranks; `extra` is the expert of EP, the stage of PP."""

    kind: int
    rank: int
    count: int
    split_dim: int = UNUSED
    extra: int = 0


@dataclass(frozen=True, slots=True)
class Head:
    """What a stored tensor is. A shard has axes, and the shape of the whole beside its own."""

    dtype: DType
    shape: tuple[int, ...]
    whole: tuple[int, ...]
    axes: tuple[Axis, ...] = ()

    def __post_init__(self) -> None:
        if reason := flaw(self):
            raise ValueError(reason)

    @property
    def nbytes(self) -> int:
        """Bytes of the data behind the head."""
        return prod(self.shape) * self.dtype.size

    @property
    def is_shard(self) -> bool:
        """Whether this is a part of a tensor that is spread over ranks."""
        return bool(self.axes)

    def axis(self, kind: int) -> Axis | None:
        """The axis of this kind, if there is one."""
        return next((axis for axis in self.axes if axis.kind == kind), None)

    def to_bytes(self) -> bytes:
        """The head as it is stored."""
        front = FRONT.pack(
            MAGIC,
            VERSION,
            SIZE,
            self.dtype.code,
            len(self.shape),
            SHARD if self.axes else FULL,
            0,
            SIZE,
            self.nbytes,
            *padded(self.whole),
            *padded(self.shape),
            len(self.axes),
            0,
        )
        axes = b"".join(
            AXIS.pack(
                axis.kind,
                place,
                axis.rank,
                axis.count,
                axis.split_dim,
                axis.extra,
                0 if axis.split_dim == UNUSED else self.shape[axis.split_dim],
            )
            for place, axis in enumerate(self.axes)
        )
        return (front + axes).ljust(SIZE, b"\0")


def head(dtype: DType, shape: tuple[int, ...]) -> bytes:
    """The stored head of a whole tensor; ValueError where it has none."""
    return Head(dtype, shape, shape).to_bytes()


def parse(value: "Buffer", size: int | None = None) -> Head:
    """The head at the front of a stored tensor; ValueError says why the value is none.

    size: bytes of the whole value, where only its front is given.
    """
    view = memoryview(value).cast("B")
    size = len(view) if size is None else size
    if len(view) < SIZE or size < SIZE:
        raise ValueError(f"{min(len(view), size)} bytes are less than the head of a tensor, {SIZE}")
    fields = FRONT.unpack_from(view)
    magic, version, head_size, code, ndim, kind, _, offset, nbytes = fields[:9]
    if (magic, version, head_size, offset) != (MAGIC, VERSION, SIZE, SIZE):
        raise ValueError("not a tensor: its magic, version, or size of the head is another")
    if code not in BY_CODE:
        raise ValueError(f"dtype {code} is unknown")
    if not 0 <= ndim <= MAX_DIMS:
        raise ValueError(f"{ndim} dimensions; 0 to {MAX_DIMS} are possible")
    count = fields[25]
    if kind not in (FULL, SHARD) or count > MAX_AXES or (kind == SHARD) != (count > 0):
        raise ValueError(f"a tensor of kind {kind} cannot have {count} axes")
    whole, shape = (unpadded(fields[first : first + MAX_DIMS], ndim) for first in (9, 17))
    parsed = Head(BY_CODE[code], shape, whole, tuple(axes_of(view, count, shape)))
    if nbytes != parsed.nbytes or nbytes != size - SIZE:
        raise ValueError(
            f"the head says {nbytes} bytes of data, its shape {parsed.nbytes}, "
            f"the value has {size - SIZE}"
        )
    return parsed


def axes_of(view: memoryview, count: int, shape: tuple[int, ...]) -> list[Axis]:
    axes = []
    for place in range(count):
        kind, index, rank, ranks, split_dim, extra, extent = AXIS.unpack_from(
            view, FRONT.size + place * AXIS.size
        )
        local = shape[split_dim] if 0 <= split_dim < len(shape) else 0
        if index != place or extent != local:
            raise ValueError(f"axis {place} of the tensor contradicts its shape")
        axes.append(Axis(kind, rank, ranks, split_dim, extra))
    return axes


def flaw(head: Head) -> str | None:
    """Why no such tensor can be stored; None if it can."""
    if len(head.shape) > MAX_DIMS or len(head.shape) != len(head.whole):
        return f"{len(head.shape)} dimensions of {len(head.whole)}; 0 to {MAX_DIMS} are possible"
    if any(not 0 <= length < 2**63 for length in (*head.shape, *head.whole)):
        return f"a length that cannot be in {head.shape} of {head.whole}"
    if len(head.axes) > MAX_AXES or len({axis.kind for axis in head.axes}) != len(head.axes):
        return f"{len(head.axes)} axes; at most {MAX_AXES} are possible, each kind once"
    expected = list(head.shape)
    for axis in head.axes:
        if axis.kind not in range(len(KINDS)) or not 0 <= axis.rank < axis.count < 2**31:
            return f"rank {axis.rank} of {axis.count} on an axis of kind {axis.kind}"
        if not -(2**31) <= axis.extra < 2**31:
            return f"expert or stage {axis.extra}"
        if axis.split_dim != UNUSED:
            if not 0 <= axis.split_dim < len(head.shape):
                return f"split dimension {axis.split_dim} of {len(head.shape)} dimensions"
            expected[axis.split_dim] *= axis.count
    if tuple(expected) != head.whole:
        return f"shards of shape {head.shape} do not make up {head.whole}"
    return None


def padded(shape: tuple[int, ...]) -> tuple[int, ...]:
    return shape + (UNUSED,) * (MAX_DIMS - len(shape))


def unpadded(lengths: tuple[int, ...], ndim: int) -> tuple[int, ...]:
    if any(length != UNUSED for length in lengths[ndim:]):
        raise ValueError(f"more lengths than {ndim} dimensions")
    return lengths[:ndim]
