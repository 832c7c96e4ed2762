"""The metadata server of Mooncake's: a small map of keys to bytes over HTTP.

Stores of ours need none: the master is enough. It is there for start-up files that start one, and for
programs that ask it. `mooncake_master --enable_http_metadata_server` runs the same inside the master.

    GET    /metadata?key=K    200 and the bytes, or 404
    PUT    /metadata?key=K    200; a key with `rpc_meta` in it is not replaced by other bytes: 400
    DELETE /metadata?key=K    200, or 404

What must stay true: what it holds is bounded, and gone with the process.
"""

import argparse
import logging
import sys
import threading
from collections.abc import Sequence
from enum import Enum
from typing import Any

from ._absent import getter
from ._http import JSON, VERBS, Ending, Handler, NotOpen, Server, host_to_bind

log = logging.getLogger("mooncake.metadata")

KEY_BYTES_MAX = 8192
VALUE_BYTES_MAX = 1 << 20
TOTAL_BYTES_MAX = 64 << 20
# What an entry costs beside its bytes, so that empty ones are bounded, too.
ENTRY_BYTES = 128
# A key that holds this belongs to one writer.
OWNED = "rpc_meta"


class KVPoll(Enum):
    """How a server is."""

    Failed = 0
    Bootstrapping = 1
    WaitingForInput = 2
    Transferring = 3
    Success = 4


def key_bytes(key: str) -> int:
    """The length of a key, also of one that is no text."""
    return len(key.encode(errors="surrogateescape"))


class _Shelf:
    """What is kept."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.entries: dict[str, bytes] = {}
        self.bytes = 0

    @staticmethod
    def cost(key: str, value: bytes) -> int:
        return key_bytes(key) + len(value) + ENTRY_BYTES

    def get(self, key: str) -> tuple[int, bytes]:
        with self.lock:
            found = self.entries.get(key)
        return (404, b"metadata not found") if found is None else (200, found)

    def put(self, key: str, value: bytes) -> tuple[int, bytes]:
        with self.lock:
            old = self.entries.get(key)
            if old is not None and OWNED in key:
                if old == value:
                    return 200, b"metadata unchanged"
                return 400, b"Duplicate rpc_meta key not allowed"
            freed = 0 if old is None else self.cost(key, old)
            total = self.bytes - freed + self.cost(key, value)
            if total > TOTAL_BYTES_MAX:
                return 507, b"the metadata server is full"
            self.bytes = total
            self.entries[key] = value
        return 200, b"metadata updated"

    def delete(self, key: str) -> tuple[int, bytes]:
        with self.lock:
            old = self.entries.pop(key, None)
            if old is None:
                return 404, b"metadata not found"
            self.bytes -= self.cost(key, old)
        return 200, b"metadata deleted"


class _Handler(Handler):
    body_max = VALUE_BYTES_MAX
    verbs = VERBS
    shelf: _Shelf

    def route(self, path: str, query: dict[str, str]) -> None:
        if path != "/metadata":
            self.reply(404, "404: Not Found")
            return
        key = query.get("key", "").strip()
        if not key:
            self.reply(400, "metadata key is required", JSON)
        elif key_bytes(key) > KEY_BYTES_MAX:
            self.reply(400, f"a key has at most {KEY_BYTES_MAX} bytes", JSON)
        elif self.command == "GET":
            status, found = self.shelf.get(key)
            # What is stored is called JSON, whatever it is; in which letters, nobody knows.
            self.reply(status, found, "application/json" if status == 200 else JSON)
        elif self.command == "PUT":
            body = self.body()
            if body is not None:
                self.reply(*self.shelf.put(key, body), JSON)
        elif self.command == "DELETE":
            self.reply(*self.shelf.delete(key), JSON)
        else:
            self.reply(405, "Method not allowed", JSON)


class KVBootstrapServer:
    """A metadata server in this process: `run` starts it, `close` ends it, `poll` says how it is."""

    def __init__(self, port: int, host: str = "0.0.0.0") -> None:
        self.port = port
        self.host = host
        self.thread: threading.Thread | None = None
        self._server: Server | None = None

    def run(self) -> threading.Thread:
        """Listens and answers from now on, in a thread of its own.

        Raises OSError where the port is taken, and `NotOpen` where others could connect and nobody has
        said that they may.
        """
        if self._server is not None:
            raise RuntimeError("the server runs already")
        shelf = _Shelf()
        handler: Any = type("_Bound", (_Handler,), {"shelf": shelf})
        server = Server(host_to_bind(self.host), self.port, handler)
        self.port = server.port
        self._server = server
        self.thread = server.start("mooncake-metadata")
        log.info("the metadata server listens on %s:%d", *server.server_address[:2])
        return self.thread

    def close(self) -> None:
        """Ends it and gives the port back; repeatable, also before `run`."""
        server, self._server = self._server, None
        if server is not None:
            server.close()

    def poll(self) -> KVPoll:
        """Success while it answers."""
        alive = self.thread is not None and self.thread.is_alive()
        return KVPoll.Success if alive else KVPoll.Failed


def parse_args(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line of the console script."""
    parser = argparse.ArgumentParser(
        prog="mooncake_http_metadata_server",
        description="A metadata server for programs that ask for one.",
    )
    parser.add_argument("--port", type=int, default=8080, help="where it listens (8080)")
    parser.add_argument("--host", default="0.0.0.0", help="at which address (0.0.0.0)")
    levels = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
    parser.add_argument("--log-level", default="INFO", choices=levels, help="what is logged (INFO)")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """The console script."""
    given = parse_args(arguments)
    logging.basicConfig(level=given.log_level, format="%(asctime)s %(levelname)s %(message)s")
    end = Ending()
    server = KVBootstrapServer(given.port, given.host)
    try:
        server.run()
    except (OSError, OverflowError, NotOpen) as error:
        log.error("the metadata server cannot listen on %s:%d: %s", given.host, given.port, error)
        return 1
    end.wait()
    server.close()
    return 0


__getattr__ = getter(__name__)

if __name__ == "__main__":
    sys.exit(main())
