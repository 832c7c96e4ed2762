"""Lookups hold what they find: removes without force are refused until the time is over."""

import pytest
from conftest import after_lease, memory

LOOKUPS = {
    "get": lambda store, key: store.get(key),
    "get_batch": lambda store, key: store.get_batch([key]),
    "get_size": lambda store, key: store.get_size(key),
    "is_exist": lambda store, key: store.is_exist(key),
    "batch_is_exist": lambda store, key: store.batch_is_exist([key]),
    "get_into": lambda store, key: store.get_into(key, TARGET.ptr, TARGET.size),
    "batch_get_into": lambda store, key: store.batch_get_into([key], [TARGET.ptr], [TARGET.size]),
    "get_buffer": lambda store, key: store.get_buffer(key),
    "get_replica_desc": lambda store, key: store.get_replica_desc(key),
    "batch_get_replica_desc": lambda store, key: store.batch_get_replica_desc([key]),
    "session": lambda store, key: store.batch_get_session_start([key]),
}
TARGET = memory(64)


@pytest.mark.check(18)
@pytest.mark.parametrize("lookup", LOOKUPS)
def test_a_lookup_refuses_removes(store, lookup):
    keys = [f"lease/{lookup}/forced", f"lease/{lookup}/waited"]
    for key in keys:
        assert store.put(key, b"value") == 0
        assert LOOKUPS[lookup](store, key)
        assert store.remove(key) == -706
    assert store.remove(keys[0], force=True) == 0
    assert store.is_exist(keys[0]) == 0
    after_lease()
    assert store.remove(keys[1]) == 0


@pytest.mark.check(18)
def test_each_read_renews_it(store):
    # The second read finds its place by itself, over shared memory; it must count all the same.
    assert store.put("renew", b"value") == 0
    assert store.get("renew") == b"value"
    after_lease()
    assert store.get("renew") == b"value"
    assert store.remove("renew") == -706


@pytest.mark.check(18)
def test_another_stores_lookup_counts(store, make_store):
    other = make_store(0)
    assert store.put("lease/other", b"value") == 0
    assert other.is_exist("lease/other") == 1
    assert store.remove("lease/other") == -706


@pytest.mark.check(19)
def test_batches_of_removes(store):
    store.put_batch(["many/leased", "many/free"], [b"1", b"2"])
    assert store.is_exist("many/leased") == 1
    keys = ["many/leased", "many/missing", "many/free"]
    assert store.batch_remove(keys) == [-706, -704, 0]
    assert store.put("many/free", b"2") == 0
    assert store.batch_remove(keys, force=True) == [0, -704, 0]


@pytest.mark.parametrize("force", [False, True])
def test_a_key_named_twice_is_removed_once(store, force):
    assert store.put_batch(["twice/a", "twice/b"], [b"1", b"2"]) == 0
    keys = ["twice/a", "twice/a", "twice/missing", "twice/b", b"twice/a"]
    assert store.batch_remove(keys, force) == [0, -704, -704, 0, -704]
    assert store.put("twice/a", b"1") == 0 and store.is_exist("twice/a") == 1
    assert store.batch_remove(["twice/a"] * 2) == [-706, -706]
    assert store.batch_remove(["twice/a"] * 2, True) == [0, -704]


@pytest.mark.check(20)
def test_removing_all(store):
    store.put_batch([f"all/{n}" for n in range(5)], [b"x"] * 5)
    assert store.is_exist("all/0") == 1
    assert store.remove_all() == 4
    assert store.is_exist("all/0") == 1 and store.is_exist("all/1") == 0
    assert store.remove_all(force=True) == 1
    assert store.is_exist("all/0") == 0


@pytest.mark.check(21)
def test_removing_by_expression(store):
    store.put_batch(["re/a-mid-1", "re/b-mid-2", "re/c-end"], [b"x"] * 3)
    assert store.remove_by_regex("nothing like it") == 0
    assert store.remove_by_regex("(") == -600
    assert store.is_exist("re/b-mid-2") == 1
    assert store.remove_by_regex("mid") == 1
    assert store.batch_is_exist(["re/a-mid-1", "re/b-mid-2"]) == [0, 1]
    assert store.remove_by_regex(r"-mid-\d$", force=True) == 1
    assert store.is_exist("re/c-end") == 1
