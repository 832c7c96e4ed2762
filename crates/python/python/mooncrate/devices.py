"""Memory of arrays: where it is, and after which work on a GPU it may be used.

Tensors of torch are asked by torch's own words, other arrays by `__cuda_array_interface__` or DLPack. No
library is imported here: who gives a tensor has imported it.

What must stay true: an array that does not lie in one run in C order, or that may not be written where it
must be, is refused here. That the memory exists, and on which GPU, is asked of the driver later.
"""

import sys
from math import prod
from typing import Any, NamedTuple

from mooncrate._native import dlpack_memory
from mooncrate.errors import Invalid

# Kinds of devices, as DLPack numbers them.
HOST, CUDA, PINNED, MANAGED = 1, 2, 3, 13
# The default stream that all threads share, as DLPack and the driver name it.
LEGACY = 1


class Found(NamedTuple):
    """Memory of an array."""

    address: int
    size: int
    # The stream in whose order it is; None: memory of the host.
    stream: int | None
    # Whatever keeps it.
    owner: Any


def found(given: Any, stream: Any, written: bool) -> Found:
    """The memory of an array; on a GPU in the order of `stream`, or of the stream that it names."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(given, torch.Tensor):
        return of_torch(torch, given, stream)
    interface = getattr(given, "__cuda_array_interface__", None)
    if interface is not None:
        address, size, own = cuda_interface(interface, written)
        order = handle(stream)
        if order is None:
            order = own
        return Found(address, size, LEGACY if order is None else order, given)
    return of_dlpack(given, stream, written)


def of_torch(torch: Any, tensor: Any, stream: Any) -> Found:
    """The memory of a tensor of torch; work that torch has queued on its current stream comes first."""
    size = torch_size(torch, tensor)
    if tensor.device.type == "cpu":
        return Found(tensor.data_ptr(), size, None, tensor)
    if tensor.device.type != "cuda":
        raise Invalid(f"the tensor is on {tensor.device}; give one on a CUDA GPU or on the host")
    order = handle(stream)
    if order is None:
        order = torch_raw_stream(torch, tensor.device.index)
    return Found(tensor.data_ptr(), size, order, tensor)


def torch_size(torch: Any, tensor: Any) -> int:
    """The bytes of a tensor whose elements lie in one run, in C order, as they are."""
    if tensor.layout is not torch.strided or not tensor.is_contiguous():
        raise Invalid("the tensor is not contiguous; give tensor.contiguous()")
    if tensor.is_neg() or tensor.is_conj():
        raise Invalid("the tensor is a lazy view; give tensor.resolve_neg().resolve_conj()")
    size: int = tensor.nbytes
    return size


def cuda_interface(interface: dict[str, Any], written: bool) -> tuple[int, int, int | None]:
    """Address, bytes and stream of a `__cuda_array_interface__`."""
    address, is_readonly = interface["data"]
    if written and is_readonly:
        raise Invalid("the target is read-only; give an array that may be written")
    item = int(interface["typestr"][2:])
    shape, strides = tuple(interface["shape"]), interface.get("strides")
    if strides is not None and tuple(strides) != dense_strides(shape, item) and prod(shape) > 0:
        raise Invalid("the array is not contiguous; give a copy in C order")
    return address or 0, prod(shape) * item, interface.get("stream")


def of_dlpack(given: Any, stream: Any, written: bool) -> Found:
    """The memory of an array that knows DLPack alone. Its library sees to the order with the stream."""
    kind, _ = given.__dlpack_device__()
    if kind == MANAGED:
        raise Invalid("the array is in managed memory, which a GPU may still write; give a copy of it")
    if kind in (HOST, PINNED):
        capsule = exported(given, {})
        order = None
    elif kind == CUDA:
        order = handle(stream)
        # 0 has two meanings there; 1 is the default stream that all threads share.
        order = LEGACY if order in (None, 0) else order
        capsule = exported(given, {"stream": order})
    else:
        raise Invalid(f"the array is on a device of kind {kind}; give one on a CUDA GPU or on the host")
    address, size, contiguous, readonly = dlpack_memory(capsule)
    if not contiguous:
        raise Invalid("the array is not contiguous; give a copy in C order")
    if written and readonly:
        raise Invalid("the target is read-only; give an array that may be written")
    return Found(address, size, order, (capsule, given))


def exported(given: Any, more: dict[str, Any]) -> Any:
    """The capsule of an array, of the newest form that its library knows."""
    try:
        return given.__dlpack__(max_version=(1, 0), **more)
    except TypeError:
        return given.__dlpack__(**more)


def handle(stream: Any) -> int | None:
    """The driver's handle of a stream: a number, or an object of torch, of CuPy, or with `__cuda_stream__`."""
    if stream is None or isinstance(stream, int):
        if stream is not None and stream < 0:
            raise Invalid(f"stream={stream} is no handle; give 0 for the default stream")
        return stream
    if hasattr(stream, "__cuda_stream__"):
        number: int = stream.__cuda_stream__()[1]
        return number
    for name in ("cuda_stream", "ptr"):
        number = getattr(stream, name, None)  # type: ignore[assignment]
        if isinstance(number, int):
            return number
    kind = type(stream).__name__
    raise TypeError(f"a stream is a handle, or a stream of torch or CuPy, not {kind}")


def torch_stream(device: int) -> int | None:
    """The stream that torch works in on a GPU; None: torch uses none, or there is no torch."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    return torch_raw_stream(torch, device)


def torch_raw_stream(torch: Any, device: int) -> int:
    """The same of a torch that uses the GPU. Without an object for the stream, where this torch can: that is most of
    what a small call costs in Python."""
    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    number: int = raw(device) if raw is not None else torch.cuda.current_stream(device).cuda_stream
    return number


def current_stream(device: int) -> int:
    """The stream that torch works in on a GPU, or the default stream where it works in none."""
    number = torch_stream(device)
    return LEGACY if number is None else number


def dense_strides(shape: tuple[int, ...], item: int) -> tuple[int, ...]:
    """The strides of an array in C order."""
    strides, step = [], item
    for length in reversed(shape):
        strides.append(step)
        step *= length
    return tuple(reversed(strides))
