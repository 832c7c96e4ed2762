"""What can go wrong, and what to do about it. A missing key is not an error."""

from typing import Literal

Advice = Literal["retry", "give up", "treat as miss", "treat as done"]


class Error(Exception):
    """A call gave no result. `advice` says what to do next."""

    advice: Advice
    """`"retry"`: the same call may succeed after `retry_after`. `"give up"`: it never will. `"treat as
    miss"`: compute the value again. `"treat as done"`: it is already as you want it."""

    retry_after: float | None
    """Seconds to wait before a retry; a hint."""

    kind: str = ""
    """What went wrong, in one or two words for programs (`"leased"`, `"no room"`, `"unreachable"`); empty
    where the class says it all."""

    ranks: tuple[int, ...] = ()
    """Ranks to look after, where a step of an expert exchange failed: those that are missing, differ, or gave bad
    input."""

    def __init__(
        self, *words: object, advice: Advice = "give up", retry_after: float | None = None
    ) -> None:
        super().__init__(*words)
        self.advice = advice
        self.retry_after = retry_after


class Busy(Error):
    """The store is there and cannot do it now: it is full, rebuilding, or the key is in use."""


class Full(Busy):
    """All blocks of a paged cache are in use. Free a sequence, or end some views, and try again."""


class Unavailable(Error):
    """The master, or the owner of the bytes, did not answer in time."""


class Denied(Error):
    """The credentials are missing, wrong, or not enough."""


class TooLarge(Error, ValueError):
    """The value is too large: for the store, or for the memory that it should be copied into."""


class Invalid(Error, ValueError):
    """The arguments make no sense: sending them again changes nothing."""


class UnknownSequence(Error, KeyError):
    """A paged cache has no sequence of this id: it was never allocated, or freed."""

    # That of KeyError shows its argument, quotes and all.
    __str__ = Exception.__str__


class Closed(Error):
    """The store was closed, the view was released, or either belongs to the parent process."""
