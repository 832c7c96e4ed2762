"""Stores tensors that are spread over ranks: a shard of a layout, or the part of one of several
writers.

What must stay true: a shard is stored before the manifest that speaks of it.
"""

from collections.abc import Sequence
from typing import Any

from mooncrate.tensors import TP, Axis

from ._codes import INVALID_PARAMS
from ._parallel import (
    Layout,
    Manifest,
    Writer,
    layout_of,
    parallelism_manifest_key,
    writer_manifest_key,
    writer_of,
)
from ._replicate import ReplicateConfig
from ._tensor_store import (
    DEFAULT,
    Storing,
    addressed,
    configs_of,
    listed,
    tensor_at,
)
from ._torch import Key, Stored, dense, shard, stored


class ParallelWrites(Storing):
    """Stores tensors of a parallel layout, or the parts of several writers."""

    def put_tensor_with_parallelism(
        self,
        key: Key,
        tensor: Any,
        parallelism: Any = None,
        config: ReplicateConfig = DEFAULT,
        writer_partition: Any = None,
    ) -> int:
        """Stores a shard of a layout, or the part of a writer, or without either the tensor."""
        return self.batch_put_tensor_with_parallelism(
            [key], [tensor], [parallelism], config, [writer_partition]
        )[0]

    def upsert_tensor_with_parallelism(
        self,
        key: Key,
        tensor: Any,
        parallelism: Any = None,
        config: ReplicateConfig = DEFAULT,
        writer_partition: Any = None,
    ) -> int:
        """`put_tensor_with_parallelism` in place of what is there."""
        return self.batch_upsert_tensor_with_parallelism(
            [key], [tensor], [parallelism], config, [writer_partition]
        )[0]

    def put_tensor_with_parallelism_from(
        self,
        key: Key,
        buffer_ptr: int,
        size: int,
        parallelism: Any = None,
        config: ReplicateConfig = DEFAULT,
        writer_partition: Any = None,
    ) -> int:
        """`put_tensor_with_parallelism` of a tensor whose head and data lie at an address."""
        return self.batch_put_tensor_with_parallelism_from(
            [key], [buffer_ptr], [size], [parallelism], config, [writer_partition]
        )[0]

    def upsert_tensor_with_parallelism_from(
        self,
        key: Key,
        buffer_ptr: int,
        size: int,
        parallelism: Any = None,
        config: ReplicateConfig = DEFAULT,
        writer_partition: Any = None,
    ) -> int:
        """`upsert_tensor_with_parallelism` of a tensor whose head and data lie at an address."""
        return self.batch_upsert_tensor_with_parallelism_from(
            [key], [buffer_ptr], [size], [parallelism], config, [writer_partition]
        )[0]

    def batch_put_tensor_with_parallelism(
        self,
        keys: Sequence[Key],
        tensors_list: Sequence[Any],
        parallelisms: Sequence[Any] | None = None,
        config: ReplicateConfig = DEFAULT,
        writer_partitions: Sequence[Any] | None = None,
    ) -> list[int]:
        """`put_tensor_with_parallelism` for many."""
        given = (parallelisms, config, writer_partitions)
        return self._store_layouts(keys, tensors_list, *given, upsert=False)

    def batch_upsert_tensor_with_parallelism(
        self,
        keys: Sequence[Key],
        tensors_list: Sequence[Any],
        parallelisms: Sequence[Any] | None = None,
        config: ReplicateConfig = DEFAULT,
        writer_partitions: Sequence[Any] | None = None,
    ) -> list[int]:
        """`upsert_tensor_with_parallelism` for many."""
        given = (parallelisms, config, writer_partitions)
        return self._store_layouts(keys, tensors_list, *given, upsert=True)

    def batch_put_tensor_with_parallelism_from(
        self,
        keys: Sequence[Key],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        parallelisms: Sequence[Any] | None = None,
        config: ReplicateConfig = DEFAULT,
        writer_partitions: Sequence[Any] | None = None,
    ) -> list[int]:
        """`put_tensor_with_parallelism_from` for many; one that is no tensor fails all."""
        given = (parallelisms, config, writer_partitions)
        if (found := tensors_at(keys, buffer_ptrs, sizes)) is None:
            return [INVALID_PARAMS] * len(keys)
        return self._store_layouts(keys, found, *given, upsert=False)

    def batch_upsert_tensor_with_parallelism_from(
        self,
        keys: Sequence[Key],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        parallelisms: Sequence[Any] | None = None,
        config: ReplicateConfig = DEFAULT,
        writer_partitions: Sequence[Any] | None = None,
    ) -> list[int]:
        """`upsert_tensor_with_parallelism_from` for many; one that is no tensor fails all."""
        given = (parallelisms, config, writer_partitions)
        if (found := tensors_at(keys, buffer_ptrs, sizes)) is None:
            return [INVALID_PARAMS] * len(keys)
        return self._store_layouts(keys, found, *given, upsert=True)

    def _store_layouts(
        self,
        keys: Sequence[Key],
        tensors_list: Sequence[Any],
        parallelisms: Sequence[Any] | None,
        config: ReplicateConfig,
        writer_partitions: Sequence[Any] | None,
        *,
        upsert: bool,
    ) -> list[int]:
        layouts, writers = listed(parallelisms, len(keys)), listed(writer_partitions, len(keys))
        configs = configs_of(config, len(keys))
        if layouts is None or writers is None or configs is None or len(tensors_list) != len(keys):
            return [INVALID_PARAMS] * len(keys)
        return [
            self._store_layout(key, tensor, layout, writer, own, upsert=upsert)
            for key, tensor, layout, writer, own in zip(
                keys, tensors_list, layouts, writers, configs, strict=True
            )
        ]

    def _store_layout(
        self,
        key: Key,
        tensor: Any,
        parallelism: Any,
        partition: Any,
        config: ReplicateConfig,
        *,
        upsert: bool,
    ) -> int:
        if parallelism is None and partition is None:
            return self._store_forms([key], [stored(tensor)], config, upsert=upsert)[0]
        if not key or (parallelism is not None and partition is not None):
            return INVALID_PARAMS
        layout = writer_of(partition) if parallelism is None else layout_of(parallelism)
        if layout is None or (form := form_of(tensor, layout)) is None:
            return INVALID_PARAMS
        code = self._store_forms([layout.key(key)], [form], config, upsert=upsert)[0]
        axis = form.head.axis(TP)
        if code != 0 or axis is None:
            return code
        manifest = Manifest(form.head.dtype, form.head.whole, axis.split_dim, axis.count)
        where = writer_manifest_key if isinstance(layout, Writer) else parallelism_manifest_key
        return self._store_parts(where(key), [manifest.to_bytes()], config, upsert=upsert)


def form_of(tensor: Any, layout: Layout | Writer) -> Stored | None:
    """What is stored of a tensor: the shard that is named, cut out where the whole is given."""
    if (full := dense(tensor)) is None:
        return None
    shape = list(full.shape)
    if isinstance(layout, Writer):
        return cut(full, layout.axis, (layout.axis,))
    tp = layout.tp
    if tp is None:
        return stored(full, tuple(shape), layout.axes)
    if not layout.is_tp_alone:
        return cut(full, tp, layout.axes)
    if not 0 <= tp.split_dim < len(shape):
        return None
    shape[tp.split_dim] *= tp.count
    return stored(full, tuple(shape), layout.axes)


def cut(full: Any, axis: Axis, axes: tuple[Axis, ...]) -> Stored | None:
    part = shard(full, axis.split_dim, axis.rank, axis.count)
    return None if part is None else stored(part, tuple(full.shape), axes)


def tensors_at(
    keys: Sequence[Key], addresses: Sequence[int], sizes: Sequence[int]
) -> list[Any] | None:
    """The tensors that lie at these addresses; None unless all of them are some."""
    if not addressed(keys, addresses, sizes):
        return None
    found = [tensor_at(at, size) for at, size in zip(addresses, sizes, strict=True)]
    return None if any(tensor is None for tensor in found) else found
