"""The loop of asyncio that a call is made in, and its threads.

asyncio is asked for and never imported: where a loop runs somebody has imported it, and for everybody else, the
programs and the stores without a loop, it would take longer than all of this package.
"""

import concurrent.futures.thread  # noqa: F401  Early: a fork while it is imported stops the child.
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

Result = TypeVar("Result")


def finder() -> "Callable[[], AbstractEventLoop]":
    """`asyncio.get_running_loop` itself; RuntimeError where it is not there, and so no loop is."""
    # Half of the module may be there: another thread is about to import it.
    find = getattr(sys.modules.get("asyncio.events"), "get_running_loop", None)
    if find is None:
        raise RuntimeError("no running event loop")
    found: Callable[[], AbstractEventLoop] = find
    return found


def running_loop() -> "AbstractEventLoop":
    """The loop that runs in this thread; RuntimeError where there is none."""
    return finder()()


async def on_thread(work: Callable[[], Result]) -> Result:
    """The result of something that takes its time."""
    return await running_loop().run_in_executor(None, work)
