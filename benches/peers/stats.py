"""Figures of a row: what the rounds say, how the sides compare, and whether a goal is met."""

import statistics
from dataclasses import dataclass

# The two faces of ours; all others are peers.
OURS = ("drop-in", "native")
# Mooncake as it comes, and with its pool of connections; ours are held against the faster one.
MOONCAKE = ("Mooncake", "Mooncake-pool")


@dataclass(frozen=True)
class Figure:
    """The rounds of one side in one row, in calls per second."""

    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def low(self) -> float:
        return min(self.samples)

    @property
    def high(self) -> float:
        return max(self.samples)


def rate(calls: int, seconds: float) -> float:
    """Calls per second; a round without time is no round."""
    if calls <= 0 or seconds <= 0:
        raise ValueError(f"{calls} calls in {seconds} s are no figure")
    return calls / seconds


def shown(per_second: float, row: dict) -> float:
    """A rate in the unit of its row."""
    unit, batch = row["unit"], row["batch"]
    if unit == "µs":
        return 1e6 / per_second
    if unit == "keys/s":
        return per_second * batch
    if unit == "GB/s":
        return per_second * batch * row["size"] / 1e9
    return per_second


def mooncake(figures: dict[str, Figure]) -> Figure | None:
    """Mooncake at its best in this row; None if it was not measured."""
    seen = [figures[side] for side in MOONCAKE if side in figures]
    return max(seen, key=lambda one: one.median, default=None)


def ratio(figures: dict[str, Figure], side: str) -> float | None:
    """How many times as fast a side is as Mooncake; None if one of them was not measured."""
    peer = mooncake(figures)
    return None if side not in figures or peer is None else figures[side].median / peer.median


def behind(figures: dict[str, Figure]) -> list[tuple[str, str]]:
    """Which face of ours is slower than which peer, by their medians."""
    peers = [side for side in figures if side not in OURS]
    return [
        (side, peer)
        for side in OURS
        if side in figures
        for peer in peers
        if figures[side].median < figures[peer].median
    ]


@dataclass(frozen=True)
class Verdict:
    """A goal beside what was seen."""

    ratios: tuple[float | None, ...]
    met: bool | None


def judge(factors: tuple[float, ...], seen: list[dict[str, Figure] | None]) -> Verdict:
    """Whether the drop-in is as far ahead of Mooncake as the goal says, in each of its rows; None if
    one was not measured."""
    ratios = tuple(ratio(one, "drop-in") if one else None for one in seen)
    if any(one is None for one in ratios):
        return Verdict(ratios, None)
    # As the table shows them: 1.96 is printed as 2.0 and is not 2.
    return Verdict(ratios, all(one >= factor for one, factor in zip(ratios, factors, strict=True)))
