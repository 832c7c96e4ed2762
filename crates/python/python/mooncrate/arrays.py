"""Tensors of torch and arrays of NumPy, between their own memory and the stored form of `tensors`.

Neither library is imported before it is needed. What must stay true: what lies in C order on the
host or on a GPU is stored from where it lies, and a value is read once, into the memory that the result keeps.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from mooncrate.errors import Invalid
from mooncrate.tensors import BY_NAME, SIZE, DType, Head, head, parse

if TYPE_CHECKING:
    import numpy
    from typing_extensions import Buffer


def parts(tensor: Any) -> list[Any]:
    """Head and elements of a tensor, those without a copy if they lie in C order."""
    # Who gives a tensor has imported its library.
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(tensor, torch.Tensor):
        name = str(tensor.dtype).removeprefix("torch.")
        first = head(known(name), tuple(tensor.shape))
        dense = tensor.detach().resolve_neg()
        if dense.is_cuda:
            # The store takes it from the GPU, after what torch has queued.
            return [first, dense.contiguous().reshape(-1).view(torch.uint8)]
        return [first, dense.cpu().contiguous().reshape(-1).view(torch.uint8).numpy()]
    if numpy is not None and isinstance(tensor, numpy.ndarray):
        first = head(known(tensor.dtype.name), tensor.shape)
        dense = numpy.ascontiguousarray(tensor, tensor.dtype.newbyteorder("="))
        return [first, dense.reshape(-1).view(numpy.uint8)]
    kind = type(tensor).__name__
    raise TypeError(f"a tensor is a torch.Tensor or a numpy.ndarray, not {kind}; put stores bytes")


def known(name: str) -> DType:
    """The dtype of this name."""
    if name not in BY_NAME:
        raise TypeError(f"tensors of {name} have no stored form; there are: {', '.join(BY_NAME)}")
    return BY_NAME[name]


def described(key: str | bytes, value: "Buffer") -> Head:
    """The head of a value."""
    try:
        return parse(value)
    except ValueError as error:
        raise Invalid(f"the value of {key!r} is no tensor: {error}") from None


def needed_torch() -> Any:
    """torch, for a call that returns its tensors."""
    try:
        return import_module("torch")
    except ImportError as error:
        words = "get_tensor returns tensors of torch: pip install torch, or use get_array"
        raise ImportError(words) from error


class TorchRoom:
    """Memory of torch for a value of so many bytes."""

    def __init__(self, size: int) -> None:
        torch = needed_torch()
        self._whole = torch.empty(size, dtype=torch.uint8)

    def target(self) -> Any:
        """Where to read the value to."""
        return self._whole.numpy()

    def tensor(self, key: str | bytes, length: int) -> Any:
        """The tensor that was read."""
        whole = self._whole[:length]
        found = described(key, whole.numpy())
        dtype = getattr(needed_torch(), found.dtype.name)
        return whole[SIZE:].view(dtype).reshape(found.shape)


class NumpyRoom:
    """Memory of NumPy for a value of so many bytes."""

    def __init__(self, size: int) -> None:
        import numpy

        self._whole = numpy.empty(size, dtype=numpy.uint8)

    def target(self) -> Any:
        """Where to read the value to."""
        return self._whole

    def tensor(self, key: str | bytes, length: int) -> "numpy.ndarray[Any, Any]":
        """The array that was read."""
        return array_over(key, self._whole[:length])


def array_over(key: str | bytes, value: Any) -> "numpy.ndarray[Any, Any]":
    """The array whose head and elements lie in this memory, without a copy."""
    import numpy

    found = described(key, value)
    try:
        dtype = numpy.dtype(found.dtype.name)
    except TypeError:
        name = found.dtype.name
        raise Invalid(
            f"numpy has no {name}; read {key!r} with get_tensor, or install ml_dtypes"
        ) from None
    elements = numpy.frombuffer(value, numpy.uint8, offset=SIZE)
    array: numpy.ndarray[Any, Any] = elements.view(dtype).reshape(found.shape)
    return array
