"""Tensors spread over ranks: keys, manifests, shards, cuts and wholes. Checks 54 and 55."""

import ctypes
import itertools
import struct
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

torch = pytest.importorskip(
    "torch", reason="torch is not installed; ./dev test --torch installs it"
)

from mooncake import store as module
from mooncake.store import ParallelAxis, ReadTarget, ReplicateConfig, TensorParallelism

INVALID = -600
HEAD = 304


def axis(kind, rank=0, size=1, **more):
    made = ParallelAxis()
    made.kind, made.rank, made.size = kind, rank, size
    for name, value in more.items():
        setattr(made, name, value)
    return made


def tp(rank, size, split_dim):
    return axis("tp", rank, size, split_dim=split_dim)


def layout(*axes):
    made = TensorParallelism()
    made.axes = list(axes)
    return made


def target(mode, *axes):
    made = ReadTarget()
    made.mode = mode
    made.parallelism = layout(*axes) if axes else None
    return made


def writer(rank, size, split_dim):
    return SimpleNamespace(rank=rank, size=size, split_dim=split_dim)


def in_memory(tensor):
    head, address, size, _ = module._serialize_tensor(tensor)
    value = head + ctypes.string_at(address, size)
    memory = ctypes.create_string_buffer(value, len(value))
    return memory, ctypes.addressof(memory), len(value)


NUMBERS = itertools.count()
WHOLE = torch.arange(12, dtype=torch.float32).reshape(3, 4)


@pytest.mark.check(54)
def test_a_split_makes_a_key_for_each_rank_and_none_for_the_whole(store):
    assert store.put_tensor_with_tp("key", WHOLE, tp_rank=0, tp_size=2, split_dim=1) == 0
    assert store.batch_is_exist(["key_tp_0", "key_tp_1", "key_tp_2", "key"]) == [1, 1, 0, 0]
    assert torch.equal(
        store.get_tensor_with_tp("key", tp_rank=1, tp_size=2, split_dim=1), WHOLE[:, 2:]
    )
    assert torch.equal(store.get_tensor_with_tp("key", tp_rank=0, tp_size=2), WHOLE[:, :2])
    assert torch.equal(store.get_tensor("key_tp_1"), WHOLE[:, 2:])


@pytest.mark.check(54)
def test_the_head_of_a_shard_says_of_what_it_is_a_part(store):
    assert store.put_tensor_with_tp("key", WHOLE, tp_size=2, split_dim=1) == 0
    value = store.get("key_tp_1")
    assert struct.unpack_from("<I", value, 16) == (1,)
    assert struct.unpack_from("<2q", value, 40) == (3, 4)
    assert struct.unpack_from("<2q", value, 104) == (3, 2)
    assert struct.unpack_from("<II6iq", value, 168) == (1, 0, 1, 0, 1, 2, 1, 0, 2)


@pytest.mark.check(54)
@pytest.mark.parametrize("split_dim", [0, 2, -1])
def test_a_tensor_that_cannot_be_split_is_refused(store, split_dim):
    assert store.put_tensor_with_tp("key", WHOLE, 0, 2, split_dim) == INVALID
    assert store.pub_tensor_with_tp("key", WHOLE, ReplicateConfig(), 0, 2, split_dim) == INVALID
    assert store.batch_is_exist(["key", "key_tp_0", "key_tp_1"]) == [0, 0, 0]
    assert store.put_tensor_with_tp("key", torch.tensor(1.0), 0, 2, 0) == INVALID
    assert store.put_tensor_with_tp("key", torch.empty(0, 2), 0, 1 << 30, 0) == INVALID
    assert store.put_tensor_with_tp("key", "text", 0, 2, 0) == INVALID


@pytest.mark.check(54)
def test_a_size_of_one_is_the_plain_form(store):
    assert store.put_tensor_with_tp("key", WHOLE) == 0
    assert store.batch_is_exist(["key", "key_tp_0"]) == [1, 0]
    assert torch.equal(store.get_tensor_with_tp("key"), WHOLE)
    memory, at, size = in_memory(WHOLE)
    assert store.put_tensor_with_tp_from("other", at, size) == 0
    assert torch.equal(store.get_tensor_with_tp_into("other", at, size), WHOLE)


@pytest.mark.check(54)
def test_a_shard_of_another_cut_is_not_handed_out(store):
    assert store.put_tensor_with_tp("key", WHOLE, tp_size=2, split_dim=1) == 0
    assert store.get_tensor_with_tp("key", tp_rank=1, tp_size=4) is None
    memory = ctypes.create_string_buffer(1000)
    at = ctypes.addressof(memory)
    assert store.get_tensor_with_tp_into("key", at, 1000, tp_rank=1, tp_size=4) is None
    assert store.get_tensor_with_tp_into("key", at, 1000, tp_rank=1, tp_size=2) is not None
    # A tensor that a rank stored by itself says nothing of ranks.
    assert store.put_tensor("own_tp_3", WHOLE) == 0
    assert torch.equal(store.get_tensor_with_tp("own", tp_rank=3, tp_size=4), WHOLE)


@pytest.mark.check(54)
def test_batches_of_splits(store):
    other = torch.arange(8).reshape(2, 4)
    assert store.batch_put_tensor_with_tp(["a", "b", "c"], [WHOLE, "text", other], 0, 2, 1) == [
        0,
        INVALID,
        0,
    ]
    read = store.batch_get_tensor_with_tp(["a", "b", "c"], 1, 2)
    assert torch.equal(read[0], WHOLE[:, 2:])
    assert read[1] is None
    assert torch.equal(read[2], other[:, 2:])
    assert store.batch_put_tensor_with_tp(["a"], [], 0, 2, 1) == [INVALID]
    config = ReplicateConfig()
    config.group_ids = ["one", "two"]
    assert store.batch_pub_tensor_with_tp(["d", "e"], [WHOLE, other], config, 0, 2, 1) == [0, 0]
    assert store.batch_is_exist(["d_tp_0", "d_tp_1", "e_tp_0", "e_tp_1"]) == [1] * 4


@pytest.mark.check(54)
def test_splits_from_and_into_memory(store):
    memory, at, size = in_memory(WHOLE)
    assert store.put_tensor_with_tp_from("key", at, size, tp_size=2, split_dim=1) == 0
    assert store.put_tensor_with_tp_from("bad", at, size - 4, tp_size=2, split_dim=1) == INVALID
    assert (
        store.batch_put_tensor_with_tp_from(["a", "b"], [at, 0], [size, size], 0, 2, 1)
        == [INVALID] * 2
    )
    assert store.batch_put_tensor_with_tp_from(["a"], [at], [size], 0, 2, 1) == [0]
    rooms = [ctypes.create_string_buffer(500) for _ in range(2)]
    addresses = [ctypes.addressof(room) for room in rooms]
    read = store.batch_get_tensor_with_tp_into(["key", "a"], addresses, [500, 500], 1, 2)
    for one, address in zip(read, addresses, strict=True):
        assert torch.equal(one, WHOLE[:, 2:])
        assert one.data_ptr() == address + HEAD
    assert store.batch_get_tensor_with_tp_into(["key"], [0], [500], 1, 2) == [INVALID]


@pytest.mark.check(55)
def test_one_tp_axis_stores_the_shard_that_is_given(store):
    for rank in (0, 1):
        part = WHOLE[:, 2 * rank : 2 * rank + 2]
        assert store.put_tensor_with_parallelism("key", part, layout(tp(rank, 2, 1))) == 0
    assert store.batch_is_exist(["key_tp_0", "key_tp_1", "key"]) == [1, 1, 0]
    manifest = store.get("key__parallelism_manifest")
    assert struct.unpack("<IHHiiiii4x8q", manifest) == (
        *(0x574D414E, 1, 96, 0, 2, 1, 2, 0),
        *(3, 4, -1, -1, -1, -1, -1, -1),
    )
    assert len(manifest) == 96
    assert torch.equal(store.get_tensor_with_parallelism("key", target("full", tp(0, 2, 1))), WHOLE)
    for rank in (0, 1):
        for mode in ("shard", "as_stored"):
            read = store.get_tensor_with_parallelism("key", target(mode, tp(rank, 2, 1)))
            assert torch.equal(read, WHOLE[:, 2 * rank : 2 * rank + 2])


@pytest.mark.check(55)
def test_shards_are_cut_anew(store):
    for rank in (0, 1):
        part = WHOLE[:, 2 * rank : 2 * rank + 2]
        assert store.put_tensor_with_parallelism("key", part, layout(tp(rank, 2, 1))) == 0
    for rank in range(4):
        read = store.get_tensor_with_parallelism("key", target("shard", tp(rank, 4, 1)))
        assert torch.equal(read, WHOLE[:, rank : rank + 1])
    # Along another dimension every shard has a part.
    read = store.get_tensor_with_parallelism("key", target("shard", tp(2, 3, 0)))
    assert torch.equal(read, WHOLE[2:])
    assert store.get_tensor_with_parallelism("key", target("shard", tp(0, 3, 1))) is None
    assert store.get_tensor_with_parallelism("key", target("as_stored", tp(3, 4, 1))) is None


@pytest.mark.check(55)
def test_shards_of_an_earlier_cut_are_not_taken_for_present_ones(store):
    old, new = torch.zeros(4, 8), torch.ones(4, 8)
    for rank in range(4):
        part = old[:, 2 * rank : 2 * rank + 2]
        assert store.upsert_tensor_with_parallelism("key", part, layout(tp(rank, 4, 1))) == 0
    for rank in range(2):
        part = new[:, 4 * rank : 4 * rank + 4]
        assert store.upsert_tensor_with_parallelism("key", part, layout(tp(rank, 2, 1))) == 0
    for rank in range(4):
        read = store.get_tensor_with_parallelism("key", target("shard", tp(rank, 4, 1)))
        assert torch.equal(read, new[:, :2])
    assert torch.equal(store.get_tensor_with_parallelism("key", target("full", tp(0, 2, 1))), new)


@pytest.mark.check(55)
def test_tensors_without_elements(store):
    for rank in (0, 1):
        assert (
            store.put_tensor_with_parallelism("key", torch.empty(2, 0), layout(tp(rank, 2, 0))) == 0
        )
    assert store.get_tensor_with_parallelism("key", target("full", tp(0, 2, 0))).shape == (4, 0)
    assert store.get_tensor_with_parallelism("key", target("shard", tp(3, 4, 0))).shape == (1, 0)
    # A length of zero is not cut.
    assert store.get_tensor_with_parallelism("key", target("shard", tp(0, 1, 1))) is None
    assert store.get_tensor_with_parallelism("key", target("shard", tp(0, 2, 1))) is None


@pytest.mark.check(55)
def test_shards_without_a_manifest_are_what_their_heads_say(store):
    assert store.put_tensor_with_tp("key", WHOLE, tp_size=2, split_dim=1) == 0
    assert store.is_exist("key__parallelism_manifest") == 0
    assert torch.equal(store.get_tensor_with_parallelism("key", target("full", tp(0, 2, 1))), WHOLE)
    read = store.get_tensor_with_parallelism("key", target("shard", tp(1, 2, 1)))
    assert torch.equal(read, WHOLE[:, 2:])
    for asked in (tp(1, 4, 1), tp(1, 2, 0)):
        for mode in ("as_stored", "shard", "full"):
            assert store.get_tensor_with_parallelism("key", target(mode, asked)) is None


@pytest.mark.check(55)
def test_a_whole_is_made_of_all_its_shards_or_not_at_all(store):
    assert store.put_tensor_with_parallelism("key", WHOLE[:, :2], layout(tp(0, 2, 1))) == 0
    full = target("full", tp(0, 2, 1))
    assert store.get_tensor_with_parallelism("key", full) is None
    assert store.put_tensor("key_tp_1", WHOLE[:, 2:]) == 0
    assert store.get_tensor_with_parallelism("key", full) is None
    other = torch.zeros(5, 2)
    assert store.upsert_tensor_with_parallelism("key", other, layout(tp(1, 2, 1))) == 0
    assert store.get_tensor_with_parallelism("key", full) is None
    assert store.upsert_tensor_with_parallelism("key", WHOLE[:, 2:], layout(tp(1, 2, 1))) == 0
    assert torch.equal(store.get_tensor_with_parallelism("key", full), WHOLE)


@pytest.mark.check(55)
def test_tp_beside_others_cuts_the_whole_that_is_given(store):
    for rank in (0, 1):
        spread = layout(tp(rank, 2, 1), axis("DP"))
        assert store.put_tensor_with_parallelism("w", WHOLE, spread) == 0
    assert store.batch_is_exist(["w__dp_0of1__tp_1of2_sd1", "w__dp_0of1__tp_0of2_sd1"]) == [1, 1]
    assert store.is_exist("w__parallelism_manifest") == 1
    read = store.get_tensor_with_parallelism("w", target("shard", axis("dp"), tp(1, 2, 1)))
    assert torch.equal(read, WHOLE[:, 2:])
    read = store.get_tensor_with_parallelism("w", target("shard", axis("dp"), tp(3, 4, 1)))
    assert torch.equal(read, WHOLE[:, 3:])
    read = store.get_tensor_with_parallelism("w", target("full", axis("dp"), tp(0, 2, 1)))
    assert torch.equal(read, WHOLE)


@pytest.mark.check(55)
def test_axes_without_tp_store_the_whole(store):
    spread = layout(axis("pp", 1, 2, stage_id=7), axis("ep", 0, 4, expert_id=3))
    assert store.put_tensor_with_parallelism("w", WHOLE, spread) == 0
    key = "w__ep_0of4_eid3__pp_1of2_sid7"
    assert store.is_exist(key) == 1
    assert store.is_exist("w__parallelism_manifest") == 0
    assert struct.unpack_from("<II6iq6iq", store.get(key), 168) == (
        *(2, 0),
        *(2, 0, 0, 4, -1, 3, 0),
        *(3, 1, 1, 2, -1, 7, 0),
    )
    for mode in ("as_stored", "shard", "full"):
        read = store.get_tensor_with_parallelism(
            "w", target(mode, axis("ep", 0, 4, expert_id=3), axis("pp", 1, 2, stage_id=7))
        )
        assert torch.equal(read, WHOLE)
    other = target("shard", axis("ep", 0, 4, expert_id=4), axis("pp", 1, 2, stage_id=7))
    assert store.get_tensor_with_parallelism("w", other) is None


@pytest.mark.check(55)
def test_several_writers_make_one_tensor(store):
    for rank in (0, 1):
        put = store.put_tensor_with_parallelism("key", WHOLE, writer_partition=writer(rank, 2, 1))
        assert put == 0
    assert store.batch_is_exist(["key__writer_0of2_sd1", "key__writer_1of2_sd1", "key"]) == [
        1,
        1,
        0,
    ]
    assert len(store.get("key__writer_manifest")) == 96
    assert torch.equal(store.get_tensor_with_parallelism("key", target("full")), WHOLE)
    read = store.get_tensor_with_parallelism("key", target("shard", tp(3, 4, 1)))
    assert torch.equal(read, WHOLE[:, 3:])
    assert store.get_tensor_with_parallelism("missing", target("full")) is None


@pytest.mark.check(55)
def test_without_a_layout_it_is_a_plain_tensor(store):
    assert store.put_tensor_with_parallelism("key", WHOLE) == 0
    for read in (None, ReadTarget(), target("as_stored"), target("full")):
        assert torch.equal(store.get_tensor_with_parallelism("key", read), WHOLE)
    assert store.get_tensor_with_parallelism("key", target("shard")) is None


@pytest.mark.check(55)
@pytest.mark.parametrize(
    "spread",
    [
        layout(),
        layout(axis("tp", 0, 2)),
        layout(tp(2, 2, 1)),
        layout(tp(-1, 2, 1)),
        layout(tp(0, 0, 1)),
        layout(tp(0, 2, 5)),
        layout(axis("ep", 0, 2)),
        layout(axis("pp", 0, 2)),
        layout(axis("dp", 0, 2, split_dim=0)),
        layout(axis("ep", 0, 2, expert_id=1, split_dim=0)),
        layout(tp(0, 2, 1), tp(1, 2, 1)),
        layout(axis("xp")),
        layout(axis("")),
        layout(axis("dp"), tp(0, 3, 1)),
        "text",
    ],
    ids=str,
)
def test_a_layout_that_contradicts_itself_is_refused(store, spread):
    assert store.put_tensor_with_parallelism("key", WHOLE, spread) == INVALID
    assert store.upsert_tensor_with_parallelism("key", WHOLE, spread) == INVALID
    assert store.get_tensor_with_parallelism("key", ReadTarget("shard", spread)) is None
    assert store.is_exist("key") == 0


@pytest.mark.check(55)
def test_a_layout_and_a_writer_are_one_too_many(store):
    both = {"parallelism": layout(tp(0, 2, 1)), "writer_partition": writer(0, 2, 1)}
    assert store.put_tensor_with_parallelism("key", WHOLE, **both) == INVALID
    assert store.put_tensor_with_parallelism("key", WHOLE, writer_partition="text") == INVALID
    assert (
        store.put_tensor_with_parallelism("key", WHOLE, writer_partition=writer(2, 2, 1)) == INVALID
    )
    assert (
        store.put_tensor_with_parallelism("key", WHOLE, writer_partition=writer(0, 3, 1)) == INVALID
    )


@pytest.mark.check(55)
def test_an_unknown_mode_raises(store):
    with pytest.raises(RuntimeError, match="bogus"):
        store.get_tensor_with_parallelism("key", target("bogus"))


@pytest.mark.check(55)
def test_batches_of_layouts(store):
    layouts = [layout(tp(0, 2, 1)), None, layout(axis("tp", 0, 2))]
    put = store.batch_put_tensor_with_parallelism(["a", "b", "c"], [WHOLE] * 3, layouts)
    assert put == [0, 0, INVALID]
    targets = [target("shard", tp(0, 2, 1)), None, None]
    read = store.batch_get_tensor_with_parallelism(["a", "b", "c"], targets)
    assert torch.equal(read[0], WHOLE)
    assert torch.equal(read[1], WHOLE)
    assert read[2] is None
    assert store.batch_put_tensor_with_parallelism(["a"], [WHOLE], layouts) == [INVALID]
    assert store.batch_upsert_tensor_with_parallelism(["b"], [WHOLE + 1]) == [0]
    assert torch.equal(store.get_tensor("b"), WHOLE + 1)
    assert store.batch_get_tensor_with_parallelism([]) == []


@pytest.mark.check(55)
def test_layouts_from_and_into_memory(store):
    memory, at, size = in_memory(WHOLE)
    spread = layout(axis("dp"), tp(0, 2, 1))
    assert store.put_tensor_with_parallelism_from("key", at, size, spread) == 0
    assert store.put_tensor_with_parallelism_from("key", at, size + 1, spread) == INVALID
    spread = layout(axis("dp"), tp(1, 2, 1))
    assert store.upsert_tensor_with_parallelism_from("key", at, size, spread) == 0
    assert store.batch_put_tensor_with_parallelism_from(["b"], [at], [size]) == [0]
    assert store.batch_upsert_tensor_with_parallelism_from(["b"], [0], [size]) == [INVALID]
    room = ctypes.create_string_buffer(1000)
    to = ctypes.addressof(room)
    full = target("full", axis("dp"), tp(0, 2, 1))
    assert store.get_tensor_with_parallelism_into("key", to, 1000, full) is None
    assert store.register_buffer(to, 1000) == 0
    for wanted, expected in (
        (full, WHOLE),
        (target("shard", axis("dp"), tp(3, 4, 1)), WHOLE[:, 3:]),
        (target("shard", axis("dp"), tp(1, 2, 1)), WHOLE[:, 2:]),
    ):
        read = store.get_tensor_with_parallelism_into("key", to, 1000, wanted)
        assert torch.equal(read, expected)
        assert read.data_ptr() == to + HEAD
        assert torch.equal(
            module._deserialize_tensor(bytes(room)[: HEAD + 4 * read.numel()]), expected
        )
    assert torch.equal(store.get_tensor_with_parallelism_into("b", to, 1000), WHOLE)
    assert store.get_tensor_with_parallelism_into("key", to, HEAD + 40, full) is None
    assert store.batch_get_tensor_with_parallelism_into(["b"], [to], []) == [INVALID]
    assert torch.equal(store.batch_get_tensor_with_parallelism_into(["b"], [to], [1000])[0], WHOLE)
    assert store.unregister_buffer(to) == 0


@pytest.mark.check(55)
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_any_cut_can_be_read_by_any_other(store, data):
    lengths = st.sampled_from([1, 2, 4, 6, 12])
    shape = data.draw(st.lists(lengths, min_size=1, max_size=4))
    dims = st.integers(0, len(shape) - 1)
    dim, other = data.draw(dims), data.draw(dims)
    count = data.draw(st.sampled_from([n for n in (1, 2, 3, 4, 6) if shape[dim] % n == 0]))
    asked = data.draw(st.sampled_from([n for n in (1, 2, 3, 4, 6) if shape[other] % n == 0]))
    whole = torch.randint(0, 1 << 30, shape)
    # Examples share the store, and are repeated.
    key = f"cut/{next(NUMBERS)}"
    for rank, part in enumerate(whole.chunk(count, dim)):
        assert store.put_tensor_with_parallelism(key, part, layout(tp(rank, count, dim))) == 0
    for rank, part in enumerate(whole.chunk(asked, other)):
        read = store.get_tensor_with_parallelism(key, target("shard", tp(rank, asked, other)))
        assert torch.equal(read, part)
    full = target("full", tp(0, asked, other))
    assert torch.equal(store.get_tensor_with_parallelism(key, full), whole)
