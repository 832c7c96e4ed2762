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
        self.given, self.handle = at is None, handle
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
        assert "did not end in time" in str(error) and "wait for the stream" in str(error)
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


def test_a_commit_comes_after_pushes_on_other_streams(emulated):  # noqa: F811
    """By the stream of the array, as CuPy tells it, or of a `with` that has ended: `commit` names another one."""
    emulated(CACHE + """
own, other, third = stream(), stream(), stream()
half = SIZE // 2
first, second = Own(own, size=half), Own(other, size=half)
with cache_of_one(timeout=20.0) as cache:
    for number, on in enumerate((third, other, own, 0)):
        key = f"plan/{number}"
        plan = cache.open_for_write(key, SIZE)
        for array in (first, second):
            hold(array.handle)
        for turn in range(2):
            for at, array in enumerate((first, second)):
                fill(array.handle, array, 65 + 2 * number + at + 10 * turn)
                cache.push(plan, array, at * half)
        threading.Timer(0.1, lambda: hold(other, False)).start()
        threading.Timer(0.3, lambda: hold(own, False)).start()
        cache.commit(key, stream=on)
        room = bytearray(SIZE)
        assert cache.get_into(key, room)
        wanted = bytes([75 + 2 * number]) * half + bytes([76 + 2 * number]) * half
        assert room == wanted, f"{number}: published before its bytes were there"
    # A stream that its owner has ended meanwhile, and one that has its place since.
    plan = cache.open_for_write("ended", SIZE)
    source = Own(stream(), size=half).write(data(half))
    cache.push(plan, source)
    cuda.cuStreamDestroy_v2(ptr(source.handle))
    again = Own(stream(), at=source.at, size=half)
    cache.push(plan, again, half)
    cuda.cuStreamDestroy_v2(ptr(again.handle))
    cache.commit("ended", stream=third)
    assert cache.get_into("ended", room) and room == data(half) * 2
for array in (first, second, source):
    array.gone()
for handle in (own, other, third):
    cuda.cuStreamDestroy_v2(ptr(handle))
""")


def test_a_commit_beside_a_torch_that_uses_no_gpu_waits_for_all(emulated):  # noqa: F811
    """torch is imported, and knows no stream: a kernel of another library pushes the value."""
    emulated(CACHE + """
from types import SimpleNamespace
unused = lambda *given: False
sys.modules["torch"] = SimpleNamespace(Tensor=type("Tensor", (), {}), cuda=SimpleNamespace(
    is_initialized=unused, is_available=unused))
own = stream()
source = Own(own).write(data(SIZE))
with cache_of_one(timeout=20.0) as cache:
    plan = cache.open_for_write("plan", SIZE)
    hold(own)
    copy(own, Own(own, at=cache.heap_bases[0] + plan.payload_offset), source)
    threading.Timer(0.2, lambda: hold(own, False)).start()
    cache.commit("plan")
    room = bytearray(SIZE)
    assert cache.get_into("plan", room) and room == data(SIZE), "published before its bytes were there"
source.gone()
cuda.cuStreamDestroy_v2(ptr(own))
""")


def test_memory_of_a_late_call_stays_until_it_has_ended(emulated):  # noqa: F811
    """What the caller has dropped could be another array's by the time that the stream comes to the copy."""
    emulated(CACHE + """
import contextlib, weakref

@contextlib.contextmanager
def held():
    hold(own)
    try:
        yield
    finally:
        hold(own, False)

def gone_by(there):
    # What another thread has let go of goes with the next call.
    until = time.monotonic() + 30
    while there() is not None:
        assert time.monotonic() < until, "it is kept for ever"
        cache.stats()
        time.sleep(0.01)

def late(call, array):
    refused(lambda: call(array), mooncrate.Busy)
    return weakref.ref(array)

def other():
    return Own(own, at=place)

own, elsewhere, place = stream(), stream(), allocated(SIZE)
with cache_of_one(timeout=0.3) as cache:
    cache.put("there", Own(elsewhere, at=place).write(data(SIZE)))
    for call in (lambda array: cache.get_into("there", array), lambda array: cache.put("late", array)):
        with held():
            there = late(call, other())
            gc.collect()
            cache.stats()
            assert there() is not None, "its memory may be another's, and the copy has yet to come"
        gone_by(there)
    # What is over in time is not kept, and neither is what was never queued.
    array = other()
    assert cache.get_into("there", array) and array.bytes() == data(SIZE)
    there = weakref.ref(array)
    del array
    assert there() is None
    with held():
        there = late(lambda array: cache.get_into("there", array), Own(own, at=place + 1, size=SIZE))
        assert there() is None
    # A rank that leaves waits for what is late.
    hold(own)
    threading.Timer(1, lambda: hold(own, False)).start()
    there = late(lambda array: cache.get_into("there", array), other())
memory_device(place, SIZE)
assert there() is None, "it is kept for ever"
freed(place)
for handle in (own, elsewhere):
    cuda.cuStreamDestroy_v2(ptr(handle))
""")


def test_a_commit_that_is_refused_keeps_its_plan(emulated):  # noqa: F811
    """In a recording nothing is queued, and nothing on the GPU is waited for. The master is not asked for room either."""
    emulated(CACHE + """
own, busy = stream(), stream()
source = Own(own).write(data(SIZE))
with cache_of_one(timeout=20.0) as cache:
    plan = cache.open_for_write("plan", SIZE)
    cache.push(plan, source)
    planned = cache.stats()["bytes_used"]
    hold(busy)
    fill(busy, source, 1)
    release = threading.Timer(5, lambda: hold(busy, False))
    release.start()
    began = time.monotonic()
    assert cuda.cuStreamBeginCapture_v2(ptr(own), 2) == 0
    for call in (lambda: cache.commit("plan", stream=own), lambda: cache.put("other", source)):
        try:
            call()
            raise AssertionError("it was taken")
        except mooncrate.Invalid as error:
            assert error.kind == "recording" and "recorded into a graph" in str(error), error
    assert cache.stats()["bytes_used"] == planned and cache.get_location("other") is None
    graph = ptr()
    assert cuda.cuStreamEndCapture(ptr(own), byref(graph)) == 0
    assert cuda.cuGraphDestroy(graph) == 0
    cache.commit("plan", stream=own)
    assert time.monotonic() - began < 5, "it waited for another stream"
    assert cache.get("plan").tobytes() == data(SIZE)
    release.cancel()
    hold(busy, False)
source.gone()
for handle in (own, busy):
    cuda.cuStreamDestroy_v2(ptr(handle))
""")


def test_a_put_beside_a_late_commit_of_its_key_takes_no_plan(emulated):  # noqa: F811
    emulated(CACHE + """
own, other = stream(), stream()
source, second = Own(own).write(data(SIZE)), Own(other)
with cache_of_one(timeout=0.5) as cache:
    plan = cache.open_for_write("key", SIZE)
    hold(own)
    cache.push(plan, source)
    said = []
    def put():
        time.sleep(0.4)
        said.append(refused(lambda: cache.put("key", second), mooncrate.Error))
    beside = threading.Thread(target=put)
    beside.start()
    refused(lambda: cache.commit("key", stream=own), mooncrate.Busy)
    beside.join()
    hold(own, False)
    cache.commit("key", stream=own)
    assert cache.get("key").tobytes() == data(SIZE), said
    cache.commit("key", stream=own)
for array in (source, second):
    array.gone()
for handle in (own, other):
    cuda.cuStreamDestroy_v2(ptr(handle))
""")
