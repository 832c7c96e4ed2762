"""The rows of the race, their names, and what the goals ask of some of them.

A row is one call, one size, one number of threads. The names of the goals are those under which they were
agreed; `--rows` finds a row by either name.
"""

from dataclasses import dataclass

KIB, MIB = 1 << 10, 1 << 20
THREADS = (1, 2, 4, 8)
SIZES = {4 * KIB: "4 KiB", 64 * KIB: "64 KiB", MIB: "1 MiB", 16 * MIB: "16 MiB", 128 * KIB: "32 × 4 KiB"}


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    name: str
    call: str
    size: int = 0
    batch: int = 1
    threads: int = 1
    #: Each key is read once by a store that has never heard of it.
    first: bool = False
    #: Whose memory holds the values: of another process, or of the caller itself.
    own: bool = False
    #: How the figure is shown: calls/s, keys/s, GB/s, µs.
    unit: str = "calls/s"

    @property
    def puts(self) -> bool:
        return self.call in ("put", "put_from", "put_batch", "batch_put_from", "put + remove")


def threads_word(count: int) -> str:
    return f"{count} thread" if count == 1 else f"{count} threads"


def _moves(call: str, size: int, threads: int, *, first: bool = False, own: bool = False) -> Row:
    name = f"{call} {SIZES[size]}"
    name += ", first read of a key" if first else ""
    name += ", own segment" if own else ""
    small = size == 4 * KIB
    unit = "GB/s" if not small else "µs" if threads == 1 else "calls/s"
    return Row(f"{name}, {threads_word(threads)}", call, size, 1, threads, first, own, unit)


def _batch(call: str, batch: int, size: int, threads: int) -> Row:
    name = f"{call} of {batch} × {SIZES[size]}, {threads_word(threads)}"
    small = size == 4 * KIB
    unit = "GB/s" if not small else "µs" if threads == 1 else "keys/s"
    return Row(name, call, size, batch, threads, unit=unit)


def _grid() -> list[Row]:
    rows = []
    for batch in (128, 32):
        for threads in THREADS:
            name = f"batch_is_exist of {batch}, {threads_word(threads)}"
            rows.append(Row(name, "batch_is_exist", 64, batch, threads, unit="keys/s"))
    for threads in THREADS:
        rows.append(Row(f"is_exist, {threads_word(threads)}", "is_exist", 64, 1, threads))
    for name, call in (("is_exist of a missing key", "is_missing"), ("get_size", "get_size")):
        for threads in (1, 8):
            rows.append(Row(f"{name}, {threads_word(threads)}", call, 64, 1, threads))
    for threads in THREADS:
        rows.append(
            Row(f"put + remove of 128 bytes, {threads_word(threads)}", "put + remove", 128, 1, threads)
        )
    for call, first in (
        ("get_into", True),
        ("get_into", False),
        ("get", False),
        ("put_from", False),
        ("put", False),
    ):
        for size in (4 * KIB, 64 * KIB, MIB, 16 * MIB):
            # Two sizes from every number of threads; of the others the ends of the scale.
            for threads in THREADS if size in (4 * KIB, MIB) else (1, 8):
                rows.append(_moves(call, size, threads, first=first))
    for call in ("batch_put_from", "batch_get_into"):
        for batch, size in ((32, 4 * KIB), (128, 4 * KIB), (32, 64 * KIB), (128, 64 * KIB), (32, MIB)):
            for threads in (1, 8):
                rows.append(_batch(call, batch, size, threads))
    for call in ("put_batch", "get_batch"):
        for batch in (32, 128):
            rows.append(_batch(call, batch, 4 * KIB, 1))
    rows.append(_batch("batch_get_into_multi_buffers", 16, 128 * KIB, 1))
    for call in ("put_from", "get_into"):
        for size in (4 * KIB, MIB):
            for threads in (1, 8):
                rows.append(_moves(call, size, threads, own=True))
    return rows


ROWS = _grid()


@dataclass(frozen=True)
class Goal:
    """How far ahead of Mooncake the drop-in shall be, in each of some rows."""

    name: str
    rows: tuple[str, ...]
    factors: tuple[float, ...]
    words: str


def _goal(name: str, factor: float, *rows: str, words: str = "") -> Goal:
    return Goal(name, rows, (factor,) * len(rows), words or f"{factor:g} ×")


GOALS = [
    _goal("batch_is_exist of 128, 8 threads, keys/s", 2, "batch_is_exist of 128, 8 threads"),
    _goal("batch_is_exist of 32, 8 threads", 2, "batch_is_exist of 32, 8 threads"),
    _goal("is_exist, 8 threads", 2, "is_exist, 8 threads"),
    _goal("is_exist, 1 thread", 2, "is_exist, 1 thread"),
    _goal(
        "get_into 4 KiB, first read of a key, 8 threads",
        2,
        "get_into 4 KiB, first read of a key, 8 threads",
    ),
    _goal("put_from 4 KiB, 8 threads", 2, "put_from 4 KiB, 8 threads"),
    _goal(
        "put + remove of 128 bytes, 1 / 8 threads",
        2,
        "put + remove of 128 bytes, 1 thread",
        "put + remove of 128 bytes, 8 threads",
    ),
    _goal("batch_put_from of 32 × 4 KiB", 4, "batch_put_from of 32 × 4 KiB, 1 thread"),
    _goal("put_from 4 KiB, 1 thread", 3, "put_from 4 KiB, 1 thread"),
    _goal("get_into 4 KiB, first read, 1 thread", 4, "get_into 4 KiB, first read of a key, 1 thread"),
    Goal(
        "get_into 1 MiB / 16 MiB, 1 thread, GB/s",
        ("get_into 1 MiB, 1 thread", "get_into 16 MiB, 1 thread"),
        (2.0, 1.9),
        "keep 2.0 / 1.9 ×",
    ),
    _goal("batch_get_into 32 × 1 MiB, GB/s", 4, "batch_get_into of 32 × 1 MiB, 1 thread"),
]


def names(row: Row) -> list[str]:
    """All names of a row."""
    return [row.name] + [goal.name for goal in GOALS if row.name in goal.rows]
