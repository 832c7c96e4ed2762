"""put, get and lookups: the smallest things a store does."""

import numpy as np
import pytest
from conftest import memory


@pytest.mark.check(7)
def test_what_was_put_is_what_is_got(store):
    assert store.put("basic/a", b"hello") == 0
    assert store.get("basic/a") == b"hello"
    assert store.get_size("basic/a") == 5
    assert store.is_exist("basic/a") == 1


@pytest.mark.check(8)
def test_the_first_value_stays(store):
    assert store.put("basic/b", b"first") == 0
    assert store.put("basic/b", b"second one") == 0
    assert store.get("basic/b") == b"first"


@pytest.mark.check(9)
def test_what_cannot_be_stored(store):
    assert store.put("basic/empty", b"") == -600
    assert store.is_exist("basic/empty") == 0
    assert store.put("", b"x") == -600
    assert store.get("") == b"" and store.is_exist("") == 0
    assert store.put("k" * 8193, b"x") == -600


@pytest.mark.check(10)
@pytest.mark.parametrize(
    "key", ["with space", "a/b//c", "line\nbreak", "nul\0inside", "x" * 5000, "schlüssel", b"\xff\0"]
)
def test_keys_of_all_kinds(store, key):
    value = repr(key).encode()
    assert store.put(key, value) == 0
    assert store.get(key) == value and store.is_exist(key) == 1
    if key == "nul\0inside":
        assert store.is_exist("nul") == 0
        assert store.put("nul", b"another") == 0
        assert store.get(key) == value and store.get("nul") == b"another"


@pytest.mark.check(11)
def test_values_of_all_kinds(store):
    square = np.arange(12, dtype=np.uint8).reshape(3, 4)
    values = [bytearray(b"bytearray"), memoryview(b"memoryview"), square]
    for number, value in enumerate(values):
        assert store.put(f"kind/{number}", value) == 0
        assert store.get(f"kind/{number}") == bytes(value)
    for bad in ("text", 7, None, 1.5, ["list"]):
        with pytest.raises(TypeError):
            store.put("kind/bad", bad)
    with pytest.raises(TypeError, match="config"):
        store.put("kind/bad", b"x", None)
    with pytest.raises(TypeError, match="config"):
        store.put("kind/bad", b"x", config=None)
    for bad in (7, None, ["k"]):
        with pytest.raises(TypeError):
            store.put(bad, b"x")
    assert store.is_exist("kind/bad") == 0


@pytest.mark.check(12)
def test_all_bytes_in_c_order(store):
    floats = np.arange(4, dtype=np.float32)
    assert store.put("order/floats", floats) == 0
    assert store.get("order/floats") == floats.tobytes() and store.get_size("order/floats") == 16
    assert store.put("order/step", memoryview(bytes(range(20)))[::2]) == 0
    assert store.get("order/step") == bytes(range(0, 20, 2))
    turned = np.arange(6, dtype=np.int16).reshape(2, 3).T
    assert store.put("order/turned", turned) == 0
    assert store.get("order/turned") == turned.tobytes()
    assert store.put("order/single", np.float64(1.5)) == 0
    assert store.get_size("order/single") == 8


@pytest.mark.check(13)
def test_parts_become_one_value(store):
    assert store.put_parts("parts/a", b"one ", bytearray(b"two "), memoryview(b"three")) == 0
    assert store.get("parts/a") == b"one two three"
    assert store.put_parts("parts/none") == 0 and store.put_parts("parts/none", b"", b"") == 0
    assert store.is_exist("parts/none") == 0
    with pytest.raises(RuntimeError):
        store.put_parts("parts/b", np.zeros((2, 2), np.uint8))
    with pytest.raises(RuntimeError):
        store.put_parts("parts/b", b"x", np.zeros(2, np.float32))
    with pytest.raises(TypeError):
        store.put_parts("parts/b", "text")


@pytest.mark.check(14)
def test_batches_of_values(store):
    assert store.put_batch(["batch/a", "batch/b"], [b"1", b"2"]) == 0
    assert store.get_batch(["batch/a", "batch/b"]) == [b"1", b"2"]
    assert store.put_batch(["batch/c"], [b"1", b"2"]) == -600
    assert store.put_batch(["batch/d", "batch/e"], [b"1", b""]) == -600
    assert store.batch_is_exist(["batch/c", "batch/d", "batch/e"]) == [0, 0, 0]
    assert store.put_batch(["batch/f", "batch/a"], [b"6", b"other"]) == 0
    assert store.get_batch(["batch/f", "batch/a"]) == [b"6", b"1"]


@pytest.mark.check(15)
def test_a_key_that_is_not_there(store):
    target = memory(16)
    assert store.get("missing") == b"" and store.get_buffer("missing") is None
    assert store.get_size("missing") == -704 and store.is_exist("missing") == 0
    assert store.remove("missing") == -704
    assert store.get_into("missing", target.ptr, target.size) == -704
    assert store.get_replica_desc("missing") == []
    assert store.put("there", b"x") == 0
    found = store.batch_get_replica_desc(["missing", "there"])
    assert list(found) == ["there"]


@pytest.mark.check(16)
def test_batches_keep_their_order(store):
    store.put_batch(["order/a", "order/b"], [b"1", b"2"])
    keys = ["order/a", "order/b", "order/missing"]
    assert store.get_batch(keys) == [b"1", b"2", b""]
    assert store.batch_is_exist(keys[::-1]) == [0, 1, 1]
    assert store.get_batch(["order/a", "order/a"]) == [b"1", b"1"]
    empty = {
        "get_batch": 1, "batch_get_buffer": 1, "batch_is_exist": 1, "batch_remove": 1,
        "batch_put_from": 3, "batch_get_into": 3, "batch_put_from_multi_buffers": 3,
        "batch_get_into_multi_buffers": 3, "batch_upsert_from": 3, "batch_get_session_start": 1,
        "batch_put_session_start": 2, "batch_put_session_end": 1, "batch_replica_clear": 1,
    }
    for name, lists in empty.items():
        assert getattr(store, name)(*[[]] * lists) == [], name
    assert store.put_batch([], []) == 0
    with pytest.raises(TypeError):
        store.get_batch("a single one")


@pytest.mark.check(17)
def test_a_fresh_value_can_be_removed(store):
    assert store.put("basic/c", b"x") == 0
    assert store.remove("basic/c") == 0
    assert store.get("basic/c") == b""
