"""The paged cache says what is wrong with its arguments, and stays as it was."""

import numpy as np
import pytest

import mooncrate
from mooncrate.paged import Geometry, PagedCache
from test_paged import made, stamped


@pytest.fixture
def cache():
    return made()


def test_geometries_say_what_is_wrong():
    good = {"layers": 2, "kv_heads": 2, "head_dim": 8, "block_tokens": 4}
    for name in good:
        with pytest.raises(mooncrate.Invalid, match=name):
            Geometry(**{**good, name: 0})
        for wrong in (-1, 2**32, 2**70):
            with pytest.raises(mooncrate.Invalid, match="out of range"):
                Geometry(**{**good, name: wrong})
        with pytest.raises(TypeError):
            Geometry(**{**good, name: 1.5})
    with pytest.raises(mooncrate.Invalid, match="float16"):
        Geometry(**good, dtype="float64")
    with pytest.raises(mooncrate.Invalid, match="limit"):
        Geometry(layers=2**20, kv_heads=2**10, head_dim=2**10)
    with pytest.raises(TypeError):
        Geometry(2, 2, 8, 4)
    assert Geometry(**good, dtype=np.float16) == Geometry(**good, dtype=np.dtype("f2"))
    assert len({Geometry(**good), Geometry(**good), Geometry(**good, dtype="int8")}) == 2
    assert eval(repr(Geometry(**good))) == Geometry(**good)
    assert Geometry(**good).blocks_for(9) == 3


def test_caches_say_what_is_wrong():
    for wrong, words in [
        ({"layout": "diagonal"}, "choose of layer-block-head"),
        ({"layout": "mla"}, "NHD"),
        ({"policy": "random"}, "choose density, lru"),
        ({"blocks_max": 3}, "blocks_max"),
        ({"blocks": 0}, "at least 1"),
        ({"blocks": 2**31}, "limit"),
        ({"blocks": -1}, "out of range"),
    ]:
        with pytest.raises(mooncrate.Invalid, match=words):
            made(**wrong)
    with pytest.raises(TypeError):
        PagedCache("geometry", 4)
    cache = made(layout="Token_Major", policy="importance")
    assert (cache.layout, cache.policy, cache.model) == ("token-major", "importance", "test")


def test_scores_say_what_is_wrong(cache):
    cache.allocate("a", range(10))
    for wrong in (7, "text", None, ["a"] * 10, np.zeros(10, "i8")):
        with pytest.raises(TypeError):
            cache.keep_important("a", wrong, 5)
    for scores, keep, words in [
        ([1] * 9, 5, "10 tokens"),
        ([], 5, "0 scores"),
        ([1] * 10, 0, "at least one"),
        ([1] * 10, -1, "out of range"),
        ([1] * 9 + [float("nan")], 5, 'token 9 of "a" is NaN'),
        (np.zeros((2, 5), "f4"), 5, "one dimension"),
    ]:
        with pytest.raises(mooncrate.Invalid, match=words):
            cache.keep_important("a", scores, keep)
    with pytest.raises(mooncrate.UnknownSequence):
        cache.keep_important("b", [1], 1)
    assert cache.used_tokens("a") == 10 and cache.positions("a") == list(range(10))


def test_tokens_say_what_is_wrong(cache):
    arrays = [np.zeros(3, "f4"), np.zeros(3, "u1")]
    for wrong in (7, "text", b"bytes", bytearray(4), None, 1.5, [1.5], ["a"], *arrays):
        with pytest.raises((TypeError, mooncrate.Invalid)):
            cache.allocate("a", wrong)
    arrays = [np.array([-1]), np.array([2**32]), np.array([-1], "i4"), np.zeros((2, 2), "i8")]
    for wrong in ([-1], [2**32], [], *arrays):
        with pytest.raises(mooncrate.Invalid):
            cache.allocate("a", wrong)
    with pytest.raises(TypeError, match=r"write \[7\] for one token"):
        cache.append("a", 7)
    for wrong in (0, -1, 2**31, 2**64):
        with pytest.raises(mooncrate.Invalid):
            cache.allocate("a", count=wrong)
    with pytest.raises(mooncrate.Invalid, match="either"):
        cache.allocate("a", [1], count=1)
    for more in ({"tenant": -1}, {"tenant": 2**32}, {"rank": 256}):
        with pytest.raises(mooncrate.Invalid, match="out of range"):
            cache.allocate("a", [1], **more)
    assert cache.stats()["used_blocks"] == 0
    cache.allocate("a", [1])
    with pytest.raises(mooncrate.Invalid, match="already") as caught:
        cache.allocate("a", [1])
    assert caught.value.kind == "duplicate"


def test_a_sequence_that_is_not_there_is_a_key_error(cache):
    arrays = [np.zeros(4, "i4") for _ in range(3)]
    for call in (
        lambda: cache.append("nobody", [1]),
        lambda: cache.publish("nobody", 1),
        lambda: cache.fork("nobody", "b"),
        lambda: cache.free("nobody"),
        lambda: cache.used_tokens("nobody"),
        lambda: cache.token_place("nobody"),
        lambda: cache.block_table("nobody"),
        lambda: cache.block_table("nobody", arrays[0]),
        lambda: cache.fill_block_tables(["nobody"], np.zeros((1, 4), "i4")),
        lambda: cache.slot_mapping(["nobody"], np.zeros(4, "i8")),
        lambda: cache.csr(["nobody"], np.zeros(5, "i4"), *arrays[1:]),
        lambda: cache.view("nobody", 0),
        lambda: cache.tokens_view("nobody", 0),
        lambda: cache.read_tokens("nobody", 0),
        lambda: cache.write_tokens("nobody", 0, 0, stamped(1), stamped(1)),
    ):
        with pytest.raises(KeyError) as caught:
            call()
        assert isinstance(caught.value, mooncrate.UnknownSequence)
        assert str(caught.value).startswith('there is no sequence "nobody"')


def test_arrays_and_layers_say_what_is_wrong(cache):
    cache.allocate("a", count=8)
    frozen = np.zeros(4, "i4")
    frozen.flags.writeable = False
    for wrong in (np.zeros(4, "i8"), np.zeros(4, "f4"), [0] * 4, 7, "text", frozen):
        with pytest.raises(TypeError):
            cache.block_table("a", wrong)
    for wrong in (np.zeros((2, 2), "i4"), np.zeros(8, "i4")[::2], np.zeros(0, "i4")):
        with pytest.raises(mooncrate.Invalid):
            cache.block_table("a", wrong)
    for wrong in ("a", 7, [7], None):
        with pytest.raises(TypeError):
            cache.fill_block_tables(wrong, np.zeros((1, 4), "i4"))
    slots = np.zeros(9, "i8")
    for wrong in ([7], [("a", 1)], [("a", "x", 2)]):
        with pytest.raises(TypeError):
            cache.slot_mapping(wrong, slots)
    for wrong in ([("a", 2, 1)], [("a", -1, 2)], [("a", 0, 9)]):
        with pytest.raises(mooncrate.Invalid):
            cache.slot_mapping(wrong, slots)
    for layer in (2, -1, 2**32):
        with pytest.raises(mooncrate.Invalid):
            cache.view("a", layer)
        with pytest.raises(mooncrate.Invalid):
            cache.pages(layer)
    with pytest.raises(mooncrate.Invalid, match="neither"):
        cache.view("a", 0, "q")
    with pytest.raises(mooncrate.Invalid, match="neither"):
        cache.pages(0, "dhn")
    good = stamped(2)
    for k, v in [(good, None), (good, stamped(1)), (good[0], good), (good.astype("f2"), good)]:
        with pytest.raises(mooncrate.Invalid):
            cache.write_tokens("a", 0, 0, k, v)
    for start in (7, 8, -1, 2**63 - 1):
        with pytest.raises(mooncrate.Invalid):
            cache.write_tokens("a", 0, start, good, good)
    for start, stop in [(0, 9), (5, 4), (-1, 2)]:
        with pytest.raises(mooncrate.Invalid):
            cache.read_tokens("a", 0, start, stop)
    assert not cache.read_tokens("a", 0)[0].any()
