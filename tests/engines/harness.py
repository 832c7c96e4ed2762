"""What the scripts of all engines share: a live cluster, rows for the table, and the checks that every engine must pass.

An engine script wraps the engine's own integration code in a `Driver` and hands it to `drive`. Nothing here
knows an engine, and nothing replaces a part of one.
"""

import contextlib
import hashlib
import json
import os
import pathlib
import shutil
import sys
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "mooncake"))

# Scripts of the engines import PATIENCE and until from here.
from processes import PATIENCE, Cluster, Program, until

PAGES = 8


class Table:
    """Rows of one engine: written as soon as they are known, so that a crash loses none."""

    def __init__(self, engine, version):
        self.engine = f"{engine} {version}"
        self.path = os.environ["ENGINES_ROWS"]

    def row(self, what, result, seen):
        line = {"engine": self.engine, "check": what, "result": result, "seen": seen}
        with open(self.path, "a", encoding="utf-8") as rows:
            rows.write(json.dumps(line) + "\n")
        print(f"== {result}: {what}: {seen}", flush=True)

    @contextlib.contextmanager
    def check(self, what):
        """One row: it holds unless the body raises. What the body puts into the list is shown."""
        seen, began = [], time.monotonic()
        try:
            yield seen
        except Exception as error:
            traceback.print_exc()
            words = str(error).strip().splitlines() or [type(error).__name__]
            self.row(what, "FAILED", words[0][:160])
        else:
            took = f"{time.monotonic() - began:.1f} s"
            self.row(what, "holds", ", ".join([*seen, took]))


class Live(Cluster):
    """A `mooncake_master` that can be killed and comes back at its port, and owners that can be killed."""

    def __init__(self, folder):
        self.flags = (f"--state_file={folder / 'master.state'}", "--default_kv_lease_ttl=500")
        super().__init__(folder, *self.flags)

    def kill_master(self):
        _kill(self.master)

    def start_master(self):
        ports = (self.port, self.admin)
        where = (f"--rpc_port={self.port}", f"--metrics_port={self.admin}")
        self.master = Program(self.folder, "mooncake_master", *where, *self.flags, ports=ports)

    def kill(self, owner):
        _kill(owner)
        self.clients.remove(owner)

    def end(self):
        """Ends what is still there, by its id."""
        for program in [*self.clients, self.master]:
            _kill(program)


def _kill(program):
    program.process.kill()
    program.process.wait()


@contextlib.contextmanager
def live():
    # Short: the path of a Unix socket has at most 107 bytes.
    folder = pathlib.Path(tempfile.mkdtemp(prefix="engines-"))
    cluster = Live(folder)
    try:
        yield cluster
    finally:
        cluster.end()
        shutil.rmtree(folder, ignore_errors=True)


def page(word, number, size):
    """A page that no other page equals, in any part of it."""
    return hashlib.shake_256(f"{word}/{number}".encode()).digest(size)


class Driver:
    """An engine's integration code: pages go in and out under names of the engine's own."""

    size = 0

    def put(self, word, numbers, content=None):
        """Stores pages; whether the engine takes all of them for stored."""
        raise NotImplementedError

    def hits(self, word, numbers):
        """How many pages from the first on the engine takes for present."""
        raise NotImplementedError

    def get(self, word, numbers):
        """What the engine loads: bytes, or None where it takes a page for missing."""
        raise NotImplementedError

    def page(self, word, number):
        return page(word, number, self.size)

    def loads(self, word, numbers, content=None):
        """How many pages were loaded. Every one of them has the right bytes, or this raises."""
        found = self.get(word, numbers)
        for number, one in zip(numbers, found, strict=True):
            if one is not None and one != self.page(content or word, number):
                raise AssertionError(f"WRONG BYTES in page {number} of {word}")
        return sum(one is not None for one in found)


def equal(what, seen, wanted):
    if seen != wanted:
        raise AssertionError(f"{what}: {seen}, not {wanted}")


def round_trip(driver, word, count=PAGES):
    """Puts pages, finds them, and has their bytes."""
    numbers = range(count)
    equal("stored", driver.put(word, numbers), True)
    equal("hits", driver.hits(word, numbers), count)
    equal("pages loaded", driver.loads(word, numbers), count)


def drive(table, cluster, owner, driver, prefix=""):
    """The checks that are the same for every engine. `owner` has all the memory there is."""
    pages = range(PAGES)
    with table.check(f"{prefix}pages that nobody stored are misses"):
        equal("hits", driver.hits("never", pages), 0)
        equal("pages loaded", driver.loads("never", pages), 0)
    with table.check(f"{prefix}pages are stored, found and loaded, bytes verified") as seen:
        round_trip(driver, "first")
        seen.append(f"{PAGES} pages of {driver.size} bytes")
    _without_master(table, cluster, driver, prefix)
    _meanwhile(table, cluster, driver, prefix)
    _without_owner(table, cluster, owner, driver, prefix)


def _without_master(table, cluster, driver, prefix):
    pages = range(PAGES)
    cluster.kill_master()
    with table.check(f"{prefix}master killed: no page that nobody stored is a hit"):
        equal("hits", driver.hits("never", pages), 0)
        equal("pages loaded", driver.loads("never", pages), 0)
    with table.check(f"{prefix}master killed: right bytes or a miss") as seen:
        seen.append(f"{driver.loads('first', pages)} of {PAGES} loaded")
    with table.check(f"{prefix}master killed: a put is not acknowledged, and the engine lives"):
        equal("stored", driver.put("lost", pages), False)
    cluster.start_master()
    with table.check(f"{prefix}master back: every page is found and loaded, bytes verified"):
        until("all are found", lambda: driver.hits("first", pages) == PAGES)
        until("all are loaded", lambda: driver.loads("first", pages) == PAGES)
    with table.check(f"{prefix}master back: pages are stored again"):
        until("a put is taken", lambda: driver.put("second", pages))
        equal("pages loaded", driver.loads("second", pages), PAGES)


def _meanwhile(table, cluster, driver, prefix):
    """Pages are stored and loaded all the time, while the master is killed and started again."""
    pages, rounds = range(PAGES), Rounds()

    def operator():
        rounds.wait(3)
        cluster.kill_master()
        rounds.wait(3)
        cluster.start_master()

    with table.check(f"{prefix}master killed and back under traffic: no wrong byte") as seen:
        acknowledged = loaded = 0
        with ThreadPoolExecutor(1) as executor:
            done = executor.submit(operator)
            try:
                while not done.done():
                    word = f"traffic-{rounds.count % 4}"
                    acknowledged += driver.put(word, pages)
                    loaded += driver.loads(word, pages)
                    rounds.count += 1
            finally:
                # The operator waits for no traffic that has ended, and leaves a master behind.
                rounds.over = True
            done.result()
        until("a put is taken", lambda: driver.put("after", pages))
        equal("pages loaded", driver.loads("after", pages), PAGES)
        seen.append(f"{rounds.count} rounds, {acknowledged} acknowledged, {loaded} pages loaded")


class Rounds:
    """How far the traffic is."""

    def __init__(self):
        self.count, self.over = 0, False

    def wait(self, more):
        """Until so many more rounds are over."""
        goal = self.count + more
        until("the traffic goes on", lambda: self.over or self.count >= goal)


def _without_owner(table, cluster, owner, driver, prefix):
    pages = range(PAGES)
    cluster.kill(owner)
    with table.check(f"{prefix}owner killed: right bytes or a miss") as seen:
        seen.append(f"{driver.loads('first', pages)} of {PAGES} loaded")
    with table.check(f"{prefix}owner killed: its pages become misses"):
        until("no hit is left", lambda: driver.hits("first", pages) == 0)
        equal("pages loaded", driver.loads("first", pages), 0)
    cluster.lend(size="64MB")
    with table.check(f"{prefix}another owner: the same keys hold what was stored last"):
        until("a put is taken", lambda: driver.put("first", pages, content="again"))
        equal("pages loaded", driver.loads("first", pages, content="again"), PAGES)
