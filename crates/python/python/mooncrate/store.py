"""The store that people use: the native one, and tensors."""

from typing import TYPE_CHECKING, Any

from mooncrate import _native, arrays
from mooncrate.errors import Busy, TooLarge

if TYPE_CHECKING:
    import numpy

__all__ = ["Store"]

# A value that is replaced by a longer one while it is read is looked at again, so often.
TRIES = 8


class Store(_native.Store):
    __slots__ = ()
    __doc__ = _native.Store.__doc__

    def put_tensor(self, key: str | bytes, tensor: Any, **wishes: Any) -> bool:
        """Stores a tensor with its dtype and shape, as `put` does. What does not lie in C order is
        copied first."""
        return self.put_parts(key, arrays.parts(tensor), **wishes)

    def get_tensor(self, key: str | bytes) -> Any | None:
        """The tensor as one of torch with memory of its own; None if there is none."""
        return self._read(key, arrays.TorchRoom)

    def get_array(self, key: str | bytes) -> "numpy.ndarray[Any, Any] | None":
        """The tensor as an array of NumPy with memory of its own; None if there is none."""
        found: numpy.ndarray[Any, Any] | None = self._read(key, arrays.NumpyRoom)
        return found

    def view_array(self, key: str | bytes) -> "numpy.ndarray[Any, Any] | None":
        """The tensor in place, as a read-only array that holds the pin; None if there is none."""
        view = self.view(key)
        return None if view is None else arrays.array_over(key, view)

    def _read(self, key: str | bytes, room: type[arrays.TorchRoom | arrays.NumpyRoom]) -> Any:
        for _ in range(TRIES):
            size = self.size(key)
            if size is None:
                return None
            memory = room(size)
            try:
                length = self.get_into(key, memory.target())
            except TooLarge:
                continue
            return None if length is None else memory.tensor(key, length)
        raise moving(key)


def moving(key: str | bytes) -> Busy:
    """What to say about a value that is replaced all the time."""
    words = f"the value of {key!r} was replaced {TRIES} times while it was read"
    return Busy(words, advice="retry", retry_after=0.0)
