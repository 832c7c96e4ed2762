"""Whether tensors in VRAM come back from a cluster bit for bit, in the order of their streams, and how fast.

    MOONCRATE_BINARY=… python3 device_store.py      with the packages `mooncrate` and `mooncake` beside it

`./dev gpu` runs it where the GPU is. It starts a server of its own ($MOONCRATE_BINARY), with a disk, and with VRAM
if the server can lend some. It needs torch with CUDA. Each check says its name and whether it passed; a failed one
shows where, and the others go on. Then comes a table of figures, and last a row for the table of `./dev gpu`. It
ends with 0, with 1 if a check failed, and with 77 if this machine cannot run them.
"""

import asyncio
import json
import os
import pathlib
import select
import subprocess
import sys
import tempfile
import time
import traceback

ROW = "tensors in VRAM put and got, in the order of streams"

try:
    import torch
except ImportError as error:
    print(f"{ROW} | SKIPPED: {error}")
    sys.exit(77)
if not torch.cuda.is_available():
    print(f"{ROW} | SKIPPED: torch finds no GPU")
    sys.exit(77)

import mooncrate

MIB = 1 << 20
SIZES = [1, 2, 15, 100, 4095, 65_537, MIB, MIB + 17, 16 * MIB + 1, 256 * MIB]
PATIENCE = 120
CHECKS = []


def check(work):
    CHECKS.append(work)
    return work


class Server:
    """`mooncrate serve` in a folder of its own; with VRAM, if it knows the flag."""

    def __init__(self, folder):
        self.folder, self.binary = folder, os.environ["MOONCRATE_BINARY"]
        self.vram = self.lends_vram()
        arguments = [self.binary, "serve", "--json", "--grpc", "off"]
        for door in ("--master", "--admin", "--data"):
            arguments += [door, "127.0.0.1:0"]
        arguments += ["--segment-size", "3GiB", "--ssd", f"{folder}/disk=4GiB"]
        if self.vram:
            arguments += ["--vram", "0=2GiB"]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MOONCRATE_")}
        environment["XDG_RUNTIME_DIR"] = str(folder)
        self.log = open(folder / "serve.log", "wb")
        self.process = subprocess.Popen(
            arguments, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=self.log
        )
        ready, _, _ = select.select([self.process.stdout], [], [], PATIENCE)
        line = self.process.stdout.readline() if ready else b""
        assert line, f"serve did not start: {(folder / 'serve.log').read_text()}"
        self.master = json.loads(line)["master"]

    def lends_vram(self):
        told = subprocess.run([self.binary, "serve", "--help"], capture_output=True, text=True, check=False)
        return "--vram" in told.stdout

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(PATIENCE)
        finally:
            self.process.kill()
            self.log.close()


def random(size, seed=0):
    """Random bytes on the GPU."""
    generator = torch.Generator(device="cuda").manual_seed(seed * 1000 + size)
    return torch.randint(0, 256, (size,), dtype=torch.uint8, device="cuda", generator=generator)


def read_elsewhere(server, wanted):
    """Another process reads values into VRAM, each `(key, size, offset)`; the hashes that it finds there."""
    code = """
import hashlib, json, sys, torch, mooncrate
found = []
with mooncrate.Store(master=sys.argv[1], timeout=60.0) as store:
    for key, size, offset in json.loads(sys.argv[2]):
        room = torch.zeros(size + offset, dtype=torch.uint8, device="cuda")
        assert store.get_into(key, room[offset:]) == size, key
        found.append(hashlib.sha256(room[offset:].cpu().numpy().tobytes()).hexdigest())
    client = store.stats()["client"]
print(json.dumps([found, client]))
"""
    command = [sys.executable, "-c", code, server.master, json.dumps(wanted)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def sha(tensor):
    import hashlib

    return hashlib.sha256(tensor.cpu().numpy().tobytes()).hexdigest()


def connected(server, **more):
    return mooncrate.Store(master=server.master, timeout=60.0, **more)


def slow(stream, milliseconds=200):
    """Queues a kernel that takes a while."""
    with torch.cuda.stream(stream):
        torch.cuda._sleep(int(milliseconds * 1_500_000))


@check
def values_of_every_size_come_back(server):
    with connected(server) as store:
        for size in SIZES:
            for offset in (0, 1, 13):
                whole = random(size + offset, offset)
                key = f"size/{size}/{offset}"
                assert store.put(key, whole[offset:])
                room = torch.zeros(size + 64, dtype=torch.uint8, device="cuda")
                assert store.get_into(key, room[7:]) == size
                assert torch.equal(room[7 : 7 + size], whole[offset:]), (size, offset)
                assert not room[:7].any() and not room[7 + size :].any(), (size, offset)
                assert store.remove(key, force=True)


@check
def another_process_reads_it(server):
    media = ["dram"] + (["vram"] if server.vram else [])
    with connected(server) as store:
        wanted, hashes = [], []
        for medium in media:
            for size in (1, 4095, MIB + 17, 64 * MIB):
                value = random(size, 5)
                key = f"other/{medium}/{size}"
                assert store.put(key, value, medium=medium)
                for offset in (0, 5):
                    wanted.append((key, size, offset))
                    hashes.append(sha(value))
        found, client = read_elsewhere(server, wanted)
        for one, expected, got in zip(wanted, hashes, found):
            assert got == expected, one
        print(f"    straight from VRAM: {client['direct_gets']} of {len(wanted)}")
        store.remove_prefix("other/", force=True)


@check
def values_come_back_from_the_disk(server):
    """More than memory holds: the first ones are read from the disk."""
    with connected(server) as store:
        count, size = 28, 128 * MIB
        values = [random(size, n) for n in range(2)]
        for n in range(count):
            for _ in range(100):
                try:
                    assert store.put(f"disk/{n}", values[n % 2])
                    break
                except mooncrate.Busy as error:
                    time.sleep(error.retry_after or 0.05)
        room = torch.zeros(size, dtype=torch.uint8, device="cuda")
        found = 0
        for n in range(count):
            room.zero_()
            if store.get_into(f"disk/{n}", room) is None:
                continue
            found += 1
            assert torch.equal(room, values[n % 2]), n
        assert found > 0
        print(f"    {found} of {count} values were there, {store.stats()['client']['disk']} came from the disk")
        store.remove_prefix("disk/", force=True)


@check
def a_put_waits_for_the_kernels_before_it(server):
    side = torch.cuda.Stream()
    with connected(server) as store:
        for size in (100, MIB, 64 * MIB):
            value = random(size, 3)
            tensor = torch.zeros(size, dtype=torch.uint8, device="cuda")
            torch.cuda.synchronize()
            slow(side)
            with torch.cuda.stream(side):
                tensor.copy_(value)
                began = time.perf_counter()
                assert store.put(f"order/{size}", tensor)
                took = time.perf_counter() - began
            assert took > 0.05, f"the kernel was not slow: {took}"
            assert store.get(f"order/{size}") == value.cpu().numpy().tobytes(), size
        # A stream that is named, and one that nobody named: the default stream.
        tensor = torch.zeros(MIB, dtype=torch.uint8, device="cuda")
        torch.cuda.synchronize()
        slow(side)
        with torch.cuda.stream(side):
            tensor.fill_(7)
        assert store.put("order/named", tensor, stream=side)
        assert store.get("order/named") == b"\x07" * MIB
        torch.cuda._sleep(300_000_000)
        tensor.fill_(9)
        assert store.put("order/default", tensor)
        assert store.get("order/default") == b"\x09" * MIB
        store.remove_prefix("order/", force=True)


@check
def a_get_stands_between_the_kernels_before_and_after_it(server):
    side = torch.cuda.Stream()
    with connected(server) as store:
        for size in (100, MIB, 64 * MIB):
            value = random(size, 4)
            store.put(f"between/{size}", value)
            room = torch.full((size,), 1, dtype=torch.uint8, device="cuda")
            before = torch.zeros_like(room)
            torch.cuda.synchronize()
            slow(side)
            with torch.cuda.stream(side):
                before.copy_(room)
                room.fill_(2)
                assert store.get_into(f"between/{size}", room) == size
                after = room.clone()
            side.synchronize()
            assert (before == 1).all() and torch.equal(after, value) and torch.equal(room, value), size
        store.remove_prefix("between/", force=True)


@check
def kinds_of_tensors(server):
    with connected(server) as store:
        for dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.bool):
            tensor = random(4096, 6).view(torch.uint8).remainder(2).to(dtype)
            assert store.put("kind", tensor, upsert=True)
            room = torch.empty_like(tensor)
            assert store.get_into("kind", room) == tensor.numel() * tensor.element_size()
            assert torch.equal(room.view(torch.uint8), tensor.view(torch.uint8)), dtype
        grows = torch.ones(16, device="cuda", requires_grad=True)
        assert store.put("grad", grows)
        pinned = torch.zeros(64, pin_memory=True)
        assert store.get_into("grad", pinned) == 64 and (pinned[:16] == 1).all()
        assert store.put_tensor("tensor", torch.arange(12, device="cuda").reshape(3, 4).t())
        assert torch.equal(store.get_tensor("tensor"), torch.arange(12).reshape(3, 4).t())
        try:
            store.put("bad", random(64).reshape(8, 8).t())
            raise AssertionError("a tensor that is not contiguous was taken")
        except mooncrate.Invalid as error:
            assert "contiguous()" in str(error)
        graph = torch.cuda.CUDAGraph()
        tensor = random(64)
        try:
            with torch.cuda.graph(graph):
                tensor.add_(1)
                store.put("bad", tensor)
            raise AssertionError("a put was recorded")
        except mooncrate.Invalid as error:
            assert "recorded into a graph" in str(error), error
        assert not store.exists("bad")
        current = torch.cuda.current_device()
        assert current == 0


@check
def batches_and_the_loop(server):
    with connected(server) as store:
        values = {f"batch/{n}": random(n * 100_003 + 1, n) for n in range(40)}
        assert store.put_batch(values) == [True] * 40
        rooms = {key: torch.zeros_like(value) for key, value in values.items()}
        assert store.get_into_batch(rooms) == [value.numel() for value in values.values()]
        assert all(torch.equal(rooms[key], value) for key, value in values.items())

    async def main():
        async with mooncrate.AsyncStore(master=server.master, timeout=60.0) as store:
            rooms = {key: torch.zeros_like(value) for key, value in values.items()}
            await asyncio.gather(*(store.get_into(key, room) for key, room in rooms.items()))
            assert all(torch.equal(rooms[key], value) for key, value in values.items())
            value = random(5 * MIB, 9)
            assert await store.put("async", value)
            assert await store.get("async") == value.cpu().numpy().tobytes()
            await store.remove("async", force=True)

    asyncio.run(main())
    with connected(server) as store:
        store.remove_prefix("batch/", force=True)


@check
def the_drop_in_takes_device_pointers(server):
    from mooncake.store import MooncakeDistributedStore

    store = MooncakeDistributedStore()
    assert store.setup("localhost", "", 0, 64 * MIB, "tcp", "", server.master) == 0
    for size in (1, 4095, MIB + 17, 64 * MIB):
        value, room = random(size, 8), torch.zeros(size, dtype=torch.uint8, device="cuda")
        torch.cuda.synchronize()
        if size > MIB:
            assert store.register_buffer(value.data_ptr(), size) == 0
        assert store.put_from("pointer", value.data_ptr(), size) == 0
        assert store.get_into("pointer", room.data_ptr(), size) == size
        assert torch.equal(value, room), size
        pieces = [room.data_ptr(), room.data_ptr() + size // 2]
        room.zero_()
        split = [size // 2, size - size // 2]
        if min(split) > 0:
            got = store.batch_get_into_multi_buffers(["pointer"], [pieces], [split])
            assert got == [size] and torch.equal(value, room), (size, got)
        if size > MIB:
            assert store.unregister_buffer(value.data_ptr()) == 0
        assert store.remove("pointer", True) == 0
    gone = torch.zeros(32 * MIB, dtype=torch.uint8, device="cuda")
    at = gone.data_ptr()
    del gone
    torch.cuda.empty_cache()
    assert store.put_from("freed", at, 32 * MIB) < 0, "memory that was freed was taken"
    assert store.close() == 0


@check
def the_direct_way_is_used_where_it_can_be(server):
    if not server.vram:
        print("    SKIPPED: this server lends no VRAM")
        return
    with connected(server) as store:
        value = random(5 * MIB + 3, 2)
        assert store.put("direct", value, medium="vram")
        room = torch.zeros_like(value)
        assert store.get_into("direct", room) == value.numel() and torch.equal(room, value)
        client = store.stats()["client"]
        print(f"    direct puts {client['direct_puts']}, gets {client['direct_gets']}, "
              f"through rooms {client['device_fallbacks']}")  # fmt: skip
        assert client["direct_puts"] == 1 and client["direct_gets"] == 1, client
        # Who has no GPU reads the same bytes, through the owner.
        assert store.get("direct") == value.cpu().numpy().tobytes()
        store.remove("direct", force=True)


def median(work, rounds):
    """Seconds of the round in the middle."""
    times = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        began = time.perf_counter()
        work()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return sorted(times)[len(times) // 2]


def figures(server):
    """GB/s of puts and gets beside plain copies from and to pinned memory; the median of some rounds."""
    print("\n| bytes | pinned copy to host | put | put to VRAM | pinned copy to GPU | get_into | from VRAM |")
    print("|---|---|---|---|---|---|---|")
    with connected(server) as store:
        for size in (MIB, 16 * MIB, 256 * MIB):
            rounds = 9 if size > 16 * MIB else 25
            value, room = random(size, 1), torch.zeros(size, dtype=torch.uint8, device="cuda")
            host = torch.empty(size, dtype=torch.uint8, pin_memory=True)
            cells = []

            def rate(work):
                work()  # the first time locks memory, or loads kernels
                cells.append(f"{size / median(work, rounds) / 1e9:.2f}")

            def get(key):
                assert store.get_into(key, room) == size

            def put(key, **more):
                for _ in range(100):
                    try:
                        return store.put(key, value, upsert=True, **more)
                    except mooncrate.Busy as error:
                        # The memory of the value before is on its way back.
                        time.sleep(error.retry_after or 0.001)
                raise AssertionError("the store stays busy")

            rate(lambda: host.copy_(value, non_blocking=True))
            rate(lambda: put("figure"))
            if server.vram:
                rate(lambda: put("figure/vram", medium="vram"))
            else:
                cells.append("–")
            rate(lambda: room.copy_(host, non_blocking=True))
            rate(lambda: get("figure"))
            assert torch.equal(room, value)
            if server.vram:
                room.zero_()
                rate(lambda: get("figure/vram"))
                assert torch.equal(room, value)
            else:
                cells.append("–")
            print(f"| {size // MIB} MiB | " + " | ".join(cells) + " |  GB/s")
            store.remove_prefix("figure", force=True)


def main():
    failed, began = [], time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="mooncrate-device-") as folder:
        server = Server(pathlib.Path(folder))
        print(f"server lends VRAM: {'yes' if server.vram else 'no'}")
        try:
            for work in [*CHECKS, figures]:
                start = time.perf_counter()
                try:
                    work(server)
                    torch.cuda.synchronize()
                    print(f"ok      {work.__name__}  {time.perf_counter() - start:.1f} s")
                except BaseException:
                    failed.append(work.__name__)
                    print(f"FAILED  {work.__name__}\n{traceback.format_exc()}")
                    if server.process.poll() is not None:
                        print((server.folder / "serve.log").read_text()[-4000:])
                        break
        finally:
            server.stop()
    passed = len(CHECKS) + 1 - len(failed)
    words = f"{passed} passed, {len(failed)} failed in {time.perf_counter() - began:.0f} s"
    print(f"{ROW} | {words}" + (f": {', '.join(failed)}" if failed else ""))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
