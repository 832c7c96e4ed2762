"""Removing structured objects: all of it is gone, or the caller is told and can repeat the call.

All of it holds for the published package, too.
"""

import pytest

numpy = pytest.importorskip("numpy", reason="numpy is not installed")
pytest.importorskip("msgpack", reason="msgpack is not installed")

from mooncake.structured_object_store import MooncakeBundleTransfer, export_ref

SIX = numpy.arange(6)


class Refusing:
    """A store with the calls that `BundleStore` names. It refuses one removal, counted from the next on."""

    def __init__(self):
        self.values = {}
        self.refused = None
        self.known = True

    def put(self, key, value, config=None):
        self.values[key] = bytes(value)
        return 0

    def get(self, key):
        return self.values.get(key, b"")

    def remove(self, key, force=False):
        if self.refused is not None:
            self.refused -= 1
            if self.refused < 0:
                self.refused = None
                return -800
        return 0 if self.values.pop(key, None) is not None else -704

    def is_exist(self, key):
        return int(key in self.values) if self.known else -900


@pytest.fixture
def refusing():
    return Refusing()


@pytest.fixture
def transfer(refusing):
    return MooncakeBundleTransfer(refusing, key_prefix="removal", default_chunk_bytes=20)


def stored(transfer, value):
    """The ref of an object as another process has it: the key alone."""
    return {"manifest_key": transfer.put_object(value).manifest_key}


def in_two_stages(transfer):
    """A batch with a stage that was appended to, and another one: as it was, and as a handle of all."""
    first = transfer.put({"batch": {"a": SIX}})
    grown = transfer.append_dataproto_fields(first, {"b": SIX}, stage="default")
    return first, export_ref(transfer.append_dataproto_fields(grown, {"c": SIX}, stage="more"))


def fails_everywhere(refusing, make, remove):
    """Refuses the first removal, then the second, and so on, until none is left to be refused. Yields
    after each failure was told and the same call was repeated."""
    place = 0
    while True:
        made = make()
        refusing.refused = place
        try:
            remove(made)
        except RuntimeError:
            remove(made)
        else:
            assert refusing.refused is not None, f"removal {place} was refused, and nobody was told"
            return
        yield made
        place += 1


def test_a_removal_that_failed_is_repeated(refusing, transfer):
    """The manifest went first: with chunks left, a second call found nothing to do."""

    def make():
        return stored(transfer, {"a": SIX, "b": b"x" * 50})

    rounds = 0
    for _ in fails_everywhere(refusing, make, transfer.remove_bundle):
        assert not refusing.values
        rounds += 1
    assert rounds >= 6


def test_a_cleanup_that_failed_is_repeated(refusing, transfer):
    def make():
        return in_two_stages(transfer)[1]

    rounds = 0
    for _ in fails_everywhere(refusing, make, transfer.cleanup_dataproto):
        assert not refusing.values
        rounds += 1
    assert rounds >= 12


def test_an_append_is_taken_back_after_a_failure(refusing, transfer):
    rounds = 0

    def take_back(made):
        transfer.cleanup_dataproto_append(*made)

    for first, _ in fails_everywhere(refusing, lambda: in_two_stages(transfer), take_back):
        assert transfer.get(first)["batch"]["a"].tolist() == SIX.tolist()
        transfer.cleanup_dataproto(first)
        assert not refusing.values
        rounds += 1
    assert rounds >= 8


def test_what_nobody_knows_is_not_called_removed(refusing, transfer):
    ref = stored(transfer, {"a": SIX})
    kept = dict(refusing.values)
    refusing.known = False
    with pytest.raises(RuntimeError, match="-900"):
        transfer.remove_bundle(ref)
    assert refusing.values == kept
    refusing.known = True
    transfer.remove_bundle(ref)
    transfer.remove_bundle(ref)
    assert not refusing.values
