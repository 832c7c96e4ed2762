"""The kernels of nano_push.py: one writes KV straight into the heap of another rank, one reads it in place.

Both are kernels of a user. What makes them safe is four calls of `mooncrate.nano_triton`: `payload` finds a
value in a heap, `publish` and `unpin` come after `last_of_all` has found the program that is last.
"""

import triton
import triton.language as tl

from mooncrate import nano_triton as nano

TILE = 16384


def grid(plan):
    """A program for each tile of each page."""
    return max(plan.n_pages, 1), triton.cdiv(plan.page_bytes, TILE)


# Lengths stay specialised: where they are multiples of 16, Triton stores and loads 16 bytes per thread.
@triton.jit(do_not_specialize=["number", "payload_offset", "header_offset", "epoch", "to_rank"])
def prefill(
    number, payload_offset, header_offset, page_bytes, bytes_total, epoch, to_rank, heap_bases, counter, outcome,
    TILE: tl.constexpr,
):  # fmt: skip
    """Computes a tile of a page and stores it where it belongs; nothing is kept on this rank."""
    page, tile = tl.program_id(0), tl.program_id(1)
    in_page = tile * TILE + tl.arange(0, TILE)
    at = page.to(tl.int64) * page_bytes + in_page
    value = ((at * 7 + number) % 251).to(tl.uint8)
    heap = nano.payload(payload_offset, to_rank, heap_bases)
    tl.store(heap + at, value, mask=(in_page < page_bytes) & (at < bytes_total))
    if nano.last_of_all(counter, tl.num_programs(0) * tl.num_programs(1)):
        tl.store(outcome, nano.publish(header_offset, epoch, to_rank, heap_bases).to(tl.int32))


@triton.jit(do_not_specialize=["payload_offset", "header_offset", "epoch", "rank", "to_rank"])
def decode(
    payload_offset, page_bytes, bytes_total, header_offset, epoch, rank, to_rank, heap_bases, counter, outcome,
    total, TILE: tl.constexpr,
):  # fmt: skip
    """Adds up a tile of a page, in place; the program that is last gives the pin of `pin_value` back."""
    if tl.load(outcome) == nano.READY:
        page, tile = tl.program_id(0), tl.program_id(1)
        in_page = tile * TILE + tl.arange(0, TILE)
        at = page.to(tl.int64) * page_bytes + in_page
        heap = nano.payload(payload_offset, to_rank, heap_bases)
        # From L2: another GPU may have written it.
        mask = (in_page < page_bytes) & (at < bytes_total)
        value = tl.load(heap + at, mask=mask, other=0, cache_modifier=".cg")
        tl.atomic_add(total, tl.sum(value.to(tl.int64), 0), sem="relaxed", scope="gpu")
        if nano.last_of_all(counter, tl.num_programs(0) * tl.num_programs(1)):
            if nano.unpin(header_offset, epoch, rank, to_rank, heap_bases) == 0:
                tl.store(outcome, nano.GONE)
