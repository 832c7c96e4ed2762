"""Tensors of the store: what is put comes back, and what is no tensor is None. Checks 53 and 56."""

import ctypes
import struct

import pytest

torch = pytest.importorskip(
    "torch", reason="torch is not installed; ./dev test --torch installs it"
)

import mooncrate
from conftest import python
from mooncake import store as module
from mooncake.store import ReplicateConfig
from mooncrate.tensors import DTYPES

NAMES = [dtype.name for dtype in DTYPES]
INVALID = -600
HEAD = 304


def sample(name, *shape):
    """A tensor of a dtype whose elements differ."""
    count = torch.Size(shape).numel()
    numbers = torch.arange(count, dtype=torch.int64).reshape(shape) % 97
    return (numbers % 2 if name == "bool" else numbers).to(getattr(torch, name))


def same(one, other):
    """Equal to the last bit, and alike."""
    assert other is not None
    assert (one.dtype, one.shape) == (other.dtype, other.shape)
    return raw(one) == raw(other)


def raw(tensor):
    tensor = tensor.contiguous()
    return ctypes.string_at(tensor.data_ptr(), tensor.numel() * tensor.element_size())


class Memory:
    """Bytes of the test, at an address."""

    def __init__(self, size, fill=b""):
        self.bytes = (ctypes.c_char * size)(*([fill] if len(fill) == 1 and size == 1 else []))
        ctypes.memmove(self.bytes, fill, len(fill))
        self.at, self.size = ctypes.addressof(self.bytes), size


def in_memory(tensor, more=0):
    """A tensor as it is stored, in memory of the test."""
    head, address, size, owner = module._serialize_tensor(tensor)
    value = head + ctypes.string_at(address, size) + bytes(more)
    assert owner is not None
    return Memory(len(value), value)


@pytest.mark.check(53)
@pytest.mark.parametrize("name", NAMES)
def test_every_dtype_comes_back(store, name):
    tensor = sample(name, 3, 5)
    assert store.put_tensor("key", tensor) == 0
    assert store.get_size("key") == HEAD + tensor.numel() * tensor.element_size()
    assert same(tensor, store.get_tensor("key"))


@pytest.mark.check(53)
@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor(1.5),
        torch.tensor([]),
        torch.empty(3, 0, 2),
        torch.arange(256).reshape((2,) * 8),
        torch.arange(24).reshape(2, 3, 4).transpose(0, 2),
        torch.arange(100)[::3],
        torch.arange(6).expand(4, 6),
        torch.arange(24.0, requires_grad=True).reshape(4, 6),
        torch.nn.Parameter(torch.ones(2, 2)),
        torch._neg_view(torch.arange(6.0)),
    ],
    ids="scalar empty empty3 eight transposed stepped expanded grad parameter negated".split(),
)
def test_every_shape_comes_back(store, tensor):
    assert store.put_tensor("key", tensor) == 0
    assert same(tensor.detach().resolve_neg(), store.get_tensor("key"))
    assert store.get_size("key") == HEAD + tensor.numel() * tensor.element_size()


@pytest.mark.check(53)
@pytest.mark.parametrize(
    "bad",
    [
        torch.zeros((1,) * 9),
        torch.zeros(2, dtype=torch.complex64),
        torch.zeros(2, 2).to_sparse(),
        torch.zeros(2, device="meta"),
        [1.0, 2.0],
        memoryview(b"12"),
        None,
        "text",
    ],
    ids="nine complex sparse meta list buffer none text".split(),
)
def test_what_is_no_tensor_is_refused(store, bad):
    for put in (store.put_tensor, store.upsert_tensor, store.pub_tensor, store.upsert_pub_tensor):
        assert put("key", bad) == INVALID
    assert store.is_exist("key") == 0


@pytest.mark.check(53)
def test_numpy_arrays_are_refused(store):
    numpy = pytest.importorskip("numpy")
    assert store.put_tensor("key", numpy.zeros(3)) == INVALID


@pytest.mark.check(53)
def test_a_plain_object_is_no_tensor(store):
    assert store.put("short", b"plain") == 0
    assert store.put("long", bytes(1000)) == 0
    assert store.put("cut", store_form(torch.arange(9))[:-1]) == 0
    assert store.put("grown", store_form(torch.arange(9)) + b"!") == 0
    for key in ("short", "long", "cut", "grown", "missing"):
        assert store.get_tensor(key) is None
    assert store.batch_get_tensor(["short", "missing"]) == [None, None]


def store_form(tensor):
    memory = in_memory(tensor)
    return ctypes.string_at(memory.at, memory.size)


@pytest.mark.check(53)
def test_the_stored_bytes_are_those_of_the_table(store):
    tensor = torch.tensor([[1, 2, 3], [4, 5, 6]], dtype=torch.int32)
    assert store.put_tensor("key", tensor) == 0
    value = store.get("key")
    assert struct.unpack_from("<IHHiiIIQQ", value) == (0x4D4F4F4E, 1, 304, 6, 2, 0, 0, 304, 24)
    assert struct.unpack_from("<8q", value, 40) == (2, 3, -1, -1, -1, -1, -1, -1)
    assert struct.unpack_from("<8q", value, 104) == (2, 3, -1, -1, -1, -1, -1, -1)
    assert value[168:HEAD] == bytes(HEAD - 168)
    assert struct.unpack_from("<6i", value, HEAD) == (1, 2, 3, 4, 5, 6)


@pytest.mark.check(53)
def test_put_keeps_and_upsert_replaces(store):
    first, second = torch.arange(4), torch.ones(2, 3)
    assert store.put_tensor("key", first) == 0
    assert store.put_tensor("key", second) == 0
    assert same(first, store.get_tensor("key"))
    assert store.upsert_tensor("key", second) == 0
    assert same(second, store.get_tensor("key"))


@pytest.mark.check(53)
def test_a_tensor_that_was_read_belongs_to_its_reader(store):
    tensor = torch.arange(1000)
    assert store.put_tensor("key", tensor) == 0
    read = store.get_tensor("key")
    read.fill_(7)
    again = store.get_tensor("key")
    assert same(tensor, again)
    assert store.remove("key", force=True) == 0
    assert same(tensor, again)
    assert int(read.sum()) == 7000


@pytest.mark.check(53)
def test_batches_have_an_answer_for_each_key(store):
    tensors = [torch.arange(3), "no tensor", torch.ones(2)]
    assert store.batch_put_tensor(["a", "b", "c"], tensors) == [0, INVALID, 0]
    read = store.batch_get_tensor(["a", "b", "c", "a"])
    assert same(tensors[0], read[0])
    assert read[1] is None
    assert same(tensors[2], read[2])
    assert same(tensors[0], read[3])
    assert store.batch_upsert_tensor(["a", "c"], [torch.ones(1), torch.zeros(1)]) == [0, 0]
    assert [one.item() for one in store.batch_get_tensor(["a", "c"])] == [1.0, 0.0]
    assert store.batch_put_tensor(["a", "b"], tensors) == [INVALID] * 2
    for call in (store.batch_put_tensor, store.batch_upsert_tensor, store.batch_pub_tensor):
        assert call([], []) == []
    assert store.batch_get_tensor([]) == []


@pytest.mark.check(53)
def test_a_config_goes_along(store):
    config = ReplicateConfig()
    config.preferred_segments = ["one", "two"]
    tensor = torch.arange(5)
    assert store.pub_tensor("key", tensor, config) == INVALID
    assert store.batch_pub_tensor(["key"], [tensor], config=config) == [INVALID]
    assert store.upsert_pub_tensor("key", tensor, config=config) == INVALID
    config.preferred_segments = ["one"]
    assert store.pub_tensor("key", tensor, config=config) == 0
    assert same(tensor, store.get_tensor("key"))
    assert store.batch_upsert_pub_tensor(["key"], [tensor + 1], config) == [0]
    assert same(tensor + 1, store.get_tensor("key"))


@pytest.mark.check(53)
def test_groups_are_one_for_each_key(store):
    config = ReplicateConfig()
    config.group_ids = ["g", ""]
    tensors = [torch.arange(3), torch.arange(4)]
    assert store.batch_pub_tensor(["a", "b"], tensors, config) == [0, 0]
    assert config.group_ids == ["g", ""]
    config.group_ids = ["g"]
    assert store.batch_pub_tensor(["c", "d"], tensors, config) == [INVALID] * 2
    assert store.batch_get_tensor(["c", "d"]) == [None, None]


@pytest.mark.check(53)
def test_the_functions_of_the_module():
    tensor = torch.arange(6, dtype=torch.int16).reshape(2, 3).t()
    assert module._tensor_metadata_size() == HEAD
    head, address, size, owner = module._serialize_tensor(tensor)
    assert (len(head), size, address) == (HEAD, 12, owner.data_ptr())
    assert same(tensor, module._deserialize_tensor(head + ctypes.string_at(address, size)))
    plain = torch.arange(9)
    assert module._serialize_tensor(plain)[1] == plain.data_ptr()
    for bad in (b"", bytes(HEAD), head, head + bytes(13), "text", None):
        with pytest.raises(ValueError):
            module._deserialize_tensor(bad)
    for bad in ([1], None, torch.zeros((1,) * 9), torch.zeros(1, dtype=torch.complex64)):
        with pytest.raises(ValueError):
            module._serialize_tensor(bad)


@pytest.mark.check(56)
def test_a_tensor_is_read_into_memory_of_the_caller(store):
    tensor = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    assert store.put_tensor("key", tensor) == 0
    memory = Memory(HEAD + 48 + 8, b"\xaa" * (HEAD + 56))
    read = store.get_tensor_into("key", memory.at, memory.size)
    assert same(tensor, read)
    assert read.data_ptr() == memory.at + HEAD
    assert ctypes.string_at(memory.at + HEAD + 48, 8) == b"\xaa" * 8
    struct.pack_into("<f", memory.bytes, HEAD, 42.0)
    assert read[0, 0] == 42.0


@pytest.mark.check(56)
def test_memory_that_does_not_fit_gives_none(store):
    assert store.put_tensor("key", torch.arange(4)) == 0
    assert store.put("plain", bytes(400)) == 0
    memory = Memory(1000)
    assert store.get_tensor_into("key", memory.at, HEAD + 31) is None
    assert store.get_tensor_into("key", memory.at, 10) is None
    assert store.get_tensor_into("key", 0, 1000) is None
    assert store.get_tensor_into("missing", memory.at, 1000) is None
    assert store.get_tensor_into("plain", memory.at, 1000) is None


@pytest.mark.check(56)
def test_batches_into_memory(store):
    first, empty = torch.arange(4), torch.empty(0, 2)
    assert store.batch_put_tensor(["a", "b"], [first, empty]) == [0, 0]
    rooms = [Memory(500), Memory(500), Memory(500)]
    at, sizes = [room.at for room in rooms], [room.size for room in rooms]
    read = store.batch_get_tensor_into(["a", "b", "c"], at, sizes)
    assert same(first, read[0])
    assert same(empty, read[1])
    assert read[2] is None
    assert store.batch_get_tensor_into(["a", "b"], at, sizes) == [INVALID] * 2
    assert store.batch_get_tensor_into(["a", "b"], [at[0], 0], sizes[:2]) == [INVALID] * 2
    assert store.batch_get_tensor_into([], [], []) == []


@pytest.mark.check(56)
def test_a_tensor_is_stored_from_memory_of_the_caller(store):
    tensor = torch.arange(10, dtype=torch.int16)
    memory = in_memory(tensor, more=8)
    exact = memory.size - 8
    for put in (store.put_tensor_from, store.upsert_tensor_from):
        assert put("key", memory.at, memory.size) == INVALID
        assert put("key", memory.at, exact - 2) == INVALID
        assert put("key", memory.at, 100) == INVALID
        assert put("key", 0, exact) == INVALID
    assert store.is_exist("key") == 0
    assert store.put_tensor_from("key", memory.at, exact) == 0
    assert same(tensor, store.get_tensor("key"))
    other = in_memory(tensor + 1)
    assert store.put_tensor_from("key", other.at, other.size) == 0
    assert same(tensor, store.get_tensor("key"))
    assert store.upsert_tensor_from("key", other.at, other.size) == 0
    assert same(tensor + 1, store.get_tensor("key"))


@pytest.mark.check(56)
def test_one_bad_tensor_in_memory_fails_its_batch(store):
    good, bad = in_memory(torch.arange(3)), Memory(400)
    for put in (store.batch_put_tensor_from, store.batch_upsert_tensor_from):
        assert put(["a", "b"], [good.at, bad.at], [good.size, bad.size]) == [INVALID] * 2
        assert put(["a", "b"], [good.at], [good.size]) == [INVALID] * 2
        assert put([], [], []) == []
        assert store.batch_is_exist(["a", "b"]) == [0, 0]
    assert store.batch_put_tensor_from(["a"], [good.at], [good.size]) == [0]
    assert same(torch.arange(3), store.get_tensor("a"))


def test_device_calls_are_for_dummy_stores(store):
    assert store.put_tensor("key", torch.arange(3)) == 0
    assert store.get_tensor_into_cuda("key", torch.zeros(3, dtype=torch.int64)) == INVALID
    assert store.batch_get_tensor_into_cuda(["key"], [torch.zeros(3)]) == [INVALID]


def test_calls_before_setup_answer_with_their_errors():
    closed = module.MooncakeDistributedStore()
    memory = in_memory(torch.arange(3))
    assert closed.put_tensor("key", torch.arange(3)) == INVALID
    assert closed.get_tensor("key") is None
    assert closed.batch_get_tensor(["a", "b"]) == [None, None]
    assert closed.put_tensor_from("key", memory.at, memory.size) == INVALID
    assert closed.get_tensor_into("key", memory.at, memory.size) is None
    assert closed.get_tensor_with_tp("key", 0, 2) is None
    assert closed.put_tensor_with_tp("key", torch.arange(4), 0, 2, 0) == INVALID
    assert closed.get_tensor_with_parallelism("key") is None
    assert closed.save_tensor_to_safetensor("key") == -1100


def test_readers_see_one_tensor_or_the_other_while_it_is_replaced(store):
    from concurrent.futures import ThreadPoolExecutor

    tensors = [torch.full((1000,), float(number)) for number in range(2)]
    assert store.put_tensor("key", tensors[0]) == 0

    def write():
        return {store.upsert_tensor("key", tensors[number % 2]) for number in range(50)}

    def read():
        found = [store.get_tensor("key") for _ in range(100)]
        return all(one is None or any(same(one, known) for known in tensors) for one in found)

    with ThreadPoolExecutor(5) as threads:
        writer = threads.submit(write)
        readers = [threads.submit(read) for _ in range(4)]
        assert all(reader.result(60) for reader in readers)
        assert 0 in writer.result(60)


def test_no_part_of_the_class_hides_a_name_of_another():
    """A private method of one part once hid that of another; parts know each other by names."""
    owners = {}
    for part in module.MooncakeDistributedStore.__mro__[:-1]:
        for name in vars(part):
            if not name.startswith("__"):
                owners.setdefault(name, []).append(part)
    hidden = [
        f"{first.__name__}.{name} hides that of {later.__name__}"
        for name, (first, *others) in owners.items()
        for later in others
        if not issubclass(first, later)
    ]
    assert hidden == []


def test_addresses_and_keys_that_cannot_be_are_refused(store):
    tensor = torch.arange(4)
    assert store.put_tensor("key", tensor) == 0
    for bad in (0, -8, 1 << 63, 1 << 64, 1 << 80):
        assert store.put_tensor_from("a", bad, 400) == INVALID
        assert store.put_tensor_with_tp_from("a", bad, 400, tp_size=2) == INVALID
        assert store.put_tensor_with_parallelism_from("a", bad, 400) == INVALID
        assert store.get_tensor_into("key", bad, 400) is None
        assert store.get_tensor_with_tp_into("key", bad, 400) is None
        assert store.get_tensor_with_parallelism_into("key", bad, 400) is None
    memory = in_memory(tensor)
    for size in (-1, 0, 1 << 63, 1 << 80):
        assert store.put_tensor_from("a", memory.at, size) == INVALID
        assert store.get_tensor_into("key", memory.at, -1) is None
    assert store.put_tensor("", tensor) == INVALID
    assert store.put_tensor_with_tp("", tensor, tp_size=2) == INVALID
    partition = module.ParallelAxis("tp", 0, 2, 0)
    assert store.put_tensor_with_parallelism("", tensor, writer_partition=partition) == INVALID
    for call in (store.put_tensor, store.put_tensor_with_tp, store.upsert_tensor):
        with pytest.raises(TypeError):
            call(7, tensor)
    with pytest.raises(TypeError):
        store.put_tensor_with_tp(7, tensor, 0, 2)
    with pytest.raises(TypeError):
        store.pub_tensor("a", tensor, None)
    assert same(tensor, store.get_tensor(b"key"))


def test_importing_the_package_imports_no_torch():
    said = python(
        """
        import sys
        import mooncake.store
        import mooncake.structured_object_store
        assert mooncake.store.MooncakeDistributedStore().put_tensor("key", [1.0]) == -600
        print(sorted({"torch", "numpy", "msgpack", "safetensors"} & {*sys.modules}))
        """
    )
    assert said == "[]\n"


@pytest.mark.check(53)
@pytest.mark.skipif(
    not hasattr(mooncrate.Store, "put_tensor"), reason="this mooncrate stores no tensors"
)
@pytest.mark.parametrize("shape", [(), (0, 3), (3, 5), (2,) * 8], ids=str)
def test_both_packages_store_the_same_bytes(store, master, shape):
    with mooncrate.Store(master=master.address) as native:
        for name in NAMES:
            tensor = sample(name, *shape)
            assert native.put_tensor(f"native/{name}", tensor)
            assert store.put_tensor(f"dropin/{name}", tensor) == 0
            assert store.get(f"native/{name}") == store.get(f"dropin/{name}")
            assert same(tensor, store.get_tensor(f"native/{name}"))
            assert same(tensor, native.get_tensor(f"dropin/{name}"))
