"""Charts without a library: how far ahead each row is, and what more threads bring."""

import math
from html import escape

import stats
from race import figures

COLOURS = {
    "drop-in": "#0b6e4f",
    "native": "#5aa9a0",
    "Mooncake": "#d1802b",
    "Mooncake-pool": "#e0b34d",
    "Redis": "#a33b3b",
    "memcached": "#6b5b95",
}
LOST = "#c0392b"
LEFT, WIDTH, BAR, LINE = 330, 1000, 7, 20
FLOOR, CEILING = 1 / 8, 64
PANEL, PANELS = 230, 4
SCALES = [
    ("batch_is_exist of 128", "keys/s"),
    ("batch_is_exist of 32", "keys/s"),
    ("is_exist", "calls/s"),
    ("put + remove of 128 bytes", "calls/s"),
    ("get_into 4 KiB, first read of a key", "calls/s"),
    ("get_into 4 KiB", "calls/s"),
    ("get 4 KiB", "calls/s"),
    ("put_from 4 KiB", "calls/s"),
    ("get_into 1 MiB", "GB/s"),
    ("get 1 MiB", "GB/s"),
    ("put_from 1 MiB", "GB/s"),
    ("put 1 MiB", "GB/s"),
]


def draw(found: dict) -> str:
    """All charts, one below the other."""
    ratios, height = _ratios(found)
    scales, more = _scales(found, height + 30)
    total = height + 30 + more
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{total}" viewBox="0 0 {WIDTH} {total}" '
    opening += 'font-family="sans-serif" font-size="11">'
    return "\n".join(
        [opening, f'<rect width="{WIDTH}" height="{total}" fill="white"/>', *ratios, *scales, "</svg>", ""]
    )


def _text(x: float, y: float, words: str, anchor: str = "start", colour: str = "#222", size: int = 11) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}" font-size="{size}">{escape(words)}</text>'


def at(ratio: float) -> float:
    """Where a ratio lies from left to right, on a scale of powers of two."""
    inside = min(max(ratio, FLOOR), CEILING)
    return LEFT + (WIDTH - LEFT - 60) * math.log(inside / FLOOR) / math.log(CEILING / FLOOR)


def _ratios(found: dict) -> tuple[list[str], int]:
    lines, y = (
        [_text(10, 20, "times as fast as Mooncake (drop-in dark, native light; red: behind)", size=14)],
        44,
    )
    top = y - 10
    for row in found["rows"]:
        seen = figures(row)
        pairs = [(side, stats.ratio(seen, side)) for side in stats.OURS]
        pairs = [(side, ratio) for side, ratio in pairs if ratio is not None]
        if not pairs:
            continue
        lines.append(_text(LEFT - 8, y + 8, row["name"], "end"))
        for place, (side, ratio) in enumerate(pairs):
            ends = sorted((at(1), at(ratio)))
            colour = LOST if ratio < 1 else COLOURS[side]
            top_of = y + place * (BAR + 1)
            lines.append(
                f'<rect x="{ends[0]:.1f}" y="{top_of}" width="{max(1, ends[1] - ends[0]):.1f}" height="{BAR}" fill="{colour}"/>'
            )
            lines.append(_text(ends[1] + 4, top_of + BAR, f"{ratio:.2f}", size=8))
        y += LINE
    ratio = FLOOR
    while ratio <= CEILING:
        x = at(ratio)
        lines.insert(
            1,
            f'<line x1="{x:.1f}" y1="{top}" x2="{x:.1f}" y2="{y}" stroke="{"#222" if ratio == 1 else "#ddd"}"/>',
        )
        lines.append(_text(x, y + 12, f"{ratio:g} ×", "middle"))
        ratio *= 2
    return lines, y + 16


def _scales(found: dict, top: int) -> tuple[list[str], int]:
    rows = {row["name"]: row for row in found["rows"]}
    shown = []
    for name, unit in SCALES:
        series = _series(rows, name, unit)
        if any(len(points) > 1 for points in series.values()):
            shown.append((name, unit, series))
    if not shown:
        return [], 0
    lines = [
        _text(
            10, top + 14, "what more threads bring: medians, with the slowest and the fastest round", size=14
        )
    ]
    for place, (side, colour) in enumerate(COLOURS.items()):
        if side in found["sides"]:
            lines.append(_text(500 + place * 85, top + 14, f"● {side}", colour=colour))
    for place, (name, unit, series) in enumerate(shown):
        x, y = 20 + place % PANELS * (PANEL + 15), top + 40 + place // PANELS * 190
        lines += _panel(x, y, f"{name}, {unit}", series)
    return lines, 50 + 190 * math.ceil(len(shown) / PANELS)


def _series(rows: dict, name: str, unit: str) -> dict[str, list]:
    """For each side the threads and the figures of a call."""
    series: dict[str, list] = {}
    for threads in (1, 2, 4, 8):
        row = rows.get(f"{name}, {threads} thread{'s' if threads > 1 else ''}")
        for side, figure in (figures(row) if row else {}).items():
            in_unit = {**row, "unit": unit}
            points = [stats.shown(one, in_unit) for one in (figure.median, figure.low, figure.high)]
            series.setdefault(side, []).append((threads, *points))
    return series


def _panel(x: int, y: int, title: str, series: dict[str, list]) -> list[str]:
    most = max(point[3] for points in series.values() for point in points)
    wide, high = PANEL - 50, 120

    def across(threads: int) -> float:
        return x + 45 + wide * math.log2(threads) / 3

    def up(value: float) -> float:
        return y + 10 + high * (1 - value / most)

    lines = [
        _text(x, y, title),
        f'<path d="M{x + 40},{y + 10}V{y + 10 + high}H{x + 50 + wide}" fill="none" stroke="#999"/>',
    ]
    lines += [
        _text(x + 37, y + 18, f"{most:.3g}", "end", size=9),
        _text(x + 37, y + 12 + high, "0", "end", size=9),
    ]
    lines += [
        _text(across(threads), y + 24 + high, str(threads), "middle", size=9) for threads in (1, 2, 4, 8)
    ]
    for side, points in series.items():
        colour = COLOURS[side]
        path = " ".join(f"{across(threads):.1f},{up(median):.1f}" for threads, median, _, _ in points)
        lines.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for threads, median, low, highest in points:
            place = across(threads)
            lines.append(f'<circle cx="{place:.1f}" cy="{up(median):.1f}" r="3" fill="{colour}"/>')
            lines.append(
                f'<line x1="{place:.1f}" y1="{up(low):.1f}" x2="{place:.1f}" y2="{up(highest):.1f}" stroke="{colour}"/>'
            )
    return lines
