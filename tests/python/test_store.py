"""What a store does, on every path that values take."""

import array
import threading
import uuid

import numpy as np
import pytest

import mooncrate
import mooncrate.stats


@pytest.fixture
def key():
    return f"python/{uuid.uuid4()}"


def test_a_value_comes_back_as_it_was(any_store, key):
    assert any_store.get(key) is None
    assert any_store.put(key, b"kv pages") is True
    assert any_store.get(key) == b"kv pages"
    assert any_store.size(key) == 8
    assert any_store.exists(key) and key in any_store
    assert any_store.remove(key) is True
    assert any_store.remove(key) is False
    assert any_store.get(key) is None and key not in any_store


def test_a_second_put_keeps_the_first_value_unless_it_is_an_upsert(any_store, key):
    assert any_store.put(key, b"first")
    assert any_store.put(key, b"second") is False
    assert any_store.get(key) == b"first"
    assert any_store.put(key, b"third", upsert=True)
    assert any_store.get(key) == b"third"


@pytest.mark.parametrize("length", [0, 1, 2, 4096, 3_000_001])
def test_every_length_comes_back(any_store, key, length):
    value = np.random.default_rng(length).bytes(length)
    any_store.put(key, value)
    assert any_store.get(key) == value
    with any_store.view(key) as view:
        assert len(view) == length and bytes(view) == value
    target = bytearray(length + 3)
    assert any_store.get_into(key, target) == length
    assert target == value + bytes(3)


def test_text_keys_are_their_utf8_bytes(store):
    store.put("schlüssel/🌙", b"1")
    assert store.get("schlüssel/🌙".encode()) == b"1"
    store.put(b"\xff\x00 any bytes", b"2")
    assert store.get(b"\xff\x00 any bytes") == b"2"


@pytest.mark.parametrize(
    "value",
    [
        b"bytes",
        bytearray(b"bytearray"),
        memoryview(b"memoryview")[3:],
        array.array("d", [1.0, 2.5]),
        np.arange(12, dtype=np.float32).reshape(3, 4),
        np.zeros((0, 5)),
        np.array(7, dtype=np.int64),
    ],
    ids=lambda value: type(value).__name__,
)
def test_anything_with_a_buffer_is_a_value(store, value):
    store.put("key", value)
    assert store.get("key") == memoryview(value).tobytes()


def test_get_into_fills_arrays(any_store, key):
    value = np.arange(1000, dtype=np.int32).reshape(10, 100)
    any_store.put(key, value)
    target = np.zeros_like(value)
    assert any_store.get_into(key, target) == value.nbytes
    assert (target == value).all()
    assert any_store.get_into(key + "/missing", target) is None


def test_ranges(any_store, key):
    value = bytes(range(256)) * 8192
    any_store.put(key, value)
    assert any_store.get_range(key, 0, 10) == value[:10]
    assert any_store.get_range(key, 1_048_570, 20) == value[1_048_570:1_048_590]
    assert any_store.get_range(key, len(value), 0) == b""
    assert any_store.get_range(key + "/missing", 0, 1) is None
    for start, length in [(len(value) - 1, 2), (2**63, 1), (0, 2**62)]:
        with pytest.raises(mooncrate.Invalid, match="past the end"):
            any_store.get_range(key, start, length)


def test_batches_have_one_result_per_key(any_store, key):
    items = [(f"{key}/{number}", bytes([number]) * number) for number in range(50)]
    keys = [name for name, _ in items]
    assert any_store.put_batch(items) == [True] * 50
    assert any_store.put_batch(dict(items[:3])) == [False] * 3
    asked = [keys[7], f"{key}/missing", keys[7], keys[0]]
    assert any_store.get_batch(asked) == [bytes([7]) * 7, None, bytes([7]) * 7, b""]
    assert any_store.exists_batch(asked) == [True, False, True, True]
    assert any_store.remove_batch(asked[:2]) == [True, False]
    assert any_store.exists_batch(keys) == [number != 7 for number in range(50)]
    for empty in (any_store.put_batch, any_store.get_batch, any_store.exists_batch):
        assert empty([]) == []
    # Any iterable will do.
    assert any_store.get_batch(name for name in keys[1:3]) == [b"\1", b"\2\2"]


def test_a_bad_item_spoils_no_other(any_store, key):
    stored = any_store.put_batch([(key, b"good"), ("", b"no key"), (key + "/2", b"good")])
    assert stored[0] is True and stored[2] is True
    assert isinstance(stored[1], mooncrate.Invalid) and stored[1].advice == "give up"
    found = any_store.get_batch([key, "", key + "/2"])
    assert found[0] == found[2] == b"good"
    assert isinstance(found[1], mooncrate.Invalid)


def test_batches_larger_than_a_call(store):
    keys = [f"{number}" for number in range(10_000)]
    assert store.put_batch((name, name.encode()) for name in keys) == [True] * 10_000
    assert store.get_batch(keys) == [name.encode() for name in keys]
    assert store.exists_batch(keys) == [True] * 10_000
    assert store.remove_batch(keys) == [True] * 10_000
    assert store.stats()["objects"] == 0


def test_list_and_bulk_removal(any_store, key):
    names = {f"{key}/{number}".encode() for number in range(2500)}
    any_store.put_batch((name, b"x") for name in names)
    listed = [*any_store.list(key + "/")]
    assert len(listed) == 2500 and set(listed) == names
    assert names <= {*any_store.list()}
    assert any_store.remove_regex(f"^{key}/1.*9$") == sum(
        name.decode()[len(key) + 1] == "1" and name.endswith(b"9") for name in names
    )
    left = len([*any_store.list(key)])
    assert any_store.remove_prefix(key) == left > 0
    assert [*any_store.list(key)] == []


def test_stats_count(any_store, key):
    before = any_store.stats()
    any_store.put(key, bytes(1000))
    any_store.get(key)
    after = any_store.stats()
    assert after["objects"] == before["objects"] + 1
    assert after["client"]["bytes_read"] == before["client"]["bytes_read"] + 1000
    assert after["capacity_bytes"] == 64 << 20 and after["nodes"] == 1
    assert set(after) == set(mooncrate.stats.Stats.__annotations__)
    assert set(after["client"]) == set(mooncrate.stats.Client.__annotations__)
    assert set(after["counted"]) == set(mooncrate.stats.Counted.__annotations__)


def test_paths_are_what_they_say(server, key):
    with mooncrate.Store(master=server.master) as near:
        near.put(key, b"value")
        assert near.get(key) == b"value"
        counted = near.stats()["client"]
        assert (counted["shared"], counted["stream"]) == (1, 0)
    with mooncrate.Store(master=server.master, shared_memory=False) as far:
        assert far.get(key) == b"value"
        counted = far.stats()["client"]
        assert (counted["shared"], counted["stream"]) == (0, 1)


def test_tenants_do_not_see_each_other(server, key):
    with mooncrate.Store(tenant="acme") as store:
        store.put(key, b"value")
        assert store.get(key) == b"value"
    with (
        mooncrate.Store(master=server.master) as everybody,
        mooncrate.Store(master=server.master, tenant="acme") as acme,
    ):
        assert everybody.put(key, b"everybody's") and acme.put(key, b"acme's")
        assert (everybody.get(key), acme.get(key)) == (b"everybody's", b"acme's")
        assert acme.remove(key) and everybody.get(key) == b"everybody's"


def test_a_store_of_a_cluster_lends_memory(server, key):
    with mooncrate.Store(master=server.master) as other:
        before = other.stats()
        with mooncrate.Store(master=server.master, segment_size="32MiB") as lender:
            assert other.stats()["capacity_bytes"] == before["capacity_bytes"] + (32 << 20)
            assert lender.put(key, b"on two nodes", replicas=2)
            assert other.get(key) == b"on two nodes"
        assert other.stats()["capacity_bytes"] == before["capacity_bytes"]
        assert other.get(key) == b"on two nodes"


def test_a_full_store_evicts_and_pins_hold():
    with mooncrate.Store(segment_size=8 << 20) as store:
        store.put("pinned", bytes(1 << 20), hard_pin=True)
        store.put("soft", bytes(1 << 20), soft_pin=60)
        for number in range(30):
            assert store.put(f"{number}", bytes(1 << 20))
        assert store.get("pinned") == bytes(1 << 20)
        assert store.get("0") is None
        assert store.stats()["counted"]["evicted"] > 0


def test_what_expires_goes(store):
    store.put("key", b"value", expire=0.001)
    store.put("other", b"value", group="g")
    assert store.get("key") == b"value"
    deadline = threading.Event()
    for _ in range(600):
        if store.get("key") is None:
            break
        deadline.wait(0.1)
    assert store.get("key") is None
    assert store.get("other") == b"value"


def test_many_threads(any_store, key):
    failures = []

    def work(number):
        try:
            for turn in range(50):
                name, value = f"{key}/{number}/{turn}", bytes([number, turn]) * 3000
                assert any_store.put(name, value)
                assert any_store.get(name) == value
                assert any_store.remove(name, force=True)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_it_says_what_it_is(server):
    store = mooncrate.Store()
    assert repr(store) == "<mooncrate.Store, embedded>" and not store.closed
    store.close()
    assert repr(store) == "<mooncrate.Store, closed>" and store.closed
    with mooncrate.Store(master=server.master) as store:
        assert repr(store) == "<mooncrate.Store, connected>"


def test_a_value_may_lie_in_parts(any_store):
    parts = [b"head", bytearray(3), memoryview(b""), np.arange(3, dtype=np.uint8)]
    assert any_store.put_parts("parts", parts, upsert=True) is True
    assert any_store.put_parts("parts", [b"other"]) is False
    assert any_store.get("parts") == b"head" + bytes(3) + b"\0\1\2"
    assert any_store.put_parts("parts", [], upsert=True) and any_store.get("parts") == b""
    for bad in (b"bytes are no list of parts", "text", [b"part", "text"], [1], None):
        with pytest.raises(TypeError):
            any_store.put_parts("parts/bad", bad)
    assert not any_store.exists("parts/bad")


def test_more_memory_than_there_is_is_refused_with_the_way_out():
    # No machine has so much; before, the kernel killed the process when its pages ran out.
    with pytest.raises(mooncrate.TooLarge, match="64.0 TiB.*memory_overcommit"):
        mooncrate.Store(segment_size="64TiB")
    with mooncrate.Store(segment_size="1MiB", memory_overcommit=True) as store:
        assert store.put("key", b"value")
