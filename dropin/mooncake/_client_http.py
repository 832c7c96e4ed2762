"""The HTTP of one store (`enable_client_http_server`): is it well, and its numbers.

    GET /health            {"status": "healthy", "code": 0}, or 503 and why not
    GET /metrics           for Prometheus
    GET /metrics/summary   one line

What must stay true: it listens on this machine only, tells no key and changes nothing; a number that nobody
counts is not shown.
"""

import weakref
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import mooncrate

from ._codes import log
from ._http import Handler, Server

# By the code of `health_check`.
HEALTH = ((200, "healthy"), (503, "not_initialized"), (503, "master_unreachable"))

# What the client counts, under the name that dashboards of Mooncake's look for, and in words.
NUMBERS = (
    ("mooncake_transfer_read_bytes", "bytes_read", "Bytes of values that were read."),
    ("mooncake_transfer_write_bytes", "bytes_written", "Bytes of values that were stored."),
    ("mooncrate_client_puts_total", "puts", "Values that were stored."),
    ("mooncrate_client_misses_total", "misses", "Keys that were asked for and not there."),
    ("mooncrate_client_local_gets_total", "local", "Values read in this process."),
    ("mooncrate_client_shared_gets_total", "shared", "Values read from shared memory."),
    ("mooncrate_client_stream_gets_total", "stream", "Values read over sockets."),
    (
        "mooncrate_client_corrupt_total",
        "corrupt",
        "Copies that were not what was put, and not used.",
    ),
)


def metrics(counts: Mapping[str, int]) -> str:
    """The page for Prometheus."""
    lines = []
    for name, key, words in NUMBERS:
        lines += [f"# HELP {name} {words}", f"# TYPE {name} counter", f"{name} {counts[key]}"]
    return "\n".join(lines) + "\n"


def summary(health: int, counts: Mapping[str, int]) -> str:
    """The same in one line."""
    gets = counts["local"] + counts["shared"] + counts["stream"]
    return (
        f"role=client, health={HEALTH[health][1]}, gets={gets}, misses={counts['misses']}, "
        f"puts={counts['puts']}, read={counts['bytes_read']} B, "
        f"written={counts['bytes_written']} B\n"
    )


class _Handler(Handler):
    health: Callable[[], int]
    counts: Callable[[], Mapping[str, int]]

    def route(self, path: str, query: dict[str, str]) -> None:
        try:
            self._show(path if self.command in ("GET", "HEAD") else "")
        except mooncrate.Error as error:
            self.reply(503, str(error))

    def _show(self, path: str) -> None:
        asked = type(self)
        if path == "/health":
            code = asked.health()
            status, words = HEALTH[code]
            self.reply_json(status, {"status": words, "code": code})
        elif path == "/metrics":
            self.reply(200, metrics(asked.counts()), "text/plain; version=0.0.4; charset=utf-8")
        elif path == "/metrics/summary":
            self.reply(200, summary(asked.health(), asked.counts()))
        else:
            self.reply(404, "404 Not Found")


class Watched(Protocol):
    """A store, as far as it is looked at."""

    def health_check(self) -> int: ...


def open_for(watched: Watched, client: mooncrate.Store, port: int) -> Server | None:
    """Answers on this port of this machine until it is closed; None: the port is taken.

    That is no reason to be without a store: several of one machine are often given the same port.
    """
    # Not held: a store that nobody has any more is closed, and its window with it.
    store = weakref.ref(watched)

    def health() -> int:
        found = store()
        return 1 if found is None else found.health_check()

    parts: dict[str, Any] = {
        "health": staticmethod(health),
        "counts": staticmethod(lambda: client.stats()["client"]),
    }
    handler: Any = type("_Bound", (_Handler,), parts)
    try:
        server = Server("127.0.0.1", port, handler)
    except (OSError, OverflowError) as error:
        log.error("the HTTP of this store cannot listen on port %d: %s", port, error)
        return None
    server.start("mooncake-client-http")
    return server
