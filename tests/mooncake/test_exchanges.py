"""How often a batch asks the master: as often for many keys as for one. Counted by the master, not by a clock."""

import os
import re
import time
import urllib.request

import pytest
from conftest import LEASE_SECONDS, MIB, PATIENCE, memory
from mooncake.store import ReplicateConfig
from processes import until

KEYS = 32
SIZE = 1000
# What clients ask for by themselves, or at their own times.
ASIDE = {"heartbeat", "orders", "read_marks", "ping", "nodes", "mount", "announce", "stat", "hello"}

pytestmark = pytest.mark.skipif(
    bool(os.environ.get("MOONCAKE_MASTER")), reason="the published master counts no requests by kind"
)


class Asked:
    """Counts the requests that a master has answered."""

    def __init__(self, master):
        self.url = f"{master.admin}/metrics"
        self.before = self._now()

    def _now(self):
        with urllib.request.urlopen(self.url, timeout=PATIENCE) as answer:
            page = answer.read().decode()
        rows = re.findall(r'^mooncrate_master_request_seconds_count\{kind="(\w+)"\} (\d+)$', page, re.M)
        assert rows, page
        return {kind: int(count) for kind, count in rows if kind not in ASIDE}

    def since(self):
        """Requests by kind since the last look."""
        before, self.before = self.before, self._now()
        grown = {kind: now - before.get(kind, 0) for kind, now in self.before.items()}
        return {kind: count for kind, count in grown.items() if count}


def grouped(groups):
    made = ReplicateConfig()
    made.group_ids = groups
    return made


def test_groups_cost_no_exchanges(own_master, make_store):
    store = make_store(master=own_master)
    source = memory(KEYS * SIZE)
    assert store.register_buffer(source.ptr, source.size) == 0
    places, sizes = [source.ptr + n * SIZE for n in range(KEYS)], [SIZE] * KEYS
    names = {kind: [f"{kind}/{n}" for n in range(KEYS)] for kind in ("plain", "each", "some")}
    asked = Asked(own_master)
    assert store.batch_put_from(names["plain"], places, sizes) == [0] * KEYS
    plain = asked.since()
    assert plain == {"put_start": 1, "put_end": 1}
    each = [f"group {n}" for n in range(KEYS)]
    assert store.batch_put_from(names["each"], places, sizes, grouped(each)) == [0] * KEYS
    assert asked.since() == plain
    some = ["", *["even", "odd"] * (KEYS // 2)][:KEYS]
    assert store.put_batch(names["some"], [b"value"] * KEYS, grouped(some)) == 0
    assert asked.since() == plain
    fragments = [[place] for place in places]
    more = [f"more/{n}" for n in range(KEYS)]
    put = store.batch_put_from_multi_buffers
    assert put(more, fragments, [[SIZE]] * KEYS, grouped(each)) == [0] * KEYS
    assert asked.since() == plain
    # An upsert looks first whether the groups of what it replaces are the same; once.
    assert store.batch_upsert_from(names["each"], places, sizes, grouped(each)) == [0] * KEYS
    assert asked.since() == {"look": 1, **plain}


def test_each_key_has_the_group_that_it_was_given(own_master, make_store):
    store = make_store(master=own_master)
    source = memory(b"value" * KEYS)
    keys = [f"of/{n}" for n in range(KEYS)]
    groups = [f"group {n % 5}" if n % 7 else "" for n in range(KEYS)]
    # One of them makes no sense, and takes no group of another one along.
    places = [source.ptr + 5 * n for n in range(KEYS)]
    codes = store.batch_put_from([*keys, "bad"], [*places, 0], [5] * (KEYS + 1), grouped(["x", *groups]))
    assert codes == [0] * KEYS + [-600]
    assert store.batch_remove(keys) == [0] * KEYS
    codes = store.batch_put_from(["bad", *keys], [0, *places], [5] * (KEYS + 1), grouped(["x", *groups]))
    assert codes == [-600] + [0] * KEYS
    # An upsert may not change a group.
    upsert = store.batch_upsert_from
    assert upsert(keys, places, [5] * KEYS, grouped(groups)) == [0] * KEYS
    others = [f"group {(n + 1) % 5}" for n in range(KEYS)]
    assert upsert(keys, places, [5] * KEYS, grouped(others)) == [-600] * KEYS


def test_a_put_that_waits_for_room_keeps_its_groups(own_master, make_store):
    store = make_store(16 * MIB, master=own_master)
    source = memory(MIB // 2)
    groups = [f"group {n}" for n in range(24)]
    # Room is made by the owner, while the master has the batch aside.
    for turn in range(3):
        keys = [f"{turn}/{n}" for n in range(24)]
        places, sizes = [source.ptr] * 24, [source.size] * 24
        assert store.batch_put_from(keys, places, sizes, grouped(groups)) == [0] * 24
    raw = store._live.raw

    def is_known():
        # Memory above its watermark goes on being emptied, between two looks too.
        there = [code == 1 for code in store.batch_is_exist(keys)]
        assert any(there) and raw.other_group(keys, groups) == [False] * 24
        return raw.other_group(keys, [""] * 24) == there

    until("both looks see the same", is_known)


def test_sessions_are_started_and_ended_together(own_master, make_store):
    store = make_store(master=own_master)
    source, target = memory(bytes(range(250)) * 4 * KEYS), memory(KEYS * SIZE)
    keys = [f"session/{n}" for n in range(KEYS)]
    columns = [[[source.ptr + n * SIZE] for n in range(KEYS)], [[SIZE]] * KEYS, [[0]] * KEYS]
    asked = Asked(own_master)
    each = grouped([f"group {n}" for n in range(KEYS)])
    assert store.batch_put_session_start(keys, [SIZE] * KEYS, each) == [0] * KEYS
    assert asked.since() == {"put_start": 1}
    assert store.batch_put_from_multi_buffer_ranges(keys, *columns) == [SIZE] * KEYS
    assert asked.since() == {}
    assert store.batch_put_session_end(keys) == [0] * KEYS
    assert asked.since() == {"put_end": 1}
    given_up = [f"given up/{n}" for n in range(KEYS)]
    assert store.batch_put_session_start(given_up, [SIZE] * KEYS) == [0] * KEYS
    assert store.batch_put_session_revoke(given_up) == [0] * KEYS
    assert asked.since() == {"put_start": 1, "put_revoke": 1}
    # Missing ones, and one that is being written, need no second question.
    assert store.batch_put_session_start(["writing"], [1]) == [0]
    asked.since()
    start = store.batch_get_session_start
    assert start([*keys, "missing", "writing"]) == [0] * KEYS + [-704, -703]
    assert asked.since() == {"look": 1}
    columns[0] = [[target.ptr + n * SIZE] for n in range(KEYS)]
    counts = []
    for _ in range(50):
        assert start(keys) == [0] * KEYS
        asked.since()
        # In the second half of a lease a read renews it. A machine that is too busy reads later, or for too long.
        time.sleep(LEASE_SECONDS * 0.6)
        codes = store.batch_get_into_multi_buffer_ranges(keys, *columns)
        assert set(codes) <= {SIZE, -707}
        counts.append(asked.since().get("look", 0))
        if codes == [SIZE] * KEYS and counts[-1] == 1:
            break
    assert counts[-1] == 1, counts
    assert bytes(target) == bytes(source)
    assert store.batch_get_session_end(keys) == 0
    assert asked.since() == {}


def test_ranges_of_many_buffers_are_looked_up_together(own_master, make_store):
    writer = make_store(master=own_master)
    store = make_store(0, master=own_master)
    values = [bytes([n]) * SIZE for n in range(KEYS)]
    keys = [f"range/{n}" for n in range(KEYS)]
    assert writer.put_batch(keys, values) == 0
    target = memory(KEYS * SIZE)
    assert store.register_buffer(target.ptr, target.size) == 0
    asked = Asked(own_master)
    found = store.get_into_ranges(
        [target.ptr + n * SIZE for n in range(KEYS)],
        [[key] for key in keys],
        [[[10, 0]]] * KEYS,
        [[[5, 0]]] * KEYS,
        [[[SIZE - 10, 10]]] * KEYS,
    )
    assert found == [[[SIZE - 10, 10]]] * KEYS
    assert asked.since() == {"look": 1}
    assert bytes(target) == b"".join(values)


def test_the_size_of_a_value_is_asked_for_once_in_a_while(own_master, make_store):
    """Each call asked the master, although the store knew the value's place and length."""
    store, calls = make_store(master=own_master), 1000
    assert store.put("sized", b"x" * SIZE) == 0
    asked = Asked(own_master)
    assert {store.get_size("sized") for _ in range(calls)} == {SIZE}
    # What was asked for holds for half of the lease.
    assert sum(asked.since().values()) < calls / 4
    assert store.remove("sized", True) == 0
    assert store.get_size("sized") == -704
