"""LMCache: its remote connector for Mooncake, on its own CPU backend, with and without metadata in the value."""

import asyncio
import threading
from importlib.metadata import version

import torch
from harness import PATIENCE, Driver, Table, drive, equal, live, round_trip, until
from lmcache.utils import CacheEngineKey
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.metadata import LMCacheMetadata
from lmcache.v1.storage_backend.connector import CreateConnector
from lmcache.v1.storage_backend.local_cpu_backend import LocalCPUBackend

TOKENS, LAYERS, HEADS, WIDTH = 16, 4, 8, 64
MODEL = "engines/model"


class Connector(Driver):
    """One connector as LMCache's remote backend makes it, and the loop that it runs on."""

    def __init__(self, master, **more):
        extra = {
            "local_hostname": "localhost",
            "metadata_server": "P2PHANDSHAKE",
            "master_server_address": master,
            "global_segment_size": 0,
            "local_buffer_size": 16 << 20,
            # Its own bound of one second is about as long as a busy machine takes.
            "transfer_timeout": 30,
            **more,
        }
        url = f"mooncakestore://{master}"
        config = LMCacheEngineConfig.from_defaults(
            chunk_size=TOKENS, local_cpu=False, max_local_cpu_size=0.05, remote_url=url, extra_config=extra
        )
        shape = (LAYERS, 2, TOKENS, HEADS, WIDTH)
        metadata = LMCacheMetadata(MODEL, 1, 1, 0, 0, torch.bfloat16, shape, chunk_size=TOKENS)
        self.backend = LocalCPUBackend(config, metadata)
        self.shapes, self.dtypes = metadata.get_shapes(), metadata.get_dtypes()
        self.size = 2 * LAYERS * TOKENS * HEADS * WIDTH * 2
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.connector = CreateConnector(url, self.loop, self.backend, config, metadata)

    def wait(self, awaitable):
        return asyncio.run_coroutine_threadsafe(awaitable, self.loop).result(2 * PATIENCE)

    @staticmethod
    def keys(word, numbers):
        named = [int.from_bytes(f"{word}{number}".encode()) for number in numbers]
        return [CacheEngineKey(MODEL, 1, 0, one, torch.bfloat16) for one in named]

    def put(self, word, numbers, content=None):
        objects = []
        for number in numbers:
            one = self.backend.allocate(self.shapes, self.dtypes)
            data = bytearray(self.page(content or word, number))
            one.raw_tensor.copy_(torch.frombuffer(data, dtype=torch.uint8))
            objects.append(one)
        keys = self.keys(word, numbers)
        self.wait(self.connector.batched_put(keys, objects))
        # The connector drops the codes of its puts; what LMCache knows is what it finds afterwards.
        return self.hits(word, numbers) == len(keys)

    def hits(self, word, numbers):
        return until("both ways to ask agree", lambda: self._both(self.keys(word, numbers)))[0]

    def _both(self, keys):
        """Hits, if the two ways to ask say the same; the cluster may change between them."""
        found = self.wait(self.connector.batched_async_contains("lookup", keys))
        alone = [bool(self.connector.exists_sync(key)) for key in keys]
        return [found] if [*alone, False].index(False) == found else None

    def get(self, word, numbers):
        found = self.wait(self.connector.batched_get(self.keys(word, numbers)))
        values = [None if one is None else bytes(one.byte_array) for one in found]
        for one in found:
            if one is not None:
                one.ref_count_down()
        return values

    def close(self):
        self.wait(self.connector.close())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(PATIENCE)


def main():
    table = Table("LMCache", version("lmcache"))
    for zero_copy in (True, False):
        prefix = "zero copy: " if zero_copy else "with metadata: "
        with live() as cluster:
            owner = cluster.lend(size="64MB")
            driver = Connector(cluster.address, protocol="tcp", save_chunk_meta=not zero_copy)
            drive(table, cluster, owner, driver, prefix)
            driver.close()
    with live() as cluster:
        cluster.lend(size="64MB")
        with table.check("protocol rdma, no RDMA hardware: pages travel over TCP"):
            driver = Connector(cluster.address, protocol="rdma", save_chunk_meta=False)
            round_trip(driver, "rdma")
            driver.close()
        with table.check("set-up that failed and was not looked at: no page is a hit"):
            driver = Connector("127.0.0.1:1", protocol="tcp", save_chunk_meta=False)
            equal("hits", driver.hits("never", range(4)), 0)
            equal("pages loaded", driver.loads("never", range(4)), 0)
        with table.check("memory lent by the engine itself, preferred by its puts"):
            driver = Connector(
                cluster.address,
                protocol="tcp",
                save_chunk_meta=False,
                global_segment_size=64 << 20,
                mooncake_prefer_local_alloc=True,
            )
            round_trip(driver, "own")
            driver.close()


if __name__ == "__main__":
    main()
