"""Tensors of dummy stores, on the host and on a device. Devices are tested where there is one."""

import pytest

torch = pytest.importorskip(
    "torch", reason="torch is not installed; ./dev test --torch installs it"
)

from mooncake.store import MooncakeDistributedStore
from processes import Cluster

INVALID, MISSING = -600, -704
DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=pytest.mark.skipif(
            not torch.cuda.is_available(), reason="torch sees no CUDA device on this machine"
        ),
    ),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A `mooncake_master` and a `mooncake_client`, as they are installed."""
    with Cluster(tmp_path_factory.mktemp("device")) as cluster:
        cluster.lend()
        yield cluster


@pytest.fixture
def store(cluster, make_store):
    """An ordinary store beside the dummy one."""
    store = make_store(0, master=cluster)
    store.remove_all(force=True)
    return store


@pytest.fixture
def dummy(cluster, store):
    opened = MooncakeDistributedStore()
    assert opened.setup_dummy(64 << 20, 16 << 20, f"127.0.0.1:{cluster.clients[0].port}") == 0
    yield opened
    opened.close()


@pytest.mark.parametrize("device", DEVICES)
def test_tensors_of_a_device_come_back(dummy, store, device):
    tensor = torch.arange(1000, dtype=torch.bfloat16, device=device).reshape(10, 100)
    assert dummy.put_tensor("key", tensor) == 0
    for one in (dummy, store):
        assert torch.equal(one.get_tensor("key"), tensor.cpu())
    assert store.put_tensor_with_tp("split", tensor.t(), tp_size=4, split_dim=0) == 0
    assert torch.equal(dummy.get_tensor_with_tp("split", 3, 4), tensor.t()[75:].cpu())


@pytest.mark.parametrize("device", DEVICES)
def test_a_dummy_store_reads_into_a_tensor_of_a_device(dummy, device):
    tensor = torch.arange(1000, dtype=torch.float32).reshape(10, 100)
    scalar = torch.tensor(2.5, dtype=torch.float64)
    assert dummy.batch_put_tensor(["a", "b"], [tensor, scalar]) == [0, 0]
    room = torch.zeros(10, 100, device=device)
    assert dummy.get_tensor_into_cuda("a", room) == 4000
    assert torch.equal(room.cpu(), tensor)
    rooms = [torch.zeros_like(room), torch.zeros((), dtype=torch.float64, device=device)]
    assert dummy.batch_get_tensor_into_cuda(["a", "b"], rooms) == [4000, 8]
    assert torch.equal(rooms[0].cpu(), tensor)
    assert rooms[1].item() == 2.5


@pytest.mark.parametrize("device", DEVICES)
def test_a_tensor_that_does_not_fit_is_left_alone(dummy, device):
    assert dummy.put_tensor("key", torch.ones(4, 6)) == 0
    assert dummy.put("plain", bytes(400)) == 0
    for bad in (
        torch.zeros(6, 4, device=device),
        torch.zeros(4, 6, dtype=torch.float64, device=device),
        torch.zeros(6, 4, device=device).t(),
        torch.zeros(24, device=device),
    ):
        assert dummy.get_tensor_into_cuda("key", bad) == INVALID
        assert not bad.any()
    fitting = torch.zeros(4, 6, device=device)
    assert dummy.batch_get_tensor_into_cuda(["missing", "key"], [fitting, fitting]) == [MISSING, 96]
    assert dummy.get_tensor_into_cuda("plain", fitting) == INVALID
    assert dummy.get_tensor_into_cuda("key", "text") == INVALID
    assert dummy.batch_get_tensor_into_cuda(["key"], []) == [INVALID]


def test_structured_objects_of_a_dummy_store(dummy, store):
    numpy = pytest.importorskip("numpy", reason="numpy is not installed")
    pytest.importorskip("msgpack", reason="msgpack is not installed")
    from mooncake.structured_object_store import MooncakeBundleTransfer, export_ref

    rows = numpy.arange(60).reshape(20, 3)
    data = {
        "rows": rows,
        "names": [*map(str, range(20))],
        "tensor": torch.arange(40).reshape(20, 2),
    }
    transfers = [MooncakeBundleTransfer(one, "dummy", 50) for one in (dummy, store)]
    for put, get in (transfers, transfers[::-1]):
        ref = export_ref(put.put(data, type="dict"))
        read = get.get(ref, type="dict", rows=[7, 8, 2])
        assert numpy.array_equal(read["rows"], rows[[7, 8, 2]])
        assert read["names"] == ["7", "8", "2"]
        read = get.get(ref, type="dict")
        assert numpy.array_equal(read["rows"], rows)
        assert torch.equal(read["tensor"], data["tensor"])
        get.cleanup_dataproto(ref)
