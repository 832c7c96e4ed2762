"""Tensor-parallel calls: a full tensor is cut into equal shards, and each rank has a key.

A write stores the shards of all ranks, whatever rank it is given; a read brings the shard of one.
What must stay true: a shard that was cut for another number of ranks is not handed out as one of
these.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from mooncrate.tensors import TP, Axis, Head

from ._codes import INVALID_PARAMS
from ._replicate import ReplicateConfig
from ._tensor_plain import BufferCalls, PlainCalls
from ._tensor_store import (
    DEFAULT,
    addressed,
    all_tensors,
    configs_of,
    first_failure,
    places_every_replica,
    tensor_at,
)
from ._torch import (
    Key,
    Stored,
    dense,
    head_at,
    head_of,
    over,
    over_address,
    shard,
    stored,
    suffixed,
)


class TpCalls(PlainCalls, BufferCalls):
    """Tensors in shards `<key>_tp_<rank>`; a size of one or less means the plain form."""

    def put_tensor_with_tp(
        self, key: Key, tensor: Any, tp_rank: int = 0, tp_size: int = 1, split_dim: int = 0
    ) -> int:
        """Cuts a tensor and stores every shard; 0, or the first code that is not."""
        return self._store_shards(key, tensor, tp_size, split_dim, DEFAULT)

    def pub_tensor_with_tp(
        self,
        key: Key,
        tensor: Any,
        config: ReplicateConfig = DEFAULT,
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
    ) -> int:
        """`put_tensor_with_tp` with a config."""
        return self.batch_pub_tensor_with_tp([key], [tensor], config, tp_rank, tp_size, split_dim)[
            0
        ]

    def batch_put_tensor_with_tp(
        self,
        base_keys: Sequence[Key],
        tensors_list: Sequence[Any],
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
    ) -> list[int]:
        """`put_tensor_with_tp` for many."""
        return self.batch_pub_tensor_with_tp(
            base_keys, tensors_list, DEFAULT, tp_rank, tp_size, split_dim
        )

    def batch_pub_tensor_with_tp(
        self,
        base_keys: Sequence[Key],
        tensors_list: Sequence[Any],
        config: ReplicateConfig = DEFAULT,
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
    ) -> list[int]:
        """`pub_tensor_with_tp` for many."""
        configs = configs_of(config, len(base_keys)) if places_every_replica(config) else None
        if configs is None or len(base_keys) != len(tensors_list):
            return [INVALID_PARAMS] * len(base_keys)
        return [
            self._store_shards(key, tensor, tp_size, split_dim, own)
            for key, tensor, own in zip(base_keys, tensors_list, configs, strict=True)
        ]

    def get_tensor_with_tp(
        self, key: Key, tp_rank: int = 0, tp_size: int = 1, split_dim: int = 0
    ) -> Any | None:
        """The shard of a rank."""
        return self.batch_get_tensor_with_tp([key], tp_rank, tp_size)[0]

    def batch_get_tensor_with_tp(
        self, base_keys: Sequence[Key], tp_rank: int = 0, tp_size: int = 1
    ) -> list[Any | None]:
        """`get_tensor_with_tp` for many."""
        if tp_size <= 1:
            return self.batch_get_tensor(base_keys)
        handles = self.batch_get_buffer([shard_key(key, tp_rank) for key in base_keys])
        return [shard_of(handle, tp_rank, tp_size) for handle in handles]

    def put_tensor_with_tp_from(
        self,
        key: Key,
        buffer_ptr: int,
        size: int,
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
    ) -> int:
        """`put_tensor_with_tp` of the full tensor whose head and data lie at an address."""
        if tp_size <= 1:
            return self.put_tensor_from(key, buffer_ptr, size)
        head = head_at(buffer_ptr, size)
        if head is None or head.is_shard:
            return INVALID_PARAMS
        return self._store_shards(key, over_address(buffer_ptr, head), tp_size, split_dim, DEFAULT)

    def batch_put_tensor_with_tp_from(
        self,
        base_keys: Sequence[Key],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
    ) -> list[int]:
        """`put_tensor_with_tp_from` for many; one that is no tensor fails all."""
        if not all_tensors(base_keys, buffer_ptrs, sizes):
            return [INVALID_PARAMS] * len(base_keys)
        return [
            self.put_tensor_with_tp_from(key, at, size, tp_rank, tp_size, split_dim)
            for key, at, size in zip(base_keys, buffer_ptrs, sizes, strict=True)
        ]

    def get_tensor_with_tp_into(
        self,
        key: Key,
        buffer_ptr: int,
        size: int,
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
    ) -> Any | None:
        """Reads the shard of a rank to an address; the tensor over that memory, or None."""
        found = self.batch_get_tensor_with_tp_into([key], [buffer_ptr], [size], tp_rank, tp_size)[0]
        return None if isinstance(found, int) else found

    def batch_get_tensor_with_tp_into(
        self,
        base_keys: Sequence[Key],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        tp_rank: int = 0,
        tp_size: int = 1,
    ) -> list[Any | None | int]:
        """`get_tensor_with_tp_into` for many; a list of codes where the addresses make no sense."""
        if tp_size <= 1:
            return self.batch_get_tensor_into(base_keys, buffer_ptrs, sizes)
        if not addressed(base_keys, buffer_ptrs, sizes):
            return [INVALID_PARAMS] * len(base_keys)
        keys = [shard_key(key, tp_rank) for key in base_keys]
        lengths = self.batch_get_into(keys, buffer_ptrs, sizes)
        return [
            tensor_at(at, length) if is_shard_of(head_at(at, length), tp_rank, tp_size) else None
            for at, length in zip(buffer_ptrs, lengths, strict=True)
        ]

    def _store_shards(
        self, key: Key, tensor: Any, count: int, split_dim: int, config: ReplicateConfig
    ) -> int:
        if count <= 1:
            return self._store_forms([key], [stored(tensor)], config)[0]
        forms = shards(tensor, count, split_dim) if key else None
        if forms is None:
            return INVALID_PARAMS
        # One after the other: a shard that had to be copied is gone before the next one is cut.
        return first_failure(
            self._store_forms([shard_key(key, rank)], [form], config)[0]
            for rank, form in enumerate(forms)
        )


def shards(tensor: Any, count: int, split_dim: int) -> Iterator[Stored | None] | None:
    """The shards of all ranks, each made when its turn comes; None if there are none."""
    full = dense(tensor)
    if full is None or shard(full, split_dim, 0, count) is None:
        return None
    whole = tuple(full.shape)
    return (
        stored(shard(full, split_dim, rank, count), whole, (Axis(TP, rank, count, split_dim),))
        for rank in range(count)
    )


def shard_key(key: Key, rank: int) -> Key:
    return suffixed(key, f"_tp_{rank}")


def shard_of(handle: Any | None, rank: int, count: int) -> Any | None:
    """The shard in a buffer that it then keeps; None if it is none of this rank."""
    head = None if handle is None else head_of(handle)
    return over(handle, head) if head is not None and is_shard_of(head, rank, count) else None


def is_shard_of(head: Head | None, rank: int, count: int) -> bool:
    """Whether this serves as the shard of a rank: what says nothing of ranks does."""
    if head is None or not head.is_shard:
        return head is not None
    axis = head.axis(TP)
    return axis is not None and (axis.rank, axis.count) == (rank, count)
