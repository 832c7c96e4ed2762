"""`mooncake_client`: a node of ours that lends memory, and a door for dummy stores on this machine."""

import os
import random
import socket
import sys
from collections.abc import Sequence
from typing import Any

import mooncrate
from mooncrate._native import Raw

from ._disk import disk
from ._flags import BadFlag, Flag, Parser, Values, boolean, port, whole
from ._hosts import PORTS, client_ports, is_loopback
from ._programs import OPEN_IT, OWN, credentials, guarded, insecure, join, run
from ._settings import Refused, parse_size


# How long the master is asked for what it wants of its clients.
ASK_SECONDS = 5.0


def size(text: str) -> int:
    """A number of bytes, as in 16777216, 16MB or 4 GB."""
    try:
        return parse_size("it", text)
    except Refused:
        raise ValueError("a size is wanted, as in 16777216, 16MB or 4 GB") from None


FLAGS = (
    Flag("host", str, "0.0.0.0"),
    Flag("port", port, 50052),
    Flag("metadata_server", str, "http://127.0.0.1:8080/metadata"),
    Flag("master_server_address", str, "127.0.0.1:50051"),
    Flag("protocol", str, "tcp"),
    Flag("device_names", str, ""),
    Flag("global_segment_size", size, 4 << 30),
    Flag("local_buffer_size", size, 0),
    Flag("threads", whole(1, 1 << 16), 1),
    Flag("tenant_id", str, "default"),
    Flag("enable_offload", boolean, False),
    Flag("start_offload_rpc_server", boolean, True),
    Flag("enable_http_server", boolean, False),
    Flag("http_port", port, 9300),
    *OWN,
)


def parser() -> Parser:
    """The flags of the program."""
    return Parser("mooncake_client", FLAGS)


def _free_port(host: str) -> int:
    """A free port among those that Mooncake's clients use."""
    try:
        ports = client_ports()
    except ValueError as error:
        raise BadFlag(str(error)) from None
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for number in random.sample(ports, min(20, len(ports))):
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            try:
                probe.bind((host.strip("[]"), number))
            except OSError:
                continue
            return number
    raise BadFlag(f"no free port was found; see {' and '.join(PORTS)}")


def _place(values: Values, notes: list[str]) -> tuple[str, str]:
    """Where the node listens for values, and the name of its segment."""
    text = values["host"]
    host, _, number = text.rpartition(":")
    if not (host and number.isdecimal() and (":" not in host or host.startswith("["))):
        host, number = text, ""
    closed = not guarded(values) and not insecure(values)
    if host in ("", "0.0.0.0"):
        # The cluster is told where this client is, and "everywhere" is no place.
        host = "127.0.0.1"
        more = f" and {OPEN_IT.removeprefix('give ')}" if closed else ""
        notes.append(
            f"values are served to this machine only; for others give --host=ADDRESS{more}"
        )
    elif closed and not is_loopback(host):
        raise BadFlag(
            f"--host={text}: other machines could connect there, and nobody is asked for credentials; "
            f"{OPEN_IT}"
        )
    address = join(host, int(number) if number else _free_port(host))
    return address, text if number else address


def _root(values: Values) -> str:
    """The directory that the master names for disks; empty where it names none, or does not answer."""
    master, names = values["master_server_address"], ("token_file", "tls_cert", "tls_key", "tls_ca")
    given: dict[str, Any] = {
        name: values[name] or os.environ.get(f"MOONCRATE_{name.upper()}") for name in names
    }
    try:
        store = mooncrate.Store(master=master, timeout=ASK_SECONDS, **given)
        try:
            root = Raw(store).disk_root()
        finally:
            store.close()
        if root:
            os.makedirs(root, mode=0o700, exist_ok=True)
        return root
    except mooncrate.Error:
        # The node is about to ask the same master, and says what is wrong.
        return ""
    except OSError as error:
        values.warnings.append(f"without the disk that the master names: {error}")
        return ""


def translate(values: Values, root: str = "") -> tuple[list[str], list[str]]:
    """The command of ours, and what to say about it. `root`: the directory that the master names for disks."""
    notes: list[str] = []
    protocol = values["protocol"].lower()
    if protocol == "rdma":
        values.warnings.append("--protocol=rdma is not available: values travel over tcp")
    elif protocol != "tcp":
        raise BadFlag(f"--protocol={values['protocol']} is unknown; 'tcp' is what there is")
    if values["global_segment_size"] == 0:
        raise BadFlag("--global_segment_size=0: a client that lends nothing has nothing to do")
    address, name = _place(values, notes)
    command = ["node", "--master", values["master_server_address"], "--data", address]
    command += ["--node-name", name, "--segment-size", f"{values['global_segment_size']}B"]
    command += ["--mooncake-door", join("127.0.0.1", values["port"])]
    command += ["--mooncake-tenant", values["tenant_id"] or "default"]
    # Nobody else on this machine has the port, now or later.
    label = f"client-{values['port']}"
    on_disk = disk(values["enable_offload"], "", root=root, label=label)
    if on_disk or "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH" in os.environ:
        # The variables alone would switch it on.
        command += ["--ssd", on_disk or "off"]
    if values["enable_http_server"]:
        command += ["--node-admin", join("127.0.0.1", values["http_port"]), "--mooncake-http"]
    return command + credentials(values), notes


def main(arguments: Sequence[str] | None = None) -> int:
    """The console script."""
    sentence = "Lends memory to a cluster, and lets dummy stores of this machine in."
    given = sys.argv[1:] if arguments is None else arguments
    return run(parser(), sentence, lambda values: translate(values, _root(values)), given)
