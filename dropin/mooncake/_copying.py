"""Reads and writes that copy: values come as buffers and go as bytes or handles.

The local buffer of a store is where other implementations stage such copies. Here nothing is staged, so
its size only matters when it is 0: then copying calls are refused, as callers expect.
"""

from collections.abc import Sequence
from typing import Any

import mooncrate
from mooncrate._native import BufferHandle

from ._base import Key, StoreBase, Tried, errors_of, key_list, picked, wish_at
from ._codes import (
    INVALID_PARAMS,
    OBJECT_NOT_FOUND,
    OK,
    REPLICA_IS_NOT_READY,
    code_of,
    log,
    say,
    tell,
)
from ._connection import raw_key
from ._replicate import DEFAULT, ReplicateConfig, checked



def as_buffer(value: Any) -> Any:
    """A value whose bytes lie in C order: itself, or a copy of what does not lie so."""
    if isinstance(value, (bytes, bytearray)):
        return value
    if isinstance(value, str):
        raise TypeError("a value is an object with the buffer protocol, not str; encode the text")
    view = memoryview(value)
    return value if view.c_contiguous else view.tobytes()


def nbytes(value: Any) -> int:
    """Bytes of a buffer."""
    return len(value) if isinstance(value, (bytes, bytearray)) else memoryview(value).nbytes


def as_part(value: Any) -> Any:
    """A part of a value: one dimension, single bytes."""
    if isinstance(value, (bytes, bytearray)):
        return value
    if isinstance(value, str):
        raise TypeError("a part is an object with the buffer protocol, not str; encode the text")
    view = memoryview(value)
    if view.ndim != 1 or view.itemsize != 1:
        raise RuntimeError(
            f"a part has one dimension and items of 1 byte, not {view.ndim} and {view.itemsize}"
        )
    return value if view.c_contiguous else view.tobytes()


class CopyingCalls(StoreBase):
    """put, get and their kin."""

    # ---- writes --------------------------------------------------------------------------------

    def put(self, key: Key, value: Any, config: ReplicateConfig = DEFAULT) -> int:
        """Stores a value; a key that has one keeps it."""
        live = self._live
        plain = config is DEFAULT and isinstance(value, bytes) and len(value) > 0
        if not plain or live is None or live.buffer_bytes == 0:
            return self._put_one(key, value, config, upsert=False)
        try:
            error = live.door(len(value)).put_value(key, value, live.home_ids())
        except mooncrate.Error as error:
            return say("put", error)
        if error is None:
            live.wrote((key,))
            return OK
        return self._put_values([key], [[value]], config, upsert=False, tried={0: error})[0]

    def upsert(self, key: Key, value: Any, config: ReplicateConfig = DEFAULT) -> int:
        """Stores a value, instead of the one that is there."""
        return self._put_one(key, value, config, upsert=True)

    def put_parts(self, key: Key, *parts: Any, config: ReplicateConfig = DEFAULT) -> int:
        """Stores parts, one after the other, as one value."""
        return self._put_parts(key, parts, config, upsert=False)

    def upsert_parts(self, key: Key, *parts: Any, config: ReplicateConfig = DEFAULT) -> int:
        """The same, instead of the value that is there."""
        return self._put_parts(key, parts, config, upsert=True)

    def put_batch(
        self, keys: Sequence[Key], values: Sequence[Any], config: ReplicateConfig = DEFAULT
    ) -> int:
        """Stores values; 0, or the first error."""
        return self._put_batch(keys, values, config, upsert=False)

    def upsert_batch(
        self, keys: Sequence[Key], values: Sequence[Any], config: ReplicateConfig = DEFAULT
    ) -> int:
        """The same, instead of the values that are there."""
        return self._put_batch(keys, values, config, upsert=True)

    def _put_one(self, key: Key, value: Any, config: ReplicateConfig, *, upsert: bool) -> int:
        (key,) = key_list([key])
        checked(config)
        value = as_buffer(value)
        if nbytes(value) == 0:
            return INVALID_PARAMS
        return self._put_values([key], [[value]], config, upsert=upsert)[0]

    def _put_parts(
        self, key: Key, parts: Sequence[Any], config: ReplicateConfig, *, upsert: bool
    ) -> int:
        (key,) = key_list([key])
        checked(config)
        parts = [as_part(part) for part in parts]
        if sum(nbytes(part) for part in parts) == 0:
            return OK if self._connected() is not None else INVALID_PARAMS
        return self._put_values([key], [parts], config, upsert=upsert)[0]

    def _put_batch(
        self, keys: Sequence[Key], values: Sequence[Any], config: ReplicateConfig, *, upsert: bool
    ) -> int:
        keys = key_list(keys)
        checked(config)
        values = [as_buffer(value) for value in values]
        if self._connected() is None or len(keys) != len(values):
            return INVALID_PARAMS
        if any(nbytes(value) == 0 for value in values):
            return INVALID_PARAMS
        codes = self._put_values(keys, [[value] for value in values], config, upsert=upsert)
        return next((code for code in codes if code != OK), OK)

    def _put_values(
        self,
        keys: Sequence[Key],
        values: Sequence[Sequence[Any]],
        config: ReplicateConfig,
        *,
        upsert: bool,
        tried: Tried = None,
    ) -> list[int]:
        live = self._connected()
        if live is None:
            return [INVALID_PARAMS] * len(keys)
        if live.buffer_bytes == 0 and keys:
            log.error("local_buffer_size is 0: use put_from and its kin, or give the store a buffer")
            return [INVALID_PARAMS] * len(keys)

        def put(places: list[int] | None, wish: dict[str, Any]) -> dict[int, mooncrate.Error]:
            names, some = picked(places, keys, values)
            count = sum(nbytes(part) for parts in some for part in parts)
            return errors_of(live.door(count).put(names, some, wish_at(places, wish)))

        return self._put_all(live, keys, config, put, upsert=upsert, tried=tried)

    # ---- reads ---------------------------------------------------------------------------------

    def get(self, key: Key) -> bytes:
        """The value; `b""` if there is none, or it cannot be read."""
        (key,) = key_list([key])
        live = self._connected()
        if live is None or live.buffer_bytes == 0:
            return b""
        try:
            return live.store.get(key) or b""
        except mooncrate.Error as error:
            say(f"get of {key!r}", error)
            return b""

    def get_batch(self, keys: Sequence[Key]) -> list[bytes]:
        """The values; `b""` for each that there is not."""
        keys = key_list(keys)
        live = self._connected()
        if live is None or live.buffer_bytes == 0:
            return [b""] * len(keys)
        return [found or b"" for found in self._read(keys, live.store.get_batch)]

    def get_buffer(self, key: Key) -> BufferHandle | None:
        """The value as writable memory of the caller's own."""
        return self.batch_get_buffer([key])[0]

    def batch_get_buffer(self, keys: Sequence[Key]) -> list[BufferHandle | None]:
        """The same for many keys."""
        keys = key_list(keys)
        live = self._connected()
        if live is None or live.buffer_bytes == 0:
            return [None] * len(keys)
        return self._read(keys, live.raw.get)

    @staticmethod
    def _read(keys: Sequence[Key], read: Any) -> list[Any]:
        try:
            found: list[Any] = read(keys)
        except mooncrate.Error as error:
            say("get", error)
            return [None] * len(keys)
        failed = [(place, one) for place, one in enumerate(found) if isinstance(one, mooncrate.Error)]
        codes = {place: code_of(error) for place, error in failed}
        tell("get", keys, [codes.get(place, OK) for place in range(len(found))], failed)
        return [None if place in codes else one for place, one in enumerate(found)]

    # ---- lookups -------------------------------------------------------------------------------

    def is_exist(self, key: Key) -> int:
        """1 if the key has a value, 0 if not, or if that cannot be known now.

        Never a code: LMCache takes every answer but 0 for a hit, and a hit that cannot be read costs an
        engine more than a miss.
        """
        live = self._live
        if live is None:
            return self.batch_is_exist([key])[0]
        try:
            return 1 if live.store.exists(key) else 0
        except mooncrate.Error:
            return 0

    def batch_is_exist(self, keys: Sequence[Key]) -> list[int]:
        """The same for many keys."""
        codes, failed = self._existence(keys)
        for place in failed:
            codes[place] = 0
        return codes

    def _existence_codes(self, keys: Sequence[Key]) -> list[int]:
        """The same for callers that tell "no" and "nobody knows" apart: that is a negative code."""
        codes, failed = self._existence(keys)
        for place, code in failed.items():
            codes[place] = code
        return codes

    def _existence(self, keys: Sequence[Key]) -> tuple[list[int], dict[int, int]]:
        """Of each key 1 or 0; and codes by place, where nobody knows."""
        live = self._connected()
        if live is None:
            count = len(key_list(keys))
            return [0] * count, dict.fromkeys(range(count), INVALID_PARAMS)
        if not isinstance(keys, list):
            keys = key_list(keys)
        try:
            codes, errors = live.raw.exist(keys)
        except mooncrate.Error as error:
            return [0] * len(keys), dict.fromkeys(range(len(keys)), say("is_exist", error))
        if not errors:
            return codes, {}
        unknown = {at: code_of(error) for at, error in errors.items() if error.kind != "bad key"}
        return codes, unknown

    def get_size(self, key: Key) -> int:
        """Bytes of the value, or a negative code."""
        (key,) = key_list([key])
        live = self._connected()
        if live is None:
            return INVALID_PARAMS
        try:
            size = live.raw.size(key)
        except mooncrate.Error as error:
            return OBJECT_NOT_FOUND if error.kind == "bad key" else say("get_size", error)
        if size is None:
            return OBJECT_NOT_FOUND
        return REPLICA_IS_NOT_READY if size is False else size

    # ---- removes -------------------------------------------------------------------------------

    def remove(self, key: Key, force: bool = False) -> int:
        """Removes a value; a lease refuses that, unless `force`."""
        live = self._live
        if live is None:
            return self.batch_remove([key], force)[0]
        try:
            return self._removal(live.store.remove(key, force=bool(force)))
        except mooncrate.Unavailable as error:
            return say("remove", error)
        except mooncrate.Error as error:
            return self._removal(error)

    def batch_remove(self, keys: Sequence[Key], force: bool = False) -> list[int]:
        """The same for many keys."""
        keys = key_list(keys)
        live = self._connected()
        if live is None:
            return [INVALID_PARAMS] * len(keys)
        try:
            removed = live.store.remove_batch(keys, force=bool(force))
        except mooncrate.Error as error:
            return [say("remove", error)] * len(keys)
        codes = [self._removal(one) for one in removed]
        if codes.count(OK) > 1:
            # A key named twice: its value went with the first, though its memory may not be free yet.
            gone: set[bytes] = set()
            for place, key in enumerate(map(raw_key, keys)):
                if codes[place] == OK:
                    codes[place] = OBJECT_NOT_FOUND if key in gone else OK
                    gone.add(key)
        return codes

    @staticmethod
    def _removal(removed: Any) -> int:
        if isinstance(removed, mooncrate.Error):
            # Hidden from everybody; only its memory is not free yet.
            return OK if removed.kind == "deferred" else code_of(removed)
        return OK if removed else OBJECT_NOT_FOUND

    def remove_by_regex(self, regex_pattern: str, force: bool = False) -> int:
        """Removes the values of keys in which the expression finds a match; how many."""
        if not isinstance(regex_pattern, str):
            raise TypeError(f"regex_pattern is a text, not {regex_pattern!r}")
        live = self._connected()
        if live is None:
            return INVALID_PARAMS
        try:
            return live.store.remove_regex(regex_pattern, force=bool(force))
        except mooncrate.Error as error:
            return say("remove_by_regex", error)

    def remove_all(self, force: bool = False) -> int:
        """Removes all values; how many. Leased ones stay, unless `force`."""
        live = self._connected()
        if live is None:
            return INVALID_PARAMS
        try:
            return live.store.remove_prefix(b"", force=bool(force))
        except mooncrate.Error as error:
            return say("remove_all", error)
