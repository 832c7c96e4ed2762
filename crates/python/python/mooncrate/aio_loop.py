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


def running_loop() -> "AbstractEventLoop":
    """`asyncio.get_running_loop`: RuntimeError where there is none."""
    events = sys.modules.get("asyncio.events")
    # Without it, it may be that another thread is about to import it.
    find = getattr(events, "get_running_loop", None)
    if find is None:
        raise RuntimeError("no running event loop")
    loop: AbstractEventLoop = find()
    return loop


async def on_thread(work: Callable[[], Result]) -> Result:
    """The result of something that takes its time."""
    return await running_loop().run_in_executor(None, work)
