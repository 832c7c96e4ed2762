"""Sessions: values that are written and read part by part."""

import asyncio
import threading

import pytest

import mooncrate

SIZE = 100_000
VALUE = bytes(number % 251 for number in range(SIZE))


def test_parts_in_any_order_appear_at_the_end(any_store):
    any_store.remove("session/key", force=True)
    with any_store.put_session("session/key", SIZE) as session:
        for start in reversed(range(0, SIZE, 7919)):
            session.write(start, VALUE[start : start + 7919])
        assert any_store.get("session/key") is None
    assert any_store.get("session/key") == VALUE
    with any_store.get_session("session/key") as session:
        assert session.nbytes == SIZE and 0 < session.lease_left <= 10
        target = bytearray(1000)
        assert session.read_into(50_000, target) == 1000 and target == VALUE[50_000:51_000]
        with pytest.raises(mooncrate.Invalid):
            session.read_into(SIZE - 1, target)
    with pytest.raises(mooncrate.Closed, match="over"):
        session.read_into(0, target)
    assert any_store.get_session("session/none") is None


def test_several_threads_write_one_value(store):
    with store.put_session("key", SIZE) as session:
        threads = [
            threading.Thread(target=session.write, args=(start, VALUE[start : start + 10_000]))
            for start in range(0, SIZE, 10_000)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert store.get("key") == VALUE


def test_an_exception_gives_the_value_up(store):
    with pytest.raises(KeyError), store.put_session("key", SIZE) as session:
        session.write(0, VALUE)
        raise KeyError
    assert store.get("key") is None
    assert store.put("key", b"again"), "the key is free"
    with pytest.raises(mooncrate.Closed):
        session.write(0, b"late")
    with pytest.raises(mooncrate.Closed):
        session.end()


def test_a_gap_is_named_and_can_be_filled(store):
    session = store.put_session("key", 10)
    session.write(0, b"12345")
    with pytest.raises(mooncrate.Error, match="5"):
        session.end()
    with pytest.raises(mooncrate.Error):
        session.write(4, b"twice")
    session.write(5, b"67890")
    session.end()
    assert store.get("key") == b"1234567890"


def test_a_session_that_nobody_holds_leaves_nothing(store):
    store.put_session("key", 10)
    assert store.put("key", b"value")


def test_arguments_that_make_no_sense(store):
    for bad in (-1, 2.5, "size", None, 2**70):
        with pytest.raises((TypeError, OverflowError)):
            store.put_session("key", bad)
    for bad in (0, -1, float("nan"), float("inf")):
        with pytest.raises(mooncrate.Invalid, match="lease"):
            store.get_session("key", lease=bad)
    store.put("key", b"value")
    with pytest.raises(mooncrate.Error):
        store.put_session("key", 5)
    with store.put_session("other", 5) as session:
        for part in ("text", None, memoryview(b"abcdef")[::2]):
            with pytest.raises((TypeError, ValueError)):
                session.write(0, part)
        with pytest.raises(mooncrate.Error):
            session.write(3, b"beyond")
        with pytest.raises(OverflowError):
            session.write(-1, b"")
        session.write(0, b"right")
    assert store.get("other") == b"right"


def test_the_twins_of_asyncio():
    async def work():
        async with mooncrate.AsyncStore() as store:
            async with await store.put_session("key", SIZE) as session:
                parts = range(0, SIZE, 10_000)
                await asyncio.gather(
                    *(session.write(start, VALUE[start : start + 10_000]) for start in parts)
                )
            async with await store.get_session("key") as session:
                target = bytearray(session.nbytes)
                assert await session.read_into(0, target) == SIZE and target == VALUE
            assert await store.get_session("none") is None
            with pytest.raises(KeyError):
                async with await store.put_session("other", 3):
                    raise KeyError
            assert not await store.exists("other")

    asyncio.run(work())
