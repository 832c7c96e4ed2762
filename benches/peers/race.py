"""The grid of calls: every row on every side in turn, round by round."""

import dataclasses
import sys
import time
from collections.abc import Callable

import stats
from processes import Asked, Silent
from rows import MIB, Row
from sides import Cluster, Home, Side

# Keys that are read again and again; of larger values fewer.
KEYS, KEY_BYTES = 1024, 256 * MIB
FIRST_KEYS, FIRST_BYTES = 4096, 512 * MIB
# What a round takes beside its sections: arguments, comparisons, first reads that are stored anew. Seen, roughly.
BESIDE = 0.12
ROUND_LEAST, ROUND_MOST = 0.08, 0.3


def note(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


def round_seconds(left: float, rounds: int, beside: float) -> float:
    """How long a round may be, so that all that are left end in the time that is left."""
    return min(ROUND_MOST, max(ROUND_LEAST, left / max(1, rounds) - beside))


class Stand:
    """One side with its servers and its caller."""

    def __init__(self, home: Home, side: Side, own: bool) -> None:
        # Where the caller lends the memory itself, nobody else does.
        self.side, self.own = side, own
        self.cluster = Cluster(home, side, owners=0 if own else 1)
        segment = self.cluster.segment if own else 0
        self.caller = self.cluster.worker(segment=segment)
        self.writer = self.caller if own else self.cluster.lenders[0]

    def offers(self, row: Row) -> bool:
        if row.own and not self.side.owners:
            return False
        return ({"put", "remove"} if row.call == "put + remove" else {row.call}) <= self.caller.calls

    def prepare(self, row: Row, prefix: str) -> int:
        """Stores what the rounds of a row read; how many keys."""
        if row.puts or row.first:
            return 0
        count = max(2 * row.batch, min(KEYS, KEY_BYTES // row.size))
        self.writer.ask("fill", prefix=prefix, count=count, size=row.size)
        self.caller.ask("warm", prefix=prefix, count=count, size=row.size)
        return count

    def round(self, row: Row, prefix: str, stored: int, seconds: float) -> dict:
        if row.first:
            stored = min(FIRST_KEYS, FIRST_BYTES // row.size)
            self.writer.ask("fill", prefix=prefix, count=stored, size=row.size)
        words = {"row": dataclasses.asdict(row), "prefix": prefix, "stored": stored}
        found = self.caller.ask("round", **words, seconds=seconds)
        if row.first:
            self.caller.ask("clear")
        return found


class Race:
    """All rows, one after the other."""

    def __init__(self, home: Home, sides: list[Side], rounds: int, budget: float) -> None:
        self.home, self.sides, self.rounds = home, sides, rounds
        self.began, self.budget, self.seconds = time.monotonic(), budget, ROUND_MOST
        #: What was spent inside sections, and how many rounds there were.
        self.timed, self.done = 0.0, 0
        self.stands: dict[bool, list[Stand]] = {}

    def run(self, rows: list[Row], told: Callable[[dict], None]) -> list[dict]:
        found = []
        try:
            for number, row in enumerate(rows):
                began = time.monotonic()
                spent = began - self.began
                # What a round takes beside its sections is soon known.
                beside = (spent - self.timed) / self.done if self.done > 50 else BESIDE
                rounds = (len(rows) - number) * len(self.sides) * self.rounds
                self.seconds = round_seconds(self.budget - spent, rounds, beside)
                found.append(self._row(row, number))
                told(found[-1])
                note(f"{number + 1}/{len(rows)} {line(found[-1])}  ({time.monotonic() - began:.1f} s)")
        finally:
            self.stop()
        return found

    def _row(self, row: Row, number: int) -> dict:
        if row.own not in self.stands:
            stands = self.stands.setdefault(row.own, [])
            for side in self.sides:
                if side.owners or not row.own:
                    stands.append(Stand(self.home, side, row.own))
        cannot = [side.name for side in self.sides if row.own and not side.owners]
        result = {**dataclasses.asdict(row), "samples": {}, "failed": {}, "not offered": cannot}
        ready = {}
        for stand in self.stands[row.own]:
            name = stand.side.name
            if not stand.offers(row):
                result["not offered"].append(name)
                continue
            try:
                ready[name] = stand, stand.prepare(row, f"row{number}")
            except (Asked, Silent) as error:
                self._failed(result, stand, error)
        for lap in range(self.rounds):
            for name, (stand, stored) in list(ready.items()):
                # Keys of a round that reads for the first time were never heard of.
                prefix = f"row{number}-{lap}" if row.first else f"row{number}"
                try:
                    sample = stand.round(row, prefix, stored, self.seconds)
                    result["samples"].setdefault(name, []).append(sample)
                    self.timed += sample["seconds"]
                    self.done += 1
                except (Asked, Silent) as error:
                    ready.pop(name)
                    self._failed(result, stand, error)
        for stand, _ in ready.values():
            try:
                stand.caller.ask("clear")
            except (Asked, Silent) as error:
                note(f"{stand.side.name}, after {row.name}: {error}")
                self._anew(stand)
        return result

    def _failed(self, result: dict, stand: Stand, error: Exception) -> None:
        """A row that a store could not do says so, and the store goes on with new servers."""
        note(f"{stand.side.name}, {result['name']}: {error}")
        result["failed"][stand.side.name] = str(error)
        result["samples"].pop(stand.side.name, None)
        self._anew(stand)

    def _anew(self, stand: Stand) -> None:
        stands = self.stands[stand.own]
        stand.cluster.stop()
        stands[stands.index(stand)] = Stand(self.home, stand.side, stand.own)

    def stop(self) -> None:
        for stands in self.stands.values():
            for stand in stands:
                stand.cluster.stop()
        self.stands.clear()


def figures(result: dict) -> dict[str, stats.Figure]:
    """The figures of each side in a row."""
    return {
        side: stats.Figure(tuple(stats.rate(one["calls"], one["seconds"]) for one in samples))
        for side, samples in result["samples"].items()
    }


def line(result: dict) -> str:
    """A row in short, for whoever watches."""
    said = [f"{name} {stats.shown(one.median, result):,.4g}" for name, one in figures(result).items()]
    return f"{result['name']} [{result['unit']}]: " + ", ".join(said)
