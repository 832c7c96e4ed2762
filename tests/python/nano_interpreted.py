"""What the Triton functions do, on two heaps in memory of this process, in Triton's interpreter.

    TRITON_INTERPRET=1 python nano_interpreted.py CHECK
    TRITON_INTERPRET=1 python nano_interpreted.py plans PATH RANK BACKEND

The second one is a rank of a cache with heaps in host memory, or on an emulated GPU, which is the same.
`test_nano_triton.py` runs each check. The interpreter runs one program after the other: what order means is
read from the PTX there.
"""

import sys

import nano_kernels as kernels
import numpy as np

from mooncrate import NanoKVCache
from mooncrate import nano_triton as nano

DEAD, RESERVED, WRITING, READY, RETIRING, FAILED = range(6)
HEAP, HEADER, PAYLOAD, EPOCH = 64 << 10, 128, 4096, 0x8000_0005
TILE, PAGE = 512, 1024
GUARD = 0xA5


def word(state, pins=0, epoch=EPOCH):
    return epoch << 32 | state << 28 | pins


class Heaps:
    """Two ranks; what is written goes to rank 1, by rank 0."""

    def __init__(self, state=WRITING, pins=0):
        self.heaps = [np.full(HEAP, GUARD, "u1") for _ in range(2)]
        self.bases = np.array([heap.ctypes.data for heap in self.heaps], "i8")
        self.words = self.heaps[1].view("u8")
        self.words[HEADER // 8 + 7] = word(state, pins)
        self.counter, self.outcome = np.zeros(1, "i4"), np.full(1, -1, "i4")

    @property
    def word(self):
        return int(self.words[HEADER // 8 + 7])

    @property
    def said(self):
        return int(self.outcome[0])

    def numbers(self, length):
        return PAYLOAD, HEADER, PAGE, length, EPOCH - 2**32

    def grid(self, length):
        return max(-(-length // PAGE), 1), PAGE // TILE

    def push(self, data):
        length = data.size
        kernels.push_at[self.grid(length)](
            data.ctypes.data, *self.numbers(length), 1, self.bases.ctypes.data, self.counter.ctypes.data,
            self.outcome.ctypes.data, TILE,
        )  # fmt: skip

    def pin(self, rank=0, polls=0, epoch=EPOCH):
        place = self.outcome.ctypes.data
        kernels.pin_at[(1,)](HEADER, epoch - 2**32, rank, 1, self.bases.ctypes.data, polls, place)
        return self.said

    def wait(self, polls, epoch=EPOCH):
        place = self.outcome.ctypes.data
        kernels.wait_at[(1,)](HEADER, epoch - 2**32, 1, self.bases.ctypes.data, polls, place)
        return self.said

    def unpin(self, rank=0, epoch=EPOCH):
        place = self.outcome.ctypes.data
        kernels.unpin_at[(1,)](HEADER, epoch - 2**32, rank, 1, self.bases.ctypes.data, place)
        return self.said

    def read(self, length, rank=0):
        target = np.full(length + 64, GUARD, "u1")
        kernels.read_at[self.grid(length)](
            target.ctypes.data, *self.numbers(length), rank, 1, self.bases.ctypes.data,
            self.counter.ctypes.data, self.outcome.ctypes.data, TILE,
        )  # fmt: skip
        return target


def sizes():
    """Exactly the bytes of the value arrive, whatever its length, and come back."""
    random = np.random.default_rng(1)
    for length in [0, 1, 15, 16, 17, 511, 512, 513, 1023, 1024, 1025, 3 * 1024 + 37, 5000]:
        heaps, data = Heaps(), random.integers(0, 256, length, "u1")
        heaps.push(data)
        assert (heaps.said, heaps.word, heaps.counter[0]) == (1, word(READY), 0), length
        kept = heaps.heaps[1]
        assert (kept[PAYLOAD : PAYLOAD + length] == data).all(), length
        others = np.concatenate([kept[:HEADER], kept[HEADER + 128 : PAYLOAD], kept[PAYLOAD + length :]])
        assert (others == GUARD).all() and (heaps.heaps[0] == GUARD).all(), length
        assert heaps.pin() == nano.READY
        target = heaps.read(length)
        assert (target[:length] == data).all() and (target[length:] == GUARD).all(), length
        assert (heaps.said, heaps.word, heaps.counter[0]) == (nano.READY, word(READY), 0), length


def publishing():
    """Only Writing of the same epoch becomes Ready; pins stay."""
    data = np.zeros(100, "u1")
    for state in [DEAD, RESERVED, READY, RETIRING, FAILED]:
        heaps = Heaps(state)
        heaps.push(data)
        assert (heaps.said, heaps.word) == (0, word(state)), state
    for other in [EPOCH + 1, EPOCH - 1, 5]:
        heaps = Heaps()
        heaps.words[HEADER // 8 + 7] = word(WRITING, epoch=other)
        heaps.push(data)
        assert (heaps.said, heaps.word) == (0, word(WRITING, epoch=other)), other
    heaps = Heaps(pins=0o7654321)
    heaps.push(data)
    assert (heaps.said, heaps.word) == (1, word(READY, 0o7654321))


def waiting():
    """Every state has its answer, and looking changes nothing."""
    answers = {
        DEAD: nano.GONE, RESERVED: nano.NOT_READY, WRITING: nano.NOT_READY, READY: nano.READY,
        RETIRING: nano.GONE, FAILED: nano.GONE,
    }  # fmt: skip
    for state, answer in answers.items():
        heaps = Heaps(state, pins=0o3)
        assert heaps.wait(5) == answer, state
        assert heaps.wait(5, epoch=EPOCH + 1) == nano.GONE, state
        assert heaps.word == word(state, 0o3)
        assert heaps.pin(rank=1, polls=3) == answer, state
    assert Heaps(READY).wait(0) == nano.NOT_READY


def pinning():
    """A rank has up to 7 pins, in bits of its own, and gives back what it has."""
    for rank in [0, 1, 7]:
        others = word(READY, 0o12345670 & ~(7 << 3 * rank))
        heaps = Heaps()
        heaps.words[HEADER // 8 + 7] = others
        for pins in range(1, 8):
            assert heaps.pin(rank) == nano.READY
            assert heaps.word == others + (pins << 3 * rank)
        assert heaps.pin(rank) == nano.BUSY
        for pins in range(6, -1, -1):
            assert heaps.unpin(rank) == 1
            assert heaps.word == others + (pins << 3 * rank)
        assert (heaps.unpin(rank), heaps.word) == (0, others)


def refused():
    """What cannot be pinned is not read; a pin outlives the removal of its value."""
    heaps = Heaps(RETIRING)
    assert heaps.pin() == nano.GONE
    assert (heaps.read(100) == GUARD).all() and heaps.word == word(RETIRING)
    assert heaps.counter[0] == 0 and heaps.said == nano.GONE
    heaps = Heaps(READY)
    assert heaps.pin(epoch=EPOCH + 1) == nano.GONE and heaps.word == word(READY)
    assert heaps.pin() == nano.READY and heaps.unpin(epoch=EPOCH + 1) == 0
    heaps.words[HEADER // 8 + 7] = word(RETIRING, 1)
    assert (heaps.unpin(), heaps.word) == (1, word(RETIRING))
    # This rank counted as dead meanwhile, and its pin was taken: what was read means nothing.
    heaps = Heaps(READY)
    assert heaps.pin() == nano.READY
    heaps.words[HEADER // 8 + 7] = word(READY)
    heaps.read(100)
    assert (heaps.said, heaps.word) == (nano.GONE, word(READY))


def translating():
    """The same place in another heap."""
    heaps, there = Heaps(), np.zeros(1, "i8")
    for offset in [0, 1, 4097]:
        here = int(heaps.bases[0]) + offset
        kernels.translate_at[(1,)](here, 0, 1, heaps.bases.ctypes.data, there.ctypes.data)
        assert there[0] == heaps.bases[1] + offset


def plans(path, rank, backend):
    """Kernels of one process push by a plan, those of the other one read in place, on heaps that both map."""
    cache = NanoKVCache(
        4 << 20, page_bytes=PAGE, slots=64, backend=backend, rank=int(rank), world=2, path=path
    )
    bases, counter, outcome = np.array(cache.heap_bases, "i8"), np.zeros(1, "i4"), np.full(1, -1, "i4")
    words = bases.ctypes.data, counter.ctypes.data, outcome.ctypes.data
    for length in [0, 1, 1000, 5000]:
        data = np.random.default_rng(length).integers(0, 256, length, "u1")
        if cache.rank == 0:
            plan = cache.open_for_write("value", length, preferred_segment=1)
            kernels.push_at[(max(plan.n_pages, 1), PAGE // TILE)](
                data.ctypes.data, plan.payload_offset, plan.header_offset, PAGE, length, plan.epoch, 1, *words,
                TILE,
            )  # fmt: skip
            assert outcome[0] == 1
            cache.commit("value")
        cache.barrier()
        if cache.rank == 1:
            place, target = cache.get_location("value"), np.full(length + 64, GUARD, "u1")
            where = place.epoch, 1, place.owner_rank
            kernels.pin_at[(1,)](place.header_offset, *where, words[0], 3, words[2])
            kernels.read_at[(max(place.n_pages, 1), PAGE // TILE)](
                target.ctypes.data, place.payload_offset, place.header_offset, PAGE, length, *where, *words, TILE
            )
            assert outcome[0] == nano.READY
            assert (target[:length] == data).all() and (target[length:] == GUARD).all()
            assert (cache.get("value") == data).all()
            # A pin that was not given back would keep the bytes, not the key: look at the header, too.
            kernels.unpin_at[(1,)](place.header_offset, *where, words[0], words[2])
            assert outcome[0] == 0
            assert cache.remove("value")
        cache.barrier()
    cache.close()


CHECKS = {
    check.__name__: check
    for check in (sizes, publishing, waiting, pinning, refused, translating, plans)
}

if __name__ == "__main__":
    CHECKS[sys.argv[1]](*sys.argv[2:])
    print("passed")
