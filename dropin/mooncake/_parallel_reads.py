"""Reads tensors that are spread over ranks: as they lie, cut anew, or whole.

What must stay true: the manifest is read before the shards, so that shards of an earlier cut are
not taken for those of the present one; and a tensor is made of shards only if all of them are
there and agree on what they are parts of.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mooncrate.tensors import SIZE, TP, Axis, Head

from ._codes import INVALID_PARAMS
from ._parallel import (
    Layout,
    Manifest,
    Writer,
    layout_of,
    manifest_of,
    parallelism_manifest_key,
    pieces,
    writer_manifest_key,
)
from ._tensor_plain import BufferCalls, PlainCalls
from ._tensor_store import addressed, listed
from ._torch import Key, empty, head_of, over, over_address, shard

MODES = ("as_stored", "shard", "full")


@dataclass(frozen=True, slots=True)
class Target:
    """Where a tensor that is made of shards goes: memory of its own, or at an address."""

    address: int = 0
    size: int = 0

    def tensor(self, head: Head) -> Any | None:
        """Room for this tensor; None if it does not fit."""
        if self.address == 0:
            return empty(head)
        if SIZE + head.nbytes > self.size:
            return None
        ctypes.memmove(self.address, head.to_bytes(), SIZE)
        return over_address(self.address, head)


class ParallelReads(PlainCalls, BufferCalls):
    """Reads tensors of a parallel layout, as they lie, cut anew, or whole."""

    def get_tensor_with_parallelism(self, key: Key, target: Any = None) -> Any | None:
        """The tensor that a `ReadTarget` asks for; None if it is not there."""
        return self._read_target(key, target, Target())

    def batch_get_tensor_with_parallelism(
        self, keys: Sequence[Key], targets: Sequence[Any] | None = None
    ) -> list[Any | None]:
        """`get_tensor_with_parallelism` for many."""
        if (wanted := listed(targets, len(keys))) is None:
            return [None] * len(keys)
        return [
            self._read_target(key, one, Target()) for key, one in zip(keys, wanted, strict=True)
        ]

    def get_tensor_with_parallelism_into(
        self, key: Key, buffer_ptr: int, size: int, target: Any = None
    ) -> Any | None:
        """The tensor over registered memory, where its head and data are read to; else None."""
        if size < SIZE or not self._is_registered(buffer_ptr, size):
            return None
        return self._read_target(key, target, Target(buffer_ptr, size))

    def batch_get_tensor_with_parallelism_into(
        self,
        keys: Sequence[Key],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        targets: Sequence[Any] | None = None,
    ) -> list[Any | None | int]:
        """The same for many; a list of codes where the addresses make no sense."""
        wanted = listed(targets, len(keys))
        if wanted is None or not addressed(keys, buffer_ptrs, sizes):
            return [INVALID_PARAMS] * len(keys)
        return [
            self.get_tensor_with_parallelism_into(key, at, size, one)
            for key, at, size, one in zip(keys, buffer_ptrs, sizes, wanted, strict=True)
        ]

    def _read_target(self, key: Key, target: Any, into: Target) -> Any | None:
        mode = getattr(target, "mode", "as_stored")
        if mode not in MODES:
            raise RuntimeError(
                f"mode {mode!r} of a ReadTarget: one of {', '.join(MODES)} is needed"
            )
        given = getattr(target, "parallelism", None)
        layout = None if given is None else layout_of(given)
        if given is not None and layout is None:
            return None
        if mode == "full":
            return self._read_full(key, layout, into)
        if layout is None:
            return self._read_stored(key, into) if mode == "as_stored" else None
        return self._read_shard(key, layout, into, as_stored=mode == "as_stored")

    def _read_stored(self, key: Key, into: Target) -> Any | None:
        if into.address == 0:
            return self.get_tensor(key)
        return self.get_tensor_into(key, into.address, into.size)

    def _read_shard(self, key: Key, layout: Layout, into: Target, *, as_stored: bool) -> Any | None:
        tp, manifest = layout.tp, None
        if tp is not None:
            manifest = self._read_manifest(parallelism_manifest_key(key))
        if tp is None or manifest is None or manifest.axis(tp.rank) == tp:
            handle = self.get_buffer(layout.key(key))
            head = None if handle is None else head_of(handle)
            if head is not None and head.axes == layout.axes:
                return self._read_handle(handle, head, into)
        if as_stored or tp is None:
            return None
        if manifest is not None:
            return self._read_assembled(key, layout, manifest, into, layout)
        if (written := self._read_manifest(writer_manifest_key(key))) is not None:
            return self._read_assembled(key, Writer(written.axis(0)), written, into, layout)
        return None

    def _read_full(self, key: Key, layout: Layout | None, into: Target) -> Any | None:
        if layout is None:
            manifest = self._read_manifest(writer_manifest_key(key))
            if manifest is None:
                return self._read_stored(key, into)
            return self._read_assembled(key, Writer(manifest.axis(0)), manifest, into)
        if layout.tp is None:
            return self._read_shard(key, layout, into, as_stored=True)
        manifest = self._read_manifest(parallelism_manifest_key(key))
        if manifest is None:
            # Shards of `put_tensor_with_tp` have no manifest; the caller knows how they were cut.
            head = self._read_head(
                layout.with_tp(Axis(TP, 0, layout.tp.count, layout.tp.split_dim)).key(key)
            )
            if head is None:
                return None
            manifest = Manifest(head.dtype, head.whole, layout.tp.split_dim, layout.tp.count)
        return self._read_assembled(key, layout, manifest, into)

    def _read_assembled(
        self,
        key: Key,
        source: Layout | Writer,
        manifest: Manifest,
        into: Target,
        wanted: Layout | None = None,
    ) -> Any | None:
        """The whole of the shards of a manifest, or the shard of a wanted layout."""
        head = head_wanted(manifest, wanted)
        if head is None:
            return None
        cut = None if wanted is None else wanted.tp
        dim, length = manifest.split_dim, manifest.whole[manifest.split_dim]
        start, end = 0, length
        if cut is not None and cut.split_dim == dim:
            start, end = cut.rank * head.shape[dim], (cut.rank + 1) * head.shape[dim]
        parts = [*pieces(length, manifest.count, start, end)]
        keys = [source.with_tp(manifest.axis(part.rank)).key(key) for part in parts]
        shards = []
        for part, handle in zip(parts, self.batch_get_buffer(keys), strict=True):
            found = None if handle is None else head_of(handle)
            if found is None or not is_part(found, manifest, part.rank):
                return None
            piece = over(handle, found)
            if piece is not None and cut is not None and cut.split_dim != dim:
                piece = shard(piece, cut.split_dim, cut.rank, cut.count)
            if piece is None:
                return None
            shards.append(piece.narrow(dim, part.source, part.length))
        if (room := into.tensor(head)) is None:
            return None
        for part, piece in zip(parts, shards, strict=True):
            room.narrow(dim, part.target, part.length).copy_(piece)
        return room

    def _read_handle(self, handle: Any, head: Head, into: Target) -> Any | None:
        tensor = over(handle, head)
        if into.address == 0 or tensor is None:
            return tensor
        if (room := into.tensor(head)) is not None:
            room.copy_(tensor)
        return room

    def _read_manifest(self, key: Key) -> Manifest | None:
        return manifest_of(self.get(key))

    def _read_head(self, key: Key) -> Head | None:
        handle = self.get_buffer(key)
        return None if handle is None else head_of(handle)


def head_wanted(manifest: Manifest, wanted: Layout | None) -> Head | None:
    """The head of the tensor that shards of this manifest shall make; None if they cannot."""
    if wanted is None or (cut := wanted.tp) is None:
        return Head(manifest.dtype, manifest.whole, manifest.whole)
    shape = list(manifest.whole)
    if cut.split_dim >= len(shape) or shape[cut.split_dim] == 0:
        return None
    if shape[cut.split_dim] % cut.count != 0:
        return None
    shape[cut.split_dim] //= cut.count
    return Head(manifest.dtype, tuple(shape), manifest.whole, wanted.axes)


def is_part(head: Head, manifest: Manifest, rank: int) -> bool:
    """Whether a stored tensor is the shard of this rank of what the manifest speaks of."""
    axis = head.axis(TP)
    same = (head.dtype, head.whole) == (manifest.dtype, manifest.whole)
    return same and axis is not None and axis == manifest.axis(rank)
