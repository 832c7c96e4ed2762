"""Tensors in and out: dtype and shape kept, one copy at most."""

import asyncio

import numpy as np
import pytest

import mooncrate
from mooncrate.tensors import BY_NAME, SIZE

ARRAYS = [
    np.arange(24).astype(dtype.numpy).reshape(2, 3, 4) for dtype in BY_NAME.values() if dtype.numpy
] + [np.array(7, np.float32), np.zeros((0, 5)), np.zeros((1,) * 8, np.int8)]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: f"{array.dtype}{array.shape}")
def test_arrays_come_back_as_they_were(store, array):
    assert store.put_tensor("key", array) is True
    assert store.put_tensor("key", np.array(array + array)) is False
    assert store.size("key") == SIZE + array.nbytes
    own, shown = store.get_array("key"), store.view_array("key")
    for found in (own, shown):
        assert found.dtype == array.dtype and found.shape == array.shape and (found == array).all()
    assert own.flags.writeable and not shown.flags.writeable
    own[...] = 0
    assert (shown == array).all()


def test_over_every_path(any_store):
    array = np.random.default_rng(3).standard_normal((300, 500))
    any_store.put_tensor("tensor/path", array, upsert=True)
    assert (any_store.get_array("tensor/path") == array).all()
    assert (any_store.view_array("tensor/path") == array).all()
    assert any_store.get_array("tensor/none") is any_store.view_array("tensor/none") is None


def test_what_does_not_lie_in_c_order_is_stored_so(store):
    array = np.arange(24, dtype=np.int32).reshape(4, 6)
    for name, form in {
        "turned": array.T,
        "cut": array[::2, 1::2],
        "other": array.astype(">i4"),
    }.items():
        store.put_tensor(name, form)
        found = store.get_array(name)
        assert (found == form).all() and found.shape == form.shape and found.dtype == np.int32
        assert found.flags.c_contiguous


def test_what_is_stored_in_c_order_is_not_copied():
    """The parts that are stored are the memory of the array itself."""
    from mooncrate import arrays

    array = np.arange(24, dtype=np.float32).reshape(4, 6)
    assert np.shares_memory(arrays.parts(array)[1], array)


def test_what_is_no_tensor_is_refused_in_words(store):
    for bad, words in (
        ([1.0], "list"),
        (b"bytes", "bytes"),
        (np.array(["text"]), "str"),
        (np.zeros(2, "c16"), "complex"),
    ):
        with pytest.raises(TypeError, match=words):
            store.put_tensor("bad", bad)
    with pytest.raises(ValueError, match="dimensions"):
        store.put_tensor("bad", np.zeros((1,) * 9))
    assert not store.exists("bad")
    store.put("plain", bytes(1000))
    store.put("short", b"")
    for key in ("plain", "short"):
        for read in (store.get_array, store.view_array):
            with pytest.raises(mooncrate.Invalid, match="no tensor"):
                read(key)


def test_a_value_that_is_replaced_by_a_longer_one_is_read_again(store, monkeypatch):
    """Between the look at its size and the read."""
    store.put_tensor("key", np.zeros(3))
    sizes = iter([SIZE + 1, SIZE + 24])

    class Late(mooncrate.Store):
        def size(self, key):
            return next(sizes)

        def get_into(self, key, target):
            return store.get_into(key, target)

    with Late() as late:
        assert (late.get_array("key") == np.zeros(3)).all()
        sizes = iter([1] * 100)
        with pytest.raises(mooncrate.Busy, match="replaced"):
            late.get_array("key")


def test_the_twins_of_asyncio():
    async def work():
        async with mooncrate.AsyncStore() as store:
            array = np.arange(6, dtype=np.int16).reshape(2, 3)
            assert await store.put_tensor("key", array)
            assert (await store.get_array("key") == array).all()
            assert (await store.view_array("key") == array).all()
            assert await store.get_array("none") is None

    asyncio.run(work())


def test_tensors_of_torch(any_store):
    torch = pytest.importorskip(
        "torch", reason="torch is not installed; ./dev test --torch installs it"
    )
    for name in BY_NAME:
        dtype = getattr(torch, name)
        tensor = torch.arange(24).reshape(2, 3, 4).to(dtype)
        any_store.put_tensor("torch/key", tensor, upsert=True)
        found = any_store.get_tensor("torch/key")
        assert found.dtype == dtype and found.shape == tensor.shape
        assert found.view(torch.uint8).equal(tensor.view(torch.uint8))
        found.view(torch.uint8).zero_()
        assert (
            not any_store.get_tensor("torch/key").view(torch.uint8).equal(found.view(torch.uint8))
        )
    for tensor in (torch.tensor(3.5), torch.zeros(0, 2), torch.arange(12).reshape(3, 4).T):
        any_store.put_tensor(
            "torch/key", tensor.requires_grad_(tensor.is_floating_point()), upsert=True
        )
        found = any_store.get_tensor("torch/key")
        assert found.shape == tensor.shape and found.equal(tensor)
    any_store.put_tensor("torch/key", np.arange(3), upsert=True)
    assert any_store.get_tensor("torch/key").tolist() == [0, 1, 2]
    any_store.put_tensor("torch/key", torch.zeros(2, dtype=torch.bfloat16), upsert=True)
    with pytest.raises(mooncrate.Invalid, match="bfloat16"):
        any_store.get_array("torch/key")
    with pytest.raises(TypeError, match="complex64"):
        any_store.put_tensor("torch/bad", torch.zeros(2, dtype=torch.complex64))
