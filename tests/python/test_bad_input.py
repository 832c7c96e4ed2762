"""Bad input gets an error that says what to do, never a crash or a hang."""

import pickle
import time

import numpy as np
import pytest

import mooncrate
from conftest import python
from mooncrate._native import Ranges, Raw, Sessions
from mooncrate.arrays import NumpyRoom


def every_call(store):
    """Each public call, with good arguments."""
    target = bytearray(8)
    return {
        "put": lambda: store.put("k", b"v"),
        "get": lambda: store.get("k"),
        "get_into": lambda: store.get_into("k", target),
        "get_into_batch": lambda: store.get_into_batch([("k", target)]),
        "get_range": lambda: store.get_range("k", 0, 1),
        "view": lambda: store.view("k"),
        "put_parts": lambda: store.put_parts("k", [b"v", b"w"]),
        "put_tensor": lambda: store.put_tensor("k", np.zeros(1)),
        "get_tensor": lambda: store.get_tensor("k"),
        "get_array": lambda: store.get_array("k"),
        "view_array": lambda: store.view_array("k"),
        "_read": lambda: store._read("k", NumpyRoom),
        "put_session": lambda: store.put_session("k", 1),
        "get_session": lambda: store.get_session("k"),
        "size": lambda: store.size("k"),
        "exists": lambda: store.exists("k"),
        "in": lambda: "k" in store,
        "remove": lambda: store.remove("k"),
        "remove_prefix": lambda: store.remove_prefix("k"),
        "remove_regex": lambda: store.remove_regex("k"),
        "list": lambda: [*store.list()],
        "stats": lambda: store.stats(),
        "put_batch": lambda: store.put_batch({"k": b"v"}),
        "get_batch": lambda: store.get_batch(["k"]),
        "exists_batch": lambda: store.exists_batch(["k"]),
        "remove_batch": lambda: store.remove_batch(["k"]),
        "with": lambda: store.__enter__(),
        "Raw.put_at": lambda: Raw(store).put_at([], [], [], {"replicas": 1}),
        "Raw.get_at": lambda: Raw(store).get_at([], [], []),
        "Raw.get_nested": lambda: Raw(store).get_nested([], [], [], [], [], Ranges(), (-1, -2)),
        "Sessions.start_puts": lambda: Sessions(store).start_puts(["k"], [1], {"replicas": 1}, -1),
        "Sessions.start_gets": lambda: Sessions(store).start_gets(["k"], (-1, -2)),
    }


def test_arrays_of_objects_are_no_memory_for_bytes(store):
    """Their elements are pointers: a value that was read into one made Python crash later."""
    store.put("key", bytes(64))
    record = np.zeros(2, dtype=[("O", np.int32), ("it", object)])
    for array in (np.zeros(8, dtype=object), np.array([["a", None]], dtype=object), record):
        for call in (
            lambda array=array: store.get_into("key", array),
            lambda array=array: store.put("objects", array),
            lambda array=array: store.put_parts("objects", [b"", array]),
            lambda array=array: store.put_batch({"objects": array}),
        ):
            with pytest.raises(TypeError, match="objects"):
                call()
        assert array.tolist() == array.copy().tolist()
    assert not store.exists("objects")
    # A field that is only called so is fine.
    assert store.put("named", np.zeros(2, dtype=[("O", np.int32)])) is True


def test_many_threads_hear_at_once_that_it_is_closed():
    """An exception was made under the lock of the store: Python could pass the GIL on meanwhile, to a
    thread that then waited for the lock with the GIL in its hand."""
    said = python(
        """
        import sys, threading, mooncrate
        sys.setswitchinterval(1e-6)
        store = mooncrate.Store()
        store.put("key", b"value")
        view, listing = store.view("key"), store.list()
        session = store.put_session("other", 3)
        session.revoke()
        view.release()
        store.close()
        calls = [lambda: store.get("key"), lambda: len(view), session.end, lambda: next(listing, None)]
        def ask():
            for number in range(2000):
                try:
                    calls[number % len(calls)]()
                except mooncrate.Closed:
                    pass
        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print("well")
        """
    )
    assert said == "well\n"


def test_every_call_after_close_says_closed():
    store = mooncrate.Store()
    listing = store.list()
    calls = every_call(store)
    named = {name for name in dir(store) if not name.startswith("__")} - {"close", "closed"}
    assert named <= set(calls), "a new method needs a line above"
    store.close()
    store.close()
    calls["listing"] = lambda: next(listing)
    for name, call in calls.items():
        with pytest.raises(mooncrate.Closed, match="closed") as caught:
            call()
        assert caught.value.advice == "give up", name


@pytest.mark.parametrize("key", [None, 7, 1.5, ["k"], bytearray(b"k"), object()])
def test_keys_are_text_or_bytes(store, key):
    for call in (store.get, store.view, store.exists, store.remove, store.size):
        with pytest.raises(TypeError, match="a key is str or bytes, not"):
            call(key)
    with pytest.raises(TypeError, match="a key is str or bytes, not"):
        store.put(key, b"v")
    with pytest.raises(TypeError, match="a key is str or bytes, not"):
        store.get_batch(["good", key])


def test_keys_that_no_store_has(store):
    for key in ("", b"", "x" * 8193):
        with pytest.raises(mooncrate.Invalid, match="key"):
            store.put(key, b"v")
        with pytest.raises(mooncrate.Invalid, match="key"):
            store.get(key)
        with pytest.raises(ValueError):
            store.view(key)
    with pytest.raises(UnicodeEncodeError):
        store.get("\ud800")
    store.put("x" * 8192, b"v")
    assert store.get("x" * 8192) == b"v"


def test_values_are_buffers(store):
    with pytest.raises(TypeError, match=r"not str; encode the text, as in text.encode\(\)"):
        store.put("k", "text")
    for value in (None, 7, ["bytes"], object()):
        with pytest.raises(TypeError, match="buffer protocol"):
            store.put("k", value)
    with pytest.raises(TypeError, match="encode"):
        store.put_batch([("k", b"good"), ("l", "text")])
    assert store.get("k") is None


def test_non_contiguous_arrays_are_refused_with_the_way_out(store):
    pages = np.arange(12).reshape(3, 4)
    for value in (pages.T, pages[:, ::2], pages[::-1], memoryview(b"bytes")[::2]):
        with pytest.raises(ValueError, match="numpy.ascontiguousarray"):
            store.put("k", value)
    store.put("k", bytes(100))
    with pytest.raises(ValueError, match="C order"):
        store.get_into("k", np.zeros((20, 20), np.uint8).T[:, ::2])


def test_targets_are_writable_and_large_enough(store):
    store.put("k", b"value")
    for target in (b"12345", memoryview(b"12345"), np.frombuffer(b"12345", np.uint8)):
        with pytest.raises(TypeError, match="read-only"):
            store.get_into("k", target)
    target = bytearray(4)
    with pytest.raises(mooncrate.TooLarge, match="5 bytes, the buffer 4"):
        store.get_into("k", target)
    assert target == bytes(4)
    with pytest.raises(TypeError):
        store.get_into("k", 5)


def test_a_single_text_is_no_list_of_keys(store):
    for keys in ("abc", b"abc"):
        with pytest.raises(TypeError, match="list of keys"):
            store.get_batch(keys)
    with pytest.raises(TypeError):
        store.get_batch(None)
    with pytest.raises((TypeError, ValueError)):
        store.put_batch([("key", b"value", "more")])
    with pytest.raises((TypeError, ValueError)):
        store.put_batch(["key"])


def test_a_broken_iterable_is_seen(store):
    def broken():
        yield "key"
        raise LookupError("broken")

    with pytest.raises(LookupError, match="broken"):
        store.get_batch(broken())


def test_values_that_fit_nowhere():
    with mooncrate.Store(segment_size=4 << 20) as store:
        with pytest.raises(mooncrate.TooLarge, match="largest segment") as caught:
            store.put("k", bytes(5 << 20))
        assert caught.value.advice == "give up" and caught.value.retry_after is None
        held = []
        with pytest.raises(mooncrate.Busy, match="try again in") as caught:
            for number in range(5):
                store.put(f"{number}", bytes(1 << 20))
                held.append(store.view(f"{number}"))
        assert caught.value.advice == "retry" and caught.value.retry_after > 0
        held.clear()
        # Following the advice leads to success.
        for _ in range(1000):
            try:
                assert store.put("k", bytes(1 << 20))
                break
            except mooncrate.Busy as error:
                time.sleep(error.retry_after)
        assert store.exists("k")


def test_wrong_wishes(store):
    for wishes, words in [
        ({"replicas": 0}, "replicas"),
        ({"replicas": 9}, "replicas"),
        ({"soft_pin": 0}, "soft_pin"),
        ({"soft_pin": float("nan")}, "soft_pin"),
        ({"expire": -1.0}, "expire"),
        ({"expire": 1e300}, "expire"),
        ({"soft_pin": 1.0, "hard_pin": True}, "not both"),
    ]:
        with pytest.raises(mooncrate.Invalid, match=words):
            store.put("k", b"v", **wishes)
    with pytest.raises(OverflowError):
        store.put("k", b"v", replicas=-1)
    with pytest.raises(TypeError, match="colour"):
        store.put("k", b"v", colour="red")
    # More copies than nodes is no mistake of the arguments.
    with pytest.raises(mooncrate.Error, match="2 replicas"):
        store.put("k", b"v", replicas=2)
    assert store.get("k") is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"master": "nowhere"}, "nowhere"),
        ({"master": ""}, "master"),
        ({"master": "127.0.0.1:1,127.0.0.1:1"}, "twice"),
        ({"segment_size": "many"}, "many"),
        ({"segment_size": 0}, "segment_size"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": float("inf")}, "timeout"),
        ({"tenant": "Not A Tenant"}, "tenant"),
        ({"token_file": "token"}, "master="),
        ({"listen": "127.0.0.1:0"}, "master="),
    ],
)
def test_wrong_options(options, words):
    with pytest.raises(mooncrate.Invalid, match=words):
        mooncrate.Store(**options)


def test_unknown_options_are_named():
    with pytest.raises(TypeError, match="segement_size"):
        mooncrate.Store(segement_size=1)
    with pytest.raises(TypeError):
        mooncrate.Store("127.0.0.1:7411")


def test_a_master_that_is_not_there_is_an_error_within_the_deadline():
    with pytest.raises(mooncrate.Unavailable, match="mooncrate serve") as caught:
        mooncrate.Store(master="127.0.0.1:1", timeout=0.5)
    assert caught.value.advice == "retry"


def test_credentials_that_cannot_be_used(server, tmp_path):
    with pytest.raises(mooncrate.Denied, match="nothing"):
        mooncrate.Store(master=server.master, token_file=tmp_path / "nothing")


def test_bad_expressions(store):
    with pytest.raises(mooncrate.Error):
        store.remove_regex("(")


def test_exceptions_travel():
    error = mooncrate.Busy("full", advice="retry", retry_after=0.5)
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.args, again.advice, again.retry_after) == (
        mooncrate.Busy, ("full",), "retry", 0.5,
    )
    with pytest.raises(TypeError):
        pickle.dumps(mooncrate.Store())
