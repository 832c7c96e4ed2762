"""What writes may wish: replacing, pins, groups; and the object that says so."""

import pytest
from conftest import memory
from mooncake import store as module
from mooncake.store import ObjectDataType, ReplicateConfig, SoftPinAction


def config(**wishes):
    made = ReplicateConfig()
    for name, value in wishes.items():
        setattr(made, name, value)
    return made


@pytest.mark.check(34)
def test_upserts_replace(store):
    source = memory(b"from memory")
    assert store.upsert("up", b"first") == 0 and store.get("up") == b"first"
    # It was just read, so it is leased: that does not matter.
    assert store.upsert("up", b"other") == 0 and store.get("up") == b"other"
    assert store.upsert("up", b"a longer one") == 0 and store.get("up") == b"a longer one"
    assert store.upsert("up", b"") == -600 and store.get("up") == b"a longer one"
    assert store.upsert_from("up", source.ptr, 0) == 0 and store.get("up") == b"a longer one"
    assert store.upsert_from("up", source.ptr, source.size) == 0
    assert store.get("up") == b"from memory"
    assert store.upsert_parts("up", b"in ", b"parts") == 0 and store.get("up") == b"in parts"
    assert store.upsert_batch(["up", "up/2"], [b"1", b"2"]) == 0
    assert store.get_batch(["up", "up/2"]) == [b"1", b"2"]
    assert store.batch_upsert_from(["up", "up/2"], [source.ptr, 0], [4, 4]) == [0, -600]
    assert store.get_batch(["up", "up/2"]) == [b"from", b"2"]


@pytest.mark.check(34)
def test_an_upsert_cannot_change_the_group(store):
    assert store.put("group", b"value", config(group_ids=["one"])) == 0
    assert store.upsert("group", b"other", config(group_ids=["two"])) == -600
    assert store.get("group") == b"value"
    assert store.upsert("group", b"other", config(group_ids=["one"])) == 0
    assert store.get("group") == b"other"
    assert store.upsert_batch(["group", "g2"], [b"x", b"y"], config(group_ids=["two", ""])) == -600
    assert store.get("group") == b"other"


@pytest.mark.check(35)
def test_soft_pins(store):
    enable = SoftPinAction.ENABLE
    for action in (SoftPinAction.PRESERVE, SoftPinAction.DISABLE):
        assert store.put("soft", b"x", config(soft_pin_action=action, soft_pin_ttl_ms=10)) == -600
    day = 24 * 3600 * 1000
    assert store.put("soft", b"x", config(soft_pin_action=enable, soft_pin_ttl_ms=day + 1)) == -600
    assert store.is_exist("soft") == 0
    assert store.put("soft", b"x", config(soft_pin_action=enable, soft_pin_ttl_ms=1000)) == 0
    assert store.put("soft/0", b"x", config(soft_pin_action=enable, soft_pin_ttl_ms=0)) == 0
    assert store.put("soft/default", b"x", config(soft_pin_action=enable)) == 0
    assert store.put("soft/old", b"x", config(with_soft_pin=True)) == 0
    assert store.put("soft/old2", b"x", config(with_soft_pin=True, soft_pin_ttl_ms=1000)) == 0
    for bad in (-1, 2**64, "1", 1.5):
        with pytest.raises(TypeError):
            config(soft_pin_ttl_ms=bad)


@pytest.mark.check(36)
def test_the_object_with_the_wishes():
    with pytest.raises(TypeError):
        ReplicateConfig(replica_num=2)
    with pytest.raises(TypeError):
        ReplicateConfig(2)
    with pytest.raises(AttributeError):
        config(replicas=2)
    for bad in (-1, "2", None, 1.5):
        with pytest.raises(TypeError):
            config(replica_num=bad)
    made = ReplicateConfig()
    defaults = {
        "replica_num": 1, "nof_replica_num": 0, "dfs_replica_num": 0,
        "soft_pin_action": SoftPinAction.PRESERVE, "soft_pin_ttl_ms": None, "with_soft_pin": False,
        "with_hard_pin": False, "preferred_segments": [], "preferred_segment": "",
        "preferred_nof_segments": [], "prefer_alloc_in_same_node": False,
        "data_type": ObjectDataType.UNKNOWN, "group_ids": None,
    }
    for name, value in defaults.items():
        assert getattr(made, name) == value and hasattr(ReplicateConfig, name)
        assert name in str(made)
    made.replica_num = 7
    assert str(made).startswith("ReplicateConfig: { replica_num: 7, ")
    # Lists of one are not lists of another, and a list that is set can be changed in place.
    made.preferred_segments.append("somewhere")
    assert ReplicateConfig().preferred_segments == []


@pytest.mark.check(36)
def test_enums_are_numbers_with_names():
    assert int(module.TaskStatus.FAILED) == 2 and int(module.TaskStatus.SUCCESS) == 3
    assert module.PROCESSING is module.TaskStatus.PROCESSING
    assert module.FAILED is module.TaskStatus.FAILED
    assert module.COMPLETE is module.ReplicaStatus.COMPLETE and module.KVCACHE.value == 1
    assert set(module.SoftPinAction.__members__) == {"PRESERVE", "ENABLE", "DISABLE"}
    assert not hasattr(module, "ENABLE")
    assert module.ObjectDataType.GENERAL.name == "GENERAL" and module.ObjectDataType(9) == 9
    assert module.TaskType.REPLICA_MOVE == 1


@pytest.mark.check(36)
def test_copies_of_kinds_that_there_are_not(store):
    assert store.put("kinds", b"x", config(replica_num=0)) == -600
    assert store.put("kinds", b"x", config(nof_replica_num=1)) == -600
    assert store.put("kinds", b"x", config(dfs_replica_num=1)) == -1601
    assert store.is_exist("kinds") == 0


@pytest.mark.check(39)
def test_the_same_node_is_for_fragments_only(store):
    source = memory(b"0123456789")
    wish = config(prefer_alloc_in_same_node=True)
    assert store.put("same", b"x", wish) == -600
    assert store.put_batch(["same", "same/2"], [b"x", b"y"], wish) == -600
    assert store.put_parts("same", b"x", config=wish) == -600
    assert store.put_from("same", source.ptr, 5, wish) == -600
    assert store.batch_put_from(["same"], [source.ptr], [5], wish) == [-600]
    assert store.upsert("same", b"x", wish) == -600
    assert store.is_exist("same") == 0
    ask = (["same"], [[source.ptr, source.ptr + 5]], [[5, 5]], wish)
    assert store.batch_put_from_multi_buffers(*ask) == [0]
    assert store.get("same") == b"0123456789"


@pytest.mark.check(40)
def test_groups_of_keys(store):
    source = memory(b"0123456789")
    keys, places = ["gr/a", "gr/b", "gr/c"], [source.ptr] * 3
    wrong = config(group_ids=["one", "two"])
    assert store.batch_put_from(keys, places, [1, 2, 3], wrong) == [-600] * 3
    assert store.put_batch(keys, [b"1", b"2", b"3"], wrong) == -600
    assert store.put("gr/a", b"1", wrong) == -600
    assert store.batch_put_from_multi_buffers(keys, [[p] for p in places], [[1]] * 3, wrong) == (
        [-600] * 3
    )
    assert store.batch_is_exist(keys) == [0, 0, 0]
    right = config(group_ids=["one", "", "one"])
    assert store.batch_put_from(keys, places, [1, 2, 3], right) == [0, 0, 0]
    assert store.get_batch(keys) == [b"0", b"01", b"012"]
    # The same object is used for the next call, with other groups.
    right.group_ids = ["three"]
    assert store.put("gr/d", b"4", right) == 0 and store.get("gr/d") == b"4"
