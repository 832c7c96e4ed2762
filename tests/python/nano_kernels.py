"""Kernels around the device functions of `mooncrate.nano_triton`, for its tests.

`compiled` makes PTX of one, without a GPU. The kernels whose names end in `_at` take addresses as plain
numbers, so that Triton's interpreter can run them on memory of the host, without torch.
"""

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from mooncrate import nano_triton as nano

TYPES = {
    "src": "*u8", "dst": "*u8", "heap_bases": "*i64", "counter": "*i32", "outcome": "*i32", "ptr": "*fp16",
    "payload_offset": "i64", "header_offset": "i64", "bytes_total": "i64", "page_bytes": "i32",
    "epoch": "i32", "rank": "i32", "from_rank": "i32", "to_rank": "i32", "polls": "i32", "n": "i32",
    "number": "i32", "total": "*i64",
}  # fmt: skip


def compiled(kernel, num_warps=8, multiples=(), **constants):
    """The PTX of a kernel for an H100 or H200, as the JIT would make it: pointers are multiples of 16, and so
    are `multiples`."""
    signature = {name: "constexpr" if name in constants else TYPES[name] for name in kernel.arg_names}
    attrs = {
        (place,): [["tt.divisibility", 16]]
        for place, name in enumerate(kernel.arg_names)
        if signature[name].startswith("*") or name in multiples
    }
    source = ASTSource(kernel, signature, constants, attrs)
    target = GPUTarget("cuda", 90, 32)
    return triton.compile(source, target=target, options={"num_warps": num_warps}).asm["ptx"]


# ---- each function in a kernel of its own ---------------------------------------------------------------


@triton.jit
def one_program(src, payload_offset, header_offset, page_bytes, bytes_total, epoch, to_rank, heap_bases,
                TILE: tl.constexpr):  # fmt: skip
    """The whole value by one program, which then publishes and does not look at the answer."""
    for tile in range(tl.cdiv(page_bytes, TILE)):
        nano.push_page(src, payload_offset, 0, page_bytes, bytes_total, tile, to_rank, heap_bases, TILE)
    nano.publish(header_offset, epoch, to_rank, heap_bases)


@triton.jit
def translated(ptr, from_rank, to_rank, heap_bases, n, BLOCK: tl.constexpr):
    """What IRIS does: a block of the same place, loaded from one rank and stored to another."""
    at = tl.arange(0, BLOCK)
    held = nano.load(ptr + at, from_rank, to_rank, heap_bases)
    nano.store(ptr + n * 16 + at, held, from_rank, to_rank, heap_bases)


@triton.jit
def waiting(header_offset, epoch, to_rank, heap_bases, polls, outcome):
    tl.store(outcome, nano.wait_ready(header_offset, epoch, to_rank, heap_bases, polls))


@triton.jit
def reading(dst, payload_offset, header_offset, page_bytes, bytes_total, epoch, rank, to_rank, heap_bases,
            TILE: tl.constexpr):  # fmt: skip
    """Pin, read and unpin by one program."""
    if nano.pin(header_offset, epoch, rank, to_rank, heap_bases) == nano.READY:
        for tile in range(tl.cdiv(page_bytes, TILE)):
            nano.read_page(dst, payload_offset, 0, page_bytes, bytes_total, tile, to_rank, heap_bases, TILE)
        nano.unpin(header_offset, epoch, rank, to_rank, heap_bases)


@triton.jit
def pushing_last(src, payload_offset, header_offset, page_bytes, bytes_total, epoch, to_rank, heap_bases,
                 counter, TILE: tl.constexpr):  # fmt: skip
    """The program of the module's own description."""
    page, tile = tl.program_id(0), tl.program_id(1)
    nano.push_page(src + page.to(tl.int64) * page_bytes, payload_offset, page, page_bytes, bytes_total, tile,
                   to_rank, heap_bases, TILE)  # fmt: skip
    programs = tl.num_programs(0) * tl.num_programs(1)
    nano.publish_last(counter, programs, header_offset, epoch, to_rank, heap_bases)


# ---- the same on addresses, for the interpreter ---------------------------------------------------------


@triton.jit
def _bytes(address):
    return tl.cast(address, tl.int64).to(tl.pointer_type(tl.uint8))


@triton.jit
def _longs(address):
    return tl.cast(address, tl.int64).to(tl.pointer_type(tl.int64))


@triton.jit
def _ints(address):
    return tl.cast(address, tl.int64).to(tl.pointer_type(tl.int32))


@triton.jit
def push_at(src, payload_offset, header_offset, page_bytes, bytes_total, epoch, to_rank, heap_bases, counter,
            outcome, TILE: tl.constexpr):  # fmt: skip
    nano.push_pages(_bytes(src), payload_offset, header_offset, page_bytes, bytes_total, epoch, to_rank,
                    _longs(heap_bases), _ints(counter), _ints(outcome), TILE)  # fmt: skip


@triton.jit
def pin_at(header_offset, epoch, rank, to_rank, heap_bases, polls, outcome):
    nano.pin_value(header_offset, epoch, rank, to_rank, _longs(heap_bases), polls, _ints(outcome))


@triton.jit
def read_at(dst, payload_offset, header_offset, page_bytes, bytes_total, epoch, rank, to_rank, heap_bases,
            counter, outcome, TILE: tl.constexpr):  # fmt: skip
    nano.read_pages(_bytes(dst), payload_offset, header_offset, page_bytes, bytes_total, epoch, rank, to_rank,
                    _longs(heap_bases), _ints(counter), _ints(outcome), TILE)  # fmt: skip


@triton.jit
def wait_at(header_offset, epoch, to_rank, heap_bases, polls, outcome):
    found = nano.wait_ready(header_offset, epoch, to_rank, _longs(heap_bases), polls)
    tl.store(_ints(outcome), found)


@triton.jit
def unpin_at(header_offset, epoch, rank, to_rank, heap_bases, outcome):
    done = nano.unpin(header_offset, epoch, rank, to_rank, _longs(heap_bases))
    tl.store(_ints(outcome), done.to(tl.int32))


@triton.jit
def translate_at(address, from_rank, to_rank, heap_bases, outcome):
    there = nano.translate(_bytes(address), from_rank, to_rank, _longs(heap_bases))
    tl.store(_longs(outcome), there.to(tl.int64))
