"""`MooncakeConfig`: the settings of a store, from a file or from the environment."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ._absent import getter
from ._codes import log
from ._settings import SIZE_UNITS, Refused, parse_size

logger = log
__getattr__ = getter(__name__)

DEFAULT_GLOBAL_SEGMENT_SIZE = 3355443200
DEFAULT_LOCAL_BUFFER_SIZE = 1073741824
_KNOWN_PROTOCOLS = ("tcp", "rdma", "ascend", "cxl", "nvlink")
_REQUIRED_NON_EMPTY_FIELDS = ("local_hostname", "metadata_server", "master_server_address")
_SIZE_SUFFIXES = [(unit, count) for unit, count in SIZE_UNITS.items() if unit]
_TRUE = ("true", "1", "yes", "on", "enable")
_FALSE = ("false", "0", "no", "off", "disable")


def _size(name: str, value: object) -> int:
    try:
        return parse_size(name, value)
    except Refused as error:
        raise ValueError(str(error)) from error


def _truth(name: str, value: object) -> bool:
    text = str(value).strip().lower()
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    raise ValueError(f"{name} {value!r} is neither true nor false; write true or false")


def _parse_segment_size(value: object) -> int:
    return _size("the size", value)


def _parse_bool(value: object) -> bool:
    if value is None or isinstance(value, (bool, int, float)):
        return bool(value)
    return _truth("the switch", value)


@dataclass
class MooncakeConfig:
    """What a store is set up with."""

    local_hostname: str
    metadata_server: str
    global_segment_size: int
    local_buffer_size: int
    protocol: str
    device_name: str
    master_server_address: str
    enable_ssd_offload: bool = False
    ssd_offload_path: str = ""
    tenant_id: str = "default"
    enable_client_http_server: bool = False
    client_http_port: int = 9300

    def __post_init__(self) -> None:
        for name in _REQUIRED_NON_EMPTY_FIELDS:
            if not getattr(self, name):
                raise ValueError(f"{name} is missing or empty; it is required")
        self.global_segment_size = _size("global_segment_size", self.global_segment_size)
        self.local_buffer_size = _size("local_buffer_size", self.local_buffer_size)
        self.protocol = str(self.protocol).strip().lower()
        if not self.protocol:
            raise ValueError("protocol is empty; write tcp")
        if self.protocol not in _KNOWN_PROTOCOLS:
            log.warning("protocol %r is unknown; known are %s", self.protocol, _KNOWN_PROTOCOLS)
        self.client_http_port = int(self.client_http_port)

    @classmethod
    def _from(cls, given: Mapping[str, Any]) -> "MooncakeConfig":
        return cls(
            local_hostname=given.get("local_hostname") or "",
            metadata_server=given.get("metadata_server") or "",
            global_segment_size=given.get("global_segment_size", DEFAULT_GLOBAL_SEGMENT_SIZE),
            local_buffer_size=given.get("local_buffer_size", DEFAULT_LOCAL_BUFFER_SIZE),
            protocol=given.get("protocol", "tcp"),
            device_name=given.get("device_name") or given.get("rdma_devices") or "",
            master_server_address=given.get("master_server_address")
            or given.get("master_server_addr")
            or "",
            enable_ssd_offload=_truth("enable_ssd_offload", given.get("enable_ssd_offload", False)),
            ssd_offload_path=given.get("ssd_offload_path") or "",
            tenant_id=given.get("tenant_id") or "default",
            enable_client_http_server=_truth(
                "enable_client_http_server", given.get("enable_client_http_server", False)
            ),
            client_http_port=given.get("client_http_port", 9300),
        )

    @staticmethod
    def from_file(file_path: str) -> "MooncakeConfig":
        """Settings from a file of JSON."""
        with open(file_path, encoding="utf-8") as file:
            given = json.load(file)
        if not isinstance(given, dict):
            raise ValueError(f"{file_path} holds no JSON object")
        return MooncakeConfig._from(given)

    @staticmethod
    def load_from_env() -> "MooncakeConfig":
        """Settings from the file that MOONCAKE_CONFIG_PATH names, or from variables."""
        path = os.environ.get("MOONCAKE_CONFIG_PATH")
        if path:
            return MooncakeConfig.from_file(path)
        if not os.environ.get("MOONCAKE_MASTER"):
            raise ValueError(
                "neither MOONCAKE_CONFIG_PATH nor MOONCAKE_MASTER is set; name a file, or a master"
            )
        given = {"local_hostname": "localhost", "metadata_server": "P2PHANDSHAKE"}
        for name, variable in _VARIABLES.items():
            if variable in os.environ:
                given[name] = os.environ[variable]
        return MooncakeConfig._from(given)


_VARIABLES = {
    "master_server_address": "MOONCAKE_MASTER",
    "local_hostname": "MOONCAKE_LOCAL_HOSTNAME",
    "metadata_server": "MOONCAKE_TE_META_DATA_SERVER",
    "protocol": "MOONCAKE_PROTOCOL",
    "device_name": "MOONCAKE_DEVICE",
    "global_segment_size": "MOONCAKE_GLOBAL_SEGMENT_SIZE",
    "local_buffer_size": "MOONCAKE_LOCAL_BUFFER_SIZE",
    "tenant_id": "MOONCAKE_TENANT_ID",
    "enable_ssd_offload": "MOONCAKE_OFFLOAD_ENABLED",
    "ssd_offload_path": "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH",
    "enable_client_http_server": "MOONCAKE_ENABLE_CLIENT_HTTP_SERVER",
    "client_http_port": "MOONCAKE_CLIENT_HTTP_PORT",
}
