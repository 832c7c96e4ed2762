"""How tensors reach the store, for all calls that know tensors.

Head and data are handed over where they lie. What must stay true: every key gets its own wishes,
however many objects one call makes of it.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from ._base import key_list
from ._codes import INVALID_PARAMS, OK
from ._copying import CopyingCalls
from ._memory import is_memory
from ._replicate import ReplicateConfig, checked
from ._torch import Key, Stored, head_at, head_of, over, over_address
from ._zero_copy import ZeroCopyCalls

DEFAULT = ReplicateConfig()


class Storing(CopyingCalls, ZeroCopyCalls):
    """Stores what tensors become, and knows what the store knows of memory."""

    def _store_forms(
        self,
        keys: Sequence[Key],
        forms: Iterable[Stored | None],
        config: ReplicateConfig = DEFAULT,
        *,
        upsert: bool = False,
    ) -> list[int]:
        """Stores one form for each key, all in one call; a code for each."""
        keys, found = key_list(keys), [*forms]
        configs = configs_of(config, len(keys))
        codes = [INVALID_PARAMS] * len(keys)
        if configs is None or len(found) != len(keys):
            return codes
        parts = {place: form.parts() for place, form in enumerate(found) if form is not None}
        good = [*parts]
        groups = config.group_ids
        wish = config if groups is None else grouped(config, [groups[place] for place in good])
        some = [keys[place] for place in good]
        stored = self._put_values(some, [*parts.values()], wish, upsert=upsert)
        for place, code in zip(good, stored, strict=True):
            codes[place] = code
        return codes

    def _store_parts(
        self, key: Key, parts: Sequence[Any], config: ReplicateConfig, *, upsert: bool = False
    ) -> int:
        return self._put_values([key], [parts], config, upsert=upsert)[0]

    def _is_registered(self, address: int, size: int) -> bool:
        live = self._connected()
        # The registry takes numbers that can be addresses, and no others.
        if live is None or not is_memory(address, size):
            return False
        return live.registry.left(address) >= size

    def _is_dummy(self) -> bool:
        live = self._connected()
        return live is not None and live.dummy


def configs_of(config: Any, count: int) -> list[ReplicateConfig] | None:
    """The config for each key, with the group of that key; None if the groups do not fit."""
    groups = checked(config).group_ids
    if groups is None:
        return [config] * count
    return [grouped(config, [group]) for group in groups] if len(groups) == count else None


def grouped(config: ReplicateConfig, groups: list[str]) -> ReplicateConfig:
    """The same config for other keys, with groups of theirs."""
    own = ReplicateConfig()
    own._values.update(config._values)
    own.group_ids = groups
    return own


def first_failure(codes: Iterable[int]) -> int:
    """The first code that is not 0, or 0. Asks for no code after it."""
    return next((code for code in codes if code != OK), OK)


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
    segments = checked(config).preferred_segments
    return not segments or len(segments) == config.replica_num


def addressed(keys: Sequence[Key], addresses: Sequence[int], sizes: Sequence[int]) -> bool:
    """Whether each key has an address that could be one, and a size."""
    return len(keys) == len(addresses) == len(sizes) and all(
        is_memory(at, size) for at, size in zip(addresses, sizes, strict=True)
    )


def all_tensors(keys: Sequence[Key], addresses: Sequence[int], sizes: Sequence[int]) -> bool:
    """Whether each key has an address at which a tensor of that size lies."""
    return addressed(keys, addresses, sizes) and all(
        head_at(at, size) is not None for at, size in zip(addresses, sizes, strict=True)
    )
