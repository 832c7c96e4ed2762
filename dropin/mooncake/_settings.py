"""The arguments of `setup`, from both of its forms, as one checked value.

Unknown names in a dict only warn: callers forward settings that are meant for others. A value that
cannot be meant is refused, with the reason in the log.
"""

import difflib
import os
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from operator import index
from typing import Any

from ._codes import log

MIB = 1 << 20
DEFAULT_BYTES = 16 * MIB
BUFFER_BYTES_MAX = 1 << 40
PAGE = 4096
DEFAULT_MASTER = "127.0.0.1:50051"

SIZE_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)\s*", re.IGNORECASE)

# Every spelling that callers use, and the argument it means.
_NAMES = {
    "local_hostname": "local_hostname",
    "metadata_server": "metadata_server",
    "global_segment_size": "global_segment_size",
    "local_buffer_size": "local_buffer_size",
    "protocol": "protocol",
    "rdma_devices": "rdma_devices",
    "device_name": "rdma_devices",
    "device_names": "rdma_devices",
    "master_server_addr": "master_server_addr",
    "master_server_address": "master_server_addr",
    "ipc_socket_path": "ipc_socket_path",
    "enable_ssd_offload": "enable_ssd_offload",
    "ssd_offload_path": "ssd_offload_path",
    "tenant_id": "tenant_id",
    "enable_client_http_server": "enable_client_http_server",
    "client_http_port": "client_http_port",
}


class Refused(ValueError):
    """A setting that cannot be meant; the text says which and why."""


@dataclass
class Settings:
    """What a store is set up with."""

    local_hostname: str
    metadata_server: str
    global_segment_size: int = DEFAULT_BYTES
    local_buffer_size: int = DEFAULT_BYTES
    protocol: str = "tcp"
    rdma_devices: str = ""
    master_server_addr: str = DEFAULT_MASTER
    enable_ssd_offload: bool = False
    ssd_offload_path: str = ""
    tenant_id: str = "default"
    enable_client_http_server: bool = False
    client_http_port: int = 9300

    def check(self) -> None:
        """Raises `Refused` for what no store can be set up with."""
        if not self.local_hostname:
            raise Refused("local_hostname is empty; give this machine's name, or name:port")
        if not self.master_server_addr:
            raise Refused("master_server_addr is empty; give host:port of the master")
        if "://" in self.master_server_addr:
            raise Refused(
                f"master_server_addr {self.master_server_addr!r} names a directory of masters; give "
                "host:port of the master, or of all of them with commas"
            )
        if not 0 <= self.local_buffer_size <= BUFFER_BYTES_MAX:
            raise Refused(f"local_buffer_size {self.local_buffer_size} is not between 0 and 1 TiB")
        if self.global_segment_size < 0 or 0 < self.global_segment_size < PAGE:
            raise Refused(f"global_segment_size {self.global_segment_size} is less than a page")
        self._check_protocol()

    def _check_protocol(self) -> None:
        protocol = self.protocol.lower()
        if protocol == "rdma":
            forced = os.environ.get("MC_FORCE_TCP", "").lower() in ("1", "true", "on", "yes")
            # The default of engines: refused, they would store nothing on a machine without RDMA.
            tell = log.info if forced else log.warning
            tell("protocol 'rdma' was asked for and is not available: values travel over TCP")
        elif protocol != "tcp":
            raise Refused(f"protocol {self.protocol!r} is unknown; 'tcp' is what there is")


def parse_size(name: str, value: object) -> int:
    """Bytes: a number, or a text as 16777216, 16MB, 1.5 gb or 4g."""
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise Refused(f"{name} is a number of bytes or a text like '16MB', not {value!r}")
    if isinstance(value, int):
        number = value
    else:
        match = _SIZE.fullmatch(value)
        unit = match.group(2).lower() if match else "?"
        unit = unit.removesuffix("b") if len(unit) == 2 else unit
        if match is None or unit not in SIZE_UNITS:
            raise Refused(f"{name} {value!r} is no size; write it as 16777216, 16MB or 1.5GB")
        whole, _, part = match.group(1).partition(".")
        try:
            number = int(whole + part) * SIZE_UNITS[unit] // 10 ** len(part)
        except ValueError as error:
            # Python reads no number of thousands of digits.
            raise Refused(f"{name} {value[:40]!r}… is no size") from error
    if number < 0:
        raise Refused(f"{name} {value!r} is negative")
    return number


def _small(name: str, value: object) -> int:
    number = parse_size(name, value)
    if 0 < number < 1024:
        raise Refused(f"{name} {value!r} is less than 1 KiB; is a unit missing?")
    return number


def _truth(name: str, value: object) -> bool:
    if isinstance(value, (bool, int)):
        return bool(value)
    text = str(value).strip().lower()
    if text in ("true", "1", "yes", "on", "enable"):
        return True
    if text in ("false", "0", "no", "off", "disable", ""):
        return False
    raise Refused(f"{name} {value!r} is neither true nor false")


def from_dict(config: Mapping[str, object]) -> Settings:
    """Settings from a dict, whose unknown keys warn."""
    given: dict[str, object] = {}
    for key, value in config.items():
        name = _NAMES.get(key) if isinstance(key, str) else None
        if name is None:
            near = difflib.get_close_matches(str(key), _NAMES, n=1, cutoff=0.0)
            warnings.warn(
                f"setup: there is no setting {key!r}; the nearest is {near[0]!r}. It is ignored",
                stacklevel=3,
            )
        else:
            given[name] = value
    for name in ("local_hostname", "metadata_server"):
        if not given.get(name):
            raise Refused(f"{name} is missing; both local_hostname and metadata_server are needed")
    text = {
        name: str(given[name])
        for name in ("protocol", "rdma_devices", "ssd_offload_path", "tenant_id")
        if given.get(name) is not None
    }
    try:
        port = int(str(given.get("client_http_port", 9300)))
    except ValueError as error:
        raise Refused(f"client_http_port {given['client_http_port']!r} is no number") from error
    return Settings(
        local_hostname=str(given["local_hostname"]),
        metadata_server=str(given["metadata_server"]),
        global_segment_size=_small("global_segment_size", _or(given, "global_segment_size")),
        local_buffer_size=_small("local_buffer_size", _or(given, "local_buffer_size")),
        master_server_addr=str(given.get("master_server_addr") or DEFAULT_MASTER),
        enable_ssd_offload=_truth("enable_ssd_offload", given.get("enable_ssd_offload", False)),
        enable_client_http_server=_truth(
            "enable_client_http_server", given.get("enable_client_http_server", False)
        ),
        client_http_port=port,
        **text,
    )


def _or(given: Mapping[str, object], name: str) -> object:
    value = given.get(name)
    return DEFAULT_BYTES if value is None else value


def whole(name: str, value: Any) -> int:
    """A number of bytes in the form with single arguments, where a wrong type is an exception."""
    number = index(value)
    if not 0 <= number < 1 << 64:
        raise TypeError(f"{name} is a number of bytes below 2**64, at least 0, not {value!r}")
    return number


def text(name: str, value: object) -> str:
    """A text in the form with single arguments."""
    if not isinstance(value, str):
        raise TypeError(f"{name} is a text, not {value!r}")
    return value
