"""The GPU-resident cache in the order of the caller's streams, on an emulator of the driver whose streams can be held.

A call waits for the stream that its memory is used on, and for nothing else that the process has queued.
"""

from test_device_store import emulated  # noqa: F401, a fixture

CACHE = """
from mooncrate.nano import NanoKVCache, NotReady
SIZE = 100_000

def cache_of_one(**more):
    return NanoKVCache(4 << 20, rank=0, world=1, page_bytes=4096, slots=64, **more)

class Own(Array):
    '''Memory that is used on a stream.'''
    def __init__(self, handle, at=None, size=SIZE):
        self.given = at is None
        super().__init__(allocated(size) if at is None else at, size, stream=handle)
    def gone(self):
        assert self.given
        freed(self.at)
"""


def test_a_call_waits_for_its_own_stream_alone(emulated):  # noqa: F811
    """An engine has queued a step that takes long: calls on other streams go on, and so do evictions and plans."""
    emulated(CACHE + """
own, busy = stream(), stream()
source, target, work = Own(own), Own(own), Own(busy)
source.write(data(SIZE))
for checksums in (False, True):
    with cache_of_one(checksums=checksums, timeout=20.0) as cache:
        cache.put("before", source)
        hold(busy)
        fill(busy, work, 65)
        cache.put("beside", source)
        assert cache.get_into("beside", target) and target.bytes() == data(SIZE)
        room = bytearray(SIZE)
        assert cache.get_into("before", room) and room == data(SIZE)
        assert cache.remove("before")
        plan = cache.open_for_write("plan", SIZE)
        cache.push(plan, source)
        cache.commit("plan", stream=own)
        assert cache.get_into("plan", target)
        cache.evict_until_below(0)
        assert cache.get_location("beside") is None
        hold(busy, False)
for array in (source, target, work):
    array.gone()
for handle in (own, busy):
    cuda.cuStreamDestroy_v2(ptr(handle))
""")


def test_calls_are_in_the_order_of_their_stream(emulated):  # noqa: F811
    emulated(CACHE + """
own = stream()
source, target = Own(own), Own(own)
odd = Own(own, at=source.at + 1, size=SIZE - 1)
with cache_of_one(timeout=20.0) as cache:
    for number, (name, array) in enumerate([("even", source), ("odd", odd)]):
        source.write(bytes(SIZE))
        hold(own)
        fill(own, array, 65 + number)
        threading.Timer(0.1, lambda: hold(own, False)).start()
        cache.put(name, array)
        assert cache.get(name).tobytes() == bytes([65 + number]) * array.size
    # A get writes after what was queued before it.
    hold(own)
    fill(own, target, 1)
    threading.Timer(0.1, lambda: hold(own, False)).start()
    assert cache.get_into("even", target)
    assert target.bytes() == b"A" * SIZE
    # A commit publishes after the pushes that were queued before it.
    source.write(bytes(SIZE))
    plan = cache.open_for_write("plan", SIZE)
    hold(own)
    fill(own, source, 99)
    cache.push(plan, source)
    assert cache.get_location("plan") is NotReady.WRITING
    threading.Timer(0.1, lambda: hold(own, False)).start()
    cache.commit("plan", stream=own)
    assert cache.get("plan").tobytes() == b"c" * SIZE
for array in (source, target):
    array.gone()
cuda.cuStreamDestroy_v2(ptr(own))
""")


def test_a_stream_that_does_not_end_is_an_error_and_nothing_is_lost(emulated):  # noqa: F811
    emulated(CACHE + """
own, other = stream(), stream()
source, target, odd_at = Own(own), Own(own), allocated(SIZE)
odd = Own(own, at=odd_at + 1, size=SIZE - 1)
plain = Own(other)
with cache_of_one(timeout=0.3) as cache:
    cache.put("there", plain.write(data(SIZE)))
    for array in (source, odd):
        hold(own)
        fill(own, array, 65)
        error = None
        try:
            cache.put("late", array)
        except mooncrate.Busy as raised:
            error = raised
        assert error is not None and (error.kind, error.advice) == ("late stream", "retry"), error
        assert "did not end in time" in str(error)
        # The key is taken while the stream may still write its value.
        assert cache.get_location("late") in (None, NotReady.WRITING)
        target.write(bytes(SIZE))
        try:
            cache.get_into("there", target)
            raise AssertionError("it was read before its stream came so far")
        except mooncrate.Busy as raised:
            assert raised.kind == "late stream"
        hold(own, False)
        until = time.monotonic() + 30
        while cache.stats()["bytes_used"] > 200_000:
            assert time.monotonic() < until, "the room of a late put was not given back"
            time.sleep(0.01)
        cache.put("late", array)
        assert cache.get("late").tobytes() == b"A" * array.size
        assert cache.get_into("there", target) and target.bytes() == data(SIZE)
        assert cache.remove("late")
    # A commit that came too late is tried again.
    plan = cache.open_for_write("plan", SIZE)
    hold(own)
    cache.push(plan, source)
    try:
        cache.commit("plan", stream=own)
        raise AssertionError("it was committed before its bytes were there")
    except mooncrate.Busy as raised:
        assert raised.kind == "late stream"
    hold(own, False)
    cache.commit("plan", stream=own)
    assert cache.get("plan").tobytes() == b"A" * SIZE
    # What is recorded into a graph would never be done.
    assert cuda.cuStreamBeginCapture_v2(ptr(own), 2) == 0
    assert "recorded into a graph" in refused(lambda: cache.put("recorded", source), mooncrate.Error)
    assert "recorded into a graph" in refused(lambda: cache.get_into("there", target), mooncrate.Error)
    graph = ptr()
    assert cuda.cuStreamEndCapture(ptr(own), byref(graph)) == 0
    assert cuda.cuGraphDestroy(graph) == 0
    cache.put("recorded", source)
for array in (source, target, plain):
    array.gone()
freed(odd_at)
for handle in (own, other):
    cuda.cuStreamDestroy_v2(ptr(handle))
""")
