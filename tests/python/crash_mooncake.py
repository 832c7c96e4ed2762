"""What the crash hunt may call of the drop-in `mooncake.store`.

    target/venv/bin/python tests/python/crash_hunt.py --target crash_mooncake:TARGET

Addresses are of memory that the call alone has, such that can be known to be none, or of memory that may
not be touched, or not be written. Values say whose they are, as in `crash_calls.py`.
"""

import ctypes
import pathlib
import random
from collections.abc import Callable
from typing import Any

from conftest import Server
from crash_calls import KEYS, good_key, keys, made, number, size, value_of
from crash_hunt import Target, World
from mooncake.store import (
    BufferHandle,
    BufferLease,
    BufferPool,
    MooncakeDistributedStore,
    MooncakeHostMemAllocator,
    ReplicateConfig,
    SoftPinAction,
)



def forbidden(access: int) -> int:
    """The address of memory that stays, and may be used so only: 0 not at all, 1 to read it."""
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    # Private and anonymous.
    return libc.mmap(None, 1 << 20, access, 0x22, -1, 0)


NOWHERE = number(
    forbidden(0), 0, 1, 4095, -1, 2**62, 2**63, 2**64, -(2**70), True, None, "there", 1.5
)
READ_ONLY = number(forbidden(1))
FORCE = {"force": number(True, False, None)}
ROOM = 400_000


def plain(key: Any) -> bool:
    return isinstance(key, str | bytes)


def memory(content: bytes | int) -> Any:
    array = (ctypes.c_char * (content if isinstance(content, int) else max(1, len(content))))()
    if isinstance(content, bytes):
        array[: len(content)] = content
    return array


def wish(chance: random.Random, _world: World) -> Any:
    """Wishes, some of which cannot be met."""
    config = ReplicateConfig()
    for name, values in {
        "replica_num": (1, 1, 2, 0, 300),
        "soft_pin_action": (SoftPinAction.ENABLE, SoftPinAction.DISABLE),
        "soft_pin_ttl_ms": (None, 0, 1000, 2**63),
        "with_soft_pin": (True, False),
        "preferred_segment": ("", "localhost:1", "\0"),
        "prefer_alloc_in_same_node": (False, True),
        "group_ids": (None, ["g"], ["g"] * 5, []),
        "dfs_replica_num": (0, 0, 1),
    }.items():
        if chance.random() < 0.1:
            setattr(config, name, chance.choice(values))
    return config


def putting(call: str) -> Callable[..., Any]:
    def put(store: Any, key: Any, count: Any, *more: Any, **named: Any) -> Any:
        if plain(key) and type(count) is int and count >= 0:
            return getattr(store, call)(key, value_of(key, count), *more, **named)
        # Some of what is no size is a value: under a key that nobody judges.
        return getattr(store, call)("odd" if plain(key) else key, count, *more, **named)

    return put


def putting_from(call: str) -> Callable[..., Any]:
    def put(store: Any, key: Any, count: Any, *more: Any, **named: Any) -> Any:
        count = count if type(count) is int and 0 <= count <= ROOM else 300
        value = value_of(key, count)[:count] if plain(key) else b"none"
        place = memory(value)
        return getattr(store, call)(key, ctypes.addressof(place), len(value), *more, **named)

    return put


def putting_many(call: str) -> Callable[..., Any]:
    def put(store: Any, some: Any, *more: Any, **named: Any) -> Any:
        some = [key for key in some if plain(key)]
        places = [memory(value_of(key, 300)) for key in some]
        addresses = [ctypes.addressof(place) for place in places]
        lengths = [len(place) for place in places]
        if call.endswith("multi_buffers"):
            addresses = [[first, first + 7] for first in addresses]
            lengths = [[7, count - 7] for count in lengths]
        return getattr(store, call)(some, addresses, lengths, *more, **named)

    return put


def getting_into(store: Any, key: Any, count: Any, *more: Any) -> Any:
    place = memory(ROOM)
    room = count if type(count) is int and 0 <= count <= ROOM else ROOM
    got = store.get_into(key, ctypes.addressof(place), room, *more)
    return place.raw[:got] if type(got) is int and got > 0 else got


def sessions(store: Any, key: Any, count: Any) -> Any:
    """A value that is written in two parts, or given up."""
    value = value_of(key, count) if plain(key) and type(count) is int and count > 0 else b"xx"
    place = memory(value)
    first, half = ctypes.addressof(place), len(value) // 2
    store.batch_put_session_start([key], [len(value)])
    for start, length in ((half, len(value) - half), (0, half)):
        store.batch_put_from_multi_buffer_ranges([key], [[first + start]], [[length]], [[start]])
    end = store.batch_put_session_end if random.random() < 0.7 else store.batch_put_session_revoke
    return end([key])


def many_sessions(store: Any, some: Any, count: Any) -> Any:
    """Values whose sessions are started, written, ended or given up by one call each; one is left open."""
    if not type(some) is list or not type(count) is int or count <= 0:
        return store.batch_put_session_start(some, [count])
    values = [value_of(key, count) for key in some]
    places, sizes = [memory(value) for value in values], [len(value) for value in values]
    store.batch_put_session_start(some, sizes)
    addresses, starts = [[ctypes.addressof(place)] for place in places], [[0]] * len(some)
    store.batch_put_from_multi_buffer_ranges(some, addresses, [[size] for size in sizes], starts)
    end = store.batch_put_session_end if random.random() < 0.7 else store.batch_put_session_revoke
    ended = end(some[1:])
    store.batch_get_session_start(some)
    targets = [memory(10) for _ in some]
    into = [[ctypes.addressof(target)] for target in targets]
    store.batch_get_into_multi_buffer_ranges(some, into, [[10]] * len(some), starts)
    return ended


def reading_session(store: Any, key: Any) -> Any:
    place = memory(ROOM)
    store.batch_get_session_start([key])
    store.batch_get_into_multi_buffer_ranges([key], [[ctypes.addressof(place)]], [[10]], [[0]])
    return store.batch_get_session_end([key])


def pooled(store: Any, count: Any) -> Any:
    pool = BufferPool(store, alignment=4096, block_on_exhaustion=False)
    return pool.acquire(count)


def tasks(store: Any, key: Any, to: Any) -> Any:
    task, _ = store.create_copy_task(key, [to])
    return store.query_task(task)


def closing(store: Any, again: Any) -> Any:
    """Closes a store, but rarely, and nearly always sets it up again."""
    if random.random() > 0.02:
        return store.get_hostname()
    if random.random() < 0.5:
        store.close()
    return store.setup(*again) if random.random() < 0.8 else store.setup_dummy(1, 1, "127.0.0.1:1")


def again(_chance: random.Random, world: World) -> Any:
    return settings(world.settings["master"], 8 << 20)


def segments(store: Any, count: Any) -> Any:
    more = store.allocate_and_mount_segment(count)
    return store.unmount_segment(more["segment_ids"])


class_of = MooncakeDistributedStore
STORE = {
    "put": (putting("put"), made(good_key, size, config=wish)),
    "upsert": (putting("upsert"), made(good_key, size, config=wish)),
    "put_parts": (
        lambda store, key, count, **more: putting("put_parts")(store, key, count, **more),
        made(good_key, size, config=wish),
    ),
    "put_from": (putting_from("put_from"), made(good_key, size, config=wish)),
    "upsert_from": (putting_from("upsert_from"), made(good_key, size, config=wish)),
    "put_from nowhere": (class_of.put_from, made(good_key, NOWHERE, number(1, 100, 2**62, -5))),
    "get_into read-only": (class_of.get_into, made(good_key, READ_ONLY, number(1, 100, ROOM))),
    "get_into nowhere": (class_of.get_into, made(good_key, NOWHERE, number(1, 100, 2**62, -5))),
    "put_from_with_metadata": (
        class_of.put_from_with_metadata, made(good_key, NOWHERE, NOWHERE, number(0, 9), number(0, 9)),
    ),
    "batch_put_from": (putting_many("batch_put_from"), made(keys, config=wish)),
    "batch_upsert_from": (putting_many("batch_upsert_from"), made(keys, config=wish)),
    "multi put": (putting_many("batch_put_from_multi_buffers"), made(keys, config=wish)),
    "put_batch": (
        lambda store, some, *more, **named: store.put_batch(
            (some := [*some]), [value_of(key, 300) for key in some if plain(key)], *more, **named
        ),
        made(keys, config=wish),
    ),
    "get": (class_of.get, made(good_key)),
    "get again": (class_of.get, made(good_key)),
    "get_batch": (class_of.get_batch, made(keys)),
    "get_buffer": (class_of.get_buffer, made(good_key)),
    "batch_get_buffer": (class_of.batch_get_buffer, made(keys)),
    "get_into": (getting_into, made(good_key, size)),
    "batch_get_into": (
        class_of.batch_get_into, made(keys, number([], [0], [None]), number([], [1], [2**63])),
    ),
    "multi get": (
        class_of.batch_get_into_multi_buffers,
        made(number(KEYS[:2]), number([[0], [1, 2]], [], [[]]), number([[5], [1]], [[]], None)),
    ),
    "get_into_ranges": (
        class_of.get_into_ranges,
        made(number([0], [2**62], []), number([["hunt/1"]], []), number([[[0]]], [[[0, 1]], []]),
             number([[[0]]], [[]]), number([[[4]]], [[[2**63]]])),
    ),
    "is_exist": (class_of.is_exist, made(good_key)),
    "batch_is_exist": (class_of.batch_is_exist, made(keys)),
    "get_size": (class_of.get_size, made(good_key)),
    "remove": (class_of.remove, made(good_key, **FORCE)),
    "batch_remove": (class_of.batch_remove, made(keys, **FORCE)),
    "remove_by_regex": (class_of.remove_by_regex, made(number("hunt/1[0-3]$", "(", "^$"), **FORCE)),
    "remove_all": (
        lambda store, *more: store.remove_all(*more) if random.random() < 0.05 else 0,
        made(number(True, False)),
    ),
    "register": (class_of.register_buffer, made(NOWHERE, number(0, 4096, 2**63, -1))),
    "unregister": (class_of.unregister_buffer, made(NOWHERE)),
    "sessions": (sessions, made(number("hunt/s/1", "hunt/s/2", "hunt/s/3"), size)),
    "many sessions": (
        many_sessions,
        made(number(["hunt/s/1", "hunt/s/2"], ["hunt/s/3", "hunt/s/4", "hunt/s/3"], [], "hunt/s/1"), size),
    ),
    "reading session": (reading_session, made(good_key)),
    "nobody's session": (
        class_of.batch_put_from_multi_buffer_ranges,
        made(keys, number([], [[1]]), number([], [[1]]), number([], [[0]])),
    ),
    "session ends": (class_of.batch_put_session_end, made(keys)),
    "get_replica_desc": (class_of.get_replica_desc, made(good_key)),
    "batch_get_replica_desc": (class_of.batch_get_replica_desc, made(keys)),
    "batch_replica_clear": (class_of.batch_replica_clear, made(keys, number("", "localhost:1"))),
    "tasks": (tasks, made(good_key, number("localhost:1", ""))),
    "query_task": (class_of.query_task, made(number((0, 0), (1, 2), (-1, 2**70)))),
    "move": (class_of.create_move_task, made(good_key, number("a", ""), number("b", "a"))),
    "mount_segment": (
        class_of.mount_segment, made(number("/dev/null", "/none", "\0"), number(0, 4096, -1)),
    ),
    "segments": (segments, made(number(0, -1, 1, 2**70))),
    "unmount": (class_of.unmount_segment, made(number([], ["1-2"], ["x"], "1-2"))),
    "alloc": (class_of.alloc_from_mem_pool, made(number(0, 4096, -1, 2**62))),
    "pool": (pooled, made(number(1, 5000, 0, -1, 2**40))),
    "health": (class_of.health_check, made()),
    "setup": (
        lambda store, *more, **named: MooncakeDistributedStore().setup(*more, **named),
        made(number("localhost", "", "h:1"), number("P2PHANDSHAKE"), number(0, 1, -1, 2**70),
             number(0, 2**50), number("tcp", "rdma", ""), number(""), number("127.0.0.1:1", "x", "")),
    ),
    "setup by dict": (
        lambda store, given: MooncakeDistributedStore().setup(given),
        made(number({}, {"local_hostname": "h"}, {"local_hostname": "h", "metadata_server": 7})),
    ),
    "close": (closing, lambda chance, world: ((again(chance, world),), {})),
}
HANDLE = {
    "bytes": (lambda handle: bytes(handle), made(spoilt=0)),
    "ptr": (lambda handle: handle.ptr() + handle.size() + len(handle), made(spoilt=0)),
    "write": (lambda handle: memoryview(handle).cast("B").__setitem__(0, 7), made(spoilt=0)),
}
LEASE = {
    "ptr": (lambda lease: lease.ptr, made(spoilt=0)),
    "view": (lambda lease: bytes(lease.buffer[:5]), made(spoilt=0)),
    "release": (BufferLease.release, made()),
}
ALLOCATOR = {
    "alloc": (
        lambda allocator, count: allocator.free(allocator.alloc(count)),
        made(number(0, 1, 5000, -1, 2**62, 2**70)),
    ),
    "free": (MooncakeHostMemAllocator.free, made(NOWHERE)),
}


def settings(master: str, segment: int, buffer: int = 1 << 20) -> tuple[Any, ...]:
    return "localhost", "P2PHANDSHAKE", segment, buffer, "tcp", "", master


def begin(world: World) -> list[Any]:
    master = world.settings["master"]
    stores = [MooncakeDistributedStore() for _ in range(5)]
    assert stores[0].setup(*settings(master, 16 << 20)) == 0
    assert stores[1].setup(*settings(master, 8 << 20)) == 0
    assert stores[2].setup(*settings(master, 0)) == 0
    assert stores[3].setup(*settings(master, 0, 0)) == 0
    # One was never set up.
    return [*stores, MooncakeHostMemAllocator()]


def is_wrong(name: str, arguments: tuple[Any, ...], found: Any) -> str | None:
    """A value must begin with its key, over and over."""
    key = arguments[0] if arguments else None
    if name in ("get", "get again", "get_into") and isinstance(found, bytes) and plain(key):
        if found and found != value_of(key, len(found))[: len(found)]:
            return f"the value of {key!r} begins with {found[:40]!r}"
    return None


def serve(folder: pathlib.Path) -> tuple[dict[str, str], Callable[[], None]]:
    server = Server(folder)
    return {"master": server.master}, server.stop


TARGET = Target(
    name="mooncake.store",
    begin=begin,
    calls={
        MooncakeDistributedStore: STORE,
        BufferHandle: HANDLE,
        BufferLease: LEASE,
        MooncakeHostMemAllocator: ALLOCATOR,
    },
    keep=lambda found: isinstance(found, (BufferHandle, BufferLease)),
    is_wrong=is_wrong,
    serve=serve,
)
