"""The drill: what once broke the promise, done again with release builds and real processes.

    ./dev drill [SCENARIO…] [--rounds N] [--values N]

Each scenario says what it does and what it sees. The table at the end has one line per finding; the exit
status is 1 if one of them does not hold, and 2 if a scenario could not be run.
"""

import argparse
import sys
import time
import traceback
from collections.abc import Callable

import disks
import ends
import hot
import memory
import outage
import owners
import takeover
from harness import Row, Scene, scene

SCENARIOS: dict[int, tuple[str, Callable[[Scene], None]]] = {
    1: ("removed values do not come back from a disk", disks.removed_values_stay_removed),
    2: ("one value per key after a restart of a master without state", takeover.one_value_per_key),
    3: ("a flipped byte in memory costs a copy, not a key", memory.flipped_byte),
    4: ("one stopped owner of two does not ruin batches", owners.stopped_owner),
    5: ("calls end by their deadline", outage.calls_end_in_time),
    6: ("an outage of the master does not hurt the engine", outage.master_away),
    7: ("keys of a dead owner are free soon", owners.dead_owner),
    8: ("an address that is not mapped is an answer", memory.unmapped_address),
    9: ("what is read most stays", hot.hot_values_stay),
    10: ("a master that was away for long finds everything", takeover.master_away_for_long),
    11: ("an owner that fails gives nothing away that is being written", ends.failing_owner),
    12: ("what was told once is heard", ends.unheard_ends),
}


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev drill", description=__doc__.split("\n")[0])
    parser.add_argument("scenarios", nargs="*", type=int, metavar="SCENARIO", help="1 to 12; all")
    parser.add_argument("--rounds", type=int, default=3, help="kills of an owner in scenario 7 [3]")
    parser.add_argument(
        "--values", type=int, default=2500, help="cold values of 1 MiB in scenario 9 [2500]"
    )
    found = parser.parse_args()
    unknown = [number for number in found.scenarios if number not in SCENARIOS]
    if unknown:
        parser.error(f"there is no scenario {unknown[0]}; there are 1 to {max(SCENARIOS)}")
    return found


def main() -> int:
    asked = options()
    rows: list[Row] = []
    broken = 0
    for number in asked.scenarios or SCENARIOS:
        title, run = SCENARIOS[number]
        print(f"\n{number}. {title}", flush=True)
        began = time.monotonic()
        with scene(number, asked) as here:
            try:
                run(here)
            except Exception:
                broken += 1
                traceback.print_exc()
                for server in here.servers:
                    log = (here.folder / f"{server.name}.log").read_text()
                    print(f"--- {server.name}, the end of its log\n{log[-1500:]}", file=sys.stderr)
                here.check("the scenario", seen="it could not be run", goal="it runs", holds=False)
            rows += here.rows
        print(f"  {time.monotonic() - began:.0f} s", flush=True)
    table(rows)
    if broken:
        return 2
    return 0 if all(row.holds for row in rows) else 1


def table(rows: list[Row]) -> None:
    head = ("NO", "WHAT", "SEEN", "GOAL", "HOLDS")
    cells = [
        (str(row.scenario), row.what, row.seen, row.goal, "yes" if row.holds else "NO") for row in rows
    ]
    widths = [max(len(line[column]) for line in [head, *cells]) for column in range(len(head))]
    print()
    for line in [head, *cells]:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    held = sum(row.holds for row in rows)
    print(f"\n{held} of {len(rows)} hold")


if __name__ == "__main__":
    sys.exit(main())
