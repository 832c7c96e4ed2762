"""What all calls of the store share: the connection, batches with wishes, and codes for errors.

What must stay true: before `setup` and after `close` every call has an answer, and batches have one
entry per key, in their order.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import mooncrate

from ._codes import (
    INVALID_PARAMS,
    OBJECT_ALREADY_EXISTS,
    OBJECT_REPLICA_BUSY,
    OK,
    REPLICA_IS_NOT_READY,
    code_of,
    log,
    say,
)
from ._connection import Connection, raw_key
from ._replicate import ReplicateConfig, refusal, wishes

Key = str | bytes
# A put by key and wishes; one result each.
Putter = Callable[[list[int], dict[str, Any]], list[Any]]

# How long an upsert waits for another writer of its key.
UPSERT_SECONDS = 2.0


class StoreBase:
    """The connection, and how calls use it."""

    _live: Connection | None = None
    _said = False

    def _connected(self) -> Connection | None:
        live = self._live
        if live is None and not self._said:
            self._said = True
            log.error("the store is not set up: call setup() first, and look at what it returns")
        return live

    def _put_all(
        self,
        live: Connection,
        keys: Sequence[Key],
        config: ReplicateConfig,
        put: Putter,
        *,
        upsert: bool = False,
        same_node: bool = False,
    ) -> list[int]:
        """Stores values by `put`, which gets the places of keys and wishes; one code per key."""
        count = len(keys)
        refused = refusal(config, count, same_node=same_node)
        if refused:
            return [refused] * count
        try:
            wish = wishes(config, live.segment_ids, upsert=upsert)
        except mooncrate.Error as error:
            return [say("put", error)] * count
        if live.home and "preferred" not in wish:
            wish["preferred"] = live.segment_ids([live.home])
        codes = [OK] * count
        places = list(range(count))
        groups = config.group_ids
        if upsert:
            places = self._upsert_places(live, keys, groups, codes)
        by_group: dict[str, list[int]] = {"": places}
        if groups is not None:
            by_group = {}
            for place in places:
                by_group.setdefault(groups[place], []).append(place)
        for group, some in by_group.items():
            if some:
                self._put_group(keys, some, {**wish, "group": group}, put, codes)
        live.wrote(key for key, code in zip(keys, codes, strict=True) if code == OK)
        return codes

    def _upsert_places(
        self, live: Connection, keys: Sequence[Key], groups: list[str] | None, codes: list[int]
    ) -> list[int]:
        """The first place of each key; a key whose group would change gets its code."""
        first: dict[bytes, int] = {}
        for place, key in enumerate(keys):
            first.setdefault(raw_key(key), place)
        places = list(first.values())
        if groups is None:
            return places
        differ = live.raw.other_group(keys, groups)
        for place in places:
            if differ[place]:
                codes[place] = INVALID_PARAMS
        return [place for place in places if codes[place] == OK]

    def _put_group(
        self,
        keys: Sequence[Key],
        places: list[int],
        wish: dict[str, Any],
        put: Putter,
        codes: list[int],
    ) -> None:
        end = time.monotonic() + UPSERT_SECONDS
        while places:
            try:
                results = put(places, wish)
            except mooncrate.Error as error:
                code = say("put", error)
                for place in places:
                    codes[place] = code
                return
            waiting = []
            for place, result in zip(places, results, strict=True):
                if isinstance(result, mooncrate.Error):
                    codes[place] = self._put_code(keys[place], result, wish["upsert"])
                    if codes[place] == OBJECT_REPLICA_BUSY and result.kind == "in progress":
                        waiting.append(place)
                else:
                    codes[place] = OK
            if time.monotonic() >= end:
                return
            places = waiting
            if places:
                time.sleep(0.005)

    @staticmethod
    def _put_code(key: Key, error: mooncrate.Error, upsert: bool) -> int:
        code = code_of(error)
        if code == OBJECT_ALREADY_EXISTS:
            return OK
        if code == REPLICA_IS_NOT_READY:
            # Another writer has the key. A put leaves it to that one; an upsert waits for its end.
            return OBJECT_REPLICA_BUSY if upsert else OK
        log.warning("put of %r: %s (%d)", key, error, code)
        return code


def lengths_differ(keys: Sequence[Any], *lists: Sequence[Any]) -> bool:
    """Whether lists that belong to keys have other lengths than the keys."""
    return any(len(one) != len(keys) for one in lists)


def key_list(keys: Any) -> list[Key]:
    """The keys of a batch. A single text is refused: its letters are hardly meant."""
    if isinstance(keys, (str, bytes)):
        raise TypeError("keys is a list of keys, not a single one")
    found = list(keys)
    for key in found:
        if not isinstance(key, (str, bytes)):
            raise TypeError(f"a key is str or bytes, not {type(key).__name__}")
    return found
