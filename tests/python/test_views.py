"""Views: in place, read-only, pinned as long as anything shows the bytes."""

import gc
import time
import weakref

import numpy as np
import pytest

import mooncrate


def test_a_view_is_in_place_where_memory_allows(any_store, request):
    any_store.put("view/in place", b"value")
    with any_store.view("view/in place") as view:
        assert view.in_place == ("tcp" not in request.node.name)
        assert bytes(view) == b"value" and view.nbytes == len(view) == 5
    assert any_store.view("view/missing") is None


def test_a_view_is_read_only(store):
    store.put("key", b"value")
    view = store.view("key")
    shown = memoryview(view)
    assert shown.readonly and shown.format == "B" and shown.ndim == 1
    with pytest.raises(TypeError):
        shown[0] = 1
    with pytest.raises(ValueError):
        np.frombuffer(view, np.uint8)[0] = 1
    with pytest.raises(TypeError, match="read-only"):
        store.get_into("key", view)


def test_an_array_is_stored_and_seen_without_a_copy(any_store):
    pages = np.arange(4096, dtype=np.float64).reshape(64, 64)
    any_store.put("view/array", pages)
    seen = np.frombuffer(any_store.view("view/array"), np.float64).reshape(64, 64)
    assert (seen == pages).all() and not seen.flags.owndata


def test_the_bytes_stay_while_something_shows_them():
    with mooncrate.Store(segment_size=8 << 20) as store:
        value = np.random.default_rng(1).bytes(1 << 20)
        store.put("key", value)
        seen = np.frombuffer(store.view("key"), np.uint8)
        assert store.remove("key", force=True)
        # All other room is used many times over.
        for number in range(64):
            store.put(f"{number}", bytes([255]) * (1 << 20))
        assert seen.tobytes() == value


def test_a_released_view_gives_nothing_out_and_ends_with_its_last_array(store):
    store.put("key", b"value")
    view = store.view("key")
    seen = np.frombuffer(view, np.uint8)
    view.release()
    view.release()
    for use in (len, bytes, memoryview, lambda view: view.__enter__()):
        with pytest.raises(mooncrate.Closed, match="released"):
            use(view)
    assert repr(view) == "<mooncrate.View, released>"
    assert seen.tobytes() == b"value"
    # The pin is gone with the array: its room comes back.
    store.remove("key", force=True)
    assert store.stats()["quarantined_bytes"] > 0
    del seen
    assert room_comes_back(store)


def test_a_view_that_nobody_holds_is_released(store):
    store.put("key", b"value")
    gone = weakref.ref(store.view("key"))
    gc.collect()
    assert gone() is None
    store.remove("key", force=True)
    assert room_comes_back(store)


def test_a_view_outlives_its_store(any_store):
    value = np.random.default_rng(2).bytes(100_000)
    any_store.put("view/outlives", value, upsert=True)
    view = any_store.view("view/outlives")
    any_store.close()
    assert bytes(view) == value
    store = mooncrate.Store()
    store.put("key", value)
    seen = memoryview(store.view("key"))
    del store
    gc.collect()
    assert seen == value


def room_comes_back(store):
    """Whether nothing is held any more; the owner looks every now and then."""
    for _ in range(600):
        if store.stats()["quarantined_bytes"] == 0:
            return True
        time.sleep(0.05)
    return False
