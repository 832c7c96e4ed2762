"""Runs a program of ours under a name of Mooncake's: read flags, say what there is to say, become it.

What must stay true: the process that was started is the server, so that whoever started it can end it by
its id; nothing of it listens where other machines reach it unless credentials or the operator say so.
"""

import os
from collections.abc import Callable, Sequence

from mooncrate._cli import run as become

from ._flags import BadFlag, Flag, Parser, Values, boolean, say, usage
from ._hosts import says_yes, spell_out_switches

# What our own servers can do besides, under the names that they have here.
OWN = (
    Flag("token_file", str, ""),
    Flag("tls_cert", str, ""),
    Flag("tls_key", str, ""),
    Flag("tls_ca", str, ""),
    Flag("insecure_listen", boolean, False),
    Flag("log", str, ""),
)

OPEN_IT = (
    "give --token_file=FILE, or MOONCRATE_TOKEN_FILE (`mooncrate token new > FILE`), or accept the risk "
    "with --insecure_listen"
)

Translate = Callable[[Values], tuple[list[str], list[str]]]


def join(host: str, port: int) -> str:
    """`host:port`, with brackets where they are needed."""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def insecure(values: Values) -> bool:
    """Whether the operator accepts that others can connect."""
    return values["insecure_listen"] or says_yes("MOONCRATE_INSECURE_LISTEN")


def guarded(values: Values) -> bool:
    """Whether callers are asked for credentials."""
    named = ("token_file", "tls_ca")
    return any(values[name] or os.environ.get(f"MOONCRATE_{name.upper()}") for name in named)


def credentials(values: Values) -> list[str]:
    """The flags of ours that are the same here and there."""
    found = []
    for name in ("token_file", "tls_cert", "tls_key", "tls_ca", "log"):
        if values[name]:
            found += [f"--{name.replace('_', '-')}", values[name]]
    if values["insecure_listen"]:
        found.append("--insecure-listen")
    return found


def run(parser: Parser, sentence: str, translate: Translate, arguments: Sequence[str]) -> int:
    """Reads the flags and becomes the server; returns when it has ended."""
    if any(argument.lstrip("-").partition("=")[0] in ("help", "h") for argument in arguments):
        print(usage(parser, sentence))
        return 0
    try:
        values = parser.parse(arguments)
        command, notes = translate(values)
    except BadFlag as error:
        say(parser.program, f"error: {error}")
        return 1
    for warning in values.warnings:
        say(parser.program, f"warning: {warning}")
    for note in notes:
        say(parser.program, note)
    spell_out_switches()
    return become(command)
