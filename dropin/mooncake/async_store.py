"""`MooncakeDistributedStoreAsync`: every call `name` also as the coroutine `async_name`.

A coroutine runs its call in the loop's default executor. Calls give the interpreter up while they wait, so
the loop goes on meanwhile.
"""

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any

from .store import MooncakeDistributedStore

PREFIX = "async_"


class MooncakeDistributedStoreAsync(MooncakeDistributedStore):
    """The store, for asyncio."""

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        # Only asked for what is not there; what is made here stays on the instance.
        if not name.startswith(PREFIX):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        call = getattr(self, name.removeprefix(PREFIX))
        if not callable(call):
            raise AttributeError(f"{name.removeprefix(PREFIX)!r} is no call")

        @functools.wraps(call)
        async def coroutine(*args: Any, **more: Any) -> Any:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(None, functools.partial(call, *args, **more))

        setattr(self, name, coroutine)
        return coroutine
