"""Parts of values: range reads, and sessions that write or read a value part by part."""

from collections.abc import Sequence
from typing import Any

import mooncrate
from mooncrate._native import GetSession, PutSession

from ._base import Key, key_list, lengths_differ
from ._codes import (
    INVALID_PARAMS,
    LEASE_EXPIRED,
    OBJECT_ALREADY_EXISTS,
    OBJECT_NOT_FOUND,
    OK,
    REPLICA_IS_NOT_READY,
    code_of,
    log,
    say,
)
from ._connection import Connection, raw_key
from ._memory import length, pointer
from ._replicate import DEFAULT, ReplicateConfig, checked, refusal, wishes
from ._zero_copy import Numbers, ZeroCopyCalls


class RangeCalls(ZeroCopyCalls):
    """get_into_ranges."""

    def get_into_ranges(
        self,
        buffer_ptrs: Sequence[int],
        all_keys: Sequence[Sequence[Key]],
        all_dst_offsets: Sequence[Numbers],
        all_src_offsets: Sequence[Numbers],
        all_sizes: Sequence[Numbers],
    ) -> list[list[list[int]]]:
        """Copies ranges of values into registered buffers: results by buffer, key and range."""
        live = self._connected()
        results: list[list[list[int]]] = []
        for place in range(len(all_dst_offsets)):
            offsets = all_dst_offsets[place]
            lists: tuple[Sequence[Any], ...] = (all_keys, all_src_offsets, all_sizes)
            if place >= len(buffer_ptrs) or any(place >= len(one) for one in lists):
                results.append([[INVALID_PARAMS] * max(1, len(one)) for one in offsets])
                continue
            keys, starts, sizes = (one[place] for one in lists)
            address = pointer(buffer_ptrs[place])
            results.append(self._one_buffer(live, address, keys, offsets, starts, sizes))
        return results

    def _one_buffer(
        self,
        live: Connection | None,
        address: int,
        keys: Sequence[Key],
        offsets: Numbers,
        starts: Numbers,
        sizes: Numbers,
    ) -> list[list[int]]:
        room = 0 if live is None else self._registered(live, address)
        results: list[list[int]] = []
        asked: list[tuple[int, list[int]]] = []
        for place, places in enumerate(offsets):
            missing = place >= len(keys) or place >= len(starts) or place >= len(sizes)
            if missing or not len(places) == len(starts[place]) == len(sizes[place]):
                results.append([INVALID_PARAMS] * max(1, len(places)))
                continue
            codes = [
                self._fits(room, length(offset), length(start), length(size))
                for offset, start, size in zip(places, starts[place], sizes[place], strict=True)
            ]
            results.append(codes)
            good = [number for number, code in enumerate(codes) if code == _READ]
            if good:
                asked.append((place, good))
        if live is not None and asked:
            self._read_ranges(live, address, keys, offsets, starts, sizes, asked, results)
        return results

    def _registered(self, live: Connection, address: int) -> int:
        """Bytes of registered memory from an address on."""
        return live.registry.left(address)

    @staticmethod
    def _fits(room: int, offset: int, start: int, size: int) -> int:
        if room == 0 or offset < 0 or start < 0 or size < 0 or offset + size > room:
            return INVALID_PARAMS
        return 0 if size == 0 else _READ

    @staticmethod
    def _read_ranges(
        live: Connection,
        address: int,
        keys: Sequence[Key],
        offsets: Numbers,
        starts: Numbers,
        sizes: Numbers,
        asked: list[tuple[int, list[int]]],
        results: list[list[int]],
    ) -> None:
        found: list[Any]
        try:
            found = live.raw.get_ranges_at(
                [keys[place] for place, _ in asked],
                [[starts[place][n] for n in good] for place, good in asked],
                [[address + offsets[place][n] for n in good] for place, good in asked],
                [[sizes[place][n] for n in good] for place, good in asked],
                # They lie in registered memory that can be written.
                known=[True] * len(asked),
            )
        except mooncrate.Error as error:
            code = say("get_into_ranges", error)
            found = [code] * len(asked)
        for (place, good), one in zip(asked, found, strict=True):
            for at, number in enumerate(good):
                results[place][number] = _range_code(one, at)


_READ = 1


def _range_code(found: Any, at: int) -> int:
    """The result of one range, out of what its key got."""
    if isinstance(found, int):
        return found
    if found is None:
        return OBJECT_NOT_FOUND
    if isinstance(found, mooncrate.Error):
        return code_of(found)
    return code_of(found[at]) if isinstance(found[at], mooncrate.Error) else found[at]


class SessionCalls(RangeCalls):
    """Sessions, which a store knows by the keys of their values."""

    # ---- reading -------------------------------------------------------------------------------

    def batch_get_session_start(self, keys: Sequence[Key]) -> list[int]:
        """Looks values up, to read parts of them; 0 or a negative code each."""
        keys = key_list(keys)
        live = self._connected()
        if live is None:
            return [INVALID_PARAMS] * len(keys)
        return [self._start_get(live, key) for key in keys]

    @staticmethod
    def _start_get(live: Connection, key: Key) -> int:
        try:
            session = live.raw.get_session(key)
            if session is None:
                (looked,) = live.raw.look([key], hold=False)
                return REPLICA_IS_NOT_READY if looked is False else OBJECT_NOT_FOUND
        except mooncrate.Error as error:
            return say(f"session of {key!r}", error)
        with live.lock:
            live.gets[raw_key(key)] = session
        return OK

    def batch_get_into_multi_buffer_ranges(
        self,
        keys: Sequence[Key],
        all_buffer_ptrs: Numbers,
        all_sizes: Numbers,
        all_src_offsets: Numbers,
    ) -> list[int]:
        """Reads parts of values whose sessions were started; bytes or a negative code each."""

        def read(live: Connection, key: bytes, ranges: Any) -> int:
            with live.lock:
                session: GetSession | None = live.gets.get(key)
            if session is None:
                return INVALID_PARAMS
            code = self._in_session(live, key, session.read_at, ranges, write=True)
            if code == LEASE_EXPIRED:
                with live.lock:
                    live.gets.pop(key, None)
            return code

        return self._each_range(keys, all_buffer_ptrs, all_sizes, all_src_offsets, read)

    def batch_get_session_end(self, keys: Sequence[Key]) -> int:
        """Ends sessions; those that there are not are ended already."""
        keys = key_list(keys)
        live = self._connected()
        if live is None:
            return INVALID_PARAMS
        with live.lock:
            for key in keys:
                live.gets.pop(raw_key(key), None)
        return OK

    # ---- writing -------------------------------------------------------------------------------

    def batch_put_session_start(
        self, keys: Sequence[Key], sizes: Sequence[int], config: ReplicateConfig = DEFAULT
    ) -> list[int]:
        """Reserves room for values that come in parts; 0 or a negative code each."""
        keys = key_list(keys)
        checked(config)
        live = self._connected()
        if live is None or lengths_differ(keys, sizes):
            return [INVALID_PARAMS] * len(keys)
        refused = refusal(config, len(keys))
        if refused:
            return [refused] * len(keys)
        try:
            wish = wishes(config, live.segment_ids, upsert=False)
        except mooncrate.Error as error:
            return [say("session", error)] * len(keys)
        groups = config.group_ids or [""] * len(keys)
        each = zip(keys, sizes, groups, strict=True)
        return [self._start_put(live, key, length(n), {**wish, "groups": [g]}) for key, n, g in each]

    @staticmethod
    def _start_put(live: Connection, key: Key, size: int, wish: dict[str, Any]) -> int:
        name = raw_key(key)
        with live.lock:
            if name in live.puts or size <= 0:
                return INVALID_PARAMS
        try:
            session = live.raw.put_session(key, size, wish)
        except mooncrate.Error as error:
            code = say(f"session of {key!r}", error)
            return OBJECT_ALREADY_EXISTS if code == REPLICA_IS_NOT_READY else code
        with live.lock:
            other = live.puts.setdefault(name, session)
        if other is not session:
            session.revoke()
            return INVALID_PARAMS
        return OK

    def batch_put_from_multi_buffer_ranges(
        self,
        keys: Sequence[Key],
        all_buffer_ptrs: Numbers,
        all_sizes: Numbers,
        all_dst_offsets: Numbers,
    ) -> list[int]:
        """Writes parts of values whose sessions were started; bytes or a negative code each."""

        def write(live: Connection, key: bytes, ranges: Any) -> int:
            with live.lock:
                session: PutSession | None = live.puts.get(key)
            if session is None:
                return INVALID_PARAMS
            return self._in_session(live, key, session.write_at, ranges, write=False)

        return self._each_range(keys, all_buffer_ptrs, all_sizes, all_dst_offsets, write)

    def batch_put_session_end(self, keys: Sequence[Key]) -> list[int]:
        """Makes written values visible, after writes that are on their way."""
        return self._end_puts(keys, PutSession.end, keep=True)

    def batch_put_session_revoke(self, keys: Sequence[Key]) -> list[int]:
        """Gives values up: nothing of them is left."""
        return self._end_puts(keys, PutSession.revoke, keep=False)

    def _end_puts(self, keys: Sequence[Key], end: Any, *, keep: bool) -> list[int]:
        keys = key_list(keys)
        live = self._connected()
        if live is None:
            return [INVALID_PARAMS] * len(keys)
        codes = []
        for key in keys:
            name = raw_key(key)
            with live.lock:
                session = live.puts.pop(name, None)
            codes.append(INVALID_PARAMS if session is None else self._end_put(live, name, session, end))
            if keep and codes[-1] == OK:
                live.wrote([name])
        return codes

    @staticmethod
    def _end_put(live: Connection, key: bytes, session: PutSession, end: Any) -> int:
        try:
            end(session)
        except mooncrate.Error as error:
            if error.kind == "gap":
                # Not all was written: the session goes on.
                with live.lock:
                    live.puts.setdefault(key, session)
            return say(f"session of {key!r}", error)
        return OK

    # ---- both ----------------------------------------------------------------------------------

    def _each_range(
        self,
        keys: Sequence[Key],
        addresses: Numbers,
        sizes: Numbers,
        offsets: Numbers,
        work: Any,
    ) -> list[int]:
        keys = key_list(keys)
        live = self._connected()
        if live is None or lengths_differ(keys, addresses, sizes, offsets):
            return [INVALID_PARAMS] * len(keys)
        codes = []
        for key, *one in zip(keys, addresses, sizes, offsets, strict=True):
            ranges = self._ranges(live, *one)
            codes.append(INVALID_PARAMS if ranges is None else work(live, raw_key(key), ranges))
        return codes

    def _ranges(
        self, live: Connection, addresses: Sequence[int], sizes: Sequence[int], offsets: Sequence[int]
    ) -> tuple[list[int], list[int], list[int]] | None:
        """Places in the value, addresses and sizes; None for what makes no sense."""
        if not len(addresses) == len(sizes) == len(offsets):
            return None
        starts = [length(offset) for offset in offsets]
        where = [pointer(address) for address in addresses]
        count = [length(size) for size in sizes]
        for start, address, size in zip(starts, where, count, strict=True):
            if start < 0 or size < 0 or start >= 1 << 63:
                return None
            if size > 0 and not self._usable(live, address, size):
                return None
        return starts, where, count

    @staticmethod
    def _in_session(live: Connection, key: bytes, call: Any, ranges: Any, *, write: bool) -> int:
        _, addresses, sizes = ranges
        known = live.registry.knows(zip(addresses, sizes, strict=True), write=write)
        try:
            return int(call(*ranges, known=known))
        except mooncrate.Error as error:
            code = code_of(error)
            log.warning("session of %r: %s (%d)", key, error, code)
            return code
