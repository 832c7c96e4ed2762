"""Parts of values: range reads, and sessions that write or read a value part by part.

Lists go to native code as they are, once per call: keys, addresses, sizes, offsets. The sessions of a store live
there, too (`mooncrate._native.Sessions`), by the keys of their values.
"""

from collections.abc import Callable, Sequence

import mooncrate

from ._base import Key, key_list, lengths_differ, picked
from ._codes import (
    INVALID_PARAMS,
    OBJECT_ALREADY_EXISTS,
    OBJECT_NOT_FOUND,
    OK,
    REPLICA_IS_NOT_READY,
    code_of,
    say,
    tell,
)
from ._connection import Connection
from ._dead import miss_the_dead
from ._memory import length, pointer
from ._replicate import DEFAULT, ReplicateConfig, checked, refusal, wishes
from ._zero_copy import Numbers, ZeroCopyCalls

# Of a key without a value, and of numbers that make no sense.
_RANGE_CODES = (OBJECT_NOT_FOUND, INVALID_PARAMS)
# Of a key without a value, and of one that is being written.
_START_CODES = (OBJECT_NOT_FOUND, REPLICA_IS_NOT_READY)

# One number per key, and errors by place.
Codes = tuple[list[int], dict[int, mooncrate.Error] | None]


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
        if live is None:
            return [[[INVALID_PARAMS] * max(1, len(one)) for one in all] for all in all_dst_offsets]
        lists = (buffer_ptrs, all_keys, all_dst_offsets, all_src_offsets, all_sizes)
        try:
            results, failed = live.raw.get_nested(*lists, live.registry, _RANGE_CODES)
        except mooncrate.Error as error:
            code = say("get_into_ranges", error)
            return [[[code] * max(1, len(one)) for one in all] for all in all_dst_offsets]
        if failed:
            keys = [all_keys[buffer][place] for buffer, place, _, _ in failed]
            codes = [code_of(error) for *_, error in failed]
            miss_the_dead(live, keys, codes)
            for (buffer, place, numbers, _), code in zip(failed, codes, strict=True):
                for number in numbers:
                    results[buffer][place][number] = code
            tell("get_into_ranges", keys, codes, [(at, one[3]) for at, one in enumerate(failed)])
        return results


class SessionCalls(RangeCalls):
    """Sessions, which a store knows by the keys of their values."""

    # ---- reading -------------------------------------------------------------------------------

    def batch_get_session_start(self, keys: Sequence[Key]) -> list[int]:
        """Looks values up, to read parts of them; 0 or a negative code each."""
        keys = key_list(keys)
        live = self._connected()
        if live is None:
            return [INVALID_PARAMS] * len(keys)
        return self._of_sessions(live, keys, lambda: live.sessions.start_gets(keys, _START_CODES))

    def batch_get_into_multi_buffer_ranges(
        self,
        keys: Sequence[Key],
        all_buffer_ptrs: Numbers,
        all_sizes: Numbers,
        all_src_offsets: Numbers,
    ) -> list[int]:
        """Reads parts of values whose sessions were started; bytes or a negative code each."""
        lists = (all_buffer_ptrs, all_sizes, all_src_offsets)
        return self._each_range(keys, lists, write=False)

    def batch_get_session_end(self, keys: Sequence[Key]) -> int:
        """Ends sessions; those that there are not are ended already."""
        keys = key_list(keys)
        live = self._connected()
        if live is None:
            return INVALID_PARAMS
        try:
            live.sessions.end_gets(keys)
        except mooncrate.Error as error:
            return say("session", error)
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
        if config.group_ids is not None:
            wish["groups"] = [*config.group_ids]
        codes = self._of_sessions(
            live, keys, lambda: live.sessions.start_puts(keys, sizes, wish, INVALID_PARAMS)
        )
        # Another writer has the key.
        return [OBJECT_ALREADY_EXISTS if code == REPLICA_IS_NOT_READY else code for code in codes]

    def batch_put_from_multi_buffer_ranges(
        self,
        keys: Sequence[Key],
        all_buffer_ptrs: Numbers,
        all_sizes: Numbers,
        all_dst_offsets: Numbers,
    ) -> list[int]:
        """Writes parts of values whose sessions were started; bytes or a negative code each."""
        lists = (all_buffer_ptrs, all_sizes, all_dst_offsets)
        return self._each_range(keys, lists, write=True)

    def batch_put_session_end(self, keys: Sequence[Key]) -> list[int]:
        """Makes written values visible, after writes that are on their way."""
        keys = key_list(keys)
        live = self._connected()
        if live is None:
            return [INVALID_PARAMS] * len(keys)
        codes = self._of_sessions(live, keys, lambda: live.sessions.end_puts(keys, INVALID_PARAMS))
        live.wrote([key for key, code in zip(keys, codes, strict=True) if code == OK])
        return codes

    def batch_put_session_revoke(self, keys: Sequence[Key]) -> list[int]:
        """Gives values up: nothing of them is left."""
        keys = key_list(keys)
        live = self._connected()
        if live is None:
            return [INVALID_PARAMS] * len(keys)
        return self._of_sessions(live, keys, lambda: live.sessions.revoke_puts(keys, INVALID_PARAMS))

    # ---- both ----------------------------------------------------------------------------------

    def _each_range(
        self, keys: Sequence[Key], lists: tuple[Numbers, Numbers, Numbers], *, write: bool
    ) -> list[int]:
        """Moves parts of values between sessions and memory."""
        keys = key_list(keys)
        live = self._connected()
        if live is None or lengths_differ(keys, *lists):
            return [INVALID_PARAMS] * len(keys)
        places = self._places_in_regions(live, *lists[:2]) if live.dummy else None
        some, addresses, sizes, offsets = picked(places, keys, *lists)
        move = live.sessions.write if write else live.sessions.read
        codes = self._of_sessions(
            live,
            some,
            lambda: move(some, addresses, sizes, offsets, live.registry, INVALID_PARAMS),
            reads=not write,
        )
        if places is None:
            return codes
        found = dict(zip(places, codes, strict=True))
        return [found.get(place, INVALID_PARAMS) for place in range(len(keys))]

    def _places_in_regions(self, live: Connection, addresses: Numbers, sizes: Numbers) -> list[int]:
        """The keys of a dummy store whose memory it may use."""

        def usable(address: int, size: int) -> bool:
            return size <= 0 or self._usable(live, address, size)

        return [
            place
            for place, (some, of) in enumerate(zip(addresses, sizes, strict=True))
            if all(usable(pointer(one), length(size)) for one, size in zip(some, of, strict=False))
        ]

    @staticmethod
    def _of_sessions(
        live: Connection, keys: Sequence[Key], call: Callable[[], Codes], *, reads: bool = False
    ) -> list[int]:
        """The codes of a call; what failed is logged in one line."""
        try:
            codes, errors = call()
        except mooncrate.Error as error:
            return [say("session", error)] * len(keys)
        if errors:
            failed = list(errors.items())
            for place, why in failed:
                codes[place] = code_of(why)
            if reads:
                miss_the_dead(live, keys, codes)
            tell("session", keys, codes, failed)
        return codes
