"""The stores behind one face: how each of them is opened, called, and what its answers mean.

A loop that measures takes the store's own function and its own arguments from here, so that nothing of ours
stands between the clock and the call. What must stay true: a call that a store does not have is not made up of others.
"""

import ctypes
import mmap
import random
import zlib

KIB, MIB = 1 << 10, 1 << 20
# Values are windows of one run of random bytes: neighbours differ in every byte, and nothing is kept twice.
STEP, WINDOWS = 64, 65536
POOL = 16 * MIB + STEP * WINDOWS
LOCAL_BUFFER = 512 * MIB


class Memory:
    """One run of memory: the bytes of all values, then slots for what is read."""

    def __init__(self, slots: int) -> None:
        self.size = POOL + slots
        self.map = mmap.mmap(-1, self.size)
        self.map[:POOL] = random.Random(24).randbytes(POOL)
        self.view = memoryview(self.map)
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        # Touched before anybody measures.
        ctypes.memset(self.base + POOL, 0, slots)

    @staticmethod
    def place(prefix: str, number: int) -> int:
        """Where in the pool the value of a key begins."""
        return (zlib.crc32(prefix.encode()) + number) % WINDOWS * STEP

    def value(self, prefix: str, number: int, size: int) -> bytes:
        start = self.place(prefix, number)
        return self.map[start : start + size]

    def same(self, slot: int, prefix: str, number: int, size: int) -> bool:
        """Whether the bytes in a slot are those of a key."""
        return _memcmp(self.base + slot, self.base + self.place(prefix, number), size) == 0


_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]


# Calls by the names of Mooncake's store.
CALLS = (
    "put",
    "put_from",
    "get",
    "get_into",
    "is_exist",
    "is_missing",
    "get_size",
    "batch_is_exist",
    "put_batch",
    "get_batch",
    "batch_put_from",
    "batch_get_into",
    "batch_get_into_multi_buffers",
    "remove",
)


class Door:
    """A store, its own functions by the names of `CALLS`, and what their answers mean."""

    #: What the store calls otherwise.
    named: dict[str, str] = {}

    def __init__(self, memory: Memory, store) -> None:
        self.memory, self.store = memory, store
        found = {call: getattr(store, self.named.get(call, call), None) for call in CALLS}
        self.calls = {call: function for call, function in found.items() if function is not None}

    def arguments(self, call: str, keys: list, places: list, sizes: list) -> tuple:
        """What the call takes; a place is an offset in the memory."""
        if call in ("is_exist", "get", "get_size"):
            return (keys[0],)
        if call == "is_missing":
            return (f"{keys[0]}/missing",)
        if call in ("batch_is_exist", "get_batch"):
            return (keys,)
        return self._with_values(call, keys, places, sizes)

    def _values(self, places: list, sizes: list) -> list:
        return [self.memory.map[place : place + size] for place, size in zip(places, sizes)]

    def fetched(self, answer) -> list:
        """The values of an answer to `get` and `get_batch`; None, or nothing, for a miss."""
        return [answer] if answer is None or isinstance(answer, bytes) else list(answer)

    def close(self) -> None:
        self.store.close()


class Mooncake(Door):
    """`mooncake.store`, published or ours: codes, addresses, and no exceptions."""

    named = {"is_missing": "is_exist"}

    def __init__(self, master: str, segment: int, memory: Memory, disk: str = "") -> None:
        from mooncake.store import MooncakeDistributedStore

        store = MooncakeDistributedStore()
        more = {"enable_ssd_offload": True, "ssd_offload_path": disk} if disk else {}
        code = store.setup("localhost", "P2PHANDSHAKE", segment, LOCAL_BUFFER, "tcp", "", master, **more)
        if code:
            raise RuntimeError(f"setup answered {code}")
        code = store.register_buffer(memory.base, memory.size)
        if code:
            raise RuntimeError(f"register_buffer answered {code}")
        super().__init__(memory, store)

    def _with_values(self, call: str, keys: list, places: list, sizes: list) -> tuple:
        base = self.memory.base
        if call in ("put_from", "get_into"):
            return keys[0], base + places[0], sizes[0]
        if call == "batch_get_into_multi_buffers":
            parts = [[base + place + at for at in range(0, size, 4096)] for place, size in zip(places, sizes)]
            return keys, parts, [[4096] * len(one) for one in parts]
        if call in ("batch_put_from", "batch_get_into"):
            return keys, [base + place for place in places], sizes
        values = self._values(places, sizes)
        return (keys[0], values[0]) if call == "put" else (keys, values)

    def right(self, call: str, answer, sizes: list) -> bool:
        """Whether the code is the good one; bytes that came back are compared by the loop."""
        if call in ("put", "put_from", "put_batch", "remove", "is_missing"):
            return answer == 0
        if call in ("get_into", "get_size"):
            return answer == sizes[0]
        if call == "is_exist":
            return answer == 1
        if call == "batch_is_exist":
            return list(answer) == [1] * len(sizes)
        if call == "batch_put_from":
            return list(answer) == [0] * len(sizes)
        return list(answer) == sizes

    def clear(self) -> None:
        if self.store.remove_all(True) < 0:
            raise RuntimeError("remove_all failed")

    def read(self, key: str, slot: int, size: int) -> str:
        """A get for the watcher: empty if it is there, else what it answered."""
        code = self.store.get_into(key, self.memory.base + slot, size)
        return "" if code == size else str(code)

    def write(self, key: str, place: int, size: int) -> str:
        code = self.store.put_from(key, self.memory.base + place, size)
        return "" if code == 0 else str(code)


class Native(Door):
    """`mooncrate.Store`: objects with a buffer, True and None, and exceptions."""

    named = {
        "put_from": "put",
        "is_exist": "exists",
        "is_missing": "exists",
        "get_size": "size",
        "batch_is_exist": "exists_batch",
        "batch_put_from": "put_batch",
        "batch_get_into": "get_into_batch",
    }

    def __init__(self, master: str, segment: int, memory: Memory, disk: str = "") -> None:
        import mooncrate

        more = {"segment_size": segment} if segment else {}
        if disk:
            more["ssd"] = f"{disk}=8GiB"
        super().__init__(memory, mooncrate.Store(master=master, **more))

    def _with_values(self, call: str, keys: list, places: list, sizes: list) -> tuple:
        if call in ("put", "put_batch"):
            parts = self._values(places, sizes)
        else:
            parts = [self.memory.view[place : place + size] for place, size in zip(places, sizes)]
        if call in ("put", "put_from", "get_into"):
            return keys[0], parts[0]
        return (list(zip(keys, parts)),)

    def right(self, call: str, answer, sizes: list) -> bool:
        if call in ("put", "put_from", "is_exist", "remove"):
            return answer is True
        if call == "is_missing":
            return answer is False
        if call in ("get_into", "get_size"):
            return answer == sizes[0]
        if call == "batch_get_into":
            return answer == sizes
        return answer == [True] * len(sizes)

    def clear(self) -> None:
        self.store.remove_prefix("", force=True)

    def read(self, key: str, slot: int, size: int) -> str:
        return self._named(lambda: self.store.get_into(key, self.memory.view[slot : slot + size]), size)

    def write(self, key: str, place: int, size: int) -> str:
        return self._named(lambda: self.store.put(key, self.memory.view[place : place + size]), True)

    @staticmethod
    def _named(call, good) -> str:
        import mooncrate

        try:
            answer = call()
        except mooncrate.Error as error:
            return type(error).__name__
        if answer == good:
            return ""
        return {None: "miss", False: "taken"}.get(answer, str(answer))


class Redis(Door):
    """redis-py with hiredis, over TCP."""

    named = {
        "put": "set",
        "is_exist": "exists",
        "is_missing": "exists",
        "get_size": "strlen",
        "put_batch": "mset",
        "get_batch": "mget",
        "remove": "delete",
    }

    def __init__(self, master: str, segment: int, memory: Memory, disk: str = "") -> None:
        import redis

        host, port = master.split(":")
        super().__init__(memory, redis.Redis(host, int(port)))
        self.calls["batch_is_exist"] = self._exist

    def _exist(self, keys: list) -> list:
        pipe = self.store.pipeline(transaction=False)
        for key in keys:
            pipe.exists(key)
        return pipe.execute()

    def _with_values(self, call: str, keys: list, places: list, sizes: list) -> tuple:
        values = self._values(places, sizes)
        return (keys[0], values[0]) if call == "put" else (dict(zip(keys, values)),)

    def right(self, call: str, answer, sizes: list) -> bool:
        if call in ("put", "put_batch"):
            return answer is True
        if call in ("is_missing", "get_size"):
            return answer == (sizes[0] if call == "get_size" else 0)
        return answer == (1 if call in ("is_exist", "remove") else [1] * len(sizes))

    def clear(self) -> None:
        self.store.flushall()

    def read(self, key: str, slot: int, size: int) -> str:
        return self._named(lambda: self._into(self.store.get(key), slot, size), size)

    def write(self, key: str, place: int, size: int) -> str:
        return self._named(lambda: self.store.set(key, self.memory.map[place : place + size]), True)

    def _into(self, value, slot: int, size: int):
        if value is not None:
            self.memory.map[slot : slot + size] = value[:size].ljust(size, b"\0")
        return None if value is None else len(value)

    @staticmethod
    def _named(call, good) -> str:
        try:
            answer = call()
        except Exception as error:  # noqa: BLE001 - every client has kinds of its own, and all are answers
            return type(error).__name__
        return "" if answer == good else "miss" if answer is None else str(answer)


class Memcached(Redis):
    """pymemcache with a pool of connections; it has no call that only asks whether a key is there."""

    named = {"put": "set", "put_batch": "set_many", "get_batch": "get_many", "remove": "delete"}

    def __init__(self, master: str, segment: int, memory: Memory, disk: str = "") -> None:
        from pymemcache.client.base import PooledClient

        host, port = master.split(":")
        store = PooledClient((host, int(port)), no_delay=True, default_noreply=False, timeout=5)
        Door.__init__(self, memory, store)

    def right(self, call: str, answer, sizes: list) -> bool:
        return answer == [] if call == "put_batch" else answer is True

    def fetched(self, answer) -> list:
        # In the order of the keys that were asked for: a dict keeps it, and a miss is left out of it.
        return list(answer.values()) if isinstance(answer, dict) else [answer]

    def clear(self) -> None:
        self.store.flush_all()


KINDS = {"mooncake": Mooncake, "native": Native, "redis": Redis, "memcached": Memcached}
