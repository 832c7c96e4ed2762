"""How long an asyncio loop is away while many gets run, beside as many tasks that do nothing.

    ./dev bench-python

A ticker task comes round in every turn of the loop; the longest time between two of its turns is
how long the loop was away. Making the calls counts. The tasks are what gets would cost if each were
a coroutine: making them, and the first step of each. Counting is a plain loop of Python, as a
measure of the machine: where its worst round takes many times its median, cores are slow at times,
and no program is quicker then.
Python's garbage collector stops everything now and then, for as long as it takes to walk over all
objects of the program. Tasks make it run, and gets do not, but those that are measured share a
program with tasks. So all is measured three times: as it is; with `gc.freeze()` after the start, as
servers do it; and without the collector.
"""

import asyncio
import gc
import pathlib
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable

import mooncrate
from conftest import Server

ROUNDS = 31
SIZE = 4096
COUNT = 50_000


async def longest(work: Callable[[], Iterable[Awaitable[object]]]) -> tuple[float, float]:
    """Seconds that the loop was away at most while the work ran, and seconds of all of it."""
    away, over = 0.0, False

    async def tick() -> None:
        nonlocal away
        before = time.perf_counter()
        while not over:
            await asyncio.sleep(0)
            now = time.perf_counter()
            away, before = max(away, now - before), now

    ticker = asyncio.create_task(tick())
    await asyncio.sleep(0)
    start = time.perf_counter()
    await asyncio.gather(*work())
    took = time.perf_counter() - start
    over = True
    await ticker
    return away, took


def plain() -> float:
    """Seconds that a loop takes which only counts: about as long as the loop is away for the gets."""
    start = time.perf_counter()
    total = 0
    for number in range(COUNT):
        total += number
    return time.perf_counter() - start


async def nothing() -> None:
    await asyncio.sleep(0)


async def rows(name: str, store: mooncrate.AsyncStore) -> None:
    for count in (1_000, 10_000):
        keys = [f"loop/{number}" for number in range(count)]
        for first in range(0, count, 1000):
            await store.put_batch(
                [(key, key.encode().ljust(SIZE)) for key in keys[first : first + 1000]]
            )
        found = await asyncio.gather(*(store.get(key) for key in keys))
        assert found == [key.encode().ljust(SIZE) for key in keys]
        counts, tasks, gets = [], [], []
        for _ in range(ROUNDS):
            tasks.append((await longest(lambda: (nothing() for _ in keys)))[0])
            gets.append(await longest(lambda: (store.get(key) for key in keys)))
            counts.append(plain())
        away = [away for away, _ in gets]
        print(
            f"{name:<16}{count:>7}"
            f"{1e3 * statistics.median(counts):>10.2f} ms{1e3 * max(counts):>10.2f} ms"
            f"{1e3 * statistics.median(tasks):>10.2f} ms{1e3 * max(tasks):>10.2f} ms"
            f"{1e3 * statistics.median(away):>10.2f} ms{1e3 * max(away):>10.2f} ms"
            f"{1e3 * statistics.median([took for _, took in gets]):>10.1f} ms"
        )


async def measure(master: str) -> None:
    columns = ("counting", "worst", "tasks: away", "worst", "gets: away", "worst", "all done")
    print(f"{'at once':>23}" + "".join(f"{column:>13}" for column in columns))
    for name, shared_memory in (("shared memory", True), ("tcp", False)):
        async with mooncrate.AsyncStore(master=master, shared_memory=shared_memory) as store:
            await rows(name, store)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        server = Server(pathlib.Path(folder), ["--segment-size", "256MiB"])
        try:
            asyncio.run(measure(server.master))
            gc.collect()
            gc.freeze()
            print("after gc.freeze():")
            asyncio.run(measure(server.master))
            gc.disable()
            print("without Python's garbage collector:")
            asyncio.run(measure(server.master))
        finally:
            server.stop()
    print(f"medians of {ROUNDS} rounds, and the worst of them; values of {SIZE} bytes")


if __name__ == "__main__":
    main()
