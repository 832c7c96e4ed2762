"""The timed part: threads that make one call again and again, and the comparison of everything they read.

A round is made of sections. A section is prepared (arguments, fresh keys), timed, then checked; only the middle
counts, from the first thread's start to the last one's end. What must stay true: every value that was
read is compared in full, with bytes that no other key in this slot has.
"""

import gc
import threading
import time
from collections.abc import Callable
from typing import Any

from doors import MIB, POOL, Memory
from rows import Row

SLOTS = 512 * MIB
# Bytes objects are made for each put before the section.
COPIES = 256 * MIB
CALLS, BATCHES = 4096, 512
# The first section of a row shows how many calls the next ones can make.
PROBE = 128
# Lists of keys that are asked for again and again; nothing is written for them.
LISTS = 64
ASKING = ("is_exist", "is_missing", "get_size", "batch_is_exist")
# A round is over when little of it is left: a section of a few calls says nothing.
ENOUGH = 0.8
SAMPLES = 4
now = time.perf_counter


def section(call: Callable, plans: list[list[tuple]], seconds: float) -> tuple[float, list[list]]:
    """Runs the plan of each thread in a thread; seconds it took and the answers of each."""
    answers: list[list] = [[] for _ in plans]
    spans: list[Any] = [None] * len(plans)
    gate = threading.Barrier(len(plans))

    def run(thread: int) -> None:
        plan, keep = plans[thread], answers[thread].append
        gate.wait()
        start = now()
        end = start + seconds
        try:
            for arguments in plan:
                keep(call(*arguments))
                if now() >= end:
                    break
            spans[thread] = (start, now())
        except Exception as error:  # noqa: BLE001 - reported as the row's result
            spans[thread] = error

    gc.collect()
    gc.disable()
    try:
        threads = [threading.Thread(target=run, args=(number,)) for number in range(1, len(plans))]
        for thread in threads:
            thread.start()
        run(0)
        for thread in threads:
            thread.join()
    finally:
        gc.enable()
    for span in spans:
        if isinstance(span, Exception):
            raise span
    return max(end for _, end in spans) - min(start for start, _ in spans), answers


class Bench:
    """The rounds of one door."""

    def __init__(self, door: Any, memory: Memory) -> None:
        self.door, self.memory = door, memory
        self.fresh = self.lap = 0
        self.rates: dict[str, float] = {}

    def fill(self, prefix: str, count: int, size: int, start: int = 0) -> None:
        """Stores values, as fast as this store can."""
        call = "batch_put_from" if "batch_put_from" in self.door.calls else "put_batch"
        step = max(1, min(128, 32 * MIB // size))
        for first in range(start, start + count, step):
            numbers = range(first, min(first + step, start + count))
            sizes = [size] * len(numbers)
            places = [self.memory.place(prefix, number) for number in numbers]
            keys = [f"{prefix}/{number}" for number in numbers]
            answer = self.door.calls[call](*self.door.arguments(call, keys, places, sizes))
            if not self.door.right(call, answer, sizes):
                raise RuntimeError(f"{call} answered {answer!r:.200}")

    def warm(self, prefix: str, count: int, size: int) -> None:
        """Reads every key once and compares it."""
        for number in range(count):
            self._read_back(prefix, number, size)

    def round(self, row: Row, prefix: str, stored: int, seconds: float) -> dict:
        """One round: calls, and the seconds that were spent in sections."""
        calls, spent = 0, 0.0
        function = self._function(row.call)
        while spent < ENOUGH * seconds:
            self.lap += 1
            numbers = self._numbers(row, stored, seconds - spent)
            plans = self._plans(row, prefix, numbers)
            # First reads end with the keys that were stored for them, if the store is not far too slow for it.
            took, answers = section(function, plans, 4 * seconds if row.first else seconds - spent)
            del plans
            spent += took
            made = sum(map(len, answers))
            calls += made
            self.rates[row.name] = made / took
            self._check(row, prefix, numbers, answers)
            if row.puts:
                self.door.clear()
            if row.first:
                break
        return {"calls": calls, "seconds": spent}

    def _function(self, call: str) -> Callable:
        if call != "put + remove":
            return self.door.calls[call]
        put, remove = self.door.calls["put"], self.door.calls["remove"]

        def pair(key: str, value: bytes) -> tuple:
            return put(key, value), remove(key)

        return pair

    def _per_thread(self, row: Row, seconds: float) -> int:
        """Calls that are prepared for each thread: somewhat more than it can make."""
        room = COPIES if row.call in ("put", "put_batch") else SLOTS
        fits = room // (row.size * row.batch * row.threads)
        made = int(1.5 * self.rates[row.name] * seconds / row.threads) if row.name in self.rates else 0
        return max(1, min(CALLS if row.batch == 1 else BATCHES, fits, max(made, PROBE // row.batch, 8)))

    def _numbers(self, row: Row, stored: int, seconds: float) -> list[list[list[int]]]:
        """For each thread and call the numbers of its keys."""
        if row.first:
            return [
                [[number] for number in range(thread, stored, row.threads)] for thread in range(row.threads)
            ]
        per, found = self._per_thread(row, seconds), []
        if row.call in ASKING:
            lists = [[(one * row.batch + at) % stored for at in range(row.batch)] for one in range(LISTS)]
            return [
                [lists[(one + thread * 7) % LISTS] for one in range(per)] for thread in range(row.threads)
            ]
        for thread in range(row.threads):
            first = thread * (per if row.puts else CALLS)
            starts = ((first + one) * row.batch for one in range(per))
            if row.puts:
                found.append([[self.fresh + start + at for at in range(row.batch)] for start in starts])
            else:
                # Another key in each slot than a lap ago.
                found.append(
                    [[(start + at + self.lap * 7) % stored for at in range(row.batch)] for start in starts]
                )
        if row.puts:
            self.fresh += per * row.threads * row.batch
        return found

    def _plans(self, row: Row, prefix: str, numbers: list) -> list[list[tuple]]:
        if row.call not in ASKING:
            return [
                [self._plan(row, prefix, thread, place, one) for place, one in enumerate(of)]
                for thread, of in enumerate(numbers)
            ]
        made: dict[int, tuple] = {}
        for one in (one for of in numbers for one in of):
            if id(one) not in made:
                made[id(one)] = self._plan(row, prefix, 0, 0, one)
        return [[made[id(one)] for one in of] for of in numbers]

    def _slot(self, row: Row, thread: int, place: int, at: int) -> int:
        per = SLOTS // row.size // row.threads
        return POOL + (thread * per + place * row.batch + at) * row.size

    def _plan(self, row: Row, prefix: str, thread: int, place: int, numbers: list[int]) -> tuple:
        keys = [f"{prefix}/{number}" for number in numbers]
        if row.puts:
            places = [self.memory.place(prefix, number) for number in numbers]
        else:
            places = [self._slot(row, thread, place, at) for at in range(len(numbers))]
        call = "put" if row.call == "put + remove" else row.call
        return self.door.arguments(call, keys, places, [row.size] * len(numbers))

    def _check(self, row: Row, prefix: str, numbers: list, answers: list) -> None:
        for thread, of in enumerate(answers):
            for place, answer in enumerate(of):
                self._check_one(row, prefix, thread, place, numbers[thread][place], answer)
        if row.puts and row.call != "put + remove":
            done = [number for of, got in zip(numbers, answers) for one in of[: len(got)] for number in one]
            for number in done[:: max(1, len(done) // SAMPLES)]:
                self._read_back(prefix, number, row.size)

    def _check_one(self, row: Row, prefix: str, thread: int, place: int, numbers: list[int], answer) -> None:
        sizes = [row.size] * len(numbers)
        if row.call == "put + remove":
            good = self.door.right("put", answer[0], sizes) and self.door.right("remove", answer[1], sizes)
        elif row.call in ("get", "get_batch"):
            values = self.door.fetched(answer)
            wanted = [self.memory.value(prefix, number, row.size) for number in numbers]
            # A miss is no wrong byte: the row fails, and the race goes on.
            good = len(values) == len(wanted) and all(values)
            if good and values != wanted:
                raise WrongBytes(f"{row.call}: other bytes than were put")
        else:
            good = self.door.right(row.call, answer, sizes)
        if not good:
            raise RuntimeError(f"{row.call} answered {answer!r:.200}")
        if "get_into" in row.call:
            for at, number in enumerate(numbers):
                slot = self._slot(row, thread, place, at)
                if not self.memory.same(slot, prefix, number, row.size):
                    raise WrongBytes(f"{row.call}: other bytes than were put")

    def _read_back(self, prefix: str, number: int, size: int) -> None:
        answer = self.door.read(f"{prefix}/{number}", POOL, size)
        if answer:
            raise RuntimeError(f"{prefix}/{number} was put, and a get answered {answer}")
        if not self.memory.same(POOL, prefix, number, size):
            raise WrongBytes(f"{prefix}/{number}: other bytes than were put")


class WrongBytes(Exception):
    """A store gave bytes that were never put under this key."""
