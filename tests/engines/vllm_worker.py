"""vLLM: the worker of MooncakeStoreConnector with its own threads and its lookup server, on CPU tensors.

Left out is what needs a GPU: `wait_for_save` makes a CUDA event first and then hands the request to the sending
thread, as is done here.
"""

import contextlib
import hashlib
import itertools
import json
import os
import pathlib
import socket
from importlib.metadata import version

import torch
from harness import PAGES, PATIENCE, Driver, Table, drive, equal, live, round_trip, until
from vllm.config import set_current_vllm_config
from vllm.distributed import init_distributed_environment, initialize_model_parallel
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store.data import (
    LoadSpec,
    MooncakeStoreConnectorMetadata,
    ReqMeta,
)
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store.worker import (
    LookupKeyClient,
    MooncakeStoreWorker,
)
from vllm.engine.arg_utils import EngineArgs
from vllm.utils.network_utils import get_ip
from vllm.v1.core.kv_cache_utils import BlockHash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

TOKENS, LAYERS, HEADS, WIDTH = 16, 4, 8, 64
# A block of a layer: keys and values of its tokens.
RUN = 2 * TOKENS * HEADS * WIDTH * 2
# Block 0 is vLLM's null block; pages are stored from the blocks after it, and loaded to those after them.
FIRST, BLOCKS = 1, 1 + 2 * PAGES
# What `config.json` of a model folder says; nothing of the model is loaded.
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HEADS * WIDTH,
    "intermediate_size": 1024,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "num_hidden_layers": LAYERS,
    "max_position_embeddings": 1024,
    "vocab_size": 256,
    "torch_dtype": "bfloat16",
}
numbers = itertools.count(1)


def engine_config(folder, **extra):
    """vLLM's own configuration, made of what a command line gives."""
    (folder / "config.json").write_text(json.dumps(MODEL))
    transfer = {
        "kv_connector": "MooncakeStoreConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"load_async": True, "lookup_rpc_port": next(numbers), **extra},
    }
    arguments = EngineArgs(
        model=str(folder),
        skip_tokenizer_init=True,
        block_size=TOKENS,
        max_model_len=1024,
        enforce_eager=True,
        kv_transfer_config=transfer,
    )
    config = arguments.create_engine_config()
    config.cache_config.num_gpu_blocks = BLOCKS
    return config


class Worker(Driver):
    """A worker of rank 0, and the scheduler's client that asks it for prefixes."""

    size = LAYERS * RUN

    def __init__(self, config, folder, master, *, extra=None, **settings):
        path = folder / f"mooncake-{next(numbers)}.json"
        given = {
            "metadata_server": "P2PHANDSHAKE",
            "master_server_address": master,
            "mode": "standalone-store",
            "global_segment_size": 0,
            "local_buffer_size": 16 << 20,
            **settings,
        }
        path.write_text(json.dumps(given))
        os.environ["MOONCAKE_CONFIG_PATH"] = str(path)
        os.environ["VLLM_RPC_BASE_PATH"] = str(folder)
        self.config = config
        config.kv_transfer_config.kv_connector_extra_config.update(
            {"lookup_rpc_port": next(numbers), "enable_group_semantics": False, **(extra or {})}
        )
        names = [f"model.layers.{layer}.self_attn.attn" for layer in range(LAYERS)]
        spec = FullAttentionSpec(
            block_size=TOKENS, num_kv_heads=HEADS, head_size=WIDTH, dtype=torch.bfloat16
        )
        groups = [KVCacheGroupSpec(names, spec)]
        self.worker = MooncakeStoreWorker(config, KVCacheConfig(BLOCKS, [], groups))
        shape = (BLOCKS, HEADS, TOKENS, 2 * WIDTH)
        self.caches = {name: torch.zeros(shape, dtype=torch.bfloat16) for name in names}
        self.worker.register_kv_caches(self.caches)
        self.client = LookupKeyClient(config)

    @staticmethod
    def hashes(word, pages):
        return [BlockHash(hashlib.sha256(f"{word}/{one}".encode()).digest()) for one in pages]

    def request(self, word, pages, first, **more):
        blocks = [first + one for one in pages]
        return ReqMeta(
            f"request-{next(numbers)}", len(blocks) * TOKENS, (blocks,), self.hashes(word, pages), **more
        )

    def put(self, word, pages, content=None):
        for one in pages:
            data = bytearray(self.page(content or word, one))
            for layer, cache in enumerate(self.caches.values()):
                run = torch.frombuffer(data, dtype=torch.bfloat16, offset=layer * RUN, count=RUN // 2)
                cache[FIRST + one].copy_(run.view(cache.shape[1:]))
        request = self.request(word, pages, FIRST, can_save=True, store_job_id=next(numbers))
        sending = self.worker.kv_send_thread
        sending.add_request(request)
        until("the job is done", lambda: request.store_job_id in sending.take_completed_saves())
        return sending._saved_offset.get(request.req_id, 0) == request.token_len_chunk

    def hits(self, word, pages):
        # One token more: vLLM always computes the last one itself.
        tokens = len(pages) * TOKENS + 1
        found = self.client.lookup(f"lookup-{next(numbers)}", tokens, self.hashes(word, pages))
        return found.hit_length // TOKENS

    def get(self, word, pages):
        first = FIRST + PAGES
        for cache in self.caches.values():
            cache[first:] = 7.0
        load = LoadSpec(0, len(pages) * TOKENS, can_load=True)
        request = self.request(word, pages, first, load_spec=load)
        told = MooncakeStoreConnectorMetadata(set(), set())
        told.add_request(request)
        self.worker.start_load_kv(told)
        until("it is loaded", lambda: request.req_id in self.worker.get_finished(set(), told)[1])
        bad = self.worker.get_block_ids_with_load_errors()
        return [None if first + one in bad else self.block(first + one) for one in pages]

    def block(self, number):
        runs = [cache[number].contiguous().view(torch.uint8) for cache in self.caches.values()]
        return b"".join(run.numpy().tobytes() for run in runs)

    def codes(self, word, pages):
        """What the store answers to the receiving thread: it tells misses from refusals."""
        database = self.worker.token_dbs[0]
        keys = [database.key_for(one) for one in self.hashes(word, pages)]
        places = [database.prepare_value_for_block(FIRST + PAGES + one) for one in pages]
        addresses, sizes = zip(*places, strict=True)
        return set(self.worker.store.batch_get_into_multi_buffers(keys, list(addresses), list(sizes)))

    def close(self):
        self.client.close()
        self.worker.close()


def start(folder):
    """One process is the whole world of its ranks, as vLLM sets it up without a GPU."""
    config = engine_config(folder)
    with set_current_vllm_config(config), socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        where = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
        probe.close()
        init_distributed_environment(1, 0, where, 0, "gloo")
        initialize_model_parallel(1, 1)
    return config


def pressure(driver, cluster):
    """A pool that is smaller than a block: vLLM pauses its stores on -200, and on nothing else."""
    for owner in list(cluster.clients):
        cluster.kill(owner)
    pages = range(PAGES)
    until("the owners are gone", lambda: cluster.segments() == [])
    cluster.lend(size="64KB")
    equal("stored", driver.put("pressure", pages), False)
    equal("vLLM holds its stores back", driver.worker.kv_send_thread._store_pressure_active, True)


def named_by_address(table, config):
    """vLLM names a rank by the machine's address unless told otherwise, and lends its memory there."""
    os.environ.pop("MOONCAKE_REQUESTER_LOCAL_HOSTNAME")
    lent = {"protocol": "tcp", "mode": "embedded", "global_segment_size": 64 << 20}
    rows = {
        "the machine's address as host name: refused, or served there": None,
        "the machine's address, MOONCRATE_INSECURE_LISTEN=1: served there": "1",
    }
    for what, leave in rows.items():
        with live() as cluster, table.check(what) as seen:
            if leave:
                os.environ["MOONCRATE_INSECURE_LISTEN"] = leave
            try:
                driver = Worker(config, cluster.folder, cluster.address, **lent)
            except RuntimeError:
                if leave:
                    raise
                seen.append("refused")
                continue
            round_trip(driver, "named")
            key = driver.worker.token_dbs[0].key_for(driver.hashes("named", [0])[0])
            (replica, *_) = driver.worker.store.batch_get_replica_desc([key])[key]
            place = replica.get_memory_descriptor().buffer_descriptor.transport_endpoint
            host, _, port = place.rpartition(":")
            equal("the place of the memory", host, get_ip())
            try:
                socket.create_connection((host, int(port)), timeout=PATIENCE).close()
            except OSError as error:
                raise AssertionError(f"nobody answers where the memory is said to be: {error}") from error
            seen.append("served")
            driver.close()


def main():
    table = Table("vLLM", version("vllm"))
    with live() as cluster:
        folder = pathlib.Path(cluster.folder)
        os.environ["MOONCAKE_REQUESTER_LOCAL_HOSTNAME"] = "localhost"
        config = start(folder)

        def worker(**more):
            return Worker(config, folder, cluster.address, **more)

        owner = cluster.lend(size="64MB")
        driver = worker(protocol="tcp")
        drive(table, cluster, owner, driver)
        with table.check("groups of keys (enable_group_semantics)"):
            round_trip(worker(protocol="tcp", extra={"enable_group_semantics": True}), "groups")
        with table.check("a tenant with upper case"):
            round_trip(worker(protocol="tcp", tenant_id="Team-A"), "tenant")
        with table.check("protocol as it is by default, rdma, without RDMA hardware"):
            round_trip(worker(), "rdma")
        with table.check("memory lent by the engine itself (embedded)"):
            lent = {"mode": "embedded", "global_segment_size": 64 << 20}
            with contextlib.closing(worker(protocol="tcp", **lent)) as embedded:
                round_trip(embedded, "own")
        with table.check("owner killed: the code says that there is no such page (-704)"):
            round_trip(driver, "dead")
            for one in list(cluster.clients):
                cluster.kill(one)
            until("nothing is read", lambda: driver.loads("dead", range(PAGES)) == 0)
            equal("codes", driver.codes("dead", range(PAGES)), {-704})
        with table.check("a pool that cannot make room: vLLM holds its stores back (-200)"):
            pressure(driver, cluster)
    named_by_address(table, config)


if __name__ == "__main__":
    main()
