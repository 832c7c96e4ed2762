"""Copies: how many, where, cleared, copied and moved."""

import time

import pytest
from conftest import MIB, PATIENCE, after_lease
from mooncake.store import ReplicateConfig, TaskStatus, TaskType
from processes import Program, free_ports


def config(**wishes):
    made = ReplicateConfig()
    for name, value in wishes.items():
        setattr(made, name, value)
    return made


def endpoints(store, key):
    found = store.get_replica_desc(key)
    memory = [one.get_memory_descriptor().buffer_descriptor for one in found]
    return sorted(one.transport_endpoint for one in memory)


def finished(store, task):
    """The task, when it is over."""
    end = time.monotonic() + PATIENCE
    while True:
        response, code = store.query_task(task)
        assert code == 0 and response.id == task
        if response.status in (TaskStatus.SUCCESS, TaskStatus.FAILED):
            return response
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture
def two(store, make_store):
    """Two stores with memory."""
    return store, make_store()


def test_names_of_segments_stay_as_given(make_store, tmp_path):
    """A metadata server, because without one the published package shows a port of its own choice."""
    (port,) = free_ports(1)
    metadata = f"http://127.0.0.1:{port}/metadata"
    flags = (f"--port={port}", "--host=127.0.0.1")
    with Program(tmp_path, "mooncake_http_metadata_server", *flags, ports=(port,)):
        names = [f"localhost:{port}" for port in free_ports(2)]
        first, second = (make_store(host=name, metadata=metadata) for name in names)
        assert [first.get_hostname(), second.get_hostname()] == names
        assert first.put("names/a", b"value", config(preferred_segment=names[0])) == 0
        assert endpoints(second, "names/a") == [names[0]]
        task, code = second.create_copy_task("names/a", [names[1]])
        assert code == 0 and finished(second, task).status == TaskStatus.SUCCESS
        assert endpoints(second, "names/a") == sorted(names)
        assert first.remove("names/a", force=True) == 0
        assert first.put("names/b", b"value", config(preferred_segment=names[0])) == 0
        task, code = first.create_move_task("names/b", *names)
        assert code == 0 and finished(first, task).status == TaskStatus.SUCCESS
        assert endpoints(second, "names/b") == [names[1]] and first.get("names/b") == b"value"
        # Another way to write the same place is another name.
        elsewhere = names[1].replace("localhost", "127.0.0.1")
        assert first.create_copy_task("names/b", [elsewhere]) == ((0, 0), -600)
        first.close(), second.close()


@pytest.mark.check(37)
def test_as_many_copies_as_there_are_segments(store, make_store):
    assert store.put("copies/one", b"value", config(replica_num=2)) == 0
    assert len(store.get_replica_desc("copies/one")) == 1
    other = make_store()
    assert store.put("copies/two", b"value", config(replica_num=2)) == 0
    places = endpoints(store, "copies/two")
    assert len(places) == len(set(places)) == 2
    for one in store.get_replica_desc("copies/two"):
        assert one.is_memory_replica() and not one.is_disk_replica()
        assert not one.is_local_disk_replica() and one.status.name == "COMPLETE"
        buffer = one.get_memory_descriptor().buffer_descriptor
        assert buffer.size == 5 and buffer.buffer_address >= 0
        with pytest.raises(RuntimeError):
            one.get_disk_descriptor()
    reader = make_store(0)
    assert other.close() == 0
    assert reader.get("copies/two") == b"value"
    assert len(reader.get_replica_desc("copies/two")) == 1


@pytest.mark.check(38)
def test_a_segment_that_is_preferred(two):
    store, other = two
    for number in range(8):
        key, to = f"prefer/{number}", (store, other)[number % 2]
        wish = config(preferred_segment=to.get_hostname())
        assert store.put(key, b"value", wish) == 0
        assert endpoints(store, key) == endpoints(store, f"prefer/{number % 2}")
    assert endpoints(store, "prefer/0") != endpoints(store, "prefer/1")
    assert store.put("prefer/list", b"v", config(preferred_segments=[other.get_hostname()])) == 0
    assert endpoints(store, "prefer/list") == endpoints(store, "prefer/1")
    assert store.put("prefer/unknown", b"v", config(preferred_segment="nowhere:1")) == 0


@pytest.mark.check(41)
def test_clearing_values(two):
    store, other = two
    assert store.put_batch(["clear/own", "clear/leased"], [b"1", b"2"]) == 0
    assert other.put("clear/foreign", b"3") == 0
    assert store.is_exist("clear/leased") == 1
    keys = ["clear/own", "clear/leased", "clear/foreign", "clear/missing"]
    assert store.batch_replica_clear(keys) == ["clear/own"]
    assert store.batch_is_exist(keys) == [0, 1, 1, 0]
    after_lease()
    assert store.batch_replica_clear(keys) == ["clear/leased"]
    assert store.is_exist("clear/foreign") == 1


@pytest.mark.check(41)
def test_clearing_one_copy(two):
    store, other = two
    assert store.put("clear/two", b"value", config(replica_num=2)) == 0
    assert store.batch_replica_clear(["clear/two"], "nowhere:1") == []
    assert store.batch_replica_clear(["clear/two"], other.get_hostname()) == ["clear/two"]
    left = endpoints(store, "clear/two")
    assert len(left) == 1 and store.get("clear/two") == b"value"
    # It is held now; later it goes for good, and nobody brings the copy back.
    assert store.batch_replica_clear(["clear/two"], store.get_hostname()) == []
    after_lease()
    assert endpoints(store, "clear/two") == left
    after_lease()
    assert store.batch_replica_clear(["clear/two"], store.get_hostname()) == ["clear/two"]
    assert store.is_exist("clear/two") == 0


@pytest.mark.check(42)
def test_copy_and_move_tasks(two):
    store, other = two
    here, there = store.get_hostname(), other.get_hostname()
    assert store.put("task", b"value" * 1000, config(preferred_segment=here)) == 0
    first = endpoints(store, "task")
    task, code = store.create_copy_task("task", [there])
    assert code == 0
    response = finished(store, task)
    assert response.status is TaskStatus.SUCCESS and response.type is TaskType.REPLICA_COPY
    assert response.created_at_ms_epoch <= response.last_updated_at_ms_epoch
    assert len(endpoints(store, "task")) == 2

    assert store.put("task/move", b"value", config(preferred_segment=here)) == 0
    task, code = store.create_move_task("task/move", here, there)
    assert code == 0 and finished(store, task).status is TaskStatus.SUCCESS
    moved = endpoints(store, "task/move")
    assert len(moved) == 1 and moved != first
    assert store.get("task/move") == b"value"


@pytest.mark.check(42)
def test_tasks_that_make_no_sense(two):
    store, other = two
    here, there = store.get_hostname(), other.get_hostname()
    assert store.put("task/no", b"value", config(preferred_segment=here)) == 0
    nothing = (0, 0)
    assert store.create_copy_task("task/no", ["nowhere:1"]) == (nothing, -600)
    assert store.create_copy_task("task/no", []) == (nothing, -600)
    assert store.create_move_task("task/no", here, here) == (nothing, -600)
    assert store.create_move_task("task/no", "nowhere:1", there) == (nothing, -600)
    assert store.create_copy_task("task/missing", [there]) == (nothing, -704)
    assert store.create_move_task("task/missing", here, there) == (nothing, -704)
    assert store.query_task((1, 2)) == (None, -1400)


def test_segments_come_and_go(store, tmp_path):
    before = len(store._live.raw.nodes()[0][2])
    more = store.allocate_and_mount_segment(20 * MIB)
    assert more["ret"] == 0 and more["allocated_size"] == 32 * MIB
    file = tmp_path / "segment"
    file.write_bytes(bytes(1 * MIB))
    mapped = store.mount_segment(str(file), 512 * 1024, 4096)
    assert mapped["ret"] == 0
    assert store.mount_segment(str(file), 2 * MIB) == {"ret": -1, "segment_ids": []}
    assert store.mount_segment(str(file), 4096, 100) == {"ret": -1, "segment_ids": []}
    assert store.mount_segment(str(tmp_path / "none"), 4096) == {"ret": -1, "segment_ids": []}
    assert len(store._live.raw.nodes()[0][2]) == before + 2
    (first,), (second,) = more["segment_ids"], mapped["segment_ids"]
    assert all(part.isdigit() for part in first.split("-"))
    assert store.unmount_segment([first, "1-2"]) == -1
    assert store.unmount_segment(["nonsense"]) == -1
    assert store.unmount_and_free_segment([second]) == 0
    assert store.unmount_segment([first]) == -1
    assert store.unmount_local_disk_segment() == 0 and store.get_offload_rpc_read_count() == 0


def test_no_two_segments_have_one_name(store):
    """An old id unmounted what was mounted after it."""
    (first,) = store.allocate_and_mount_segment(16 * MIB)["segment_ids"]
    assert store.unmount_and_free_segment([first]) == 0
    (second,) = store.allocate_and_mount_segment(16 * MIB)["segment_ids"]
    assert store.unmount_and_free_segment([first]) == -1
    assert store.unmount_and_free_segment([second]) == 0


def test_a_pure_client_may_lend_later(make_store, own_master):
    store = make_store(0, master=own_master)
    assert store.put("late", b"x") == -200
    assert store.allocate_and_mount_segment(16 * MIB)["ret"] == 0
    assert store.put("late", b"x") == 0 and store.get("late") == b"x"
