"""The race of `./dev peers`: ours beside Mooncake Store, Redis and memcached, from Python, on one machine.

    ./dev peers [--quick] [--rows REGEX] [--sides NAMES] [--parts NAMES] [--out FOLDER]

The head of the table says which machine, versions, commit and command it comes from. docs/bench/README.md says
what is measured.
"""

import argparse
import compileall
import json
import os
import pathlib
import platform
import re
import shlex
import signal
import sys
import time
from collections.abc import Callable

import faults
import race
import report
import tiers
from processes import Wrong
from race import note
from rows import ROWS, names
from sides import SIDES, Home, stop_all

PARTS = ("calls", "first", "memory", "disk", "faults")
# Of the whole budget, what the parts after the calls need on 16 cores.
RESERVED = {"first": 40, "memory": 60, "disk": 40, "faults": 100}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], prog="./dev peers")
    parser.add_argument("--home", type=pathlib.Path, required=True, help=argparse.SUPPRESS)
    parser.add_argument("--command", default="./dev peers", help=argparse.SUPPRESS)
    parser.add_argument(
        "--quick",
        action="store_true",
        help="under 2 minutes: the rows with goals, and short; not to be published",
    )
    parser.add_argument(
        "--rows",
        default="",
        metavar="REGEX",
        help="only rows whose name has it, by the name of the table or of a goal",
    )
    parser.add_argument(
        "--sides",
        default="",
        metavar="NAMES",
        help="peers, with commas: Mooncake (both ways), Redis, memcached",
    )
    parser.add_argument(
        "--parts",
        default="",
        metavar="NAMES",
        help=f"some of {','.join(PARTS)}; with --rows only calls, unless told otherwise",
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--budget",
        type=float,
        default=0,
        metavar="SECONDS",
        help="in which all shall end: rounds are made shorter for it, down to 0.08 s (530, quick 110)",
    )
    parser.add_argument(
        "--objects", type=int, default=0, help="objects of the part memory (1000000, quick 50000)"
    )
    parser.add_argument(
        "--onto", type=pathlib.Path, metavar="JSON", help="add to what an earlier part of the race has found"
    )
    parser.add_argument(
        "--out",
        type=pathlib.Path,
        help="where JSON, Markdown and SVG go; docs/bench, or target/peers/out for a part of the race",
    )
    return parser.parse_args()


def chosen(given: argparse.Namespace) -> list:
    rows = ROWS
    if given.rows:
        return [row for row in rows if any(re.search(given.rows, name) for name in names(row))]
    if given.quick:
        return [row for row in rows if len(names(row)) > 1]
    return rows


def machine() -> dict:
    words = pathlib.Path("/proc/cpuinfo").read_text()
    model = re.search(r"^model name\s*: (.*)$", words, re.MULTILINE)
    memory = re.search(r"^MemTotal:\s*(\d+) kB", pathlib.Path("/proc/meminfo").read_text(), re.MULTILINE)
    return {
        "cpu": model.group(1) if model else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(int(memory.group(1)) / (1 << 20)) if memory else 0,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_before": os.getloadavg()[0],
    }


def command(beginning: str, words: list[str]) -> str:
    """What was typed, so that it can be pasted; without the folders of one machine."""
    kept, hidden = [], ("--home", "--command", "--out", "--onto")
    rest = iter(words)
    for word in rest:
        if word in hidden:
            next(rest, None)
        elif not word.startswith(tuple(f"{name}=" for name in hidden)):
            kept.append(word)
    return " ".join([beginning, shlex.join(kept)]).strip()


def merged(before: dict, found: dict) -> dict:
    """An earlier part of the race with what was found now; only of one machine and one commit."""
    for what in ("commit", "versions", "quick"):
        if before[what] != found[what]:
            sys.exit(f"--onto: another {what}: {before[what]} and {found[what]}")
    for what in ("cpu", "cores", "python"):
        if before["machine"][what] != found["machine"][what]:
            sys.exit(f"--onto: another machine: {before['machine'][what]} and {found['machine'][what]}")
    rows = {row["name"]: row for row in before["rows"]} | {row["name"]: row for row in found["rows"]}
    order = [row.name for row in ROWS]
    result = {**before, **found, "rows": sorted(rows.values(), key=lambda row: order.index(row["name"]))}
    # Rows of before have the sides of before.
    sides = [side.name for side in SIDES if side.name in before["sides"] + found.get("sides", [])]
    seconds = before["seconds"] + found.get("seconds", 0)
    return {
        **result,
        "sides": sides,
        "seconds": seconds,
        "command": f"{before['command']}` and `{found['command']}",
    }


def parts(given: argparse.Namespace) -> list[str]:
    if given.parts:
        wanted = given.parts.split(",")
        unknown = [part for part in wanted if part not in PARTS]
        if unknown:
            sys.exit(f"there is no part {unknown[0]!r}; there are {', '.join(PARTS)}")
        return wanted
    return ["calls"] if given.rows else list(PARTS)


def run(given: argparse.Namespace, home: Home, found: dict, write: Callable[[], None]) -> None:
    sides = home.sides(given.sides.split(",") if given.sides else None)
    todo = parts(given)
    found["sides"], found["rounds"] = [side.name for side in sides], given.rounds
    rows = chosen(given) if "calls" in todo else []
    if "calls" in todo and not rows:
        sys.exit(f"no row has {given.rows!r} in its name")
    budget = given.budget or (110 if given.quick else 530)
    scale = 0.35 if given.quick else 1
    left = budget - scale * sum(seconds for part, seconds in RESERVED.items() if part in todo)

    def told(row: dict) -> None:
        found["rows"].append(row)
        # Now and then: who is cut off keeps what was measured.
        if len(found["rows"]) % 10 == 0:
            write()

    if rows:
        note(f"{len(rows)} rows, {given.rounds} rounds each: {', '.join(found['sides'])}")
        race.Race(home, sides, given.rounds, left).run(rows, told)
        write()
    sides = [side for side in sides if not side.calls_only]
    if "first" in todo:
        found["first"] = tiers.first_get(home, sides, 2 if given.quick else given.rounds)
    if "memory" in todo:
        objects = given.objects or (50_000 if given.quick else 1_000_000)
        found["memory"] = tiers.memory(home, sides, objects)
        write()
    if "disk" in todo:
        found["disk"] = tiers.disk(home, sides, given.quick)
    if "faults" in todo:
        found["faults"] = faults.run(home, sides, given.quick)


def main() -> None:
    given = arguments()
    # Ended from outside, also with its terminal, servers end, too.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    home = Home(given.home)
    for name, why in home.about["missing"].items():
        note(f"without {name}: {why}")
    # As an installer does for every package: who starts anew shall not compile it each time.
    compileall.compile_dir(given.home, quiet=2, workers=0)
    part = given.rows or given.quick or given.parts
    out = given.out or pathlib.Path("target/peers/out" if part and not given.onto else "docs/bench")
    before = json.loads(given.onto.read_text()) if given.onto else None
    began = time.monotonic()
    found = {
        "machine": machine(),
        "versions": home.about["versions"],
        "missing": home.about["missing"],
        "commit": home.about["commit"],
        "command": command(given.command, sys.argv[1:]),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "quick": given.quick,
        "rows": [],
    }
    name = f"peers-{found['machine']['cores']}-cores"
    if before:
        merged(before, found)

    def write() -> None:
        found["seconds"] = time.monotonic() - began
        report.write(merged(before, found) if before else found, out, name)

    try:
        run(given, home, found, write)
    except Wrong as error:
        # Nothing else of the table matters then, and it says so.
        found["wrong"] = str(error)
        sys.exit(f"WRONG BYTES: {error}")
    except KeyboardInterrupt:
        note("stopped; what was measured is written")
    finally:
        stop_all()
        if found["rows"] or any(part in found for part in PARTS):
            write()
            note(f"{found['seconds']:.0f} s; {out / name}.md, .json, .svg")


if __name__ == "__main__":
    main()
