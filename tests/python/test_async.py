"""AsyncStore: the same calls, and a loop that never waits."""

import asyncio
import inspect
import time

import pytest

import mooncrate
from conftest import python


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
            await store.put("key", b"value")
            listing = store.list()
            assert await anext(listing) == b"key"
        await store.close()
        with pytest.raises(mooncrate.Closed, match="closed"):
            await store.get("key")
        with pytest.raises(mooncrate.Closed):
            await anext(listing)
        with pytest.raises(mooncrate.Closed):
            await store.open()
        with pytest.raises(mooncrate.Unavailable):
            await mooncrate.AsyncStore(master="127.0.0.1:1", timeout=0.2).open()

    asyncio.run(work())
    with pytest.raises(ValueError, match="threads"):
        mooncrate.AsyncStore(threads=0)


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
