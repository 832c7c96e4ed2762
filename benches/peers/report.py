"""What was found, as JSON with every sample, as a table in Markdown, and as charts.

What must stay true: a row in which a peer is ahead says so, a row that failed stands in the table, and the head
names machine, versions, commit and command.
"""

import json
import pathlib
import statistics
from typing import Any

import charts
import stats
from race import figures
from rows import GOALS, ROWS

MARK = "**behind**"
# Bad answers up to the end of the watch.
ONGOING, SETTLED = " (and on)", 2.0


def write(found: dict, out: pathlib.Path, name: str) -> None:
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{name}.json").write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    (out / f"{name}.svg").write_text(charts.draw(found))
    (out / f"{name}.md").write_text(markdown(found, f"{name}.svg"))


def markdown(found: dict, chart: str) -> str:
    sections = [head(found)]
    if found["rows"]:
        sections += [goals(found), f"![ratios and threads]({chart})\n", calls(found)]
    for part, show in (("first", first), ("memory", memory), ("disk", disk), ("faults", faults)):
        if part in found:
            sections.append(show(found[part]))
    return "\n".join(sections)


def head(found: dict) -> str:
    machine = found["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    lines = [
        f"# Beside Mooncake, Redis and memcached, from Python, {machine['cores']} cores",
        "",
        f"* machine: {machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, Linux {machine['kernel']}; "
        f"load before: {machine['load_before']:.1f}",
        f"* versions: Python {machine['python']}, {versions}",
        f"* commit: {found['commit']}; {found['date']}",
        f"* command: `{found['command']}`, {found.get('seconds', 0):.0f} s",
    ]
    if "rounds" in found and found["rows"]:
        lines.append(
            f"* {found['rounds']} rounds of {length(found)} for each row and side, in turn; "
            "median, then the slowest and the fastest round"
        )
    lines += [f"* without {name}: {why}" for name, why in found["missing"].items()]
    if "wrong" in found:
        lines.append(f"* **WRONG BYTES, and the end of the race: {plain(found['wrong'])}**")
    if not whole(found):
        lines.append("* **a part of the race only: not to be published**")
    return "\n".join(lines) + "\n"


def whole(found: dict) -> bool:
    """Whether all rows and all parts are there, and not in a hurry."""
    there = {row["name"] for row in found["rows"]} >= {row.name for row in ROWS}
    return (
        there
        and not found["quick"]
        and "wrong" not in found
        and all(part in found for part in ("first", "memory", "disk", "faults"))
    )


def length(found: dict) -> str:
    """What rounds took, in calls: the median of all."""
    rounds = [
        one["seconds"] for row in found["rows"] for samples in row["samples"].values() for one in samples
    ]
    return f"{statistics.median(rounds):.2f} s" if rounds else "no time"


def number(value: float) -> str:
    """Three digits that count; large ones in thousands and millions."""
    for unit, factor in (("M", 1e6), ("k", 1e4)):
        if value >= factor:
            return f"{value / (1e6 if unit == 'M' else 1e3):.3g} {unit}".replace("e+03", "000")
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def cell(row: dict, figure: stats.Figure) -> str:
    low, high = sorted(stats.shown(one, row) for one in (figure.low, figure.high))
    return f"{number(stats.shown(figure.median, row))} ({number(low)} … {number(high)})"


def times(ratio: float | None) -> str:
    return "–" if ratio is None else f"{ratio:.2f}"


def goals(found: dict) -> str:
    """The rows that were agreed on, under their names."""
    rows = {row["name"]: row for row in found["rows"]}
    lines = [
        "## Goals",
        "",
        "The drop-in against Mooncake, with or without its pool of connections, whichever is faster in",
    ]
    lines += ["the row; ratios above 1 are ours ahead.", ""]
    lines += ["| row | Mooncake | drop-in | ratio | goal | met |", "| --- | ---: | ---: | ---: | --- | --- |"]
    for goal in GOALS:
        there = [rows.get(name) for name in goal.rows]
        seen = [figures(row) if row else None for row in there]
        if not any(seen):
            continue
        verdict = stats.judge(goal.factors, seen)
        cells = []
        for of in (stats.mooncake, lambda one: one.get("drop-in")):
            figures_ = [of(one) if one else None for one in seen]
            cells.append(
                " / ".join(
                    f"{number(stats.shown(one.median, row))} {row['unit']}" if one else "–"
                    for row, one in zip(there, figures_)
                )
            )
        ratios = " / ".join(times(one) for one in verdict.ratios)
        met = {True: "yes", False: "**no**", None: "not measured"}[verdict.met]
        lines.append(f"| {goal.name} | {cells[0]} | {cells[1]} | {ratios} | {goal.words} | {met} |")
    return "\n".join(lines) + "\n"


def calls(found: dict) -> str:
    sides = found["sides"]
    lost = [row for row in found["rows"] if stats.behind(figures(row))]
    lines = [
        "## Calls",
        "",
        f"{len(found['rows'])} rows; in {len(lost)} of them a peer is ahead of one of ours, marked.",
        "",
    ]
    lines.append("| row | unit | " + " | ".join(sides) + " | drop-in : Mooncake | native : Mooncake | |")
    lines.append("| --- | --- |" + " ---: |" * (len(sides) + 2) + " --- |")
    for row in found["rows"]:
        seen = figures(row)
        cells = []
        for side in sides:
            if side in seen:
                cells.append(cell(row, seen[side]))
            elif side in row["failed"]:
                cells.append(f"failed: {plain(row['failed'][side])[:80]}")
            else:
                cells.append("not offered" if side in row["not offered"] else "–")
        ratios = [times(stats.ratio(seen, side)) for side in stats.OURS]
        mark = ", ".join(f"{ours} < {peer}" for ours, peer in stats.behind(seen))
        mark = f"{MARK}: {mark}" if mark else ""
        lines.append(f"| {row['name']} | {row['unit']} | " + " | ".join(cells + ratios) + f" | {mark} |")
    return "\n".join(lines) + "\n"


def plain(words: str) -> str:
    """Words that do not break a table."""
    return " ".join(words.replace("|", "/").split())


def first(samples: dict[str, list[float]]) -> str:
    lines = [
        "## Nothing to first get",
        "",
        "From starting the first server to a value of 4 KiB that was put and read, Python's start included.",
        "",
    ]
    lines += ["| side | s, median (fastest … slowest) |", "| --- | ---: |"]
    for side, seconds in samples.items():
        shown = (
            f"{statistics.median(seconds):.2f} ({min(seconds):.2f} … {max(seconds):.2f})"
            if seconds
            else "failed"
        )
        lines.append(f"| {side} | {shown} |")
    return "\n".join(lines) + "\n"


def memory(found: dict[str, Any]) -> str:
    lines = ["## Memory per object", ""]
    lines += [
        f"{found['objects']:,} objects of {found['value']} bytes; what the resident memory of the servers grew by, for each. All sides store at "
        "the same time, so the seconds are no race.",
        "",
    ]
    lines += [
        "| side | index or server, bytes | owner of the memory, bytes | together | stored in |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for side, one in found["sides"].items():
        if "failed" in one:
            lines.append(f"| {side} | failed: {plain(one['failed'])[:120]} | | | |")
            continue
        grown = one["bytes"]
        owner = f"{grown['owner']:.0f}" if "owner" in grown else "–"
        lines.append(
            f"| {side} | {grown['master']:.0f} | {owner} | {sum(grown.values()):.0f} | {one['seconds']:.1f} s |"
        )
    return "\n".join(lines) + "\n"


def answers(counted: dict[str, int]) -> str:
    return ", ".join(f"{name} × {count}" for name, count in counted.items()) or "none"


def disk(found: dict[str, Any]) -> str:
    lines = ["## Disk", ""]
    lines += [
        f"{found['values']} values of 1 MiB through {found['memory'] >> 20} MiB of memory and a disk; then the older half, which memory "
        "cannot hold, is read, and the newer one. The page cache of the kernel is warm.",
        "",
    ]
    lines += [
        "| side | stored | refused meanwhile | stored at | older half: there, missing | read at | newer half: there, missing |"
    ]
    lines += ["| --- | ---: | --- | ---: | --- | ---: | --- |"]
    for side, one in found["sides"].items():
        if "stored" not in one:
            words = "not offered" if "failed" not in one else f"failed: {plain(one['failed'])[:120]}"
            lines.append(f"| {side} | {words} | | | | | |")
            continue
        put, old, new = one["stored"], one["oldest"], one["newest"]
        # Of nothing there is no rate.
        rates = [
            f"{count * found['size'] / seconds / 1e9:.2f} GB/s" if count and seconds else "–"
            for count, seconds in ((put["stored"], put["seconds"]), (old["there"], old["seconds"]))
        ]
        lines.append(
            f"| {side} | {put['stored']} | {answers(put['refused'])} | {rates[0]} | {old['there']}, {answers(old['missing'])} "
            f"| {rates[1]} | {new['there']}, {answers(new['missing'])} |"
        )
    return "\n".join(lines) + "\n"


def faults(found: dict[str, Any]) -> str:
    lines = ["## Faults", ""]
    lines += [
        "One caller gets 64 keys of 64 KiB again and again, half of them only after the fault, puts what is not there, and new keys besides. Seconds count from the fault to the "
        "last bad answer; 0 means that there was none. Keys of an owner that is dead are misses until they are put again.",
        "",
        "| fault | side | gets failed until | what they answered | longest get | puts failed until | what they answered | longest put | wrong bytes |",
        "| --- | --- | ---: | --- | ---: | ---: | --- | ---: | ---: |",
    ]
    later: list[str] = []
    for fault, sides in found.items():
        for side, one in sides.items():
            if "newcomer" in one:
                later.append(usable(f"{fault}; a caller that comes then", side, one["newcomer"]))
            if "took" in one:
                later.append(usable(f"{fault}; another caller", side, one))
            elif "get" in one:
                parts = []
                for what in ("get", "put"):
                    seen = one[what]
                    going = one["limit"] and one["watched"] - seen["until"] < SETTLED
                    until = f"{seen['until']:.1f} s" + (ONGOING if going else "")
                    parts.append(f"{until} | {answers(seen['answers'])} | {seen['longest']:.2f} s")
                lines.append(f"| {fault} | {side} | {' | '.join(parts)} | {one['wrong']} |")
            else:
                words = one.get("silent") or one.get("failed")
                words = f"failed: {plain(words)[:160]}" if words else "not offered: there is one server"
                lines.append(f"| {fault} | {side} | {words} | | | | | | |")
    if later:
        lines += [
            "",
            "Until a key can be read with its bytes, put again where it is missing: the first, the median and the last of them.",
            "",
            "| fault | side | keys | usable again after | never | answers meanwhile |",
            "| --- | --- | ---: | ---: | ---: | --- |",
            *later,
        ]
    return "\n".join(lines) + "\n"


def usable(fault: str, side: str, one: dict[str, Any]) -> str:
    """A line about keys that a fault has hit."""
    took = sorted(one.get("took", []))
    shown = f"{took[0]:.2f}, {statistics.median(took):.2f}, {took[-1]:.2f} s" if took else "–"
    never = one.get("never", 0)
    return (
        f"| {fault} | {side} | {len(took) + never} | {shown} | {never} | {answers(one.get('answers', {}))} |"
    )
