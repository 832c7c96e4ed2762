"""Tensors, one for a key: of torch, or in memory of the caller, head and data.

A put hands head and data over where they lie; a get is one copy, into the memory of the tensor
that is returned. What must stay true: what is no tensor, or is damaged, is None, and never a
tensor of other bytes.
"""

from collections.abc import Sequence
from typing import Any

from ._codes import INVALID_PARAMS
from ._replicate import ReplicateConfig
from ._tensor_store import (
    DEFAULT,
    Storing,
    addressed,
    all_tensors,
    places_every_replica,
    tensor_at,
    tensor_of,
)
from ._torch import Key, dtype_name, head_of, over, stored


class PlainCalls(Storing):
    """One tensor, one key."""

    def put_tensor(self, key: Key, tensor: Any) -> int:
        """Stores a tensor; 0, also where the key has a value already, which stays."""
        return self._store_forms([key], [stored(tensor)])[0]

    def upsert_tensor(self, key: Key, tensor: Any) -> int:
        """Stores a tensor in place of what the key has."""
        return self._store_forms([key], [stored(tensor)], upsert=True)[0]

    def get_tensor(self, key: Key) -> Any | None:
        """The tensor, with memory of its own; None if there is none."""
        return tensor_of(self.get_buffer(key))

    def batch_put_tensor(self, keys: Sequence[Key], tensors_list: Sequence[Any]) -> list[int]:
        """`put_tensor` for many."""
        return self._store_tensors(keys, tensors_list)

    def batch_upsert_tensor(self, keys: Sequence[Key], tensors_list: Sequence[Any]) -> list[int]:
        """`upsert_tensor` for many."""
        return self._store_tensors(keys, tensors_list, upsert=True)

    def batch_get_tensor(self, keys: Sequence[Key]) -> list[Any | None]:
        """`get_tensor` for many."""
        return [tensor_of(handle) for handle in self.batch_get_buffer(keys)]

    def pub_tensor(self, key: Key, tensor: Any, config: ReplicateConfig = DEFAULT) -> int:
        """`put_tensor` with a config."""
        return self.batch_pub_tensor([key], [tensor], config)[0]

    def upsert_pub_tensor(self, key: Key, tensor: Any, config: ReplicateConfig = DEFAULT) -> int:
        """`upsert_tensor` with a config."""
        return self.batch_upsert_pub_tensor([key], [tensor], config)[0]

    def batch_pub_tensor(
        self, keys: Sequence[Key], tensors_list: Sequence[Any], config: ReplicateConfig = DEFAULT
    ) -> list[int]:
        """`pub_tensor` for many."""
        if not places_every_replica(config):
            return [INVALID_PARAMS] * len(keys)
        return self._store_tensors(keys, tensors_list, config)

    def batch_upsert_pub_tensor(
        self, keys: Sequence[Key], tensors_list: Sequence[Any], config: ReplicateConfig = DEFAULT
    ) -> list[int]:
        """`upsert_pub_tensor` for many."""
        if not places_every_replica(config):
            return [INVALID_PARAMS] * len(keys)
        return self._store_tensors(keys, tensors_list, config, upsert=True)

    def _store_tensors(
        self,
        keys: Sequence[Key],
        tensors_list: Sequence[Any],
        config: ReplicateConfig = DEFAULT,
        *,
        upsert: bool = False,
    ) -> list[int]:
        if len(keys) != len(tensors_list):
            return [INVALID_PARAMS] * len(keys)
        return self._store_forms(keys, map(stored, tensors_list), config, upsert=upsert)


class BufferCalls(Storing):
    """Tensors in memory of the caller: head and data, one behind the other."""

    def put_tensor_from(self, key: Key, buffer_ptr: int, size: int) -> int:
        """Stores the tensor at an address; its head and data must have exactly this size."""
        return self.batch_put_tensor_from([key], [buffer_ptr], [size])[0]

    def upsert_tensor_from(self, key: Key, buffer_ptr: int, size: int) -> int:
        """`put_tensor_from` in place of what the key has."""
        return self.batch_upsert_tensor_from([key], [buffer_ptr], [size])[0]

    def batch_put_tensor_from(
        self, keys: Sequence[Key], buffer_ptrs: Sequence[int], sizes: Sequence[int]
    ) -> list[int]:
        """`put_tensor_from` for many; one that is no tensor fails all."""
        if not all_tensors(keys, buffer_ptrs, sizes):
            return [INVALID_PARAMS] * len(keys)
        return self.batch_put_from(keys, buffer_ptrs, sizes)

    def batch_upsert_tensor_from(
        self, keys: Sequence[Key], buffer_ptrs: Sequence[int], sizes: Sequence[int]
    ) -> list[int]:
        """`upsert_tensor_from` for many; one that is no tensor fails all."""
        if not all_tensors(keys, buffer_ptrs, sizes):
            return [INVALID_PARAMS] * len(keys)
        return self.batch_upsert_from(keys, buffer_ptrs, sizes)

    def get_tensor_into(self, key: Key, buffer_ptr: int, size: int) -> Any | None:
        """Reads head and data to an address; the tensor over that memory, or None."""
        found = self.batch_get_tensor_into([key], [buffer_ptr], [size])[0]
        return None if isinstance(found, int) else found

    def batch_get_tensor_into(
        self, keys: Sequence[Key], buffer_ptrs: Sequence[int], sizes: Sequence[int]
    ) -> list[Any | None | int]:
        """`get_tensor_into` for many; a list of codes where the addresses make no sense."""
        if not addressed(keys, buffer_ptrs, sizes):
            return [INVALID_PARAMS] * len(keys)
        lengths = self.batch_get_into(keys, buffer_ptrs, sizes)
        return [tensor_at(at, length) for at, length in zip(buffer_ptrs, lengths, strict=True)]

    def get_tensor_into_cuda(self, key: Key, tensor: Any) -> int:
        """Reads a tensor into one on a device, through memory of the host; its bytes, or a code."""
        return self.batch_get_tensor_into_cuda([key], [tensor])[0]

    def batch_get_tensor_into_cuda(
        self, keys: Sequence[Key], tensors_list: Sequence[Any]
    ) -> list[int]:
        """`get_tensor_into_cuda` for many; for dummy stores only."""
        if len(keys) != len(tensors_list) or not self._is_dummy():
            return [INVALID_PARAMS] * len(keys)
        handles = self.batch_get_buffer(keys)
        codes = [*map(self.get_size, keys)] if None in handles else [0] * len(keys)
        return [
            min(code, INVALID_PARAMS) if handle is None else copied(handle, target)
            for handle, code, target in zip(handles, codes, tensors_list, strict=True)
        ]


def copied(handle: Any, target: Any) -> int:
    """Copies a tensor into one of the same dtype and shape; the bytes of its data, or a code."""
    head = head_of(handle)
    if head is None or not hasattr(target, "copy_") or not target.is_contiguous():
        return INVALID_PARAMS
    if (dtype_name(target), tuple(target.shape)) != (head.dtype.name, head.shape):
        return INVALID_PARAMS
    target.copy_(over(handle, head))
    return head.nbytes
