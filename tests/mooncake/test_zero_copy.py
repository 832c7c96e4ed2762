"""Values that move between the store and memory at addresses."""

import ctypes
import mmap

import pytest
from conftest import MIB, memory
from mooncake.store import ReplicateConfig


@pytest.mark.check(22)
def test_registering_memory(store):
    place = memory(4096)
    assert store.register_buffer(place.ptr, 4096) == 0
    assert store.register_buffer(place.ptr, 4096) == -600
    assert store.register_buffer(place.ptr + 100, 10) == -600
    assert store.register_buffer(place.ptr - 1, 2) == -600
    assert store.register_buffer(0, 4096) == -600
    assert store.register_buffer(place.ptr + 8192, 0) == -600
    assert store.register_buffer(2**63, 8) == -600 and store.register_buffer(-8, 8) == -600
    assert store.unregister_buffer(place.ptr + 1) == -600
    assert store.unregister_buffer(place.ptr) == 0
    assert store.unregister_buffer(place.ptr) == -600
    with pytest.raises(TypeError):
        store.register_buffer("place", 8)


@pytest.mark.check(23)
def test_reading_into_memory(store):
    value = bytes(range(100))
    assert store.put("into", value) == 0
    large, small = memory(b"\xee" * 150), memory(99)
    assert store.get_into("into", large.ptr, 150) == 100
    assert bytes(large) == value + b"\xee" * 50
    assert store.get_into("into", small.ptr, 99) == -600
    for address, size in ((0, 100), (-1, 100), (2**63, 100), (large.ptr, 2**63), (large.ptr, -1)):
        assert store.get_into("into", address, size) == -600


@pytest.mark.check(24)
def test_storing_from_memory(store):
    source = memory(b"from memory")
    assert store.put_from("from/none", source.ptr, 0) == 0 and store.is_exist("from/none") == 0
    assert store.put_from("from/some", source.ptr, source.size) == 0
    assert store.get("from/some") == b"from memory"
    assert store.put_from("from/some", source.ptr, 4) == 0
    assert store.get("from/some") == b"from memory"
    for address, size in ((0, 10), (-1, 10), (2**63, 10), (source.ptr, 2**63)):
        assert store.put_from("from/bad", address, size) == -600
    assert store.is_exist("from/bad") == 0


@pytest.mark.check(25)
def test_batches_from_memory(store):
    source = memory(b"abcdef")
    keys = ["bfrom/a", "bfrom/b", "bfrom/c"]
    places = [source.ptr, source.ptr + 2, source.ptr + 4]
    assert store.batch_put_from(keys, places, [2, 0, 2]) == [0, -600, 0]
    assert store.get_batch(keys) == [b"ab", b"", b"ef"]
    assert store.batch_put_from(keys, places, [2, 2, 2]) == [0, 0, 0]
    assert store.get_batch(keys) == [b"ab", b"cd", b"ef"]
    assert store.batch_put_from(keys, places[:2], [2, 2, 2]) == [-600] * 3
    assert store.batch_put_from(keys, places, [2, 2]) == [-600] * 3


@pytest.mark.check(26)
def test_the_first_of_two_wins(store):
    source = memory(b"firstlater")
    assert store.batch_put_from(["twice/a"] * 2, [source.ptr, source.ptr + 5], [5, 5]) == [0, 0]
    assert store.get("twice/a") == b"first"
    assert store.put_batch(["twice/b", "twice/b"], [b"first", b"later"]) == 0
    assert store.get("twice/b") == b"first"
    assert store.batch_upsert_from(["twice/a"] * 2, [source.ptr + 5, source.ptr], [5, 5]) == [0, 0]
    assert store.get("twice/a") == b"later"


@pytest.mark.check(27)
def test_batches_into_memory(store):
    store.put("binto", b"0123456789")
    one, two, small = memory(10), memory(20), memory(5)
    keys = ["binto", "binto/missing", "binto", "binto"]
    places = [one.ptr, two.ptr, small.ptr, two.ptr]
    assert store.batch_get_into(keys, places, [10, 20, 5, 20]) == [10, -704, -600, 10]
    assert bytes(one) == b"0123456789" and bytes(two)[:10] == b"0123456789"
    assert store.batch_get_into(keys, places[:3], [10, 20, 5, 20]) == [-600] * 4


@pytest.mark.check(28)
def test_fragments_become_one_value(store):
    first, second = memory(b"a" * 10), memory(b"b" * 20)
    both = [first.ptr, second.ptr]
    put = store.batch_put_from_multi_buffers
    assert put(["frag/a", "frag/b"], [both, both[::-1]], [[10, 20], [20, 10]]) == [0, 0]
    assert store.get("frag/a") == b"a" * 10 + b"b" * 20 and store.get_size("frag/b") == 30
    assert put(["frag/c", "frag/d"], [both, both], [[10], [10, 20]]) == [-600, 0]
    assert put(["frag/e"], [both], [[0, 0]]) == [-600]
    assert put(["frag/e"], [both, both], [[10, 20]]) == [-600]
    assert put(["frag/e"], [[]], [[]]) == [-600]
    assert store.is_exist("frag/e") == 0


@pytest.mark.check(29)
def test_values_are_scattered(store):
    value = bytes(range(60))
    assert store.put("scatter", value) == 0
    parts = [memory(10), memory(20), memory(30)]
    places = [part.ptr for part in parts]
    get = store.batch_get_into_multi_buffers
    assert get(["scatter", "scatter/missing"], [places] * 2, [[10, 20, 30]] * 2) == [60, -704]
    assert b"".join(map(bytes, parts)) == value
    for sizes in ([10, 20, 29], [10, 20], [10, 20, 30, 1], [59], [61]):
        room = [memory(100) for _ in sizes]
        assert get(["scatter"], [[one.ptr for one in room]], [sizes])[0] < 0
    assert get(["scatter"], [places], [[10, 20]]) == [-600]
    whole = memory(60)
    assert get(["scatter"], [[whole.ptr]], [[60]], True) == [60] and bytes(whole) == value


@pytest.mark.check(29)
def test_values_of_more_than_two_gigabytes(make_store):
    # The source is one piece many times over; the target is memory of its own.
    piece, count = 64 * MIB, 33
    size = piece * count
    store = make_store(size + 512 * MIB)
    source = memory(bytes(range(256)) * (piece // 256))
    (stored,) = store.batch_put_from_multi_buffers(["huge"], [[source.ptr] * count], [[piece] * count])
    assert stored == 0 and store.get_size("huge") == size > 2**31
    with mmap.mmap(-1, size) as target:
        hold = ctypes.c_char.from_buffer(target)
        first = ctypes.addressof(hold)
        places = [first + n * piece for n in range(count)]
        got = store.batch_get_into_multi_buffers(["huge"], [places], [[piece] * count])
        assert got == [size]
        want = bytes(source)
        assert all(target[n * piece : (n + 1) * piece] == want for n in (0, 15, count - 1))
        del hold
    assert store.remove("huge", force=True) == 0


@pytest.mark.check(30)
def test_metadata_comes_first(store):
    data, head = memory(b"0123456789"), memory(b"meta!")
    assert store.put_from_with_metadata("meta", data.ptr, head.ptr, 10, 5) == 0
    assert store.get("meta") == b"meta!0123456789" and store.get_size("meta") == 15
    assert store.put_from_with_metadata("meta/none", data.ptr, head.ptr, 0, 5) == 0
    assert store.is_exist("meta/none") == 0
    wish = ReplicateConfig()
    wish.replica_num = 0
    assert store.put_from_with_metadata("meta/bad", data.ptr, head.ptr, 10, 5, wish) == -600


@pytest.mark.check(31)
def test_ranges_go_to_registered_buffers(store):
    store.put_batch(["range/a", "range/b"], [bytes(range(100)), bytes(range(100, 200))])
    one, two = memory(b"\xee" * 50), memory(b"\xee" * 50)
    ask = (
        [one.ptr, two.ptr],
        [["range/a", "range/b"], ["range/b", "range/missing"]],
        [[[0, 10], [20]], [[0, 5], [20, 30]]],
        [[[0, 50], [0]], [[90, 95], [0, 1]]],
        [[[10, 10], [10]], [[5, 10], [1, 0]]],
    )
    unknown = [[[-600, -600], [-600]], [[-600, -600], [-600, -600]]]
    assert store.get_into_ranges(*ask) == unknown
    for place in (one, two):
        assert store.register_buffer(place.ptr, place.size) == 0
    assert store.get_into_ranges(*ask) == [[[10, 10], [10]], [[5, -600], [-704, -704]]]
    assert bytes(one) == bytes([*range(10), *range(50, 60), *range(100, 110)]) + b"\xee" * 20
    assert bytes(two)[:5] == bytes(range(190, 195))
    # Past the end of the buffer; lists that do not fit; a level that is missing.
    past = store.get_into_ranges([one.ptr], [["range/a"]], [[[45, 0]]], [[[0, 0]]], [[[10, 1]]])
    assert past == [[[-600, 1]]]
    assert store.get_into_ranges([one.ptr], [["range/a"]], [[[0, 0]]], [[[0]]], [[[1, 1]]]) == [
        [[-600, -600]]
    ]
    assert store.get_into_ranges([one.ptr], [["range/a"]], [[[0], [0]]], [[[0]]], [[[1]]]) == [[[-600]]]


@pytest.mark.check(31)
@pytest.mark.parametrize(
    ("buffers", "keys", "targets", "starts", "sizes", "answer"),
    [
        (1, [["rf/a", "rf/b"]], [[[0]]], [[[0]]], [[[10]]], [[[-600], [-600]]]),
        (1, [["rf/a"]], [[[0], [0]]], [[[0], [0]]], [[[10], [10]]], [[[-600]]]),
        (2, [["rf/a"]], [[[0]]], [[[0]]], [[[10]]], [[[-600]], [[-600]]]),
        (1, [["rf/a"]], [], [[[0]]], [[[10]]], [[[-600]]]),
        (1, [["rf/a"]], [[[0]], [[0]]], [[[0]]], [[[10]]], [[[-600]]]),
        (1, [["rf/a"], ["rf/b"]], [[[0]]], [[[0]]], [[[10]]], [[[-600]]]),
        (1, [["rf/none"]], [[[0]]], [[[0]]], [[[0]]], [[[-704]]]),
        (1, [["rf/a"]], [[[0]]], [[[101]]], [[[0]]], [[[-600]]]),
        (1, [["rf/a"]], [[[0]]], [[[100]]], [[[0]]], [[[0]]]),
    ],
)
def test_ranges_have_an_answer_for_each_buffer_and_key(
    store, buffers, keys, targets, starts, sizes, answer
):
    store.put("rf/a", bytes(range(100)))
    place = memory(b"\xee" * 50)
    assert store.register_buffer(place.ptr, place.size) == 0
    assert store.get_into_ranges([place.ptr] * buffers, keys, targets, starts, sizes) == answer
    assert bytes(place) == b"\xee" * 50
