"""Every call that knows tensors, with arguments of any kind: answers or a TypeError, never worse."""

import ctypes
import inspect
import random
from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip(
    "torch", reason="torch is not installed; ./dev test --torch installs it"
)

from conftest import PATIENCE
from mooncake.store import (
    MooncakeDistributedStore,
    ParallelAxis,
    ReadTarget,
    ReplicateConfig,
    TensorParallelism,
    _serialize_tensor,
)

CALLS = sorted(
    name
    for name in dir(MooncakeDistributedStore)
    if "tensor" in name and not name.startswith("_") and "safetensor" not in name
)
SEEDS = range(4)
ROUNDS = 60


def numbers(chance):
    return chance.choice([0, 1, 2, 3, -1, 7, 304, 400, 4096, 2**31, 2**63, 2**64, 2**80])


class Values:
    """Arguments by the names of parameters, mostly of the right kind."""

    def __init__(self, chance):
        self.chance = chance
        head, at, size, self.owner = _serialize_tensor(torch.arange(12.0).reshape(3, 4))
        self.memory = ctypes.create_string_buffer(head + ctypes.string_at(at, size), 4096)
        self.size = len(head) + size

    def one(self, name):
        if self.chance.random() < 0.2:
            return self.junk()
        if name.endswith(
            ("keys", "list", "ptrs", "sizes", "parallelisms", "partitions", "targets")
        ):
            singular = {"tensors_list": "tensor", "base_keys": "key"}.get(
                name, name.removesuffix("s")
            )
            return [self.one(singular) for _ in range(self.chance.randrange(4))]
        return self.good(name)

    def junk(self):
        return self.chance.choice([None, "", b"", "text", 1.5, [], {}, (), object(), True, -1])

    def good(self, name):
        choice = self.chance.choice
        tensors = [torch.arange(12.0).reshape(3, 4), torch.tensor(1), torch.empty(0, 2), "no"]
        if name in ("buffer_ptr", "size"):
            # Memory is there, and no more of it than there is.
            good = {"buffer_ptr": ctypes.addressof(self.memory), "size": self.size}
            bad = {"buffer_ptr": [0, -1, 2**63, 2**80], "size": [0, -1, 100, 303, 304, 4096]}
            return good[name] if self.chance.random() < 0.7 else choice(bad[name])
        axis = ParallelAxis(choice(["tp", "dp", "ep", "x"]), *self.three(), choice([None, 0, 3]))
        layout = TensorParallelism([axis] * choice([0, 1, 1, 2]))
        return {
            "key": lambda: choice(["a", "b", b"c", ""]),
            "tensor": lambda: choice(tensors),
            "config": lambda: choice([ReplicateConfig(), None]),
            "parallelism": lambda: choice([None, layout]),
            "writer_partition": lambda: choice([None, None, axis]),
            "target": lambda: choice(
                [None, ReadTarget(choice(["full", "shard", "as_stored"]), layout)]
            ),
        }.get(name, lambda: numbers(self.chance))()

    def three(self):
        return numbers(self.chance), numbers(self.chance), self.chance.choice([None, 0, 1, 5])


def hunt(store, seed):
    """Calls with arguments that follow from a seed; how many had an answer."""
    chance = random.Random(seed)
    made = 0
    for _ in range(ROUNDS):
        name = chance.choice(CALLS)
        call, values = getattr(store, name), Values(chance)
        names = [*inspect.signature(call).parameters]
        arguments = {one: values.one(one) for one in names[: chance.randint(1, len(names))]}
        try:
            answer = call(**arguments)
        except TypeError:
            continue
        made += 1
        kinds = (int, torch.Tensor, type(None))
        entries = answer if isinstance(answer, list) else [answer]
        assert all(isinstance(entry, kinds) for entry in entries), (name, arguments, answer)
    return made


@pytest.mark.parametrize("seed", SEEDS)
def test_any_arguments(store, seed):
    assert hunt(store, seed) > 0


def test_any_arguments_from_many_threads_while_the_store_closes(store):
    with ThreadPoolExecutor(8) as threads:
        hunts = [threads.submit(hunt, store, seed) for seed in range(100, 116)]
        assert sum(one.result(PATIENCE) for one in hunts[:8]) > 0
        assert store.close() == 0
        assert sum(one.result(PATIENCE) for one in hunts) > 0
