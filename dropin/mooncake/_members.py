"""Members of structured objects: how arrays, tensors, bytes and plain values become bytes, and
return.

numpy, torch and msgpack are imported when a value needs them. Nothing is pickled: what has no form
here is a TypeError that names the member, because a reader must be able to trust what others
wrote.
"""

import sys
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from math import prod
from typing import Any

from mooncrate.tensors import BY_NAME, SIZE, Head

from ._torch import dense, dtype_name, empty, head_at, memory, over_address

ARRAY, TENSOR, BYTES, VALUE, ROWS = "ndarray", "tensor", "bytes", "value", "rows"
# What rows were given in, besides a list and an array: a nested tensor.
NESTED = "nested"
# Types of msgpack's own extension, for what it has no type for.
EXT_ARRAY, EXT_TENSOR, EXT_TUPLE, EXT_SCALAR = 1, 2, 3, 4
# Scalars of numpy that are texts, by the kind of their dtype.
TEXTS = "US"
# What could be iterated over, and is no column of rows.
UNORDERED = (str, bytes, bytearray, memoryview, Mapping, Set)


@dataclass(frozen=True, slots=True)
class TensorBuffer:
    """A tensor in memory of the caller, head and data; `owner` keeps that memory."""

    ptr: int
    size: int
    owner: Any = None
    batch_size: int | None = None


@dataclass(frozen=True, slots=True)
class RawDestination:
    """Memory of the caller for an array, or for a tensor, head and data; `owner` keeps it."""

    ptr: int
    size: int
    owner: Any = None
    pre_registered: bool = False


@dataclass(frozen=True, slots=True)
class Encoded:
    """A member as it is stored: what it is, and its bytes where they lie."""

    spec: dict[str, Any]
    payload: memoryview
    owner: Any = None


def encode(name: str, value: Any) -> Encoded:
    """A member of any kind; TypeError where it has no form."""
    if isinstance(value, TensorBuffer):
        return encode_buffer(name, value)
    if (tensor := dense(value)) is not None:
        spec = {"kind": TENSOR, "dtype": dtype_name(tensor), "shape": [*tensor.shape]}
        size = tensor.numel() * tensor.element_size()
        return Encoded(spec, memory(tensor.data_ptr(), size) if size else memoryview(b""), tensor)
    if is_tensor(value):
        raise TypeError(
            f"{name}: a tensor of {dtype_name(value)}, {value.layout}, has no form here"
        )
    if is_array(value):
        array = sys.modules["numpy"].ascontiguousarray(value)
        # A scalar array would come back with one dimension.
        spec = {"kind": ARRAY, "dtype": value.dtype.str, "shape": [*value.shape]}
        return Encoded(spec, memoryview(array.reshape(-1).view("u1")), array)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return Encoded({"kind": BYTES}, plain_bytes(name, value))
    return Encoded({"kind": VALUE}, memoryview(pack(name, value)))


def encode_buffer(name: str, value: TensorBuffer) -> Encoded:
    head = head_at(value.ptr, value.size)
    if head is None:
        raise ValueError(f"{name}: no tensor of {value.size} bytes, head and data, lies there")
    spec = {"kind": TENSOR, "dtype": head.dtype.name, "shape": [*head.shape]}
    payload = memory(value.ptr + SIZE, head.nbytes) if head.nbytes else memoryview(b"")
    return Encoded(spec, payload, value.owner)


def plain_bytes(name: str, value: Any) -> memoryview:
    """The bytes of a buffer in C order: where they lie, if they lie so."""
    try:
        view = memoryview(value)
    except TypeError:
        raise TypeError(f"{name}: bytes are needed, not a {type(value).__name__}") from None
    try:
        return view.cast("B")
    except TypeError:
        # Gaps, another byte order, or no elements in several dimensions.
        return memoryview(view.tobytes())


def encode_rows(name: str, rows: Any) -> tuple[Encoded, ...]:
    """Values that can be read row by row. Arrays of numbers and tensors have such rows already; of
    others: the ends of all rows, and their bytes."""
    import array

    more: dict[str, Any] = {}
    if is_nested(rows):
        more = {"container": NESTED, "dtype": f"{rows.dtype}"}
        rows = jagged(name, rows).detach().unbind()
    elif isinstance(rows, TensorBuffer) or ((is_array(rows) or is_tensor(rows)) and rows.ndim > 0):
        return (encode(name, rows),)
    elif isinstance(rows, UNORDERED) or not has_length(rows):
        raise TypeError(f"{name}: a value for each row is needed, not a {type(rows).__name__}")
    elif is_object_array(rows) and rows.ndim > 1:
        more = {"shape": [*rows.shape[1:]]}
    ends, packed, total = array.array("q"), [], 0
    for row in rows:
        packed.append(pack(name, row))
        total += len(packed[-1])
        ends.append(total)
    if sys.byteorder == "big":
        ends.byteswap()
    listed = ARRAY if is_object_array(rows) else "list"
    spec = {"kind": ROWS, "rows": len(packed), "container": listed, **more}
    return Encoded(spec, memoryview(ends).cast("B")), Encoded(spec, memoryview(b"".join(packed)))


def has_length(value: Any) -> bool:
    try:
        return len(value) >= 0
    except TypeError:
        return False


def decode(spec: Mapping[str, Any], payload: bytearray) -> Any:
    """A member from its bytes, over which it then lies."""
    if spec["kind"] == BYTES:
        return bytes(payload)
    if spec["kind"] == VALUE:
        return unpack(payload)
    if spec["kind"] == ARRAY:
        numpy = numpy_module()
        return numpy.frombuffer(payload, spec["dtype"]).reshape(spec["shape"])
    head = head_of_spec(spec)
    if head.nbytes == 0:
        return empty(head)
    import torch

    return torch.frombuffer(payload, dtype=getattr(torch, head.dtype.name)).reshape(head.shape)


def decode_rows(container: str, values: list[Any], shape: Sequence[int] = ()) -> Any:
    """Rows in what they were given in: a list, an array of objects (each row one of them, or an
    array of this shape), or a nested tensor."""
    if container == NESTED:
        if not values:
            raise ValueError("a nested tensor has at least one row")
        import torch

        return torch.nested.nested_tensor(values, layout=torch.jagged)
    if container != ARRAY:
        return values
    rows = numpy_module().empty((len(values), *shape), dtype=object)
    for place, value in enumerate(values):
        rows[place] = value
    return rows


def head_of_spec(spec: Mapping[str, Any]) -> Head:
    shape = tuple(spec["shape"])
    return Head(BY_NAME[spec["dtype"]], shape, shape)


def item_size(spec: Mapping[str, Any]) -> int:
    """Bytes of one element."""
    if spec["kind"] == TENSOR:
        return BY_NAME[str(spec["dtype"])].size
    return int(numpy_module().dtype(spec["dtype"]).itemsize)


def row_size(spec: Mapping[str, Any]) -> int:
    """Bytes of one step along the first dimension."""
    return int(prod(spec["shape"][1:])) * item_size(spec)


def is_array(value: Any) -> bool:
    """Whether this is an array whose bytes say all: of numbers, truth values, times, texts of one length."""
    return _is_unmasked(value) and value.dtype.kind in "biufcmMSU" and value.dtype.itemsize > 0


def is_object_array(value: Any) -> bool:
    """Whether this is an array that is stored by its elements: of objects, or of texts of any length."""
    return _is_unmasked(value) and (value.dtype.kind in "OT" or value.dtype.itemsize == 0)


def _is_unmasked(value: Any) -> bool:
    # A mask is part of what an array says, and has no form here. Records have none, either: their
    # bytes do not name their fields.
    numpy, masked = sys.modules.get("numpy"), sys.modules.get("numpy.ma")
    if numpy is None or not isinstance(value, numpy.ndarray):
        return False
    return masked is None or not isinstance(value, masked.MaskedArray)


def is_tensor(value: Any) -> bool:
    """Whether this is a tensor, or one in memory of the caller."""
    torch = sys.modules.get("torch")
    return isinstance(value, TensorBuffer) or (
        torch is not None and isinstance(value, torch.Tensor)
    )


def is_nested(value: Any) -> bool:
    """Whether this is a tensor whose rows differ in length."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor) and bool(value.is_nested)


def jagged(name: str, value: Any) -> Any:
    """A nested tensor of the layout that has a form here; ValueError for another one."""
    if value.layout is not sys.modules["torch"].jagged:
        raise ValueError(f"{name}: nested tensors need the layout torch.jagged, not {value.layout}")
    return value


def array_over(destination: TensorBuffer | RawDestination, spec: Mapping[str, Any]) -> Any:
    """The array in memory of the caller, after its data was read there."""
    size = prod(spec["shape"]) * item_size(spec)
    if size == 0:
        return numpy_module().empty(spec["shape"], spec["dtype"])
    room = memory(destination.ptr, size, destination.owner)
    return numpy_module().frombuffer(room, spec["dtype"]).reshape(spec["shape"])


def tensor_over(destination: TensorBuffer | RawDestination, head: Head) -> Any:
    """The tensor in memory of the caller, after its data was read there."""
    memory(destination.ptr, SIZE)[:] = head.to_bytes()
    return over_address(destination.ptr, head)


def numpy_module() -> Any:
    try:
        import numpy
    except ImportError as error:
        raise ImportError("this object holds arrays: pip install numpy") from error
    return numpy


def msgpack_module() -> Any:
    try:
        import msgpack
    except ImportError as error:
        raise ImportError("structured objects need msgpack: pip install msgpack") from error
    return msgpack


def pack(name: str, value: Any) -> bytes:
    """A plain value, with arrays, tensors and tuples anywhere in it."""
    msgpack = msgpack_module()

    def other(inner: Any) -> Any:
        if isinstance(inner, tuple):
            return msgpack.ExtType(EXT_TUPLE, pack(name, [*inner]))
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(inner, numpy.generic):
            return msgpack.ExtType(EXT_SCALAR, pack(name, scalar_parts(name, inner)))
        if is_object_array(inner):
            return msgpack.ExtType(
                EXT_ARRAY, pack(name, [None, [*inner.shape], [*inner.reshape(-1)]])
            )
        if is_array(inner) or is_tensor(inner):
            form = encode(name, inner)
            code = EXT_ARRAY if form.spec["kind"] == ARRAY else EXT_TENSOR
            parts = [form.spec["dtype"], form.spec["shape"], bytes(form.payload)]
            return msgpack.ExtType(code, pack(name, parts))
        raise TypeError(f"{name}: a {type(inner).__name__} cannot be stored in a structured object")

    try:
        return bytes(msgpack.packb(value, default=other, strict_types=True))
    except (ValueError, OverflowError, BufferError) as error:
        raise TypeError(f"{name}: cannot be stored in a structured object: {error}") from error


def scalar_parts(name: str, value: Any) -> list[Any]:
    """A scalar of numpy as its dtype and bytes. A text is itself: its bytes would lose zeros at the
    end, and the empty one has none."""
    kind = value.dtype.kind
    if kind in TEXTS:
        # All of it: `str()` of such a text drops the zeros, too.
        return [kind, value[:]]
    if kind == "V":
        raise TypeError(f"{name}: a {value.dtype} cannot be stored in a structured object")
    return [value.dtype.str, value.tobytes()]


def scalar_of(kind: str, value: Any) -> Any:
    numpy = numpy_module()
    if kind in TEXTS:
        return numpy.dtype(kind).type(value)
    return numpy.frombuffer(value, kind)[0]


def unpack(packed: Any) -> Any:
    """A plain value from its bytes."""
    msgpack = msgpack_module()

    def extension(code: int, data: bytes) -> Any:
        inner = unpack(data)
        if code == EXT_TUPLE:
            return tuple(inner)
        if code == EXT_SCALAR:
            return scalar_of(inner[0], inner[1])
        if code == EXT_ARRAY and inner[0] is None:
            return decode_rows(ARRAY, inner[2]).reshape(inner[1])
        if code not in (EXT_ARRAY, EXT_TENSOR):
            raise ValueError(f"extension {code} is unknown")
        kind = ARRAY if code == EXT_ARRAY else TENSOR
        spec = {"kind": kind, "dtype": inner[0], "shape": inner[1]}
        return decode(spec, bytearray(inner[2]))

    return msgpack.unpackb(packed, ext_hook=extension, strict_map_key=False)
