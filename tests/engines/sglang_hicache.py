"""SGLang: HiCache's storage backend for Mooncake, on HiCache's own host pool."""

import contextlib
import threading
from importlib.metadata import version

import torch
from harness import PAGES, Driver, Table, drive, live, round_trip
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool
from sglang.srt.mem_cache.pool_host.base import host_memory_budget_scope
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
from sglang.srt.mem_cache.storage.mooncake_store.mooncake_store import MooncakeStore

TOKENS, LAYERS, HEADS, WIDTH = 16, 4, 8, 64


def host_pool(allocator="default"):
    """HiCache's host pool: keys and values of each page in one run. Pages are stored from its first half and
    loaded to its second."""
    device = MHATokenToKVPool(
        PAGES * TOKENS, TOKENS, torch.bfloat16, HEADS, WIDTH, LAYERS, "cpu", False, enable_alt_stream=False
    )
    # Its own guess wants 10 GB of the machine to be free.
    with host_memory_budget_scope(1 << 30):
        return MHATokenToKVPoolHost(
            device.get_device_pool_infos()[0].buffer_info,
            2,
            0,
            TOKENS,
            "page_first",
            pin_memory=False,
            allocator_type=allocator,
            device_capacity_tokens=device.size,
            start_layer=device.start_layer,
            end_layer=device.end_layer,
        )


class HiCache(Driver):
    """The store as HiCache's controller makes and calls it."""

    def __init__(self, master, *, allocator="default", **more):
        self.pool = host_pool(allocator)
        self.size = 2 * LAYERS * TOKENS * HEADS * WIDTH * 2
        extra = {
            "master_server_address": master,
            "local_hostname": "localhost",
            "metadata_server": "P2PHANDSHAKE",
            "global_segment_size": 0,
            **more,
        }
        config = HiCacheStorageConfig(
            tp_rank=0,
            tp_size=1,
            pp_rank=0,
            pp_size=1,
            attn_cp_rank=0,
            attn_cp_size=1,
            is_mla_model=False,
            enable_storage_metrics=True,
            is_page_first_layout=True,
            model_name="engines/model",
            extra_config=extra,
        )
        self.store = MooncakeStore(config, self.pool)
        self.store.register_mem_pool_host(self.pool)

    def tokens(self, number):
        return slice(number * TOKENS, (number + 1) * TOKENS)

    def indices(self, numbers):
        return torch.cat([torch.arange(TOKENS) + number * TOKENS for number in numbers])

    @staticmethod
    def names(word, numbers):
        return [f"{word}-{number}" for number in numbers]

    def put(self, word, numbers, content=None):
        for number in numbers:
            data = torch.frombuffer(bytearray(self.page(content or word, number)), dtype=torch.bfloat16)
            run = self.pool.kv_buffer[:, self.tokens(number)]
            run.copy_(data.view(run.shape))
        return all(self.store.batch_set_v1(self.names(word, numbers), self.indices(numbers)))

    def hits(self, word, numbers):
        return self.store.batch_exists(self.names(word, numbers))

    def get(self, word, numbers):
        places = [PAGES + number for number in numbers]
        self.pool.kv_buffer[:, PAGES * TOKENS :] = 7.0
        found = self.store.batch_get_v1(self.names(word, numbers), self.indices(places))
        pages = [self.pool.kv_buffer[:, self.tokens(place)].contiguous() for place in places]
        return [
            one.view(torch.uint8).numpy().tobytes() if good else None
            for one, good in zip(pages, found, strict=True)
        ]

    def many_threads(self, word, threads=4):
        """HiCache asks, loads and stores from threads of its own."""
        wrong = []

        def work(mine):
            with contextlib.suppress(AssertionError):
                for _ in range(20):
                    assert self.hits(word, range(PAGES)) == PAGES
                return
            wrong.append(mine)

        workers = [threading.Thread(target=work, args=(n,)) for n in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert not wrong, f"{len(wrong)} of {threads} threads saw a miss"


def main():
    table = Table("SGLang", version("sglang"))
    with live() as cluster:
        owner = cluster.lend(size="64MB")
        drive(table, cluster, owner, HiCache(cluster.address, protocol="tcp"))
        with table.check("lookups from 4 threads, all hits"):
            driver = HiCache(cluster.address, protocol="tcp")
            round_trip(driver, "threads")
            driver.many_threads("threads")
        with table.check("groups of keys (enable_group_semantics)"):
            round_trip(HiCache(cluster.address, protocol="tcp", enable_group_semantics=True), "groups")
        with table.check("a tenant with upper case"):
            round_trip(HiCache(cluster.address, protocol="tcp", tenant_id="Team-A"), "tenant")
        with table.check("protocol as it is by default, rdma, without RDMA hardware"):
            round_trip(HiCache(cluster.address, protocol="rdma"), "rdma")
        with table.check("memory lent by the engine itself"):
            driver = HiCache(cluster.address, protocol="tcp", global_segment_size=64 << 20)
            round_trip(driver, "own")
        with table.check("the master's HTTP is asked first (check_server)"):
            more = {"check_server": True, "master_metrics_port": cluster.admin}
            round_trip(HiCache(cluster.address, protocol="tcp", **more), "asked")
        with table.check("standalone: the pool is in the allocator's memory, a client process has the store"):
            near = cluster.clients[0]
            more = {"standalone_storage": True, "client_server_address": f"127.0.0.1:{near.port}"}
            round_trip(HiCache(cluster.address, allocator="mooncake", protocol="tcp", **more), "standalone")


if __name__ == "__main__":
    main()
