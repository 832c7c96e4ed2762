"""Random calls against a dict: whatever the order, a get gives what was put, or a miss after a remove."""

import hypothesis
import hypothesis.stateful
from hypothesis import strategies as st

import mooncrate

KEYS = st.one_of(
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=20),
    st.binary(min_size=1, max_size=20),
)
VALUES = st.one_of(st.binary(max_size=200), st.integers(0, 40_000).map(bytes))
RUN = hypothesis.settings(max_examples=40, stateful_step_count=40, deadline=None, derandomize=True)


def as_bytes(key):
    return key.encode() if isinstance(key, str) else key


class AgainstADict(hypothesis.stateful.RuleBasedStateMachine):
    """The store has room for everything here, so nothing is evicted."""

    keys = hypothesis.stateful.Bundle("keys")

    def __init__(self):
        super().__init__()
        self.store = mooncrate.Store(segment_size="64MiB")
        self.model = {}

    def teardown(self):
        listed = [*self.store.list()]
        assert len(listed) == len(self.model) and set(listed) == set(self.model)
        self.store.close()

    @hypothesis.stateful.rule(target=keys, key=KEYS)
    def name(self, key):
        return key

    @hypothesis.stateful.rule(key=keys, value=VALUES, upsert=st.booleans())
    def put(self, key, value, upsert):
        new = upsert or as_bytes(key) not in self.model
        assert self.store.put(key, value, upsert=upsert) is new
        if new:
            self.model[as_bytes(key)] = value

    @hypothesis.stateful.rule(key=keys)
    def get(self, key):
        value = self.model.get(as_bytes(key))
        assert self.store.get(key) == value
        assert self.store.exists(key) is (value is not None)
        view = self.store.view(key)
        assert (None if view is None else bytes(view)) == value

    @hypothesis.stateful.rule(key=keys, room=st.integers(0, 300))
    def get_into(self, key, room):
        value, target = self.model.get(as_bytes(key)), bytearray(b"\xaa" * room)
        try:
            length = self.store.get_into(key, target)
        except mooncrate.TooLarge:
            assert len(value) > room
            return
        assert length == (None if value is None else len(value))
        assert target == (value or b"") + b"\xaa" * (room - (length or 0))

    @hypothesis.stateful.rule(key=keys, start=st.integers(0, 300), length=st.integers(0, 300))
    def get_range(self, key, start, length):
        value = self.model.get(as_bytes(key))
        try:
            found = self.store.get_range(key, start, length)
        except mooncrate.Invalid:
            assert start + length > len(value)
            return
        assert found == (None if value is None else value[start : start + length])

    @hypothesis.stateful.rule(key=keys)
    def remove(self, key):
        assert self.store.remove(key, force=True) is (self.model.pop(as_bytes(key), None) is not None)

    @hypothesis.stateful.rule(keys=st.lists(keys, max_size=8))
    def get_batch(self, keys):
        expected = [self.model.get(as_bytes(key)) for key in keys]
        assert self.store.get_batch(keys) == expected
        assert self.store.exists_batch(keys) == [value is not None for value in expected]


TestAgainstADict = AgainstADict.TestCase
TestAgainstADict.settings = RUN
