"""How tensors reach the store, for all calls that know tensors.

Each is stored by one public call of the store, which takes head and data where they lie. What must
stay true: every key gets its own wishes, however many objects one call makes of it.
"""

import copy
from collections.abc import Iterable, Sequence
from typing import Any

from mooncake._torch import Key, Stored, head_at, head_of, over, over_address

INVALID_PARAMS = -600
# What a config is where the caller leaves it out: None is no config, and a TypeError.
NOT_GIVEN: Any = object()

Wish = dict[str, Any]


class Storing:
    """Stores tensors by the public calls of the store."""

    def _store_forms(
        self,
        keys: Sequence[Key],
        forms: Iterable[Stored | None],
        config: Any = NOT_GIVEN,
        *,
        upsert: bool = False,
    ) -> list[int]:
        """Stores one form for each key; its code for each."""
        if (wishes := wishes_of(config, len(keys))) is None:
            return [INVALID_PARAMS] * len(keys)
        # One after the other: a tensor that had to be copied is free again before the next one is.
        return [
            self._store_form(key, form, wish, upsert=upsert)
            for key, form, wish in zip(keys, forms, wishes, strict=True)
        ]

    def _store_form(
        self, key: Key, form: Stored | None, wish: Wish, *, upsert: bool = False
    ) -> int:
        if form is None:
            return INVALID_PARAMS
        call = self.upsert_parts if upsert else self.put_parts
        return call(key, *form.parts(), **wish)


def wishes_of(config: Any, count: int) -> list[Wish] | None:
    """The config for each key, with the group of that key; None if the groups do not fit."""
    if config is NOT_GIVEN:
        return [{}] * count
    groups = getattr(config, "group_ids", None)
    if groups is None:
        return [{"config": config}] * count
    if len(groups) != count:
        return None
    wishes = []
    for group in groups:
        own = copy.copy(config)
        own.group_ids = [group]
        wishes.append({"config": own})
    return wishes


def first_failure(codes: Iterable[int]) -> int:
    """The first code that is not 0, or 0. Asks for no code after it."""
    return next((code for code in codes if code != 0), 0)


def tensor_of(handle: Any | None) -> Any | None:
    """The tensor in a buffer that it then keeps."""
    if handle is None or (head := head_of(handle)) is None:
        return None
    return over(handle, head)


def tensor_at(address: int, length: int) -> Any | None:
    """The tensor that was read to an address; None if that failed, or brought no tensor."""
    if length < 0 or (head := head_at(address, length)) is None:
        return None
    return over_address(address, head)


def listed(values: Sequence[Any] | None, count: int) -> Sequence[Any] | None:
    """A value for each of `count` keys, also where none are given; None if they do not fit."""
    if values is None:
        return [None] * count
    return values if len(values) == count else None


def places_every_replica(config: Any) -> bool:
    """Whether a config that prefers segments prefers as many as it wants replicas."""
    segments = getattr(config, "preferred_segments", None)
    return not segments or len(segments) == config.replica_num


def addressed(keys: Sequence[Key], addresses: Sequence[int], sizes: Sequence[int]) -> bool:
    """Whether each key has an address that could be one, and a size."""
    return len(keys) == len(addresses) == len(sizes) and all(at > 0 for at in addresses)


def all_tensors(keys: Sequence[Key], addresses: Sequence[int], sizes: Sequence[int]) -> bool:
    """Whether each key has an address at which a tensor of that size lies."""
    return addressed(keys, addresses, sizes) and all(
        head_at(at, size) is not None for at, size in zip(addresses, sizes, strict=True)
    )
