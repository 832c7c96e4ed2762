"""What the calls of AsyncStore give: futures for asyncio, coroutines where it wants those.

Python's garbage collector does not look at them, so nothing that leads back to them may keep them.
"""

import asyncio
import collections.abc
import contextvars
import functools
import gc
import threading
import weakref

import pytest

import mooncrate
from conftest import PATIENCE, python

KEYS = [f"key/{number}" for number in range(1000)]
# Objects that a turn of the loop and a `gather` may make; more where asyncio is being debugged.
FEW = 250


def with_store(work):
    """Runs a test in a loop, with a store that has a value per key: the key itself."""

    def run():
        async def body():
            async with mooncrate.AsyncStore(segment_size="64MiB", threads=2) as store:
                await store.put_batch([(key, key.encode()) for key in KEYS])
                await asyncio.wait_for(work(store), PATIENCE)

        asyncio.run(body())

    run.__name__, run.__doc__ = work.__name__, work.__doc__
    return run


def failing(store):
    """A call that fails, of its own and not because of its arguments."""
    return store.get_into("key/999", bytearray(1))


@with_store
async def test_it_is_a_future_and_a_coroutine(store):
    answer = store.get("key/1")
    assert asyncio.isfuture(answer) and asyncio.iscoroutine(answer)
    assert isinstance(answer, collections.abc.Coroutine)
    assert answer.get_loop() is asyncio.get_running_loop()
    assert asyncio.ensure_future(answer) is answer
    assert not answer.done() and not answer.cancelled() and "pending" in repr(answer)
    for ask in (answer.result, answer.exception):
        with pytest.raises(asyncio.InvalidStateError, match="not done"):
            ask()
    assert await answer == b"key/1"
    assert answer.done() and answer.exception() is None and answer.cancel() is False
    assert weakref.ref(answer)() is answer and "done" in repr(answer)


@with_store
async def test_gather_makes_no_task(store):
    others = asyncio.all_tasks()
    together = asyncio.gather(*(store.get(key) for key in KEYS))
    assert asyncio.all_tasks() == others
    assert await together == [key.encode() for key in KEYS]
    assert await asyncio.gather() == []
    twice = store.get("key/1")
    assert await asyncio.gather(twice, twice) == [b"key/1", b"key/1"]
    assert await asyncio.gather(twice, store.get("key/2")) == [b"key/1", b"key/2"]


@with_store
async def test_gather_with_errors(store):
    calls = (store.get("key/1"), failing(store), store.get(7), store.get("none"))
    found = await asyncio.gather(*calls, return_exceptions=True)
    assert found[0] == b"key/1" and found[3] is None
    assert isinstance(found[1], mooncrate.TooLarge) and isinstance(found[2], TypeError)
    assert found[1].kind == "too small" and found[1].advice == "give up"
    with pytest.raises(mooncrate.TooLarge):
        await asyncio.gather(store.get("key/1"), failing(store))


@with_store
async def test_gather_that_is_cancelled(store):
    for errors in (False, True):
        calls = [store.get(key) for key in KEYS[:10]]
        together = asyncio.gather(*calls, return_exceptions=errors)
        together.cancel("enough")
        with pytest.raises(asyncio.CancelledError):
            await together
        assert all(call.cancelled() for call in calls)
    calls = [store.get(key) for key in KEYS[:10]]
    calls[3].cancel("not this one")
    found = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(found[3], asyncio.CancelledError) and str(found[3]) == "not this one"
    assert found[4] == b"key/4"
    calls = [store.get(key) for key in KEYS[:10]]
    calls[3].cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.gather(*calls)


@with_store
async def test_wait_takes_tasks_as_ever(store):
    tasks = {asyncio.create_task(store.get(key)) for key in KEYS[:10]}
    done, pending = await asyncio.wait(tasks, timeout=PATIENCE)
    assert done == tasks and not pending
    assert {task.result() for task in done} == {key.encode() for key in KEYS[:10]}
    with pytest.raises(TypeError, match="use tasks"):
        await asyncio.wait({store.get("key/1")})


@with_store
async def test_wait_for(store):
    assert await asyncio.wait_for(store.get("key/1"), PATIENCE) == b"key/1"
    with pytest.raises(mooncrate.TooLarge):
        await asyncio.wait_for(failing(store), PATIENCE)
    # No call is done before the loop comes round.
    answer = store.get("key/1")
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(answer, 0)
    assert answer.cancelled()
    with pytest.raises(asyncio.TimeoutError):
        async with asyncio.timeout(0):
            await store.get("key/1")


@with_store
async def test_as_completed(store):
    found = [await one for one in asyncio.as_completed([store.get(key) for key in KEYS])]
    assert sorted(found) == sorted(key.encode() for key in KEYS)
    for one in asyncio.as_completed([failing(store)]):
        with pytest.raises(mooncrate.TooLarge):
            await one


@with_store
async def test_tasks_of_calls(store):
    task = asyncio.create_task(store.get("key/1"), name="a get")
    assert "a get" in repr(task) and await task == b"key/1"
    with pytest.raises(mooncrate.TooLarge):
        await asyncio.get_running_loop().create_task(failing(store))
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(store.get(key)) for key in KEYS[:100]]
    assert [task.result() for task in tasks] == [key.encode() for key in KEYS[:100]]
    with pytest.raises(ExceptionGroup) as caught:
        async with asyncio.TaskGroup() as group:
            group.create_task(failing(store))
            group.create_task(asyncio.sleep(PATIENCE))
    assert isinstance(caught.value.exceptions[0], mooncrate.TooLarge)


@with_store
async def test_a_task_of_a_call_is_cancelled(store):
    early = asyncio.create_task(store.get("key/1"))
    early.cancel()
    late = asyncio.create_task(store.get("key/1"))
    await asyncio.sleep(0)
    late.cancel("too late")
    for task in (early, late):
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()


@with_store
async def test_shield(store):
    answer = store.get("key/1")
    assert await asyncio.shield(answer) == b"key/1"
    answer = store.get("key/2")
    outer = asyncio.shield(answer)
    outer.cancel()
    with pytest.raises(asyncio.CancelledError):
        await outer
    assert await answer == b"key/2" and not answer.cancelled()


@with_store
async def test_it_can_be_awaited_again_and_by_many(store):
    answer = store.get("key/1")

    async def wait():
        return await answer

    assert await asyncio.gather(*(wait() for _ in range(10))) == [b"key/1"] * 10
    assert await answer == b"key/1" == await asyncio.create_task(answer)
    failed = failing(store)
    for _ in range(3):
        with pytest.raises(mooncrate.TooLarge):
            await failed
    with pytest.raises(mooncrate.TooLarge):
        failed.result()
    assert isinstance(failed.exception(), mooncrate.TooLarge) and "failed" in repr(failed)


@with_store
async def test_cancel(store):
    answer = store.get("key/1")
    told = []
    answer.add_done_callback(told.append)
    assert answer.cancel("why not") is True and answer.cancel() is False
    assert answer.done() and answer.cancelled() and told == [] and "cancelled" in repr(answer)
    for ask in (answer.result, answer.exception):
        with pytest.raises(asyncio.CancelledError, match="why not"):
            ask()
    with pytest.raises(asyncio.CancelledError):
        await answer
    await asyncio.sleep(0)
    assert told == [answer]
    # What becomes of the call then changes nothing.
    await store.get("key/2")
    assert answer.cancelled()


@with_store
async def test_callbacks_and_their_contexts(store):
    where = contextvars.ContextVar("where", default="nowhere")
    told = []

    def tell(name, answer):
        told.append((name, where.get(), answer.result()))
        # Of no concern to the others.
        where.set("in a callback")

    answer = store.get("key/1")
    where.set("first")
    answer.add_done_callback(functools.partial(tell, "a"))
    where.set("second")
    answer.add_done_callback(functools.partial(tell, "b"))
    where.set("given")
    given = contextvars.copy_context()
    where.set("third")
    answer.add_done_callback(functools.partial(tell, "c"), context=given)
    answer.add_done_callback(never := functools.partial(tell, "never"))
    answer.add_done_callback(never)
    assert answer.remove_done_callback(never) == 2 and answer.remove_done_callback(never) == 0
    await answer
    await asyncio.sleep(0)
    value = b"key/1"
    assert told == [("a", "first", value), ("b", "second", value), ("c", "given", value)]
    assert given[where] == "in a callback" and where.get() == "third"
    # One who comes late is told in the next turn, not at once.
    answer.add_done_callback(functools.partial(tell, "d"))
    assert len(told) == 3
    await asyncio.sleep(0)
    assert told[3] == ("d", "third", value)


@with_store
async def test_a_callback_that_fails_stops_nobody(store):
    heard, told = [], []
    asyncio.get_running_loop().set_exception_handler(lambda _, about: heard.append(about))

    def fail(_):
        raise ZeroDivisionError

    answers = [store.get(key) for key in KEYS[:10]]
    for answer in answers:
        answer.add_done_callback(fail)
        answer.add_done_callback(told.append)
    assert await asyncio.gather(*answers) == [key.encode() for key in KEYS[:10]]
    assert len(told) == 10 and len(heard) == 10
    assert isinstance(heard[0]["exception"], ZeroDivisionError)
    assert "callback" in heard[0]["message"]


def test_an_exit_in_a_callback_stops_the_loop_and_loses_no_answer():
    def leave(_):
        raise SystemExit(7)

    loop = asyncio.new_event_loop()
    try:
        store = loop.run_until_complete(mooncrate.AsyncStore().open())

        async def begin():
            answers = [store.get(key) for key in KEYS]
            answers[0].add_done_callback(leave)
            answers[0].add_done_callback(told.append)
            return answers

        told = []
        answers = loop.run_until_complete(begin())
        with pytest.raises(SystemExit):
            loop.run_until_complete(asyncio.wait_for(loop.create_future(), PATIENCE))

        async def end():
            assert await asyncio.gather(*answers) == [None] * len(KEYS)
            await store.close()

        loop.run_until_complete(asyncio.wait_for(end(), PATIENCE))
        assert told == answers[:1]
    finally:
        loop.close()


@with_store
async def test_nobody_awaits_it_and_it_is_carried_out(store):
    store.put("unasked", b"value")
    while await store.get("unasked") is None:
        await asyncio.sleep(0.001)
    assert await store.get("unasked") == b"value"


@with_store
async def test_errors_that_nobody_asks_for_are_heard_of(store):
    heard = []
    asyncio.get_running_loop().set_exception_handler(lambda _, about: heard.append(about))

    async def settled(answer):
        while not answer.done():
            await asyncio.sleep(0.001)

    await settled(failing(store))
    assert [type(about["exception"]) for about in heard] == [mooncrate.TooLarge]
    assert "never retrieved" in heard[0]["message"]
    # These were asked for, or called off.
    asked, cancelled, thrown = failing(store), failing(store), failing(store)
    cancelled.cancel()
    task = asyncio.create_task(thrown)
    task.cancel()
    for answer in (asked, cancelled, thrown):
        await settled(answer)
    assert asked.exception() is not None
    with pytest.raises(asyncio.CancelledError):
        await task
    del asked, cancelled, thrown, task, answer
    gc.collect()
    assert len(heard) == 1


@with_store
async def test_what_is_wrong_comes_out_when_it_is_awaited(store):
    def broken():
        yield ("unsaid", b"value")
        raise ZeroDivisionError("from the items")

    calls = [
        (store.get(7), TypeError),
        (store.put("key", "text"), TypeError),
        (store.put("key", b"", colour="red"), TypeError),
        (store.get_into("key", b"read-only"), TypeError),
        (store.put_batch(broken()), ZeroDivisionError),
        (store.put("key", b"", soft_pin=-1), mooncrate.Invalid),
    ]
    for call, error in calls:
        assert isinstance(call, collections.abc.Coroutine)
        with pytest.raises(error):
            await call
    assert not await store.exists("unsaid")
    with pytest.raises(TypeError):
        store.get()


def test_before_it_is_open_it_begins_when_it_is_awaited():
    async def work():
        store = mooncrate.AsyncStore()
        early = store.put("key", b"value")
        refused = store.get("key")
        with pytest.raises(mooncrate.Closed, match="open the store first"):
            await refused
        await store.open()
        assert await store.exists("key") is False
        assert await early is True
        await store.close()
        with pytest.raises(mooncrate.Closed, match="closed"):
            await asyncio.create_task(store.get("key"))

    asyncio.run(work())


def test_calls_from_another_thread():
    async def work():
        loop = asyncio.get_running_loop()
        async with mooncrate.AsyncStore() as store:
            await store.put("key", b"value")

            def elsewhere():
                call = asyncio.run_coroutine_threadsafe(store.get("key"), loop)
                wrong = asyncio.run_coroutine_threadsafe(store.get(7), loop)
                with pytest.raises(TypeError):
                    wrong.result(PATIENCE)
                with pytest.raises(RuntimeError, match="another loop"):
                    asyncio.run(in_a_loop_of_its_own())
                return call.result(PATIENCE)

            async def in_a_loop_of_its_own():
                return await store.get("key")

            assert await asyncio.to_thread(elsewhere) == b"value"
            # Made in the loop, handed over from a thread: as good as any future.
            made = store.get("key")
            chained = await asyncio.to_thread(asyncio.run_coroutine_threadsafe, made, loop)
            assert await asyncio.wrap_future(chained) == b"value"

    asyncio.run(work())


@with_store
async def test_another_loop_cannot_wait_for_it(store):
    answer, said = store.get("key/1"), []

    async def wait():
        with pytest.raises(RuntimeError, match="different loop"):
            await answer
        with pytest.raises(ValueError, match="loop"):
            await asyncio.gather(asyncio.sleep(0), answer)
        said.append("well")

    # The loop of the answer stands still meanwhile, so that it stays pending.
    other = threading.Thread(target=asyncio.run, args=(wait(),))
    other.start()
    other.join(PATIENCE)
    assert said == ["well"] and await answer == b"key/1"


def test_a_loop_that_does_not_run_yet():
    loop = asyncio.new_event_loop()
    store = loop.run_until_complete(mooncrate.AsyncStore().open())
    assert loop.run_until_complete(store.put("key", b"value")) is True
    assert loop.run_until_complete(store.get("key")) == b"value"

    async def begin():
        return [store.get("key")]

    (answer,) = loop.run_until_complete(begin())
    assert loop.run_until_complete(answer) == b"value"
    loop.run_until_complete(store.close())
    loop.close()


def test_one_loop_after_another():
    store = mooncrate.AsyncStore()

    async def use(value):
        await store.open()
        await store.put("key", value, upsert=True)
        left = [store.get("key") for _ in range(100)]
        assert await asyncio.gather(*(store.get("key") for _ in range(100))) == [value] * 100
        return left

    left = asyncio.run(use(b"1"))
    assert asyncio.run(use(b"2"))
    # Calls that a loop left behind are answered all the same when its threads end.
    for answer in left:
        assert isinstance(answer.exception(), mooncrate.Closed) or answer.result() == b"1"

    async def end():
        assert await store.get("key") == b"2"
        await store.close()

    asyncio.run(end())


def test_close_with_calls_under_way():
    async def work():
        store = await mooncrate.AsyncStore(threads=1).open()
        await store.put("key", bytes(1 << 20))
        answers = [store.get("key") for _ in range(50)]
        await store.close()
        assert all(answer.done() for answer in answers)
        assert await asyncio.gather(*answers) == [bytes(1 << 20)] * 50

    asyncio.run(work())


def test_close_in_another_loop_leaves_nobody_waiting():
    """Whoever waits in the first loop gets a value, or hears that the store is closed."""
    ready, closed = threading.Event(), threading.Event()
    store = mooncrate.AsyncStore(threads=1)

    async def use():
        await store.open()
        await store.put("key", bytes(1 << 20))
        answers = [store.get("key") for _ in range(100)]
        await asyncio.sleep(0)
        ready.set()
        # The loop does not come round before the store is closed.
        assert closed.wait(PATIENCE)
        found = await asyncio.wait_for(asyncio.gather(*answers, return_exceptions=True), PATIENCE)
        return [one if isinstance(one, Exception) else len(one) for one in found]

    async def close():
        assert ready.wait(PATIENCE)
        await store.close()
        closed.set()

    closer = threading.Thread(target=asyncio.run, args=(close(),))
    closer.start()
    found = asyncio.run(use())
    closer.join(PATIENCE)
    assert all(one == 1 << 20 or isinstance(one, mooncrate.Closed) for one in found)
    assert isinstance(found[-1], mooncrate.Closed)


def test_the_collector_does_not_look_at_calls():
    async def work():
        async with mooncrate.AsyncStore() as store:
            # Everything that is made once, is made. The loop holds what it told last for one turn.
            await asyncio.gather(*(store.get(key) for key in KEYS))
            await asyncio.sleep(0)
            gc.collect()
            gc.disable()
            try:
                await count(store)
            finally:
                gc.enable()

    async def count(store):
        before, allocated = len(gc.get_objects()), gc.get_count()[0]
        answers = [store.get(key) for key in KEYS]
        assert not any(gc.is_tracked(answer) for answer in answers)
        together = asyncio.gather(*answers)
        made = len(gc.get_objects()) - before
        assert made < FEW, f"{made} objects for {len(KEYS)} calls"
        # What was allocated makes it run, whether it looks at it or not.
        made = gc.get_count()[0] - allocated
        assert made < FEW, f"{made} allocations for {len(KEYS)} calls"
        await together
        del answers, together
        # A callback in a context with variables has one of its own.
        variable.set("value")
        together = asyncio.gather(*(store.get(key) for key in KEYS))
        made = len(gc.get_objects()) - before
        assert made < len(KEYS) + FEW, f"{made} objects for {len(KEYS)} calls"
        await together
        del together
        left = len(gc.get_objects()) - before
        assert left < FEW, f"{left} objects are left of {len(KEYS)} calls"

    variable = contextvars.ContextVar("variable")
    contextvars.Context().run(asyncio.run, work())


@with_store
async def test_what_leads_back_to_a_call_does_not_keep_it(store):
    """The collector cannot help here: it does not look at answers."""
    gone = []

    async def wait(call):
        # The frame holds the answer, the task the frame, and the answer the task.
        answer = call(store)
        gone.append(weakref.ref(answer))
        try:
            return await answer
        except mooncrate.TooLarge as error:
            # It was raised through this frame, and holds it.
            raised.append(error)

    async def call_back(call):
        answer = call(store)
        gone.append(weakref.ref(answer))
        done = asyncio.Event()
        answer.add_done_callback(lambda _, it=answer: done.set())
        await done.wait()
        answer.exception()

    raised = []
    for call in (lambda store: store.get("key/1"), failing):
        await asyncio.create_task(wait(call))
        await asyncio.create_task(call_back(call))
    cancelled = asyncio.create_task(wait(lambda store: store.get("key/1")))
    await asyncio.sleep(0)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    del cancelled
    raised.clear()
    # The threads may hold the one that was cancelled for a moment.
    await store.get("key/1")
    await asyncio.sleep(0)
    gc.collect()
    assert len(gone) == 5 and [it() for it in gone] == [None] * 5


def test_a_loop_that_ends_in_the_middle_leaves_nothing():
    """Callbacks that lead back to the store do not keep it, and its threads, when it is closed."""
    said = python(
        """
        import asyncio, gc, threading, weakref, mooncrate
        answers = []
        async def leave():
            store = await mooncrate.AsyncStore(threads=2).open()
            await store.put("key", bytes(1 << 20))
            for _ in range(100):
                answer = store.get("key")
                answer.add_done_callback(lambda _, store=store, answer=answer: None)
                answers.append(weakref.ref(answer))
            return store
        store = asyncio.run(leave())
        asyncio.run(store.close())
        del store
        gc.collect()
        print(sum(answer() is not None for answer in answers), "answers")
        """
    )
    assert said == "0 answers\n"


def test_an_interrupt_ends_the_program_as_ever():
    said = python(
        """
        import asyncio, os, signal, mooncrate
        async def work():
            async with mooncrate.AsyncStore(threads=1) as store:
                await store.put("key", bytes(1 << 20))
                calls = [store.get("key") for _ in range(100)]
                os.kill(os.getpid(), signal.SIGINT)
                await asyncio.gather(*calls)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            asyncio.run(work())
        except KeyboardInterrupt:
            print("interrupted")
        """
    )
    assert said == "interrupted\n"
