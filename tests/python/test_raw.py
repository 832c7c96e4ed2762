"""The raw door: values in pieces at addresses."""

import numpy as np
import pytest

import mooncrate
from mooncrate._native import Ranges, Raw


UPSERT = {"replicas": 1, "upsert": True}


def places(*arrays):
    """The addresses and the sizes of arrays."""
    return [array.ctypes.data for array in arrays], [array.nbytes for array in arrays]


@pytest.fixture
def pieces():
    random = np.random.default_rng(3)
    return [random.integers(0, 256, length, np.uint8) for length in (1000, 1, 0, 70_000)]


def test_pieces_become_one_value_and_are_cut_again(any_store, pieces):
    addresses, sizes = places(*pieces)
    keys, raw = ["raw/a", "raw/b"], Raw(any_store)
    assert raw.put_at(keys, [addresses, addresses[:1]], [sizes, sizes[:1]], UPSERT) == [
        True, True,
    ]
    whole = b"".join(piece.tobytes() for piece in pieces)
    assert any_store.get_batch(keys) == [whole, pieces[0].tobytes()]
    targets = [np.zeros_like(piece) for piece in pieces]
    into, sizes = places(*targets)
    asked = (["raw/a", "raw/missing"], [into, into[:1]], [sizes, sizes[:1]])
    assert raw.get_at(*asked) == [len(whole), None]
    assert raw.get_at(*asked, exact=True) == [len(whole), None]
    assert all((target == piece).all() for target, piece in zip(targets, pieces, strict=True))


def test_one_piece_each_is_read_in_place(any_store):
    values = {f"raw/one/{number}": bytes([number]) * (number + 1) for number in range(20)}
    any_store.put_batch(values)
    targets = np.full((21, 64), 255, np.uint8)
    addresses = [[row.ctypes.data] for row in targets]
    sizes = [[64]] * 20 + [[64]]
    read = Raw(any_store).get_at([*values, "raw/one/missing"], addresses, sizes)
    assert read == [*range(1, 21), None]
    for number, row in enumerate(targets[:20]):
        assert row.tobytes() == bytes([number]) * (number + 1) + b"\xff" * (63 - number)


def test_pieces_that_do_not_fit(any_store):
    any_store.put("raw/fit", bytes(100), upsert=True)
    target = np.zeros(200, np.uint8)
    first = target.ctypes.data

    def get(addresses, sizes, **more):
        (result,) = Raw(any_store).get_at(["raw/fit"], [addresses], [sizes], **more)
        return result

    for sizes in ([99], [50, 49]):
        addresses = [first, first + 50][: len(sizes)]
        assert isinstance(get(addresses, sizes), mooncrate.TooLarge)
    for sizes in ([101], [50, 51]):
        addresses = [first, first + 50][: len(sizes)]
        assert get(addresses, sizes) == 100
        assert isinstance(get(addresses, sizes, exact=True), mooncrate.TooLarge)


def test_ranges_go_to_registered_memory(any_store):
    value = bytes(range(250)) * 4
    any_store.put("raw/ranges", value, upsert=True)
    target = np.zeros(30, np.uint8)
    first, known = target.ctypes.data, Ranges()
    assert known.insert(first, 30, read=True, write=True)
    get = Raw(any_store).get_nested
    keys, codes = [["raw/ranges", "raw/missing"], ["raw/ranges"]], (-4, -6)
    found, failed = get(
        [first, first + 20],
        keys,
        [[[0, 10, 0, 25], [0]], [[0, 5]]],
        [[[5, 995, 0, 0], [0]], [[500, 0]]],
        [[[10, 10, 0, 10], [10]], [[5, 6]]],
        known,
        codes,
    )
    # Past the end of the value: an error. Past the end of the memory: no sense.
    assert found == [[[10, -6, 0, -6], [-4]], [[5, -6]]]
    ((buffer, key, ranges, error),) = failed
    assert (buffer, key, ranges) == (0, 0, [1]) and isinstance(error, mooncrate.Invalid)
    assert target[:10].tobytes() == value[5:15] and target[20:25].tobytes() == value[500:505]
    # Rows that are missing or of other lengths, numbers that are none, memory that nobody knows.
    assert get([first], keys, [[[0], [0, 0]]], [[[0]]], [[[1], [1, 1]]], known, codes) == ([[[-6], [-6]]], [])
    assert get([first], keys[1:], [[[0, 0]]], [[[0]]], [[[1, 1]]], known, codes) == ([[[-6, -6]]], [])
    one = [[["raw/ranges"]], [[[0]]], [[[0]]], [[[1]]]]
    assert get([], *one, known, codes) == ([], [])
    assert get([first], *one, Ranges(), codes) == ([[[-6]]], [])
    assert get([first - 1], *one, known, codes) == ([[[-6]]], [])
    assert get([2**70], *one, known, codes) == ([[[-6]]], [])
    for at in (1, 2, 3):
        for number in (-1, 2**64 - 1, 2**80):
            bad = [[[[number]]] if n == at else column for n, column in enumerate(one)]
            found, failed = get([first], *bad, known, codes)
            assert found == [[[-6]]] and len(failed) == (at == 2 and number == 2**64 - 1)
    with pytest.raises(TypeError):
        get([first], [["raw/ranges"]], [[["0"]]], [[[0]]], [[[1]]], known, codes)


def test_what_can_be_checked_is_checked(store):
    store.put("k", b"value")
    raw = Raw(store)
    for call in (lambda *some: raw.put_at(*some, UPSERT), raw.get_at):
        with pytest.raises(mooncrate.Invalid, match="2 keys"):
            call(["k", "l"], [[1]], [[1]])
        for addresses, sizes, words in [
            ([0], [5], "address 0"),
            ([8, 16], [5], "as many sizes"),
            ([2**63], [2**63], "end of memory"),
        ]:
            (result,) = call(["k"], [addresses], [sizes])
            assert isinstance(result, mooncrate.Invalid) and words in str(result)
        with pytest.raises(OverflowError):
            call(["k"], [[8]], [[-1]])
        with pytest.raises(TypeError):
            call(["k"], [["8"]], [[1]])
