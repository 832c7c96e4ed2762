"""The store for asyncio, and the loader of its settings."""

import asyncio
import json

import pytest
from mooncake.async_store import MooncakeDistributedStoreAsync
from mooncake.mooncake_config import MooncakeConfig


@pytest.mark.check(57)
def test_calls_as_coroutines(make_store):
    store = make_store(kind=MooncakeDistributedStoreAsync)

    async def work():
        assert await store.async_put("async", b"value") == 0
        assert await store.async_get("async") == b"value"
        many = await asyncio.gather(*[store.async_put(f"async/{n}", b"x" * n) for n in range(1, 50)])
        assert many == [0] * 49
        assert await store.async_batch_is_exist(["async/1", "async/no"]) == [1, 0]
        with pytest.raises(TypeError):
            await store.async_put("async", 7)

    asyncio.run(work())
    assert store.async_put is store.async_put
    for name in ("async_nope", "nope", "async_", "async__live"):
        with pytest.raises(AttributeError):
            getattr(store, name)


GIVEN = {"local_hostname": "h", "metadata_server": "P2PHANDSHAKE", "master_server_address": "m:1"}


def test_settings_from_a_file(tmp_path, caplog):
    file = tmp_path / "mooncake.json"

    def read(**more):
        file.write_text(json.dumps({**GIVEN, **more}))
        return MooncakeConfig.from_file(str(file))

    plain = read()
    assert (plain.global_segment_size, plain.local_buffer_size) == (3355443200, 1073741824)
    assert (plain.protocol, plain.device_name, plain.client_http_port) == ("tcp", "", 9300)
    assert read(global_segment_size="4gb", local_buffer_size="16 k").local_buffer_size == 16384
    assert read(enable_ssd_offload="on").enable_ssd_offload is True
    assert read(protocol="RDMA").protocol == "rdma"
    assert read(protocol="pigeon").protocol == "pigeon" and "pigeon" in caplog.text
    for bad in (
        {"local_hostname": ""}, {"metadata_server": None}, {"master_server_address": ""},
        {"global_segment_size": -1}, {"local_buffer_size": "x"}, {"protocol": ""},
        {"enable_ssd_offload": "perhaps"},
    ):
        with pytest.raises(ValueError):
            read(**bad)


def test_settings_from_the_environment(monkeypatch, tmp_path):
    for name in ("MOONCAKE_CONFIG_PATH", "MOONCAKE_MASTER"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match="MOONCAKE_MASTER"):
        MooncakeConfig.load_from_env()
    monkeypatch.setenv("MOONCAKE_MASTER", "m:1")
    plain = MooncakeConfig.load_from_env()
    assert (plain.local_hostname, plain.metadata_server) == ("localhost", "P2PHANDSHAKE")
    monkeypatch.setenv("MOONCAKE_GLOBAL_SEGMENT_SIZE", "1.5gb")
    monkeypatch.setenv("MOONCAKE_OFFLOAD_ENABLED", "yes")
    monkeypatch.setenv("MOONCAKE_TENANT_ID", "acme")
    full = MooncakeConfig.load_from_env()
    assert full.global_segment_size == 1610612736 and full.enable_ssd_offload
    assert full.tenant_id == "acme"
    file = tmp_path / "m.json"
    file.write_text(json.dumps(GIVEN))
    monkeypatch.setenv("MOONCAKE_CONFIG_PATH", str(file))
    assert MooncakeConfig.load_from_env().local_hostname == "h"
