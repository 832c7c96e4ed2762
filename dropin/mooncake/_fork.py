"""What a forked child inherits: locks that threads of its parent may hold for ever.

Nothing that was set up before a fork works after it (its threads stayed in the parent), but it must say so
and not wait for a lock that nobody will open. So everything with a lock is made anew in the child.
"""

import os
import threading
import weakref
from typing import Protocol


class Inherited(Protocol):
    """Something that is made anew in a child."""

    def after_fork(self) -> None: ...


_all: "weakref.WeakSet[Inherited]" = weakref.WeakSet()


def watch(thing: Inherited) -> None:
    """Has it made anew in children."""
    _all.add(thing)


def _in_child() -> None:
    for thing in list(_all):
        thing.after_fork()


os.register_at_fork(after_in_child=_in_child)


class Lock:
    """A lock that is open in a child, whoever held it in the parent."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        watch(self)

    def after_fork(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
