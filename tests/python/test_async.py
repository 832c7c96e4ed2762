"""AsyncStore: the same calls, and a loop that never waits."""

import asyncio
import inspect
import os
import random
import subprocess
import sys
import time

import pytest

import mooncrate
from conftest import python
from mooncrate.aio_loop import running_loop


def test_the_calls_are_the_same():
    async def work():
        async with mooncrate.AsyncStore(segment_size="64MiB") as store:
            assert await store.put("a", b"1") is True
            assert await store.get("a") == b"1"
            assert await store.put("a", b"22", upsert=True)
            assert await store.size("a") == 2 and await store.exists("a")
            assert await store.get_range("a", 1, 1) == b"2"
            target = bytearray(2)
            assert await store.get_into("a", target) == 2 and target == b"22"
            with await store.view("a") as view:
                assert bytes(view) == b"22"
            assert await store.put_batch({"b": b"3", "c": b"4"}) == [True, True]
            assert await store.get_batch(["b", "x"]) == [b"3", None]
            assert await store.exists_batch(["b", "x"]) == [True, False]
            assert sorted([key async for key in store.list()]) == [b"a", b"b", b"c"]
            assert await store.remove_batch(["b"]) == [True]
            assert await store.remove("c") is True
            assert await store.remove_regex("a") == 1 and await store.remove_prefix("") == 0
            assert (await store.stats())["objects"] == 0
            with pytest.raises(TypeError, match="encode"):
                await store.put("a", "text")

    asyncio.run(work())


def test_it_has_every_call_of_the_store():
    def calls(of):
        return {name for name, _ in inspect.getmembers(of, callable) if not name.startswith("_")}

    assert calls(mooncrate.AsyncStore) == calls(mooncrate.Store) | {"open"}


def test_before_it_is_open_and_after_it_is_closed():
    async def work():
        store = mooncrate.AsyncStore()
        with pytest.raises(mooncrate.Closed, match="open the store first"):
            await store.get("key")
        async with store:
            # More keys than one page of a listing has.
            await store.put_batch({f"key/{number}": b"" for number in range(1500)})
            listing = store.list()
            assert (await anext(listing)).startswith(b"key/")
        await store.close()
        with pytest.raises(mooncrate.Closed, match="closed"):
            await store.get("key")
        with pytest.raises(mooncrate.Closed):
            async for _ in listing:
                pass
        with pytest.raises(mooncrate.Closed):
            await store.open()
        with pytest.raises(mooncrate.Unavailable):
            await mooncrate.AsyncStore(master="127.0.0.1:1", timeout=0.2).open()

    asyncio.run(work())
    with pytest.raises(ValueError, match="threads"):
        mooncrate.AsyncStore(threads=0)


@pytest.mark.parametrize(("cores", "threads"), [(1, 2), (2, 2), (5, 5), (8, 8), (64, 8)])
def test_threads_follow_the_cores(monkeypatch, cores, threads):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    assert mooncrate.AsyncStore()._threads == threads
    assert mooncrate.AsyncStore(threads=3)._threads == 3


def test_a_thousand_gets_at_once_leave_the_loop_free(server):
    """Prints the longest time that the loop did not come round; the time itself decides nothing."""

    async def work():
        longest, over = 0.0, False

        async def watch():
            nonlocal longest
            before = time.perf_counter()
            while not over:
                await asyncio.sleep(0)
                now = time.perf_counter()
                longest, before = max(longest, now - before), now

        async with mooncrate.AsyncStore(master=server.master) as store:
            values = {f"async/{number}": bytes([number % 256]) * 4096 for number in range(1000)}
            await store.put_batch(values)
            watcher = asyncio.create_task(watch())
            found = await asyncio.gather(*(store.get(key) for key in values))
            over = True
            await watcher
            assert found == [*values.values()]
        return longest

    print(f"1000 gets: the loop was away for {asyncio.run(work()) * 1000:.2f} ms at most")


def test_a_call_that_is_cancelled_does_no_harm():
    async def work():
        async with mooncrate.AsyncStore(threads=1) as store:
            await store.put("key", bytes(1 << 20))
            tasks = [asyncio.create_task(store.get("key")) for _ in range(100)]
            await asyncio.sleep(0)
            for task in tasks[::2]:
                task.cancel()
            found = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(value == bytes(1 << 20) for value in found[1::2])

    asyncio.run(work())


def test_a_forked_child_does_not_hang():
    said = python(
        """
        import asyncio, os, warnings, mooncrate
        warnings.simplefilter("ignore", DeprecationWarning)
        async def use(store):
            return await store.get("key")
        store = mooncrate.AsyncStore()
        asyncio.run(store.open())
        child = os.fork()
        if child == 0:
            try:
                asyncio.run(use(store))
            except mooncrate.Closed:
                os._exit(7)
            os._exit(1)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        """
    )
    assert said == "7\n"


def test_many_kinds_of_calls_at_once(server):
    """Futures get the results of their own calls, whatever the order in which these end."""

    async def work():
        async with mooncrate.AsyncStore(master=server.master, threads=3) as store:
            await store.put_batch(
                {f"mix/{number}": bytes([number]) * number for number in range(200)}
            )
            targets = [bytearray(200) for _ in range(200)]
            calls = []
            for number in range(200):
                calls += [
                    store.get(f"mix/{number}"),
                    store.get_into(f"mix/{number}", targets[number]),
                ]
                calls += [store.size(f"mix/{number}"), store.exists(f"mix/none/{number}")]
                calls += [
                    store.get_range(f"mix/{number}", number, 1),
                    store.get_into("mix/9", bytearray(8)),
                ]
            found = await asyncio.gather(*calls, return_exceptions=True)
            for number in range(200):
                value, into, size, exists, beyond, small = found[6 * number : 6 * number + 6]
                assert value == bytes([number]) * number == targets[number][:number]
                assert (into, size, exists) == (number, number, False)
                assert isinstance(beyond, mooncrate.Invalid) and isinstance(
                    small, mooncrate.TooLarge
                )

    asyncio.run(work())


def test_large_values_come_whole(server):
    async def work(**options):
        async with mooncrate.AsyncStore(**options) as store:
            value = random.Random(7).randbytes(3_000_001)
            assert await store.put("large/value", value, upsert=True)
            assert await store.get("large/value") == value
            assert (
                await asyncio.gather(*(store.get("large/value") for _ in range(20))) == [value] * 20
            )
            # More than waits in memory of ours, with small values among them.
            await store.put_batch(
                {f"large/{number}": bytes([number]) * 9000 for number in range(100)}, upsert=True
            )
            found = await store.get_batch([f"large/{number}" for number in range(101)])
            assert found == [bytes([number]) * 9000 for number in range(100)] + [None]

    asyncio.run(work())
    asyncio.run(work(master=server.master))
    asyncio.run(work(master=server.master, shared_memory=False))


def test_arguments_that_make_no_sense_are_refused_at_once():
    async def work():
        async with mooncrate.AsyncStore() as store:
            for call in (
                store.get(7),
                store.put("key", "text"),
                store.get_into("key", b"read-only"),
            ):
                with pytest.raises(TypeError):
                    await call
            with pytest.raises(mooncrate.Invalid):
                await store.put("key", b"value", soft_pin=-1)
            with pytest.raises(TypeError, match="colour"):
                await store.put("key", b"value", colour="red")
            assert await store.exists("key") is False

    asyncio.run(work())


def test_close_waits_for_calls_and_a_cancelled_call_keeps_its_buffer():
    async def work():
        store = await mooncrate.AsyncStore(threads=1).open()
        await store.put("key", bytes(1 << 20))
        target = bytearray(1 << 20)
        tasks = [asyncio.create_task(store.get_into("key", target)) for _ in range(50)]
        await asyncio.sleep(0)
        tasks[-1].cancel()
        await store.close()
        assert [await task for task in tasks[:-1]] == [1 << 20] * 49
        with pytest.raises(asyncio.CancelledError):
            await tasks[-1]
        # Nobody holds the buffer any more: it may be resized.
        target.extend(b"more")
        with pytest.raises(mooncrate.Closed):
            await store.get("key")

    asyncio.run(work())


def test_it_moves_on_to_another_loop_when_the_first_is_closed():
    store = mooncrate.AsyncStore()

    async def put():
        await store.open()
        await store.put("key", b"value")

    async def use():
        assert await store.get("key") == b"value"
        with pytest.raises(RuntimeError, match="another loop"):
            await asyncio.to_thread(asyncio.run, other())
        await store.close()

    async def other():
        await store.get("key")

    asyncio.run(put())
    asyncio.run(use())


def test_a_loop_may_end_with_calls_under_way():
    said = python(
        """
        import asyncio, gc, socket, mooncrate
        async def leave():
            store = await mooncrate.AsyncStore(threads=2).open()
            await store.put("key", bytes(1 << 20))
            for _ in range(100):
                asyncio.ensure_future(store.get("key"))
            await asyncio.sleep(0)
        asyncio.run(leave())
        gc.collect()
        print("well")
        """
    )
    assert said == "well\n"


def test_a_fork_in_the_middle_of_a_loop():
    said = python(
        """
        import asyncio, os, warnings, mooncrate
        warnings.simplefilter("ignore", DeprecationWarning)
        async def work():
            async with mooncrate.AsyncStore() as store:
                await store.put("key", b"value")
                child = os.fork()
                if child == 0:
                    try:
                        await store.get("key")
                    except (mooncrate.Closed, RuntimeError):
                        os._exit(7)   # asyncio itself has no running loop in a child
                    os._exit(1)
                print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), await store.get("key"))
        asyncio.run(work())
        """
    )
    assert said == "7 b'value'\n"


def test_a_loop_is_found_without_importing_asyncio():
    async def here():
        return running_loop() is asyncio.get_running_loop()

    assert asyncio.run(here())
    with pytest.raises(RuntimeError, match="no running event loop"):
        running_loop()
    program = """
import sys, mooncrate.aio_loop
assert "asyncio" not in sys.modules
try:
    mooncrate.aio_loop.running_loop()
except RuntimeError as error:
    print(error, "asyncio" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["no", "running", "event", "loop", "False"]
