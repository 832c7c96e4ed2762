"""Command lines in the style of gflags, for start-up files that were written for Mooncake.

`--name=value`, `--name value`, one dash or two, `-` or `_` inside a name, booleans also as `--name` and
`--noname`. Order: default, then the file of `--config_path`, then the command line.

What must stay true: a flag that nobody knows only warns, and names the nearest one that is known; a flag
that is known and has a bad value stops the program; a flag that is accepted and has no effect says so.
"""

import difflib
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TRUE = ("true", "t", "1", "yes", "y", "on")
FALSE = ("false", "f", "0", "no", "n", "off")
# Flags of the logging library, which every program of Mooncake's takes.
LOGGING = ("logtostderr", "alsologtostderr", "minloglevel", "stderrthreshold", "log_dir", "v")


class BadFlag(Exception):
    """A flag whose value cannot be meant; the text is for whoever typed it."""


def boolean(text: str) -> bool:
    """true or false, in the spellings that gflags takes."""
    if text.lower() in TRUE:
        return True
    if text.lower() in FALSE:
        return False
    raise ValueError("true or false is wanted")


def whole(low: int, high: int) -> Callable[[str], int]:
    """A whole number in this range."""

    def parse(text: str) -> int:
        try:
            number = int(text, 10)
        except ValueError:
            raise ValueError("a whole number is wanted") from None
        if not low <= number <= high:
            raise ValueError(f"a number from {low} to {high} is wanted")
        return number

    return parse


def ratio(text: str) -> float:
    """A part of the whole."""
    try:
        number = float(text)
    except ValueError:
        raise ValueError("a number from 0 to 1 is wanted") from None
    if not 0.0 <= number <= 1.0:
        raise ValueError("a number from 0 to 1 is wanted")
    return number


def choice(*names: str) -> Callable[[str], str]:
    """One of these."""

    def parse(text: str) -> str:
        if text not in names:
            raise ValueError(f"one of {', '.join(names)} is wanted")
        return text

    return parse


def milliseconds(text: str) -> int:
    """A span of time: a number of milliseconds, or with a unit as in 500ms, 5s, 1m or 1h."""
    units = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}
    digits = text.rstrip("hms")
    unit = text[len(digits) :] or "ms"
    if not digits.isdecimal() or unit not in units:
        raise ValueError("a number of milliseconds is wanted, or 500ms, 5s, 1m, 1h")
    return int(digits) * units[unit]


port = whole(0, 65535)
count = whole(0, (1 << 63) - 1)
amount = whole(-(1 << 63), (1 << 64) - 1)


@dataclass(frozen=True)
class Flag:
    """One flag: how its value is read, what it is when nobody says, and whether it has an effect."""

    name: str
    parse: Callable[[str], Any]
    default: Any
    # Why it is accepted and does nothing; empty for one that works.
    idle: str = ""


@dataclass
class Values:
    """What was given, what holds, and what there is to say about it."""

    flags: dict[str, Flag]
    given: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def __getitem__(self, name: str) -> Any:
        return self.given.get(name, self.flags[name].default)

    def was_given(self, name: str) -> bool:
        return name in self.given


def _split(argument: str) -> tuple[str, str | None]:
    """The name of a flag and the value that is attached to it."""
    name, equals, value = argument.lstrip("-").partition("=")
    return name.replace("-", "_"), value if equals else None


class Parser:
    """The flags of one program. `families`: beginnings of names that are accepted and do nothing."""

    def __init__(
        self, program: str, flags: Iterable[Flag], families: Mapping[str, str] | None = None
    ) -> None:
        self.program = program
        self.flags = {flag.name: flag for flag in flags}
        self.families = dict(families or {})

    def parse(self, arguments: Sequence[str]) -> Values:
        """Reads a command line, and the file that it names."""
        typed = Values(self.flags)
        rest = list(arguments)
        while rest:
            argument = rest.pop(0)
            if argument == "--":
                break
            if not argument.startswith("-") or argument == "-":
                typed.warnings.append(f"{argument!r} is no flag and is ignored")
                continue
            self._take(argument, rest, typed)
        if "config_path" not in self.flags or not typed["config_path"]:
            return self._judge(typed)
        values = Values(self.flags)
        self._take_file(Path(typed["config_path"]), values)
        values.given.update(typed.given)
        values.warnings += typed.warnings
        return self._judge(values)

    def _take(self, argument: str, rest: list[str], values: Values) -> None:
        name, value = _split(argument)
        flag = self.flags.get(name)
        if flag is None and name.startswith("no") and value is None:
            off = self.flags.get(name.removeprefix("no").lstrip("_"))
            if off is not None and off.parse is boolean:
                values.given[off.name] = False
                return
        if flag is None:
            self._take_unknown(name, value, rest, values)
            return
        if value is None and flag.parse is boolean:
            value = "true"
            if rest and rest[0].lower() in (*TRUE, *FALSE):
                value = rest.pop(0)
                values.warnings.append(
                    f"--{name} {value} is taken as --{name}={value}; write it so: elsewhere the value "
                    "of a switch counts after `=` only"
                )
        if value is None:
            if not rest:
                raise BadFlag(f"--{name} needs a value, as in --{name}={flag.default}")
            value = rest.pop(0)
        self._set(flag, value, f"--{name}={value}", values)

    def _take_unknown(self, name: str, value: str | None, rest: list[str], values: Values) -> None:
        # Its value is swallowed with it, or it would be taken for something else.
        if value is None and rest and not rest[0].startswith("-"):
            rest.pop(0)
        if name in LOGGING:
            return
        for family, why in self.families.items():
            if name.startswith(family):
                values.warnings.append(f"--{name} has no effect: {why}")
                return
        near = difflib.get_close_matches(name, self.flags, n=1, cutoff=0.0)
        values.warnings.append(
            f"there is no flag --{name}, it is ignored; the nearest is --{near[0]}"
        )

    def _set(self, flag: Flag, text: str, shown: str, values: Values) -> None:
        try:
            values.given[flag.name] = flag.parse(text)
        except ValueError as error:
            raise BadFlag(f"{shown}: {error}") from None

    def _judge(self, values: Values) -> Values:
        for name, value in values.given.items():
            flag = self.flags[name]
            # What is set to what it is anyway needs no words.
            if flag.idle and value != flag.default:
                values.warnings.append(f"--{name} has no effect: {flag.idle}")
        return values

    # ---- the file ------------------------------------------------------------------------------

    def _take_file(self, path: Path, values: Values) -> None:
        for name, value in read_mapping(path).items():
            known = "client_ttl" if name == "client_live_ttl_sec" else str(name)
            shown = f"{path}: {name}: {value}"
            if isinstance(value, bool):
                value = "true" if value else "false"
            elif not isinstance(value, (str, int, float)):
                raise BadFlag(f"{shown}: a text, a number, true or false is wanted")
            flag = self.flags.get(known)
            if flag is None:
                self._take_unknown(known, str(value), [], values)
            else:
                self._set(flag, str(value), shown, values)


def read_mapping(path: Path) -> dict[str, Any]:
    """A file with one mapping, in JSON; in YAML where PyYAML is installed."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadFlag(f"the configuration {path} cannot be read: {error}") from None
    try:
        found = json.loads(text)
    except ValueError:
        found = _yaml(path, text)
    if not isinstance(found, dict):
        raise BadFlag(f"the configuration {path} holds no settings by name")
    return found


def _yaml(path: Path, text: str) -> Any:
    if path.suffix == ".json":
        raise BadFlag(f"the configuration {path} is not JSON") from None
    try:
        import yaml  # type: ignore[import-untyped]
    except ImportError:
        raise BadFlag(
            f"the configuration {path} is not JSON, and reading YAML needs PyYAML: pip install pyyaml, "
            "or write the file as JSON"
        ) from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise BadFlag(f"the configuration {path} is neither JSON nor YAML: {error}") from None


def usage(parser: Parser, sentence: str) -> str:
    """What a program says when it is asked for help."""
    lines = [sentence, "", f"usage: {parser.program} [--flag=value ...]", ""]
    for flag in sorted(parser.flags.values(), key=lambda flag: flag.name):
        words = f"  (accepted; {flag.idle})" if flag.idle else ""
        default = str(flag.default).lower() if isinstance(flag.default, bool) else flag.default
        lines.append(f"  --{flag.name}={default}{words}")
    return "\n".join(lines)


def say(program: str, text: str) -> None:
    """One line for whoever looks at the log of a program."""
    print(f"{program}: {text}", file=sys.stderr, flush=True)
