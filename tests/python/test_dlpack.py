"""Views as tensors of other libraries, through DLPack."""

import sys

import numpy as np
import pytest

import mooncrate
from conftest import python
from test_views import room_comes_back

VALUE = bytes(range(256)) * 16


@pytest.fixture
def view(any_store):
    any_store.put("dlpack/value", VALUE, upsert=True)
    return any_store.view("dlpack/value")


def test_numpy_shows_the_bytes_in_place_and_read_only(view):
    shown = np.from_dlpack(view)
    assert shown.dtype == np.uint8 and shown.shape == (len(VALUE),) and bytes(shown) == VALUE
    assert not shown.flags.writeable
    assert shown.ctypes.data == np.frombuffer(view, np.uint8).ctypes.data
    assert view.__dlpack_device__() == (1, 0)


def test_a_copy_may_be_written_and_leaves_the_value_alone(view):
    copy = np.from_dlpack(view, copy=True)
    assert copy.flags.writeable and bytes(copy) == VALUE
    copy[:] = 0
    assert bytes(view) == VALUE


def test_the_pin_lives_as_long_as_what_shows_it(store):
    """A value that was removed keeps its bytes for arrays that show it, and then gives them back."""
    store.put("key", VALUE)
    view = store.view("key")
    shown = np.from_dlpack(view)
    capsule = view.__dlpack__(max_version=(1, 0))
    view.release()
    store.remove("key", force=True)
    for number in range(64):
        store.put(f"fill/{number}", bytes([number]) * len(VALUE))
    assert bytes(shown) == VALUE
    del shown
    assert store.stats()["quarantined_bytes"] > 0, "the capsule has its own share"
    del capsule  # nobody took its tensor out: it gives its share back itself
    assert room_comes_back(store)


def test_the_store_may_go_first(store):
    store.put("key", VALUE)
    shown = np.from_dlpack(store.view("key"))
    store.close()
    assert bytes(shown) == VALUE


def test_an_empty_value(store):
    store.put("empty", b"")
    assert np.from_dlpack(store.view("empty")).shape == (0,)


def test_consumers_that_cannot_be_told_are_refused(view):
    """The older form of DLPack knows no read-only memory."""
    for wish in ({}, {"max_version": None}, {"max_version": (0, 8)}, {"copy": False}):
        with pytest.raises(BufferError, match="copy=True"):
            view.__dlpack__(**wish)
    assert "dltensor" in repr(view.__dlpack__(copy=True))
    assert "dltensor_versioned" in repr(view.__dlpack__(copy=True, max_version=(1, 1)))
    with pytest.raises(BufferError, match="host"):
        view.__dlpack__(max_version=(1, 0), dl_device=(2, 0))
    with pytest.raises(BufferError, match="stream"):
        view.__dlpack__(max_version=(1, 0), stream=1)
    with pytest.raises(TypeError):
        view.__dlpack__((1, 0))
    with pytest.raises((TypeError, ValueError, OverflowError)):
        view.__dlpack__(max_version=(-1, "x"))
    view.release()
    with pytest.raises(mooncrate.Closed, match="released"):
        view.__dlpack__(max_version=(1, 0))


def test_capsules_leak_nothing(store):
    store.put("key", VALUE)
    view = store.view("key")
    before = sys.getrefcount(view)
    for _ in range(1000):
        view.__dlpack__(max_version=(1, 0))
        view.__dlpack__(copy=True)
        np.from_dlpack(view)
    assert sys.getrefcount(view) == before
    view.release()
    store.remove("key", force=True)
    assert room_comes_back(store)


def test_a_forked_child_lets_go_of_arrays_without_harm():
    said = python(
        """
        import os, sys, warnings, numpy, mooncrate
        warnings.simplefilter("ignore", DeprecationWarning)
        store = mooncrate.Store()
        store.put("key", b"value")
        view = store.view("key")
        shown, capsule = numpy.from_dlpack(view), view.__dlpack__(max_version=(1, 0))
        child = os.fork()
        if child == 0:
            try:
                view.__dlpack__(max_version=(1, 0))
            except mooncrate.Closed:
                del shown, capsule, view
                sys.exit(7)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), bytes(shown))
        """
    )
    assert said == "7 b'value'\n"


def test_torch_shows_the_bytes(view):
    torch = pytest.importorskip(
        "torch", reason="torch is not installed; ./dev test --torch installs it"
    )
    copy = torch.from_dlpack(view.__dlpack__(copy=True))
    assert bytes(copy.numpy()) == VALUE
    try:
        shown = torch.from_dlpack(view)
    except BufferError as error:
        # A torch that asks for the older form.
        assert "copy=True" in str(error)
    else:
        assert bytes(shown.numpy()) == VALUE
