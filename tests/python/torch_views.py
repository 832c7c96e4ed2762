"""Whether torch sees the memory of a paged cache on a GPU without a copy. `./dev gpu` runs it where the GPU is.

    python3 torch_views.py          with the package `mooncrate` beside it, or installed

It needs torch with CUDA and NumPy. Each check says its name and whether it passed; a failed one shows where,
and the others go on. The last line is a row for the table of `./dev gpu`. It ends with 0, with 1 if a check
failed, and with 77 if this machine cannot run them.
"""

import gc
import sys
import time
import traceback

ROW = "torch sees views of VRAM without a copy"

try:
    import numpy as np
    import torch
except ImportError as error:
    print(f"{ROW} | SKIPPED: {error}")
    sys.exit(77)
if not torch.cuda.is_available():
    print(f"{ROW} | SKIPPED: torch finds no GPU")
    sys.exit(77)

from mooncrate.paged import Geometry, PagedCache

LAYERS, HEADS, DIM, TOKENS = 2, 4, 64, 16
CHECKS = []


def check(work):
    CHECKS.append(work)
    return work


def made(dtype="float16", blocks=32, **more):
    geometry = Geometry(
        layers=LAYERS, kv_heads=HEADS, head_dim=DIM, block_tokens=TOKENS, dtype=dtype
    )
    return PagedCache(geometry, blocks, model="test", memory=more.pop("memory", "cuda"), **more)


def random(*shape, dtype):
    """Numbers that every element type has, on the GPU."""
    return torch.randint(-100, 100, shape, device="cuda").to(getattr(torch, dtype))


def tokens_of(cache, name, layer):
    """K and V of a sequence, by copies through the cache: `[tokens, heads, dim]` on the host."""
    torch.cuda.synchronize()
    k, v = cache.read_tokens(name, layer, raw=True)
    kind = getattr(torch, cache.geometry.dtype)
    # Through signed integers, of which torch has every width.
    bits = (half.view(f"i{half.dtype.itemsize}") for half in (k, v))
    return tuple(torch.from_numpy(half).view(kind) for half in bits)


def by_tokens(blocks, tokens):
    """`[heads, blocks, block tokens, dim]` as `[tokens, heads, dim]` on the host."""
    return blocks.permute(1, 2, 0, 3).reshape(-1, HEADS, DIM)[:tokens].cpu()


@check
def dlpack_has_the_address_of_the_arena():
    for dtype in ("float32", "float16", "bfloat16", "int8"):
        for layout in ("nhd", "hnd", "token-major", "head-major", "block-first", "layer-block-head"):
            cache = made(dtype, layout=layout)
            cache.allocate("first", count=1)
            cache.allocate("a", count=40, contiguous=True)
            view = cache.view("a", 1, "v")
            tensor = torch.from_dlpack(view)
            assert tensor.is_cuda and tensor.data_ptr() == view.data_ptr, (dtype, layout)
            assert tuple(tensor.shape) == view.shape == (HEADS, 3, TOKENS, DIM), (dtype, layout)
            assert tensor.stride() == view.strides, (dtype, layout)
            assert tensor.dtype == getattr(torch, dtype), (dtype, layout)
            pages = cache.pages(1, "nhd")
            block = cache.block_table("a")[0]
            steps = block * pages.strides[0] + pages.strides[1]
            assert view.data_ptr == pages.data_ptr + steps * tensor.element_size(), (dtype, layout)
            assert view.__dlpack_device__() == (2, 0)


@check
def cuda_array_interface_has_the_address_of_the_arena():
    for dtype in ("float32", "float16", "int8"):
        cache = made(dtype, layout="hnd")
        cache.allocate("a", count=40, contiguous=True)
        view = cache.view("a", 0, "k")
        interface = view.__cuda_array_interface__
        assert interface["version"] == 3 and interface["data"] == (view.data_ptr, False)
        assert "stream" in interface
        tensor = torch.as_tensor(view, device="cuda")
        assert tensor.data_ptr() == view.data_ptr and tensor.stride() == view.strides
        tensor.fill_(7)
        assert (tokens_of(cache, "a", 0)[0] == 7).all()


@check
def what_torch_writes_is_read_by_the_cache():
    for dtype in ("float32", "float16", "bfloat16", "int8"):
        for layout in ("nhd", "hnd", "token-major", "head-major", "block-first", "layer-block-head"):
            cache = made(dtype, layout=layout)
            cache.allocate("a", count=40, contiguous=True)
            wanted = []
            for half in "kv":
                tensor = torch.from_dlpack(cache.view("a", 1, half))
                tensor.copy_(random(*tensor.shape, dtype=dtype))
                wanted.append(by_tokens(tensor, 40))
            found = tokens_of(cache, "a", 1)
            assert all(torch.equal(*pair) for pair in zip(found, wanted)), (dtype, layout)
            assert not tokens_of(cache, "a", 0)[0].any(), "the other layer"
            if layout in ("token-major", "head-major"):
                tokens = torch.from_dlpack(cache.tokens_view("a", 1, "k"))
                assert tuple(tokens.shape) == (HEADS, 40, DIM), (dtype, layout)
                assert torch.equal(tokens.permute(1, 0, 2).cpu(), wanted[0]), (dtype, layout)
                tokens.fill_(3)
                assert (tokens_of(cache, "a", 1)[0] == 3).all(), (dtype, layout)


@check
def what_the_cache_writes_is_seen_by_torch():
    cache = made("bfloat16", layout="token-major")
    cache.allocate("a", range(40), contiguous=True)
    k, v = (random(40, HEADS, DIM, dtype="bfloat16") for _ in range(2))
    cache.write_tokens("a", 0, 0, k, v)
    shown = torch.from_dlpack(cache.tokens_view("a", 0, "v"))
    assert torch.equal(shown.permute(1, 0, 2), v)
    assert cache.publish("a", 40) == 2
    assert cache.allocate("b", range(40)).cached_tokens == 32
    own = cache.view("a", 0, "k", own=True)
    assert not own.readonly and cache.view("a", 0, "k").readonly
    # The last block, of which 8 tokens are used.
    assert torch.equal(by_tokens(torch.from_dlpack(own), 8), k[32:].cpu())


@check
def block_tables_lead_to_scattered_blocks():
    cache = made("float16")
    for turn in range(6):
        for name in "ab":
            # One block each in turn, so that neither lies in a row.
            if turn == 0:
                cache.allocate(name, count=TOKENS)
            else:
                cache.append(name, count=TOKENS)
    pages = torch.from_dlpack(cache.pages(1))
    table = torch.full((2, 8), 7, dtype=torch.int32)
    cache.fill_block_tables(["a", "b"], table, pad=0)
    for row in range(2):
        pages[table[row, :6].long().cuda()] = float(row + 1)
    torch.cuda.synchronize()
    for row, name in enumerate("ab"):
        k, v = tokens_of(cache, name, 1)
        assert (k == row + 1).all() and (v == row + 1).all(), name
    slots = torch.full((12 * TOKENS,), 7, dtype=torch.int64)
    assert cache.slot_mapping(["b", "a"], slots) == 12 * TOKENS
    flat = pages[:, 0].reshape(-1, HEADS, DIM)  # a copy: K and V alternate
    assert (flat[slots[: 6 * TOKENS].cuda()] == 2).all()
    indptr, indices, last = (torch.zeros(size, dtype=torch.int32) for size in (3, 16, 2))
    assert cache.csr(["a", "b"], indptr, indices, last) == 12
    assert indptr.tolist() == [0, 6, 12] and last.tolist() == [TOKENS, TOKENS]
    assert (pages[indices[6:12].long().cuda()] == 2).all()


@check
def a_captured_graph_follows_a_table_that_is_refilled():
    cache = made("float16")
    pages = torch.from_dlpack(cache.pages(0))
    # At fixed addresses: the graph keeps them.
    table = torch.zeros(4, dtype=torch.int32, device="cuda")
    out = torch.zeros((4, *pages.shape[1:]), dtype=torch.float16, device="cuda")
    filled = torch.zeros(4, dtype=torch.int32).pin_memory()

    def step():
        torch.index_select(pages, 0, table, out=out)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    address = table.data_ptr()
    for turn in range(4):
        name = f"turn {turn}"
        # An odd one stays, so that later sequences lie elsewhere.
        cache.allocate(f"between {turn}", count=1)
        cache.allocate(name, count=4 * TOKENS)
        k, v = (random(4 * TOKENS, HEADS, DIM, dtype="float16") for _ in range(2))
        cache.write_tokens(name, 0, 0, k, v)
        assert cache.block_table(name, filled) == 4
        table.copy_(filled, non_blocking=True)
        graph.replay()
        torch.cuda.synchronize()
        assert table.data_ptr() == address
        assert torch.equal(out[:, 0].reshape(-1, HEADS, DIM), k), turn
        assert torch.equal(out[:, 1].reshape(-1, HEADS, DIM), v), turn
        cache.free(name)


@check
def a_tensor_keeps_its_blocks_and_the_memory():
    cache = made("float16", blocks=4)
    cache.allocate("a", count=2 * TOKENS, contiguous=True)
    tensor = torch.from_dlpack(cache.view("a", 0, "k"))
    other = torch.as_tensor(cache.view("a", 0, "v"), device="cuda")
    tensor.fill_(9)
    torch.cuda.synchronize()
    cache.free("a")
    assert cache.stats()["used_blocks"] == 2
    cache.allocate("b", count=2 * TOKENS)
    cache.write_tokens("b", 0, 0, *(random(2 * TOKENS, HEADS, DIM, dtype="float16"),) * 2)
    assert (tensor == 9).all()
    del other
    gc.collect()
    assert cache.stats()["used_blocks"] == 4
    del cache
    gc.collect()
    assert (tensor == 9).all(), "the memory outlives the cache"


@check
def numpy_is_refused_in_words():
    cache = made("float32")
    cache.allocate("a", count=4)
    view = cache.view("a", 0, "k")
    for call in (view.numpy, lambda: np.asarray(view)):
        try:
            call()
        except TypeError as error:
            assert "memory of GPU 0" in str(error), error
        else:
            raise AssertionError("NumPy took an address of a GPU")


@check
def growing_and_shrinking_moves_nothing():
    cache = made("float16", blocks=4, blocks_max=16)
    cache.allocate("a", count=20, contiguous=True)
    view = cache.view("a", 0, "k")
    tensor = torch.from_dlpack(view)
    tensor.fill_(5)
    torch.cuda.synchronize()
    cache.resize(16)
    cache.append("a", count=100)
    assert view.data_ptr == tensor.data_ptr()
    assert (tokens_of(cache, "a", 0)[0][:20] == 5).all()


@check
def pinned_memory_is_pinned_for_torch():
    for dtype in ("float16", "bfloat16"):
        cache = made(dtype, layout="token-major", memory="pinned")
        cache.allocate("a", count=40, contiguous=True)
        view = cache.tokens_view("a", 1, "k")
        tensor = torch.from_dlpack(view)
        assert tensor.data_ptr() == view.data_ptr and not tensor.is_cuda
        assert tensor.is_pinned() and view.__dlpack_device__() == (3, 0)
        there = random(*tensor.shape, dtype=dtype)
        tensor.copy_(there)
        assert torch.equal(tokens_of(cache, "a", 1)[0], there.permute(1, 0, 2).cpu())
        pages = torch.from_dlpack(cache.pages(1))
        assert pages.is_pinned()
        assert torch.equal(pages.to("cuda", non_blocking=True).cpu(), pages)


@check
def copies_are_timed_for_the_record():
    """Reported, never judged: a whole layer from each kind of host memory to the GPU, 256 MiB."""
    target = torch.empty(128 << 20, dtype=torch.float16, device="cuda")
    for memory in ("host", "pinned"):
        geometry = Geometry(layers=1, kv_heads=8, head_dim=128, block_tokens=64, dtype="float16")
        cache = PagedCache(geometry, 1024, memory=memory)
        source = torch.from_dlpack(cache.pages(0)).reshape(-1)
        source.fill_(1)
        target.copy_(source)
        times = []
        for _ in range(5):
            torch.cuda.synchronize()
            begun = time.perf_counter()
            target.copy_(source, non_blocking=True)
            torch.cuda.synchronize()
            times.append(time.perf_counter() - begun)
        rate = source.numel() * 2 / sorted(times)[2] / 1e9
        print(f"     256 MiB from {memory} memory to the GPU: {rate:.1f} GB/s, median of 5")


def main():
    gpu = torch.cuda.get_device_name(0)
    python = ".".join(map(str, sys.version_info[:3]))
    print(f"{gpu}; torch {torch.__version__}, NumPy {np.__version__}, Python {python}")
    torch.manual_seed(7)
    failed = []
    for work in CHECKS:
        try:
            work()
            torch.cuda.synchronize()
            print(f"ok   {work.__name__}")
        except Exception:
            failed.append(work.__name__)
            print(f"FAILED {work.__name__}")
            traceback.print_exc(file=sys.stdout)
    result = f"failed: {', '.join(failed)}" if failed else f"passed, {len(CHECKS)} checks"
    print(f"{ROW} | {result}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
