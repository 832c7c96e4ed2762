"""Values that are written and read part by part."""

import threading

import pytest
from conftest import LEASE_SECONDS, PATIENCE, after_lease, memory
from mooncake.store import ReplicateConfig


@pytest.mark.check(32)
def test_a_value_that_is_written_in_parts(store):
    source = memory(bytes(range(100)))
    write = store.batch_put_from_multi_buffer_ranges
    assert store.batch_put_session_start(["ps"], [100]) == [0]
    assert store.batch_put_session_start(["ps"], [100]) == [-600]
    assert store.is_exist("ps") == 0 and store.get("ps") == b""
    assert store.get_size("ps") == -703 and store.remove("ps") == -703
    assert store.get_replica_desc("ps") == []
    # Somebody else's put of the key leaves it to the one who began.
    assert store.put("ps", b"other") == 0
    assert write(["ps"], [[source.ptr + 60]], [[40]], [[60]]) == [40]
    assert write(["ps"], [[source.ptr]], [[1]], [[100]]) == [-600]
    assert write(["ps"], [[source.ptr, source.ptr + 30]], [[30, 30]], [[0, 30]]) == [60]
    assert store.batch_put_session_end(["ps"]) == [0]
    assert store.get("ps") == bytes(source)
    assert store.batch_put_session_end(["ps"]) == [-600]
    assert store.batch_put_session_start(["ps"], [5]) == [-705]


@pytest.mark.check(32)
def test_a_value_that_is_given_up(store):
    source = memory(b"x" * 10)
    assert store.batch_put_session_start(["rv/a", "rv/b"], [10, 10]) == [0, 0]
    assert store.batch_put_from_multi_buffer_ranges(["rv/a"], [[source.ptr]], [[10]], [[0]]) == [10]
    assert store.batch_put_session_revoke(["rv/a", "rv/b", "rv/c"]) == [0, 0, -600]
    assert store.batch_is_exist(["rv/a", "rv/b"]) == [0, 0]
    assert store.get_size("rv/a") == -704
    assert store.put("rv/a", b"fresh") == 0 and store.get("rv/a") == b"fresh"


@pytest.mark.check(32)
def test_what_a_put_session_refuses(store):
    source = memory(b"x" * 10)
    write = store.batch_put_from_multi_buffer_ranges
    assert store.batch_put_session_start(["no/a", "no/b"], [10]) == [-600, -600]
    assert store.batch_put_session_start(["no/a", "no/b"], [0, -1]) == [-600, -600]
    assert write(["no/none"], [[source.ptr]], [[1]], [[0]]) == [-600]
    assert store.batch_put_session_start(["no/a"], [10]) == [0]
    assert write(["no/a"], [[source.ptr]], [[1, 2]], [[0]]) == [-600]
    assert write(["no/a"], [[0]], [[1]], [[0]]) == [-600]
    # A gap leaves the session open.
    assert write(["no/a"], [[source.ptr]], [[5]], [[0]]) == [5]
    assert store.batch_put_session_end(["no/a"]) == [-600]
    assert write(["no/a"], [[source.ptr]], [[5]], [[5]]) == [5]
    assert store.batch_put_session_end(["no/a"]) == [0]
    groups = ReplicateConfig()
    groups.group_ids = ["one"]
    assert store.batch_put_session_start(["no/c", "no/d"], [1, 1], groups) == [-600, -600]


@pytest.mark.check(32)
def test_a_write_that_is_refused_leaves_the_session_as_it_was(store):
    source = memory(bytes(range(200)))
    write = store.batch_put_from_multi_buffer_ranges
    assert store.batch_put_session_start(["wr"], [200]) == [0]
    pieces = [[source.ptr, source.ptr + 100]], [[100, 100]]
    assert write(["wr"], *pieces, [[0, 150]]) == [-600]
    assert write(["wr"], *pieces, [[0, 100]]) == [200]
    assert store.batch_put_session_end(["wr"]) == [0]
    assert store.get("wr") == bytes(source)


@pytest.mark.check(32)
def test_each_key_of_a_call_is_for_itself(store):
    source = memory(b"0123456789" * 2)
    write = store.batch_put_from_multi_buffer_ranges
    assert store.put("each/there", b"value") == 0
    names = ["each/a", "each/there", "each/a", "each/bad", "each/b"]
    assert store.batch_put_session_start(names, [10, 10, 10, 0, 10]) == [0, -705, -705, -600, 0]
    # A key twice in a call is written twice; a bad address and a missing session are told at their places.
    keys = ["each/a", "each/a", "each/none", "each/b"]
    ptrs = [[source.ptr], [source.ptr + 15], [source.ptr], [0]]
    assert write(keys, ptrs, [[5]] * 4, [[0], [5], [0], [0]]) == [5, 5, -600, -600]
    assert write(["each/b"], [[source.ptr, source.ptr + 5]], [[5, 5]], [[5, 0]]) == [10]
    assert store.batch_put_session_end(["each/a", "each/none", "each/b"]) == [0, -600, 0]
    assert store.get("each/a") == b"0123456789" and store.get("each/b") == b"5678901234"
    target = memory(20)
    assert store.batch_get_session_start(["each/a", "each/no", "each/b", "each/a"]) == [0, -704, 0, 0]
    read = store.batch_get_into_multi_buffer_ranges
    keys = ["each/b", "each/no", "each/a", "each/a"]
    ptrs = [[target.ptr], [target.ptr], [0], [target.ptr + 5, target.ptr + 8]]
    codes = read(keys, ptrs, [[5], [5], [5], [3, 2]], [[5], [0], [0], [0, 8]])
    assert codes == [5, -600, -600, 5]
    assert bytes(target)[:10] == b"01234" + b"012" + b"89"
    assert store.batch_get_session_end(["each/b", "each/no"]) == 0
    assert read(["each/b", "each/a"], [[target.ptr]] * 2, [[1]] * 2, [[0]] * 2) == [-600, 1]


@pytest.mark.check(32)
def test_ends_of_a_call_are_for_themselves(store):
    """The published package stores a value with a gap, and ends a session twice in one call."""
    source = memory(b"0123456789")
    write = store.batch_put_from_multi_buffer_ranges
    keys = ["end/a", "end/b", "end/c"]
    assert store.batch_put_session_start(keys, [10] * 3) == [0] * 3
    assert write(keys, [[source.ptr]] * 3, [[10], [5], [10]], [[0]] * 3) == [10, 5, 10]
    assert store.batch_put_session_end(["end/a", "end/b", "end/a", "end/no"]) == [0, -600, -600, -600]
    assert store.get("end/a") == b"0123456789" and store.is_exist("end/b") == 0
    # The one with the gap goes on.
    assert write(["end/b"], [[source.ptr + 5]], [[5]], [[5]]) == [5]
    assert store.batch_put_session_end(["end/b", "end/b"]) == [0, -600]
    assert store.get("end/b") == b"0123456789"
    assert store.batch_put_session_revoke(["end/c", "end/c"]) == [0, -600]
    assert store.put("end/c", b"fresh") == 0 and store.get("end/c") == b"fresh"


def test_layers_come_from_many_threads(store):
    layers, size = 16, 4096
    source = memory(bytes(range(256)) * (layers * size // 256))
    assert store.batch_put_session_start(["layers"], [layers * size]) == [0]
    codes = []

    def write(layer):
        at = layer * size
        ask = (["layers"], [[source.ptr + at]], [[size]], [[at]])
        codes.extend(store.batch_put_from_multi_buffer_ranges(*ask))

    threads = [threading.Thread(target=write, args=(n,)) for n in range(layers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert codes == [size] * layers
    assert store.batch_put_session_end(["layers"]) == [0]
    assert store.get("layers") == bytes(source)


@pytest.mark.check(33)
def test_a_value_that_is_read_in_parts(store):
    value = bytes(range(200))
    assert store.put("gs", value) == 0
    target = memory(200)
    read = store.batch_get_into_multi_buffer_ranges
    assert read(["gs"], [[target.ptr]], [[10]], [[0]]) == [-600]
    assert store.batch_get_session_start(["gs", "gs/missing"]) == [0, -704]
    assert read(["gs"], [[target.ptr, target.ptr + 50]], [[50, 30]], [[100, 0]]) == [80]
    assert bytes(target)[:80] == value[100:150] + value[:30]
    assert read(["gs"], [[target.ptr]], [[10]], [[195]]) == [-600]
    assert read(["gs"], [[target.ptr]], [[10, 10]], [[0]]) == [-600]
    assert read(["gs", "gs/missing"], [[target.ptr]] * 2, [[10]] * 2, [[0]] * 2) == [10, -600]
    assert store.batch_get_session_end(["gs"]) == 0
    assert read(["gs"], [[target.ptr]], [[10]], [[0]]) == [-600]


@pytest.mark.check(33)
def test_a_session_ends_with_its_lease(store):
    assert store.put("gl", b"0123456789") == 0
    target = memory(10)
    read = store.batch_get_into_multi_buffer_ranges
    assert store.batch_get_session_start(["gl"]) == [0]
    after_lease()
    assert read(["gl"], [[target.ptr]], [[10]], [[0]]) == [-707]
    assert read(["gl"], [[target.ptr]], [[10]], [[0]]) == [-600]
    assert LEASE_SECONDS < 1
