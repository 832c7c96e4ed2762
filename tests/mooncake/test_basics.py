"""put, get and lookups: the smallest things a store does."""

import pytest


@pytest.mark.check(7)
def test_what_was_put_is_what_is_got(store):
    assert store.put("basic/a", b"hello") == 0
    assert store.get("basic/a") == b"hello"
    assert store.get_size("basic/a") == 5
    assert store.is_exist("basic/a") == 1


@pytest.mark.check(8)
def test_the_first_value_stays(store):
    assert store.put("basic/b", b"first") == 0
    assert store.put("basic/b", b"second one") == 0
    assert store.get("basic/b") == b"first"


@pytest.mark.check(17)
def test_a_fresh_value_can_be_removed(store):
    assert store.put("basic/c", b"x") == 0
    assert store.remove("basic/c") == 0
    assert store.get("basic/c") == b""
