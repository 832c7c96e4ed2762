"""`mooncake_master`: our master, with the flags, the ports and the admin HTTP of Mooncake's."""

import os
import sys
from collections.abc import Sequence

from ._flags import (
    BadFlag,
    Flag,
    Parser,
    Values,
    amount,
    boolean,
    choice,
    count,
    milliseconds,
    port,
    ratio,
    whole,
)
from ._hosts import is_loopback
from ._programs import OPEN_IT, OWN, credentials, guarded, insecure, join, run

NO_DISK = "disks belong to the clients that lend them, and so do their limits (MOONCAKE_OFFLOAD_…)"
NO_SNAPSHOT = "a new master learns what there is from the nodes; no snapshot is needed"
NO_EVENTS = "events of keys are not published"
NO_OPLOG = "a new master learns what there is from the nodes; there is no log of operations"
OURS = "the master has its own rule for it"
BY_PUT = "the store that puts a value says how long it is pinned"

STRATEGIES = {
    "random": "random",
    "free_ratio_first": "least-loaded",
    "local_first": "local-first",
}

FLAGS = (
    Flag("port", port, 50051),
    Flag("rpc_port", port, 0),
    Flag("rpc_address", str, "0.0.0.0"),
    Flag("rpc_interface", str, "", "name the address with --rpc_address"),
    Flag("max_threads", whole(1, 1 << 16), 16),
    Flag("rpc_thread_num", whole(0, 1 << 16), 0),
    Flag("metrics_port", port, 9003),
    Flag("metrics_host", str, "0.0.0.0"),
    Flag(
        "enable_metric_reporting", boolean, True, "/metrics and /metrics/summary tell at any time"
    ),
    Flag("rpc_conn_timeout_seconds", count, 0, OURS),
    Flag("rpc_enable_tcp_no_delay", boolean, True, "it is always on"),
    Flag("default_kv_lease_ttl", milliseconds, 10_000),
    Flag("default_kv_soft_pin_ttl", milliseconds, 1_800_000, BY_PUT),
    Flag("max_kv_soft_pin_ttl", milliseconds, 86_400_000, BY_PUT),
    Flag("allow_evict_soft_pinned_objects", boolean, True, "they go when nothing else is left"),
    Flag("eviction_high_watermark_ratio", ratio, 0.90),
    Flag("eviction_ratio", ratio, 0.05),
    Flag("client_ttl", whole(1, 1 << 31), 10, OURS),
    Flag("put_start_discard_timeout_sec", whole(1, 1 << 31), 30),
    Flag("put_start_release_timeout_sec", whole(1, 1 << 31), 600, OURS),
    Flag("enable_http_metadata_server", boolean, False),
    Flag("http_metadata_server_host", str, "0.0.0.0"),
    Flag("http_metadata_server_port", port, 8080),
    Flag("enable_metadata_cleanup_on_timeout", boolean, False, "nothing hangs on the metadata"),
    Flag("memory_allocator", choice("offset", "cachelib"), "offset", "there is one allocator"),
    Flag("allocation_strategy", choice(*STRATEGIES, "ssd_free_ratio_first", "cxl"), "random"),
    Flag("enable_offload", boolean, False),
    Flag("offload_on_evict", boolean, False),
    Flag("offload_force_evict", boolean, False, NO_DISK),
    Flag("offloading_queue_limit", count, 50_000, NO_DISK),
    Flag("offload_cap_ratio", ratio, 0.5, NO_DISK),
    Flag("promotion_on_hit", boolean, False),
    Flag("promotion_admission_threshold", whole(0, (1 << 32) - 1), 2),
    Flag("promotion_queue_limit", count, 50_000, NO_DISK),
    Flag("promotion_max_per_heartbeat", count, 1, NO_DISK),
    Flag("root_fs_dir", str, ""),
    Flag("cluster_id", str, "mooncake_cluster"),
    Flag("global_file_segment_size", amount, (1 << 63) - 1, NO_DISK),
    Flag("enable_disk_eviction", boolean, True, NO_DISK),
    Flag("quota_bytes", amount, 0, NO_DISK),
    Flag("enable_multi_tenants", boolean, False),
    Flag(
        "tenant_quota_connector_type",
        str,
        "file",
        "quotas are set over HTTP and kept by the master",
    ),
    Flag("tenant_quota_connector_uri", str, "", "quotas are set over HTTP and kept by the master"),
    Flag("enable_kv_events", boolean, False, NO_EVENTS),
    Flag("kv_events_bind_endpoint", str, "", NO_EVENTS),
    Flag("kv_events_queue_capacity", count, 65_536, NO_EVENTS),
    Flag("enable_ha", boolean, False),
    Flag("ha_backend_type", str, "etcd"),
    Flag("ha_backend_connstring", str, ""),
    Flag("etcd_endpoints", str, ""),
    Flag("enable_snapshot", boolean, False, NO_SNAPSHOT),
    Flag("enable_snapshot_restore", boolean, False, NO_SNAPSHOT),
    Flag("snapshot_interval_seconds", count, 600, NO_SNAPSHOT),
    Flag("snapshot_backup_dir", str, "", NO_SNAPSHOT),
    *(
        Flag(f"max_total_{kind}_tasks", count, 10_000, OURS)
        for kind in ("finished", "pending", "processing")
    ),
    *(Flag(f"{kind}_task_timeout_sec", count, 300, OURS) for kind in ("pending", "processing")),
    Flag("max_retry_attempts", count, 10, OURS),
    Flag("config_path", str, ""),
    Flag("state_file", str, ""),
    *OWN,
)

FAMILIES = {
    "enable_oplog": NO_OPLOG,
    "oplog_": NO_OPLOG,
    "dynamic_replication_": "values that many read get more copies by themselves",
    "nof_": "there is no NVMe-oF tier",
    "enable_cxl": "there is no CXL tier",
    "cxl_": "there is no CXL tier",
    "snapshot_": NO_SNAPSHOT,
    "kv_events_": NO_EVENTS,
    "pod_": "the master does not look at pods",
}


def parser() -> Parser:
    """The flags of the program."""
    return Parser("mooncake_master", FLAGS, FAMILIES)


def _address(values: Values, notes: list[str]) -> str:
    """Where the master listens."""
    number = values["rpc_port"] or values["port"]
    host = values["rpc_address"]
    closed = not guarded(values) and not insecure(values)
    if values.was_given("rpc_address"):
        if closed and not is_loopback(host):
            raise BadFlag(
                f"--rpc_address={host}: other machines could connect there, and nobody is asked for "
                f"credentials; {OPEN_IT}"
            )
    elif closed:
        host = "127.0.0.1"
        notes.append(
            f"listening on {join(host, number)}, for this machine only; for others give "
            f"--rpc_address=0.0.0.0 and {OPEN_IT.removeprefix('give ')}"
        )
    return join(host, number)


def _admin(values: Values) -> str:
    """Where the admin HTTP listens: on this machine, always, because it tells every key."""
    host = "127.0.0.1"
    if values.was_given("metrics_host"):
        host = values["metrics_host"]
        if not is_loopback(host):
            raise BadFlag(
                f"--metrics_host={host}: the admin HTTP tells every key to whoever asks, so it listens "
                "on this machine only; leave the flag away, and let an agent beside it forward metrics"
            )
    return join(host, values["metrics_port"])


def _metadata(values: Values) -> list[str]:
    if not values["enable_http_metadata_server"]:
        return []
    host = values["http_metadata_server_host"]
    if not values.was_given("http_metadata_server_host"):
        host = host if insecure(values) else "127.0.0.1"
    elif not insecure(values) and not is_loopback(host):
        raise BadFlag(
            f"--http_metadata_server_host={host}: other machines could connect there, and the metadata "
            "server asks nobody for credentials; stores of ours do not need it: leave the flag away, or "
            "accept the risk with --insecure_listen"
        )
    return ["--mooncake-metadata", join(host, values["http_metadata_server_port"])]


def _eviction(values: Values) -> list[str]:
    high, part = values["eviction_high_watermark_ratio"], values["eviction_ratio"]
    # In thousandths, and always at least one, or eviction would not end.
    above = min(max(round(high * 1000), 1), 1000)
    to = max(above - max(round(part * 1000), 1), 0)
    return ["--evict-above", f"{above / 10:.1f}%", "--evict-to", f"{to / 10:.1f}%"]


def _disks(values: Values) -> list[str]:
    """When values go to the disks of clients, and when they come back. What nobody says is our own rule."""
    command = []
    folder = values["root_fs_dir"]
    if folder:
        # Clients learn it from the master; a relative one would be another one for each of them.
        command += ["--mooncake-root", os.path.join(os.path.abspath(folder), values["cluster_id"])]
    if values["enable_offload"] or folder:
        command += ["--offload", "evict" if values["offload_on_evict"] else "eager"]
    elif values.was_given("enable_offload"):
        command += ["--offload", "off"]
    elif values["offload_on_evict"]:
        values.warnings.append("--offload_on_evict says nothing without --enable_offload")
    if values["promotion_on_hit"]:
        command += ["--promote-reads", str(max(values["promotion_admission_threshold"], 1))]
    elif values.was_given("promotion_on_hit"):
        command.append("--no-promote")
    elif values.was_given("promotion_admission_threshold"):
        values.warnings.append("--promotion_admission_threshold says nothing without --promotion_on_hit")
    return command


def _election(values: Values) -> list[str]:
    if not values["enable_ha"]:
        return []
    if values["ha_backend_type"] != "etcd":
        raise BadFlag(
            f"--ha_backend_type={values['ha_backend_type']}: masters elect their leader through etcd"
        )
    text = values["etcd_endpoints"] or values["ha_backend_connstring"]
    found = text.removeprefix("etcd://").replace(",", ";").split(";")
    endpoints = [one.strip() for one in found if one.strip()]
    if not endpoints:
        raise BadFlag("--enable_ha needs --etcd_endpoints, as in 10.0.0.1:2379;10.0.0.2:2379")
    if values["rpc_address"] in ("", "0.0.0.0", "::"):
        raise BadFlag(
            "--enable_ha needs --rpc_address=ADDRESS: the other masters and all clients are told where "
            "the leader is, and 0.0.0.0 is no place"
        )
    urls = [one if "://" in one else f"http://{one}" for one in endpoints]
    return ["--etcd", ",".join(urls), "--etcd-prefix", values["cluster_id"]]


def _strategy(values: Values) -> list[str]:
    name = values["allocation_strategy"]
    if name not in STRATEGIES:
        values.warnings.append(f"--allocation_strategy={name} is taken as random: {NO_DISK}")
    return ["--placement", STRATEGIES.get(name, "random")]


def translate(values: Values) -> tuple[list[str], list[str]]:
    """The command of ours, and what to say about it."""
    notes: list[str] = []
    command = ["master", "--master", _address(values, notes), "--grpc", "off"]
    command += ["--admin", _admin(values), "--mooncake-http"]
    if values["enable_multi_tenants"]:
        command.append("--mooncake-quotas")
    command += _metadata(values)
    # A lease of no time is none: the shortest there is.
    command += ["--lease-ttl", f"{max(values['default_kv_lease_ttl'], 1)}ms"]
    command += ["--put-timeout", f"{values['put_start_discard_timeout_sec']}s"]
    command += _eviction(values) + _disks(values) + _strategy(values) + _election(values)
    if values.was_given("max_threads") or values["rpc_thread_num"]:
        threads = values["rpc_thread_num"] or values["max_threads"]
        # More threads than cores only get in each other's way.
        command += ["--workers", str(min(threads, os.cpu_count() or 1))]
    if values["state_file"]:
        command += ["--state-file", values["state_file"]]
    return command + credentials(values), notes


def main(arguments: Sequence[str] | None = None) -> int:
    """The console script."""
    sentence = "The master of a cluster: it knows where values are and holds none."
    return run(parser(), sentence, translate, sys.argv[1:] if arguments is None else arguments)
