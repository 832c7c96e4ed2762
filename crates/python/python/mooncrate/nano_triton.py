# mypy: ignore-errors
"""Device functions of the GPU-resident cache for Triton kernels: push pages, publish, wait, pin, read.

    import triton
    import triton.language as tl
    from mooncrate import nano_triton as nano

    @triton.jit
    def prefill(kv, payload, header, page_bytes, bytes_total, owner, epoch, bases, counter, TILE: tl.constexpr):
        page, tile = tl.program_id(0), tl.program_id(1)
        # ... compute this tile of the page, then:
        nano.push_page(kv + page.to(tl.int64) * page_bytes, payload, page, page_bytes, bytes_total, tile,
                       owner, bases, TILE)
        nano.publish_last(counter, tl.num_programs(0) * tl.num_programs(1), header, epoch, owner, bases)

A place in a heap is a rank and a byte offset in its heap, as a `WritePlan` or an `ObjMeta` has them. `bases`
is an int64 array on the device: where this process has mapped the heap of each rank (`heap_bases` of the
cache). `from_rank` is whose addresses a pointer is in (this rank), `to_rank` whose memory is used; the order
of the arguments is that of IRIS.

What must stay true, because Triton 3.6 issues an atomic operation with one thread only:

* `tl.debug_barrier()` stands before every release, so that the stores of all warps are before it;
* every flag is released and acquired at scope `sys`: its reader may be on another GPU;
* a poll is `atomic_add(p, 0)`, which compiles to a plain acquire load; every poll and every loop of
  compare-and-swap has a bound, and nothing traps;
* a control word changes by 64-bit compare-and-swap only, never by a store;
* bytes that another GPU may have written are loaded from L2 (`.cg`), never through the read-only cache.

tests/python/test_nano_triton.py reads the PTX and holds these rules.
"""

try:
    import triton
    import triton.language as tl
except ImportError as missing:
    raise ImportError(
        "mooncrate.nano_triton needs Triton 3.6 or later: pip install triton (torch for CUDA brings it)"
    ) from missing

__all__ = [
    "BUSY",
    "GONE",
    "NOT_READY",
    "READY",
    "address",
    "last_of_all",
    "load",
    "page_length",
    "payload",
    "pin",
    "pin_value",
    "publish",
    "publish_last",
    "push_page",
    "push_pages",
    "read_page",
    "read_pages",
    "store",
    "translate",
    "unpin",
    "wait_ready",
]

# What `wait_ready` and `pin` answer.
NOT_READY = tl.constexpr(0)
"""The value is being written: ask again."""
READY = tl.constexpr(1)
"""The value can be read; of `pin`: and is pinned."""
GONE = tl.constexpr(2)
"""The header has another life, or this one has ended: ask the master where the value is now."""
BUSY = tl.constexpr(3)
"""`pin` only: this rank has 7 pins on the value, the most, or lost every compare-and-swap."""

# The control word, generation << 32 | state << 28 | pins, and where it lies in a header.
_WORD = tl.constexpr(56)
_STATE_RESERVED = tl.constexpr(1)
_STATE_WRITING = tl.constexpr(2)
_STATE_READY = tl.constexpr(3)
_PINS_PER_RANK = tl.constexpr(7)
# A lost compare-and-swap means that another rank succeeded. The same bound as in the CUDA kernels.
_ATTEMPTS = tl.constexpr(4096)


# ---- addresses --------------------------------------------------------------------------------------------


@triton.jit
def translate(ptr, from_rank, to_rank, heap_bases):
    """The address of the same place of the heap of `to_rank`, for an address in the heap of `from_rank`."""
    distance = tl.load(heap_bases + to_rank) - tl.load(heap_bases + from_rank)
    # Added in elements, and said to be a multiple of 16 of them (heaps begin at pages), it leaves Triton what
    # it knows of the alignment and the neighbours of `ptr`; an address made of a number would lose that.
    return ptr + tl.multiple_of(distance // (ptr.dtype.element_ty.primitive_bitwidth // 8), 16)


@triton.jit
def address(offset, to_rank, heap_bases):
    """The byte at `offset` of the heap of `to_rank`."""
    return (tl.load(heap_bases + to_rank) + offset).to(tl.pointer_type(tl.uint8))


@triton.jit
def payload(payload_offset, to_rank, heap_bases):
    """The first byte of a value. Triton knows that it is a multiple of 16, so what is stored and loaded from
    here on is 16 bytes wide, if the mask allows it. (A hint on what `address` returned would be lost.)"""
    first = tl.load(heap_bases + to_rank) + payload_offset
    return tl.multiple_of(first.to(tl.pointer_type(tl.uint8)), 16)


@triton.jit
def load(ptr, from_rank, to_rank, heap_bases, mask=None):
    """Loads from the heap of `to_rank`; `ptr` is the same place in the heap of `from_rank`."""
    return tl.load(translate(ptr, from_rank, to_rank, heap_bases), mask=mask, cache_modifier=".cg")


@triton.jit
def store(ptr, value, from_rank, to_rank, heap_bases, mask=None):
    """Stores to the heap of `to_rank`; `ptr` is the same place in the heap of `from_rank`."""
    tl.store(translate(ptr, from_rank, to_rank, heap_bases), value, mask=mask)


@triton.jit
def _word_at(header_offset, to_rank, heap_bases):
    return address(header_offset + _WORD, to_rank, heap_bases).to(tl.pointer_type(tl.int64))


# ---- pages ------------------------------------------------------------------------------------------------


@triton.jit
def page_length(page, page_bytes, bytes_total):
    """Bytes of a page: the last one has the rest, one behind the end has none."""
    rest = bytes_total - tl.cast(page, tl.int64) * page_bytes
    return tl.maximum(tl.minimum(rest, page_bytes), 0)


@triton.jit
def _copy_tile(target, source, length, tile, TILE: tl.constexpr):
    """Tile number `tile`, of TILE bytes, of a copy of `length` bytes. Both addresses are multiples of 16."""
    first = tl.cast(tile, tl.int64) * TILE
    # A mask that changes at multiples of 16 bytes only lets Triton move 16 bytes per thread.
    whole = length // 16 * 4
    pieces = first // 4 + tl.max_contiguous(tl.multiple_of(tl.arange(0, TILE // 4), 4), TILE // 4)
    words_from = tl.multiple_of(source.to(tl.pointer_type(tl.uint32)), 16)
    words_to = tl.multiple_of(target.to(tl.pointer_type(tl.uint32)), 16)
    held = tl.load(words_from + pieces, mask=pieces < whole, cache_modifier=".cg")
    tl.store(words_to + pieces, held, mask=pieces < whole)
    # The up to 15 bytes after the last full piece, by the program whose tile they are in.
    tail = length // 16 * 16
    if (tail < length) & (tail >= first) & (tail < first + TILE):
        rest = tail + tl.arange(0, 16)
        byte = tl.load(source + rest, mask=rest < length, cache_modifier=".cg")
        tl.store(target + rest, byte, mask=rest < length)


@triton.jit
def push_page(
    src, payload_offset, page, page_bytes, bytes_total, tile, to_rank, heap_bases, TILE: tl.constexpr
):
    """Copies tile number `tile` of a page, TILE bytes or what is left of it, into the heap of `to_rank`.

    src: the first byte of this page in memory of this rank, a multiple of 16. TILE: a power of two, at
    least 512. A program of the grid calls it once for each of its tiles; nothing is published.
    """
    length = page_length(page, page_bytes, bytes_total)
    start = payload_offset + tl.cast(page, tl.int64) * page_bytes
    _copy_tile(address(start, to_rank, heap_bases), src.to(tl.pointer_type(tl.uint8)), length, tile, TILE)


@triton.jit
def read_page(
    dst, payload_offset, page, page_bytes, bytes_total, tile, to_rank, heap_bases, TILE: tl.constexpr
):
    """The reverse of `push_page`: out of the heap of `to_rank`, to `dst`, the first byte for this page.

    The caller holds a pin (`pin`), or has another reason why the value cannot be freed meanwhile.
    """
    length = page_length(page, page_bytes, bytes_total)
    start = payload_offset + tl.cast(page, tl.int64) * page_bytes
    _copy_tile(dst.to(tl.pointer_type(tl.uint8)), address(start, to_rank, heap_bases), length, tile, TILE)


# ---- the control word -------------------------------------------------------------------------------------


@triton.jit
def _make_word(epoch, state):
    """A word without pins."""
    return (tl.cast(epoch, tl.int64) << 32) | (tl.cast(state, tl.int64) << 28)


@triton.jit
def _is(word, epoch, state):
    """Whether the word has this generation and state, whatever its pins."""
    # The shift moves the sign along, so the generation is compared as the low 32 bits.
    return (word >> 28) & 0xFFFFFFFFF == (tl.cast(epoch, tl.int64) & 0xFFFFFFFF) << 4 | state


@triton.jit
def _answer(word, epoch):
    """READY, NOT_READY or GONE."""
    writing = _is(word, epoch, _STATE_WRITING) | _is(word, epoch, _STATE_RESERVED)
    ready = _is(word, epoch, _STATE_READY)
    return tl.where(ready, READY, tl.where(writing, NOT_READY, GONE))


@triton.jit
def publish(header_offset, epoch, to_rank, heap_bases):
    """Makes the value readable: Writing of this epoch becomes Ready, and pins stay as they are.

    All stores of this program are before it. True if this call did it; False: somebody else has, or the put
    was given up. Where several programs have stored, `publish_last` is the right one.
    """
    at = _word_at(header_offset, to_rank, heap_bases)
    step = tl.cast(_STATE_READY - _STATE_WRITING, tl.int64) << 28
    # A value that is being written has no pins, so the first guess is nearly always right.
    seen = _make_word(epoch, _STATE_WRITING)
    won = 0
    attempt = 0
    while (attempt < _ATTEMPTS) & (won == 0) & _is(seen, epoch, _STATE_WRITING):
        tl.debug_barrier()
        found = tl.atomic_cas(at, seen, seen + step, sem="release", scope="sys")
        won = (found == seen).to(tl.int32)
        seen = found
        attempt += 1
    return won != 0


@triton.jit
def wait_ready(header_offset, epoch, to_rank, heap_bases, polls):
    """Looks at most `polls` times whether the value of this epoch can be read: READY, NOT_READY or GONE.

    Only for the heap of this rank: a poll of another GPU's memory crosses the link each time. One program
    waits, in a kernel of its own, and others follow it in the stream: programs that wait for those that
    could not start yet wait for ever.
    """
    at = _word_at(header_offset, to_rank, heap_bases)
    answer = tl.cast(NOT_READY, tl.int32)
    poll = 0
    while (poll < polls) & (answer == NOT_READY):
        answer = _answer(tl.atomic_add(at, 0, sem="acquire", scope="sys"), epoch)
        poll += 1
    return answer


@triton.jit
def pin(header_offset, epoch, rank, to_rank, heap_bases):
    """Pins the value for `rank` (this one), so that it stays: READY, NOT_READY, GONE or BUSY.

    After READY the value can be read until `unpin`. A pin and the look at the state are one step: what was
    retired before it cannot be pinned.
    """
    at = _word_at(header_offset, to_rank, heap_bases)
    one = tl.cast(1, tl.int64) << (3 * rank)
    # Mostly right: nobody else reads it at this moment.
    seen = _make_word(epoch, _STATE_READY)
    answer = tl.cast(BUSY, tl.int32)
    attempt = 0
    while (attempt < _ATTEMPTS) & (answer == BUSY):
        full = (seen >> (3 * rank)) & _PINS_PER_RANK == _PINS_PER_RANK
        if full | (_is(seen, epoch, _STATE_READY) == 0):
            answer = tl.where(full & _is(seen, epoch, _STATE_READY), BUSY, _answer(seen, epoch))
            # BUSY must end the loop, too.
            attempt = _ATTEMPTS
        else:
            found = tl.atomic_cas(at, seen, seen + one, sem="acquire", scope="sys")
            answer = tl.where(found == seen, READY, BUSY)
            seen = found
            attempt += 1
    # One thread acquired; the others read after it.
    tl.debug_barrier()
    return answer


@triton.jit
def unpin(header_offset, epoch, rank, to_rank, heap_bases):
    """Gives one pin of `rank` back. All loads of this program are before it. False: there was none."""
    at = _word_at(header_offset, to_rank, heap_bases)
    one = tl.cast(1, tl.int64) << (3 * rank)
    seen = tl.atomic_add(at, 0, sem="relaxed", scope="sys")
    done = 0
    attempt = 0
    # A removed value is Retiring until its last pin is gone, so any state of this epoch will do.
    while (
        (attempt < _ATTEMPTS)
        & (done == 0)
        & ((seen >> 32) & 0xFFFFFFFF == tl.cast(epoch, tl.int64) & 0xFFFFFFFF)
        & ((seen >> (3 * rank)) & _PINS_PER_RANK != 0)
    ):
        tl.debug_barrier()
        found = tl.atomic_cas(at, seen, seen - one, sem="release", scope="sys")
        done = (found == seen).to(tl.int32)
        seen = found
        attempt += 1
    return done != 0


# ---- several programs -------------------------------------------------------------------------------------


@triton.jit
def last_of_all(counter, programs):
    """Whether all other programs of the launch were here before: then their loads and stores are ordered
    before what this one does next. `counter` is one int32 on this GPU, 0 at first and 0 again afterwards;
    launches that share one follow each other in one stream."""
    tl.debug_barrier()
    arrived = tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu")
    last = arrived == programs - 1
    tl.store(counter, 0, mask=last)
    return last


@triton.jit
def publish_last(counter, programs, header_offset, epoch, to_rank, heap_bases):
    """`publish`, by the program that comes last. True in that program only, if it published."""
    won = last_of_all(counter, programs)
    if won:
        won = publish(header_offset, epoch, to_rank, heap_bases)
    return won


# ---- ready-made kernels -----------------------------------------------------------------------------------

# Numbers that differ from value to value: Triton would compile once more for each kind of number.
_NUMBERS = [
    "payload_offset", "header_offset", "page_bytes", "bytes_total", "epoch", "rank", "to_rank", "polls",
]  # fmt: skip


@triton.jit(do_not_specialize=_NUMBERS)
def push_pages(
    src, payload_offset, header_offset, page_bytes, bytes_total, epoch, to_rank, heap_bases, counter, outcome,
    TILE: tl.constexpr,
):  # fmt: skip
    """Pushes a value whose pages lie one after the other at `src`, and publishes it.

    Grid: (max(n_pages, 1), cdiv(page_bytes, TILE)). outcome: one int32; 1 if the value was published, 0 if
    not. counter: see `last_of_all`.
    """
    page, tile = tl.program_id(0), tl.program_id(1)
    from_here = src.to(tl.pointer_type(tl.uint8)) + tl.cast(page, tl.int64) * page_bytes
    push_page(from_here, payload_offset, page, page_bytes, bytes_total, tile, to_rank, heap_bases, TILE)
    if last_of_all(counter, tl.num_programs(0) * tl.num_programs(1)):
        tl.store(outcome, publish(header_offset, epoch, to_rank, heap_bases).to(tl.int32))


@triton.jit(do_not_specialize=_NUMBERS)
def pin_value(header_offset, epoch, rank, to_rank, heap_bases, polls, outcome):
    """Waits with at most `polls` looks until a value can be read, and pins it. Grid: (1,).

    outcome: one int32, what `pin` answers; `read_pages` in the same stream goes by it. With polls 0 nothing
    is waited for; where the value is in the heap of another GPU, that is the right number.
    """
    answer = tl.cast(READY, tl.int32)
    if polls > 0:
        answer = wait_ready(header_offset, epoch, to_rank, heap_bases, polls)
    if answer == READY:
        answer = pin(header_offset, epoch, rank, to_rank, heap_bases)
    tl.store(outcome, answer)


@triton.jit(do_not_specialize=_NUMBERS)
def read_pages(
    dst, payload_offset, header_offset, page_bytes, bytes_total, epoch, rank, to_rank, heap_bases, counter,
    outcome, TILE: tl.constexpr,
):  # fmt: skip
    """Copies a value that `pin_value` has pinned to `dst`, and gives the pin back; nothing if it has not.

    Grid: as of `push_pages`. outcome: what `pin_value` left; it stays, unless the pin was lost meanwhile
    because this rank counted as dead: then it becomes GONE and the bytes mean nothing.
    """
    if tl.load(outcome) == READY:
        page, tile = tl.program_id(0), tl.program_id(1)
        to_here = dst.to(tl.pointer_type(tl.uint8)) + tl.cast(page, tl.int64) * page_bytes
        read_page(to_here, payload_offset, page, page_bytes, bytes_total, tile, to_rank, heap_bases, TILE)
        if last_of_all(counter, tl.num_programs(0) * tl.num_programs(1)):
            if unpin(header_offset, epoch, rank, to_rank, heap_bases) == 0:
                tl.store(outcome, GONE)
