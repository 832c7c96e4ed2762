"""The store for asyncio: the same calls, on a bounded number of threads, so that the loop never waits."""

import asyncio
import builtins
import os
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from mooncrate._native import Store, View
from mooncrate.errors import Closed, Error

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from mooncrate.stats import Stats

__all__ = ["AsyncStore"]

Result = TypeVar("Result")

# Keys of a listing that one trip to a thread brings.
PAGE = 1000


class AsyncStore:
    """A `Store` whose calls are awaited.

        async with mooncrate.AsyncStore(master="127.0.0.1:7411") as store:
            await store.put("key", b"value")

    Takes what `Store` takes, and `threads`: how many calls may be under way at once; others wait their
    turn, and so does nobody else. A call that is cancelled still ends by its timeout on its thread: leave
    its buffers alone until then.
    """

    def __init__(self, *, threads: int = 8, **options: Any) -> None:
        if threads < 1:
            raise ValueError(f"threads={threads}: at least one is needed")
        self._options = options
        self._store: Store | None = None
        self._closed = False
        self._process = os.getpid()
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="mooncrate")

    async def open(self) -> Self:
        """Opens the store; `async with` does it by itself."""
        if self._closed:
            raise Closed("the store is closed")
        if self._store is None:
            self._store = await self._on_thread(partial(Store, **self._options))
        return self

    async def close(self) -> None:
        """Closes the store after the calls that wait for a thread. More than once is fine."""
        self._closed = True
        store, self._store = self._store, None
        if store is not None:
            await self._on_thread(store.close)
        self._threads.shutdown(wait=False)

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def put(self, key: str | bytes, value: "Buffer", **wishes: Any) -> bool:
        """`Store.put`."""
        return await self._call(Store.put, key, value, **wishes)

    async def get(self, key: str | bytes) -> bytes | None:
        """`Store.get`."""
        return await self._call(Store.get, key)

    async def get_into(self, key: str | bytes, target: "Buffer") -> int | None:
        """`Store.get_into`."""
        return await self._call(Store.get_into, key, target)

    async def get_range(self, key: str | bytes, start: int, length: int) -> bytes | None:
        """`Store.get_range`."""
        return await self._call(Store.get_range, key, start, length)

    async def view(self, key: str | bytes) -> View | None:
        """`Store.view`."""
        return await self._call(Store.view, key)

    async def size(self, key: str | bytes) -> int | None:
        """`Store.size`."""
        return await self._call(Store.size, key)

    async def exists(self, key: str | bytes) -> bool:
        """`Store.exists`."""
        return await self._call(Store.exists, key)

    async def remove(self, key: str | bytes, *, force: bool = False) -> bool:
        """`Store.remove`."""
        return await self._call(Store.remove, key, force=force)

    async def remove_prefix(self, prefix: str | bytes, *, force: bool = False) -> int:
        """`Store.remove_prefix`."""
        return await self._call(Store.remove_prefix, prefix, force=force)

    async def remove_regex(self, regex: str, *, force: bool = False) -> int:
        """`Store.remove_regex`."""
        return await self._call(Store.remove_regex, regex, force=force)

    async def list(self, prefix: str | bytes | None = None) -> AsyncIterator[bytes]:
        """`Store.list`, with `async for`."""
        keys = await self._call(Store.list, prefix)
        while page := await self._on_thread(lambda: [*islice(keys, PAGE)]):
            for key in page:
                yield key

    async def stats(self) -> "Stats":
        """`Store.stats`."""
        return await self._call(Store.stats)

    async def put_batch(
        self,
        items: "Mapping[str | bytes, Buffer] | Iterable[tuple[str | bytes, Buffer]]",
        **wishes: Any,
    ) -> "builtins.list[bool | Error]":
        """`Store.put_batch`."""
        return await self._call(Store.put_batch, items, **wishes)

    async def get_batch(self, keys: Iterable[str | bytes]) -> "builtins.list[bytes | None | Error]":
        """`Store.get_batch`."""
        return await self._call(Store.get_batch, keys)

    async def exists_batch(self, keys: Iterable[str | bytes]) -> "builtins.list[bool | Error]":
        """`Store.exists_batch`."""
        return await self._call(Store.exists_batch, keys)

    async def remove_batch(
        self, keys: Iterable[str | bytes], *, force: bool = False
    ) -> "builtins.list[bool | Error]":
        """`Store.remove_batch`."""
        return await self._call(Store.remove_batch, keys, force=force)

    async def _call(
        self,
        method: Callable[..., Result],
        *arguments: Any,
        **more: Any,
    ) -> Result:
        store = self._store
        if store is None:
            words = "the store is closed" if self._closed else "open the store first, with `async with`"
            raise Closed(words)
        return await self._on_thread(partial(method, store, *arguments, **more))

    async def _on_thread(self, work: Callable[[], Result]) -> Result:
        if os.getpid() != self._process:
            raise Closed("this store belongs to the parent process; open one in this process")
        try:
            future = asyncio.get_running_loop().run_in_executor(self._threads, work)
        except RuntimeError:
            raise Closed("the store is closed") from None
        return await future
