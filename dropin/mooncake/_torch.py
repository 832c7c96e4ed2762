"""Between torch's tensors and the stored form: a head of 304 bytes, then the elements in C order.

torch is imported when a tensor is asked for, never before. What must stay true: a tensor on the
CPU that lies in C order is described where it lies, and a tensor that is returned lies over memory
that it keeps.
"""

import ctypes
import sys
from dataclasses import dataclass
from math import prod
from types import ModuleType
from typing import Any

from mooncrate import tensors
from mooncrate._native import memory_is_usable
from mooncrate.tensors import BY_NAME, SIZE, Axis, Head

from ._memory import is_memory

Key = str | bytes


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor as it will be stored; `owner` keeps the memory at `address`."""

    head: Head
    address: int
    owner: Any

    def parts(self) -> list[Any]:
        """What to store, without a copy of the elements."""
        head = self.head.to_bytes()
        return [head, memory(self.address, self.head.nbytes)] if self.head.nbytes else [head]


def torch_module() -> ModuleType:
    """torch, for a call that returns tensors."""
    try:
        import torch
    except ImportError as error:
        raise ImportError("this call returns torch tensors: pip install torch") from error
    return torch


def suffixed(key: Key, suffix: str) -> Key:
    """A key beside this one."""
    if isinstance(key, str):
        return key + suffix
    if isinstance(key, bytes):
        return key + suffix.encode()
    raise TypeError(f"a key is str or bytes, not {type(key).__name__}")


def memory(address: int, size: int, owner: Any = None) -> memoryview:
    """The bytes at an address; the caller vouches for them, or names what keeps them."""
    room = (ctypes.c_char * size).from_address(address)
    room.owner = owner
    return memoryview(room).cast("B")


def dense(tensor: Any) -> Any | None:
    """The tensor on the CPU and in C order, itself if it is that; None if it cannot be stored."""
    # Where nobody has imported torch, nothing can be a tensor.
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(tensor, torch.Tensor):
        return None
    known = dtype_name(tensor) in BY_NAME and tensor.dim() <= tensors.MAX_DIMS
    plain = tensor.layout is torch.strided and not tensor.is_nested
    if not known or not plain or tensor.device.type == "meta":
        return None
    return tensor.detach().resolve_neg().cpu().contiguous()


def dtype_name(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def stored(
    tensor: Any, whole: tuple[int, ...] | None = None, axes: tuple[Axis, ...] = ()
) -> Stored | None:
    """The stored form of a tensor, or of a shard of a whole; None if there is none."""
    if (owner := dense(tensor)) is None:
        return None
    shape = tuple(owner.shape)
    try:
        head = Head(BY_NAME[dtype_name(owner)], shape, shape if whole is None else whole, axes)
    except ValueError:
        return None
    return Stored(head, owner.data_ptr(), owner)


def head_at(address: int, size: int) -> Head | None:
    """The head of the tensor that lies at an address, if head and data have exactly this size and can be
    read there."""
    if size < SIZE or not is_memory(address, size) or not memory_is_usable(address, size):
        return None
    return head_of(memory(address, SIZE), size)


def head_of(value: Any, size: int | None = None) -> Head | None:
    """The head of a stored tensor; None if the value is none."""
    try:
        return tensors.parse(value, size)
    except ValueError:
        return None


def empty(head: Head) -> Any | None:
    """A tensor like this, of any contents; None if this torch lacks its dtype."""
    torch = torch_module()
    dtype = getattr(torch, head.dtype.name, None)
    return None if dtype is None else torch.empty(head.shape, dtype=dtype)


def over(value: Any, head: Head) -> Any | None:
    """The tensor over the memory of a writable buffer; None if this torch lacks its dtype."""
    torch = torch_module()
    dtype = getattr(torch, head.dtype.name, None)
    if dtype is None or head.nbytes == 0:
        return empty(head)
    flat = torch.frombuffer(value, dtype=dtype, count=prod(head.shape), offset=SIZE)
    return flat.reshape(head.shape)


def over_address(address: int, head: Head) -> Any | None:
    """The tensor whose head and data lie at an address; the memory stays the caller's."""
    return over((ctypes.c_char * (SIZE + head.nbytes)).from_address(address), head)


def shard(tensor: Any, dim: int, rank: int, count: int) -> Any | None:
    """One of `count` equal parts along a dimension; None if it cannot be cut so."""
    # Of a length of zero there would be any number of parts.
    if not 0 <= dim < tensor.dim() or tensor.shape[dim] == 0 or tensor.shape[dim] % count != 0:
        return None
    length = tensor.shape[dim] // count
    return tensor.narrow(dim, rank * length, length)


def serialize_tensor(tensor: Any) -> tuple[bytes, int, int, Any]:
    """Head, address and size of the data, and what keeps it; ValueError if there are none."""
    form = stored(tensor)
    if form is None:
        raise ValueError(
            f"{type(tensor).__name__}: not a tensor, or of a dtype or shape that is not stored"
        )
    return form.head.to_bytes(), form.address, form.head.nbytes, form.owner


def deserialize_tensor(value: Any) -> Any:
    """The tensor in a stored value, with memory of its own; ValueError if it is none."""
    try:
        head = tensors.parse(value)
    except TypeError as error:
        raise ValueError(f"{type(value).__name__}: not bytes") from error
    tensor = over(bytearray(value), head)
    if tensor is None:
        raise ValueError(f"this torch has no dtype {head.dtype.name}")
    return tensor


def tensor_metadata_size() -> int:
    """Bytes of the head before the data."""
    return SIZE
