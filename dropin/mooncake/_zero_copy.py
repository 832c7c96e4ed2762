"""Zero-copy calls: values move between the store and memory that the caller names by address."""

from collections.abc import Sequence
from typing import Any

import mooncrate

from ._base import Key, StoreBase, Tried, errors_of, key_list, lengths_differ, picked, wish_at
from ._codes import INVALID_PARAMS, OBJECT_NOT_FOUND, OK, Failed, code_of, say, tell
from ._connection import Connection
from ._dead import miss_the_dead
from ._memory import is_memory, length, pointer
from ._replicate import DEFAULT, ReplicateConfig, checked

# Of a key without a value, and of what cannot be memory.
_GET_CODES = (OBJECT_NOT_FOUND, INVALID_PARAMS)
Numbers = Sequence[Sequence[int]]


class ZeroCopyCalls(StoreBase):
    """put_from, get_into and their kin."""

    def register_buffer(self, buffer_ptr: int, size: int) -> int:
        """Registers a range of memory, which stays mapped until it is unregistered. It is looked at here,
        and no more by the calls that use it; nothing is pinned."""
        address, size = pointer(buffer_ptr), length(size)
        live = self._connected()
        if live is None:
            return INVALID_PARAMS
        if live.dummy:
            return self._register_region(live, address, size)
        return OK if live.registry.add(address, size) else INVALID_PARAMS

    def unregister_buffer(self, buffer_ptr: int) -> int:
        """Forgets a range that begins there."""
        address = pointer(buffer_ptr)
        live = self._connected()
        if live is None:
            return INVALID_PARAMS
        return OK if live.registry.remove(address) else INVALID_PARAMS

    def _register_region(self, live: Connection, address: int, size: int) -> int:
        raise NotImplementedError

    def _usable(self, live: Connection, address: int, size: int) -> bool:
        """Whether zero-copy calls may use this memory."""
        return is_memory(address, size)

    # ---- writes --------------------------------------------------------------------------------

    def put_from(
        self, key: Key, buffer_ptr: int, size: int, config: ReplicateConfig = DEFAULT
    ) -> int:
        """Stores the bytes at an address; a key that has a value keeps it."""
        live = self._live
        if config is not DEFAULT or live is None or live.dummy or not size:
            return self._put_from(key, buffer_ptr, size, config, upsert=False)
        try:
            door = live.door(size)
            error = door.put_one(key, buffer_ptr, size, live.home_ids(), live.registry)
        except mooncrate.Error as error:
            return say("put", error)
        if error is None:
            live.wrote((key,))
            return OK
        lists = [key], [buffer_ptr], [size]
        return self._batch_put_from(*lists, config, upsert=False, tried={0: error})[0]

    def upsert_from(
        self, key: Key, buffer_ptr: int, size: int, config: ReplicateConfig = DEFAULT
    ) -> int:
        """The same, instead of the value that is there."""
        return self._put_from(key, buffer_ptr, size, config, upsert=True)

    def batch_put_from(
        self,
        keys: Sequence[Key],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        config: ReplicateConfig = DEFAULT,
    ) -> list[int]:
        """Stores the bytes at addresses, one range per key."""
        return self._batch_put_from(keys, buffer_ptrs, sizes, config, upsert=False)

    def batch_upsert_from(
        self,
        keys: Sequence[Key],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        config: ReplicateConfig = DEFAULT,
    ) -> list[int]:
        """The same, instead of the values that are there."""
        return self._batch_put_from(keys, buffer_ptrs, sizes, config, upsert=True)

    def batch_put_from_multi_buffers(
        self,
        keys: Sequence[Key],
        all_buffer_ptrs: Numbers,
        all_sizes: Numbers,
        config: ReplicateConfig = DEFAULT,
    ) -> list[int]:
        """Stores values that lie in fragments; those of one key become one value, in order."""
        keys, checked_config = key_list(keys), checked(config)
        if lengths_differ(keys, all_buffer_ptrs, all_sizes):
            return [INVALID_PARAMS] * len(keys)
        return self._put_pieces(keys, all_buffer_ptrs, all_sizes, checked_config, same_node=True)

    def put_from_with_metadata(
        self,
        key: Key,
        buffer_ptr: int,
        metadata_buffer_ptr: int,
        size: int,
        metadata_size: int,
        config: ReplicateConfig = DEFAULT,
    ) -> int:
        """Stores metadata and data, in this order, as one value."""
        (key,) = key_list([key])
        checked(config)
        addresses = [pointer(metadata_buffer_ptr), pointer(buffer_ptr)]
        sizes = [length(metadata_size), length(size)]
        if sizes[1] == 0:
            return OK if self._connected() is not None else INVALID_PARAMS
        return self._put_pieces([key], [addresses], [sizes], config)[0]

    def _put_from(
        self, key: Key, buffer_ptr: int, size: int, config: ReplicateConfig, *, upsert: bool
    ) -> int:
        checked(config)
        if length(size) == 0:
            key_list([key])
            return OK if self._connected() is not None else INVALID_PARAMS
        return self._batch_put_from([key], [buffer_ptr], [size], config, upsert=upsert)[0]

    def _batch_put_from(
        self,
        keys: Sequence[Key],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        config: ReplicateConfig,
        *,
        upsert: bool,
        tried: Tried = None,
    ) -> list[int]:
        keys = key_list(keys)
        checked(config)
        live = self._connected()
        if live is None or lengths_differ(keys, buffer_ptrs, sizes):
            return [INVALID_PARAMS] * len(keys)
        if live.dummy:
            addresses = [[address] for address in buffer_ptrs]
            return self._put_pieces(
                keys, addresses, [[size] for size in sizes], config, upsert=upsert
            )
        door = live.door(sum(sizes))

        def put(places: list[int] | None, wish: dict[str, Any]) -> Tried:
            lists = picked(places, keys, buffer_ptrs, sizes)
            return door.put_flat(*lists, wish_at(places, wish), live.registry)

        return self._put_all(live, keys, config, put, upsert=upsert, tried=tried)

    def _put_pieces(
        self,
        keys: Sequence[Key],
        addresses: Numbers,
        sizes: Numbers,
        config: ReplicateConfig,
        *,
        upsert: bool = False,
        same_node: bool = False,
    ) -> list[int]:
        live = self._connected()
        if live is None:
            return [INVALID_PARAMS] * len(keys)
        pieces: list[Any] = [
            self._pieces(live, *one) for one in zip(addresses, sizes, strict=True)
        ]

        def put(places: list[int] | None, wish: dict[str, Any]) -> dict[int, mooncrate.Error]:
            places = list(range(len(keys))) if places is None else places
            good = [place for place in places if pieces[place] is not None]
            sizes = [pieces[place][1] for place in good]
            stored = live.door(sum(map(sum, sizes))).put_at(
                [keys[place] for place in good],
                [pieces[place][0] for place in good],
                sizes,
                wish_at(good, wish),
                known=self._known(live, [pieces[place] for place in good], write=False),
            )
            results = dict(zip(good, stored, strict=True))
            return errors_of([results.get(place, _BAD) for place in places])

        codes = self._put_all(live, keys, config, put, upsert=upsert, same_node=same_node)
        return codes

    def _pieces(
        self, live: Connection, addresses: Sequence[int], sizes: Sequence[int]
    ) -> tuple[list[int], list[int]] | None:
        """Fragments that could be memory, or None."""
        if len(addresses) != len(sizes):
            return None
        found = [pointer(address) for address in addresses], [length(size) for size in sizes]
        if sum(found[1]) == 0:
            return None
        for address, size in zip(*found, strict=True):
            if size < 0 or size > 0 and not self._usable(live, address, size):
                return None
        return found

    @staticmethod
    def _known(live: Connection, pieces: Sequence[Any], *, write: bool) -> list[bool]:
        """Of each list of fragments, whether all lie in registered memory."""
        return [live.registry.knows(zip(*one, strict=True), write=write) for one in pieces]

    # ---- reads ---------------------------------------------------------------------------------

    def get_into(self, key: Key, buffer_ptr: int, size: int) -> int:
        """Copies a value to an address; its bytes, or a negative code."""
        live = self._live
        if live is None or live.dummy:
            return self.batch_get_into([key], [buffer_ptr], [size])[0]
        try:
            code = live.door(size).get_one(key, buffer_ptr, size, live.registry, _GET_CODES)
        except mooncrate.Error as error:
            return say("get", error)
        if isinstance(code, int):
            return code
        codes = [INVALID_PARAMS]
        self._not_got(live, [key], codes, {0: code})
        return codes[0]

    def batch_get_into(
        self, keys: Sequence[Key], buffer_ptrs: Sequence[int], sizes: Sequence[int]
    ) -> list[int]:
        """The same for many keys."""
        if not isinstance(keys, list):
            keys = key_list(keys)
        live = self._connected()
        if live is None or lengths_differ(keys, buffer_ptrs, sizes):
            return [INVALID_PARAMS] * len(keys)
        if live.dummy:
            addresses = [[address] for address in buffer_ptrs]
            return self._get_pieces(keys, addresses, [[size] for size in sizes], exact=False)
        try:
            door = live.door(sum(sizes))
            codes, errors = door.get_flat(keys, buffer_ptrs, sizes, live.registry, _GET_CODES)
        except mooncrate.Error as error:
            return [say("get", error)] * len(keys)
        if errors:
            self._not_got(live, keys, codes, errors)
        return codes

    @staticmethod
    def _not_got(
        live: Connection, keys: list[Key], codes: list[int], errors: dict[int, mooncrate.Error]
    ) -> None:
        failed = list(errors.items())
        for place, error in failed:
            codes[place] = code_of(error)
        miss_the_dead(live, keys, codes)
        tell("get", keys, codes, failed)

    def batch_get_into_multi_buffers(
        self,
        keys: Sequence[Key],
        all_buffer_ptrs: Numbers,
        all_sizes: Numbers,
        prefer_alloc_in_same_node: bool = False,
    ) -> list[int]:
        """Scatters values over fragments, which together are as long as the value."""
        keys = key_list(keys)
        if lengths_differ(keys, all_buffer_ptrs, all_sizes):
            return [INVALID_PARAMS] * len(keys)
        return self._get_pieces(keys, all_buffer_ptrs, all_sizes, exact=True)

    def _get_pieces(
        self, keys: Sequence[Key], addresses: Numbers, sizes: Numbers, *, exact: bool
    ) -> list[int]:
        live = self._connected()
        if live is None:
            return [INVALID_PARAMS] * len(keys)
        pieces: list[Any] = [
            self._pieces(live, *one) for one in zip(addresses, sizes, strict=True)
        ]
        codes = [INVALID_PARAMS] * len(keys)
        good = [place for place, one in enumerate(pieces) if one is not None]
        if not good:
            return codes
        try:
            room = [pieces[place][1] for place in good]
            got = live.door(sum(map(sum, room))).get_at(
                [keys[place] for place in good],
                [pieces[place][0] for place in good],
                room,
                exact=exact,
                known=self._known(live, [pieces[place] for place in good], write=True),
            )
        except mooncrate.Error as error:
            return [say("get", error)] * len(keys)
        failed: Failed = []
        for place, one in zip(good, got, strict=True):
            codes[place] = self._got(place, one, failed)
        if failed:
            miss_the_dead(live, keys, codes)
            tell("get", keys, codes, failed)
        return codes

    @staticmethod
    def _got(place: int, got: Any, failed: Failed) -> int:
        if got is None:
            return OBJECT_NOT_FOUND
        if isinstance(got, mooncrate.Error):
            failed.append((place, got))
            return code_of(got)
        return int(got)


_BAD = mooncrate.Invalid("the fragments cannot be memory, or hold nothing")
