"""A store behind REST, for programs that speak HTTP only: `mc_store_rest_server`.

    PUT    /api/put            {"key": ..., "value": ...}
    GET    /api/get/KEY        the bytes, or 404          GET /api/exist/KEY    {"exists": true}
    DELETE /api/remove/KEY     DELETE /api/remove_all
    POST   /api/mount          {"size": n}: more memory   POST /api/unmount     {"segment_ids": [...]}
    POST   /api/mount_shm      {"name": ..., "size": n}   POST /api/unmount_shm {"segment_ids": [...]}
    POST   /api/reconfigure    {"mode": "decode", "path": ..., "size": n}, or {"mode": "prefill"}
    POST   /api/unmount_local_disk

What must stay true: bodies are bounded; it listens on this machine only, unless the operator says otherwise,
because nobody is asked for credentials.
"""

import argparse
import codecs
import json
import logging
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import unquote_to_bytes

from ._absent import getter
from ._base import Key
from ._http import JSON, VERBS, Ending, Handler, NotOpen, Server, host_to_bind
from .mooncake_config import MooncakeConfig
from .store import MooncakeDistributedStore

log = logging.getLogger("mooncake.rest")

BODY_BYTES_MAX = 100 << 20
# Seconds between two tries to reach a master.
RETRY = 1.0
# Charsets of names of hosts: the time to read a body in them grows faster than its length.
SLOW = ("idna", "punycode")
# Seconds that a disk may be waited for: longer ones are milliseconds, most likely.
GRACE_SECONDS_MAX = _MAX_UNMOUNT_LOCAL_DISK_GRACE_PERIOD_SECONDS = 3600

# Status and body of an answer; bytes are sent as they are.
Answer = tuple[int, Any]


class Bad(Exception):
    """A request that makes no sense; the text is for the caller.

    Which of them are 400 and which 500 is Mooncake's choice: what it looks at before it begins is 400.
    """

    def __init__(self, text: str, status: int = 400) -> None:
        super().__init__(text)
        self.status = status


def _error(status: int, text: str) -> Answer:
    return status, {"error": text}


def _done(**more: Any) -> Answer:
    return 200, {"status": "success", **more}


def _ids(body: dict[str, Any]) -> list[str]:
    """The segments that a body names."""
    found = body.get("segment_ids")
    if isinstance(found, str):
        return [found]
    if not found:
        raise Bad("Missing segment_ids")
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise Bad("segment_ids are a text or a list of texts", 500)
    return found


def _number(body: dict[str, Any], name: str, default: int | None = None) -> int:
    """A number of 64 bits, at least 0."""
    found = body.get(name, default)
    if not isinstance(found, int) or not 0 <= found < 1 << 63:
        raise Bad(f"{name} is a number, at least 0", 500)
    return int(found)


def _text(body: dict[str, Any], name: str, default: str) -> str:
    found = body.get(name, default)
    if not isinstance(found, str):
        raise Bad(f"{name} is a text", 500)
    return found


class MooncakeStoreService:
    """A store and what was mounted through it."""

    def __init__(
        self, config_path: str | None = None, cli_config: dict[str, str] | None = None
    ) -> None:
        if config_path:
            self.config = MooncakeConfig.from_file(config_path)
        else:
            self.config = MooncakeConfig.load_from_env()
        for name, value in (cli_config or {}).items():
            if not hasattr(self.config, name):
                log.warning("there is no setting %r; it is ignored", name)
                continue
            old = getattr(self.config, name)
            setattr(self.config, name, _like(name, old, value))
        self.store: MooncakeDistributedStore | None = None
        self.current_mode = "prefill"
        self.mounted_segment_ids: list[str] = []
        # One change of what is mounted at a time.
        self._changing = threading.Lock()

    def start_store_service(
        self, max_wait_time: float = 60.0, ended: Callable[[float], bool] | None = None
    ) -> bool:
        """Sets the store up; tries again until it works or time is over.

        `ended` waits for at most so many seconds, and says whether the end was asked for.
        """
        end = time.monotonic() + max_wait_time
        while True:
            store = MooncakeDistributedStore()
            code = store.setup(self._settings())
            if code == 0:
                self.store = store
                log.info("the store is %s", store.get_hostname())
                return True
            left = end - time.monotonic()
            if left <= 0:
                log.error("the store could not be set up in %g s (%d)", max_wait_time, code)
                return False
            log.warning("the store could not be set up (%d); %.0f s are left", code, left)
            pause = min(RETRY, left)
            if ended is None:
                time.sleep(pause)
            elif ended(pause):
                return False

    def _settings(self) -> dict[str, object]:
        config = self.config
        return {
            "local_hostname": config.local_hostname,
            "metadata_server": config.metadata_server,
            "global_segment_size": config.global_segment_size,
            "local_buffer_size": config.local_buffer_size,
            "protocol": config.protocol,
            "rdma_devices": config.device_name,
            "master_server_addr": config.master_server_address,
            "enable_ssd_offload": config.enable_ssd_offload,
            "ssd_offload_path": config.ssd_offload_path,
            "tenant_id": config.tenant_id,
            "enable_client_http_server": config.enable_client_http_server,
            "client_http_port": config.client_http_port,
        }

    def stop(self) -> None:
        """Closes the store; repeatable."""
        store, self.store = self.store, None
        if store is not None:
            store.close()

    def _live(self) -> MooncakeDistributedStore:
        if self.store is None:
            raise RuntimeError("the store is not set up")
        return self.store

    # ---- values ----------------------------------------------------------------------------------

    def put(self, body: dict[str, Any]) -> Answer:
        key, value = body.get("key"), body.get("value")
        if not key or value is None:
            raise Bad("Missing key or value")
        try:
            name, raw = _text(body, "key", "").encode(), _text(body, "value", "").encode()
        except UnicodeEncodeError as error:
            raise Bad(f"key and value are texts: {error}", 500) from None
        code = self._live().put(name, raw)
        return _done() if code == 0 else _error(500, "PUT operation failed")

    def get(self, key: Key) -> Answer:
        store = self._live()
        value = store.get(key)
        if value:
            return 200, value
        # An empty answer is a miss, a failure, or a value of no bytes, and only the master can tell which.
        if store._existence_codes([key])[0] == 0:
            return _error(404, "Key not found")
        return (200, b"") if store.get_size(key) == 0 else _error(500, "GET operation failed")

    def exist(self, key: Key) -> Answer:
        (found,) = self._live()._existence_codes([key])
        return _error(500, "Exist check failed") if found < 0 else (200, {"exists": found > 0})

    def remove(self, key: Key) -> Answer:
        code = self._live().remove(key)
        return _done() if code == 0 else _error(500, "Remove operation failed")

    def remove_all(self) -> Answer:
        count = self._live().remove_all()
        if count < 0:
            return _error(500, "RemoveAll operation failed")
        return 200, {"status": f"success removed {count} keys"}

    # ---- memory ----------------------------------------------------------------------------------

    def mount(self, body: dict[str, Any]) -> Answer:
        size = body.get("size")
        if type(size) is not int or size <= 0:
            raise Bad("Invalid size, must be a positive integer")
        how = self._how(body)
        done = self._live().allocate_and_mount_segment(_number(body, "size"), *how)
        if done["ret"] != 0:
            return _error(500, f"Allocate and mount failed, ret={done['ret']}")
        ids = list(done["segment_ids"])
        return _done(segment_ids=ids, allocated_size=done["allocated_size"])

    def unmount(self, body: dict[str, Any]) -> Answer:
        ids, grace = _ids(body), _number(body, "grace_period_seconds", 0)
        code = self._live().unmount_and_free_segment(ids, grace)
        with self._changing:
            self._forget()
        return _done() if code == 0 else _error(500, f"Unmount and free failed, ret={code}")

    def mount_shm(self, body: dict[str, Any]) -> Answer:
        path = _shm_name_to_path(body.get("name"))
        if path is None or body.get("size") is None:
            raise Bad("Missing or invalid name or size")
        done = self._map(path, body)
        if done["ret"] != 0:
            return _error(500, f"Mount failed, ret={done['ret']}")
        return _done(segment_ids=list(done["segment_ids"]))

    def unmount_shm(self, body: dict[str, Any]) -> Answer:
        ids, grace = _ids(body), _number(body, "grace_period_seconds", 0)
        with self._changing:
            failed = [one for one in ids if self._live().unmount_segment([one], grace) != 0]
            self._forget()
        if failed:
            text = "Unmount failed for one or more segments"
            return 500, {"error": text, "failed_segment_ids": failed}
        return _done()

    def unmount_local_disk(self, body: dict[str, Any]) -> Answer:
        grace = body.get("grace_period_seconds", 0)
        if type(grace) is not int or not 0 <= grace <= GRACE_SECONDS_MAX:
            raise Bad(
                "Invalid grace_period_seconds, must be a non-negative integer no greater than "
                f"{GRACE_SECONDS_MAX}"
            )
        code = self._live().unmount_local_disk_segment(grace)
        return _done() if code == 0 else _error(500, f"Unmount local disk failed, ret={code}")

    def reconfigure(self, body: dict[str, Any]) -> Answer:
        mode = _text(body, "mode", "").lower()
        with self._changing:
            if mode == "decode":
                return self._to_decode(body)
            if mode == "prefill":
                return self._to_prefill()
        raise Bad("Invalid mode. Use 'decode' or 'prefill'")

    def _to_decode(self, body: dict[str, Any]) -> Answer:
        """Mounts the new memory first: what was there serves on if that fails."""
        if not body.get("path") or body.get("size") is None:
            raise Bad("Missing path or size for decode mode")
        old = self._live()._mounted(self.mounted_segment_ids)
        done = self._map(_text(body, "path", ""), body)
        if done["ret"] != 0:
            kept = "keeping previous decode segments" if old else ""
            if not kept:
                self.current_mode = "prefill"
            text = f"Mount failed, ret={done['ret']}; {kept or 'rolled back to prefill'}"
            return 500, {"error": text, "mode": self.current_mode}
        # What cannot be unmounted now stays known, so that a later call can try again.
        left = [one for one in old if self._live().unmount_segment([one]) != 0]
        self.mounted_segment_ids = [*done["segment_ids"], *left]
        self.current_mode = "decode"
        return _done(mode=self.current_mode, segment_ids=self.mounted_segment_ids)

    def _to_prefill(self) -> Answer:
        """One by one: each that cannot be unmounted now stays known, and no other."""
        ids = self._live()._mounted(self.mounted_segment_ids)
        codes = [self._live().unmount_segment([one]) for one in ids]
        self._forget()
        if self.mounted_segment_ids:
            return _error(500, f"Unmount failed, ret={min(codes)}")
        return _done(mode=self.current_mode)

    def _forget(self) -> None:
        """What is mounted no more, whoever unmounted it, needs no way back to prefill."""
        self.mounted_segment_ids = self._live()._mounted(self.mounted_segment_ids)
        if not self.mounted_segment_ids:
            self.current_mode = "prefill"

    def _map(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        size, offset = _number(body, "size"), _number(body, "offset", 0)
        return self._live().mount_segment(path, size, offset, *self._how(body))

    def _how(self, body: dict[str, Any]) -> tuple[str, str]:
        return _text(body, "protocol", self.config.protocol), _text(body, "location", "")


def _like(name: str, old: Any, text: str) -> Any:
    """A text as the kind of value that a setting has."""
    if isinstance(old, bool):
        return text.lower() in ("true", "1", "yes", "on", "enable")
    if isinstance(old, int):
        try:
            return int(text)
        except ValueError:
            if "size" in name:
                return text
            raise
    return text


# Verb of each route, by the name after `/api/`; those of the second table have a key behind them.
PLAIN = {
    "put": "PUT",
    "remove_all": "DELETE",
    "mount": "POST",
    "unmount": "POST",
    "mount_shm": "POST",
    "unmount_shm": "POST",
    "unmount_local_disk": "POST",
    "reconfigure": "POST",
}
WITH_KEY = {"get": "GET", "exist": "GET", "remove": "DELETE"}


class _Handler(Handler):
    body_max = BODY_BYTES_MAX
    verbs = VERBS
    service: MooncakeStoreService

    def route(self, path: str, query: dict[str, str]) -> None:
        # A key is one part of the path as it came: a slash in it is `%2F`. It is bytes: those that are no
        # text would all be the same one.
        first, *parts = map(unquote_to_bytes, self.sent_path.removeprefix("/").split("/"))
        name, keys = (parts[0].decode(errors="replace"), parts[1:]) if parts else ("", [])
        verb = PLAIN.get(name) if not keys else WITH_KEY.get(name)
        if first != b"api" or verb is None or len(keys) > 1 or keys == [b""]:
            self.reply(404, "404: Not Found")
            return
        allowed = ("GET", "HEAD") if verb == "GET" else (verb,)
        if self.command not in allowed:
            self.reply(405, "405: Method Not Allowed", allow=",".join(allowed))
            return
        try:
            answer = self._answer_to(name, *keys)
        except Bad as bad:
            answer = _error(bad.status, str(bad))
        except Exception as error:
            log.exception("%s %s", self.command, path)
            answer = _error(500, str(error))
        if answer is None:
            return
        status, body = answer
        if isinstance(body, bytes):
            self.reply(status, body, "application/octet-stream")
        else:
            self.reply(status, json.dumps(body), JSON)

    def _answer_to(self, name: str, *keys: bytes) -> Answer | None:
        handler: Callable[..., Answer] = getattr(self.service, name)
        if keys or name == "remove_all":
            return handler(*keys)
        raw = self.body()
        if raw is None:
            return None
        charset = _charset(self.headers.get("Content-Type"))
        return handler(_object(raw, charset, 400 if name.endswith("disk") else 500))

    def refuse_large(self) -> None:
        self.reply(500, json.dumps({"error": "Request Entity Too Large"}), JSON)


def _shm_name_to_path(name: object) -> str | None:
    """The file of shared memory of this name. A name is no path: nothing outside its folder is meant."""
    plain = name.removeprefix("/") if isinstance(name, str) else ""
    return f"/dev/shm/{plain}" if plain not in ("", ".", "..") and "/" not in plain else None


def _charset(kind: str) -> str:
    """How a body of this kind is encoded; UTF-8, unless it says something else."""
    for part in kind.split(";")[1:]:
        name, _, value = part.partition("=")
        if name.strip().lower() == "charset":
            return value.strip(' \t"') or "utf-8"
    return "utf-8"


def _object(raw: bytes, charset: str, status: int) -> dict[str, Any]:
    """The JSON object in a body, which is in the charset that its head names: nothing is guessed."""
    try:
        if codecs.lookup(charset).name in SLOW:
            raise Bad(f"Bodies in {charset} are not read", status)
        found = json.loads(raw.decode(charset))
    except (ValueError, LookupError, RecursionError):
        raise Bad("Malformed JSON body", status) from None
    if not isinstance(found, dict):
        raise Bad("Request body must be a JSON object", status)
    return found


def parse_arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line of the console script."""
    parser = argparse.ArgumentParser(
        prog="mc_store_rest_server", description="A store behind REST."
    )
    parser.add_argument("--config", help="a JSON file; without it the environment is asked")
    parser.add_argument(
        "-D", "--define", action="append", default=[], metavar="NAME=VALUE", help="set one setting"
    )
    parser.add_argument("--port", type=int, default=8080, help="where it listens (8080)")
    parser.add_argument("--host", default="0.0.0.0", help="at which address (0.0.0.0)")
    parser.add_argument(
        "--max-wait-time", type=float, default=60.0, help="seconds to wait for the master (60)"
    )
    found = parser.parse_args(given)
    for pair in found.define:
        if "=" not in pair:
            parser.error(f"-D {pair}: NAME=VALUE is wanted")
    return found


def sync_main(arguments: Sequence[str] | None = None) -> int:
    """The console script."""
    given = parse_arguments(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    end = Ending()
    try:
        defined = dict(pair.split("=", 1) for pair in given.define)
        service = MooncakeStoreService(given.config, defined)
    except (OSError, ValueError) as error:
        log.error("the settings cannot be used: %s", error)
        return 1
    try:
        handler: Any = type("_Bound", (_Handler,), {"service": service})
        server = Server(host_to_bind(given.host), given.port, handler)
    except (OSError, OverflowError, NotOpen) as error:
        log.error("the REST server cannot listen on %s:%d: %s", given.host, given.port, error)
        return 1
    try:
        if not service.start_store_service(given.max_wait_time, end.wait):
            return 0 if end.asked else 1
        server.start("mooncake-rest")
        log.info("the REST server listens on %s:%d", *server.server_address[:2])
        end.wait()
        return 0
    finally:
        server.close()
        service.stop()


async def main(arguments: Sequence[str] | None = None) -> int:
    """The same for `asyncio.run`, whose loop has nothing else to do."""
    return sync_main(arguments)


__getattr__ = getter(__name__)

if __name__ == "__main__":
    sys.exit(sync_main())
