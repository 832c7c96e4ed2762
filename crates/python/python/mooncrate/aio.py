"""The store for asyncio: the same calls, on a few threads, so that the loop never waits.

What must stay true: the loop's thread does nothing but make answers and settle them, some at a
time; the threads that carry calls out are native and leave the GIL to the loop (`_native.Calls`).
A call makes no task, and nothing that Python's garbage collector counts (`_native.Answer`).
"""

import builtins
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeAlias, TypeVar

from mooncrate import arrays
from mooncrate._native import Calls, View
from mooncrate.aio_loop import finder, on_thread, running_loop
from mooncrate.aio_sessions import AsyncGetSession, AsyncPutSession
from mooncrate.errors import Closed, Error, TooLarge
from mooncrate.store import TRIES, Store, moving

if TYPE_CHECKING:
    import numpy

    from mooncrate._native import _Memory as Memory
    from mooncrate.stats import Stats

__all__ = ["AsyncStore"]

THREADS_MAX = 1024

Given = ParamSpec("Given")
Result = TypeVar("Result")
# What a call gives at once. To type checkers it is a coroutine, which it passes for.
Later: TypeAlias = Coroutine[Any, Any, Result]


async def refused(error: Exception) -> Any:
    """What a call gives whose arguments make no sense."""
    raise error


class AsyncStore:
    """A `Store` whose calls are awaited.

        async with mooncrate.AsyncStore(master="127.0.0.1:7411") as store:
            await store.put("key", b"value")

    Takes what `Store` takes, and `threads`: how many calls may be under way at once; others wait
    their turn. By itself it takes as many as there are cores, 2 to 8: more would take the cores
    away from the loop. Where calls mostly wait for other hosts, more of them pay. It belongs to the loop that it is used in first, and to another one when that is
    closed.

    A call begins at once, and is carried out whether or not it is awaited; errors come when it is,
    and the loop's handler hears of those that nobody asks for. It goes wherever asyncio takes a
    coroutine: `gather`, `wait_for`, `create_task`. (`asyncio.wait` takes no coroutines, but tasks
    made of them.) A call that began can be awaited more than once. Calls from outside of the loop,
    as for `asyncio.run_coroutine_threadsafe`, and those for tensors and sessions, begin when they
    are awaited.

    A call that is cancelled may still be carried out, and ends by its timeout: leave its buffers
    alone until then.
    """

    def __init__(self, *, threads: int | None = None, **options: Any) -> None:
        if threads is None:
            threads = min(max(len(os.sched_getaffinity(0)), 2), 8)
        if not 1 <= threads <= THREADS_MAX:
            raise ValueError(f"threads={threads}: 1 to {THREADS_MAX} are possible")
        self._threads = threads
        self._options = options
        self._store: Store | None = None
        self._calls: Calls | None = None
        # Asked by every call.
        self._running = running_loop
        self._closed = False

    async def open(self) -> Self:
        """Opens the store; `async with` does it by itself."""
        if self._closed:
            raise Closed("the store is closed")
        if self._store is None:
            opened = await on_thread(partial(Store, **self._options))
            # Somebody else may have opened or closed it meanwhile.
            if self._store is None and not self._closed:
                self._store = opened
            else:
                await on_thread(opened.close)
        self._ready()
        return self

    async def close(self) -> None:
        """Closes the store after the calls that are under way. More than once is fine."""
        self._closed = True
        store, self._store = self._store, None
        calls, self._calls = self._calls, None
        loop = running_loop()
        if calls is not None:
            if calls.loop is loop:
                await calls.over()
                loop.remove_reader(calls.fileno())
            await on_thread(calls.stop)
        if store is not None:
            await on_thread(store.close)

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def put(self, key: str | bytes, value: "Memory", **wishes: Any) -> Later[bool]:
        """`Store.put`."""
        return self._call(Calls.put_parts, key, [value], **wishes)

    def put_parts(
        self, key: str | bytes, parts: "builtins.list[Memory]", **wishes: Any
    ) -> Later[bool]:
        """`Store.put_parts`."""
        return self._call(Calls.put_parts, key, parts, **wishes)

    def get(self, key: str | bytes) -> Later[bytes | None]:
        """`Store.get`."""
        return self._call(Calls.get, key)

    def get_into(
        self, key: str | bytes, target: "Memory", *, stream: Any = None
    ) -> Later[int | None]:
        """`Store.get_into`. Memory of a GPU has the bytes for what is queued after the await."""
        return self._call(Calls.get_into, key, target, stream=stream)

    def get_range(self, key: str | bytes, start: int, length: int) -> Later[bytes | None]:
        """`Store.get_range`."""
        return self._call(Calls.get_range, key, start, length)

    def view(self, key: str | bytes) -> Later[View | None]:
        """`Store.view`."""
        return self._call(Calls.view, key)

    def size(self, key: str | bytes) -> Later[int | None]:
        """`Store.size`."""
        return self._call(Calls.size, key)

    def exists(self, key: str | bytes) -> Later[bool]:
        """`Store.exists`."""
        return self._call(Calls.exists, key)

    def remove(self, key: str | bytes, *, force: bool = False) -> Later[bool]:
        """`Store.remove`."""
        return self._call(Calls.remove, key, force=force)

    def remove_prefix(self, prefix: str | bytes, *, force: bool = False) -> Later[int]:
        """`Store.remove_prefix`."""
        return self._call(Calls.remove_prefix, prefix, force=force)

    def remove_regex(self, regex: str, *, force: bool = False) -> Later[int]:
        """`Store.remove_regex`."""
        return self._call(Calls.remove_regex, regex, force=force)

    async def list(self, prefix: str | bytes | None = None) -> AsyncIterator[bytes]:
        """`Store.list`, with `async for`."""
        cursor: int | None = 0
        while cursor is not None:
            keys, cursor = await self._ready().page(prefix, cursor)
            for key in keys:
                yield key

    def stats(self) -> "Later[Stats]":
        """`Store.stats`."""
        return self._call(Calls.stats)

    def put_batch(
        self,
        items: "Mapping[str | bytes, Memory] | Iterable[tuple[str | bytes, Memory]]",
        **wishes: Any,
    ) -> "Later[builtins.list[bool | Error]]":
        """`Store.put_batch`."""
        return self._call(Calls.put_batch, items, **wishes)

    def get_into_batch(
        self,
        items: "Mapping[str | bytes, Memory] | Iterable[tuple[str | bytes, Memory]]",
        *,
        stream: Any = None,
    ) -> "Later[builtins.list[int | None | Error]]":
        """`Store.get_into_batch`."""
        return self._call(Calls.get_into_batch, items, stream=stream)

    def get_batch(
        self, keys: Iterable[str | bytes]
    ) -> "Later[builtins.list[bytes | None | Error]]":
        """`Store.get_batch`."""
        return self._call(Calls.get_batch, keys)

    def exists_batch(self, keys: Iterable[str | bytes]) -> "Later[builtins.list[bool | Error]]":
        """`Store.exists_batch`."""
        return self._call(Calls.exists_batch, keys)

    def remove_batch(
        self, keys: Iterable[str | bytes], *, force: bool = False
    ) -> "Later[builtins.list[bool | Error]]":
        """`Store.remove_batch`."""
        return self._call(Calls.remove_batch, keys, force=force)

    async def put_tensor(self, key: str | bytes, tensor: Any, **wishes: Any) -> bool:
        """`Store.put_tensor`."""
        return await self.put_parts(key, arrays.parts(tensor), **wishes)

    async def get_tensor(self, key: str | bytes) -> Any | None:
        """`Store.get_tensor`."""
        return await self._read(key, arrays.TorchRoom)

    async def get_array(self, key: str | bytes) -> "numpy.ndarray[Any, Any] | None":
        """`Store.get_array`."""
        found: numpy.ndarray[Any, Any] | None = await self._read(key, arrays.NumpyRoom)
        return found

    async def view_array(self, key: str | bytes) -> "numpy.ndarray[Any, Any] | None":
        """`Store.view_array`."""
        view = await self.view(key)
        return None if view is None else arrays.array_over(key, view)

    async def put_session(self, key: str | bytes, size: int, **wishes: Any) -> AsyncPutSession:
        """`Store.put_session`: `async with await store.put_session(key, size) as session`."""
        store = self._opened()
        return AsyncPutSession(await on_thread(partial(store.put_session, key, size, **wishes)))

    async def get_session(self, key: str | bytes, *, lease: float = 10.0) -> AsyncGetSession | None:
        """`Store.get_session`."""
        store = self._opened()
        session = await on_thread(partial(store.get_session, key, lease=lease))
        return None if session is None else AsyncGetSession(session)

    async def _read(self, key: str | bytes, room: type[arrays.TorchRoom | arrays.NumpyRoom]) -> Any:
        for _ in range(TRIES):
            size = await self.size(key)
            if size is None:
                return None
            memory = room(size)
            try:
                length = await self.get_into(key, memory.target())
            except TooLarge:
                continue
            return None if length is None else memory.tensor(key, length)
        raise moving(key)

    def _call(
        self,
        call: Callable[Concatenate[Calls, Given], Later[Result]],
        *given: Given.args,
        **wishes: Given.kwargs,
    ) -> Later[Result]:
        """Begins a call. What is wrong with it comes out when it is awaited."""
        try:
            calls = self._ready()
        except Exception:
            # Closed, not open yet, or not in its loop: that may be different when it is awaited.
            return self._later(call, *given, **wishes)
        try:
            return call(calls, *given, **wishes)
        except Exception as error:
            return refused(error)

    async def _later(
        self,
        call: Callable[Concatenate[Calls, Given], Later[Result]],
        *given: Given.args,
        **wishes: Given.kwargs,
    ) -> Result:
        return await call(self._ready(), *given, **wishes)

    def _opened(self) -> Store:
        if self._store is None:
            words = (
                "the store is closed" if self._closed else "open the store first, with `async with`"
            )
            raise Closed(words)
        return self._store

    def _ready(self) -> Calls:
        calls = self._calls
        if calls is not None and calls.loop is self._running():
            return calls
        return self._bind()

    def _bind(self) -> Calls:
        """Starts threads for the running loop, and listens to them."""
        store = self._opened()
        if store.closed:
            raise Closed("this store was opened before a fork; open one in this process")
        loop = running_loop()
        old = self._calls
        if old is not None and not old.loop.is_closed():
            raise RuntimeError("this AsyncStore is used by another loop; open one in each loop")
        # There is a loop, so there is asyncio, and it need not be looked for again.
        self._running = finder()
        calls = Calls(store, loop, self._threads)
        loop.add_reader(calls.fileno(), calls._answer)
        self._calls = calls
        return calls
