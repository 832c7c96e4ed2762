"""A process with one store open: it does what it is told, a line of JSON at a time, and answers with one.

Used as owner of memory, as caller, and as a writer that is killed. Packages may print lines of their own; what is
meant for the one who asked begins with `{"peers":`.
"""

import json
import sys
import threading
import time
from collections import Counter

from doors import KINDS, MIB, POOL, Memory
from loops import SLOTS, Bench, WrongBytes
from rows import Row

# Seconds after which a watcher asks for the keys that it has not read before; the fault is long done by then.
COLD = 1.5


def say(**words) -> None:
    print(json.dumps({"peers": words}), flush=True)


class Worker:
    """The commands."""

    def __init__(self, settings: dict) -> None:
        slots = SLOTS if settings.get("slots", True) else 64 * MIB
        self.memory = Memory(slots)
        kind = KINDS[settings["kind"]]
        self.door = kind(
            settings["master"], settings.get("segment", 0), self.memory, settings.get("disk", "")
        )
        self.bench = Bench(self.door, self.memory)

    def offers(self) -> dict:
        return {"calls": sorted(self.door.calls)}

    def fill(self, prefix: str, count: int, size: int) -> dict:
        self.bench.fill(prefix, count, size)
        return {}

    def warm(self, prefix: str, count: int, size: int) -> dict:
        self.bench.warm(prefix, count, size)
        return {}

    def round(self, row: dict, prefix: str, stored: int, seconds: float) -> dict:
        return self.bench.round(Row(**row), prefix, stored, seconds)

    def clear(self) -> dict:
        self.door.clear()
        return {}

    def many(self, count: int, size: int, threads: int) -> dict:
        """Stores many small values from some threads."""
        part, failed = count // threads, []

        def run(thread: int) -> None:
            try:
                self.bench.fill("many", part, size, thread * part)
            except Exception as error:  # noqa: BLE001 - told below
                failed.append(error)

        began = time.monotonic()
        running = [threading.Thread(target=run, args=(one,)) for one in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        if failed:
            raise failed[0]
        took = time.monotonic() - began
        self.bench.warm("many", 100, size)
        return {"count": part * threads, "seconds": took}

    def spill(self, count: int, size: int, wait: float) -> dict:
        """Stores more than memory holds; a put that is refused for want of room is tried again for a while."""
        refused, stored, began = Counter(), 0, time.monotonic()
        for number in range(count):
            end = time.monotonic() + wait
            place = self.memory.place("spill", number)
            while answer := self.door.write(f"spill/{number}", place, size):
                refused[answer] += 1
                if time.monotonic() > end:
                    return {"stored": stored, "seconds": time.monotonic() - began, "refused": dict(refused)}
                time.sleep(0.02)
            stored += 1
        return {"stored": stored, "seconds": time.monotonic() - began, "refused": dict(refused)}

    def reread(self, start: int, count: int, size: int, seconds: float) -> dict:
        """Reads some of them, each once; how many were there, and the time inside of the reads."""
        there, missing, spent = 0, Counter(), 0.0
        for number in range(start, start + count):
            begun = time.perf_counter()
            answer = self.door.read(f"spill/{number}", POOL, size)
            spent += time.perf_counter() - begun
            if answer:
                missing[answer] += 1
            elif not self.memory.same(POOL, "spill", number, size):
                raise WrongBytes(f"spill/{number}: other bytes than were put")
            else:
                there += 1
            if spent > seconds:
                break
        return {"there": there, "missing": dict(missing), "seconds": spent}

    def watch(self, prefix: str, count: int, size: int, least: float, limit: float, settle: float) -> dict:
        """What a user of a cache does, while something is done to it: get, and put what is not there. Ends
        when everything was there for a while, or at the limit."""
        began = last_bad = time.monotonic()
        seen: list = []
        say(watching=True)
        fresh = 0
        while True:
            # Half of the keys are read for the first time after the fault.
            known = count if time.monotonic() - began > COLD else count // 2
            for number in range(known):
                key, place = f"{prefix}/{number}", self.memory.place(prefix, number)
                answer = self._timed(seen, "get", lambda: self._get(key, prefix, number, size))
                if answer:
                    last_bad = time.monotonic()
                    if answer != "WRONG":
                        self._timed(seen, "put again", lambda: self.door.write(key, place, size))
                time.sleep(0.002)
            fresh += 1
            key, place = f"{prefix}-new/{fresh}", self.memory.place(prefix, fresh)
            if self._timed(seen, "put", lambda: self.door.write(key, place, size)):
                last_bad = time.monotonic()
            at = time.monotonic()
            if at - began > limit or (at - began > least and at - last_bad > settle):
                return {"seen": seen, "ended": at, "limit": at - began > limit}

    def _get(self, key: str, prefix: str, number: int, size: int) -> str:
        answer = self.door.read(key, POOL, size)
        if not answer and not self.memory.same(POOL, prefix, number, size):
            return "WRONG"
        return answer

    @staticmethod
    def _timed(seen: list, what: str, call) -> str:
        """Notes a call that was answered badly, or slowly: when it ended, how long it took, what it said."""
        begun = time.monotonic()
        answer = call()
        ended = time.monotonic()
        if answer or ended - begun > 0.05:
            seen.append([ended, ended - begun, what, answer])
        return answer

    def doom(self, prefix: str, size: int) -> dict:
        """Puts large values until it is killed, and says each before it begins."""
        number = 0
        while True:
            place = self.memory.place(prefix, number)
            say(putting=number)
            self.door.write(f"{prefix}/{number}", place, size)
            number += 1

    def usable(self, keys: list, size: int, limit: float) -> dict:
        """For each key: the answers until it could be read with its bytes, put again where it was missing."""
        began, waiting, took, answers = time.monotonic(), list(keys), [], Counter()
        while waiting and time.monotonic() - began < limit:
            for prefix, number in list(waiting):
                answer = self._get(f"{prefix}/{number}", prefix, number, size)
                if not answer:
                    took.append(time.monotonic() - began)
                    waiting.remove([prefix, number])
                    continue
                if answer == "WRONG":
                    raise WrongBytes(f"{prefix}/{number}: other bytes than were put")
                answers[f"get {answer}"] += 1
                said = self.door.write(f"{prefix}/{number}", self.memory.place(prefix, number), size)
                if said:
                    answers[f"put {said}"] += 1
            time.sleep(0.01)
        return {"took": took, "never": len(waiting), "answers": dict(answers)}


def main() -> None:
    worker = Worker(json.loads(sys.argv[1]))
    say(ready=True, **worker.offers())
    for line in sys.stdin:
        command = json.loads(line)
        try:
            say(**getattr(worker, command.pop("do"))(**command))
        except WrongBytes as error:
            say(error=str(error), wrong=True)
        except Exception as error:  # noqa: BLE001 - the one who asked decides
            say(error=f"{type(error).__name__}: {error}"[:400])
    worker.door.close()


if __name__ == "__main__":
    main()
