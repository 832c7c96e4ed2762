"""Other processes: readers and writers, forks, ends, signals."""

import os
import signal
import subprocess
import sys
import textwrap

import pytest

import mooncrate
from conftest import PATIENCE, python


@pytest.mark.parametrize("shared_memory", [True, False], ids=["shared memory", "tcp"])
def test_two_processes_share_values(server, shared_memory):
    """Another Python writes, this one reads, and the other way round."""
    name = f"two/{shared_memory}"
    with mooncrate.Store(master=server.master, shared_memory=shared_memory) as store:
        store.put(f"{name}/ours", b"to them" * 10_000)
        said = python(
            """
            import sys, mooncrate
            master, near, name = sys.argv[1:]
            with mooncrate.Store(master=master, shared_memory=near == "True") as store:
                assert store.get(f"{name}/ours") == b"to them" * 10_000
                assert store.put(f"{name}/theirs", b"to us" * 10_000)
                view = store.view(f"{name}/ours")
                print(view.in_place, bytes(memoryview(view)[:7]))
            """,
            server.master, str(shared_memory), name,
        )
        assert said == f"{shared_memory} b'to them'\n"
        assert store.get(f"{name}/theirs") == b"to us" * 10_000
        with store.view(f"{name}/theirs") as view:
            assert view.in_place == shared_memory and bytes(view) == b"to us" * 10_000


@pytest.mark.parametrize("where", ["embedded", "connected"])
def test_a_forked_child_gets_an_exception_and_can_open_its_own(server, where):
    said = python(
        """
        import gc, os, sys, warnings, mooncrate
        warnings.simplefilter("ignore", DeprecationWarning)   # of forks with threads
        options = {"master": sys.argv[1]} if len(sys.argv) > 1 else {}
        store = mooncrate.Store(**options)
        store.put("fork/key", b"value", upsert=True)
        view = store.view("fork/key")
        child = os.fork()
        if child == 0:
            calls = [lambda: store.get("fork/key"), lambda: store.put("x", b"y"), store.stats, store.close,
                     lambda: len(view), lambda: memoryview(view), view.release, lambda: [*store.list()]]
            for call in calls:
                try:
                    call()
                except mooncrate.Closed as error:
                    assert "fork" in str(error), error
                else:
                    os._exit(1)
            assert repr(store) == "<mooncrate.Store, of another process>", repr(store)
            assert store.closed
            with mooncrate.Store(**options) as own:
                own.put("fork/own", b"of the child", upsert=True)
                assert own.get("fork/own") == b"of the child"
            del store, view
            gc.collect()
            sys.exit(7)   # through every finaliser
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 7, status
        # What the child let go of is still the parent's.
        assert store.remove("fork/key", force=True)
        for number in range(8):
            store.put(f"fork/{number}", bytes(1 << 20), upsert=True)
        assert bytes(view) == b"value"
        print("parent well")
        """,
        *([server.master] if where == "connected" else []),
    )
    assert said == "parent well\n"


def test_children_of_a_busy_process_can_open_stores():
    """Locks whose waiters stand in a table of the process gave children a table of threads that do not
    exist: of a thousand children four aborted or hung."""
    said = python(
        """
        import faulthandler, os, threading, warnings, mooncrate
        warnings.simplefilter("ignore", DeprecationWarning)
        def busy():
            while True:
                with mooncrate.Store(segment_size="1MiB") as store:
                    for number in range(50):
                        store.put(f"key/{number}", bytes(1000))
        def use(store, name):
            for number in range(20):
                store.put(f"{name}/{number}", bytes(1000))
                assert store.get(f"{name}/{number}") == bytes(1000)
        for _ in range(8):
            threading.Thread(target=busy, daemon=True).start()
        ends = []
        for _ in range(60):
            child = os.fork()
            if child == 0:
                faulthandler.dump_traceback_later(30, exit=True)
                with mooncrate.Store(segment_size="1MiB") as store:
                    threads = [threading.Thread(target=use, args=(store, name)) for name in "abc"]
                    for thread in threads:
                        thread.start()
                    for thread in threads:
                        thread.join()
                os._exit(7)
            ends.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        print({*ends}, flush=True)
        os._exit(0)
        """
    )
    assert said == "{7}\n"


def test_children_of_a_process_that_lets_go_of_objects_go_on(server):
    """Room for a value that was gone was given back without the GIL, under a lock of the whole process: a
    child that was forked in that moment waited for it in its first call."""
    said = python(
        """
        import faulthandler, os, sys, threading, warnings, mooncrate
        warnings.simplefilter("ignore", DeprecationWarning)
        reader, writer = (mooncrate.Store(master=sys.argv[1]) for _ in range(2))
        def busy(name):
            keys = [f"{name}/{number}" for number in range(64)]
            while True:
                writer.put_batch((key, bytes(20_000)) for key in keys)
                # From now on it remembers where they are, also when they are gone.
                reader.get_batch(keys)
                writer.remove_batch(keys)
                assert reader.get_batch(keys) == [None] * len(keys)
        for name in "abcd":
            threading.Thread(target=busy, args=(name,), daemon=True).start()
        for _ in range(200):
            child = os.fork()
            if child == 0:
                faulthandler.dump_traceback_later(20, exit=True)
                assert reader.closed
                os._exit(7)
            end = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            if end != 7:
                break
        print(end, flush=True)
        os._exit(0)
        """,
        server.master,
    )
    assert said == "7\n"


def test_multiprocessing_by_fork_does_not_hang():
    said = python(
        """
        import multiprocessing, warnings, mooncrate
        warnings.simplefilter("ignore", DeprecationWarning)
        store = mooncrate.Store()
        def work(number):
            try:
                store.get("key")
            except mooncrate.Closed:
                return number
        with multiprocessing.get_context("fork").Pool(2) as pool:
            print(pool.map(work, range(4)))
        """
    )
    assert said == "[0, 1, 2, 3]\n"


@pytest.mark.parametrize(
    "end",
    ["pass", "sys.exit(0)", "del store", "store.close()", "loop = [store, view]; loop.append(loop)"],
)
@pytest.mark.parametrize("where", ["embedded", "connected"])
def test_the_interpreter_ends_well_with_open_stores_and_views(server, where, end):
    code = """
        import sys, threading, numpy, mooncrate
        options = {"master": sys.argv[1]} if len(sys.argv) > 1 else {}
        store = mooncrate.Store(**options)
        store.put("exit/key", bytes(1000))
        view = store.view("exit/key")
        shown, seen = memoryview(view), numpy.frombuffer(view, numpy.uint8)
        def busy():
            other = mooncrate.Store(**options)
            other.put("exit/busy", bytes(1000))
            while True:
                other.get("exit/busy")
        threading.Thread(target=busy, daemon=True).start()
        print(len(seen), flush=True)
    """
    code = textwrap.dedent(code) + end
    assert python(code, *([server.master] if where == "connected" else [])) == "1000\n"


def test_ctrl_c_ends_a_long_row_of_calls():
    code = """
        import mooncrate
        store = mooncrate.Store()
        store.put("key", bytes(1000))
        try:
            print("ready", flush=True)
            while True:
                store.get("key")
        except KeyboardInterrupt:
            assert store.get("key") == bytes(1000)
            print("interrupted")
    """
    said = interrupted(code)
    assert said == "ready\ninterrupted\n"


def test_ctrl_c_ends_a_store_that_is_being_opened():
    """A master that never answers: the call would wait for an hour. `test_interrupts.py` has all others."""
    code = """
        import socket, mooncrate
        silent = socket.create_server(("127.0.0.1", 0))
        try:
            print("ready", flush=True)
            mooncrate.Store(master="127.0.0.1:%d" % silent.getsockname()[1], timeout=3600)
        except mooncrate.Unavailable:
            print("too early")
        except KeyboardInterrupt:
            print("interrupted")
    """
    assert interrupted(code) == "ready\ninterrupted\n"


def interrupted(code):
    """What a program printed that got SIGINT after its first line."""
    command = [sys.executable, "-c", textwrap.dedent(code)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        first = process.stdout.readline()
        os.kill(process.pid, signal.SIGINT)
        try:
            rest, _ = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
        assert process.returncode == 0
    return first + rest


@pytest.mark.parametrize("package", ["mooncrate", "mooncrate._native", "mooncake.store"])
@pytest.mark.parametrize("main_first", [True, False])
def test_a_subinterpreter_is_refused_in_words(package, main_first):
    """A store in one hung at its end. The main interpreter goes on, whoever came first."""
    said = python(
        """
        import sys
        try:
            import _interpreters as interpreters
        except ImportError:
            import _xxsubinterpreters as interpreters
        package, main_first = sys.argv[1], sys.argv[2] == "True"
        if main_first:
            import mooncrate
            store = mooncrate.Store(segment_size="1MiB")
        run = getattr(interpreters, "run_string", None) or interpreters.exec
        other = interpreters.create()
        lines = [
            "try:",
            f"    import {package}",
            "except ImportError as error:",
            "    print(error, flush=True)",
            "else:",
            "    import mooncrate",
            "    store = mooncrate.Store(segment_size='1MiB')",
            "    print('loaded', flush=True)",
        ]
        run(other, chr(10).join(lines))
        interpreters.destroy(other)
        import mooncrate
        with mooncrate.Store(segment_size="1MiB") as store:
            store.put("key", b"value")
            assert store.get("key") == b"value"
        print("ended well")
        """,
        package, str(main_first),
    )
    words = "mooncrate cannot be loaded in a subinterpreter; use threads of the main interpreter, or processes"
    assert said == f"{words}\nended well\n"
