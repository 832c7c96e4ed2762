"""Stores in trouble: owners that go, pools that are full, masters that die, many threads."""

import hashlib
import os
import signal
import threading
import time
from pathlib import Path

import pytest
from conftest import MIB, PATIENCE, after_lease, memory
from mooncake.store import ReplicateConfig


def until(true):
    """Waits for something that must become true."""
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.check(46)
def test_objects_go_with_their_owner(make_store, own_master):
    owner = make_store(master=own_master)
    reader = make_store(0, master=own_master)
    assert owner.put("gone", b"value") == 0 and reader.get("gone") == b"value"
    assert owner.close() == 0
    assert reader.get("gone") == b"" and reader.is_exist("gone") == 0
    assert reader.get_size("gone") == -704


@pytest.mark.check(47)
def test_a_full_pool_makes_room(make_store, own_master):
    store = make_store(32 * MIB, master=own_master)
    hard = ReplicateConfig()
    hard.with_hard_pin = True
    pinned = [f"pinned/{n}" for n in range(4)]
    for key in pinned:
        assert store.put(key, key.encode() * 1000, hard) == 0
    keys = [f"full/{n}" for n in range(64)]
    value = bytes(MIB)
    assert [store.put(key, value) for key in keys] == [0] * 64
    there = store.batch_is_exist(keys)
    assert 0 < sum(there) < 40 and there[-1] == 1
    assert store.get_batch(pinned) == [key.encode() * 1000 for key in pinned]


@pytest.mark.check(47)
def test_only_what_cannot_be_reclaimed_is_no_room(make_store, own_master):
    store = make_store(16 * MIB, master=own_master)
    hard = ReplicateConfig()
    hard.with_hard_pin = True
    codes = [store.put(f"hard/{n}", bytes(MIB), hard) for n in range(32)]
    assert -200 in codes and set(codes) == {0, -200}
    # More than the whole segment never fits.
    assert store.put("giant", bytes(20 * MIB)) == -200
    assert store.remove_all(force=True) == codes.count(0)
    assert store.put("later", bytes(MIB)) == 0 and store.get_size("later") == MIB


@pytest.mark.check(48)
def test_polling_lookups_stop_no_put(make_store, own_master):
    store = make_store(16 * MIB, master=own_master)
    keys = [f"poll/{n}" for n in range(100)]
    over = threading.Event()
    polled = []

    def poll():
        while not over.is_set():
            polled.append(sum(store.batch_is_exist(keys)))

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        assert [store.put(key, bytes(MIB)) for key in keys] == [0] * 100
    finally:
        over.set()
        thread.join(PATIENCE)
    assert polled and max(polled) > 0
    # What was polled last is held all the same.
    last = [key for key, there in zip(keys, store.batch_is_exist(keys), strict=True) if there]
    assert last and store.remove(last[0]) == -706


@pytest.mark.check(49)
def test_eight_threads_and_a_ninth(store):
    ticks, wrong = [], []
    over = threading.Event()

    def tick():
        while not over.is_set():
            ticks.append(time.monotonic())
            time.sleep(0.001)

    def work(number):
        target = memory(MIB)
        for turn in range(12):
            key = f"threads/{number}/{turn}"
            value = hashlib.sha256(key.encode()).digest() * (MIB // 32)
            stored = store.put(key, value)
            read = store.get(key)
            count = store.get_into(key, target.ptr, MIB)
            if stored != 0 or read not in (value, b"") or (count > 0 and bytes(target) != value):
                wrong.append(key)
            if read == b"":
                # Evicted meanwhile: a miss is no wrong value.
                assert store.is_exist(key) == 0

    ticker = threading.Thread(target=tick)
    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in (ticker, *threads):
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    over.set()
    ticker.join(PATIENCE)
    assert not wrong and not any(thread.is_alive() for thread in threads)
    assert len(ticks) > 10


@pytest.mark.check(50)
def test_a_master_that_dies_and_comes_back(make_store, own_master):
    store = make_store(master=own_master)
    place = memory(16)
    assert store.put("before", b"value") == 0
    own_master.kill()
    began = time.monotonic()
    two = ["a", "b"]
    gone = {
        "put": store.put("a", b"x"),
        "get_size": store.get_size("a"),
        "remove": store.remove("a"),
        "remove_all": store.remove_all(),
        "upsert": store.upsert("a", b"x"),
        "put_batch": store.put_batch(two, [b"1", b"2"]),
        "put_from": store.put_from("a", place.ptr, 4),
        "get_into": store.get_into("a", place.ptr, 4),
    }
    assert set(gone.values()) == {-900}, gone
    # LMCache takes every answer but 0 for a hit.
    assert store.is_exist("a") == 0 and store.batch_is_exist(two) == [0, 0]
    assert store.batch_put_from(two, [place.ptr] * 2, [4, 4]) == [-900, -900]
    assert store.batch_get_into(two, [place.ptr] * 2, [4, 4]) == [-900, -900]
    assert store.batch_remove(two) == [-900, -900]
    assert store.get_batch(two) == [b"", b""]
    assert store.get_buffer("a") is None and store.batch_get_replica_desc(two) == {}
    assert store.health_check() == 2
    taken = time.monotonic() - began
    own_master.start()
    until(lambda: store.health_check() == 0)
    until(lambda: store.put("after", b"value") == 0)
    assert store.get("after") == b"value"
    assert taken < PATIENCE


def stop(master):
    """Stops the process, and waits until all of its threads stand still: the signal takes effect later."""
    master.process.send_signal(signal.SIGSTOP)
    tasks = Path(f"/proc/{master.process.pid}/task")
    until = time.monotonic() + 10
    while any(state(task) != "T" for task in tasks.iterdir()):
        assert time.monotonic() < until, "the master did not stop"
        time.sleep(0.001)


def state(task):
    """The letter of a thread's state: it follows the name, which stands in brackets."""
    return (task / "stat").read_text().rpartition(") ")[2][0]


# How the master goes away, and comes back.
OUTAGES = {
    "dead": (lambda master: master.kill(), lambda master: master.start()),
    "stopped": (stop, lambda master: master.process.send_signal(signal.SIGCONT)),
}


@pytest.mark.check(50)
@pytest.mark.parametrize("outage", OUTAGES)
def test_an_outage_of_the_master_costs_an_engine_one_call(make_store, own_master, outage):
    """One call learns it; later ones, hundreds of them, fail at once, and what is known is still read."""
    away, back = OUTAGES[outage]
    store, owner = make_store(segment=0, master=own_master), make_store(master=own_master)
    value, place = os.urandom(100_000), memory(100_000)
    assert store.put("known", value) == 0 and store.get("known") == value
    assert owner.put("other", b"x") == 0
    away(own_master)
    gone = time.monotonic()
    try:
        # LMCache takes every answer but 0 for a hit: what is seen in mapped memory is one, and can be read.
        assert store.is_exist("other") == 0
        assert store.is_exist("known") == 0 or store.get("known") == value
        # The owner may serve for 2.5 s after its last heartbeat, and for 10 s while nobody listens at the master's
        # address; nobody can have removed the value.
        read = (
            store.get("known") == value,
            store.get_into("known", place.ptr, 100_000) == 100_000 and bytes(place) == value,
            store.get_batch(["known", "unknown"]) == [value, b""],
        )
        assert all(read) or time.monotonic() - gone > (8 if outage == "dead" else 2), read
        began = time.monotonic()
        for n in range(100):
            assert store.is_exist(f"key {n}") == 0
            assert store.put(f"key {n}", b"x") < 0
            assert store.get(f"key {n}") == b""
            assert store.get_size(f"key {n}") < 0
            assert store.batch_is_exist(["known", f"key {n}"]) == [0, 0]
        taken = time.monotonic() - began
        # Each call used to wait anew: 500 of them for 1,000 s at the least.
        assert taken < PATIENCE / 2, taken
        assert store.health_check() == 2
    finally:
        back(own_master)
    until(lambda: store.health_check() == 0)
    until(lambda: store.is_exist("known") == 1)
    until(lambda: store.put("after", b"value") == 0)
    assert store.get("after") == b"value" and store.get("known") == value


@pytest.mark.check(50)
def test_closing_without_a_master(make_store, own_master):
    store = make_store(master=own_master)
    own_master.kill()
    began = time.monotonic()
    assert store.close() == 0
    assert time.monotonic() - began < PATIENCE
    own_master.start()


def test_reads_after_the_lease(store):
    assert store.put("later", b"value") == 0 and store.get("later") == b"value"
    after_lease()
    assert store.get("later") == b"value"


def test_keys_of_an_owner_that_left_can_be_put_at_once(make_store, own_master):
    # The master takes the objects of a node that left out of its index bit by bit; until it has come to a
    # key, a put of it is refused for some milliseconds, which no caller should see.
    keys = [f"left/{n}" for n in range(1000)]
    first, second = make_store(master=own_master), make_store(master=own_master)
    for turn in range(3):
        name = (first, second)[turn % 2].get_hostname()
        wish = ReplicateConfig()
        wish.preferred_segment = name
        assert first.put_batch(keys, [b"x" * 100] * 1000, wish) == 0
        other = make_store(master=own_master)
        first.close()
        first = other
        assert second.put_batch(keys, [b"y" * 100] * 1000) == 0
        assert second.remove_all(force=True) > 0
