"""Whether large values come back from the memory of GPUs, in a group of two ranks.

    python3 gpu_nano_large.py       with the package `mooncrate` beside it (`rig.py` says more)

Each rank puts values of 64, 65, 128 and 512 MiB into each heap, the other one compares every byte. Then they are
removed, and the same keys take others. With and without checksums.
"""

import sys

from rig import run_checks, run_ranks, torch_or_skip

ROW = "large values in the memory of GPUs, two ranks"
MIB = 1 << 20
SIZES = [64, 65, 128, 512]

torch = torch_or_skip(ROW)


def random(size, *seeds):
    generator = torch.Generator(device="cuda").manual_seed(hash(seeds) % (1 << 40))
    return torch.randint(0, 256, (size,), dtype=torch.uint8, device="cuda", generator=generator)


def plain():
    print("".join(run_ranks(__file__, 2, "")), end="")


def with_checksums():
    print("".join(run_ranks(__file__, 2, "checksums")), end="")


def as_rank(path, rank, world, checksums):
    from mooncrate.nano import NanoKVCache

    failed = []
    with NanoKVCache(3 << 30, rank=rank, world=world, path=path, checksums=checksums) as cache:
        for size in SIZES:
            for owner in range(world):
                for again in range(2):
                    key = f"{size}/{owner}"
                    value = random(size * MIB, size, owner, again, rank)
                    try:
                        cache.put(f"{rank}/{key}", value, preferred_segment=owner)
                        stored = True
                    except Exception as error:
                        stored = False
                        failed.append(f"put of {size} MiB to rank {owner}: {error}")
                    cache.barrier()
                    if stored:
                        room = torch.zeros_like(value)
                        other = 1 - rank
                        try:
                            if not cache.get_into(f"{other}/{key}", room):
                                failed.append(f"{size} MiB at rank {owner}: no value")
                            elif not torch.equal(room, random(size * MIB, size, owner, again, other)):
                                failed.append(f"{size} MiB at rank {owner}: WRONG BYTES")
                        except Exception as error:
                            failed.append(f"get of {size} MiB from rank {owner}: {error}")
                    cache.barrier()
                    if stored:
                        cache.remove(f"{rank}/{key}")
                    cache.barrier()
    assert not failed, "\n".join(failed)
    print(f"    rank {rank}: {SIZES} MiB in both heaps, twice: all right")


if len(sys.argv) > 1:
    as_rank(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "checksums")
else:
    run_checks(ROW, [plain, with_checksums])
