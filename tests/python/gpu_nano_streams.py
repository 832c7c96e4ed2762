"""Whether values of `NanoKVCache` are whole where torch uses several streams, and late calls keep their memory.

    python3 gpu_nano_streams.py     with the package `mooncrate` beside it (`rig.py` says more)
"""

import gc

from rig import run_checks, torch_or_skip

ROW = "NanoKVCache on several streams of torch"
SIZE = 64 << 20
# About 50 ms of an H200, and 2 s.
SLOW, STUCK = 100_000_000, 4_000_000_000

torch = torch_or_skip(ROW)

import mooncrate
from mooncrate.nano import NanoKVCache


def random(seed):
    generator = torch.Generator(device="cuda").manual_seed(seed)
    return torch.randint(0, 256, (SIZE,), dtype=torch.uint8, device="cuda", generator=generator)


def cache_of_one(**more):
    return NanoKVCache(1 << 30, rank=0, world=1, **more)


def a_commit_comes_after_pushes_on_other_streams():
    """Pushed in a `with`, behind a slow kernel, and committed outside of it."""
    sides = [torch.cuda.Stream() for _ in range(2)]
    half, room = SIZE // 2, torch.empty(SIZE, dtype=torch.uint8, device="cuda")
    with cache_of_one() as cache:
        for seed in range(20):
            value = random(seed)
            torch.cuda.synchronize()
            plan = cache.open_for_write(f"{seed}", SIZE)
            for number, side in enumerate(sides):
                with torch.cuda.stream(side):
                    torch.cuda._sleep(SLOW)
                    cache.push(plan, value[number * half : (number + 1) * half], number * half)
            cache.commit(f"{seed}")
            assert cache.get_into(f"{seed}", room) and torch.equal(room, value), f"{seed}: WRONG BYTES"
            cache.remove(f"{seed}")


def a_late_get_writes_to_no_other_tensor():
    """The caller drops its tensor, and asks torch for others of the same length."""
    side = torch.cuda.Stream()
    with cache_of_one(timeout=0.2) as cache:
        value = random(1)
        cache.put("there", value)
        for _ in range(3):
            room = torch.zeros(SIZE, dtype=torch.uint8, device="cuda")
            torch.cuda.synchronize()
            with torch.cuda.stream(side):
                torch.cuda._sleep(STUCK)
                try:
                    cache.get_into("there", room)
                    raise AssertionError("the stream was not slow enough")
                except mooncrate.Busy as error:
                    assert error.kind == "late stream", error
            address = room.data_ptr()
            del room
            gc.collect()
            others = [torch.zeros(SIZE, dtype=torch.uint8, device="cuda") for _ in range(3)]
            assert address not in [other.data_ptr() for other in others], "its memory was given to another tensor"
            torch.cuda.synchronize()
            assert not any(other.any() for other in others), "WRONG BYTES in a tensor that nobody named"


run_checks(ROW, [a_commit_comes_after_pushes_on_other_streams, a_late_get_writes_to_no_other_tensor])
