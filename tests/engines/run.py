"""Drives each engine's Mooncake integration against a live cluster, and prints engine x check x result.

`run.py FOLDER`, where install.py has been; `--engine NAME` for one of them. The exit status is 1 if a check fails, 2 if
none fails and something could not be run.
"""

import argparse
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
SCRIPTS = {
    "sglang": "sglang_hicache.py",
    "lmcache": "lmcache_connector.py",
    "vllm": "vllm_worker.py",
}
# Each script has bounds of its own; this one is for a script that hangs.
LIMIT = 900


def missing(site, engine):
    return [name for name in ("torch", engine) if not (site / name).is_dir()]


def environment(rows):
    """Nothing of whoever runs this that an engine or the drop-in would look at."""
    ours = ("MOONCRATE_", "MC_", "MOONCAKE_", "LMCACHE_", "SGLANG_", "VLLM_", "HF_")
    plain = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return {
        **plain,
        "ENGINES_ROWS": str(rows),
        "PYTHONDONTWRITEBYTECODE": "1",
        # Nothing is asked of a hub, and nothing is told about the use.
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "LMCACHE_TRACK_USAGE": "false",
        # vLLM's own name for a machine without a GPU.
        "VLLM_TARGET_DEVICE": "cpu",
    }


def drive(folder, engine):
    """The rows of one engine."""
    (site,) = folder.glob("lib/python3*/site-packages")
    lacking = missing(site, engine)
    if lacking:
        seen = f"no wheel of {' and of '.join(lacking)} could be had"
        return [{"engine": engine, "check": "all", "result": "NOT RUN", "seen": seen}]
    logs = folder / "logs"
    logs.mkdir(exist_ok=True)
    rows, log = logs / f"{engine}.rows", logs / f"{engine}.log"
    rows.write_text("")
    command = [str(folder / "bin" / "python"), "-X", "faulthandler", str(HERE / SCRIPTS[engine])]
    began = time.monotonic()
    with open(log, "wb") as output:
        # A session of its own, so that all of it can be ended if it hangs.
        process = subprocess.Popen(
            command, env=environment(rows), stdout=output, stderr=output, start_new_session=True
        )
        try:
            status = process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            status = f"none within {LIMIT} s"
        finally:
            # A script that crashed has left its cluster behind.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    found = [json.loads(line) for line in rows.read_text().splitlines()]
    print(f"{engine}: {len(found)} checks in {time.monotonic() - began:.0f} s; {log}", flush=True)
    if status != 0:
        name = found[0]["engine"] if found else engine
        ended = {"engine": name, "check": "the script ends well", "result": "FAILED"}
        found.append({**ended, "seen": f"exit status {status}; see {log}"})
    return found


def show(rows):
    columns = ("engine", "check", "result", "seen")
    widths = [max(len(row[column]) for row in [*rows, dict(zip(columns, columns))]) for column in columns]
    for row in [dict(zip(columns, columns)), *rows]:
        cells = [row[column].ljust(width) for column, width in zip(columns, widths)]
        print(" | ".join(cells).rstrip())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--engine", choices=SCRIPTS, action="append")
    options = parser.parse_args()
    rows = []
    for engine in options.engine or SCRIPTS:
        rows += drive(options.folder.resolve(), engine)
    print()
    show(rows)
    counts = {result: sum(row["result"] == result for row in rows) for result in ("holds", "FAILED", "NOT RUN")}
    print(f"\n{counts['holds']} hold, {counts['FAILED']} failed, {counts['NOT RUN']} not run")
    return 1 if counts["FAILED"] else 2 if counts["NOT RUN"] else 0


if __name__ == "__main__":
    sys.exit(main())
