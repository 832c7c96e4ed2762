"""The store of the Mooncake Store preview: other names, defaults, KeyError."""

import pickle

import pytest
from conftest import MIB
from distributed_object_store import DistributedObjectStore
from mooncake_vllm_adaptor import MooncakeDistributedStore


@pytest.fixture(params=[MooncakeDistributedStore, DistributedObjectStore])
def old(request, master):
    store = request.param()
    assert store.setup("localhost", "etcd://127.0.0.1:2379", master_server_addr=master.address) == 0
    yield store
    store.close()


def test_the_example_of_the_preview(old):
    assert old.initAll(protocol="tcp", device_name="mlx5_0") == 0
    data = {"layer": list(range(100))}
    assert old.put("preview/kv", pickle.dumps(data)) == 0
    assert pickle.loads(old.get("preview/kv")) == data
    assert old.isExist("preview/kv") == 1 and old.isExist("preview/none") == 0
    with pytest.raises(KeyError, match="preview/none"):
        old.get("preview/none")
    assert old.remove("preview/kv") != 0, "it was just read"
    assert old.remove_all(force=True) >= 1
    assert old.close() == 0
    assert old.isExist("preview/kv") == 0
    with pytest.raises(RuntimeError, match="setup"):
        old.get("preview/kv")


def test_what_setup_asks_for(master):
    store = MooncakeDistributedStore()
    with pytest.raises(TypeError):
        store.setup()
    with pytest.raises(TypeError, match="colour"):
        store.setup("localhost", "P2PHANDSHAKE", colour="blue")
    settings = {
        "local_hostname": "localhost", "metadata_server": "P2PHANDSHAKE",
        "master_server_addr": master.address,
    }
    assert store.setup(settings) == 0 and store.health_check() == 0
    assert store.setup("", "P2PHANDSHAKE", master_server_addr=master.address) == -600
    store.close()


def test_init_all_lends_memory_where_there_is_none(own_master):
    store = DistributedObjectStore()
    names = ("localhost", "P2PHANDSHAKE", 0)
    assert store.setup(*names, master_server_addr=own_master.address) == 0
    assert store.put("k", b"v") == -200
    assert store.initAll("carrier pigeon", "") == -600
    assert store.initAll("tcp", "", 16 * MIB) == 0
    assert store.put("k", b"v") == 0 and store.get("k") == b"v"
    store.close()
