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
    Failed,
    code_of,
    log,
    say,
    tell,
)
from ._connection import Connection, raw_key
from ._replicate import DEFAULT, ReplicateConfig, refusal, wishes

Key = str | bytes
# A put of the keys at these places, or of all, with wishes for all keys (see `wish_at`): the errors, by number
# among those keys.
# What a try of a put has come to: errors by number.
Tried = dict[int, mooncrate.Error] | None
Putter = Callable[[list[int] | None, dict[str, Any]], Tried]

# How long a write waits for a key that is being freed, and an upsert for another writer.
WAIT_SECONDS = 2.0
WAIT_STEP = 0.005


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
        tried: Tried = None,
    ) -> list[int]:
        """Stores values by `put`, which gets the places of keys and wishes; one code per key. `tried`: a first
        try that has failed."""
        count = len(keys)
        if config is DEFAULT:
            wish: dict[str, Any] = {"replicas": 1, "upsert": upsert}
        else:
            refused = refusal(config, count, same_node=same_node)
            if refused:
                return [refused] * count
            try:
                wish = wishes(config, live.segment_ids, upsert=upsert)
            except mooncrate.Error as error:
                return [say("put", error)] * count
        if "preferred" not in wish:
            wish["preferred"] = live.home_ids()
        codes = [OK] * count
        groups = None if config.group_ids is None else [*config.group_ids]
        failed: Failed = []
        if groups is not None:
            wish["groups"] = groups
        places = self._upsert_places(live, keys, groups, codes) if upsert else None
        if places is None or places:
            self._put_places(live, keys, places, wish, put, codes, failed, tried)
        tell("put", keys, codes, failed)
        live.wrote([key for key, code in zip(keys, codes, strict=True) if code == OK])
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

    def _put_places(
        self,
        live: Connection,
        keys: Sequence[Key],
        places: list[int] | None,
        wish: dict[str, Any],
        put: Putter,
        codes: list[int],
        failed: Failed,
        tried: Tried,
    ) -> None:
        """Stores the keys at these places, or all."""
        end = time.monotonic() + WAIT_SECONDS
        while True:
            try:
                found, tried = tried or put(places, wish), None
                for place in places or ():
                    # They may have been waited for.
                    codes[place] = OK
                if not found:
                    return
                at = list(range(len(keys))) if places is None else places
                errors = {at[number]: error for number, error in found.items()}
                busy = [place for place, error in errors.items() if _is_busy(error)]
                looked = dict(zip(busy, self._look(live, keys, busy), strict=True))
            except mooncrate.Error as error:
                code = say("put", error)
                for place in range(len(keys)) if places is None else places:
                    codes[place] = code
                return
            waiting = []
            for place, error in errors.items():
                if place in looked:
                    # Another writer has the key, or has just given it up, or its owner has just left. A
                    # put leaves it to a writer that is at it; otherwise the key is waited for.
                    taken = looked[place] is not None and not wish["upsert"]
                    codes[place] = OK if taken else OBJECT_REPLICA_BUSY
                    if not taken:
                        waiting.append(place)
                else:
                    codes[place] = self._put_code(place, error, failed)
            places = waiting
            if not places or time.monotonic() >= end:
                return
            time.sleep(WAIT_STEP)

    @staticmethod
    def _look(live: Connection, keys: Sequence[Key], places: list[int]) -> list[Any]:
        return live.raw.look([keys[place] for place in places], hold=False) if places else []

    @staticmethod
    def _put_code(place: int, error: mooncrate.Error, failed: Failed) -> int:
        code = code_of(error)
        if code == OBJECT_ALREADY_EXISTS:
            return OK
        failed.append((place, error))
        return code


def _is_busy(error: mooncrate.Error) -> bool:
    """Whether a key will be free in a moment."""
    soon = (error.retry_after or 0.0) <= WAIT_SECONDS
    return error.kind == "in progress" or (error.kind == "held" and soon)


def picked(places: list[int] | None, *lists: Sequence[Any]) -> tuple[Sequence[Any], ...]:
    """What lists have at these places, or all of it."""
    if places is None:
        return lists
    return tuple([one[place] for place in places] for one in lists)


def wish_at(places: list[int] | None, wish: dict[str, Any]) -> dict[str, Any]:
    """The wishes of a put of the keys at these places, or of all: each key has a group of its own."""
    if places is None or "groups" not in wish:
        return wish
    groups = wish["groups"]
    return {**wish, "groups": [groups[place] for place in places]}


def errors_of(results: Sequence[Any]) -> dict[int, mooncrate.Error]:
    """The errors among results, by number."""
    return {at: one for at, one in enumerate(results) if isinstance(one, mooncrate.Error)}


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
