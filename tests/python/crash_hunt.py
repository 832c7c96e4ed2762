"""The crash hunt: random calls in random order from many threads, with good and bad arguments,
before something is open, after it was closed, and across forks. It looks for crashes, hangs and
wrong values.

    target/venv/bin/python tests/python/crash_hunt.py --calls 100000

Each round is a process of its own, so that one that dies is counted and the hunt goes on. What a
thread calls follows from the seed and the round; how the threads mix does not.

A target is a table (`crash_calls.py` has the one of the package `mooncrate`): things to begin with,
and for each class of things its calls with makers of arguments. `--target module:name` takes
another one.
"""

import argparse
import collections
import faulthandler
import importlib
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

ROUND = 5000
THREADS = 16
# Seconds that a round may take. Generous: every call ends by its own timeout.
PATIENCE = 120
SHELF = 64
FORKS = 1 / 100
HUNG, WRONG = 97, 98
# How stacks begin that the interpreter prints.
STACKS = ("Timeout (", "Fatal Python error", "Thread 0x", "Current thread 0x")


@dataclass
class World:
    """What the calls of one round share."""

    random: random.Random
    settings: dict[str, str]
    """What the supervisor started for the round, as the address of a master."""
    shelf: list[Any] = field(default_factory=list)
    """What it began with, and things that calls gave and that other calls may use."""
    first: int = 0
    """How many of them it began with; those stay."""

    def put(self, thing: Any) -> None:
        if len(self.shelf) < SHELF:
            self.shelf.append(thing)
        else:
            # In one step: other threads choose from the shelf at the same time.
            self.shelf[self.random.randrange(self.first, SHELF)] = thing


Maker = Callable[[random.Random, World], tuple[tuple[Any, ...], dict[str, Any]]]


@dataclass(frozen=True)
class Target:
    """What is hunted."""

    name: str
    begin: Callable[[World], list[Any]]
    """Things in all their states: not yet open, open, closed."""
    calls: Mapping[type, Mapping[str, tuple[Callable[..., Any], Maker]]]
    """For each class what can be done with a thing of it, and makers of arguments."""
    keep: Callable[[Any], bool]
    """Whether something that a call gave goes onto the shelf."""
    is_wrong: Callable[[str, tuple[Any, ...], Any], str | None]
    """What is wrong with the result of a call; None if nothing can be said against it."""
    serve: Callable[[pathlib.Path], tuple[dict[str, str], Callable[[], None]]] | None = None
    """Starts what rounds need, in the supervisor; its settings, and how to end it."""


class Hunter(threading.Thread):
    """One thread of a round."""

    def __init__(
        self, target: Target, world: World, seed: str, calls: int, patience: float
    ) -> None:
        super().__init__(name=f"hunter {seed}", daemon=True)
        self.target, self.world, self.calls, self.patience = target, world, calls, patience
        self.random = random.Random(seed)
        self.ends: collections.Counter[str] = collections.Counter()
        self.wrong: list[str] = []
        self.last = ""

    def run(self) -> None:
        for _ in range(self.calls):
            if self.random.random() < FORKS:
                self.fork()
            self.call()

    def call(self) -> None:
        shelf = self.world.shelf
        thing = shelf[
            self.random.randrange(self.world.first if self.random.random() < 0.5 else len(shelf))
        ]
        table = next(
            (calls for kind, calls in self.target.calls.items() if isinstance(thing, kind)), None
        )
        if table is None:
            return
        name = self.random.choice([*table])
        action, maker = table[name]
        arguments, more = maker(self.random, self.world)
        self.last = f"{type(thing).__name__}.{name}"
        try:
            found = action(thing, *arguments, **more)
        except Exception as error:
            self.ends[type(error).__name__] += 1
            if isinstance(error, SystemError):
                self.wrong.append(f"{self.last}: {error!r}")
        except BaseException as error:
            # A panic of Rust arrives as one of these.
            self.ends[type(error).__name__] += 1
            self.wrong.append(f"{self.last}: {error!r}")
        else:
            self.ends["returned"] += 1
            if words := self.target.is_wrong(name, arguments, found):
                self.wrong.append(f"{self.last}: {words}")
            if self.target.keep(found):
                self.world.put(found)
        self.last = ""

    def fork(self) -> None:
        """A child tries what it has inherited, then ends; it must do so by itself."""
        child = os.fork()
        if child == 0:
            faulthandler.dump_traceback_later(self.patience / 2, exit=True)
            self.random = random.Random(self.random.random())
            self.wrong.clear()
            for _ in range(20):
                self.call()
            os._exit(WRONG if self.wrong else 0)
        end = time.monotonic() + self.patience
        while time.monotonic() < end:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                if status != 0:
                    self.wrong.append(
                        f"a forked child ended with {os.waitstatus_to_exitcode(status)}"
                    )
                self.ends["forked"] += 1
                return
            time.sleep(0.002)
        os.kill(child, 9)
        os.waitpid(child, 0)
        self.wrong.append("a forked child hung")


def one_round(target: Target, arguments: argparse.Namespace) -> int:
    """One round, in this process; its exit code. Its last line says what it counted."""
    seed, threads, calls = (
        f"{arguments.seed}/{arguments.round}",
        arguments.threads,
        arguments.of_round,
    )
    patience, settings = arguments.patience, json.loads(arguments.inside)
    faulthandler.enable()
    world = World(random.Random(seed), settings)
    world.shelf.extend(target.begin(world))
    world.first = len(world.shelf)
    share = [calls // threads + (number < calls % threads) for number in range(threads)]
    hunters = [
        Hunter(target, world, f"{seed}/{number}", share[number], patience)
        for number in range(threads)
    ]
    for hunter in hunters:
        hunter.start()
    end = time.monotonic() + patience
    for hunter in hunters:
        hunter.join(max(0.0, end - time.monotonic()))
    if hung := [hunter.last for hunter in hunters if hunter.is_alive()]:
        print(f"still busy after {patience} s: {hung}", file=sys.stderr, flush=True)
        faulthandler.dump_traceback()
        os._exit(HUNG)
    ends = sum((hunter.ends for hunter in hunters), collections.Counter())
    wrong = [words for hunter in hunters for words in hunter.wrong]
    print(json.dumps({"ends": ends, "wrong": wrong}), flush=True)
    # Through every finaliser, with whatever is still on the shelf.
    return WRONG if wrong else 0


def hunt(arguments: argparse.Namespace) -> bool:
    """All rounds; whether nothing was found."""
    target = load(arguments.target)
    rounds = range(-(-arguments.calls // ROUND)) if arguments.round is None else [arguments.round]
    ends: collections.Counter[str] = collections.Counter()
    crashes = hangs = wrong = 0
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        settings, stop = target.serve(pathlib.Path(folder)) if target.serve else ({}, lambda: None)
        try:
            for number in rounds:
                calls = min(ROUND, arguments.calls - number * ROUND)
                command = [sys.executable, __file__, "--target", arguments.target]
                command += ["--seed", str(arguments.seed), "--threads", str(arguments.threads)]
                command += ["--calls", str(arguments.calls), "--round", str(number)]
                command += ["--patience", str(arguments.patience)]
                inner = [*command, "--inside", json.dumps(settings), "--of-round", str(calls)]
                code, out, err = finished(inner, 2 * arguments.patience)
                if out:
                    counted = json.loads(out.splitlines()[-1])
                    ends.update(counted["ends"])
                    wrong += len(counted["wrong"])
                if code != 0:
                    hangs += code == HUNG
                    crashes += code not in (HUNG, WRONG)
                    print(
                        f"round {number} ended with {code}; repeat it with:\n  {' '.join(command)}"
                    )
                    # What something that hung was doing stands behind all that calls said.
                    stacks = [at for words in STACKS if (at := err.find(words)) >= 0]
                    at = min(stacks, default=0)
                    print(
                        err[at : at + 12_000],
                        *(counted["wrong"][:20] if out else []),
                        sep="\n",
                        flush=True,
                    )
        finally:
            stop()
    made = sum(count for name, count in ends.items() if name != "forked")
    kinds = ", ".join(f"{name} {count:,}" for name, count in ends.most_common())
    print(
        f"{target.name}, seed {arguments.seed}: {made:,} calls from {arguments.threads} threads "
        f"in {time.monotonic() - began:.0f} s\n  {kinds}"
    )
    print(f"  {crashes} crashes, {hangs} hangs, {wrong} wrong")
    return crashes == hangs == wrong == 0


def finished(command: list[str], patience: float) -> tuple[int, str, str]:
    """How a round ended, and what it said. One that does not end by itself is killed."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            out, err = process.communicate(timeout=patience)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            return HUNG, "", err + "\nit did not end after its calls"
    return process.returncode, out if process.returncode in (0, WRONG) else "", err


def load(name: str) -> Target:
    module, attribute = name.split(":")
    found = getattr(importlib.import_module(module), attribute)
    return found if found.__class__.__name__ == "Target" else found()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--calls", type=int, default=100_000)
    parser.add_argument("--threads", type=int, default=THREADS)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--round", type=int, help="only this round")
    parser.add_argument("--target", default="crash_calls:TARGET", metavar="MODULE:NAME")
    parser.add_argument("--patience", type=float, default=PATIENCE, help="seconds for a round")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    parser.add_argument("--of-round", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inside is None:
        sys.exit(0 if hunt(arguments) else 1)
    sys.exit(one_round(load(arguments.target), arguments))


if __name__ == "__main__":
    main()
