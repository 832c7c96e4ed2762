"""The paged cache: sequences, sharing, tables in place, views, threads."""

import gc
import pathlib
import subprocess
import sys
import threading

import numpy as np
import pytest

import mooncrate
from conftest import PATIENCE, python
from mooncrate.paged import Admitted, Geometry, Kept, PagedCache, Shard, TokenPlace

EXAMPLE = pathlib.Path(__file__).parent.parent.parent / "examples/python/paged_scheduler.py"
TOKENS, HEADS, DIM = 4, 2, 8
LAYOUTS = ["nhd", "hnd", "token-major", "head-major", "block-first", "layer-block-head"]


def geometry(dtype="float32", layers=2):
    return Geometry(
        layers=layers, kv_heads=HEADS, head_dim=DIM, block_tokens=TOKENS, dtype=dtype
    )


def made(blocks=16, **more):
    return PagedCache(geometry(), blocks, model="test", **more)


@pytest.fixture
def cache():
    return made()


def stamped(tokens, start=0, half=0):
    """KV whose every element says which one it is."""
    shape = (tokens, HEADS, DIM)
    return (np.arange(np.prod(shape)).reshape(shape) + 1000 * start + 100_000 * half).astype("f4")


# Sequences


def test_a_prefix_is_found_again_and_never_all_of_a_prompt(cache):
    assert cache.allocate("a", range(12)) == Admitted(blocks=3, cached_tokens=0)
    k, v = stamped(12), stamped(12, half=1)
    for layer in range(2):
        cache.write_tokens("a", layer, 0, k + layer, v + layer)
    assert cache.publish("a", 12) == 3
    assert cache.allocate("b", np.arange(12)).cached_tokens == 8
    assert cache.allocate("c", np.arange(14, dtype="i4")).cached_tokens == 12
    shared = cache.block_table("a")[:2]
    assert cache.block_table("b")[:2] == shared and cache.block_table("c")[:2] == shared
    assert cache.block_table("b")[2] not in cache.block_table("a")
    for layer in range(2):
        found_k, found_v = cache.read_tokens("b", layer, 0, 8)
        assert (found_k == k[:8] + layer).all() and (found_v == v[:8] + layer).all()
    cache.free("a")
    assert "a" not in cache and "b" in cache
    assert cache.allocate("d", list(range(12))).cached_tokens == 8


@pytest.mark.parametrize(
    "other",
    [
        {"tenant": 1},
        {"adapter": "lora"},
        {"cache_salt": "salt"},
        {"cache_salt": b"\x00"},
        {"extra_keys": [(0, "image")]},
    ],
)
def test_others_share_nothing(cache, other):
    cache.allocate("a", range(12))
    cache.write_tokens("a", 0, 0, stamped(12), stamped(12))
    cache.publish("a", 12)
    assert cache.allocate("b", range(12), **other).cached_tokens == 0
    assert cache.allocate("c", range(12)).cached_tokens == 8
    assert not set(cache.block_table("a")) & set(cache.block_table("b"))


def test_images_with_equal_placeholders_share_what_comes_before_them(cache):
    prompt = [1, 2, 3, 4, 5, 7, 7, 7, 7, 7, 7, 9]
    cache.allocate("cat", prompt, extra_keys=[(5, "cat")])
    cache.publish("cat", 12)
    dog = cache.allocate("dog", prompt, extra_keys=((5, b"dog"),))
    assert dog.cached_tokens == 4, "the block before the image"
    assert cache.allocate("cat 2", prompt, extra_keys=[(5, b"cat")]).cached_tokens == 8
    assert cache.allocate("none", prompt).cached_tokens == 4
    # A later turn has images, too.
    cache.append("dog", [7, 7, 7, 7, 1], extra_keys=[(12, "bird")])
    cache.publish("dog", 17)
    text = [*prompt, 7, 7, 7, 7, 1]
    both = [(12, "bird"), (5, "dog")]
    for n, keys in enumerate([both, [(5, "dog")]]):
        found = cache.allocate(f"turn {n}", text, extra_keys=keys).cached_tokens
        assert found == (16 if keys == both else 12)
        cache.free(f"turn {n}")
    for wrong in ([(12, "late")], [(0, "x" * 1025)], [(-1, "")]):
        with pytest.raises(mooncrate.Invalid):
            cache.allocate("wrong", prompt, extra_keys=wrong)
    for wrong in (["image"], [(1, 2)], [(1, "a", "b")], "ab", 7):
        with pytest.raises(TypeError):
            cache.allocate("wrong", prompt, extra_keys=wrong)


def test_keys_of_blocks_say_all_that_changes_their_bytes():
    shards = [Shard(), Shard(0, 2), Shard(1, 2), Shard(stage=1, stages=2), Shard(first_layer=2)]
    ways = [
        {},
        {"tenant": 1},
        {"adapter": "lora"},
        {"cache_salt": "salt"},
        {"extra_keys": [(3, "image")]},
    ]
    seen = set()
    for model in ("one", "two"):
        for shard in shards:
            cache = PagedCache(geometry(), 4, model=model, shard=shard)
            assert cache.shard == shard
            for way in ways:
                keys = cache.block_keys(range(14), **way)
                assert len(keys) == 3 and all(key.startswith(b"paged/2/b") for key in keys)
                assert keys == cache.block_keys(np.arange(14), **way)
                assert not seen & set(keys)
                seen |= set(keys)
    assert made().shard is None
    with pytest.raises(mooncrate.Invalid, match=r"shard=Shard\(\)"):
        made().block_keys(range(14))
    for wrong in (Shard(2, 2), Shard(stage=1)):
        with pytest.raises(mooncrate.Invalid):
            made(shard=wrong)


def test_a_tenant_never_sees_the_bytes_of_another():
    cache = made(blocks=2)
    cache.allocate("a", count=8, tenant=1)
    cache.write_tokens("a", 1, 0, stamped(8) + 1, stamped(8) + 1)
    cache.free("a")
    cache.allocate("b", count=8, tenant=2)
    k, v = cache.read_tokens("b", 1)
    assert not k.any() and not v.any()


def test_without_prefix_caching_nothing_is_shared():
    cache = made(prefix_caching=False)
    cache.allocate("a", range(12))
    cache.publish("a", 12)
    assert cache.allocate("b", range(12)).cached_tokens == 0


def test_append_takes_a_block_at_each_multiple(cache):
    cache.allocate("a", count=3)
    assert (cache.append("a", [1]), cache.used_tokens("a")) == (0, 4)
    assert cache.token_place("a") == TokenPlace(0, 3)
    assert cache.append("a", np.array([5, 6], "u4")) == 1
    assert cache.token_place("a") == TokenPlace(logical_block=1, slot=1)
    assert (cache.append("a", count=11), cache.used_tokens("a")) == (3, 17)
    assert cache.append("a", []) == 0
    assert cache.stats()["used_blocks"] == 5


def test_generated_tokens_are_found_by_the_next_turn(cache):
    cache.allocate("turn 1", range(6))
    cache.append("turn 1", [6, 7, 8])
    assert cache.publish("turn 1", 9) == 2
    cache.free("turn 1")
    assert cache.allocate("turn 2", range(20)).cached_tokens == 8


def test_a_fork_shares_what_is_published_and_copies_the_rest(cache):
    cache.allocate("a", range(10))
    cache.write_tokens("a", 0, 0, stamped(10), stamped(10, half=1))
    cache.publish("a", 10)
    cache.fork("a", "b")
    a, b = cache.block_table("a"), cache.block_table("b")
    assert a[:2] == b[:2] and a[2] != b[2]
    cache.write_tokens("b", 0, 9, stamped(1) - 7, stamped(1) - 7)
    assert (cache.read_tokens("a", 0)[0] == stamped(10)).all(), "the parent is as it was"
    assert (cache.read_tokens("b", 0, 8, 9)[0] == stamped(10)[8:9]).all()
    assert sorted(cache.block_map().replace(".", "")) == ["#", "#", "2", "2"]
    cache.free("a")
    assert cache.used_tokens("b") == 10
    with pytest.raises(mooncrate.Invalid, match="already"):
        cache.fork("b", "b")


@pytest.mark.parametrize("kind", [list, np.float16, np.float32, np.float64])
def test_the_least_important_tokens_are_dropped(cache, kind):
    cache.allocate("a", range(10))
    cache.write_tokens("a", 1, 0, stamped(10), stamped(10, half=1))
    cache.publish("a", 10)
    cache.fork("a", "b")
    scores = [9, 9, 9, 9, 1, 0, 0, float("inf"), 0, 1]
    scores = scores if kind is list else np.array(scores, kind)
    assert cache.keep_important("a", scores, 7) == Kept(tokens=7, dropped=3, blocks=2)
    left = [0, 1, 2, 3, 4, 7, 9]
    assert cache.positions("a") == left and cache.next_position("a") == 10
    k, v = cache.read_tokens("a", 1)
    assert (k == stamped(10)[left]).all() and (v == stamped(10, half=1)[left]).all()
    assert cache.block_table("a")[0] == cache.block_table("b")[0]
    assert (cache.read_tokens("b", 1)[0] == stamped(10)).all(), "the fork is as it was"
    cache.append("a", [10])
    assert cache.positions("a")[-1] == 10 and cache.positions("b") == list(range(10))


def test_eviction_takes_what_was_not_used_for_the_longest_time():
    cache = made(blocks=6)
    for name, first in [("old", 0), ("new", 100)]:
        cache.allocate(name, range(first, first + 9))
        cache.publish(name, 8)
        cache.free(name)
    assert cache.stats()["cached_blocks"] == 4
    assert cache.block_map().count("c") == 4
    cache.allocate("big", count=16)
    stats = cache.stats()
    assert (stats["evicted_blocks"], stats["cached_blocks"]) == (2, 2)
    cache.free("big")
    assert cache.allocate("new again", range(100, 109)).cached_tokens == 8
    assert cache.allocate("old again", range(9)).cached_tokens == 0


def test_a_full_cache_says_so_and_stays_as_it_was():
    cache = made(blocks=4)
    cache.allocate("a", count=12)
    before = cache.stats()
    for call in (
        lambda: cache.allocate("b", count=8),
        lambda: cache.fork("a", "b"),
    ):
        with pytest.raises(mooncrate.Full, match="free a sequence") as caught:
            call()
        error = caught.value
        assert isinstance(error, mooncrate.Busy)
        assert (error.advice, error.kind) == ("retry", "no room") and error.retry_after is not None
    assert cache.stats() == before and cache.used_tokens("a") == 12
    # Four blocks of four tokens: neither can ever fit.
    for call in (lambda: cache.allocate("b", count=17), lambda: cache.append("a", count=9)):
        with pytest.raises(mooncrate.TooLarge, match="resize") as caught:
            call()
        assert caught.value.advice == "give up"
    assert cache.stats() == before and cache.used_tokens("a") == 12
    cache.free("a")
    cache.allocate("b", count=8)


def test_resize_keeps_sequences_and_refuses_to_cut_them():
    cache = made(blocks=2, blocks_max=8)
    cache.allocate("a", count=8)
    cache.write_tokens("a", 0, 0, stamped(8), stamped(8))
    cache.resize(8)
    cache.append("a", count=24)
    assert cache.stats()["free_blocks"] == 0
    with pytest.raises(mooncrate.Busy, match="in use"):
        cache.resize(2)
    for wrong in (0, 9):
        with pytest.raises(mooncrate.Invalid):
            cache.resize(wrong)
    assert (cache.read_tokens("a", 0, 0, 8)[0] == stamped(8)).all()
    cache.free("a")
    cache.resize(2)
    assert cache.stats()["total_blocks"] == 2 and len(cache.block_map()) == 2


def test_stats_dump_and_map_agree(cache):
    assert cache.block_map() == "." * 16
    cache.allocate("a", range(10))
    cache.publish("a", 10)
    cache.allocate("b", range(10))
    assert sorted(cache.block_map().replace(".", "")) == ["#", "#", "2", "2"]
    stats = cache.stats()
    assert (stats["sequences"], stats["used_blocks"], stats["free_blocks"]) == (2, 4, 12)
    assert stats["block_bytes"] == cache.geometry.block_bytes == 2 * 2 * TOKENS * HEADS * DIM * 4
    assert "a: 10/12 tokens" in cache.dump() and "KV cache of test" in cache.dump()
    assert "4 of 16 blocks used" in repr(cache)


def test_metrics_are_what_stats_says(cache):
    cache.allocate("a", range(10))
    cache.publish("a", 10)
    cache.allocate("b", range(10))
    cache.fork("a", "c")
    cache.keep_important("b", [1] * 10, 9)
    with pytest.raises(mooncrate.Full):
        cache.allocate("d", count=60)
    stats = cache.stats()
    assert (stats["hit_tokens"], stats["miss_tokens"]) == (8, 12)
    assert (stats["hit_blocks"], stats["miss_blocks"]) == (2, 4)
    assert (stats["forks"], stats["copied_blocks"], stats["dropped_tokens"]) == (1, 1, 1)
    lines = cache.metrics().splitlines()
    assert lines[-1] == "# EOF"
    shown = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    shown = {name.removeprefix("mooncrate_paged_").removesuffix("_total"): float(n) for name, n in shown.items()}
    assert shown == stats


# Tables


def test_tables_are_filled_in_place(cache):
    cache.allocate("a", count=9)
    cache.allocate("b", count=4)
    a, b = cache.block_table("a"), cache.block_table("b")
    row = np.full(5, 77, "i4")
    assert cache.block_table("a", row) == 3
    assert row.tolist() == [*a, -1, -1]
    table = np.full((3, 4), 77, "i4")
    address = table.ctypes.data
    assert cache.fill_block_tables(["b", "a"], table, pad=-9) is None
    assert table.tolist() == [[*b, -9, -9, -9], [*a, -9], [-9] * 4]
    assert table.ctypes.data == address
    slots = np.full(13, 77, "i8")
    assert cache.slot_mapping([("a", 3, 6), "b", ("b", 2, 2)], slots) == 7
    wanted = [a[0] * 4 + 3, a[1] * 4, a[1] * 4 + 1, *(b[0] * 4 + slot for slot in range(4))]
    assert slots.tolist() == wanted + [-1] * 6


def test_a_table_that_is_kept_writes_what_is_new():
    cache = made(blocks=64)
    for name in "ab":
        cache.allocate(name, count=9)
    out = np.full((3, 8), 77, "i4")
    tables = cache.block_tables(out)

    def wanted(*names):
        rows = [cache.block_table(name) for name in names]
        return [row + [-1] * (8 - len(row)) for row in rows] + [[-1] * 8] * (3 - len(names))

    assert tables.update(["a", "b"]) == 24, "what was there is not known"
    assert out.tolist() == wanted("a", "b")
    assert tables.update(["a", "b"]) == 0
    cache.append("b", count=4)
    assert tables.update(["a", "b"]) == 1
    assert out.tolist() == wanted("a", "b")
    # Another one under the same id, a shorter one, one that lost tokens, and rows that change places.
    cache.free("a")
    cache.allocate("c", count=1)
    cache.allocate("a", count=20)
    assert tables.update(["a", "b"]) == 5
    assert out.tolist() == wanted("a", "b")
    assert tables.update(["c", "b"]) == 5
    assert out.tolist() == wanted("c", "b")
    cache.keep_important("b", [1.0] * 13, 5)
    assert tables.update(["c", "b"]) == 4
    assert out.tolist() == wanted("c", "b")
    assert tables.update(["b", "a", "c"]) == 2 + 5 + 1
    assert out.tolist() == wanted("b", "a", "c")
    assert tables.update([]) == 8
    assert out.tolist() == wanted()
    tables.update(["a"])
    # What cannot be changes nothing, and is not remembered.
    before = out.copy()
    cache.append("a", count=20)
    for wrong, error in [
        (["a"], mooncrate.Invalid),
        (["b", "nobody"], mooncrate.UnknownSequence),
        (["b"] * 4, mooncrate.Invalid),
    ]:
        with pytest.raises(error):
            tables.update(wrong)
        assert (out == before).all()
    cache.free("a")
    assert tables.update(["b"]) == 5
    assert out.tolist() == wanted("b")


def test_the_tables_of_flashinfer(cache):
    cache.allocate("a", count=9)
    cache.allocate("b", count=4)
    a, b = cache.block_table("a"), cache.block_table("b")
    indptr, indices, last = (np.full(size, 77, "i4") for size in (4, 8, 3))
    assert cache.csr(["a", "b"], indptr, indices, last) == 4
    assert indptr.tolist() == [0, 3, 4, 4], "the third place is an empty sequence"
    assert indices[:4].tolist() == [*a, *b] and indices[4:].tolist() == [77] * 4
    assert last[:2].tolist() == [1, 4]


def test_tables_that_do_not_fit_leave_the_arrays_alone(cache):
    cache.allocate("a", count=9)
    cache.allocate("b", count=4)
    row, table, slots = np.full(2, 77, "i4"), np.full((1, 4), 77, "i4"), np.full(3, 77, "i8")
    three = [np.full(size, 77, "i4") for size in (3, 2, 2)]
    short = [np.full(size, 77, "i4") for size in (2, 9, 2)]
    for call in (
        lambda: cache.block_table("a", row),
        lambda: cache.fill_block_tables(["a", "b"], table),
        lambda: cache.slot_mapping(["b"], slots),
        lambda: cache.slot_mapping([("b", 3, 5)], slots),
        lambda: cache.csr(["a"], *three),
        lambda: cache.csr(["a"], *short),
    ):
        with pytest.raises(mooncrate.Invalid):
            call()
    with pytest.raises(mooncrate.UnknownSequence):
        cache.fill_block_tables(["b", "nobody"], table)
    for array in (row, table, slots, *three, *short):
        assert (array == 77).all()


def test_one_array_for_two_tables_is_a_mess_but_no_harm(cache):
    cache.allocate("a", count=9)
    both = np.zeros(5, "i4")
    assert cache.csr(["a"], both, both, np.zeros(1, "i4")) == 3


# Views


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_written_through_arrays_is_read_as_tokens(layout):
    cache = made(layout=layout)
    cache.allocate("a", count=10, contiguous=True)
    for half, name in enumerate("kv"):
        blocks = cache.view("a", 1, name).numpy()
        assert blocks.shape == (HEADS, 3, TOKENS, DIM) and blocks.flags.writeable
        wanted = np.zeros((12, HEADS, DIM), "f4")
        wanted[:10] = stamped(10, half=half)
        # From [tokens, heads, dim] to [heads, blocks, tokens of a block, dim].
        blocks[:] = wanted.reshape(3, TOKENS, HEADS, DIM).transpose(2, 0, 1, 3)
    k, v = cache.read_tokens("a", 1)
    assert (k == stamped(10)).all() and (v == stamped(10, half=1)).all()
    assert not cache.read_tokens("a", 0)[0].any(), "the other layer"
    pages = cache.pages(1, "nhd").numpy()
    assert pages.shape == (16, 2, TOKENS, HEADS, DIM)
    ids = cache.block_table("a")
    assert (pages[ids, 1].reshape(12, HEADS, DIM)[:10] == stamped(10, half=1)).all()
    heads_first = cache.pages(1, "hnd").numpy()
    assert (heads_first == pages.transpose(0, 1, 3, 2, 4)).all()
    if layout in ("token-major", "head-major"):
        tokens = cache.tokens_view("a", 1, "v").numpy()
        assert tokens.shape == (HEADS, 10, DIM)
        assert (tokens.transpose(1, 0, 2) == stamped(10, half=1)).all()
    else:
        with pytest.raises(mooncrate.Invalid, match="head-major"):
            cache.tokens_view("a", 1, "v")


def test_the_arrays_of_a_view_are_the_memory_itself(cache):
    cache.allocate("a", count=8, contiguous=True)
    view = cache.view("a", 0, "k")
    other = cache.view("a", 0, "k")
    arrays = [view.numpy(), np.asarray(view), np.from_dlpack(view), other.numpy()]
    assert {array.ctypes.data for array in arrays} == {view.data_ptr}
    assert all(array.strides == tuple(4 * step for step in view.strides) for array in arrays)
    arrays[0][1, 1, 2, 3] = 42
    assert all(array[1, 1, 2, 3] == 42 for array in arrays)
    assert cache.read_tokens("a", 0)[0][6, 1, 3] == 42
    copy = np.from_dlpack(view, copy=True)
    assert (copy == arrays[0]).all() and copy.ctypes.data != view.data_ptr
    assert view.__dlpack_device__() == (1, 0) and "float32 [2, 2, 4, 8]" in repr(view)


def test_a_cache_is_written_from_its_own_memory():
    """The array lies in one run of memory, so nothing copies it on the way, and source and target overlap."""
    cache = made(layout="token-major")
    cache.allocate("a", count=12, contiguous=True)
    cache.write_tokens("a", 0, 0, stamped(12), stamped(12))
    k = cache.tokens_view("a", 0, "k").numpy().transpose(1, 0, 2)
    assert k.flags.c_contiguous
    cache.write_tokens("a", 0, 1, k[:11], k[:11])
    assert (cache.read_tokens("a", 0)[0][1:] == stamped(12)[:11]).all()
    cache._read_tokens("a", 0, "k", 1, k[:11])
    assert (k[:11] == stamped(12)[:11]).all()


def test_torch_shows_the_memory_itself():
    torch = pytest.importorskip(
        "torch", reason="torch is not installed; ./dev test --torch installs it"
    )
    names = ["float32", "float16", "bfloat16", "int8"]
    for dtype in names:
        cache = PagedCache(geometry(dtype), 8)
        cache.allocate("a", count=8, contiguous=True)
        view = cache.view("a", 0, "v")
        tensor = torch.from_dlpack(view)
        assert tensor.data_ptr() == view.data_ptr and tensor.stride() == view.strides
        assert tensor.dtype == getattr(torch, dtype) and tuple(tensor.shape) == view.shape
        tensor.fill_(3)
        assert (torch.from_dlpack(cache.pages(0))[cache.block_table("a"), 1] == 3).all()
        k = torch.arange(2 * HEADS * DIM).reshape(2, HEADS, DIM).to(getattr(torch, dtype))
        cache.write_tokens("a", 1, 3, k, k)
        bits = cache.read_tokens("a", 1, 3, 5, raw=True)[0]
        raw = k.view(torch.uint8).numpy().reshape(-1)
        assert bits.reshape(-1).view("u1").tolist() == raw.tolist()
    out = torch.full((2, 3), 7, dtype=torch.int32)
    cache.fill_block_tables(["a"], out)
    assert out.tolist() == [[*cache.block_table("a"), -1], [-1, -1, -1]]
    cache.publish("a", 8)
    tensor = torch.from_dlpack(cache.view("a", 0, "k"))
    assert tensor.data_ptr() == cache.view("a", 0, "k").data_ptr


def test_mlx_reads_the_memory():
    """It takes the values; that it copies them is its own choice."""
    mx = pytest.importorskip("mlx.core", reason="mlx is not installed: pip install 'mlx[cpu]'")
    for dtype in ("float32", "float16", "bfloat16", "int8"):
        cache = PagedCache(geometry(dtype), 8)
        cache.allocate("a", count=8, contiguous=True)
        view = cache.view("a", 1, "v")
        bits = view.numpy(raw=True)
        bits[:] = np.arange(bits.size).reshape(bits.shape) % 100
        array = mx.from_dlpack(view)
        assert (array.shape, array.dtype) == (view.shape, getattr(mx, dtype))
        shown = np.array(array.view(getattr(mx, bits.dtype.name)))
        assert (shown == bits).all()


def test_published_blocks_are_shown_read_only(cache):
    cache.allocate("a", range(10), contiguous=True)
    early = cache.view("a", 0, "k")
    assert not early.readonly
    cache.publish("a", 10)
    view = cache.view("a", 0, "k")
    assert view.readonly and early.readonly, "what is exported from now on"
    for array in (view.numpy(), np.from_dlpack(view), np.asarray(view)):
        assert not array.flags.writeable
    assert np.from_dlpack(view, copy=True).flags.writeable
    with pytest.raises(BufferError, match="copy=True"):
        view.__dlpack__()
    own = cache.view("a", 0, "k", own=True)
    assert own.shape == (HEADS, 1, TOKENS, DIM) and not own.readonly
    own.numpy()[:, 0, 1] = 5
    assert (cache.read_tokens("a", 0, 9, 10)[0] == 5).all()
    own.__dlpack__()  # the older form is enough where nothing has to be said
    assert cache.tokens_view("a", 0, "v", own=True).shape == (HEADS, 2, DIM)
    with pytest.raises(mooncrate.Invalid, match="write from token 8"):
        cache.write_tokens("a", 0, 7, stamped(1), stamped(1))
    cache.append("a", count=2)
    cache.publish("a", 12)
    with pytest.raises(mooncrate.Invalid, match="append tokens"):
        cache.view("a", 0, "k", own=True)


def test_an_array_keeps_the_blocks_of_its_sequence():
    cache = made(blocks=4)
    cache.allocate("a", count=8, contiguous=True)
    array = cache.view("a", 0, "k").numpy()
    array[:] = 9
    cache.free("a")
    assert "a" not in cache and cache.stats()["used_blocks"] == 2
    with pytest.raises(mooncrate.Full):
        cache.allocate("b", count=12)
    cache.allocate("b", count=8, contiguous=True)
    cache.write_tokens("b", 0, 0, stamped(8), stamped(8))
    assert (array == 9).all()
    part = array[1:, :, 2]
    del array
    gc.collect()
    assert cache.stats()["used_blocks"] == 4, "a part of an array is an array"
    del part
    gc.collect()
    assert cache.stats()["used_blocks"] == 2
    tensor = np.from_dlpack(cache.view("b", 0, "k"))
    cache.free("b")
    assert cache.stats()["used_blocks"] == 2
    del tensor
    gc.collect()
    assert cache.stats()["used_blocks"] == 0


def test_arrays_outlive_the_cache():
    cache = made()
    cache.allocate("a", count=8, contiguous=True)
    arrays = [cache.view("a", 0, "k").numpy(), np.from_dlpack(cache.pages(1))]
    cache.write_tokens("a", 0, 0, stamped(8), stamped(8))
    del cache
    gc.collect()
    assert (arrays[0].transpose(1, 2, 0, 3).reshape(8, HEADS, DIM) == stamped(8)).all()
    arrays[1][:] = 1


def test_capsules_that_nobody_takes_keep_nothing(cache):
    cache.allocate("a", count=8, contiguous=True)
    view = cache.view("a", 0, "k")
    for _ in range(1000):
        view.__dlpack__()
        view.__dlpack__(max_version=(1, 0))
        view.__dlpack__(copy=True)
    del view
    cache.free("a")
    assert cache.stats()["used_blocks"] == 0


def test_blocks_that_lie_anywhere_have_no_view_but_a_table():
    cache = made(blocks=4)
    owner = {}
    for name in "abcd":
        cache.allocate(name, count=4)
        (block,) = cache.block_table(name)
        owner[block] = name
    # Of four blocks, the first and the third are free: no two in a row.
    cache.free(owner[0])
    cache.free(owner[2])
    cache.allocate("paged", count=8, contiguous=True)
    assert sorted(cache.block_table("paged")) == [0, 2]
    for call in (cache.view, cache.tokens_view):
        with pytest.raises(mooncrate.Invalid, match="do not lie in a row") as caught:
            call("paged", 0, "k")
        assert caught.value.kind == "paged"
    cache.write_tokens("paged", 0, 0, stamped(8), stamped(8))
    assert (cache.read_tokens("paged", 0)[0] == stamped(8)).all()


def test_an_mla_cache_has_one_vector_and_no_v():
    shape = Geometry.mla(layers=2, latent_dim=12, rope_dim=4, block_tokens=4, dtype="float16")
    cache = PagedCache(shape, 8)
    assert cache.layout == "mla" and (shape.kv_heads, shape.head_dim, shape.is_mla) == (1, 16, True)
    cache.allocate("a", count=6, contiguous=True)
    latent = np.arange(6 * 16).reshape(6, 16).astype("f2")
    cache.write_tokens("a", 1, 0, latent)
    k, v = cache.read_tokens("a", 1)
    assert v is None and (k[:, 0] == latent).all()
    pages = cache.pages(1).numpy()
    assert pages.shape == (8, 4, 16)
    assert (pages[cache.block_table("a")].reshape(8, 16)[:6] == latent).all()
    assert cache.tokens_view("a", 1).shape == (1, 6, 16)
    with pytest.raises(mooncrate.Invalid):
        cache.view("a", 1, "v")
    with pytest.raises(mooncrate.Invalid, match="leave it out"):
        cache.write_tokens("a", 1, 0, latent, latent)


@pytest.mark.parametrize(("dtype", "bits"), [("bfloat16", "u2"), ("float8_e4m3fn", "u1")])
def test_types_that_numpy_has_not(dtype, bits):
    cache = PagedCache(geometry(dtype), 8)
    cache.allocate("a", count=4)
    view = cache.view("a", 0, "k")
    raw = view.numpy(raw=True)
    assert raw.dtype == np.dtype(bits) and raw.ctypes.data == view.data_ptr
    raw[:] = 7
    read = cache.read_tokens("a", 0, raw=True)[0]
    assert read.dtype == np.dtype(bits) and (read == 7).all()
    cache.write_tokens("a", 0, 1, read[:1] + 1, read[:1] + 1)
    assert raw[0, 0, 1, 0] == 8
    if dtype.startswith("float8"):
        with pytest.raises(BufferError, match=r"1\.1"):
            view.__dlpack__(max_version=(1, 0))
        assert "versioned" in repr(view.__dlpack__(max_version=(1, 1)))
    try:
        import ml_dtypes
    except ImportError:
        with pytest.raises(mooncrate.Invalid, match="raw=True"):
            view.numpy()
    else:
        assert view.numpy().dtype == getattr(ml_dtypes, dtype)


# Threads and processes


def test_eight_threads_never_see_each_others_bytes():
    """Each thread checks what it wrote, and prefixes that it found, while all of them evict."""
    cache = made(blocks=48)
    failures, done = [], []

    def worker(number):
        try:
            for step in range(60):
                name = f"{number}/{step}"
                # A prefix that all threads share, whose KV follows from its tokens.
                tokens = [*range(8), *(100 * number + step % 5 + place for place in range(9))]
                try:
                    admitted = cache.allocate(name, tokens)
                except mooncrate.Full:
                    continue
                kv = np.repeat(np.array(tokens, "f4"), HEADS * DIM).reshape(-1, HEADS, DIM)
                found = admitted.cached_tokens
                k, v = cache.read_tokens(name, 1, 0, found)
                assert (k == kv[:found]).all() and (v == kv[:found]).all()
                cache.write_tokens(name, 1, found, kv[found:], kv[found:])
                cache.publish(name, len(tokens))
                table = np.zeros(8, "i4")
                assert cache.block_table(name, table) == admitted.blocks
                assert (cache.read_tokens(name, 1)[0] == kv).all()
                if step % 3 == 0:
                    try:
                        cache.fork(name, name + "/child")
                    except mooncrate.Full:
                        pass
                    else:
                        assert (cache.read_tokens(name + "/child", 1)[1] == kv).all()
                        cache.free(name + "/child")
                cache.free(name)
                done.append(found)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=worker, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert not failures, failures
    assert any(done), "prefixes were found"
    stats = cache.stats()
    assert (stats["sequences"], stats["used_blocks"]) == (0, 0)


def test_a_forked_child_is_told_and_harms_nothing():
    said = python(
        """
        import os, sys, warnings, numpy, mooncrate
        from mooncrate.paged import Geometry, PagedCache
        warnings.simplefilter("ignore", DeprecationWarning)
        cache = PagedCache(Geometry(layers=1, kv_heads=1, head_dim=8, dtype="float32"), 4)
        cache.allocate("a", count=8)
        view = cache.view("a", 0, "k")
        shown, other = numpy.from_dlpack(view), view.numpy()
        shown[:] = 5
        child = os.fork()
        if child == 0:
            for call in (cache.stats, view.numpy, lambda: cache.free("a")):
                try:
                    call()
                except mooncrate.Closed:
                    continue
                sys.exit(1)
            assert "another process" in repr(cache) and "another process" in repr(view)
            del shown, other, view, cache
            sys.exit(7)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), shown.sum(), cache.used_tokens("a"))
        """
    )
    assert said == f"7 {5.0 * 16 * 8} 8\n"


def test_the_scheduler_runs_to_its_end():
    command = [sys.executable, str(EXAMPLE), "--seed", "3"]
    done = subprocess.run(command, capture_output=True, timeout=PATIENCE, check=False, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    for word in ("admitted", "preempted", "resumed", "found again", "all of 12 requests finished"):
        assert word in done.stdout, done.stdout
