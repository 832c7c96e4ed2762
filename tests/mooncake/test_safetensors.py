"""Tensors in files. Check 57, as far as files go."""

import json
import struct

import pytest

torch = pytest.importorskip(
    "torch", reason="torch is not installed; ./dev test --torch installs it"
)

from mooncrate.tensors import DTYPES


@pytest.mark.check(57)
@pytest.mark.parametrize("name", [dtype.name for dtype in DTYPES])
def test_a_tensor_goes_to_a_file_and_comes_back(store, tmp_path, name):
    tensor = (torch.arange(15).reshape(3, 5) % 2).to(getattr(torch, name))
    assert store.put_tensor("key", tensor) == 0
    file = tmp_path / "one.safetensors"
    assert store.save_tensor_to_safetensor("key", str(file)) == 0
    loaded = store.load_tensor_from_safetensor("new", str(file))
    stored = store.get_tensor("new")
    for one in (loaded, stored):
        assert (one.dtype, one.shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(one.view(torch.uint8), tensor.view(torch.uint8))
    assert [path.name for path in tmp_path.iterdir()] == ["one.safetensors"]


@pytest.mark.check(57)
@pytest.mark.parametrize("tensor", [torch.tensor(2.5), torch.empty(0, 4)], ids=["scalar", "empty"])
def test_odd_shapes(store, tmp_path, tensor):
    assert store.put_tensor("key", tensor) == 0
    assert store.save_tensor_to_safetensor("key", tmp_path / "file") == 0
    loaded = store.load_tensor_from_safetensor(file_name=tmp_path / "file")
    assert torch.equal(loaded, tensor)
    assert loaded.shape == tensor.shape
    assert torch.equal(store.get_tensor(str(tmp_path / "file")), tensor)


@pytest.mark.check(57)
def test_the_key_is_the_name_of_the_file_unless_told_otherwise(store, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert store.put_tensor("key", torch.arange(3)) == 0
    assert store.save_tensor_to_safetensor("key") == 0
    assert (tmp_path / "key").exists()
    assert store.remove("key", force=True) == 0
    assert torch.equal(store.load_tensor_from_safetensor("key"), torch.arange(3))
    assert torch.equal(store.get_tensor("key"), torch.arange(3))


@pytest.mark.check(57)
def test_what_fails_says_so_by_its_code(store, tmp_path):
    assert store.save_tensor_to_safetensor("missing", tmp_path / "file") == -1100
    assert store.put_tensor("key", torch.arange(3)) == 0
    assert store.save_tensor_to_safetensor("key", tmp_path / "no" / "such" / "folder") == -600
    assert store.load_tensor_from_safetensor("key", tmp_path / "missing") is None
    assert store.load_tensor_from_safetensor("key", tmp_path) is None
    with pytest.raises(TypeError, match="file_name"):
        store.load_tensor_from_safetensor()


def file_of(path, entries, data=b"", length=None):
    head = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    path.write_bytes(struct.pack("<Q", len(head) if length is None else length) + head + data)
    return path


def entry(dtype="F32", shape=(1,), first=0, last=4):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [first, last]}


@pytest.mark.check(57)
def test_the_first_tensor_is_taken_where_the_key_is_not_in_the_file(store, tmp_path):
    entries = {"__metadata__": {"format": "pt"}, "a": entry(), "b": entry(first=4, last=8)}
    file = file_of(tmp_path / "two", entries, struct.pack("<2f", 1.0, 2.0))
    assert store.load_tensor_from_safetensor("b", file).item() == 2.0
    assert store.load_tensor_from_safetensor("c", file).item() == 1.0


@pytest.mark.parametrize(
    "entries",
    [
        {},
        [],
        b"no json",
        b"[" * 100_000,
        {"a": 7},
        {"a": {}},
        {"a": entry("F99")},
        {"a": entry(shape=(2,))},
        {"a": entry(last=8)},
        {"a": entry(first=-4, last=0)},
        {"a": entry(first=4, last=8)},
        {"a": entry(shape=(-1,))},
        {"a": entry(shape=("x",))},
        {"a": entry(shape=(1,) * 9)},
        {"a": {"dtype": "F32", "shape": 4, "data_offsets": [0, 4]}},
        {"a": {"dtype": "F32", "shape": [1], "data_offsets": [0]}},
        {"a": {"dtype": [], "shape": [1], "data_offsets": [0, 4]}},
    ],
    ids=lambda entries: str(entries)[:40],
)
def test_a_damaged_file_gives_none(store, tmp_path, entries):
    file = file_of(tmp_path / "bad", entries, bytes(4))
    assert store.load_tensor_from_safetensor("key", file) is None
    assert store.is_exist("key") == 0


@pytest.mark.check(57)
def test_data_of_another_size_than_the_shape_gives_none(store, tmp_path):
    file = file_of(tmp_path / "bad", {"a": entry(last=8)}, bytes(8))
    assert store.load_tensor_from_safetensor("key", file) is None
    file = file_of(tmp_path / "good", {"a": entry(shape=(2,), last=8)}, bytes(8))
    assert store.load_tensor_from_safetensor("key", file).shape == (2,)


@pytest.mark.parametrize("size", range(0, 80, 7))
def test_a_file_that_ends_early_gives_none(store, tmp_path, size):
    whole = file_of(tmp_path / "file", {"a": entry()}, bytes(4)).read_bytes()
    (tmp_path / "file").write_bytes(whole[: min(size, len(whole) - 1)])
    assert store.load_tensor_from_safetensor("key", tmp_path / "file") is None
    file_of(tmp_path / "long", {"a": entry()}, bytes(4), length=1 << 60)
    assert store.load_tensor_from_safetensor("key", tmp_path / "long") is None


def test_the_package_safetensors_reads_our_files(store, tmp_path):
    other = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")
    tensor = torch.arange(6, dtype=torch.bfloat16).reshape(2, 3)
    assert store.put_tensor("key", tensor) == 0
    assert store.save_tensor_to_safetensor("key", tmp_path / "ours") == 0
    assert torch.equal(other.load_file(tmp_path / "ours")["key"], tensor)
    other.save_file({"x": tensor + 1}, tmp_path / "theirs")
    assert torch.equal(store.load_tensor_from_safetensor("x", tmp_path / "theirs"), tensor + 1)
