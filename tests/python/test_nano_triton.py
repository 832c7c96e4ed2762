"""The Triton functions of the GPU-resident cache: their PTX, and what they do, both without a GPU.

The rules are those of the module's description. A release that a warp's store can pass, or a poll that
writes, shows in no run on one machine, so the PTX is read.
"""

import os
import pathlib
import re
import subprocess
import sys

import pytest

from conftest import PATIENCE

pytest.importorskip("triton", reason="Triton is not installed; `./dev test python` installs it")

import nano_kernels as kernels  # noqa: E402

from mooncrate import nano_triton as nano  # noqa: E402

INTERPRETED = pathlib.Path(__file__).parent / "nano_interpreted.py"
EXAMPLES = pathlib.Path(__file__).parent.parent.parent / "examples/python"
TILED = {"TILE": 16384}
KERNELS = {
    "push_pages": (nano.push_pages, TILED),
    "pin_value": (nano.pin_value, {}),
    "read_pages": (nano.read_pages, TILED),
    "one_program": (kernels.one_program, TILED),
    "pushing_last": (kernels.pushing_last, TILED),
    "waiting": (kernels.waiting, {}),
    "reading": (kernels.reading, TILED),
    "translated": (kernels.translated, {"BLOCK": 2048}),
}
PUSHES = ["push_pages", "one_program", "pushing_last"]


def lines(name, num_warps=8, **more):
    """The instructions and labels of a kernel, without the threads they are for."""
    kernel, constants = KERNELS[name]
    return instructions(kernels.compiled(kernel, num_warps, **constants, **more))


def instructions(ptx):
    body = ptx[ptx.index(".entry") : ptx.index(".section")]
    found = (re.sub(r"^@!?%p\d+\s+", "", line.split("//")[0].strip()) for line in body.splitlines())
    return [line for line in found if line and not line.startswith(".")]


def where(body, pattern):
    return [place for place, line in enumerate(body) if re.match(pattern, line)]


def loops(body):
    """What is between a label and a branch back to it."""
    labels = {line[:-1]: place for place, line in enumerate(body) if line.endswith(":")}
    for place, line in enumerate(body):
        jump = re.match(r"bra(?:\.uni)?\s+([$\w]+);", line)
        if jump and labels[jump[1]] < place:
            yield body[labels[jump[1]] : place + 1]


def atomics(body):
    return [line for line in body if re.match(r"atom|red", line)]


@pytest.mark.parametrize("num_warps", [1, 4, 8])
@pytest.mark.parametrize("name", KERNELS)
def test_nothing_traps_and_nothing_reads_what_a_peer_wrote_from_the_read_only_cache(name, num_warps):
    body = lines(name, num_warps)
    assert not [line for line in body if re.search(r"\btrap\b|\.nc\b|\.nc\.|\bcall\b", line)]
    # Values of 4 bytes and more are 16 at a time, from L2; single bytes are the tail, at one place.
    data = [line for line in body if re.match(r"(ld|st)\.global\S*\.(v\d|b8)", line)]
    assert all(re.search(r"\.v4\.b32|\.b8", line) for line in data)
    assert all(".cg." in line for line in data if line.startswith("ld"))
    assert len([line for line in data if ".b8" in line]) in (0, 2)


@pytest.mark.parametrize("num_warps", [4, 8])
@pytest.mark.parametrize("name", [*PUSHES, "read_pages", "reading", "translated"])
def test_bytes_move_16_at_a_time(name, num_warps):
    body = lines(name, num_warps)
    wide = r"{}\.global.*\.v4\.b32"
    loads, stores = where(body, wide.format("ld")), where(body, wide.format("st"))
    assert loads and len(loads) == len(stores)
    # Bytes of a tile, by so many threads.
    kernel, constants = KERNELS[name]
    bytes_of_tile = constants.get("TILE", 2 * constants.get("BLOCK", 0))
    assert 16 * len(stores) * 32 * num_warps == bytes_of_tile


@pytest.mark.parametrize("num_warps", [4, 8])
@pytest.mark.parametrize("name", PUSHES)
def test_stores_of_all_warps_are_before_the_release(name, num_warps):
    body = lines(name, num_warps)
    (release,) = where(body, r"atom\.global\.release\.sys\.cas\.b64")
    last_store = max(where(body, r"st\.global"), key=lambda place: place if place < release else -1)
    assert last_store < release
    barriers = where(body, r"bar\.sync")
    assert any(last_store < barrier < release for barrier in barriers)
    assert not [line for line in atomics(body) if ".release." in line and ".sys." not in line]


@pytest.mark.parametrize("name", ["push_pages", "pushing_last", "read_pages"])
def test_the_last_program_sees_the_others_before_it_releases(name):
    body = lines(name)
    (count,) = where(body, r"atom\.global\.gpu\.acq_rel\.add\.u32")
    (release,) = where(body, r"atom\.global\.release\.sys\.cas\.b64")
    barriers = where(body, r"bar\.sync")
    stores = where(body, r"st\.global.*(\.v4\.b32|\.b8)")
    assert any(max(stores) < barrier < count for barrier in barriers)
    assert any(count < barrier < release for barrier in barriers)


@pytest.mark.parametrize("name", ["waiting", "pin_value"])
def test_a_poll_loads_and_does_not_write(name):
    polls = [loop for loop in loops(lines(name)) if where(loop, r"ld\.global\.sys\.acquire\.b64")]
    assert len(polls) == 1 and not atomics(polls[0])
    # One thread has loaded: the others wait for it.
    (load,) = where(polls[0], r"ld\.global\.sys\.acquire\.b64")
    assert any(load < barrier for barrier in where(polls[0], r"bar\.sync"))


@pytest.mark.parametrize("name", ["pin_value", "reading"])
def test_a_pin_is_acquired_by_all_warps_before_they_read(name):
    body = lines(name)
    (pinned,) = where(body, r"atom\.global\.acquire\.sys\.cas\.b64")
    barriers = where(body, r"bar\.sync")
    loads = [place for place in where(body, r"ld\.global\.cg") if place > pinned]
    assert any(pinned < barrier < min(loads, default=len(body)) for barrier in barriers)


@pytest.mark.parametrize("name", ["reading", "read_pages"])
def test_loads_of_all_warps_are_before_the_unpin(name):
    body = lines(name)
    (release,) = where(body, r"atom\.global\.release\.sys\.cas\.b64")
    loads = where(body, r"ld\.global\.cg")
    assert max(loads) < release
    assert any(max(loads) < barrier < release for barrier in where(body, r"bar\.sync"))


def test_every_loop_on_a_word_is_bounded():
    for name in KERNELS:
        for loop in loops(lines(name)):
            if atomics(loop) or where(loop, r"ld\.global\.sys"):
                assert where(loop, r"setp\.\w+\.[us]32\s.*(4095|4096|%r\d+)"), (name, loop)


def test_numbers_may_be_constants():
    """A caller may say `tl.constexpr`, and the JIT makes constants of ones."""
    constants = {"epoch": 1, "to_rank": 1, "bytes_total": 1, "page_bytes": 16}
    body = lines("one_program", **constants)
    assert where(body, r"atom\.global\.release\.sys\.cas\.b64")
    assert where(lines("reading", rank=1, epoch=1, to_rank=0), r"atom\.global\.release\.sys")
    assert where(lines("waiting", epoch=1, to_rank=1, polls=1), r"ld\.global\.sys\.acquire")


def test_the_kernels_of_the_example_keep_the_rules(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import nano_push_kernels as example

    lengths = ("page_bytes", "bytes_total")
    push = instructions(kernels.compiled(example.prefill, multiples=lengths, TILE=example.TILE))
    stores = where(push, r"st\.global\S*\.v4\.b32")
    (release,) = where(push, r"atom\.global\.release\.sys\.cas\.b64")
    assert stores and any(max(stores) < barrier < release for barrier in where(push, r"bar\.sync"))
    read = instructions(kernels.compiled(example.decode, multiples=lengths, TILE=example.TILE))
    loads = where(read, r"ld\.global\.cg\.v4\.b32")
    (release,) = where(read, r"atom\.global\.release\.sys\.cas\.b64")
    assert loads and any(max(loads) < barrier < release for barrier in where(read, r"bar\.sync"))


def interpreted(*arguments, **more):
    """Starts a check of nano_interpreted.py in Triton's interpreter: it is chosen when Triton is imported."""
    environment = {**os.environ, "TRITON_INTERPRET": "1", **more}
    command = [sys.executable, str(INTERPRETED), *arguments]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def passed(process):
    try:
        said, errors = process.communicate(timeout=5 * PATIENCE)
    finally:
        process.kill()
    assert (process.returncode, said) == (0, "passed\n"), errors


@pytest.mark.parametrize("check", ["sizes", "publishing", "waiting", "pinning", "refused", "translating"])
def test_what_the_functions_do(check):
    passed(interpreted(check))


@pytest.mark.parametrize("backend", ["host", "cuda"])
def test_kernels_push_and_read_by_the_plans_of_a_cache(tmp_path, emulator, backend):
    path = str(tmp_path / "meet")
    ranks = [interpreted("plans", path, rank, backend, LD_LIBRARY_PATH=emulator) for rank in "01"]
    for rank in ranks:
        passed(rank)
