"""What callers are told when an owner dies, or when a pool is full, and how much of it is logged."""

import os
import socket
import subprocess
import sys
import textwrap

import pytest
from conftest import MIB, memory
from mooncake.store import ReplicateConfig

OWNER = """
    import sys
    from mooncake.store import MooncakeDistributedStore, ReplicateConfig

    store = MooncakeDistributedStore()
    rest = ("P2PHANDSHAKE", 64 << 20, 16 << 20, "tcp", "", sys.argv[1])
    assert store.setup("localhost", *rest) == 0
    here = ReplicateConfig()
    here.preferred_segment = store.get_hostname()
    for key in sys.argv[2:]:
        assert store.put(key, b"value" * 1000, here) == 0
    print("ready", flush=True)
    sys.stdin.read()
    """


@pytest.fixture
def warnings(caplog):
    """The warnings of the store since the last look; the published package logs elsewhere."""

    def since():
        found = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
        caplog.clear()
        return found

    return since


def owner(master, *keys):
    """A store in a process of its own that has stored these keys in its memory."""
    command = [sys.executable, "-c", textwrap.dedent(OWNER), master.address, *keys]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"ready\n"
    return process


def test_what_a_dead_owner_held_is_missing(own_master, make_store, warnings):
    reader = make_store(0, master=own_master)
    keys = [f"dead/{n}" for n in range(4)]
    with owner(own_master, *keys) as process:
        process.kill()
        process.wait()
        place = memory(4 * 5000)
        places = [place.ptr + n * 5000 for n in range(4)]
        # The master has not missed it yet: it says where the values were.
        assert reader.get_into(keys[0], place.ptr, 5000) == -704
        warnings()
        assert reader.batch_get_into(keys, places, [5000] * 4) == [-704] * 4
        assert len(warnings()) <= 1
        pieces = [[at] for at in places]
        scattered = reader.batch_get_into_multi_buffers(keys, pieces, [[5000]] * 4)
        assert scattered == [-704] * 4


def test_parts_of_what_a_dead_owner_held_are_missing(own_master, make_store, warnings):
    reader = make_store(0, master=own_master)
    keys = [f"dead/{n}" for n in range(4)]
    place = memory(4 * 100)
    assert reader.register_buffer(place.ptr, place.size) == 0
    columns = [[[place.ptr + n * 100] for n in range(4)], [[100]] * 4, [[7]] * 4]
    with owner(own_master, *keys) as process:
        process.kill()
        process.wait()
        codes = [-707]
        # A machine that is too busy reads when the lease is over.
        while -707 in codes:
            # The master has not missed it yet: it says where the values were.
            assert reader.batch_get_session_start(keys) == [0] * 4
            warnings()
            codes = reader.batch_get_into_multi_buffer_ranges(keys, *columns)
            assert len(warnings()) == 1
        assert codes == [-704] * 4
        ranges = reader.get_into_ranges([place.ptr], [keys], [[[0, 50]] * 4], [[[0, 9]] * 4], [[[50, 50]] * 4])
        assert ranges == [[[-704] * 2] * 4]
        assert len(warnings()) <= 1


def test_an_owner_that_is_only_silent_is_not_called_dead():
    from mooncake._dead import _is_dead

    with socket.create_server(("127.0.0.1", 0)) as stopped:
        # It listens, as a stopped process does, and nobody accepts.
        address = "127.0.0.1:%d" % stopped.getsockname()[1]
        assert not _is_dead(address, {})
    assert _is_dead(address, {}) and not _is_dead("nowhere.invalid:1", {}) and not _is_dead("", {})


@pytest.mark.parametrize("pinned", [False, True])
def test_a_full_pool_that_cannot_make_room_answers_minus_200(
    own_master, make_store, warnings, pinned
):
    store = make_store(32 * MIB, master=own_master)
    wish = ReplicateConfig()
    wish.with_hard_pin = pinned
    place = memory(MIB)
    keys = [f"full/{n}" for n in range(40)]
    if pinned:
        codes = store.batch_put_from(keys, [place.ptr] * 40, [MIB] * 40, wish)
        assert set(codes) == {0, -200}
    else:
        # Unfinished puts cannot be evicted.
        codes = store.batch_put_session_start(keys, [MIB] * 40)
        assert set(codes) == {0, -200}
        warnings()
        codes = store.batch_put_from(["late/1", "late/2"], [place.ptr] * 2, [MIB] * 2)
        assert codes == [-200] * 2
    if not os.environ.get("MOONCAKE_MASTER"):
        assert len(warnings()) == 1
    # More than the pool has at all.
    huge = memory(33 * MIB)
    assert store.put_from("huge", huge.ptr, huge.size) == -200


def test_one_warning_for_a_batch(own_master, make_store, warnings):
    store = make_store(16 * MIB, master=own_master)
    keys, place = [f"warned/{n}" for n in range(8)], memory(17 * MIB)
    assert store.batch_put_from(keys, [place.ptr] * 8, [place.size] * 8) == [-200] * 8
    (said,) = warnings()
    assert "8 of 8" in said and "-200" in said and "warned/0" in said
    assert store.put("warned/0", b"value") == 0
    assert store.batch_get_into(["warned/0", "none"], [4096 * 3] * 2, [100] * 2) == [-800, -704]
    assert len(warnings()) == 1
    assert store.batch_put_from(["warned/1"], [place.ptr], [place.size]) == [-200]
    (said,) = warnings()
    assert "'warned/1'" in said and "(-200)" in said


def test_one_warning_for_sessions(own_master, make_store, warnings):
    store = make_store(master=own_master)
    keys = [f"warned/{n}" for n in range(8)]
    assert store.put_batch(keys[:4], [b"value"] * 4) == 0
    codes = store.batch_put_session_start(keys, [100] * 8)
    assert codes == [-705] * 4 + [0] * 4
    (said,) = warnings()
    assert "4 of 8" in said and "-705" in said and "warned/0" in said
    assert store.batch_put_session_end(keys[4:]) == [-600] * 4
    (said,) = warnings()
    assert "4 of 4" in said and "warned/4" in said
    assert store.batch_put_session_revoke(keys[4:]) == [0] * 4
    assert store.batch_get_session_start(keys) == [0] * 4 + [-704] * 4
    assert warnings() == []
