"""What the crash hunt may call of the package `mooncrate`, with makers of good and bad arguments.

Values say whose they are: each begins with the key that it was put under, so a wrong one is seen.
"""

import asyncio
import importlib.util
import pathlib
import pickle
import random
from collections.abc import Callable
from typing import Any

import numpy as np

import mooncrate
from conftest import Server
from crash_hunt import Maker, Target, World
from mooncrate import _native

# Seconds in which every call ends.
TIMEOUT = 2.0
KEYS = [f"hunt/{number}" for number in range(200)]
ALL_KEYS = {*KEYS, *(key.encode() for key in KEYS)}
TENSORS = [f"hunt/tensor/{number}" for number in range(20)]
SESSIONS = [f"hunt/session/{number}" for number in range(20)]


class Refuses:
    """Objects whose every protocol raises."""

    def __buffer__(self, flags: int) -> memoryview:
        raise KeyError("no buffer today")

    def __iter__(self) -> Any:
        raise KeyError("no items today")

    def __index__(self) -> int:
        raise KeyError("no number today")

    def __float__(self) -> float:
        raise KeyError("no number today")

    def __dlpack__(self, **_: Any) -> Any:
        raise KeyError("no tensor today")


class Text(str):
    """Text that is not quite `str`."""


def released() -> memoryview:
    view = memoryview(b"gone")
    view.release()
    return view


def endless() -> Any:
    yield "hunt/1"
    raise OSError("the end of the keys cannot be read")


BAD: list[Callable[[], Any]] = [
    lambda: None,
    lambda: 0,
    lambda: -1,
    lambda: 2**63,
    lambda: 2**64,
    lambda: -(2**70),
    lambda: 1.5,
    lambda: float("nan"),
    lambda: float("inf"),
    lambda: "",
    lambda: b"",
    lambda: "\ud800",
    lambda: "k\0ey",
    lambda: "x" * 9000,
    lambda: b"\xff" * 8193,
    lambda: Text("text/1"),
    lambda: True,
    lambda: object(),
    lambda: Refuses(),
    lambda: [],
    lambda: ["hunt/1", 7],
    lambda: [b"a", None, "c"],
    lambda: {},
    lambda: {"hunt/1": "text", 3: b""},
    lambda: (),
    lambda: [("hunt/1",)],
    lambda: [("hunt/1", b"1", b"2")],
    lambda: endless(),
    lambda: released(),
    lambda: memoryview(b"abcdef")[::2],
    lambda: memoryview(bytearray(16)),
    lambda: bytearray(),
    lambda: bytearray(3),
    lambda: b"read-only",
    lambda: np.zeros((4, 4))[:, 1],
    lambda: np.zeros((2, 2), dtype=object),
    lambda: np.zeros(0),
    lambda: np.float64(1),
    lambda: np.array("2026-01-01", dtype="datetime64[D]"),
    lambda: np.zeros((1,) * 9),
    lambda: lambda: None,
    lambda: mooncrate.Store,
    lambda: Ellipsis,
    lambda: "(" * 100,
    lambda: "a{1000000}",
]


def good_key(chance: random.Random, _world: World) -> Any:
    key = chance.choice(KEYS)
    return key if chance.random() < 0.8 else key.encode()


def value_of(key: Any, size: int) -> bytes:
    name = key.encode() if isinstance(key, str) else bytes(key)
    return (name + b"\n") * (size // (len(name) + 1) + 1)


def some_size(chance: random.Random) -> int:
    return chance.choice([0, 1, 300, 4096, 20_000, 70_000, 300_000])


Kind = Callable[[random.Random, World], Any]


def target(chance: random.Random, _world: World) -> Any:
    return chance.choice([bytearray, lambda size: np.zeros(size, np.uint8)])(some_size(chance))


def keys(chance: random.Random, world: World) -> Any:
    some = [good_key(chance, world) for _ in range(chance.choice([0, 1, 5, 50]))]
    return chance.choice([list, tuple, iter])(some)


def number(*of: Any) -> Kind:
    return lambda chance, _world: chance.choice(of)


def made(*kinds: Kind, spoilt: float = 0.25, **more: Kind) -> Maker:
    """Good arguments, of which some calls have one or more spoilt, one too few or one too many."""

    def make(chance: random.Random, world: World) -> tuple[tuple[Any, ...], dict[str, Any]]:
        arguments = [kind(chance, world) for kind in kinds]
        named = {name: kind(chance, world) for name, kind in more.items() if chance.random() < 0.2}
        while chance.random() < spoilt:
            bad = chance.choice(BAD)()
            where = chance.randrange(len(arguments) + len(named) + 2)
            if where < len(arguments):
                arguments[where] = bad
            elif where < len(arguments) + len(named):
                named[[*named][where - len(arguments)]] = bad
            elif chance.random() < 0.5:
                arguments.append(bad)
            else:
                named["nonsense"] = bad
        return tuple(arguments), named

    return make


def is_sized(key: Any, size: Any) -> bool:
    return isinstance(key, str | bytes) and type(size) is int and size >= 0


def putting(store: Any, key: Any, size: Any, *more: Any, **wishes: Any) -> Any:
    if is_sized(key, size):
        return store.put(key, value_of(key, size), *more, **wishes)
    # Some of what is spoilt is a value all the same, but not one that tells its key.
    return store.put("spoilt" if isinstance(key, str | bytes) else key, size, *more, **wishes)


def putting_parts(store: Any, key: Any, size: Any, *more: Any, **wishes: Any) -> Any:
    if not is_sized(key, size):
        return store.put_parts("spoilt" if isinstance(key, str | bytes) else key, size, *more, **wishes)
    value = value_of(key, size)
    return store.put_parts(key, [value[:7], b"", memoryview(value)[7:]], *more, **wishes)


def putting_batch(store: Any, some: Any, *more: Any, **wishes: Any) -> Any:
    items = {key: value_of(key, 300) for key in some if isinstance(key, str | bytes)}
    return store.put_batch(items if items else some, *more, **wishes)


def putting_tensor(store: Any, key: Any, shape: Any, *more: Any, **wishes: Any) -> Any:
    tensor = np.ones(shape, np.float32) if isinstance(shape, tuple) else shape
    return store.put_tensor(key, tensor, *more, **wishes)


def listing(store: Any, *arguments: Any, **more: Any) -> Any:
    found = store.list(*arguments, **more)
    next(found, None)
    return found


def closing(store: Any, *arguments: Any) -> Any:
    """Closes a store, but rarely: there would soon be none that is open."""
    return store.close(*arguments) if random.random() < 0.02 else store.closed


def loop(store: Any, master: Any, some: Any) -> Any:
    """A loop of its own with a handful of calls, some of them cancelled."""

    async def work() -> Any:
        options = {"master": master, "timeout": TIMEOUT} if master else {"segment_size": "4MiB"}
        async with mooncrate.AsyncStore(threads=2, **options) as twin:
            tasks = [asyncio.ensure_future(twin.get(key)) for key in some]
            tasks += [asyncio.ensure_future(twin.put("hunt/1", value_of("hunt/1", 300)))]
            await asyncio.sleep(0)
            for task in tasks[::3]:
                task.cancel()
            found = await asyncio.gather(*tasks, return_exceptions=True)
        return [one for one in found if isinstance(one, bytes)]

    return asyncio.run(work())


WISHES: dict[str, Kind] = {
    "replicas": number(1, 1, 2, 200, -1),
    "soft_pin": number(0.5, 0, -1, float("nan"), 1e300),
    "hard_pin": number(False),
    "group": number("group", ""),
    "expire": number(1.0, 0.0, -1.0),
    "upsert": number(True, True, False),
}
UPSERT: dict[str, Kind] = {name: kind for name, kind in WISHES.items() if name != "upsert"}
FORCE: dict[str, Kind] = {"force": number(True, False, "yes")}


def size(chance: random.Random, _world: World) -> int:
    return some_size(chance)


STORE = {
    "put": (putting, made(good_key, size, **WISHES)),
    "put_parts": (putting_parts, made(good_key, size, **WISHES)),
    "put_batch": (putting_batch, made(keys, **WISHES)),
    "put_tensor": (
        putting_tensor,
        made(number(*TENSORS), number((), (3, 4), (0, 2), (100, 100)), **WISHES),
    ),
    "get_array": (mooncrate.Store.get_array, made(number(*TENSORS, *KEYS[:3]))),
    "view_array": (mooncrate.Store.view_array, made(number(*TENSORS, *KEYS[:3]))),
    "get_tensor": (mooncrate.Store.get_tensor, made(number(*TENSORS))),
    "get": (mooncrate.Store.get, made(good_key)),
    "get again": (mooncrate.Store.get, made(good_key)),
    "get_into": (mooncrate.Store.get_into, made(good_key, target)),
    "get_into_batch": (
        lambda store, first, second, into, other: store.get_into_batch(
            [(first, into), (second, other)]
        ),
        made(good_key, good_key, target, target),
    ),
    "get_range": (
        mooncrate.Store.get_range,
        made(good_key, number(0, 5, 2**40, -1), number(0, 1, 100, 2**62)),
    ),
    "view": (mooncrate.Store.view, made(good_key)),
    "size": (mooncrate.Store.size, made(good_key)),
    "exists": (mooncrate.Store.exists, made(good_key)),
    "in": (lambda store, key: key in store, made(good_key)),
    "remove": (mooncrate.Store.remove, made(good_key, **FORCE)),
    "remove_prefix": (
        mooncrate.Store.remove_prefix,
        made(number("hunt/19", "hunt/none", b"hunt/2"), **FORCE),
    ),
    "remove_regex": (
        mooncrate.Store.remove_regex,
        made(number("hunt/1[0-3]$", "(", "^$", "["), **FORCE),
    ),
    "list": (listing, made(number("hunt/", "", b"x", None))),
    "stats": (mooncrate.Store.stats, made()),
    "get_batch": (mooncrate.Store.get_batch, made(keys)),
    "exists_batch": (mooncrate.Store.exists_batch, made(keys)),
    "remove_batch": (mooncrate.Store.remove_batch, made(keys, **FORCE)),
    "put_session": (
        mooncrate.Store.put_session,
        made(number(*SESSIONS), number(0, 10, 5000, 2**50), **UPSERT),
    ),
    "get_session": (
        mooncrate.Store.get_session,
        made(number(*SESSIONS, *KEYS[:5]), lease=number(0.1, 5, 1e9, -1)),
    ),
    "with": (lambda store: store.__enter__(), made()),
    "repr": (repr, made(spoilt=0)),
    "pickle": (pickle.dumps, made(spoilt=0)),
    "close": (closing, made(spoilt=0.05)),
    "new": (
        lambda store, **options: mooncrate.Store(
            **{"segment_size": "1MiB", "timeout": TIMEOUT, **options}
        ),
        made(
            master=number("127.0.0.1:1", "", "nonsense", "unix:/none"),
            segment_size=number("1MiB", 0, "x", 2**60),
            replicas=number(1, 0, 255),
            timeout=number(1.0, 0, -1, float("nan")),
            tenant=number("", "a", "x" * 300),
            token_file=number("/none", "/"),
            listen=number("127.0.0.1:0", "x"),
            host=number("h"),
            zone=number("z"),
        ),
    ),
    "loop": (
        loop,
        lambda chance, world: (
            (
                world.settings["master"] if chance.random() < 0.3 else None,
                [chance.choice(KEYS) for _ in range(chance.randrange(20))],
            ),
            {},
        ),
    ),
}
if importlib.util.find_spec("torch") is None:
    # It would be searched for in every call, and a fork meanwhile leaves the lock of the import shut.
    del STORE["get_tensor"]
VIEW = {
    "bytes": (lambda view: bytes(view), made(spoilt=0)),
    "numpy": (lambda view: np.frombuffer(view, np.uint8), made(spoilt=0)),
    "memoryview": (memoryview, made(spoilt=0)),
    "from_dlpack": (
        lambda view, **more: np.from_dlpack(view, **more),
        made(copy=number(True, False, None)),
    ),
    "__dlpack__": (
        _native.View.__dlpack__,
        made(
            max_version=number((1, 0), (0, 5), (2, 0)),
            dl_device=number((1, 0), (2, 0)),
            copy=number(True, None),
        ),
    ),
    "len": (len, made(spoilt=0)),
    "release": (_native.View.release, made()),
    "with": (lambda view: view.__enter__(), made()),
    "repr": (repr, made(spoilt=0)),
    "pickle": (pickle.dumps, made(spoilt=0)),
}
LISTING = {
    "next": (next, made(spoilt=0)),
    "all": (lambda found: sum(1 for _ in found), made(spoilt=0)),
}
PUT_SESSION = {
    "write": (
        _native.PutSession.write,
        made(number(0, 5, 10, 2**60), number(b"12345", b"", bytearray(5000))),
    ),
    "end": (_native.PutSession.end, made()),
    "revoke": (_native.PutSession.revoke, made()),
    "with": (lambda session: session.__enter__(), made()),
    "exit": (_native.PutSession.__exit__, made(number(None, ValueError))),
}
GET_SESSION = {
    "read_into": (_native.GetSession.read_into, made(number(0, 1, 5, 2**60), target)),
    "nbytes": (lambda session: session.nbytes, made(spoilt=0)),
    "lease_left": (lambda session: session.lease_left, made(spoilt=0)),
    "close": (_native.GetSession.close, made()),
    "with": (lambda session: session.__enter__(), made()),
}


def begin(world: World) -> list[Any]:
    master = world.settings["master"]
    closed = mooncrate.Store(segment_size="1MiB")
    closed.close()
    return [
        mooncrate.Store(segment_size="16MiB", timeout=TIMEOUT),
        mooncrate.Store(segment_size="16MiB", timeout=TIMEOUT),
        mooncrate.Store(master=master, timeout=TIMEOUT),
        mooncrate.Store(master=master, timeout=TIMEOUT, shared_memory=False),
        mooncrate.Store(master=master, timeout=TIMEOUT, segment_size="8MiB"),
        closed,
    ]


def is_wrong(name: str, arguments: tuple[Any, ...], found: Any) -> str | None:
    """A value must begin with its key, over and over, or be a part of that."""
    key = arguments[0] if arguments else None
    if name in ("get", "get again") and isinstance(key, str | bytes) and key in ALL_KEYS:
        if found is not None and found != value_of(key, len(found))[: len(found)]:
            return f"the value of {key!r} begins with {found[:40]!r}"
    if name == "loop" and any(not one.startswith(b"hunt/") for one in found if one):
        return "a value of another key"
    return None


def serve(folder: pathlib.Path) -> tuple[dict[str, str], Callable[[], None]]:
    server = Server(folder)
    return {"master": server.master}, server.stop


KEPT = (
    mooncrate.Store,
    _native.View,
    _native.Listing,
    _native.PutSession,
    _native.GetSession,
    np.ndarray,
)
TARGET = Target(
    name="mooncrate",
    begin=begin,
    calls={
        mooncrate.Store: STORE,
        _native.View: VIEW,
        _native.Listing: LISTING,
        _native.PutSession: PUT_SESSION,
        _native.GetSession: GET_SESSION,
        np.ndarray: {"sum": (lambda array: array.sum(), made(spoilt=0))},
    },
    keep=lambda found: isinstance(found, KEPT),
    is_wrong=is_wrong,
    serve=serve,
)
