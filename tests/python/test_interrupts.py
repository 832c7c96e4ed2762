"""Ctrl-C ends a call that waits, and leaves everything in order: values, buffers, keys, the store itself."""

import ctypes
import json
import os
import pathlib
import select
import signal
import subprocess
from operator import itemgetter

import pytest

import mooncrate
from conftest import PATIENCE, Server, python

HERE = str(pathlib.Path(__file__).parent)
FRONT = """
import os, signal, sys, threading
sys.path.insert(0, sys.argv[1])
import mooncrate
from interrupts import *
master, pid, path = sys.argv[2], int(sys.argv[3]), sys.argv[4]
options = {"master": master, "timeout": HOUR, "shared_memory": path == "shared memory"}
"""
PATHS = ["shared memory", "tcp"]


def program(code, master, pid, path):
    lines = code.splitlines()
    indent = min(len(line) - len(line.lstrip()) for line in lines if line.strip())
    body = "\n".join(line[indent:] for line in lines)
    try:
        assert python(FRONT + body + "\nprint('ended well')\n", HERE, master, str(pid), path) == "ended well\n"
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.fixture(scope="module")
def own_server(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("interrupts"))
    yield server
    server.stop()


class Node:
    """`mooncrate node`: an owner that can be stopped while its master goes on."""

    def __init__(self, folder, master, environment):
        arguments = [os.environ["MOONCRATE_BINARY"], "node", "--json", "--master", master]
        arguments += ["--data", "127.0.0.1:0", "--segment-size", "96MiB", "--unix", str(folder / "node.sock")]
        self.log = open(folder / "node.log", "wb")
        self.process = subprocess.Popen(
            arguments, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=self.log
        )
        ready, _, _ = select.select([self.process.stdout], [], [], PATIENCE)
        line = self.process.stdout.readline() if ready else b""
        assert line, f"the node did not start: {(folder / 'node.log').read_text()}"
        json.loads(line)

    def stop(self):
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        self.process.wait(PATIENCE)
        self.process.stdout.close()
        self.log.close()


@pytest.fixture(scope="module")
def owner(tmp_path_factory):
    """A master, and one node that can be stopped."""
    folder = tmp_path_factory.mktemp("owner")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MOONCRATE_")}
    environment["XDG_RUNTIME_DIR"] = str(folder)
    arguments = [os.environ["MOONCRATE_BINARY"], "master", "--json", "--master", "127.0.0.1:0"]
    arguments += ["--admin", "off", "--grpc", "off", "--put-timeout", "10s"]
    log = open(folder / "master.log", "wb")
    master = subprocess.Popen(arguments, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=log)
    ready, _, _ = select.select([master.stdout], [], [], PATIENCE)
    line = master.stdout.readline() if ready else b""
    assert line, f"the master did not start: {(folder / 'master.log').read_text()}"
    address = json.loads(line)["master"]
    node = Node(folder, address, environment)
    yield address, node.process.pid
    node.stop()
    master.terminate()
    master.wait(PATIENCE)
    master.stdout.close()
    log.close()


def test_calls_to_a_master_that_stands_still(own_server):
    """All calls that ask it; before, each waited for its whole timeout. A put that the master plans after that keeps its
    key for a while, as after a timeout: nobody has its token. So no other test uses these keys."""
    program("""
        value = os.urandom(100_000)
        with mooncrate.Store(**options) as store:
            store.put("key", value)
            still(pid, store.put, "other", value)
            still(pid, store.put_batch, {"a": value, "b": value})
            still(pid, store.remove, "unknown")
            still(pid, store.put_session, "session", 1000)
            still(pid, mooncrate.Store, **options)
            # A master may take 3 s for these, whatever the timeout. On a busy machine that may be over before Ctrl-C
            # comes: then the call has an error of its own, and is made again when the master answers.
            for call, *given in [
                (store.get, "unknown"), (store.get_batch, ["unknown", "also unknown"]), (store.exists, "unknown"),
                (store.stats,), (lambda: [*store.list()],), (store.get_session, "key"),
            ]:
                while not still_or_too_late(pid, call, *given):
                    eventually(store.exists, "unknown")
            assert eventually(store.get, "key") in (None, value)
            eventually(store.put, "fresh", value)
            assert eventually(store.get, "fresh") in (None, value)
            eventually(store.remove_prefix, "", force=True)
    """, own_server.master, own_server.process.pid, "tcp")


@pytest.mark.parametrize("path", PATHS)
def test_puts_to_an_owner_that_stands_still(owner, path):
    """A put that was interrupted is given up: its key and its bytes are free again. The word to the master has 64 ms;
    where that is too short, the master finds out after its `--put-timeout`."""
    program("""
        store = mooncrate.Store(**options)
        # The ways to the owner are found, and its memory is mapped, where that is asked for.
        settled(store)
        small, large = os.urandom(1000), os.urandom(8 << 20)
        for call, *given in [
            (store.put, "small", small), (store.put, "large", large), (store.put_batch, {"one": small, "two": large}),
        ]:
            still(pid, call, *given)
            settled(store)
        # False: a put of the key is under way. None was ended, so no key has a value.
        for key, value in {"small": large, "large": small, "one": large, "two": small}.items():
            while not eventually(store.put, key, value):
                time.sleep(0.05)
            assert eventually(store.get, key) in (None, value), key
        session = store.put_session("session", 2000)
        session.write(0, small)
        still(pid, session.write, 1000, small)
        try:
            session.write(1000, small)
        except mooncrate.Error as error:
            assert "revoke the session" in str(error), error
        else:
            raise AssertionError("a part is written that did not arrive")
        session.revoke()
        settled(store)
        assert eventually(store.get, "session") is None
        session = eventually(store.put_session, "ended", 1000)
        session.write(0, small)
        still(pid, session.end)
        # Given up, or ended: but never something else.
        assert eventually(store.get, "ended") in (None, small)
        eventually(store.remove_prefix, "", force=True)
        store.close()
    """, *owner, path)


def test_gets_from_an_owner_that_stands_still(owner):
    """Nobody writes to the caller's memory after the call was interrupted."""
    program("""
        store = mooncrate.Store(**options)
        settled(store)
        values = {f"key{number}": os.urandom(12 << 20) for number in range(2)}
        store.put_batch(values)
        assert store.get("key0") == values["key0"]
        target = bytearray(b"x" * (12 << 20))
        for call, *given in [
            (store.get, "key0"), (store.get_into, "key0", target), (store.get_range, "key0", 100, 1000),
            (store.get_batch, [*values]),
        ]:
            still(pid, call, *given)
            settled(store)
        before = bytes(target)
        for key, value in values.items():
            assert eventually(store.get, key) in (None, value)
        assert target == before == b"x" * len(target)
        # In the middle of a value, where it happens so: the owner stands still while its bytes are on their way.
        def stop_and_interrupt():
            held(pid)
            until_main_waits()
            interrupt()
        for _ in range(3):
            target[:] = b"x" * len(target)
            thread = threading.Thread(target=stop_and_interrupt)
            try:
                thread.start()
                store.get_into("key1", target)
                thread.join()
            except KeyboardInterrupt:
                pass
            before = bytes(target)
            thread.join()
            goes_on(pid)
            assert eventually(store.get, "key1") in (None, values["key1"])
            assert target == before
        eventually(store.remove_prefix, "", force=True)
        store.close()
    """, *owner, "tcp")


def test_a_view_of_an_owner_that_stands_still(owner):
    """The link of all views is held under a lock meanwhile: only Ctrl-C with Python's own handler is looked for."""
    program("""
        store = mooncrate.Store(**options)
        settled(store)
        value = os.urandom(100_000)
        store.put("key", value)
        view = store.view("key")
        still(pid, store.view, "key")
        assert bytes(view) == value
        again = eventually(store.view, "key")
        assert again is None or bytes(again) == value
        view.release()
        eventually(store.remove, "key", force=True)
        store.close()
    """, *owner, "shared memory")


def test_a_session_that_is_given_up_while_the_master_stands_still(own_server):
    """Before, the words to the master had the whole timeout of the store, and no Ctrl-C ended the wait; after an interrupted
    write that was in a deallocator."""
    program("""
        store = mooncrate.Store(**options)
        part = os.urandom(1000)
        def begun(key):
            session = eventually(store.put_session, f"given up/{key}", 2000)
            session.write(0, part)
            return session
        session = begun("revoked")
        still(pid, session.revoke)
        # A deallocator cannot raise. What Python runs next does.
        sessions = [begun("dropped")]
        def drop():
            sessions.clear()
            return len(sessions)
        still(pid, drop)
        # Where Ctrl-C has ended a call of the session, no second one is needed.
        session = begun("interrupted")
        held(pid)
        interrupted(session.write, 1000, part)
        del session
        goes_on(pid)
        # Nor after whatever else ends a program.
        class Ended(BaseException):
            pass
        for kind in (SystemExit, KeyboardInterrupt, Ended):
            try:
                with begun(f"left by {kind.__name__}"):
                    held(pid)
                    raise kind
            except kind:
                goes_on(pid)
        eventually(store.remove_prefix, "", force=True)
        store.close()
    """, own_server.master, own_server.process.pid, "tcp")


def test_a_handler_that_raises_nothing_ends_nothing(own_server):
    """It runs while the call waits, may use the store, and the call goes on."""
    program("""
        value = os.urandom(100_000)
        store = mooncrate.Store(**options)
        store.put("handler/key", value)
        seen = []
        def handler(number, frame):
            goes_on(pid)
            seen.append(store.get("handler/key"))
        signal.signal(signal.SIGUSR1, handler)
        held(pid)
        thread = when_main_waits(lambda: os.kill(os.getpid(), signal.SIGUSR1))
        assert store.put("handler/other", value)
        thread.join()
        assert seen == [value] and eventually(store.get, "handler/other") == value
        class Stop(Exception):
            pass
        def stops(number, frame):
            raise Stop("enough")
        signal.signal(signal.SIGUSR1, stops)
        held(pid)
        thread = when_main_waits(lambda: os.kill(os.getpid(), signal.SIGUSR1))
        try:
            store.put("handler/third", value)
        except Stop as error:
            assert error.__context__ is None
        thread.join()
        goes_on(pid)
        eventually(store.remove_prefix, "", force=True)
        store.close()
    """, own_server.master, own_server.process.pid, "tcp")


def test_other_threads_wait_on(own_server):
    """Python runs handlers in its main thread; a call of another one gets its answer."""
    program("""
        store = mooncrate.Store(**options)
        store.put("threads/key", b"value")
        got = []
        held(pid)
        other = threading.Thread(target=lambda: got.append(eventually(store.put, "threads/other", b"value")))
        other.start()
        interrupted(store.put, "threads/third", b"value")
        goes_on(pid)
        other.join()
        assert len(got) == 1
        eventually(store.remove_prefix, "", force=True)
        store.close()
    """, own_server.master, own_server.process.pid, "tcp")


def test_an_interrupt_is_no_result(store):
    """One that came while the errors of a batch were made stood in their place, and was raised no more: the drop-in took
    it for a put that was done."""
    trip = ctypes.pythonapi.PyErr_SetInterruptEx
    trip.argtypes = [ctypes.c_int]

    def tripped(*keys):
        # Nothing of this runs Python: the handler is due when the first exception is made.
        return map(itemgetter(0), zip(keys, map(trip, [signal.SIGINT.value] * len(keys)), strict=True))

    with pytest.raises(KeyboardInterrupt):
        store.get_batch(tripped("", ""))
    # Also in the first call of a thread, which finds out whether it is the main thread.
    first = """
        import ctypes, mooncrate
        from operator import itemgetter
        store = mooncrate.Store(segment_size="1MiB")
        keys = map(itemgetter(0), zip([""], map(ctypes.pythonapi.PyErr_SetInterruptEx, [2])))
        try:
            print(store.get_batch(keys))
        except KeyboardInterrupt:
            print("raised")
    """
    assert python(first) == "raised\n"
    with pytest.raises(KeyboardInterrupt):
        mooncrate._native.Raw(store).get_at(tripped("a", "b"), [[0], [0]], [[1], [1]])
    assert isinstance(store.get_batch([""])[0], mooncrate.Invalid)


def test_ranks_that_wait_for_others(tmp_path):
    """A rank that nobody joins, of both kinds; and a layer to which the other rank does not come. There the rank waits with
    its lock, and only Ctrl-C with Python's own handler is looked for."""
    said = python(
        """
        import subprocess, sys
        import numpy as np
        sys.path.insert(0, sys.argv[1])
        from interrupts import *
        from mooncrate.ep import Communicator
        from mooncrate.nano import NanoKVCache
        shape = {"tokens_max": 4, "top_k": 1, "hidden": 16, "experts": 2}
        for rank in range(2):
            interrupted(lambda: Communicator(path=f"{sys.argv[2]}/ep{rank}", rank=rank, world=2, join_timeout=HOUR,
                                             backend="host", **shape))
            interrupted(lambda: NanoKVCache(path=f"{sys.argv[2]}/nano{rank}", rank=rank, world=2, heap_bytes=1 << 20,
                                            page_bytes=4096, slots=8, backend="host", join_timeout=HOUR))
        layer = dict(path=f"{sys.argv[2]}/layer", world=2, backend="host", join_timeout=HOUR, timeout=HOUR,
                     first_timeout=HOUR, **shape)
        # Joins, comes to no layer, and leaves when it is told.
        joins = "import sys; from mooncrate.ep import Communicator; held = Communicator(rank=1, **eval(sys.argv[1]))"
        joins += "; print('joined', flush=True); sys.stdin.read(); held.close()"
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        other = subprocess.Popen([sys.executable, "-c", joins, repr(layer)], **pipes)
        with Communicator(rank=0, **layer) as ep:
            assert other.stdout.readline() == b"joined\\n"
            given = np.zeros((2, 16), np.uint16), np.ones((2, 1), np.int32), np.ones((2, 1), np.float32)
            interrupted(ep.dispatch, *given, layer=0)
            try:
                ep.dispatch(*given, layer=0)
            except mooncrate.Error as error:
                assert error.kind == "timeout", error
            else:
                raise AssertionError("the layer has failed, but nobody knows")
            # Ranks wait for each other when they leave, too.
            other.stdin.close()
        assert other.wait() == 0
        other.stdout.close()
        print("ended well")
        """,
        HERE, str(tmp_path),
    )
    assert said == "ended well\n"
