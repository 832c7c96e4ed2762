"""Sessions for asyncio: what moves parts of values does it on threads of the loop's executor.

A part is megabytes rather than bytes, so a thread per part under way costs little beside it.
"""

from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Self

from mooncrate._native import GetSession, PutSession
from mooncrate.aio_loop import on_thread

if TYPE_CHECKING:
    from typing_extensions import Buffer


class AsyncPutSession:
    """A `PutSession` whose calls are awaited. `async with` ends it, or gives it up."""

    def __init__(self, session: PutSession) -> None:
        self._session = session

    async def write(self, start: int, part: "Buffer") -> None:
        """`PutSession.write`."""
        await on_thread(partial(self._session.write, start, part))

    async def end(self) -> None:
        """`PutSession.end`."""
        await on_thread(self._session.end)

    async def revoke(self) -> bool:
        """`PutSession.revoke`."""
        return await on_thread(self._session.revoke)

    async def __aenter__(self) -> Self:
        self._session.__enter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await on_thread(partial(self._session.__exit__, kind, error, trace))


class AsyncGetSession:
    """A `GetSession` whose reads are awaited."""

    def __init__(self, session: GetSession) -> None:
        self._session = session

    @property
    def nbytes(self) -> int:
        """Bytes of the value."""
        return self._session.nbytes

    @property
    def lease_left(self) -> float:
        """Seconds that are left of the lease."""
        return self._session.lease_left

    async def read_into(self, start: int, target: "Buffer") -> int:
        """`GetSession.read_into`."""
        return await on_thread(partial(self._session.read_into, start, target))

    async def close(self) -> None:
        """`GetSession.close`."""
        await on_thread(self._session.close)

    async def __aenter__(self) -> Self:
        self._session.__enter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
