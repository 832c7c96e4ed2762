"""How often a batch asks the master: as often for many keys as for one. Counted by the master, not by a clock."""

import os
import re
import urllib.request

import pytest
from conftest import PATIENCE, memory
from mooncake.store import ReplicateConfig

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
